/*
 * What becomes of a parameter-server job when a process is killed or stopped, at every phase, and
 * nobody is asked to go on without it: every other worker ends, soon, with an error that names who
 * it was.  And whatever the network does for less time than --reconnect-ms has no effect at all.
 */
#include "tests/integration/job.h"
#include "tests/integration/room.h"
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
    int number;
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

/* Rank 1's link to the first server stands still in the middle of the phase. */
static void come_to(struct room *r, enum phase phase)
{
    if (phase == JOIN)
        room_freeze_at(r, 1, 0, FAULT_UP, 0.006); /* in the request */
    else if (phase == PULL)
        room_freeze_at(r, 1, 0, FAULT_DOWN, 9.5);
    else
        room_freeze_at(r, 1, 0, FAULT_UP, 8.5);
    room_start_workers(r);
    room_await_freeze(r, 1, 0);
    if (phase == SUM) /* the server has all of rank 0's, and half of rank 1's */
        room_await(r, 0, 0, FAULT_UP, 9);
}

START_TEST(test_losses)
{
    bool is_worker = losses[_i].victim == WORKER;
    struct room r = {
        .ranks = 2, .servers = 2, .timeout_ms = "8000", .worker = ARGS("--reconnect-ms", "1000")};
    const char *how = losses[_i].number == SIGSTOP ? "silent" : "closed";

    room_open(&r);
    come_to(&r, losses[_i].phase);
    room_mark(&r, 0);
    if (is_worker)
        room_hit_worker(&r, 1, losses[_i].number);
    else
        room_hit_server(&r, 0, losses[_i].number);
    room_release(&r, 1, 0);
    room_expect_failure(&r, is_worker ? 1 : ROOM_NOBODY,
                        !is_worker                 ? "parameter server 127.0.0.1:"
                        : losses[_i].phase == JOIN ? "1 is missing"
                                                   : "rank 1 was lost (");
    if (is_worker && losses[_i].phase != JOIN)
        ck_assert_ptr_nonnull(strstr(process_output(&r.worker_process[0]), how));
    room_report(&r, losses[_i].name);
    ck_assert_double_le(r.last_ms, 15000);
    room_close(&r);
}
END_TEST

/* ------------------------------------------------------------------ links */

enum trouble { RESET, RESET_ALL, REFUSE, NO_WAY_UP, NO_WAY_DOWN, BLACK_HOLE, PAUSE };

static const struct {
    enum trouble trouble;
    enum phase phase;
    const char *name;
} troubles[] = {
    {RESET, JOIN, "reset in join"},
    {RESET, PUSH, "reset in push"},
    {RESET, SUM, "reset in sum"},
    {RESET, PULL, "reset in pull"},
    {RESET_ALL, PUSH, "all reset in push"},
    {RESET_ALL, PULL, "all reset in pull"},
    {REFUSE, PUSH, "reset and 700 ms refused in push"},
    {REFUSE, PULL, "reset and 700 ms refused in pull"},
    {NO_WAY_UP, PUSH, "half closed, up, in push"},
    {NO_WAY_UP, PULL, "half closed, up, in pull"},
    {NO_WAY_DOWN, PUSH, "half closed, down, in push"},
    {NO_WAY_DOWN, PULL, "half closed, down, in pull"},
    {BLACK_HOLE, PUSH, "black hole of 2.5 s in push"},
    {BLACK_HOLE, SUM, "black hole of 2.5 s in sum"},
    {BLACK_HOLE, PULL, "black hole of 2.5 s in pull"},
    {PAUSE, PUSH, "held for 700 ms in push"},
    {PAUSE, PULL, "held for 700 ms in pull"},
};
#define TROUBLES (int)(sizeof(troubles) / sizeof(troubles[0]))
#define RESETS   6u

static void wait_ms(int ms)
{
    (void)poll(NULL, 0, ms);
}

static void have_trouble(struct room *r, enum trouble trouble)
{
    struct fault_proxy *proxy = r->links[1][0].proxy;

    if (trouble == REFUSE) /* first, or it is back before nobody is let in */
        fault_proxy_refuse(proxy, true);
    if (trouble == RESET || trouble == REFUSE)
        fault_proxy_reset(proxy);
    for (unsigned rank = 0; trouble == RESET_ALL && rank < r->ranks; rank++)
        for (unsigned k = 0; k < r->servers; k++)
            fault_proxy_reset(r->links[rank][k].proxy);
    if (trouble == NO_WAY_UP || trouble == NO_WAY_DOWN)
        fault_proxy_end(proxy, trouble == NO_WAY_UP ? FAULT_UP : FAULT_DOWN);
    wait_ms(trouble == REFUSE || trouble == PAUSE ? 700 : trouble == BLACK_HOLE ? 2500 : 0);
    fault_proxy_refuse(proxy, false);
}

/* Bit for bit as if nothing had happened: nothing is lost, nothing summed twice. */
START_TEST(test_troubles)
{
    struct room r = {.ranks = 2,
                     .servers = 2,
                     .update = _i % 2 ? "worker" : "server",
                     .worker = ARGS("--reconnect-ms", "15000")};

    unsigned connections;

    room_open(&r);
    come_to(&r, troubles[_i].phase);
    connections = fault_proxy_accepted(r.links[1][0].proxy);
    room_mark(&r, 0);
    have_trouble(&r, troubles[_i].trouble);
    room_release(&r, 1, 0);
    room_await_recovery(&r);
    room_expect_success(&r, ROOM_NOBODY, true);
    ck_assert(fault_proxy_accepted(r.links[1][0].proxy) > connections ||
              troubles[_i].trouble == PAUSE); /* it was no fault that nobody noticed */
    room_report(&r, troubles[_i].name);
    room_close(&r);
}
END_TEST

/* Six resets in a row, each somewhere in a round; the seed says where. */
START_TEST(test_many_resets)
{
    struct room r = {.ranks = 3,
                     .servers = 2,
                     .seed = (uint64_t)_i + 1,
                     .worker = ARGS("--reconnect-ms", "15000")};
    int64_t reconnects = 0;

    room_open(&r);
    for (unsigned n = 1; n <= RESETS; n++) {
        unsigned rank = (unsigned)(support_random() * 3), server = (unsigned)(support_random() * 2);

        room_freeze_at(&r, rank, server, n % 2 ? FAULT_UP : FAULT_DOWN, 5 * n + support_random());
        if (n == 1)
            room_start_workers(&r);
        room_await_freeze(&r, rank, server);
        room_mark(&r, (rank + 1) % r.ranks);
        fault_proxy_reset(r.links[rank][server].proxy);
        room_release(&r, rank, server);
        room_await_recovery(&r);
    }
    room_expect_success(&r, ROOM_NOBODY, true);
    room_report(&r, "six resets");
    for (unsigned rank = 0; rank < r.ranks; rank++)
        reconnects += job_record_int(r.run_dir, rank, "end", "reconnects");
    ck_assert_int_ge(reconnects, RESETS);
    room_close(&r);
}
END_TEST

/* A slow link makes a job slow, and that is all. */
START_TEST(test_slow_links)
{
    struct room r = {.ranks = 2, .servers = 2, .steps = ROOM_STEPS};

    room_open(&r);
    fault_proxy_throttle(r.links[0][0].proxy, 1 << 20);
    fault_proxy_delay(r.links[1][0].proxy, 2, 20);
    fault_proxy_delay(r.links[1][1].proxy, 30, 30);
    room_start_workers(&r);
    room_expect_success(&r, ROOM_NOBODY, true);
    ck_assert_uint_eq(fault_proxy_accepted(r.links[1][0].proxy),
                      fault_proxy_accepted(r.links[1][1].proxy));
    room_close(&r);
}
END_TEST

/* Stopped for less than is allowed, and then let go on. */
START_TEST(test_naps)
{
    struct room r = {.ranks = 2, .servers = 2, .worker = ARGS("--reconnect-ms", "15000")};
    bool is_worker = _i < 2;

    room_open(&r);
    come_to(&r, _i % 2 ? PULL : PUSH);
    room_mark(&r, 0);
    if (is_worker)
        room_hit_worker(&r, 1, SIGSTOP);
    else
        room_hit_server(&r, 0, SIGSTOP);
    room_release(&r, 1, 0);
    wait_ms(2500); /* longer than --heartbeat-timeout-ms */
    if (is_worker)
        room_hit_worker(&r, 1, SIGCONT);
    else
        room_hit_server(&r, 0, SIGCONT);
    room_await_recovery(&r);
    room_expect_success(&r, ROOM_NOBODY, true);
    room_report(&r, is_worker ? "worker stopped for 2.5 s" : "server stopped for 2.5 s");
    room_close(&r);
}
END_TEST

static TCase *add_case(Suite *suite, const char *name)
{
    TCase *cases = tcase_create(name);

    tcase_set_timeout(cases, 3 * ROOM_WAIT_MS / 1000.0);
    tcase_add_unchecked_fixture(cases, room_find_references, NULL);
    suite_add_tcase(suite, cases);
    return cases;
}

int main(void)
{
    Suite *suite = suite_create("ps_faults"); /* CK_RUN_CASE=links runs one case */
    TCase *links = add_case(suite, "links");

    tcase_add_loop_test(add_case(suite, "losses"), test_losses, 0, LOSSES);
    tcase_add_loop_test(links, test_troubles, 0, TROUBLES);
    tcase_add_loop_test(links, test_many_resets, 0, 3);
    tcase_add_test(links, test_slow_links);
    tcase_add_loop_test(add_case(suite, "naps"), test_naps, 0, 4);
    return support_run(suite);
}
