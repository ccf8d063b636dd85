/*
 * The shm backend under the suite of all backends, and what it alone has to show.
 */
#include "tests/common/collective/collective_suite.h"
#include "tests/common/collective/ring_world.h"

#include <string.h>

#define RANKS 5

START_TEST(sums_are_exact)
{
    suite_exact_sums("shm", RANKS, false);
}
END_TEST

START_TEST(sums_keep_rank_order)
{
    suite_random_sums("shm", RANKS, true);
}
END_TEST

START_TEST(special_values_pass)
{
    suite_special_values("shm", RANKS, false);
}
END_TEST

START_TEST(broadcasts)
{
    suite_broadcast("shm", RANKS);
}
END_TEST

START_TEST(gathers)
{
    suite_all_gather("shm", RANKS);
}
END_TEST

START_TEST(barriers)
{
    suite_barrier("shm", RANKS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collective_shm");
    TCase *tests = tcase_create("collective_shm");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, sums_are_exact);
    tcase_add_test(tests, sums_keep_rank_order);
    tcase_add_test(tests, special_values_pass);
    tcase_add_test(tests, broadcasts);
    tcase_add_test(tests, gathers);
    tcase_add_test(tests, barriers);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
