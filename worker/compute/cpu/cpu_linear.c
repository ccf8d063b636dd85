/*
 * Linear layers: three matrix products, one pass over the result for bias, activation and residual.
 * Rows are dense: the stride is always `out`.
 */
#include "worker/compute/cpu/cpu.h"

#include <assert.h>

#define CHUNK 8192 /* floats of an iteration of a parallel loop */

/* out (m, n) = a b, or with `add` out + a b, all dense. */
static enum status multiply(const struct cpu *cpu, size_t m, size_t n, size_t k, struct matrix a,
                            struct matrix b, bool add, float *out, struct error *err)
{
    matrix_use_threads(cpu->threads);
    return matrix_product(m, n, k, a, b, add, out, n, err);
}

/* Bias, activation and residual of `rows` rows from row `at` on. */
static void finish_rows(const struct cpu *cpu, const struct linear *l, const float *residual,
                        float *pre, float *y, size_t at, size_t rows)
{
    const float *added = residual ? residual + at * l->out : NULL;

    if (l->activation == ACTIVATION_GELU)
        cpu->sequence->gelu(pre + at * l->out, l->bias, added, y + at * l->out, rows, l->out);
    else if (l->bias || residual || l->activation == ACTIVATION_RELU)
        cpu->kernels->epilogue(y + at * l->out, l->bias, added, rows, l->out,
                               l->activation == ACTIVATION_RELU);
}

enum status cpu_linear_forward(struct compute *c, const struct linear *l, const void *x,
                               const void *residual, void *pre, void *y, size_t rows,
                               struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    bool gelu = l->activation == ACTIVATION_GELU;
    size_t step = l->out < CHUNK ? CHUNK / l->out : 1; /* rows */
    enum status status;

    assert(linear_stride(l) == l->out);
    status = multiply(cpu, rows, l->out, l->in, (struct matrix){x, l->in, false},
                      (struct matrix){l->weight, l->in, true}, false, gelu ? pre : y, err);
    if (status != STATUS_OK)
        return status;
    if (rows * l->out < PARALLEL_MIN) {
        finish_rows(cpu, l, residual, pre, y, 0, rows);
        return STATUS_OK;
    }
    PARALLEL_LOOP(rows * l->out)
    for (size_t row = 0; row < rows; row += step)
        finish_rows(cpu, l, residual, pre, y, row, rows - row < step ? rows - row : step);
    return STATUS_OK;
}

static void pass_back(const struct cpu *cpu, enum activation activation, const float *saved,
                      float *dy, size_t count)
{
    if (activation == ACTIVATION_GELU)
        cpu->sequence->gelu_backward(saved, dy, count);
    else
        cpu->kernels->relu_backward(saved, dy, count);
}

enum status cpu_activation_backward(struct compute *c, enum activation activation,
                                    const void *saved, void *dy, size_t count, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;

    (void)err;
    if (count < PARALLEL_MIN) {
        pass_back(cpu, activation, saved, dy, count);
        return STATUS_OK;
    }
    PARALLEL_LOOP(count)
    for (size_t at = 0; at < count; at += CHUNK)
        pass_back(cpu, activation, (const float *)saved + at, (float *)dy + at,
                  count - at < CHUNK ? count - at : CHUNK);
    return STATUS_OK;
}

enum status cpu_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                       const void *dy, size_t rows, bool accumulate,
                                       struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    enum status status = multiply(cpu, l->out, l->in, rows, (struct matrix){dy, l->out, true},
                                  (struct matrix){x, l->in, false}, accumulate, l->dweight, err);

    if (status == STATUS_OK && l->dbias)
        cpu->kernels->column_sums(dy, l->dbias, rows, l->out, accumulate);
    return status;
}

enum status cpu_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                      void *dx, size_t rows, bool accumulate, struct error *err)
{
    enum status status =
        multiply((const struct cpu *)c, rows, l->in, l->out, (struct matrix){dy, l->out, false},
                 (struct matrix){l->weight, l->in, false}, accumulate, dx, err);

    if (status != STATUS_OK || l->previous == ACTIVATION_NONE)
        return status;
    return cpu_activation_backward(c, l->previous, l->previous_saved, dx, rows * l->in, err);
}
