/*
 * trial: short runs of real jobs, from which the constants of the cost model and the load of a
 * model are read.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_TRIAL_H
#define SPARRING_EXPERIMENTS_PREDICT_TRIAL_H

#include "common/base/error.h"
#include "common/base/text_list.h"
#include "experiments/predict/cost_model.h"
#include "experiments/report/run.h"

#include <stdbool.h>
#include <stdint.h>

#define TRIAL_BUCKETS_MAX 4096

struct trial {
    const char *programs; /* folder of sparring and sparring-worker */
    const char *folder;   /* runs go to FOLDER/NAME */
    int64_t timeout_ms;   /* of a run */
    bool in_network;      /* on emulated hosts without limits, as the cells that are predicted */
};

/* Medians over the steady steps of the slowest rank. */
struct trial_times {
    double step_s, compute_s, exposed_s, other_s; /* input is part of compute_s */
    double forward_s;                             /* of compute_s */
    double cpu_s;                                 /* processor time of all processes for a step */
};

/* Run `launch` with `ranks` and `servers` and these options of the worker, and read its records;
 * the caller releases *ret. */
enum status trial_run(const struct trial *t, const char *name, unsigned ranks, unsigned servers,
                      const struct text_list *options, struct run *ret, struct error *err);

enum status trial_read_times(const struct run *run, struct trial_times *ret, struct error *err);

/* What each rank computed in each steady step, input and delays included: rank by rank, *ret_steps
 * of each; owned by the caller. */
enum status trial_read_computes(const struct run *run, double **ret, size_t *ret_steps,
                                struct error *err);

/* When the gradients of rank 0 were ready, and the buckets that they travel in; owned by the
 * caller. */
enum status trial_read_ready(const struct run *run, struct cost_ready **ret_ready,
                             size_t *ret_count, struct error *err);

#endif
