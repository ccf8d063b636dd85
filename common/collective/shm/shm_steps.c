/*
 * A collective as a row of steps.  All ranks arrive with a step that carries their signatures and
 * says where their buffers are; from that all ranks choose the same path:
 *
 *   small     what is published on arrival is all there is                       1 wait
 *   direct    every rank works on the others' buffers, and all leave together    2 waits
 *   in chunks publish, wait, take, over and over                                 1 wait per chunk
 *
 * All state between two calls is in the work, so an operation can be polled and taken up again.
 */
#include "common/base/clock.h"
#include "common/collective/shm/shm.h"

#include <stdbool.h>
#include <string.h>

#define MOVE_BYTES ((size_t)256 << 10) /* of each buffer, between two looks at the clock */

enum stage {
    STAGE_BEGIN, /* zero: a fresh work */
    STAGE_ARRIVING,
    STAGE_MOVING,
    STAGE_LEAVING,
    STAGE_CHUNKS,
    STAGE_DONE,
};

struct step_work {
    enum stage stage;
    unsigned awaited; /* how many ranks, from the next one on, have raised the newest step */
    size_t chunk;     /* index of the newest one published */
    size_t moved;     /* elements of shm_direct_range */
    uint64_t tx, rx;  /* shm_payload */
    bool small;
};
_Static_assert(sizeof(struct step_work) <= COLLECTIVE_WORK_STATE, "fits into a work");

static void raise_step(struct shm_group *g, struct step_work *w)
{
    const struct shared_memory *own = &g->peers[g->base.rank].arena;

    g->step++;
    w->awaited = 1;
    shm_flag_raise(own, &shm_post_of(own, g->step)->flag, g->step);
}

static enum run_outcome await_step(struct shm_group *g, struct collective_work *work,
                                   int64_t until_ns, struct error *err)
{
    struct step_work *w = (void *)work->backend;

    for (; w->awaited < g->base.world_size; w->awaited++) {
        unsigned peer = (g->base.rank + w->awaited) % g->base.world_size;
        struct shm_post *post = shm_post_of(&g->peers[peer].arena, g->step);
        enum run_outcome outcome = shm_wait(g, work, peer, &post->flag, g->step, until_ns, err);

        if (outcome != RUN_DONE)
            return outcome;
    }
    return RUN_DONE;
}

/* ---- arriving ---- */

static struct shm_terms terms_of(const struct signature *s)
{
    return (struct shm_terms){.what = (uint32_t)s->call << 24 | (uint32_t)s->dtype << 16 |
                                      (uint32_t)s->op << 8 | (uint32_t)s->order,
                              .root = s->root,
                              .sequence = s->sequence,
                              .count = s->count};
}

static void post_arrival(struct shm_group *g, struct collective_work *work)
{
    const struct collective_args *a = &work->args;
    struct step_work *w = (void *)work->backend;
    struct shm_post *post = shm_post_of(&g->peers[g->base.rank].arena, g->step + 1);

    post->terms = terms_of(&work->signature);
    signature_encode(&work->signature, post->signature);
    post->factor = a->factor;
    shm_payload(g, a, &w->tx, &w->rx);
    work->total_bytes = w->tx + w->rx;
    w->small = shm_is_small(g, a);
    if (w->small) {
        shm_publish(g, a, (struct shm_range){.count = a->count});
        return;
    }
    post->input = shm_find_location(g, a->input, collective_input_bytes(&g->base, a));
    post->output = shm_find_location(g, a->output, collective_output_bytes(&g->base, a));
    post->in_place = a->input == a->output;
}

static enum run_outcome compare_signatures(struct shm_group *g, const struct collective_work *work,
                                           struct error *err)
{
    const struct shm_terms mine = terms_of(&work->signature);

    for (unsigned r = 0; r < g->base.world_size; r++) {
        const struct shm_post *post = shm_post_of(&g->peers[r].arena, g->step);
        struct signature theirs;

        if (r == g->base.rank || memcmp(&post->terms, &mine, sizeof(mine)) == 0)
            continue;
        if (signature_decode(post->signature, &theirs))
            return collective_mismatch(&g->base, work, r, &theirs, err);
        (void)error_set(err, STATUS_PROTOCOL, "rank %u posted no signature", g->base.members[r]);
        return RUN_FAILED;
    }
    return RUN_DONE;
}

/* What reduce_arrays is to do.  Factors are copied: a post lives for two steps only. */
static void set_reduction(struct shm_group *g, const struct collective_args *a)
{
    unsigned n = g->base.world_size;
    bool scaled = a->op == REDUCE_PREMUL_SUM || (a->op == REDUCE_AVG && dtype_is_float(a->dtype));

    for (unsigned r = 0; r < n && scaled; r++)
        g->factors[r] =
            a->op == REDUCE_AVG ? 1.0 / n : shm_post_of(&g->peers[r].arena, g->step)->factor;
    g->reduction = (struct reduction){
        .dtype = a->dtype,
        .op = a->op,
        .factors = scaled ? g->factors : NULL,
        .divisor = a->op == REDUCE_AVG && !scaled ? (int64_t)n : 0,
    };
}

/* Find all buffers in this process's own mappings. */
static enum run_outcome resolve_buffers(struct shm_group *g, const struct collective_args *a,
                                        struct error *err)
{
    size_t bytes = a->count * dtype_size(a->dtype) * shm_block_count(g, a);

    for (unsigned r = 0; r < g->base.world_size; r++) {
        const struct shm_post *post = shm_post_of(&g->peers[r].arena, g->step);
        struct shm_peer *p = &g->peers[r];
        bool has_output = a->call == COLLECTIVE_ALL_REDUCE;

        p->input = shm_resolve(g, r, post->input, bytes);
        p->output = has_output ? shm_resolve(g, r, post->output, bytes) : NULL;
        if ((post->input.region != SHM_NO_REGION && !p->input) || (has_output && !p->output)) {
            (void)error_set(err, STATUS_PROTOCOL, "rank %u named bytes outside its region",
                            g->base.members[r]);
            return RUN_FAILED;
        }
    }
    return RUN_DONE;
}

static void publish_chunk(struct shm_group *g, struct collective_work *work, size_t index)
{
    const struct collective_args *a = &work->args;
    struct step_work *w = (void *)work->backend;

    if (a->call == COLLECTIVE_ALL_REDUCE)
        shm_publish_unreduced(g, a, index);
    else
        shm_publish(g, a, shm_chunk(g, a, index));
    w->chunk = index;
    w->stage = STAGE_CHUNKS;
    raise_step(g, w);
}

/* All ranks have arrived: choose the path. */
static enum run_outcome choose_path(struct shm_group *g, struct collective_work *work,
                                    struct error *err)
{
    const struct collective_args *a = &work->args;
    struct step_work *w = (void *)work->backend;
    enum run_outcome outcome;

    shm_prefetch(g, a);
    outcome = compare_signatures(g, work, err);
    if (outcome != RUN_DONE)
        return outcome;
    set_reduction(g, a);
    if (w->small) {
        shm_take(g, a, (struct shm_range){.count = a->count});
        w->stage = STAGE_DONE;
    } else if (shm_is_direct(g, a)) {
        w->stage = STAGE_MOVING;
        return resolve_buffers(g, a, err);
    } else {
        publish_chunk(g, work, 0);
    }
    return RUN_DONE;
}

/* ---- going on ---- */

/* `part` of `whole` is done. */
static void report_step_progress(struct collective_work *work, size_t part, size_t whole)
{
    collective_progress(work, (uint64_t)((double)work->total_bytes * (double)part / (double)whole));
}

static void move_some(struct shm_group *g, struct collective_work *work)
{
    const struct collective_args *a = &work->args;
    struct step_work *w = (void *)work->backend;
    struct shm_range all = shm_direct_range(g, a);
    size_t most = MOVE_BYTES / dtype_size(a->dtype);
    size_t count = all.count - w->moved < most ? all.count - w->moved : most;

    shm_move_direct(g, a, (struct shm_range){.from = all.from + w->moved, .count = count});
    w->moved += count;
    if (w->moved < all.count) {
        report_step_progress(work, w->moved, all.count);
        return;
    }
    w->stage = STAGE_LEAVING;
    raise_step(g, w);
}

static void take_chunk(struct shm_group *g, struct collective_work *work)
{
    const struct collective_args *a = &work->args;
    struct step_work *w = (void *)work->backend;
    size_t steps = shm_chunk_steps(g, a);

    if (a->call == COLLECTIVE_ALL_REDUCE)
        shm_take_reduced(g, a, w->chunk);
    else
        shm_take(g, a, shm_chunk(g, a, w->chunk));
    report_step_progress(work, w->chunk + 1, steps);
    if (w->chunk + 1 < steps)
        publish_chunk(g, work, w->chunk + 1);
    else
        w->stage = STAGE_DONE;
}

static enum run_outcome finish_work(struct shm_group *g, struct collective_work *work)
{
    const struct step_work *w = (const void *)work->backend;

    g->base.stats.operations++;
    g->base.stats.tx_payload_bytes += w->tx;
    g->base.stats.rx_payload_bytes += w->rx;
    work->done_bytes = work->total_bytes;
    return RUN_DONE;
}

enum run_outcome shm_run_steps(struct shm_group *g, struct collective_work *work, int64_t until_ns,
                               struct error *err)
{
    struct step_work *w = (void *)work->backend;
    enum run_outcome outcome = RUN_DONE;

    if (w->stage == STAGE_BEGIN) {
        post_arrival(g, work);
        w->stage = STAGE_ARRIVING;
        raise_step(g, w);
    }
    while (outcome == RUN_DONE && w->stage != STAGE_DONE) {
        if (w->stage != STAGE_MOVING)
            outcome = await_step(g, work, until_ns, err);
        if (outcome != RUN_DONE)
            return outcome;
        if (w->stage == STAGE_ARRIVING)
            outcome = choose_path(g, work, err);
        else if (w->stage == STAGE_MOVING)
            move_some(g, work);
        else if (w->stage == STAGE_LEAVING)
            w->stage = STAGE_DONE;
        else
            take_chunk(g, work);
        if (outcome == RUN_DONE && w->stage != STAGE_DONE && until_ns != INT64_MAX &&
            clock_now_ns() >= until_ns)
            return RUN_PENDING;
    }
    return outcome == RUN_DONE ? finish_work(g, work) : outcome;
}
