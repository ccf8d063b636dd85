/*
 * match: runs every mode of an experiment, repeat after repeat, each as a job of its own.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_MATCH_H
#define SPARRING_EXPERIMENTS_COMPARE_MATCH_H

#include "experiments/compare/experiment.h"

#include <stddef.h>

struct match_request {
    const struct experiment *experiment;
    const char *programs; /* folder of sparring and sparring-worker */
    const char *out;      /* runs go to OUT/runs/MODE-REPEAT */
};

struct match_result {
    size_t started, failed;
};

/* Run `count` blocks from number `first` on; a run that fails is reported with the end of its log
 * and counted, and the match goes on. STATUS_CANCELLED after a signal (what ran was stopped),
 * STATUS_EXISTS when OUT/runs holds runs before the first block, which also writes the design.
 * *result counts on.  Blocks for as long as the runs take, each at most its deadline. */
enum status match_run(const struct match_request *request, size_t first, size_t count,
                      struct match_result *result, struct error *err);

#endif
