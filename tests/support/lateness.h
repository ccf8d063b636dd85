/*
 * lateness: by how much this host wakes a sleeping thread too late, so that a limit on a time tests
 * the code and not the load.  On an idle host it is near zero.
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
    int64_t late_ns; /* the thread's until it has ended */
};

/* Measure from now on, on a thread of its own. */
void lateness_begin(struct lateness *l);

/* The sum of all delays since then. */
int64_t lateness_end_ns(struct lateness *l);

/* Extra tolerance of a limit: a busy thread gets a core later than one that slept. */
#define LATENESS_ROOM_MS 5000

#endif
