/*
 * One side of the replica stream played by hand: a replica that acknowledges when the test says so,
 * or lies; and a primary whose records are hostile.
 */
#include "common/base/file.h"
#include "tests/server/replication/replica_job.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct error err;

/* ------------------------------------------------------------------ a replica by hand */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rpc_call *call;
    size_t records;   /* of partitions */
    uint64_t members; /* newest change of the slots */
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
    if (!hand.call) { /* the others ask who serves */
        rpc_call_ref(call);
        hand.call = call;
    }
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
    if (m.kind != RECORD_MEMBER && hand.members == 0)
        ck_assert_uint_eq(m.epoch, 1);
    if (m.kind == RECORD_TERMS)
        hand_reply(0, 0, 1);
    wire_release_record(&m);
    if (m.kind == RECORD_TAKEOVER_QUERY) {
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    (void)pthread_mutex_lock(&hand.lock);
    if (m.kind == RECORD_MEMBER)
        hand.members = m.sequence;
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

static void wait_members(uint64_t number)
{
    (void)pthread_mutex_lock(&hand.lock);
    while (hand.members < number)
        (void)pthread_cond_wait(&hand.changed, &hand.lock);
    (void)pthread_mutex_unlock(&hand.lock);
}

static void acknowledge(size_t index)
{
    hand_reply(hand.newest[index].partition, hand.newest[index].sequence, 1);
}

/* All of a round, 0 being that of the initial values. */
static void acknowledge_round(size_t round)
{
    for (size_t p = 0; p < RAW_PARTITIONS; p++)
        acknowledge(round * RAW_PARTITIONS + p);
}

/* Both ranks push the round, and the replica has its records. */
static void push_round(uint64_t round)
{
    session_push_all(0, round);
    session_push_all(1, round);
    wait_records((round + 1) * RAW_PARTITIONS);
}

static void expect_both(uint64_t round, float value)
{
    session_expect_all(0, round, value);
    session_expect_all(1, round, value);
}

static void close_hand(struct rpc_server *server)
{
    close_service();
    rpc_call_finish(hand.call, STATUS_OK, "");
    rpc_call_unref(hand.call);
    rpc_server_close(server, 1000);
}

/* The job ends in order, and so does everything. */
static void end_well(struct rpc_server *server)
{
    session_end();
    replica_job_wait_ended(service, 1, 0);
    close_hand(server);
}

/* Everybody joins and asks for the initial values, which the replica has not acknowledged yet.
 * count: beats of each rank so far. */
static void join_unanswered(uint64_t count[2])
{
    session_join_all(100);
    for (unsigned i = 0; i < 2; i++) {
        session_begin(i, 0.5f);
        raw_start_attend(&workers[i]);
    }
    wait_records(RAW_PARTITIONS);
    replica_job_check_silent(0, &count[0]);
    replica_job_check_silent(1, &count[1]);
}

/* The same, from the start.  Returns the replica. */
static struct rpc_server *start_unanswered(uint64_t count[2])
{
    struct rpc_server *server;

    open_service(LONG_MS, NULL);
    server = open_hand();
    join_unanswered(count);
    return server;
}

/* The same a round later: its pushes wait to be acknowledged. */
static struct rpc_server *start_unanswered_round(uint64_t count[2])
{
    struct rpc_server *server = start_unanswered(count);

    acknowledge_round(0);
    expect_both(0, 0.5f);
    push_round(1);
    return server;
}

/* Partition by partition, each answered when it is acknowledged and not before. */
START_TEST(test_answers_wait)
{
    uint64_t count[2] = {0};
    struct rpc_server *server = start_unanswered_round(count);

    for (size_t i = RAW_PARTITIONS; i < 2 * RAW_PARTITIONS; i++) {
        replica_job_check_silent(0, &count[0]);
        replica_job_check_silent(1, &count[1]);
        acknowledge(i);
        for (unsigned k = 0; k < 2; k++) {
            float first;

            ck_assert_uint_eq(raw_take(&workers[k], &first).partition, hand.newest[i].partition);
            ck_assert(first == session_sum(1));
        }
    }
    end_well(server);
}
END_TEST

/* A rank that is cut off while its answers wait, and asks again, gets each of them once. */
START_TEST(test_return_while_answers_wait)
{
    uint64_t count[2] = {0};
    struct rpc_server *server = start_unanswered_round(count);

    raw_cut(&workers[0]);
    session_wait_cuts(1);
    session_resume(0);
    acknowledge_round(1);
    session_expect_all(1, 1, session_sum(1)); /* by then rank 0's would be on their way, too */
    session_again_all(0, 1);
    session_expect_all(0, 1, session_sum(1));
    push_round(2);
    acknowledge_round(2);
    expect_both(2, session_sum(2));
    end_well(server);
}
END_TEST

/* It says that it serves: the primary ends what it does, and answers nothing more. */
START_TEST(test_superseded_with_answers_waiting)
{
    uint64_t count[2] = {0};
    struct rpc_server *server = start_unanswered(count);

    hand_reply(0, 0, 2);
    for (unsigned i = 0; i < 2; i++)
        check_result("worker", raw_wait_closed(&workers[i].stream), STATUS_UNAVAILABLE,
                     "superseded by epoch 2");
    for (unsigned i = 0; i < 2; i++)
        ck_assert_uint_eq(workers[i].stream.length, workers[i].stream.taken);
    close_hand(server);
}
END_TEST

/* What it acknowledges was never sent: it is no replica, and is given up. */
START_TEST(test_lying_replica)
{
    static const struct record_reply lies[] = {{.partition = 0, .sequence = 2, .epoch = 1},
                                               {.partition = 3, .sequence = 1, .epoch = 1},
                                               {.partition = 0, .sequence = UINT64_MAX}};
    uint64_t count[2] = {0};
    struct rpc_server *server = start_unanswered(count);

    hand_reply(lies[_i].partition, lies[_i].sequence, lies[_i].epoch);
    for (unsigned i = 0; i < 2; i++)
        replica_job_wait_proposal(i, &count[i], 2);
    for (unsigned i = 0; i < 2; i++)
        replica_job_send_vote(i, ++count[i], 2);
    expect_both(0, 0.5f);
    session_round(1);
    end_well(server);
}
END_TEST

static bool is_answered(struct raw_call *join)
{
    bool answered;

    (void)pthread_mutex_lock(&join->lock);
    answered = join->closed;
    (void)pthread_mutex_unlock(&join->lock);
    return answered;
}

/* A newcomer whose place the replica does not know of yet has not been told, and so has opened
 * nothing: another one does not get that place, however long it takes.  The first one does, over
 * whatever connection it waits by then. */
START_TEST(test_two_newcomers)
{
    uint64_t count[2] = {0};
    static struct raw_worker second, again;
    struct join_request request;
    struct rpc_server *server;

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    session_terms.reconnect_ms = 300; /* nobody comes back */
    server = start_unanswered(count);
    acknowledge_round(0);
    expect_both(0, 0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    wait_members(1);
    request = session_request(1);
    request.session = workers[2].session = 201;
    workers[2].rank = 1;
    raw_begin_join(&workers[2], &request);
    wait_members(2);
    raw_open(&second, service_port(service), 1);
    request.session = second.session = 202;
    check_result("second", session_join(&second, &request), STATUS_EXISTS, "");
    raw_open(&again, service_port(service), 1);
    request.session = again.session = 201;
    raw_begin_join(&again, &request);
    check_result("first", raw_end_join(&workers[2]), STATUS_UNAVAILABLE, "has joined again");
    replica_job_check_silent(0, &count[0]); /* by then that answer would be there, too */
    ck_assert(!is_answered(&again.join));
    hand_reply(RECORD_MEMBERSHIP_PARTITION, 2, 1);
    check_result("again", raw_end_join(&again), STATUS_OK, "");
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    check_result("leave", raw_leave(&workers[2], "raw", ""), STATUS_OK, "");
    replica_job_wait_ended(service, 1, 0);
    raw_close(&second);
    raw_close(&again);
    close_hand(server);
}
END_TEST

/* ------------------------------------------------------------------ what the disk says */

static void open_with_state(uint16_t port)
{
    struct service_config config = {.listen = {.host = "127.0.0.1", .port = port},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = LONG_MS,
                                    .state_dir = support_path("state")};

    assert_ok(service_open(&config, &service, &err));
}

/* Until the newest text about who is in says that the replica knows of the change before it. */
static void wait_restorable(const char *path)
{
    bool known = false;
    char *text;
    size_t size;

    while (!known) {
        bool changed = false;

        assert_ok(file_read(path, 1 << 20, &text, &size, &err));
        for (size_t at = 0; at + 13 < size; at++) {
            known = known || (changed && memcmp(text + at, "role pair\n", 10) == 0);
            changed = changed || memcmp(text + at, "role changing", 13) == 0;
        }
        free(text);
        (void)sched_yield();
    }
}

/* A rank goes.  As long as the replica may not know of it the primary's disk does not say who would
 * have to agree; _i: it does. */
START_TEST(test_a_change_that_is_not_known)
{
    const char *journal = support_path("state/raw.0/journal-0");
    uint16_t port = support_port();
    struct rpc_server *server;
    uint64_t count[2] = {0};

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    session_terms.reconnect_ms = LONG_MS;
    open_with_state(port);
    for (unsigned i = 0; i < 3; i++)
        raw_open(&workers[i], port, i);
    server = open_hand();
    join_unanswered(count);
    acknowledge_round(0);
    expect_both(0, 0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    wait_members(1);
    if (_i == 1) {
        hand_reply(RECORD_MEMBERSHIP_PARTITION, 1, 1);
        wait_restorable(journal);
    }
    service_close(service);
    open_with_state(port);
    ck_assert_uint_eq(session_counters(NULL).restored_jobs, (uint64_t)_i);
    ck_assert_int_eq(access(support_path("state/raw.0"), F_OK), _i == 1 ? 0 : -1);
    ck_assert_int_eq(access(support_path("state/raw.0.failed"), F_OK), _i == 1 ? -1 : 0);
    close_service();
    rpc_call_finish(hand.call, STATUS_OK, "");
    rpc_call_unref(hand.call);
    rpc_server_close(server, 1000);
}
END_TEST

/* ------------------------------------------------------------------ hostile records */

/* A primary by hand: its call to the service, which it begins with those terms. */
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
        replica_job_wait_ended(service, 0, i + 1);
        replica_job_move(0, service_port(service));
    }
    feed_open(&workers[0]);
    feed_record(&workers[0], &cases[0].record, 4096);
    check_result("no terms", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "before the terms");
    check_still_serves();
    close_service();
}
END_TEST

static void check_terms_refused(const struct join_request *terms, size_t sessions, uint64_t epoch,
                                enum status wanted, const char *part)
{
    feed_open(&workers[0]);
    feed_terms(&workers[0], terms, sessions, epoch);
    check_result(part, raw_wait_closed(&workers[0].stream), wanted, part);
    replica_job_move(0, service_port(service));
}

START_TEST(test_hostile_terms)
{
    struct join_request terms;

    open_service(LONG_MS, NULL);
    terms = session_request(0);
    check_terms_refused(&terms, 1, 1, STATUS_DATA, "1 sessions for 2 ranks");
    check_terms_refused(&terms, 2, 0, STATUS_DATA, "epoch 0");
    terms.element_count = UINT64_MAX / 8;
    check_terms_refused(&terms, 2, 1, STATUS_INVALID, "");
    replica_job_wait_ended(service, 0, 1);
    check_still_serves();
    close_service();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("takeover");
    TCase *tests = tcase_create("takeover");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_answers_wait);
    tcase_add_test(tests, test_return_while_answers_wait);
    tcase_add_test(tests, test_superseded_with_answers_waiting);
    tcase_add_loop_test(tests, test_lying_replica, 0, 3);
    tcase_add_test(tests, test_two_newcomers);
    tcase_add_loop_test(tests, test_a_change_that_is_not_known, 0, 2);
    tcase_add_test(tests, test_hostile_records);
    tcase_add_test(tests, test_hostile_terms);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
