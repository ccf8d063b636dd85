/*
 * Chunks by reference, with scripted workers: elements in memory that a rank has shared are summed
 * in place and answered with an offset; a reference to memory that is not shared, or outside it,
 * ends the job.  The same through a channel, and what may not come through one.
 */
#include "common/base/clock.h"
#include "common/base/handover.h"
#include "common/base/log.h"
#include "server/service/service_internal.h"
#include "tests/server/service/raw_job.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS    20000
#define SLAB_BYTES (RAW_COUNT * sizeof(float))

static struct error err;

/* The workers' slabs, and the server's reply memory as each worker maps it; of rank 0 a channel and
 * its bell, if a test opens one. */
static struct shared_memory worker_slab[2], server_memory[2], bell = {.fd = -1};
static struct channel *channel;

static void open_shared_service(bool shares)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = WAIT_MS,
                                    .share_memory = shares};

    log_set_level(LOG_QUIET);
    assert_ok(service_open(&config, &service, &err));
    for (unsigned i = 0; i < 3; i++)
        raw_open(&workers[i], service_port(service), i);
    for (unsigned i = 0; i < 2; i++) {
        workers[i].session = 100 + i;
        worker_slab[i] = server_memory[i] = SHARED_MEMORY_NONE;
        assert_ok(shared_memory_open(SLAB_BYTES, "test-worker", &worker_slab[i], &err));
    }
}

static void close_shared_service(void)
{
    for (unsigned i = 0; i < 2; i++) {
        shared_memory_release(&worker_slab[i]);
        shared_memory_release(&server_memory[i]);
    }
    shared_memory_release(&bell);
    channel_unref(channel);
    channel = NULL;
    close_service();
}

static struct join_request terms_of(unsigned rank, const char *host_id)
{
    struct join_request r = raw_terms(rank);

    r.session = workers[rank].session;
    (void)snprintf(r.host_id, sizeof(r.host_id), "%s", host_id);
    return r;
}

/* Both ranks join with this host id. */
static void join_ranks(const char *host_id)
{
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request = terms_of(i, host_id);

        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
}

static void start_streams(void)
{
    for (unsigned i = 0; i < 2; i++)
        raw_start_stream(&workers[i]);
}

/* Connect to the listener, send the slab of worker `index` as that rank and session, and map the
 * memory that comes back; the status of the reply. */
static enum status begin_exchange(unsigned index, unsigned rank, uint64_t session, int *ret_fd,
                                  unsigned char token[HANDOVER_TOKEN_BYTES])
{
    struct handover_message message = {
        .sender = rank, .has_memory = 1, .size = worker_slab[index].size, .session = session};
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    char name[HANDOVER_NAME_SIZE];
    int memory_fd = -1;
    enum status status;

    ck_assert(handover_parse(fd_listener_address(service->fd_listener), name, token));
    memcpy(message.token, token, HANDOVER_TOKEN_BYTES);
    assert_ok(handover_connect(name, deadline_ns, ret_fd, &err));
    assert_ok(handover_send(*ret_fd, &message, worker_slab[index].fd, deadline_ns, &err));
    status = handover_receive(*ret_fd, token, deadline_ns, &message, &memory_fd, &err);
    if (status != STATUS_OK)
        return status;
    ck_assert_uint_eq(message.sender, HANDOVER_TAKES_CHANNEL);
    assert_ok(shared_memory_map_read_only(memory_fd, message.size, &server_memory[index], &err));
    return STATUS_OK;
}

static enum status exchange_memory(unsigned index, unsigned rank, uint64_t session)
{
    unsigned char token[HANDOVER_TOKEN_BYTES];
    int fd;
    enum status status = begin_exchange(index, rank, session, &fd, token);

    (void)close(fd);
    return status;
}

/* Memory and a channel of rank 0; the status of the reply to the latter. */
static enum status exchange_channel(void)
{
    struct handover_message message = {.has_memory = 1, .session = 100};
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    unsigned char token[HANDOVER_TOKEN_BYTES];
    struct shared_memory server_bell = SHARED_MEMORY_NONE;
    int fd, channel_fd, bell_fd;
    enum status status;

    ck_assert_int_eq(begin_exchange(0, 0, 100, &fd, token), STATUS_OK);
    memcpy(message.token, token, sizeof(token));
    assert_ok(channel_create(RAW_PARTITIONS, &channel, &err));
    assert_ok(channel_bell_open(&bell, &err));
    channel_handover(channel, &channel_fd, &message.size);
    assert_ok(handover_send(fd, &message, channel_fd, deadline_ns, &err));
    message.size = bell.size;
    assert_ok(handover_send(fd, &message, bell.fd, deadline_ns, &err));
    status = handover_receive(fd, token, deadline_ns, &message, &bell_fd, &err);
    (void)close(fd);
    if (status != STATUS_OK)
        return status;
    assert_ok(channel_bell_map(bell_fd, &server_bell, &err));
    channel_set_bell(channel, server_bell);
    return STATUS_OK;
}

static size_t offset_of(uint32_t partition)
{
    return (size_t)partition * 4096;
}

/* Send a chunk whose elements, all `value`, lie in the rank's slab; flags: further flags. */
static void send_flagged(unsigned rank, enum chunk_kind kind, uint32_t partition, uint64_t round,
                         float value, uint32_t flags)
{
    struct chunk_header h = raw_chunk(&workers[rank], kind, partition, round);
    float *at = (float *)((char *)worker_slab[rank].base + offset_of(partition));

    for (size_t i = 0; i < h.length / sizeof(float); i++)
        at[i] = value;
    h.flags = CHUNK_BY_REFERENCE | flags;
    h.offset = h.length > 0 ? offset_of(partition) : 0;
    raw_send(&workers[rank], &h, 0, 0);
}

static void send_reference(unsigned rank, enum chunk_kind kind, uint32_t partition, uint64_t round,
                           float value)
{
    send_flagged(rank, kind, partition, round, value, 0);
}

/* Send an undivided gradient of both ranks, which the server halves; rank 1's as a payload. */
static void send_undivided(uint32_t partition, uint64_t round, float value, float other)
{
    struct chunk_header h = raw_chunk(&workers[1], CHUNK_PUSH, partition, round);

    send_flagged(0, CHUNK_PUSH, partition, round, value, CHUNK_UNDIVIDED);
    h.flags = CHUNK_UNDIVIDED;
    raw_send(&workers[1], &h, h.length, other);
}

/* Check that the next reply lies in the server's memory and all its elements are `value`. */
static void expect_reference(unsigned rank, uint64_t round, float value)
{
    float first;
    struct chunk_header h = raw_take(&workers[rank], &first);
    const float *at = (const float *)((const char *)server_memory[rank].base + h.offset);

    ck_assert_uint_eq(h.round, round);
    ck_assert_uint_eq(h.flags, CHUNK_BY_REFERENCE);
    ck_assert_uint_eq(h.length, h.partition + 1 < RAW_PARTITIONS ? 4096 : 400);
    ck_assert_uint_le(h.offset + h.length, server_memory[rank].size);
    for (size_t i = 0; i < h.length / sizeof(float); i++)
        ck_assert_msg(at[i] == value, "partition %u, element %zu: %g", h.partition, i,
                      (double)at[i]);
}

static void expect_payload(unsigned rank, uint64_t round, float value)
{
    float first;
    struct chunk_header h = raw_take(&workers[rank], &first);

    ck_assert_uint_eq(h.round, round);
    ck_assert_uint_eq(h.flags, 0);
    ck_assert(first == value);
}

/* Check the counters of four rounds and the initial values: what rank 0 sent and read is by
 * reference, and is part of the totals. */
static void check_counters(void)
{
    struct server_stats *stats;

    assert_ok(service_stats(service, &stats, &err));
    ck_assert_uint_eq(stats->counters.rx_payload_bytes, 4 * 2 * SLAB_BYTES);
    ck_assert_uint_eq(stats->counters.initial_rx_payload_bytes, SLAB_BYTES);
    ck_assert_uint_eq(stats->counters.rx_reference_bytes, (4 + 1) * SLAB_BYTES);
    ck_assert_uint_eq(stats->counters.tx_payload_bytes, 4 * 2 * SLAB_BYTES);
    ck_assert_uint_eq(stats->counters.tx_reference_bytes, (4 + 1) * SLAB_BYTES);
    free(stats);
}

/* All values are 0.5, which both ranks read: rank 0 by reference and rank 1 by payload. */
static void set_values(void)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        send_reference(0, CHUNK_INIT, p, 0, 0.5f);
        send_reference(0, CHUNK_PULL, p, 0, 0.5f);
        raw_send_valid(&workers[1], CHUNK_PULL, p, 0, 0);
    }
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        expect_reference(0, 0, 0.5f);
        expect_payload(1, 0, 0.5f);
    }
}

/* Rank 0 by reference and rank 1 by payload, in one job; every other round is undivided. */
START_TEST(test_reference_and_payload_in_one_job)
{
    open_shared_service(true);
    join_ranks(service->host_id);
    start_streams();
    ck_assert_int_eq(exchange_memory(0, 0, 100), STATUS_OK);
    set_values();
    for (uint64_t round = 1; round <= 4; round++) {
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            if (round % 2 == 0) {
                send_undivided(p, round, 2 * (float)round, 20);
                continue;
            }
            send_reference(0, CHUNK_PUSH, p, round, (float)round);
            raw_send_valid(&workers[1], CHUNK_PUSH, p, round, 10);
        }
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            expect_reference(0, round, 10 + (float)round);
            expect_payload(1, round, 10 + (float)round);
        }
    }
    check_counters();
    end_job();
    close_shared_service();
}
END_TEST

/* ---- through a channel ---- */

static void send_through_channel(const struct chunk_header *h)
{
    uint8_t head[WIRE_CHUNK_HEAD_MAX];

    ck_assert(channel_send(channel, head, wire_pack_chunk(h, head)));
}

/* Rank 0's push of a partition, whose elements are in its slab. */
static struct chunk_header push_in_slab(uint32_t partition, uint64_t round, float value)
{
    struct chunk_header h = raw_chunk(&workers[0], CHUNK_PUSH, partition, round);
    float *at = (float *)((char *)worker_slab[0].base + offset_of(partition));

    for (size_t i = 0; i < h.length / sizeof(float); i++)
        at[i] = value;
    h.flags = CHUNK_BY_REFERENCE;
    h.offset = offset_of(partition);
    return h;
}

/* The next reply in the channel, sleeping on the bell until it comes; it lies in the server's
 * memory and its elements are `value`. */
static void expect_through_channel(uint64_t round, float value)
{
    uint8_t bytes[CHANNEL_MESSAGE_MAX];
    struct chunk_header h;
    const float *at;
    size_t size = 0;

    while (size == 0) {
        channel_bell_set_asleep(&bell, true);
        if (!channel_has_message(channel))
            channel_bell_sleep(&bell, INT64_C(1000000) * WAIT_MS);
        channel_bell_set_asleep(&bell, false);
        ck_assert(channel_has_message(channel));
        assert_ok(channel_receive(channel, bytes, &size, &err));
    }
    assert_ok(wire_unpack_chunk(bytes, size, &h, &err));
    ck_assert_uint_eq(h.round, round);
    ck_assert_uint_eq(h.flags, CHUNK_BY_REFERENCE);
    ck_assert_uint_le(h.offset + h.length, server_memory[0].size);
    at = (const float *)((const char *)server_memory[0].base + h.offset);
    for (size_t i = 0; i < h.length / sizeof(float); i++)
        ck_assert_msg(at[i] == value, "partition %u, element %zu: %g", h.partition, i,
                      (double)at[i]);
}

/* Open a job in which rank 0 has a channel and all values are 0.5. */
static void start_with_channel(void)
{
    open_shared_service(true);
    join_ranks(service->host_id);
    ck_assert_int_eq(exchange_channel(), STATUS_OK);
    start_streams();
    set_values();
}

/* Rank 0's pushes come through the channel in some rounds, and over its stream in others; each is
 * answered where it came from. */
START_TEST(test_channel_and_streams_in_one_job)
{
    start_with_channel();
    for (uint64_t round = 1; round <= 6; round++) {
        bool by_channel = round % 3 != 0;

        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            struct chunk_header h = push_in_slab(p, round, (float)round);

            raw_send_valid(&workers[1], CHUNK_PUSH, p, round, 10);
            if (by_channel)
                send_through_channel(&h);
            else
                raw_send(&workers[0], &h, 0, 0);
        }
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            if (by_channel)
                expect_through_channel(round, 10 + (float)round);
            else
                expect_reference(0, round, 10 + (float)round);
            expect_payload(1, round, 10 + (float)round);
        }
    }
    end_job();
    close_shared_service();
}
END_TEST

/* What may not come through a channel ends the job, as on a stream. */
static const struct {
    const char *text;
    enum chunk_kind kind;
    uint32_t flags, partition, rank;
    uint64_t round, offset;
    bool is_text; /* bytes that are no chunk */
} bad_in_channel[] = {
    {"kind 2 and flags 0x2 through its channel", CHUNK_INIT, CHUNK_BY_REFERENCE, 0, 0, 0, 0, false},
    {"kind 7 and flags 0x2 through its channel", CHUNK_HELLO, CHUNK_BY_REFERENCE, 0, 0, 0, 0,
     false},
    {"kind 1 and flags 0 through its channel", CHUNK_PUSH, 0, 0, 0, 1, 0, false},
    {"refers to", CHUNK_PUSH, CHUNK_BY_REFERENCE, 0, 0, 1, UINT64_MAX - 3, false},
    {"a chunk of rank 1", CHUNK_PUSH, CHUNK_BY_REFERENCE, 0, 1, 1, 0, false},
    {"does not hold", CHUNK_PUSH, CHUNK_BY_REFERENCE, 77, 0, 1, 0, false},
    {"while round 1 is under way", CHUNK_PUSH, CHUNK_BY_REFERENCE, 0, 0, 2, 0, false},
    {"", CHUNK_PUSH, 0, 0, 0, 0, 0, true},
};

START_TEST(test_bad_chunks_in_a_channel)
{
    struct chunk_header h = {.kind = bad_in_channel[_i].kind,
                             .flags = bad_in_channel[_i].flags,
                             .rank = bad_in_channel[_i].rank,
                             .partition = bad_in_channel[_i].partition,
                             .round = bad_in_channel[_i].round,
                             .offset = bad_in_channel[_i].offset,
                             .length = 4096};
    struct rpc_result result;

    start_with_channel();
    if (bad_in_channel[_i].is_text)
        ck_assert(channel_send(channel, "\xff\xff\xff", 3));
    else
        send_through_channel(&h);
    result = raw_wait_closed(&workers[0].stream);
    ck_assert_int_ne(result.status, STATUS_OK);
    ck_assert_msg(strstr(result.text, bad_in_channel[_i].text) != NULL, "%s", result.text);
    close_shared_service();
}
END_TEST

/* A stream takes the channel when it is bound; later ones would never be read. */
START_TEST(test_channel_after_the_stream)
{
    open_shared_service(true);
    join_ranks(service->host_id);
    start_streams();
    raw_send_valid(&workers[0], CHUNK_INIT, 0, 0, 0.5f);
    raw_send_valid(&workers[0], CHUNK_PULL, 0, 0, 0);
    expect_payload(0, 0, 0.5f); /* the stream is bound */
    ck_assert_int_eq(exchange_channel(), STATUS_PEER_LOST);
    close_shared_service();
}
END_TEST

static const struct {
    const char *text;
    uint32_t flags, partition;
    uint64_t offset, length;
    size_t payload;
    bool not_shared; /* no memory was shared */
} bad[] = {
    {"that it has not handed over", CHUNK_BY_REFERENCE, 0, 0, 4096, 0, true},
    {"refers to 4096 bytes at 8596", CHUNK_BY_REFERENCE, 0, 8192 + 404, 4096, 0, false},
    {"refers to", CHUNK_BY_REFERENCE, 0, 8192 + 4096, 4096, 0, false},
    {"refers to 4096 bytes at 2", CHUNK_BY_REFERENCE, 0, 2, 4096, 0, false},
    {"refers to", CHUNK_BY_REFERENCE, 0, UINT64_MAX - 3, 4096, 0, false},
    {"refers to", CHUNK_BY_REFERENCE, 0, UINT64_MAX - 4095, 4096, 0, false},
    {"refers to 400 bytes at 0", CHUNK_BY_REFERENCE, 0, 0, 400, 0, false},
    {"for partition 2 of 400", CHUNK_BY_REFERENCE, 2, 0, 4096, 0, false},
    {"refers to", CHUNK_BY_REFERENCE, 0, 0, 4096, 4096, false},
    {"sent 0 bytes for partition 0", 0, 0, 0, 4096, 0, false},
};

START_TEST(test_bad_references_are_refused)
{
    struct chunk_header h;

    open_shared_service(true);
    join_ranks(service->host_id);
    start_streams();
    if (!bad[_i].not_shared)
        ck_assert_int_eq(exchange_memory(0, 0, 100), STATUS_OK);
    h = raw_chunk(&workers[0], CHUNK_INIT, bad[_i].partition, 0);
    h.flags = bad[_i].flags;
    h.offset = bad[_i].offset;
    h.length = bad[_i].length;
    raw_send(&workers[0], &h, bad[_i].payload, 1);
    check_result("rank 0", raw_wait_closed(&workers[0].stream), STATUS_PROTOCOL, bad[_i].text);
    close_shared_service();
}
END_TEST

/* The listener identifies ranks by the sessions of their joins. */
START_TEST(test_listener_refuses_unknown_sessions)
{
    open_shared_service(true);
    ck_assert_int_eq(exchange_memory(0, 0, 100), STATUS_PEER_LOST); /* no job yet */
    join_ranks(service->host_id);
    start_streams();
    ck_assert_int_eq(exchange_memory(0, 0, 101), STATUS_PEER_LOST); /* the session of rank 1 */
    ck_assert_int_eq(exchange_memory(0, 0, 0), STATUS_PEER_LOST);
    ck_assert_int_eq(exchange_memory(0, 2, 100), STATUS_PEER_LOST);
    ck_assert_int_eq(exchange_memory(0, UINT32_MAX, 100), STATUS_PEER_LOST);
    ck_assert_int_eq(exchange_memory(0, 0, 100), STATUS_OK);
    shared_memory_release(&server_memory[0]);
    ck_assert_int_eq(exchange_memory(0, 0, 100), STATUS_OK); /* again, as after a reconnect */
    close_shared_service();
}
END_TEST

/* No rank of this host requests shared memory, or the server does not share: then there is nothing
 * to map. */
START_TEST(test_no_memory_is_shared_without_a_request)
{
    open_shared_service(_i == 0);
    join_ranks(_i == 0 ? "another host" : "");
    start_streams();
    (void)pthread_mutex_lock(&service->table.lock);
    ck_assert_ptr_nonnull(service->table.current);
    ck_assert_ptr_null(service->table.current->shard.reply_memory.base);
    (void)pthread_mutex_unlock(&service->table.lock);
    if (_i == 0)
        ck_assert_int_eq(exchange_memory(0, 0, 100), STATUS_PEER_LOST);
    else
        ck_assert_ptr_null(service->fd_listener);
    close_shared_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("reference", 60, TEST(test_reference_and_payload_in_one_job),
                       LOOP_TEST(test_bad_references_are_refused, 0, sizeof(bad) / sizeof(bad[0])),
                       TEST(test_channel_and_streams_in_one_job),
                       LOOP_TEST(test_bad_chunks_in_a_channel, 0,
                                 sizeof(bad_in_channel) / sizeof(bad_in_channel[0])),
                       TEST(test_channel_after_the_stream),
                       TEST(test_listener_refuses_unknown_sessions),
                       LOOP_TEST(test_no_memory_is_shared_without_a_request, 0, 2));
}
