/*
 * calibration: the constants of the cost model on this machine, from short jobs of real workers
 * and servers that compute nothing: a ring of two ranks, two ranks of one host, and a server with
 * two ranks, each with a few bytes and with many.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_CALIBRATION_H
#define SPARRING_EXPERIMENTS_PREDICT_CALIBRATION_H

#include "experiments/predict/prediction.h"
#include "experiments/predict/trial.h"

struct calibration {
    struct cost_machine machine;
    double cores;    /* of this machine, for jobs */
    bool in_network; /* by jobs on emulated hosts */
    struct prediction_errors errors;
};

/* Software that takes no time, and errors that are not known. */
struct calibration calibration_none(void);

/* Blocks about 10 s. */
enum status calibration_measure(const struct trial *t, struct calibration *ret, struct error *err);

enum status calibration_write(const struct calibration *c, const char *path, struct error *err);
enum status calibration_read(const char *path, struct calibration *ret, struct error *err);

#endif
