/*
 * Softmax and cross-entropy, a row at a time.
 */
#include "worker/compute/cpu/cpu.h"

#include <math.h>

/* One row: its largest logit (a NaN never wins) and that logit's first index. */
static size_t row_max(const float *row, size_t classes)
{
    size_t best = 0;

    for (size_t j = 1; j < classes; j++)
        if (row[j] > row[best])
            best = j;
    return best;
}

/* Sum of exp(row - max) in double; `exponentials` (classes) gets the terms where not NULL. */
static double row_exp_sum(const float *row, float max, float *exponentials, size_t classes)
{
    double sum = 0.0;

    for (size_t j = 0; j < classes; j++) {
        float e = expf(row[j] - max);

        if (exponentials)
            exponentials[j] = e;
        sum += (double)e;
    }
    return sum;
}

enum status cpu_softmax_cross_entropy(struct compute *c, const void *logits, const int32_t *labels,
                                      void *dlogits, size_t batch, size_t classes,
                                      struct error *err)
{
    struct cpu *cpu = (struct cpu *)c;
    const float *rows = logits;
    float *gradients = dlogits;
    double loss = 0.0;
    size_t correct = 0;

    (void)err;
    for (size_t i = 0; i < batch; i++) {
        const float *row = rows + i * classes;
        float *gradient = gradients ? gradients + i * classes : NULL;
        size_t label = (size_t)labels[i];
        size_t best = row_max(row, classes);
        double margin = (double)row[best] - (double)row[label]; /* gradient may be row */
        double sum = row_exp_sum(row, row[best], gradient, classes);

        loss += log(sum) + margin;
        correct += best == label;
        if (!gradient)
            continue;
        for (size_t j = 0; j < classes; j++)
            gradient[j] *= (float)(1.0 / (sum * (double)batch));
        gradient[label] -= (float)(1.0 / (double)batch);
    }
    cpu->loss = loss / (double)batch;
    cpu->correct = correct;
    return STATUS_OK;
}

enum status cpu_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                          struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;

    (void)err;
    *ret_loss = cpu->loss;
    *ret_correct = cpu->correct;
    return STATUS_OK;
}
