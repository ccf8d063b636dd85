/*
 * train_figures: the figures of one job of `sparring bench train`, read from our run directory or
 * from the JSON file of PyTorch.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_TRAIN_FIGURES_H
#define SPARRING_EXPERIMENTS_BENCH_TRAIN_FIGURES_H

#include "common/base/error.h"

#include <stddef.h>

/* Of rank 0; times are medians over its steady steps (METRICS.md); NAN where the job has none. */
struct train_figures {
    double step_ms;
    double comm_ms;    /* communication, hidden or not */
    double exposed_ms; /* the part that backward does not hide */
    double input_ms, forward_ms, backward_ms, optimizer_ms;
    double model_flops;  /* per sample, forward and backward */
    double rss_bytes;    /* largest resident memory */
    double device_bytes; /* likewise of a GPU's */
};

/* NAN in every field. */
struct train_figures train_figures_none(void);

/* Of the run directory of a job of `steps` steps. */
enum status train_figures_read_run(const char *run_dir, size_t steps, struct train_figures *ret,
                                   struct error *err);

/* Of the file that torch_train.py wrote.  STATUS_UNSUPPORTED when it holds a reason why it did not
 * measure, which err then gets. */
enum status train_figures_read_torch(const char *path, struct train_figures *ret,
                                     struct error *err);

#endif
