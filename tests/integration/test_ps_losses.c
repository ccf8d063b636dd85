/*
 * Parameter-server jobs that lose workers, servers and connections at random steps.  For faults in
 * each phase see test_ps_faults.c.
 *
 * Invariants: if a lost worker is replaced, or a connection or process is only interrupted, the
 * final parameters have the bits of the undisturbed job; if the other ranks continue without it,
 * all of them succeed; if the job must fail, all processes end in time and name the lost one.
 */
#include "common/checkpoint/checkpoint.h"
#include "tests/integration/job.h"
#include "tests/support/fault_proxy.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/base/parse.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS     3
#define STEPS     600
#define STEP_TEXT "600"
#define RESETS    40

#define JOB                                                                                        \
    "--sync", "ps", "--model", "mlp:64-96-64-8", "--data", "random:4096,64,8", "--batch-size",     \
        "8", "--momentum", "0.9", "--partition-bytes", "4K", "--reduce", "reproducible",           \
        "--threads", "1", "--device", "cpu", "--seed", "7", "--evaluate", "never"

struct launched_job {
    struct process launch;
    const char *folder;
    const char *checkpoint;
};

static const char *plain_checkpoint; /* the checkpoint of run_plain_job */

/* Start `sparring launch` with 3 ranks; launch_options say which servers. */
static void start_launch(struct launched_job *r, const char *const *launch_options,
                         const char *const *worker_options)
{
    static unsigned serial;
    const char *arguments[64] = {support_program("sparring"), "launch", "--standalone",
                                 "--nproc-per-node",          "3",      "--run-dir"};
    const char *job[] = {support_program("sparring-worker"),
                         JOB,
                         "--delay-schedule",
                         job_pace(RANKS),
                         "--steps",
                         STEP_TEXT,
                         "--save"};
    size_t count = 6;
    char name[48];

    (void)snprintf(name, sizeof(name), "run-%u", serial);
    arguments[count++] = r->folder = support_path(name);
    (void)snprintf(name, sizeof(name), "run-%u.safetensors", serial++);
    r->checkpoint = support_path(name);
    while (*launch_options)
        arguments[count++] = *launch_options++;
    arguments[count++] = "--";
    for (size_t i = 0; i < sizeof(job) / sizeof(job[0]); i++)
        arguments[count++] = job[i];
    arguments[count++] = r->checkpoint;
    while (*worker_options)
        arguments[count++] = *worker_options++;
    ck_assert_uint_lt(count, sizeof(arguments) / sizeof(arguments[0]));
    process_start(&r->launch, NULL, arguments);
}

static void expect_launch_end(struct launched_job *r, int wanted)
{
    int code = process_wait(&r->launch, JOB_TIMEOUT_MS);

    ck_assert_msg(code == wanted, "exit code %d:\n%.3000s", code, process_output(&r->launch));
}

/* The checkpoint of a job without faults. */
static const char *undisturbed_checkpoint(const char *compression, const char *compression_down)
{
    struct launched_job r;

    if (plain_checkpoint && strcmp(compression, "none") == 0 &&
        strcmp(compression_down, "none") == 0)
        return plain_checkpoint;
    start_launch(&r, ARGS("--servers", "2"),
                 ARGS("--compression", compression, "--compression-down", compression_down));
    expect_launch_end(&r, 0);
    return r.checkpoint;
}

/* Unchecked fixture: runs once, in the process that forks the tests. */
static void run_plain_job(void)
{
    if (!plain_checkpoint)
        plain_checkpoint = undisturbed_checkpoint("none", "none");
}

static pid_t worker_pid(const struct launched_job *r, unsigned rank)
{
    return (pid_t)job_newest_int(r->folder, rank, "start", "pid");
}

/* A random step after `last`. */
static int64_t draw_step(int64_t last)
{
    return last + 1 + (int64_t)(support_random() * 75);
}

/* ------------------------------------------------------------------ workers */

/* Ranks, including rank 0, are killed one after the other, one of them twice.  The replacement of
 * rank 0 continues to write checkpoints to the same folder. */
START_TEST(test_killed_workers_are_replaced)
{
    static const unsigned victims[] = {1, 0, 2, 1};
    const char *wanted = undisturbed_checkpoint("none", "none");
    const char *checkpoints = support_path("replaced");
    char newest[CHECKPOINT_PATH_MAX];
    struct error err;
    struct launched_job r;
    int64_t step = 0;

    start_launch(&r, ARGS("--servers", "2", "--on-rank-loss", "wait", "--max-restarts", "4"),
                 ARGS("--reconnect-ms", "500", "--checkpoint-dir", checkpoints,
                      "--checkpoint-every", "20", "--checkpoint-keep", "2"));
    for (unsigned i = 0; i < 4; i++) {
        step = draw_step(step);
        ck_assert_int_lt(step, STEPS);
        job_await_step(r.folder, victims[i], step);
        ck_assert_int_eq(kill(worker_pid(&r, victims[i]), SIGKILL), 0);
        step = job_newest_int(r.folder, victims[i], "step", "step");
        for (unsigned rank = 0; rank < RANKS; rank++) /* all ranks continue */
            job_await_step(r.folder, rank, step + 2);
    }
    expect_launch_end(&r, 0);
    assert_contains(process_output(&r.launch), "started again (0 restarts left)");
    ck_assert(job_same_tensors(r.checkpoint, wanted));
    assert_ok(checkpoint_find(checkpoints, newest, &err));
    ck_assert_ptr_nonnull(strstr(newest, "step-000" STEP_TEXT));
    ck_assert_int_eq(job_newest_int(r.folder, 2, "end", "steps") +
                         job_newest_int(r.folder, 2, "end", "skipped_steps"),
                     STEPS);
}
END_TEST

static const char *const shrink_updates[] = {"server", "worker"};

START_TEST(test_others_continue)
{
    struct launched_job r;

    start_launch(&r, ARGS("--servers", "2", "--on-rank-loss", "shrink"),
                 ARGS("--reconnect-ms", "500", "--ps-update", shrink_updates[_i]));
    job_await_step(r.folder, 1, draw_step(0));
    ck_assert_int_eq(kill(worker_pid(&r, 1), SIGKILL), 0);
    expect_launch_end(&r, 7);
    assert_contains(process_output(&r.launch), "is lost: killed by signal 9 (SIGKILL)");
    for (unsigned rank = 0; rank < RANKS; rank += 2) {
        int64_t steps = job_newest_int(r.folder, rank, "end", "steps");

        ck_assert_int_eq(steps, STEPS);
    }
}
END_TEST

/* The other ranks do not wait, and the replacement starts at their current step. */
START_TEST(test_replacement_joins_running_job)
{
    struct launched_job r;

    start_launch(&r, ARGS("--servers", "2", "--on-rank-loss", "shrink", "--max-restarts", "1"),
                 ARGS("--reconnect-ms", "200"));
    job_await_step(r.folder, 1, draw_step(0));
    ck_assert_int_eq(kill(worker_pid(&r, 1), SIGKILL), 0);
    expect_launch_end(&r, 0);
    ck_assert_int_gt(job_newest_int(r.folder, 1, "end", "skipped_steps"), 0);
    ck_assert_int_eq(job_newest_int(r.folder, 1, "end", "steps") +
                         job_newest_int(r.folder, 1, "end", "skipped_steps"),
                     STEPS);
}
END_TEST

/* One of three workers, started without the launcher. */
static void start_worker(struct process *p, unsigned rank, const char *servers, const char *folder,
                         const char *const *worker_options)
{
    static const char *const ranks[] = {"0", "1", "2"};
    const char *arguments[64] = {support_program("sparring-worker"),
                                 JOB,
                                 "--delay-schedule",
                                 job_pace(RANKS),
                                 "--world-size",
                                 "3",
                                 "--rank",
                                 ranks[rank],
                                 "--servers",
                                 servers,
                                 "--run-dir",
                                 folder};
    size_t count = 0;

    while (arguments[count])
        count++;
    while (*worker_options)
        arguments[count++] = *worker_options++;
    process_start(p, NULL, arguments);
}

static const char *start_server(struct process *p)
{
    static char address[64];
    const char *at;

    process_start(p, NULL, ARGS(support_program("sparring-server"), "--listen", "127.0.0.1:0"));
    process_wait_output(p, "serving on 127.0.0.1:", 20000);
    at = strstr(process_output(p), "127.0.0.1:");
    (void)snprintf(address, sizeof(address), "%.*s", (int)strcspn(at, " \n"), at);
    return address;
}

/* A worker that is stopped, replaced and then continued must end with an error that names the
 * reason; the sums must not contain its gradients. */
START_TEST(test_stopped_worker_is_superseded)
{
    const char *wanted = undisturbed_checkpoint("none", "none");
    struct process server, workers[3], successor;
    const char *folder = support_path("run"), *checkpoint = support_path("end.safetensors");
    const char *address = start_server(&server);
    const char *const *worker_options = ARGS("--reconnect-ms", "500", "--steps", STEP_TEXT,
                                             "--on-rank-loss", "wait", "--save", checkpoint);

    for (unsigned rank = 0; rank < RANKS; rank++)
        start_worker(&workers[rank], rank, address, folder, worker_options);
    job_await_step(folder, 1, draw_step(0));
    process_signal(&workers[1], SIGSTOP);
    start_worker(&successor, 1, address, support_path("successor"), worker_options);
    job_await_step(support_path("successor"), 1, 1);
    process_signal(&workers[1], SIGCONT);
    ck_assert_int_eq(process_wait(&workers[1], JOB_TIMEOUT_MS), 1);
    assert_contains(process_output(&workers[1]), "its place is another session's since epoch 2");
    ck_assert_int_eq(process_wait(&successor, JOB_TIMEOUT_MS), 0);
    for (unsigned rank = 0; rank < RANKS; rank += 2)
        ck_assert_int_eq(process_wait(&workers[rank], JOB_TIMEOUT_MS), 0);
    ck_assert(job_same_tensors(checkpoint, wanted));
    process_signal(&server, SIGTERM);
    ck_assert_int_eq(process_wait(&server, 20000), 0);
}
END_TEST

/* The lost worker is not replaced.  On SIGTERM the waiting workers end at once. */
START_TEST(test_waiting_workers_can_be_stopped)
{
    struct launched_job r;
    int64_t before_ns;

    start_launch(&r, ARGS("--servers", "2", "--on-rank-loss", "wait", "--grace-ms", "60000"),
                 ARGS("--reconnect-ms", "200"));
    job_await_step(r.folder, 1, draw_step(0));
    ck_assert_int_eq(kill(worker_pid(&r, 1), SIGKILL), 0);
    process_wait_output(&r.launch, "waiting for a replacement", 20000);
    before_ns = clock_now_ns();
    process_signal(&r.launch, SIGTERM);
    expect_launch_end(&r, 6);
    ck_assert_int_lt(clock_now_ns() - before_ns, INT64_C(20000) * 1000000);
    assert_contains(process_output(&r.launch), "stopped by signal 15");
}
END_TEST

/* ------------------------------------------------------------------ servers */

/* Servers get SIGKILL, and SIGTERM as for a program update: every acknowledged round is on disk. */
START_TEST(test_servers_are_restarted)
{
    static const struct {
        unsigned server;
        int signal_number;
    } restarts[] = {{0, SIGKILL}, {1, SIGKILL}, {0, SIGTERM}, {1, SIGKILL}};
    const char *wanted = undisturbed_checkpoint("none", "none");
    struct launched_job r;
    int64_t step = 0;

    start_launch(
        &r, ARGS("--servers", "2", "--max-restarts", "4", "--state-dir", support_path("state")),
        ARGS("--reconnect-ms", "30000"));
    for (unsigned i = 0; i < 4; i++) {
        step = draw_step(step);
        ck_assert_int_lt(step, STEPS);
        job_await_step(r.folder, 0, step);
        ck_assert_int_eq(kill((pid_t)job_server_int(r.folder, restarts[i].server, "start", "pid"),
                              restarts[i].signal_number),
                         0);
        step = job_newest_int(r.folder, 0, "step", "step");
        job_await_step(r.folder, 0, step + 2);
    }
    expect_launch_end(&r, 0);
    assert_contains(process_output(&r.launch), "started again (0 restarts left)");
    ck_assert(job_same_tensors(r.checkpoint, wanted));
    for (unsigned rank = 0; rank < RANKS; rank++)
        ck_assert_int_ge(job_newest_int(r.folder, rank, "end", "reconnects"), 4);
}
END_TEST

/* ------------------------------------------------------------------ connections */

struct reset_series {
    struct fault_proxy *proxy;
    unsigned resets_left;
    double max_bytes; /* between two resets */
};

static void reset_and_rearm(void *user)
{
    struct reset_series *b = user;
    enum fault_direction direction = b->resets_left % 2 ? FAULT_UP : FAULT_DOWN;

    fault_proxy_reset(b->proxy);
    if (--b->resets_left > 0)
        fault_proxy_call_at(b->proxy, direction,
                            fault_proxy_bytes(b->proxy, direction) + 1 +
                                (uint64_t)(support_random() * b->max_bytes),
                            reset_and_rearm, b);
}

/* Over shared memory hardly a byte passes: reset after random steps. */
static void reset_at_steps(struct reset_series *b, const struct launched_job *r)
{
    int64_t step = 0;

    for (; b->resets_left > 0; b->resets_left--) {
        step += 1 + (int64_t)(support_random() * (2 * STEPS / 3.0 / RESETS));
        job_await_step(r->folder, b->resets_left % RANKS, step);
        fault_proxy_reset(b->proxy);
    }
}

static const struct {
    const char *transport, *connections, *up, *down;
    double max_bytes; /* between two resets; 0: by steps */
} reset_cases[] = {{"grpc", "1", "none", "none", 2e6},    {"grpc", "3", "none", "none", 2e6},
                   {"shm", "1", "none", "none", 0},       {"shm", "2", "none", "none", 0},
                   {"grpc", "2", "topk", "onebit", 25e3}, {"grpc", "1", "onebit", "fp16", 5e5}};

static uint16_t port_of(const char *address)
{
    uint64_t port = 0;

    ck_assert_msg(parse_uint64(strrchr(address, ':') + 1, &port) && port <= UINT16_MAX, "'%s'",
                  address);
    return (uint16_t)port;
}

/* All connections of all ranks to the server are reset repeatedly at random bytes or steps. */
START_TEST(test_resets_preserve_the_result)
{
    const char *wanted = undisturbed_checkpoint(reset_cases[_i].up, reset_cases[_i].down);
    struct process server;
    struct reset_series reset_series = {.resets_left = RESETS,
                                        .max_bytes = reset_cases[_i].max_bytes};
    const char *address = start_server(&server);
    char proxied[64];
    struct launched_job r;
    int64_t retries = 0;

    reset_series.proxy = fault_proxy_open(port_of(address), 1);
    (void)snprintf(proxied, sizeof(proxied), "127.0.0.1:%u", fault_proxy_port(reset_series.proxy));
    if (reset_series.max_bytes > 0)
        fault_proxy_call_at(reset_series.proxy, FAULT_UP, 20000, reset_and_rearm, &reset_series);
    start_launch(&r, ARGS("--server-addresses", proxied),
                 ARGS("--reconnect-ms", "30000", "--ps-transport", reset_cases[_i].transport,
                      "--connections", reset_cases[_i].connections, "--compression",
                      reset_cases[_i].up, "--compression-down", reset_cases[_i].down));
    if (reset_series.max_bytes <= 0)
        reset_at_steps(&reset_series, &r);
    expect_launch_end(&r, 0);
    ck_assert(job_same_tensors(r.checkpoint, wanted));
    for (unsigned rank = 0; rank < RANKS; rank++) {
        /* not RESETS: one that meets a rank while it reconnects breaks nothing */
        ck_assert_int_ge(job_newest_int(r.folder, rank, "end", "reconnects"), RESETS / 4);
        retries += job_newest_int(r.folder, rank, "end", "retries");
    }
    ck_assert_int_gt(retries, 0);
    fault_proxy_close(reset_series.proxy);
    process_signal(&server, SIGTERM);
    ck_assert_int_eq(process_wait(&server, 20000), 0);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "ps_losses", 300, UNCHECKED_FIXTURE(run_plain_job, NULL), TEST(test_servers_are_restarted),
        TEST_CASE("links", 300), UNCHECKED_FIXTURE(run_plain_job, NULL),
        LOOP_TEST(test_resets_preserve_the_result, 0, sizeof(reset_cases) / sizeof(reset_cases[0])),
        TEST_CASE("workers", 300), UNCHECKED_FIXTURE(run_plain_job, NULL),
        TEST(test_killed_workers_are_replaced), LOOP_TEST(test_others_continue, 0, 2),
        TEST(test_replacement_joins_running_job), TEST(test_stopped_worker_is_superseded),
        TEST(test_waiting_workers_can_be_stopped));
}
