/*
 * A thread that sleeps for short times over and over, as the threads of a mesh do.
 */
#include "tests/support/lateness.h"

#include "common/base/clock.h"

#include <check.h>
#include <time.h>

#define NAP_NS 10000000

static void *measure(void *argument)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    struct lateness *l = argument;

    while (!atomic_load(&l->stop)) {
        int64_t start_ns = clock_now_ns();

        (void)nanosleep(&nap, NULL);
        l->late_ns += clock_now_ns() - start_ns - NAP_NS;
    }
    return NULL;
}

void lateness_begin(struct lateness *l)
{
    atomic_init(&l->stop, false);
    l->late_ns = 0;
    ck_assert_int_eq(pthread_create(&l->thread, NULL, measure, l), 0);
}

int64_t lateness_end_ns(struct lateness *l)
{
    atomic_store(&l->stop, true);
    (void)pthread_join(l->thread, NULL);
    return l->late_ns;
}
