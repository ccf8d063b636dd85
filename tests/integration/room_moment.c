/*
 * room_moment: when a room is struck, and what it came to.  Moments are bytes that have passed a
 * proxy.
 */
#include "common/base/clock.h"
#include "tests/integration/room.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------ moments */

/* Of so many rounds between two, one way. */
static uint64_t rounds_bytes(const struct room *r, unsigned rank, enum fault_way way, double rounds)
{
    uint64_t bytes = ROOM_ROUND_BYTES;

    if (rank == ROOM_CHAIN && way == FAULT_DOWN)
        bytes = ROOM_ACKS_BYTES;
    else if (rank != ROOM_CHAIN && r->by_reference)
        bytes = ROOM_REFERENCES_BYTES;
    return (uint64_t)(rounds * (double)bytes / r->servers);
}

/* References are so few bytes that those before the first round count. */
static uint64_t position(const struct room *r, unsigned rank, enum fault_way way, double rounds)
{
    uint64_t bytes = rounds_bytes(r, rank, way, rounds);

    if (rank != ROOM_CHAIN && r->by_reference)
        bytes += way == FAULT_UP ? ROOM_JOIN_UP_BYTES : ROOM_JOIN_DOWN_BYTES;
    return bytes;
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
    struct place place = {rank, server, way, position(r, rank, way, rounds)};

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
    fault_proxy_at(l->proxy, way, position(r, rank, way, rounds), freeze, l);
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

/* Until a snapshot begins, which is a file with a temporary name; returns its name. */
static void await_snapshot(int news, const char *folder, char *name, size_t size)
{
    struct pollfd watch = {.fd = news, .events = POLLIN};

    for (name[0] = '\0'; name[0] == '\0';) {
        char events[4096];
        ssize_t length;

        ck_assert_msg(poll(&watch, 1, ROOM_WAIT_MS) > 0, "no snapshot begins in %s", folder);
        length = read(news, events, sizeof(events));
        for (ssize_t at = 0; at < length;) {
            const struct inotify_event *e = (const void *)(events + at);

            if (e->len > 0 && strstr(e->name, "snapshot") && strstr(e->name, ".tmp-"))
                (void)snprintf(name, size, "%s/%s", folder, e->name);
            at += (ssize_t)(sizeof(*e) + e->len);
        }
    }
}

void room_stop_in_snapshot(struct room *r, unsigned server)
{
    char folder[800], name[1200];
    int news = inotify_init1(IN_CLOEXEC);

    fault_proxy_throttle(r->links[1][0].proxy, 1 << 20); /* so that there is time to look */
    room_start_workers(r);
    room_await(r, 1, 0, FAULT_DOWN, 2);
    (void)snprintf(folder, sizeof(folder), "%s/default.%u", room_state(r, server),
                   server % r->servers);
    ck_assert_int_ge(inotify_add_watch(news, folder, IN_CREATE), 0);
    for (;;) {
        await_snapshot(news, folder, name, sizeof(name));
        room_hit_server(r, server, SIGSTOP);
        if (access(name, F_OK) == 0)
            break;
        room_hit_server(r, server, SIGCONT); /* too late: the next one */
    }
    (void)close(news);
    fault_proxy_throttle(r->links[1][0].proxy, 0);
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
        fault_proxy_expect(r->links[ROOM_CHAIN][k].proxy);
}

static FILE *open_records(const struct room *r, unsigned server)
{
    char path[700];

    (void)snprintf(path, sizeof(path), "%s/server%u.jsonl", r->run_dir, server);
    return fopen(path, "re");
}

/* What a rank receives in two rounds more.  References are so few bytes that a connection which
 * takes the place of one would pass for them. */
static uint64_t two_rounds(const struct room *r)
{
    return rounds_bytes(r, 0, FAULT_DOWN, 2) + (r->by_reference ? ROOM_REJOIN_BYTES : 0);
}

void room_mark(struct room *r, unsigned rank)
{
    struct fault_proxy *proxy = r->links[rank][0].proxy;

    atomic_store(&r->whole_ns, 0);
    r->detect_ms = r->last_ms = 0;
    expect_calls(r);
    for (unsigned k = 0; k < r->servers; k++) {
        FILE *file = open_records(r, k);

        r->marked[k] = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
        if (file)
            (void)fclose(file);
    }
    r->struck_ns = clock_now_ns();
    fault_proxy_at(proxy, FAULT_DOWN, fault_proxy_bytes(proxy, FAULT_DOWN) + two_rounds(r),
                   note_recovery, &r->whole_ns);
    if (!r->replicas)
        return;
    proxy = r->links[ROOM_CHAIN][0].proxy; /* or there, to all ranks */
    fault_proxy_at(proxy, FAULT_DOWN,
                   fault_proxy_bytes(proxy, FAULT_DOWN) + r->ranks * two_rounds(r), note_recovery,
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
            struct fault_proxy *proxy = r->links[rank < r->ranks ? rank : ROOM_CHAIN][k].proxy;
            int64_t called_ns = proxy && !(rank < r->ranks && r->worker_is_new[rank])
                                    ? fault_proxy_called_ns(proxy)
                                    : 0;

            if (called_ns > 0 && (first_ns == 0 || called_ns < first_ns))
                first_ns = called_ns;
        }
    return first_ns > 0 ? (double)(first_ns - r->struck_ns) * 1e-6 : 0;
}

/* What the servers' new records say of a rank or a replica that was silent; 0: nothing. */
static double noticed_ms(const struct room *r)
{
    static const char name[] = "\"detect_ms\":";
    double most_ms = 0;

    for (unsigned k = 0; k < r->servers; k++) {
        FILE *file = open_records(r, k);
        char line[4096];

        if (!file)
            continue;
        (void)fseek(file, r->marked[k], SEEK_SET);
        while (fgets(line, sizeof(line), file)) {
            const char *at = strstr(line, name);
            double ms = at ? strtod(at + strlen(name), NULL) : 0;

            most_ms = ms > most_ms ? ms : most_ms;
        }
        (void)fclose(file);
    }
    return most_ms;
}

void room_report(const struct room *r, const char *fault)
{
    const char *path = getenv("SPARRING_FAULT_LOG");
    FILE *log = path ? fopen(path, "ae") : NULL;
    int64_t whole_ns = atomic_load(&r->whole_ns);
    char detect[32], recover[32], line[400];

    double detect_ms = r->detect_ms > 0 ? r->detect_ms : called_ms(r);

    put(detect, sizeof(detect), detect_ms > 0 ? detect_ms : noticed_ms(r));
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
