/*
 * Axes of a sweep: values and ranges, conditions, and the cells in order.
 */
#include "experiments/compare/axes.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct axes axes;
static struct error err;

static void add(const char *name, const char *value)
{
    assert_ok(axes_add_value(&axes, name, value, &err));
}

static void assert_cells(const char *const *names)
{
    struct cell *cells = NULL;
    size_t count = 0;

    assert_ok(axes_make_cells(&axes, &cells, &count, &err));
    for (size_t i = 0; i < count; i++)
        ck_assert_str_eq(names[i], cells[i].name);
    ck_assert_ptr_null(names[count]);
    free(cells);
}

START_TEST(test_values_and_ranges)
{
    add("a", "2");
    add("a", "1..7 +3");
    add("a", "x");
    add("b", "3..24 *2");
    add("c", "5..5 +1");
    ck_assert_uint_eq(axes.length, 3);
    ck_assert_uint_eq(axes.items[0].length, 5);
    ck_assert_str_eq(axes.items[0].values[2], "4");
    ck_assert_str_eq(axes.items[0].values[4], "x");
    ck_assert_uint_eq(axes.items[1].length, 4);
    ck_assert_str_eq(axes.items[1].values[3], "24");
    ck_assert_uint_eq(axes.items[2].length, 1);
}
END_TEST

START_TEST(test_cells)
{
    assert_cells((const char *const[]){"", NULL}); /* no axes: the experiment itself */
    add("nproc", "1..4 *2");
    add("servers", "1");
    add("servers", "2");
    add("model", "mlp:4-2/x");
    assert_cells((const char *const[]){
        "nproc=1,servers=1,model=mlp_4-2_x", "nproc=1,servers=2,model=mlp_4-2_x",
        "nproc=2,servers=1,model=mlp_4-2_x", "nproc=2,servers=2,model=mlp_4-2_x",
        "nproc=4,servers=1,model=mlp_4-2_x", "nproc=4,servers=2,model=mlp_4-2_x", NULL});
    assert_ok(axes_add_condition(&axes, "servers <= nproc", &err));
    assert_ok(axes_add_condition(&axes, "nproc!=2", &err));
    assert_cells((const char *const[]){"nproc=1,servers=1,model=mlp_4-2_x",
                                       "nproc=4,servers=1,model=mlp_4-2_x",
                                       "nproc=4,servers=2,model=mlp_4-2_x", NULL});
}
END_TEST

/* Every comparison of random numbers keeps exactly the cells for which it holds. */
START_TEST(test_conditions)
{
    static const char *const operations[] = {"<", "<=", "==", "!=", ">=", ">"};
    const int operation = _i;
    char condition[16];
    struct cell *cells = NULL;
    size_t count = 0, wanted = 0;

    for (const char *axis = "ab"; *axis; axis++)
        for (int k = 0; k < 6; k++) {
            char value[8];

            (void)snprintf(value, sizeof(value), "%d", 3 * k - (*axis == 'a'));
            add((const char[]){*axis, '\0'}, value);
        }
    add("b", "2"); /* equal to one of a, whose values are -1, 2, 5, ... */
    (void)snprintf(condition, sizeof(condition), "a %s b", operations[operation]);
    assert_ok(axes_add_condition(&axes, condition, &err));
    assert_ok(axes_make_cells(&axes, &cells, &count, &err));
    for (size_t i = 0; i < 6; i++)
        for (size_t k = 0; k < 7; k++) {
            const long a = 3 * (long)i - 1, b = k == 6 ? 2 : 3 * (long)k;
            const bool holds[] = {a<b, a <= b, a == b, a != b, a >= b, a> b};

            wanted += holds[operation];
        }
    ck_assert_uint_eq(count, wanted);
    free(cells);
}
END_TEST

START_TEST(test_refused_values)
{
    char long_value[300];

    add("a", "1");
    assert_fails(axes_add_value(&axes, "a", "1", &err), STATUS_CONFIG, "has the value '1' twice");
    assert_fails(axes_add_value(&axes, "a", "0..4 *2", &err), STATUS_CONFIG, "is a range without");
    assert_fails(axes_add_value(&axes, "a", "8..4 +1", &err), STATUS_CONFIG, "is a range without");
    assert_fails(axes_add_value(&axes, "a", "1..4 *1", &err), STATUS_CONFIG, "is a range without");
    assert_fails(axes_add_value(&axes, "a", "1..4 +0", &err), STATUS_CONFIG, "is a range without");
    assert_fails(axes_add_value(&axes, "a", "1..9 +9223372036854775807", &err), STATUS_CONFIG,
                 "is a range without");
    assert_fails(axes_add_value(&axes, "a", "-9223372036854775807..9 +2147483647", &err),
                 STATUS_CONFIG, "is a range without");
    assert_fails(axes_add_value(&axes, "a", "2..99 +1", &err), STATUS_CONFIG,
                 "has more than 64 values");
    memset(long_value, 'x', sizeof(long_value) - 1);
    long_value[sizeof(long_value) - 1] = '\0';
    assert_fails(axes_add_value(&axes, "b", long_value, &err), STATUS_CONFIG,
                 "more than 255 bytes");
    for (int i = 2; i < AXES_MAX; i++)
        add((const char[]){(char)('a' + i), '\0'}, "1");
    assert_fails(axes_add_value(&axes, "z", "1", &err), STATUS_CONFIG, "one axis too many (6)");
}
END_TEST

static const char *const conditions[] = {"", "a", "a <", "a = 1", "a <> 1", "a < 1 2", "a << 1"};

START_TEST(test_refused_conditions)
{
    assert_fails(axes_add_condition(&axes, conditions[_i], &err), STATUS_CONFIG,
                 "must be a condition on axes");
}
END_TEST

START_TEST(test_refused_cells)
{
    struct cell *cells = NULL;
    size_t count;
    struct axes start;

    add("a", "1");
    add("a", "x");
    start = axes;
    assert_ok(axes_add_condition(&axes, "b < 1", &err));
    assert_fails(axes_make_cells(&axes, &cells, &count, &err), STATUS_CONFIG,
                 "where: 'b' is neither an axis nor a number");
    free(cells);
    axes = start;
    assert_ok(axes_add_condition(&axes, "a < 2", &err));
    assert_fails(axes_make_cells(&axes, &cells, &count, &err), STATUS_CONFIG,
                 "where: 'x' and '2' are not numbers");
    free(cells);
    axes = start;
    assert_ok(axes_add_condition(&axes, "a == 7", &err));
    assert_fails(axes_make_cells(&axes, &cells, &count, &err), STATUS_CONFIG,
                 "where: no cell meets all conditions");
    free(cells);
    axes = start;
    add("a", "x:");
    add("a", "x/");
    assert_fails(axes_make_cells(&axes, &cells, &count, &err), STATUS_CONFIG,
                 "two cells would have the folder 'a=x_'");
    free(cells);
    axes = (struct axes){0};
    add("a", "1..32 +1");
    add("b", "1..32 +1");
    assert_fails(axes_make_cells(&axes, &cells, &count, &err), STATUS_CONFIG,
                 "more than 1000 cells");
    free(cells);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "compare axes", 0, TEST(test_values_and_ranges), TEST(test_cells),
        LOOP_TEST(test_conditions, 0, 6), TEST(test_refused_values),
        LOOP_TEST(test_refused_conditions, 0, sizeof(conditions) / sizeof(conditions[0])),
        TEST(test_refused_cells));
}
