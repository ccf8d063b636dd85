/*
 * Servers that the launcher starts.  The server is a shell script beside a copy of the launcher, to
 * test process handling only; the real one is started in tests/integration.
 */
#include "tests/experiments/launch/launch_test.h"

#include "common/base/file.h"
#include "common/base/strbuf.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Parses the arguments that the launcher passes into $file and $listen; `body` follows. */
#define SCRIPT_HEAD                                                                                \
    "#!/bin/sh\n"                                                                                  \
    "echo \"server words: $*\"\n"                                                                  \
    "while [ $# -gt 1 ]; do\n"                                                                     \
    "  case $1 in --port-file) file=$2;; --listen) listen=$2;; esac; shift 2\n"                    \
    "done\n"

#define ORDERLY "trap 'echo server stopped; exit 0' TERM\n"
#define WAIT    "mkfifo \"$0.$$\"\necho \"server-pid $$\"\nread x < \"$0.$$\"\n"

const char *launch_install_server(const char *body)
{
    const char *program = support_path("launcher");
    const char *script = support_path("sparring-server");
    struct error err = {0};
    struct strbuf text = STRBUF_INIT;
    char *data;
    size_t size;

    assert_ok(file_read(LAUNCH_PROGRAM, (size_t)1 << 28, &data, &size, &err));
    assert_ok(file_write_atomic(program, data, size, &err));
    free(data);
    strbuf_add(&text, SCRIPT_HEAD);
    strbuf_add(&text, body);
    assert_ok(file_write_atomic(script, text.text, text.length, &err));
    strbuf_release(&text);
    ck_assert_int_eq(chmod(program, 0700), 0);
    ck_assert_int_eq(chmod(script, 0700), 0);
    return program;
}

/* The port is the number of the port file: 7000, 7001, ... */
#define PUBLISH "echo \"700${file##*-}\" > \"$file\"\n"

START_TEST(servers_live_as_long_as_the_ranks)
{
    const char *program = launch_install_server(ORDERLY PUBLISH WAIT);
    const char *out =
        launch_with(program, 0, NULL,
                    ARGS("--servers=2", "--nproc-per-node=2", "--run-dir", support_path("run"),
                         "sh", "-c", "echo \"rank $RANK: $SPARRING_SERVERS\""));
    const char *stopped = strstr(out, "server stopped\n");

    assert_holds(out, "rank 0: 127.0.0.1:7000,127.0.0.1:7001\n");
    assert_holds(out, "rank 1: 127.0.0.1:7000,127.0.0.1:7001\n");
    assert_holds(out, "server words: --listen 127.0.0.1:0 --port-file ");
    assert_holds(out, "/run\n");
    ck_assert_ptr_nonnull(stopped);
    ck_assert_ptr_nonnull(strstr(stopped + 1, "server stopped\n")); /* both */
    ck_assert(strstr(out, "rank 0:") < stopped && strstr(out, "rank 1:") < stopped);
}
END_TEST

START_TEST(address_in_the_port_file)
{
    const char *program = launch_install_server(ORDERLY "echo \"127.0.0.1:4711\" > \"$file.new\"\n"
                                                        "mv \"$file.new\" \"$file\"\n" WAIT);

    assert_holds(launch_with(program, 0, NULL,
                             ARGS("--servers=1", "sh", "-c", "echo \"at $SPARRING_SERVERS\"")),
                 "at 127.0.0.1:4711\n");
}
END_TEST

/* ---- placement */

static const char show_servers[] =
    "echo \"rank $RANK: $SPARRING_SERVERS ${SPARRING_SERVER_WEIGHTS-equal} "
    "$SPARRING_SERVER_PLACEMENT\"";

/* The server publishes the port of its --listen. */
#define PUBLISH_LISTEN "echo \"${listen##*:}\" > \"$file\"\n"

START_TEST(colocated_on_one_node)
{
    const char *program = launch_install_server(ORDERLY PUBLISH WAIT);

    assert_holds(launch_with(program, 0, NULL,
                             ARGS("--server-placement=colocated", "--nproc-per-node=2", "sh", "-c",
                                  show_servers)),
                 "rank 1: 127.0.0.1:7000,127.0.0.1:7001 equal colocated\n");
    assert_holds(launch_with(program, 0, NULL,
                             ARGS("--server-placement=colocated", "--servers=3",
                                  "--nproc-per-node=2", "sh", "-c", show_servers)),
                 "rank 0: 127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002 equal colocated\n");
}
END_TEST

/* Every node starts its own server and derives the addresses of all. */
START_TEST(colocated_on_several_nodes)
{
    const char *program = launch_install_server(ORDERLY PUBLISH_LISTEN WAIT);

    for (unsigned node = 0; node < 3; node++) {
        char rank[32], wanted[200];
        const char *out;

        (void)snprintf(rank, sizeof(rank), "--node-rank=%u", node);
        out = launch_with(program, 0, NULL,
                          ARGS("--server-placement=colocated", "--nnodes=3", rank,
                               "--node-addresses=a,b,[::1]", "--server-port=6000", "--tee", "sh",
                               "-c", show_servers));
        (void)snprintf(wanted, sizeof(wanted), "[rank %u] rank %u: a:6000,b:6001,[::1]:6002 equal",
                       node, node);
        assert_holds(out, wanted);
        (void)snprintf(wanted, sizeof(wanted), "[server %u] server words: --listen 0.0.0.0:600%u",
                       node, node);
        assert_holds(out, wanted);
        ck_assert_ptr_null(strstr(strstr(out, "server words") + 1, "server words")); /* one */
    }
}
END_TEST

/* With n = 3 and k = 1 the shares are (n - k) : 2 (n - 1) = 2 : 4. */
START_TEST(mixed)
{
    const char *program = launch_install_server(ORDERLY PUBLISH_LISTEN WAIT);
    const char *out = launch_with(program, 0, NULL,
                                  ARGS("--server-placement=mixed", "--nnodes=3", "--servers=1",
                                       "--node-addresses=a,b,c", "--server-port=6000", "--tee",
                                       "--master-addr=m", "sh", "-c", show_servers));

    assert_holds(out, "rank 0: a:6000,b:6001,c:6002,m:6003 2,2,2,4 mixed\n");
    assert_holds(out, "[server 0] server words: --listen 0.0.0.0:6000");
    assert_holds(out, "[server 3] server words: --listen 0.0.0.0:6003");
    out = launch_with(program, 0, NULL,
                      ARGS("--server-placement=mixed", "--nnodes=3", "--node-rank=2",
                           "--server-addresses=x:1,y:2", "--node-addresses=a,b,c",
                           "--server-port=6000", "--tee", "sh", "-c", show_servers));
    assert_holds(out, "rank 2: a:6000,b:6001,c:6002,x:1,y:2 1,1,1,4,4 mixed\n");
    assert_holds(out, "[server 2] server words: --listen 0.0.0.0:6002");
    assert_lacks(out, "[server 0]");
}
END_TEST

/* As many dedicated servers as hosts: colocated ones would hold nothing and are not started. */
START_TEST(mixed_with_many)
{
    const char *program = launch_install_server(ORDERLY PUBLISH WAIT);

    assert_holds(launch_with(program, 0, NULL,
                             ARGS("--server-placement=mixed", "--nproc-per-node=2", "--servers=2",
                                  "sh", "-c", show_servers)),
                 "rank 1: 127.0.0.1:7000,127.0.0.1:7001 equal mixed\n");
    assert_holds(launch_with(program, 0, NULL,
                             ARGS("--server-placement=mixed", "--nproc-per-node=2", "--servers=1",
                                  "sh", "-c", show_servers)),
                 "rank 1: 127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002 1,1,2 mixed\n");
}
END_TEST

/* A server that publishes its --listen; ranks find the socket's folder. */
START_TEST(servers_on_unix_sockets)
{
    const char *program = launch_install_server(ORDERLY "echo \"$listen\" > \"$file\"\n" WAIT);
    const char *out =
        launch_with(program, 0, NULL,
                    ARGS("--servers=2", "--server-transport=unix", "sh", "-c",
                         "path=${SPARRING_SERVERS#unix:}; folder=${path%/0,unix:*/1}; "
                         "test -d \"$folder\" && stat -c 'folder of mode %a' \"$folder\""));

    assert_holds(out, "server words: --listen unix:/");
    assert_holds(out, "folder of mode 700\n");
    program = launch_install_server(ORDERLY PUBLISH WAIT);
    assert_holds(
        launch_with(program, 3, NULL, ARGS("--servers=1", "--server-transport=unix", "true")),
        "server 0 wrote '7000' as its port");
}
END_TEST

/* $TMPDIR is empty afterwards. */
START_TEST(no_files_left)
{
    const char *program = launch_install_server(ORDERLY PUBLISH WAIT);
    const char *temporary = support_path("tmp");
    char variable[600];
    DIR *folder;
    size_t entries = 0;

    ck_assert_int_eq(mkdir(temporary, 0700), 0);
    (void)snprintf(variable, sizeof(variable), "TMPDIR=%s", temporary);
    (void)launch_with(program, 0, ARGS(variable), ARGS("--servers=2", "true"));
    program = launch_install_server(
        "trap '' TERM\n> \"${listen#unix:}\"; > \"${listen#unix:}.lock\"\n"
        "echo \"$listen\" > \"$file\"\n" WAIT); /* leaves its socket, is killed */
    (void)launch_with(program, 137, ARGS(variable),
                      ARGS("--servers=2", "--server-transport=unix", "--grace-ms=200", "true"));
    folder = opendir(temporary);
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder))
        entries++;
    (void)closedir(folder);
    ck_assert_uint_eq(entries, 2); /* "." and ".." */
}
END_TEST

START_TEST(server_dies)
{
    const char *script = "if [ $RANK = 0 ]; then kill -9 $(cat $0); fi; exec sleep 1000";
    const char *program = launch_install_server(ORDERLY "echo $$ > \"$0.pid\"\n" PUBLISH WAIT);
    const char *out = launch_with(program, 137, NULL,
                                  ARGS("--servers=1", "--nproc-per-node=2", "sh", "-c", script,
                                       support_path("sparring-server.pid")));

    assert_holds(out, "server 0 (pid ");
    assert_holds(out, ") failed first: killed by signal 9 (SIGKILL)\n");
}
END_TEST

/* One of a server and its replica may die. */
START_TEST(a_server_with_a_replica_dies)
{
    static const char *const last[] = {"server 0 (pid ", "replica 0 (pid "};
    const char *script =
        "if [ $RANK = 0 ]; then echo \"$SPARRING_SERVERS+$SPARRING_REPLICAS\"; "
        "kill -9 $(cat $0); "
        "while kill -0 $(cat $0) 2> /dev/null; do :; done; fi" /* until it is reaped */;
    const char *program =
        launch_install_server(ORDERLY "echo $$ > \"$0.pid-${file##*-}\"\n" PUBLISH WAIT);
    const char *pid = support_path(_i == 0 ? "sparring-server.pid-0" : "sparring-server.pid-1");
    const char *out = launch_with(
        program, 0, NULL,
        ARGS("--servers=1", "--replicas", "--nproc-per-node=2", "sh", "-c", script, pid));

    assert_holds(out, "127.0.0.1:7000+127.0.0.1:7001\n");
    assert_holds(out, last[_i]);
    assert_holds(out, ") is lost: killed by signal 9 (SIGKILL); ");
    assert_holds(out, _i == 0 ? "its replica goes on" : "the server whose replica it was goes on");
}
END_TEST

/* Both may not. */
START_TEST(a_server_and_its_replica_die)
{
    const char *script = "if [ $RANK = 0 ]; then kill -9 $(cat $0); "
                         "while kill -0 $(cat $0) 2> /dev/null; do :; done; kill -9 $(cat $1); fi; "
                         "exec sleep 1000";
    const char *program =
        launch_install_server(ORDERLY "echo $$ > \"$0.pid-${file##*-}\"\n" PUBLISH WAIT);
    char first[600];
    const char *out;

    (void)snprintf(first, sizeof(first), "%s", support_path("sparring-server.pid-0"));
    out = launch_with(program, 137, NULL,
                      ARGS("--servers=1", "--replicas", "--nproc-per-node=2", "sh", "-c", script,
                           first, support_path("sparring-server.pid-1")));
    assert_holds(out, ") is lost: killed by signal 9 (SIGKILL); ");
    assert_holds(out, ") failed first: killed by signal 9 (SIGKILL)\n");
}
END_TEST

/* A server that ends before the ranks do has failed, whatever its exit code. */
START_TEST(server_leaves_early)
{
    const char *go = launch_fifo("go");
    const char *program =
        launch_install_server("trap 'exit 0' TERM\n" PUBLISH "read x < \"$GO\"\nexit 0\n");
    char variable[600];
    const char *out;

    (void)snprintf(variable, sizeof(variable), "GO=%s", go);
    out = launch_with(program, 1, ARGS(variable),
                      ARGS("--servers=1", "sh", "-c", "echo > $GO; exec sleep 1000"));
    assert_holds(out, "server 0 (pid ");
    assert_holds(out, ") failed first: exit code 0\n");
}
END_TEST

START_TEST(server_does_not_start)
{
    const char *program = launch_install_server(
        "case $file in *-1) echo 'no such luck' >&2; exit 7;; esac\n" ORDERLY PUBLISH WAIT);
    const char *out =
        launch_with(program, 7, NULL, ARGS("--servers=2", "sh", "-c", "echo a rank ran"));

    assert_holds(out, "no such luck\n");
    assert_holds(out, "server 1 (pid ");
    assert_holds(out, ") failed first: exit code 7\n");
    assert_lacks(out, "a rank ran");
}
END_TEST

START_TEST(server_that_never_listens)
{
    const char *program = launch_install_server(ORDERLY WAIT);
    const char *out =
        launch_with(program, 4, NULL,
                    ARGS("--servers=1", "--start-timeout-ms=4000", "sh", "-c", "echo a rank ran"));

    assert_holds(out, "server 0 does not listen after 4000 ms (--start-timeout-ms)\n");
    assert_holds(out, "server stopped\n");
    assert_lacks(out, "a rank ran");
}
END_TEST

static const struct {
    const char *body;
    const char *text;
} bad_ports[] = {
    {ORDERLY "echo abc > \"$file\"\n" WAIT, "server 0 wrote 'abc' as its port"},
    {ORDERLY "echo 0 > \"$file\"\n" WAIT, "server 0 wrote '0' as its port"},
    {ORDERLY "echo 65536 > \"$file\"\n" WAIT, "server 0 wrote '65536' as its port"},
    {ORDERLY "echo > \"$file\"\n" WAIT, "server 0 wrote '' as its port"},
    {ORDERLY "head -c 5000 /dev/zero > \"$file\"\n" WAIT, "more than the 512 allowed"},
};

START_TEST(bad_port_file)
{
    assert_holds(launch_with(launch_install_server(bad_ports[_i].body), 3, NULL,
                             ARGS("--servers=1", "true")),
                 bad_ports[_i].text);
}
END_TEST

/* A server that fails when it is stopped is reported, and gives the exit code when no rank failed.
 */
START_TEST(server_fails_to_stop)
{
    const char *program = launch_install_server("trap 'exit 9' TERM\n" PUBLISH WAIT);
    const char *out = launch_with(program, 9, NULL, ARGS("--servers=1", "true"));

    assert_holds(out, ") failed when it was told to stop: exit code 9\n");
    out = launch_with(program, 5, NULL, ARGS("--servers=1", "sh", "-c", "exit 5"));
    assert_holds(out, ") failed first: exit code 5\n");
    assert_holds(out, ") failed when it was told to stop: exit code 9\n");
}
END_TEST

START_TEST(stubborn_server)
{
    const char *program = launch_install_server("trap '' TERM\n" PUBLISH WAIT);
    const char *out =
        launch_with(program, 137, NULL, ARGS("--servers=1", "--grace-ms=100", "true"));

    assert_holds(out, "does not stop: killed");
}
END_TEST

START_TEST(no_server_program)
{
    const char *program = launch_install_server("");

    ck_assert_int_eq(unlink(support_path("sparring-server")), 0);
    assert_holds(launch_with(program, 2, NULL, ARGS("--servers=1", "true")),
                 "/sparring-server': No such file or directory");
}
END_TEST

START_TEST(signal_while_servers_start)
{
    const char *program = launch_install_server(ORDERLY WAIT);
    struct process p;

    launch_start(&p, program, NULL, ARGS("--servers=1", "sh", "-c", "echo a rank ran"));
    process_wait_output(&p, "server-pid", LAUNCH_TIMEOUT_MS);
    process_signal(&p, SIGINT);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 128 + SIGINT);
    assert_holds(process_output(&p), "server stopped\n");
    assert_lacks(process_output(&p), "a rank ran");
}
END_TEST

START_TEST(servers_die_with_the_launcher)
{
    const char *program = launch_install_server("trap '' TERM\n" PUBLISH WAIT);
    struct process p;
    int pidfd;

    launch_start(&p, program, NULL, ARGS("--servers=1", "sh", "-c", "echo up; exec sleep 1000"));
    process_wait_output(&p, "server-pid", LAUNCH_TIMEOUT_MS);
    process_wait_output(&p, "up\n", LAUNCH_TIMEOUT_MS);
    ck_assert_uint_eq(launch_find_pids(process_output(&p), "server-pid ", &pidfd, 1), 1);
    process_signal(&p, SIGKILL);
    ck_assert_int_eq(process_wait(&p, LAUNCH_TIMEOUT_MS), 137);
    launch_await_ends(&pidfd, 1, LAUNCH_TIMEOUT_MS);
}
END_TEST

/* Several nodes: node 0 starts the servers on known ports, the others know the addresses. */
START_TEST(several_nodes)
{
    const char *program =
        launch_install_server(ORDERLY "echo \"${listen##*:}\" > \"$file\"\n" WAIT);
    const char *show = "echo \"rank $RANK: $SPARRING_SERVERS\"";
    const char *out = launch_with(program, 0, NULL,
                                  ARGS("--nnodes=2", "--master-addr=head", "--servers=2",
                                       "--server-port=7100", "sh", "-c", show));

    assert_holds(out, "server words: --listen 0.0.0.0:7100 ");
    assert_holds(out, "server words: --listen 0.0.0.0:7101 ");
    assert_holds(out, "rank 0: head:7100,head:7101\n");
    out = launch_with(program, 0, NULL,
                      ARGS("--nnodes=2", "--node-rank=1", "--master-addr=head", "--servers=2",
                           "--server-port=7100", "sh", "-c", show));
    ck_assert_str_eq(out, "rank 1: head:7100,head:7101\n");
}
END_TEST

START_TEST(given_addresses)
{
    ck_assert_str_eq(LAUNCH(0, "--server-addresses=a:1,b:2", "sh", "-c", "echo $SPARRING_SERVERS"),
                     "a:1,b:2\n");
}
END_TEST

/* Our own programs are taken from beside the launcher. */
START_TEST(own_programs)
{
    const char *program = launch_install_server("echo \"it is me\"\n");

    assert_holds(launch_with(program, 0, NULL, ARGS("sparring-server")), "it is me\n");
}
END_TEST

TCase *launch_server_cases(void)
{
    TCase *cases = tcase_create("servers");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, servers_live_as_long_as_the_ranks);
    tcase_add_test(cases, address_in_the_port_file);
    tcase_add_test(cases, colocated_on_one_node);
    tcase_add_test(cases, colocated_on_several_nodes);
    tcase_add_test(cases, mixed);
    tcase_add_test(cases, mixed_with_many);
    tcase_add_test(cases, servers_on_unix_sockets);
    tcase_add_test(cases, no_files_left);
    tcase_add_test(cases, server_dies);
    tcase_add_loop_test(cases, a_server_with_a_replica_dies, 0, 2);
    tcase_add_test(cases, a_server_and_its_replica_die);
    tcase_add_test(cases, server_leaves_early);
    tcase_add_test(cases, server_does_not_start);
    tcase_add_test(cases, server_that_never_listens);
    tcase_add_loop_test(cases, bad_port_file, 0, sizeof(bad_ports) / sizeof(bad_ports[0]));
    tcase_add_test(cases, server_fails_to_stop);
    tcase_add_test(cases, stubborn_server);
    tcase_add_test(cases, no_server_program);
    tcase_add_test(cases, signal_while_servers_start);
    tcase_add_test(cases, servers_die_with_the_launcher);
    tcase_add_test(cases, several_nodes);
    tcase_add_test(cases, given_addresses);
    tcase_add_test(cases, own_programs);
    return cases;
}
