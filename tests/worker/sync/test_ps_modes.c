/*
 * The consistency modes with real servers and workers in one process.  Gradients are integers and
 * learning rates powers of two, so every sum is exact in any order: the final values show how many
 * contributions were applied, and that none was lost or applied twice.
 */
#include "common/base/log.h"
#include "tests/support/support.h"
#include "tests/worker/sync/ps_parts.h"
#include "worker/sync/sync.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX  4u
#define SERVERS    2u
#define FULL       (PARTITION_BYTES / sizeof(float))
#define COUNT      (4 * FULL + 99)
#define TIMEOUT_MS 20000
#define INITIAL    4096.0f

enum { PARTITION_BYTES = 4096 };

/* A job and the progress of its ranks. */
struct world {
    struct ps_servers servers;
    struct tensor_table table;
    struct consistency consistency;
    enum reduce_order order;
    unsigned world_size;
    uint64_t steps;
    /* Rank 0 makes no step until rank 1 has made this many and begun one more. */
    uint64_t hold_until;
    unsigned lead_max;    /* greatest lead of a rank over the slowest, in steps */
    pthread_mutex_t lock; /* guards what follows, and lead_max */
    pthread_cond_t changed;
    uint64_t begun[RANKS_MAX], done[RANKS_MAX], made[RANKS_MAX], skipped[RANKS_MAX];
};

struct rank {
    struct world *world;
    unsigned index;
    pthread_t thread;
    float *params, *grads;
    enum status status;
    struct error err;
};

static void world_open(struct world *w, const struct consistency *consistency, unsigned world_size,
                       uint64_t steps)
{
    memset(w, 0, sizeof(*w));
    w->consistency = *consistency;
    w->world_size = world_size;
    w->steps = steps;
    ps_table_open(&w->table, COUNT);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    ps_servers_open(&w->servers, SERVERS, TIMEOUT_MS);
}

static void world_close(struct world *w)
{
    ps_servers_close(&w->servers);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    tensor_table_release(&w->table);
}

static struct sync_config rank_config(const struct rank *r)
{
    const struct world *w = r->world;
    struct sync_config config = {.kind = "ps",
                                 .table = &w->table,
                                 .params = r->params,
                                 .grads = r->grads,
                                 .rank = r->index,
                                 .world_size = w->world_size,
                                 .timeout_ms = TIMEOUT_MS,
                                 .order = w->order,
                                 .manifest = "seed\t1\n",
                                 .job = "modes",
                                 .servers = w->servers.addresses,
                                 .servers_origin = "--servers",
                                 .update_on_server = true,
                                 .consistency = w->consistency,
                                 .partition_bytes = PARTITION_BYTES,
                                 .optimizer = optimizer_defaults(OPTIMIZER_SGD)};

    /* A push moves by its gradient if it is a step of its own; else a round moves by the mean. */
    config.optimizer.learning_rate =
        consistency_steps_per_push(&w->consistency) ? w->world_size : 1;
    return config;
}

/* ------------------------------------------------------------------ a rank */

static bool may_proceed(const struct world *w)
{
    return w->done[1] >= w->hold_until &&
           (w->begun[1] > w->hold_until || w->hold_until == w->steps);
}

/* Note that the step is about to be pushed, and its lead; rank 0 waits as configured. */
static void note_begin(struct world *w, unsigned rank, uint64_t step)
{
    uint64_t slowest = UINT64_MAX;

    (void)pthread_mutex_lock(&w->lock);
    w->begun[rank] = step + 1;
    (void)pthread_cond_broadcast(&w->changed);
    while (rank == 0 && w->hold_until > 0 && !may_proceed(w))
        (void)pthread_cond_wait(&w->changed, &w->lock);
    for (unsigned other = 0; other < w->world_size; other++)
        if (w->begun[other] < slowest)
            slowest = w->begun[other];
    if (step + 1 - slowest > w->lead_max)
        w->lead_max = (unsigned)(step + 1 - slowest);
    (void)pthread_mutex_unlock(&w->lock);
}

static void note_done(struct world *w, unsigned rank, uint64_t next, uint64_t skipped)
{
    (void)pthread_mutex_lock(&w->lock);
    w->done[rank] = next;
    w->made[rank]++;
    w->skipped[rank] += skipped;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

/* Gradients of rank r are r + 1 everywhere; exact when divided by 2. */
static enum status make_steps(struct rank *r, struct sync *sync)
{
    struct world *w = r->world;
    uint64_t step = 0;

    while (step < w->steps) {
        enum status status = sync_begin(sync, step, &r->err);

        if (status != STATUS_OK)
            return status;
        note_begin(w, r->index, step);
        for (size_t i = 0; i < COUNT; i++)
            r->grads[i] = (float)(r->index + 1);
        sync_ready(sync, FULL);
        sync_ready(sync, COUNT);
        status = sync_finish(sync, &r->err);
        if (status != STATUS_OK)
            return status;
        step += 1 + sync_skipped(sync);
        note_done(w, r->index, step, sync_skipped(sync));
    }
    ck_assert_uint_eq(step, w->steps);
    return sync_end(sync, &r->err);
}

static void *run_rank(void *user)
{
    struct rank *r = user;
    struct sync_config config = rank_config(r);
    struct sync *sync = NULL;

    r->status = sync_open(&config, &sync, &r->err);
    if (r->status == STATUS_OK)
        r->status = sync_start(sync, &r->err);
    if (r->status == STATUS_OK)
        r->status = make_steps(r, sync);
    sync_close(sync, r->status == STATUS_OK ? NULL : &r->err);
    return NULL;
}

static void run_world(struct world *w, struct rank *ranks)
{
    for (unsigned i = 0; i < w->world_size; i++) {
        ranks[i] = (struct rank){
            .world = w, .index = i, .params = ps_slab_new(COUNT), .grads = ps_slab_new(COUNT)};
        for (size_t at = 0; i == 0 && at < COUNT; at++)
            ranks[0].params[at] = INITIAL;
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (unsigned i = 0; i < w->world_size; i++)
        ck_assert_int_eq(pthread_join(ranks[i].thread, NULL), 0);
    for (unsigned i = 0; i < w->world_size; i++)
        ck_assert_msg(ranks[i].status == STATUS_OK, "rank %u: %s", i, ranks[i].err.text);
}

static void release_ranks(const struct world *w, struct rank *ranks)
{
    for (unsigned i = 0; i < w->world_size; i++) {
        free(ranks[i].params);
        free(ranks[i].grads);
    }
}

static void check_values(const struct world *w, const struct rank *ranks, float wanted)
{
    for (unsigned i = 0; i < w->world_size; i++)
        for (size_t at = 0; at < COUNT; at++)
            ck_assert_msg(ranks[i].params[at] == wanted, "rank %u, element %zu: %g, wanted %g", i,
                          at, (double)ranks[i].params[at], (double)wanted);
}

/* Every push of every rank is applied once. */
static float after_all_pushes(const struct world *w)
{
    unsigned each = w->world_size * (w->world_size + 1) / 2;

    return INITIAL - (float)(w->steps * each);
}

/* ------------------------------------------------------------------ tests */

START_TEST(test_asp_applies_every_push_once)
{
    struct world w;
    struct rank ranks[RANKS_MAX] = {0};

    world_open(&w, &(struct consistency){.mode = CONSISTENCY_ASP}, (unsigned)_i + 1, 20);
    run_world(&w, ranks);
    check_values(&w, ranks, after_all_pushes(&w));
    release_ranks(&w, ranks);
    world_close(&w);
}
END_TEST

/* Rank 0 starts when rank 1 has made all its steps: no rank waits for rank 0 until the end, when
 * all have its pushes. */
START_TEST(test_asp_does_not_wait_for_a_straggler)
{
    struct world w;
    struct rank ranks[RANKS_MAX] = {0};

    world_open(&w, &(struct consistency){.mode = CONSISTENCY_ASP}, 3, 10);
    w.hold_until = 10;
    run_world(&w, ranks);
    check_values(&w, ranks, after_all_pushes(&w));
    release_ranks(&w, ranks);
    world_close(&w);
}
END_TEST

START_TEST(test_ssp_bounds_the_lead)
{
    struct consistency c = {.mode = CONSISTENCY_SSP, .staleness = (uint32_t)_i + 1};
    struct world w;
    struct rank ranks[RANKS_MAX] = {0};

    world_open(&w, &c, 3, 20);
    w.hold_until = c.staleness; /* the bound without rank 0's first push */
    run_world(&w, ranks);
    check_values(&w, ranks, after_all_pushes(&w));
    ck_assert_uint_ge(w.lead_max, c.staleness);
    ck_assert_uint_le(w.lead_max, c.staleness + 1);
    release_ranks(&w, ranks);
    world_close(&w);
}
END_TEST

/* Each round takes two of three pushes; rank 0 misses five rounds and continues after them. */
START_TEST(test_backup_leaves_a_straggler_behind)
{
    struct consistency c = {.mode = CONSISTENCY_BSP, .backup = 1};
    struct world w;
    struct rank ranks[RANKS_MAX] = {0};
    uint64_t made = 0;
    float moved;

    world_open(&w, &c, 3, 12);
    w.hold_until = 5;
    run_world(&w, ranks);
    ck_assert_uint_ge(w.skipped[0], 4); /* rounds by which its first push is late */
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_uint_eq(w.made[i] + w.skipped[i], w.steps);
        made += w.made[i];
    }
    ck_assert_uint_ge(made, 2 * w.steps); /* two in each round, and the dropped ones */
    /* Each round moves by the mean of two of {1, 2, 3}. */
    moved = INITIAL - ranks[0].params[0];
    ck_assert(moved >= 12 * 1.5f && moved <= 12 * 2.5f);
    for (unsigned i = 1; i < 3; i++)
        ck_assert(ps_same_bits(ranks[i].params, ranks[0].params, COUNT));
    release_ranks(&w, ranks);
    world_close(&w);
}
END_TEST

/* Bit for bit, with gradients whose sums are rounded. */
START_TEST(test_ssp_0_equals_bsp)
{
    static const struct consistency modes[] = {{.mode = CONSISTENCY_BSP},
                                               {.mode = CONSISTENCY_SSP}};
    float *results[2];

    for (unsigned mode = 0; mode < 2; mode++) {
        struct world w;
        struct rank ranks[RANKS_MAX] = {0};

        world_open(&w, &modes[mode], 3, 15);
        w.order = REDUCE_REPRODUCIBLE;
        run_world(&w, ranks);
        for (unsigned i = 1; i < 3; i++)
            ck_assert(ps_same_bits(ranks[i].params, ranks[0].params, COUNT));
        results[mode] = ranks[0].params;
        ranks[0].params = NULL;
        release_ranks(&w, ranks);
        world_close(&w);
    }
    ck_assert(results[0][0] < INITIAL - 15); /* updated; thirds do not sum to integers */
    ck_assert(ps_same_bits(results[0], results[1], COUNT));
    free(results[0]);
    free(results[1]);
}
END_TEST

int main(void)
{
    log_set_level(LOG_QUIET);
    return SUPPORT_RUN("ps_modes", 60, LOOP_TEST(test_asp_applies_every_push_once, 0, RANKS_MAX),
                       TEST(test_asp_does_not_wait_for_a_straggler),
                       LOOP_TEST(test_ssp_bounds_the_lead, 0, 3),
                       TEST(test_backup_leaves_a_straggler_behind), TEST(test_ssp_0_equals_bsp));
}
