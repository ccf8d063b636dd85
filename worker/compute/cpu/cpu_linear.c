/*
 * Linear layers: OpenBLAS for the three matrix products, one pass over the result for bias,
 * activation and residual.  Rows are dense: the stride is always `out`.
 */
#include "worker/compute/cpu/cpu.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>

/* c (m, n) = op(a) op(b) + beta c, row-major and dense; op optionally transposes. */
static void cpu_product(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
                        const float *a, const float *b, float beta, float *c)
{
    assert(m <= INT_MAX && n <= INT_MAX && k <= INT_MAX);
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
                transpose_b ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f,
                a, (blasint)(transpose_a ? m : k), b, (blasint)(transpose_b ? k : n), beta, c,
                (blasint)n);
}

enum status cpu_linear_forward(struct compute *c, const struct linear *l, const void *x,
                               const void *residual, void *pre, void *y, size_t rows,
                               struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    bool gelu = l->activation == ACTIVATION_GELU;
    bool relu = l->activation == ACTIVATION_RELU;

    (void)err;
    assert(linear_stride(l) == l->out);
    cpu_product(false, true, rows, l->out, l->in, x, l->weight, 0.0f, gelu ? pre : y);
    if (gelu)
        cpu->sequence->gelu(pre, l->bias, residual, y, rows, l->out);
    else if (l->bias || residual || relu)
        cpu->kernels->epilogue(y, l->bias, residual, rows, l->out, relu);
    return STATUS_OK;
}

enum status cpu_activation_backward(struct compute *c, enum activation activation,
                                    const void *saved, void *dy, size_t count, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;

    (void)err;
    if (activation == ACTIVATION_GELU)
        cpu->sequence->gelu_backward(saved, dy, count);
    else
        cpu->kernels->relu_backward(saved, dy, count);
    return STATUS_OK;
}

enum status cpu_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                       const void *dy, size_t rows, bool accumulate,
                                       struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;

    (void)err;
    cpu_product(true, false, l->out, l->in, rows, dy, x, accumulate ? 1.0f : 0.0f, l->dweight);
    if (l->dbias)
        cpu->kernels->column_sums(dy, l->dbias, rows, l->out, accumulate);
    return STATUS_OK;
}

enum status cpu_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                      void *dx, size_t rows, bool accumulate, struct error *err)
{
    cpu_product(false, false, rows, l->in, l->out, dy, l->weight, accumulate ? 1.0f : 0.0f, dx);
    if (l->previous == ACTIVATION_NONE)
        return STATUS_OK;
    return cpu_activation_backward(c, l->previous, l->previous_saved, dx, rows * l->in, err);
}
