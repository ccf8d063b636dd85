/*
 * Parameter-server jobs under faults that a seed draws: which policy, how many ranks and servers,
 * who is struck, how, and at which byte of which round.  Each seed is one job.  What must hold is
 * what the policy promises: the bits of a run without faults, or an end in order, or, where the job
 * is to fail, errors that name who was lost; and never a hang.
 *
 *   SPARRING_STORM_FIRST (drawn)   first seed; the same seed strikes the same way again
 *   SPARRING_STORM_SEEDS (400)     how many at most
 *   SPARRING_STORM_SECONDS (45)    begin no new one after that
 *   SPARRING_STORM_PLAY (drawn)    index into `plays`, to look for one thing
 *   SPARRING_FAULT_LOG             also append the lines of JSON there
 * tests/nightly runs many and sums them up.
 */
#include "tests/integration/job.h"
#include "tests/integration/room.h"
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/base/parse.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t first_seed, seed_count, seconds;
static int64_t begin_ns;

/* ------------------------------------------------------------------ chance */

struct chance {
    uint64_t state;
};

static uint64_t draw(struct chance *c, uint64_t limit)
{
    uint64_t z = c->state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % limit;
}

static double draw_part(struct chance *c)
{
    return (double)draw(c, 1000000) * 1e-6;
}

/* ------------------------------------------------------------------ faults of a link */

static void reset_link(struct room *r, unsigned rank, unsigned server)
{
    fault_proxy_reset(r->links[rank][server].proxy);
}

static void reset_everything(struct room *r, unsigned rank, unsigned server)
{
    (void)rank;
    (void)server;
    for (unsigned i = 0; i < r->ranks; i++)
        for (unsigned k = 0; k < r->servers; k++)
            fault_proxy_reset(r->links[i][k].proxy);
}

static void end_up(struct room *r, unsigned rank, unsigned server)
{
    fault_proxy_end(r->links[rank][server].proxy, FAULT_UP);
}

static void end_down(struct room *r, unsigned rank, unsigned server)
{
    fault_proxy_end(r->links[rank][server].proxy, FAULT_DOWN);
}

static void wait_a_moment(struct room *r, unsigned rank, unsigned server)
{
    (void)r;
    (void)rank;
    (void)server;
    (void)poll(NULL, 0, 300);
}

static void black_hole(struct room *r, unsigned rank, unsigned server)
{
    (void)r;
    (void)rank;
    (void)server;
    (void)poll(NULL, 0, 2200); /* longer than --heartbeat-timeout-ms */
}

static void stop_worker_for_long(struct room *r, unsigned rank, unsigned server)
{
    (void)server;
    room_hit_worker(r, rank, SIGSTOP);
    (void)poll(NULL, 0, 2200);
    room_hit_worker(r, rank, SIGCONT);
}

static void stop_server_for_long(struct room *r, unsigned rank, unsigned server)
{
    (void)rank;
    room_hit_server(r, server, SIGSTOP);
    (void)poll(NULL, 0, 2200);
    room_hit_server(r, server, SIGCONT);
}

static const struct {
    const char *name;
    void (*strike)(struct room *r, unsigned rank, unsigned server);
    unsigned weight;
    bool is_link; /* of the one link alone */
} troubles[] = {
    {"reset", reset_link, 6, true},
    {"all reset", reset_everything, 3, false},
    {"half closed up", end_up, 3, true},
    {"half closed down", end_down, 3, true},
    {"held 0.3 s", wait_a_moment, 2, true},
    {"black hole 2.2 s", black_hole, 1, true},
    {"worker naps", stop_worker_for_long, 1, false},
    {"server naps", stop_server_for_long, 1, false},
};
#define TROUBLES (sizeof(troubles) / sizeof(troubles[0]))

static size_t draw_trouble(struct chance *c)
{
    uint64_t sum = 0, at;
    size_t i = 0;

    for (size_t k = 0; k < TROUBLES; k++)
        sum += troubles[k].weight;
    for (at = draw(c, sum); at >= troubles[i].weight; i++)
        at -= troubles[i].weight;
    return i;
}

static size_t draw_link_trouble(struct chance *c)
{
    size_t i = draw_trouble(c);

    while (!troubles[i].is_link)
        i = draw_trouble(c);
    return i;
}

/* ------------------------------------------------------------------ one strike */

/* Until a worker counts as lost: more than a busy host keeps one silent that was not struck. */
#define LOSS_MS "3000"

struct place {
    unsigned rank, server;
    enum fault_way way;
    double round;
};

static struct place draw_place(struct chance *c, const struct room *r, double from, double to)
{
    struct place p;

    p.rank = (unsigned)draw(c, r->ranks);
    p.server = (unsigned)draw(c, r->servers);
    p.way = draw(c, 2) ? FAULT_UP : FAULT_DOWN;
    p.round = from + (to - from) * draw_part(c);
    return p;
}

static void freeze(struct room *r, const struct place *p)
{
    room_freeze_at(r, p->rank, p->server, p->way, p->round);
    room_await_freeze(r, p->rank, p->server);
}

static void report(struct room *r, const char *policy, const char *what, const struct place *p)
{
    char text[256];
    char rank[24] = "";

    if (p->rank != ROOM_CHAIN)
        (void)snprintf(rank, sizeof(rank), ", rank %u", p->rank);
    (void)snprintf(text, sizeof(text), "%s: %s%s, server %u, %s %.3f", policy, what, rank,
                   p->server, p->way == FAULT_UP ? "up" : "down", p->round);
    room_report(r, text);
}

static unsigned next_rank(const struct room *r, unsigned rank)
{
    return (rank + 1) % r->ranks;
}

/* One to three troubles, and the bits of a quiet run. */
static void play_troubles(struct room *r, struct chance *c)
{
    unsigned count = 1 + (unsigned)draw(c, 3);

    r->worker = ARGS("--reconnect-ms", "20000");
    room_open(r);
    if (draw(c, 4) == 0)
        fault_proxy_throttle(r->links[draw(c, r->ranks)][draw(c, r->servers)].proxy,
                             (1 + draw(c, 8)) << 20);
    if (draw(c, 4) == 0)
        fault_proxy_delay(r->links[draw(c, r->ranks)][draw(c, r->servers)].proxy, 0,
                          (unsigned)draw(c, 15));
    room_start_workers(r);
    for (unsigned n = 0; n < count; n++) {
        struct place p = draw_place(c, r, 10 * n, 10 * n + 9);
        size_t i = draw_trouble(c);

        freeze(r, &p);
        room_mark(r, next_rank(r, p.rank));
        troubles[i].strike(r, p.rank, p.server);
        room_release(r, p.rank, p.server);
        room_await_recovery(r);
        report(r, "reconnect", troubles[i].name, &p);
    }
    room_expect_success(r, ROOM_NOBODY, true);
}

static void play_wait(struct room *r, struct chance *c)
{
    struct place p = draw_place(c, r, 1.5, 30);
    bool is_kill = draw(c, 3) > 0;

    r->update = "server";
    r->worker = ARGS("--on-worker-loss", "wait", "--reconnect-ms", LOSS_MS);
    room_open(r);
    room_start_workers(r);
    freeze(r, &p);
    room_mark(r, next_rank(r, p.rank));
    room_hit_worker(r, p.rank, is_kill ? SIGKILL : SIGSTOP);
    room_release(r, p.rank, p.server);
    if (!is_kill)
        (void)poll(NULL, 0, 4800); /* until it is lost */
    if (!is_kill)
        room_hit_worker(r, p.rank, SIGKILL);
    room_start_worker(r, p.rank);
    room_await_recovery(r);
    room_expect_success(r, ROOM_NOBODY, true);
    report(r, "wait", is_kill ? "worker killed" : "worker stopped", &p);
}

static void play_shrink(struct room *r, struct chance *c)
{
    struct place p = draw_place(c, r, 1.5, 30);
    bool is_kill = draw(c, 3) > 0;

    r->worker = ARGS("--on-worker-loss", "shrink", "--reconnect-ms", LOSS_MS);
    room_open(r);
    room_start_workers(r);
    freeze(r, &p);
    room_mark(r, next_rank(r, p.rank));
    room_hit_worker(r, p.rank, is_kill ? SIGKILL : SIGSTOP);
    room_release(r, p.rank, p.server);
    room_await_recovery(r);
    room_expect_success(r, p.rank, false);
    report(r, "shrink", is_kill ? "worker killed" : "worker stopped", &p);
}

/* Killed, or told to stop, once or twice. */
static void play_restart(struct room *r, struct chance *c)
{
    unsigned count = 1 + (unsigned)draw(c, 2);

    r->with_state = true;
    r->worker = ARGS("--reconnect-ms", "30000");
    room_open(r);
    room_start_workers(r);
    for (unsigned n = 0; n < count; n++) {
        struct place p = draw_place(c, r, 1.5 + 15 * n, 14 + 15 * n);
        bool is_kill = draw(c, 3) > 0;

        freeze(r, &p);
        room_mark(r, next_rank(r, p.rank));
        room_hit_server(r, p.server, is_kill ? SIGKILL : SIGTERM);
        room_release(r, p.rank, p.server);
        if (!is_kill)
            room_end_server(r, p.server);
        room_start_server(r, p.server);
        room_await_recovery(r);
        report(r, "restart", is_kill ? "server killed" : "server told to stop", &p);
    }
    room_expect_success(r, ROOM_NOBODY, true);
}

static void play_replica(struct room *r, struct chance *c)
{
    struct place p;
    bool is_kill = draw(c, 3) > 0, is_primary = draw(c, 2);

    r->servers = 1;
    r->replicas = true;
    r->worker = ARGS("--reconnect-ms", "20000");
    p = draw_place(c, r, 1.5, 30);
    room_open(r);
    room_start_workers(r);
    freeze(r, &p);
    room_mark(r, next_rank(r, p.rank));
    room_hit_server(r, is_primary ? 0 : 1, is_kill ? SIGKILL : SIGSTOP);
    room_release(r, p.rank, p.server);
    room_await_recovery(r);
    if (is_primary && draw(c, 2))
        reset_link(r, ROOM_CHAIN, 0); /* now it is the workers' */
    room_expect_success(r, ROOM_NOBODY, true);
    report(r, is_primary ? "replica, primary" : "replica, copy", is_kill ? "killed" : "stopped",
           &p);
}

/* A server and its replica with a state folder each, of which one or both are killed and started
 * again, in any order. */
static void play_pair(struct room *r, struct chance *c)
{
    unsigned count = 1 + (unsigned)draw(c, 2), first = (unsigned)draw(c, 2),
             back = (unsigned)draw(c, 2);
    struct place p;

    r->servers = 1;
    r->replicas = r->with_state = true;
    r->worker = ARGS("--reconnect-ms", "30000");
    p = draw_place(c, r, 1.5, 30);
    room_open(r);
    room_start_workers(r);
    freeze(r, &p);
    room_mark(r, next_rank(r, p.rank));
    for (unsigned k = 0; k < count; k++)
        room_hit_server(r, first ^ k, SIGKILL);
    room_release(r, p.rank, p.server);
    for (unsigned k = 0; k < count; k++)
        room_start_server(r, count == 1 ? first : back ^ k);
    room_await_recovery(r);
    room_expect_success(r, ROOM_NOBODY, true);
    report(r, "started again", count == 2 ? "both" : first == 0 ? "primary" : "replica", &p);
}

/* What is between a server and its replica, at any byte of a record or of an answer to one: slow,
 * it makes the job slow; broken or silent, the replica is lost, and nothing else. */
static void play_chain(struct room *r, struct chance *c)
{
    struct place p = {.rank = ROOM_CHAIN,
                      .server = (unsigned)draw(c, r->servers),
                      .way = draw(c, 2) ? FAULT_UP : FAULT_DOWN};
    size_t i = draw_link_trouble(c);

    p.round = p.way == FAULT_UP ? 0.3 : 6; /* behind the terms and what workers ask before */
    p.round += 25 * draw_part(c);
    r->replicas = true;
    r->worker = ARGS("--reconnect-ms", "20000");
    room_open(r);
    if (draw(c, 2) == 0)
        fault_proxy_throttle(r->links[ROOM_CHAIN][p.server].proxy, (1 + draw(c, 4)) << 20);
    if (draw(c, 2) == 0)
        fault_proxy_delay(r->links[ROOM_CHAIN][p.server].proxy, 0, (unsigned)draw(c, 15));
    room_start_workers(r);
    freeze(r, &p);
    room_mark(r, (unsigned)draw(c, r->ranks));
    troubles[i].strike(r, p.rank, p.server);
    room_release(r, p.rank, p.server);
    room_await_recovery(r);
    room_expect_success(r, ROOM_NOBODY, true);
    ck_assert(troubles[i].strike == wait_a_moment ||
              strstr(room_server_output(r, p.server), " is lost: "));
    report(r, "chain", troubles[i].name, &p);
}

/* Where nobody is waited for the bits are not promised, but an end with the same ones everywhere.
 */
static void play_loose(struct room *r, struct chance *c)
{
    bool is_asp = draw(c, 2), is_shrink = draw(c, 2);
    struct place p = draw_place(c, r, 1.5, 25);
    size_t i = draw_trouble(c);
    char hash[64];

    r->update = "server";
    r->worker = is_asp
                    ? ARGS("--reduce", "fast", "--on-worker-loss", is_shrink ? "shrink" : "fail",
                           "--reconnect-ms", is_shrink ? LOSS_MS : "20000", "--consistency", "asp")
                    : ARGS("--reduce", "fast", "--on-worker-loss", is_shrink ? "shrink" : "fail",
                           "--reconnect-ms", is_shrink ? LOSS_MS : "20000", "--consistency", "ssp",
                           "--staleness", "2");
    room_open(r);
    room_start_workers(r);
    freeze(r, &p);
    room_mark(r, next_rank(r, p.rank));
    if (is_shrink)
        room_hit_worker(r, p.rank, SIGKILL);
    else
        troubles[i].strike(r, p.rank, p.server);
    room_release(r, p.rank, p.server);
    room_expect_success(r, is_shrink ? p.rank : ROOM_NOBODY, false);
    report(r, is_asp ? "asp" : "ssp", is_shrink ? "worker killed" : troubles[i].name, &p);
    (void)snprintf(hash, sizeof(hash), "%s",
                   job_record_text(r->run_dir, next_rank(r, p.rank), "end", "parameters_hash"));
    for (unsigned rank = 0; rank < r->ranks; rank++)
        ck_assert((is_shrink && rank == p.rank) ||
                  strcmp(hash, job_record_text(r->run_dir, rank, "end", "parameters_hash")) == 0);
}

/* Nobody is asked to go on: all end, and say who it was. */
static void play_failure(struct room *r, struct chance *c)
{
    struct place p = draw_place(c, r, 1.5, 30);
    bool is_kill = draw(c, 3) > 0, is_worker = draw(c, 2);
    char rank[32];

    (void)snprintf(rank, sizeof(rank), "rank %u", p.rank);
    r->worker = ARGS("--reconnect-ms", "1000");
    room_open(r);
    room_start_workers(r);
    freeze(r, &p);
    room_mark(r, next_rank(r, p.rank));
    if (is_worker)
        room_hit_worker(r, p.rank, is_kill ? SIGKILL : SIGSTOP);
    else
        room_hit_server(r, p.server, is_kill ? SIGKILL : SIGSTOP);
    room_release(r, p.rank, p.server);
    room_expect_failure(r, is_worker ? p.rank : ROOM_NOBODY,
                        is_worker ? rank : "parameter server 127.0.0.1:");
    report(r, is_worker ? "fail, worker" : "fail, server", is_kill ? "killed" : "stopped", &p);
    ck_assert_double_le(r->last_ms, 15000);
}

static void (*const plays[])(struct room *r, struct chance *c) = {
    play_troubles, play_troubles, play_wait,  play_shrink, play_restart,
    play_replica,  play_failure,  play_loose, play_chain,  play_pair,
};
#define PLAYS (sizeof(plays) / sizeof(plays[0]))

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t value;

    return text && parse_uint64(text, &value) ? value : otherwise;
}

START_TEST(test_seed)
{
    struct chance c = {.state = first_seed + (uint64_t)_i};
    struct room r = {.seed = c.state};
    size_t play;

    if (clock_now_ns() > begin_ns + (int64_t)seconds * 1000000000)
        return;
    play = draw(&c, PLAYS);
    play = number("SPARRING_STORM_PLAY", play) % PLAYS;
    r.ranks = 2 + (unsigned)draw(&c, 2);
    r.servers = 1 + (unsigned)draw(&c, 2);
    r.update = draw(&c, 2) ? "worker" : "server";
    r.by_reference = draw(&c, 4) == 0;
    r.connections = (const char *const[]){"1", "2", "3"}[draw(&c, 3)];
    printf("seed %ju\n", (uintmax_t)r.seed); /* of a failure, too */
    (void)fflush(stdout);
    plays[play](&r, &c);
    room_close(&r);
}
END_TEST

static void begin(void)
{
    room_find_references();
    begin_ns = clock_now_ns();
}

int main(void)
{
    Suite *suite = suite_create("ps_storm");
    TCase *cases = tcase_create("ps_storm");

    first_seed = number("SPARRING_STORM_FIRST", (uint64_t)time(NULL) * 1000);
    seed_count = number("SPARRING_STORM_SEEDS", 400);
    seconds = number("SPARRING_STORM_SECONDS", 45);
    tcase_set_timeout(cases, 4 * ROOM_WAIT_MS / 1000.0);
    tcase_add_unchecked_fixture(cases, begin, NULL);
    tcase_add_loop_test(cases, test_seed, 0, (int)seed_count);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
