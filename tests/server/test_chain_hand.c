/*
 * One side of the chain played by hand: a replica that acknowledges when the test says so, or lies;
 * and a primary whose records are hostile.
 */
#include "tests/server/chain_job.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

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
    chain_check_silent(0, &count[0]);
    chain_check_silent(1, &count[1]);
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
        chain_check_silent(0, &count[0]);
        chain_check_silent(1, &count[1]);
        acknowledge(i);
        for (unsigned k = 0; k < 2; k++) {
            float first;

            ck_assert_uint_eq(raw_take(&workers[k], &first).partition, hand.newest[i].partition);
            ck_assert(first == session_sum(1));
        }
    }
    session_end();
    chain_wait_ended(service, 1, 0);
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
    chain_wait_ended(service, 1, 0);
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
        chain_wait_proposal(i, &count[i], 2);
    for (unsigned i = 0; i < 2; i++)
        chain_send_vote(i, ++count[i], 2);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 0, 0.5f);
    session_round(1);
    session_end();
    chain_wait_ended(service, 1, 0);
    close_service();
    rpc_call_finish(hand.call, STATUS_OK, "");
    rpc_call_unref(hand.call);
    rpc_server_close(server, 1000);
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
        chain_wait_ended(service, 0, i + 1);
        chain_move(0, service_port(service));
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
    chain_move(0, service_port(service));
    feed_open(&workers[0]);
    feed_terms(&workers[0], &terms, 2, 0);
    check_result("epoch", raw_wait_closed(&workers[0].stream), STATUS_DATA, "epoch 0");
    terms.element_count = UINT64_MAX / 8;
    chain_move(0, service_port(service));
    feed_open(&workers[0]);
    feed_terms(&workers[0], &terms, 2, 1);
    check_result("size", raw_wait_closed(&workers[0].stream), STATUS_INVALID, "");
    chain_move(0, service_port(service));
    chain_wait_ended(service, 0, 1);
    check_still_serves();
    close_service();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("chain_hand");
    TCase *tests = tcase_create("chain_hand");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_answers_wait);
    tcase_add_test(tests, test_return_while_answers_wait);
    tcase_add_test(tests, test_superseded_with_answers_waiting);
    tcase_add_loop_test(tests, test_lying_replica, 0, 3);
    tcase_add_test(tests, test_hostile_records);
    tcase_add_test(tests, test_hostile_terms);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
