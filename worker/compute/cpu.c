/*
 * cpu: the reference device.  OpenBLAS for the three matrix products, the loops of cpu_kernels.c
 * for the rest; device memory is host memory, and every call has finished when it returns.
 * Limits: a dimension is at most INT_MAX, OpenBLAS's index.  Threads: one caller; OpenBLAS has its
 * own threads behind the products.
 */
#include "common/base/memory.h"
#include "worker/compute/compute_ops.h"
#include "worker/compute/cpu_kernels.h"
#include "worker/compute/cpu_norm.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 1024u

struct cpu {
    struct compute base;
    const struct cpu_kernels *kernels;
    char text[96]; /* compute_name */
    double loss;   /* of the last softmax_cross_entropy */
    size_t correct;
};

static void cpu_close(struct compute *c)
{
    free(c);
}

static const char *cpu_describe(const struct compute *c)
{
    return ((const struct cpu *)c)->text;
}

static enum status cpu_alloc(struct compute *c, size_t count, const char *what, float **ret,
                             struct error *err)
{
    (void)c;
    return mem_calloc_aligned(count, sizeof(float), what, ret, err);
}

static enum status cpu_alloc_values(struct compute *c, size_t count, const char *what, void **ret,
                                    struct error *err)
{
    float *values = NULL;
    enum status status = cpu_alloc(c, count, what, &values, err);

    if (status == STATUS_OK)
        *ret = values;
    return status;
}

static enum status cpu_alloc_host(struct compute *c, size_t count, float **ret, struct error *err)
{
    return cpu_alloc(c, count, "tensor memory", ret, err);
}

static void cpu_free(struct compute *c, void *memory)
{
    (void)c;
    free(memory);
}

static void cpu_free_host(struct compute *c, float *memory)
{
    cpu_free(c, memory);
}

static enum status cpu_copy(struct compute *c, float *to, const float *from, size_t count,
                            struct error *err)
{
    (void)c;
    (void)err;
    if (to != from)
        memcpy(to, from, count * sizeof(float));
    return STATUS_OK;
}

static enum status cpu_upload_values(struct compute *c, void *device, const float *host,
                                     size_t count, struct error *err)
{
    return cpu_copy(c, device, host, count, err);
}

static enum status cpu_download_values(struct compute *c, float *host, const void *device,
                                       size_t count, struct error *err)
{
    return cpu_copy(c, host, device, count, err);
}

static enum status cpu_nothing_to_wait_for(struct compute *c, struct error *err)
{
    (void)c;
    (void)err;
    return STATUS_OK;
}

/* C (m, n) = op(A) op(B) + beta C, row-major and dense. */
static void product(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
                    const float *a, const float *b, float beta, float *c)
{
    assert(m <= INT_MAX && n <= INT_MAX && k <= INT_MAX);
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
                transpose_b ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f,
                a, (blasint)(transpose_a ? m : k), b, (blasint)(transpose_b ? k : n), beta, c,
                (blasint)n);
}

static enum status cpu_linear_forward(struct compute *c, const struct linear *l, const void *x,
                                      const void *residual, void *pre, void *y, size_t rows,
                                      struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;

    (void)pre;
    if (residual || !l->bias || l->activation == ACTIVATION_GELU)
        return error_set(err, STATUS_UNSUPPORTED, "linear: residual, no bias, GELU");
    product(false, true, rows, l->out, l->in, x, l->weight, 0.0f, y);
    cpu->kernels->add_bias(y, l->bias, rows, l->out, l->activation == ACTIVATION_RELU);
    return STATUS_OK;
}

static enum status cpu_activation_backward(struct compute *c, enum activation activation,
                                           const void *kept, void *dy, size_t count,
                                           struct error *err)
{
    if (activation == ACTIVATION_GELU)
        return error_set(err, STATUS_UNSUPPORTED, "GELU");
    ((const struct cpu *)c)->kernels->relu_backward(kept, dy, count);
    return STATUS_OK;
}

static enum status cpu_linear_backward_weight(struct compute *c, const struct linear *l,
                                              const void *x, const void *dy, size_t rows,
                                              bool accumulate, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;

    (void)err;
    product(true, false, l->out, l->in, rows, dy, x, accumulate ? 1.0f : 0.0f, l->dweight);
    if (l->dbias)
        cpu->kernels->column_sums(dy, l->dbias, rows, l->out, accumulate);
    return STATUS_OK;
}

static enum status cpu_linear_backward_input(struct compute *c, const struct linear *l,
                                             const void *dy, void *dx, size_t rows, bool accumulate,
                                             struct error *err)
{
    (void)c;
    (void)err;
    product(false, false, rows, l->in, l->out, dy, l->weight, accumulate ? 1.0f : 0.0f, dx);
    return STATUS_OK;
}

static enum status check_norm(const struct batch_norm *n, const void *residual, struct error *err)
{
    if (n->inner != 1 || residual)
        return error_set(err, STATUS_UNSUPPORTED, "batch normalisation of images");
    return STATUS_OK;
}

static enum status cpu_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                          const void *residual, void *y, size_t batch,
                                          struct error *err)
{
    enum status status = check_norm(n, residual, err);

    (void)c;
    if (status == STATUS_OK)
        cpu_norm_forward(n, x, y, batch);
    return status;
}

static enum status cpu_batch_norm_evaluate(struct compute *c, const struct batch_norm *n,
                                           const void *x, const void *residual, void *y,
                                           size_t batch, struct error *err)
{
    enum status status = check_norm(n, residual, err);

    (void)c;
    if (status == STATUS_OK)
        cpu_norm_evaluate(n, x, y, batch);
    return status;
}

static enum status cpu_batch_norm_backward(struct compute *c, const struct batch_norm *n,
                                           const void *x, const void *dy, void *dx, size_t batch,
                                           bool accumulate_parameters, struct error *err)
{
    enum status status = check_norm(n, NULL, err);

    (void)c;
    if (status == STATUS_OK)
        cpu_norm_backward(n, x, dy, dx, batch, accumulate_parameters);
    return status;
}

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

static enum status cpu_softmax_cross_entropy(struct compute *c, const void *logits,
                                             const int32_t *labels, void *dlogits, size_t batch,
                                             size_t classes, struct error *err)
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
        double sum = row_exp_sum(row, row[best], gradient, classes);

        loss += log(sum) + ((double)row[best] - (double)row[label]);
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

static enum status cpu_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                                 struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;

    (void)err;
    *ret_loss = cpu->loss;
    *ret_correct = cpu->correct;
    return STATUS_OK;
}

static const struct compute_ops cpu_ops = {
    .name = "cpu",
    .is_host = true,
    .close = cpu_close,
    .describe = cpu_describe,
    .alloc = cpu_alloc,
    .alloc_values = cpu_alloc_values,
    .free = cpu_free,
    .alloc_host = cpu_alloc_host,
    .free_host = cpu_free_host,
    .upload = cpu_copy,
    .download_start = cpu_copy,
    .download_wait = cpu_nothing_to_wait_for,
    .synchronize = cpu_nothing_to_wait_for,
    .upload_values = cpu_upload_values,
    .download_values = cpu_download_values,
    .activation_backward = cpu_activation_backward,
    .linear_forward = cpu_linear_forward,
    .linear_backward_weight = cpu_linear_backward_weight,
    .linear_backward_input = cpu_linear_backward_input,
    .batch_norm_forward = cpu_batch_norm_forward,
    .batch_norm_evaluate = cpu_batch_norm_evaluate,
    .batch_norm_backward = cpu_batch_norm_backward,
    .softmax_cross_entropy = cpu_softmax_cross_entropy,
    .loss_wait = cpu_loss_wait,
};

enum status compute_cpu_open(unsigned threads, struct compute **ret_compute, struct error *err)
{
    static const struct cpu_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(cpu_kernels);
    struct cpu *cpu = NULL;
    enum status status;

    if (threads == 0 || threads > THREADS_MAX)
        return error_set(err, STATUS_INVALID, "%u threads: at least 1, at most %u", threads,
                         THREADS_MAX);
    status = mem_calloc(1, sizeof(*cpu), "cpu device", &cpu, err);
    if (status != STATUS_OK)
        return status;
    openblas_set_num_threads((int)threads);
    cpu->base.ops = &cpu_ops;
    cpu->kernels = tables[simd_level()];
    (void)snprintf(cpu->text, sizeof(cpu->text), "cpu (OpenBLAS %s, %d thread%s)",
                   openblas_get_corename(), openblas_get_num_threads(),
                   openblas_get_num_threads() == 1 ? "" : "s");
    *ret_compute = &cpu->base;
    return STATUS_OK;
}
