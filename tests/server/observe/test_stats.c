/*
 * The Stats call over real gRPC: every figure of a job with fake workers, during and after it; no
 * counter ever decreases; a stock client reads the reply with the installed descriptor set.
 */
#include "common/base/clock.h"
#include "common/base/host.h"
#include "tests/server/service/raw_job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "stats.pb-c.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_MS     20000
#define SHARD_BYTES (RAW_COUNT * sizeof(float))
#define RUN_MS      60000

typedef Sparring__V1__StatsReply reply_t;

static struct error err;

/* Freed with sparring__v1__stats_reply__free_unpacked. */
static reply_t *request_stats(struct rpc_client *client)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    reply_t *reply;

    assert_ok(rpc_client_unary(client, SERVICE_STATS, (const uint8_t *)"", 0,
                               clock_deadline_ns(WAIT_MS), &bytes, &size, &err));
    reply = sparring__v1__stats_reply__unpack(NULL, size, bytes);
    ck_assert_ptr_nonnull(reply);
    free(bytes);
    return reply;
}

static void free_reply(reply_t *reply)
{
    sparring__v1__stats_reply__free_unpacked(reply, NULL);
}

/* Repeat until the server has counted the pushes, which it does after their sends complete. */
static reply_t *wait_for_pushes(uint64_t wanted)
{
    reply_t *reply = request_stats(workers[2].client);

    while (reply->counters->pushes < wanted) {
        free_reply(reply);
        (void)sched_yield();
        reply = request_stats(workers[2].client);
    }
    ck_assert_uint_eq(reply->counters->pushes, wanted);
    return reply;
}

/* Repeat until the job has ended, some time after the reply to its last Leave. */
static reply_t *wait_until_job_ended(void)
{
    reply_t *reply = request_stats(workers[2].client);

    while (reply->job) {
        free_reply(reply);
        (void)sched_yield();
        reply = request_stats(workers[2].client);
    }
    return reply;
}

static const Sparring__V1__MethodStats *method_of(const reply_t *reply, const char *path)
{
    for (size_t i = 0; i < reply->n_methods; i++)
        if (strcmp(reply->methods[i]->method, path) == 0)
            return reply->methods[i];
    ck_abort_msg("no method '%s'", path);
    return NULL;
}

static uint64_t count_ended_calls(const reply_t *reply, const char *path, const char *status)
{
    const Sparring__V1__MethodStats *m = method_of(reply, path);

    for (size_t i = 0; i < m->n_ended; i++)
        if (strcmp(m->ended[i]->status, status) == 0)
            return m->ended[i]->calls;
    return 0;
}

START_TEST(test_before_any_job)
{
    reply_t *reply;

    open_service(WAIT_MS, NULL);
    reply = request_stats(workers[0].client);
    ck_assert_str_eq(reply->version, SPARRING_VERSION);
    ck_assert_str_eq(reply->grpc_version, rpc_library_version());
    ck_assert(reply->start_time_seconds <= clock_wall_seconds());
    ck_assert(reply->start_time_seconds > clock_wall_seconds() - 3600);
    ck_assert(reply->cpu_seconds > 0 && reply->cpu_seconds <= host_cpu_seconds());
    ck_assert_uint_gt(reply->resident_bytes, 1 << 20);
    ck_assert_uint_le(reply->resident_bytes, host_peak_rss_bytes() + (64 << 20));
    ck_assert(!reply->draining);
    ck_assert_uint_eq(reply->jobs_ok + reply->jobs_failed, 0);
    ck_assert_uint_eq(reply->counters->pushes, 0);
    ck_assert_ptr_null(reply->job);
    ck_assert_uint_eq(reply->staleness->n_pushes, reply->staleness->n_bound + 1);
    ck_assert_uint_eq(method_of(reply, SERVICE_STATS)->started, 1);
    ck_assert_uint_eq(method_of(reply, SERVICE_STATS)->n_ended, 0); /* this call */
    ck_assert_uint_eq(method_of(reply, "other")->started, 0);
    free_reply(reply);
    close_service();
}
END_TEST

static void check_job(const Sparring__V1__JobStats *j)
{
    ck_assert_ptr_nonnull(j);
    ck_assert_str_eq(j->job, "raw");
    ck_assert_str_eq(j->state, "running");
    ck_assert_str_eq(j->mode, "bsp");
    ck_assert_str_eq(j->role, "single");
    ck_assert_str_eq(j->peer, "");
    ck_assert_uint_eq(j->server_index, 0);
    ck_assert_uint_eq(j->server_count, 1);
    ck_assert_uint_eq(j->world_size, 2);
    ck_assert_uint_eq(j->joined, 2);
    ck_assert_uint_eq(j->left, 0);
    ck_assert_uint_eq(j->partitions, RAW_PARTITIONS);
    ck_assert_uint_eq(j->elements, RAW_COUNT);
    ck_assert_uint_eq(j->shard_bytes, 2 * SHARD_BYTES); /* two accumulators */
    ck_assert(j->load_max_over_mean == 1.0);
    ck_assert_uint_eq(j->n_workers, 2);
    for (unsigned rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(j->workers[rank]->rank, rank);
        ck_assert(j->workers[rank]->connected);
        ck_assert(j->workers[rank]->silent_seconds >= 0);
        ck_assert(j->workers[rank]->silent_seconds < 3600);
    }
}

START_TEST(test_gathering_job)
{
    struct join_request terms = raw_terms(1);
    reply_t *reply;

    open_service(WAIT_MS, NULL);
    raw_begin_join(&workers[1], &terms);
    reply = request_stats(workers[2].client);
    while (!reply->job) {
        free_reply(reply);
        (void)sched_yield();
        reply = request_stats(workers[2].client);
    }
    ck_assert_str_eq(reply->job->state, "gathering");
    ck_assert_uint_eq(reply->job->joined, 1);
    ck_assert_uint_eq(reply->job->world_size, 2);
    ck_assert_uint_eq(reply->job->n_workers, 0);
    ck_assert_uint_eq(reply->job->elements, 0);
    free_reply(reply);
    close_service();
}
END_TEST

/* The figures after `rounds` whole rounds, when rank 0 has pushed two partitions of the next one
 * and rank 1 has pushed one. */
static void check_middle(const reply_t *reply, uint64_t rounds)
{
    const Sparring__V1__StatsCounters *c = reply->counters;

    check_job(reply->job);
    ck_assert_uint_eq(c->rounds, rounds);
    ck_assert_uint_eq(c->rx_payload_bytes, rounds * 2 * SHARD_BYTES + 3 * 4096);
    ck_assert_uint_eq(c->initial_rx_payload_bytes, SHARD_BYTES);
    ck_assert_uint_eq(c->initial_tx_payload_bytes, 2 * SHARD_BYTES);
    ck_assert(c->sum_seconds > 0 && c->sum_seconds < 3600);
    ck_assert(c->wait_seconds > 0 && c->wait_seconds < 3600);
    ck_assert_uint_eq(reply->job->round, rounds + 1);
    ck_assert_uint_eq(reply->job->workers[0]->pushes, rounds * RAW_PARTITIONS + 2);
    ck_assert_uint_eq(reply->job->workers[1]->pushes, rounds * RAW_PARTITIONS + 1);
    ck_assert(reply->job->workers[0]->lag_rounds == 0.0);
    ck_assert(reply->job->workers[1]->lag_rounds == 1.0 / RAW_PARTITIONS);
    ck_assert_uint_eq(method_of(reply, SERVICE_EXCHANGE)->started, 2);
    ck_assert_uint_eq(method_of(reply, SERVICE_EXCHANGE)->n_ended, 0);
}

/* Ranks 0 and 1 push partition 0 of the round, rank 0 partition 1 as well. */
static void push_some(uint64_t round)
{
    raw_send_valid(&workers[0], CHUNK_PUSH, 0, round, 1);
    raw_send_valid(&workers[0], CHUNK_PUSH, 1, round, 1);
    raw_send_valid(&workers[1], CHUNK_PUSH, 0, round, 1);
}

START_TEST(test_a_job_that_ends_well)
{
    reply_t *reply;
    float first;

    open_service(WAIT_MS, NULL);
    start_job();
    play_round(1);
    play_round(2);
    push_some(3);
    (void)raw_take(&workers[0], &first); /* partition 0 is complete */
    reply = wait_for_pushes(2 * 2 * RAW_PARTITIONS + 3);
    check_middle(reply, 2);
    ck_assert_uint_eq(reply->counters->tx_payload_bytes, 2 * 2 * SHARD_BYTES + 2 * 4096);
    ck_assert_uint_eq(reply->staleness->pushes[0], 2 * 2 * RAW_PARTITIONS + 2);
    ck_assert_uint_eq(reply->staleness->sum, 0);
    ck_assert_uint_eq(reply->job->waiting_pushes, 1);
    free_reply(reply);
    raw_send_valid(&workers[1], CHUNK_PUSH, 1, 3, 1);
    for (unsigned i = 0; i < 2; i++)
        raw_send_valid(&workers[i], CHUNK_PUSH, 2, 3, 1);
    for (unsigned i = 0; i < 5; i++) /* one of the six replies was taken above */
        (void)raw_take(&workers[i < 2 ? 0 : 1], &first);
    end_job();
    reply = wait_until_job_ended();
    ck_assert_uint_eq(reply->jobs_ok, 1);
    ck_assert_uint_eq(reply->jobs_failed, 0);
    ck_assert_uint_eq(reply->counters->rounds, 3);
    ck_assert_uint_eq(reply->counters->rx_payload_bytes, 3 * 2 * SHARD_BYTES);
    ck_assert_uint_eq(reply->counters->tx_payload_bytes, 3 * 2 * SHARD_BYTES);
    ck_assert_uint_eq(reply->staleness->pushes[0], 3 * 2 * RAW_PARTITIONS);
    ck_assert_uint_eq(count_ended_calls(reply, SERVICE_JOIN, "OK"), 2);
    free_reply(reply);
    close_service();
}
END_TEST

START_TEST(test_a_job_that_fails_keeps_its_counts)
{
    reply_t *reply;

    open_service(WAIT_MS, NULL);
    start_job();
    play_round(1);
    push_some(2);
    reply = wait_for_pushes(2 * RAW_PARTITIONS + 3);
    check_middle(reply, 1);
    free_reply(reply);
    rpc_call_cancel(workers[1].stream.call);
    reply = wait_until_job_ended();
    ck_assert_uint_eq(reply->jobs_ok, 0);
    ck_assert_uint_eq(reply->jobs_failed, 1);
    ck_assert_uint_eq(reply->counters->rounds, 1);
    ck_assert_uint_eq(reply->counters->pushes, 2 * RAW_PARTITIONS + 3);
    ck_assert_uint_eq(reply->counters->rx_payload_bytes, 2 * SHARD_BYTES + 3 * 4096);
    free_reply(reply);
    close_workers();
    service_close(service);
}
END_TEST

static void *close_the_service(void *user)
{
    service_close(user);
    return NULL;
}

/* A draining server still serves Stats, which shows what it waits for. */
START_TEST(test_while_the_server_drains)
{
    pthread_t closer;
    reply_t *reply;
    float first;

    open_service(WAIT_MS, NULL);
    start_job();
    push_some(1);
    reply = wait_for_pushes(3);
    ck_assert(!reply->draining);
    free_reply(reply);
    ck_assert_int_eq(pthread_create(&closer, NULL, close_the_service, service), 0);
    reply = request_stats(workers[2].client);
    while (!reply->draining) {
        free_reply(reply);
        (void)sched_yield();
        reply = request_stats(workers[2].client);
    }
    check_job(reply->job);
    ck_assert_uint_eq(reply->job->round, 1);
    free_reply(reply);
    raw_send_valid(&workers[1], CHUNK_PUSH, 1, 1, 1);
    for (unsigned i = 0; i < 2; i++)
        raw_send_valid(&workers[i], CHUNK_PUSH, 2, 1, 1);
    for (unsigned i = 0; i < RAW_PARTITIONS; i++)
        (void)raw_take(&workers[0], &first);
    check_result("stopping", raw_wait_closed(&workers[0].stream), STATUS_UNAVAILABLE,
                 "the parameter server is stopping (1 rounds were complete)");
    ck_assert_int_eq(pthread_join(closer, NULL), 0);
    close_workers();
}
END_TEST

/* ------------------------------------------------------------------ counters never decrease */

static atomic_bool watching = true;

/* Compare every counter with the reading before. */
static void *watch_counters(void *user)
{
    struct server_stats *before = NULL, *now;
    static unsigned long readings;

    (void)user;
    while (atomic_load(&watching)) {
        ck_assert_int_eq(service_stats(service, &now, NULL), STATUS_OK);
        if (before) {
#define X(field, help) ck_assert_uint_ge(now->counters.field, before->counters.field);
            STATS_COUNTERS(X)
#undef X
            ck_assert_int_ge(now->counters.sum_ns, before->counters.sum_ns);
            ck_assert_int_ge(now->counters.wait_ns, before->counters.wait_ns);
            ck_assert_uint_ge(now->jobs_ok + now->jobs_failed,
                              before->jobs_ok + before->jobs_failed);
        }
        free(before);
        before = now;
        readings++;
    }
    free(before);
    return &readings;
}

START_TEST(test_counters_never_decrease)
{
    pthread_t watcher;
    void *readings;
    reply_t *reply;

    open_service(WAIT_MS, NULL);
    ck_assert_int_eq(pthread_create(&watcher, NULL, watch_counters, NULL), 0);
    for (unsigned i = 0; i < 10; i++)
        check_still_serves(); /* a job of two rounds */
    atomic_store(&watching, false);
    ck_assert_int_eq(pthread_join(watcher, &readings), 0);
    ck_assert_uint_gt(*(unsigned long *)readings, 10);
    reply = wait_until_job_ended();
    ck_assert_uint_eq(reply->jobs_ok, 10);
    ck_assert_uint_eq(reply->counters->rounds, 20);
    ck_assert_uint_eq(reply->counters->pushes, 20 * 2 * RAW_PARTITIONS);
    free_reply(reply);
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ a stock client */

START_TEST(test_a_stock_client_with_the_descriptor_set)
{
    const char *python = support_python();
    struct process probe;
    char port[8];

    process_start(&probe, NULL, ARGS(python, "-c", "import grpc, google.protobuf.descriptor_pool"));
    if (process_wait(&probe, RUN_MS) != 0) {
        support_skip_package("python3-grpcio or python3-protobuf");
        return;
    }
    open_service(WAIT_MS, NULL);
    (void)snprintf(port, sizeof(port), "%u", service_port(service));
    start_job();
    play_round(1);
    ck_assert_ptr_nonnull(
        strstr(process_run(0, RUN_MS, NULL,
                           ARGS(python, support_source("tests/server/observe/stock_stats.py"),
                                PROTOSET, port)),
               "stock client: the statistics are as expected"));
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("stats", 120, TEST(test_before_any_job), TEST(test_gathering_job),
                       TEST(test_a_job_that_ends_well),
                       TEST(test_a_job_that_fails_keeps_its_counts),
                       TEST(test_while_the_server_drains), TEST(test_counters_never_decrease),
                       TEST(test_a_stock_client_with_the_descriptor_set));
}
