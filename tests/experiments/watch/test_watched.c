/*
 * What `sparring watch` and `status` know of a folder while runs begin, go on, end, fail, are made
 * again and are half written, and what a terminal of 80 columns shows of it.
 */
#include "experiments/watch/watch_text.h"
#include "experiments/watch/watched.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CELLS 1000

static struct error err;
static struct watched watched;

static void teardown(void)
{
    watched_release(&watched);
}

static void make_folder(const char *name)
{
    ck_assert_int_eq(mkdir(support_path(name), 0700), 0);
}

/* OUT with a plan of `cells` cells, "rate=0" and so on, of two modes and 3 repeats. */
static void write_plan(size_t cells)
{
    struct strbuf text = STRBUF_INIT;

    make_folder("out");
    strbuf_add(&text, "{\"schema\":1,\"repeats\":3,\"cells\":{");
    for (size_t i = 0; i < cells; i++)
        strbuf_addf(&text, "%s\"rate=%zu\":{\"ring\":[],\"server\":[]}", i > 0 ? "," : "", i);
    strbuf_add(&text, "}}");
    ck_assert(strbuf_ok(&text));
    (void)support_write("out/plan.json", text.text, text.length);
    strbuf_release(&text);
}

/* A run of a cell, by its whole name below OUT/cells; outcome "": it goes on. */
static const char *write_run(const char *name, const char *mode, const char *outcome,
                             unsigned steps)
{
    char folder[256];
    struct synthetic_run run;
    const char *path;

    (void)snprintf(folder, sizeof(folder), "out/cells/%s", name);
    run = synthetic_ring(folder);
    run.title = "A sweep: rate=0";
    run.mode = mode;
    run.outcome = outcome;
    run.steps = steps;
    path = synthetic_write(&run);
    if (strcmp(outcome, "ok") != 0)
        synthetic_remove(path, "summary.json");
    return path;
}

static void scan(void)
{
    assert_ok(watched_scan(&watched, &err));
}

static struct watched_run *find_run(size_t cell, const char *name)
{
    for (size_t i = 0; i < watched.cells[cell].run_count; i++)
        if (strcmp(watched.cells[cell].runs[i].name, name) == 0)
            return &watched.cells[cell].runs[i];
    ck_abort_msg("no run '%s'", name);
}

static void assert_totals(size_t planned, size_t running, size_t ok, size_t failed)
{
    const struct watched_totals t = watched_totals(&watched);

    ck_assert_uint_eq(t.planned, planned);
    ck_assert_uint_eq(t.running, running);
    ck_assert_uint_eq(t.ok, ok);
    ck_assert_uint_eq(t.failed, failed);
}

static void append_steps(const char *path, unsigned first, unsigned count)
{
    struct strbuf text = STRBUF_INIT;

    for (unsigned s = first; s < first + count; s++)
        strbuf_addf(&text,
                    "{\"kind\":\"step\",\"step\":%u,\"loss\":%u.5,\"samples\":10,\"step_ns\":"
                    "1000000}\n",
                    s, s);
    synthetic_append(path, "rank0.jsonl", text.text);
    strbuf_release(&text);
}

/* Another folder under the name of a run that had ended. */
START_TEST(test_run_that_is_made_again)
{
    const char *path;

    write_plan(1);
    path = write_run("rate=0/runs/ring-0", "ring", "stopped after 1 s", 4);
    assert_ok(watched_open(support_path("out"), &watched, &err));
    scan();
    assert_totals(6, 0, 0, 1);
    ck_assert_int_eq(rename(path, support_path("out/cells/rate=0/lost")), 0);
    (void)write_run("rate=0/runs/ring-0", "ring", "", 4);
    scan();
    assert_totals(6, 1, 0, 0);
}
END_TEST

/* A damaged run is no reason to end. */
START_TEST(test_step_that_repeats)
{
    const char *path;

    write_plan(1);
    path = write_run("rate=0/runs/ring-0", "ring", "", 1);
    append_steps(path, 0, 1);
    append_steps(path, 0, 1);
    append_steps(path, 0, 1);
    assert_ok(watched_open(support_path("out"), &watched, &err));
    scan();
    assert_totals(6, 1, 0, 0);
}
END_TEST

/* A step in which rank 0 had no samples has no loss. */
START_TEST(test_step_without_loss)
{
    const char *path;
    struct watched_run *run;

    write_plan(1);
    path = write_run("rate=0/runs/ring-0", "ring", "", 4);
    assert_ok(watched_open(support_path("out"), &watched, &err));
    synthetic_append(path, "rank0.jsonl",
                     "{\"kind\":\"step\",\"step\":99,\"loss\":null,\"samples\":0,"
                     "\"step_ns\":1000000}\n");
    scan();
    run = find_run(0, "ring-0");
    ck_assert(isnan(run->points[run->point_count - 1].loss));
}
END_TEST

START_TEST(test_sweep)
{
    const char *path;
    struct watched_run *run;
    uint64_t version;

    write_plan(3);
    assert_ok(watched_open(support_path("out"), &watched, &err));
    ck_assert_uint_eq(watched.cell_count, 3);
    scan();
    assert_totals(18, 0, 0, 0);
    ck_assert(isnan(watched_totals(&watched).seconds_left));

    path = write_run("rate=0/runs/ring-0", "ring", "", 4);
    synthetic_append(path, "rank0.jsonl", "{\"kind\":\"start\",\"planned_steps\":20}\n");
    scan();
    ck_assert_str_eq(watched.title, "A sweep");
    assert_totals(18, 1, 0, 0);
    run = find_run(0, "ring-0");
    ck_assert_int_eq(run->state, WATCHED_RUNNING);
    ck_assert_uint_eq(run->steps, 4);
    ck_assert_uint_eq(run->planned_steps, 20);
    version = watched.version;
    scan();
    ck_assert_uint_eq(watched.version, version); /* nothing new */

    append_steps(path, 4, 2);
    synthetic_append(path, "rank0.jsonl", "{\"kind\":\"step\",\"step\":6,\"loss\":");
    scan();
    ck_assert_uint_gt(watched.version, version);
    ck_assert_uint_eq(run->steps, 6);
    ck_assert_uint_eq(run->point_count, 6);
    ck_assert(run->points[5].loss == 5.5);
    ck_assert(run->points[5].samples_per_second == 1e4 * run->ranks);
    synthetic_append(path, "rank0.jsonl", "6.5,\"samples\":10,\"step_ns\":1000000}\n");
    scan();
    ck_assert_uint_eq(run->steps, 7);

    /* It ends well, another fails, and the next begins. */
    (void)write_run("rate=0/runs/ring-0", "ring", "ok", 20);
    (void)write_run("rate=0/runs/server-0", "server", "exit code 1", 3);
    scan();
    ck_assert_int_eq(find_run(0, "ring-0")->state, WATCHED_OK);
    ck_assert_int_eq(find_run(0, "server-0")->state, WATCHED_FAILED);
    ck_assert_str_eq(find_run(0, "server-0")->reason, "exit code 1");
    assert_totals(18, 0, 1, 1);
    (void)write_run("rate=0/runs/ring-1", "ring", "", 1);
    scan();
    ck_assert_uint_eq(find_run(0, "ring-0")->point_count, 0); /* a newer run has points */
    ck_assert_uint_eq(find_run(0, "ring-1")->point_count, 1);
    version = watched.cells[0].version;
    ck_assert_uint_gt(version, watched.cells[1].version);

    /* What failed is moved away, to be made again. */
    make_folder("out/cells/rate=0/lost");
    ck_assert(rename(support_path("out/cells/rate=0/runs/server-0"),
                     support_path("out/cells/rate=0/lost/server-0")) == 0);
    (void)support_write("out/cells/rate=0/report.html", "x", 1);
    scan();
    assert_totals(18, 1, 1, 0);
    ck_assert(watched.cells[0].has_report && !watched.cells[1].has_report);
}
END_TEST

/* A run that is made again in its folder empties its records. */
START_TEST(test_again)
{
    const char *path;

    write_plan(1);
    path = write_run("rate=0/runs/ring-0", "ring", "", 50);
    assert_ok(watched_open(support_path("out"), &watched, &err));
    scan();
    ck_assert_uint_eq(find_run(0, "ring-0")->steps, 50);
    synthetic_replace(path, "rank0.jsonl", "");
    append_steps(path, 0, 2);
    scan();
    ck_assert_uint_eq(find_run(0, "ring-0")->steps, 2);
    ck_assert_uint_eq(find_run(0, "ring-0")->point_count, 2);
}
END_TEST

/* One run directory; its curve is thinned evenly, and goes on. */
START_TEST(test_one_run)
{
    struct synthetic_run run = synthetic_ring("alone");
    const struct watched_run *seen;
    const char *path;

    run.mode = NULL;
    run.steps = 5000;
    path = synthetic_write(&run);
    synthetic_remove(path, "summary.json");
    assert_ok(watched_open(path, &watched, &err));
    scan();
    assert_totals(1, 1, 0, 0);
    seen = &watched.cells[0].runs[0];
    ck_assert_uint_eq(seen->steps, 5000);
    ck_assert_uint_ge(seen->point_count, 200);
    ck_assert_uint_le(seen->point_count, 400);
    append_steps(path, 5000, 1000);
    scan();
    ck_assert_uint_ge(seen->points[seen->point_count - 1].step, 5950);
    for (size_t i = 2; i < seen->point_count; i++)
        ck_assert_uint_eq(seen->points[i].step - seen->points[i - 1].step,
                          seen->points[1].step - seen->points[0].step);
    run.outcome = "ok";
    (void)synthetic_write(&run);
    scan();
    assert_totals(1, 0, 1, 0);
    ck_assert_uint_gt(seen->point_count, 0);
}
END_TEST

START_TEST(test_no_runs)
{
    make_folder("empty");
    assert_fails(watched_open(support_path("empty"), &watched, &err), STATUS_NOT_FOUND,
                 "is neither a run directory nor a folder of compare");
    assert_fails(watched_open(support_path("nowhere"), &watched, &err), STATUS_NOT_FOUND,
                 "nowhere' is neither");
    make_folder("bad");
    (void)support_write("bad/plan.json", "{", 1);
    assert_fails(watched_open(support_path("bad"), &watched, &err), STATUS_DATA, "plan.json");
    (void)support_write("bad/plan.json", "{}", 2);
    assert_fails(watched_open(support_path("bad"), &watched, &err), STATUS_DATA, "has no cells");
}
END_TEST

/* Lines of a text, none of which is wider than `width`. */
static size_t count_lines(const char *text, size_t width)
{
    size_t count = 0;

    for (; *text; count++) {
        const size_t length = strcspn(text, "\n");

        ck_assert_msg(length <= width, "%.*s", (int)length, text);
        ck_assert_int_eq(text[length], '\n');
        text += length + 1;
    }
    return count;
}

/* A thousand cells: a terminal shows those that run, fail and are not complete, and how many more
 * there are. */
START_TEST(test_terminal)
{
    struct strbuf text = STRBUF_INIT;

    write_plan(CELLS);
    (void)write_run("rate=500/runs/ring-0", "ring", "", 4);
    (void)write_run("rate=700/runs/ring-0", "ring", "exit code 1", 4);
    (void)write_run("rate=900/runs/server-2", "server", "ok", 4);
    assert_ok(watched_open(support_path("out"), &watched, &err));
    scan();
    assert_totals(6 * CELLS, 1, 1, 1);
    watch_text(&watched, 80, 24, &text);
    ck_assert_uint_eq(count_lines(text.text, 80), 24);
    ck_assert_msg(strstr(text.text, "[                        ] 2 of 6000 runs, 1 failed") &&
                      strstr(text.text, "runs: ring-0 of rate=500, 2 ranks") &&
                      strstr(text.text, " step 4, loss ") &&
                      strstr(text.text, "  rate=500: ring 0/3, server 0/3\n") &&
                      strstr(text.text, "  rate=700: ring 1/3 (1 failed), server 0/3\n") &&
                      strstr(text.text, "  rate=900: ring 0/3, server 1/3\n") &&
                      strstr(text.text, "  rate=0: ring 0/3, server 0/3\n") &&
                      strstr(text.text, "  and 981 more cells\n"),
                  "%s", text.text);
    strbuf_reset(&text);
    watch_text(&watched, 80, 0, &text);
    ck_assert_uint_eq(count_lines(text.text, 80), 4 + CELLS);
    strbuf_reset(&text);
    watch_text(&watched, 20, 3, &text);
    ck_assert_uint_eq(count_lines(text.text, 20), 3);
    strbuf_release(&text);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("watched", 60, CHECKED_FIXTURE(NULL, teardown),
                       TEST(test_run_that_is_made_again), TEST(test_step_that_repeats),
                       TEST(test_step_without_loss), TEST(test_sweep), TEST(test_again),
                       TEST(test_one_run), TEST(test_no_runs), TEST(test_terminal));
}
