/*
 * test_wire_hostile: unpacking must fail safely: truncated and mutated bytes, bad strings, values
 * outside their range, memory bombs, failed allocations.
 */
#include "common/base/memory.h"
#include "common/protobuf/unpack.h"
#include "tests/common/wire/wire_example.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

/* Unpack as every kind of message: nothing leaks, and nothing outside is accessed.
 */
static unsigned unpack_all(const uint8_t *bytes, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1); /* exact: ASan sees one byte too far */
    struct chunk_header chunk;
    struct heartbeat heartbeat;
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
    accepted += wire_unpack_heartbeat(exact, size, &heartbeat, &err) == STATUS_OK;
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

START_TEST(mutated_messages_are_handled_safely)
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
                         kind >= CHUNK_PUSH && kind <= CHUNK_STATE ? STATUS_OK : STATUS_DATA);
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
    return SUPPORT_RUN("rpc_wire_hostile", 60, TEST(mutated_messages_are_handled_safely),
                       TEST(strings_are_checked), TEST(values_outside_their_range_are_refused),
                       TEST(texts_and_messages_have_limits), TEST(memory_bombs_are_refused),
                       TEST(failed_allocations_are_errors));
}
