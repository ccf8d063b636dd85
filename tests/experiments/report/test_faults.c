/*
 * Runs with injected faults: what is read from faults.json, the figure and its table, conditions,
 * and files that break the format.
 */
#include "experiments/report/figure.h"
#include "tests/experiments/report/read_comparison.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define START 1700000000.0 /* seconds since 1970 */

static struct error err;

#define STEP(step, begin, seconds)                                                                 \
    "{\"kind\":\"step\",\"step\":" #step ",\"epoch\":0,\"loss\":1,\"samples\":50,"                 \
    "\"begin_wall\":170000000" #begin ",\"step_ns\":" #seconds "000000000,\"input_ns\":0,"         \
    "\"compute_ns\":0,\"exposed_comm_ns\":0,\"optimizer_ns\":0,\"tx_payload_bytes\":0,"            \
    "\"rx_payload_bytes\":0}\n"
#define END "{\"kind\":\"end\",\"status\":\"ok\",\"steps\":2}\n"

/* Two ranks, of 50 samples a step: one step from second 1 to 2, one from 2 to 4. */
static const char *write_run(const char *faults)
{
    struct synthetic_run run = synthetic_ring("m/runs/ring-1");
    const char *path = synthetic_write(&run);

    synthetic_replace(path, "rank0.jsonl", STEP(0, 1.0, 1) STEP(1, 2.0, 2) END);
    synthetic_replace(path, "rank1.jsonl", STEP(0, 1.0, 1) STEP(1, 2.0, 2) END);
    synthetic_replace(path, "faults.json", faults);
    return path;
}

static const struct figure *find_figure(const struct figure_set *set, const char *name)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->figures[i].name, name) == 0)
            return &set->figures[i];
    return NULL;
}

#define PAUSE                                                                                      \
    "{\"schema\":1,\"seed\":1,\"start_wall\":1700000000,\"faults\":["                              \
    "{\"action\":\"pause\",\"target\":\"rank1\",\"planned_s\":2.5,\"length_s\":1,"                 \
    "\"begin_wall\":1700000002.5,\"end_wall\":1700000003.5},"                                      \
    "{\"action\":\"slow\",\"target\":\"host0\",\"planned_s\":3.5,\"rate_bits_s\":1e8,"             \
    "\"begin_wall\":1700000003.5},"                                                                \
    "{\"action\":\"kill\",\"target\":\"rank0\",\"planned_s\":9}]}\n"

START_TEST(test_read)
{
    struct run_faults f;
    char text[512];

    assert_ok(run_faults_read(write_run(PAUSE), &f, &err));
    ck_assert_uint_eq(f.length, 3);
    ck_assert_double_eq(f.start_wall, START);
    ck_assert_double_eq(f.faults[0].end_wall, START + 3.5);
    ck_assert(isnan(f.faults[0].rate_bits_s));
    ck_assert(isnan(f.faults[1].end_wall) && isnan(f.faults[1].length_s));
    ck_assert(isnan(f.faults[2].begin_wall));
    run_faults_text(&f, text, sizeof(text));
    ck_assert_str_eq(text, "pause rank1 at 2.5 s for 1 s; slow host0 to 100 Mbit/s at 3.5 s; "
                           "kill rank0 at 9 s");
    run_faults_text(&f, text, 20); /* cut, not overrun */
    ck_assert_str_eq(text, "pause rank1 at 2.5 ");
    run_faults_release(&f);
    assert_ok(run_faults_read(support_folder(), &f, &err));
    ck_assert_uint_eq(f.length, 0);
    run_faults_text(&f, text, sizeof(text));
    ck_assert_str_eq(text, "none");
}
END_TEST

/* 100 samples in the first second of training, 50 in each of the other two. */
START_TEST(test_figure)
{
    static const char *const cells[] = {"ring all-reduce", "83", "50", "50", "-"};
    struct figure_set set = {.count = 0};
    const struct comparison *c;
    const struct figure *f;

    (void)write_run(PAUSE);
    c = read_comparison(support_path("m"));
    assert_ok(figure_set_make(c, &set, &err));
    f = find_figure(&set, "faults");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(f->headings.length, 5);
    ck_assert_str_eq(f->headings.texts[2], "1: pause rank1");
    ck_assert_uint_eq(f->legend_count, 4);
    ck_assert_str_eq(f->legend[2].label, "2: slow host0");
    ck_assert_uint_eq(f->cells.length, 5);
    for (size_t i = 0; i < 5; i++)
        ck_assert_str_eq(f->cells.texts[i], cells[i]);
    assert_contains(f->script.text, "\n1.525 100\n"); /* 80 bins of 4 s */
    assert_contains(f->script.text, "\n3.025 50\n");
    ck_assert_ptr_null(strstr(f->script.text, "\n0.525 "));
    assert_contains(f->script.text, "rect from 2.5, graph 0 to 3.5, graph 1");
    assert_contains(f->script.text, "rect from 3.5, graph 0 to 4, graph 1");
    ck_assert_ptr_null(strstr(f->script.text, "rect from 9"));
    if (set.problem[0] == '\0')
        assert_contains(f->svg.text, "time since the ranks were started");
    figure_set_release(&set);
    report_release(&report);
}
END_TEST

/* What two faults share is not taken off twice. */
START_TEST(test_overlapping_faults)
{
    static const char *const faults =
        "{\"schema\":1,\"seed\":1,\"start_wall\":1700000000,\"faults\":["
        "{\"action\":\"pause\",\"target\":\"rank1\",\"planned_s\":2.5,\"length_s\":1,"
        "\"begin_wall\":1700000002.5,\"end_wall\":1700000003.5},"
        "{\"action\":\"pause\",\"target\":\"rank0\",\"planned_s\":2,\"length_s\":1,"
        "\"begin_wall\":1700000002,\"end_wall\":1700000003}]}\n";
    struct figure_set set = {.count = 0};
    const struct figure *f;

    (void)write_run(faults);
    assert_ok(figure_set_make(read_comparison(support_path("m")), &set, &err));
    f = find_figure(&set, "faults");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(f->cells.length, 4);
    ck_assert_str_eq(f->cells.texts[1], "83"); /* 125 samples in 1.5 s */
    figure_set_release(&set);
    report_release(&report);
}
END_TEST

START_TEST(test_conditions)
{
    const struct comparison *c;
    bool found = false;

    (void)write_run(PAUSE);
    c = read_comparison(support_path("m"));
    for (size_t i = 0; i < c->condition_count; i++)
        if (strcmp(c->conditions[i].name, "faults") == 0) {
            assert_contains(c->conditions[i].value, "pause rank1 at 2.5 s for 1 s");
            found = true;
        }
    ck_assert(found);
    report_release(&report);
}
END_TEST

/* A mode that was spared what another had to bear is not compared with it. */
START_TEST(test_different_faults)
{
    const char *path = synthetic_experiment("m", 7);
    const struct comparison *c;

    for (unsigned r = 0; r < 7; r++) {
        char folder[32];

        (void)snprintf(folder, sizeof(folder), "m/runs/ring-%u", r);
        synthetic_replace(support_path(folder), "faults.json", PAUSE);
    }
    c = read_comparison(path);
    assert_mentions(&c->reasons, "faults");
    report_release(&report);
}
END_TEST

static const struct {
    const char *text, *message;
} bad_files[] = {
    {"{", "faults.json"},
    {"{\"faults\":[]}", "start_wall"},
    {"{\"start_wall\":1}", "has no list 'faults'"},
    {"{\"start_wall\":1,\"faults\":[1]}", "action"},
    {"{\"start_wall\":1,\"faults\":[{\"action\":\"cut\",\"target\":\"host1\"}]}", "planned_s"},
};

START_TEST(test_bad_files)
{
    struct run_faults f;

    assert_fails(run_faults_read(write_run(bad_files[_i].text), &f, &err), STATUS_DATA,
                 bad_files[_i].message);
    ck_assert_ptr_null(f.faults);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("faults", 60, TEST(test_read), TEST(test_figure),
                       TEST(test_overlapping_faults), TEST(test_conditions),
                       TEST(test_different_faults),
                       LOOP_TEST(test_bad_files, 0, sizeof(bad_files) / sizeof(bad_files[0])));
}
