/*
 * Connections between workers and servers that are reset, silent or not restored; workers that are
 * lost and replaced.  A job that continues must have the parameters of a serial run, bit for bit;
 * one that ends must end in time, with an error that names the lost rank or server and the cause.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/support/support.h"
#include "tests/worker/sync/ps_team.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS      24u
#define ROUND_BYTES (TEAM_COUNT * sizeof(float))

static struct error err;

/* ------------------------------------------------------------------ resets */

/* Resets the connections of one proxy again and again, at bytes drawn from a seed. */
struct breaker {
    struct fault_proxy *proxy;
    uint64_t state;
    uint64_t next; /* bytes */
    enum fault_direction way;
    unsigned left;
};

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

static void reset_connections(void *user)
{
    struct breaker *b = user;

    fault_proxy_reset(b->proxy);
    b->way = b->left % 2 ? FAULT_UP : FAULT_DOWN;
    b->next = fault_proxy_bytes(b->proxy, b->way) + 1 + draw(&b->state, 3 * ROUND_BYTES / 2);
    if (b->left-- > 0)
        fault_proxy_call_at(b->proxy, b->way, b->next, reset_connections, b);
}

static void arm(struct breaker *b, struct fault_proxy *proxy, uint64_t seed, unsigned strikes)
{
    *b = (struct breaker){.proxy = proxy, .state = seed, .left = strikes};
    /* After the join, whose size is unknown: a first reset during it is one more. */
    fault_proxy_call_at(proxy, FAULT_DOWN, 1 + draw(&b->state, ROUND_BYTES), reset_connections, b);
}

/* Through shared memory no byte of a round passes: every third time that a rank begins a round, it
 * resets the connections of any rank to any server, and waits until one is there again (not long:
 * the rank may have ended).  Meanwhile other ranks have requests there. */
static void reset_at_step(struct team_rank *r, uint64_t round)
{
    uint64_t state = r->team->seed + round * 2 + r->index;
    int64_t deadline_ns = clock_deadline_ns(500);
    struct fault_proxy *proxy;
    unsigned accepted;

    (void)draw(&state, 1);
    if (draw(&state, 3) > 0)
        return;
    proxy = r->team->ranks[draw(&state, r->team->world_size)]
                .proxies[draw(&state, r->team->server_count)];
    accepted = fault_proxy_accepted(proxy);
    fault_proxy_reset(proxy);
    while (fault_proxy_accepted(proxy) == accepted && clock_now_ns() < deadline_ns)
        (void)poll(NULL, 0, 1);
}

static const struct {
    bool update;
    struct consistency consistency;
    bool exact;
    bool shares;
    unsigned connections;
    enum codec_kind down;
} modes[] = {
    {true, {.mode = CONSISTENCY_BSP}, true, false, 1, CODEC_NONE},
    {false, {.mode = CONSISTENCY_BSP}, true, false, 3, CODEC_NONE},
    {true, {.mode = CONSISTENCY_BSP, .backup = 1}, false, false, 1, CODEC_NONE},
    {true, {.mode = CONSISTENCY_SSP, .staleness = 2}, false, false, 2, CODEC_NONE},
    {true, {.mode = CONSISTENCY_ASP}, false, false, 1, CODEC_NONE},
    {true, {.mode = CONSISTENCY_BSP}, true, true, 2, CODEC_NONE},
    {false, {.mode = CONSISTENCY_BSP}, true, true, 1, CODEC_NONE},
    {true, {.mode = CONSISTENCY_BSP, .backup = 1}, false, true, 1, CODEC_NONE},
    {true, {.mode = CONSISTENCY_ASP}, false, true, 2, CODEC_NONE},
    {true, {.mode = CONSISTENCY_BSP, .backup = 1}, false, false, 1, CODEC_TOP_K},
    {true, {.mode = CONSISTENCY_SSP, .staleness = 2}, false, false, 2, CODEC_ONE_BIT},
    {true, {.mode = CONSISTENCY_ASP}, false, false, 1, CODEC_ROWS},
};

/* Every payload is counted once, however often it was sent. */
static void check_counters(const struct team_rank *r, bool initial)
{
    const struct sync_counters *c = &r->counters;
    uint64_t rounds = ROUNDS * ROUND_BYTES;

    ck_assert_uint_eq(c->tx_payload_bytes, (initial ? ROUND_BYTES : 0) + rounds);
    ck_assert_uint_eq(c->rx_payload_bytes, ROUND_BYTES + rounds);
    ck_assert_uint_eq(c->tx_reference_bytes, r->team->sharing > 0 ? c->tx_payload_bytes : 0);
    ck_assert_uint_eq(c->rx_reference_bytes, r->team->sharing > 0 ? c->rx_payload_bytes : 0);
    ck_assert_uint_gt(c->tx_wire_bytes, c->tx_payload_bytes - c->tx_reference_bytes);
}

START_TEST(test_resets_change_nothing)
{
    struct team t;
    struct breaker breakers[2][2];
    uint64_t reconnects = 0;

    team_init(&t, 2, 2, ROUNDS);
    t.update = modes[_i].update;
    t.consistency = modes[_i].consistency;
    t.order = modes[_i].exact ? REDUCE_REPRODUCIBLE : REDUCE_FAST;
    t.sharing = modes[_i].shares;
    t.connections = modes[_i].connections;
    t.priority = t.connections > 1;
    t.compression = compression_make(CODEC_NONE, (uint32_t)modes[_i].down, 50000);
    t.seed = (uint64_t)(support_random() * 1e9);
    t.at_step = t.sharing ? reset_at_step : NULL;
    team_open(&t);
    for (unsigned i = 0; i < 2 && !t.sharing; i++)
        for (unsigned k = 0; k < 2; k++)
            arm(&breakers[i][k], t.ranks[i].proxies[k], t.seed + i * 2 + k, 8);
    for (unsigned i = 0; i < 2; i++)
        team_run_rank(&t.ranks[i]);
    for (unsigned i = 0; i < 2; i++)
        team_join_rank(&t.ranks[i]);
    for (unsigned i = 0; i < 2; i++) {
        const struct team_rank *r = &t.ranks[i];

        ck_assert_msg(r->status == STATUS_OK, "rank %u: %s", i, r->err.text);
        if (modes[_i].exact)
            check_counters(r, i == 0);
        reconnects += r->counters.reconnects;
        ck_assert(r->counters.reconnects == 0 || r->counters.away_ns > 0);
    }
    ck_assert_uint_gt(reconnects, 3);
    if (modes[_i].exact)
        team_check(&t);
    else /* the final values */
        ck_assert(ps_same_bits(t.ranks[0].params, t.ranks[1].params, TEAM_COUNT));
    team_close(&t);
}
END_TEST

static const struct {
    enum codec_kind up, down;
    bool update, overlap;
} compressed[] = {
    {CODEC_NONE, CODEC_NONE, true, true},         {CODEC_ONE_BIT, CODEC_ONE_BIT, true, true},
    {CODEC_ONE_BIT, CODEC_ONE_BIT, false, false}, {CODEC_TOP_K, CODEC_TOP_K, true, false},
    {CODEC_FP16, CODEC_BF16, true, true},         {CODEC_ROWS, CODEC_ROWS, true, true},
};

/* Two ranks and two servers; `strikes` resets of each connection.  The results are in t->ranks. */
static void run_compressed(struct team *t, int which, unsigned strikes)
{
    struct breaker breakers[2][2];

    team_init(t, 2, 2, ROUNDS);
    t->update = compressed[which].update;
    t->overlap_forward = compressed[which].overlap;
    t->compression =
        compression_make((uint32_t)compressed[which].up, (uint32_t)compressed[which].down, 50000);
    t->connections = 2;
    t->priority = true;
    team_open(t);
    for (unsigned i = 0; i < 2; i++)
        for (unsigned k = 0; k < 2 && strikes > 0; k++)
            arm(&breakers[i][k], t->ranks[i].proxies[k],
                (uint64_t)(support_random() * 1e9) + i * 2 + k, strikes);
    for (unsigned i = 0; i < 2; i++)
        team_run_rank(&t->ranks[i]);
    for (unsigned i = 0; i < 2; i++)
        team_join_rank(&t->ranks[i]);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_msg(t->ranks[i].status == STATUS_OK, "rank %u: %s", i, t->ranks[i].err.text);
}

/* Residuals are carried over and deltas added exactly once, however often their bytes were sent. */
START_TEST(test_resets_of_compressed_links)
{
    struct team undisturbed, disturbed;
    uint64_t reconnects = 0;

    run_compressed(&undisturbed, _i, 0);
    run_compressed(&disturbed, _i, 6);
    for (unsigned i = 0; i < 2; i++) {
        const struct sync_counters *c = &disturbed.ranks[i].counters;

        reconnects += c->reconnects;
        ck_assert(ps_same_bits(undisturbed.ranks[i].params, disturbed.ranks[i].params, TEAM_COUNT));
        ck_assert_uint_eq(c->tx_payload_bytes, undisturbed.ranks[i].counters.tx_payload_bytes);
        ck_assert_uint_eq(c->rx_payload_bytes, undisturbed.ranks[i].counters.rx_payload_bytes);
    }
    ck_assert_uint_gt(reconnects, 1);
    team_close(&undisturbed);
    team_close(&disturbed);
}
END_TEST

/* The error of a first join that breaks and then finds no server contains both causes. */
static void reset_and_refuse(void *user)
{
    fault_proxy_reset(user);
    fault_proxy_refuse(user, true);
}

START_TEST(test_a_join_that_breaks)
{
    struct team t;
    struct team_rank *r = &t.ranks[0];

    team_init(&t, 2, 1, 1); /* the other rank never joins */
    t.timeout_ms = 4000;
    team_open(&t);
    fault_proxy_call_at(r->proxies[0], FAULT_UP, 300, reset_and_refuse, r->proxies[0]);
    ck_assert_int_ne(team_start_rank(r), STATUS_OK);
    ck_assert_msg(strncmp(r->err.text, "rank 0, parameter server", 24) == 0, "%s", r->err.text);
    ck_assert_msg(strstr(r->err.text, " (after: rank 0, parameter server") != NULL, "%s",
                  r->err.text);
    team_close(&t);
}
END_TEST

/* ------------------------------------------------------------------ silence */

/* Heartbeats detect a silently dead link, while the step continues. */
START_TEST(test_silence_is_a_loss)
{
    struct team t;

    team_init(&t, 2, 1, 4);
    team_open(&t);
    t.ranks[1].rounds = 4;
    team_run_rank(&t.ranks[1]);
    ck_assert_msg(team_start_rank(&t.ranks[0]) == STATUS_OK, "%s", t.ranks[0].err.text);
    ck_assert_msg(team_step(&t.ranks[0], 1) == STATUS_OK, "%s", t.ranks[0].err.text);
    fault_proxy_hold(t.ranks[0].proxies[0], FAULT_DOWN, true);
    ck_assert_msg(team_begin_step(&t.ranks[0], 2, TEAM_COUNT) == STATUS_OK, "%s",
                  t.ranks[0].err.text);
    while (fault_proxy_accepted(t.ranks[0].proxies[0]) < 2)
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    fault_proxy_hold(t.ranks[0].proxies[0], FAULT_DOWN, false);
    ck_assert_msg(sync_finish(t.ranks[0].sync, &t.ranks[0].err) == STATUS_OK, "%s",
                  t.ranks[0].err.text);
    for (uint64_t round = 3; round <= 4; round++)
        ck_assert_msg(team_step(&t.ranks[0], round) == STATUS_OK, "%s", t.ranks[0].err.text);
    ck_assert_uint_ge(sync_counters(t.ranks[0].sync).reconnects, 1);
    sync_close(t.ranks[0].sync, NULL);
    t.ranks[0].sync = NULL;
    team_join_rank(&t.ranks[1]);
    team_check(&t);
    team_close(&t);
}
END_TEST

/* A worker sends heartbeats during a long computation. */
START_TEST(test_a_long_step_is_no_silence)
{
    struct team t;

    team_init(&t, 1, 1, 2);
    t.heartbeat_timeout_ms = 1200;
    team_open(&t);
    ck_assert_msg(team_start_rank(&t.ranks[0]) == STATUS_OK, "%s", t.ranks[0].err.text);
    for (uint64_t round = 1; round <= 2; round++) {
        (void)nanosleep(&(struct timespec){.tv_sec = 3}, NULL); /* the computation */
        ck_assert_msg(team_step(&t.ranks[0], round) == STATUS_OK, "%s", t.ranks[0].err.text);
    }
    team_check(&t);
    team_close(&t);
}
END_TEST

/* ------------------------------------------------------------------ no reconnection */

static void disconnect(struct team_rank *r, unsigned server)
{
    fault_proxy_refuse(r->proxies[server], true);
    fault_proxy_reset(r->proxies[server]);
}

START_TEST(test_a_server_that_stays_away_is_named)
{
    struct team t;
    int64_t before_ns;

    team_init(&t, 1, 2, 3);
    t.reconnect_ms = _i == 0 ? 0 : 1500;
    team_open(&t);
    ck_assert_msg(team_start_rank(&t.ranks[0]) == STATUS_OK, "%s", t.ranks[0].err.text);
    disconnect(&t.ranks[0], 1);
    before_ns = clock_now_ns();
    ck_assert_int_ne(team_step(&t.ranks[0], 1), STATUS_OK);
    err = t.ranks[0].err;
    assert_fails(err.status, STATUS_PEER_LOST, strchr(t.ranks[0].servers, ',') + 1);
    assert_fails(err.status, STATUS_PEER_LOST, "was lost");
    if (_i == 1)
        assert_fails(err.status, STATUS_PEER_LOST, "; it did not come back within ");
    else
        ck_assert_ptr_null(strstr(err.text, "come back"));
    ck_assert_int_lt(clock_now_ns() - before_ns, (t.reconnect_ms + INT64_C(8000)) * 1000000);
    team_close(&t);
}
END_TEST

/* An error returned by a server is final: no reconnection is attempted. */
START_TEST(test_a_server_error_is_final)
{
    struct team t;
    struct error reason = {0};
    int64_t before_ns;

    team_init(&t, 2, 1, 3);
    t.reconnect_ms = 60000;
    team_open(&t);
    t.ranks[1].rounds = 1;
    team_run_rank(&t.ranks[1]);
    ck_assert_msg(team_start_rank(&t.ranks[0]) == STATUS_OK, "%s", t.ranks[0].err.text);
    before_ns = clock_now_ns();
    (void)error_set(&reason, STATUS_NO_SPACE, "the disk is full");
    sync_close(t.ranks[0].sync, &reason);
    t.ranks[0].sync = NULL;
    team_join_rank(&t.ranks[1]);
    err = t.ranks[1].err;
    assert_fails(t.ranks[1].status, STATUS_PEER_LOST, "rank 0 failed: the disk is full");
    ck_assert_int_lt(clock_now_ns() - before_ns, INT64_C(20000) * 1000000);
    team_close(&t);
}
END_TEST

/* ------------------------------------------------------------------ lost workers */

/* The reference for compressed replies, which have no serial run: the same job without a loss. */
static void run_undisturbed(struct team *t, const struct compression *compression)
{
    team_init(t, 2, 2, 8);
    t->compression = *compression;
    team_open(t);
    for (unsigned i = 0; i < 2; i++)
        team_run_rank(&t->ranks[i]);
    for (unsigned i = 0; i < 2; i++)
        team_join_rank(&t->ranks[i]);
}

static void check_as_undisturbed(const struct team *t)
{
    struct team undisturbed;

    run_undisturbed(&undisturbed, &t->compression);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_msg(t->ranks[i].status == STATUS_OK, "rank %u: %s", i, t->ranks[i].err.text);
        ck_assert_msg(undisturbed.ranks[i].status == STATUS_OK, "%s",
                      undisturbed.ranks[i].err.text);
        ck_assert(ps_same_bits(t->ranks[i].params, undisturbed.ranks[i].params, TEAM_COUNT));
    }
    team_close(&undisturbed);
}

/* Rank 1 is lost in the middle of a round, with a part of its gradients sent, and never reconnects;
 * partitions on the two servers may be at different rounds.  Its replacement repeats exactly that
 * step, from exactly the parameters of the others, compressed or not. */
START_TEST(test_a_replacement_continues)
{
    static const size_t sent[] = {0, 1500, TEAM_COUNT / 2, TEAM_COUNT};
    static const enum codec_kind down[] = {CODEC_TOP_K, CODEC_FP16, CODEC_ONE_BIT, CODEC_ROWS};
    const uint64_t last = _i < 4 || _i >= 8 ? 5 : 1; /* round in which it is lost */
    struct team t;
    struct team_rank *r, lost;

    team_init(&t, 2, 2, 8);
    t.on_loss = WORKER_LOSS_WAIT;
    t.reconnect_ms = 1500;
    if (_i >= 8)
        t.compression = compression_make(CODEC_FP16, (uint32_t)down[_i - 8], 50000);
    team_open(&t);
    r = &t.ranks[1];
    team_run_rank(&t.ranks[0]);
    ck_assert_msg(team_start_rank(r) == STATUS_OK, "%s", r->err.text);
    for (uint64_t round = 1; round < last; round++)
        ck_assert_msg(team_step(r, round) == STATUS_OK, "%s", r->err.text);
    ck_assert_msg(team_begin_step(r, last, sent[_i % 4]) == STATUS_OK, "%s", r->err.text);
    disconnect(r, 0);
    disconnect(r, 1);
    lost = *r;
    lost.err = (struct error){.status = STATUS_PEER_LOST, .text = "played dead"};
    sync_close(lost.sync, &lost.err); /* the proxies refuse its Leave */
    r->sync = NULL;
    memset(r->params, 0, TEAM_COUNT * sizeof(float));
    memset(r->grads, 0, TEAM_COUNT * sizeof(float));
    for (unsigned k = 0; k < 2; k++)
        fault_proxy_refuse(r->proxies[k], false);
    team_run_rank(r);
    team_join_rank(r);
    team_join_rank(&t.ranks[0]);
    ck_assert_msg(r->status == STATUS_OK, "%s", r->err.text);
    ck_assert_uint_ge(r->first, last);
    ck_assert_uint_le(r->first, last + 1);
    if (_i < 8)
        team_check(&t);
    else
        check_as_undisturbed(&t);
    team_close(&t);
}
END_TEST

static void step_or_fail(struct team_rank *r, uint64_t round)
{
    ck_assert_msg(team_step(r, round) == STATUS_OK, "rank %u: %s", r->index, r->err.text);
}

/* Wait until the rank has received `bytes` bytes of replies. */
static void await_answers(const struct team_rank *r, uint64_t bytes)
{
    while (sync_counters(r->sync).rx_payload_bytes < bytes)
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Disconnect rank 1; rank 0 then makes round 4 and a part of round 5: two partitions, one of each
 * server. */
static void continue_without_rank_1(struct team *t)
{
    struct team_rank *first = &t->ranks[0], *lost = &t->ranks[1];
    size_t full = TEAM_PARTITION_BYTES / sizeof(float);
    uint64_t before;

    disconnect(lost, 0);
    disconnect(lost, 1);
    team_join_rank(lost);
    ck_assert_int_ne(lost->status, STATUS_OK);
    step_or_fail(first, 4);
    before = sync_counters(first->sync).rx_payload_bytes;
    ck_assert_int_eq(team_begin_step(first, 5, 3 * full), STATUS_OK);
    await_answers(first, before + 2 * codec_bytes(&t->compression.down, full));
    for (unsigned k = 0; k < 2; k++)
        fault_proxy_refuse(lost->proxies[k], false);
    lost->err = (struct error){.status = STATUS_OK};
    memset(lost->params, 0, TEAM_COUNT * sizeof(float));
}

/* shrink: a rank that joins the running job receives the complete current values, then the same
 * deltas as the others, and no delta that those values contain already. */
START_TEST(test_a_replacement_gets_current_values)
{
    struct team t;
    struct team_rank *r;

    team_init(&t, 2, 2, 8);
    t.on_loss = WORKER_LOSS_SHRINK;
    t.reconnect_ms = 1000;
    t.compression = compression_make(CODEC_TOP_K, _i == 0 ? CODEC_TOP_K : CODEC_BF16, 50000);
    team_open(&t);
    r = &t.ranks[1];
    team_run_rank(r);
    ck_assert_msg(team_start_rank(&t.ranks[0]) == STATUS_OK, "%s", t.ranks[0].err.text);
    for (uint64_t round = 1; round <= 3; round++)
        step_or_fail(&t.ranks[0], round);
    continue_without_rank_1(&t);
    ck_assert_msg(team_start_rank(r) == STATUS_OK, "%s", r->err.text);
    ck_assert_uint_eq(r->first, 5);
    for (uint64_t round = 5; round <= 8; round++) {
        ck_assert_int_eq(team_begin_step(r, round, TEAM_COUNT), STATUS_OK);
        if (round > 5)
            ck_assert_int_eq(team_begin_step(&t.ranks[0], round, TEAM_COUNT), STATUS_OK);
        sync_ready(t.ranks[0].sync, TEAM_COUNT);
        for (unsigned i = 0; i < 2; i++)
            ck_assert_msg(sync_finish(t.ranks[i].sync, &t.ranks[i].err) == STATUS_OK, "%s",
                          t.ranks[i].err.text);
        ck_assert(ps_same_bits(t.ranks[0].params, r->params, TEAM_COUNT));
    }
    team_close(&t);
}
END_TEST

/* The other ranks continue without the lost one, in every mode, to the end. */
START_TEST(test_the_others_continue)
{
    struct team t;

    team_init(&t, 3, 2, 8);
    t.on_loss = WORKER_LOSS_SHRINK;
    t.reconnect_ms = 1500;
    t.update = modes[_i].update;
    t.consistency = modes[_i].consistency;
    t.order = modes[_i].exact ? REDUCE_REPRODUCIBLE : REDUCE_FAST;
    t.compression = compression_make(CODEC_NONE, (uint32_t)modes[_i].down, 50000);
    team_open(&t);
    team_run_rank(&t.ranks[0]);
    team_run_rank(&t.ranks[1]);
    ck_assert_msg(team_start_rank(&t.ranks[2]) == STATUS_OK, "%s", t.ranks[2].err.text);
    ck_assert_msg(team_step(&t.ranks[2], 1) == STATUS_OK, "%s", t.ranks[2].err.text);
    ck_assert_msg(team_begin_step(&t.ranks[2], 2 + sync_skipped(t.ranks[2].sync), TEAM_COUNT / 2) ==
                      STATUS_OK,
                  "%s", t.ranks[2].err.text);
    disconnect(&t.ranks[2], 0);
    disconnect(&t.ranks[2], 1);
    for (unsigned i = 0; i < 2; i++) {
        team_join_rank(&t.ranks[i]);
        ck_assert_msg(t.ranks[i].status == STATUS_OK, "rank %u: %s", i, t.ranks[i].err.text);
    }
    ck_assert(ps_same_bits(t.ranks[0].params, t.ranks[1].params, TEAM_COUNT));
    (void)error_set(&t.ranks[2].err, STATUS_PEER_LOST, "played dead");
    team_close(&t);
}
END_TEST

/* fail: the job ends in time, with an error that names the lost rank. */
START_TEST(test_a_lost_worker_is_named)
{
    struct team t;
    int64_t before_ns;

    team_init(&t, 2, 1, 8);
    t.reconnect_ms = 1000;
    team_open(&t);
    team_run_rank(&t.ranks[0]);
    ck_assert_msg(team_start_rank(&t.ranks[1]) == STATUS_OK, "%s", t.ranks[1].err.text);
    ck_assert_msg(team_step(&t.ranks[1], 1) == STATUS_OK, "%s", t.ranks[1].err.text);
    before_ns = clock_now_ns();
    disconnect(&t.ranks[1], 0);
    team_join_rank(&t.ranks[0]);
    ck_assert_int_lt(clock_now_ns() - before_ns, (t.reconnect_ms + INT64_C(10000)) * 1000000);
    err = t.ranks[0].err;
    assert_fails(t.ranks[0].status, STATUS_PEER_LOST, "rank 1 was lost");
    (void)error_set(&t.ranks[1].err, STATUS_PEER_LOST, "played dead");
    team_close(&t);
}
END_TEST

int main(void)
{
    const int mode_count = (int)(sizeof(modes) / sizeof(modes[0]));
    log_set_level(LOG_QUIET); /* the services log why their jobs end */
    return SUPPORT_RUN(
        "ps_recovery", 60, LOOP_TEST(test_resets_change_nothing, 0, mode_count),
        LOOP_TEST(test_resets_of_compressed_links, 0, sizeof(compressed) / sizeof(compressed[0])),
        TEST(test_a_join_that_breaks), TEST(test_silence_is_a_loss),
        TEST(test_a_long_step_is_no_silence),
        LOOP_TEST(test_a_server_that_stays_away_is_named, 0, 2), TEST(test_a_server_error_is_final),
        TEST_CASE("workers", 60), LOOP_TEST(test_a_replacement_continues, 0, 12),
        LOOP_TEST(test_a_replacement_gets_current_values, 0, 2),
        LOOP_TEST(test_the_others_continue, 0, mode_count), TEST(test_a_lost_worker_is_named));
}
