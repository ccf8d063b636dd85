/*
 * experiment_run: runs every mode of an experiment, block by block, each run as a separate job.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_EXPERIMENT_RUN_H
#define SPARRING_EXPERIMENTS_COMPARE_EXPERIMENT_RUN_H

#include "experiments/compare/host_check.h"

#include <stdbool.h>
#include <stddef.h>

struct experiment_run_request {
    const struct experiment *experiment;
    const char *programs;          /* folder of sparring and sparring-worker */
    const char *out;               /* runs go to OUT/runs/MODE-REPEAT */
    const char *cell;              /* of a sweep, for messages; "": not a sweep */
    struct host_check *host_check; /* of the experiment's engine */
};

struct experiment_run_result {
    size_t started, failed;
    bool has_more; /* ends_after_block: there are blocks left */
};

/* That `folder` has sparring and sparring-worker. */
enum status experiment_run_check_programs(const char *folder, struct error *err);

/* Does `launch` read this option of an experiment file? */
bool experiment_run_is_for_launch(const char *name);

/* The command line of a mode up to --seed and --run-dir of the worker.  folder: --run-dir of
 * `launch`; hosts: --hosts, where the experiment has an engine; NULL: without. */
void experiment_run_words(const struct experiment *e, const struct experiment_mode *mode,
                          const char *programs, const char *folder, const char *hosts,
                          struct text_list *words);

/* Move OUT/runs/RUN to OUT/BELOW/RUN.K, with the lowest K from 1 that is free. */
enum status experiment_run_put_aside(const char *out, const char *below, const char *run,
                                     struct error *err);

/* Before the first block: make OUT/runs and write the design. */
enum status experiment_run_prepare(const struct experiment_run_request *request, struct error *err);

/* Run `count` blocks from number `first` on; a failed run is printed with the end of its log and
 * counted, and the next run starts.  STATUS_CANCELLED after a stop signal (the current run was
 * stopped).  Adds to *result.  Blocks for as long as the runs take, each at most its deadline. */
enum status experiment_run_blocks(const struct experiment_run_request *request, size_t first,
                                  size_t count, struct experiment_run_result *result,
                                  struct error *err);

#endif
