/*
 * Condition variables whose timed waits use CLOCK_MONOTONIC.  No state.
 */
#include "common/base/condition.h"

#define NS_PER_SECOND 1000000000

void condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(condition, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

struct timespec condition_until(int64_t deadline_ns)
{
    return (struct timespec){.tv_sec = (time_t)(deadline_ns / NS_PER_SECOND),
                             .tv_nsec = deadline_ns % NS_PER_SECOND};
}
