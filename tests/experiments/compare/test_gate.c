/*
 * --fail-if: what it accepts, and what it says of matches whose ratios are known.
 */
#include "experiments/compare/gate.h"
#include "experiments/report/report.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <jansson.h>
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

static bool check(const char *text, const char *baseline)
{
    struct gate gate = parse(text);
    bool failed = false;

    strbuf_reset(&lines);
    assert_ok(gate_check(&gate, &report.comparison, baseline, &failed, &lines, &err));
    return failed;
}

static void read_match(unsigned repeats)
{
    const char *path = synthetic_match("m", repeats);

    assert_ok(report_read(&report, &path, 1, &err));
}

/* ring is 1.42 times as fast as ps-1. */
START_TEST(test_first_mode_against_second)
{
    read_match(5);
    ck_assert(!check("throughput:-5%", NULL));
    ck_assert_ptr_nonnull(strstr(lines.text, "ring is 1.421x that of ps-1 (95 % interval "));
    ck_assert_ptr_nonnull(strstr(lines.text, ": passed\n"));
    ck_assert(check("throughput:+5%", NULL));
    ck_assert_ptr_nonnull(strstr(lines.text, ": FAILED\n"));
    ck_assert(check("step_ms_p50:-20%", NULL));
    ck_assert(!check("step_ms_p50:-40%", NULL));
    ck_assert(!check("tx_payload_bytes:+1%", NULL));
    report_release(&report);
}
END_TEST

static const char *write_baseline(const char *folder, unsigned repeats, double comm_ms)
{
    struct report earlier = {0};
    char problem[512];
    const char *path = synthetic_match(folder, repeats);

    for (unsigned r = 0; r < repeats; r++) {
        char name[64];
        struct synthetic_run run = synthetic_ring(name);

        (void)snprintf(name, sizeof(name), "%s/runs/ring-%u", folder, r);
        run.seed = 1 + r;
        run.repeat = r;
        run.comm_ms = comm_ms * (1 + r / 100.0);
        (void)synthetic_write(&run);
    }
    assert_ok(report_read(&earlier, &path, 1, &err));
    assert_ok(report_write(&earlier, path, "c", problem, sizeof(problem), &err));
    report_release(&earlier);
    return path;
}

static const char *report_of(const char *folder)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s/report.json", folder);
    return support_path(name);
}

START_TEST(test_against_a_baseline)
{
    read_match(5);
    (void)write_baseline("same", 5, 0.21);
    (void)write_baseline("faster", 5, 0.05);
    ck_assert(!check("throughput:-5%", report_of("same")));
    ck_assert_ptr_nonnull(strstr(lines.text, "single is 1.000x that of the baseline"));
    ck_assert(check("throughput:-5%", report_of("faster")));
    ck_assert_ptr_nonnull(strstr(lines.text, "ring is 0.8"));
    report_release(&report);
}
END_TEST

/* Set report.json's `name`, in `object` or at its top (NULL), to a value that goes with it. */
static void edit_report(const char *folder, const char *object, const char *name, json_t *value)
{
    json_t *report_json = json_load_file(report_of(folder), 0, NULL);

    ck_assert_ptr_nonnull(report_json);
    ck_assert_int_eq(json_object_set_new(
                         object ? json_object_get(report_json, object) : report_json, name, value),
                     0);
    ck_assert_int_eq(json_dump_file(report_json, report_of(folder), 0), 0);
    json_decref(report_json);
}

/* Of a host with other cores, or another batch, a figure is no baseline. */
START_TEST(test_other_conditions)
{
    struct gate gate = parse("throughput:-5%");
    bool failed = false;

    read_match(5);
    (void)write_baseline("other", 5, 0.21);
    edit_report("other", "conditions", "cores", json_string("64"));
    edit_report("other", "conditions", "commit", json_string("older"));
    assert_fails(gate_check(&gate, &report.comparison, report_of("other"), &failed, &lines, &err),
                 STATUS_CONFIG, "other conditions: cores was '64' and is '8'");
    ck_assert_ptr_null(strstr(err.text, "commit"));
    report_release(&report);
}
END_TEST

START_TEST(test_few_runs)
{
    read_match(2);
    ck_assert(check("throughput:+5%", NULL));
    ck_assert_ptr_nonnull(strstr(lines.text, "2 and 2 runs, too few for an interval"));
    report_release(&report);
}
END_TEST

START_TEST(test_noise_passes)
{
    static const double waits[] = {0.2, 0.5, 0.9};
    struct gate gate;
    const char *path = synthetic_match("m", 3);
    bool failed = true;

    for (unsigned r = 0; r < 3; r++) {
        char name[64];
        struct synthetic_run run = synthetic_ring(name);

        (void)snprintf(name, sizeof(name), "m/runs/ring-%u", r);
        run.seed = 1 + r;
        run.repeat = r;
        run.comm_ms = waits[r] + 0.3;
        (void)synthetic_write(&run);
    }
    assert_ok(report_read(&report, &path, 1, &err));
    gate = parse("throughput:-5%");
    strbuf_reset(&lines);
    assert_ok(gate_check(&gate, &report.comparison, NULL, &failed, &lines, &err));
    ck_assert(!failed);
    ck_assert_ptr_nonnull(strstr(lines.text, "passed, the interval includes no change"));
    report_release(&report);
}
END_TEST

START_TEST(test_bad_baselines)
{
    struct gate gate = parse("throughput:-5%");
    bool failed = false;

    read_match(3);
    assert_fails(gate_check(&gate, &report.comparison, "/nowhere.json", &failed, &lines, &err),
                 STATUS_NOT_FOUND, "/nowhere.json");
    assert_fails(gate_check(&gate, &report.comparison, support_write("a.json", "{}", 2), &failed,
                            &lines, &err),
                 STATUS_DATA, "is not a report.json of schema 1");
    assert_fails(gate_check(&gate, &report.comparison, support_write("b.json", "{", 1), &failed,
                            &lines, &err),
                 STATUS_DATA, "b.json:1: not JSON");
    assert_fails(gate_check(&gate, &report.comparison,
                            support_write("c.json", "{\"schema\":1,\"runs\":[{}]}", 24), &failed,
                            &lines, &err),
                 STATUS_CONFIG, "other conditions: ranks was '' and is '2'");
    (void)write_baseline("none", 3, 0.21);
    edit_report("none", NULL, "runs", json_array());
    assert_fails(gate_check(&gate, &report.comparison, report_of("none"), &failed, &lines, &err),
                 STATUS_CONFIG, "shares no mode");
    gate = parse("server_tx_payload_bytes:+1%");
    assert_fails(gate_check(&gate, &report.comparison, NULL, &failed, &lines, &err), STATUS_CONFIG,
                 "no run recorded it");
    report_release(&report);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compare gate");
    TCase *cases = tcase_create("all");

    tcase_set_timeout(cases, 100);
    tcase_add_test(cases, test_parse);
    tcase_add_loop_test(cases, test_wrong, 0, (int)(sizeof(wrong) / sizeof(wrong[0])));
    tcase_add_test(cases, test_first_mode_against_second);
    tcase_add_test(cases, test_against_a_baseline);
    tcase_add_test(cases, test_other_conditions);
    tcase_add_test(cases, test_few_runs);
    tcase_add_test(cases, test_noise_passes);
    tcase_add_test(cases, test_bad_baselines);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
