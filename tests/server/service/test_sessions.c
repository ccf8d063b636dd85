/*
 * Sessions over real gRPC, with scripted workers: connections that break in every phase and resume,
 * so that the other ranks see only a delay; sessions that may not resume; and streams with a wrong
 * identity.
 */
#include "common/base/host.h"
#include "common/base/random.h"
#include "tests/server/service/session_job.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#ifdef __SANITIZE_ADDRESS__ /* it keeps freed memory */
#define GROWTH_MAX (512u << 20)
#else
#define GROWTH_MAX (8u << 20)
#endif

static struct error err;

static void open_long_service(void)
{
    open_service(LONG_MS, NULL);
}

/* ------------------------------------------------------------------ lanes */

START_TEST(test_lanes)
{
    session_terms.lanes = 3;
    open_long_service();
    session_start(0.5f);
    session_round(1);
    session_round(2);
    session_end();
    close_service();
}
END_TEST

/* A first chunk that is not a valid HELLO of the rank ends its stream and affects no other. */
START_TEST(test_streams_with_a_wrong_identity)
{
    static const struct {
        struct chunk_header hello;
        enum status status;
        const char *text;
    } cases[] = {
        {{.kind = CHUNK_HELLO, .rank = 1, .session = 7}, STATUS_PEER_LOST, "another session's"},
        {{.kind = CHUNK_HELLO, .rank = 1}, STATUS_PROTOCOL, "did not say which session"},
        {{.kind = CHUNK_PULL, .rank = 1}, STATUS_PROTOCOL, "did not say which session"},
        {{.kind = CHUNK_PULL, .rank = 1, .session = 101}, STATUS_PROTOCOL, "did not say which"},
        {{.kind = CHUNK_HELLO, .rank = 1, .session = 101, .lane = 2},
         STATUS_PROTOCOL,
         "rank 1 has 2 lanes, there is no lane 2"},
        {{.kind = CHUNK_HELLO, .rank = 1, .session = 101, .lane = UINT32_MAX},
         STATUS_PROTOCOL,
         "no lane 4294967295"},
        {{.kind = CHUNK_HELLO, .rank = 2, .session = 101}, STATUS_PROTOCOL, "rank 2 sent a chunk"},
        {{.kind = CHUNK_HELLO, .rank = UINT32_MAX, .session = 101},
         STATUS_PROTOCOL,
         "is not in job 'raw'"},
    };

    session_terms.lanes = 2;
    open_long_service();
    session_start(0.5f);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        raw_start_call(&workers[2], &workers[2].stream, SERVICE_EXCHANGE);
        raw_send_on(&workers[2].stream, &cases[i].hello, 0, 0);
        check_result("wrong identity", raw_wait_closed(&workers[2].stream), cases[i].status,
                     cases[i].text);
    }
    session_round(1);
    ck_assert_uint_eq(session_counters(NULL).disconnects, 0);
    session_end();
    close_service();
}
END_TEST

/* Send a HELLO, or a first heartbeat, with the session of rank 1 from another worker; the
 * result. */
static struct rpc_result claim_lane(uint64_t connection)
{
    struct chunk_header hello = {
        .kind = CHUNK_HELLO, .rank = 1, .session = 101, .connection = connection};

    raw_start_call(&workers[2], &workers[2].stream, SERVICE_EXCHANGE);
    raw_send_on(&workers[2].stream, &hello, 0, 0);
    return raw_wait_closed(&workers[2].stream);
}

static struct rpc_result claim_heartbeats(uint64_t connection)
{
    workers[2].rank = 1;
    workers[2].session = 101;
    workers[2].connection = connection;
    raw_start_attend(&workers[2]);
    raw_send_heartbeat(&workers[2], "raw", 1);
    return raw_wait_closed(&workers[2].attend);
}

/* Messages of an earlier connection of the session that arrive after the next one has begun, before
 * and after that has opened its lane, are refused and affect no rank. */
START_TEST(test_late_messages_of_an_old_connection)
{
    struct join_request request;
    uint64_t previous;

    open_long_service();
    session_start(0.5f);
    previous = workers[1].connection;
    ck_assert_uint_ne(previous, 0);
    raw_disconnect(&workers[1]);
    request = session_request(1);
    request.resume = true;
    check_result("resume", session_join(&workers[1], &request), STATUS_OK, "");
    ck_assert_uint_gt(workers[1].connection, previous);
    check_result("late", claim_lane(previous), STATUS_UNAVAILABLE, "than its present one");
    check_result("late", claim_heartbeats(previous), STATUS_UNAVAILABLE, "than its present one");
    check_result("invented", claim_lane(workers[1].connection + 1), STATUS_UNAVAILABLE, "present");
    raw_start_lanes(&workers[1]);
    raw_start_attend(&workers[1]);
    raw_send_heartbeat(&workers[1], "raw", 1);
    (void)raw_wait_heartbeats(&workers[1], 1);
    session_round(1);
    check_result("late", claim_lane(previous), STATUS_UNAVAILABLE, "than its present one");
    check_result("late", claim_heartbeats(previous), STATUS_UNAVAILABLE, "than its present one");
    check_result("twice", claim_lane(workers[1].connection), STATUS_EXISTS, "open stream");
    check_result("twice", claim_heartbeats(workers[1].connection), STATUS_EXISTS,
                 "sends heartbeats already");
    session_round(2);
    ck_assert_uint_eq(session_counters(NULL).disconnects, 1);
    session_end();
    close_service();
}
END_TEST

/* A late join does not replace the connection that a later join has begun. */
START_TEST(test_a_join_that_comes_late)
{
    struct join_request request;

    open_long_service();
    session_start(0.5f);
    request = session_request(1);
    request.resume = true;
    for (uint64_t attempt = 5; attempt <= 6; attempt++) {
        raw_disconnect(&workers[1]);
        request.attempt = attempt;
        check_result("resume", session_join(&workers[1], &request), STATUS_OK, "");
        raw_start_lanes(&workers[1]);
        request.attempt = attempt - 1;
        check_result("late", session_join(&workers[2], &request), STATUS_UNAVAILABLE,
                     "rank 1 has joined again since");
        session_round(attempt - 4);
        ck_assert_uint_eq(session_counters(NULL).disconnects, attempt - 4);
    }
    session_end();
    close_service();
}
END_TEST

/* A restarted server does not reuse the connection numbers of the one before. */
START_TEST(test_connection_numbers_of_two_servers)
{
    uint64_t previous;

    open_long_service();
    session_start(0.5f);
    previous = workers[1].connection;
    session_end();
    close_service();
    open_long_service();
    session_start(0.5f);
    ck_assert_uint_ne(workers[1].connection, previous);
    session_end();
    close_service();
}
END_TEST

/* A lane is opened twice, by a client that does not name its connection: one of the streams is of a
 * connection that broke unnoticed, so the session is cut off. */
START_TEST(test_a_lane_opened_twice)
{
    struct chunk_header hello = {.kind = CHUNK_HELLO, .rank = 1, .session = 101};

    open_long_service();
    session_start(0.5f);
    raw_start_call(&workers[2], &workers[2].stream, SERVICE_EXCHANGE);
    raw_send_on(&workers[2].stream, &hello, 0, 0);
    check_result("second", raw_wait_closed(&workers[2].stream), STATUS_UNAVAILABLE, "open stream");
    ck_assert_int_eq(raw_wait_closed(&workers[1].stream).status, STATUS_CANCELLED);
    session_resume(1);
    session_round(1);
    session_end();
    close_service();
}
END_TEST

START_TEST(test_a_partition_on_another_lane)
{
    struct chunk_header h;

    session_terms.lanes = 2;
    open_long_service();
    session_start(0.5f);
    h = raw_chunk(&workers[1], CHUNK_PUSH, 1, 1);
    raw_send_on(&workers[1].stream, &h, h.length, 1);
    check_result("sender", raw_wait_closed(&workers[1].stream), STATUS_PROTOCOL,
                 "rank 1 sent partition 1 on lane 0 of 2, which is not its own");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ heartbeats */

static void send_heartbeat_on(struct raw_call *c, const struct raw_worker *w, unsigned lane)
{
    struct heartbeat heartbeat = {.session = w->session,
                                  .connection = w->connection,
                                  .rank = w->rank,
                                  .job = "raw",
                                  .lane = lane};
    uint8_t bytes[WIRE_HEARTBEAT_MAX];

    (void)rpc_call_send(c->call, bytes, wire_pack_heartbeat(&heartbeat, bytes), NULL);
}

/* Send heartbeats of rank 0, and of lane 0 of rank 1 if `both`, until the job waits for rank 1 with
 * that reason. */
static void send_heartbeats_until_away(size_t *heartbeats, bool both, const char *reason)
{
    struct heartbeat heartbeat;

    do {
        raw_send_heartbeat(&workers[0], "raw", *heartbeats);
        if (both)
            raw_send_heartbeat(&workers[1], "raw", *heartbeats);
        heartbeat = raw_wait_heartbeats(&workers[0], ++*heartbeats);
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    } while (heartbeat.waiting_ms == 0);
    ck_assert_msg(strstr(heartbeat.reason, reason) != NULL, "%s", heartbeat.reason);
}

/* Rank 1 sends heartbeats on one of its lanes only; then it resumes and opens only one of them. */
START_TEST(test_a_dead_lane)
{
    struct raw_worker *w = &workers[1];
    static struct raw_call other;
    struct join_request request;
    size_t heartbeats = 0;

    session_terms.lanes = 2;
    session_terms.heartbeat_timeout_ms = 3000;
    session_terms.reconnect_ms = 4000;
    open_long_service();
    session_start(0.5f);
    raw_start_attend(w);
    raw_start_call(w, &other, SERVICE_ATTEND);
    send_heartbeat_on(&other, w, 2);
    check_result("lane", raw_wait_closed(&other), STATUS_PROTOCOL, "there is no lane 2");
    raw_start_call(w, &other, SERVICE_ATTEND);
    send_heartbeat_on(&other, w, 1);
    raw_start_attend(&workers[0]);
    send_heartbeats_until_away(&heartbeats, true, "rank 1 is away (lane 1 of 2 silent for ");
    ck_assert_int_eq(raw_wait_closed(&w->other_lanes[0]).status, STATUS_CANCELLED);
    request = session_request(1);
    request.resume = true;
    check_result("resume", session_join(w, &request), STATUS_OK, "");
    raw_start_stream(w);
    send_heartbeats_until_away(&heartbeats, false, "rank 1 is away (it opened 1 of 2 lanes in ");
    session_resume(1);
    session_round(1);
    (void)raw_wait_closed(&other);
    rpc_call_unref(other.call);
    session_end();
    close_service();
}
END_TEST

/* Messages that end a bound Attend call and cut its rank off; the rank resumes. */
START_TEST(test_bad_heartbeats)
{
    static const uint8_t garbage[] = {0xff, 0xff, 0xff};
    struct heartbeat other = {.session = 100, .rank = 0, .job = "raw"};
    uint8_t bytes[WIRE_HEARTBEAT_MAX];
    const uint8_t *bad[] = {garbage, bytes};
    size_t sizes[] = {sizeof(garbage), wire_pack_heartbeat(&other, bytes)};

    open_long_service();
    session_start(0.5f);
    for (size_t i = 0; i < 2; i++) {
        raw_start_attend(&workers[1]);
        raw_send_heartbeat(&workers[1], "raw", 1);
        (void)raw_wait_heartbeats(&workers[1], 1);
        (void)rpc_call_send(workers[1].attend.call, bad[i], sizes[i], NULL);
        ck_assert_int_ne(raw_wait_closed(&workers[1].attend).status, STATUS_OK);
        ck_assert_int_eq(raw_wait_closed(&workers[1].stream).status, STATUS_CANCELLED);
        session_resume(1);
    }
    raw_start_attend(&workers[1]);
    raw_send_heartbeat(&workers[1], "raw", 1);
    (void)raw_wait_heartbeats(&workers[1], 1);
    raw_start_call(&workers[2], &workers[2].attend, SERVICE_ATTEND);
    workers[2].rank = 1;
    workers[2].session = 101;
    raw_send_heartbeat(&workers[2], "raw", 1);
    check_result("twice", raw_wait_closed(&workers[2].attend), STATUS_EXISTS,
                 "sends heartbeats already");
    raw_start_call(&workers[2], &workers[2].attend, SERVICE_ATTEND);
    raw_send_heartbeat(&workers[2], "other", 1);
    check_result("other job", raw_wait_closed(&workers[2].attend), STATUS_UNAVAILABLE,
                 "job 'other' is not served here");
    session_round(1);
    session_end();
    close_service();
}
END_TEST

static void count_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    atomic_store((atomic_bool *)user, true);
}

/* A rank sends heartbeats and never reads: replies are dropped instead of queued. */
START_TEST(test_heartbeats_that_are_not_read)
{
    static const struct rpc_handler not_reading = {.closed = count_closed};
    struct heartbeat heartbeat = {.session = 101, .rank = 1, .job = "raw"};
    uint8_t bytes[WIRE_HEARTBEAT_MAX];
    struct raw_worker *w = &workers[1];
    atomic_bool closed = false;
    struct rpc_call *call;
    uint64_t before;

    open_long_service();
    session_start(0.5f);
    assert_ok(
        rpc_client_call(w->client, SERVICE_ATTEND, INT64_MAX, &not_reading, &closed, &call, &err));
    before = host_rss_bytes();
    for (unsigned i = 0; i < 200000; i++) {
        (void)rpc_call_send(call, bytes, wire_pack_heartbeat(&heartbeat, bytes), NULL);
        while (i % 100 == 99 && rpc_call_has_unsent(call))
            (void)sched_yield();
    }
    ck_assert_uint_lt(host_rss_bytes(), before + GROWTH_MAX); /* all replies would be 24 MiB */
    session_round(1);
    rpc_call_cancel(call);
    while (!atomic_load(&closed))
        (void)sched_yield();
    rpc_call_unref(call);
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ disconnects and resumes */

/* What rank 1 has sent and read when its connection breaks. */
enum phase { BEFORE_STREAMS, PULLED, READ, PUSHED_ONE, PUSHED_ALL, ROUND_DONE, PHASES };

/* Disconnect rank 1 in that phase; the replies it has received are discarded. */
static void disconnect_in_phase(enum phase phase)
{
    float first;

    session_join_all(100);
    if (phase == BEFORE_STREAMS)
        return;
    raw_start_lanes(&workers[1]);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_valid(&workers[1], CHUNK_PULL, p, 0, 0);
    if (phase != PULLED) {
        raw_start_lanes(&workers[0]);
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            raw_send_valid(&workers[0], CHUNK_INIT, p, 0, 0.5f);
            raw_send_valid(&workers[0], CHUNK_PULL, p, 0, 0);
        }
        session_expect_all(0, 0, 0.5f);
        session_expect_all(1, 0, 0.5f);
    }
    if (phase == PUSHED_ONE)
        raw_send_valid(&workers[1], CHUNK_PUSH, 1, 1, session_push(1, 1));
    if (phase >= PUSHED_ALL)
        session_push_all(1, 1);
    session_wait_taken(phase < PUSHED_ONE ? 0 : phase == PUSHED_ONE ? 1 : RAW_PARTITIONS);
    if (phase == ROUND_DONE) {
        session_push_all(0, 1);
        (void)raw_take(&workers[1], &first); /* the other replies are lost */
    }
    raw_disconnect(&workers[1]);
    if (phase != PULLED) /* the cancellation may overtake the HELLO */
        session_wait_disconnects(1);
}

/* Rank 1 repeats everything that may have been lost; sums and values are as in a run without
 * faults. */
START_TEST(test_a_disconnect_in_every_phase)
{
    enum phase phase = (enum phase)_i;
    uint64_t retries = phase == BEFORE_STREAMS ? 0 : phase == PUSHED_ONE ? 1 : RAW_PARTITIONS;
    struct stats_counters counters;
    struct stats_job job;

    open_long_service();
    disconnect_in_phase(phase);
    session_resume(1);
    if (phase <= READ)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[1], CHUNK_PULL, p, 0, 0);
    if (phase <= PULLED) {
        raw_start_lanes(&workers[0]);
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            raw_send_valid(&workers[0], CHUNK_INIT, p, 0, 0.5f);
            raw_send_valid(&workers[0], CHUNK_PULL, p, 0, 0);
        }
        session_expect_all(0, 0, 0.5f);
    }
    if (phase <= READ)
        session_expect_all(1, 0, 0.5f);
    session_repeat_all(1, 1);
    if (phase > READ) /* else one more reply may be in flight */
        session_wait_taken(retries + RAW_PARTITIONS);
    if (phase != ROUND_DONE)
        session_push_all(0, 1);
    session_expect_all(0, 1, session_sum(1));
    session_expect_all(1, 1, session_sum(1));
    session_round(2);
    counters = session_counters(&job);
    if (phase == PULLED) /* the cancellation may overtake the pulls */
        ck_assert_uint_le(counters.retries, retries);
    else
        ck_assert_uint_eq(counters.retries, retries);
    ck_assert_uint_eq(counters.pushes, 2 * 2 * RAW_PARTITIONS);
    ck_assert_uint_eq(counters.disconnects, 1); /* BEFORE_STREAMS: detected by the join */
    ck_assert_uint_eq(counters.reconnects, 1);
    ck_assert_uint_eq(job.epoch, 1);
    session_end();
    close_service();
}
END_TEST

/* One lane breaks: the other lanes are ended, too. */
START_TEST(test_one_lane_breaks)
{
    session_terms.lanes = 3;
    open_long_service();
    session_start(0.5f);
    rpc_call_cancel(workers[0].other_lanes[1].call);
    (void)raw_wait_closed(&workers[0].stream);
    (void)raw_wait_closed(&workers[0].other_lanes[0]);
    session_resume(0);
    session_round(1);
    session_end();
    close_service();
}
END_TEST

/* The reply to the first join is lost: the same join again resumes the session. */
START_TEST(test_a_join_whose_reply_is_lost)
{
    struct join_request request;

    open_long_service();
    session_join_all(100);
    request = session_request(1);
    check_result("join", session_join(&workers[1], &request), STATUS_OK, "");
    raw_initialise(workers, 2, 0.5f);
    session_round(1);
    session_end();
    close_service();
}
END_TEST

/* One rank pushes a round; it may disconnect after some of its partitions, resume and repeat all of
 * them. */
static void push_with_disconnects(struct random *r, unsigned rank, uint64_t round)
{
    uint32_t sent = random_u32(r) % (RAW_PARTITIONS + 1);

    for (uint32_t p = 0; p < sent; p++)
        raw_send_valid(&workers[rank], CHUNK_PUSH, p, round, session_push(rank, round));
    if (random_u32(r) % 2 == 0) {
        for (uint32_t p = sent; p < RAW_PARTITIONS; p++)
            raw_send_valid(&workers[rank], CHUNK_PUSH, p, round, session_push(rank, round));
        return;
    }
    raw_disconnect(&workers[rank]);
    session_resume(rank);
    session_repeat_all(rank, round);
}

/* Random disconnects of all ranks, before and after the sum, once or several times in a round: each
 * contribution is applied once, each request has one reply. */
START_TEST(test_random_disconnects)
{
    struct random r;

    random_seed(&r, (uint64_t)_i);
    session_terms.world_size = 3;
    session_terms.lanes = 2;
    open_long_service();
    session_start(0.5f);
    for (uint64_t round = 1; round <= 60; round++) {
        for (unsigned i = 0; i < 3; i++)
            push_with_disconnects(&r, i, round);
        for (unsigned i = 0; i < 3; i++) {
            while (random_u32(&r) % 3 == 0) { /* before any reply was read */
                raw_disconnect(&workers[i]);
                session_resume(i);
                session_repeat_all(i, round);
            }
            session_expect_all(i, round, session_sum(round));
        }
    }
    ck_assert_uint_eq(session_counters(NULL).pushes, 60 * 3 * RAW_PARTITIONS);
    session_end();
    close_service();
}
END_TEST

START_TEST(test_many_reconnects)
{
    unsigned times = 2000;
    uint64_t taken = 0;

    open_long_service();
    session_start(0.5f);
    for (unsigned i = 1; i <= times; i++) {
        raw_send_valid(&workers[1], CHUNK_PUSH, 0, i, session_push(1, i));
        session_wait_taken(taken + 1);
        raw_disconnect(&workers[1]);
        session_resume(1);
        session_repeat_all(1, i);
        session_wait_taken(taken += RAW_PARTITIONS + 1);
        session_push_all(0, i);
        session_expect_all(0, i, session_sum(i));
        session_expect_all(1, i, session_sum(i));
        taken += RAW_PARTITIONS;
    }
    ck_assert_uint_eq(session_counters(NULL).reconnects, times);
    session_end();
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("sessions", 60, TEST(test_lanes), TEST(test_streams_with_a_wrong_identity),
                       TEST(test_late_messages_of_an_old_connection),
                       TEST(test_a_join_that_comes_late),
                       TEST(test_connection_numbers_of_two_servers), TEST(test_a_lane_opened_twice),
                       TEST(test_a_partition_on_another_lane), TEST(test_a_dead_lane),
                       TEST(test_bad_heartbeats), TEST(test_heartbeats_that_are_not_read),
                       LOOP_TEST(test_a_disconnect_in_every_phase, 0, PHASES),
                       TEST(test_one_lane_breaks), TEST(test_a_join_whose_reply_is_lost),
                       LOOP_TEST(test_random_disconnects, 0, 10), TEST(test_many_reconnects));
}
