/*
 * format: numbers as text for reports.  Unknown values (NaN) are a dash.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_FORMAT_H
#define SPARRING_EXPERIMENTS_REPORT_FORMAT_H

#include "common/base/strbuf.h"
#include "experiments/report/metric.h"
#include "experiments/report/statistics.h"

#include <stddef.h>

#define FORMAT_MAX     48
#define FORMAT_UNKNOWN "-"

/* "12,345.678" with `decimals` digits after the point. */
void format_number(double value, int decimals, char text[FORMAT_MAX]);

/* A figure with its usual precision; a share as "97.1 %", memory as "41.2 MiB", other units left to
 * the heading. */
void format_metric(enum metric_index index, double value, char text[FORMAT_MAX]);

/* "q1 to q3" of a figure over the runs of a mode. */
void format_quartiles(enum metric_index index, const struct spread *spread,
                      char text[2 * FORMAT_MAX]);

/* "1.42", and "1.42 (1.38 to 1.46)". */
void format_ratio(double value, char text[FORMAT_MAX]);
void format_ratio_interval(double value, const struct interval *interval,
                           char text[2 * FORMAT_MAX]);

/* A divisor of 1, 1e3, 1e6 or 1e9 that makes `largest` readable on an axis, and its prefix: "",
 * "thousand " and so on, or "", "k", "M", "G" when `is_short`. */
double format_scale(double largest, int is_short, const char **ret_prefix);

#endif
