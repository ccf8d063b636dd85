/*
 * prediction: errors are logarithms of predicted over measured, so that twice and half weigh alike.
 */
#include "experiments/predict/prediction.h"

#include "common/base/memory.h"

#include <math.h>
#include <stdlib.h>

#define LEVEL 0.9

static size_t length_of(const struct prediction_set *set)
{
    return set->cell_count * set->experiment->mode_count;
}

static bool is_measured(const struct prediction *p)
{
    return p->is_known && isfinite(p->measured_s) && p->measured_s > 0;
}

enum status prediction_error(const struct prediction_set *set, enum cost_side side, size_t left_out,
                             double *ret, struct error *err)
{
    double *errors;
    size_t count = 0, rank;
    enum status status = mem_calloc(length_of(set), sizeof(*errors), "errors", &errors, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < length_of(set); i++) {
        const struct prediction *p = &set->items[i];

        if (i != left_out && p->side == side && is_measured(p))
            errors[count++] = fabs(log(p->cost.step_s / p->measured_s));
    }
    statistics_sort(errors, count);
    rank = (size_t)ceil(LEVEL * (double)(count + 1));
    *ret = rank <= count ? errors[rank - 1] : (double)NAN;
    free(errors);
    return STATUS_OK;
}

enum status prediction_errors_update(const struct prediction_set *set,
                                     struct prediction_errors *errors, struct error *err)
{
    bool any_new = false, any_kept = false;
    double ranks = 0;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < length_of(set); i++)
        if (is_measured(&set->items[i]))
            ranks = fmax(ranks, set->items[i].ranks);
    for (enum cost_side side = 0; side < COST_SIDES && status == STATUS_OK; side++) {
        double error = (double)NAN;

        status = prediction_error(set, side, SIZE_MAX, &error, err);
        any_new = any_new || isfinite(error);
        any_kept = any_kept || (!isfinite(error) && isfinite(errors->of_side[side]));
        if (isfinite(error))
            errors->of_side[side] = error;
    }
    if (any_new)
        errors->ranks = any_kept ? fmin(errors->ranks, ranks) : ranks;
    return status;
}

enum status prediction_set_errors(const struct prediction_set *set,
                                  const struct prediction_errors *known, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < length_of(set) && status == STATUS_OK; i++) {
        struct prediction *p = &set->items[i];
        double error = (double)NAN;

        p->error = known->of_side[p->side] * (1 + fmax(0, log2(p->ranks / known->ranks)));
        if (is_measured(p))
            status = prediction_error(set, p->side, i, &error, err);
        if (isfinite(error))
            p->error = error;
    }
    return status;
}
