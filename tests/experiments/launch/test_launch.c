/*
 * `sparring launch` without faults: variables, flags in both spellings, exit codes, output.
 */
#include "tests/experiments/launch/launch_test.h"

#include "common/base/parse.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static const char show_all[] = "echo \"r=$RANK w=$WORLD_SIZE l=$LOCAL_RANK lw=$LOCAL_WORLD_SIZE "
                               "g=$GROUP_RANK gw=$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT\"";

START_TEST(variables)
{
    const char *out = LAUNCH(0, "--nproc-per-node", "2", "--", "/bin/sh", "-c", show_all);

    assert_holds(out, "r=0 w=2 l=0 lw=2 g=0 gw=1 127.0.0.1:29500\n");
    assert_holds(out, "r=1 w=2 l=1 lw=2 g=0 gw=1 127.0.0.1:29500\n");
}
END_TEST

START_TEST(single_rank)
{
    assert_holds(LAUNCH(0, "sh", "-c", show_all), "r=0 w=1 l=0 lw=1 g=0 gw=1 127.0.0.1:29500\n");
}
END_TEST

/* torchrun's older spelling, and a program without "--". */
START_TEST(underscores_and_nodes)
{
    const char *out =
        LAUNCH(0, "--nnodes=2:2", "--node_rank", "1", "--nproc_per_node=2", "--master_addr",
               "10.0.0.7", "--master_port=1234", "--no_python", "--use_env", "sh", "-c", show_all);

    assert_holds(out, "r=2 w=4 l=0 lw=2 g=1 gw=2 10.0.0.7:1234\n");
    assert_holds(out, "r=3 w=4 l=1 lw=2 g=1 gw=2 10.0.0.7:1234\n");
}
END_TEST

START_TEST(kubeflow_variables)
{
    const char *out = launch_with(LAUNCH_PROGRAM, 0,
                                  ARGS("PET_NPROC_PER_NODE=1", "PET_NNODES=3", "PET_NODE_RANK=2",
                                       "PET_MASTER_ADDR=head", "PET_MASTER_PORT=77"),
                                  ARGS("sh", "-c", show_all));

    assert_holds(out, "r=2 w=3 l=0 lw=1 g=2 gw=3 head:77\n");
}
END_TEST

START_TEST(words_reach_the_program)
{
    const char *out = LAUNCH(0, "--pass-local-rank", "--nproc-per-node=2", "--", "sh", "-c",
                             "echo \"$#: $1 $2 $3\"", "name", "--nnodes", "a b");

    assert_holds(out, "3: --nnodes a b --local-rank=0\n");
    assert_holds(out, "3: --nnodes a b --local-rank=1\n");
    out = LAUNCH(0, "sh", "-c", "echo \"$#\"", "name", "x");
    ck_assert_str_eq(out, "1\n");
}
END_TEST

/* Of 3 ranks the first two share a host.  Rate 0 is no limit, which every machine keeps to. */
START_TEST(emulated_hosts)
{
    static const char script[] =
        "echo \"r=$RANK w=$WORLD_SIZE l=$LOCAL_RANK lw=$LOCAL_WORLD_SIZE g=$GROUP_RANK "
        "gw=$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $(ip -4 -o address show eth0 | "
        "tr -s ' ' | cut -d' ' -f4) $SPARRING_NETWORK $1\"";
    struct process p;
    const char *out;
    int code;

    launch_start(&p, LAUNCH_PROGRAM, NULL,
                 ARGS("--standalone", "--nproc-per-node=3", "--ranks-per-host=2",
                      "--network-rate=0bit", "--pass-local-rank", "--", "sh", "-c", script,
                      "name"));
    code = process_wait(&p, LAUNCH_TIMEOUT_MS);
    out = process_output(&p);
    if (code == 2 && strstr(out, "emulated hosts take root")) {
        (void)printf("skipped: %s\n", out);
        return;
    }
    ck_assert_msg(code == 0, "%s", out);
    assert_holds(out, "r=0 w=3 l=0 lw=2 g=0 gw=2 10.77.0.1:29500 10.77.0.1/24 "
                      "emulated: rate 0bit --local-rank=0\n");
    assert_holds(out, "r=1 w=3 l=1 lw=2 g=0 gw=2 10.77.0.1:29500 10.77.0.1/24 "
                      "emulated: rate 0bit --local-rank=1\n");
    assert_holds(out, "r=2 w=3 l=0 lw=1 g=1 gw=2 10.77.0.1:29500 10.77.0.2/24 "
                      "emulated: rate 0bit --local-rank=0\n");
}
END_TEST

static uint16_t port_in(const char *output)
{
    const char *at = strstr(output, "127.0.0.1:");
    char text[8];
    uint64_t port;

    ck_assert_ptr_nonnull(at);
    (void)snprintf(text, sizeof(text), "%.*s", (int)strcspn(at + 10, "\n"), at + 10);
    ck_assert(parse_uint64(text, &port) && port > 0 && port < 65536);
    return (uint16_t)port;
}

/* The port of a standalone job is reserved while the job runs: rank 0's listener can bind it, and
 * the kernel gives it to no process that binds port 0. */
START_TEST(standalone_port)
{
    const char *fifo = launch_fifo("hold");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *words[] = {"--standalone", "--nproc-per-node=1",
                           "--",           "sh",
                           "-c",           "echo \"$MASTER_ADDR:$MASTER_PORT\"; read x < $0",
                           fifo,           NULL};
    struct process p[2];
    uint16_t ports[2];
    int on = 1;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int release;

    for (int i = 0; i < 2; i++) {
        launch_start(&p[i], LAUNCH_PROGRAM, NULL, words);
        process_wait_output(&p[i], "127.0.0.1:", LAUNCH_TIMEOUT_MS);
        ports[i] = port_in(process_output(&p[i]));
    }
    ck_assert_uint_ne(ports[0], ports[1]);
    ck_assert_uint_ne(ports[0], 29500);
    address.sin_port = htons(ports[0]);
    ck_assert_int_eq(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    release = launch_open_fifo(fifo);
    ck_assert_int_eq(write(release, "\n\n", 2), 2); /* for each, when it opens it later, too */
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(process_wait(&p[i], LAUNCH_TIMEOUT_MS), 0);
    (void)close(release);
    (void)close(listener);
}
END_TEST

START_TEST(threads_of_a_rank)
{
    static const char *const unset[] = {"OMP_NUM_THREADS", NULL}; /* putenv: no '=' unsets */
    const char *show = "echo threads=${OMP_NUM_THREADS-none}";

    assert_holds(
        launch_with(LAUNCH_PROGRAM, 0, unset, ARGS("--nproc-per-node=2", "sh", "-c", show)),
        "threads=1\n");
    assert_holds(launch_with(LAUNCH_PROGRAM, 0, unset, ARGS("sh", "-c", show)), "threads=none\n");
    assert_holds(launch_with(LAUNCH_PROGRAM, 0, ARGS("OMP_NUM_THREADS=5"),
                             ARGS("--nproc-per-node=2", "sh", "-c", show)),
                 "threads=5\n");
}
END_TEST

START_TEST(counted_ranks)
{
    const char *show = "echo $WORLD_SIZE";

    ck_assert_str_eq(launch_with(LAUNCH_PROGRAM, 0, ARGS("CUDA_VISIBLE_DEVICES=0"),
                                 ARGS("--nproc-per-node=gpu", "sh", "-c", show)),
                     "1\n");
    ck_assert_str_eq(launch_with(LAUNCH_PROGRAM, 0, ARGS("CUDA_VISIBLE_DEVICES=3,5"),
                                 ARGS("--nproc-per-node=auto", "sh", "-c", show)),
                     "2\n2\n");
    assert_holds(launch_with(LAUNCH_PROGRAM, 2, ARGS("CUDA_VISIBLE_DEVICES="),
                             ARGS("--nproc-per-node=gpu", "sh", "-c", show)),
                 "--nproc-per-node: no NVIDIA GPU on this host");
    assert_holds(launch_with(LAUNCH_PROGRAM, 2, ARGS("CUDA_VISIBLE_DEVICES=-1"),
                             ARGS("--nproc-per-node=gpu", "sh", "-c", show)),
                 "--nproc-per-node: no NVIDIA GPU on this host");
    ck_assert_str_eq(launch_with(LAUNCH_PROGRAM, 0, ARGS("CUDA_VISIBLE_DEVICES=GPU-1a,-1,5"),
                                 ARGS("--nproc-per-node=gpu", "sh", "-c", show)),
                     "1\n");
    assert_holds(LAUNCH(0, "--nproc-per-node=cpu", "sh", "-c", "echo cpus=$LOCAL_WORLD_SIZE"),
                 "cpus=");
}
END_TEST

/* An option goes before the variable also where it has the default's value. */
START_TEST(option_before_variable)
{
    const char *show = "echo on=$SPARRING_ON_RANK_LOSS";

    ck_assert_str_eq(launch_with(LAUNCH_PROGRAM, 0, ARGS("SPARRING_ON_RANK_LOSS=shrink"),
                                 ARGS("--on-rank-loss=fail", "sh", "-c", show)),
                     "on=fail\n");
    ck_assert_str_eq(LAUNCH(0, "sh", "-c", show), "on=\n");
}
END_TEST

START_TEST(run_folder)
{
    const char *folder = support_path("a/b");

    assert_holds(LAUNCH(0, "--run-dir", folder, "sh", "-c", "ls -d \"$SPARRING_RUN_DIR\""),
                 "a/b\n");
}
END_TEST

/* A rank that reads gets the end of a file, not our terminal. */
START_TEST(empty_input)
{
    (void)LAUNCH(0, "sh", "-c", "if read line; then exit 9; fi");
}
END_TEST

START_TEST(exit_code_is_kept)
{
    const char *out = LAUNCH(42, "--nproc-per-node=3", "sh", "-c",
                             "if [ $RANK = 1 ]; then exit 42; fi; exec sleep 1000");

    assert_holds(out, "rank 1 (pid ");
    assert_holds(out, ") failed first: exit code 42\n");
    assert_lacks(out, "rank 0");
}
END_TEST

START_TEST(signal_is_named)
{
    const char *out = LAUNCH(137, "--nproc-per-node=3", "sh", "-c",
                             "if [ $RANK = 2 ]; then kill -9 $$; fi; exec sleep 1000");

    assert_holds(out, "rank 2 (pid ");
    assert_holds(out, ") failed first: killed by signal 9 (SIGKILL)\n");
}
END_TEST

/* On the second node the ranks of a job are named, not those of the node. */
START_TEST(global_rank_is_named)
{
    assert_holds(LAUNCH(1, "--nnodes=2", "--node-rank=1", "--nproc-per-node=2", "sh", "-c",
                        "[ $LOCAL_RANK = 0 ]"),
                 "rank 3 (pid ");
}
END_TEST

/* The other ranks fail at once when rank 2 dies, and their ends may be reported before its own;
 * rank 2 must still be named. */
START_TEST(first_failure_is_named)
{
    const char *script = "if [ $RANK = 2 ]; then exec 3>$0 4>$1; kill -9 $$; fi; "
                         "if [ $RANK = 0 ]; then f=$0; else f=$1; fi; read x < $f; exit 1";
    const char *left = launch_fifo("left");
    const char *right = launch_fifo("right");

    for (int i = 0; i < 15; i++) {
        const char *out = LAUNCH(137, "--nproc-per-node=3", "--", "sh", "-c", script, left, right);

        assert_holds(out, "rank 2 (pid ");
        assert_holds(out, ") failed first: killed by signal 9 (SIGKILL)\n");
    }
}
END_TEST

START_TEST(tee)
{
    const char *out = LAUNCH(0, "--tee", "--nproc-per-node=2", "sh", "-c",
                             "echo one; echo two >&2; printf three");
    static const char *const lines[] = {"[rank 0] one\n", "[rank 0] two\n", "[rank 0] three\n",
                                        "[rank 1] one\n", "[rank 1] two\n", "[rank 1] three\n"};
    size_t expected = 0;

    for (size_t i = 0; i < 6; i++) {
        assert_holds(out, lines[i]);
        expected += strlen(lines[i]);
    }
    ck_assert_uint_eq(strlen(out), expected);
}
END_TEST

/* Four ranks write many lines at once: all arrive, whole and in each rank's order. */
START_TEST(tee_keeps_lines_whole)
{
    const char *out =
        LAUNCH(0, "--tee", "--nproc-per-node=4", "sh", "-c",
               "i=0; while [ $i -lt 500 ]; do echo \"$RANK line $i\"; i=$((i+1)); done");
    int next[4] = {0};
    char *end;

    for (const char *line = out; *line; line = strchr(line, '\n') + 1) {
        long rank;

        ck_assert(strncmp(line, "[rank ", 6) == 0);
        rank = strtol(line + 6, &end, 10);
        ck_assert_int_lt(rank, 4);
        ck_assert(strncmp(end, "] ", 2) == 0);
        ck_assert_int_eq(strtol(end + 2, &end, 10), rank);
        ck_assert(strncmp(end, " line ", 6) == 0);
        ck_assert_int_eq(strtol(end + 6, &end, 10), next[rank]++);
        ck_assert_int_eq(*end, '\n');
    }
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(next[i], 500);
}
END_TEST

/* No byte of a line that is longer than the buffer is lost. */
START_TEST(tee_cuts_long_lines)
{
    const char *out =
        LAUNCH(0, "--tee", "sh", "-c", "head -c 10000 /dev/zero | tr '\\0' x; echo; echo end");
    size_t count = 0;

    for (const char *p = out; *p; p++)
        count += *p == 'x';
    ck_assert_uint_eq(count, 10000);
    assert_holds(out, "x\n[rank 0] end\n");
}
END_TEST

START_TEST(help_version_and_config)
{
    const char *out = LAUNCH(0, "--help");

    assert_holds(out, "Usage: sparring launch [OPTION]... [--] PROGRAM [ARG]...\n");
    assert_holds(out, "--nproc-per-node N");
    assert_holds(LAUNCH(0, "--version"), "sparring launch " SPARRING_VERSION "\n");
    out = LAUNCH(0, "--nproc_per_node=3", "--print-config");
    assert_holds(out, "nproc-per-node: 3");
    assert_holds(out, "# --nproc-per-node\n");
}
END_TEST

static const struct {
    const char *words[6];
    const char *text;
} refused[] = {
    {{NULL}, "no program to start"},
    {{"--"}, "no program to start"},
    {{"--nproc-per-node", "0", "true"}, "--nproc-per-node: 0 ranks, allowed is 1 to 1024"},
    {{"--nproc-per-node=1025", "true"}, "--nproc-per-node: 1025 ranks"},
    {{"--nproc-per-node=two", "true"}, "'two' is not a number, cpu, gpu or auto"},
    {{"--nnodes=0", "true"}, "--nnodes: '0' is not a number of nodes from 1"},
    {{"--nnodes=1:4", "true"}, "--nnodes: '1:4': the number of nodes cannot change"},
    {{"--nnodes=2", "--node-rank=2", "true"}, "--node-rank is 2, but there are 2 nodes"},
    {{"--node-rank=-1", "true"}, "--node-rank: '-1' is out of range"},
    {{"--nnodes=2", "--standalone", "true"}, "--standalone excludes --nnodes"},
    {{"--standalone", "--master-port=5", "true"}, "--standalone excludes --master-port"},
    {{"--standalone", "--master-addr=x", "true"}, "--standalone excludes --master-addr"},
    {{"--nnodes=2", "--master-port=0", "true"}, "--master-port is 0, but several nodes"},
    {{"--master-port=65536", "true"}, "--master-port: '65536' is out of range"},
    {{"--master-addr=", "true"}, "--master-addr is empty"},
    {{"--server-port=5", "true"}, "--server-port needs --servers"},
    {{"--servers=1", "--server-addresses=a:1", "true"}, "exclude each other"},
    {{"--servers=1", "--nnodes=2", "true"}, "needs --server-port"},
    {{"--servers=3", "--server-port=65534", "true"}, "go beyond 65535"},
    {{"--servers=1", "--server-port=5", "--server-transport=unix", "true"}, "is for one node"},
    {{"--servers=1", "--nnodes=2", "--server-transport=unix", "true"}, "is for one node"},
    {{"--server-placement=beside", "true"}, "not one of dedicated, colocated or mixed"},
    {{"--server-placement=mixed", "true"}, "mixed needs --servers or --server-addresses"},
    {{"--server-placement=colocated", "--server-addresses=a:1", "true"}, "exclude each other"},
    {{"--server-placement=colocated", "--nnodes=2", "--servers=2", "true"}, "one server on each"},
    {{"--server-placement=colocated", "--nnodes=2", "--server-port=9", "true"},
     "--node-addresses with an address of each, in order; there are 0"},
    {{"--server-placement=colocated", "--nnodes=2", "--node-addresses=a,b", "true"},
     "needs --server-port"},
    {{"--network-rate=1", "true"}, "--network-rate: '1' is not a rate"},
    {{"--network-delay=host1:5", "true"}, "'host1:5' names none of the 1 hosts"},
    {{"--network-delay=5", "--nnodes=2", "true"}, "--nnodes and an emulated network"},
    {{"--network-delay=5", "--master-addr=a", "true"}, "--master-addr and an emulated network"},
    {{"--network-delay=5", "--interface=lo", "true"}, "--interface and an emulated network"},
    {{"--network-delay=5", "--server-addresses=a:1", "true"},
     "--server-addresses and an emulated network"},
    {{"--network-delay=5", "--servers=1", "--server-transport=unix", "true"},
     "--server-transport unix and an emulated network"},
    {{"--on=pbs", "true"}, "--on: 'pbs' is none of local|slurm|ssh:HOST,..."},
    {{"--on=ssh", "true"}, "--on: 'ssh' names no host: ssh:HOST,..."},
    {{"--on=ssh:a,,b", "true"}, "--on: 'ssh:a,,b' is not ssh:HOST,..."},
    {{"--on=ssh:-oProxyCommand=x", "true"}, "is not ssh:HOST,..."},
    {{"--on=ssh:a", "--standalone", "true"}, "--on ssh and --standalone exclude"},
    {{"--hosts=a", "true"}, "--hosts goes with --on"},
    {{"--on=slurm", "--hosts=a", "--standalone", "true"}, "--on slurm and --standalone exclude"},
    {{"--on=slurm", "--hosts=a", "--nnodes=2", "true"}, "--on slurm and --nnodes exclude"},
    {{"--on=slurm", "--hosts=a", "--master-addr=b", "true"}, "--on slurm and --master-addr"},
    {{"--on=slurm", "--hosts=a", "--network-delay=5", "true"}, "--on slurm and --network-..."},
    {{"--on=slurm", "--hosts=a", "--server-addresses=b:1", "true"}, "and --server-addresses"},
    {{"--on=slurm", "--hosts=a", "--bind=core", "true"}, "--on slurm and --bind exclude"},
    {{"--on=slurm", "--hosts=a", "--interface=a,b", "true"}, "and a list of --interface exclude"},
    {{"--on=slurm", "--hosts=a", "--pass-local-rank", "true"}, "and --pass-local-rank exclude"},
    {{"--on=slurm", "--hosts=a", "--fault-schedule=f", "true"}, "and --fault-schedule exclude"},
    {{"--on=slurm", "--hosts=a", "--on-rank-loss=shrink", "true"}, "and --on-rank-loss exclude"},
    {{"--bind=socket", "true"}, "not one of core, numa or none"},
    {{"--bind=core", "--backend=mpi", "true"}, "--backend mpi excludes --bind"},
    {{"--interface=lo,eth0", "--backend=mpi", "true"}, "--backend mpi excludes --bind"},
    {{"--nproc", "2", "true"}, "unknown option '--nproc'"},
    {{"--rdzv-backend=c10d", "true"}, "unknown option '--rdzv-backend'"},
    {{"--max-restarts=-1", "true"}, "max-restarts"},
    {{"--on-rank-loss=restart", "true"}, "on-rank-loss"},
    {{"/nonexistent/program"}, "cannot run '/nonexistent/program': No such file or directory"},
    {{"no-such-program-anywhere"}, "cannot run 'no-such-program-anywhere': No such file"},
    {{"/dev/null"}, "cannot run '/dev/null': Permission denied"},
};

START_TEST(refusals)
{
    assert_holds(launch_with(LAUNCH_PROGRAM, 2, NULL, refused[_i].words), refused[_i].text);
}
END_TEST

TCase *launch_cases(void)
{
    TCase *cases = tcase_create("launch");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, variables);
    tcase_add_test(cases, single_rank);
    tcase_add_test(cases, underscores_and_nodes);
    tcase_add_test(cases, kubeflow_variables);
    tcase_add_test(cases, words_reach_the_program);
    tcase_add_test(cases, emulated_hosts);
    tcase_add_test(cases, standalone_port);
    tcase_add_test(cases, threads_of_a_rank);
    tcase_add_test(cases, counted_ranks);
    tcase_add_test(cases, option_before_variable);
    tcase_add_test(cases, run_folder);
    tcase_add_test(cases, empty_input);
    tcase_add_test(cases, exit_code_is_kept);
    tcase_add_test(cases, signal_is_named);
    tcase_add_test(cases, global_rank_is_named);
    tcase_add_test(cases, first_failure_is_named);
    tcase_add_test(cases, tee);
    tcase_add_test(cases, tee_keeps_lines_whole);
    tcase_add_test(cases, tee_cuts_long_lines);
    tcase_add_test(cases, help_version_and_config);
    tcase_add_loop_test(cases, refusals, 0, sizeof(refused) / sizeof(refused[0]));
    return cases;
}
