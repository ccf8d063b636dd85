/*
 * The pages of a report, of a sweep and of predictions in a real browser: browser.py finds no
 * problem in them, and every problem in a page that has all kinds.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 240000

static bool has_browser(void)
{
    struct process probe;

    process_start(&probe, NULL, ARGS("sh", "-c", "command -v chromium"));
    if (process_wait(&probe, TIMEOUT_MS) == 0)
        return true;
    support_skip_package("chromium");
    return false;
}

static const char *browse(int code, const char *const *pages)
{
    const char *argv[8] = {support_python(), support_source("tests/experiments/report/browser.py")};

    for (size_t i = 0; pages[i]; i++)
        argv[2 + i] = pages[i];
    return process_run(code, TIMEOUT_MS, NULL, argv);
}

static const char sweep[] =
    "title: \"A sweep <&> its cells\"\n"
    "repeats: 1\n"
    "verdict: none\n"
    "deadline: 60\n"
    "axes: {nproc: [1, 2], batch-size: [8, 16]}\n"
    "options: {model: 'mlp:784-16-10', data: digits, samples: 320, steps: 8, threads: 1}\n"
    "modes:\n"
    "- {name: ring, options: {sync: allreduce, backend: ring}}\n"
    "- {name: control, options: {sync: local}}\n";

static const char cluster[] = "title: A cluster\n"
                              "network: {delay: 0.05}\n"
                              "axes: {nproc: 2..64 *2, network-rate: [1gbit, 20gbit, 400gbit]}\n"
                              "modes:\n"
                              "- {name: ring, options: {sync: allreduce, backend: ring}}\n"
                              "- {name: ps, servers: 8, options: {sync: ps}}\n";

START_TEST(test_pages)
{
    const char *sparring = support_program("sparring"), *printed;

    if (!has_browser())
        return;
    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS(sparring, "compare", support_write("sweep.yaml", sweep, strlen(sweep)),
                           "--out", support_path("sweep")));
    (void)process_run(0, TIMEOUT_MS, NULL,
                      ARGS(sparring, "predict",
                           support_write("cluster.yaml", cluster, strlen(cluster)), "--what-if",
                           "--parameters", "25e6", "--step-ms", "120", "--out",
                           support_path("predict")));
    printed = browse(0, ARGS(support_path("sweep/index.html"),
                             support_path("sweep/cells/nproc=2,batch-size=8/report.html"),
                             support_path("predict/index.html")));
    ck_assert_msg(strstr(printed, "3 pages, 3 widths, 2 themes: 0 problems"), "%s", printed);
}
END_TEST

static const char bad_page[] =
    "<!DOCTYPE html><html><head><title>t</title><script src=\"missing.js\"></script></head><body>"
    "<h1>A</h1><h3>skips a level</h3><div style=\"width:2000px\">wide</div>"
    "<p style=\"color:#999\">pale</p><img src=\"http://127.0.0.1:1/x.png\">"
    "<script>throw new Error('thrown')</script></body></html>";

START_TEST(test_bad_page)
{
    static const char *const problems[] = {
        "wider than the window: ", "h3 after h1: skips a level",   "contrast 2.85 of p: pale",
        "script: Uncaught",        "request: http://127.0.0.1:1/", "missing.js"};
    const char *printed;

    if (!has_browser())
        return;
    printed = browse(1, ARGS(support_write("bad.html", bad_page, strlen(bad_page))));
    for (size_t i = 0; i < sizeof(problems) / sizeof(problems[0]); i++)
        ck_assert_msg(strstr(printed, problems[i]), "no '%s' in:\n%s", problems[i], printed);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report_browser", 300, TEST(test_pages), TEST(test_bad_page));
}
