/* ps_fixture, part 1: start, signal and stop the job's processes, and check how they end. */
#include "tests/integration/ps_fixture.h"

#include "common/base/clock.h"
#include "common/base/parse.h"
#include "tests/integration/job.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define MODEL                                                                                      \
    "--model", "mlp:64-96-64-8", "--data", "random:4096,64,8", "--batch-size", "8", "--momentum",  \
        "0.9", "--lr", "0.05", "--reduce", "reproducible", "--threads", "1", "--device", "cpu",    \
        "--seed", "7", "--partition-bytes", "4096", "--sync", "ps", "--ps-transport", "grpc"

#define SNAPSHOT_EVERY "3"

struct arguments {
    const char *list[PS_FIXTURE_ARGUMENTS_MAX];
    size_t count;
};

static void add_arguments(struct arguments *w, const char *const *more)
{
    for (; more && *more; more++) {
        ck_assert_uint_lt(w->count, PS_FIXTURE_ARGUMENTS_MAX - 1);
        w->list[w->count++] = *more;
    }
    w->list[w->count] = NULL;
}

static const char *update_option(const struct ps_fixture *f)
{
    return f->update ? f->update : "server";
}

/* ------------------------------------------------------------------ processes */

const char *ps_fixture_state_dir(const struct ps_fixture *f, unsigned server)
{
    static char path[700];

    (void)snprintf(path, sizeof(path), "%s/state-%u", f->run_dir, server);
    return path;
}

void ps_fixture_start_server(struct ps_fixture *f, unsigned server)
{
    struct arguments arguments = {.count = 0};
    char line[600], listen[64];

    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", f->ports[server]);
    (void)snprintf(line, sizeof(line), "%s; exec \"$@\"", f->before ? f->before : ":");
    if (f->before)
        add_arguments(&arguments, ARGS("/bin/sh", "-c", line, "sh"));
    add_arguments(&arguments,
                  ARGS(support_program("sparring-server"), "--listen", listen, "--run-dir",
                       f->run_dir, "--timeout-ms", f->timeout_ms ? f->timeout_ms : "20000"));
    if (f->with_state)
        add_arguments(&arguments, ARGS("--state-dir", ps_fixture_state_dir(f, server),
                                       "--snapshot-every", SNAPSHOT_EVERY));
    add_arguments(&arguments, f->server);
    process_start(&f->server_process[server], NULL, arguments.list);
    f->server_runs[server] = true;
    process_wait_output(&f->server_process[server], "serving on", PS_FIXTURE_WAIT_MS);
}

unsigned ps_fixture_steps(const struct ps_fixture *f)
{
    uint64_t steps;

    ck_assert(parse_uint64(f->steps ? f->steps : PS_FIXTURE_STEPS, &steps) && steps > 10);
    return (unsigned)steps;
}

/* A delay schedule for jobs by reference, which are over in milliseconds: no proxy holds them while
 * a test comes to a step, at most the last step but ten. */
static const char *pace(const struct ps_fixture *f)
{
    char text[PS_FIXTURE_RANKS_MAX * 32];
    size_t length = 0;

    for (unsigned rank = 0; rank < f->ranks; rank++)
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%u 0- 1\n%u %u- 50\n",
                                   rank, rank, ps_fixture_steps(f) - 10);
    return support_write("pace", text, length);
}

void ps_fixture_start_worker(struct ps_fixture *f, unsigned rank)
{
    struct arguments arguments = {.count = 0};
    char servers[PS_FIXTURE_SERVERS_MAX * 24] = "", replicas[sizeof(servers)] = "", url[600],
                                          own[16], world[16];
    size_t used = 0;

    for (unsigned k = 0; k < f->servers; k++)
        used += (size_t)snprintf(servers + used, sizeof(servers) - used, "%s127.0.0.1:%u",
                                 k > 0 ? "," : "", fault_proxy_port(f->links[rank][k].proxy));
    used = 0;
    for (unsigned k = 0; f->replicas && k < f->servers; k++)
        used += (size_t)snprintf(replicas + used, sizeof(replicas) - used, "%s127.0.0.1:%u",
                                 k > 0 ? "," : "",
                                 fault_proxy_port(f->links[PS_FIXTURE_REPLICA_LINK][k].proxy));
    (void)snprintf(url, sizeof(url), "file://%s", f->store);
    (void)snprintf(own, sizeof(own), "%u", rank);
    (void)snprintf(world, sizeof(world), "%u", f->ranks);
    add_arguments(&arguments,
                  ARGS(support_program("sparring-worker"), MODEL, "--ps-update", update_option(f),
                       "--steps", f->steps ? f->steps : PS_FIXTURE_STEPS, "--servers", servers,
                       "--init-method", url, "--world-size", world, "--rank", own, "--run-dir",
                       f->run_dir, "--timeout-ms", f->timeout_ms ? f->timeout_ms : "20000"));
    if (f->replicas)
        add_arguments(&arguments, ARGS("--replicas", replicas));
    if (f->by_reference)
        add_arguments(&arguments, ARGS("--ps-transport", "shm", "--delay-schedule", pace(f)));
    if (f->connections)
        add_arguments(&arguments, ARGS("--connections", f->connections));
    add_arguments(&arguments, f->worker);
    process_start(&f->worker_process[rank], NULL, arguments.list);
    f->worker_runs[rank] = f->worker_is_new[rank] = true;
}

void ps_fixture_start_workers(struct ps_fixture *f)
{
    for (unsigned rank = 0; rank < f->ranks; rank++)
        ps_fixture_start_worker(f, rank);
}

void ps_fixture_open(struct ps_fixture *f)
{
    static unsigned serial;
    char name[32];

    (void)snprintf(name, sizeof(name), "ps-fixture-%u", serial++);
    f->run_dir = support_path(name);
    (void)snprintf(name, sizeof(name), "store-%u", serial);
    f->store = support_path(name);
    for (unsigned k = 0; f->replicas && k < f->servers; k++) {
        unsigned replica = f->servers + k;

        ck_assert_uint_lt(replica, PS_FIXTURE_SERVERS_MAX);
        f->ports[replica] = support_port();
        ps_fixture_start_server(f, replica);
        f->links[PS_FIXTURE_REPLICA_LINK][k].proxy =
            fault_proxy_open(f->ports[replica], f->seed * 100 + 50 + k);
    }
    for (unsigned k = 0; k < f->servers; k++) {
        f->ports[k] = support_port();
        ps_fixture_start_server(f, k);
        for (unsigned rank = 0; rank < f->ranks; rank++)
            f->links[rank][k].proxy =
                fault_proxy_open(f->ports[k], f->seed * 100 + rank * 10 + k + 1);
    }
}

static void signal_process(struct process *p, bool *runs, int signal_number)
{
    siginfo_t info;

    process_signal(p, signal_number);
    if (signal_number == SIGSTOP) /* on a busy host its threads continue for milliseconds */
        ck_assert_int_eq(waitid(P_PID, (id_t)p->pid, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
    if (signal_number != SIGKILL)
        return;
    ck_assert_int_eq(process_wait(p, PS_FIXTURE_WAIT_MS), 128 + SIGKILL);
    *runs = false;
}

const char *ps_fixture_server_output(const struct ps_fixture *f, unsigned server)
{
    return process_output(&f->server_process[server]);
}

void ps_fixture_signal_server(struct ps_fixture *f, unsigned server, int signal_number)
{
    signal_process(&f->server_process[server], &f->server_runs[server], signal_number);
}

void ps_fixture_signal_worker(struct ps_fixture *f, unsigned rank, int signal_number)
{
    signal_process(&f->worker_process[rank], &f->worker_runs[rank], signal_number);
}

void ps_fixture_await_server_end(struct ps_fixture *f, unsigned server)
{
    int code = process_wait(&f->server_process[server], PS_FIXTURE_WAIT_MS);

    f->server_runs[server] = false;
    ck_assert_msg(code == 0, "server %u ended with %d:\n%s", server, code,
                  process_output(&f->server_process[server]));
}

static void kill_if_running(struct process *p, bool *runs)
{
    if (!*runs)
        return;
    (void)kill(p->pid, SIGKILL); /* fails if it has already ended */
    (void)process_wait(p, PS_FIXTURE_WAIT_MS);
    *runs = false;
}

void ps_fixture_close(struct ps_fixture *f)
{
    for (unsigned rank = 0; rank < f->ranks; rank++)
        kill_if_running(&f->worker_process[rank], &f->worker_runs[rank]);
    for (unsigned k = 0; f->replicas && k < f->servers; k++) {
        kill_if_running(&f->server_process[f->servers + k], &f->server_runs[f->servers + k]);
        fault_proxy_close(f->links[PS_FIXTURE_REPLICA_LINK][k].proxy);
    }
    for (unsigned k = 0; k < f->servers; k++) {
        kill_if_running(&f->server_process[k], &f->server_runs[k]);
        for (unsigned rank = 0; rank < f->ranks; rank++)
            fault_proxy_close(f->links[rank][k].proxy);
    }
}

/* ------------------------------------------------------------------ ends */

int ps_fixture_wait_worker(struct ps_fixture *f, unsigned rank)
{
    int code = process_wait(&f->worker_process[rank], PS_FIXTURE_WAIT_MS);

    f->worker_runs[rank] = false;
    if (code != 0 && f->fault_ns > 0)
        f->last_ms = (double)(clock_now_ns() - f->fault_ns) * 1e-6;
    if (f->detect_ms == 0)
        f->detect_ms = f->last_ms;
    ck_assert_msg(code >= 0, "rank %u hangs:\n%s", rank, process_output(&f->worker_process[rank]));
    return code;
}

void ps_fixture_expect_failure(struct ps_fixture *f, unsigned but, const char *text)
{
    for (unsigned rank = 0; rank < f->ranks; rank++) {
        const char *output;
        int code;

        if (rank == but)
            continue;
        code = ps_fixture_wait_worker(f, rank);
        output = process_output(&f->worker_process[rank]);
        ck_assert_msg(code != 0, "rank %u succeeded:\n%s", rank, output);
        ck_assert_msg(strstr(output, text) != NULL, "rank %u, exit code %d: no '%s' in:\n%s", rank,
                      code, text, output);
    }
}

void ps_fixture_expect_success(struct ps_fixture *f, unsigned but, bool exact)
{
    const char *wanted = exact ? ps_fixture_reference_hash(f->ranks, update_option(f)) : NULL;

    for (unsigned rank = 0; rank < f->ranks; rank++) {
        const char *hash;
        int code;

        if (rank == but)
            continue;
        code = ps_fixture_wait_worker(f, rank);
        ck_assert_msg(code == 0, "rank %u ended with %d:\n%s", rank, code,
                      process_output(&f->worker_process[rank]));
        hash = job_record_text(f->run_dir, rank, "end", "parameters_hash");
        ck_assert_str_ne(hash, "");
        ck_assert_msg(!exact || strcmp(hash, wanted) == 0,
                      "rank %u ended with other parameters than without a fault (%s, not %s)", rank,
                      hash, wanted);
    }
}

const char *ps_fixture_reference_hash(unsigned ranks, const char *update)
{
    static char hashes[PS_FIXTURE_RANKS_MAX + 1][2][32];
    char *hash = hashes[ranks][strcmp(update, "worker") == 0];

    if (hash[0] == '\0') {
        const char *run_dir = job_run(&(struct job){.ranks = ranks,
                                                    .servers = 1,
                                                    .worker = ARGS(MODEL, "--ps-update", update,
                                                                   "--steps", PS_FIXTURE_STEPS)},
                                      0);

        (void)snprintf(hash, sizeof(hashes[0][0]), "%s",
                       job_record_text(run_dir, 0, "end", "parameters_hash"));
        ck_assert_str_ne(hash, "");
    }
    return hash;
}

void ps_fixture_compute_references(void)
{
    for (unsigned ranks = 2; ranks <= 3; ranks++) {
        (void)ps_fixture_reference_hash(ranks, "server");
        (void)ps_fixture_reference_hash(ranks, "worker");
    }
}
