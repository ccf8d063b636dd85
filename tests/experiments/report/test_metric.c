/*
 * The figures of a run with known records: by hand, and for random records against a second, plain
 * computation.
 */
#include "experiments/report/metric.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT  1e-9
#define DOUBLE 0x1p-49 /* relative: 8 roundings in each of two orders; integers sum exactly */

static struct error err;

START_TEST(test_steady)
{
    static const size_t golden[][3] = {{0, 0, 0},   {1, 0, 1},   {6, 0, 6},   {7, 5, 6},
                                       {50, 5, 49}, {59, 5, 58}, {60, 6, 59}, {1000, 100, 999}};

    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        const struct metric_steady steady = metric_steady(golden[i][0]);

        ck_assert_uint_eq(steady.first, golden[i][1]);
        ck_assert_uint_eq(steady.end, golden[i][2]);
    }
}
END_TEST

START_TEST(test_formulas)
{
    ck_assert_double_eq(metric_formula_bytes("allreduce", 2, 100), 100);
    ck_assert_double_eq(metric_formula_bytes("allreduce", 4, 100), 150);
    ck_assert_double_eq(metric_formula_bytes("allreduce", 1, 100), 0);
    ck_assert_double_eq(metric_formula_bytes("ps", 4, 100), 100);
    ck_assert_double_eq(metric_formula_bytes("local", 4, 100), 0);
    ck_assert(isnan(metric_formula_bytes("else", 4, 100)));
}
END_TEST

START_TEST(test_names)
{
    ck_assert_int_eq(metric_find("samples_per_second"), METRIC_samples_per_second);
    ck_assert_int_eq(metric_find("steps"), METRIC_steps);
    ck_assert_int_eq(metric_find("nonsense"), METRIC_COUNT);
}
END_TEST

static void open_with_servers(struct run *run)
{
    struct synthetic_run known = synthetic_ring("run");

    known.sync = "ps";
    known.servers = 2;
    assert_ok(run_open(synthetic_write(&known), run, &err));
}

START_TEST(test_known_run)
{
    struct run run;
    struct run_metrics m;

    open_with_servers(&run);
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    /* A step takes 0.7 + 0.21 + 0.02 + 0.06 + 0.01 = 1 ms, two ranks with 64 samples each. */
    ck_assert_double_eq_tol(m.samples_per_second, 128000, EXACT);
    ck_assert_double_eq_tol(m.step_ms_p50, 1, EXACT);
    ck_assert_double_eq_tol(m.step_ms_p99, 1, EXACT);
    ck_assert_double_eq_tol(m.step_ms_mean, 1, EXACT);
    ck_assert_double_eq_tol(m.compute_ms, 0.7, EXACT);
    ck_assert_double_eq_tol(m.exposed_comm_ms, 0.21, EXACT);
    ck_assert_double_eq_tol(m.input_ms, 0.02, EXACT);
    ck_assert_double_eq_tol(m.optimizer_ms, 0.06, EXACT);
    ck_assert_double_eq_tol(m.other_ms, 0.01, EXACT);
    ck_assert_double_eq(m.tx_payload_bytes, 407080);
    ck_assert_double_eq(m.expected_tx_payload_bytes, 407080);
    ck_assert_double_eq(m.tx_residual_bytes, 0);
    ck_assert_double_eq(m.tx_wire_bytes, 407180);
    ck_assert_double_eq(m.server_tx_payload_bytes, 407080);
    ck_assert_double_eq(m.peak_rss_bytes, 41943041);
    ck_assert_double_eq(m.total_rss_bytes, 41943040 + 41943041 + 2 * 1e6);
    ck_assert_double_eq(m.cpu_seconds, 2 * 0.5 + 2 * 0.25);
    ck_assert_double_eq_tol(m.cpu_us_per_sample, 1.5 / (2 * 60 * 64) * 1e6, EXACT);
    ck_assert_double_eq_tol(m.steady_seconds, 0.053, EXACT); /* of 60 not the first 6, the last */
    ck_assert_double_eq_tol(m.drift, 1, EXACT);
    ck_assert_double_eq_tol(m.server_cpu_ms, 1e3 * 0.25 / 60, EXACT);
    ck_assert(isnan(m.server_wait_ms) && isnan(m.server_sum_ms)); /* no record of a round */
    ck_assert_double_eq(m.hosts, 1);
    ck_assert_double_eq_tol(m.seconds_to_target, 0.030, EXACT); /* 0.9125 after 30 steps */
    assert_ok(metric_compute(&run, 0.95, &m, &err));
    ck_assert_double_eq_tol(m.seconds_to_target, 0.060, EXACT);
    assert_ok(metric_compute(&run, 0.97, &m, &err));
    ck_assert(isnan(m.seconds_to_target));
    assert_ok(metric_compute(&run, (double)NAN, &m, &err));
    ck_assert(isnan(m.seconds_to_target));
    (void)snprintf(run.ranks[1].host, sizeof(run.ranks[1].host), "node2");
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert_double_eq(m.hosts, 2);
    run.servers[1].host[0] = '\0';
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert(isnan(m.hosts));
    /* The last 3 of 60 steps: 2.3 (1 - s/120) for s = 57, 58, 59. */
    ck_assert_double_eq_tol(m.final_loss, 2.3 * (1 - 58.0 / 120), 1e-8);
    ck_assert_double_eq(m.steps, 60);
    run_release(&run);
}
END_TEST

/* A rank that had no more samples at the end says nothing of the loss. */
START_TEST(test_loss_without_samples)
{
    struct synthetic_run synthetic = synthetic_ring("shadowed");
    struct run run = {0};
    struct run_metrics m;

    synthetic.steps = 60;
    synthetic.shadowed = 20;
    assert_ok(run_open(synthetic_write(&synthetic), &run, &err));
    ck_assert_int_eq(run.state, RUN_OK);
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert_double_eq_tol(m.final_loss, synthetic.loss * (1 - 58.0 / 120), 1e-8);
    run_release(&run);
}
END_TEST

/* Server 0 has two rounds of four partitions, server 1 one round of two. */
START_TEST(test_server_rounds)
{
    static const struct round_record rounds[] = {{.sum_ns = 3000000, .wait_ns = 8000000},
                                                 {.sum_ns = 1000000, .wait_ns = 4000000},
                                                 {.sum_ns = 2000000, .wait_ns = 6000000}};
    struct run run;
    struct run_metrics m;

    open_with_servers(&run);
    for (size_t k = 0; k < 2; k++) {
        struct records *server = &run.servers[k];

        server->round_count = 2 - k;
        server->partitions = 4 - 2 * k;
        server->rounds = calloc(server->round_count, sizeof(*server->rounds));
        ck_assert_ptr_nonnull(server->rounds);
        memcpy(server->rounds, &rounds[2 * k], server->round_count * sizeof(*server->rounds));
    }
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert_double_eq_tol(m.server_sum_ms, (3 + 1 + 2) / 3.0, EXACT);
    ck_assert_double_eq_tol(m.server_wait_ms, (2 + 1 + 3) / 3.0, EXACT);
    run.servers[1].partitions = 0; /* not recorded */
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert(isnan(m.server_wait_ms));
    run_release(&run);
}
END_TEST

/* Two ranks with random records in memory. */
static void make_random(struct run *run, struct records ranks[2], size_t steps)
{
    ck_assert_uint_gt(steps, 0);
    *run = (struct run){.ranks = ranks, .rank_count = 2};
    for (unsigned r = 0; r < 2; r++) {
        ranks[r] = (struct records){.index = r, .length = steps};
        ranks[r].steps = calloc(steps + 1, sizeof(struct step_record));
        ck_assert_ptr_nonnull(ranks[r].steps);
        for (size_t s = 0; s < steps; s++)
            ranks[r].steps[s] =
                (struct step_record){.step = s,
                                     .loss = support_random(),
                                     .samples = 1 + (uint64_t)(support_random() * 64),
                                     .step_ns = 1000 + (int64_t)(support_random() * 1e6),
                                     .compute_ns = (int64_t)(support_random() * 1000),
                                     .tx_payload_bytes = (uint64_t)(support_random() * 1e6)};
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

START_TEST(test_throughput_against_a_plain_way)
{
    for (int round = 0; round < 50; round++) {
        size_t steps = 7 + (size_t)(support_random() * 200);
        size_t skip = steps / 10 > 5 ? steps / 10 : 5;
        size_t left = steps - 1 - skip;
        struct records ranks[2];
        struct run run;
        struct run_metrics m;
        double wanted = 0;
        double median = 0;
        double bytes = 0;

        make_random(&run, ranks, steps);
        assert_ok(metric_compute(&run, 0.9, &m, &err));
        for (size_t r = 0; r < 2; r++) {
            double rates[256];
            double samples = 0;
            double ns = 0;

            for (size_t s = skip; s < steps - 1; s++) {
                const struct step_record *step = &ranks[r].steps[s];

                rates[s - skip] = (double)step->samples / (double)step->step_ns;
                samples += (double)step->samples;
                ns += (double)step->step_ns;
                bytes += (double)step->tx_payload_bytes;
            }
            qsort(rates, left, sizeof(double), compare);
            wanted += 1e9 * samples / ns;
            median += 1e9 * (rates[(left - 1) / 2] + rates[left / 2]) / 2;
        }
        ck_assert_double_eq_tol(m.samples_per_second, wanted, DOUBLE * wanted);
        ck_assert_double_eq_tol(m.samples_per_second_median, median, DOUBLE * median);
        ck_assert_double_eq_tol(m.tx_payload_bytes, bytes / 2 / (double)left, DOUBLE * (bytes + 1));
        free(ranks[0].steps);
        free(ranks[1].steps);
    }
}
END_TEST

/* Three ranks without lockstep.  The first has steps of 1 s from 100 s on; the second is slow while
 * the first runs, then fast; the third has one step all that time. */
START_TEST(test_common_time)
{
    static const double step_s[3][3] = {{1, 1, 1}, {4, 4, 0.5}, {100, 0.5, 0.5}};
    struct records ranks[3];
    struct run run = {.ranks = ranks, .rank_count = 3, .configuration = {.sync = "ps"}};
    struct run_metrics m;

    (void)snprintf(run.configuration.consistency, sizeof(run.configuration.consistency), "asp");
    for (unsigned r = 0; r < 3; r++) {
        double at_s = 100;

        ranks[r] = (struct records){.index = r, .length = 20};
        ranks[r].steps = calloc(20, sizeof(struct step_record));
        ck_assert_ptr_nonnull(ranks[r].steps);
        for (size_t s = 0; s < 20; s++) {
            const double seconds = step_s[r][s < 1 ? 0 : s < 7 ? 1 : 2];

            ranks[r].steps[s] = (struct step_record){.step = s,
                                                     .samples = 8,
                                                     .begin_wall = at_s,
                                                     .step_ns = (int64_t)(seconds * 1e9),
                                                     .compute_ns = (int64_t)(seconds * 5e8)};
            at_s += seconds;
        }
        ranks[r].end.processor_wait = 0.1 * (r + 1);
    }
    /* From 105 s to 119 s: 14 steps of the first, and those of the second that begin at 104, 108,
     * 112 and 116 s. */
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert_double_eq_tol(m.samples_per_second, 8 * (1 + 1 / 4.0 + 1 / 100.0), EXACT);
    ck_assert_double_eq_tol(m.step_ms_mean, 1e3 * (14 + 4 * 4 + 100) / 19, EXACT);
    ck_assert_double_eq_tol(m.compute_ms, m.step_ms_mean / 2, EXACT);
    ck_assert_double_eq_tol(m.processor_wait, 0.2, EXACT);
    /* In lockstep, and without times, all but the first five and the last. */
    ranks[1].steps[0].begin_wall = 0;
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert_double_eq_tol(m.step_ms_mean, 1e3 * (14 + 2 * 4 + 12 * 0.5 + 14 * 0.5) / 42, EXACT);
    ranks[1].steps[0].begin_wall = 100;
    run.configuration.consistency[0] = '\0';
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert_double_eq_tol(m.step_ms_mean, 1e3 * (14 + 2 * 4 + 12 * 0.5 + 14 * 0.5) / 42, EXACT);
    for (unsigned r = 0; r < 3; r++)
        free(ranks[r].steps);
}
END_TEST

/* Over both servers, and not the mean of the servers' means. */
START_TEST(test_drift)
{
    struct synthetic_run known = synthetic_ring("drift");
    const char *path;
    struct run run;
    struct run_metrics m;

    known.servers = 2;
    path = synthetic_write(&known);
    synthetic_append(path, "server0.jsonl",
                     "{\"kind\":\"rank\",\"rank\":0,\"staleness_pushes\":[1,2]}\n"
                     "{\"kind\":\"end\",\"status\":\"ok\",\"used_pushes\":90,\"staleness_sum\":45,"
                     "\"late_pushes\":10,\"staleness_bounds\":[0],\"staleness_pushes\":[60,30]}\n");
    synthetic_append(path, "server1.jsonl",
                     "{\"kind\":\"end\",\"status\":\"ok\",\"used_pushes\":60,\"staleness_sum\":15,"
                     "\"late_pushes\":0}\n");
    assert_ok(run_open(path, &run, &err));
    for (size_t i = 0; i < run.ranks[1].length; i++)
        run.ranks[1].steps[i].step_ns *= 3;
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert_double_eq(m.staleness_mean, 0.4);
    ck_assert_double_eq(m.late_share, 0.0625);
    ck_assert_double_eq_tol(m.rank_spread, 3, 1e-9);
    ck_assert(isnan(m.skipped_steps)); /* not in the synthetic records */
    ck_assert_uint_eq(run.servers[0].end.buckets, 2);
    ck_assert(run.servers[0].end.pushes[1] == 30);
    ck_assert_uint_eq(run.servers[1].end.buckets, 0);
    run_release(&run);
}
END_TEST

START_TEST(test_unknown_figures_are_nan)
{
    struct synthetic_run known = synthetic_ring("run");
    const char *path = synthetic_write(&known);
    struct run run;
    struct run_metrics m;

    synthetic_append(path, "rank0.jsonl", "{\"kind\":\"end\",\"status\":\"ok\"}\n");
    assert_ok(run_open(path, &run, &err));
    run.ranks[0].end.peak_rss_bytes = (double)NAN;
    run.ranks[0].steps[59].loss = (double)NAN;
    assert_ok(metric_compute(&run, 0.9, &m, &err));
    ck_assert(isnan(m.server_tx_payload_bytes));
    ck_assert(isnan(m.peak_rss_bytes));
    ck_assert(isnan(m.final_loss));
    run_release(&run);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report metric", 60, TEST(test_loss_without_samples), TEST(test_steady),
                       TEST(test_formulas), TEST(test_names), TEST(test_known_run),
                       TEST(test_server_rounds), TEST(test_throughput_against_a_plain_way),
                       TEST(test_common_time), TEST(test_drift),
                       TEST(test_unknown_figures_are_nan));
}
