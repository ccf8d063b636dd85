/*
 * The hier backend: shm inside a host, a ring between hosts.
 *
 * All-reduce in three stages per chunk: reduce inside the host (every rank a slice, or the leader
 * all of it), all-reduce between the hosts, spread inside the host.  While one chunk is between the
 * hosts, the next is being reduced and the one before spread.  All other calls, and sums in rank
 * order, go through a ring of all ranks: it is exact there, and a training step spends little time
 * in them.
 *
 * The inner groups are whole groups, but this backend drives their backends itself: there is one
 * queue, one time-out and one verdict, those of the outer group.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/collective/collective_ops.h"
#include "common/collective/hier/hier_chunk.h"
#include "common/collective/hier/hier_mismatch.h"
#include "common/collective/hier/hier_plan.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define TURN_NS 100000 /* longest turn of one level while the other is busy */

/* One inner group and the operation that runs on it. */
struct hier_level {
    struct collective *group; /* owned; NULL: this rank is not in it */
    struct collective_work work;
    bool is_busy;
};

struct hier_group {
    struct collective base;
    struct hier_layout layout;
    struct hier_level local, cross;
    struct collective *world;            /* owned */
    struct collective_work *world_works; /* owned; one for every work of the outer queue */
};

/* Of one all_reduce, in its work's backend state. */
struct hier_state {
    bool has_begun;
    size_t chunks;
    size_t local_step; /* done, of 2 * chunks */
    size_t came_in;    /* chunks reduced inside the host */
    size_t crossed;    /* chunks reduced between hosts */
    bool is_rest;      /* the elements behind the last chunk are on their way */
    int64_t waited_ns; /* in inner operations that have ended */
};

_Static_assert(sizeof(struct hier_state) <= COLLECTIVE_WORK_STATE, "");

/* ---- inner operations ---- */

static void begin_inner(struct collective *group, struct collective_work *w,
                        const struct collective_args *args, uint64_t sequence)
{
    *w = (struct collective_work){
        .group = group, .args = *args, .state = WORK_RUNNING, .started_ns = clock_now_ns()};
    w->signature = (struct signature){.call = args->call,
                                      .dtype = args->dtype,
                                      .op = args->op,
                                      .order = args->order,
                                      .group = group->id,
                                      .generation = group->generation,
                                      .sequence = sequence,
                                      .count = args->count,
                                      .root = args->root};
}

static enum run_outcome run_inner(struct collective *group, struct collective_work *w,
                                  int64_t until_ns, struct error *err)
{
    if (group->world_size > 1)
        return group->ops->run(group, w, until_ns, err);
    collective_run_alone(w);
    return RUN_DONE;
}

static void start_level(struct hier_level *level, const struct collective_args *args)
{
    begin_inner(level->group, &level->work, args, ++level->group->sequence);
    level->is_busy = true;
}

static enum run_outcome run_level(struct hier_level *level, int64_t until_ns, struct error *err)
{
    enum run_outcome outcome = run_inner(level->group, &level->work, until_ns, err);

    level->is_busy = outcome == RUN_PENDING;
    return outcome;
}

/* The wait of an inner operation counts for the outer one. */
static void add_level_wait(const struct hier_level *level, struct hier_state *s)
{
    s->waited_ns += level->work.waited_ns;
}

/* ---- all_reduce ---- */

static void start_local(struct hier_group *h, const struct collective_args *a,
                        const struct hier_state *s)
{
    struct hier_step step;
    struct collective_args args;

    if (h->local.is_busy || s->local_step == 2 * s->chunks)
        return;
    step = hier_plan_step(s->local_step, s->chunks);
    if (step.is_out && s->crossed <= step.chunk)
        return;
    args = step.is_out ? hier_chunk_out(&h->layout, a, step.chunk)
                       : hier_chunk_in(&h->layout, a, step.chunk);
    start_level(&h->local, &args);
}

static void start_cross(struct hier_group *h, const struct collective_args *a, struct hier_state *s)
{
    struct collective_args args;

    if (h->cross.is_busy || s->crossed == s->came_in)
        return;
    if (!h->cross.group) { /* the leader does it */
        s->crossed = s->came_in;
        return;
    }
    args = hier_chunk_cross(&h->layout, a, s->crossed);
    start_level(&h->cross, &args);
}

static void end_local(struct hier_state *s)
{
    if (!hier_plan_step(s->local_step, s->chunks).is_out)
        s->came_in++;
    s->local_step++;
}

static void add_stats(struct collective_stats *sum, const struct collective *group)
{
    if (!group)
        return;
    sum->tx_payload_bytes += group->stats.tx_payload_bytes;
    sum->rx_payload_bytes += group->stats.rx_payload_bytes;
    sum->tx_wire_bytes += group->stats.tx_wire_bytes;
    sum->rx_wire_bytes += group->stats.rx_wire_bytes;
    sum->tx_queued_bytes += group->stats.tx_queued_bytes;
}

/* The bytes of all levels so far. */
static void count_bytes(struct hier_group *h, struct collective_work *work)
{
    struct collective_stats *stats = &h->base.stats;
    uint64_t before = stats->tx_payload_bytes + stats->rx_payload_bytes;
    struct collective_stats sum = {.operations = stats->operations};

    add_stats(&sum, h->local.group);
    add_stats(&sum, h->cross.group);
    add_stats(&sum, h->world);
    *stats = sum;
    collective_progress(work,
                        work->done_bytes + sum.tx_payload_bytes + sum.rx_payload_bytes - before);
}

/* Advance both levels until nothing more can be done before until_ns. */
static enum run_outcome run_chunks(struct hier_group *h, struct collective_work *work,
                                   int64_t until_ns, struct error *err)
{
    struct hier_state *s = (struct hier_state *)work->backend;
    const struct collective_args *a = &work->args;

    while (s->local_step < 2 * s->chunks) {
        bool both;
        bool progress = false;
        int64_t now_ns = clock_now_ns();
        int64_t turn_ns = until_ns;

        start_cross(h, a, s);
        start_local(h, a, s);
        both = h->local.is_busy && h->cross.is_busy;
        if (both && now_ns + TURN_NS < until_ns)
            turn_ns = now_ns + TURN_NS;
        if (h->local.is_busy) {
            enum run_outcome outcome = run_level(&h->local, both ? 0 : turn_ns, err);

            if (outcome == RUN_FAILED)
                return RUN_FAILED;
            if (outcome == RUN_DONE) {
                add_level_wait(&h->local, s);
                end_local(s);
            }
            progress = outcome == RUN_DONE;
        }
        if (h->cross.is_busy) {
            enum run_outcome outcome = run_level(&h->cross, progress ? 0 : turn_ns, err);

            if (outcome == RUN_FAILED)
                return RUN_FAILED;
            if (outcome == RUN_DONE) {
                add_level_wait(&h->cross, s);
                s->crossed++;
            }
            progress = progress || outcome == RUN_DONE;
        }
        if (progress)
            count_bytes(h, work);
        if (!progress && (clock_now_ns() >= until_ns || atomic_load(&h->base.alarm->raised)))
            return RUN_PENDING;
    }
    return RUN_DONE;
}

static bool is_int_avg(const struct collective_args *a)
{
    return a->op == REDUCE_AVG && !dtype_is_float(a->dtype);
}

/* Sums of integers become averages. */
static void divide_sums(const struct hier_group *h, const struct collective_args *a)
{
    struct reduction r = {
        .dtype = a->dtype, .op = REDUCE_AVG, .divisor = (int64_t)h->base.world_size};
    const void *input = a->output;
    void *output = a->output;

    if (is_int_avg(a))
        reduce_arrays(&r, &output, 1, &input, 1, hier_chunk_even_count(&h->layout, a));
}

static struct collective_work *world_work(struct hier_group *h, const struct collective_work *work)
{
    return &h->world_works[work - h->base.works];
}

static enum run_outcome run_all_reduce(struct hier_group *h, struct collective_work *work,
                                       int64_t until_ns, struct error *err)
{
    struct hier_state *s = (struct hier_state *)work->backend;
    const struct collective_args *a = &work->args;
    enum run_outcome outcome;

    if (!s->has_begun) {
        s->has_begun = true;
        s->chunks = hier_chunk_count(&h->layout, a);
    }
    outcome = run_chunks(h, work, until_ns, err);
    if (outcome != RUN_DONE)
        return outcome;
    if (!s->is_rest) {
        struct collective_args rest = hier_chunk_rest(&h->layout, a);

        s->is_rest = true;
        divide_sums(h, a);
        if (rest.count > 0)
            begin_inner(h->world, world_work(h, work), &rest, ++h->world->sequence);
    }
    if (hier_chunk_even_count(&h->layout, a) == a->count)
        return RUN_DONE;
    return run_inner(h->world, world_work(h, work), until_ns, err);
}

/* ---- other calls ---- */

/* Through the ring of all ranks, unchanged. */
static enum run_outcome run_delegated(struct hier_group *h, struct collective_work *work,
                                      int64_t until_ns, struct error *err)
{
    struct hier_state *s = (struct hier_state *)work->backend;
    struct collective_work *inner = world_work(h, work);
    bool is_transfer = collective_call_is_pair(work->args.call);

    if (!s->has_begun)
        begin_inner(h->world, inner, &work->args,
                    is_transfer ? work->signature.sequence : ++h->world->sequence);
    s->has_begun = true;
    return run_inner(h->world, inner, until_ns, err);
}

static bool is_two_level(const struct collective_args *a)
{
    return a->call == COLLECTIVE_ALL_REDUCE && a->order == REDUCE_FAST;
}

/* How long this rank has waited for others so far, on all levels. */
static int64_t sum_waited_ns(struct hier_group *h, const struct collective_work *work)
{
    const struct hier_state *s = (const struct hier_state *)work->backend;
    int64_t sum = s->waited_ns;

    if (h->local.is_busy)
        sum += h->local.work.waited_ns;
    if (h->cross.is_busy)
        sum += h->cross.work.waited_ns;
    if (!is_two_level(&work->args) ||
        (s->is_rest && hier_chunk_even_count(&h->layout, &work->args) < work->args.count))
        sum += world_work(h, work)->waited_ns;
    return sum;
}

/* The inner group that found a mismatch; NULL: none. */
static const struct collective *find_mismatch(const struct hier_group *h)
{
    const struct collective *inner[] = {h->local.group, h->cross.group, h->world};

    for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]); i++)
        if (inner[i] && inner[i]->fault != FAULT_NONE)
            return inner[i];
    return NULL;
}

static enum run_outcome hier_run(struct collective *group, struct collective_work *work,
                                 int64_t until_ns, struct error *err)
{
    struct hier_group *h = (struct hier_group *)group;
    enum run_outcome outcome;

    if (work->total_bytes == 0) {
        uint64_t tx;
        uint64_t rx;

        group->ops->expected_bytes(group, &work->args, &tx, &rx);
        work->total_bytes = tx + rx;
    }
    outcome = is_two_level(&work->args) ? run_all_reduce(h, work, until_ns, err)
                                        : run_delegated(h, work, until_ns, err);

    count_bytes(h, work);
    work->waited_ns = sum_waited_ns(h, work);
    group->stats.operations += outcome == RUN_DONE;
    if (outcome == RUN_FAILED && err->status == STATUS_MISMATCH && find_mismatch(h))
        return hier_mismatch(group, work, find_mismatch(h), err);
    return outcome;
}

static void add_bytes(const struct collective *group, const struct collective_args *a, uint64_t *tx,
                      uint64_t *rx)
{
    uint64_t more_tx;
    uint64_t more_rx;

    collective_expected_bytes(group, a, &more_tx, &more_rx);
    *tx += more_tx;
    *rx += more_rx;
}

static void hier_expected_bytes(const struct collective *group, const struct collective_args *a,
                                uint64_t *ret_tx, uint64_t *ret_rx)
{
    const struct hier_group *h = (const struct hier_group *)group;
    struct collective_args rest = *a;

    *ret_tx = *ret_rx = 0;
    for (size_t k = 0; is_two_level(a) && k < hier_chunk_count(&h->layout, a); k++) {
        struct collective_args in = hier_chunk_in(&h->layout, a, k);
        struct collective_args cross = hier_chunk_cross(&h->layout, a, k);
        struct collective_args out = hier_chunk_out(&h->layout, a, k);

        add_bytes(h->local.group, &in, ret_tx, ret_rx);
        if (h->cross.group)
            add_bytes(h->cross.group, &cross, ret_tx, ret_rx);
        add_bytes(h->local.group, &out, ret_tx, ret_rx);
    }
    if (is_two_level(a))
        rest = hier_chunk_rest(&h->layout, a);
    if (rest.count > 0 || !is_two_level(a))
        add_bytes(h->world, &rest, ret_tx, ret_rx);
}

static enum status hier_register(struct collective *group, const struct shared_memory *memory,
                                 int64_t deadline_ns, struct error *err)
{
    struct collective *local = ((struct hier_group *)group)->local.group;

    if (local->world_size == 1 || !local->ops->register_memory)
        return STATUS_OK;
    return local->ops->register_memory(local, memory, deadline_ns, err);
}

/* ---- lifetime ---- */

static void close_inner(struct collective *group, const struct error *failure)
{
    if (group && failure->status != STATUS_OK)
        group->failure = *failure;
    collective_close(group);
}

static void hier_close(struct collective *group)
{
    struct hier_group *h = (struct hier_group *)group;

    close_inner(h->world, &group->failure);
    close_inner(h->cross.group, &group->failure);
    close_inner(h->local.group, &group->failure);
    free(h->world_works);
}

static enum status open_inner(struct hier_group *h, const struct collective_ops *ops,
                              const char *what, unsigned number, const unsigned *ranks,
                              unsigned count, struct collective **ret, struct error *err)
{
    char name[128];
    unsigned *members;
    enum status status = mem_calloc(count, sizeof(*members), "members", &members, err);

    if (status != STATUS_OK)
        return status;
    (void)snprintf(name, sizeof(name), "%s/%s%u", h->base.name, what, number);
    for (unsigned i = 0; i < count; i++)
        members[i] = h->base.members[ranks[i]];
    status =
        collective_open_like(&h->base, ops, name, h->base.generation, members, count, ret, err);
    free(members);
    return status;
}

static enum status open_levels(struct hier_group *h, const char (*ids)[HOST_ID_SIZE],
                               unsigned *ranks, struct error *err)
{
    unsigned n = h->base.world_size;
    unsigned *cross = ranks + n;
    unsigned cross_count;
    enum status status;

    hier_plan_layout(ids, n, h->base.rank, &h->layout, ranks, cross, &cross_count);
    status = open_inner(h, &collective_shm_ops, "local", h->layout.host, ranks,
                        h->layout.local_count, &h->local.group, err);
    if (status == STATUS_OK && cross_count > 0)
        status = open_inner(h, &collective_ring_ops, "cross",
                            h->layout.equal ? h->layout.local_index : 0, cross, cross_count,
                            &h->cross.group, err);
    for (unsigned r = 0; r < n; r++)
        ranks[r] = r;
    if (status == STATUS_OK)
        status = open_inner(h, &collective_ring_ops, "world", 0, ranks, n, &h->world, err);
    return status;
}

static enum status hier_open(struct collective *group, int64_t deadline_ns, struct error *err)
{
    struct hier_group *h = (struct hier_group *)group;
    char(*ids)[HOST_ID_SIZE] = NULL;
    unsigned *ranks = NULL;
    enum status status = mem_calloc(group->world_size, sizeof(*ids), "host ids", &ids, err);

    if (status == STATUS_OK)
        status = mem_calloc(2 * (size_t)group->world_size, sizeof(*ranks), "ranks", &ranks, err);
    if (status == STATUS_OK)
        status = mem_calloc_aligned(COLLECTIVE_WORKS_MAX, sizeof(*h->world_works), "works",
                                    &h->world_works, err);
    if (status == STATUS_OK)
        status = collective_exchange(group, "hosts", group->host_id, sizeof(group->host_id), ids,
                                     deadline_ns, err);
    if (status == STATUS_OK)
        status = open_levels(h, (const char(*)[HOST_ID_SIZE])ids, ranks, err);
    free(ids);
    free(ranks);
    return status;
}

const struct collective_ops collective_hier_ops = {
    .name = "hier",
    .size = sizeof(struct hier_group),
    .composite = true,
    .open = hier_open,
    .run = hier_run,
    .register_memory = hier_register,
    .expected_bytes = hier_expected_bytes,
    .close = hier_close,
};
