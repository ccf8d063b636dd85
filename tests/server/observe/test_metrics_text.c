/*
 * The two forms of a server's statistics, the metrics page and the reply of the Stats call, made
 * from one struct in which every figure is different: both have the same values, and all of them.
 */
#include "server/observe/metrics_text.h"

#include "common/base/file.h"
#include "tests/server/observe/metrics_check.h"
#include "tests/support/support.h"

#include "stats.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOSTILE "a\\b\"c\nd{e=\"f\"} 1"
#define ESCAPED "a\\\\b\\\"c\\nd{e=\\\"f\\\"} 1"

static struct error err;
static struct server_stats stats;
static struct strbuf page = STRBUF_INIT;
static uint64_t next = 1000;

static uint64_t next_number(void)
{
    return next += 7;
}

static void fill_methods(void)
{
    static const char *const paths[] = {"/a.v1.Service/Call", "other"};

    stats.method_count = 2;
    for (size_t i = 0; i < stats.method_count; i++) {
        struct rpc_call_counts *m = &stats.methods[i];

        m->path = paths[i];
        for (size_t k = 0; k < STATUS_COUNT; k += 1 + i)
            m->started += m->ended[k] = next_number();
        m->started += next_number(); /* open calls */
    }
}

/* Set every field, each to another value. */
static void fill_stats(bool runs)
{
    memset(&stats, 0, sizeof(stats));
    stats.version = "1.2";
    stats.grpc_version = "3.4";
    stats.start_time_seconds = (double)next_number() + 0.5;
    stats.cpu_seconds = (double)next_number() + 0.25;
    stats.resident_bytes = next_number();
    stats.draining = true;
    stats.jobs_ok = next_number();
    stats.jobs_failed = next_number();
    stats.answers_in_flight = next_number();
#define X(field, help) stats.counters.field = next_number();
    STATS_COUNTERS(X)
#undef X
    stats.counters.sum_ns = (int64_t)next_number() * 500000000;
    stats.counters.wait_ns = (int64_t)next_number() * 500000000;
    stats.counters.detect_ns = (int64_t)next_number() * 500000000;
    stats.counters.recover_ns = (int64_t)next_number() * 500000000;
    stats.counters.journal_ns = (int64_t)next_number() * 500000000;
    stats.counters.snapshot_ns = (int64_t)next_number() * 500000000;
    for (size_t i = 0; i <= STATS_STALENESS_BOUNDS; i++)
        stats.counters.staleness.counts[i] = next_number();
    stats.counters.staleness.sum = next_number();
    fill_methods();
    stats.has_job = true;
    stats.job = (struct stats_job){.name = HOSTILE,
                                   .state = runs ? "running" : "gathering",
                                   .runs = runs,
                                   .mode = "ssp",
                                   .role = "primary",
                                   .peer = "10.0.0.1:5758",
                                   .staleness_bound = (uint32_t)next_number(),
                                   .backup_workers = (uint32_t)next_number(),
                                   .server_index = (uint32_t)next_number(),
                                   .server_count = (uint32_t)next_number(),
                                   .world_size = (uint32_t)next_number(),
                                   .joined = (uint32_t)next_number(),
                                   .left = (uint32_t)next_number()};
    if (!runs)
        return;
    stats.job.round = next_number();
    stats.job.partitions = next_number();
    stats.job.elements = next_number();
    stats.job.shard_bytes = next_number();
    stats.job.load_max_over_mean = (double)next_number() + 0.125;
    stats.job.waiting_pushes = next_number();
    stats.job.waiting_records = next_number();
    stats.job.replica_lag_records = next_number();
    stats.job.replica_lag_bytes = next_number();
    stats.worker_count = 3;
    for (uint32_t i = 0; i < 3; i++)
        stats.workers[i] = (struct stats_worker){.rank = i * 500,
                                                 .connected = i != 1,
                                                 .pushes = next_number(),
                                                 .late_pushes = next_number(),
                                                 .staleness_sum = next_number(),
                                                 .lag_rounds = (double)next_number() + 0.0625,
                                                 .silent_seconds = (double)next_number() + 0.5};
}

static Sparring__V1__StatsReply *pack_and_unpack(void)
{
    Sparring__V1__StatsReply *reply;
    uint8_t *bytes;
    size_t size;

    assert_ok(wire_pack_stats(&stats, &bytes, &size, &err));
    reply = sparring__v1__stats_reply__unpack(NULL, size, bytes);
    ck_assert_ptr_nonnull(reply);
    free(bytes);
    return reply;
}

/* ------------------------------------------------------------------ every field of the reply */

static bool shows_number(double wanted)
{
    for (const char *line = page.text; *line; line += strcspn(line, "\n") + 1) {
        const char *end = line + strcspn(line, "\n"), *value = end;

        while (value > line && value[-1] != ' ' && value[-1] != '"')
            value--; /* the value, or a numeric label */
        if (strtod(value, NULL) == wanted)
            return true;
    }
    return false;
}

static bool shows_label(double wanted)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "=\"%.0f\"", wanted);
    return strstr(page.text, text) != NULL;
}

static void check_message(const ProtobufCMessage *message, size_t *found);

static void check_value(const ProtobufCFieldDescriptor *f, const void *at, size_t *found)
{
    double value;

    switch (f->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        check_message(*(ProtobufCMessage *const *)at, found);
        return;
    case PROTOBUF_C_TYPE_UINT64:
        value = (double)*(const uint64_t *)at;
        break;
    case PROTOBUF_C_TYPE_UINT32:
        value = *(const uint32_t *)at;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        value = *(const double *)at;
        break;
    default:
        return; /* strings and booleans are checked by name */
    }
    ++*found;
    ck_assert_msg(shows_number(value) || shows_label(value), "the page lacks %s (%.17g):\n%s",
                  f->name, value, page.text);
}

/* Every number of the reply is on the page, except the staleness, whose buckets are cumulative. */
static void check_message(const ProtobufCMessage *message, size_t *found)
{
    const ProtobufCMessageDescriptor *d = message->descriptor;

    if (d == &sparring__v1__staleness__descriptor)
        return;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const char *at = (const char *)message + f->offset;

        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            const size_t count = *(const size_t *)((const char *)message + f->quantifier_offset);
            ProtobufCMessage *const *list = *(ProtobufCMessage *const *const *)at;

            ck_assert_int_eq(f->type, PROTOBUF_C_TYPE_MESSAGE);
            ck_assert_msg(count > 0, "%s is empty", f->name);
            for (size_t k = 0; k < count; k++)
                check_message(list[k], found);
        } else {
            check_value(f, at, found);
        }
    }
}

START_TEST(test_page_has_every_value_of_the_reply)
{
    Sparring__V1__StatsReply *reply;
    size_t found = 0;

    fill_stats(true);
    metrics_text(&stats, &page);
    ck_assert(strbuf_ok(&page));
    (void)metrics_check(page.text);
    reply = pack_and_unpack();
    check_message(&reply->base, &found);
    ck_assert_uint_gt(found, 60);
    ck_assert_str_eq(reply->version, "1.2");
    ck_assert_str_eq(reply->grpc_version, "3.4");
    ck_assert_str_eq(reply->job->job, HOSTILE);
    ck_assert_str_eq(reply->job->state, "running");
    ck_assert_str_eq(reply->job->mode, "ssp");
    ck_assert_str_eq(reply->job->role, "primary");
    ck_assert_str_eq(reply->job->peer, "10.0.0.1:5758");
    ck_assert(reply->draining);
    ck_assert(reply->job->workers[0]->connected && !reply->job->workers[1]->connected);
    for (size_t i = 0; i <= STATS_STALENESS_BOUNDS; i++)
        ck_assert_uint_eq(reply->staleness->pushes[i], stats.counters.staleness.counts[i]);
    ck_assert_uint_eq(reply->staleness->sum, stats.counters.staleness.sum);
    sparring__v1__stats_reply__free_unpacked(reply, NULL);
    strbuf_release(&page);
}
END_TEST

/* ------------------------------------------------------------------ names and labels */

static double value(const char *sample)
{
    return metrics_value(page.text, sample);
}

START_TEST(test_names_and_labels)
{
    const struct stats_counters *c = &stats.counters;
    char sample[256];

    fill_stats(true);
    metrics_text(&stats, &page);
    ck_assert(value("sparring_server_build_info{version=\"1.2\",grpc_version=\"3.4\"}") == 1);
    ck_assert(value("sparring_server_draining") == 1);
    ck_assert(value("process_cpu_seconds_total") == stats.cpu_seconds);
    ck_assert(value("sparring_server_rx_payload_bytes_total") == (double)c->rx_payload_bytes);
    ck_assert(value("sparring_server_sum_seconds_total") == (double)c->sum_ns * 1e-9);
    ck_assert(value("sparring_server_journal_seconds_total") == (double)c->journal_ns * 1e-9);
    ck_assert(value("sparring_server_snapshot_seconds_total") == (double)c->snapshot_ns * 1e-9);
    ck_assert(value("sparring_server_jobs_total{result=\"ok\"}") == (double)stats.jobs_ok);
    ck_assert(value("sparring_server_jobs_total{result=\"failed\"}") == (double)stats.jobs_failed);
    (void)snprintf(sample, sizeof(sample),
                   "sparring_server_job_info{job=\"" ESCAPED
                   "\",state=\"running\",mode=\"ssp\",role=\"primary\",peer=\"10.0.0.1:5758\","
                   "server=\"%" PRIu32 "\",servers=\"%" PRIu32 "\"}",
                   stats.job.server_index, stats.job.server_count);
    ck_assert(value(sample) == 1);
    ck_assert(value("sparring_server_worker_connected{rank=\"500\"}") == 0);
    ck_assert(value("sparring_server_worker_connected{rank=\"1000\"}") == 1);
    ck_assert(value("sparring_server_worker_lag_rounds{rank=\"1000\"}") ==
              stats.workers[2].lag_rounds);
    ck_assert(value("sparring_server_calls_started_total{method=\"a.v1.Service/Call\"}") ==
              (double)stats.methods[0].started);
    ck_assert(value("sparring_server_calls_ended_total{method=\"other\",status=\"OK\"}") ==
              (double)stats.methods[1].ended[0]);
    ck_assert(!metrics_has(
        page.text, "sparring_server_calls_ended_total{method=\"other\",status=\"INVALID\"}"));
    strbuf_release(&page);
}
END_TEST

/* METRICS.md and the page have the same names. */
START_TEST(test_every_name_is_documented)
{
    char *text, name[128];
    size_t size, names = 0;

    fill_stats(true);
    metrics_text(&stats, &page);
    assert_ok(file_read(support_source("experiments/METRICS.md"), 1 << 20, &text, &size, &err));
    for (const char *at = page.text; (at = strstr(at, "# TYPE ")) != NULL; at += 7) {
        (void)snprintf(name, sizeof(name), "`%.*s`", (int)strcspn(at + 7, " "), at + 7);
        ck_assert_msg(strstr(text, name) != NULL, "METRICS.md lacks %s", name);
        names++;
    }
    ck_assert_uint_gt(names, 30);
    for (const char *at = text; (at = strstr(at, "`sparring_server_")) != NULL; at++) {
        (void)snprintf(name, sizeof(name), "# TYPE %.*s ", (int)strcspn(at + 1, "`"), at + 1);
        ck_assert_msg(strstr(page.text, name) != NULL, "the page lacks '%s'", name);
        names--;
    }
    ck_assert_uint_eq(names, 2); /* process_* */
    free(text);
    strbuf_release(&page);
}
END_TEST

START_TEST(test_page_without_a_job)
{
    fill_stats(false);
    metrics_text(&stats, &page);
    (void)metrics_check(page.text);
    ck_assert(value("sparring_server_job_joined_ranks") == stats.job.joined);
    ck_assert_ptr_null(strstr(page.text, "job_round"));
    ck_assert_ptr_null(strstr(page.text, "worker_"));
    strbuf_reset(&page);
    stats.has_job = false;
    metrics_text(&stats, &page);
    (void)metrics_check(page.text);
    ck_assert_ptr_null(strstr(page.text, "server_job_"));
    ck_assert_ptr_null(strstr(page.text, "nan"));
    strbuf_release(&page);
}
END_TEST

START_TEST(test_staleness_buckets)
{
    static const struct {
        uint64_t staleness;
        const char *first; /* the first bucket that holds it */
    } cases[] = {{0, "0"},
                 {1, "1"},
                 {2, "2"},
                 {3, "4"},
                 {4, "4"},
                 {5, "8"},
                 {1024, "1024"},
                 {1025, "+Inf"},
                 {513, "1024"},
                 {512, "512"},
                 {UINT64_C(1) << 40, "+Inf"}};
    char sample[128];
    double sum = 0, below = 0;

    fill_stats(true);
    stats.counters.staleness = (struct stats_staleness){0};
    stats_count_staleness(&stats.counters.staleness, cases[_i].staleness, 3);
    metrics_text(&stats, &page);
    (void)metrics_check(page.text);
    for (size_t i = 0; i < STATS_STALENESS_BOUNDS; i++) {
        uint64_t bound = stats_staleness_bound(i);

        (void)snprintf(sample, sizeof(sample),
                       "sparring_server_push_staleness_steps_bucket{le=\"%" PRIu64 "\"}", bound);
        ck_assert(value(sample) == (cases[_i].staleness <= bound ? 3 : 0));
        below = value(sample);
        if (below > 0 && sum == 0)
            ck_assert(strtoull(cases[_i].first, NULL, 10) == bound);
        sum += below;
    }
    ck_assert(strcmp(cases[_i].first, "+Inf") != 0 || sum == 0);
    ck_assert(value("sparring_server_push_staleness_steps_bucket{le=\"+Inf\"}") == 3);
    ck_assert(value("sparring_server_push_staleness_steps_count") == 3);
    ck_assert(value("sparring_server_push_staleness_steps_sum") == 3 * (double)cases[_i].staleness);
    strbuf_release(&page);
}
END_TEST

/* The largest world size: the reply fits the limit of a message, and the page is valid. */
START_TEST(test_the_largest_job)
{
    Sparring__V1__StatsReply *reply;

    fill_stats(true);
    stats.worker_count = STATS_WORKERS_MAX;
    for (uint32_t i = 0; i < STATS_WORKERS_MAX; i++)
        stats.workers[i] = (struct stats_worker){
            .rank = i, .pushes = UINT64_MAX, .lag_rounds = 1e-7 / 3, .silent_seconds = 1e9 / 3};
    metrics_text(&stats, &page);
    ck_assert_uint_gt(metrics_check(page.text), 4 * STATS_WORKERS_MAX);
    ck_assert_uint_lt(page.length, 1 << 20);
    reply = pack_and_unpack();
    ck_assert_uint_eq(reply->job->n_workers, STATS_WORKERS_MAX);
    ck_assert_uint_eq(reply->job->workers[STATS_WORKERS_MAX - 1]->pushes, UINT64_MAX);
    sparring__v1__stats_reply__free_unpacked(reply, NULL);
    strbuf_release(&page);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("metrics_text", 60, TEST(test_page_has_every_value_of_the_reply),
                       TEST(test_names_and_labels), TEST(test_every_name_is_documented),
                       TEST(test_page_without_a_job), LOOP_TEST(test_staleness_buckets, 0, 11),
                       TEST(test_the_largest_job));
}
