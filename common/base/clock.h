/*
 * clock: monotonic time in int64_t nanoseconds, deadlines computed from time-outs, and wall-clock
 * time for logs and metrics.
 */
#ifndef SPARRING_COMMON_BASE_CLOCK_H
#define SPARRING_COMMON_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/* CLOCK_MONOTONIC, nanoseconds. */
int64_t clock_now_ns(void);

/* The time `timeout_ms` from now on the monotonic clock, saturating at INT64_MAX. */
int64_t clock_deadline_ns(int64_t timeout_ms);

/* Whole milliseconds left until `deadline_ns`, rounded up, 0 when it has passed, at most INT_MAX
 * (for poll). */
int clock_left_ms(int64_t deadline_ns);

/* CLOCK_REALTIME, seconds since 1970 with fraction. */
double clock_wall_seconds(void);

/* The same for a recent clock_now_ns value; adjustments of the wall clock since then are not
 * taken into account. */
double clock_wall_seconds_at(int64_t moment_ns);

/* The current time as "2026-11-20T18:04:05Z" into text (at least 21 bytes). */
void clock_wall_text(char *text, size_t size);

#endif
