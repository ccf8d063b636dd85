/*
 * Overlap of forward with the reception of parameters: which parameters may be read when, the same
 * bits as without overlap, a silent rank, and a close while parameters are outstanding.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/support/support.h"
#include "tests/worker/sync/ps_parts.h"
#include "worker/sync/sync.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RANKS   2u
#define SERVERS 2u
#define ROUNDS  12u
#define FULL    (PARTITION_BYTES / sizeof(float))
#define COUNT   (9 * FULL + 50)

enum {
    PARTITION_BYTES = 4096,
    TIMEOUT_MS = 20000,
    EXPIRING_TIMEOUT_MS = 4000, /* of a timeout that must expire; it also limits the join */
};

static struct error err;

struct team {
    struct ps_servers servers;
    struct tensor_table table;
    bool overlap, update;
    struct consistency consistency;
    int64_t timeout_ms;
    bool has_callback;    /* ranks pass an `arrived` call-back */
    unsigned silent_from; /* first round without a push of rank 1; 0: none */
};

struct rank {
    struct team *team;
    unsigned index;
    pthread_t thread;
    pthread_t self; /* set by the thread itself */
    float *params, *grads;
    float *read[ROUNDS];   /* per round: the parameters read for its gradient */
    float *arrived_values; /* copy of the ranges reported to `arrived` */
    size_t arrived_count;  /* elements reported since all were last complete */
    struct sync *sync;
    enum status status;
    struct error err;
};

static void team_open(struct team *t, bool overlap)
{
    memset(t, 0, sizeof(*t));
    log_set_level(LOG_QUIET);
    t->overlap = overlap;
    t->update = true;
    t->timeout_ms = TIMEOUT_MS;
    ps_table_open(&t->table, COUNT);
    ps_servers_open(&t->servers, SERVERS, TIMEOUT_MS);
}

static void team_close(struct team *t)
{
    ps_servers_close(&t->servers);
    tensor_table_release(&t->table);
}

/* "Forward": read the parameters in uneven ranges from the slab's end, in the order of layers. */
static enum status forward(struct rank *r, unsigned round)
{
    const size_t longest = 2 * FULL;
    size_t end = COUNT;

    while (end > 0) {
        size_t step = 1 + (size_t)(support_random() * (double)longest);
        size_t begin = step < end ? end - step : 0;
        enum status status = sync_await(r->sync, begin, end - begin, &r->err);

        if (status != STATUS_OK)
            return status;
        memcpy(r->read[round] + begin, r->params + begin, (end - begin) * sizeof(float));
        end = begin;
    }
    return sync_await(r->sync, 0, COUNT, &r->err);
}

/* "Backward": a gradient that depends on the parameters read. */
static void backward(struct rank *r, unsigned round)
{
    for (size_t at = 0; at < COUNT;) {
        size_t end = at + 900 < COUNT ? at + 900 : COUNT;

        for (; at < end; at++)
            r->grads[at] = r->read[round][at] * 0.25f + (float)(at % 7 + r->index);
        sync_ready(r->sync, end);
    }
}

static const float *slab(const struct rank *r)
{
    return r->team->update ? r->params : r->grads;
}

static enum status copy_arrived(void *user, size_t offset, size_t count, struct error *why)
{
    struct rank *r = user;

    (void)why;
    ck_assert(pthread_equal(pthread_self(), r->self));
    ck_assert_uint_le(offset + count, COUNT);
    memcpy(r->arrived_values + offset, slab(r) + offset, count * sizeof(float));
    r->arrived_count += count;
    return STATUS_OK;
}

/* Check that every element was reported once, with its final value. */
static void check_arrived(struct rank *r)
{
    if (!r->team->has_callback || sync_outstanding(r->sync))
        return;
    ck_assert_uint_eq(r->arrived_count, COUNT);
    ck_assert(ps_same_bits(r->arrived_values, slab(r), COUNT));
    r->arrived_count = 0;
}

static struct sync_config rank_config(struct rank *r)
{
    const struct team *t = r->team;

    return (struct sync_config){.kind = "ps",
                                .table = &t->table,
                                .params = r->params,
                                .grads = r->grads,
                                .rank = r->index,
                                .world_size = RANKS,
                                .timeout_ms = t->timeout_ms,
                                .order = REDUCE_FAST,
                                .manifest = "model\ttest\n",
                                .job = "test",
                                .servers = t->servers.addresses,
                                .servers_origin = "--servers",
                                .update_on_server = t->update,
                                .consistency = t->consistency,
                                .partition_bytes = PARTITION_BYTES,
                                .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                                .arrived = t->has_callback ? copy_arrived : NULL,
                                .user = r,
                                .overlap_forward = t->overlap};
}

static enum status run_step(struct rank *r, unsigned round)
{
    enum status status = sync_begin(r->sync, round, &r->err);
    bool left = sync_outstanding(r->sync);

    if (status == STATUS_OK)
        status = forward(r, round);
    if (status != STATUS_OK)
        return status;
    if (left)
        check_arrived(r);
    ck_assert(!sync_outstanding(r->sync));
    backward(r, round);
    status = sync_finish(r->sync, &r->err);
    if (status == STATUS_OK)
        check_arrived(r);
    return status;
}

static bool overlaps(const struct team *t)
{
    return t->overlap && t->update && t->consistency.mode == CONSISTENCY_BSP;
}

static enum status run_rounds(struct rank *r)
{
    struct sync_config config = rank_config(r);
    enum status status = sync_open(&config, &r->sync, &r->err);
    unsigned left = 0;

    if (status == STATUS_OK)
        status = sync_start(r->sync, &r->err);
    for (unsigned round = 0; status == STATUS_OK && round < ROUNDS; round++) {
        if (r->index == 1 && r->team->silent_from == round + 1)
            break;
        status = run_step(r, round);
        left += status == STATUS_OK && sync_outstanding(r->sync);
        if (status == STATUS_OK && round % 5 == 2 && sync_outstanding(r->sync)) {
            status = sync_await(r->sync, 0, COUNT, &r->err); /* as before an evaluation */
            check_arrived(r);
        }
    }
    if (status == STATUS_OK && r->team->silent_from == 0) {
        ck_assert_uint_eq(left, overlaps(r->team) ? ROUNDS : 0);
        status = sync_await(r->sync, 0, COUNT, &r->err);
    }
    r->arrived_count = 0;
    status = status == STATUS_OK ? sync_end(r->sync, &r->err) : status;
    if (status == STATUS_OK && r->team->consistency.mode == CONSISTENCY_ASP)
        check_arrived(r); /* of the final values */
    return status;
}

static void *run_rank(void *user)
{
    struct rank *r = user;

    r->self = pthread_self();
    r->status = run_rounds(r);
    return NULL;
}

static void start_all(struct team *t, struct rank *ranks)
{
    for (unsigned i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.team = t,
                                 .index = i,
                                 .params = ps_slab_new(COUNT),
                                 .grads = ps_slab_new(COUNT),
                                 .arrived_values = ps_slab_new(COUNT)};
        for (unsigned k = 0; k < ROUNDS; k++)
            ranks[i].read[k] = ps_slab_new(COUNT);
        for (size_t e = 0; e < COUNT; e++)
            ranks[i].params[e] = i == 0 ? (float)(e % 13) : -1.0f;
    }
    for (unsigned i = 0; i < RANKS; i++)
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (unsigned i = 0; i < RANKS; i++)
        ck_assert_int_eq(pthread_join(ranks[i].thread, NULL), 0);
}

static void release_all(struct rank *ranks)
{
    for (unsigned i = 0; i < RANKS; i++) {
        for (unsigned k = 0; k < ROUNDS; k++)
            free(ranks[i].read[k]);
        free(ranks[i].params);
        free(ranks[i].grads);
        free(ranks[i].arrived_values);
    }
}

START_TEST(test_same_bits)
{
    struct team teams[2];
    struct rank ranks[2][RANKS];

    for (unsigned on = 0; on < 2; on++) {
        team_open(&teams[on], on);
        start_all(&teams[on], ranks[on]);
        for (unsigned i = 0; i < RANKS; i++) {
            struct sync_counters c = sync_counters(ranks[on][i].sync);

            ck_assert_msg(ranks[on][i].status == STATUS_OK, "%s", ranks[on][i].err.text);
            ck_assert_uint_eq(c.rx_payload_bytes, (ROUNDS + 1) * COUNT * sizeof(float));
            sync_close(ranks[on][i].sync, NULL);
        }
    }
    for (unsigned i = 0; i < RANKS; i++) {
        ck_assert_mem_eq(ranks[0][i].params, ranks[1][i].params, COUNT * sizeof(float));
        for (unsigned k = 0; k < ROUNDS; k++)
            ck_assert_mem_eq(ranks[0][i].read[k], ranks[1][i].read[k], COUNT * sizeof(float));
    }
    for (unsigned on = 0; on < 2; on++) {
        release_all(ranks[on]);
        team_close(&teams[on]);
    }
}
END_TEST

/* Without lockstep, or with gradients, finish waits for everything. */
START_TEST(test_not_everywhere)
{
    struct team t;
    struct rank ranks[RANKS];

    team_open(&t, true);
    if (_i == 0)
        t.update = false;
    else
        t.consistency = (struct consistency){.mode = CONSISTENCY_ASP};
    start_all(&t, ranks);
    for (unsigned i = 0; i < RANKS; i++) {
        ck_assert_msg(ranks[i].status == STATUS_OK, "%s", ranks[i].err.text);
        ck_assert(!sync_outstanding(ranks[i].sync));
        sync_close(ranks[i].sync, NULL);
    }
    release_all(ranks);
    team_close(&t);
}
END_TEST

/* Means and parameters, with overlap and without, in lockstep and not. */
START_TEST(test_arrivals)
{
    struct team t;
    struct rank ranks[RANKS];

    team_open(&t, _i == 1);
    t.has_callback = true;
    t.update = _i != 2;
    if (_i == 3)
        t.consistency = (struct consistency){.mode = CONSISTENCY_ASP};
    start_all(&t, ranks);
    for (unsigned i = 0; i < RANKS; i++) {
        ck_assert_msg(ranks[i].status == STATUS_OK, "%s", ranks[i].err.text);
        sync_close(ranks[i].sync, NULL);
    }
    release_all(ranks);
    team_close(&t);
}
END_TEST

/* The other rank is silent: the wait in forward fails in time. */
START_TEST(test_a_silent_rank)
{
    struct team t;
    struct rank ranks[RANKS];
    int64_t begun_ns;

    team_open(&t, true);
    t.timeout_ms = EXPIRING_TIMEOUT_MS;
    t.silent_from = 5;
    begun_ns = clock_now_ns();
    start_all(&t, ranks);
    ck_assert_int_eq(ranks[0].status, STATUS_TIMEOUT);
    ck_assert_msg(strstr(ranks[0].err.text, "partitions of round 5 did not come"), "%s",
                  ranks[0].err.text);
    ck_assert_int_lt(clock_now_ns() - begun_ns,
                     (EXPIRING_TIMEOUT_MS + TIMEOUT_MS) * INT64_C(1000000));
    for (unsigned i = 0; i < RANKS; i++)
        sync_close(ranks[i].sync, &ranks[0].err);
    release_all(ranks);
    team_close(&t);
}
END_TEST

/* Closed between finish and await: nothing is written into the slabs afterwards. */
START_TEST(test_closed_while_outstanding)
{
    struct team t;
    struct rank r = {.team = &t, .params = ps_slab_new(COUNT), .grads = ps_slab_new(COUNT)};
    struct sync_config config;

    team_open(&t, true);
    config = rank_config(&r);
    config.world_size = 1;
    assert_ok(sync_open(&config, &r.sync, &err));
    assert_ok(sync_start(r.sync, &err));
    assert_ok(sync_begin(r.sync, 0, &err));
    sync_ready(r.sync, COUNT);
    assert_ok(sync_finish(r.sync, &err));
    ck_assert(sync_outstanding(r.sync));
    sync_close(r.sync, NULL);
    free(r.params); /* a sanitizer reports later writes */
    free(r.grads);
    team_close(&t);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("ps_overlap", 120, TEST(test_same_bits),
                       LOOP_TEST(test_not_everywhere, 0, 2), LOOP_TEST(test_arrivals, 0, 4),
                       TEST(test_a_silent_rank), TEST(test_closed_while_outstanding));
}
