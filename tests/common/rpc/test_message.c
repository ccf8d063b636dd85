/*
 * test_message: header and payload from scattered bytes.  The reference is protobuf-c, which gets
 * the same bytes in one piece; the bytes are split at random into runs, tiny and empty ones among
 * large ones, as a transport delivers them.  No gRPC here.
 */
#include "common/rpc/message.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire.h"
#include "tests/support/support.h"

#include "parameter_server.pb-c.h"

#include <stdlib.h>
#include <string.h>

#define RUNS_MAX 4096

static struct error err;

static size_t random_below(size_t limit)
{
    return (size_t)(support_random() * (double)limit);
}

/* A chunk as plain protobuf-c packs it; *ret_bytes is freed by the caller. */
static size_t pack_plain(const struct chunk_header *h, uint8_t *payload, uint8_t **ret_bytes)
{
    Sparring__V1__Chunk m = SPARRING__V1__CHUNK__INIT;
    size_t size;

    m.kind = (uint32_t)h->kind;
    m.rank = h->rank;
    m.round = h->round;
    m.partition = h->partition;
    m.dtype = h->dtype;
    m.length = h->length;
    m.payload.data = payload;
    m.payload.len = (size_t)h->length;
    size = sparring__v1__chunk__get_packed_size(&m);
    *ret_bytes = malloc(size + 1);
    ck_assert_ptr_nonnull(*ret_bytes);
    ck_assert_uint_eq(sparring__v1__chunk__pack(&m, *ret_bytes), size);
    return size;
}

static struct chunk_header random_header(size_t payload_size)
{
    struct chunk_header h = {
        .kind = (enum chunk_kind)(1 + random_below(5)),
        .rank = (uint32_t)random_below(300),
        .round = (uint64_t)random_below(1u << 20) * random_below(1u << 30),
        .partition = (uint32_t)random_below(100000),
        .length = payload_size,
    };
    return h;
}

/* Each run is a separate allocation of its exact size, so that ASan sees any step outside. */
static size_t split_into_runs(const uint8_t *bytes, size_t size, struct byte_run *runs)
{
    size_t count = 0;

    for (size_t at = 0; at < size && count < RUNS_MAX - 1;) {
        size_t limit = random_below(3) == 0 ? 60000 : 41;
        size_t step = random_below(limit);
        uint8_t *copy;

        if (step > size - at || count == RUNS_MAX - 2)
            step = size - at;
        copy = malloc(step);
        ck_assert(copy || step == 0);
        if (step > 0)
            memcpy(copy, bytes + at, step);
        runs[count++] = (struct byte_run){copy, step};
        at += step;
    }
    return count;
}

static void free_runs(struct byte_run *runs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        union {
            const uint8_t *borrowed;
            uint8_t *owned;
        } data = {.borrowed = runs[i].data};

        free(data.owned);
    }
}

START_TEST(encoder_writes_what_protobuf_writes)
{
    static uint8_t payload[70000];

    for (int round = 0; round < SUPPORT_DRAWS(300, 80); round++) {
        size_t sizes[] = {0, 1, 4, 127, 128, 16383, 16384, random_below(sizeof(payload))};
        struct chunk_header h = random_header(sizes[round % 8]);
        uint8_t ours[WIRE_CHUNK_HEAD_MAX + RPC_PAYLOAD_PREFIX];
        uint8_t *plain;
        size_t plain_size = pack_plain(&h, payload, &plain);
        size_t used = wire_pack_chunk(&h, ours);

        ck_assert_uint_le(used, WIRE_CHUNK_HEAD_MAX);
        used += rpc_payload_prefix((size_t)h.length, ours + used);
        ck_assert_uint_eq(used + h.length, plain_size);
        ck_assert_mem_eq(ours, plain, used);
        free(plain);
    }
}
END_TEST

static void check_header(const struct rpc_message *m, const struct chunk_header *wanted)
{
    struct chunk_header got;
    size_t size;
    const uint8_t *head = rpc_message_head(m, &size);

    assert_ok(wire_unpack_chunk(head, size, &got, &err));
    ck_assert_int_eq(got.kind, wanted->kind);
    ck_assert_uint_eq(got.rank, wanted->rank);
    ck_assert_uint_eq(got.round, wanted->round);
    ck_assert_uint_eq(got.partition, wanted->partition);
    ck_assert_uint_eq(got.length, wanted->length);
}

static void check_payload(struct rpc_message *m, const float *values, size_t count)
{
    float *copy = malloc(count * sizeof(float) + 1);
    float *sum = malloc(count * sizeof(float) + 1);
    size_t off = 0;

    ck_assert(copy && sum);
    ck_assert_uint_eq(rpc_message_payload_size(m), count * sizeof(float));
    assert_ok(rpc_message_copy(m, copy, count * sizeof(float), &err));
    ck_assert_int_eq(memcmp(copy, values, count * sizeof(float)), 0);
    for (size_t i = 0; i < count; i++)
        sum[i] = (float)i;
    assert_ok(rpc_message_add_f32(m, sum, count, &err));
    for (size_t i = 0; i < count; i++)
        off += sum[i] != (float)i + values[i];
    assert_ok(rpc_message_scale_f32(m, 0.1f, sum, count, &err));
    for (size_t i = 0; i < count; i++)
        off += sum[i] != values[i] * 0.1f;
    assert_ok(rpc_message_add_scaled_f32(m, 0.2f, sum, count, &err));
    for (size_t i = 0; i < count; i++) {
        volatile float product = values[i] * 0.2f;

        off += sum[i] != values[i] * 0.1f + product;
    }
    ck_assert_uint_eq(off, 0); /* once: each assertion is a write to Check's pipe */
    assert_fails(rpc_message_copy(m, copy, count * sizeof(float) + 1, &err), STATUS_DATA, "belong");
    assert_fails(rpc_message_add_f32(m, sum, count + 1, &err), STATUS_DATA, "float32 belong");
    assert_fails(rpc_message_add_f32(m, sum, SIZE_MAX, &err), STATUS_DATA, "float32 belong");
    assert_fails(rpc_message_scale_f32(m, 1, sum, count + 1, &err), STATUS_DATA, "float32 belong");
    free(copy);
    free(sum);
}

START_TEST(decoder_with_random_splits)
{
    static float values[40000];
    static struct byte_run runs[RUNS_MAX];
    struct rpc_message m = {0};

    for (size_t i = 0; i < 40000; i++)
        values[i] = (float)(support_random() - 0.5);
    for (int round = 0; round < SUPPORT_DRAWS(400, 80); round++) {
        size_t count = round % 4 ? random_below(200) : random_below(40000);
        struct chunk_header h = random_header(count * sizeof(float));
        uint8_t *plain;
        size_t size = pack_plain(&h, (uint8_t *)values, &plain);
        size_t run_count = split_into_runs(plain, size, runs);

        assert_ok(rpc_message_parse(&m, runs, run_count, &err));
        check_header(&m, &h);
        check_payload(&m, values, count);
        free_runs(runs, run_count);
        free(plain);
    }
    rpc_message_release(&m);
}
END_TEST

START_TEST(every_split_of_a_message_in_two)
{
    float values[3] = {1, -2, 3.5F};
    struct chunk_header h = random_header(sizeof(values));
    struct rpc_message m = {0};
    uint8_t *plain;
    size_t size = pack_plain(&h, (uint8_t *)values, &plain);

    for (size_t at = 0; at <= size; at++) {
        struct byte_run runs[2] = {{plain, at}, {plain + at, size - at}};

        assert_ok(rpc_message_parse(&m, runs, 2, &err));
        check_header(&m, &h);
        check_payload(&m, values, 3);
    }
    rpc_message_release(&m);
    free(plain);
}
END_TEST

START_TEST(every_truncation_is_an_error_or_a_shorter_message)
{
    uint8_t values[8] = {0};
    struct chunk_header h = {.kind = CHUNK_PUSH, .rank = 200, .round = 1000, .length = 8};
    struct rpc_message m = {0};
    uint8_t *plain;
    size_t size = pack_plain(&h, values, &plain);
    size_t accepted = 0;

    for (size_t keep = 0; keep < size; keep++) {
        struct byte_run run = {plain, keep};

        if (rpc_message_parse(&m, &run, 1, &err) == STATUS_OK) {
            ck_assert_uint_eq(rpc_message_payload_size(&m), 0);
            accepted++;
        }
    }
    ck_assert_uint_eq(accepted, 5); /* nothing, or whole fields: kind, rank, round, length */
    rpc_message_release(&m);
    free(plain);
}
END_TEST

static const struct {
    const char *bytes;
    size_t size;
    const char *what;
} hostile[] = {
    {"\x08", 1, "field at byte 0"},                       /* a tag and nothing */
    {"\x00\x01", 2, "field at byte 0"},                   /* field number 0 */
    {"\x0b\x0c", 2, "field at byte 0"},                   /* a group */
    {"\x0e\x00", 2, "field at byte 0"},                   /* wire type 6 */
    {"\x0d\x01\x02\x03", 4, "field at byte 0"},           /* three bytes of a fixed32 */
    {"\x09\x01\x02\x03\x04\x05\x06\x07", 8, "at byte 0"}, /* seven of a fixed64 */
    {"\x0a\x05xxxx", 6, "field at byte 0"},               /* four of five bytes */
    {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "at byte 0"},     /* 2^64-1 bytes */
    {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11, "at byte 0"},     /* a varint of 65 bits */
    {"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12, "at byte 0"}, /* of 11 bytes */
    {"\x80\x80\x80\x80\x20\x00", 6, "field at byte 0"},                    /* field number 2^30 */
    {"\x08\x01\x0f", 3, "field at byte 2"},                                /* wire type 7 */
    {"\x7a\x01zz", 4, "must be the last field"},        /* a byte after the payload */
    {"\x7a\x01z\x08\x01", 5, "must be the last field"}, /* a field after it */
    {"\x78\x01", 2, "must be the last field"},          /* field 15 as a number */
    {"\x7a\x05zz", 4, "field at byte 0"},               /* a payload cut short */
};

START_TEST(malformed_messages_fail)
{
    struct rpc_message m = {0};

    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        for (size_t at = 0; at <= hostile[i].size; at++) {
            const uint8_t *bytes = (const uint8_t *)hostile[i].bytes;
            struct byte_run runs[3] = {{bytes, at}, {bytes, 0}, {bytes + at, hostile[i].size - at}};

            assert_fails(rpc_message_parse(&m, runs, 3, &err), STATUS_DATA, hostile[i].what);
        }
    }
    rpc_message_release(&m);
}
END_TEST

START_TEST(header_has_a_limit)
{
    size_t size = RPC_HEAD_MAX + 2;
    uint8_t *bytes = calloc(size, 1); /* pairs of tag and value: field 1, varint 0 */
    struct rpc_message m = {0};
    size_t head_size;

    ck_assert_ptr_nonnull(bytes);
    for (size_t i = 0; i < size; i += 2)
        bytes[i] = 0x08;
    assert_ok(rpc_message_parse(&m, &(struct byte_run){bytes, RPC_HEAD_MAX}, 1, &err));
    ck_assert_int_eq(memcmp(rpc_message_head(&m, &head_size), bytes, RPC_HEAD_MAX), 0);
    ck_assert_uint_eq(head_size, RPC_HEAD_MAX);
    assert_fails(rpc_message_parse(&m, &(struct byte_run){bytes, size}, 1, &err), STATUS_DATA,
                 "message header of 35651586 bytes, the limit is 35651584");
    assert_ok(rpc_message_parse(&m, NULL, 0, &err)); /* and an empty message is one */
    ck_assert_uint_eq(rpc_message_payload_size(&m), 0);
    rpc_message_release(&m);
    free(bytes);
}
END_TEST

/* The receiver's limits, which are checked before any copy. */
START_TEST(messages_have_receiver_limits)
{
    uint8_t bytes[2 * 4 + 2 + 5]; /* four fields, then a payload of five bytes */
    const struct byte_run all = {bytes, sizeof(bytes)}, head = {bytes, 8};
    struct rpc_message m = {.max_head_bytes = 8, .max_payload_bytes = 5};

    for (size_t i = 0; i < 8; i += 2) {
        bytes[i] = 0x08;
        bytes[i + 1] = 1;
    }
    memset(bytes + 8, 'x', sizeof(bytes) - 8);
    (void)rpc_payload_prefix(5, bytes + 8);
    assert_ok(rpc_message_parse(&m, &all, 1, &err));
    m.max_head_bytes = 7;
    assert_fails(rpc_message_parse(&m, &all, 1, &err), STATUS_DATA,
                 "message header of 8 bytes, the limit is 7");
    m.max_head_bytes = 8;
    m.max_payload_bytes = 4;
    assert_fails(rpc_message_parse(&m, &all, 1, &err), STATUS_DATA,
                 "message payload of 5 bytes, the limit is 4");
    m.max_payload_bytes = RPC_NO_PAYLOAD;
    assert_fails(rpc_message_parse(&m, &all, 1, &err), STATUS_DATA,
                 "message payload of 5 bytes, the limit is 0");
    assert_ok(rpc_message_parse(&m, &head, 1, &err));
    rpc_message_release(&m);
}
END_TEST

START_TEST(random_bytes_cause_no_out_of_bounds_access)
{
    static struct byte_run runs[RUNS_MAX];
    struct rpc_message m = {0};
    unsigned accepted = 0;

    for (int round = 0; round < SUPPORT_DRAWS(20000, 2000); round++) {
        uint8_t bytes[64];
        size_t size = random_below(sizeof(bytes));
        size_t count;

        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)random_below(random_below(2) ? 256 : 18);
        count = split_into_runs(bytes, size, runs);
        if (rpc_message_parse(&m, runs, count, &err) == STATUS_OK) {
            size_t head_size;

            (void)rpc_message_head(&m, &head_size);
            ck_assert_uint_le(head_size + rpc_message_payload_size(&m), size);
            accepted++;
        }
        free_runs(runs, count);
    }
    ck_assert_uint_gt(accepted, SUPPORT_DRAWS(100, 10));
    rpc_message_release(&m);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_message", 60, TEST(encoder_writes_what_protobuf_writes),
                       TEST(decoder_with_random_splits), TEST(every_split_of_a_message_in_two),
                       TEST(every_truncation_is_an_error_or_a_shorter_message),
                       TEST(malformed_messages_fail), TEST(header_has_a_limit),
                       TEST(messages_have_receiver_limits),
                       TEST(random_bytes_cause_no_out_of_bounds_access));
}
