/*
 * The benchmarks' file and statistics: medians against a hand-sorted list, the file read back by
 * jansson.
 */
#include "tests/support/support.h"

#include "experiments/bench/bench_report.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

START_TEST(summaries)
{
    double odd[] = {5, 1, 9};
    double even[] = {4, 1, 2, 100};
    struct bench_summary s = bench_summarise(odd, 3);

    ck_assert_double_eq(s.median, 5);
    ck_assert_double_eq(s.min, 1);
    ck_assert_double_eq(s.max, 9);
    s = bench_summarise(even, 4);
    ck_assert_double_eq(s.median, 3);
    s = bench_rate(300, s);
    ck_assert_double_eq(s.median, 100);
    ck_assert_double_eq(s.min, 3);
    ck_assert_double_eq(s.max, 300);
    ck_assert_double_eq(bench_scale(s, 0.5).max, 150);
    s = bench_summarise(NULL, 0);
    ck_assert_uint_eq(s.samples, 0);
    ck_assert_double_eq(s.median, 0);
}
END_TEST

static void fill_report(struct bench_report *r)
{
    double samples[] = {3, 1, 2};

    bench_report_init(r, "allreduce");
    bench_row_begin(r);
    bench_row_text(r, "backend", "ri\"ng");
    bench_row_int(r, "bytes", INT64_MAX);
    bench_row_summary(r, "time_us", bench_summarise(samples, 3));
    bench_row_end(r);
    bench_row_begin(r);
    bench_row_double(r, "busbw", HUGE_VAL);
    bench_row_end(r);
}

START_TEST(file_is_json)
{
    struct error err = {0};
    struct bench_report r;
    const char *path = support_path("bench.json");
    json_t *root;
    json_t *rows;

    fill_report(&r);
    assert_ok(bench_report_write(&r, path, &err));
    bench_report_release(&r);
    root = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "schema")), 1);
    ck_assert_str_eq(json_string_value(json_object_get(root, "bench")), "allreduce");
    ck_assert(json_integer_value(json_object_get(json_object_get(root, "host"), "cores")) > 0);
    rows = json_object_get(root, "rows");
    ck_assert_uint_eq(json_array_size(rows), 2);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(rows, 0), "backend")),
                     "ri\"ng");
    ck_assert(json_integer_value(json_object_get(json_array_get(rows, 0), "bytes")) == INT64_MAX);
    ck_assert_double_eq(json_number_value(json_object_get(json_array_get(rows, 0), "time_us_max")),
                        3);
    ck_assert(json_is_null(json_object_get(json_array_get(rows, 1), "busbw")));
    json_decref(root);
}
END_TEST

START_TEST(no_rows_is_an_empty_list)
{
    struct error err = {0};
    struct bench_report r;
    const char *path = support_path("bench.json");
    json_t *root;

    bench_report_init(&r, "ps");
    assert_ok(bench_report_write(&r, path, &err));
    root = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(root);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "rows")), 0);
    json_decref(root);
    assert_fails(bench_report_write(&r, support_path("no/such/file"), &err), STATUS_NOT_FOUND,
                 "no/such/file");
    bench_report_release(&r);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("bench_report", 0, TEST(summaries), TEST(file_is_json),
                       TEST(no_rows_is_an_empty_list));
}
