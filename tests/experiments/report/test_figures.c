/*
 * figure: what a sample costs, and how stale gradients are: the tables and the scripts.
 */
#include "experiments/report/figure.h"
#include "tests/experiments/report/read_comparison.h"
#include "tests/experiments/report/synthetic.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static struct error err;
static struct figure_set set;

static const struct figure *find_figure(const char *name)
{
    for (size_t i = 0; i < set.count; i++)
        if (strcmp(set.figures[i].name, name) == 0)
            return &set.figures[i];
    return NULL;
}

/* A ring run, and one with two servers whose pushes have these counts for 0, 1, 2 to 4, above. */
static void make_figures(const char *counts0, const char *counts1)
{
    struct synthetic_run ring = synthetic_ring("m/runs/ring-0");
    struct synthetic_run ps = synthetic_ring("m/runs/ps-0");
    const char *counts[] = {counts0, counts1};
    const char *path;

    ring.steps = ps.steps = 40;
    ring.batch = ps.batch = 50;
    (void)synthetic_write(&ring);
    ps.mode = "ps";
    ps.label = "two servers";
    ps.mode_index = 1;
    ps.sync = "ps";
    ps.consistency = "asp";
    ps.servers = 2;
    path = synthetic_write(&ps);
    for (int k = 0; k < 2; k++) {
        char name[32], text[256];

        (void)snprintf(name, sizeof(name), "server%d.jsonl", k);
        (void)snprintf(text, sizeof(text),
                       "{\"kind\":\"end\",\"status\":\"ok\",\"cpu_seconds\":0.25,"
                       "\"staleness_bounds\":[0,1,4],\"staleness_pushes\":[%s]}\n",
                       counts[k]);
        synthetic_append(path, name, text);
    }
    assert_ok(figure_set_make(read_comparison(support_path("m")), &set, &err));
}

static void check_cells(const struct figure *f, const char *const *cells, size_t count)
{
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(f->cells.length, count);
    for (size_t i = 0; i < count; i++)
        ck_assert_str_eq(f->cells.texts[i], cells[i]);
}

/* Processor time of two ranks, 0.5 s each, and of two servers, 0.25 s each, over 2 x 40 x 50. */
START_TEST(test_cost)
{
    static const char *const cells[] = {
        "ring all-reduce", "250.0", "0.0",   "250.0", "1.00", "80",
        "two servers",     "250.0", "125.0", "375.0", "1.50", "82",
    };

    make_figures("10,0,0,0", "10,0,0,0");
    check_cells(find_figure("cost"), cells, COUNT_OF(cells));
    assert_contains(find_figure("cost")->script.text, "set xrange [0:397.5]");
    figure_set_release(&set);
    report_release(&report);
}
END_TEST

/* Over both servers. */
START_TEST(test_staleness)
{
    static const char *const cells[] = {"two servers", "50.0", "12.5", "37.5"};
    const struct figure *f;

    make_figures("10,0,10,0", "10,5,5,0");
    f = find_figure("staleness");
    check_cells(f, cells, COUNT_OF(cells));
    ck_assert_str_eq(f->headings.texts[3], "2 to 4");
    ck_assert_uint_eq(f->headings.length, 4); /* none was above */
    assert_contains(f->script.text, "\n0 50\n1 62.5\n2 100\nEND\n");
    if (set.problem[0] == '\0')
        assert_contains(f->svg.text, "staleness (optimizer steps)");
    figure_set_release(&set);
    report_release(&report);
}
END_TEST

START_TEST(test_above_all_bounds)
{
    static const char *const cells[] = {"two servers", "90.0", "0.0", "0.0", "10.0"};

    make_figures("10,0,0,0", "8,0,0,2");
    check_cells(find_figure("staleness"), cells, COUNT_OF(cells));
    ck_assert_str_eq(find_figure("staleness")->headings.texts[4], "above 4");
    figure_set_release(&set);
    report_release(&report);
}
END_TEST

START_TEST(test_nothing_is_stale)
{
    make_figures("10,0,0,0", "10,0,0,0");
    ck_assert_ptr_null(find_figure("staleness"));
    figure_set_release(&set);
    report_release(&report);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("report_figures", 60, TEST(test_cost), TEST(test_staleness),
                       TEST(test_above_all_bounds), TEST(test_nothing_is_stale));
}
