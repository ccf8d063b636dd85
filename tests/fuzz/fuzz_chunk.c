/*
 * Fuzzes the decoders of the parameter server's protocol: a message in scattered runs, a chunk
 * header, and every control message.  The first byte selects the length of the runs.  Accepted
 * input must be consistent: the sizes of header and payload add up, and an unpacked message packs
 * and unpacks to the same bytes.
 */
#include "common/rpc/message.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire.h"
#include "common/wire/wire_stats.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define RUNS_MAX    64
#define FLOATS_MAX  1024
#define PAYLOAD_MAX (FLOATS_MAX * sizeof(float))

/* Copies of exact size, so that the sanitizer finds an access outside a run. */
static size_t copy_runs(const uint8_t *data, size_t size, size_t stride, struct byte_run *runs,
                        uint8_t **copies)
{
    size_t count = 0;

    for (size_t at = 0; at < size; count++) {
        size_t step = count == RUNS_MAX - 1 || stride > size - at ? size - at : stride;

        copies[count] = allocate(step);
        memcpy(copies[count], data + at, step);
        runs[count] = (struct byte_run){copies[count], step};
        at += step;
    }
    return count;
}

static void fuzz_payload(struct rpc_message *m)
{
    static float sum[FLOATS_MAX];
    static uint8_t copy[PAYLOAD_MAX];
    size_t size = rpc_message_payload_size(m);
    size_t count = size / sizeof(float);

    if (size > PAYLOAD_MAX)
        return;
    require(rpc_message_copy(m, copy, size, NULL) == STATUS_OK);
    require((rpc_message_add_f32(m, sum, count, NULL) == STATUS_OK) == (size % sizeof(float) == 0));
}

static void fuzz_message(const uint8_t *data, size_t size, size_t stride)
{
    struct byte_run runs[RUNS_MAX];
    uint8_t *copies[RUNS_MAX];
    size_t count = copy_runs(data, size, stride, runs, copies);
    struct rpc_message m = {0};

    if (rpc_message_parse(&m, runs, count, NULL) == STATUS_OK) {
        struct chunk_header chunk;
        size_t head_size;
        const uint8_t *head = rpc_message_head(&m, &head_size);

        require(head_size + rpc_message_payload_size(&m) <= size);
        require(memcmp(head, data, head_size) == 0);
        fuzz_payload(&m);
        (void)wire_unpack_chunk(head, head_size, &chunk, NULL);
    }
    rpc_message_release(&m);
    for (size_t i = 0; i < count; i++)
        free(copies[i]);
}

static void fuzz_chunk(const uint8_t *data, size_t size)
{
    uint8_t first[WIRE_CHUNK_HEAD_MAX];
    struct chunk_header chunk;
    struct chunk_header again;

    if (wire_unpack_chunk(data, size, &chunk, NULL) != STATUS_OK)
        return;
    size = wire_pack_chunk(&chunk, first);
    require(size <= sizeof(first));
    require(wire_unpack_chunk(first, size, &again, NULL) == STATUS_OK);
    require(again.kind == chunk.kind && again.rank == chunk.rank && again.round == chunk.round &&
            again.partition == chunk.partition && again.dtype == chunk.dtype &&
            again.length == chunk.length && again.flags == chunk.flags &&
            again.session == chunk.session && again.lane == chunk.lane &&
            again.offset == chunk.offset && again.connection == chunk.connection);
}

/* Unpack, pack, unpack, pack: the two packed forms must be equal. */
#define FUZZ_ROUND_TRIP(name, release)                                                             \
    static void fuzz_##name(const uint8_t *data, size_t size)                                      \
    {                                                                                              \
        struct name m = {0};                                                                       \
        struct name again = {0};                                                                   \
        uint8_t *packed = NULL;                                                                    \
        uint8_t *repacked = NULL;                                                                  \
        size_t packed_size = 0;                                                                    \
        size_t repacked_size = 0;                                                                  \
                                                                                                   \
        if (wire_unpack_##name(data, size, &m, NULL) == STATUS_OK) {                               \
            require(wire_pack_##name(&m, &packed, &packed_size, NULL) == STATUS_OK);               \
            require(wire_unpack_##name(packed, packed_size, &again, NULL) == STATUS_OK);           \
            require(wire_pack_##name(&again, &repacked, &repacked_size, NULL) == STATUS_OK);       \
            require(packed_size == repacked_size && memcmp(packed, repacked, packed_size) == 0);   \
        }                                                                                          \
        free(packed);                                                                              \
        free(repacked);                                                                            \
        release(&m);                                                                               \
        release(&again);                                                                           \
    }

static void release_leave_request(struct leave_request *m)
{
    (void)m;
}

static void fuzz_heartbeat(const uint8_t *data, size_t size)
{
    struct heartbeat first;
    struct heartbeat again;
    uint8_t packed[WIRE_HEARTBEAT_MAX];
    uint8_t repacked[WIRE_HEARTBEAT_MAX];

    if (wire_unpack_heartbeat(data, size, &first, NULL) != STATUS_OK)
        return;
    size = wire_pack_heartbeat(&first, packed);
    require(size <= sizeof(packed));
    require(wire_unpack_heartbeat(packed, size, &again, NULL) == STATUS_OK);
    require(wire_pack_heartbeat(&again, repacked) == size && memcmp(packed, repacked, size) == 0);
}

/* Unpack a record.  Its arrays are static; only the terms are allocated. */
static enum status unpack_record(const uint8_t *data, size_t size, struct wire_record *m)
{
    static uint64_t clocks[WIRE_RANKS_MAX];
    static uint64_t sessions[WIRE_RANKS_MAX];
    static uint8_t flags[WIRE_RANKS_MAX];

    *m = (struct wire_record){.clocks = clocks,
                              .clock_count = WIRE_RANKS_MAX,
                              .flags = flags,
                              .flag_count = WIRE_RANKS_MAX,
                              .sessions = sessions,
                              .session_count = WIRE_RANKS_MAX};
    return wire_unpack_record(data, size, m, NULL);
}

static enum status pack_record(const struct wire_record *m, uint8_t **ret_bytes, size_t *ret_size)
{
    if (m->kind == RECORD_TERMS || m->kind == RECORD_TAKEOVER_QUERY)
        return wire_pack_terms(m, ret_bytes, ret_size, NULL);
    *ret_bytes = allocate(WIRE_RECORD_MAX);
    *ret_size = wire_pack_record(m, *ret_bytes);
    return STATUS_OK;
}

static void fuzz_record(const uint8_t *data, size_t size)
{
    struct wire_record m;
    struct wire_record again;
    struct record_reply reply;
    uint8_t *packed = NULL;
    uint8_t *repacked = NULL;
    uint8_t bytes[WIRE_REPLY_MAX];
    size_t packed_size;
    size_t repacked_size;

    if (unpack_record(data, size, &m) == STATUS_OK) {
        require(pack_record(&m, &packed, &packed_size) == STATUS_OK);
        require(unpack_record(packed, packed_size, &again) == STATUS_OK);
        require(pack_record(&again, &repacked, &repacked_size) == STATUS_OK);
        require(packed_size == repacked_size && memcmp(packed, repacked, packed_size) == 0);
        wire_release_record(&m);
        wire_release_record(&again);
    }
    free(packed);
    free(repacked);
    if (wire_unpack_record_reply(data, size, &reply, NULL) == STATUS_OK)
        require(wire_pack_record_reply(&reply, bytes) <= sizeof(bytes));
}

FUZZ_ROUND_TRIP(join_request, wire_release_join_request)
FUZZ_ROUND_TRIP(join_reply, wire_release_join_reply)
FUZZ_ROUND_TRIP(leave_request, release_leave_request)
FUZZ_ROUND_TRIP(store_request, wire_release_store_request)
FUZZ_ROUND_TRIP(store_reply, wire_release_store_reply)

static void fuzz_stats(const uint8_t *data, size_t size)
{
    struct strbuf out = STRBUF_INIT;
    bool read = wire_stats_to_json(data, size, &out, NULL) == STATUS_OK;

    require(read == (out.length > 0));
    strbuf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    fuzz_message(data + 1, size - 1, data[0] ? data[0] : 1);
    fuzz_chunk(data + 1, size - 1);
    fuzz_heartbeat(data + 1, size - 1);
    fuzz_record(data + 1, size - 1);
    fuzz_join_request(data + 1, size - 1);
    fuzz_join_reply(data + 1, size - 1);
    fuzz_leave_request(data + 1, size - 1);
    fuzz_store_request(data + 1, size - 1);
    fuzz_store_reply(data + 1, size - 1);
    fuzz_stats(data + 1, size - 1);
    return 0;
}
