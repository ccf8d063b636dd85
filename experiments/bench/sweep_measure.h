/*
 * sweep_measure: one rank's buffers and groups, one operation, a round, a check.  The control group
 * (a separate ring) carries barriers, the number of iterations and the samples, so that no measured
 * backend takes part in its own timing.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_SWEEP_MEASURE_H
#define SPARRING_EXPERIMENTS_BENCH_SWEEP_MEASURE_H

#include "experiments/bench/shm_ceiling.h"
#include "experiments/bench/sweep.h"
#include "experiments/bench/sweep_values.h"
#include "experiments/bench/tcp_ceiling.h"

#include <sched.h>

#define ITERATIONS_MAX 10000 /* of a round */

struct bench_rank {
    const struct sweep_options *options;
    struct sweep sweep;
    unsigned rank, world_size;
    struct rpc_security security; /* of the groups; from the options */
    struct store *store;
    struct collective *control;
    struct collective *groups[SERIES_MAX]; /* NULL for a ceiling and for an unavailable backend */
    struct shm_ceiling shm;
    struct tcp_ceiling tcp;
    struct shared_memory memory; /* of the buffers, with --registered */
    void *heap;                  /* owned: the buffers without --registered */
    unsigned char *input_page;   /* of max_bytes and room to misalign */
    unsigned char *output_page;
    unsigned char *input, *output; /* --misalign elements after those; in place, output is both */
    struct sweep_values values;    /* of the current type and operation */
    double *samples;               /* [series][placement][round] */
    double *gathered;              /* one per rank */
    double *times;                 /* of single operations: [series][placement][times_max] */
    size_t times_max;
    double *round_times; /* of one round, every rank's: [rank][ITERATIONS_MAX] */
    cpu_set_t cores;     /* that this process may use */
    cpu_set_t core;      /* the one assigned to this rank, round robin */
    sweep_corrupt_fn *corrupt;
    int out_fd; /* rank 0's, to the parent; -1 elsewhere */
    char folder[512];
    uint64_t cycle;
};

/* The point of the sweep that is measured. */
struct sweep_point {
    size_t series;
    enum placement placement;
    enum dtype dtype;
    enum reduce_op op;
    unsigned root;
    size_t count;   /* elements of collective_args */
    uint64_t bytes; /* of the whole buffer */
};

/* False when the backend cannot do it. */
bool bench_supports(const struct bench_rank *b, const struct sweep_point *s);

/* Warm up and choose the number of operations of a round; the same on all ranks. */
enum status bench_prepare(struct bench_rank *b, const struct sweep_point *s,
                          uint64_t *ret_iterations, struct error *err);

/* Seconds per operation over `iterations` in a row, combined over the ranks by --average; `times`,
 * unless NULL, gets the slowest rank's time of each operation. */
enum status bench_round(struct bench_rank *b, const struct sweep_point *s, uint64_t iterations,
                        double *times, double *ret_seconds, struct error *err);

/* Run operations on known values; counts the wrong elements of all ranks, in the result and in an
 * input that must stay unchanged. */
enum status bench_check(struct bench_rank *b, const struct sweep_point *s, uint64_t *ret_wrong,
                        struct error *err);

/* Measure all points of the sweep; rank 0 sends the results to the parent. */
enum status bench_sweep(struct bench_rank *b, struct error *err);

/* Rank 0 sends the parent the reason why a series is not measured. */
enum status bench_note(struct bench_rank *b, size_t series, const char *text, struct error *err);

#endif
