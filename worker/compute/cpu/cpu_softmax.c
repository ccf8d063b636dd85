/*
 * Softmax and cross-entropy, one row at a time; the gradient may replace the logits.  The results
 * stay in struct cpu until compute_loss_wait.  Labels have been checked by compute_operations.c.
 */
#include "worker/compute/cpu/cpu.h"

#include <math.h>

/* Index of the first element equal to `value`; `classes` if there is none. */
static size_t first_index(const float *row, float value, size_t classes)
{
    size_t j = 0;

    while (j < classes && row[j] != value)
        j++;
    return j;
}

/* The loss of one row; gradient (NULL: none) receives the row's gradient, scaled by 1 / rows, and
 * may be the row. */
static double row_loss(const struct sequence_kernels *kernels, const float *row, float *gradient,
                       size_t label, size_t classes, size_t rows, bool *ret_correct)
{
    float max = kernels->largest(row, classes);
    double margin = (double)max - (double)row[label]; /* before the gradient overwrites it */
    double sum;

    *ret_correct = row[label] == max && first_index(row, max, classes) == label;
    sum = kernels->exponential_sum(row, max, gradient, classes);
    if (gradient) {
        kernels->scale(gradient, (float)(1.0 / (sum * (double)rows)), gradient, classes);
        gradient[label] -= (float)(1.0 / (double)rows);
    }
    return log(sum) + margin;
}

enum status cpu_softmax_cross_entropy(struct compute *c, const void *logits, const int32_t *labels,
                                      void *dlogits, size_t rows, size_t classes, size_t stride,
                                      struct error *err)
{
    struct cpu *cpu = (struct cpu *)c;
    const float *row = logits;
    float *gradient = dlogits;
    double loss = 0.0;

    (void)err;
    cpu->correct = 0;
    for (size_t i = 0; i < rows; i++, row += stride) {
        bool correct;

        loss += row_loss(cpu->sequence, row, gradient, (size_t)labels[i], classes, rows, &correct);
        cpu->correct += correct;
        if (gradient)
            gradient += stride;
    }
    cpu->loss = loss / (double)rows;
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
