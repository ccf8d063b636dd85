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
                                 k > 0 ? "," : "", fault_proxy_port(r->replica_proxies[k]));
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
        r->replica_proxies[k] = fault_proxy_open(r->ports[replica], r->seed * 100 + 50 + k);
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
        fault_proxy_close(r->replica_proxies[k]);
    }
    for (unsigned k = 0; k < r->servers; k++) {
        end(&r->server_process[k], &r->server_runs[k]);
        for (unsigned rank = 0; rank < r->ranks; rank++)
            fault_proxy_close(r->links[rank][k].proxy);
    }
}

/* ------------------------------------------------------------------ moments */

static uint64_t position(const struct room *r, double rounds)
{
    uint64_t bytes = r->by_reference ? ROOM_REFERENCES_BYTES : ROOM_ROUND_BYTES;

    return (uint64_t)(rounds * (double)bytes / r->servers);
}

/* A worker that has ended while others are waited for: with a failure, or the last one; returns its
 * rank, or ROOM_NOBODY.  *ret_code as a shell has it. */
static unsigned find_ended(const struct room *r, int *ret_code)
{
    unsigned ended = ROOM_NOBODY;
    bool all = true;

    for (unsigned rank = 0; rank < r->ranks; rank++) {
        siginfo_t info = {0};

        if (!r->worker_runs[rank])
            continue;
        (void)waitid(P_PID, (id_t)r->worker_process[rank].pid, &info, WEXITED | WNOHANG | WNOWAIT);
        *ret_code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
        if (info.si_pid != 0 && *ret_code != 0)
            return rank;
        all = all && info.si_pid != 0;
        ended = rank;
    }
    return all ? ended : ROOM_NOBODY;
}

static void await(struct room *r, bool (*is_there)(struct room *r, const void *user),
                  const void *user, const char *what)
{
    int64_t deadline_ns = clock_deadline_ns(ROOM_WAIT_MS);

    for (; !is_there(r, user); (void)poll(NULL, 0, 1)) {
        int code = 0;
        unsigned ended = find_ended(r, &code);

        if (is_there(r, user))
            return;
        if (ended != ROOM_NOBODY)
            ck_abort_msg("%s: rank %u has ended with %d:\n%s", what, ended, code,
                         process_output(&r->worker_process[ended]));
        ck_assert_msg(clock_now_ns() <= deadline_ns, "%s within %d ms; rank 0:\n%s", what,
                      ROOM_WAIT_MS, process_output(&r->worker_process[0]));
    }
}

struct place {
    unsigned rank, server;
    enum fault_way way;
    uint64_t bytes;
};

static bool has_come(struct room *r, const void *user)
{
    const struct place *p = user;

    return fault_proxy_bytes(r->links[p->rank][p->server].proxy, p->way) >= p->bytes;
}

void room_await(struct room *r, unsigned rank, unsigned server, enum fault_way way, double rounds)
{
    struct place place = {rank, server, way, position(r, rounds)};

    await(r, has_come, &place, "the bytes to wait for do not come");
}

static void freeze(void *user)
{
    struct room_link *l = user;

    fault_proxy_hold(l->proxy, FAULT_UP, true);
    fault_proxy_hold(l->proxy, FAULT_DOWN, true);
    atomic_store(&l->is_frozen, true);
}

void room_freeze_at(struct room *r, unsigned rank, unsigned server, enum fault_way way,
                    double rounds)
{
    struct room_link *l = &r->links[rank][server];

    atomic_store(&l->is_frozen, false);
    fault_proxy_at(l->proxy, way, position(r, rounds), freeze, l);
}

static bool is_frozen(struct room *r, const void *user)
{
    const struct place *p = user;

    return atomic_load(&r->links[p->rank][p->server].is_frozen);
}

void room_await_freeze(struct room *r, unsigned rank, unsigned server)
{
    struct place place = {.rank = rank, .server = server};

    await(r, is_frozen, &place, "the bytes to freeze at do not come");
}

void room_release(struct room *r, unsigned rank, unsigned server)
{
    fault_proxy_hold(r->links[rank][server].proxy, FAULT_UP, false);
    fault_proxy_hold(r->links[rank][server].proxy, FAULT_DOWN, false);
}

static void note_recovery(void *user)
{
    atomic_store((atomic_int_fast64_t *)user, clock_now_ns());
}

static void expect_calls(struct room *r)
{
    for (unsigned rank = 0; rank < r->ranks; rank++) {
        r->worker_is_new[rank] = false;
        for (unsigned k = 0; k < r->servers; k++)
            fault_proxy_expect(r->links[rank][k].proxy);
    }
    for (unsigned k = 0; r->replicas && k < r->servers; k++)
        fault_proxy_expect(r->replica_proxies[k]);
}

void room_mark(struct room *r, unsigned rank)
{
    struct fault_proxy *proxy = r->links[rank][0].proxy;

    atomic_store(&r->whole_ns, 0);
    r->detect_ms = r->last_ms = 0;
    expect_calls(r);
    r->struck_ns = clock_now_ns();
    fault_proxy_at(proxy, FAULT_DOWN, fault_proxy_bytes(proxy, FAULT_DOWN) + position(r, 2),
                   note_recovery, &r->whole_ns);
    if (!r->replicas)
        return;
    proxy = r->replica_proxies[0]; /* or there, to all ranks */
    fault_proxy_at(proxy, FAULT_DOWN,
                   fault_proxy_bytes(proxy, FAULT_DOWN) + r->ranks * position(r, 2), note_recovery,
                   &r->whole_ns);
}

static bool is_whole(struct room *r, const void *user)
{
    (void)user;
    return atomic_load(&r->whole_ns) != 0;
}

void room_await_recovery(struct room *r)
{
    await(r, is_whole, NULL, "rounds do not go on");
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

/* ------------------------------------------------------------------ what it came to */

static void put(char *text, size_t size, double ms)
{
    (void)snprintf(text, size, ms > 0 ? "%.1f" : "null", ms);
}

/* When somebody of before first called again, after the strike; 0: nobody has. */
static double called_ms(const struct room *r)
{
    int64_t first_ns = 0;

    for (unsigned rank = 0; rank <= r->ranks; rank++)
        for (unsigned k = 0; k < r->servers; k++) {
            struct fault_proxy *proxy =
                rank < r->ranks ? r->links[rank][k].proxy : r->replica_proxies[k];
            int64_t called_ns = proxy && !(rank < r->ranks && r->worker_is_new[rank])
                                    ? fault_proxy_called_ns(proxy)
                                    : 0;

            if (called_ns > 0 && (first_ns == 0 || called_ns < first_ns))
                first_ns = called_ns;
        }
    return first_ns > 0 ? (double)(first_ns - r->struck_ns) * 1e-6 : 0;
}

void room_report(const struct room *r, const char *fault)
{
    const char *path = getenv("SPARRING_FAULT_LOG");
    FILE *log = path ? fopen(path, "ae") : NULL;
    int64_t whole_ns = atomic_load(&r->whole_ns);
    char detect[32], recover[32], line[400];

    put(detect, sizeof(detect), r->detect_ms > 0 ? r->detect_ms : called_ms(r));
    put(recover, sizeof(recover),
        whole_ns > 0 && r->detect_ms == 0 ? (double)(whole_ns - r->struck_ns) * 1e-6 : 0);
    (void)snprintf(line, sizeof(line),
                   "{\"seed\":%ju,\"fault\":\"%s\",\"ranks\":%u,\"servers\":%u,"
                   "\"detect_ms\":%s,\"recover_ms\":%s}\n",
                   (uintmax_t)r->seed, fault, r->ranks, r->servers, detect, recover);
    (void)fputs(line, stdout);
    (void)fflush(stdout);
    if (log) {
        (void)fputs(line, log);
        (void)fclose(log);
    }
}
