/*
 * metrics_check: checks that a text is valid in Prometheus' text format 0.0.4, and reads values.
 */
#ifndef SPARRING_TESTS_SERVER_OBSERVE_METRICS_CHECK_H
#define SPARRING_TESTS_SERVER_OBSERVE_METRICS_CHECK_H

#include <stdbool.h>
#include <stddef.h>

/* Fails the test unless: every line ends; every family has HELP, TYPE and samples, once and
 * together; names, labels, escapes and values are well formed; counters end in _total; no sample
 * occurs twice; a histogram's buckets ascend to +Inf, which is its count.  Returns the number of
 * samples. */
size_t metrics_check(const char *text);

/* The value of the sample with this name ("name" or "name{label="x"}"); fails the test when it is
 * missing.  metrics_has: does it exist? */
double metrics_value(const char *text, const char *sample);
bool metrics_has(const char *text, const char *sample);

#endif
