/*
 * Intervals of predictions, from errors of measured cells; and that they cover what they claim.
 */
#include "experiments/predict/prediction.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>

#define CELLS_MAX_HERE 40

static struct error err;
static struct experiment *experiment;
static struct prediction items[CELLS_MAX_HERE];
static struct prediction_set set;

static void setup(void)
{
    experiment = calloc(1, sizeof(*experiment));
    experiment->mode_count = 1;
    set = (struct prediction_set){.experiment = experiment, .items = items};
}

static void teardown(void)
{
    free(experiment);
}

/* A prediction that was off by e as a logarithm. */
static struct prediction off_by(double e, enum cost_side side)
{
    return (struct prediction){.is_known = true,
                               .side = side,
                               .ranks = 4,
                               .cost = {.step_s = 0.1},
                               .measured_s = 0.1 * exp(-e)};
}

/* Of 9 errors the largest is the 90 % quantile of the next one; 8 are too few. */
START_TEST(test_few)
{
    struct prediction_errors errors = {
        .of_side = {[COST_ALLREDUCE] = 0.5, [COST_SERVERS] = 0.3, [COST_CONTROL] = (double)NAN},
        .ranks = 2};
    double error;

    set.cell_count = 10;
    for (int i = 0; i < 10; i++)
        items[i] = off_by((i % 2 ? -0.01 : 0.01) * (i + 1), COST_ALLREDUCE);
    assert_ok(prediction_error(&set, COST_ALLREDUCE, 9, &error, &err));
    ck_assert(fabs(error - 0.09) < 1e-12);
    assert_ok(prediction_error(&set, COST_ALLREDUCE, 0, &error, &err));
    ck_assert(fabs(error - 0.10) < 1e-12);
    items[4].side = COST_SERVERS;
    items[5].is_known = false;
    assert_ok(prediction_error(&set, COST_ALLREDUCE, SIZE_MAX, &error, &err));
    ck_assert(isnan(error));
    items[4].side = COST_ALLREDUCE;
    /* Nine of the ring are enough now; what was known of the other sides stays. */
    assert_ok(prediction_errors_update(&set, &errors, &err));
    ck_assert(fabs(errors.of_side[COST_ALLREDUCE] - 0.10) < 1e-12 && errors.ranks == 2);
    ck_assert(errors.of_side[COST_SERVERS] == 0.3 && isnan(errors.of_side[COST_CONTROL]));
    errors.of_side[COST_SERVERS] = (double)NAN;
    assert_ok(prediction_errors_update(&set, &errors, &err));
    ck_assert(errors.ranks == 4);
    /* Of too few others nothing is known but what was known before. */
    set.cell_count = 3;
    assert_ok(prediction_set_errors(&set, &errors, &err));
    ck_assert(items[0].error == errors.of_side[COST_ALLREDUCE]);
    assert_ok(prediction_errors_update(&set, &errors, &err));
    ck_assert(fabs(errors.of_side[COST_ALLREDUCE] - 0.10) < 1e-12 && errors.ranks == 4);
}
END_TEST

/* Beyond the measured ranks the interval is wider by as much again for every doubling. */
START_TEST(test_wider)
{
    const struct prediction_errors known = {.of_side = {[COST_ALLREDUCE] = 0.02}, .ranks = 4};
    static const double ranks[] = {2, 4, 8, 64}, wanted[] = {0.02, 0.02, 0.04, 0.10};

    set.cell_count = 4;
    for (size_t i = 0; i < 4; i++) {
        items[i] = off_by(0, COST_ALLREDUCE);
        items[i].measured_s = (double)NAN;
        items[i].ranks = ranks[i];
    }
    assert_ok(prediction_set_errors(&set, &known, &err));
    for (size_t i = 0; i < 4; i++)
        ck_assert(fabs(items[i].error - wanted[i]) < 1e-12);
}
END_TEST

/* Errors of any distribution, here of one with heavy tails: of 20 others the 19th in size covers
 * all of 21 but the two largest. */
START_TEST(test_coverage)
{
    set.cell_count = 21;
    for (int draw = 0; draw < 100; draw++) {
        size_t covered = 0;

        for (size_t i = 0; i < set.cell_count; i++)
            items[i] = off_by(0.01 * tan(3.1 * (support_random() - 0.5)), COST_SERVERS);
        assert_ok(prediction_set_errors(&set, &(struct prediction_errors){.ranks = 1}, &err));
        for (size_t i = 0; i < set.cell_count; i++)
            covered += fabs(log(items[i].cost.step_s / items[i].measured_s)) <= items[i].error;
        ck_assert_uint_eq(covered, 19);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("prediction", 30, CHECKED_FIXTURE(setup, teardown), TEST(test_few),
                       TEST(test_wider), TEST(test_coverage));
}
