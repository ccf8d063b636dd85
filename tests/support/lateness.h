/*
 * lateness: measures how late this host wakes a sleeping thread, so that a time limit tests the
 * code and not the load of the host.  Near zero on an idle host.  Tests add it to their limits.
 */
#ifndef SPARRING_TESTS_SUPPORT_LATENESS_H
#define SPARRING_TESTS_SUPPORT_LATENESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct lateness {
    pthread_t thread;
    atomic_bool stop;
    int64_t late_ns; /* written by the thread until it is joined */
};

/* Start to measure, on a new thread. */
void lateness_begin(struct lateness *l);

/* Stop; returns the sum of all delays since lateness_begin. */
int64_t lateness_end_ns(struct lateness *l);

/* Additional tolerance: the scheduler delays a busy thread longer than one that slept. */
#define LATENESS_TOLERANCE_MS 5000

#endif
