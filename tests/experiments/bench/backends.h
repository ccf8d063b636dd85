/*
 * backends: which of them the build under test has.
 */
#ifndef SPARRING_TESTS_EXPERIMENTS_BENCH_BACKENDS_H
#define SPARRING_TESTS_EXPERIMENTS_BENCH_BACKENDS_H

#include <stdbool.h>

/* False, with a line that says so, where this build has no such backend. */
bool bench_has_backend(const char *wanted);

#endif
