/*
 * Chunks by reference, with scripted workers: elements in memory that a rank has shared are summed
 * in place and answered with an offset; a reference to memory that is not shared, or outside it,
 * ends the job.
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

/* The workers' slabs, and the server's reply memory as each worker maps it. */
static struct shared_memory worker_slab[2], server_memory[2];

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
    close_service();
}

static struct join_request terms_of(unsigned rank, const char *host_id)
{
    struct join_request r = raw_terms(rank);

    r.session = workers[rank].session;
    (void)snprintf(r.host_id, sizeof(r.host_id), "%s", host_id);
    return r;
}

/* Both ranks join with this host id and open their streams. */
static void start_ranks(const char *host_id)
{
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request = terms_of(i, host_id);

        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
    for (unsigned i = 0; i < 2; i++)
        raw_start_stream(&workers[i]);
}

/* Send the slab of worker `index` to the listener as that rank and session, and map the memory that
 * comes back; the status of the reply. */
static enum status exchange_memory(unsigned index, unsigned rank, uint64_t session)
{
    struct handover_message message = {
        .sender = rank, .has_memory = 1, .size = worker_slab[index].size, .session = session};
    int64_t deadline_ns = clock_deadline_ns(WAIT_MS);
    char name[HANDOVER_NAME_SIZE];
    unsigned char token[HANDOVER_TOKEN_BYTES];
    int fd = -1, memory_fd = -1;
    enum status status;

    ck_assert(handover_parse(fd_listener_address(service->fd_listener), name, token));
    memcpy(message.token, token, sizeof(token));
    assert_ok(handover_connect(name, deadline_ns, &fd, &err));
    assert_ok(handover_send(fd, &message, worker_slab[index].fd, deadline_ns, &err));
    status = handover_receive(fd, token, deadline_ns, &message, &memory_fd, &err);
    if (status == STATUS_OK)
        assert_ok(
            shared_memory_map_read_only(memory_fd, message.size, &server_memory[index], &err));
    (void)close(fd);
    return status;
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

/* Rank 0 by reference and rank 1 by payload, in one job; every other round is undivided. */
START_TEST(test_reference_and_payload_in_one_job)
{
    open_shared_service(true);
    start_ranks(service->host_id);
    ck_assert_int_eq(exchange_memory(0, 0, 100), STATUS_OK);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        send_reference(0, CHUNK_INIT, p, 0, 0.5f);
        send_reference(0, CHUNK_PULL, p, 0, 0.5f);
        raw_send_valid(&workers[1], CHUNK_PULL, p, 0, 0);
    }
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        expect_reference(0, 0, 0.5f);
        expect_payload(1, 0, 0.5f);
    }
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
    start_ranks(service->host_id);
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
    start_ranks(service->host_id);
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
    start_ranks(_i == 0 ? "another host" : "");
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
                       TEST(test_listener_refuses_unknown_sessions),
                       LOOP_TEST(test_no_memory_is_shared_without_a_request, 0, 2));
}
