/*
 * test_wire: every message packed and unpacked, also at its largest.  Malformed messages are in
 * test_wire_hostile.c.
 */
#include "tests/common/wire/wire_example.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

static void check_session(const struct join_request *got, const struct join_request *m)
{
    ck_assert_uint_eq(got->session, m->session);
    ck_assert_uint_eq(got->lanes, m->lanes);
    ck_assert_int_eq(got->in_order, m->in_order);
    ck_assert_int_eq(got->resume, 1);
    ck_assert_int_eq(got->follows, 1);
    ck_assert_uint_eq(got->round, m->round);
    ck_assert_uint_eq(got->attempt, m->attempt);
    ck_assert_uint_eq(got->on_loss, m->on_loss);
    ck_assert_uint_eq(got->reconnect_ms, m->reconnect_ms);
    ck_assert_uint_eq(got->heartbeat_ms, m->heartbeat_ms);
    ck_assert_uint_eq(got->heartbeat_timeout_ms, m->heartbeat_timeout_ms);
    ck_assert_str_eq(got->replica, m->replica);
    ck_assert_uint_eq(got->dtype_up, m->dtype_up);
    ck_assert_uint_eq(got->dtype_down, m->dtype_down);
    ck_assert_uint_eq(got->top_k_ppm, m->top_k_ppm);
    ck_assert_uint_eq(got->steps_before, m->steps_before);
    ck_assert_uint_eq(got->weight_count, m->weight_count);
    ck_assert_mem_eq(got->weights, m->weights, m->weight_count * sizeof(*m->weights));
    ck_assert_str_eq(got->host_id, m->host_id);
}

START_TEST(join_request_round_trips)
{
    struct join_request m = example_join();
    struct join_request got = {0};
    uint8_t *bytes;
    size_t size;

    assert_ok(wire_pack_join_request(&m, &bytes, &size, &err));
    assert_ok(wire_unpack_join_request(bytes, size, &got, &err));
    ck_assert_str_eq(got.job, m.job);
    ck_assert_str_eq(got.manifest, m.manifest);
    ck_assert_uint_eq(got.rank, m.rank);
    ck_assert_uint_eq(got.world_size, m.world_size);
    ck_assert_uint_eq(got.server_index, m.server_index);
    ck_assert_uint_eq(got.server_count, m.server_count);
    ck_assert_uint_eq(got.element_count, m.element_count);
    ck_assert_uint_eq(got.partition_bytes, m.partition_bytes);
    ck_assert_uint_eq(got.update, 1);
    ck_assert_uint_eq(got.order, 1);
    ck_assert_int_eq(got.optimizer.kind, OPTIMIZER_ADAMW);
    ck_assert(got.optimizer.learning_rate == 1e-3 && got.optimizer.momentum == 0.9);
    ck_assert(got.optimizer.dampening == 0.1 && got.optimizer.weight_decay == 1e-2);
    ck_assert(got.optimizer.beta1 == 0.9 && got.optimizer.beta2 == 0.999);
    ck_assert(got.optimizer.epsilon == 1e-8 && got.optimizer.nesterov);
    check_session(&got, &m);
    wire_release_join_request(&got);
    wire_release_join_request(&got);
    free(bytes);
}
END_TEST

START_TEST(join_reply_round_trips)
{
    uint32_t partitions[] = {0, 7, 300, UINT32_MAX};
    struct join_reply m = {.partition_count = 301,
                           .partitions = partitions,
                           .held = 4,
                           .element_count = 12345,
                           .version = "0.1.0",
                           .epoch = 3,
                           .round = 77,
                           .role = SERVER_REPLICA,
                           .memory_address = "sparring-9",
                           .connection = UINT64_MAX - 1};
    struct join_reply got = {0};
    uint8_t *bytes;
    size_t size;

    for (size_t held = 0; held <= 4; held += 4) {
        m.held = held;
        assert_ok(wire_pack_join_reply(&m, &bytes, &size, &err));
        assert_ok(wire_unpack_join_reply(bytes, size, &got, &err));
        ck_assert_uint_eq(got.held, held);
        ck_assert_int_eq(memcmp(got.partitions, partitions, held * sizeof(*partitions)), 0);
        ck_assert_uint_eq(got.partition_count, 301);
        ck_assert_uint_eq(got.element_count, 12345);
        ck_assert_str_eq(got.version, "0.1.0");
        ck_assert_uint_eq(got.epoch, 3);
        ck_assert_uint_eq(got.round, 77);
        ck_assert_uint_eq(got.role, SERVER_REPLICA);
        ck_assert_str_eq(got.memory_address, "sparring-9");
        ck_assert_uint_eq(got.connection, UINT64_MAX - 1);
        wire_release_join_reply(&got);
        free(bytes);
    }
}
END_TEST

START_TEST(heartbeat_round_trips)
{
    struct heartbeat m = {.session = 1ull << 63,
                          .rank = UINT32_MAX,
                          .count = UINT64_MAX,
                          .epoch = UINT64_MAX,
                          .propose_epoch = UINT64_MAX,
                          .vote_epoch = UINT64_MAX,
                          .waiting_ms = UINT32_MAX,
                          .connection = UINT64_MAX,
                          .lane = UINT32_MAX};
    struct heartbeat got;
    uint8_t bytes[WIRE_HEARTBEAT_MAX];

    memset(m.job, 'j', sizeof(m.job) - 1); /* the largest there is */
    memset(m.reason, 'r', sizeof(m.reason) - 1);
    assert_ok(wire_unpack_heartbeat(bytes, wire_pack_heartbeat(&m, bytes), &got, &err));
    ck_assert_str_eq(got.job, m.job);
    ck_assert_str_eq(got.reason, m.reason);
    ck_assert_uint_eq(got.session, m.session);
    ck_assert_uint_eq(got.rank, m.rank);
    ck_assert_uint_eq(got.count, m.count);
    ck_assert_uint_eq(got.epoch, m.epoch);
    ck_assert_uint_eq(got.propose_epoch, m.propose_epoch);
    ck_assert_uint_eq(got.vote_epoch, m.vote_epoch);
    ck_assert_uint_eq(got.waiting_ms, m.waiting_ms);
    ck_assert_uint_eq(got.connection, m.connection);
    ck_assert_uint_eq(got.lane, m.lane);
}
END_TEST

/* The largest head fits too. */
START_TEST(record_round_trips)
{
    static uint8_t head[WIRE_RECORD_MAX];
    static uint64_t most[WIRE_RANKS_MAX];
    struct wire_record m = {.kind = RECORD_STEP,
                            .partition = UINT32_MAX,
                            .sequence = UINT64_MAX,
                            .step = UINT64_MAX,
                            .rate = 0.125,
                            .epoch = UINT64_MAX,
                            .clocks = most,
                            .clock_count = WIRE_RANKS_MAX,
                            .flags = (uint8_t *)most,
                            .flag_count = WIRE_RANKS_MAX,
                            .sessions = most,
                            .session_count = WIRE_RANKS_MAX,
                            .length = UINT64_MAX};
    struct wire_record got = record_room();
    size_t size;

    memset(most, 0xff, sizeof(most));
    size = wire_pack_record(&m, head);
    ck_assert_uint_le(size, sizeof(head));
    assert_ok(wire_unpack_record(head, size, &got, &err));
    ck_assert_int_eq(got.kind, RECORD_STEP);
    ck_assert_uint_eq(got.partition, m.partition);
    ck_assert_uint_eq(got.sequence, m.sequence);
    ck_assert_uint_eq(got.step, m.step);
    ck_assert(got.rate == m.rate);
    ck_assert_uint_eq(got.epoch, m.epoch);
    ck_assert_uint_eq(got.length, m.length);
    ck_assert_ptr_null(got.terms);
    ck_assert_uint_eq(got.clock_count, WIRE_RANKS_MAX);
    ck_assert_mem_eq(got.clocks, most, sizeof(most));
    ck_assert_uint_eq(got.flag_count, WIRE_RANKS_MAX);
    ck_assert_mem_eq(got.flags, most, WIRE_RANKS_MAX);
    ck_assert_uint_eq(got.session_count, WIRE_RANKS_MAX);
    ck_assert_mem_eq(got.sessions, most, sizeof(most));

    got = record_room();
    got.clock_count--; /* one too many */
    assert_fails(wire_unpack_record(head, size, &got, &err), STATUS_DATA, "1024 clocks");
    m.kind = RECORD_STATE + 1;
    got = record_room();
    assert_fails(wire_unpack_record(head, wire_pack_record(&m, head), &got, &err), STATUS_DATA,
                 "unknown kind 10");
    m.kind = RECORD_TERMS;
    assert_fails(wire_unpack_record(head, wire_pack_record(&m, head), &got, &err), STATUS_DATA,
                 "without terms");
}
END_TEST

START_TEST(terms_round_trip)
{
    struct join_request terms = example_join();
    uint64_t sessions[2] = {UINT64_MAX, 3};
    struct wire_record m = {.kind = RECORD_TERMS,
                            .epoch = 4,
                            .terms = &terms,
                            .sessions = sessions,
                            .session_count = 2};
    struct wire_record got = record_room();
    uint8_t *bytes;
    size_t size;

    assert_ok(wire_pack_terms(&m, &bytes, &size, &err));
    assert_ok(wire_unpack_record(bytes, size, &got, &err));
    free(bytes);
    ck_assert_uint_eq(got.epoch, 4);
    ck_assert_uint_eq(got.session_count, 2);
    ck_assert_mem_eq(got.sessions, sessions, sizeof(sessions));
    ck_assert_uint_eq(got.clock_count, 0);
    ck_assert_ptr_nonnull(got.terms);
    ck_assert_str_eq(got.terms->manifest, terms.manifest);
    check_session(got.terms, &terms);
    wire_release_record(&got);
    wire_release_record(&got);
    terms.replica[0] = '\n'; /* found in the packed bytes, and replaced by invalid UTF-8 */
    assert_ok(wire_pack_terms(&m, &bytes, &size, &err));
    for (size_t i = 0; i + 4 < size; i++)
        if (memcmp(bytes + i, "\n::1", 4) == 0)
            bytes[i] = 0xff;
    got = record_room();
    assert_fails(wire_unpack_record(bytes, size, &got, &err), STATUS_DATA,
                 "field 'replica' is not valid UTF-8");
    free(bytes);
    m.kind = RECORD_STEP; /* which has none */
    assert_ok(wire_pack_terms(&m, &bytes, &size, &err));
    got = record_room();
    assert_fails(wire_unpack_record(bytes, size, &got, &err), STATUS_DATA, "with terms");
    free(bytes);
    ck_assert_ptr_null(got.terms);
}
END_TEST

START_TEST(record_reply_round_trips)
{
    struct record_reply m = {
        .partition = UINT32_MAX, .sequence = UINT64_MAX, .epoch = UINT64_MAX, .superseded = 1};
    struct record_reply got;
    uint8_t bytes[WIRE_REPLY_MAX];
    size_t size = wire_pack_record_reply(&m, bytes);

    ck_assert_uint_le(size, sizeof(bytes));
    assert_ok(wire_unpack_record_reply(bytes, size, &got, &err));
    ck_assert_uint_eq(got.sequence, m.sequence);
    ck_assert_uint_eq(got.partition, m.partition);
    ck_assert_uint_eq(got.epoch, m.epoch);
    ck_assert_int_eq(got.superseded, 1);
}
END_TEST

START_TEST(largest_chunk_head_fits)
{
    struct chunk_header m = {.kind = CHUNK_HELLO,
                             .rank = UINT32_MAX,
                             .round = UINT64_MAX,
                             .partition = UINT32_MAX,
                             .dtype = UINT32_MAX,
                             .length = UINT64_MAX,
                             .flags = UINT32_MAX,
                             .session = UINT64_MAX,
                             .lane = UINT32_MAX,
                             .offset = UINT64_MAX,
                             .connection = UINT64_MAX};
    struct chunk_header got;
    uint8_t head[WIRE_CHUNK_HEAD_MAX];
    size_t size = wire_pack_chunk(&m, head);

    ck_assert_uint_le(size, sizeof(head));
    assert_ok(wire_unpack_chunk(head, size, &got, &err));
    ck_assert_uint_eq(got.session, m.session);
    ck_assert_uint_eq(got.lane, m.lane);
    ck_assert_uint_eq(got.offset, m.offset);
    ck_assert_uint_eq(got.connection, m.connection);
    ck_assert_uint_eq(got.flags, m.flags);
}
END_TEST

START_TEST(leave_reason_may_be_cut_inside_a_letter)
{
    struct leave_request m = {.job = "run", .rank = 3, .reason = "disk '/\xc3\xbc"};
    struct leave_request got = {0};
    uint8_t *bytes;
    size_t size;

    m.reason[strlen(m.reason) - 1] = '\0'; /* as when it is cut to a full buffer */
    assert_ok(wire_pack_leave_request(&m, &bytes, &size, &err));
    assert_ok(wire_unpack_leave_request(bytes, size, &got, &err));
    ck_assert_str_eq(got.reason, "disk '/");
    ck_assert_str_eq(got.job, "run");
    ck_assert_uint_eq(got.rank, 3);
    free(bytes);
}
END_TEST

START_TEST(leave_reason_is_one_line)
{
    struct leave_request m = {.job = "run", .reason = "a\r\nserver: all is well\t!"};
    struct leave_request got = {0};
    uint8_t *bytes;
    size_t size;

    assert_ok(wire_pack_leave_request(&m, &bytes, &size, &err));
    assert_ok(wire_unpack_leave_request(bytes, size, &got, &err));
    ck_assert_str_eq(got.reason, "a  server: all is well !");
    free(bytes);
}
END_TEST

START_TEST(lost_rank_is_found)
{
    char text[100];
    unsigned rank = 7;

    (void)snprintf(text, sizeof(text), "rank 2, server a:1: " WIRE_RANK_LOST "it left)", 31u);
    ck_assert(wire_find_lost_rank(text, &rank));
    ck_assert_uint_eq(rank, 31);
    ck_assert(!wire_find_lost_rank("rank 2, server a:1: rank 31 was late", &rank));
    ck_assert(!wire_find_lost_rank("", &rank));
}
END_TEST

START_TEST(store_messages_round_trip)
{
    char key[] = "g/key";
    char first[] = "a";
    char second[] = "";
    char *keys[] = {first, second};
    uint8_t value[] = {0, 1, 255};
    struct store_request m = {.key = key,
                              .value = value,
                              .value_size = 3,
                              .delta = INT64_MIN,
                              .keys = keys,
                              .key_count = 2,
                              .timeout_ms = -1};
    struct store_reply r = {.value = value,
                            .value_size = 3,
                            .number = -5,
                            .found = 1,
                            .missing = keys,
                            .missing_count = 2};
    struct store_request got = {0};
    struct store_reply got_reply = {0};
    uint8_t *bytes;
    size_t size;

    assert_ok(wire_pack_store_request(&m, &bytes, &size, &err));
    assert_ok(wire_unpack_store_request(bytes, size, &got, &err));
    free(bytes);
    ck_assert_str_eq(got.key, key);
    ck_assert_uint_eq(got.value_size, 3);
    ck_assert_mem_eq(got.value, value, 3);
    ck_assert_uint_eq(got.value[3], 0); /* a NUL after it */
    ck_assert_uint_eq(got.expected_size, 0);
    ck_assert_int_eq(got.delta, INT64_MIN);
    ck_assert_int_eq(got.timeout_ms, -1);
    ck_assert_uint_eq(got.key_count, 2);
    ck_assert_str_eq(got.keys[0], "a");
    ck_assert_str_eq(got.keys[1], "");
    wire_release_store_request(&got);
    assert_ok(wire_pack_store_reply(&r, &bytes, &size, &err));
    assert_ok(wire_unpack_store_reply(bytes, size, &got_reply, &err));
    free(bytes);
    ck_assert_uint_eq(got_reply.missing_count, 2);
    ck_assert_int_eq(got_reply.number, -5);
    ck_assert_int_eq(got_reply.found, 1);
    ck_assert_mem_eq(got_reply.value, value, 3);
    wire_release_store_reply(&got_reply);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_wire", 60, TEST(join_request_round_trips), TEST(join_reply_round_trips),
                       TEST(heartbeat_round_trips), TEST(record_round_trips),
                       TEST(terms_round_trip), TEST(record_reply_round_trips),
                       TEST(largest_chunk_head_fits), TEST(leave_reason_may_be_cut_inside_a_letter),
                       TEST(leave_reason_is_one_line), TEST(lost_rank_is_found),
                       TEST(store_messages_round_trip));
}
