/*
 * `sparring bench matmul` from the command line: a row per size and form, and the ceiling, which is
 * the best of them.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <string.h>

#define WAIT_MS 100000

START_TEST(test_rows_and_ceiling)
{
    static const char *const forms[] = {"forward", "backward_weight", "backward_input"};
    const char *file = support_path("matmul.json");
    const char *output = process_run(0, WAIT_MS, NULL,
                                     ARGS(support_program("sparring"), "bench", "matmul", "--sizes",
                                          "16,33", "--rounds", "2", "--json", file));
    json_t *report = json_load_file(file, 0, NULL);
    const json_t *rows = json_object_get(report, "rows");
    double ceiling = json_number_value(json_object_get(report, "ceiling_flop_per_s"));
    double best = 0;

    ck_assert_ptr_nonnull(strstr(output, "# cpu"));
    ck_assert_ptr_nonnull(strstr(output, "# ceiling: "));
    ck_assert_uint_eq(json_array_size(rows), 6);
    for (size_t i = 0; i < 6; i++) {
        const json_t *row = json_array_get(rows, i);
        double size = i < 3 ? 16 : 33;
        double seconds = json_number_value(json_object_get(row, "seconds"));
        double rate = json_number_value(json_object_get(row, "gflop_per_s"));
        double fastest = json_number_value(json_object_get(row, "gflop_per_s_max"));

        ck_assert(json_integer_value(json_object_get(row, "size")) == (json_int_t)size);
        ck_assert_pstr_eq(json_string_value(json_object_get(row, "form")), forms[i % 3]);
        ck_assert_double_eq_tol(rate * seconds, 2e-9 * size * size * size, 1e-11);
        best = fastest > best ? fastest : best;
    }
    ck_assert_double_eq_tol(ceiling, best * 1e9, best * 1e3);
    json_decref(report);
}
END_TEST

START_TEST(test_bad_options)
{
    const char *program = support_program("sparring");
    const char *output =
        process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "matmul", "--sizes", "16,none"));

    ck_assert_ptr_nonnull(strstr(output, "'none' is no size"));
    output = process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "matmul", "--device", "abacus"));
    ck_assert_ptr_nonnull(strstr(output, "device 'abacus'"));
    output = process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "matmul", "--precision", "bf16"));
    ck_assert_ptr_nonnull(strstr(output, "it has float32 only"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("bench_matmul", 120, TEST(test_rows_and_ceiling), TEST(test_bad_options));
}
