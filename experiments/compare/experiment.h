/*
 * experiment: the contents of an experiment file.
 *
 *   title: Built-in digits, ring against parameter server     # of the report
 *   nproc: 2            # ranks of each run
 *   repeats: 10         # blocks, each of one run of every mode, in a random order
 *   deadline: 120       # seconds a run may take
 *   verdict: [[ring, ps-1]]  # pairs of modes; all; none; by default the first all-reduce mode and
 *                       # the first parameter-server mode, else the first two that communicate
 *   margin: 2           # percent up to which two modes count as equivalent
 *   steady_seconds: 3   # time that a run should have after its warm-up steps
 *   target_accuracy: 95 # percent; the time to it decides between modes whose steps differ in worth
 *   options:            # of sparring-worker, for all modes; seed is that of the first repeat
 *     model: mlp:784-128-10
 *   network: {rate: 1gbit, delay: 5}  # emulated: the options network-rate, ... of sparring launch
 *   axes: {nproc: [2, 4]}  # swept settings, see axes.h
 *   where: [...]
 *   modes:
 *     - name: ring      # of its run directories
 *       label: ring all-reduce
 *       nproc: 2        # unless as above
 *       servers: 0      # parameter servers to start
 *       options: {sync: allreduce, backend: ring}
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_EXPERIMENT_H
#define SPARRING_EXPERIMENTS_COMPARE_EXPERIMENT_H

#include "common/base/error.h"
#include "common/option/option.h"
#include "experiments/cluster/engine.h"
#include "experiments/compare/axes.h"
#include "experiments/report/design.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPERIMENT_MODES_MAX     16
#define EXPERIMENT_OPTIONS_MAX   64
#define EXPERIMENT_PROCESSES_MAX 16384 /* ranks or servers, of predictions; a job has fewer */

struct experiment_option {
    char name[64];
    char value[512];
    unsigned line; /* of the file; 0: not from there */
};

struct experiment_options {
    struct experiment_option items[EXPERIMENT_OPTIONS_MAX];
    size_t length;
};

struct experiment_mode {
    char name[32]; /* letters, digits, '-', '_' and '.' */
    char label[128];
    int64_t nproc;
    bool has_nproc; /* of its own */
    int64_t servers;
    struct experiment_options options;
    unsigned line; /* of its first key, for messages */
};

struct experiment {
    char name[256];              /* of the file, for messages */
    const struct engine *engine; /* whose hosts the runs use; NULL: this one ... */
    const char *on;              /* ... with the value of --on; borrowed */
    bool needs_quiet_hosts;      /* else a warning will do (host_check.h) */
    bool ends_after_block;       /* of every cell; the next one has an allocation of its own */
    struct design design;        /* title, margin, pairs; blocks is set by experiment_make_cell */
    bool has_verdict;            /* the file has the key "verdict" ... */
    bool all_pairs; /* ... with the value "all": every pair of modes that communicate */
    int64_t nproc, repeats, deadline_seconds, seed;
    struct experiment_options options; /* without seed */
    struct axes axes;
    struct experiment_mode modes[EXPERIMENT_MODES_MAX];
    size_t mode_count;
};

/* Parse a YAML file that was read; every failure is STATUS_CONFIG and names file and line.  The
 * struct is large: allocate it. */
enum status experiment_parse(const struct yaml_file *file, struct experiment *ret,
                             struct error *err);

/* STATUS_CONFIG: a mode sets an axis itself, or its values are not possible.  Called by
 * experiment_parse, before modes take the file's nproc. */
enum status experiment_check_axes(const struct experiment *e, struct error *err);

bool experiment_has_axis(const struct experiment *e, const char *name);

/* The value of an option for this mode, its own or that of all modes; "": not set. */
const char *experiment_option(const struct experiment *e, const struct experiment_mode *mode,
                              const char *name);

/* Do all runs, or some, have emulated hosts? */
bool experiment_has_network(const struct experiment *e);

/* The experiment of one cell of e->axes: without axes, with its values as settings, its name in the
 * title, and its part of the level: that of `count` cells is divided among them. */
void experiment_make_cell(const struct experiment *e, const struct cell *cell, size_t count,
                          struct experiment *ret);

/* For a trial: one block without a verdict, runs of 2 steps, of each axis the first and the last
 * value, and an emulated network that this machine does not keep to is a warning. */
void experiment_make_quick(struct experiment *e);

/* Set the pairs that get a verdict: "none", "all", or "A:B,..." of modes' names. */
enum status experiment_set_verdict(struct experiment *e, const char *text, struct error *err);

/* Of a cell: STATUS_CONFIG when the repeats are too few to decide the pairs. */
enum status experiment_check_design(const struct experiment *e, struct error *err);

/* The modes of a repeat in the order in which they run: a permutation drawn from the experiment's
 * seed and the repeat, so that it is reproducible. */
void experiment_order(const struct experiment *e, size_t repeat,
                      size_t ret_modes[EXPERIMENT_MODES_MAX]);

#endif
