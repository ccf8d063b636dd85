/*
 * condition: pthread's condition variables with timed waits by clock.h's monotonic clock.
 */
#ifndef SPARRING_COMMON_BASE_CONDITION_H
#define SPARRING_COMMON_BASE_CONDITION_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* The caller's to destroy; does not fail, as Linux has nothing to allocate for one. */
void condition_init(pthread_cond_t *condition);

/* A deadline of clock.h as pthread_cond_timedwait and pthread_clockjoin_np take it. */
struct timespec condition_until(int64_t deadline_ns);

#endif
