/*
 * Parameter-server jobs under faults drawn from a seed: policy, number of ranks and servers,
 * victim, kind of fault, and its byte of a round.  Each seed is one job.  The job must end as its
 * policy promises: with the bits of a run without faults, or in order, or, where it is to fail,
 * with errors that name the lost process; it must never hang.
 *
 *   SPARRING_STORM_FIRST (drawn)   first seed; the same seed draws the same faults again
 *   SPARRING_STORM_SEEDS (400)     how many at most
 *   SPARRING_STORM_SECONDS (45)    begin no new job after that
 *   SPARRING_STORM_PLAY (drawn)    index into `plays` (kinds of jobs), to run only one kind
 *   SPARRING_FAULT_LOG             also append the lines of JSON there
 * tests/nightly runs many and sums them up.
 */
#include "tests/integration/job.h"
#include "tests/integration/ps_fixture.h"
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

/* ------------------------------------------------------------------ random numbers */

struct random_state {
    uint64_t state;
};

static uint64_t draw(struct random_state *c, uint64_t limit)
{
    uint64_t z = c->state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % limit;
}

static double draw_fraction(struct random_state *c)
{
    return (double)draw(c, 1000000) * 1e-6;
}

/* ------------------------------------------------------------------ faults of a link */

static void reset_link(struct ps_fixture *r, unsigned rank, unsigned server)
{
    fault_proxy_reset(r->links[rank][server].proxy);
}

static void reset_all_links(struct ps_fixture *r, unsigned rank, unsigned server)
{
    (void)rank;
    (void)server;
    for (unsigned i = 0; i < r->ranks; i++)
        for (unsigned k = 0; k < r->servers; k++)
            fault_proxy_reset(r->links[i][k].proxy);
}

static void end_up(struct ps_fixture *r, unsigned rank, unsigned server)
{
    fault_proxy_end(r->links[rank][server].proxy, FAULT_UP);
}

static void end_down(struct ps_fixture *r, unsigned rank, unsigned server)
{
    fault_proxy_end(r->links[rank][server].proxy, FAULT_DOWN);
}

static void hold_300_ms(struct ps_fixture *r, unsigned rank, unsigned server)
{
    (void)r;
    (void)rank;
    (void)server;
    (void)poll(NULL, 0, 300);
}

static void hold_2200_ms(struct ps_fixture *r, unsigned rank, unsigned server)
{
    (void)r;
    (void)rank;
    (void)server;
    (void)poll(NULL, 0, 2200); /* longer than --heartbeat-timeout-ms */
}

static void stop_worker_2200_ms(struct ps_fixture *r, unsigned rank, unsigned server)
{
    (void)server;
    ps_fixture_signal_worker(r, rank, SIGSTOP);
    (void)poll(NULL, 0, 2200);
    ps_fixture_signal_worker(r, rank, SIGCONT);
}

static void stop_server_2200_ms(struct ps_fixture *r, unsigned rank, unsigned server)
{
    (void)rank;
    ps_fixture_signal_server(r, server, SIGSTOP);
    (void)poll(NULL, 0, 2200);
    ps_fixture_signal_server(r, server, SIGCONT);
}

static const struct {
    const char *name;
    void (*inject)(struct ps_fixture *r, unsigned rank, unsigned server);
    unsigned weight;
    bool is_link; /* affects one link only */
} faults[] = {
    {"reset", reset_link, 6, true},
    {"all reset", reset_all_links, 3, false},
    {"half closed up", end_up, 3, true},
    {"half closed down", end_down, 3, true},
    {"held 0.3 s", hold_300_ms, 2, true},
    {"black hole 2.2 s", hold_2200_ms, 1, true},
    {"worker naps", stop_worker_2200_ms, 1, false},
    {"server naps", stop_server_2200_ms, 1, false},
};
#define FAULTS (sizeof(faults) / sizeof(faults[0]))

static size_t draw_fault(struct random_state *c)
{
    uint64_t sum = 0, at;
    size_t i = 0;

    for (size_t k = 0; k < FAULTS; k++)
        sum += faults[k].weight;
    for (at = draw(c, sum); at >= faults[i].weight; i++)
        at -= faults[i].weight;
    return i;
}

static size_t draw_link_fault(struct random_state *c)
{
    size_t i = draw_fault(c);

    while (!faults[i].is_link)
        i = draw_fault(c);
    return i;
}

/* ------------------------------------------------------------------ kinds of jobs */

/* Until a worker counts as lost: longer than a busy host delays a healthy worker. */
#define LOSS_MS "3000"

struct fault_position {
    unsigned rank, server;
    enum fault_way way;
    double round;
};

static struct fault_position draw_position(struct random_state *c, const struct ps_fixture *r,
                                           double from, double to)
{
    struct fault_position p;

    p.rank = (unsigned)draw(c, r->ranks);
    p.server = (unsigned)draw(c, r->servers);
    p.way = draw(c, 2) ? FAULT_UP : FAULT_DOWN;
    p.round = from + (to - from) * draw_fraction(c);
    return p;
}

static void freeze_link(struct ps_fixture *r, const struct fault_position *p)
{
    ps_fixture_freeze_at(r, p->rank, p->server, p->way, p->round);
    ps_fixture_await_freeze(r, p->rank, p->server);
}

static void report_fault(struct ps_fixture *r, const char *policy, const char *what,
                         const struct fault_position *p)
{
    char text[256];
    char rank[24] = "";

    if (p->rank != PS_FIXTURE_REPLICA_LINK)
        (void)snprintf(rank, sizeof(rank), ", rank %u", p->rank);
    (void)snprintf(text, sizeof(text), "%s: %s%s, server %u, %s %.3f", policy, what, rank,
                   p->server, p->way == FAULT_UP ? "up" : "down", p->round);
    ps_fixture_report_fault(r, text);
}

static unsigned next_rank(const struct ps_fixture *r, unsigned rank)
{
    return (rank + 1) % r->ranks;
}

/* One to three faults; the result has the bits of an undisturbed run. */
static void play_short_faults(struct ps_fixture *r, struct random_state *c)
{
    unsigned count = 1 + (unsigned)draw(c, 3);

    r->worker = ARGS("--reconnect-ms", "20000");
    ps_fixture_open(r);
    if (draw(c, 4) == 0)
        fault_proxy_throttle(r->links[draw(c, r->ranks)][draw(c, r->servers)].proxy,
                             (1 + draw(c, 8)) << 20);
    if (draw(c, 4) == 0)
        fault_proxy_delay(r->links[draw(c, r->ranks)][draw(c, r->servers)].proxy, 0,
                          (unsigned)draw(c, 15));
    ps_fixture_start_workers(r);
    for (unsigned n = 0; n < count; n++) {
        struct fault_position p = draw_position(c, r, 10 * n, 10 * n + 9);
        size_t i = draw_fault(c);

        freeze_link(r, &p);
        ps_fixture_mark_fault(r, next_rank(r, p.rank));
        faults[i].inject(r, p.rank, p.server);
        ps_fixture_release(r, p.rank, p.server);
        ps_fixture_await_recovery(r);
        report_fault(r, "reconnect", faults[i].name, &p);
    }
    ps_fixture_expect_success(r, PS_FIXTURE_NO_RANK, true);
}

static void play_wait(struct ps_fixture *r, struct random_state *c)
{
    struct fault_position p = draw_position(c, r, 1.5, 30);
    bool is_kill = draw(c, 3) > 0;

    r->update = "server";
    r->worker = ARGS("--on-worker-loss", "wait", "--reconnect-ms", LOSS_MS);
    ps_fixture_open(r);
    ps_fixture_start_workers(r);
    freeze_link(r, &p);
    ps_fixture_mark_fault(r, next_rank(r, p.rank));
    ps_fixture_signal_worker(r, p.rank, is_kill ? SIGKILL : SIGSTOP);
    ps_fixture_release(r, p.rank, p.server);
    if (!is_kill)
        (void)poll(NULL, 0, 4800); /* until it is lost */
    if (!is_kill)
        ps_fixture_signal_worker(r, p.rank, SIGKILL);
    ps_fixture_start_worker(r, p.rank);
    ps_fixture_await_recovery(r);
    ps_fixture_expect_success(r, PS_FIXTURE_NO_RANK, true);
    report_fault(r, "wait", is_kill ? "worker killed" : "worker stopped", &p);
}

static void play_shrink(struct ps_fixture *r, struct random_state *c)
{
    struct fault_position p = draw_position(c, r, 1.5, 30);
    bool is_kill = draw(c, 3) > 0;

    r->worker = ARGS("--on-worker-loss", "shrink", "--reconnect-ms", LOSS_MS);
    ps_fixture_open(r);
    ps_fixture_start_workers(r);
    freeze_link(r, &p);
    ps_fixture_mark_fault(r, next_rank(r, p.rank));
    ps_fixture_signal_worker(r, p.rank, is_kill ? SIGKILL : SIGSTOP);
    ps_fixture_release(r, p.rank, p.server);
    ps_fixture_await_recovery(r);
    ps_fixture_expect_success(r, p.rank, false);
    report_fault(r, "shrink", is_kill ? "worker killed" : "worker stopped", &p);
}

/* A server gets SIGKILL or SIGTERM, once or twice, and is restarted. */
static void play_restart(struct ps_fixture *r, struct random_state *c)
{
    unsigned count = 1 + (unsigned)draw(c, 2);

    r->with_state = true;
    r->worker = ARGS("--reconnect-ms", "30000");
    ps_fixture_open(r);
    ps_fixture_start_workers(r);
    for (unsigned n = 0; n < count; n++) {
        struct fault_position p = draw_position(c, r, 1.5 + 15 * n, 14 + 15 * n);
        bool is_kill = draw(c, 3) > 0;

        freeze_link(r, &p);
        ps_fixture_mark_fault(r, next_rank(r, p.rank));
        ps_fixture_signal_server(r, p.server, is_kill ? SIGKILL : SIGTERM);
        ps_fixture_release(r, p.rank, p.server);
        if (!is_kill)
            ps_fixture_await_server_end(r, p.server);
        ps_fixture_start_server(r, p.server);
        ps_fixture_await_recovery(r);
        report_fault(r, "restart", is_kill ? "server killed" : "server told to stop", &p);
    }
    ps_fixture_expect_success(r, PS_FIXTURE_NO_RANK, true);
}

static void play_replica(struct ps_fixture *r, struct random_state *c)
{
    struct fault_position p;
    bool is_kill = draw(c, 3) > 0, is_primary = draw(c, 2);

    r->servers = 1;
    r->replicas = true;
    r->worker = ARGS("--reconnect-ms", "20000");
    p = draw_position(c, r, 1.5, 30);
    ps_fixture_open(r);
    ps_fixture_start_workers(r);
    freeze_link(r, &p);
    ps_fixture_mark_fault(r, next_rank(r, p.rank));
    ps_fixture_signal_server(r, is_primary ? 0 : 1, is_kill ? SIGKILL : SIGSTOP);
    ps_fixture_release(r, p.rank, p.server);
    ps_fixture_await_recovery(r);
    if (is_primary && draw(c, 2))
        reset_link(r, PS_FIXTURE_REPLICA_LINK,
                   0); /* after the takeover it carries the workers' connections */
    ps_fixture_expect_success(r, PS_FIXTURE_NO_RANK, true);
    report_fault(r, is_primary ? "replica, primary" : "replica, copy",
                 is_kill ? "killed" : "stopped", &p);
}

/* A server and its replica with a state folder each, of which one or both are killed and started
 * again, in any order. */
static void play_restarted_pair(struct ps_fixture *r, struct random_state *c)
{
    unsigned count = 1 + (unsigned)draw(c, 2), first = (unsigned)draw(c, 2),
             back = (unsigned)draw(c, 2);
    struct fault_position p;

    r->servers = 1;
    r->replicas = r->with_state = true;
    r->worker = ARGS("--reconnect-ms", "30000");
    p = draw_position(c, r, 1.5, 30);
    ps_fixture_open(r);
    ps_fixture_start_workers(r);
    freeze_link(r, &p);
    ps_fixture_mark_fault(r, next_rank(r, p.rank));
    for (unsigned k = 0; k < count; k++)
        ps_fixture_signal_server(r, first ^ k, SIGKILL);
    ps_fixture_release(r, p.rank, p.server);
    for (unsigned k = 0; k < count; k++)
        ps_fixture_start_server(r, count == 1 ? first : back ^ k);
    ps_fixture_await_recovery(r);
    ps_fixture_expect_success(r, PS_FIXTURE_NO_RANK, true);
    report_fault(r, "started again", count == 2 ? "both" : first == 0 ? "primary" : "replica", &p);
}

/* Faults of the link between a server and its replica, at any byte of a record or an
 * acknowledgement: a slow link makes the job slow; a broken or silent one loses the replica, and
 * nothing else. */
static void play_replica_link(struct ps_fixture *r, struct random_state *c)
{
    struct fault_position p = {.rank = PS_FIXTURE_REPLICA_LINK,
                               .server = (unsigned)draw(c, r->servers),
                               .way = draw(c, 2) ? FAULT_UP : FAULT_DOWN};
    size_t i = draw_link_fault(c);

    p.round =
        p.way == FAULT_UP ? 0.3 : 6; /* after the job's terms and the workers' earlier requests */
    p.round += 25 * draw_fraction(c);
    r->replicas = true;
    r->worker = ARGS("--reconnect-ms", "20000");
    ps_fixture_open(r);
    if (draw(c, 2) == 0)
        fault_proxy_throttle(r->links[PS_FIXTURE_REPLICA_LINK][p.server].proxy, (1 + draw(c, 4))
                                                                                    << 20);
    if (draw(c, 2) == 0)
        fault_proxy_delay(r->links[PS_FIXTURE_REPLICA_LINK][p.server].proxy, 0,
                          (unsigned)draw(c, 15));
    ps_fixture_start_workers(r);
    freeze_link(r, &p);
    ps_fixture_mark_fault(r, (unsigned)draw(c, r->ranks));
    faults[i].inject(r, p.rank, p.server);
    ps_fixture_release(r, p.rank, p.server);
    ps_fixture_await_recovery(r);
    ps_fixture_expect_success(r, PS_FIXTURE_NO_RANK, true);
    ck_assert(faults[i].inject == hold_300_ms ||
              strstr(ps_fixture_server_output(r, p.server), " is lost: "));
    report_fault(r, "chain", faults[i].name, &p);
}

/* asp and ssp do not promise the bits of an undisturbed run, but all ranks end with equal
 * parameters. */
static void play_asynchronous(struct ps_fixture *r, struct random_state *c)
{
    bool is_asp = draw(c, 2), is_shrink = draw(c, 2);
    struct fault_position p = draw_position(c, r, 1.5, 25);
    size_t i = draw_fault(c);
    char hash[64];

    r->update = "server";
    r->worker = is_asp
                    ? ARGS("--reduce", "fast", "--on-worker-loss", is_shrink ? "shrink" : "fail",
                           "--reconnect-ms", is_shrink ? LOSS_MS : "20000", "--consistency", "asp")
                    : ARGS("--reduce", "fast", "--on-worker-loss", is_shrink ? "shrink" : "fail",
                           "--reconnect-ms", is_shrink ? LOSS_MS : "20000", "--consistency", "ssp",
                           "--staleness", "2");
    ps_fixture_open(r);
    ps_fixture_start_workers(r);
    freeze_link(r, &p);
    ps_fixture_mark_fault(r, next_rank(r, p.rank));
    if (is_shrink)
        ps_fixture_signal_worker(r, p.rank, SIGKILL);
    else
        faults[i].inject(r, p.rank, p.server);
    ps_fixture_release(r, p.rank, p.server);
    ps_fixture_expect_success(r, is_shrink ? p.rank : PS_FIXTURE_NO_RANK, false);
    report_fault(r, is_asp ? "asp" : "ssp", is_shrink ? "worker killed" : faults[i].name, &p);
    (void)snprintf(hash, sizeof(hash), "%s",
                   job_record_text(r->run_dir, next_rank(r, p.rank), "end", "parameters_hash"));
    for (unsigned rank = 0; rank < r->ranks; rank++)
        ck_assert((is_shrink && rank == p.rank) ||
                  strcmp(hash, job_record_text(r->run_dir, rank, "end", "parameters_hash")) == 0);
}

/* The policy is to fail: all workers end, with errors that name the victim. */
static void play_failure(struct ps_fixture *r, struct random_state *c)
{
    struct fault_position p = draw_position(c, r, 1.5, 30);
    bool is_kill = draw(c, 3) > 0, is_worker = draw(c, 2);
    char rank[32];

    (void)snprintf(rank, sizeof(rank), "rank %u", p.rank);
    r->worker = ARGS("--reconnect-ms", "1000");
    ps_fixture_open(r);
    ps_fixture_start_workers(r);
    freeze_link(r, &p);
    ps_fixture_mark_fault(r, next_rank(r, p.rank));
    if (is_worker)
        ps_fixture_signal_worker(r, p.rank, is_kill ? SIGKILL : SIGSTOP);
    else
        ps_fixture_signal_server(r, p.server, is_kill ? SIGKILL : SIGSTOP);
    ps_fixture_release(r, p.rank, p.server);
    ps_fixture_expect_failure(r, is_worker ? p.rank : PS_FIXTURE_NO_RANK,
                              is_worker ? rank : "parameter server 127.0.0.1:");
    report_fault(r, is_worker ? "fail, worker" : "fail, server", is_kill ? "killed" : "stopped",
                 &p);
    ck_assert_double_le(r->last_ms, 15000);
}

static void (*const plays[])(struct ps_fixture *r, struct random_state *c) = {
    play_short_faults, play_short_faults, play_wait,         play_shrink,       play_restart,
    play_replica,      play_failure,      play_asynchronous, play_replica_link, play_restarted_pair,
};
#define PLAYS (sizeof(plays) / sizeof(plays[0]))

static uint64_t environment_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t value;

    return text && parse_uint64(text, &value) ? value : otherwise;
}

START_TEST(test_seed)
{
    struct random_state c = {.state = first_seed + (uint64_t)_i};
    struct ps_fixture r = {.seed = c.state};
    size_t play;

    if (clock_now_ns() > begin_ns + (int64_t)seconds * 1000000000)
        return;
    play = draw(&c, PLAYS);
    play = environment_number("SPARRING_STORM_PLAY", play) % PLAYS;
    r.ranks = 2 + (unsigned)draw(&c, 2);
    r.servers = 1 + (unsigned)draw(&c, 2);
    r.update = draw(&c, 2) ? "worker" : "server";
    r.by_reference = draw(&c, 4) == 0;
    r.connections = (const char *const[]){"1", "2", "3"}[draw(&c, 3)];
    printf("seed %ju\n", (uintmax_t)r.seed); /* before the job: also of a job that fails */
    (void)fflush(stdout);
    plays[play](&r, &c);
    ps_fixture_close(&r);
}
END_TEST

static void prepare_storm(void)
{
    ps_fixture_compute_references();
    begin_ns = clock_now_ns();
}

int main(void)
{
    Suite *suite = suite_create("ps_storm");
    TCase *cases = tcase_create("ps_storm");

    first_seed = environment_number("SPARRING_STORM_FIRST", (uint64_t)time(NULL) * 1000);
    seed_count = environment_number("SPARRING_STORM_SEEDS", 400);
    seconds = environment_number("SPARRING_STORM_SECONDS", 45);
    tcase_set_timeout(cases, 4 * PS_FIXTURE_WAIT_MS / 1000.0);
    tcase_add_unchecked_fixture(cases, prepare_storm, NULL);
    tcase_add_loop_test(cases, test_seed, 0, (int)seed_count);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
