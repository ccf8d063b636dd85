/*
 * A parameter-server job under the policy `fail`: a process is killed or stopped in every phase,
 * and every other worker must end within a limit, with an error that names the lost process.
 * Network faults shorter than --reconnect-ms must not change the result.
 */
#include "tests/integration/job.h"
#include "tests/integration/ps_fixture.h"
#include "tests/support/support.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ processes */

enum victim { WORKER, SERVER };
enum phase { JOIN, PUSH, SUM, PULL };

static const struct {
    enum victim victim;
    int signal_number;
    enum phase phase;
    const char *name;
} losses[] = {
    {WORKER, SIGKILL, JOIN, "kill worker in join"}, {WORKER, SIGKILL, PUSH, "kill worker in push"},
    {WORKER, SIGKILL, SUM, "kill worker in sum"},   {WORKER, SIGKILL, PULL, "kill worker in pull"},
    {WORKER, SIGSTOP, JOIN, "stop worker in join"}, {WORKER, SIGSTOP, PUSH, "stop worker in push"},
    {WORKER, SIGSTOP, SUM, "stop worker in sum"},   {WORKER, SIGSTOP, PULL, "stop worker in pull"},
    {SERVER, SIGKILL, JOIN, "kill server in join"}, {SERVER, SIGKILL, PUSH, "kill server in push"},
    {SERVER, SIGKILL, SUM, "kill server in sum"},   {SERVER, SIGKILL, PULL, "kill server in pull"},
    {SERVER, SIGSTOP, JOIN, "stop server in join"}, {SERVER, SIGSTOP, PUSH, "stop server in push"},
    {SERVER, SIGSTOP, SUM, "stop server in sum"},   {SERVER, SIGSTOP, PULL, "stop server in pull"},
};
#define LOSSES (int)(sizeof(losses) / sizeof(losses[0]))

/* Hold rank 1's link to the first server in the middle of the phase. */
static void reach_phase(struct ps_fixture *f, enum phase phase)
{
    if (phase == JOIN)
        ps_fixture_freeze_at(f, 1, 0, FAULT_UP, 0.006); /* in the request */
    else if (phase == PULL)
        ps_fixture_freeze_at(f, 1, 0, FAULT_DOWN, 9.5);
    else
        ps_fixture_freeze_at(f, 1, 0, FAULT_UP, 8.5);
    ps_fixture_start_workers(f);
    ps_fixture_await_freeze(f, 1, 0);
    if (phase == SUM) /* the server has all chunks of rank 0 and half of rank 1's */
        ps_fixture_await_bytes(f, 0, 0, FAULT_UP, 9);
}

START_TEST(test_losses)
{
    bool is_worker = losses[_i].victim == WORKER;
    struct ps_fixture f = {
        .ranks = 2, .servers = 2, .timeout_ms = "8000", .worker = ARGS("--reconnect-ms", "1000")};
    const char *how = losses[_i].signal_number == SIGSTOP ? "silent" : "closed";

    ps_fixture_open(&f);
    reach_phase(&f, losses[_i].phase);
    ps_fixture_mark_fault(&f, 0);
    if (is_worker)
        ps_fixture_signal_worker(&f, 1, losses[_i].signal_number);
    else
        ps_fixture_signal_server(&f, 0, losses[_i].signal_number);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_expect_failure(&f, is_worker ? 1 : PS_FIXTURE_NO_RANK,
                              !is_worker                 ? "parameter server 127.0.0.1:"
                              : losses[_i].phase == JOIN ? "1 is missing"
                                                         : "rank 1 was lost (");
    if (is_worker && losses[_i].phase != JOIN)
        ck_assert_ptr_nonnull(strstr(process_output(&f.worker_process[0]), how));
    ps_fixture_report_fault(&f, losses[_i].name);
    ck_assert_double_le(f.last_ms, 15000);
    ps_fixture_close(&f);
}
END_TEST

/* ------------------------------------------------------------------ links */

enum link_fault { RESET, RESET_ALL, REFUSE, HALF_CLOSED_UP, HALF_CLOSED_DOWN, BLACK_HOLE, PAUSE };

static const struct {
    enum link_fault link_fault;
    enum phase phase;
    const char *name;
} link_faults[] = {
    {RESET, JOIN, "reset in join"},
    {RESET, PUSH, "reset in push"},
    {RESET, SUM, "reset in sum"},
    {RESET, PULL, "reset in pull"},
    {RESET_ALL, PUSH, "all reset in push"},
    {RESET_ALL, PULL, "all reset in pull"},
    {REFUSE, PUSH, "reset and 700 ms refused in push"},
    {REFUSE, PULL, "reset and 700 ms refused in pull"},
    {HALF_CLOSED_UP, PUSH, "half closed, up, in push"},
    {HALF_CLOSED_UP, PULL, "half closed, up, in pull"},
    {HALF_CLOSED_DOWN, PUSH, "half closed, down, in push"},
    {HALF_CLOSED_DOWN, PULL, "half closed, down, in pull"},
    {BLACK_HOLE, PUSH, "black hole of 2.5 s in push"},
    {BLACK_HOLE, SUM, "black hole of 2.5 s in sum"},
    {BLACK_HOLE, PULL, "black hole of 2.5 s in pull"},
    {PAUSE, PUSH, "held for 700 ms in push"},
    {PAUSE, PULL, "held for 700 ms in pull"},
};
#define LINK_FAULTS (int)(sizeof(link_faults) / sizeof(link_faults[0]))
#define RESETS      6u

static void sleep_ms(int ms)
{
    (void)poll(NULL, 0, ms);
}

static void apply_link_fault(struct ps_fixture *f, enum link_fault link_fault)
{
    struct fault_proxy *proxy = f->links[1][0].proxy;

    if (link_fault == REFUSE) /* before the reset, so that the worker cannot reconnect in between */
        fault_proxy_refuse(proxy, true);
    if (link_fault == RESET || link_fault == REFUSE)
        fault_proxy_reset(proxy);
    for (unsigned rank = 0; link_fault == RESET_ALL && rank < f->ranks; rank++)
        for (unsigned k = 0; k < f->servers; k++)
            fault_proxy_reset(f->links[rank][k].proxy);
    if (link_fault == HALF_CLOSED_UP || link_fault == HALF_CLOSED_DOWN)
        fault_proxy_half_close(proxy, link_fault == HALF_CLOSED_UP ? FAULT_UP : FAULT_DOWN);
    sleep_ms(link_fault == REFUSE || link_fault == PAUSE ? 700
             : link_fault == BLACK_HOLE                  ? 2500
                                                         : 0);
    fault_proxy_refuse(proxy, false);
}

/* The result has the bits of a run without faults: no push is lost or summed twice. */
START_TEST(test_link_faults)
{
    struct ps_fixture f = {.ranks = 2,
                           .servers = 2,
                           .update = _i % 2 ? "worker" : "server",
                           .worker = ARGS("--reconnect-ms", "15000")};

    unsigned connections;

    ps_fixture_open(&f);
    reach_phase(&f, link_faults[_i].phase);
    connections = fault_proxy_accepted(f.links[1][0].proxy);
    ps_fixture_mark_fault(&f, 0);
    apply_link_fault(&f, link_faults[_i].link_fault);
    ps_fixture_release(&f, 1, 0);
    ps_fixture_await_recovery(&f);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ck_assert(fault_proxy_accepted(f.links[1][0].proxy) > connections ||
              link_faults[_i].link_fault == PAUSE); /* the fault was noticed */
    ps_fixture_report_fault(&f, link_faults[_i].name);
    ps_fixture_close(&f);
}
END_TEST

/* Six resets, each at a random byte of a round (from the seed). */
START_TEST(test_many_resets)
{
    struct ps_fixture f = {.ranks = 3,
                           .servers = 2,
                           .seed = (uint64_t)_i + 1,
                           .worker = ARGS("--reconnect-ms", "15000")};
    int64_t reconnects = 0;

    ps_fixture_open(&f);
    for (unsigned n = 1; n <= RESETS; n++) {
        unsigned rank = (unsigned)(support_random() * 3), server = (unsigned)(support_random() * 2);

        ps_fixture_freeze_at(&f, rank, server, n % 2 ? FAULT_UP : FAULT_DOWN,
                             5 * n + support_random());
        if (n == 1)
            ps_fixture_start_workers(&f);
        ps_fixture_await_freeze(&f, rank, server);
        ps_fixture_mark_fault(&f, (rank + 1) % f.ranks);
        fault_proxy_reset(f.links[rank][server].proxy);
        ps_fixture_release(&f, rank, server);
        ps_fixture_await_recovery(&f);
    }
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ps_fixture_report_fault(&f, "six resets");
    for (unsigned rank = 0; rank < f.ranks; rank++)
        reconnects += job_record_int(f.run_dir, rank, "end", "reconnects");
    ck_assert_int_ge(reconnects, RESETS);
    ps_fixture_close(&f);
}
END_TEST

/* A slow link does not change the result and causes no reconnect. */
START_TEST(test_slow_links)
{
    struct ps_fixture f = {.ranks = 2, .servers = 2, .steps = PS_FIXTURE_STEPS};

    ps_fixture_open(&f);
    fault_proxy_throttle(f.links[0][0].proxy, 1 << 20);
    fault_proxy_delay(f.links[1][0].proxy, 2, 20);
    fault_proxy_delay(f.links[1][1].proxy, 30, 30);
    ps_fixture_start_workers(&f);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ck_assert_uint_eq(fault_proxy_accepted(f.links[1][0].proxy),
                      fault_proxy_accepted(f.links[1][1].proxy));
    ps_fixture_close(&f);
}
END_TEST

/* A process is stopped for less than --reconnect-ms, then continued. */
START_TEST(test_short_stops)
{
    struct ps_fixture f = {.ranks = 2, .servers = 2, .worker = ARGS("--reconnect-ms", "15000")};
    bool is_worker = _i < 2;

    ps_fixture_open(&f);
    reach_phase(&f, _i % 2 ? PULL : PUSH);
    ps_fixture_mark_fault(&f, 0);
    if (is_worker)
        ps_fixture_signal_worker(&f, 1, SIGSTOP);
    else
        ps_fixture_signal_server(&f, 0, SIGSTOP);
    ps_fixture_release(&f, 1, 0);
    sleep_ms(2500); /* longer than --heartbeat-timeout-ms */
    if (is_worker)
        ps_fixture_signal_worker(&f, 1, SIGCONT);
    else
        ps_fixture_signal_server(&f, 0, SIGCONT);
    ps_fixture_await_recovery(&f);
    ps_fixture_expect_success(&f, PS_FIXTURE_NO_RANK, true);
    ps_fixture_report_fault(&f,
                            is_worker ? "worker stopped for 2.5 s" : "server stopped for 2.5 s");
    ps_fixture_close(&f);
}
END_TEST

int main(void)
{
    /* CK_RUN_CASE=links runs one case */
    return SUPPORT_RUN("ps_faults", 0, PS_FIXTURE_CASE("losses"), LOOP_TEST(test_losses, 0, LOSSES),
                       PS_FIXTURE_CASE("links"), LOOP_TEST(test_link_faults, 0, LINK_FAULTS),
                       LOOP_TEST(test_many_resets, 0, 3), TEST(test_slow_links),
                       PS_FIXTURE_CASE("short_stops"), LOOP_TEST(test_short_stops, 0, 4));
}
