/*
 * sweep: the cells of an experiment: each has its folder, in which an ordinary comparison stands.
 * An experiment without axes is one cell, in the folder itself.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_SWEEP_H
#define SPARRING_EXPERIMENTS_COMPARE_SWEEP_H

#include "experiments/compare/experiment_run.h"
#include "experiments/compare/host_check.h"
#include "experiments/report/overview.h"

#include <stdbool.h>
#include <stddef.h>

struct sweep_cell {
    struct cell cell;
    char folder[CELL_NAME_MAX + 8]; /* relative to `out`: "cells/nproc=4" */
    char out[4096];
    size_t blocks;   /* that have run */
    bool is_decided; /* no further blocks */
};

struct compare_sweep {
    const struct experiment *experiment; /* borrowed */
    const char *programs, *out;          /* borrowed */
    struct host_check host_check;        /* of the experiment's engine */
    struct sweep_cell *cells;            /* owned */
    size_t count;
    size_t good_before;         /* runs that succeeded before this process */
    struct experiment *of_cell; /* owned; see compare_sweep_experiment */
};

/* STATUS_CONFIG as axes_make_cells, or when a cell cannot be decided (experiment_check_design). */
enum status compare_sweep_open(const struct experiment *e, const char *programs, const char *out,
                               struct compare_sweep *ret, struct error *err);
void compare_sweep_close(struct compare_sweep *s);

/* The most hosts of an engine that a run takes. */
size_t compare_sweep_hosts(struct compare_sweep *s);

/* The experiment of a cell; until the next call. */
const struct experiment *compare_sweep_experiment(struct compare_sweep *s, size_t cell);

/* Run all planned blocks: the first of every cell, in an order drawn from the seed, then the second
 * of every cell, so that a drift of the machine reaches all cells alike; then more blocks of the
 * cells that are undecided.  What the folder holds already is not run again (run_plan.h).  As
 * experiment_run_blocks. */
enum status compare_sweep_run(struct compare_sweep *s, struct experiment_run_result *result,
                              struct error *err);

/* Print the cells, the number of runs and what they take at least and at most. */
void compare_sweep_print_plan(struct compare_sweep *s);

#endif
