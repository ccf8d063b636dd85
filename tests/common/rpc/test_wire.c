/*
 * test_wire: every message there and back, byte-equal with plain protobuf-c where that matters, and
 * what unpacking must refuse: cut and mutated bytes, bad strings, unknown enums, memory bombs.
 */
#include "common/rpc/unpack.h"
#include "common/rpc/wire.h"
#include "tests/support/support.h"

#include "common/base/memory.h"

#include "parameter_server.pb-c.h"
#include "store.pb-c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;
static char manifest[] = "model\tmlp:784-128-10\nseed\t1\n";
static uint32_t weights[] = {6, 6, 14, 0};

static struct join_request example_join(void)
{
    return (struct join_request){
        .job = "run-7",
        .rank = 2,
        .world_size = 4,
        .server_index = 1,
        .server_count = 2,
        .manifest = manifest,
        .element_count = 1ull << 40,
        .partition_bytes = 1 << 20,
        .update = 1,
        .order = 1,
        .optimizer = {.kind = OPTIMIZER_ADAMW,
                      .learning_rate = 1e-3,
                      .momentum = 0.9,
                      .dampening = 0.1,
                      .nesterov = true,
                      .weight_decay = 1e-2,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .epsilon = 1e-8},
        .session = UINT64_MAX - 1,
        .lanes = 4,
        .in_order = 1,
        .resume = 1,
        .follows = 1,
        .round = 1ull << 33,
        .on_loss = WORKER_LOSS_WAIT,
        .reconnect_ms = 2000,
        .heartbeat_ms = 500,
        .heartbeat_timeout_ms = 3000,
        .replica = "[::1]:5758",
        .dtype_up = CODEC_ONE_BIT,
        .dtype_down = CODEC_BF16,
        .top_k_ppm = 10000,
        .weights = weights,
        .weight_count = 4,
        .arena = "sparring-1-2",
    };
}

static void check_session(const struct join_request *got, const struct join_request *m)
{
    ck_assert_uint_eq(got->session, m->session);
    ck_assert_uint_eq(got->lanes, m->lanes);
    ck_assert_int_eq(got->in_order, m->in_order);
    ck_assert_int_eq(got->resume, 1);
    ck_assert_int_eq(got->follows, 1);
    ck_assert_uint_eq(got->round, m->round);
    ck_assert_uint_eq(got->on_loss, m->on_loss);
    ck_assert_uint_eq(got->reconnect_ms, m->reconnect_ms);
    ck_assert_uint_eq(got->heartbeat_ms, m->heartbeat_ms);
    ck_assert_uint_eq(got->heartbeat_timeout_ms, m->heartbeat_timeout_ms);
    ck_assert_str_eq(got->replica, m->replica);
    ck_assert_uint_eq(got->dtype_up, m->dtype_up);
    ck_assert_uint_eq(got->dtype_down, m->dtype_down);
    ck_assert_uint_eq(got->top_k_ppm, m->top_k_ppm);
    ck_assert_uint_eq(got->weight_count, 4);
    ck_assert_mem_eq(got->weights, weights, sizeof(weights));
    ck_assert_str_eq(got->arena, m->arena);
}

START_TEST(join_request_there_and_back)
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

START_TEST(join_reply_there_and_back)
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
                           .arena = "sparring-9",
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
        ck_assert_str_eq(got.arena, "sparring-9");
        ck_assert_uint_eq(got.connection, UINT64_MAX - 1);
        wire_release_join_reply(&got);
        free(bytes);
    }
}
END_TEST

START_TEST(beat_there_and_back)
{
    struct beat m = {.session = 1ull << 63,
                     .rank = UINT32_MAX,
                     .count = UINT64_MAX,
                     .epoch = UINT64_MAX,
                     .propose_epoch = UINT64_MAX,
                     .vote_epoch = UINT64_MAX,
                     .waiting_ms = UINT32_MAX,
                     .connection = UINT64_MAX,
                     .lane = UINT32_MAX};
    struct beat got;
    uint8_t bytes[WIRE_BEAT_MAX];

    memset(m.job, 'j', sizeof(m.job) - 1); /* the largest there is */
    memset(m.reason, 'r', sizeof(m.reason) - 1);
    assert_ok(wire_unpack_beat(bytes, wire_pack_beat(&m, bytes), &got, &err));
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

/* Room for an unpacked record's lists. */
static uint64_t some_clocks[WIRE_RANKS_MAX], some_sessions[WIRE_RANKS_MAX];
static uint8_t some_flags[WIRE_RANKS_MAX];

static struct wire_record record_room(void)
{
    return (struct wire_record){.clocks = some_clocks,
                                .clock_count = WIRE_RANKS_MAX,
                                .flags = some_flags,
                                .flag_count = WIRE_RANKS_MAX,
                                .sessions = some_sessions,
                                .session_count = WIRE_RANKS_MAX};
}

/* The largest head fits, too. */
START_TEST(record_there_and_back)
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
    m.kind = RECORD_END + 1;
    got = record_room();
    assert_fails(wire_unpack_record(head, wire_pack_record(&m, head), &got, &err), STATUS_DATA,
                 "unknown kind 8");
    m.kind = RECORD_TERMS;
    assert_fails(wire_unpack_record(head, wire_pack_record(&m, head), &got, &err), STATUS_DATA,
                 "without terms");
}
END_TEST

START_TEST(terms_there_and_back)
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
    terms.replica[0] = '\n'; /* found in the packed bytes, and replaced by what is no text */
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

START_TEST(record_reply_there_and_back)
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
                             .place = UINT64_MAX,
                             .connection = UINT64_MAX};
    struct chunk_header got;
    uint8_t head[WIRE_CHUNK_HEAD_MAX];
    size_t size = wire_pack_chunk(&m, head);

    ck_assert_uint_le(size, sizeof(head));
    assert_ok(wire_unpack_chunk(head, size, &got, &err));
    ck_assert_uint_eq(got.session, m.session);
    ck_assert_uint_eq(got.lane, m.lane);
    ck_assert_uint_eq(got.place, m.place);
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

    m.reason[strlen(m.reason) - 1] = '\0'; /* as a full buffer cuts it */
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

START_TEST(store_messages_there_and_back)
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
    ck_assert_uint_eq(got.value[3], 0); /* a NUL behind it */
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

/* ------------------------------------------------------------------ hostile input */

/* Unpack as every kind of message; whatever happens, nothing leaks and nothing is touched outside.
 */
static unsigned unpack_all(const uint8_t *bytes, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1); /* exact: ASan sees one byte too far */
    struct chunk_header chunk;
    struct beat beat;
    struct join_request join = {0};
    struct join_reply reply = {0};
    struct leave_request leave = {0};
    struct store_request request = {0};
    struct store_reply answer = {0};
    struct wire_record record = record_room();
    struct record_reply acknowledged;
    unsigned accepted = 0;

    if (size > 0)
        memcpy(exact, bytes, size);
    accepted += wire_unpack_chunk(exact, size, &chunk, &err) == STATUS_OK;
    accepted += wire_unpack_beat(exact, size, &beat, &err) == STATUS_OK;
    accepted += wire_unpack_join_request(exact, size, &join, &err) == STATUS_OK;
    accepted += wire_unpack_join_reply(exact, size, &reply, &err) == STATUS_OK;
    accepted += wire_unpack_leave_request(exact, size, &leave, &err) == STATUS_OK;
    accepted += wire_unpack_store_request(exact, size, &request, &err) == STATUS_OK;
    accepted += wire_unpack_store_reply(exact, size, &answer, &err) == STATUS_OK;
    accepted += wire_unpack_record(exact, size, &record, &err) == STATUS_OK;
    accepted += wire_unpack_record_reply(exact, size, &acknowledged, &err) == STATUS_OK;
    wire_release_record(&record);
    wire_release_join_request(&join);
    wire_release_join_reply(&reply);
    wire_release_store_request(&request);
    wire_release_store_reply(&answer);
    free(exact);
    return accepted;
}

START_TEST(mutated_messages_do_no_harm)
{
    struct join_request m = example_join();
    uint8_t *bytes;
    size_t size;
    unsigned accepted = 0;

    assert_ok(wire_pack_join_request(&m, &bytes, &size, &err));
    for (size_t keep = 0; keep < size; keep++)
        accepted += unpack_all(bytes, keep);
    for (int round = 0; round < 20000; round++) {
        size_t at = (size_t)(support_random() * (double)size);
        uint8_t before = bytes[at];

        bytes[at] = (uint8_t)(support_random() * 256);
        accepted += unpack_all(bytes, size);
        bytes[at] = before;
    }
    ck_assert_uint_gt(accepted, 0);
    free(bytes);
}
END_TEST

START_TEST(strings_are_checked)
{
    static const struct {
        const char *text;
        size_t size;
        bool valid;
    } cases[] = {
        {"plain", 5, true},
        {"gr\xc3\xbc\xc3\x9f", 6, true},
        {"\xf0\x9f\xa5\x8a", 4, true},
        {"a\0b", 3, false},
        {"\xc3", 1, false},
        {"\xc0\xaf", 2, false},         /* overlong */
        {"\xe0\x80\xaf", 3, false},     /* overlong */
        {"\xed\xa0\x80", 3, false},     /* a surrogate */
        {"\xf4\x90\x80\x80", 4, false}, /* above U+10FFFF */
        {"\x80", 1, false},
        {"\xff", 1, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[16] = {1 << 3 | 2, (uint8_t)cases[i].size}; /* StoreRequest.key */
        struct store_request got = {0};

        memcpy(bytes + 2, cases[i].text, cases[i].size);
        ck_assert_int_eq(text_is_valid(bytes + 2, cases[i].size), cases[i].valid);
        if (cases[i].valid)
            assert_ok(wire_unpack_store_request(bytes, cases[i].size + 2, &got, &err));
        else
            assert_fails(wire_unpack_store_request(bytes, cases[i].size + 2, &got, &err),
                         STATUS_DATA, "field 'key' is not valid UTF-8 without NUL");
        wire_release_store_request(&got);
    }
}
END_TEST

START_TEST(values_outside_their_range_are_refused)
{
    struct join_request m = example_join();
    struct join_request got = {0};
    struct chunk_header chunk;
    uint8_t *bytes;
    size_t size;

    for (uint8_t kind = 0; kind < 100; kind++) {
        uint8_t head[] = {1 << 3, kind};
        enum status status = wire_unpack_chunk(head, sizeof(head), &chunk, &err);

        ck_assert_int_eq(status,
                         kind >= CHUNK_PUSH && kind <= CHUNK_HELLO ? STATUS_OK : STATUS_DATA);
    }
    m.update = 2;
    assert_ok(wire_pack_join_request(&m, &bytes, &size, &err));
    assert_fails(wire_unpack_join_request(bytes, size, &got, &err), STATUS_DATA, "update 2");
    free(bytes);
    m = example_join();
    m.optimizer.learning_rate = (double)NAN;
    assert_ok(wire_pack_join_request(&m, &bytes, &size, &err));
    assert_fails(wire_unpack_join_request(bytes, size, &got, &err), STATUS_DATA, "not finite");
    free(bytes);
    m = example_join();
    (void)snprintf(m.job, sizeof(m.job), "job\nanother line of the log");
    assert_ok(wire_pack_join_request(&m, &bytes, &size, &err));
    assert_fails(wire_unpack_join_request(bytes, size, &got, &err), STATUS_DATA,
                 "a control character in its job's name");
    free(bytes);
    assert_fails(wire_unpack_join_request(NULL, 0, &got, &err), STATUS_DATA, "no optimizer");
    ck_assert_ptr_null(got.manifest);
}
END_TEST

START_TEST(texts_and_messages_have_limits)
{
    char *large = calloc(WIRE_CONTROL_MAX + 1, 1);
    struct join_request m = example_join();
    struct leave_request leave = {0};
    uint8_t *bytes;
    size_t size;

    ck_assert_ptr_nonnull(large);
    memset(large, 'x', WIRE_CONTROL_MAX);
    m.manifest = large;
    assert_fails(wire_pack_join_request(&m, &bytes, &size, &err), STATUS_INVALID,
                 "the limit is 1048576");
    m.manifest[3] = (char)0xff;
    assert_fails(wire_pack_join_request(&m, &bytes, &size, &err), STATUS_INVALID,
                 "the manifest is not valid UTF-8");
    large[0] = 1 << 3 | 2; /* LeaveRequest.job of 128 bytes: one too many */
    large[1] = (char)0x80;
    large[2] = 1;
    large[3] = 'x';
    assert_fails(wire_unpack_leave_request((uint8_t *)large, 3 + 128, &leave, &err), STATUS_DATA,
                 "job name of 128 bytes, the limit is 127");
    assert_fails(wire_unpack_leave_request((uint8_t *)large, WIRE_CONTROL_MAX + 1, &leave, &err),
                 STATUS_DATA, "of 1048577 bytes, the limit is 1048576");
    assert_fails(wire_unpack_chunk((uint8_t *)large, WIRE_CHUNK_HEAD_MAX + 1,
                                   &(struct chunk_header){0}, &err),
                 STATUS_DATA, "of 89 bytes, the limit is 88");
    free(large);
}
END_TEST

START_TEST(memory_bombs_are_refused)
{
    uint8_t *bomb = malloc(WIRE_CONTROL_MAX);
    struct leave_request leave = {0};
    struct store_request got = {0};

    ck_assert_ptr_nonnull(bomb);
    for (size_t i = 0; i < WIRE_CONTROL_MAX; i += 2) {
        bomb[i] = 14 << 3; /* an unknown number: 44 bytes of memory for two */
        bomb[i + 1] = 0;
    }
    assert_fails(wire_unpack_leave_request(bomb, WIRE_CONTROL_MAX, &leave, &err), STATUS_DATA,
                 "unpacks to too much memory");
    for (size_t i = 0; i < WIRE_CONTROL_MAX; i += 3) {
        uint8_t key[3] = {5 << 3 | 2, 1, 'k'}; /* a legitimate list of very many short keys */

        memcpy(bomb + i, key, WIRE_CONTROL_MAX - i < 3 ? WIRE_CONTROL_MAX - i : 3);
    }
    assert_ok(wire_unpack_store_request(bomb, WIRE_CONTROL_MAX / 3 * 3, &got, &err));
    ck_assert_uint_eq(got.key_count, WIRE_CONTROL_MAX / 3);
    wire_release_store_request(&got);
    free(bomb);
}
END_TEST

START_TEST(failed_allocations_are_errors)
{
    char key[] = "k";
    char *keys[] = {key, key};
    uint8_t value[] = {1};
    struct store_request m = {.key = key,
                              .value = value,
                              .value_size = 1,
                              .expected = value,
                              .expected_size = 1,
                              .keys = keys,
                              .key_count = 2};
    uint8_t *bytes;
    size_t size;
    size_t failed = 0;

    assert_ok(wire_pack_store_request(&m, &bytes, &size, &err));
    for (size_t n = 1;; n++) {
        struct store_request got = {0};
        enum status status;

        mem_fail_nth(n);
        status = wire_unpack_store_request(bytes, size, &got, &err);
        mem_fail_nth(0);
        wire_release_store_request(&got);
        if (status == STATUS_OK)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        failed++;
    }
    ck_assert_uint_eq(failed, 6); /* key, value, expected, the list and its two keys */
    free(bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_wire");
    TCase *tests = tcase_create("wire");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, join_request_there_and_back);
    tcase_add_test(tests, join_reply_there_and_back);
    tcase_add_test(tests, beat_there_and_back);
    tcase_add_test(tests, record_there_and_back);
    tcase_add_test(tests, terms_there_and_back);
    tcase_add_test(tests, record_reply_there_and_back);
    tcase_add_test(tests, largest_chunk_head_fits);
    tcase_add_test(tests, leave_reason_may_be_cut_inside_a_letter);
    tcase_add_test(tests, leave_reason_is_one_line);
    tcase_add_test(tests, store_messages_there_and_back);
    tcase_add_test(tests, mutated_messages_do_no_harm);
    tcase_add_test(tests, strings_are_checked);
    tcase_add_test(tests, values_outside_their_range_are_refused);
    tcase_add_test(tests, texts_and_messages_have_limits);
    tcase_add_test(tests, memory_bombs_are_refused);
    tcase_add_test(tests, failed_allocations_are_errors);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
