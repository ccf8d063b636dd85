/*
 * host_load: shares between two lines of /proc/stat.
 */
#include "experiments/cluster/host_load.h"

#include "tests/support/support.h"

#include <math.h>

START_TEST(test_shares)
{
    struct host_load load;

    ck_assert(host_load_read("cpu  100 10 50 1000 40 1 2 7 0 0",
                             "cpu  150 20 80 1080 60 2 3 17 9 9 x", &load));
    ck_assert_double_eq_tol(load.busy, (50 + 10 + 30 + 1 + 1) / 202.0, 1e-12);
    ck_assert_double_eq_tol(load.stolen, 10 / 202.0, 1e-12);
}
END_TEST

/* Idle time may run back a little. */
START_TEST(test_never_negative)
{
    struct host_load load;

    ck_assert(host_load_read("cpu 0 0 0 100 10 0 0 0", "cpu 0 0 0 121 9 0 0 0", &load));
    ck_assert_double_eq(load.busy, 0);
    ck_assert(host_load_read("cpu 1 0 0 100 0 0 0 0", "cpu 0 0 0 121 0 0 0 0", &load));
    ck_assert_double_eq(load.busy, 0);
}
END_TEST

static const struct {
    const char *before, *after;
} no_shares[] = {
    {"cpu 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 8"}, /* no time has passed */
    {"cpu 1 2 3 4 5 6 7", "cpu 2 3 4 5 6 7 8 9"},   /* too short */
    {"cpu0 1 2 3 4 5 6 7 8", "cpu 2 3 4 5 6 7 8 9"}, {"", "cpu 2 3 4 5 6 7 8 9"},
    {"cpu 1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 8 9"},
};

START_TEST(test_no_shares)
{
    struct host_load load = {.busy = (double)NAN};

    ck_assert(!host_load_read(no_shares[_i].before, no_shares[_i].after, &load));
    ck_assert_double_eq(load.busy, 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("host_load", 10, TEST(test_shares), TEST(test_never_negative),
                       LOOP_TEST(test_no_shares, 0, 5));
}
