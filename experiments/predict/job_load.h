/*
 * job_load: what the ranks of an experiment compute in a step, and when their gradients are ready,
 * measured by runs without communication.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_JOB_LOAD_H
#define SPARRING_EXPERIMENTS_PREDICT_JOB_LOAD_H

#include "experiments/compare/experiment.h"
#include "experiments/predict/trial.h"

struct job_load {
    struct cost_load cost;
    struct cost_ready *ready; /* owned; cost.ready */
    double *computes;         /* owned; cost.computes */
    double *buckets;          /* owned; bytes, of DistributedDataParallel's default buckets */
    size_t bucket_count;
    uint64_t batch; /* samples of a rank's step, where the experiment does not say */
};

/* The load of `ranks` ranks side by side, with the options of the experiment (a cell).  NAME is
 * that of the runs' folders.  The caller releases *ret, also after a failure. */
enum status job_load_measure(const struct trial *t, const char *name, const struct experiment *e,
                             unsigned ranks, struct job_load *ret, struct error *err);
void job_load_release(struct job_load *l);

#endif
