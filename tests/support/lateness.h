/*
 * lateness: by how much this host lets a sleeper wait past its time, so that a limit on a time
 * means the code and not the load: on an idle host it is next to nothing.
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

/* What a limit allows on top: a thread that has worked gets a core later than one that slept. */
#define LATENESS_ROOM_MS 5000

#endif
