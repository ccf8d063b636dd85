/*
 * in_flight: waits end when the last operation has ended, not before, and not without it; and the
 * last end does not touch the counter after the waiter has seen zero.
 */
#include "common/base/clock.h"
#include "common/base/futex.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#define THREADS 4

struct operations {
    struct in_flight *in_flight;
    unsigned count;
    unsigned pause; /* yields between two ends, at most */
    atomic_uint *ended;
};

static void *end_operations(void *user)
{
    const struct operations *o = user;

    for (unsigned i = 0; i < o->count; i++) {
        for (unsigned n = 0; n < i % (o->pause + 1); n++)
            (void)sched_yield();
        (void)atomic_fetch_add(o->ended, 1);
        in_flight_end(o->in_flight);
    }
    return NULL;
}

/* Rounds on a counter that is freed after each, so that a late access is seen under ASan. */
START_TEST(test_ends_with_the_last)
{
    for (int round = 0; round < SUPPORT_DRAWS(400, 100); round++) {
        struct in_flight *f = calloc(1, sizeof(*f));
        struct operations o = {.in_flight = f,
                               .count = (unsigned)(support_random() * 8),
                               .pause = (unsigned)(support_random() * 20)};
        pthread_t threads[THREADS];
        atomic_uint ended = 0;

        ck_assert_ptr_nonnull(f);
        o.ended = &ended;
        for (unsigned i = 0; i < THREADS * o.count; i++)
            in_flight_begin(f);
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, end_operations, &o), 0);
        ck_assert(in_flight_wait(f, clock_deadline_ns(60000)));
        ck_assert_uint_eq(atomic_load(&ended), THREADS * o.count);
        free(f);
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
}
END_TEST

START_TEST(test_deadline)
{
    struct in_flight f = {0};
    int64_t start_ns = clock_now_ns();

    in_flight_begin(&f);
    in_flight_begin(&f);
    ck_assert(!in_flight_wait(&f, clock_deadline_ns(20)));
    ck_assert_int_ge(clock_now_ns() - start_ns, 20000000);
    ck_assert_uint_eq(in_flight_count(&f), 2);
    in_flight_end(&f);
    ck_assert(!in_flight_wait(&f, 0));
    in_flight_end(&f);
    ck_assert(in_flight_wait(&f, 0));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("futex", 0, TEST(test_ends_with_the_last), TEST(test_deadline));
}
