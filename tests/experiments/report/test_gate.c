/*
 * --fail-if: its syntax, and its result for experiments with known ratios.
 */
#include "experiments/report/gate.h"
#include "experiments/report/report.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

static struct error err;
static struct report report;
static struct strbuf lines = STRBUF_INIT;

static struct gate parse(const char *text)
{
    struct gate gate;

    assert_ok(gate_parse(text, &gate, &err));
    return gate;
}

START_TEST(test_parse)
{
    struct gate gate = parse("throughput:-5%");

    ck_assert_int_eq(gate.metric, METRIC_samples_per_second);
    ck_assert_double_eq(gate.change, -0.05);
    gate = parse("step_ms_p50:+12.5%");
    ck_assert_int_eq(gate.metric, METRIC_step_ms_p50);
    ck_assert_double_eq(gate.change, 0.125);
}
END_TEST

static const char *const wrong[][2] = {
    {"", "is not METRIC:CHANGE"},
    {"throughput", "is not METRIC:CHANGE"},
    {"throughput:-5", "is not METRIC:CHANGE"},
    {"throughput:%", "is not a change"},
    {"throughput:x%", "is not a change"},
    {"throughput:0%", "is not a change"},
    {"throughput:nan%", "is not a change"},
    {"speed:-5%", "unknown metric 'speed'"},
    {":-5%", "unknown metric ''"},
};

START_TEST(test_wrong)
{
    struct gate gate;

    assert_fails(gate_parse(wrong[_i][0], &gate, &err), STATUS_INVALID, wrong[_i][1]);
}
END_TEST

static bool check_gate(const char *text)
{
    struct gate gate = parse(text);
    bool failed = false;

    strbuf_reset(&lines);
    assert_ok(gate_check(&gate, &report.comparison, &failed, &lines, &err));
    return failed;
}

static void read_synthetic(unsigned repeats)
{
    const char *path = synthetic_experiment("m", repeats);

    assert_ok(report_read(&report, &path, 1, &err));
}

/* ring is 1.42 times as fast as ps-1. */
START_TEST(test_first_mode_against_second)
{
    read_synthetic(6);
    ck_assert(!check_gate("throughput:-5%"));
    ck_assert_ptr_nonnull(strstr(lines.text, "ring has 1.4"));
    ck_assert_ptr_nonnull(strstr(lines.text, "; 6 blocks, p = 0.031): passed\n"));
    ck_assert(check_gate("throughput:+5%"));
    ck_assert_ptr_nonnull(strstr(lines.text, ": FAILED\n"));
    ck_assert(check_gate("step_ms_p50:-20%"));
    ck_assert(!check_gate("step_ms_p50:-40%"));
    ck_assert(!check_gate("tx_payload_bytes:+1%"));
    report_release(&report);
}
END_TEST

/* The pair of the design says which mode is the first; and it has to have run. */
START_TEST(test_order_of_the_design)
{
    struct design design = design_default();
    struct gate gate = parse("throughput:-5%");
    const char *path = synthetic_experiment("m", 6);
    bool failed = false;

    design.pair_count = 1;
    design.pairs[0] = (struct design_pair){{"ps-1", "ring"}};
    assert_ok(design_write(path, &design, &err));
    assert_ok(report_read(&report, &path, 1, &err));
    ck_assert(check_gate("throughput:-5%"));
    ck_assert_ptr_nonnull(strstr(lines.text, "ps-1 has 0.7"));
    report_release(&report);
    design.pair_count = 2;
    design.pairs[1] = design.pairs[0];
    design.pairs[0] = (struct design_pair){{"ps-9", "ring"}};
    assert_ok(design_write(path, &design, &err));
    assert_ok(report_read(&report, &path, 1, &err));
    assert_fails(gate_check(&gate, &report.comparison, &failed, &lines, &err), STATUS_CONFIG,
                 "there are no two modes to compare");
    report_release(&report);
}
END_TEST

START_TEST(test_noise_passes)
{
    static const double waits[] = {0.2, 0.5, 0.9, 0.3, 0.8, 0.4};
    const char *path = synthetic_experiment("m", 6);

    for (unsigned r = 0; r < 6; r++) {
        char name[64];
        struct synthetic_run run = synthetic_ring(name);

        (void)snprintf(name, sizeof(name), "m/runs/ring-%u", r);
        run.seed = 1 + r;
        run.repeat = r;
        run.comm_ms = waits[r] + 0.3;
        (void)synthetic_write(&run);
    }
    assert_ok(report_read(&report, &path, 1, &err));
    ck_assert(!check_gate("throughput:-5%"));
    ck_assert_ptr_nonnull(strstr(lines.text, "passed, it may be chance"));
    report_release(&report);
}
END_TEST

/* Too few blocks for significance are an error, not a pass. */
START_TEST(test_too_few_blocks)
{
    struct gate gate = parse("throughput:+5%");
    bool failed = false;

    read_synthetic(5);
    assert_fails(gate_check(&gate, &report.comparison, &failed, &lines, &err), STATUS_CONFIG,
                 "5 blocks with good runs of ring and ps-1 that recorded it");
    report_release(&report);
    read_synthetic(6);
    gate = parse("server_tx_payload_bytes:+1%");
    assert_fails(gate_check(&gate, &report.comparison, &failed, &lines, &err), STATUS_CONFIG,
                 "0 blocks with good runs of ring and ps-1 that recorded it");
    report_release(&report);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report gate", 100, TEST(test_parse),
                       LOOP_TEST(test_wrong, 0, sizeof(wrong) / sizeof(wrong[0])),
                       TEST(test_first_mode_against_second), TEST(test_order_of_the_design),
                       TEST(test_noise_passes), TEST(test_too_few_blocks));
}
