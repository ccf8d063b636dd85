/*
 * futex: sleep until a 32-bit word changes, and wake its sleepers; for code that may hold no lock
 * where it wakes (call-backs of gRPC, other processes).  Works in memory shared among processes.
 */
#ifndef SPARRING_COMMON_BASE_FUTEX_H
#define SPARRING_COMMON_BASE_FUTEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Sleep while *word == seen, at most timeout_ns.  May return early: check again. */
void futex_wait(atomic_uint *word, uint32_t seen, int64_t timeout_ns);

/* Wake all sleepers.  Only uses the address: the memory may be unmapped meanwhile. */
void futex_wake(atomic_uint *word);

/* Operations in flight, which end on threads that may hold no lock. */
struct in_flight {
    atomic_uint state; /* their number; the highest bit: a thread waits for zero */
};

void in_flight_begin(struct in_flight *f);

/* After the last one `f` is not read again: the waiter may free it. */
void in_flight_end(struct in_flight *f);

unsigned in_flight_count(const struct in_flight *f);

/* Wait until none is left; false: deadline_ns (clock.h) has passed.  One waiter at a time. */
bool in_flight_wait(struct in_flight *f, int64_t deadline_ns);

#endif
