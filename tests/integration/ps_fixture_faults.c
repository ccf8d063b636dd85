/*
 * ps_fixture, part 2: wait for the point at which a test injects a fault, and measure the times to
 * its detection and recovery.  Points are byte counts of a proxy, so they do not depend on timing;
 * by reference no bytes pass, and they are steps that a rank has recorded.
 */
#include "common/base/clock.h"
#include "tests/integration/job.h"
#include "tests/integration/ps_fixture.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------ points in time */

/* Bytes of `rounds` rounds on a link in one direction. */
static uint64_t rounds_bytes(const struct ps_fixture *f, unsigned rank,
                             enum fault_direction direction, double rounds)
{
    uint64_t bytes = PS_FIXTURE_ROUND_BYTES;

    if (rank == PS_FIXTURE_REPLICA_LINK && direction == FAULT_DOWN)
        bytes = PS_FIXTURE_ACKS_BYTES;
    return (uint64_t)(rounds * (double)bytes / f->servers);
}

static bool counts_steps(const struct ps_fixture *f, unsigned rank)
{
    return f->by_reference && rank != PS_FIXTURE_REPLICA_LINK;
}

/* Steps that a rank has recorded. */
static int64_t recorded_steps(const struct ps_fixture *f, unsigned rank)
{
    return job_newest_int(f->run_dir, rank, "step", "step") + 1;
}

/* The rank of a worker that has failed, or the last rank if all have ended; otherwise
 * PS_FIXTURE_NO_RANK.  *ret_code: exit code as a shell reports it. */
static unsigned find_ended_worker(const struct ps_fixture *f, int *ret_code)
{
    unsigned ended = PS_FIXTURE_NO_RANK;
    bool all = true;

    for (unsigned rank = 0; rank < f->ranks; rank++) {
        siginfo_t info = {0};

        if (!f->worker_runs[rank])
            continue;
        (void)waitid(P_PID, (id_t)f->worker_process[rank].pid, &info, WEXITED | WNOHANG | WNOWAIT);
        *ret_code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
        if (info.si_pid != 0 && *ret_code != 0)
            return rank;
        all = all && info.si_pid != 0;
        ended = rank;
    }
    return all ? ended : PS_FIXTURE_NO_RANK;
}

static void await_condition(struct ps_fixture *f,
                            bool (*is_there)(struct ps_fixture *f, const void *user),
                            const void *user, const char *what)
{
    int64_t deadline_ns = clock_deadline_ns(PS_FIXTURE_WAIT_MS);

    for (; !is_there(f, user); (void)poll(NULL, 0, 1)) {
        int code = 0;
        unsigned ended = find_ended_worker(f, &code);

        if (is_there(f, user))
            return;
        if (ended != PS_FIXTURE_NO_RANK)
            ck_abort_msg("%s: rank %u has ended with %d:\n%s", what, ended, code,
                         process_output(&f->worker_process[ended]));
        ck_assert_msg(clock_now_ns() <= deadline_ns, "%s within %d ms; rank 0:\n%s", what,
                      PS_FIXTURE_WAIT_MS, process_output(&f->worker_process[0]));
    }
}

struct link_position {
    unsigned rank, server;
    enum fault_direction direction;
    uint64_t bytes;
    double rounds;
};

static bool have_bytes_passed(struct ps_fixture *f, const void *user)
{
    const struct link_position *p = user;

    if (counts_steps(f, p->rank))
        return (double)recorded_steps(f, p->rank) >= p->rounds;
    return fault_proxy_bytes(f->links[p->rank][p->server].proxy, p->direction) >= p->bytes;
}

void ps_fixture_await_bytes(struct ps_fixture *f, unsigned rank, unsigned server,
                            enum fault_direction direction, double rounds)
{
    struct link_position link_position = {rank, server, direction,
                                          rounds_bytes(f, rank, direction, rounds), rounds};

    await_condition(f, have_bytes_passed, &link_position, "the awaited bytes do not arrive");
}

static void freeze_link(void *user)
{
    struct ps_fixture_link *l = user;

    fault_proxy_hold(l->proxy, FAULT_UP, true);
    fault_proxy_hold(l->proxy, FAULT_DOWN, true);
    atomic_store(&l->is_frozen, true);
}

void ps_fixture_freeze_at(struct ps_fixture *f, unsigned rank, unsigned server,
                          enum fault_direction direction, double rounds)
{
    struct ps_fixture_link *l = &f->links[rank][server];

    atomic_store(&l->is_frozen, false);
    l->freeze_at = rounds;
    if (!counts_steps(f, rank))
        fault_proxy_call_at(l->proxy, direction, rounds_bytes(f, rank, direction, rounds),
                            freeze_link, l);
}

static bool is_frozen(struct ps_fixture *f, const void *user)
{
    const struct link_position *p = user;

    return atomic_load(&f->links[p->rank][p->server].is_frozen);
}

void ps_fixture_await_freeze(struct ps_fixture *f, unsigned rank, unsigned server)
{
    struct ps_fixture_link *l = &f->links[rank][server];
    struct link_position link_position = {.rank = rank, .server = server, .rounds = l->freeze_at};

    if (counts_steps(f, rank)) {
        await_condition(f, have_bytes_passed, &link_position,
                        "the step to freeze at is not reached");
        freeze_link(l);
        return;
    }
    await_condition(f, is_frozen, &link_position, "the byte to freeze at is not reached");
}

void ps_fixture_release(struct ps_fixture *f, unsigned rank, unsigned server)
{
    fault_proxy_hold(f->links[rank][server].proxy, FAULT_UP, false);
    fault_proxy_hold(f->links[rank][server].proxy, FAULT_DOWN, false);
}

/* Wait until a snapshot begins (a file with a temporary name); store its path in `name`. */
static void await_snapshot(int inotify, const char *folder, char *name, size_t size)
{
    struct pollfd watch = {.fd = inotify, .events = POLLIN};

    for (name[0] = '\0'; name[0] == '\0';) {
        char events[4096];
        ssize_t length;

        ck_assert_msg(poll(&watch, 1, PS_FIXTURE_WAIT_MS) > 0, "no snapshot begins in %s", folder);
        length = read(inotify, events, sizeof(events));
        for (ssize_t at = 0; at < length;) {
            const struct inotify_event *e = (const void *)(events + at);

            if (e->len > 0 && strstr(e->name, "snapshot") && strstr(e->name, ".tmp-"))
                (void)snprintf(name, size, "%s/%s", folder, e->name);
            at += (ssize_t)(sizeof(*e) + e->len);
        }
    }
}

void ps_fixture_stop_in_snapshot(struct ps_fixture *f, unsigned server)
{
    char folder[800], name[1200];
    int inotify = inotify_init1(IN_CLOEXEC);

    fault_proxy_throttle(f->links[1][0].proxy, 1 << 20); /* prolongs the snapshot */
    ps_fixture_start_workers(f);
    ps_fixture_await_bytes(f, 1, 0, FAULT_DOWN, 2);
    (void)snprintf(folder, sizeof(folder), "%s/default.%u", ps_fixture_state_dir(f, server),
                   server % f->servers);
    ck_assert_int_ge(inotify_add_watch(inotify, folder, IN_CREATE), 0);
    for (;;) {
        await_snapshot(inotify, folder, name, sizeof(name));
        ps_fixture_signal_server(f, server, SIGSTOP);
        if (access(name, F_OK) == 0)
            break;
        ps_fixture_signal_server(f, server, SIGCONT); /* too late: try the next snapshot */
    }
    (void)close(inotify);
    fault_proxy_throttle(f->links[1][0].proxy, 0);
}

static void store_recovery_time(void *user)
{
    atomic_store((atomic_int_fast64_t *)user, clock_now_ns());
}

static void reset_first_connections(struct ps_fixture *f)
{
    for (unsigned rank = 0; rank < f->ranks; rank++) {
        f->worker_is_new[rank] = false;
        for (unsigned k = 0; k < f->servers; k++)
            fault_proxy_reset_first_connect(f->links[rank][k].proxy);
    }
    for (unsigned k = 0; f->replicas && k < f->servers; k++)
        fault_proxy_reset_first_connect(f->links[PS_FIXTURE_REPLICA_LINK][k].proxy);
}

static FILE *open_records(const struct ps_fixture *f, unsigned server)
{
    char path[700];

    (void)snprintf(path, sizeof(path), "%s/server%u.jsonl", f->run_dir, server);
    return fopen(path, "re");
}

void ps_fixture_mark_fault(struct ps_fixture *f, unsigned rank)
{
    struct fault_proxy *proxy = f->links[rank][0].proxy;

    atomic_store(&f->recovered_ns, 0);
    f->detect_ms = f->last_ms = 0;
    reset_first_connections(f);
    for (unsigned k = 0; k < f->servers; k++) {
        FILE *file = open_records(f, k);

        f->records_bytes_before[k] = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
        if (file)
            (void)fclose(file);
    }
    f->fault_ns = clock_now_ns();
    f->recovery_rank = rank;
    f->recovery_steps = recorded_steps(f, rank) + 2;
    if (f->recovery_steps > ps_fixture_steps(f))
        f->recovery_steps = ps_fixture_steps(f);
    if (f->by_reference)
        return;
    fault_proxy_call_at(proxy, FAULT_DOWN,
                        fault_proxy_bytes(proxy, FAULT_DOWN) + rounds_bytes(f, 0, FAULT_DOWN, 2),
                        store_recovery_time, &f->recovered_ns);
    if (!f->replicas)
        return;
    /* After a takeover the replica serves all ranks over its own link. */
    proxy = f->links[PS_FIXTURE_REPLICA_LINK][0].proxy;
    fault_proxy_call_at(proxy, FAULT_DOWN,
                        fault_proxy_bytes(proxy, FAULT_DOWN) +
                            f->ranks * rounds_bytes(f, 0, FAULT_DOWN, 2),
                        store_recovery_time, &f->recovered_ns);
}

static bool is_recovered(struct ps_fixture *f, const void *user)
{
    (void)user;
    if (f->by_reference && recorded_steps(f, f->recovery_rank) >= f->recovery_steps)
        store_recovery_time(&f->recovered_ns);
    return atomic_load(&f->recovered_ns) != 0;
}

void ps_fixture_await_recovery(struct ps_fixture *f)
{
    await_condition(f, is_recovered, NULL, "rounds do not continue");
}

/* ------------------------------------------------------------------ report */

static void format_ms(char *text, size_t size, double ms)
{
    (void)snprintf(text, size, ms > 0 ? "%.1f" : "null", ms);
}

/* Time from the fault to the first reconnect of a process that ran before it; 0: none. */
static double first_connection_ms(const struct ps_fixture *f)
{
    int64_t first_ns = 0;

    for (unsigned rank = 0; rank <= f->ranks; rank++)
        for (unsigned k = 0; k < f->servers; k++) {
            struct fault_proxy *proxy =
                f->links[rank < f->ranks ? rank : PS_FIXTURE_REPLICA_LINK][k].proxy;
            int64_t connect_ns = proxy && !(rank < f->ranks && f->worker_is_new[rank])
                                     ? fault_proxy_first_connect_ns(proxy)
                                     : 0;

            if (connect_ns > 0 && (first_ns == 0 || connect_ns < first_ns))
                first_ns = connect_ns;
        }
    return first_ns > 0 ? (double)(first_ns - f->fault_ns) * 1e-6 : 0;
}

/* Largest detect_ms in the servers' records since the fault; 0: none. */
static double recorded_detect_ms(const struct ps_fixture *f)
{
    static const char name[] = "\"detect_ms\":";
    double most_ms = 0;

    for (unsigned k = 0; k < f->servers; k++) {
        FILE *file = open_records(f, k);
        char line[4096];

        if (!file)
            continue;
        (void)fseek(file, f->records_bytes_before[k], SEEK_SET);
        while (fgets(line, sizeof(line), file)) {
            const char *at = strstr(line, name);
            double ms = at ? strtod(at + strlen(name), NULL) : 0;

            most_ms = ms > most_ms ? ms : most_ms;
        }
        (void)fclose(file);
    }
    return most_ms;
}

void ps_fixture_report_fault(const struct ps_fixture *f, const char *fault)
{
    const char *path = getenv("SPARRING_FAULT_LOG");
    FILE *log = path ? fopen(path, "ae") : NULL;
    int64_t recovered_ns = atomic_load(&f->recovered_ns);
    char detect[32], recover[32], line[400];

    double detect_ms = f->detect_ms > 0 ? f->detect_ms : first_connection_ms(f);

    format_ms(detect, sizeof(detect), detect_ms > 0 ? detect_ms : recorded_detect_ms(f));
    format_ms(recover, sizeof(recover),
              recovered_ns > 0 && f->detect_ms == 0 ? (double)(recovered_ns - f->fault_ns) * 1e-6
                                                    : 0);
    (void)snprintf(line, sizeof(line),
                   "{\"seed\":%ju,\"fault\":\"%s\",\"ranks\":%u,\"servers\":%u,"
                   "\"detect_ms\":%s,\"recover_ms\":%s}\n",
                   (uintmax_t)f->seed, fault, f->ranks, f->servers, detect, recover);
    (void)fputs(line, stdout);
    (void)fflush(stdout);
    if (log) {
        (void)fputs(line, log);
        (void)fclose(log);
    }
}
