/*
 * Causal self-attention, one block of queries of one head of one sample at a time.  Scratch memory
 * holds the block's scores against all visible keys, so that no full (positions, positions) matrix
 * exists; backward recomputes the probabilities from the saved logarithms of the rows' sums.
 * Queries, keys and values are read in the layout that the preceding linear layer writes.
 *
 * Source: Dao et al. 2022 (FlashAttention), without its running maximum: a row of scores fits.
 */
#include "common/base/memory.h"
#include "worker/compute/cpu/cpu.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

#define BLOCK 64 /* queries */

struct plan {
    size_t stride;    /* positions, rounded up to whole lanes */
    float *scores;    /* (BLOCK, stride) */
    float *gradients; /* (BLOCK, stride), of the scores */
};

/* A matrix inside a larger one: `stride` elements from row to row. */
struct panel {
    const float *data;
    size_t stride;
};

enum status cpu_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                  struct error *err)
{
    struct plan *plan = NULL;
    enum status status = mem_calloc(1, sizeof(*plan), "attention", &plan, err);

    (void)max_batch;
    if (status != STATUS_OK)
        return status;
    a->plan = plan;
    plan->stride = (a->positions + SCORE_LANES - 1) / SCORE_LANES * SCORE_LANES;
    status = mem_calloc_aligned(BLOCK * plan->stride, sizeof(float), "attention's scores",
                                &plan->scores, err);
    if (status == STATUS_OK)
        status = mem_calloc_aligned(BLOCK * plan->stride, sizeof(float),
                                    "attention's score gradients", &plan->gradients, err);
    if (status != STATUS_OK)
        cpu_attention_release(c, a);
    return status;
}

void cpu_attention_release(struct compute *c, struct attention *a)
{
    struct plan *plan = a->plan;

    (void)c;
    free(plan->scores);
    free(plan->gradients);
    free(plan);
    a->plan = NULL;
}

/* out (m, n; stride) = factor a b^T, or a b, or a^T b, + beta out. */
static void multiply_nt(size_t m, size_t n, size_t k, float factor, struct panel a, struct panel b,
                        float *out, size_t stride)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)m, (blasint)n, (blasint)k, factor,
                a.data, (blasint)a.stride, b.data, (blasint)b.stride, 0.0f, out, (blasint)stride);
}

static void multiply_nn(size_t m, size_t n, size_t k, struct panel a, struct panel b, float *out,
                        size_t stride)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f,
                a.data, (blasint)a.stride, b.data, (blasint)b.stride, 0.0f, out, (blasint)stride);
}

static void multiply_tn(size_t m, size_t n, size_t k, struct panel a, struct panel b, float beta,
                        float *out, size_t stride)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f,
                a.data, (blasint)a.stride, b.data, (blasint)b.stride, beta, out, (blasint)stride);
}

/* One head of one sample: panels in qkv (or dqkv) and y (or dy), all with `positions` rows. */
struct head {
    size_t positions, size; /* size: columns */
    float factor;           /* 1 / sqrt(size) */
    struct panel q, k, v;
};

static struct head head_at(const struct attention *a, const float *qkv, size_t sample, size_t head)
{
    size_t size = a->width / a->heads;
    size_t stride = 3 * a->width;
    const float *q = qkv + sample * a->positions * stride + head * size;

    return (struct head){
        .positions = a->positions,
        .size = size,
        .factor = (float)(1.0 / sqrt((double)size)),
        .q = {q, stride},
        .k = {q + a->width, stride},
        .v = {q + 2 * a->width, stride},
    };
}

static struct panel from_row(struct panel p, size_t row)
{
    return (struct panel){p.data + row * p.stride, p.stride};
}

/* The block of queries that begins at `at`. */
static struct score_rows rows_at(const struct plan *plan, const struct head *h, size_t at)
{
    size_t rows = h->positions - at < BLOCK ? h->positions - at : BLOCK;

    return (struct score_rows){
        .rows = rows, .first = at, .keys = at + rows, .stride = plan->stride};
}

/* The block's scores against all keys that its last row uses. */
static void block_scores(const struct plan *plan, const struct head *h, const struct score_rows *r)
{
    multiply_nt(r->rows, r->keys, h->size, h->factor, from_row(h->q, r->first), h->k, plan->scores,
                r->stride);
}

static void head_forward(const struct cpu *cpu, const struct plan *plan, const struct head *h,
                         float *log_sums, float *y, size_t stride)
{
    float inverse_sums[BLOCK];

    for (size_t at = 0; at < h->positions; at += BLOCK, y += BLOCK * stride) {
        struct score_rows r = rows_at(plan, h, at);
        struct panel exponentials = {plan->scores, r.stride};

        block_scores(plan, h, &r);
        cpu->sequence->softmax_rows(&r, plan->scores, log_sums + at, inverse_sums);
        multiply_nn(r.rows, h->size, r.keys, exponentials, h->v, y, stride);
        for (size_t i = 0; i < r.rows; i++)
            cpu->sequence->scale(y + i * stride, inverse_sums[i], h->size);
    }
}

enum status cpu_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                  float *log_sums, void *y, size_t batch, struct error *err)
{
    float *out = y;

    (void)err;
    for (size_t i = 0; i < batch * a->heads; i++) {
        size_t sample = i / a->heads;
        struct head h = head_at(a, qkv, sample, i % a->heads);

        head_forward((const struct cpu *)c, a->plan, &h, log_sums + i * a->positions,
                     out + sample * a->positions * a->width + i % a->heads * h.size, a->width);
    }
    return STATUS_OK;
}

struct head_gradients {
    const float *y, *dy; /* (positions, size), width from row to row */
    size_t width;
    float *dq, *dk, *dv; /* likewise, 3 * width */
};

/* The block's probabilities, and the gradients of its scores. */
static void block_gradients(const struct cpu *cpu, const struct plan *plan, const struct head *h,
                            const float *log_sums, const struct head_gradients *g,
                            const struct score_rows *r)
{
    const float *y = g->y + r->first * g->width;
    struct panel dy = {g->dy + r->first * g->width, g->width};
    float shifts[BLOCK];

    block_scores(plan, h, r);
    multiply_nt(r->rows, r->keys, h->size, 1.0f, dy, h->v, plan->gradients, r->stride);
    for (size_t i = 0; i < r->rows; i++)
        shifts[i] = cpu->sequence->dot(y + i * g->width, dy.data + i * g->width, h->size);
    cpu->sequence->softmax_rows_backward(r, plan->scores, plan->gradients, log_sums + r->first,
                                         shifts, h->factor);
}

/* Process the last block first: it uses all keys, so it sets their gradients and the others add. */
static void head_backward(const struct cpu *cpu, const struct plan *plan, const struct head *h,
                          const float *log_sums, const struct head_gradients *g)
{
    size_t stride = 3 * g->width;

    for (size_t block = (h->positions + BLOCK - 1) / BLOCK; block-- > 0;) {
        struct score_rows r = rows_at(plan, h, block * BLOCK);
        float beta = r.keys == h->positions ? 0.0f : 1.0f;
        struct panel probabilities = {plan->scores, r.stride};
        struct panel gradients = {plan->gradients, r.stride};
        struct panel dy = {g->dy + r.first * g->width, g->width};

        block_gradients(cpu, plan, h, log_sums, g, &r);
        multiply_tn(r.keys, h->size, r.rows, probabilities, dy, beta, g->dv, stride);
        multiply_nn(r.rows, h->size, r.keys, gradients, h->k, g->dq + r.first * stride, stride);
        multiply_tn(r.keys, h->size, r.rows, gradients, from_row(h->q, r.first), beta, g->dk,
                    stride);
    }
}

enum status cpu_attention_backward(struct compute *c, const struct attention *a, const void *qkv,
                                   const float *log_sums, const void *y, const void *dy, void *dqkv,
                                   size_t batch, struct error *err)
{
    (void)err;
    for (size_t i = 0; i < batch * a->heads; i++) {
        size_t sample = i / a->heads;
        struct head h = head_at(a, qkv, sample, i % a->heads);
        size_t first = sample * a->positions * a->width + i % a->heads * h.size;
        float *dq = (float *)dqkv + sample * a->positions * 3 * a->width + i % a->heads * h.size;
        struct head_gradients g = {
            .y = (const float *)y + first,
            .dy = (const float *)dy + first,
            .width = a->width,
            .dq = dq,
            .dk = dq + a->width,
            .dv = dq + 2 * a->width,
        };

        head_backward((const struct cpu *)c, a->plan, &h, log_sums + i * a->positions, &g);
    }
    return STATUS_OK;
}
