/*
 * Operations: a group's queue of works, in order of start.  A poll or wait drives the
 * oldest one, so a group needs no thread of its own; consecutive sends and receives at the head of
 * the queue take turns, because one may wait for the other.
 *
 * A wait is cut in pieces by the milestones of the operation's time-out: warnings at 25 and 50 %,
 * the end at 100 %.
 */
#include "common/base/clock.h"
#include "common/base/stop.h"
#include "common/collective/collective_blocking.h"
#include "common/collective/collective_ops.h"
#include "common/collective/flight/flight.h"
#include "common/collective/verdict.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* How long one of several sends and receives may keep the others waiting. */
#define TURN_NS 200000

/* Longest time inside the backend, so that progress is published to the peers. */
#define SLICE_NS 100000000

/* Warnings come at 1/4 and 2/4 of the time-out. */
#define WARNINGS 2

/* Bytes have no sum, and integers no factor, whatever the backend. */
static bool has_meaning(const struct collective_args *args)
{
    if (args->call < COLLECTIVE_ALL_REDUCE || args->call >= COLLECTIVE_CLOSE)
        return false;
    if (!collective_call_reduces(args->call))
        return true;
    return args->dtype != DTYPE_BYTE &&
           (args->op != REDUCE_PREMUL_SUM || dtype_is_float(args->dtype));
}

bool collective_supports(const struct collective *group, const struct collective_args *args)
{
    bool copied = group->world_size == 1 && !group->ops->alone;

    return has_meaning(args) &&
           (copied || !group->ops->supports || group->ops->supports(group, args));
}

/* ---- starting ---- */

static enum status check_args(const struct collective *g, const struct collective_args *args,
                              struct error *err)
{
    const char *call = collective_call_name(args->call);

    if (args->root >= g->world_size)
        return error_set(err, STATUS_INVALID, "%s: rank %u is not in group '%s' of %u", call,
                         args->root, g->name, g->world_size);
    if (collective_call_is_pair(args->call) && args->root == g->rank)
        return error_set(err, STATUS_INVALID, "%s: rank %u is this rank itself", call, args->root);
    if (!collective_supports(g, args))
        return error_set(err, STATUS_UNSUPPORTED, "the %s backend has no %s of %s%s%s%s",
                         g->ops->name, call, dtype_name(args->dtype),
                         collective_call_reduces(args->call) ? ", " : "",
                         collective_call_reduces(args->call) ? reduce_op_name(args->op) : "",
                         args->order == REDUCE_REPRODUCIBLE ? ", in rank order" : "");
    return STATUS_OK;
}

static uint64_t next_sequence(struct collective *g, const struct collective_args *args)
{
    if (args->call == COLLECTIVE_SEND)
        return ++g->sent[args->root];
    if (args->call == COLLECTIVE_RECV)
        return ++g->received[args->root];
    return ++g->sequence;
}

static enum status failed_before(const struct collective *g, struct error *err)
{
    return error_set(err, g->failure.status, "group '%s' failed before: %s", g->name,
                     g->failure.text);
}

static void record_queued(struct collective_work *w)
{
    struct flight_entry entry = {.signature = w->signature,
                                 .queued_ns = w->queued_ns,
                                 .step = w->args.step,
                                 .bucket = w->args.bucket,
                                 .buckets = w->args.buckets};

    (void)memccpy(entry.group, w->group->name, '\0', sizeof(entry.group) - 1);
    w->flight_index = flight_queue(w->group->flight, &entry);
    w->is_recorded = true;
}

enum status collective_start(struct collective *group, const struct collective_args *args,
                             struct collective_work **ret_work, struct error *err)
{
    struct collective_work *w;
    enum status status;

    if (group->failure.status != STATUS_OK)
        return failed_before(group, err);
    status = check_args(group, args, err);
    if (status != STATUS_OK)
        return status;
    w = &group->works[(group->first_work + group->work_count) % COLLECTIVE_WORKS_MAX];
    if (group->work_count == COLLECTIVE_WORKS_MAX || w->state != WORK_FREE)
        return error_set(err, STATUS_INVALID, "group '%s': %u operations were not waited for",
                         group->name, COLLECTIVE_WORKS_MAX);
    memset(w, 0, offsetof(struct collective_work, error));
    w->group = group;
    w->args = *args;
    w->state = WORK_QUEUED;
    w->signature = (struct signature){
        .call = args->call,
        .dtype = args->dtype,
        .op = args->op,
        .order = args->order,
        .group = group->id,
        .generation = group->generation,
        .sequence = next_sequence(group, args),
        .count = args->count,
        .root = args->root,
    };
    w->queued_ns = clock_now_ns();
    record_queued(w);
    group->work_count++;
    *ret_work = w;
    return STATUS_OK;
}

/* ---- running ---- */

static struct collective_work *work_at(struct collective *g, size_t index)
{
    return &g->works[(g->first_work + index) % COLLECTIVE_WORKS_MAX];
}

/* Alone, every operation is a copy, or nothing. */
void collective_run_alone(struct collective_work *w)
{
    struct collective *g = w->group;
    size_t bytes = collective_output_bytes(g, &w->args);

    if (bytes > 0 && w->args.input && w->args.output != w->args.input)
        memmove(w->args.output, w->args.input, bytes);
    if (bytes > 0 && collective_call_reduces(w->args.call) && w->args.op == REDUCE_PREMUL_SUM)
        reduce_scale(w->args.dtype, w->args.output, w->args.factor, w->args.count);
    g->stats.operations++;
}

/* What this rank does now, for peers that ask. */
static void publish_status(const struct collective_work *w, enum mesh_phase phase, int64_t since_ns)
{
    const struct collective *g = w->group;
    const struct mesh_status status = {.group = g->id,
                                       .phase = phase,
                                       .signature = w->signature,
                                       .done_bytes = w->done_bytes,
                                       .total_bytes = w->total_bytes,
                                       .waited_ns = w->waited_ns,
                                       .since_ns = since_ns};

    if (g->in_mesh)
        mesh_publish(g->mesh, g->mesh_group_index, &status);
}

void collective_progress(struct collective_work *work, uint64_t done_bytes)
{
    struct collective *g = work->group;

    work->done_bytes = done_bytes;
    if (!work->is_recorded)
        return;
    flight_progress(g->flight, work->flight_index, done_bytes, work->total_bytes);
    if (g->in_mesh)
        mesh_progress(g->mesh, g->mesh_group_index, done_bytes);
}

static void end_work(struct collective_work *w, enum work_state state)
{
    int64_t now_ns = clock_now_ns();

    w->state = state;
    publish_status(w, MESH_IDLE, now_ns);
    flight_end(w->group->flight, w->flight_index, state == WORK_DONE, w->done_bytes, w->total_bytes,
               now_ns);
}

/* A work that fails fails its group; of a group that has failed all works do. */
static void fail_work(struct collective_work *w, const struct error *why)
{
    collective_fail(w->group, why);
    w->error = w->group->failure;
    end_work(w, WORK_FAILED);
}

/* The work failed or timed out: find fault and culprit, and fail the group. */
static void fail_with_verdict(struct collective_work *w, enum verdict_cause cause,
                              struct error *err)
{
    if (w->group->in_mesh)
        verdict_reach(w->group, w, cause, err);
    else if (cause == VERDICT_TIMEOUT) /* a world of one has no culprit */
        (void)error_set(err, STATUS_TIMEOUT, "%s does not end", w->group->ops->name);
    fail_work(w, err);
}

/* A signal is no fault of a rank. */
static void fail_cancelled(struct collective_work *w, struct error *err)
{
    (void)error_set(err, STATUS_CANCELLED, "stopped by signal %d while %s waited", stop_requested(),
                    collective_call_name(w->args.call));
    fail_work(w, err);
}

static enum run_outcome run_backend(struct collective_work *w, int64_t until_ns, struct error *err)
{
    struct collective *g = w->group;

    return g->ops->blocking ? collective_blocking_run(g, w, until_ns, err)
                            : g->ops->run(g, w, until_ns, err);
}

/* The moment of the next warning. */
static int64_t warning_ns(const struct collective_work *w)
{
    return w->group->timeout_ms * 1000000 / COLLECTIVE_WARNINGS_PART * (w->warnings + 1);
}

static void warn_if_slow(struct collective_work *w, int64_t now_ns)
{
    const struct collective_ops *ops = w->group->ops;
    int64_t waited_ns = now_ns - w->started_ns;

    /* Ranks that differ would wait until the time-out: compare the operations of those that
     * started. */
    if ((ops->unchecked || ops->composite) && waited_ns >= COLLECTIVE_COMPARE_NS &&
        waited_ns >= w->compare_ns)
        w->compare_ns = verdict_compare(w->group, w) ? INT64_MAX : 2 * waited_ns;
    if (w->warnings < WARNINGS && waited_ns >= warning_ns(w)) {
        w->warnings++;
        verdict_warn(w->group, w, (double)waited_ns * 1e-9);
    }
}

void collective_report(struct collective_work *w, int64_t now_ns)
{
    struct collective *g = w->group;

    flight_progress(g->flight, w->flight_index, w->done_bytes, w->total_bytes);
    publish_status(w, MESH_RUNNING, w->started_ns);
    if (g->in_mesh)
        warn_if_slow(w, now_ns);
}

static void begin_work(struct collective_work *w, int64_t now_ns)
{
    w->state = WORK_RUNNING;
    w->started_ns = now_ns;
    flight_start(w->group->flight, w->flight_index, now_ns);
    if (w->group->keeps_trail && !collective_call_is_pair(w->args.call))
        mesh_note(w->group->mesh, w->group->mesh_group_index, &w->signature);
    publish_status(w, MESH_RUNNING, w->started_ns);
}

/* End of the backend's time slice: progress is published after each. */
static int64_t slice_end(int64_t now_ns, int64_t until_ns, int64_t end_ns)
{
    int64_t slice_ns = now_ns + SLICE_NS;

    if (until_ns > slice_ns)
        until_ns = slice_ns;
    return until_ns < end_ns ? until_ns : end_ns;
}

/* Advance one work until until_ns, or for a slice of time.  An operation of a few bytes takes less
 * than a microsecond: the clock is read once at most, and the error's text not cleared. */
static void drive_work(struct collective_work *w, int64_t until_ns)
{
    struct collective *g = w->group;
    bool begins_now = w->runs_at_once && w->state == WORK_QUEUED;
    int64_t now_ns = begins_now ? w->queued_ns : clock_now_ns();
    struct error err;
    int64_t end_ns;

    err.status = STATUS_OK;
    err.text[0] = '\0';
    if (g->failure.status != STATUS_OK && !collective_blocking_holds(g, w)) {
        fail_work(w, &g->failure);
        return;
    }
    if (w->state == WORK_QUEUED) {
        begin_work(w, now_ns);
        /* A short operation would not see the alarm. */
        if (g->keeps_trail && atomic_load(&g->alarm->raised)) {
            fail_with_verdict(w, VERDICT_ALARM, &err);
            return;
        }
    }
    if (g->world_size == 1 && !g->ops->alone) {
        collective_run_alone(w);
        end_work(w, WORK_DONE);
        return;
    }
    end_ns = w->started_ns + g->timeout_ms * 1000000;
    switch (run_backend(w, slice_end(now_ns, until_ns, end_ns), &err)) {
    case RUN_DONE:
        end_work(w, WORK_DONE);
        break;
    case RUN_FAILED:
        fail_with_verdict(w, VERDICT_FAILED, &err);
        break;
    case RUN_PENDING:
        collective_report(w, clock_now_ns());
        if (collective_blocking_holds(g, w))
            break; /* its watchdog ends the call first */
        if (g->alarm && atomic_load(&g->alarm->raised))
            fail_with_verdict(w, VERDICT_ALARM, &err);
        else if (stop_ends_waits())
            fail_cancelled(w, &err);
        else if (clock_now_ns() >= end_ns)
            fail_with_verdict(w, VERDICT_TIMEOUT, &err);
        break;
    }
}

/* A work that was waited for before older ones is free, and in the queue still. */
static bool has_ended(const struct collective_work *w)
{
    return w->state != WORK_QUEUED && w->state != WORK_RUNNING;
}

/* The works that may move now: the oldest unfinished one, and, when that is a send or receive, all
 * sends and receives right behind it.  Returns whether anything was left to drive. */
static bool drive_oldest_works(struct collective *g, int64_t until_ns)
{
    bool several = false;
    size_t first = 0;
    size_t last;

    while (first < g->work_count && has_ended(work_at(g, first)))
        first++;
    if (first == g->work_count)
        return false;
    last = first + 1;
    if (collective_call_is_pair(work_at(g, first)->args.call))
        while (last < g->work_count && collective_call_is_pair(work_at(g, last)->args.call))
            last++;
    several = last - first > 1;
    for (size_t i = first; i < last && several && g->ops->blocking; i++)
        if (work_at(g, i)->state == WORK_QUEUED)
            drive_work(work_at(g, i), 0); /* under way before any of them is waited for */
    for (size_t i = first; i < last; i++) {
        int64_t turn_ns = several ? clock_now_ns() + TURN_NS : until_ns;

        if (!has_ended(work_at(g, i)))
            drive_work(work_at(g, i), turn_ns < until_ns ? turn_ns : until_ns);
    }
    return true;
}

void collective_poll(struct collective_work *work, bool *ret_done)
{
    work->group->no_deadline = false;
    if (!has_ended(work))
        (void)drive_oldest_works(work->group, 0);
    *ret_done = has_ended(work);
}

/* Free the handle, and those before it that were freed out of order. */
static void release_work(struct collective_work *w)
{
    struct collective *g = w->group;

    w->state = WORK_FREE;
    while (g->work_count > 0 && work_at(g, 0)->state == WORK_FREE) {
        g->first_work = (g->first_work + 1) % COLLECTIVE_WORKS_MAX;
        g->work_count--;
    }
}

enum status collective_wait(struct collective_work *work, int64_t deadline_ns, struct error *err)
{
    enum status status = STATUS_OK;

    assert(work->state != WORK_FREE);
    work->group->no_deadline = deadline_ns == INT64_MAX;
    while (!has_ended(work)) {
        (void)drive_oldest_works(work->group, deadline_ns);
        if (!has_ended(work) && deadline_ns != INT64_MAX && clock_now_ns() >= deadline_ns) {
            char text[COLLECTIVE_TEXT_SIZE];

            signature_text(&work->signature, text);
            return error_set(err, STATUS_TIMEOUT, "%s has not ended yet", text);
        }
    }
    if (work->state == WORK_FAILED)
        status = error_set(err, work->error.status, "%s", work->error.text);
    release_work(work);
    return status;
}

enum status collective_run(struct collective *group, const struct collective_args *args,
                           struct error *err)
{
    struct collective_work *work = NULL;
    enum status status = collective_start(group, args, &work, err);

    if (work)
        work->runs_at_once = group->work_count == 1;
    return work ? collective_wait(work, INT64_MAX, err) : status;
}

/* ---- shorthands ---- */

enum status collective_all_reduce(struct collective *group, float *data, size_t count,
                                  enum reduce_order order, struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .order = order,
                                   .input = data,
                                   .output = data,
                                   .count = count};

    return collective_run(group, &args, err);
}

enum status collective_broadcast(struct collective *group, void *data, size_t bytes, unsigned root,
                                 struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_BROADCAST,
                                   .dtype = DTYPE_BYTE,
                                   .input = data,
                                   .output = data,
                                   .count = bytes,
                                   .root = root};

    return collective_run(group, &args, err);
}

enum status collective_all_gather(struct collective *group, const void *mine, size_t bytes,
                                  void *all, struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_GATHER,
                                   .dtype = DTYPE_BYTE,
                                   .input = mine,
                                   .output = all,
                                   .count = bytes};

    return collective_run(group, &args, err);
}

enum status collective_barrier(struct collective *group, struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_BARRIER};

    return collective_run(group, &args, err);
}
