/*
 * comparison: runs the steps of comparison_make in order, and computes the relative figures and
 * costs that the writers show.
 */
#include "experiments/report/comparison.h"

#include <math.h>
#include <stdlib.h>

static const struct mode *find_role(const struct comparison *c, enum mode_role role, double ranks)
{
    for (size_t i = 0; i < c->mode_count; i++)
        if (c->modes[i].role == role && c->modes[i].first && c->modes[i].ranks == ranks)
            return &c->modes[i];
    return NULL;
}

/* The control of a mode (same number of ranks), or the single-process mode; NULL: none ran well. */
static const struct mode *comparison_control(const struct comparison *c, const struct mode *mode)
{
    return find_role(c, MODE_CONTROL, mode->ranks);
}

static const struct mode *comparison_single(const struct comparison *c)
{
    return find_role(c, MODE_SINGLE, 1);
}

static double throughput_over(const struct mode *mode, const struct mode *under, double factor)
{
    if (!mode->first || !under)
        return (double)NAN;
    return mode->spreads[METRIC_samples_per_second].median /
           (factor * under->spreads[METRIC_samples_per_second].median);
}

double comparison_relative(const struct comparison *c, const struct mode *mode)
{
    return throughput_over(mode, comparison_control(c, mode), 1);
}

double comparison_efficiency(const struct comparison *c, const struct mode *mode)
{
    return throughput_over(mode, comparison_single(c), mode->ranks);
}

static double cost_of(const struct comparison *c, const struct mode *mode, double seconds)
{
    if (!(c->price > 0))
        return (double)NAN;
    return c->price * mode->spreads[METRIC_hosts].median * seconds / 3600;
}

double comparison_cost_of_samples(const struct comparison *c, const struct mode *mode)
{
    return cost_of(c, mode, 1e6 / mode->spreads[METRIC_samples_per_second].median);
}

double comparison_cost_to_target(const struct comparison *c, const struct mode *mode)
{
    return cost_of(c, mode, mode->spreads[METRIC_seconds_to_target].median);
}

enum status comparison_make(const struct run_list *list, struct comparison *ret, struct error *err)
{
    struct comparison c = {.list = list, .design = &list->design};
    enum status status;

    if (list->length == 0)
        return error_set(err, STATUS_NOT_FOUND, "no runs to compare");
    status = comparison_group(&c, err);
    if (status == STATUS_OK)
        status = comparison_check_fairness(&c, err);
    if (status == STATUS_OK)
        status = comparison_pair(&c, err);
    if (status == STATUS_OK) {
        comparison_write_verdict(&c);
        comparison_add_conditions(&c);
    }
    if (status == STATUS_OK &&
        (c.reasons.failed || c.warnings.failed || c.notes.failed || c.more_verdicts.failed))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the texts of the report");
    if (status != STATUS_OK) {
        comparison_release(&c);
        return status;
    }
    *ret = c;
    return STATUS_OK;
}

void comparison_release(struct comparison *c)
{
    for (size_t i = 0; c->modes && i < c->mode_count; i++) {
        critical_path_release(&c->modes[i].path);
        for (int k = 0; k < METRIC_COUNT; k++)
            free(c->modes[i].values[k]);
    }
    for (size_t i = 0; i < c->fact_count; i++) {
        for (size_t m = 0; m < c->mode_count; m++)
            free(c->facts[i].values[m]);
        free(c->facts[i].values);
    }
    free(c->facts);
    free(c->mode_of);
    free(c->metrics);
    free(c->outlier_scores);
    free(c->modes);
    free(c->ratios);
    text_list_release(&c->reasons);
    text_list_release(&c->warnings);
    text_list_release(&c->notes);
    text_list_release(&c->more_verdicts);
    *c = (struct comparison){0};
}
