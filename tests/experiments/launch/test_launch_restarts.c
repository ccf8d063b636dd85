/*
 * A lost rank or server is restarted while the others go on, up to --max-restarts times, and only
 * where a new process can rejoin the job.  The processes synchronise through FIFOs: a rank that
 * waits for another blocks in `read`.
 */
#include "tests/experiments/launch/launch_test.h"

#include <stdio.h>
#include <stdlib.h>

START_TEST(a_killed_rank_is_started_again)
{
    const char *script = "if [ $RANK = 0 ]; then read x < $0; exit 0; fi; "
                         "if [ $SPARRING_RESTARTS = 0 ]; then kill -9 $$; fi; "
                         "echo \"rank $RANK again: $SPARRING_RESTARTS $SPARRING_ON_RANK_LOSS\"; "
                         "echo > $0";
    const char *out = LAUNCH(0, "--nproc-per-node=2", "--on-rank-loss=wait", "--max-restarts=2",
                             "--", "sh", "-c", script, launch_fifo("go"));

    assert_holds(out, "rank 1 (pid ");
    assert_holds(out, ") is lost: killed by signal 9 (SIGKILL); started again (1 restarts left)\n");
    assert_holds(out, "rank 1 again: 1 wait\n");
    assert_lacks(out, "failed first");
}
END_TEST

/* The exit code of a shell around the program is 128 plus the signal that killed it. */
START_TEST(a_rank_inside_a_shell_is_started_again)
{
    const char *script = "if [ $SPARRING_RESTARTS = 0 ]; then sh -c 'kill -9 $$'; exit $?; fi; "
                         "echo \"alone again: $SPARRING_RESTARTS\"";
    const char *out = LAUNCH(0, "--server-addresses=127.0.0.1:1", "--on-rank-loss=shrink",
                             "--max-restarts=1", "--", "sh", "-c", script);

    assert_holds(out, "is lost: exit code 137; started again (0 restarts left)\n");
    assert_holds(out, "alone again: 1\n");
}
END_TEST

/* What tells launch that the ranks train with servers: the program's words or the environment. */
static const struct {
    const char *variable, *word;
} signs_of_servers[] = {
    {"SPARRING_SYNC=ps", "--on-rank-loss=shrink"},
    {"SPARRING_SERVERS=127.0.0.1:1", "--on-rank-loss=shrink"},
    {"OTHER=", "--sync=ps"},
    {"OTHER=", "--servers=127.0.0.1:1"},
};

START_TEST(restarts_run_out)
{
    const char *script = "if [ $RANK = 0 ]; then read x < $0; exit 0; fi; "
                         "echo \"try $SPARRING_RESTARTS\"; "
                         "if [ $SPARRING_RESTARTS = 2 ]; then echo > $0; fi; kill -9 $$";
    const char *out =
        launch_with(LAUNCH_PROGRAM, 7, ARGS(signs_of_servers[_i].variable),
                    ARGS("--nproc-per-node=2", "--max-restarts=2", "--", "sh", "-c", script,
                         launch_fifo("go"), signs_of_servers[_i].word, "--on-worker-loss=shrink"));

    for (const char *const *line = ARGS("try 0\n", "try 1\n", "try 2\n"); *line; line++)
        assert_holds(out, *line);
    assert_lacks(out, "try 3");
    assert_holds(out, "is lost: killed by signal 9 (SIGKILL); the others go on\n");
}
END_TEST

/* A rank that exited by itself would fail again. */
START_TEST(a_rank_that_failed_is_not_started_again)
{
    const char *script = "if [ $RANK = 0 ]; then read x < $0; exit 0; fi; echo > $0; exit 1";
    const char *out = LAUNCH(7, "--nproc-per-node=2", "--on-rank-loss=wait", "--max-restarts=2",
                             "--", "sh", "-c", script, launch_fifo("go"));

    assert_holds(out, "is lost: exit code 1; the others go on\n");
    assert_lacks(out, "started again");
}
END_TEST

/* No process can rejoin: all ranks of an all-reduce start together. */
START_TEST(a_rank_of_an_all_reduce_is_not_started_again)
{
    const char *script = "if [ $RANK = 0 ]; then read x < $0; exit 0; fi; echo > $0; kill -9 $$";
    const char *out = LAUNCH(7, "--nproc-per-node=2", "--on-rank-loss=shrink", "--max-restarts=2",
                             "--", "sh", "-c", script, launch_fifo("go"));

    assert_holds(out, "is lost: killed by signal 9 (SIGKILL); the others go on\n");
    assert_lacks(out, "started again");
}
END_TEST

START_TEST(other_jobs_end)
{
    const char *out = LAUNCH(137, "--nproc-per-node=2", "--max-restarts=2", "--", "sh", "-c",
                             "if [ $RANK = 1 ]; then kill -9 $$; fi; exec sleep 1000");

    assert_holds(out, ") failed first: killed by signal 9 (SIGKILL)\n");
    assert_lacks(out, "started again");
}
END_TEST

#define SERVER                                                                                     \
    "echo $$ > \"$0.pid\"\n"                                                                       \
    "echo \"at $listen for ${file:-nobody}, state in $SPARRING_STATE_DIR\"\n"                      \
    "trap 'exit 0' TERM\n"                                                                         \
    "if [ -n \"$file\" ]; then echo 7123 > \"$file\"; else echo > \"$GO\"; fi\n"                   \
    "mkfifo \"$0.$$\"\nread x < \"$0.$$\"\n"

/* On the same address as before: the ranks know no other. */
START_TEST(a_server_with_state_is_started_again)
{
    static const char *const blows[] = {"kill -9 $(cat $0)", "kill -TERM $(cat $0)"};
    const char *program = launch_install_server(SERVER);
    const char *go = launch_fifo("go");
    char script[128];
    char variable[600];
    char line[600];
    const char *out;

    (void)snprintf(variable, sizeof(variable), "GO=%s", go);
    (void)snprintf(script, sizeof(script), "%s; read x < $GO", blows[_i]);
    out = launch_with(program, 0, ARGS(variable),
                      ARGS("--servers=1", "--max-restarts=1", "--state-dir", support_path("state"),
                           "--", "sh", "-c", script, support_path("sparring-server.pid")));
    assert_holds(out, "server 0 (pid ");
    assert_holds(out, "; started again (0 restarts left)\n");
    (void)snprintf(line, sizeof(line), "at 127.0.0.1:7123 for nobody, state in %s/server-0\n",
                   support_path("state"));
    assert_holds(out, line);
    assert_lacks(out, "failed first");
}
END_TEST

START_TEST(a_server_without_state_is_not)
{
    const char *program = launch_install_server(SERVER);
    const char *out = launch_with(program, 137, NULL,
                                  ARGS("--servers=1", "--max-restarts=1", "--", "sh", "-c",
                                       "kill -9 $(cat $0); exec sleep 1000",
                                       support_path("sparring-server.pid")));

    assert_holds(out, ") failed first: killed by signal 9 (SIGKILL)\n");
}
END_TEST

TCase *launch_restart_cases(void)
{
    TCase *cases = tcase_create("restarts");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, a_killed_rank_is_started_again);
    tcase_add_test(cases, a_rank_inside_a_shell_is_started_again);
    tcase_add_loop_test(cases, restarts_run_out, 0,
                        sizeof(signs_of_servers) / sizeof(signs_of_servers[0]));
    tcase_add_test(cases, a_rank_that_failed_is_not_started_again);
    tcase_add_test(cases, a_rank_of_an_all_reduce_is_not_started_again);
    tcase_add_test(cases, other_jobs_end);
    tcase_add_loop_test(cases, a_server_with_state_is_started_again, 0, 2);
    tcase_add_test(cases, a_server_without_state_is_not);
    return cases;
}
