/*
 * One side of the Replicate call is a fake: a replica that acknowledges when the test lets it, also
 * records that were never sent; and a primary that sends invalid records.
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

/* ------------------------------------------------------------------ a fake replica */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rpc_call *call;
    size_t records;      /* of partitions */
    uint64_t membership; /* newest change */
    struct wire_record newest[64];
    uint64_t clocks[4], sessions[4];
    uint8_t flags[4];
} fake_replica = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void fake_replica_reply(uint32_t partition, uint64_t sequence, uint64_t epoch)
{
    struct record_reply m = {
        .partition = partition, .sequence = sequence, .epoch = epoch, .superseded = epoch > 1};
    uint8_t bytes[WIRE_REPLY_MAX];

    (void)rpc_call_send(fake_replica.call, bytes, wire_pack_record_reply(&m, bytes), NULL);
}

static void fake_replica_start(struct rpc_call *call, void *user)
{
    (void)user;
    if (!fake_replica.call) { /* later calls are takeover queries */
        rpc_call_ref(call);
        fake_replica.call = call;
    }
    rpc_call_receive(call);
}

static void fake_replica_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct wire_record m = {.clocks = fake_replica.clocks,
                            .clock_count = 4,
                            .flags = fake_replica.flags,
                            .flag_count = 4,
                            .sessions = fake_replica.sessions,
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
    if (m.kind != RECORD_MEMBER && fake_replica.membership == 0)
        ck_assert_uint_eq(m.epoch, 1);
    if (m.kind == RECORD_TERMS)
        fake_replica_reply(0, 0, 1);
    wire_release_record(&m);
    if (m.kind == RECORD_TAKEOVER_QUERY) {
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    (void)pthread_mutex_lock(&fake_replica.lock);
    if (m.kind == RECORD_MEMBER)
        fake_replica.membership = m.sequence;
    if (m.sequence > 0 && m.kind != RECORD_MEMBER)
        fake_replica.newest[fake_replica.records++] = m;
    (void)pthread_cond_broadcast(&fake_replica.changed);
    (void)pthread_mutex_unlock(&fake_replica.lock);
    rpc_call_receive(call);
}

static void fake_replica_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    (void)user;
}

static const struct rpc_handler fake_replica_handler = {
    .start = fake_replica_start, .message = fake_replica_message, .closed = fake_replica_closed};

static struct rpc_server *open_fake_replica(void)
{
    struct rpc_method method = {.path = SERVICE_REPLICATE, .handler = &fake_replica_handler};
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
    (void)pthread_mutex_lock(&fake_replica.lock);
    while (fake_replica.records < count)
        (void)pthread_cond_wait(&fake_replica.changed, &fake_replica.lock);
    ck_assert_uint_eq(fake_replica.records, count);
    (void)pthread_mutex_unlock(&fake_replica.lock);
}

static void wait_membership(uint64_t number)
{
    (void)pthread_mutex_lock(&fake_replica.lock);
    while (fake_replica.membership < number)
        (void)pthread_cond_wait(&fake_replica.changed, &fake_replica.lock);
    (void)pthread_mutex_unlock(&fake_replica.lock);
}

static void acknowledge(size_t index)
{
    fake_replica_reply(fake_replica.newest[index].partition, fake_replica.newest[index].sequence,
                       1);
}

/* All records of a round; 0: the initial values. */
static void acknowledge_round(size_t round)
{
    for (size_t p = 0; p < RAW_PARTITIONS; p++)
        acknowledge(round * RAW_PARTITIONS + p);
}

/* Both ranks push the round; waits until the replica has its records. */
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

static void close_fake_replica(struct rpc_server *server)
{
    close_service();
    rpc_call_finish(fake_replica.call, STATUS_OK, "");
    rpc_call_unref(fake_replica.call);
    rpc_server_close(server, 1000);
}

static void end_job_in_order(struct rpc_server *server)
{
    session_end();
    replica_job_wait_ended(service, 1, 0);
    close_fake_replica(server);
}

/* All ranks join and request the initial values, which the replica has not acknowledged yet.
 * count: heartbeats of each rank so far. */
static void join_until_held(uint64_t count[2])
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

/* The same with a new service and a new fake replica, which it returns. */
static struct rpc_server *start_until_held(uint64_t count[2])
{
    struct rpc_server *server;

    open_service(LONG_MS, NULL);
    server = open_fake_replica();
    join_until_held(count);
    return server;
}

/* The same one round later: the replies to its pushes are held. */
static struct rpc_server *start_round_until_held(uint64_t count[2])
{
    struct rpc_server *server = start_until_held(count);

    acknowledge_round(0);
    expect_both(0, 0.5f);
    push_round(1);
    return server;
}

/* The replies for a partition are sent when it is acknowledged and not before. */
START_TEST(test_replies_are_held)
{
    uint64_t count[2] = {0};
    struct rpc_server *server = start_round_until_held(count);

    for (size_t i = RAW_PARTITIONS; i < 2 * RAW_PARTITIONS; i++) {
        replica_job_check_silent(0, &count[0]);
        replica_job_check_silent(1, &count[1]);
        acknowledge(i);
        for (unsigned k = 0; k < 2; k++) {
            float first;

            ck_assert_uint_eq(raw_take(&workers[k], &first).partition,
                              fake_replica.newest[i].partition);
            ck_assert(first == session_sum(1));
        }
    }
    end_job_in_order(server);
}
END_TEST

/* A rank whose connection breaks while its replies are held, and which repeats its requests, gets
 * each reply once. */
START_TEST(test_reconnect_while_replies_are_held)
{
    uint64_t count[2] = {0};
    struct rpc_server *server = start_round_until_held(count);

    raw_disconnect(&workers[0]);
    session_wait_disconnects(1);
    session_resume(0);
    acknowledge_round(1);
    session_expect_all(1, 1, session_sum(1)); /* rank 0's would have been sent by now, too */
    session_repeat_all(0, 1);
    session_expect_all(0, 1, session_sum(1));
    push_round(2);
    acknowledge_round(2);
    expect_both(2, session_sum(2));
    end_job_in_order(server);
}
END_TEST

/* The replica has taken over: the primary ends the job and sends no further reply. */
START_TEST(test_superseded_with_held_replies)
{
    uint64_t count[2] = {0};
    struct rpc_server *server = start_until_held(count);

    fake_replica_reply(0, 0, 2);
    for (unsigned i = 0; i < 2; i++)
        check_result("worker", raw_wait_closed(&workers[i].stream), STATUS_UNAVAILABLE,
                     "superseded by epoch 2");
    for (unsigned i = 0; i < 2; i++)
        ck_assert_uint_eq(workers[i].stream.length, workers[i].stream.taken);
    close_fake_replica(server);
}
END_TEST

/* A replica that acknowledges what was never sent is treated as lost. */
START_TEST(test_false_acknowledgement)
{
    static const struct record_reply lies[] = {{.partition = 0, .sequence = 2, .epoch = 1},
                                               {.partition = 3, .sequence = 1, .epoch = 1},
                                               {.partition = 0, .sequence = UINT64_MAX}};
    uint64_t count[2] = {0};
    struct rpc_server *server = start_until_held(count);

    fake_replica_reply(lies[_i].partition, lies[_i].sequence, lies[_i].epoch);
    for (unsigned i = 0; i < 2; i++)
        replica_job_wait_proposal(i, &count[i], 2);
    for (unsigned i = 0; i < 2; i++)
        replica_job_send_vote(i, ++count[i], 2);
    expect_both(0, 0.5f);
    session_round(1);
    end_job_in_order(server);
}
END_TEST

static bool is_replied(struct raw_call *join)
{
    bool replied;

    (void)pthread_mutex_lock(&join->lock);
    replied = join->closed;
    (void)pthread_mutex_unlock(&join->lock);
    return replied;
}

/* The join of a replacement whose membership the replica has not acknowledged is not replied to.
 * Another replacement does not get that rank, however long this takes; the first one does, over the
 * newest connection on which it has joined. */
START_TEST(test_two_replacements)
{
    uint64_t count[2] = {0};
    static struct raw_worker other, retry;
    struct join_request request;
    struct rpc_server *server;

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    session_terms.reconnect_ms = 300; /* no rank reconnects */
    server = start_until_held(count);
    acknowledge_round(0);
    expect_both(0, 0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    wait_membership(1);
    request = session_request(1);
    request.session = workers[2].session = 201;
    workers[2].rank = 1;
    raw_begin_join(&workers[2], &request);
    wait_membership(2);
    raw_open(&other, service_port(service), 1);
    request.session = other.session = 202;
    check_result("second", session_join(&other, &request), STATUS_EXISTS, "");
    raw_open(&retry, service_port(service), 1);
    request.session = retry.session = 201;
    raw_begin_join(&retry, &request);
    check_result("first", raw_end_join(&workers[2]), STATUS_UNAVAILABLE, "has joined again");
    replica_job_check_silent(0, &count[0]); /* that reply would have arrived by now, too */
    ck_assert(!is_replied(&retry.join));
    fake_replica_reply(RECORD_MEMBERSHIP_PARTITION, 2, 1);
    check_result("again", raw_end_join(&retry), STATUS_OK, "");
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    check_result("leave", raw_leave(&workers[2], "raw", ""), STATUS_OK, "");
    replica_job_wait_ended(service, 1, 0);
    raw_close(&other);
    raw_close(&retry);
    close_fake_replica(server);
}
END_TEST

/* ------------------------------------------------------------------ state on the disk */

static void open_with_state(uint16_t port)
{
    struct service_config config = {.listen = {.host = "127.0.0.1", .port = port},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = LONG_MS,
                                    .state_dir = support_path("state")};

    assert_ok(service_open(&config, &service, &err));
}

/* Until the newest membership in the journal says that the replica has acknowledged a change. */
static void wait_membership_acknowledged(const char *path)
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

/* A rank is lost.  Until the replica has acknowledged that, the primary cannot be restored, because
 * its files do not say whose votes it needs; _i: the replica has acknowledged it. */
START_TEST(test_unacknowledged_membership)
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
    server = open_fake_replica();
    join_until_held(count);
    acknowledge_round(0);
    expect_both(0, 0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    wait_membership(1);
    if (_i == 1) {
        fake_replica_reply(RECORD_MEMBERSHIP_PARTITION, 1, 1);
        wait_membership_acknowledged(journal);
    }
    service_close(service);
    open_with_state(port);
    ck_assert_uint_eq(session_counters(NULL).restored_jobs, (uint64_t)_i);
    ck_assert_int_eq(access(support_path("state/raw.0"), F_OK), _i == 1 ? 0 : -1);
    ck_assert_int_eq(access(support_path("state/raw.0.failed"), F_OK), _i == 1 ? -1 : 0);
    close_service();
    rpc_call_finish(fake_replica.call, STATUS_OK, "");
    rpc_call_unref(fake_replica.call);
    rpc_server_close(server, 1000);
}
END_TEST

/* ------------------------------------------------------------------ hostile records */

/* A fake primary: its Replicate call to the service, which begins with the terms. */
static void fake_primary_open(struct raw_worker *w)
{
    raw_start_call(w, &w->stream, SERVICE_REPLICATE);
}

static void fake_primary_send_terms(struct raw_worker *w, const struct join_request *request,
                                    size_t sessions, uint64_t epoch)
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

static void fake_primary_send_record(struct raw_worker *w, const struct wire_record *m,
                                     size_t bytes)
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

        fake_primary_open(&workers[0]);
        fake_primary_send_terms(&workers[0], &terms, 2, 1);
        fake_primary_send_record(&workers[0], &cases[i].record, cases[i].bytes);
        check_result(cases[i].text, raw_wait_closed(&workers[0].stream), cases[i].status,
                     cases[i].text);
        replica_job_wait_ended(service, 0, i + 1);
        replica_job_redirect(0, service_port(service));
    }
    fake_primary_open(&workers[0]);
    fake_primary_send_record(&workers[0], &cases[0].record, 4096);
    check_result("no terms", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL,
                 "before the terms");
    check_still_serves();
    close_service();
}
END_TEST

static void check_terms_refused(const struct join_request *terms, size_t sessions, uint64_t epoch,
                                enum status wanted, const char *part)
{
    fake_primary_open(&workers[0]);
    fake_primary_send_terms(&workers[0], terms, sessions, epoch);
    check_result(part, raw_wait_closed(&workers[0].stream), wanted, part);
    replica_job_redirect(0, service_port(service));
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
    return SUPPORT_RUN(
        "takeover", 120, TEST(test_replies_are_held), TEST(test_reconnect_while_replies_are_held),
        TEST(test_superseded_with_held_replies), LOOP_TEST(test_false_acknowledgement, 0, 3),
        TEST(test_two_replacements), LOOP_TEST(test_unacknowledged_membership, 0, 2),
        TEST(test_hostile_records), TEST(test_hostile_terms));
}
