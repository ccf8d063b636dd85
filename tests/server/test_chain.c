/*
 * Two services, a primary and its replica, with workers played by hand: nothing is answered that
 * the replica does not have, either may go and the other goes on where they were, and both never
 * do.  Where a test must say when the replica acknowledges, the replica is played by hand, too.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/server/session_job.h"
#include "tests/support/certificate.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;
static struct service *replica;

static void open_replica(void)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = LONG_MS};

    assert_ok(service_open(&config, &replica, &err));
    (void)snprintf(session_terms.replica, sizeof(session_terms.replica), "127.0.0.1:%u",
                   (unsigned)service_port(replica));
}

static void set_up(void)
{
    open_service(LONG_MS, NULL);
    open_replica();
}

static void tear_down(void)
{
    close_service();
    service_close(replica);
}

static struct server_stats *stats_of(struct service *s)
{
    struct server_stats *stats = NULL;

    assert_ok(service_stats(s, &stats, &err));
    return stats;
}

/* Until the service has ended so many jobs, well or badly. */
static void wait_ended(struct service *s, uint64_t ok, uint64_t failed)
{
    int64_t deadline_ns = clock_deadline_ns(LONG_MS);
    bool ended = false;

    while (!ended) {
        struct server_stats *stats = stats_of(s);

        ended = stats->jobs_ok == ok && stats->jobs_failed == failed;
        ck_assert_msg(ended || clock_now_ns() < deadline_ns, "%d jobs done, %d failed",
                      (int)stats->jobs_ok, (int)stats->jobs_failed);
        free(stats);
        (void)sched_yield();
    }
}

/* The rank's next connection goes to the other server. */
static void move(unsigned rank, uint16_t port)
{
    uint64_t session = workers[rank].session;
    unsigned lanes = workers[rank].lanes;

    raw_close(&workers[rank]);
    raw_open(&workers[rank], port, rank);
    workers[rank].session = session;
    workers[rank].lanes = lanes;
}

static struct join_request return_request(unsigned rank, uint64_t round, bool follows)
{
    struct join_request request = session_request(rank);

    request.resume = true;
    request.round = round;
    request.follows = follows;
    return request;
}

static void come_over(unsigned rank, uint64_t round, bool follows)
{
    struct join_request request = return_request(rank, round, follows);

    check_result("come over", session_join(&workers[rank], &request), STATUS_OK, "");
    raw_start_lanes(&workers[rank]);
}

/* ------------------------------------------------------------------ both live */

/* _i: the optimizer runs on the server, on the worker. */
START_TEST(test_a_whole_job)
{
    session_terms.update = (unsigned)_i;
    session_terms.lanes = 2;
    set_up();
    session_start(0.5f);
    if (_i == 1)
        for (uint64_t round = 1; round <= 3; round++)
            session_round(round);
    else
        for (uint64_t round = 1; round <= 3; round++) { /* lr 1: values - sum */
            static float values = 0.5f;

            session_push_all(0, round);
            session_push_all(1, round);
            values -= session_sum(round);
            session_expect_all(0, round, values);
            session_expect_all(1, round, values);
        }
    session_end();
    wait_ended(service, 1, 0);
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* Each push a step of its own. */
START_TEST(test_each_push_a_step)
{
    struct raw_worker *w = workers;
    float values = 0.5f;

    session_terms.update = 0;
    session_terms.consistency = (struct consistency){.mode = CONSISTENCY_ASP};
    set_up();
    session_start(values);
    for (uint64_t round = 1; round <= 6; round++) {
        session_push_all(round % 2, (round + 1) / 2);
        values -= session_push(round % 2, (round + 1) / 2) / 2; /* lr / 2 */
        session_expect_all(round % 2, (round + 1) / 2, values);
    }
    raw_cut(&w[0]);
    raw_cut(&w[1]);
    move(0, service_port(replica));
    move(1, service_port(replica));
    come_over(0, 3, false);
    session_push_all(0, 4);
    values -= session_push(0, 4) / 2;
    session_expect_all(0, 4, values);
    come_over(1, 3, false);
    session_push_all(1, 4);
    values -= session_push(1, 4) / 2;
    session_expect_all(1, 4, values);
    session_end();
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* ------------------------------------------------------------------ the primary goes */

/*
 * Rank 0 loses the primary in the middle of round 3, of which _i partitions are summed.  It takes
 * the replica for its server; the primary learns that it is none any more, and says so to rank 1.
 */
START_TEST(test_promotion)
{
    uint32_t summed = (uint32_t)_i;
    struct join_request request;
    float first;

    set_up();
    session_start(0.5f);
    session_round(1);
    session_round(2);
    for (uint32_t p = 0; p < summed; p++)
        for (unsigned i = 0; i < 2; i++)
            raw_send_right(&workers[i], CHUNK_PUSH, p, 3, session_push(i, 3));
    for (uint32_t p = 0; p < summed; p++) /* so the replica has them */
        (void)raw_take(&workers[1], &first);
    raw_cut(&workers[0]);
    move(0, service_port(replica));
    request = return_request(0, 2, true);
    check_result("a follower", session_join(&workers[0], &request), STATUS_UNAVAILABLE,
                 "keeps a copy");
    come_over(0, 2, false);
    check_result("rank 1", raw_wait_closed(&workers[1].stream), STATUS_UNAVAILABLE,
                 "superseded by epoch 2");
    wait_ended(service, 0, 1);
    move(1, service_port(replica));
    come_over(1, 2, true);
    for (unsigned i = 0; i < 2; i++)
        session_again_all(i, 3);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 3, session_sum(3));
    session_round(4);
    session_round(5);
    session_end();
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* Before there are any values, and when only some are there. */
START_TEST(test_promotion_at_the_start)
{
    uint32_t here = (uint32_t)_i;
    float first;

    set_up();
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request;

        workers[i].session = 100 + i;
        request = session_request(i);
        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++) {
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
        raw_start_lanes(&workers[i]);
    }
    for (uint32_t p = 0; p < here; p++) {
        raw_send_right(&workers[0], CHUNK_INIT, p, 0, 0.5f);
        raw_send_right(&workers[0], CHUNK_PULL, p, 0, 0);
        ck_assert_uint_eq(raw_take(&workers[0], &first).partition, p);
    }
    for (unsigned i = 0; i < 2; i++) {
        raw_cut(&workers[i]);
        move(i, service_port(replica));
        come_over(i, 0, false);
    }
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[0], CHUNK_INIT, p, 0, 0.5f);
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[i], CHUNK_PULL, p, 0, 0);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 0, 0.5f);
    session_round(1);
    session_end();
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* A primary that is told to stop leaves the job to its replica. */
START_TEST(test_the_primary_stops_in_order)
{
    set_up();
    session_start(0.5f);
    session_round(1);
    for (unsigned i = 0; i < 2; i++)
        move(i, service_port(replica));
    service_close(service);
    for (unsigned i = 0; i < 2; i++)
        come_over(i, 1, false);
    session_round(2);
    session_end();
    wait_ended(replica, 1, 0);
    close_workers();
    service_close(replica);
}
END_TEST

/* A session that the primary never knew does not promote, nor does a newcomer. */
START_TEST(test_strangers_promote_nothing)
{
    struct join_request request;

    set_up();
    session_start(0.5f);
    session_round(1);
    workers[2].session = 999;
    move(2, service_port(replica));
    request = return_request(1, 1, false);
    request.session = 999;
    check_result("another session", session_join(&workers[2], &request), STATUS_UNAVAILABLE,
                 "knows no session of rank 1");
    request = session_request(1); /* the right session, but not back from anywhere */
    check_result("no return", session_join(&workers[2], &request), STATUS_UNAVAILABLE,
                 "keeps a copy");
    session_round(2);
    session_end();
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* ------------------------------------------------------------------ ranks go and come */

/* All partitions from both, and what the parameters are then: lr 1. */
static float play_values(uint64_t round, float values)
{
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, round);
    values -= session_sum(round);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, round, values);
    return values;
}

static struct stats_job job_at(struct service *s)
{
    struct server_stats *stats = stats_of(s);
    struct stats_job job = stats->job;

    free(stats);
    return job;
}

/* Another process takes rank 1's place at the primary, whose values are of this round. */
static void take_place(uint64_t session, uint64_t round, float values)
{
    struct join_request request;

    raw_close(&workers[1]);
    raw_open(&workers[1], service_port(service), 1);
    workers[1].session = session;
    request = session_request(1);
    check_result("newcomer", session_join(&workers[1], &request), STATUS_OK, "");
    raw_start_lanes(&workers[1]);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PULL, p, 0, 0);
    session_expect_all(1, round, values);
}

/* Rank 1 fails, the other goes on; _i: then the primary goes, or another process comes first, which
 * the replica knows when it is let in. */
START_TEST(test_a_rank_goes_before_the_primary)
{
    bool comes = _i == 1;
    float values;

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    set_up();
    session_start(0.5f);
    values = play_values(1, 0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    session_push_all(0, 2);
    values -= 2 * session_push(0, 2); /* scaled to the mean of those that are there */
    session_expect_all(0, 2, values);
    if (comes) {
        take_place(201, 2, values);
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[1], CHUNK_PUSH, p, 3, session_push(1, 3));
        session_push_all(0, 3);
        values -= session_sum(3);
        session_expect_all(0, 3, values);
        session_expect_all(1, 3, values);
    }
    move(0, service_port(replica));
    come_over(0, comes ? 3 : 2, false);
    wait_ended(service, 0, 1);
    ck_assert_uint_eq(job_at(replica).joined, comes ? 2 : 1);
    if (comes) {
        move(1, service_port(replica));
        come_over(1, 3, true);
        values = play_values(4, values);
    } else {
        session_push_all(0, 3);
        values -= 2 * session_push(0, 3);
        session_expect_all(0, 3, values);
        session_terms.world_size = 1; /* that leave */
    }
    session_end();
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* A newcomer asks at the replica whether the job is there by now. */
START_TEST(test_a_newcomer_behind_the_takeover)
{
    struct join_request request;
    float values;

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    set_up();
    workers[2].session = 201;
    move(2, service_port(replica));
    request = session_request(1);
    request.session = 201;
    request.follows = true;
    check_result("idle", session_join(&workers[2], &request), STATUS_NOT_FOUND,
                 "not been taken over here");
    session_start(0.5f);
    values = play_values(1, 0.5f);
    check_result("a copy", session_join(&workers[2], &request), STATUS_NOT_FOUND,
                 "not been taken over here");
    move(0, service_port(replica));
    come_over(0, 1, false);
    move(1, service_port(replica));
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    check_result("newcomer", session_join(&workers[2], &request), STATUS_OK, "");
    raw_close(&workers[1]);
    raw_open(&workers[1], service_port(replica), 1);
    workers[1].session = 201;
    raw_start_lanes(&workers[1]);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PULL, p, 0, 0);
    session_expect_all(1, 1, values);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PUSH, p, 2, session_push(1, 2));
    session_push_all(0, 2);
    values -= session_sum(2);
    session_expect_all(0, 2, values);
    session_expect_all(1, 2, values);
    session_end();
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* The one that was lost cannot take the replica over any more. */
START_TEST(test_a_lost_rank_promotes_nothing)
{
    struct join_request request;

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    set_up();
    session_start(0.5f);
    (void)play_values(1, 0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    session_push_all(0, 2);
    session_expect_all(0, 2, 0.5f - session_sum(1) - 2 * session_push(0, 2));
    move(1, service_port(replica));
    request = return_request(1, 1, false);
    check_result("lost", session_join(&workers[1], &request), STATUS_UNAVAILABLE,
                 "knows no session of rank 1");
    session_terms.world_size = 1;
    session_end();
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* ------------------------------------------------------------------ the replica goes */

static void send_vote(unsigned rank, uint64_t count, uint64_t epoch)
{
    struct beat beat = {.session = workers[rank].session,
                        .rank = rank,
                        .count = count,
                        .vote_epoch = epoch,
                        .job = "raw"};
    uint8_t bytes[WIRE_BEAT_MAX];

    (void)rpc_call_send(workers[rank].attend.call, bytes, wire_pack_beat(&beat, bytes), NULL);
}

/* Beat until the server asks for a vote; beats are counted on from *count. */
static void wait_proposal(unsigned rank, uint64_t *count, uint64_t epoch)
{
    struct beat beat = {0};

    while (beat.propose_epoch == 0) {
        ++*count;
        raw_beat(&workers[rank], "raw", *count);
        beat = raw_wait_beats(&workers[rank], *count);
    }
    ck_assert_uint_eq(beat.propose_epoch, epoch);
}

/* Nothing has come on the rank's stream; behind a beat there and back, so not just late. */
static void check_silent(unsigned rank, uint64_t *count)
{
    struct raw_call *c = &workers[rank].stream;

    ++*count;
    raw_beat(&workers[rank], "raw", *count);
    (void)raw_wait_beats(&workers[rank], *count);
    (void)pthread_mutex_lock(&c->lock);
    ck_assert_uint_eq(c->length, c->taken);
    (void)pthread_mutex_unlock(&c->lock);
}

START_TEST(test_alone_by_all_votes)
{
    uint64_t count[2] = {0};

    set_up();
    session_start(0.5f);
    session_round(1);
    for (unsigned i = 0; i < 2; i++)
        raw_start_attend(&workers[i]);
    service_close(replica);
    for (unsigned i = 0; i < 2; i++)
        wait_proposal(i, &count[i], 2);
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 2);
    session_wait_taken(4 * RAW_PARTITIONS);
    send_vote(0, ++count[0], 2);
    (void)raw_wait_beats(&workers[0], count[0]);
    check_silent(0, &count[0]);
    check_silent(1, &count[1]);
    send_vote(1, ++count[1], 2);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 2, session_sum(2));
    ++count[0];
    raw_beat(&workers[0], "raw", count[0]);
    ck_assert_uint_eq(raw_wait_beats(&workers[0], count[0]).epoch, 2);
    session_round(3);
    session_end();
    wait_ended(service, 1, 0);
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ a replica by hand */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rpc_call *call;
    size_t records; /* of partitions */
    struct wire_record newest[64];
    uint64_t clocks[4], sessions[4];
    uint8_t flags[4];
} hand = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void hand_reply(uint32_t partition, uint64_t sequence, uint64_t epoch)
{
    struct record_reply m = {
        .partition = partition, .sequence = sequence, .epoch = epoch, .superseded = epoch > 1};
    uint8_t bytes[WIRE_REPLY_MAX];

    (void)rpc_call_send(hand.call, bytes, wire_pack_record_reply(&m, bytes), NULL);
}

static void hand_start(struct rpc_call *call, void *user)
{
    (void)user;
    rpc_call_ref(call);
    hand.call = call;
    rpc_call_receive(call);
}

static void hand_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct wire_record m = {.clocks = hand.clocks,
                            .clock_count = 4,
                            .flags = hand.flags,
                            .flag_count = 4,
                            .sessions = hand.sessions,
                            .session_count = 4};
    const uint8_t *head;
    size_t size;

    (void)user;
    if (!message) {
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    head = rpc_message_head(message, &size);
    assert_ok(wire_unpack_record(head, size, &m, &err));
    ck_assert_uint_eq(m.epoch, 1);
    if (m.kind == RECORD_TERMS)
        hand_reply(0, 0, 1);
    wire_release_record(&m);
    (void)pthread_mutex_lock(&hand.lock);
    if (m.sequence > 0 && m.kind != RECORD_MEMBER)
        hand.newest[hand.records++] = m;
    (void)pthread_cond_broadcast(&hand.changed);
    (void)pthread_mutex_unlock(&hand.lock);
    rpc_call_receive(call);
}

static void hand_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    (void)user;
}

static const struct rpc_handler hand_handler = {
    .start = hand_start, .message = hand_message, .closed = hand_closed};

static struct rpc_server *open_hand(void)
{
    struct rpc_method method = {.path = SERVICE_REPLICATE, .handler = &hand_handler};
    struct rpc_server_config config = {
        .listen = {.host = "127.0.0.1"}, .listen_origin = "test", .threads = 1};
    struct rpc_server *server;

    config.methods = &method;
    config.method_count = 1;
    assert_ok(rpc_server_open(&config, &server, &err));
    (void)snprintf(session_terms.replica, sizeof(session_terms.replica), "127.0.0.1:%u",
                   (unsigned)rpc_server_port(server));
    return server;
}

static void wait_records(size_t count)
{
    (void)pthread_mutex_lock(&hand.lock);
    while (hand.records < count)
        (void)pthread_cond_wait(&hand.changed, &hand.lock);
    ck_assert_uint_eq(hand.records, count);
    (void)pthread_mutex_unlock(&hand.lock);
}

static void acknowledge(size_t index)
{
    hand_reply(hand.newest[index].partition, hand.newest[index].sequence, 1);
}

/* Everybody joins and asks for the initial values, which the replica has not acknowledged yet. */
static void start_unanswered(uint64_t count[2])
{
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request;

        workers[i].session = 100 + i;
        request = session_request(i);
        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++) {
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
        raw_start_lanes(&workers[i]);
        raw_start_attend(&workers[i]);
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            if (i == 0)
                raw_send_right(&workers[i], CHUNK_INIT, p, 0, 0.5f);
            raw_send_right(&workers[i], CHUNK_PULL, p, 0, 0);
        }
    }
    wait_records(RAW_PARTITIONS);
    check_silent(0, &count[0]);
    check_silent(1, &count[1]);
}

/* Partition by partition, each answered when it is acknowledged and not before. */
START_TEST(test_answers_wait)
{
    struct rpc_server *server;
    uint64_t count[2] = {0};

    open_service(LONG_MS, NULL);
    server = open_hand();
    start_unanswered(count);
    for (size_t i = 0; i < RAW_PARTITIONS; i++)
        acknowledge(i);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 0, 0.5f);
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 1);
    wait_records(2 * RAW_PARTITIONS);
    for (size_t i = RAW_PARTITIONS; i < 2 * RAW_PARTITIONS; i++) {
        check_silent(0, &count[0]);
        check_silent(1, &count[1]);
        acknowledge(i);
        for (unsigned k = 0; k < 2; k++) {
            float first;

            ck_assert_uint_eq(raw_take(&workers[k], &first).partition, hand.newest[i].partition);
            ck_assert(first == session_sum(1));
        }
    }
    session_end();
    wait_ended(service, 1, 0);
    close_service();
    rpc_call_finish(hand.call, STATUS_OK, "");
    rpc_call_unref(hand.call);
    rpc_server_close(server, 1000);
}
END_TEST

/* A rank that is cut off while its answers wait, and asks again, gets each of them once. */
START_TEST(test_return_while_answers_wait)
{
    struct rpc_server *server;
    uint64_t count[2] = {0};

    open_service(LONG_MS, NULL);
    server = open_hand();
    start_unanswered(count);
    for (size_t i = 0; i < RAW_PARTITIONS; i++)
        acknowledge(i);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 0, 0.5f);
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 1);
    wait_records(2 * RAW_PARTITIONS);
    raw_cut(&workers[0]);
    session_wait_cuts(1);
    session_resume(0);
    for (size_t i = RAW_PARTITIONS; i < 2 * RAW_PARTITIONS; i++)
        acknowledge(i);
    session_expect_all(1, 1, session_sum(1)); /* by then rank 0's would be on their way, too */
    session_again_all(0, 1);
    session_expect_all(0, 1, session_sum(1));
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 2);
    wait_records(3 * RAW_PARTITIONS);
    for (size_t i = 2 * RAW_PARTITIONS; i < 3 * RAW_PARTITIONS; i++)
        acknowledge(i);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 2, session_sum(2));
    session_end();
    wait_ended(service, 1, 0);
    close_service();
    rpc_call_finish(hand.call, STATUS_OK, "");
    rpc_call_unref(hand.call);
    rpc_server_close(server, 1000);
}
END_TEST

/* It says that it serves: the primary ends what it does, and answers nothing more. */
START_TEST(test_superseded_with_answers_waiting)
{
    struct rpc_server *server;
    uint64_t count[2] = {0};

    open_service(LONG_MS, NULL);
    server = open_hand();
    start_unanswered(count);
    hand_reply(0, 0, 2);
    for (unsigned i = 0; i < 2; i++)
        check_result("worker", raw_wait_closed(&workers[i].stream), STATUS_UNAVAILABLE,
                     "superseded by epoch 2");
    for (unsigned i = 0; i < 2; i++)
        ck_assert_uint_eq(workers[i].stream.length, workers[i].stream.taken);
    close_service();
    rpc_call_finish(hand.call, STATUS_OK, "");
    rpc_call_unref(hand.call);
    rpc_server_close(server, 1000);
}
END_TEST

/* What it acknowledges was never sent: it is no replica, and is given up. */
START_TEST(test_lying_replica)
{
    static const struct record_reply lies[] = {{.partition = 0, .sequence = 2, .epoch = 1},
                                               {.partition = 3, .sequence = 1, .epoch = 1},
                                               {.partition = 0, .sequence = UINT64_MAX}};
    struct rpc_server *server;
    uint64_t count[2] = {0};

    open_service(LONG_MS, NULL);
    server = open_hand();
    start_unanswered(count);
    hand_reply(lies[_i].partition, lies[_i].sequence, lies[_i].epoch);
    for (unsigned i = 0; i < 2; i++)
        wait_proposal(i, &count[i], 2);
    for (unsigned i = 0; i < 2; i++)
        send_vote(i, ++count[i], 2);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 0, 0.5f);
    session_round(1);
    session_end();
    wait_ended(service, 1, 0);
    close_service();
    rpc_call_finish(hand.call, STATUS_OK, "");
    rpc_call_unref(hand.call);
    rpc_server_close(server, 1000);
}
END_TEST

/* ------------------------------------------------------------------ refused */

static void check_refused(enum status status, const char *text)
{
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request = session_request(i);

        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), status, text);
}

START_TEST(test_what_cannot_be_kept_twice)
{
    set_up();
    check_refused(STATUS_UNSUPPORTED, "ranks that can come back"); /* no sessions */
    workers[0].session = 100;
    workers[1].session = 101;
    session_terms.update = 0;
    session_terms.consistency =
        (struct consistency){.mode = CONSISTENCY_ASP, .delay_compensation = 0.1};
    check_refused(STATUS_UNSUPPORTED, "delay compensation");
    session_terms.consistency = (struct consistency){0};
    session_terms.update = 1;
    session_start(0.5f); /* and the servers are as good as new */
    session_round(1);
    session_end();
    wait_ended(replica, 1, 0);
    tear_down();
}
END_TEST

/* Nobody there, and somebody who has other things to do. */
START_TEST(test_no_replica_to_be_had)
{
    struct join_request request;
    int64_t begun_ns;

    set_up();
    workers[0].session = 100;
    workers[1].session = 101;
    move(2, service_port(replica)); /* a job of its own */
    request = raw_terms(0);
    (void)snprintf(request.job, sizeof(request.job), "other");
    raw_begin_join(&workers[2], &request);
    while (true) {
        struct server_stats *stats = stats_of(replica);
        bool there = stats->has_job;

        free(stats);
        if (there)
            break;
        (void)sched_yield();
    }
    check_refused(STATUS_UNAVAILABLE,
                  "a copy of job 'raw' is refused: this server serves job 'other'");
    raw_close(&workers[2]);
    raw_open(&workers[2], service_port(service), 2);
    service_close(service);
    open_service(4000, NULL);
    workers[0].session = 100;
    workers[1].session = 101;
    (void)snprintf(session_terms.replica, sizeof(session_terms.replica), "127.0.0.1:%u",
                   (unsigned)support_port());
    begun_ns = clock_now_ns();
    check_refused(STATUS_TIMEOUT, "has not taken the job's terms in time");
    ck_assert_int_lt((clock_now_ns() - begun_ns) / 1000000, 20000);
    tear_down();
}
END_TEST

/* ------------------------------------------------------------------ certificates */

static struct rpc_security security_of(const char *name)
{
    return (struct rpc_security){.ca_file = certificate_file("ca", "pem"),
                                 .cert_file = certificate_file(name, "pem"),
                                 .key_file = certificate_file(name, "key")};
}

static void open_bound(struct service **ret, const char *certificate)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = LONG_MS,
                                    .security = security_of(certificate),
                                    .bind_ranks = true};

    assert_ok(service_open(&config, ret, &err));
}

static void open_bound_workers(uint16_t port)
{
    struct rpc_security security = security_of("host");

    for (unsigned i = 0; i < 3; i++)
        raw_open_with(&workers[i], port, i, &security);
}

/* A server must be one by its certificate to have a copy kept; _i: it is not, and is. */
START_TEST(test_who_may_have_a_copy)
{
    if (!certificate_can_make())
        return;
    log_set_level(LOG_QUIET);
    certificate_make_authority("ca");
    certificate_make("plain", "ca", "subjectAltName=IP:127.0.0.1");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1,URI:sparring:server");
    certificate_make("host", "ca", "subjectAltName=URI:sparring:rank/0,URI:sparring:rank/1");
    open_bound(&replica, "plain");
    (void)snprintf(session_terms.replica, sizeof(session_terms.replica), "127.0.0.1:%u",
                   (unsigned)service_port(replica));
    open_bound(&service, _i == 0 ? "plain" : "server");
    open_bound_workers(service_port(service));
    if (_i == 0) {
        workers[0].session = 100;
        workers[1].session = 101;
        check_refused(STATUS_DENIED, "its certificate does not name 'sparring:server'");
    } else {
        session_start(0.5f);
        session_round(1);
        session_end();
        wait_ended(replica, 1, 0);
    }
    tear_down();
}
END_TEST

/* ------------------------------------------------------------------ hostile records */

static void feed_open(struct raw_worker *w)
{
    raw_start_call(w, &w->stream, SERVICE_REPLICATE);
}

static void feed_terms(struct raw_worker *w, const struct join_request *request, size_t sessions,
                       uint64_t epoch)
{
    uint64_t ids[8] = {100, 101, 102, 103, 104, 105, 106, 107};
    struct join_request terms = *request;
    struct wire_record m = {.kind = RECORD_TERMS,
                            .epoch = epoch,
                            .sessions = ids,
                            .session_count = sessions,
                            .terms = &terms};
    uint8_t *bytes;
    size_t size;

    assert_ok(wire_pack_terms(&m, &bytes, &size, &err));
    (void)rpc_call_send(w->stream.call, bytes, size, NULL);
    free(bytes);
}

static void feed_record(struct raw_worker *w, const struct wire_record *m, size_t bytes)
{
    static float payload[2048];
    struct rpc_payload p = {.data = payload, .size = bytes};
    uint8_t head[WIRE_RECORD_MAX];

    (void)rpc_call_send(w->stream.call, head, wire_pack_record(m, head), bytes > 0 ? &p : NULL);
}

START_TEST(test_hostile_records)
{
    static uint64_t clocks[3] = {1, 1, 1};
    static uint8_t flags[3], bad_flags[2] = {0xff, 0};
#define RECORD(...)                                                                                \
    {                                                                                              \
        .kind = RECORD_STEP, .epoch = 1, .sequence = 1, .step = 1, .clocks = clocks,               \
        .clock_count = 2, .flags = flags, .flag_count = 2, .length = 4096, __VA_ARGS__             \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
    static const struct {
        struct wire_record record;
        size_t bytes;
        enum status status;
        const char *text;
    } cases[] = {
        {RECORD(.step = 2), 4096, STATUS_DATA, "step 2"},
        {RECORD(.step = 0), 4096, STATUS_DATA, "step 0"},
        {RECORD(.partition = 3), 4096, STATUS_DATA, "partition 3, not held here"},
        {RECORD(.partition = UINT32_MAX), 4096, STATUS_DATA, "not held here"},
        {RECORD(.length = 8), 4096, STATUS_DATA, "4096 bytes (it says 8)"},
        {RECORD(.length = 8), 8, STATUS_DATA, "2 elements"},
        {RECORD(.length = 7), 7, STATUS_DATA, "7 bytes"},
        {RECORD(.clock_count = 3, .flag_count = 3), 4096, STATUS_DATA, "3 ranks"},
        {RECORD(.flag_count = 1), 4096, STATUS_DATA, "1 flags"},
        {RECORD(.flags = bad_flags), 4096, STATUS_DATA, ""},
        {RECORD(.sequence = 0), 4096, STATUS_DATA, "record 0"},
        {RECORD(.rate = -1), 4096, STATUS_DATA, ""},
        {RECORD(.kind = RECORD_MEMBER), 0, STATUS_DATA, "0 sessions for 2 ranks"},
        {RECORD(.kind = RECORD_TERMS), 0, STATUS_DATA, "without terms"},
        {RECORD(.kind = RECORD_RANKS), 4096, STATUS_DATA, ""},
    };
#pragma GCC diagnostic pop

    open_service(LONG_MS, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct join_request terms = session_request(0);

        feed_open(&workers[0]);
        feed_terms(&workers[0], &terms, 2, 1);
        feed_record(&workers[0], &cases[i].record, cases[i].bytes);
        check_result(cases[i].text, raw_wait_closed(&workers[0].stream), cases[i].status,
                     cases[i].text);
        wait_ended(service, 0, i + 1);
        move(0, service_port(service));
    }
    feed_open(&workers[0]);
    feed_record(&workers[0], &cases[0].record, 4096);
    check_result("no terms", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "before the terms");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_hostile_terms)
{
    struct join_request terms;

    open_service(LONG_MS, NULL);
    terms = session_request(0);
    feed_open(&workers[0]);
    feed_terms(&workers[0], &terms, 1, 1);
    check_result("sessions", raw_wait_closed(&workers[0].stream), STATUS_DATA,
                 "1 sessions for 2 ranks");
    move(0, service_port(service));
    feed_open(&workers[0]);
    feed_terms(&workers[0], &terms, 2, 0);
    check_result("epoch", raw_wait_closed(&workers[0].stream), STATUS_DATA, "epoch 0");
    terms.element_count = UINT64_MAX / 8;
    move(0, service_port(service));
    feed_open(&workers[0]);
    feed_terms(&workers[0], &terms, 2, 1);
    check_result("size", raw_wait_closed(&workers[0].stream), STATUS_INVALID, "");
    move(0, service_port(service));
    wait_ended(service, 0, 1);
    check_still_serves();
    close_service();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("chain");
    TCase *tests = tcase_create("chain");

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, test_a_whole_job, 0, 2);
    tcase_add_test(tests, test_each_push_a_step);
    tcase_add_loop_test(tests, test_promotion, 0, (int)RAW_PARTITIONS + 1);
    tcase_add_loop_test(tests, test_promotion_at_the_start, 0, (int)RAW_PARTITIONS + 1);
    tcase_add_test(tests, test_the_primary_stops_in_order);
    tcase_add_test(tests, test_strangers_promote_nothing);
    tcase_add_loop_test(tests, test_a_rank_goes_before_the_primary, 0, 2);
    tcase_add_test(tests, test_a_newcomer_behind_the_takeover);
    tcase_add_test(tests, test_a_lost_rank_promotes_nothing);
    tcase_add_test(tests, test_alone_by_all_votes);
    tcase_add_test(tests, test_answers_wait);
    tcase_add_test(tests, test_return_while_answers_wait);
    tcase_add_test(tests, test_superseded_with_answers_waiting);
    tcase_add_loop_test(tests, test_lying_replica, 0, 3);
    tcase_add_test(tests, test_what_cannot_be_kept_twice);
    tcase_add_test(tests, test_no_replica_to_be_had);
    tcase_add_loop_test(tests, test_who_may_have_a_copy, 0, 2);
    tcase_add_test(tests, test_hostile_records);
    tcase_add_test(tests, test_hostile_terms);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
