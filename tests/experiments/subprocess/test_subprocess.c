/*
 * Children that succeed, fail, do not end, or cannot be started; and their own children.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "experiments/subprocess/subprocess.h"
#include "tests/support/support.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct subprocess_result run_shell(const char *script, int64_t timeout_ms)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    struct subprocess_request request = {
        .argv = argv, .log_path = support_path("log.txt"), .timeout_ms = timeout_ms};
    struct subprocess_result result;
    struct error err = {0};

    assert_ok(subprocess_run(&request, &result, &err));
    return result;
}

static char *read_log(void)
{
    char *text = NULL;
    size_t size = 0;
    struct error err = {0};

    assert_ok(file_read(support_path("log.txt"), 1 << 20, &text, &size, &err));
    return text;
}

START_TEST(test_exit_code_and_output)
{
    struct subprocess_result result = run_shell("echo out; echo err >&2; cat; exit 3", 20000);
    char text[96];
    char *log = read_log();

    ck_assert_int_eq(result.outcome, SUBPROCESS_EXITED);
    ck_assert_int_eq(result.code, 3);
    ck_assert_str_eq(log, "out\nerr\n"); /* and cat found its input empty */
    subprocess_result_text(&result, text, sizeof(text));
    ck_assert_str_eq(text, "exit code 3");
    free(log);
}
END_TEST

START_TEST(test_log_is_replaced)
{
    char *log;

    (void)run_shell("echo a long first line", 20000);
    (void)run_shell("echo b", 20000);
    log = read_log();
    ck_assert_str_eq(log, "b\n");
    free(log);
}
END_TEST

START_TEST(test_killed)
{
    struct subprocess_result result = run_shell("kill -9 $$", 20000);
    char text[96];

    ck_assert_int_eq(result.outcome, SUBPROCESS_SIGNALED);
    subprocess_result_text(&result, text, sizeof(text));
    ck_assert_str_eq(text, "killed by signal 9 (Killed)");
}
END_TEST

/* The shell starts a grandchild, prints its pid and waits; the grandchild becomes ours when the
 * shell is gone, so that its end can be waited for. */
static void assert_grandchild_was_killed(const char *script, int64_t timeout_ms)
{
    struct subprocess_result result;
    int64_t grandchild = 0;
    int state = 0;
    char *log;

    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    result = run_shell(script, timeout_ms);
    ck_assert_int_eq(result.outcome, timeout_ms < 10000 ? SUBPROCESS_TIMED_OUT : SUBPROCESS_EXITED);
    log = read_log();
    log[strcspn(log, "\n")] = '\0';
    ck_assert_msg(parse_int64(log, &grandchild), "no pid in '%s'", log);
    ck_assert_int_eq(waitpid((pid_t)grandchild, &state, 0), grandchild);
    ck_assert_msg(WIFSIGNALED(state), "the grandchild ended with state %d", state);
    free(log);
}

START_TEST(test_deadline_ends_the_whole_group)
{
    assert_grandchild_was_killed("sleep 1000 & echo $!; wait",
                                 4000); /* limit for the shell's first output */
}
END_TEST

START_TEST(test_leftovers_are_killed)
{
    assert_grandchild_was_killed("sleep 1000 & echo $!; exit 0", 20000);
}
END_TEST

START_TEST(test_child_that_ignores_sigterm_is_killed)
{
    int64_t start = clock_now_ns();
    struct subprocess_result result = run_shell("trap '' TERM; while :; do sleep 1; done", 4000);
    char text[96];

    ck_assert_int_eq(result.outcome, SUBPROCESS_TIMED_OUT);
    ck_assert_int_ge(clock_now_ns() - start, (int64_t)SUBPROCESS_GRACE_MS * 1000000);
    subprocess_result_text(&result, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "timed out after"));
}
END_TEST

/* kill -9 of the one that waits. */
START_TEST(test_ends_with_the_one_that_started_it)
{
    const char *fifo = support_path("fifo");
    char script[700], line[32] = "";
    int64_t program = 0;
    int state = 0;
    FILE *file;
    pid_t starter;

    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    (void)snprintf(script, sizeof(script), "echo $$ >'%s'; exec sleep 1000", fifo);
    starter = fork();
    if (starter == 0) {
        (void)run_shell(script, 1000000);
        _exit(0);
    }
    file = fopen(fifo, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(line, sizeof(line), file));
    (void)fclose(file);
    line[strcspn(line, "\n")] = '\0';
    ck_assert_msg(parse_int64(line, &program), "no pid in '%s'", line);
    ck_assert_int_eq(kill(starter, SIGKILL), 0);
    ck_assert_int_eq(waitpid(starter, NULL, 0), starter);
    ck_assert_int_eq(waitpid((pid_t)program, &state, 0), program);
    ck_assert_int_eq(WTERMSIG(state), SIGKILL);
}
END_TEST

START_TEST(test_last_line)
{
    static const char *const texts[][2] = {
        {"", ""}, {"\n", ""}, {"one", "one"}, {"one\ntwo\n", "two"}, {"one\ntwo\n\n", "two"}};
    struct error err = {0};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char line[16];

        assert_ok(subprocess_last_line(support_write("log.txt", texts[i][0], strlen(texts[i][0])),
                                       line, sizeof(line), &err));
        ck_assert_str_eq(line, texts[i][1]);
    }
}
END_TEST

static void send_stop_signal(void *context)
{
    unsigned *ticks = context;

    if ((*ticks)++ == 0)
        ck_assert_int_eq(raise(SIGINT), 0);
}

START_TEST(test_signal_stops_the_child)
{
    const char *argv[] = {"sleep", "1000", NULL};
    unsigned ticks = 0;
    struct subprocess_request request = {.argv = argv,
                                         .log_path = support_path("log.txt"),
                                         .timeout_ms = 60000,
                                         .tick = send_stop_signal,
                                         .context = &ticks};
    struct subprocess_result result;
    struct error err = {0};

    assert_ok(stop_install(&err));
    assert_ok(subprocess_run(&request, &result, &err));
    ck_assert_int_eq(result.outcome, SUBPROCESS_STOPPED);
    ck_assert_uint_ge(ticks, 1);
}
END_TEST

START_TEST(test_cannot_start)
{
    const char *argv[] = {"sparring-no-such-program", NULL};
    struct subprocess_request request = {
        .argv = argv, .log_path = support_path("log.txt"), .timeout_ms = 1000};
    struct subprocess_result result;
    struct error err = {0};

    assert_fails(subprocess_run(&request, &result, &err), STATUS_NOT_FOUND,
                 "cannot start 'sparring-no-such-program'");
    request.log_path = support_path("no/folder/log.txt");
    assert_fails(subprocess_run(&request, &result, &err), STATUS_NOT_FOUND, "no/folder/log.txt");
}
END_TEST

START_TEST(test_program_folder)
{
    char text[4096];
    char small[4];
    struct error err = {0};

    assert_ok(subprocess_program_folder(text, sizeof(text), &err));
    ck_assert_int_eq(text[0], '/');
    ck_assert_int_eq(access(text, X_OK), 0);
    assert_fails(subprocess_program_folder(small, sizeof(small), &err), STATUS_CONFIG, "too long");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "subprocess", 60, TEST(test_exit_code_and_output), TEST(test_log_is_replaced),
        TEST(test_killed), TEST(test_deadline_ends_the_whole_group),
        TEST(test_leftovers_are_killed), TEST(test_child_that_ignores_sigterm_is_killed),
        TEST(test_ends_with_the_one_that_started_it), TEST(test_last_line),
        TEST(test_signal_stops_the_child), TEST(test_cannot_start), TEST(test_program_folder));
}
