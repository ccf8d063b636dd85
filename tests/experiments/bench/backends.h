/*
 * backends: the collective backends of the build under test.
 */
#ifndef SPARRING_TESTS_EXPERIMENTS_BENCH_BACKENDS_H
#define SPARRING_TESTS_EXPERIMENTS_BENCH_BACKENDS_H

#include <stdbool.h>

/* False, with a line on stdout, where this build has no such backend. */
bool bench_has_backend(const char *wanted);

#endif
