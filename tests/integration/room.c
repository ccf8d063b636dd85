#include "tests/integration/room.h"

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

struct words {
    const char *list[ROOM_WORDS_MAX];
    size_t count;
};

static void add_words(struct words *w, const char *const *more)
{
    for (; more && *more; more++) {
        ck_assert_uint_lt(w->count, ROOM_WORDS_MAX - 1);
        w->list[w->count++] = *more;
    }
    w->list[w->count] = NULL;
}

static const char *update_of(const struct room *r)
{
    return r->update ? r->update : "server";
}

/* ------------------------------------------------------------------ processes */

const char *room_state(const struct room *r, unsigned server)
{
    static char path[700];

    (void)snprintf(path, sizeof(path), "%s/state-%u", r->run_dir, server);
    return path;
}

void room_start_server(struct room *r, unsigned server)
{
    struct words words = {.count = 0};
    char line[600], listen[64];

    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u", r->ports[server]);
    (void)snprintf(line, sizeof(line), "%s; exec \"$@\"", r->before ? r->before : ":");
    if (r->before)
        add_words(&words, ARGS("/bin/sh", "-c", line, "sh"));
    add_words(&words, ARGS(support_program("sparring-server"), "--listen", listen, "--run-dir",
                           r->run_dir, "--timeout-ms", r->timeout_ms ? r->timeout_ms : "20000"));
    if (r->with_state)
        add_words(&words,
                  ARGS("--state-dir", room_state(r, server), "--snapshot-every", SNAPSHOT_EVERY));
    add_words(&words, r->server);
    process_start(&r->server_process[server], NULL, words.list);
    r->server_runs[server] = true;
    process_wait_output(&r->server_process[server], "serving on", ROOM_WAIT_MS);
}

void room_start_worker(struct room *r, unsigned rank)
{
    struct words words = {.count = 0};
    char servers[ROOM_SERVERS_MAX * 24] = "", replicas[sizeof(servers)] = "", url[600], own[16],
                                    world[16];
    size_t used = 0;

    for (unsigned k = 0; k < r->servers; k++)
        used += (size_t)snprintf(servers + used, sizeof(servers) - used, "%s127.0.0.1:%u",
                                 k > 0 ? "," : "", fault_proxy_port(r->links[rank][k].proxy));
    used = 0;
    for (unsigned k = 0; r->replicas && k < r->servers; k++)
        used += (size_t)snprintf(replicas + used, sizeof(replicas) - used, "%s127.0.0.1:%u",
                                 k > 0 ? "," : "", fault_proxy_port(r->links[ROOM_CHAIN][k].proxy));
    (void)snprintf(url, sizeof(url), "file://%s", r->store);
    (void)snprintf(own, sizeof(own), "%u", rank);
    (void)snprintf(world, sizeof(world), "%u", r->ranks);
    add_words(&words, ARGS(support_program("sparring-worker"), MODEL, "--ps-update", update_of(r),
                           "--steps", r->steps ? r->steps : ROOM_STEPS, "--servers", servers,
                           "--init-method", url, "--world-size", world, "--rank", own, "--run-dir",
                           r->run_dir, "--timeout-ms", r->timeout_ms ? r->timeout_ms : "20000"));
    if (r->replicas)
        add_words(&words, ARGS("--replicas", replicas));
    if (r->by_reference)
        add_words(&words, ARGS("--ps-transport", "shm"));
    if (r->connections)
        add_words(&words, ARGS("--connections", r->connections));
    add_words(&words, r->worker);
    process_start(&r->worker_process[rank], NULL, words.list);
    r->worker_runs[rank] = r->worker_is_new[rank] = true;
}

void room_start_workers(struct room *r)
{
    for (unsigned rank = 0; rank < r->ranks; rank++)
        room_start_worker(r, rank);
}

void room_open(struct room *r)
{
    static unsigned serial;
    char name[32];

    (void)snprintf(name, sizeof(name), "room-%u", serial++);
    r->run_dir = support_path(name);
    (void)snprintf(name, sizeof(name), "meet-%u", serial);
    r->store = support_path(name);
    for (unsigned k = 0; r->replicas && k < r->servers; k++) {
        unsigned replica = r->servers + k;

        ck_assert_uint_lt(replica, ROOM_SERVERS_MAX);
        r->ports[replica] = support_port();
        room_start_server(r, replica);
        r->links[ROOM_CHAIN][k].proxy = fault_proxy_open(r->ports[replica], r->seed * 100 + 50 + k);
    }
    for (unsigned k = 0; k < r->servers; k++) {
        r->ports[k] = support_port();
        room_start_server(r, k);
        for (unsigned rank = 0; rank < r->ranks; rank++)
            r->links[rank][k].proxy =
                fault_proxy_open(r->ports[k], r->seed * 100 + rank * 10 + k + 1);
    }
}

static void hit(struct process *p, bool *runs, int number)
{
    siginfo_t info;

    process_signal(p, number);
    if (number == SIGSTOP) /* on a busy machine its threads run on for milliseconds */
        ck_assert_int_eq(waitid(P_PID, (id_t)p->pid, &info, WSTOPPED | WNOWAIT), 0);
    if (number != SIGKILL)
        return;
    ck_assert_int_eq(process_wait(p, ROOM_WAIT_MS), 128 + SIGKILL);
    *runs = false;
}

const char *room_server_output(const struct room *r, unsigned server)
{
    return process_output(&r->server_process[server]);
}

void room_hit_server(struct room *r, unsigned server, int number)
{
    hit(&r->server_process[server], &r->server_runs[server], number);
}

void room_hit_worker(struct room *r, unsigned rank, int number)
{
    hit(&r->worker_process[rank], &r->worker_runs[rank], number);
}

void room_end_server(struct room *r, unsigned server)
{
    int code = process_wait(&r->server_process[server], ROOM_WAIT_MS);

    r->server_runs[server] = false;
    ck_assert_msg(code == 0, "server %u ended with %d:\n%s", server, code,
                  process_output(&r->server_process[server]));
}

static void end(struct process *p, bool *runs)
{
    if (!*runs)
        return;
    (void)kill(p->pid, SIGKILL); /* it may have ended */
    (void)process_wait(p, ROOM_WAIT_MS);
    *runs = false;
}

void room_close(struct room *r)
{
    for (unsigned rank = 0; rank < r->ranks; rank++)
        end(&r->worker_process[rank], &r->worker_runs[rank]);
    for (unsigned k = 0; r->replicas && k < r->servers; k++) {
        end(&r->server_process[r->servers + k], &r->server_runs[r->servers + k]);
        fault_proxy_close(r->links[ROOM_CHAIN][k].proxy);
    }
    for (unsigned k = 0; k < r->servers; k++) {
        end(&r->server_process[k], &r->server_runs[k]);
        for (unsigned rank = 0; rank < r->ranks; rank++)
            fault_proxy_close(r->links[rank][k].proxy);
    }
}

/* ------------------------------------------------------------------ ends */

int room_wait_worker(struct room *r, unsigned rank)
{
    int code = process_wait(&r->worker_process[rank], ROOM_WAIT_MS);

    r->worker_runs[rank] = false;
    if (code != 0 && r->struck_ns > 0)
        r->last_ms = (double)(clock_now_ns() - r->struck_ns) * 1e-6;
    if (r->detect_ms == 0)
        r->detect_ms = r->last_ms;
    ck_assert_msg(code >= 0, "rank %u hangs:\n%s", rank, process_output(&r->worker_process[rank]));
    return code;
}

void room_expect_failure(struct room *r, unsigned but, const char *text)
{
    for (unsigned rank = 0; rank < r->ranks; rank++) {
        const char *output;
        int code;

        if (rank == but)
            continue;
        code = room_wait_worker(r, rank);
        output = process_output(&r->worker_process[rank]);
        ck_assert_msg(code != 0, "rank %u ended well:\n%s", rank, output);
        ck_assert_msg(strstr(output, text) != NULL, "rank %u, exit code %d: no '%s' in:\n%s", rank,
                      code, text, output);
    }
}

void room_expect_success(struct room *r, unsigned but, bool exact)
{
    const char *wanted = exact ? room_reference(r->ranks, update_of(r)) : NULL;

    for (unsigned rank = 0; rank < r->ranks; rank++) {
        const char *hash;
        int code;

        if (rank == but)
            continue;
        code = room_wait_worker(r, rank);
        ck_assert_msg(code == 0, "rank %u ended with %d:\n%s", rank, code,
                      process_output(&r->worker_process[rank]));
        hash = job_record_text(r->run_dir, rank, "end", "parameters_hash");
        ck_assert_str_ne(hash, "");
        ck_assert_msg(!exact || strcmp(hash, wanted) == 0,
                      "rank %u ended with other parameters than without a fault (%s, not %s)", rank,
                      hash, wanted);
    }
}

const char *room_reference(unsigned ranks, const char *update)
{
    static char hashes[ROOM_RANKS_MAX + 1][2][32];
    char *hash = hashes[ranks][strcmp(update, "worker") == 0];

    if (hash[0] == '\0') {
        const char *run_dir = job_run(
            &(struct job){.ranks = ranks,
                          .servers = 1,
                          .worker = ARGS(MODEL, "--ps-update", update, "--steps", ROOM_STEPS)},
            0);

        (void)snprintf(hash, sizeof(hashes[0][0]), "%s",
                       job_record_text(run_dir, 0, "end", "parameters_hash"));
        ck_assert_str_ne(hash, "");
    }
    return hash;
}

void room_find_references(void)
{
    for (unsigned ranks = 2; ranks <= 3; ranks++) {
        (void)room_reference(ranks, "server");
        (void)room_reference(ranks, "worker");
    }
}
