/*
 * Pairs of modes and their verdicts: blocks, registered pairs, transports, the time to an accuracy.
 */
#include "experiments/report/report.h"
#include "tests/experiments/report/read_comparison.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static struct error err;

/* BASE/runs/MODE-REPEAT of a two-mode match: ring, or a parameter server of one server. */
static void write_run(const char *base, bool is_ring, unsigned repeat, double comm_ms)
{
    char folder[64] = "";
    struct synthetic_run run = synthetic_ring(folder);

    (void)snprintf(folder, sizeof(folder), "%s/runs/%s-%u", base, is_ring ? "ring" : "ps", repeat);
    run.repeat = repeat;
    run.seed = 1 + repeat;
    run.comm_ms = comm_ms;
    if (!is_ring) {
        run.mode = "ps";
        run.label = "server";
        run.mode_index = 1;
        run.sync = "ps";
        run.servers = 1;
    }
    (void)synthetic_write(&run);
}

/* Six blocks of an all-reduce and of write_run's server. */
static struct comparison *read_against_server(const char *label, const char *backend,
                                              const char *transport)
{
    for (unsigned r = 0; r < 6; r++) {
        char folder[64];
        struct synthetic_run run = synthetic_ring(folder);

        (void)snprintf(folder, sizeof(folder), "m/runs/allreduce-%u", r);
        run.mode = "allreduce";
        run.label = label;
        run.backend = backend;
        run.transport = transport;
        run.repeat = r;
        run.seed = 1 + r;
        (void)synthetic_write(&run);
        write_run("m", false, r, 0.9);
    }
    return read_comparison(support_path("m"));
}

/* Shared memory against sockets: the verdict does not name loopback, and a note explains it. */
START_TEST(test_transports_that_differ)
{
    struct comparison *c = read_against_server("all-reduce", "shm", NULL);

    ck_assert_msg(strncmp(c->verdict, "On this host: all-reduce has ", 29) == 0, "%s", c->verdict);
    assert_contains(c->verdict, " (all-reduce: shared memory; server: "
                                "gRPC over TCP).");
    assert_mentions(&c->notes, "all-reduce goes through shared memory, server through gRPC over "
                               "TCP");
    report_release(&report);
}
END_TEST

/* The ring over gRPC against servers: the same transport, and named so. */
START_TEST(test_ring_over_grpc)
{
    struct comparison *c = read_against_server("ring", "ring", "grpc");

    for (size_t m = 0; m < c->mode_count; m++)
        ck_assert_str_eq(comparison_carrier(&c->modes[m]), "gRPC over TCP");
    ck_assert_msg(strncmp(c->verdict, "On this host, over loopback: ", 29) == 0, "%s", c->verdict);
    assert_contains(c->verdict, " (both over gRPC over TCP).");
    report_release(&report);
}
END_TEST

START_TEST(test_slower_first_mode_is_inverted)
{
    struct comparison *c;

    for (unsigned r = 0; r < 6; r++) {
        write_run("m", true, r, 0.9 + r / 50.0);
        write_run("m", false, r, 0.21);
    }
    c = read_comparison(support_path("m"));
    ck_assert_double_lt(c->ratios[c->main_ratio].value, 1);
    assert_contains(c->verdict, ": server has 1.74x (95 % interval 1.70 to 1.78) the "
                                "throughput of ring all-reduce; 6 blocks, p = 0.031 (");
    report_release(&report);
}
END_TEST

START_TEST(test_no_verdict_from_five_blocks)
{
    struct comparison *c = read_comparison(synthetic_experiment("m", 5));

    ck_assert_int_eq(c->ratios[c->main_ratio].state, RATIO_TOO_FEW);
    ck_assert_str_eq(c->verdict,
                     "No verdict on ring all-reduce and parameter server (1 server): it "
                     "takes 6 blocks in which both ran well, and there are 5.");
    report_release(&report);
    c = read_comparison(synthetic_experiment("one", 1));
    ck_assert(isnan(c->ratios[c->main_ratio].interval.low));
    report_release(&report);
}
END_TEST

/* Effects common to a block cancel; differences between its modes count. */
START_TEST(test_undecided_and_equivalent)
{
    static const double ring[] = {0.2, 0.5, 0.4, 0.2, 0.3, 0.4};
    static const double apart[] = {0.25, 0.45, 0.3, 0.3, 0.2, 0.45};
    struct comparison *c;

    for (unsigned r = 0; r < 6; r++) {
        write_run("m", true, r, ring[r]);
        write_run("m", false, r, apart[r]);
        write_run("near", true, r, ring[r]);
        write_run("near", false, r, ring[r] + (r % 2 ? 0.002 : -0.002));
    }
    c = read_comparison(support_path("m"));
    ck_assert_int_eq(c->ratios[c->main_ratio].state, RATIO_UNDECIDED);
    assert_contains(c->verdict, ": undecided: ");
    assert_contains(c->verdict, " would probably decide (");
    report_release(&report);
    c = read_comparison(support_path("near"));
    ck_assert_int_eq(c->ratios[c->main_ratio].state, RATIO_EQUIVALENT);
    assert_contains(c->verdict, " are equivalent within 2 %: ");
    report_release(&report);
}
END_TEST

static void write_design(const char *folder, const struct design_pair *pairs, size_t count)
{
    struct design design = design_default();

    design.pair_count = count;
    memcpy(design.pairs, pairs, count * sizeof(*pairs));
    assert_ok(design_write(folder, &design, &err));
}

/* Only registered pairs have a verdict, and more pairs need more blocks. */
START_TEST(test_registered_pairs)
{
    static const struct design_pair pairs[] = {{{"control", "ps-1"}}, {{"ring", "ps-1"}}};
    const char *path = synthetic_experiment("m", 7);
    struct comparison *c;

    write_design(path, pairs, 2);
    c = read_comparison(path);
    ck_assert_str_eq(c->modes[c->ratios[c->main_ratio].a].name,
                     "control"); /* the first of the design, in its order */
    ck_assert_str_eq(c->modes[c->ratios[c->main_ratio].b].name, "ps-1");
    ck_assert_uint_eq(c->more_verdicts.length, 1);
    assert_mentions(&c->more_verdicts, "ring all-reduce has 1.42x");
    for (size_t i = 0; i < c->ratio_count; i++) {
        const struct ratio *r = &c->ratios[i];

        ck_assert_int_eq(r->is_registered, strcmp(c->modes[r->a].name, "ps-1") == 0 ||
                                               strcmp(c->modes[r->b].name, "ps-1") == 0);
        ck_assert_int_eq(r->state, r->is_registered ? RATIO_FASTER : RATIO_NOT_ASKED);
        ck_assert(isfinite(r->interval.low)); /* shown, verdict or not */
        if (r->is_registered)
            ck_assert_double_eq_tol(r->p, 2 * 2.0 / 128, 1e-9); /* Holm */
        else
            ck_assert(isnan(r->p));
    }
    report_release(&report);
    write_design(path, pairs, 0);
    c = read_comparison(path);
    assert_contains(c->verdict, "No verdict was asked for");
    report_release(&report);
}
END_TEST

/* A pair of the design that did not run well is said to be missing, and no other takes its place.
 */
START_TEST(test_missing_pairs)
{
    static const struct design_pair pairs[] = {
        {{"ring", "ps-9"}}, {{"ring", "ps-1"}}, {{"ring", "single"}}, {{"ps-8", "ps-9"}}};
    const char *path = synthetic_experiment("m", 10);
    struct comparison *c;

    write_design(path, pairs, 4);
    c = read_comparison(path);
    ck_assert_str_eq(c->verdict, "No verdict on ring and ps-9: ps-9 has no good run.");
    ck_assert_uint_eq(c->main_ratio, SIZE_MAX);
    ck_assert_uint_eq(c->more_verdicts.length, 3);
    assert_mentions(&c->more_verdicts, "ring all-reduce has 1.42x");
    assert_mentions(&c->more_verdicts, "ring and single: they do not run with equally many ranks.");
    assert_mentions(&c->more_verdicts,
                    "ps-8 and ps-9: ps-8 has no good run, and ps-9 has no good run.");
    report_release(&report);
}
END_TEST

/* Where pushes may be stale, the mode that reaches the accuracy first is the faster one. */
START_TEST(test_time_to_target)
{
    struct design design = design_default();
    struct comparison *c;

    for (unsigned r = 0; r < 7; r++) {
        struct synthetic_run run = synthetic_ring("ring");
        char folder[64];

        for (int is_asp = 0; is_asp < 2; is_asp++) {
            (void)snprintf(folder, sizeof(folder), "t/runs/%s-%u", is_asp ? "asp" : "ring", r);
            run.folder = folder;
            run.seed = run.repeat = r;
            if (is_asp) {
                run.mode = run.label = "asp";
                run.mode_index = run.servers = 1;
                run.sync = "ps";
                run.consistency = "asp";
                run.comm_ms = 0.11 + r / 1000.0; /* a step takes 0.9 ms, not 1 */
                run.accuracy = 0.94;             /* 0.89 after half of the steps */
            }
            (void)synthetic_write(&run);
        }
    }
    c = read_comparison(support_path("t"));
    ck_assert_int_eq(c->ratios[c->main_ratio].state, RATIO_NO_TARGET);
    ck_assert_double_eq_tol(c->ratios[c->main_ratio].value, 0.903, 0.001);
    assert_contains(c->verdict, "the experiment names no target_accuracy");
    report_release(&report);
    design.target_accuracy = 0.9;
    design.pairs[design.pair_count++] = (struct design_pair){{"ring", "asp"}};
    assert_ok(design_write(support_path("t"), &design, &err));
    c = read_comparison(support_path("t"));
    c->price = 3600;
    ck_assert_int_eq(c->ratios[c->main_ratio].state, RATIO_FASTER);
    ck_assert_double_eq_tol(c->ratios[c->main_ratio].value, 2 * 0.903, 0.002);
    assert_contains(c->verdict,
                    "ring all-reduce reaches an accuracy of 90 % 1.81x (95 % interval ");
    assert_contains(c->verdict, ") as fast as asp; 7 blocks, p = 0.016");
    ck_assert_double_eq_tol(comparison_cost_to_target(c, &c->modes[0]), 0.030, 1e-9);
    ck_assert_double_eq_tol(comparison_cost_of_samples(c, &c->modes[0]), 1e6 / 128000, 1e-9);
    ck_assert_double_eq_tol(comparison_cost_to_target(c, &c->modes[1]), 60 * 0.903e-3, 1e-9);
    report_release(&report);
    design.target_accuracy = 0.95; /* asp never does */
    assert_ok(design_write(support_path("t"), &design, &err));
    c = read_comparison(support_path("t"));
    ck_assert_int_eq(c->ratios[c->main_ratio].state, RATIO_TOO_FEW);
    assert_contains(c->verdict, "in which both ran well and reached the target accuracy, and there "
                                "are 0.");
    c->price = 3600;
    ck_assert(isnan(comparison_cost_to_target(c, &c->modes[1])));
    report_release(&report);
}
END_TEST

START_TEST(test_design_that_is_broken)
{
    static const char *const designs[] = {
        "[]", "{}",
        "{\"title\":\"\",\"level\":0.05,\"margin\":0.02,\"steady_seconds\":3,\"blocks\":10}",
        "{\"title\":\"\",\"level\":0.05,\"margin\":0.02,\"steady_seconds\":3,\"blocks\":10,"
        "\"pairs\":[[\"a\"]]}",
        "{\"title\":\"\",\"level\":0,\"margin\":0.02,\"steady_seconds\":3,\"blocks\":10,"
        "\"pairs\":[]}"};
    const char *path = synthetic_experiment("m", 1);

    synthetic_replace(path, DESIGN_FILE, designs[_i]);
    assert_fails(report_read(&report, &path, 1, &err), STATUS_DATA, DESIGN_FILE ":1: ");
    report_release(&report);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report verdict", 60, TEST(test_transports_that_differ),
                       TEST(test_ring_over_grpc), TEST(test_slower_first_mode_is_inverted),
                       TEST(test_no_verdict_from_five_blocks), TEST(test_undecided_and_equivalent),
                       TEST(test_registered_pairs), TEST(test_missing_pairs),
                       TEST(test_time_to_target), LOOP_TEST(test_design_that_is_broken, 0, 5));
}
