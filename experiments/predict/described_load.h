/*
 * described_load: the load of a model that nobody runs here: from a profile's times, or from
 * parameters and the time of a step.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_DESCRIBED_LOAD_H
#define SPARRING_EXPERIMENTS_PREDICT_DESCRIBED_LOAD_H

#include "experiments/predict/job_load.h"

/*
 * The load of any number of ranks; the caller releases *ret, also after a failure.
 *   model       as --model of sparring-worker; "": `parameters` are given instead
 *   parameters  float32 numbers
 *   step_s      forward and backward of a model that is not a profile, which has its own times.  A
 *               third of it is forward; in the rest parameters get their gradients evenly, last
 *               first.
 * STATUS_CONFIG: one of them is missing or superfluous, or the model's own error.
 */
enum status described_load_read(const char *model, double parameters, double step_s,
                                struct job_load *ret, struct error *err);

#endif
