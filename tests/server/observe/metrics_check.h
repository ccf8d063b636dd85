/*
 * metrics_check: is this text what Prometheus' text format 0.0.4 allows, and what does it say?
 */
#ifndef SPARRING_TESTS_SERVER_OBSERVE_METRICS_CHECK_H
#define SPARRING_TESTS_SERVER_OBSERVE_METRICS_CHECK_H

#include <stdbool.h>
#include <stddef.h>

/* Fails the test unless: every line ends; every family has HELP, TYPE and samples, once and
 * together; names, labels, escapes and values are well formed; counters end in _total; no sample is
 * there twice; a histogram's buckets ascend to +Inf, which is its count.  Returns the samples. */
size_t metrics_check(const char *text);

/* The value of the sample that is written like this ("name" or "name{label="x"}"); fails the test
 * when it is not there.  metrics_has tells whether it is. */
double metrics_value(const char *text, const char *sample);
bool metrics_has(const char *text, const char *sample);

#endif
