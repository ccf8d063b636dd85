/*
 * `sparring bench optimizer` from the command line: copy and updates with the bytes of their
 * formulas, and the rates and shares computed from them.
 */
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <string.h>

#define WAIT_MS  100000
#define ELEMENTS 300001

static double number_of(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);

    ck_assert_msg(json_is_number(value), "no %s", name);
    return json_number_value(value);
}

START_TEST(test_rows)
{
    static const struct {
        const char *turn;
        double bytes;
    } wanted[] = {{"copy", 8}, {"sgd", 12}, {"momentum", 20}, {"adamw", 28}};
    const char *file = support_path("optimizer.json");
    const char *output = process_run(0, WAIT_MS, NULL,
                                     ARGS(support_program("sparring"), "bench", "optimizer",
                                          "--elements", "300001", "--rounds", "1", "--json", file));
    json_t *report = json_load_file(file, 0, NULL);
    const json_t *rows = json_object_get(report, "rows");
    double copy;

    ck_assert_ptr_nonnull(strstr(output, "# cpu"));
    ck_assert_uint_eq(json_array_size(rows), 4);
    copy = number_of(json_array_get(rows, 0), "gb_per_s");
    for (size_t i = 0; i < 4; i++) {
        const json_t *row = json_array_get(rows, i);
        double gigabytes = wanted[i].bytes * ELEMENTS * 1e-9;
        double rate = number_of(row, "gb_per_s");

        ck_assert_pstr_eq(json_string_value(json_object_get(row, "turn")), wanted[i].turn);
        ck_assert(number_of(row, "bytes_per_element") == wanted[i].bytes);
        ck_assert(number_of(row, "elements") == ELEMENTS);
        ck_assert_double_eq_tol(rate * number_of(row, "seconds"), gigabytes, 1e-6 * gigabytes);
        ck_assert_double_eq_tol(number_of(row, "share_of_copy"), rate / copy, 1e-6 * rate / copy);
    }
    json_decref(report);
}
END_TEST

START_TEST(test_bad_options)
{
    const char *program = support_program("sparring");
    const char *output =
        process_run(2, WAIT_MS, NULL, ARGS(program, "bench", "optimizer", "--elements", "0"));

    ck_assert_ptr_nonnull(strstr(output, "elements"));
    output =
        process_run(2, WAIT_MS, NULL,
                    ARGS(program, "bench", "optimizer", "--precision", "bf16", "--elements", "10"));
    ck_assert_ptr_nonnull(strstr(output, "it has float32 only"));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("bench_optimizer", 120, TEST(test_rows), TEST(test_bad_options));
}
