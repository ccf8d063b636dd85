/*
 * Survivors re-form the group and go on, under every backend; a stopped rank that is continued
 * learns that the others went on without it.
 */
#include "tests/common/collective/chaos/chaos_world.h"

#include "common/base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define COUNT ((size_t)1 << 16)

static struct chaos_config make_config(const char *backend, unsigned size, unsigned victim)
{
    return (struct chaos_config){.backend = backend,
                                 .size = size,
                                 .count = COUNT,
                                 .timeout_ms = 20000,
                                 .heartbeat_timeout_ms = 2000,
                                 .victim = victim,
                                 .second_victim = size,
                                 .role = CHAOS_HOLD,
                                 .at = 4,
                                 .shrink = true};
}

/* generation: at least; a list of survivors may hold a rank that was lost meanwhile. */
static void check_shrunk(const struct chaos_world *w, unsigned rank, const struct chaos_report *r,
                         unsigned size, unsigned generation)
{
    ck_assert_msg(r->shrink_status == STATUS_OK, "%s: rank %u: %s: %s (after: %s)",
                  w->config.backend, rank, status_name(r->shrink_status), r->shrink_text, r->text);
    ck_assert_uint_eq(r->shrunk_size, size);
    ck_assert_uint_ge(r->generation, generation);
    (void)printf("%-5s rank %u goes on in a group of %u, %.3f s after the verdict\n",
                 w->config.backend, rank, size, r->resume_seconds);
}

static const struct shrink_case {
    unsigned size, victim;
    int number;
} shrink_cases[] = {
    {2, 0, SIGKILL}, {2, 1, SIGKILL}, {4, 0, SIGKILL}, {4, 2, SIGKILL}, {4, 3, SIGSTOP}};

static void go_on(const char *backend, const void *argument)
{
    const struct shrink_case *c = argument;
    struct chaos_config config = make_config(backend, c->size, c->victim);
    struct chaos_world w;

    chaos_start(&w, &config);
    chaos_await_hold(&w, c->victim);
    (void)chaos_signal(&w, c->victim, c->number);
    for (unsigned r = 0; r < c->size; r++) {
        struct chaos_report report;

        if (r == c->victim)
            continue;
        report = chaos_report_of(&w, r, 60000);
        check_shrunk(&w, r, &report, c->size - 1, 2);
        ck_assert_uint_eq(report.generation, 2);
    }
    chaos_end(&w);
}

START_TEST(survivors_go_on)
{
    chaos_each_backend(shrink_cases[_i].size, CHAOS_AT_ONCE, go_on, &shrink_cases[_i]);
}
END_TEST

static const struct desertion {
    unsigned rank, at_least_us, at_most_us;
} desertions[] = {{0, 0, 0}, {3, 0, 0}, {0, 1, 3000}, {1, 1, 1000}, {1, 1, 3000}, {3, 1, 3000}};

/* Two are lost: one of them after it has agreed to go on with the others, or while their group
 * opens. */
static void lose_another(const char *backend, const void *argument)
{
    const struct desertion *d = argument;
    struct chaos_config config = make_config(backend, 4, 2);
    struct chaos_world w;

    config.has_deserter = true;
    config.deserter = d->rank;
    config.desert_us =
        d->at_least_us + (unsigned)(support_random() * (d->at_most_us - d->at_least_us));
    chaos_start(&w, &config);
    chaos_await_hold(&w, 2);
    (void)chaos_signal(&w, 2, SIGKILL);
    for (unsigned r = 0; r < 4; r++) {
        struct chaos_report report;

        if (r == 2 || r == config.deserter)
            continue;
        report = chaos_report_of(&w, r, 60000);
        check_shrunk(&w, r, &report, 2, 3);
    }
    chaos_end(&w);
}

START_TEST(a_rank_is_lost_while_the_others_regroup)
{
    chaos_each_backend(4, CHAOS_AT_ONCE, lose_another, &desertions[_i]);
}
END_TEST

/* Its operation is under way when it is stopped; when it runs again it gets the error at once. */
static void come_back(const char *backend, const void *unused)
{
    struct chaos_config config = make_config(backend, 3, 1);
    struct chaos_world w;
    struct chaos_report report;

    (void)unused;
    config.role = CHAOS_WORK;
    chaos_start(&w, &config);
    chaos_await(&w, 1, 3);
    (void)chaos_signal(&w, 1, SIGSTOP);
    for (unsigned r = 0; r < 3; r += 2) {
        report = chaos_report_of(&w, r, 60000);
        check_shrunk(&w, r, &report, 2, 2);
    }
    (void)chaos_signal(&w, 1, SIGCONT);
    report = chaos_report_of(&w, 1, 60000);
    ck_assert_msg(report.status == STATUS_PEER_LOST, "%s: %s: %s", backend,
                  status_name(report.status), report.text);
    ck_assert_msg(report.fault == FAULT_EXCLUDED, "%s: %s: %s", backend, fault_name(report.fault),
                  report.text);
    ck_assert_msg(report.shrink_status == STATUS_PEER_LOST, "%s: %s", backend, report.shrink_text);
    chaos_end(&w);
}

START_TEST(a_rank_that_comes_back_is_excluded)
{
    chaos_each_backend(3, CHAOS_AT_ONCE, come_back, NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "chaos_shrink", 240,
        LOOP_TEST(survivors_go_on, 0, sizeof(shrink_cases) / sizeof(shrink_cases[0])),
        LOOP_TEST(a_rank_is_lost_while_the_others_regroup, 0,
                  sizeof(desertions) / sizeof(desertions[0])),
        TEST(a_rank_that_comes_back_is_excluded));
}
