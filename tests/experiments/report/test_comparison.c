/*
 * Modes, fairness and warnings, from run directories that differ in one thing at a time.
 */
#include "experiments/report/report.h"
#include "tests/experiments/report/read_comparison.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *condition_of(const struct comparison *c, const char *name)
{
    for (size_t i = 0; i < c->condition_count; i++)
        if (strcmp(c->conditions[i].name, name) == 0)
            return c->conditions[i].value;
    return "(no such row)";
}

START_TEST(test_fair_comparison)
{
    struct comparison *c = read_comparison(synthetic_experiment("m", 7));
    const struct ratio *ratio;
    double sum = 0;

    ck_assert_uint_eq(c->mode_count, 4);
    ck_assert_str_eq(c->modes[0].name, "ring"); /* in the order of the experiment */
    ck_assert_int_eq(c->modes[0].role, MODE_CONTENDER);
    ck_assert_int_eq(c->modes[2].role, MODE_CONTROL);
    ck_assert_int_eq(c->modes[3].role, MODE_SINGLE);
    ck_assert_uint_eq(c->modes[0].spreads[METRIC_samples_per_second].n, 7);
    ck_assert_msg(c->reasons.length == 0, "%s", c->reasons.length ? c->reasons.texts[0] : "");
    ck_assert_uint_eq(c->warnings.length, 0);
    ck_assert_uint_eq(c->ratio_count, 3);
    ck_assert_uint_ne(c->main_ratio, SIZE_MAX);
    ratio = &c->ratios[c->main_ratio];
    ck_assert_int_eq(ratio->state, RATIO_FASTER);
    for (int r = 0; r < 7; r++)
        sum += log((1.33 * (1 + r / 100.0) + 0.09) / (0.91 * (1 + r / 100.0) + 0.09));
    ck_assert_double_eq_tol(ratio->value, exp(sum / 7), 1e-6);
    ck_assert_double_eq_tol(ratio->p, 2.0 / 128, 1e-9);
    assert_contains(c->verdict, "On this host, over loopback: ring all-reduce has "
                                "1.42x (95 % interval ");
    assert_contains(c->verdict, "the throughput of parameter server (1 server); 7 "
                                "blocks, p = 0.016 (ring all-reduce: TCP; parameter server (1 "
                                "server): gRPC over TCP).");
    assert_contains(c->why, "407,080 bytes in both");
    ck_assert_double_eq_tol(comparison_relative(c, &c->modes[0]), /* repeat 3 is the median */
                            (0.7 * 1.03 + 0.09) / (0.91 * 1.03 + 0.09), 1e-6);
    ck_assert_double_eq_tol(comparison_efficiency(c, &c->modes[0]),
                            (0.6 * 1.03 + 0.09) / (0.91 * 1.03 + 0.09), 1e-6);
    ck_assert(isnan(comparison_relative(c, &c->modes[3])));
    ck_assert_str_eq(condition_of(c, "load"), "0.25 to 6.25 when a run began");
    report_release(&report);
}
END_TEST

/* A manifest with "environment" omits limits that are not set; one without it is from a version
 * that did not record limits. */
START_TEST(test_facts_that_a_manifest_lacks)
{
    static const char *const rows[] = {"optimizer", "processor quota",    "memory limit", "binding",
                                       "governor",  "congestion control", "environment",  "load"};
    struct synthetic_run run = synthetic_ring("lacks/ring");
    const char *path = synthetic_write(&run);
    const struct comparison *c;

    synthetic_replace(path, "manifest.json",
                      "{\"program\":\"sparring-worker 0.1.0\",\"git\":\"661083b\",\"options\":{},"
                      "\"host\":{\"name\":\"vm\",\"cpu\":\"A processor\",\"cores\":2,"
                      "\"memory_bytes\":25276502016,\"kernel\":\"Linux 6.1\"},"
                      "\"world_size\":2,\"parameters\":101770,\"parameter_bytes\":407080}");
    c = read_comparison(path);
    ck_assert_str_eq(condition_of(c, "processor"), "A processor");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_msg(strcmp(condition_of(c, rows[i]), "(not recorded)") == 0, "%s: %s", rows[i],
                      condition_of(c, rows[i]));
    report_release(&report);

    synthetic_replace(path, "manifest.json",
                      "{\"options\":{},\"host\":{\"cores\":2,\"load\":0.5,"
                      "\"processors\":\"0-1\",\"congestion_control\":\"cubic\","
                      "\"environment\":\"\"}}");
    c = read_comparison(path);
    ck_assert_str_eq(condition_of(c, "processor quota"), "none");
    ck_assert_str_eq(condition_of(c, "memory limit"), "none");
    ck_assert_str_eq(condition_of(c, "binding"), "none");
    ck_assert_str_eq(condition_of(c, "environment"), "none");
    ck_assert_str_eq(condition_of(c, "congestion control"), "cubic");
    ck_assert_str_eq(condition_of(c, "governor"), "(not recorded)");
    ck_assert_str_eq(condition_of(c, "load"), "0.50 to 0.50 when a run began");
    report_release(&report);
}
END_TEST

/* With one setting of one mode changed there must be no verdict, for that reason. */
static void assert_unfair(const char *reason, const struct synthetic_run *changed)
{
    static unsigned serial;
    char base[32];
    struct comparison *c;

    (void)snprintf(base, sizeof(base), "unfair-%u", serial++);
    (void)synthetic_experiment(base, 3);
    for (unsigned r = 0; r < 3; r++) {
        struct synthetic_run run = *changed;
        char folder[64];

        (void)snprintf(folder, sizeof(folder), "%s/runs/ring-%u", base, r);
        run.folder = folder;
        run.repeat = r;
        run.seed += r;
        (void)synthetic_write(&run);
    }
    c = read_comparison(support_path(base));
    assert_mentions(&c->reasons, reason);
    ck_assert_int_eq(c->ratios[c->main_ratio].state, RATIO_NOT_COMPARABLE);
    assert_contains(c->verdict, "No verdict");
    assert_contains(c->verdict, "not comparable");
    report_release(&report);
}

START_TEST(test_unfair_comparisons)
{
    struct synthetic_run run = synthetic_ring(NULL);

    run.batch = 32;
    assert_unfair("batch_size differs: 32 (ring), 64 (ps-1, control, single)", &run);
    run = synthetic_ring(NULL);
    run.seed = 11;
    assert_unfair("seed differs: 11, 12, 13 (ring), 1, 2, 3 (ps-1, control, single)", &run);
    run = synthetic_ring(NULL);
    run.host = "node2";
    assert_unfair("host differs: node2 (ring)", &run);
    run = synthetic_ring(NULL);
    run.commit = "fffffff";
    assert_unfair("commit differs: fffffff (ring)", &run);
    run = synthetic_ring(NULL);
    run.model = "lenet";
    assert_unfair("model differs: lenet (ring)", &run);
    run = synthetic_ring(NULL);
    run.steps = 70;
    assert_unfair("steps differs: 70 (ring), 60 (ps-1, control)", &run);
    run = synthetic_ring(NULL);
    run.checkpoint_every = "10";
    assert_unfair("checkpoints differs: 10 (ring), none (ps-1, control, single)", &run);
}
END_TEST

START_TEST(test_option_that_only_the_manifest_knows)
{
    struct comparison *c;
    const char *path = synthetic_experiment("m", 3);

    for (unsigned r = 0; r < 3; r++) {
        char run[64];

        (void)snprintf(run, sizeof(run), "m/runs/ps-1-%u", r);
        synthetic_replace(support_path(run), "manifest.json",
                          "{\"program\":\"sparring-worker 0.1.0\",\"git\":\"abc1234\",\"options\":"
                          "{\"threads\":{\"value\":4},\"optimizer\":{\"value\":\"sgd\"}},"
                          "\"host\":{\"name\":\"node1\",\"cpu\":\"A processor\",\"cores\":8,"
                          "\"kernel\":\"Linux 6.1\"},\"world_size\":2}");
    }
    c = read_comparison(path);
    ck_assert_uint_eq(c->reasons.length, 1);
    assert_mentions(&c->reasons, "threads differs: 1 (ring, control, single), 4 (ps-1)");
    report_release(&report);
}
END_TEST

/* Two devices of one process are two ranks of the others: each has its part of the batch. */
START_TEST(test_devices_count_as_ranks)
{
    struct comparison *c;
    const char *path = synthetic_experiment("m", 3);

    for (unsigned r = 0; r < 3; r++) {
        char folder[64];
        struct synthetic_run run = synthetic_ring(NULL);

        (void)snprintf(folder, sizeof(folder), "m/runs/devices-%u", r);
        run.folder = folder;
        run.mode = run.label = "devices";
        run.mode_index = 9;
        run.repeat = r;
        run.seed += r;
        run.sync = "dataparallel";
        run.ranks = 1;
        run.batch = 128;
        (void)synthetic_write(&run);
        synthetic_replace(support_path(folder), "manifest.json",
                          "{\"program\":\"sparring-worker 0.1.0\",\"git\":\"abc1234\",\"options\":"
                          "{\"threads\":{\"value\":1},\"devices\":{\"value\":2},"
                          "\"optimizer\":{\"value\":\"sgd\"}},"
                          "\"host\":{\"name\":\"node1\",\"cpu\":\"A processor\",\"cores\":8,"
                          "\"kernel\":\"Linux 6.1\"},\"world_size\":1}");
    }
    c = read_comparison(path);
    ck_assert_msg(c->reasons.length == 0, "%s", c->reasons.length > 0 ? c->reasons.texts[0] : "");
    report_release(&report);
}
END_TEST

START_TEST(test_mode_whose_own_runs_differ)
{
    struct synthetic_run run = synthetic_ring("m/runs/ring-1");
    struct comparison *c;
    const char *path = synthetic_experiment("m", 3);

    run.seed = 2;
    run.repeat = 1;
    run.batch = 16;
    (void)synthetic_write(&run);
    c = read_comparison(path);
    assert_mentions(&c->reasons, "the runs of ring differ in batch_size: 16, 64");
    report_release(&report);
}
END_TEST

START_TEST(test_failed_run_is_counted_and_keeps_its_seed)
{
    struct comparison *c;
    const char *path = synthetic_experiment("m", 8);

    synthetic_remove(support_path("m/runs/ring-2"), "summary.json");
    c = read_comparison(path);
    ck_assert_uint_eq(c->modes[0].failed, 1);
    ck_assert_uint_eq(c->modes[0].spreads[METRIC_samples_per_second].n, 7);
    ck_assert_uint_eq(c->reasons.length, 0);
    assert_mentions(&c->warnings, "1 of 8 runs of ring failed");
    assert_contains(c->verdict, "; 7 blocks (and 1 with a run that failed), p = ");
    report_release(&report);
}
END_TEST

START_TEST(test_all_runs_of_a_mode_failed)
{
    struct comparison *c;
    const char *path = synthetic_experiment("m", 3);

    for (unsigned r = 0; r < 3; r++) {
        char run[64];

        (void)snprintf(run, sizeof(run), "m/runs/ps-1-%u", r);
        synthetic_remove(support_path(run), "summary.json");
    }
    c = read_comparison(path);
    ck_assert_ptr_null(c->modes[1].first);
    ck_assert_uint_eq(c->modes[1].failed, 3);
    ck_assert_str_eq(c->modes[c->ratios[c->main_ratio].b].name, "control");
    report_release(&report);
}
END_TEST

START_TEST(test_nothing_succeeded)
{
    struct synthetic_run run = synthetic_ring("m/runs/ring-0");
    struct comparison *c;

    synthetic_remove(synthetic_write(&run), "rank0.jsonl");
    c = read_comparison(support_path("m"));
    ck_assert_uint_eq(c->main_ratio, SIZE_MAX);
    assert_contains(c->verdict, "No verdict: there are no two modes");
    report_release(&report);
}
END_TEST

static void write_placed(const char *folder, const char *placement)
{
    struct synthetic_run run = synthetic_ring(folder);

    run.mode = NULL;
    run.sync = "ps";
    run.servers = 2;
    run.ranks = 2;
    run.placement = placement;
    (void)synthetic_write(&run);
}

static void write_bare(const char *folder, const char *sync, unsigned servers, unsigned ranks)
{
    struct synthetic_run run = synthetic_ring(folder);

    run.mode = NULL;
    run.sync = sync;
    run.servers = servers;
    run.ranks = ranks;
    (void)synthetic_write(&run);
}

START_TEST(test_modes_without_compare)
{
    struct comparison *c;

    write_bare("d/a", "local", 0, 2);
    write_bare("d/b", "ps", 2, 2);
    write_bare("d/c", "allreduce", 0, 2);
    write_bare("d/e", "local", 0, 1);
    write_bare("d/f", "allreduce", 0, 3);
    write_placed("d/g", "colocated");
    write_placed("d/h", "dedicated"); /* as those that do not say it */
    c = read_comparison(support_path("d"));
    ck_assert_uint_eq(c->mode_count, 6);
    ck_assert_str_eq(c->modes[0].name, "ring-n2");
    ck_assert_str_eq(c->modes[0].label, "ring all-reduce");
    ck_assert_str_eq(c->modes[1].name, "ring-n3");
    ck_assert_str_eq(c->modes[2].name, "ps-2-n2");
    ck_assert_str_eq(c->modes[2].label, "parameter server (2 servers)");
    ck_assert_str_eq(c->modes[3].name, "ps-2-colocated-n2");
    ck_assert_str_eq(c->modes[3].label, "parameter server (2 servers, colocated)");
    ck_assert_str_eq(c->modes[4].name, "local-n2");
    ck_assert_str_eq(c->modes[5].name, "single");
    report_release(&report);
}
END_TEST

START_TEST(test_warnings)
{
    struct synthetic_run run = synthetic_ring("m/runs/ring-4");
    struct comparison *c;
    const char *path = synthetic_experiment("m", 5);

    run.seed = 5;
    run.repeat = 4;
    run.comm_ms = 5;
    run.loss = (double)NAN;
    (void)synthetic_write(&run);
    synthetic_replace(support_path("m/runs/ring-3"), "summary.json",
                      "{\"status\":\"ok\",\"samples_per_second\":5,\"steps\":60,\"configuration\":"
                      "{\"model\":\"mlp:784-128-10\",\"data\":\"digits\",\"sync\":\"allreduce\","
                      "\"backend\":\"ring\",\"servers\":0,\"batch_size\":64,\"lr\":0.05,\"seed\":4,"
                      "\"reduce\":\"fast\",\"ps_update\":\"server\",\"device\":\"cpu\"}}");
    c = read_comparison(path);
    assert_mentions(&c->warnings, "(modified z-score), kept in every figure: ring-4 (");
    assert_mentions(&c->warnings, "run ring-4 diverged");
    assert_mentions(&c->warnings, "run ring-3: summary.json says 5 samples/s");
    ck_assert_uint_eq(c->modes[0].spreads[METRIC_samples_per_second].n, 5);
    report_release(&report);
}
END_TEST

START_TEST(test_idle_servers)
{
    struct synthetic_run run = synthetic_ring("s/runs/ps-0");
    struct comparison *c;

    run.sync = "ps";
    run.servers = 3;
    synthetic_remove(synthetic_write(&run), "server2.jsonl");
    c = read_comparison(support_path("s"));
    assert_mentions(&c->warnings, "only 2 of the 3 servers of ring hold a part of the model");
    report_release(&report);
}
END_TEST

/* On one host something waits in 40 % of the time, on the other in 50 %. */
START_TEST(test_emulated_hosts_wait_for_cores)
{
    static const char *const end = "{\"kind\":\"end\",\"status\":\"ok\",\"processor_wait\":";
    struct synthetic_run run = synthetic_ring("w/runs/ring-0");
    struct comparison *c;
    char line[128];

    for (int is_emulated = 0; is_emulated < 2; is_emulated++) {
        const char *path;

        run.network = is_emulated ? "2 hosts" : NULL;
        path = synthetic_write(&run);
        (void)snprintf(line, sizeof(line), "%s0.4}\n", end);
        synthetic_append(path, "rank0.jsonl", line);
        (void)snprintf(line, sizeof(line), "%s0.5}\n", end);
        synthetic_append(path, "rank1.jsonl", line);
        c = read_comparison(support_path("w"));
        ck_assert_double_eq_tol(c->metrics[0].processor_wait, 0.45, 1e-9);
        if (is_emulated)
            assert_mentions(&c->warnings, "in 45 % of the time of ring a process or the relay");
        else
            ck_assert_uint_eq(c->warnings.length, 0);
        report_release(&report);
    }
}
END_TEST

/* Every third step takes 5 ms: this lowers the throughput, but not that of the median step. */
START_TEST(test_uneven_steps)
{
    struct synthetic_run run = synthetic_ring("u/runs/ring-0");
    struct comparison *c;
    char line[512];

    run.ranks = 1;
    run.steps = 1;
    (void)synthetic_write(&run);
    synthetic_replace(support_path("u/runs/ring-0"), "rank0.jsonl", "");
    for (int s = 0; s < 61; s++) {
        (void)snprintf(line, sizeof(line),
                       "{\"kind\":\"step\",\"step\":%d,\"epoch\":0,\"loss\":1,\"samples\":64,"
                       "\"step_ns\":%d,\"input_ns\":0,\"compute_ns\":0,\"exposed_comm_ns\":0,"
                       "\"optimizer_ns\":0,\"tx_payload_bytes\":0,\"rx_payload_bytes\":0}\n",
                       s, s % 3 == 0 ? 5000000 : 1000000);
        synthetic_append(support_path("u/runs/ring-0"), "rank0.jsonl", line);
    }
    synthetic_append(support_path("u/runs/ring-0"), "rank0.jsonl",
                     "{\"kind\":\"end\",\"status\":\"ok\"}\n");
    c = read_comparison(support_path("u"));
    ck_assert_double_eq_tol(c->metrics[0].samples_per_second, 64000 * 3 / 7.0, 1e-6);
    ck_assert_double_eq_tol(c->metrics[0].samples_per_second_median, 64000, 1e-6);
    assert_mentions(
        &c->warnings,
        "the steps of ring are uneven: its throughput is 43 % of that of its median step");
    report_release(&report);
}
END_TEST

START_TEST(test_bytes_off_the_formula)
{
    struct comparison *c;
    const char *path = synthetic_experiment("m", 3);

    for (unsigned r = 0; r < 3; r++) {
        char run[64];

        (void)snprintf(run, sizeof(run), "m/runs/ring-%u", r);
        synthetic_append(support_path(run), "rank0.jsonl",
                         "{\"kind\":\"end\",\"status\":\"ok\",\"expected_tx_payload_bytes\":407000,"
                         "\"expected_rx_payload_bytes\":407080}\n");
    }
    c = read_comparison(path);
    ck_assert_uint_eq(c->modes[0].failed, 3);
    for (size_t i = 0; i < c->list->length; i++)
        if (c->mode_of[i] == 0)
            assert_contains(c->list->runs[i].reason,
                            "rank 0 sent +80.0 bytes per step against its formula's 407000.0");
    report_release(&report);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "report comparison", 60, TEST(test_fair_comparison), TEST(test_facts_that_a_manifest_lacks),
        TEST(test_unfair_comparisons), TEST(test_option_that_only_the_manifest_knows),
        TEST(test_devices_count_as_ranks), TEST(test_mode_whose_own_runs_differ),
        TEST(test_failed_run_is_counted_and_keeps_its_seed), TEST(test_all_runs_of_a_mode_failed),
        TEST(test_nothing_succeeded), TEST(test_modes_without_compare), TEST(test_warnings),
        TEST(test_idle_servers), TEST(test_emulated_hosts_wait_for_cores), TEST(test_uneven_steps),
        TEST(test_bytes_off_the_formula));
}
