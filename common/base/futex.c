/*
 * Futexes, and a counter on top of one.  The counter and the waiter's flag are one word: the thread
 * that decrements it to zero learns from the old value whether to wake, and needs no second read.
 */
#include "common/base/futex.h"

#include "common/base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAITER 0x80000000u

/* Not FUTEX_PRIVATE_FLAG: the other side may be another process. */
static void futex(atomic_uint *word, int operation, uint32_t value, const struct timespec *timeout)
{
    (void)syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void futex_wait(atomic_uint *word, uint32_t seen, int64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};

    futex(word, FUTEX_WAIT, seen, &timeout);
}

void futex_wake(atomic_uint *word)
{
    futex(word, FUTEX_WAKE, INT_MAX, NULL);
}

void in_flight_begin(struct in_flight *f)
{
    (void)atomic_fetch_add(&f->state, 1);
}

void in_flight_end(struct in_flight *f)
{
    if (atomic_fetch_sub(&f->state, 1) == (WAITER | 1))
        futex_wake(&f->state);
}

unsigned in_flight_count(const struct in_flight *f)
{
    return atomic_load(&f->state) & ~WAITER;
}

bool in_flight_wait(struct in_flight *f, int64_t deadline_ns)
{
    unsigned seen = atomic_load(&f->state);

    while ((seen & ~WAITER) > 0) {
        int64_t left_ns = deadline_ns - clock_now_ns();

        if (left_ns <= 0)
            break;
        seen = atomic_fetch_or(&f->state, WAITER) | WAITER;
        if (seen != WAITER)
            futex_wait(&f->state, seen, left_ns);
        seen = atomic_load(&f->state);
    }
    (void)atomic_fetch_and(&f->state, ~WAITER);
    return (seen & ~WAITER) == 0;
}
