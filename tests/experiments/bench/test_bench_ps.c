/*
 * `sparring bench ps` as a user runs it, small: real servers, real workers, the JSON file.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <string.h>

#define WAIT_MS 100000

static double number(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);

    ck_assert_msg(json_is_number(value), "no number '%s'", name);
    return json_number_value(value);
}

START_TEST(test_a_small_run)
{
    const char *file = support_path("ps.json");
    const char *output =
        process_run(0, WAIT_MS, NULL,
                    ARGS(support_program("sparring"), "bench", "ps", "--workers", "2", "--servers",
                         "2", "--bytes", "300000", "--partition-bytes", "64K", "--iterations", "4",
                         "--warmup", "1", "--json", file));
    json_t *report = json_load_file(file, 0, NULL);
    const json_t *row = json_array_get(json_object_get(report, "rows"), 0);
    double seconds;

    ck_assert_ptr_nonnull(strstr(output, "raw GB/s"));
    ck_assert_ptr_nonnull(row);
    ck_assert_pstr_eq(json_string_value(json_object_get(report, "bench")), "ps");
    ck_assert_pstr_eq(json_string_value(json_object_get(row, "network")), "loopback");
    ck_assert(number(row, "workers") == 2 && number(row, "servers") == 2);
    ck_assert(number(row, "bytes") == 300000);
    seconds = number(row, "seconds");
    ck_assert_double_gt(seconds, 0);
    ck_assert_double_le(number(row, "seconds_min"), seconds);
    /* Two workers, both directions. */
    ck_assert_double_eq_tol(number(row, "gb_per_s") * seconds, 2 * 2 * 300000 * 1e-9, 1e-9);
    ck_assert_double_gt(number(row, "raw_gb_per_s"), 0);
    json_decref(report);
}
END_TEST

START_TEST(test_bad_words)
{
    const char *program = support_program("sparring");
    const char *output =
        process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "ps", "--bytes", "4097"));

    ck_assert_ptr_nonnull(strstr(output, "multiples of 4"));
    output = process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "ps", "--workers", "0"));
    ck_assert_ptr_nonnull(strstr(output, "workers"));
    output = process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "ps", "--as-worker", "1"));
    ck_assert_ptr_nonnull(strstr(output, "for bench ps itself"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_ps");
    TCase *tests = tcase_create("bench_ps");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_a_small_run);
    tcase_add_test(tests, test_bad_words);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
