/*
 * Real servers and real workers in one process, over gRPC: every world size from 1 to 4, 1 to 3
 * servers, both places of the optimizer, both orders of the sums, against a serial reference; bit
 * for bit where the order is fixed.  Then the ends: a rank that fails, one that vanishes, one that
 * is silent, servers that are not there.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "server/service.h"
#include "tests/support/process.h"
#include "tests/support/support.h"
#include "worker/sync/sync.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS_MAX   4u
#define SERVERS_MAX 3u
#define ROUNDS      3u
#define FULL        (PARTITION_BYTES / sizeof(float))
#define COUNT       (6 * FULL + 99)

enum {
    PARTITION_BYTES = 4096,
    RUN_OUT_MS = 4000, /* of time-outs that are to run out: they bound the join before, too */
};

static struct error err;

/* ------------------------------------------------------------------ the bench */

struct bench {
    struct service *services[SERVERS_MAX];
    unsigned server_count;
    char servers[256];
    struct tensor_table table;
    const uint32_t *weights; /* of the servers; NULL: equal */
    unsigned world_size;
    bool update;
    enum reduce_order order;
    struct optimizer_config optimizer;
    int64_t timeout_ms;
    enum sync_transport transport; /* of ranks with shared memory */
    unsigned sharing;     /* every so many-th rank has its slabs in shared memory; 0: none */
    unsigned connections; /* of each worker to each server */
    bool priority;
};

struct rank {
    struct bench *bench;
    unsigned index;
    pthread_t thread;
    struct shared_memory memory; /* of both slabs; base NULL: they are apart */
    float *params, *grads;
    struct sync *sync;
    enum status status; /* of the first failure */
    struct error err;
};

static void open_service(struct bench *b, unsigned k)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .share_memory = true,
                                    .timeout_ms = b->timeout_ms};

    assert_ok(service_open(&config, &b->services[k], &err));
}

static void name_servers(struct bench *b)
{
    size_t used = 0;

    for (unsigned k = 0; k < b->server_count; k++)
        used += (size_t)snprintf(b->servers + used, sizeof(b->servers) - used, "%s127.0.0.1:%u",
                                 k ? "," : "", service_port(b->services[k]));
}

static void bench_open(struct bench *b, unsigned world_size, unsigned servers)
{
    size_t weight[2] = {COUNT / 8, 7}, bias[1] = {COUNT - COUNT / 8 * 7};

    memset(b, 0, sizeof(*b));
    b->world_size = world_size;
    b->server_count = servers;
    b->timeout_ms = 20000;
    b->transport = SYNC_TRANSPORT_SHM;
    b->optimizer = optimizer_defaults(OPTIMIZER_SGD);
    b->optimizer.learning_rate = 0.1;
    b->optimizer.momentum = 0.9;
    assert_ok(tensor_table_add(&b->table, "weight", 2, weight, &err));
    assert_ok(tensor_table_add(&b->table, "bias", 1, bias, &err));
    tensor_table_layout(&b->table);
    ck_assert_uint_eq(b->table.count, COUNT);
}

static void bench_serve(struct bench *b)
{
    for (unsigned k = 0; k < b->server_count; k++)
        open_service(b, k);
    name_servers(b);
}

static void bench_close(struct bench *b)
{
    for (unsigned k = 0; k < b->server_count; k++)
        service_close(b->services[k]);
    tensor_table_release(&b->table);
}

static float *new_slab(void)
{
    float *slab = NULL;

    assert_ok(mem_calloc_aligned(COUNT, sizeof(float), "slab", &slab, &err));
    ck_assert_ptr_nonnull(slab);
    return slab;
}

static void fill(float *values, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 1;

    for (size_t i = 0; i < COUNT; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        values[i] = ((float)(state >> 8) / 8388608.0f) - 1.0f;
    }
}

static struct sync_config rank_config(const struct rank *r)
{
    const struct bench *b = r->bench;

    return (struct sync_config){.kind = "ps",
                                .table = &b->table,
                                .params = r->params,
                                .grads = r->grads,
                                .rank = r->index,
                                .world_size = b->world_size,
                                .timeout_ms = b->timeout_ms,
                                .order = b->order,
                                .manifest = "seed\t1\nmodel\ttest\n",
                                .job = "test",
                                .servers = b->servers,
                                .servers_origin = "--servers",
                                .server_weights = b->weights,
                                .update_on_server = b->update,
                                .partition_bytes = PARTITION_BYTES,
                                .connections = b->connections,
                                .priority = b->priority,
                                .memory = r->memory.base ? &r->memory : NULL,
                                .ps_transport = r->memory.base ? b->transport : SYNC_TRANSPORT_AUTO,
                                .optimizer = b->optimizer};
}

static void rank_open(struct rank *r, struct bench *b, unsigned index)
{
    memset(r, 0, sizeof(*r));
    r->bench = b;
    r->index = index;
    r->memory = SHARED_MEMORY_NONE;
    if (b->sharing > 0 && index % b->sharing == 0) {
        assert_ok(shared_memory_open(2 * COUNT * sizeof(float), "test", &r->memory, &err));
        r->grads = r->memory.base;
        r->params = r->grads + COUNT;
    } else {
        r->params = new_slab();
        r->grads = new_slab();
    }
    fill(r->params, 1000 + index); /* rank 0's must win */
}

static void rank_release(struct rank *r)
{
    if (!r->memory.base) {
        free(r->params);
        free(r->grads);
    }
    shared_memory_release(&r->memory);
}

/* ------------------------------------------------------------------ a run */

static uint32_t gradient_seed(unsigned rank, uint64_t round)
{
    return (uint32_t)(rank * 100 + round);
}

/* One step, the gradient handed over in uneven pieces as backward would. */
static enum status step(struct rank *r, uint64_t round)
{
    enum status status = sync_begin(r->sync, round - 1, &r->err);

    if (status != STATUS_OK)
        return status;
    fill(r->grads, gradient_seed(r->index, round));
    for (size_t mark = 0; mark < COUNT; mark += 700 + 13 * r->index)
        sync_ready(r->sync, mark);
    sync_ready(r->sync, COUNT);
    return sync_finish(r->sync, &r->err);
}

static enum status run_rounds(struct rank *r)
{
    const struct bench *b = r->bench;
    struct sync_config config = rank_config(r);
    struct optimizer optimizer;
    enum status status = optimizer_init(&optimizer, &b->optimizer, COUNT, &r->err);

    if (status == STATUS_OK)
        status = sync_open(&config, &r->sync, &r->err);
    if (status == STATUS_OK)
        status = sync_start(r->sync, &r->err);
    for (uint64_t round = 1; status == STATUS_OK && round <= ROUNDS; round++) {
        status = step(r, round);
        if (status == STATUS_OK && sync_yields(r->sync) == SYNC_YIELDS_GRADIENTS)
            optimizer_update(&optimizer, round, 0, COUNT, r->params, r->grads);
    }
    optimizer_release(&optimizer);
    return status;
}

static void check_counters(struct rank *r)
{
    struct sync_counters c = sync_counters(r->sync);
    uint64_t tx, rx, initial = r->index == 0 ? COUNT * sizeof(float) : 0;
    bool shared = r->memory.base && r->bench->transport == SYNC_TRANSPORT_SHM;

    sync_expected_bytes(r->sync, &tx, &rx);
    ck_assert_uint_eq(tx, COUNT * sizeof(float));
    ck_assert_uint_eq(c.tx_payload_bytes, initial + ROUNDS * tx);
    ck_assert_uint_eq(c.rx_payload_bytes, rx + ROUNDS * rx);
    ck_assert_str_eq(sync_backend(r->sync), shared ? "shm" : "grpc");
    ck_assert_uint_eq(c.tx_reference_bytes, shared ? c.tx_payload_bytes : 0);
    ck_assert_uint_eq(c.rx_reference_bytes, shared ? c.rx_payload_bytes : 0);
    ck_assert_uint_gt(c.tx_wire_bytes, c.tx_payload_bytes - c.tx_reference_bytes);
    ck_assert_uint_lt(c.tx_wire_bytes,
                      c.tx_payload_bytes - c.tx_reference_bytes + (ROUNDS + 2) * 7 * 48);
    ck_assert_uint_gt(c.rx_wire_bytes, c.rx_payload_bytes - c.rx_reference_bytes);
}

static void *run_rank(void *user)
{
    struct rank *r = user;

    r->status = run_rounds(r);
    if (r->status == STATUS_OK)
        check_counters(r);
    sync_close(r->sync, r->status == STATUS_OK ? NULL : &r->err);
    return NULL;
}

static void run_all(struct bench *b, struct rank *ranks)
{
    for (unsigned i = 0; i < b->world_size; i++)
        rank_open(&ranks[i], b, i);
    for (unsigned i = 0; i < b->world_size; i++)
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (unsigned i = 0; i < b->world_size; i++)
        ck_assert_int_eq(pthread_join(ranks[i].thread, NULL), 0);
}

/* What one process would compute: divide, then sum in rank order, then update. */
static float *serial_reference(const struct bench *b)
{
    float *params = new_slab(), *sum = new_slab(), *gradient = new_slab();
    float scale = (float)(1.0 / b->world_size);
    struct optimizer optimizer;

    assert_ok(optimizer_init(&optimizer, &b->optimizer, COUNT, &err));
    fill(params, 1000);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (unsigned rank = 0; rank < b->world_size; rank++) {
            fill(gradient, gradient_seed(rank, round));
            for (size_t i = 0; i < COUNT; i++)
                sum[i] = rank == 0 ? gradient[i] * scale : sum[i] + gradient[i] * scale;
        }
        optimizer_update(&optimizer, round, 0, COUNT, params, sum);
    }
    optimizer_release(&optimizer);
    free(sum);
    free(gradient);
    return params;
}

/* Of floats: 0 and -0 differ, a NaN equals itself. */
static bool same_bits(const void *a, const void *b, size_t count)
{
    return memcmp(a, b, count * sizeof(float)) == 0;
}

static void compare(const struct bench *b, const struct rank *ranks)
{
    float *wanted = serial_reference(b);
    bool exact = b->order == REDUCE_REPRODUCIBLE || b->world_size <= 2;

    for (unsigned i = 0; i < b->world_size; i++) {
        ck_assert_msg(ranks[i].status == STATUS_OK, "rank %u: %s", i, ranks[i].err.text);
        ck_assert_msg(same_bits(ranks[i].params, ranks[0].params, COUNT),
                      "rank %u has other parameters than rank 0", i);
    }
    ck_assert_ptr_nonnull(ranks[0].params);
    for (size_t i = 0; i < COUNT; i++)
        ck_assert_msg(exact ? same_bits(&ranks[0].params[i], &wanted[i], 1)
                            : fabsf(ranks[0].params[i] - wanted[i]) <= 1e-5f,
                      "element %zu: %.9g, wanted %.9g", i, (double)ranks[0].params[i],
                      (double)wanted[i]);
    free(wanted);
}

START_TEST(test_equals_the_serial_run)
{
    static const uint32_t weights[SERVERS_MAX] = {1, 3, 0}; /* the third does nothing */
    unsigned world_size = (unsigned)_i / SERVERS_MAX + 1;

    for (unsigned mode = 0; mode < 4; mode++) {
        struct bench b;
        struct rank ranks[RANKS_MAX] = {0};

        bench_open(&b, world_size, (unsigned)_i % SERVERS_MAX + 1);
        b.update = mode & 1;
        b.weights = mode == 1 || mode == 2 ? weights : NULL;
        b.order = mode & 2 ? REDUCE_REPRODUCIBLE : REDUCE_FAST;
        b.sharing = ((unsigned)_i + mode) % 3; /* none, all, every other rank */
        b.connections = (unsigned)_i % 4;
        b.priority = mode == 1 || mode == 2;
        bench_serve(&b);
        run_all(&b, ranks);
        compare(&b, ranks);
        for (unsigned i = 0; i < world_size; i++)
            rank_release(&ranks[i]);
        bench_close(&b);
    }
}
END_TEST

/* Where memory cannot be shared, gradients go through the socket, unless that is not wished for. */
START_TEST(test_another_host)
{
    struct bench b;
    struct rank ranks[RANKS_MAX] = {0};
    struct sync_config config;

    log_set_level(LOG_QUIET); /* it says so */
    bench_open(&b, 2, 2);
    b.update = true;
    b.sharing = 1;
    b.transport = SYNC_TRANSPORT_AUTO;
    bench_serve(&b);
    (void)setenv("SPARRING_HOSTID", "another", 1);
    run_all(&b, ranks);
    compare(&b, ranks);
    rank_release(&ranks[0]);
    rank_release(&ranks[1]);
    b.world_size = 1;
    b.transport = SYNC_TRANSPORT_SHM;
    rank_open(&ranks[0], &b, 0);
    config = rank_config(&ranks[0]);
    assert_fails(sync_open(&config, &ranks[0].sync, &err), STATUS_UNSUPPORTED,
                 "shares no memory with this worker (another host");
    config.memory = NULL;
    assert_fails(sync_open(&config, &ranks[0].sync, &err), STATUS_CONFIG,
                 "not in shared memory, as --ps-transport shm demands");
    config = rank_config(&ranks[0]);
    config.compression.up.kind = CODEC_FP16;
    assert_fails(sync_open(&config, &ranks[0].sync, &err), STATUS_CONFIG, "compression");
    rank_release(&ranks[0]);
    bench_close(&b);
}
END_TEST

START_TEST(test_a_second_job_starts_afresh)
{
    struct bench b;
    struct rank ranks[RANKS_MAX] = {0};

    bench_open(&b, 2, 2);
    b.update = true;
    b.order = REDUCE_REPRODUCIBLE;
    bench_serve(&b);
    for (int job = 0; job < 3; job++) {
        run_all(&b, ranks);
        compare(&b, ranks);
        rank_release(&ranks[0]);
        rank_release(&ranks[1]);
    }
    bench_close(&b);
}
END_TEST

/* ------------------------------------------------------------------ ends */

/* Two ranks that have started; the test plays both. */
struct pair {
    struct bench bench;
    struct rank ranks[2];
};

static void *start_rank(void *user)
{
    struct rank *r = user;
    struct sync_config config = rank_config(r);

    r->status = sync_open(&config, &r->sync, &r->err);
    if (r->status == STATUS_OK)
        r->status = sync_start(r->sync, &r->err);
    return NULL;
}

static void pair_open(struct pair *p, int64_t timeout_ms)
{
    bench_open(&p->bench, 2, 2);
    p->bench.timeout_ms = timeout_ms;
    bench_serve(&p->bench);
    for (unsigned i = 0; i < 2; i++) {
        rank_open(&p->ranks[i], &p->bench, i);
        ck_assert_int_eq(pthread_create(&p->ranks[i].thread, NULL, start_rank, &p->ranks[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(p->ranks[i].thread, NULL), 0);
        ck_assert_msg(p->ranks[i].status == STATUS_OK, "%s", p->ranks[i].err.text);
    }
}

static void pair_close(struct pair *p)
{
    for (unsigned i = 0; i < 2; i++) {
        sync_close(p->ranks[i].sync, p->ranks[i].err.status ? &p->ranks[i].err : NULL);
        rank_release(&p->ranks[i]);
    }
    bench_close(&p->bench);
}

START_TEST(test_a_failed_rank_is_named)
{
    struct pair p;
    struct error reason = {0};

    pair_open(&p, 20000);
    (void)error_set(&reason, STATUS_NO_SPACE, "the disk is full");
    sync_close(p.ranks[1].sync, &reason);
    p.ranks[1].sync = NULL;
    ck_assert_int_eq(step(&p.ranks[0], 1), STATUS_PEER_LOST);
    err = p.ranks[0].err;
    assert_fails(err.status, STATUS_PEER_LOST, "rank 1 failed: the disk is full");
    assert_fails(err.status, STATUS_PEER_LOST, "--servers");
    pair_close(&p);
}
END_TEST

START_TEST(test_a_silent_rank_is_named)
{
    struct pair p;
    int64_t before_ns;

    pair_open(&p, RUN_OUT_MS);
    before_ns = clock_now_ns();
    ck_assert_int_eq(step(&p.ranks[0], 1), STATUS_TIMEOUT);
    err = p.ranks[0].err;
    assert_fails(err.status, STATUS_TIMEOUT, "in round 1 for rank 1");
    ck_assert_int_lt(clock_now_ns() - before_ns, (RUN_OUT_MS + INT64_C(10000)) * 1000000);
    ck_assert_int_eq(step(&p.ranks[1], 1), STATUS_TIMEOUT);
    pair_close(&p);
}
END_TEST

START_TEST(test_a_stopped_server_is_named)
{
    struct pair p;

    pair_open(&p, 20000);
    service_close(p.bench.services[1]);
    p.bench.services[1] = NULL;
    ck_assert_int_eq(step(&p.ranks[0], 1), STATUS_UNAVAILABLE);
    err = p.ranks[0].err;
    assert_fails(err.status, STATUS_UNAVAILABLE, "is stopping (0 rounds were complete)");
    assert_fails(err.status, STATUS_UNAVAILABLE, strchr(p.bench.servers, ',') + 1);
    pair_close(&p);
}
END_TEST

static void *close_well(void *user)
{
    sync_close(user, NULL);
    return NULL;
}

/* A server that is away for a while, as on a busy host, when its rank leaves. */
START_TEST(test_a_slow_server_hears_the_goodbye)
{
    const struct timespec away = {.tv_sec = 2, .tv_nsec = 500000000};
    const char *listening;
    struct bench b;
    struct rank r;
    struct process server;

    bench_open(&b, 1, 0);
    process_start(&server, NULL,
                  ARGS(support_program("sparring-server"), "--listen", "127.0.0.1:0"));
    process_wait_output(&server, "serving on 127.0.0.1:", 20000);
    listening = strstr(process_output(&server), "127.0.0.1:");
    (void)snprintf(b.servers, sizeof(b.servers), "%.*s", (int)strcspn(listening, "\n"), listening);
    rank_open(&r, &b, 0);
    (void)start_rank(&r);
    ck_assert_msg(r.status == STATUS_OK && step(&r, 1) == STATUS_OK, "%s", r.err.text);
    process_signal(&server, SIGSTOP);
    ck_assert_int_eq(pthread_create(&r.thread, NULL, close_well, r.sync), 0);
    (void)nanosleep(&away, NULL);
    process_signal(&server, SIGCONT);
    ck_assert_int_eq(pthread_join(r.thread, NULL), 0);
    process_signal(&server, SIGTERM);
    ck_assert_int_eq(process_wait(&server, 20000), 0);
    ck_assert_msg(strstr(process_output(&server), "job 'test' is done") != NULL, "%s",
                  process_output(&server));
    rank_release(&r);
    bench_close(&b);
}
END_TEST

START_TEST(test_a_missing_rank_is_named)
{
    struct bench b;
    struct rank r;

    bench_open(&b, 3, 1);
    b.timeout_ms = RUN_OUT_MS;
    bench_serve(&b);
    rank_open(&r, &b, 1);
    (void)start_rank(&r);
    err = r.err;
    assert_fails(r.status, STATUS_TIMEOUT, "2 of 3 ranks: 0, 2 are missing");
    rank_release(&r);
    bench_close(&b);
}
END_TEST

START_TEST(test_a_missing_server_is_named)
{
    struct bench b;
    struct rank r;

    bench_open(&b, 1, 0);
    b.timeout_ms = 300;
    (void)snprintf(b.servers, sizeof(b.servers), "127.0.0.1:1");
    rank_open(&r, &b, 0);
    (void)start_rank(&r);
    err = r.err;
    assert_fails(r.status, STATUS_UNREACHABLE, "rank 0, parameter server 127.0.0.1:1 (--servers)");
    rank_release(&r);
    bench_close(&b);
}
END_TEST

START_TEST(test_bad_server_lists)
{
    static const struct {
        const char *servers, *text;
    } cases[] = {
        {"", "--servers"},
        {"127.0.0.1", "'127.0.0.1' is not host:port"},
        {"127.0.0.1:1,", "--servers: ''"},
        {"127.0.0.1:1,127.0.0.1:1", "'127.0.0.1:1' is there twice"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench b;
        struct rank r;

        bench_open(&b, 1, 0);
        (void)snprintf(b.servers, sizeof(b.servers), "%s", cases[i].servers);
        rank_open(&r, &b, 0);
        (void)start_rank(&r);
        err = r.err;
        assert_fails(r.status, STATUS_CONFIG, cases[i].text);
        rank_release(&r);
        bench_close(&b);
    }
}
END_TEST

/* More servers than partitions: the spare ones are not asked for anything. */
START_TEST(test_more_servers_than_partitions)
{
    struct bench b;
    struct rank ranks[1];
    size_t used;

    bench_open(&b, 1, 1);
    bench_serve(&b);
    used = strlen(b.servers);
    for (unsigned port = 1; port <= 7; port++) /* nobody listens there */
        used += (size_t)snprintf(b.servers + used, sizeof(b.servers) - used, ",127.0.0.1:%u", port);
    b.table.count = FULL / 2; /* one partition */
    rank_open(&ranks[0], &b, 0);
    (void)start_rank(&ranks[0]);
    ck_assert_msg(ranks[0].status == STATUS_OK, "%s", ranks[0].err.text);
    sync_close(ranks[0].sync, NULL);
    rank_release(&ranks[0]);
    bench_close(&b);
}
END_TEST

/* Backward still reads the weights of the layer marked last: where parameters come back, its
 * gradient stays until the next mark.  Where gradients come back it leaves at once. */
START_TEST(test_a_layer_in_use_is_not_overwritten)
{
    struct bench b;
    struct rank r;
    struct sync_config config;
    uint64_t before;

    bench_open(&b, 1, 1);
    b.update = _i == 1;
    bench_serve(&b);
    rank_open(&r, &b, 0);
    config = rank_config(&r);
    assert_ok(sync_open(&config, &r.sync, &err));
    assert_ok(sync_start(r.sync, &err));
    before = sync_counters(r.sync).tx_payload_bytes;
    assert_ok(sync_begin(r.sync, 0, &err));
    sync_ready(r.sync, 3 * FULL);
    ck_assert_uint_eq(sync_counters(r.sync).tx_payload_bytes - before,
                      b.update ? 0 : 3 * FULL * sizeof(float));
    sync_ready(r.sync, 5 * FULL);
    ck_assert_uint_eq(sync_counters(r.sync).tx_payload_bytes - before,
                      (b.update ? 3 : 5) * FULL * sizeof(float));
    sync_ready(r.sync, COUNT);
    ck_assert_uint_eq(sync_counters(r.sync).tx_payload_bytes - before, COUNT * sizeof(float));
    assert_ok(sync_finish(r.sync, &err));
    sync_close(r.sync, NULL);
    rank_release(&r);
    bench_close(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ps");
    TCase *equal = tcase_create("equal"), *ends = tcase_create("ends");

    log_set_level(LOG_QUIET); /* the services log why their jobs end */

    tcase_set_timeout(equal, 60);
    tcase_add_loop_test(equal, test_equals_the_serial_run, 0, (int)(RANKS_MAX * SERVERS_MAX));
    tcase_add_test(equal, test_a_second_job_starts_afresh);
    tcase_add_test(equal, test_another_host);
    tcase_add_loop_test(equal, test_a_layer_in_use_is_not_overwritten, 0, 2);
    suite_add_tcase(suite, equal);
    tcase_set_timeout(ends, 30);
    tcase_add_test(ends, test_a_failed_rank_is_named);
    tcase_add_test(ends, test_a_silent_rank_is_named);
    tcase_add_test(ends, test_a_stopped_server_is_named);
    tcase_add_test(ends, test_a_slow_server_hears_the_goodbye);
    tcase_add_test(ends, test_a_missing_rank_is_named);
    tcase_add_test(ends, test_a_missing_server_is_named);
    tcase_add_test(ends, test_bad_server_lists);
    tcase_add_test(ends, test_more_servers_than_partitions);
    suite_add_tcase(suite, ends);
    return support_run(suite);
}
