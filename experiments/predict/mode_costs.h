/*
 * mode_costs: what a mode of an experiment is for the cost model, and its predicted step, by the
 * model or by simulation.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_MODE_COSTS_H
#define SPARRING_EXPERIMENTS_PREDICT_MODE_COSTS_H

#include "experiments/compare/experiment.h"
#include "experiments/predict/job_load.h"

struct mode_costs {
    const struct experiment *experiment; /* a cell; borrowed, as is the mode */
    const struct experiment_mode *mode;
    struct cost_inputs inputs; /* machine, and job.cores, are the caller's */
    double min_delay_ms;       /* network_options_read */
    bool is_known;             /* the model covers this mode */
};

/* Set is_known and the inputs from the mode's options and the load.  Errors of
 * network_options_read, and STATUS_NO_MEMORY. */
enum status mode_costs_read(struct mode_costs *m, const struct job_load *load, struct error *err);

/* Servers are simulated where that is not too much work; where it is, and there is no closed form,
 * is_known becomes false. */
enum status mode_costs_predict(struct mode_costs *m, struct cost *ret, struct error *err);

/* cost_sensitivities of a mode that is known and whose step is step_s; NaN without memory. */
void mode_costs_sensitivities(const struct mode_costs *m, double step_s, double ret[COST_PARTS]);

#endif
