/*
 * The delay schedule: the meaning of its rules, and every kind of bad line, reported with its
 * number.
 */
#include "worker/train/delay_schedule.h"

#include "common/base/strbuf.h"
#include "tests/support/support.h"

#include <string.h>

#define MS INT64_C(1000000)

static struct error err;

static enum status read_text(const char *text, struct delay_schedule *ret)
{
    return delay_schedule_read(support_write("delays", text, strlen(text)), 4, ret, &err);
}

START_TEST(test_rules)
{
    struct delay_schedule s;

    assert_ok(read_text("# who is slow\n"
                        "0 3 10\n"
                        "  1\t0- 5   # always\r\n"
                        "1 2-4 20\n"
                        "\n"
                        "3 2- 5%\n"
                        "3 4 20%\n"
                        "staleness 2 0-9 3\n"
                        "staleness 3 7 0",
                        &s));
    ck_assert_int_eq(delay_schedule_ns(&s, 0, 2), 0);
    ck_assert_int_eq(delay_schedule_ns(&s, 0, 3), 10 * MS);
    ck_assert_int_eq(delay_schedule_ns(&s, 0, 4), 0);
    ck_assert_int_eq(delay_schedule_ns(&s, 1, 0), 5 * MS);
    ck_assert_int_eq(delay_schedule_ns(&s, 1, 3), 25 * MS);
    ck_assert_int_eq(delay_schedule_ns(&s, 1, 5), 5 * MS);
    ck_assert_int_eq(delay_schedule_ns(&s, 1, 4000000), 5 * MS);
    ck_assert_int_eq(delay_schedule_ns(&s, 2, 3), 0);
    ck_assert_int_eq(delay_schedule_ns(&s, 3, 2), 0);
    ck_assert_double_eq(delay_schedule_share(&s, 3, 1), 0);
    ck_assert_double_eq(delay_schedule_share(&s, 3, 2), 0.05);
    ck_assert_double_eq_tol(delay_schedule_share(&s, 3, 4), 0.25, 1e-15);
    ck_assert_double_eq(delay_schedule_share(&s, 1, 3), 0);
    ck_assert_uint_eq(s.staleness_count, 2);
    ck_assert_uint_eq(s.staleness[0].rank, 2);
    ck_assert_uint_eq(s.staleness[0].steps, 3);
    ck_assert_uint_eq(s.staleness[0].first, 1); /* rounds count from 1 */
    ck_assert_uint_eq(s.staleness[0].last, 10);
    ck_assert_uint_eq(s.staleness[1].first, 8);
    ck_assert_uint_eq(s.staleness[1].last, 8);
    delay_schedule_resume(&s, 8); /* the rounds of the rest begin at 1 */
    ck_assert_uint_eq(s.staleness_count, 1);
    ck_assert_uint_eq(s.staleness[0].rank, 2);
    ck_assert_uint_eq(s.staleness[0].first, 1);
    ck_assert_uint_eq(s.staleness[0].last, 2);
    ck_assert_int_eq(delay_schedule_ns(&s, 0, 3), 10 * MS); /* those of steps stay */
    delay_schedule_release(&s);
}
END_TEST

START_TEST(test_no_schedule)
{
    struct delay_schedule s;

    assert_ok(delay_schedule_read("", 4, &s, &err));
    ck_assert_uint_eq(s.hash, 0);
    ck_assert_int_eq(delay_schedule_ns(&s, 0, 0), 0);
    delay_schedule_release(&s);
}
END_TEST

/* Ranks compare the hash: it depends on the rules only, not on comments or spaces. */
START_TEST(test_hash)
{
    struct delay_schedule a, b, c;

    assert_ok(read_text("0 3 10\n1 4 20\n", &a));
    assert_ok(read_text("# a comment\n0  3\t10 # more\n\n1 4 20", &b));
    assert_ok(read_text("0 3 10\n1 4 21\n", &c));
    ck_assert_uint_eq(a.hash, b.hash);
    ck_assert_uint_ne(a.hash, c.hash);
    ck_assert_uint_ne(a.hash, 0);
    delay_schedule_release(&a);
    delay_schedule_release(&b);
    delay_schedule_release(&c);
}
END_TEST

static const struct {
    const char *text, *wanted;
} bad[] = {
    {"0 3 10\n4 3 10\n", "delays:2: no such rank"},
    {"-1 3 10", "no such rank"},
    {"x 3 10", "delays:1: no such rank"},
    {"0 3", "a rule of another length"},
    {"0 3 10 5", "a rule of another length"},
    {"0 3 10 5 6 7 8", "a rule of another length"},
    {"0 5-3 10", "no such steps"},
    {"0 -3 10", "no such steps"},
    {"0 3-4-5 10", "no such steps"},
    {"0 99999999999999999999 10", "no such steps"},
    {"0 3 -10", "no such delay"},
    {"0 3 1.5", "no such delay"},
    {"0 3 1.5%", "no such share"},
    {"0 3 %", "no such share"},
    {"0 3 5%%", "no such delay"},
    {"0 3 100001%", "no such share (whole percent, at most 100000)"},
    {"0 3 3600001", "no such delay (whole milliseconds, at most an hour)"},
    {"staleness 0 3", "a rule of another length"},
    {"staleness 9 3 1", "no such rank"},
    {"staleness 0 3 1000001", "no such staleness"},
    {"stale 0 3 1", "a rule of another length"},
};

START_TEST(test_bad_lines)
{
    struct delay_schedule s;

    assert_fails(read_text(bad[_i].text, &s), STATUS_CONFIG, bad[_i].wanted);
    ck_assert_ptr_null(s.delays);
}
END_TEST

START_TEST(test_bad_files)
{
    struct delay_schedule s;

    assert_fails(delay_schedule_read(support_path("nowhere"), 4, &s, &err), STATUS_NOT_FOUND,
                 "nowhere");
    assert_fails(delay_schedule_read(support_write("nul", "0 3\0 10", 8), 4, &s, &err),
                 STATUS_CONFIG, "NUL byte");
}
END_TEST

START_TEST(test_too_many_rules)
{
    struct strbuf text = STRBUF_INIT;
    struct delay_schedule s;

    for (unsigned i = 0; i < CONSISTENCY_RULES_MAX; i++)
        strbuf_add(&text, "staleness 0 1 1\n");
    assert_ok(read_text(text.text, &s));
    ck_assert_uint_eq(s.staleness_count, CONSISTENCY_RULES_MAX);
    delay_schedule_release(&s);
    strbuf_add(&text, "staleness 0 1 1\n");
    assert_fails(read_text(text.text, &s), STATUS_CONFIG, ":1025: more than 1024 rules");
    strbuf_release(&text);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("delay_schedule", 0, TEST(test_rules), TEST(test_no_schedule),
                       TEST(test_hash), LOOP_TEST(test_bad_lines, 0, sizeof(bad) / sizeof(bad[0])),
                       TEST(test_bad_files), TEST(test_too_many_rules));
}
