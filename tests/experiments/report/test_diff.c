/*
 * Comparison of two reports whose folders differ in one setting at a time.
 */
#include "experiments/report/diff.h"
#include "experiments/report/report.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS 6

static struct error err;
static struct strbuf lines = STRBUF_INIT;

/* An experiment whose ring waits comm_ms per step. */
static const char *write_experiment(const char *folder, double comm_ms)
{
    (void)synthetic_experiment(folder, REPEATS);
    for (unsigned r = 0; r < REPEATS; r++) {
        char name[64];
        struct synthetic_run run = synthetic_ring(name);

        (void)snprintf(name, sizeof(name), "%s/runs/ring-%u", folder, r);
        run.seed = 1 + r;
        run.repeat = r;
        run.comm_ms = comm_ms * (1 + r / 100.0);
        (void)synthetic_write(&run);
    }
    return support_path(folder);
}

/* One more setting of all runs of a mode, as an option of its manifest. */
static void set_option(const char *folder, const char *mode, const char *name, const char *value)
{
    for (unsigned r = 0; r < REPEATS; r++) {
        char path[128], text[512];

        (void)snprintf(path, sizeof(path), "%s/runs/%s-%u", folder, mode, r);
        (void)snprintf(text, sizeof(text),
                       "{\"program\":\"sparring-worker 0.1.0\",\"git\":\"abc1234\",\"options\":"
                       "{\"threads\":{\"value\":1},\"optimizer\":{\"value\":\"sgd\"},"
                       "\"%s\":{\"value\":\"%s\"}},\"host\":{\"name\":\"node1\","
                       "\"cpu\":\"A processor\",\"cores\":8,\"kernel\":\"Linux 6.1\"},"
                       "\"world_size\":2,\"parameters\":101770,\"parameter_bytes\":407080}",
                       name, value);
        synthetic_replace(support_path(path), "manifest.json", text);
    }
}

static enum status diff(const char *before, const char *now, const char *ignore, const char *gate,
                        bool *ret_failed)
{
    struct diff_request request = {.names = {before, now}, .ignore = ignore};
    json_t *reports[2] = {NULL, NULL};
    struct gate parsed;
    enum status status;

    if (gate) {
        assert_ok(gate_parse(gate, &parsed, &err));
        request.gate = &parsed;
    }
    assert_ok(diff_load(before, &reports[0], &err));
    assert_ok(diff_load(now, &reports[1], &err));
    request.before = reports[0];
    request.now = reports[1];
    strbuf_reset(&lines);
    status = diff_write(&request, ret_failed, &lines, &err);
    json_decref(reports[0]);
    json_decref(reports[1]);
    return status;
}

static void assert_line(const char *text)
{
    ck_assert_msg(strstr(lines.text, text) != NULL, "'%s' lacks '%s'", lines.text, text);
}

/* The line of a mode. */
static const char *line_of(const char *mode)
{
    static char line[256];
    char start[64];
    const char *at;

    (void)snprintf(start, sizeof(start), "\n%s ", mode);
    at = strstr(lines.text, start);
    ck_assert_msg(at != NULL, "'%s' has no line of %s", lines.text, mode);
    (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    return line;
}

START_TEST(test_same_and_slower)
{
    const char *before = write_experiment("before", 0.21);
    const char *same = write_experiment("same", 0.21);
    const char *slower = write_experiment("slower", 0.4);
    bool failed;

    assert_ok(diff(before, same, "", NULL, &failed));
    ck_assert(!failed);
    ck_assert_ptr_nonnull(strstr(line_of("ring"), "1.00 ("));
    ck_assert_ptr_nonnull(strstr(line_of("ring"), "equivalent"));
    assert_ok(diff(before, slower, "", NULL, &failed));
    ck_assert(!failed);
    ck_assert_ptr_nonnull(strstr(line_of("ring"), "0.84 ("));
    ck_assert_ptr_nonnull(strstr(line_of("ring"), "worse"));
    ck_assert_ptr_nonnull(
        strstr(line_of("ps-1"), "undecided")); /* of six runs that differ by 5 % */
    for (const char *line = lines.text; *line; line += strcspn(line, "\n") + 1)
        ck_assert_uint_le(strcspn(line, "\n"), 80 + strlen(before)); /* a terminal's; but paths */
    assert_ok(diff(slower, before, "", NULL, &failed));
    ck_assert_ptr_nonnull(strstr(line_of("ring"), "better"));
    assert_ok(diff(before, slower, "", "step_ms_p50:+5%", &failed));
    ck_assert(failed);
    ck_assert_ptr_nonnull(strstr(line_of("ring"), "worse"));
    assert_line("step_ms_p50:+5%: ring has 1.19");
    assert_line("FAILED");
    assert_ok(diff(before, slower, "", "throughput:-20%", &failed));
    ck_assert(!failed);
    assert_line("throughput:-20%: passed");
}
END_TEST

static const char *with_schema(const char *path, json_int_t schema)
{
    json_t *report = json_load_file(path, 0, NULL);
    const char *written;
    char *text;

    ck_assert_ptr_nonnull(report);
    ck_assert_int_eq(json_object_set_new(report, "schema", json_integer(schema)), 0);
    text = json_dumps(report, 0);
    ck_assert_ptr_nonnull(text);
    written = support_write("schema.json", text, strlen(text));
    free(text);
    json_decref(report);
    return written;
}

/* A written report gives the same result as its runs, one of schema 2 with a remark. */
START_TEST(test_report_json)
{
    const char *before = write_experiment("before", 0.21), *now = write_experiment("now", 0.4);
    struct report report = {0};
    char problem[512];
    const char *only = support_path("only");
    struct strbuf runs = STRBUF_INIT;
    bool failed;

    assert_ok(diff(before, now, "", NULL, &failed));
    strbuf_add(&runs, line_of("ring"));
    assert_ok(report_read(&report, &before, 1, &err));
    assert_ok(report_write(&report, only, "c", problem, sizeof(problem), &err));
    report_release(&report);
    assert_ok(diff(only, now, "", NULL, &failed)); /* a folder without runs */
    ck_assert_str_eq(line_of("ring"), runs.text);
    assert_ok(diff(support_path("only/report.json"), now, "", NULL, &failed));
    ck_assert_str_eq(line_of("ring"), runs.text);
    ck_assert_ptr_null(strstr(lines.text, "different schemas"));
    assert_ok(diff(with_schema(support_path("only/report.json"), 2), now, "", NULL, &failed));
    ck_assert_str_eq(line_of("ring"), runs.text);
    assert_line("different schemas");
    strbuf_release(&runs);
}
END_TEST

/* Each difference is listed once, and is an error unless it is ignored. */
START_TEST(test_other_conditions)
{
    const char *before = write_experiment("before", 0.21), *now = write_experiment("now", 0.21);
    bool failed;

    set_option("now", "ring", "precision", "fp16");
    set_option("now", "ps-1", "bucket-cap-mb", "7");
    assert_fails(diff(before, now, "", NULL, &failed), STATUS_CONFIG,
                 "measured under other conditions, 2 of them");
    assert_line("NOT COMPARABLE: precision (ring) was '(not recorded)' and is 'fp16'");
    assert_line("NOT COMPARABLE: bucket_cap_mb (ps-1) was '(not recorded)' and is '7'");
    assert_fails(diff(now, before, "precision", NULL, &failed), STATUS_CONFIG,
                 "other conditions, 1 of them");
    assert_line("differs: precision (ring) was 'fp16' and is '(not recorded)'");
    assert_ok(diff(before, now, "precision,bucket_cap_mb", NULL, &failed));
}
END_TEST

/* A gate does not pass over a mode whose runs all fail now. */
START_TEST(test_mode_that_fails_now)
{
    const char *before = write_experiment("before", 0.21), *now = write_experiment("now", 0.21);
    bool failed;

    for (unsigned r = 0; r < 6; r++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "now/runs/ps-1-%u", r);
        synthetic_remove(support_path(name), "summary.json");
    }
    assert_ok(diff(before, now, "", NULL, &failed));
    assert_line("no run of ps-1 in both that recorded samples_per_second");
    assert_fails(diff(before, now, "", "throughput:-5%", &failed), STATUS_CONFIG,
                 "6 and 0 good runs of ps-1 that recorded it");
    assert_fails(diff(now, before, "", "throughput:-5%", &failed), STATUS_CONFIG,
                 "0 and 6 good runs of ps-1 that recorded it");
}
END_TEST

START_TEST(test_what_cannot_be_compared)
{
    const char *now = write_experiment("now", 0.21);
    const char *few = synthetic_experiment("few", 2), *other = support_path("other");
    json_t *report = NULL;
    bool failed;

    assert_fails(diff(few, now, "", "throughput:-5%", &failed), STATUS_CONFIG,
                 "2 and 6 good runs of");
    assert_ok(diff(few, now, "", NULL, &failed));
    assert_line("too few runs");
    for (unsigned r = 0; r < 3; r++) {
        char name[64];
        struct synthetic_run run = synthetic_ring(name);

        (void)snprintf(name, sizeof(name), "other/runs/else-%u", r);
        run.mode = run.label = "else";
        run.seed = 1 + r;
        run.repeat = r;
        (void)synthetic_write(&run);
    }
    assert_fails(diff(other, now, "", NULL, &failed), STATUS_CONFIG,
                 "share no mode with good runs");
    assert_line(": else\n");
    assert_fails(diff_load("/nowhere.json", &report, &err), STATUS_NOT_FOUND, "/nowhere.json");
    assert_fails(diff_load(support_write("b.json", "{", 1), &report, &err), STATUS_DATA,
                 "b.json:1: not JSON");
    assert_fails(diff(support_write("a.json", "{}", 2), now, "", NULL, &failed), STATUS_DATA,
                 "is not a report.json of schema 3");
    assert_fails(
        diff(now, support_write("c.json", "{\"schema\":1,\"runs\":[]}", 22), "", NULL, &failed),
        STATUS_DATA, "make it again from its runs");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report diff", 100, TEST(test_same_and_slower), TEST(test_report_json),
                       TEST(test_other_conditions), TEST(test_mode_that_fails_now),
                       TEST(test_what_cannot_be_compared));
}
