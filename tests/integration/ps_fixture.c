/* ps_fixture, part 1: start, signal and stop the job's processes, and check how they end. */
#include "tests/integration/ps_fixture.h"

#include "common/base/clock.h"
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

static const char *update_of(const struct ps_fixture *r)
{
    return r->update ? r->update : "server";
}

/* ------------------------------------------------------------------ processes */

const char *ps_fixture_state_dir(const struct ps_fixture *r, unsigned server)
{
    static char path[700];

    (void)snprintf(path, sizeof(path), "%s/state-%u", r->run_dir, server);
    return path;
}

void ps_fixture_start_server(struct ps_fixture *r, unsigned server)
{
    struct arguments arguments = {.count = 0};
    char line[600], listen[64];

    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", r->ports[server]);
    (void)snprintf(line, sizeof(line), "%s; exec \"$@\"", r->before ? r->before : ":");
    if (r->before)
        add_arguments(&arguments, ARGS("/bin/sh", "-c", line, "sh"));
    add_arguments(&arguments,
                  ARGS(support_program("sparring-server"), "--listen", listen, "--run-dir",
                       r->run_dir, "--timeout-ms", r->timeout_ms ? r->timeout_ms : "20000"));
    if (r->with_state)
        add_arguments(&arguments, ARGS("--state-dir", ps_fixture_state_dir(r, server),
                                       "--snapshot-every", SNAPSHOT_EVERY));
    add_arguments(&arguments, r->server);
    process_start(&r->server_process[server], NULL, arguments.list);
    r->server_runs[server] = true;
    process_wait_output(&r->server_process[server], "serving on", PS_FIXTURE_WAIT_MS);
}

void ps_fixture_start_worker(struct ps_fixture *r, unsigned rank)
{
    struct arguments arguments = {.count = 0};
    char servers[PS_FIXTURE_SERVERS_MAX * 24] = "", replicas[sizeof(servers)] = "", url[600],
                                          own[16], world[16];
    size_t used = 0;

    for (unsigned k = 0; k < r->servers; k++)
        used += (size_t)snprintf(servers + used, sizeof(servers) - used, "%s127.0.0.1:%u",
                                 k > 0 ? "," : "", fault_proxy_port(r->links[rank][k].proxy));
    used = 0;
    for (unsigned k = 0; r->replicas && k < r->servers; k++)
        used += (size_t)snprintf(replicas + used, sizeof(replicas) - used, "%s127.0.0.1:%u",
                                 k > 0 ? "," : "",
                                 fault_proxy_port(r->links[PS_FIXTURE_REPLICA_LINK][k].proxy));
    (void)snprintf(url, sizeof(url), "file://%s", r->store);
    (void)snprintf(own, sizeof(own), "%u", rank);
    (void)snprintf(world, sizeof(world), "%u", r->ranks);
    add_arguments(&arguments,
                  ARGS(support_program("sparring-worker"), MODEL, "--ps-update", update_of(r),
                       "--steps", r->steps ? r->steps : PS_FIXTURE_STEPS, "--servers", servers,
                       "--init-method", url, "--world-size", world, "--rank", own, "--run-dir",
                       r->run_dir, "--timeout-ms", r->timeout_ms ? r->timeout_ms : "20000"));
    if (r->replicas)
        add_arguments(&arguments, ARGS("--replicas", replicas));
    if (r->by_reference)
        add_arguments(&arguments, ARGS("--ps-transport", "shm"));
    if (r->connections)
        add_arguments(&arguments, ARGS("--connections", r->connections));
    add_arguments(&arguments, r->worker);
    process_start(&r->worker_process[rank], NULL, arguments.list);
    r->worker_runs[rank] = r->worker_is_new[rank] = true;
}

void ps_fixture_start_workers(struct ps_fixture *r)
{
    for (unsigned rank = 0; rank < r->ranks; rank++)
        ps_fixture_start_worker(r, rank);
}

void ps_fixture_open(struct ps_fixture *r)
{
    static unsigned serial;
    char name[32];

    (void)snprintf(name, sizeof(name), "ps-fixture-%u", serial++);
    r->run_dir = support_path(name);
    (void)snprintf(name, sizeof(name), "meet-%u", serial);
    r->store = support_path(name);
    for (unsigned k = 0; r->replicas && k < r->servers; k++) {
        unsigned replica = r->servers + k;

        ck_assert_uint_lt(replica, PS_FIXTURE_SERVERS_MAX);
        r->ports[replica] = support_port();
        ps_fixture_start_server(r, replica);
        r->links[PS_FIXTURE_REPLICA_LINK][k].proxy =
            fault_proxy_open(r->ports[replica], r->seed * 100 + 50 + k);
    }
    for (unsigned k = 0; k < r->servers; k++) {
        r->ports[k] = support_port();
        ps_fixture_start_server(r, k);
        for (unsigned rank = 0; rank < r->ranks; rank++)
            r->links[rank][k].proxy =
                fault_proxy_open(r->ports[k], r->seed * 100 + rank * 10 + k + 1);
    }
}

static void signal_process(struct process *p, bool *runs, int signal_number)
{
    siginfo_t info;

    process_signal(p, signal_number);
    if (signal_number == SIGSTOP) /* on a busy machine its threads run on for milliseconds */
        ck_assert_int_eq(waitid(P_PID, (id_t)p->pid, &info, WSTOPPED | WNOWAIT), 0);
    if (signal_number != SIGKILL)
        return;
    ck_assert_int_eq(process_wait(p, PS_FIXTURE_WAIT_MS), 128 + SIGKILL);
    *runs = false;
}

const char *ps_fixture_server_output(const struct ps_fixture *r, unsigned server)
{
    return process_output(&r->server_process[server]);
}

void ps_fixture_signal_server(struct ps_fixture *r, unsigned server, int signal_number)
{
    signal_process(&r->server_process[server], &r->server_runs[server], signal_number);
}

void ps_fixture_signal_worker(struct ps_fixture *r, unsigned rank, int signal_number)
{
    signal_process(&r->worker_process[rank], &r->worker_runs[rank], signal_number);
}

void ps_fixture_await_server_end(struct ps_fixture *r, unsigned server)
{
    int code = process_wait(&r->server_process[server], PS_FIXTURE_WAIT_MS);

    r->server_runs[server] = false;
    ck_assert_msg(code == 0, "server %u ended with %d:\n%s", server, code,
                  process_output(&r->server_process[server]));
}

static void kill_if_running(struct process *p, bool *runs)
{
    if (!*runs)
        return;
    (void)kill(p->pid, SIGKILL); /* it may have ended */
    (void)process_wait(p, PS_FIXTURE_WAIT_MS);
    *runs = false;
}

void ps_fixture_close(struct ps_fixture *r)
{
    for (unsigned rank = 0; rank < r->ranks; rank++)
        kill_if_running(&r->worker_process[rank], &r->worker_runs[rank]);
    for (unsigned k = 0; r->replicas && k < r->servers; k++) {
        kill_if_running(&r->server_process[r->servers + k], &r->server_runs[r->servers + k]);
        fault_proxy_close(r->links[PS_FIXTURE_REPLICA_LINK][k].proxy);
    }
    for (unsigned k = 0; k < r->servers; k++) {
        kill_if_running(&r->server_process[k], &r->server_runs[k]);
        for (unsigned rank = 0; rank < r->ranks; rank++)
            fault_proxy_close(r->links[rank][k].proxy);
    }
}

/* ------------------------------------------------------------------ ends */

int ps_fixture_wait_worker(struct ps_fixture *r, unsigned rank)
{
    int code = process_wait(&r->worker_process[rank], PS_FIXTURE_WAIT_MS);

    r->worker_runs[rank] = false;
    if (code != 0 && r->fault_ns > 0)
        r->last_ms = (double)(clock_now_ns() - r->fault_ns) * 1e-6;
    if (r->detect_ms == 0)
        r->detect_ms = r->last_ms;
    ck_assert_msg(code >= 0, "rank %u hangs:\n%s", rank, process_output(&r->worker_process[rank]));
    return code;
}

void ps_fixture_expect_failure(struct ps_fixture *r, unsigned but, const char *text)
{
    for (unsigned rank = 0; rank < r->ranks; rank++) {
        const char *output;
        int code;

        if (rank == but)
            continue;
        code = ps_fixture_wait_worker(r, rank);
        output = process_output(&r->worker_process[rank]);
        ck_assert_msg(code != 0, "rank %u ended well:\n%s", rank, output);
        ck_assert_msg(strstr(output, text) != NULL, "rank %u, exit code %d: no '%s' in:\n%s", rank,
                      code, text, output);
    }
}

void ps_fixture_expect_success(struct ps_fixture *r, unsigned but, bool exact)
{
    const char *wanted = exact ? ps_fixture_reference_hash(r->ranks, update_of(r)) : NULL;

    for (unsigned rank = 0; rank < r->ranks; rank++) {
        const char *hash;
        int code;

        if (rank == but)
            continue;
        code = ps_fixture_wait_worker(r, rank);
        ck_assert_msg(code == 0, "rank %u ended with %d:\n%s", rank, code,
                      process_output(&r->worker_process[rank]));
        hash = job_record_text(r->run_dir, rank, "end", "parameters_hash");
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
