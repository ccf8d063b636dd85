/*
 * Texts, numbers and allocation: status, error, strbuf, parse, memory, clock.
 */
#include "tests/common/base/test_base.h"

#include "common/base/clock.h"
#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/strbuf.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(status_names_texts_and_exit_codes)
{
    ck_assert_str_eq(status_name(STATUS_TIMEOUT), "TIMEOUT");
    ck_assert_str_eq(status_text(STATUS_PEER_LOST), "peer lost");
    ck_assert_int_eq(status_exit_code(STATUS_OK), 0);
    ck_assert_int_eq(status_exit_code(STATUS_CANCELLED), 6);
    ck_assert_int_eq(status_exit_code((enum status)77), 1);
    ck_assert_str_eq(status_name((enum status)77), "?");
    ck_assert(status_is_known(STATUS_INTERNAL) && !status_is_known(1) && !status_is_known(-999));
}
END_TEST

START_TEST(status_of_errno)
{
    ck_assert_int_eq(status_from_errno(0), STATUS_OK);
    ck_assert_int_eq(status_from_errno(ENOSPC), STATUS_NO_SPACE);
    ck_assert_int_eq(status_from_errno(EPIPE), STATUS_PEER_LOST);
    ck_assert_int_eq(status_from_errno(EISDIR), STATUS_IO);
}
END_TEST

START_TEST(error_keeps_status_and_text)
{
    struct error err = {0};

    ck_assert_int_eq(error_set(&err, STATUS_DATA, "bad '%s'", "x"), STATUS_DATA);
    ck_assert_int_eq(error_prefix(&err, "line %d: ", 3), STATUS_DATA);
    ck_assert_str_eq(err.text, "line 3: bad 'x'");
    ck_assert_int_eq(error_set_errno(&err, ENOENT, "cannot open '%s'", "y"), STATUS_NOT_FOUND);
    ck_assert_str_eq(err.text, "cannot open 'y': No such file or directory");
    ck_assert_int_eq(error_set(NULL, STATUS_IO, "x"), STATUS_IO);
    ck_assert_int_eq(error_set_errno(NULL, ENOMEM, "x"), STATUS_NO_MEMORY);
    ck_assert_int_eq(error_prefix(NULL, "x"), STATUS_INTERNAL);
}
END_TEST

START_TEST(library_environment_variables)
{
    struct strbuf text = STRBUF_INIT;

    ck_assert_int_eq(setenv("NCCL_TEST_B", "2", 1), 0);
    ck_assert_int_eq(setenv("NCCL_TEST_A", "1", 1), 0);
    ck_assert_int_eq(setenv("XNCCL_TEST", "3", 1), 0);
    ck_assert_int_eq(setenv("OMP_NUM_THREADS", "7", 1), 0);
    host_add_environment(&text);
    ck_assert_msg(strstr(text.text, "NCCL_TEST_A=1 NCCL_TEST_B=2 OMP_NUM_THREADS=7") != NULL, "%s",
                  text.text);
    ck_assert_ptr_null(strstr(text.text, "XNCCL"));
    strbuf_release(&text);
}
END_TEST

START_TEST(processors_of_the_host)
{
    struct host_info host;
    struct strbuf text = STRBUF_INIT;
    cpu_set_t own, one;
    unsigned last = 0;
    char wanted[64];

    ck_assert_int_eq(sched_getaffinity(0, sizeof(own), &own), 0);
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        last = CPU_ISSET(i, &own) ? i : last;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    ck_assert_int_eq(setenv("SPARRING_HOST_CORES", "12", 1), 0);
    ck_assert_int_eq(setenv("SPARRING_BIND", "core", 1), 0);
    ck_assert_uint_eq(host_cores(), 1);
    ck_assert_uint_eq(host_job_cores(), 12);
    host_info_read(&host);
    host_info_json(&host, &text);
    (void)snprintf(wanted, sizeof(wanted), "\"cores\":12,\"processors\":\"%u\",", last);
    ck_assert_msg(strstr(text.text, wanted) && strstr(text.text, "\"bind\":\"core\""), "%s",
                  text.text);
    ck_assert_int_eq(setenv("SPARRING_HOST_CORES", "many", 1), 0);
    ck_assert_uint_eq(host_job_cores(), 1);
    (void)unsetenv("SPARRING_HOST_CORES");
    (void)unsetenv("SPARRING_BIND");
    ck_assert_int_eq(sched_setaffinity(0, sizeof(own), &own), 0);
    strbuf_release(&text);
}
END_TEST

/* Two processes on one processor. */
START_TEST(wait_for_a_processor)
{
    const int64_t before_ns = host_processor_wait_ns(), started_ns = clock_now_ns();
    cpu_set_t own, one;
    pid_t other;

    if (before_ns < 0) {
        (void)printf("skipped: no /proc/pressure/cpu\n");
        return;
    }
    ck_assert_int_eq(sched_getaffinity(0, sizeof(own), &own), 0);
    CPU_ZERO(&one);
    for (unsigned i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &own))
            CPU_SET(i, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    other = fork();
    if (other == 0) {
        (void)alarm(30); /* where this test fails before it ends the child */
        for (;;)
            continue;
    }
    ck_assert_int_gt(other, 0);
    while (host_processor_wait_ns() < before_ns + 50000000)
        ck_assert_msg(clock_now_ns() < started_ns + INT64_C(20000000000), "no wait is counted");
    ck_assert_int_ge(clock_now_ns() - started_ns, 50000000);
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(own), &own), 0);
}
END_TEST

START_TEST(error_cuts_long_texts)
{
    struct error err = {0};
    char big[2 * sizeof(err.text)];

    memset(big, 'a', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    (void)error_set_errno(&err, EIO, "%s", big);
    ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
    (void)error_prefix(&err, "%s", big);
    ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
}
END_TEST

START_TEST(strbuf_grows_and_resets)
{
    struct strbuf s = STRBUF_INIT;

    ck_assert_str_eq(s.text, "");
    for (int i = 0; i < 1000; i++)
        strbuf_addf(&s, "%d,", i);
    ck_assert(strbuf_ok(&s));
    ck_assert_uint_eq(s.length, strlen(s.text));
    ck_assert_uint_eq(s.length, 10 * 2 + 90 * 3 + 900 * 4);
    strbuf_reset(&s);
    strbuf_add_bytes(&s, "a\0b", 3);
    ck_assert_uint_eq(s.length, 3);
    strbuf_release(&s);
    strbuf_release(NULL);
    ck_assert_str_eq(s.text, "");
}
END_TEST

START_TEST(strbuf_doubles_read_back)
{
    struct strbuf s = STRBUF_INIT;

    strbuf_add_double(&s, 0.1);
    ck_assert_str_eq(s.text, "0.1");
    for (int i = 0; i < 1000; i++) {
        double value = ldexp(support_random() - 0.5, i - 500);

        strbuf_reset(&s);
        strbuf_add_double(&s, value);
        ck_assert_double_eq(strtod(s.text, NULL), value);
    }
    strbuf_release(&s);
}
END_TEST

START_TEST(strbuf_quotes_json_and_html)
{
    struct strbuf s = STRBUF_INIT;

    strbuf_add_json(&s, "a\"\\\n\x01\xc3\xa9\xff\xe2\x82");
    ck_assert_str_eq(s.text, "\"a\\\"\\\\\\u000a\\u0001\xc3\xa9\\ufffd\\ufffd\\ufffd\"");
    strbuf_reset(&s);
    strbuf_add_html(&s, "<a href='x'>\"&\"</a>");
    ck_assert_str_eq(s.text, "&lt;a href=&#39;x&#39;&gt;&quot;&amp;&quot;&lt;/a&gt;");
    strbuf_reset(&s);
    strbuf_add_html(&s, "\t\x01\xc3\xa9\xff");
    ck_assert_str_eq(s.text, "\t\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd");
    strbuf_release(&s);
}
END_TEST

START_TEST(parse_takes_whole_numbers_only)
{
    int64_t i = 7;
    uint64_t u = 7;
    double d = 7;
    bool b = false;

    ck_assert(parse_int64("-9223372036854775808", &i) && i == INT64_MIN);
    ck_assert(!parse_int64("9223372036854775808", &i) && i == INT64_MIN);
    ck_assert(!parse_int64("", &i) && !parse_int64(" 1", &i) && !parse_int64("1 ", &i));
    ck_assert(!parse_uint64("-1", &u) && !parse_uint64("+1", &u) && !parse_uint64("1x", &u));
    ck_assert(parse_uint64("18446744073709551615", &u) && u == UINT64_MAX);
    ck_assert(parse_double("1e-3", &d) && d > 0.000999 && d < 0.001001);
    ck_assert(!parse_double("inf", &d) && !parse_double("nan", &d) && !parse_double("1e999", &d));
    ck_assert(parse_bool("on", &b) && b && parse_bool("no", &b) && !b && !parse_bool("maybe", &b));
}
END_TEST

START_TEST(parse_bytes_knows_suffixes)
{
    uint64_t u = 7;

    ck_assert(parse_bytes("4096", &u) && u == 4096);
    ck_assert(parse_bytes("64K", &u) && u == 65536);
    ck_assert(parse_bytes("1GiB", &u) && u == (uint64_t)1 << 30);
    ck_assert(!parse_bytes("64k", &u) && !parse_bytes("K", &u) && !parse_bytes("1KB", &u));
    ck_assert(!parse_bytes("18446744073709551615K", &u) && u == (uint64_t)1 << 30);
}
END_TEST

START_TEST(parse_list_finds_whole_words)
{
    ck_assert(parse_list_has("cpu", "cpu") && parse_list_has("cpuset,cpu", "cpu"));
    ck_assert(parse_list_has("cpu,cpuacct", "cpuacct") && parse_list_has("a,,b,", "b"));
    ck_assert(!parse_list_has("cpuset,cpuacct", "cpu") && !parse_list_has("", "cpu"));
    ck_assert(!parse_list_has("xcpu,cp", "cpu"));
}
END_TEST

START_TEST(parse_list_next_splits)
{
    char entry[4];
    const char *rest = parse_list_next("ab,long,,c", entry, sizeof(entry));

    ck_assert_str_eq(entry, "ab");
    rest = parse_list_next(rest, entry, sizeof(entry));
    ck_assert_str_eq(entry, "lon");
    rest = parse_list_next(rest, entry, sizeof(entry));
    ck_assert_str_eq(entry, "");
    rest = parse_list_next(rest, entry, sizeof(entry));
    ck_assert_str_eq(entry, "c");
    rest = parse_list_next(rest, entry, sizeof(entry));
    ck_assert(rest[0] == '\0' && entry[0] == '\0');
    ck_assert(parse_list_length("") == 0 && parse_list_length("a") == 1);
    ck_assert_uint_eq(parse_list_length("a,,b"), 3);
}
END_TEST

START_TEST(an_array_grows)
{
    struct error err = {0};
    size_t *list = NULL;
    size_t capacity = 0;

    for (size_t i = 0; i < 1000; i++) {
        assert_ok(mem_grow(i, &capacity, sizeof(*list), "a list", &list, &err));
        ck_assert(i < capacity);
        list[i] = i;
    }
    for (size_t i = 0; i < 1000; i++)
        ck_assert(list[i] == i);
    free(list);
}
END_TEST

START_TEST(memory_fails_with_a_text)
{
    struct error err = {0};
    void *p = NULL;
    size_t product = 5, capacity;

    ck_assert(!size_multiply(SIZE_MAX, 2, &product) && product == 5);
    assert_fails(mem_calloc(SIZE_MAX, 2, "the slab", &p, &err), STATUS_NO_MEMORY, "the slab");
    capacity = SIZE_MAX / 2;
    assert_fails(mem_grow(capacity, &capacity, 2, "the list", &p, &err), STATUS_NO_MEMORY,
                 "the list");
    ck_assert(capacity == SIZE_MAX / 2);
    mem_fail_nth(2);
    assert_ok(mem_calloc(3, 4, "first", &p, &err));
    free(p);
    assert_fails(mem_calloc(3, 4, "second", &p, &err), STATUS_NO_MEMORY, "12 bytes");
    assert_ok(mem_calloc_aligned(0, 4, "third", &p, &err));
    ck_assert_uint_eq((uintptr_t)p % 64, 0);
    free(p);
}
END_TEST

START_TEST(clock_deadlines_saturate)
{
    char text[21];

    ck_assert_int_eq(clock_left_ms(clock_now_ns() - 1), 0);
    ck_assert_int_eq(clock_left_ms(INT64_MAX), INT_MAX);
    ck_assert_int_eq(clock_deadline_ns(INT64_MAX), INT64_MAX);
    ck_assert_int_gt(clock_left_ms(clock_deadline_ns(60000)), 50000);
    clock_wall_text(text, sizeof(text));
    ck_assert_uint_eq(strlen(text), 20);
    clock_wall_text(text, 5);
    ck_assert_str_eq(text, "");
}
END_TEST

/* Control characters from another process must not reach the terminal. */
START_TEST(log_lines_have_no_control_characters)
{
    char line[128] = "";
    int ends[2];
    int saved = dup(STDERR_FILENO);

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
    log_warning("a peer said '%s'", "\x1b[2J\b\x7f gr\xc3\xbc\xc3\x9f\tand more");
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
    ck_assert_int_gt(read(ends[0], line, sizeof(line) - 1), 0);
    ck_assert_ptr_nonnull(strstr(line, "a peer said '?[2J?? gr\xc3\xbc\xc3\x9f\tand more'\n"));
}
END_TEST

TCase *text_cases(void)
{
    TCase *cases = tcase_create("text");

    tcase_add_test(cases, status_names_texts_and_exit_codes);
    tcase_add_test(cases, status_of_errno);
    tcase_add_test(cases, error_keeps_status_and_text);
    tcase_add_test(cases, error_cuts_long_texts);
    tcase_add_test(cases, library_environment_variables);
    tcase_add_test(cases, processors_of_the_host);
    tcase_add_test(cases, wait_for_a_processor);
    tcase_add_test(cases, strbuf_grows_and_resets);
    tcase_add_test(cases, strbuf_doubles_read_back);
    tcase_add_test(cases, strbuf_quotes_json_and_html);
    tcase_add_test(cases, parse_takes_whole_numbers_only);
    tcase_add_test(cases, parse_bytes_knows_suffixes);
    tcase_add_test(cases, parse_list_finds_whole_words);
    tcase_add_test(cases, parse_list_next_splits);
    tcase_add_test(cases, an_array_grows);
    tcase_add_test(cases, memory_fails_with_a_text);
    tcase_add_test(cases, clock_deadlines_saturate);
    tcase_add_test(cases, log_lines_have_no_control_characters);
    return cases;
}
