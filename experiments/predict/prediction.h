/*
 * prediction: what is predicted for every mode of every cell, how sure that is, and how it is
 * shown: on the terminal, as predictions.csv, and as a page with maps.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_PREDICTION_H
#define SPARRING_EXPERIMENTS_PREDICT_PREDICTION_H

#include "experiments/compare/experiment.h"
#include "experiments/predict/cost_model.h"
#include "experiments/report/statistics.h"

/* Half the width of the 90 % interval of predictions of each side, as a logarithm; NaN: not known.
 * Read off errors of measured cells with up to so many ranks. */
struct prediction_errors {
    double of_side[COST_SIDES];
    double ranks;
};

struct prediction {
    bool is_known; /* the model covers this mode */
    enum cost_side side;
    double ranks, samples; /* of all ranks in a step */
    struct cost cost;
    double sensitivities[COST_PARTS];
    double error;         /* half the width of the 90 % interval, as a logarithm; NaN: not known */
    double measured_s;    /* step; NaN: not measured */
    struct spread speeds; /* measured, samples/s */
};

struct prediction_set {
    const struct experiment *experiment; /* with its axes; borrowed, as are the cells */
    const struct cell *cells;
    size_t cell_count;
    struct prediction *items; /* cell by cell, in the order of the modes; owned by the caller */
};

/*
 * Half the width of the 90 % interval of the next prediction of this side, from the errors of the
 * measured ones but for `left_out` (SIZE_MAX: none): the interval covers 90 % of predictions whose
 * errors are drawn like theirs.  NaN below 9 of them.  STATUS_NO_MEMORY only.
 * Source: split conformal prediction, Vovk, Gammerman and Shafer 2005.
 */
enum status prediction_error(const struct prediction_set *set, enum cost_side side, size_t left_out,
                             double *ret, struct error *err);

/* Replace the errors of those sides of which enough is measured.  `ranks` are those of the largest
 * measured cell; with a side that stays as it was, the former ones where those are fewer. */
enum status prediction_errors_update(const struct prediction_set *set,
                                     struct prediction_errors *errors, struct error *err);

/* Set the intervals: of measured cells from the errors of the others; where those are too few, and
 * of other cells, from `known`, wider by as much again for every time that the ranks double beyond
 * the measured ones. */
enum status prediction_set_errors(const struct prediction_set *set,
                                  const struct prediction_errors *known, struct error *err);

/* Print a line for each mode of each cell, then the errors and where the winner changes; write
 * FOLDER/predictions.csv, and of a sweep FOLDER/index.html and cells.csv. */
enum status prediction_show(const struct prediction_set *set, const char *folder,
                            const char *command, struct error *err);

#endif
