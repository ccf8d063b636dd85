/*
 * Real servers and workers in one process, over gRPC: world sizes 1 to 4, 1 to 3 servers, the
 * optimizer on the server and on the workers, both orders of the sums, against a serial reference;
 * bit for bit if the order is fixed.  Also the counters, the transport, and when partitions are
 * sent.
 */
#include "common/base/log.h"
#include "tests/support/support.h"
#include "tests/worker/sync/ps_team.h"

#include <stdlib.h>

#define ROUNDS 3u
#define FULL   (TEAM_PARTITION_BYTES / sizeof(float))

static struct error err;

static void check_counters(const struct team_rank *r)
{
    const struct sync_counters *c = &r->counters;
    uint64_t tx, rx, initial = r->index == 0 ? TEAM_COUNT * sizeof(float) : 0;
    bool shared = r->memory.base && !r->team->another_host;

    sync_expected_bytes(r->sync, &tx, &rx);
    ck_assert_uint_eq(tx, TEAM_COUNT * sizeof(float));
    ck_assert_uint_eq(c->tx_payload_bytes, initial + ROUNDS * tx);
    ck_assert_uint_eq(c->rx_payload_bytes, rx + ROUNDS * rx);
    ck_assert_str_eq(sync_backend(r->sync), shared ? "shm" : "grpc");
    ck_assert_uint_eq(c->tx_reference_bytes, shared ? c->tx_payload_bytes : 0);
    ck_assert_uint_eq(c->rx_reference_bytes, shared ? c->rx_payload_bytes : 0);
    ck_assert_uint_gt(c->tx_wire_bytes, c->tx_payload_bytes - c->tx_reference_bytes);
    ck_assert_uint_lt(c->tx_wire_bytes,
                      c->tx_payload_bytes - c->tx_reference_bytes + (ROUNDS + 2) * 7 * 48);
    ck_assert_uint_gt(c->rx_wire_bytes, c->rx_payload_bytes - c->rx_reference_bytes);
}

START_TEST(test_equals_the_serial_run)
{
    static const uint32_t weights[PS_SERVERS_MAX] = {1, 3, 0}; /* the third holds no partition */
    unsigned world_size = (unsigned)_i / PS_SERVERS_MAX + 1;

    for (unsigned mode = 0; mode < 4; mode++) {
        struct team t;

        team_init_plain(&t, world_size, (unsigned)_i % PS_SERVERS_MAX + 1, ROUNDS);
        t.update = mode & 1;
        t.weights = mode == 1 || mode == 2 ? weights : NULL;
        t.order = mode & 2 ? REDUCE_REPRODUCIBLE : REDUCE_FAST;
        t.sharing = ((unsigned)_i + mode) % 3; /* none, all, every other rank */
        t.connections = (unsigned)_i % 4;
        t.priority = mode == 1 || mode == 2;
        t.check = check_counters;
        team_open(&t);
        team_run_all(&t);
        team_check(&t);
        team_close(&t);
    }
}
END_TEST

START_TEST(test_a_second_job_starts_afresh)
{
    struct team t;

    team_init_plain(&t, 2, 2, ROUNDS);
    team_open(&t);
    for (int job = 0; job < 3; job++) {
        team_run_all(&t);
        team_check(&t);
        team_close_ranks(&t);
        team_open_ranks(&t);
    }
    team_close(&t);
}
END_TEST

/* If memory cannot be shared, gradients are sent over the socket, or sync_open fails with
 * SYNC_TRANSPORT_SHM. */
START_TEST(test_another_host)
{
    struct team t;
    struct sync_config config;
    struct sync *sync = NULL;

    log_set_level(LOG_QUIET); /* the fallback is logged */
    team_init_plain(&t, 2, 2, ROUNDS);
    t.sharing = 1;
    t.another_host = true;
    t.check = check_counters;
    team_open(&t);
    (void)setenv("SPARRING_HOSTID", "another", 1);
    team_run_all(&t);
    team_check(&t);
    team_close_ranks(&t);
    t.world_size = 1;
    t.another_host = false; /* requires shared memory again */
    team_open_ranks(&t);
    config = team_config(&t.ranks[0]);
    assert_fails(sync_open(&config, &sync, &err), STATUS_UNSUPPORTED,
                 "shares no memory with this worker (another host");
    config.memory = NULL;
    assert_fails(sync_open(&config, &sync, &err), STATUS_CONFIG,
                 "not in shared memory, as --ps-transport shm demands");
    config = team_config(&t.ranks[0]);
    config.compression.up.kind = CODEC_FP16;
    assert_fails(sync_open(&config, &sync, &err), STATUS_CONFIG, "compression");
    team_close(&t);
}
END_TEST

/* Whether the server yields parameters or gradients. */
START_TEST(test_partitions_are_sent_when_ready)
{
    struct team t;
    struct sync *s;
    uint64_t before;

    team_init_plain(&t, 1, 1, ROUNDS);
    t.update = _i == 1;
    team_open(&t);
    ck_assert_msg(team_start_rank(&t.ranks[0]) == STATUS_OK, "%s", t.ranks[0].err.text);
    s = t.ranks[0].sync;
    before = sync_counters(s).tx_payload_bytes;
    assert_ok(sync_begin(s, 0, &err));
    sync_ready(s, 3 * FULL);
    ck_assert_uint_eq(sync_counters(s).tx_payload_bytes - before, 3 * FULL * sizeof(float));
    sync_ready(s, 5 * FULL + FULL / 2);
    ck_assert_uint_eq(sync_counters(s).tx_payload_bytes - before, 5 * FULL * sizeof(float));
    sync_ready(s, TEAM_COUNT);
    ck_assert_uint_eq(sync_counters(s).tx_payload_bytes - before, TEAM_COUNT * sizeof(float));
    assert_ok(sync_finish(s, &err));
    team_close(&t);
}
END_TEST

int main(void)
{
    log_set_level(LOG_QUIET); /* the services log why their jobs end */
    return SUPPORT_RUN("ps", 60,
                       LOOP_TEST(test_equals_the_serial_run, 0, TEAM_RANKS_MAX * PS_SERVERS_MAX),
                       TEST(test_a_second_job_starts_afresh), TEST(test_another_host),
                       LOOP_TEST(test_partitions_are_sent_when_ready, 0, 2));
}
