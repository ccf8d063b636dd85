/*
 * bench_report: the file that every benchmark writes, and the statistics in it.
 *
 *   {"schema":1,"bench":"allreduce","version":"0.1.0","git":"..","time":"2026-11-20T18:04:05Z",
 *    "host":{..},"rows":[{"backend":"ring",..,"time_us":812.4,"time_us_min":801.0,
 *    "time_us_max":950.3},..]}
 *
 * A row is a flat object with all facts of one measurement, so that rows of several files can be
 * put into one table.  Names end with their unit; a figure is a median, and its extremes add _min
 * and _max to the name.  Threads: one writer.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_REPORT_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_REPORT_H

#include "common/base/error.h"
#include "common/base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

struct bench_summary {
    size_t samples;
    double median;
    double min;
    double max;
};

/* The median (mean of the middle two for an even count) and the extremes of samples[0..count),
 * which are sorted in place; all zero when count is 0. */
struct bench_summary bench_summarise(double *samples, size_t count);

/* Every figure times `factor` (> 0). */
struct bench_summary bench_scale(struct bench_summary s, double factor);

/* amount per second; the slowest sample gives the minimum. */
struct bench_summary bench_rate(double amount, struct bench_summary seconds);

struct bench_report {
    const char *bench;     /* borrowed: "allreduce", "ps", "train" */
    struct strbuf rows;    /* JSON objects, separated by commas */
    struct strbuf members; /* more members of the file, each preceded by a comma */
    size_t length;
    size_t fields; /* of the open row */
};

void bench_report_init(struct bench_report *r, const char *bench);

/* One row: begin, any adders, end. */
void bench_row_begin(struct bench_report *r);
void bench_row_text(struct bench_report *r, const char *name, const char *value);
void bench_row_int(struct bench_report *r, const char *name, int64_t value);
void bench_row_double(struct bench_report *r, const char *name, double value); /* or null */
void bench_row_summary(struct bench_report *r, const char *name, struct bench_summary s);
void bench_row_end(struct bench_report *r);

/* Write the file atomically. */
enum status bench_report_write(const struct bench_report *r, const char *path, struct error *err);
void bench_report_release(struct bench_report *r);

#endif
