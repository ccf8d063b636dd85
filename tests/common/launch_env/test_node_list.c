/*
 * Slurm's compressed texts: what `scontrol show hostnames` prints first, task counts against a
 * plain expansion, and texts that are truncated, malformed or hostile.
 */
#include "tests/common/launch_env/test_node_list.h"

#include "common/launch_env/launch_env.h"
#include "common/launch_env/node_list.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

static const char *const good_lists[][2] = {
    {"login", "login"},
    {"gnode[10,20-25],other", "gnode10"},
    {"gnode[10,20,25,37]", "gnode10"},
    {"n[08-10]", "n08"},
    {"n[8-8]", "n8"},
    {"n[099-100]", "n099"},
    {"rack[0-1]node[3,5]", "rack0node3"},
    {"n[1-2]-ib0", "n1-ib0"},
    {"a.cluster.org,b[1-2]", "a.cluster.org"},
    {"node_7", "node_7"},
    {"n[18446744073709551616-18446744073709551617]", "n18446744073709551616"},
};

START_TEST(first_host_of_a_list)
{
    struct error err = {0};
    char text[64] = "";

    assert_ok(launch_env_first_host(good_lists[_i][0], text, sizeof(text), &err));
    ck_assert_str_eq(text, good_lists[_i][1]);
}
END_TEST

static const char *const bad_lists[] = {
    "",      ",",     "a,",    "a,,b",   "n[",      "n[1",     "n[1-",   "n[1-2",   "n[]",
    "n[,1]", "n[1,]", "n[a]",  "n[2-1]", "n[10-9]", "n[1-2]]", "n]",     "n[1[2]]", "n[1--2]",
    "a b",   "a;b",   "n[1 ]", "a,n[2-", "\xff",    "n(x2)",   "n[1:2]", "[",       "a\n",
};

START_TEST(broken_lists_are_refused)
{
    struct error err = {0};
    char text[64] = "kept";

    assert_fails(launch_env_first_host(bad_lists[_i], text, sizeof(text), &err), STATUS_CONFIG,
                 "is not a Slurm node list");
    ck_assert_str_eq(text, "kept");
}
END_TEST

START_TEST(host_that_does_not_fit)
{
    struct error err = {0};
    char text[6] = "kept";
    char longest[400];

    assert_fails(launch_env_first_host("gnode1", text, sizeof(text), &err), STATUS_CONFIG,
                 "does not fit");
    ck_assert_str_eq(text, "kept");
    assert_ok(launch_env_first_host("node1", text, sizeof(text), &err));
    ck_assert_str_eq(text, "node1");
    memset(longest, 'h', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_fails(launch_env_first_host(longest, text, sizeof(text), &err), STATUS_CONFIG,
                 "is not a Slurm node list");
}
END_TEST

/* Random lists written from a known expansion. */
START_TEST(tasks_against_an_expansion)
{
    struct error err = {0};

    for (int round = 0; round < 200; round++) {
        unsigned expanded[64];
        unsigned count = 0;
        unsigned tasks;
        char text[256];
        int length = 0;

        while (count < 40 && (count == 0 || support_random() < 0.8)) {
            unsigned value = (unsigned)(support_random() * 20);
            unsigned repeat = 1 + (unsigned)(support_random() * 5);

            length += snprintf(text + length, sizeof(text) - (size_t)length,
                               repeat == 1 ? "%s%u" : "%s%u(x%u)", count ? "," : "", value, repeat);
            for (unsigned i = 0; i < repeat; i++)
                expanded[count++] = value;
        }
        for (unsigned i = 0; i < count; i++) {
            assert_ok(node_list_tasks(text, i, &tasks, &err));
            ck_assert_msg(tasks == expanded[i], "'%s' node %u", text, i);
        }
        assert_fails(node_list_tasks(text, count, &tasks, &err), STATUS_CONFIG, "ends before");
    }
}
END_TEST

static const char *const bad_tasks[] = {"",       "x",    "(x2)", "2(",        "2(x", "2(x)",
                                        "2(3)",   "2(x2", ",2",   "-1",        "2 ",  "2(x0)",
                                        "2(x0)5", "0x2",  "2,",   "9999999999"};

START_TEST(broken_task_lists_are_refused)
{
    struct error err = {0};
    unsigned tasks = 77;

    ck_assert_int_eq(node_list_tasks(bad_tasks[_i], 3, &tasks, &err), STATUS_CONFIG);
    ck_assert_int_eq(err.status, STATUS_CONFIG);
    ck_assert_uint_eq(tasks, 77);
}
END_TEST

TCase *node_list_cases(void)
{
    TCase *cases = tcase_create("node_list");

    tcase_add_loop_test(cases, first_host_of_a_list, 0, sizeof(good_lists) / sizeof(*good_lists));
    tcase_add_loop_test(cases, broken_lists_are_refused, 0, sizeof(bad_lists) / sizeof(*bad_lists));
    tcase_add_test(cases, host_that_does_not_fit);
    tcase_add_test(cases, tasks_against_an_expansion);
    tcase_add_loop_test(cases, broken_task_lists_are_refused, 0,
                        sizeof(bad_tasks) / sizeof(*bad_tasks));
    return cases;
}
