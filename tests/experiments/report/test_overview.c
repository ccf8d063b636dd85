/*
 * The overview of a sweep: results as text, where the winner changes, the page and the CSV file.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "experiments/report/figure.h"
#include "experiments/report/overview.h"
#include "tests/experiments/report/html_check.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

static struct overview_row row_of(const char *a, const char *b, enum ratio_state state,
                                  double value)
{
    return (struct overview_row){.values = {a, b},
                                 .labels = {"ring", "server <1>"},
                                 .throughput = {100, 100 / value},
                                 .state = state,
                                 .value = value,
                                 .interval = {value * 0.9, value * 1.1},
                                 .p = 0.002,
                                 .blocks = 10};
}

START_TEST(test_results)
{
    static const struct {
        enum ratio_state state;
        double value;
        const char *text;
    } cases[] = {
        {RATIO_FASTER, 1.5, "ring 1.50 (1.35 to 1.65) times server <1>"},
        {RATIO_FASTER, 0.5, "server <1> 2.00 (1.82 to 2.22) times ring"},
        {RATIO_EQUIVALENT, 1.01, "equivalent: ring 1.01 (0.91 to 1.11) times server <1>"},
        {RATIO_UNDECIDED, 0.8, "undecided: server <1> 1.25 (1.14 to 1.39) times ring"},
        {RATIO_TOO_FEW, 1.5, "too few blocks: ring, server <1>"},
        {RATIO_NOT_COMPARABLE, 1.5, "not comparable: ring, server <1>"},
        {RATIO_NO_TARGET, 1.5, "no target accuracy: ring, server <1>"},
        {RATIO_NOT_ASKED, 1.5, "no verdict: ring 1.50 (1.35 to 1.65) times server <1>"},
    };
    char text[512];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct overview_row row = row_of("1", "1", cases[i].state, cases[i].value);

        overview_result_text(&row, text, sizeof(text));
        ck_assert_str_eq(text, cases[i].text);
    }
}
END_TEST

static struct overview make_overview(struct overview_row *rows, size_t length)
{
    return (struct overview){
        .title = "T & U", .axes = {"n", "b"}, .axis_count = 2, .rows = rows, .length = length};
}

static void check_flip(struct overview_row *rows, size_t length, const char *expected)
{
    struct overview o = make_overview(rows, length);
    struct text_list flips = {0};

    overview_add_flips(&o, &flips);
    ck_assert_uint_eq(flips.length, 1);
    ck_assert_str_eq(flips.texts[0], expected);
    text_list_release(&flips);
}

/* Along n with b = x: ring, undecided but behind, server, server; with b = y one winner; texts have
 * no order. */
START_TEST(test_flips)
{
    struct overview_row rows[] = {
        row_of("16", "x", RATIO_FASTER, 0.7),   row_of("1", "x", RATIO_FASTER, 1.5),
        row_of("2", "x", RATIO_UNDECIDED, 0.9), row_of("4", "x", RATIO_FASTER, 0.8),
        row_of("1", "y", RATIO_FASTER, 1.5),    row_of("2", "y", RATIO_FASTER, 1.4),
        row_of("16", "y", RATIO_TOO_FEW, 0.1),
    };

    check_flip(rows, sizeof(rows) / sizeof(rows[0]),
               "Between n 1 and 4 (b=x) the winner changes from ring to server <1>, near 1.73.");
}
END_TEST

/* Where the ratio is 1: half way on a logarithmic axis, two thirds on one that begins with 0. */
START_TEST(test_even)
{
    struct overview_row rates[] = {row_of("200mbit", "x", RATIO_FASTER, 2),
                                   row_of("800mbit", "x", RATIO_FASTER, 0.5)};
    struct overview_row bytes[] = {row_of("4K", "x", RATIO_FASTER, 2),
                                   row_of("16K", "x", RATIO_EQUIVALENT, 1.01),
                                   row_of("64K", "x", RATIO_FASTER, 1 / 1.01)};
    struct overview_row delays[] = {row_of("0", "x", RATIO_FASTER, 0.25),
                                    row_of("15", "x", RATIO_FASTER, 2)};

    check_flip(rates, 2,
               "Between n 200mbit and 800mbit (b=x) the winner changes from ring to server <1>, "
               "near 400mbit.");
    check_flip(
        bytes, 3,
        "Between n 4K and 64K (b=x) the winner changes from ring to server <1>, near 32.0K.");
    check_flip(delays, 2,
               "Between n 0 and 15 (b=x) the winner changes from server <1> to ring, near 10.0.");
}
END_TEST

static char *read_file(const char *name)
{
    char *text;
    size_t size;

    assert_ok(file_read(support_path(name), 1 << 20, &text, &size, &err));
    return text;
}

START_TEST(test_files)
{
    struct overview_row rows[] = {row_of("1", "a,b", RATIO_FASTER, 1.5),
                                  row_of("2", "a,b", RATIO_FASTER, 0.5)};
    struct overview_row not_asked = row_of("3", "a,b", RATIO_NOT_ASKED, 2);
    struct overview o = make_overview(rows, 2);
    const char *const folders[] = {"cells/n=1,b=a_b", "cells/n=2,b=a_b"};
    struct strbuf text = STRBUF_INIT;
    char problem[512];
    char *page;
    char *table;

    rows[1].cell = 1;
    rows[1].throughput[0] = (double)NAN;
    assert_ok(overview_write(&o, support_folder(), folders, problem, sizeof(problem), &err));
    page = read_file("index.html");
    html_check(page);
    ck_assert_ptr_nonnull(strstr(page, "<h1>T &amp; U</h1>"));
    ck_assert_ptr_nonnull(strstr(page, "Between n 1 and 2 (b=a,b) the winner changes"));
    ck_assert_ptr_nonnull(strstr(page, "href=\"cells/n=2,b=a_b/report.html\""));
    table = read_file("cells.csv");
    ck_assert_str_eq(
        table,
        "\"n\",\"b\",first,second,state,to_target,blocks,ratio,low,high,p,"
        "samples_per_second_first,samples_per_second_second\n"
        "\"1\",\"a,b\",\"ring\",\"server <1>\",faster,0,10,1.5,1.35,1.65,0.002,100,66.6666667\n"
        "\"2\",\"a,b\",\"ring\",\"server <1>\",faster,0,10,0.5,0.45,0.55,0.002,,200\n");
    overview_summarise(&o, &text);
    ck_assert_str_eq(text.text, "n=1,b=a,b: ring 1.50 (1.35 to 1.65) times server <1>\n"
                                "n=2,b=a,b: server <1> 2.00 (1.82 to 2.22) times ring\n"
                                "Between n 1 and 2 (b=a,b) the winner changes from ring to server "
                                "<1>, near 1.29.\n");
    strbuf_reset(&text);
    o = make_overview(&not_asked, 1);
    overview_summarise(&o, &text);
    ck_assert_uint_eq(text.length, 0);
    strbuf_release(&text);
    free(page);
    free(table);
}
END_TEST

/* A cell that was stopped before its first run has a row without a report. */
START_TEST(test_cell_without_runs)
{
    const struct design design = {.pairs = {{{"ring", "ps"}}, {{"ring", "asp"}}},
                                  .pair_count = 2,
                                  .axes = {{"n", "3"}},
                                  .axis_count = 1};
    const struct design no_pairs = {.axes = {{"n", "3"}}, .axis_count = 1};
    const char *const folders[] = {NULL, NULL};
    struct overview o = {.title = "", .axes = {"n"}, .axis_count = 1};
    struct strbuf text = STRBUF_INIT;
    char problem[512];
    char *page;

    assert_ok(overview_add(&o, 0, &design, NULL, &err));
    assert_ok(overview_add(&o, 1, &no_pairs, NULL, &err));
    ck_assert_uint_eq(o.length, 3);
    ck_assert_str_eq(o.rows[1].labels[1], "asp");
    overview_summarise(&o, &text);
    ck_assert_str_eq(text.text, "n=3: too few blocks: ring, ps\n"
                                "n=3: too few blocks: ring, asp\n"
                                "n=3: too few blocks: any, any\n");
    assert_ok(overview_write(&o, support_folder(), folders, problem, sizeof(problem), &err));
    page = read_file("index.html");
    html_check(page);
    ck_assert_ptr_null(strstr(page, "href="));
    free(page);
    strbuf_release(&text);
    overview_release(&o);
}
END_TEST

START_TEST(test_numbers)
{
    double value;

    ck_assert(overview_number("2.5", &value) && value == 2.5);
    ck_assert(overview_number("64K", &value) && value == 65536);
    ck_assert(overview_number("500mbit", &value) && value == 5e8);
    ck_assert(!overview_number("ring", &value));
}
END_TEST

static struct overview_point point_of(const char *rate, const char *delay, const char *label,
                                      double median)
{
    struct overview_point p = {.values = {rate, delay},
                               .color = "#0072b2",
                               .dash = 1,
                               .low = median * 0.9,
                               .median = median,
                               .high = median * 1.1};

    (void)snprintf(p.label, sizeof(p.label), "%s", label);
    return p;
}

/* Two rates and two delays make two figures along each; the cells are in no order, one is missing,
 * and the third axis is no number. */
START_TEST(test_figures)
{
    struct overview_point points[] = {
        point_of("1gbit", "1", "ring", 400),   point_of("1gbit", "1", "ps", 300),
        point_of("100mbit", "1", "ring", 100), point_of("100mbit", "1", "ps", 200),
        point_of("1gbit", "20", "ring", 50),
    };
    struct overview o = {.title = "",
                         .axes = {"network-rate", "network-delay", "backend"},
                         .axis_count = 3,
                         .points = points,
                         .point_count = sizeof(points) / sizeof(points[0])};
    struct figure_set *set;

    for (size_t i = 0; i < o.point_count; i++)
        points[i].values[2] = "ring";
    assert_ok(mem_calloc(1, sizeof(*set), "figures", &set, &err));
    assert_ok(figure_set_make_axes(&o, set, &err));
    ck_assert_uint_eq(set->count, 2);
    ck_assert_str_eq(set->figures[0].title,
                     "Throughput over network-rate where network-delay=1, backend=ring");
    ck_assert_str_eq(set->figures[1].title,
                     "Throughput over network-delay where network-rate=1gbit, backend=ring");
    ck_assert_uint_eq(set->figures[0].cells.length, 4 * 3);
    ck_assert_str_eq(set->figures[0].cells.texts[0], "ring");
    ck_assert_str_eq(set->figures[0].cells.texts[1], "100mbit");
    ck_assert_str_eq(set->figures[0].cells.texts[4], "1gbit");
    ck_assert_uint_eq(set->figures[0].legend_count, 2);
    ck_assert_uint_eq(set->figures[1].cells.length, 3 * 3);
    if (set->problem[0] == '\0')
        ck_assert_ptr_nonnull(strstr(set->figures[0].svg.text, ">100mbit<"));
    figure_set_release(set);
    free(set);
}
END_TEST

static struct overview_row predicted(const char *nproc, const char *rate, enum ratio_state state,
                                     double value, double measured)
{
    struct overview_row row = row_of(nproc, rate, state, value);

    row.measured = measured;
    (void)snprintf(row.colors[0], sizeof(row.colors[0]), "#0072b2");
    (void)snprintf(row.colors[1], sizeof(row.colors[1]), "#e69f00");
    return row;
}

/* Four fields of six: the order of the axes is that of their numbers; a field that is not decided
 * is grey; two borders, one dot. */
START_TEST(test_map)
{
    struct overview_row rows[] = {
        predicted("16", "1gbit", RATIO_FASTER, 2, 1.9),
        predicted("2", "100mbit", RATIO_FASTER, 0.5, (double)NAN),
        predicted("2", "1gbit", RATIO_UNDECIDED, 0.95, (double)NAN),
        predicted("16", "100mbit", RATIO_FASTER, 123.4, (double)NAN),
        predicted("4", "100mbit", RATIO_TOO_FEW, (double)NAN, (double)NAN),
    };
    struct overview o = make_overview(rows, sizeof(rows) / sizeof(rows[0]));
    struct figure_set *set;
    const struct figure *f;
    size_t borders = 0, dots = 0;

    o.is_predicted = true;
    assert_ok(mem_calloc(1, sizeof(*set), "figures", &set, &err));
    assert_ok(figure_set_make_axes(&o, set, &err));
    ck_assert_uint_eq(set->count, 1);
    f = &set->figures[0];
    ck_assert_str_eq(f->title, "Who wins where: ring, server <1>");
    ck_assert_uint_eq(f->cells.length, 4 * 3);
    ck_assert_ptr_nonnull(strstr(f->script.text, "set xtics ('@1@' 0, '@2@' 1)"));
    ck_assert_str_eq(f->texts.texts[1], "2");
    ck_assert_str_eq(f->texts.texts[4], "100mbit");
    ck_assert_ptr_nonnull(strstr(f->script.text, "(0):(1):(-0.48):(0.48):(0.54):(1.46) every "
                                                 "::0::0 with boxxyerror fs transparent solid "
                                                 "0.40 noborder lc rgb '#9e9e9e'"));
    ck_assert_ptr_nonnull(strstr(f->script.text, "(1):(0):('123')"));
    for (size_t i = 0; i < f->tool_tips.length; i++) {
        borders += strcmp(f->tool_tips.texts[i], "the winner changes") == 0;
        dots += strstr(f->tool_tips.texts[i], "measured: ring 1.90 times server <1>") != NULL;
    }
    ck_assert_uint_eq(borders, 2);
    ck_assert_uint_eq(dots, 1);
    if (set->problem[0] == '\0')
        ck_assert_ptr_nonnull(strstr(f->svg.text, ">100mbit<"));
    figure_set_release(set);
    free(set);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("overview", 0, TEST(test_results), TEST(test_flips), TEST(test_even),
                       TEST(test_files), TEST(test_cell_without_runs), TEST(test_numbers),
                       TEST(test_figures), TEST(test_map));
}
