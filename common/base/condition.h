/*
 * condition: pthread condition variables whose timed waits use the monotonic clock of clock.h.
 */
#ifndef SPARRING_COMMON_BASE_CONDITION_H
#define SPARRING_COMMON_BASE_CONDITION_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* The caller destroys it.  Cannot fail: on Linux a condition variable allocates nothing. */
void condition_init(pthread_cond_t *condition);

/* A deadline of clock.h in the form of pthread_cond_timedwait and pthread_clockjoin_np. */
struct timespec condition_until(int64_t deadline_ns);

#endif
