/*
 * `sparring bench train` as a user runs it, small: the control and both ways of synchronising, the
 * JSON file.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <string.h>

#define WAIT_MS 100000

START_TEST(test_a_small_run)
{
    static const char *const syncs[] = {"local", "allreduce", "ps"};
    const char *file = support_path("train.json");
    const char *output = process_run(0, WAIT_MS, NULL,
                                     ARGS(support_program("sparring"), "bench", "train", "--model",
                                          "mlp:20-16-4", "--batch-size", "8", "--nproc", "2",
                                          "--steps", "30", "--repeats", "2", "--json", file));
    json_t *report = json_load_file(file, 0, NULL);
    const json_t *rows = json_object_get(report, "rows");

    ck_assert_ptr_nonnull(strstr(output, "x control"));
    ck_assert_uint_eq(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        double ms = json_number_value(json_object_get(row, "step_ms"));
        double rate = json_number_value(json_object_get(row, "samples_per_s"));

        ck_assert_pstr_eq(json_string_value(json_object_get(row, "sync")), syncs[i]);
        ck_assert_pstr_eq(json_string_value(json_object_get(row, "model")), "mlp:20-16-4");
        ck_assert_int_eq(json_integer_value(json_object_get(row, "nranks")), 2);
        ck_assert_int_eq(json_integer_value(json_object_get(row, "batch")), 8);
        ck_assert_double_gt(ms, 0);
        ck_assert_double_le(json_number_value(json_object_get(row, "step_ms_min")), ms);
        ck_assert_double_eq_tol(rate * ms, 2 * 8 * 1e3, 1e-3);
    }
    json_decref(report);
}
END_TEST

START_TEST(test_bad_words)
{
    const char *program = support_program("sparring");
    const char *output =
        process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "train", "--sync", "gossip"));

    ck_assert_ptr_nonnull(strstr(output, "gossip"));
    output = process_run(1, WAIT_MS, NULL,
                         ARGS(program, "bench", "train", "--model", "mlp:4-0-2", "--repeats", "1"));
    ck_assert_ptr_nonnull(strstr(output, "its output is in"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench_train");
    TCase *tests = tcase_create("bench_train");

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, test_a_small_run);
    tcase_add_test(tests, test_bad_words);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
