/*
 * Ranks that die or stop, at every phase, under every backend: all survivors must name that rank
 * and what happened to it, within the heartbeat's time-out and half a second where cores are free;
 * the limit allows for what a busy host keeps them from running.  With "grpc" as an argument the
 * store is the one that rank 0 hosts, and dies with it.
 */
#include "tests/common/collective/chaos/chaos_world.h"
#include "tests/support/lateness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL        ((size_t)17)
#define MEDIUM       ((size_t)1 << 16)
#define LARGE        ((size_t)1 << 20)
#define HEARTBEAT_MS 1500
#define WITHIN_MS    (HEARTBEAT_MS + 500 + LATENESS_TOLERANCE_MS)
#define TIMEOUT_MS   5000 /* of opening the group, too */

/* The victim holds at its 4th operation; heartbeats find it long before the time-out. */
static struct chaos_config make_config(const char *backend, unsigned size, unsigned victim,
                                       size_t count)
{
    return (struct chaos_config){.backend = backend,
                                 .size = size,
                                 .count = count,
                                 .timeout_ms = 60000,
                                 .heartbeat_timeout_ms = HEARTBEAT_MS,
                                 .victim = victim,
                                 .second_victim = size,
                                 .role = CHAOS_HOLD,
                                 .at = 4};
}

static void check_report(const struct chaos_world *w, unsigned rank, const struct chaos_report *r,
                         unsigned culprit, enum fault fault)
{
    const char *backend = w->config.backend;
    char blame[64];

    ck_assert_msg(r->fault == fault, "%s: rank %u of %u says %s of rank %d, not %s of rank %u: %s",
                  backend, rank, w->config.size, fault_name(r->fault), r->culprit,
                  fault_name(fault), culprit, r->text);
    ck_assert_msg(r->culprit == (int)culprit, "%s: rank %u of %u blames rank %d, not %u: %s",
                  backend, rank, w->config.size, r->culprit, culprit, r->text);
    (void)snprintf(blame, sizeof(blame), "rank %u was lost, it is %s", culprit, fault_name(fault));
    ck_assert_msg(strstr(r->text, blame) != NULL, "%s: rank %u: no '%s' in: %s", backend, rank,
                  blame, r->text);
    ck_assert_msg(strstr(r->text, "all_reduce #") && strstr(r->text, "bucket 1 of 2") &&
                      strstr(r->text, "bytes"),
                  "%s: rank %u: %s", backend, rank, r->text);
}

/* Strike, and hear what the others say of it. */
static void strike(struct chaos_world *w, unsigned culprit, int number, int64_t within_ms)
{
    enum fault fault = number == SIGKILL ? FAULT_DEAD : FAULT_STOPPED;
    struct lateness lateness;
    int64_t struck_ns;
    int64_t late_ns;
    double slowest = 0;

    lateness_begin(&lateness);
    struck_ns = chaos_signal(w, culprit, number);
    for (unsigned r = 0; r < w->config.size; r++) {
        struct chaos_report report;
        double seconds;

        if (r == culprit)
            continue;
        report = chaos_report_of(w, r, within_ms + 60000);
        check_report(w, r, &report, culprit, fault);
        seconds = (double)(report.ended_ns - struck_ns) * 1e-9;
        slowest = seconds > slowest ? seconds : slowest;
    }
    late_ns = lateness_end_ns(&lateness);
    (void)printf("%-5s n=%u count=%zu: rank %u %s, all survivors know after %.3f s (%.3f s late)\n",
                 w->config.backend, w->config.size, w->config.count, culprit, fault_name(fault),
                 slowest, (double)late_ns * 1e-9);
    ck_assert_msg(slowest <= (double)within_ms * 1e-3 + (double)late_ns * 1e-9,
                  "%s: detected after %.3f s, on a host that was late by %.3f s", w->config.backend,
                  slowest, (double)late_ns * 1e-9);
}

static const struct loss_case {
    unsigned size, victim;
    size_t count;
    int number;
    bool held; /* the victim has not come to the operation that the others are in */
} loss_cases[] = {
    {2, 0, SMALL, SIGKILL, false}, {2, 1, LARGE, SIGKILL, false}, {3, 1, LARGE, SIGKILL, false},
    {3, 0, SMALL, SIGKILL, false}, {4, 1, SMALL, SIGKILL, false}, {4, 2, LARGE, SIGKILL, false},
    {4, 0, SMALL, SIGKILL, true},  {4, 3, LARGE, SIGKILL, true},  {2, 1, SMALL, SIGSTOP, false},
    {2, 0, LARGE, SIGSTOP, false}, {3, 2, LARGE, SIGSTOP, false}, {4, 0, SMALL, SIGSTOP, true},
    {4, 2, LARGE, SIGSTOP, true},
};

#define LOSS_CASES ((int)(sizeof(loss_cases) / sizeof(loss_cases[0])))

static void lose(const char *backend, const void *argument)
{
    const struct loss_case *c = argument;
    struct chaos_config config = make_config(backend, c->size, c->victim, c->count);
    struct chaos_world w;

    if (!c->held)
        config.role = CHAOS_WORK;
    chaos_start(&w, &config);
    for (unsigned r = 0; r < c->size; r++)
        chaos_await(&w, r, 3);
    if (c->held)
        chaos_await_hold(&w, c->victim);
    strike(&w, c->victim, c->number, WITHIN_MS);
    chaos_end(&w);
}

START_TEST(a_lost_rank_is_named_by_all)
{
    chaos_each_backend(loss_cases[_i].size, CHAOS_AT_ONCE, lose, &loss_cases[_i]);
}
END_TEST

/* No heartbeat time-out passes so soon: the operation's time-out finds and reports the stopped
 * rank. */
static void stop(const char *backend, const void *argument)
{
    const struct loss_case *c = argument;
    struct chaos_config config = make_config(backend, c->size, c->victim, c->count);
    struct chaos_world w;

    config.timeout_ms = TIMEOUT_MS;
    config.heartbeat_timeout_ms = 60000;
    config.role = CHAOS_WORK;
    chaos_start(&w, &config);
    for (unsigned r = 0; r < c->size; r++)
        chaos_await(&w, r, 3);
    strike(&w, c->victim, SIGSTOP, TIMEOUT_MS + 3000 + LATENESS_TOLERANCE_MS);
    chaos_end(&w);
}

static const struct loss_case stop_cases[] = {{.size = 2, .victim = 1, .count = SMALL},
                                              {.size = 3, .victim = 0, .count = SMALL},
                                              {.size = 4, .victim = 2, .count = MEDIUM}};

START_TEST(the_time_out_finds_a_stopped_rank)
{
    chaos_each_backend(stop_cases[_i].size, CHAOS_AT_ONCE, stop, &stop_cases[_i]);
}
END_TEST

/* The others close the group in order while the victim is gone: no rank hangs.  Its part of the
 * last operation may leave it later than it ends there, so all have to have ended theirs. */
static void lose_at_close(const char *backend, const void *number)
{
    struct chaos_config config = make_config(backend, 3, 1, SMALL);
    struct chaos_world w;
    struct chaos_report reports[3];
    struct lateness lateness;
    int64_t struck_ns;
    int64_t late_ns;

    config.close_after = 3;
    chaos_start(&w, &config);
    chaos_await_hold(&w, 1);
    for (unsigned r = 0; r < 3; r += 2)
        chaos_await(&w, r, 3);
    lateness_begin(&lateness);
    struck_ns = chaos_signal(&w, 1, *(const int *)number);
    for (unsigned r = 0; r < 3; r += 2)
        reports[r] = chaos_report_of(&w, r, 60000);
    late_ns = lateness_end_ns(&lateness);
    for (unsigned r = 0; r < 3; r += 2) {
        ck_assert_msg(reports[r].status == STATUS_OK, "%s: %s", backend, reports[r].text);
        ck_assert_msg(reports[r].ended_ns - struck_ns <= WITHIN_MS * INT64_C(1000000) + late_ns,
                      "%s: rank %u closed after %.3f s", backend, r,
                      (double)(reports[r].ended_ns - struck_ns) * 1e-9);
    }
    chaos_end(&w);
}

static const int signals[] = {SIGKILL, SIGSTOP};

START_TEST(a_loss_at_close_holds_nobody_up)
{
    chaos_each_backend(3, CHAOS_AT_ONCE, lose_at_close, &signals[_i]);
}
END_TEST

/* Two ranks die at once: all survivors name the same one of them. */
static void lose_two(const char *backend, const void *unused)
{
    struct chaos_config config = make_config(backend, 4, 1, SMALL);
    struct chaos_world w;
    struct chaos_report first;
    struct chaos_report last;

    (void)unused;
    config.second_victim = 2;
    chaos_start(&w, &config);
    chaos_await_hold(&w, 1);
    chaos_await_hold(&w, 2);
    (void)chaos_signal(&w, 1, SIGKILL);
    (void)chaos_signal(&w, 2, SIGKILL);
    first = chaos_report_of(&w, 0, 60000);
    last = chaos_report_of(&w, 3, 60000);
    ck_assert_msg(first.fault == FAULT_DEAD && last.fault == FAULT_DEAD, "%s\n%s", first.text,
                  last.text);
    ck_assert_msg(first.culprit == last.culprit && (first.culprit == 1 || first.culprit == 2),
                  "%s\n%s", first.text, last.text);
    chaos_end(&w);
}

START_TEST(of_two_lost_ranks_all_name_one)
{
    chaos_each_backend(4, CHAOS_AT_ONCE, lose_two, NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "chaos_loss", 240,
        CHECKED_FIXTURE(getenv("SPARRING_TEST_GRPC") ? chaos_use_grpc : NULL, NULL),
        LOOP_TEST(a_lost_rank_is_named_by_all, 0, LOSS_CASES),
        LOOP_TEST(the_time_out_finds_a_stopped_rank, 0, sizeof(stop_cases) / sizeof(stop_cases[0])),
        LOOP_TEST(a_loss_at_close_holds_nobody_up, 0, 2), TEST(of_two_lost_ranks_all_name_one));
}
