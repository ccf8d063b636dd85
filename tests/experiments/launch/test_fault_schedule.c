/*
 * The fault schedule: the meaning of its rules, what is drawn, and every kind of bad line, reported
 * with its number.
 */
#include "experiments/launch/fault_schedule.h"

#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000000)

static const struct network_link links[6] = {{.rate = 1e9}, {.rate = 1e9}, {.rate = 1e9},
                                             {.rate = 1e9}, {.rate = 0},   {.rate = 1e9}};
static const struct fault_targets all = {.servers = 2,
                                         .ranks = 4,
                                         .hosts = 6,
                                         .worker_hosts = 4,
                                         .links = links,
                                         .servers_restart = true,
                                         .ranks_restart = true};
static struct error err;

static enum status read_text(const char *text, uint64_t seed, const struct fault_targets *targets,
                             struct fault_schedule *ret)
{
    return fault_schedule_read(support_write("faults", text, strlen(text)), seed, targets, ret,
                               &err);
}

static void assert_fault(const struct scheduled_fault *f, enum fault_action action,
                         const char *target, size_t index, int64_t begin_ns, int64_t length_ns)
{
    ck_assert_int_eq(f->action, action);
    ck_assert_str_eq(f->target, target);
    ck_assert_uint_eq(f->index, index);
    ck_assert_int_eq(f->begin_ns, begin_ns);
    ck_assert_int_eq(f->length_ns, length_ns);
}

START_TEST(test_rules)
{
    struct fault_schedule s;

    assert_ok(read_text("# AT WHAT WHERE\n"
                        "2 pause rank1 for 0.5\n"
                        "0.25\tkill  server0   # at once\r\n"
                        "\n"
                        "3 cut host5 for 1\n"
                        "0 slow host0 100mbit",
                        1, &all, &s));
    ck_assert_uint_eq(s.length, 4);
    assert_fault(&s.faults[0], FAULT_PAUSE, "rank1", 3, 2 * SECOND, SECOND / 2);
    assert_fault(&s.faults[1], FAULT_KILL, "server0", 0, SECOND / 4, INT64_MAX);
    assert_fault(&s.faults[2], FAULT_CUT, "host5", 5, 3 * SECOND, SECOND);
    assert_fault(&s.faults[3], FAULT_SLOW, "host0", 0, 0, INT64_MAX);
    ck_assert_double_eq(s.faults[3].rate, 1e8);
    ck_assert(s.changes_links);
    fault_schedule_release(&s);
    assert_ok(read_text("1 pause server1", 1, &all, &s));
    ck_assert(!s.changes_links);
    fault_schedule_release(&s);
    assert_ok(fault_schedule_read("", 1, &all, &s, &err));
    ck_assert_uint_eq(s.length, 0);
}
END_TEST

/* Over many seeds: every time within its bounds, with the mean of an even draw, and every rank as
 * often; hosts are those of workers.  Bounds are five standard deviations. */
START_TEST(test_draws)
{
    enum { SEEDS = 2000 };
    static const char text[] = "1-3 pause rank*\n2 cut host*";
    const char *path = support_write("faults", text, strlen(text));
    const uint64_t first = (uint64_t)(support_random() * UINT32_MAX);
    size_t ranks[4] = {0}, hosts[4] = {0};
    double sum = 0;

    for (uint64_t seed = first; seed < first + SEEDS; seed++) {
        struct fault_schedule s, again;

        assert_ok(fault_schedule_read(path, seed, &all, &s, &err));
        assert_ok(fault_schedule_read(path, seed, &all, &again, &err));
        ck_assert_int_eq(s.faults[0].begin_ns, again.faults[0].begin_ns);
        ck_assert_uint_eq(s.faults[0].index, again.faults[0].index);
        ck_assert_uint_eq(s.faults[1].index, again.faults[1].index);
        ck_assert_int_ge(s.faults[0].begin_ns, SECOND);
        ck_assert_int_lt(s.faults[0].begin_ns, 3 * SECOND);
        ck_assert_uint_lt(s.faults[1].index, 4);
        sum += (double)s.faults[0].begin_ns / SECOND;
        ranks[s.faults[0].index - all.servers]++;
        hosts[s.faults[1].index]++;
        fault_schedule_release(&s);
        fault_schedule_release(&again);
    }
    /* An even draw of width 2 has a variance of 1/3. */
    ck_assert_double_eq_tol(sum / SEEDS, 2, 5 * sqrt(1.0 / 3 / SEEDS));
    for (size_t i = 0; i < 4; i++) {
        const double sd = sqrt(SEEDS * 0.25 * 0.75);

        ck_assert_double_eq_tol((double)ranks[i], SEEDS / 4.0, 5 * sd);
        ck_assert_double_eq_tol((double)hosts[i], SEEDS / 4.0, 5 * sd);
    }
}
END_TEST

static const struct {
    const char *rule, *message;
} bad_rules[] = {
    {"1 pause", "a rule of another length"},
    {"1 pause rank0 for", "a rule of another length"},
    {"1 pause rank0 until 2", "a rule of another length"},
    {"1 pause rank0 for 1 2 3 4", "a rule of another length"},
    {"1 slow host0", "a rule of another length"},
    {"-1 pause rank0", "no such time"},
    {"2-1 pause rank0", "no such time"},
    {"1- pause rank0", "no such time"},
    {"nan pause rank0", "no such time"},
    {"1e7 pause rank0", "no such time"},
    {"1 stop rank0", "no such fault"},
    {"1 pause rank4", "no such process"},
    {"1 pause rank", "no such process"},
    {"1 pause rank-1", "no such process"},
    {"1 pause rank**", "no such process"},
    {"1 pause host0", "no such process"},
    {"1 kill server2", "no such process"},
    {"1 cut rank0", "no such host"},
    {"1 cut host6", "no such host"},
    {"1 slow host0 100", "no such rate"},
    {"1 slow host0 1kbit", "no such rate"},
    {"1 cut host0 for -1", "no such duration"},
    {"1 cut host0 for x", "no such duration"},
};

START_TEST(test_bad_rules)
{
    struct fault_schedule s;
    char text[256], message[256];

    (void)snprintf(text, sizeof(text), "# first\n0 pause rank0 for 1\n%s\n", bad_rules[_i].rule);
    (void)snprintf(message, sizeof(message), ":3: %s", bad_rules[_i].message);
    assert_fails(read_text(text, 1, &all, &s), STATUS_CONFIG, message);
    ck_assert_ptr_null(s.faults);
}
END_TEST

/* What the job does not have. */
START_TEST(test_missing)
{
    struct fault_targets without = all;
    struct fault_schedule s;

    without.ranks_restart = false;
    assert_fails(read_text("1 kill server0 for 2\n1 kill rank0 for 2", 1, &without, &s),
                 STATUS_CONFIG, ":2: no rank is started again here");
    without = all;
    without.servers_restart = false;
    assert_fails(read_text("1 kill rank0 for 2\n1 kill server0 for 2", 1, &without, &s),
                 STATUS_CONFIG, ":2: no server is started again here");
    assert_fails(read_text("1 slow host4 1gbit", 1, &all, &s), STATUS_CONFIG,
                 "no rate to return to");
    without.hosts = 0;
    assert_fails(read_text("1 cut host0", 1, &without, &s), STATUS_CONFIG, "no emulated network");
    without.servers = 0;
    assert_fails(read_text("1 pause server*", 1, &without, &s), STATUS_CONFIG, "no such process");
    assert_fails(fault_schedule_read("no-such-file", 1, &all, &s, &err), STATUS_NOT_FOUND,
                 "no-such-file");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("fault_schedule", 0, TEST(test_rules), TEST(test_draws),
                       LOOP_TEST(test_bad_rules, 0, sizeof(bad_rules) / sizeof(bad_rules[0])),
                       TEST(test_missing));
}
