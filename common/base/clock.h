/*
 * clock: monotonic time in int64_t nanoseconds, deadlines made from time-outs, and wall time for
 * records.
 */
#ifndef SPARRING_COMMON_BASE_CLOCK_H
#define SPARRING_COMMON_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/* CLOCK_MONOTONIC, nanoseconds. */
int64_t clock_now_ns(void);

/* The moment `timeout_ms` from now on the monotonic clock, saturating. */
int64_t clock_deadline_ns(int64_t timeout_ms);

/* Whole milliseconds left until `deadline_ns`, rounded up, 0 when it has passed, at most INT_MAX
 * (for poll). */
int clock_left_ms(int64_t deadline_ns);

/* CLOCK_REALTIME, seconds since 1970 with fraction; of a moment of the monotonic clock that is not
 * long ago. */
double clock_wall_seconds(void);
double clock_wall_of(int64_t moment_ns);

/* "2026-11-20T18:04:05Z" of now into text (at least 21 bytes). */
void clock_wall_text(char *text, size_t size);

#endif
