/*
 * lateness: a thread sleeps for 10 ms repeatedly, as the threads of a mesh do, and sums up by how
 * much each sleep is too long.  The sum belongs to the thread until it is joined.
 */
#include "tests/support/lateness.h"

#include "common/base/clock.h"

#include <check.h>
#include <time.h>

#define INTERVAL_NS 10000000

static void *measure_lateness(void *argument)
{
    const struct timespec interval = {.tv_nsec = INTERVAL_NS};
    struct lateness *l = argument;

    while (!atomic_load(&l->stop)) {
        int64_t start_ns = clock_now_ns();

        (void)nanosleep(&interval, NULL);
        l->late_ns += clock_now_ns() - start_ns - INTERVAL_NS;
    }
    return NULL;
}

void lateness_begin(struct lateness *l)
{
    atomic_init(&l->stop, false);
    l->late_ns = 0;
    ck_assert_int_eq(pthread_create(&l->thread, NULL, measure_lateness, l), 0);
}

int64_t lateness_end_ns(struct lateness *l)
{
    atomic_store(&l->stop, true);
    (void)pthread_join(l->thread, NULL);
    return l->late_ns;
}
