/*
 * The four files: well-formed, complete, reproducible, and safe against hostile texts.
 */
#include "common/base/file.h"
#include "experiments/report/figure.h"
#include "experiments/report/gnuplot.h"
#include "experiments/report/report.h"
#include "experiments/subprocess/subprocess.h"
#include "tests/experiments/report/html_check.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOSTILE                                                                                    \
    "<script>alert('x')</script> \"&amp;\" '; system 'touch pwned' # `touch pwned` @0@ {/Bold} "   \
    "\\n | \x01 \xff"

static struct error err;

static bool has_gnuplot(void)
{
    const char *path = getenv("PATH");
    char folders[4096];
    char *rest = NULL;

    (void)snprintf(folders, sizeof(folders), "%s", path ? path : "");
    for (char *folder = strtok_r(folders, ":", &rest); folder;
         folder = strtok_r(NULL, ":", &rest)) {
        char file[8192];

        (void)snprintf(file, sizeof(file), "%s/gnuplot", folder);
        if (access(file, X_OK) == 0)
            return true;
    }
    return false;
}

/* Make the report of `path` in OUT and return the text of one of its files (the caller frees). */
static char *make_report(const char *path, const char *out, const char *name, char problem[512])
{
    struct report report = {0};
    const char *folder = support_path(out);
    char file[4096];
    char *text = NULL;
    size_t size = 0;

    assert_ok(report_read(&report, &path, 1, &err));
    assert_ok(report_write(&report, folder, "sparring report x", problem, 512, &err));
    report_release(&report);
    assert_ok(file_join(file, sizeof(file), folder, name, &err));
    assert_ok(file_read(file, 64 << 20, &text, &size, &err));
    return text;
}

static void assert_has(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "the file lacks '%s'", part);
}

static unsigned count_of(const char *text, const char *part)
{
    unsigned count = 0;

    for (const char *p = strstr(text, part); p; p = strstr(p + 1, part))
        count++;
    return count;
}

/* A second check by xmllint (libxml2) where it is installed. */
static void assert_xml(const char *path)
{
    const char *argv[] = {"xmllint", "--noout", path, NULL};
    struct subprocess_request request = {
        .argv = argv, .log_path = support_path("xmllint.txt"), .timeout_ms = 60000};
    struct subprocess_result result;
    enum status status = subprocess_run(&request, &result, &err);

    if (status == STATUS_NOT_FOUND)
        return;
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_msg(result.outcome == SUBPROCESS_EXITED && result.code == 0, "xmllint: see %s",
                  request.log_path);
}

START_TEST(test_page)
{
    char problem[512];
    char *page = make_report(synthetic_experiment("m", 6), "out", "report.html", problem);

    html_check(page);
    assert_xml(support_path("out/report.html"));
    assert_has(page, "<h1>A match</h1>");
    assert_has(page, "ring all-reduce has 1.42x");
    assert_has(page, "On this host, over loopback");
    assert_has(page, "The modes share every recorded setting");
    assert_has(page, "prefers-color-scheme:dark");
    assert_has(page, "@media print");
    assert_has(page, "<h3>Who waits for whom</h3>");
    ck_assert_uint_eq(count_of(page, "<figure id="), 8);
    ck_assert_uint_eq(count_of(page, "<details>"), 8);
    ck_assert_uint_ge(count_of(page, "sparring report x"), 7);
    if (has_gnuplot()) {
        ck_assert_str_eq(problem, "");
        ck_assert_uint_eq(count_of(page, "<svg "), 8);
        ck_assert_uint_eq(count_of(page, "role=\"img\""), 8);
        ck_assert_uint_eq(count_of(page, "@0@"), 0);
    } else {
        assert_has(problem, "gnuplot");
    }
    free(page);
}
END_TEST

START_TEST(test_same_runs_same_page)
{
    char problem[512];
    const char *path = synthetic_experiment("m", 3);
    char *first = make_report(path, "out", "report.csv", problem);
    char *second = make_report(path, "out2", "report.csv", problem);

    ck_assert_str_eq(first, second);
    free(first);
    free(second);
}
END_TEST

START_TEST(test_no_gnuplot)
{
    char problem[512];
    char *page;

    ck_assert_int_eq(setenv("PATH", support_folder(), 1), 0);
    page = make_report(synthetic_experiment("m", 3), "out", "report.html", problem);
    html_check(page);
    assert_has(problem, "Figures need gnuplot, which is not in PATH");
    assert_has(page, "Figures need gnuplot");
    ck_assert_uint_eq(count_of(page, "<svg "), 0);
    ck_assert_uint_eq(count_of(page, "<details>"), 8);
    free(page);
}
END_TEST

START_TEST(test_broken_gnuplot)
{
    static const char script[] =
        "#!/bin/sh\necho '\"picture.gp\", line 3: no such thing'\nexit 1\n";
    char problem[512];
    const char *fake = support_write("gnuplot", script, sizeof(script) - 1);
    char path[8192];
    char *page;

    ck_assert_int_eq(chmod(fake, 0755), 0);
    (void)snprintf(path, sizeof(path), "%s:%s", support_folder(), getenv("PATH"));
    ck_assert_int_eq(setenv("PATH", path, 1), 0);
    page = make_report(synthetic_experiment("m", 3), "out", "report.html", problem);
    html_check(page);
    assert_has(problem,
               "gnuplot could not draw 'throughput' (exit code 1): \"picture.gp\", line 3");
    ck_assert_uint_eq(count_of(page, "<svg "), 0);
    free(page);
}
END_TEST

static const char *write_hostile(void)
{
    for (unsigned r = 0; r < 3; r++) {
        char folder[64] = "";
        struct synthetic_run run = synthetic_ring(folder);

        (void)snprintf(folder, sizeof(folder), "h/runs/a'\"<b>&`-%u", r);
        run.mode = HOSTILE;
        run.label = HOSTILE HOSTILE;
        run.title = HOSTILE;
        run.host = HOSTILE;
        run.repeat = r;
        run.seed = r;
        (void)synthetic_write(&run);
        (void)snprintf(folder, sizeof(folder), "h/runs/ps-\xff-%u", r);
        run.mode = "=1+1";
        run.label = "ps, \"quoted\"";
        run.mode_index = 1;
        run.sync = "ps";
        run.comm_ms = 0.5;
        (void)synthetic_write(&run);
    }
    return support_path("h");
}

START_TEST(test_hostile_texts)
{
    static const char *const files[] = {"report.html", "report.md", "report.json", "report.csv"};
    const char *path = write_hostile();
    char problem[512];

    ck_assert_int_eq(chdir(support_folder()), 0);
    for (size_t i = 0; i < 4; i++) {
        char *text = make_report(path, "out", files[i], problem);

        if (has_gnuplot())
            ck_assert_str_eq(problem, "");
        if (i < 2)
            ck_assert_ptr_null(strstr(text, "<script"));
        if (i == 0) {
            html_check(text);
            assert_xml(support_path("out/report.html"));
        }
        if (i == 1)
            assert_has(text, "&lt;script>");
        if (i == 3)
            assert_has(text, "\"'=1+1\",\"ps, \"\"quoted\"\"\"");
        free(text);
    }
    ck_assert_int_ne(access("pwned", F_OK), 0);
}
END_TEST

/* A failed run with a hostile reason and a record of bytes that are no UTF-8. */
START_TEST(test_hostile_reason)
{
    char problem[512];
    const char *path = synthetic_experiment("m", 3);
    char *page;

    synthetic_replace(support_path("m/runs/ring-0"), "summary.json",
                      "{\"status\":\"failed\",\"error\":\"<img src=x onerror=alert(1)>\"}");
    page = make_report(path, "out", "report.html", problem);
    html_check(page);
    assert_has(page, "&lt;img src=x onerror=alert(1)&gt;");
    free(page);
}
END_TEST

START_TEST(test_json)
{
    char problem[512];
    const char *path = synthetic_experiment("m", 4);
    char *text;
    json_t *root;
    const json_t *ring;

    synthetic_remove(support_path("m/runs/ring-3"), "summary.json");
    text = make_report(path, "out", "report.json", problem);
    root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "schema")), 3);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "runs")), 16);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "modes")), 4);
    ring = json_array_get(json_object_get(root, "modes"), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(ring, "failed_runs")), 1);
    ck_assert_double_eq_tol(
        json_number_value(json_object_get(
            json_object_get(json_object_get(ring, "metrics"), "samples_per_second"), "median")),
        128000 / (0.91 * 1.01 + 0.09), 0.01);
    ck_assert_str_eq(json_string_value(json_object_get(
                         json_object_get(json_object_get(root, "verdict"), "match"), "state")),
                     "too_few");
    json_decref(root);
    free(text);
}
END_TEST

START_TEST(test_csv_and_markdown)
{
    char problem[512];
    const char *path = synthetic_experiment("m", 6);
    char *csv = make_report(path, "out", "report.csv", problem);
    char *markdown = make_report(path, "out", "report.md", problem);

    ck_assert_uint_eq(count_of(csv, "\n"), 25);
    assert_has(csv, "run,mode,label,repeat,seed,state,reason,outlier_score,samples_per_second,");
    assert_has(csv, "\"ring-0\",\"ring\",\"ring all-reduce\",0,\"1\",good,\"\",1.1");
    assert_has(markdown, "**On this host, over loopback: ring all-reduce has 1.42x");
    assert_has(markdown, "| a rank sends: payload | 407,080 | 407,080 | 0 | 0 |");
    free(csv);
    free(markdown);
}
END_TEST

/* gnuplot_embed alone, on what a gnuplot might write. */
START_TEST(test_embed)
{
    static const char svg[] = "<?xml version=\"1.0\"?>\n<svg>\n<g id=\"gnuplot_canvas\">\n"
                              "<circle id='gpDot' r='1'/><use xlink:href='#gpDot'/>\n"
                              "<g fill=\"none\">\n</g>\n<text>@1@</text><text>@7@ @x@</text>\n"
                              "<g id=\"p_plot_1\"><title>gnuplot's</title></g>\n</g>\n</svg>\n";
    struct strbuf script = STRBUF_INIT;
    struct strbuf out = STRBUF_INIT;
    struct text_list texts = {0};
    struct text_list titles = {0};
    struct gnuplot_picture picture = {.name = "p",
                                      .title = "a < b",
                                      .description = "d",
                                      .height = 10,
                                      .script = &script,
                                      .texts = &texts,
                                      .titles = &titles};

    text_list_addf(&texts, "zero");
    text_list_addf(&texts, "one & <two>");
    text_list_addf(&titles, "tip @0@");
    assert_ok(gnuplot_embed(&picture, svg, &out, &err));
    assert_has(out.text, "<title id=\"p-title\">a &lt; b</title>");
    assert_has(out.text, "<circle id='p-gpDot' r='1'/><use xlink:href='#p-gpDot'/>");
    assert_has(out.text, "<text>one &amp; &lt;two&gt;</text><text>@7@ @x@</text>");
    assert_has(out.text, "<title>tip @0@</title>");
    ck_assert_ptr_null(strstr(out.text, "<g fill"));
    ck_assert_ptr_null(strstr(out.text, "<?xml"));
    assert_fails(gnuplot_embed(&picture, "<svg></svg>", &out, &err), STATUS_DATA, "no canvas");
    assert_fails(gnuplot_embed(&picture, "<g id=\"gnuplot_canvas\">", &out, &err), STATUS_DATA,
                 "no canvas");
    strbuf_release(&out);
    text_list_release(&texts);
    text_list_release(&titles);
}
END_TEST

START_TEST(test_colors)
{
    struct report report = {0};
    const char *path = synthetic_experiment("m", 1);

    assert_ok(report_read(&report, &path, 1, &err));
    ck_assert_str_eq(figure_mode_color(&report.comparison, 0), "#0072b2");
    ck_assert_str_eq(figure_mode_color(&report.comparison, 1), "#e69f00");
    ck_assert_str_eq(figure_mode_color(&report.comparison, 2), "#757575");
    ck_assert_str_eq(figure_mode_color(&report.comparison, 3), "#b0b0b0");
    report_release(&report);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report output", 100, TEST(test_page), TEST(test_same_runs_same_page),
                       TEST(test_no_gnuplot), TEST(test_broken_gnuplot), TEST(test_hostile_texts),
                       TEST(test_hostile_reason), TEST(test_json), TEST(test_csv_and_markdown),
                       TEST(test_embed), TEST(test_colors));
}
