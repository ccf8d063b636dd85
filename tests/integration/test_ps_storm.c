/*
 * Parameter-server jobs under random faults.  Each seed is one job; it determines policy, number of
 * ranks and servers, victim, kind of fault and the byte of its injection.  The job must end as its
 * policy specifies: with the bits of a run without faults, with equal parameters on all ranks, or
 * with errors that name the lost process.  It must never hang.
 *
 *   SPARRING_STORM_FIRST (by time) first seed; a seed reproduces its job and faults
 *   SPARRING_STORM_SEEDS (400)     maximum number of seeds
 *   SPARRING_STORM_SECONDS (45)    start no new job after that time
 *   SPARRING_STORM_PLAY (random)   index into `scenarios`, to run only that one
 *   SPARRING_FAULT_LOG             file to which the lines of JSON are appended, too
 * tests/nightly runs many seeds and summarises them.
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

static uint64_t draw(struct random_state *random, uint64_t limit)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % limit;
}

static double draw_fraction(struct random_state *random)
{
    return (double)draw(random, 1000000) * 1e-6;
}

/* ------------------------------------------------------------------ faults of a link */

static void reset_link(struct ps_fixture *f, unsigned rank, unsigned server)
{
    fault_proxy_reset(f->links[rank][server].proxy);
}

static void reset_all_links(struct ps_fixture *f, unsigned rank, unsigned server)
{
    (void)rank;
    (void)server;
    for (unsigned i = 0; i < f->ranks; i++)
        for (unsigned k = 0; k < f->servers; k++)
            fault_proxy_reset(f->links[i][k].proxy);
}

static void end_up(struct ps_fixture *f, unsigned rank, unsigned server)
{
    fault_proxy_half_close(f->links[rank][server].proxy, FAULT_UP);
}

static void end_down(struct ps_fixture *f, unsigned rank, unsigned server)
{
    fault_proxy_half_close(f->links[rank][server].proxy, FAULT_DOWN);
}

static void hold_300_ms(struct ps_fixture *f, unsigned rank, unsigned server)
{
    (void)f;
    (void)rank;
    (void)server;
    (void)poll(NULL, 0, 300);
}

static void hold_2200_ms(struct ps_fixture *f, unsigned rank, unsigned server)
{
    (void)f;
    (void)rank;
    (void)server;
    (void)poll(NULL, 0, 2200); /* longer than --heartbeat-timeout-ms */
}

static void stop_worker_2200_ms(struct ps_fixture *f, unsigned rank, unsigned server)
{
    (void)server;
    ps_fixture_signal_worker(f, rank, SIGSTOP);
    (void)poll(NULL, 0, 2200);
    ps_fixture_signal_worker(f, rank, SIGCONT);
}

static void stop_server_2200_ms(struct ps_fixture *f, unsigned rank, unsigned server)
{
    (void)rank;
    ps_fixture_signal_server(f, server, SIGSTOP);
    (void)poll(NULL, 0, 2200);
    ps_fixture_signal_server(f, server, SIGCONT);
}

static const struct {
    const char *name;
    void (*inject)(struct ps_fixture *f, unsigned rank, unsigned server);
    unsigned weight;
    bool is_link; /* affects a single link */
} faults[] = {
    {"reset", reset_link, 6, true},
    {"all reset", reset_all_links, 3, false},
    {"half closed up", end_up, 3, true},
    {"half closed down", end_down, 3, true},
    {"held 0.3 s", hold_300_ms, 2, true},
    {"black hole 2.2 s", hold_2200_ms, 1, true},
    {"worker stopped 2.2 s", stop_worker_2200_ms, 1, false},
    {"server stopped 2.2 s", stop_server_2200_ms, 1, false},
};
#define FAULTS (sizeof(faults) / sizeof(faults[0]))

static size_t draw_fault(struct random_state *random)
{
    uint64_t sum = 0, threshold;
    size_t i = 0;

    for (size_t k = 0; k < FAULTS; k++)
        sum += faults[k].weight;
    for (threshold = draw(random, sum); threshold >= faults[i].weight; i++)
        threshold -= faults[i].weight;
    return i;
}

static size_t draw_link_fault(struct random_state *random)
{
    size_t i = draw_fault(random);

    while (!faults[i].is_link)
        i = draw_fault(random);
    return i;
}

/* ------------------------------------------------------------------ scenarios */

/* Time until a worker counts as lost: longer than a busy host delays a healthy worker. */
#define LOSS_MS "3000"

struct fault_position {
    unsigned rank, server;
    enum fault_direction direction;
    double round;
};

static struct fault_position draw_position(struct random_state *random, const struct ps_fixture *f,
                                           double from, double to)
{
    struct fault_position p;

    p.rank = (unsigned)draw(random, f->ranks);
    p.server = (unsigned)draw(random, f->servers);
    p.direction = draw(random, 2) ? FAULT_UP : FAULT_DOWN;
    p.round = from + (to - from) * draw_fraction(random);
    return p;
}

static void freeze_link(struct ps_fixture *f, const struct fault_position *p)
{
    ps_fixture_freeze_at(f, p->rank, p->server, p->direction, p->round);
    ps_fixture_await_freeze(f, p->rank, p->server);
}

static void report_fault(struct ps_fixture *f, const char *policy, const char *what,
                         const struct fault_position *p)
{
    char text[256];
    char rank[24] = "";

    if (p->rank != PS_FIXTURE_REPLICA_LINK)
        (void)snprintf(rank, sizeof(rank), ", rank %u", p->rank);
    (void)snprintf(text, sizeof(text), "%s: %s%s, server %u, %s %.3f", policy, what, rank,
                   p->server, p->direction == FAULT_UP ? "up" : "down", p->round);
    ps_fixture_report_fault(f, text);
}

static unsigned next_rank(const struct ps_fixture *f, unsigned rank)
{
    return (rank + 1) % f->ranks;
}

/* One to three faults; the result must have the bits of an undisturbed run. */
static void scenario_short_faults(struct ps_fixture *f, struct random_state *random)
{
    unsigned count = 1 + (unsigned)draw(random, 3);

    f->worker = ARGS("--reconnect-ms", "20000");
    ps_fixture_open(f);
    if (draw(random, 4) == 0)
        fault_proxy_throttle(f->links[draw(random, f->ranks)][draw(random, f->servers)].proxy,
                             (1 + draw(random, 8)) << 20);
    if (draw(random, 4) == 0)
        fault_proxy_delay(f->links[draw(random, f->ranks)][draw(random, f->servers)].proxy, 0,
                          (unsigned)draw(random, 15));
    ps_fixture_start_workers(f);
    for (unsigned n = 0; n < count; n++) {
        struct fault_position p = draw_position(random, f, 10 * n, 10 * n + 9);
        size_t i = draw_fault(random);

        freeze_link(f, &p);
        ps_fixture_mark_fault(f, next_rank(f, p.rank));
        faults[i].inject(f, p.rank, p.server);
        ps_fixture_release(f, p.rank, p.server);
        ps_fixture_await_recovery(f);
        report_fault(f, "reconnect", faults[i].name, &p);
    }
    ps_fixture_expect_success(f, PS_FIXTURE_NO_RANK, true);
}

static void scenario_wait(struct ps_fixture *f, struct random_state *random)
{
    struct fault_position p = draw_position(random, f, 1.5, 30);
    bool is_kill = draw(random, 3) > 0;

    f->update = "server";
    f->worker = ARGS("--on-rank-loss", "wait", "--reconnect-ms", LOSS_MS);
    ps_fixture_open(f);
    ps_fixture_start_workers(f);
    freeze_link(f, &p);
    ps_fixture_mark_fault(f, next_rank(f, p.rank));
    ps_fixture_signal_worker(f, p.rank, is_kill ? SIGKILL : SIGSTOP);
    ps_fixture_release(f, p.rank, p.server);
    if (!is_kill)
        (void)poll(NULL, 0, 4800); /* until it counts as lost */
    if (!is_kill)
        ps_fixture_signal_worker(f, p.rank, SIGKILL);
    ps_fixture_start_worker(f, p.rank);
    ps_fixture_await_recovery(f);
    ps_fixture_expect_success(f, PS_FIXTURE_NO_RANK, true);
    report_fault(f, "wait", is_kill ? "worker killed" : "worker stopped", &p);
}

static void scenario_shrink(struct ps_fixture *f, struct random_state *random)
{
    struct fault_position p = draw_position(random, f, 1.5, 30);
    bool is_kill = draw(random, 3) > 0;

    f->worker = ARGS("--on-rank-loss", "shrink", "--reconnect-ms", LOSS_MS);
    ps_fixture_open(f);
    ps_fixture_start_workers(f);
    freeze_link(f, &p);
    ps_fixture_mark_fault(f, next_rank(f, p.rank));
    ps_fixture_signal_worker(f, p.rank, is_kill ? SIGKILL : SIGSTOP);
    ps_fixture_release(f, p.rank, p.server);
    ps_fixture_await_recovery(f);
    ps_fixture_expect_success(f, p.rank, false);
    report_fault(f, "shrink", is_kill ? "worker killed" : "worker stopped", &p);
}

/* A server gets SIGKILL or SIGTERM, once or twice, and is restarted. */
static void scenario_restart(struct ps_fixture *f, struct random_state *random)
{
    unsigned count = 1 + (unsigned)draw(random, 2);

    f->with_state = true;
    f->worker = ARGS("--reconnect-ms", "30000");
    ps_fixture_open(f);
    ps_fixture_start_workers(f);
    for (unsigned n = 0; n < count; n++) {
        struct fault_position p = draw_position(random, f, 1.5 + 15 * n, 14 + 15 * n);
        bool is_kill = draw(random, 3) > 0;

        freeze_link(f, &p);
        ps_fixture_mark_fault(f, next_rank(f, p.rank));
        ps_fixture_signal_server(f, p.server, is_kill ? SIGKILL : SIGTERM);
        ps_fixture_release(f, p.rank, p.server);
        if (!is_kill)
            ps_fixture_await_server_end(f, p.server);
        ps_fixture_start_server(f, p.server);
        ps_fixture_await_recovery(f);
        report_fault(f, "restart", is_kill ? "server killed" : "server terminated", &p);
    }
    ps_fixture_expect_success(f, PS_FIXTURE_NO_RANK, true);
}

static void scenario_replica(struct ps_fixture *f, struct random_state *random)
{
    struct fault_position p;
    bool is_kill = draw(random, 3) > 0, is_primary = draw(random, 2);

    f->servers = 1;
    f->replicas = true;
    f->worker = ARGS("--reconnect-ms", "20000");
    p = draw_position(random, f, 1.5, 30);
    ps_fixture_open(f);
    ps_fixture_start_workers(f);
    freeze_link(f, &p);
    ps_fixture_mark_fault(f, next_rank(f, p.rank));
    ps_fixture_signal_server(f, is_primary ? 0 : 1, is_kill ? SIGKILL : SIGSTOP);
    ps_fixture_release(f, p.rank, p.server);
    ps_fixture_await_recovery(f);
    if (is_primary && draw(random, 2))
        reset_link(f, PS_FIXTURE_REPLICA_LINK, 0); /* after a takeover it is the workers' link */
    ps_fixture_expect_success(f, PS_FIXTURE_NO_RANK, true);
    report_fault(f, is_primary ? "replica pair, primary" : "replica pair, replica",
                 is_kill ? "killed" : "stopped", &p);
}

/* A server and its replica have a state folder each.  One or both are killed and restarted, in any
 * order. */
static void scenario_restarted_pair(struct ps_fixture *f, struct random_state *random)
{
    unsigned count = 1 + (unsigned)draw(random, 2), first = (unsigned)draw(random, 2),
             back = (unsigned)draw(random, 2);
    struct fault_position p;

    f->servers = 1;
    f->replicas = f->with_state = true;
    f->worker = ARGS("--reconnect-ms", "30000");
    p = draw_position(random, f, 1.5, 30);
    ps_fixture_open(f);
    ps_fixture_start_workers(f);
    freeze_link(f, &p);
    ps_fixture_mark_fault(f, next_rank(f, p.rank));
    for (unsigned k = 0; k < count; k++)
        ps_fixture_signal_server(f, first ^ k, SIGKILL);
    ps_fixture_release(f, p.rank, p.server);
    for (unsigned k = 0; k < count; k++)
        ps_fixture_start_server(f, count == 1 ? first : back ^ k);
    ps_fixture_await_recovery(f);
    ps_fixture_expect_success(f, PS_FIXTURE_NO_RANK, true);
    report_fault(f, "restarted pair", count == 2 ? "both" : first == 0 ? "primary" : "replica", &p);
}

/* Faults of the link between a server and its replica, at any byte of a record or an
 * acknowledgement.  A slow link delays the job; a broken or silent one loses the replica only. */
static void scenario_replica_link(struct ps_fixture *f, struct random_state *random)
{
    struct fault_position p = {.rank = PS_FIXTURE_REPLICA_LINK,
                               .server = (unsigned)draw(random, f->servers),
                               .direction = draw(random, 2) ? FAULT_UP : FAULT_DOWN};
    size_t i = draw_link_fault(random);

    p.round = p.direction == FAULT_UP ? 0.3 : 6; /* after the job's terms and earlier requests */
    p.round += 25 * draw_fraction(random);
    f->replicas = true;
    f->worker = ARGS("--reconnect-ms", "20000");
    ps_fixture_open(f);
    if (draw(random, 2) == 0)
        fault_proxy_throttle(f->links[PS_FIXTURE_REPLICA_LINK][p.server].proxy,
                             (1 + draw(random, 4)) << 20);
    if (draw(random, 2) == 0)
        fault_proxy_delay(f->links[PS_FIXTURE_REPLICA_LINK][p.server].proxy, 0,
                          (unsigned)draw(random, 15));
    ps_fixture_start_workers(f);
    freeze_link(f, &p);
    ps_fixture_mark_fault(f, (unsigned)draw(random, f->ranks));
    faults[i].inject(f, p.rank, p.server);
    ps_fixture_release(f, p.rank, p.server);
    ps_fixture_await_recovery(f);
    ps_fixture_expect_success(f, PS_FIXTURE_NO_RANK, true);
    ck_assert(faults[i].inject == hold_300_ms ||
              strstr(ps_fixture_server_output(f, p.server), " is lost: "));
    report_fault(f, "replication link", faults[i].name, &p);
}

/* asp and ssp are not deterministic, but all ranks must end with equal parameters. */
static void scenario_asynchronous(struct ps_fixture *f, struct random_state *random)
{
    bool is_asp = draw(random, 2), is_shrink = draw(random, 2);
    struct fault_position p = draw_position(random, f, 1.5, 25);
    size_t i = draw_fault(random);
    char hash[64];

    f->update = "server";
    f->worker = is_asp
                    ? ARGS("--reduce", "fast", "--on-rank-loss", is_shrink ? "shrink" : "fail",
                           "--reconnect-ms", is_shrink ? LOSS_MS : "20000", "--consistency", "asp")
                    : ARGS("--reduce", "fast", "--on-rank-loss", is_shrink ? "shrink" : "fail",
                           "--reconnect-ms", is_shrink ? LOSS_MS : "20000", "--consistency", "ssp",
                           "--staleness", "2");
    ps_fixture_open(f);
    ps_fixture_start_workers(f);
    freeze_link(f, &p);
    ps_fixture_mark_fault(f, next_rank(f, p.rank));
    if (is_shrink)
        ps_fixture_signal_worker(f, p.rank, SIGKILL);
    else
        faults[i].inject(f, p.rank, p.server);
    ps_fixture_release(f, p.rank, p.server);
    ps_fixture_expect_success(f, is_shrink ? p.rank : PS_FIXTURE_NO_RANK, false);
    report_fault(f, is_asp ? "asp" : "ssp", is_shrink ? "worker killed" : faults[i].name, &p);
    (void)snprintf(hash, sizeof(hash), "%s",
                   job_record_text(f->run_dir, next_rank(f, p.rank), "end", "parameters_hash"));
    for (unsigned rank = 0; rank < f->ranks; rank++)
        ck_assert((is_shrink && rank == p.rank) ||
                  strcmp(hash, job_record_text(f->run_dir, rank, "end", "parameters_hash")) == 0);
}

/* Policy `fail`: all workers must end with errors that name the victim. */
static void scenario_failure(struct ps_fixture *f, struct random_state *random)
{
    struct fault_position p = draw_position(random, f, 1.5, 30);
    bool is_kill = draw(random, 3) > 0, is_worker = draw(random, 2);
    char rank[32];

    (void)snprintf(rank, sizeof(rank), "rank %u", p.rank);
    f->worker = ARGS("--reconnect-ms", "1000");
    ps_fixture_open(f);
    ps_fixture_start_workers(f);
    freeze_link(f, &p);
    ps_fixture_mark_fault(f, next_rank(f, p.rank));
    if (is_worker)
        ps_fixture_signal_worker(f, p.rank, is_kill ? SIGKILL : SIGSTOP);
    else
        ps_fixture_signal_server(f, p.server, is_kill ? SIGKILL : SIGSTOP);
    ps_fixture_release(f, p.rank, p.server);
    ps_fixture_expect_failure(f, is_worker ? p.rank : PS_FIXTURE_NO_RANK,
                              is_worker ? rank : "parameter server 127.0.0.1:");
    report_fault(f, is_worker ? "fail, worker" : "fail, server", is_kill ? "killed" : "stopped",
                 &p);
    ck_assert_double_le(f->last_ms, 15000);
}

static void (*const scenarios[])(struct ps_fixture *f, struct random_state *random) = {
    scenario_short_faults, scenario_short_faults,   scenario_wait,    scenario_shrink,
    scenario_restart,      scenario_replica,        scenario_failure, scenario_asynchronous,
    scenario_replica_link, scenario_restarted_pair,
};
#define SCENARIOS (sizeof(scenarios) / sizeof(scenarios[0]))

static uint64_t environment_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t value;

    return text && parse_uint64(text, &value) ? value : otherwise;
}

START_TEST(test_seed)
{
    struct random_state random = {.state = first_seed + (uint64_t)_i};
    struct ps_fixture f = {.seed = random.state};
    size_t scenario;

    if (clock_now_ns() > begin_ns + (int64_t)seconds * 1000000000)
        return;
    scenario = draw(&random, SCENARIOS);
    scenario = environment_number("SPARRING_STORM_PLAY", scenario) % SCENARIOS;
    f.ranks = 2 + (unsigned)draw(&random, 2);
    f.servers = 1 + (unsigned)draw(&random, 2);
    f.update = draw(&random, 2) ? "worker" : "server";
    f.by_reference = draw(&random, 4) == 0;
    f.connections = (const char *const[]){"1", "2", "3"}[draw(&random, 3)];
    /* before the job, so that a failed one shows its seed */
    printf("seed %ju\n", (uintmax_t)f.seed);
    (void)fflush(stdout);
    scenarios[scenario](&f, &random);
    ps_fixture_close(&f);
}
END_TEST

static void prepare_storm(void)
{
    ps_fixture_compute_references();
    begin_ns = clock_now_ns();
}

int main(void)
{
    first_seed = environment_number("SPARRING_STORM_FIRST", (uint64_t)time(NULL) * 1000);
    seed_count = environment_number("SPARRING_STORM_SEEDS", 400);
    seconds = environment_number("SPARRING_STORM_SECONDS", 45);
    return SUPPORT_RUN("ps_storm", 4 * PS_FIXTURE_WAIT_MS / 1000.0,
                       UNCHECKED_FIXTURE(prepare_storm, NULL), LOOP_TEST(test_seed, 0, seed_count));
}
