/*
 * bench_allreduce: what the sources of `sparring bench allreduce` share.
 *
 * The parent starts --nproc rank processes (this program again) and prints what rank 0 measures.
 * A *series* is a backend, or a ceiling: what the machine does without any collective.  For each
 * size the series take turns, round after round, so that a drifting machine hits all alike; a round
 * is some operations back to back between two barriers, and its sample is the slowest rank's time
 * per operation.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_ALLREDUCE_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_ALLREDUCE_H

#include "common/collective/collective.h"
#include "common/option/option.h"
#include "experiments/bench/bench_report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* argv[1] of a rank process, followed by its rank, the folder and the parent's options. */
#define ALLREDUCE_AS_RANK "--as-rank"
#define SERIES_MAX        8
#define ROUNDS_MAX        1000

struct allreduce_options {
    char backend[OPTION_TEXT_MAX]; /* "all" or "ring,gloo" */
    int64_t nproc;
    uint64_t min_bytes, max_bytes;
    int64_t factor;
    char iterations[OPTION_TEXT_MAX]; /* "auto" or a number */
    int64_t rounds, warmup, timeout_ms;
    char order[OPTION_TEXT_MAX];
    bool ceiling;
    char json[OPTION_TEXT_MAX];
};

enum series_kind {
    SERIES_BACKEND,
    SERIES_TCP,    /* the ring's bytes over the same kind of sockets, without sums or order */
    SERIES_MEMCPY, /* one copy of the buffer on every rank at once */
};

/* Everything that is measured, in the order of its turns; the same list on all ranks. */
struct series_list {
    struct {
        enum series_kind kind;
        char name[32]; /* of the backend, or "ceiling-tcp", "ceiling-memcpy" */
    } series[SERIES_MAX];
    size_t length;
};

/* STATUS_INVALID or STATUS_UNSUPPORTED for options that do not go together. */
enum status allreduce_series(const struct allreduce_options *options, struct series_list *ret,
                             struct error *err);
enum reduce_order allreduce_order(const struct allreduce_options *options);
uint64_t allreduce_iterations(const struct allreduce_options *options); /* 0: auto */

/* ---- one measurement, as rank 0 tells it to the parent through a pipe */

struct allreduce_record {
    uint64_t series; /* index in the list */
    uint64_t bytes;
    uint64_t iterations; /* per round */
    uint64_t rounds;
    uint64_t wrong;               /* elements of all ranks that were not the sum */
    struct bench_summary seconds; /* per operation, over the rounds */
};

/* The body of a rank process. */
enum status allreduce_rank(const struct allreduce_options *options, unsigned rank,
                           const char *folder, int out_fd, struct error *err);

/* What rank `rank` puts into element i: integers whose sum over any world is exact in float32. */
float allreduce_value(unsigned rank, size_t i);
size_t allreduce_count_wrong(const float *data, size_t count, unsigned world_size);

/* Start the ranks, hand every record to `take`, wait for all ranks; a rank that dies or fails ends
 * all of them. */
typedef void allreduce_take(void *context, const struct allreduce_record *record);
enum status allreduce_run(const struct allreduce_options *options, allreduce_take *take,
                          void *context, struct error *err);

/* ---- the table */

struct allreduce_table {
    const struct allreduce_options *options;
    const struct series_list *list;
    struct bench_report report;
    uint64_t wrong;
    double busbw_sum[SERIES_MAX];
    size_t rows[SERIES_MAX];
};

void allreduce_table_open(struct allreduce_table *t, const struct allreduce_options *options,
                          const struct series_list *list);
void allreduce_table_add(struct allreduce_table *t, const struct allreduce_record *record);

/* Print the footer, write the JSON file; STATUS_DATA when an element was wrong. */
enum status allreduce_table_close(struct allreduce_table *t, struct error *err);

#endif
