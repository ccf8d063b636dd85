/*
 * Reaching a verdict.  Certain facts go first: a verdict that a peer has sent, a rank
 * that the mesh has found lost, a mismatch that the backend has seen.  A connection that broke
 * waits a moment for one of those, because the end of a process is detected on another connection.
 * Then all members are queried, and the one furthest behind is the culprit.  At last the mesh
 * makes sure that all members name the same rank.
 */
#include "common/collective/verdict.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define REPLY_WAIT_MS      300  /* for events, and again for replies */
#define LONG_REPLY_WAIT_MS 2000 /* for the reply of a rank that gets little processor time */
#define WARNING_WAIT_MS    50   /* for replies to a warning's query */
#define RETRY_MS           10   /* between queries to missing ranks, doubled up to ... */
#define RETRY_LIMIT_MS     200
#define ARRIVAL_MS         30000 /* for the members that decide which side is the odd one */
#define SILENT_S           0.6   /* two heartbeats that did not come: more than a busy host */

static enum status status_of_fault(enum fault fault)
{
    switch (fault) {
    case FAULT_STALLED:
    case FAULT_SLOW:
        return STATUS_TIMEOUT;
    case FAULT_DESYNC:
    case FAULT_FINISHED:
        return STATUS_MISMATCH;
    default:
        return STATUS_PEER_LOST;
    }
}

/* "all_reduce #12 of 100 float32 (sum), bucket 3 of 7" */
static void describe_work(const struct collective_work *w, char *text, size_t size)
{
    char operation[COLLECTIVE_TEXT_SIZE];

    signature_text(&w->signature, operation);
    if (w->args.buckets > 0)
        (void)snprintf(text, size, "%s, bucket %d of %d", operation, w->args.bucket,
                       w->args.buckets);
    else
        (void)snprintf(text, size, "%s", operation);
}

static const char *fault_phrase(enum fault fault)
{
    switch (fault) {
    case FAULT_DEAD:
        return "was lost, it is dead";
    case FAULT_STOPPED:
        return "was lost, it is stopped";
    case FAULT_NETWORK:
        return "was lost, the network does not reach it";
    case FAULT_STALLED:
        return "stalled";
    case FAULT_SLOW:
        return "is slow";
    case FAULT_DESYNC:
        return "is desynchronised";
    case FAULT_FINISHED:
        return "has finished early";
    default:
        return "failed";
    }
}

/* ---- finding a reason ---- */

/* The lowest member that the mesh has found lost. */
static bool find_lost(const struct collective *g, struct mesh_verdict *v)
{
    for (unsigned r = 0; r < g->world_size; r++) {
        enum fault fault = g->members[r] == mesh_rank(g->mesh)
                               ? FAULT_NONE
                               : mesh_fault(g->mesh, g->members[r], v->text, sizeof(v->text));

        if (fault == FAULT_NONE || fault == FAULT_FINISHED)
            continue;
        v->fault = fault;
        v->culprit = g->members[r];
        return true;
    }
    return false;
}

static void ask_members(struct collective *g, int64_t wait_ms)
{
    mesh_ask_all(g->mesh, g->members, g->world_size, g->id, clock_deadline_ns(wait_ms), g->views);
    for (unsigned r = 0; r < g->world_size; r++) {
        g->left[r] = UINT64_MAX;
        (void)mesh_left(g->mesh, g->members[r], g->id, g->generation, &g->left[r], NULL);
    }
}

/* A connected member that sends nothing, not even a reply, though it is not starved of a core. */
static bool find_silent(const struct collective *g, struct mesh_verdict *v)
{
    for (unsigned r = 0; r < g->world_size; r++) {
        if (r == g->rank || g->views[r].replied || g->left[r] != UINT64_MAX ||
            g->views[r].silent_seconds < SILENT_S)
            continue;
        v->fault = mesh_suspect(g->mesh, g->members[r], v->text, sizeof(v->text));
        v->culprit = g->members[r];
        if (v->fault != FAULT_NONE)
            return true;
    }
    return false;
}

/* All that answer are in the operation; one did not, in a time that is long for a rank that gets to
 * run. */
static void prefer_unresponsive(const struct collective *g, struct mesh_verdict *v)
{
    for (unsigned r = 0; r < g->world_size; r++) {
        if (r == g->rank || g->views[r].replied || g->left[r] != UINT64_MAX)
            continue;
        v->culprit = g->members[r];
        (void)snprintf(v->text, sizeof(v->text),
                       "it hardly gets to run: silent for %.1f s, and no answer within %.1f s",
                       g->views[r].silent_seconds, LONG_REPLY_WAIT_MS * 1e-3);
        return;
    }
}

/* Has a living member not replied yet? */
static bool is_incomplete(const struct collective *g)
{
    for (unsigned r = 0; r < g->world_size; r++)
        if (r != g->rank && !g->views[r].replied && g->views[r].fault == FAULT_NONE &&
            g->left[r] == UINT64_MAX)
            return true;
    return false;
}

/* Sleeps, whatever events there are. */
static void pause_for(struct collective *g, int64_t pause_ms)
{
    int64_t pause_ns = clock_deadline_ns(pause_ms);

    while (clock_now_ns() < pause_ns)
        mesh_await_event(g->mesh, mesh_event_count(g->mesh), pause_ns);
}

bool verdict_await_members(struct collective *g,
                           bool (*ask)(struct collective *g, const void *what), const void *what)
{
    int64_t deadline_ns =
        clock_deadline_ns(g->timeout_ms < ARRIVAL_MS ? g->timeout_ms : ARRIVAL_MS);
    struct mesh_verdict other;
    int64_t pause_ms = RETRY_MS;

    while (!ask(g, what)) {
        if (mesh_await_verdict(g->mesh, g->id, g->generation, &other))
            return false;
        if (clock_now_ns() >= deadline_ns)
            break;
        pause_for(g, pause_ms);
        pause_ms = 2 * pause_ms < RETRY_LIMIT_MS ? 2 * pause_ms : RETRY_LIMIT_MS;
    }
    return true;
}

/* Is it decided which side is the larger one? */
static bool ask_for_sides(struct collective *g, const void *mine)
{
    ask_members(g, REPLY_WAIT_MS);
    return !verdict_is_open(g->views, g->left, g->world_size, mine);
}

/* A rank of the job. */
static unsigned culprit_of(const struct collective *g, unsigned member)
{
    return member == VERDICT_RANK_UNKNOWN ? MESH_RANK_UNKNOWN : g->members[member];
}

static bool is_overdue(const struct collective *g, const struct collective_work *w)
{
    return (clock_now_ns() - w->started_ns) / 1000000 >= g->timeout_ms;
}

static void judge_views(const struct collective *g, const struct collective_work *w,
                        unsigned *ret_culprit, struct mesh_verdict *v)
{
    v->fault = verdict_from_views(g->views, g->left, g->members, g->world_size, g->rank,
                                  &w->signature, ret_culprit, v->text, sizeof(v->text));
}

static bool find_by_query(struct collective *g, const struct collective_work *w,
                          struct mesh_verdict *v)
{
    unsigned culprit = 0;

    ask_members(g, REPLY_WAIT_MS);
    if (find_lost(g, v) || find_silent(g, v))
        return true;
    if (is_incomplete(g)) { /* for want of a core: what it does is worth another wait */
        ask_members(g, LONG_REPLY_WAIT_MS);
        if (find_lost(g, v) || find_silent(g, v))
            return true;
    }
    judge_views(g, w, &culprit, v);
    /* A library that failed by itself because ranks differ: as explain_mismatch. */
    if (v->fault == FAULT_DESYNC && !is_overdue(g, w)) {
        v->fault = FAULT_NONE;
        if (!verdict_await_members(g, ask_for_sides, &w->signature))
            return false; /* a peer has sent a verdict */
        judge_views(g, w, &culprit, v);
    }
    v->culprit = culprit_of(g, culprit);
    if (v->fault == FAULT_SLOW)
        prefer_unresponsive(g, v);
    return v->fault != FAULT_NONE;
}

static bool may_be_a_lost_peer(enum status status)
{
    return status == STATUS_PEER_LOST || status == STATUS_UNREACHABLE || status == STATUS_TIMEOUT ||
           status == STATUS_IO;
}

/* The backend failed by itself: find the cause.  Wait for events before believing that this rank
 * alone has an error. */
static void explain_failure(struct collective *g, const struct collective_work *w,
                            const struct error *own, struct mesh_verdict *v)
{
    int64_t deadline_ns = clock_deadline_ns(REPLY_WAIT_MS);
    struct mesh_verdict other;

    while (may_be_a_lost_peer(own->status) && clock_now_ns() < deadline_ns) {
        uint64_t seen = mesh_event_count(g->mesh);

        if (mesh_await_verdict(g->mesh, g->id, g->generation, &other) || find_lost(g, v))
            return;
        mesh_await_event(g->mesh, seen, deadline_ns);
    }
    /* Some libraries have a time-out of their own: then being behind is a reason, too. */
    if (may_be_a_lost_peer(own->status) && find_by_query(g, w, v) &&
        (is_overdue(g, w) || (v->fault != FAULT_SLOW && v->fault != FAULT_STALLED)))
        return;
    v->fault = g->fault != FAULT_NONE ? g->fault : FAULT_FAILED;
    v->culprit =
        g->fault != FAULT_NONE && g->culprit >= 0 ? (unsigned)g->culprit : g->members[g->rank];
    (void)snprintf(v->text, sizeof(v->text), "%.255s", own->text);
}

/* Which of the two, or of all, is the odd one out.  Two that differ do not show which of them is:
 * the others have to come first, and one that gets no core, or computes, takes its time. */
static void explain_mismatch(struct collective *g, const struct collective_work *w,
                             const struct error *own, struct mesh_verdict *v)
{
    unsigned culprit;

    if (!verdict_await_members(g, ask_for_sides, &w->signature))
        return; /* a peer has sent a verdict */
    v->fault = verdict_from_views(g->views, g->left, g->members, g->world_size, g->rank,
                                  &w->signature, &culprit, v->text, sizeof(v->text));
    if (v->fault == FAULT_DESYNC || v->fault == FAULT_FINISHED) {
        v->culprit = g->members[culprit];
        return;
    }
    v->fault = g->fault != FAULT_NONE ? g->fault : FAULT_DESYNC;
    v->culprit = g->culprit >= 0 ? (unsigned)g->culprit : g->members[g->rank];
    (void)snprintf(v->text, sizeof(v->text), "%.255s", own->text);
}

/* ---- reporting ---- */

static void compose_error(struct collective *g, const struct collective_work *w,
                          const struct mesh_verdict *v, struct error *err)
{
    char what[COLLECTIVE_TEXT_SIZE + 48];
    double seconds = (double)(clock_now_ns() - w->started_ns) * 1e-9;
    bool is_self = v->culprit == g->members[g->rank];
    bool lost = status_of_fault(v->fault) == STATUS_PEER_LOST && v->fault != FAULT_FAILED;

    describe_work(w, what, sizeof(what));
    g->culprit = (int)v->culprit;
    g->fault = is_self && lost ? FAULT_EXCLUDED : v->fault;
    if (v->culprit == MESH_RANK_UNKNOWN) {
        g->culprit = -1;
        (void)error_set(err, status_of_fault(v->fault),
                        "%s does not end, and which rank is slow is not known: %s (%" PRIu64
                        " of %" PRIu64 " bytes done here after %.2f s)",
                        what, v->text, w->done_bytes, w->total_bytes, seconds);
    } else if (g->fault == FAULT_EXCLUDED)
        (void)error_set(err, STATUS_PEER_LOST, "%s: the others went on without this rank %u: %s",
                        what, v->culprit, v->text);
    else
        (void)error_set(
            err, status_of_fault(v->fault),
            "%s: rank %u %s: %s (%" PRIu64 " of %" PRIu64 " bytes done here after %.2f s)", what,
            v->culprit, fault_phrase(v->fault), v->text, w->done_bytes, w->total_bytes, seconds);
}

void verdict_reach(struct collective *g, const struct collective_work *w, enum verdict_cause cause,
                   struct error *err)
{
    struct mesh_verdict v = {.group = g->id, .generation = g->generation};
    struct error own = cause == VERDICT_FAILED ? *err : (struct error){0};

    if (!mesh_await_verdict(g->mesh, g->id, g->generation, &v)) {
        if (verdict_find_difference(g, &v))
            own.status = STATUS_OK; /* the difference explains it */
        else if (cause == VERDICT_FAILED && own.status == STATUS_MISMATCH)
            explain_mismatch(g, w, &own, &v);
        else if (cause == VERDICT_FAILED)
            explain_failure(g, w, &own, &v);
        else if (!find_lost(g, &v) && !find_by_query(g, w, &v)) {
            v.fault = FAULT_STALLED;
            v.culprit = g->members[g->rank];
            (void)snprintf(v.text, sizeof(v.text), "nobody answers to say why");
        }
        if (v.fault != FAULT_NONE)
            mesh_send_verdict(g->mesh, &v);
        (void)mesh_await_verdict(g->mesh, g->id, g->generation, &v);
    }
    compose_error(g, w, &v, err);
    if (g->error_is_inner)
        return;
    if (own.status == STATUS_MISMATCH && w->args.buckets > 0) /* both sides as this rank saw them */
        (void)error_set(err, STATUS_MISMATCH, "bucket %d of %d: %.1900s", w->args.bucket,
                        w->args.buckets, own.text);
    else if (own.status == STATUS_MISMATCH)
        (void)error_set(err, STATUS_MISMATCH, "%s", own.text);
}

/* Send the verdict v on `culprit` (rank in the group) if it is that the ranks run different
 * operations: no use to wait for the rest of the time.  But one that is in another send or receive
 * may come to ours in turn, and while the sides are open the odd one is not known.  Where a library
 * lets some pass and holds others, only the trails show both sides. */
static void send_mismatch_verdict(struct collective *g, const struct collective_work *w,
                                  unsigned culprit, struct mesh_verdict *v)
{
    if (v->fault != FAULT_DESYNC || collective_call_is_pair(w->signature.call) ||
        verdict_is_open(g->views, g->left, g->world_size, &w->signature))
        return;
    v->group = g->id;
    v->generation = g->generation;
    v->culprit = g->members[culprit];
    if (g->keeps_trail && !verdict_explain_trail(g, w->signature.sequence, v->culprit, v))
        return;
    mesh_send_verdict(g->mesh, v);
}

bool verdict_compare(struct collective *g, const struct collective_work *w)
{
    struct mesh_verdict v = {.fault = FAULT_NONE};
    unsigned culprit = 0;
    bool is_open;

    ask_members(g, WARNING_WAIT_MS);
    is_open = verdict_is_open(g->views, g->left, g->world_size, &w->signature);
    v.fault = verdict_from_views(g->views, g->left, g->members, g->world_size, g->rank,
                                 &w->signature, &culprit, v.text, sizeof(v.text));
    send_mismatch_verdict(g, w, culprit, &v);
    return !is_open;
}

void verdict_warn(struct collective *g, const struct collective_work *w, double seconds)
{
    struct mesh_verdict v = {.fault = FAULT_NONE};
    char what[COLLECTIVE_TEXT_SIZE + 48];
    unsigned culprit = 0;

    describe_work(w, what, sizeof(what));
    ask_members(g, WARNING_WAIT_MS);
    if (!find_lost(g, &v) && !find_silent(g, &v)) {
        v.fault = verdict_from_views(g->views, g->left, g->members, g->world_size, g->rank,
                                     &w->signature, &culprit, v.text, sizeof(v.text));
        v.culprit = culprit_of(g, culprit);
    }
    if (v.fault == FAULT_NONE || v.culprit == MESH_RANK_UNKNOWN)
        log_warning("%s: waiting for %.1f of %.1f s, and no rank is behind", what, seconds,
                    (double)g->timeout_ms * 1e-3);
    else
        log_warning("%s: waiting for %.1f of %.1f s for rank %u (%s): %s", what, seconds,
                    (double)g->timeout_ms * 1e-3, v.culprit, fault_name(v.fault), v.text);
    send_mismatch_verdict(g, w, culprit, &v);
}

enum run_outcome collective_mismatch(struct collective *group, const struct collective_work *work,
                                     unsigned peer, const struct signature *theirs,
                                     struct error *err)
{
    char mine_text[COLLECTIVE_TEXT_SIZE];
    char their_text[COLLECTIVE_TEXT_SIZE];

    signature_text(&work->signature, mine_text);
    signature_text(theirs, their_text);
    group->fault = theirs->call == COLLECTIVE_CLOSE ? FAULT_FINISHED : FAULT_DESYNC;
    group->culprit = (int)group->members[peer];
    if (theirs->call == COLLECTIVE_CLOSE)
        (void)error_set(err, STATUS_MISMATCH, "rank %u has closed the group, this rank %u is in %s",
                        group->members[peer], group->members[group->rank], mine_text);
    else if (theirs->generation != work->signature.generation)
        (void)error_set(err, STATUS_MISMATCH,
                        "rank %u is in %s of generation %" PRIu32 ", this rank %u is in %s of "
                        "generation %" PRIu32,
                        group->members[peer], their_text, theirs->generation,
                        group->members[group->rank], mine_text, work->signature.generation);
    else
        (void)error_set(err, STATUS_MISMATCH, "rank %u is in %s, this rank %u is in %s",
                        group->members[peer], their_text, group->members[group->rank], mine_text);
    return RUN_FAILED;
}
