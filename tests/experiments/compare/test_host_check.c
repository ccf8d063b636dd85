/*
 * host_check: what an engine's hosts answer, and what follows.  The engine here runs the script on
 * this host for each of its hosts, whose lines have their numbers; a filter on what the last one
 * printed makes another host of it.  Links are not measured: the tests of clusters do that.
 */
#include "experiments/compare/host_check.h"

#include "common/base/file.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUIET  "sub(/ cpu .*/, \" cpu 0 0 0 0 0 0 0 0 cpu 1 0 0 7 0 0 0 0\"); "
#define BUSY   "sub(/ cpu .*/, \" cpu 0 0 0 0 0 0 0 0 cpu 40 0 2 58 0 0 0 0\"); "
#define PRINTS "print n \": \" $0"

static const char *filter; /* of awk, on the last host; n is its number */
static bool is_lost;

static bool is_running(void)
{
    return !is_lost;
}

static enum status read_hosts(const char *on, struct text_list *ret, struct error *err)
{
    (void)err;
    *ret = (struct text_list){0};
    for (const char *c = on; *c; c += strcspn(c, ","), c += *c == ',')
        text_list_addf(ret, "%.*s", (int)strcspn(c, ","), c);
    return STATUS_OK;
}

static void add_command(const struct engine_step *step, struct text_list *words)
{
    text_list_addf(words, "sh");
    text_list_addf(words, "-c");
    text_list_addf(words, "last=$1 f=$2; shift 2; for n in $(seq 0 \"$last\"); do "
                          "[ $n = $last ] || \"$@\" | awk -v n=$n '{ " QUIET PRINTS " }'; done; "
                          "\"$@\" | awk -v n=$last \"$f\"");
    text_list_addf(words, "sh");
    text_list_addf(words, "%zu", step->length - 1);
    text_list_addf(words, "{ %s }", filter);
    for (const char *const *word = step->program; *word; word++)
        text_list_addf(words, "%s", *word);
}

static const struct engine engine = {
    .name = "test", .is_running = is_running, .read_hosts = read_hosts, .add_command = add_command};
static struct experiment experiment = {.engine = &engine, .on = "n1"};
static struct host_check check;
static char programs[4096];
static struct error err;

static void setup(void)
{
    (void)snprintf(programs, sizeof(programs), "%s", support_path("."));
    ck_assert(process_shell("cd %s && touch sparring sparring-worker && echo >sparring-server && "
                            "echo {} >plan.json",
                            programs));
    filter = QUIET PRINTS;
    assert_ok(host_check_open(&experiment, programs, programs, &check, &err));
}

static void teardown(void)
{
    host_check_close(&check);
}

static char *read_records(void)
{
    char *text;
    size_t size;

    assert_ok(file_read(support_path("hosts.jsonl"), 1 << 20, &text, &size, &err));
    return text;
}

/* This host does not see the folder either. */
START_TEST(test_no_plan)
{
    ck_assert_int_eq(unlink(support_path("plan.json")), 0);
    assert_fails(host_check_block(&check, &err), STATUS_CONFIG, "host n1 does not see ");
}
END_TEST

START_TEST(test_as_it_should_be)
{
    char *records;

    assert_ok(host_check_block(&check, &err));
    records = read_records();
    assert_contains(records, "\"busy\":0.125,\"clock_s\":0,\"link_gbit\":null,\"problem\":\"\"}");
    free(records);

    /* The next block is within the minute. */
    filter = "exit";
    assert_ok(host_check_block(&check, &err));
}
END_TEST

static const struct {
    const char *on, *filter, *error;
} refused[] = {
    {"n1,n2", QUIET "$1 += 1; " PRINTS, "host n2 has other programs than this one, or none"},
    {"n1,n2", QUIET "$2 += 1; " PRINTS, "host n2 has other programs than this one, or none"},
    {"n1,n2", "print n \": does not see /x/plan.json\"",
     "host n2 does not see /x/plan.json: --out must be a folder that all hosts share"},
    {"n1", "print \"sh: nothing\"", "host n1 did not answer: sh: nothing"},
    {"n1,n2", "print \"ssh: no route\"", "host n2 did not answer: ssh: no route ('"},
    {"n1,n2", "", "host n2 did not answer ('"},
    {"n1", "", "host n1 did not answer ('"},
};

START_TEST(test_refused)
{
    host_check_close(&check);
    experiment.on = refused[_i].on;
    assert_ok(host_check_open(&experiment, programs, programs, &check, &err));
    filter = refused[_i].filter;
    assert_fails(host_check_block(&check, &err), STATUS_CONFIG, refused[_i].error);
}
END_TEST

static const struct {
    const char *filter, *problem;
} problems[] = {
    {BUSY PRINTS, "others use 42 % of the processors of host n1"},
    {QUIET "CONVFMT = \"%.3f\"; $3 += 100; " PRINTS, " s ahead of this host's (NTP)"},
    {QUIET "CONVFMT = \"%.3f\"; $3 -= 100; " PRINTS, " s behind this host's (NTP)"},
};

/* A warning, and the block runs. */
START_TEST(test_problems)
{
    char *records;

    filter = problems[_i].filter;
    assert_ok(host_check_block(&check, &err));
    records = read_records();
    assert_contains(records, problems[_i].problem);
    free(records);
}
END_TEST

/* Until the problem is gone. */
START_TEST(test_waits)
{
    char *records, line[4400];

    experiment.needs_quiet_hosts = true;
    (void)snprintf(line, sizeof(line),
                   "f = \"%s/looked\"; if ((getline x < f) < 0) { " BUSY "printf \"\" > f } "
                   "else { " QUIET "} " PRINTS,
                   programs);
    filter = line;
    assert_ok(host_check_block(&check, &err));
    records = read_records();
    assert_contains(records, "others use 42 %");
    ck_assert_ptr_nonnull(strstr(strchr(records, '\n'), "\"problem\":\"\"}"));
    free(records);
}
END_TEST

START_TEST(test_lost_allocation)
{
    filter = "";
    is_lost = true;
    assert_fails(host_check_block(&check, &err), STATUS_CANCELLED, "the allocation has ended");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("compare_host_check", 60, CHECKED_FIXTURE(setup, teardown),
                       TEST(test_as_it_should_be), TEST(test_no_plan),
                       LOOP_TEST(test_refused, 0, 6), LOOP_TEST(test_problems, 0, 3),
                       TEST(test_waits), TEST(test_lost_allocation));
}
