/*
 * collective_suite: what every backend must do, run against each of them by name.
 */
#ifndef SPARRING_TESTS_COMMON_COLLECTIVE_COLLECTIVE_SUITE_H
#define SPARRING_TESTS_COMMON_COLLECTIVE_COLLECTIVE_SUITE_H

#include <stdbool.h>
#include <stddef.h>

/* Sums of small integers, exact on every backend: worlds of 1 to `ranks`, counts 0, 1, around the
 * world size, primes and 1 MiB; the counters must equal the formula. */
void suite_exact_sums(const char *backend, unsigned ranks, bool reproducible);

/* Random values against a sum in double precision; the same bits on all ranks; with `reproducible`
 * the bits of the ascending sum. */
void suite_random_sums(const char *backend, unsigned ranks, bool reproducible);

/* Infinities and NaN come through as in one addition. */
void suite_special_values(const char *backend, unsigned ranks, bool reproducible);

void suite_broadcast(const char *backend, unsigned ranks);
void suite_all_gather(const char *backend, unsigned ranks);

/* No rank leaves a barrier before all have entered it. */
void suite_barrier(const char *backend, unsigned ranks);

#endif
