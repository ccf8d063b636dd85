/*
 * The monitored barrier: who has not come is named, who comes too late passes, and the group goes
 * on.  It runs over the control connections, so one backend stands for all.
 */
#include "tests/common/collective/ring_world.h"

#include <pthread.h>

#define LONG_MS  60000
#define SHORT_MS 100 /* for ranks that do not come before it is over */

static struct error *fresh(struct error *err)
{
    *err = (struct error){0};
    return err;
}

static void everybody_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct error err;

    (void)rank;
    (void)size;
    (void)argument;
    for (unsigned round = 0; round < 3; round++)
        assert_ok(collective_monitored_barrier(group, LONG_MS, round % 2 == 0, fresh(&err)));
}

START_TEST(everybody_passes)
{
    world_run("ring", 4, everybody_body, NULL);
    world_run("ring", 1, everybody_body, NULL);
}
END_TEST

/* The first rank of the group has waited in vain before the others come. */
static void come_late(struct collective *group, bool wait_all, const char *text,
                      pthread_barrier_t *over)
{
    struct error err;

    if (collective_rank(group) == 0)
        assert_fails(collective_monitored_barrier(group, SHORT_MS, wait_all, fresh(&err)),
                     STATUS_TIMEOUT, text);
    (void)pthread_barrier_wait(over);
    if (collective_rank(group) > 0)
        assert_ok(collective_monitored_barrier(group, LONG_MS, wait_all, fresh(&err)));
    assert_ok(collective_monitored_barrier(group, LONG_MS, wait_all, fresh(&err)));
    assert_ok(collective_barrier(group, fresh(&err)));
}

static void late_body(struct collective *world, unsigned rank, unsigned size, void *argument)
{
    const unsigned last[] = {1, 2};
    pthread_barrier_t *over = argument; /* of the world, and of the last two */
    struct collective *some = NULL;
    struct error err;

    (void)size;
    come_late(world, true, "group 'world0': ranks 1, 2 did not reach the barrier within 100 ms",
              &over[0]);
    come_late(world, false, "group 'world0': rank 1 did not reach the barrier within 100 ms",
              &over[0]);
    assert_ok(collective_new_group(world, last, 2, "last", &some, fresh(&err)));
    if (rank > 0) /* ranks of the job are named, not of the group */
        come_late(some, true, "rank 2 did not reach the barrier within 100 ms", &over[1]);
    collective_close(some);
}

START_TEST(late_ranks_are_named)
{
    pthread_barrier_t over[2];

    (void)pthread_barrier_init(&over[0], NULL, 3);
    (void)pthread_barrier_init(&over[1], NULL, 2);
    world_run("ring", 3, late_body, over);
    (void)pthread_barrier_destroy(&over[0]);
    (void)pthread_barrier_destroy(&over[1]);
}
END_TEST

/* Rank 2 leaves: no rank waits for it. */
static void left_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct error err;

    (void)size;
    (void)argument;
    assert_ok(collective_monitored_barrier(group, LONG_MS, true, fresh(&err)));
    if (rank < 2)
        assert_fails(collective_monitored_barrier(group, LONG_MS, true, fresh(&err)),
                     STATUS_PEER_LOST, "monitored barrier: rank 2 is lost");
}

START_TEST(a_rank_that_is_gone_fails_it_at_once)
{
    world_run("ring", 3, left_body, NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("monitored", 50, /* less than LONG_MS */
                       TEST(everybody_passes), TEST(late_ranks_are_named),
                       TEST(a_rank_that_is_gone_fails_it_at_once));
}
