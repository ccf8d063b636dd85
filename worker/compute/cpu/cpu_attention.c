/*
 * Causal self-attention, one block of queries of one head of one sample at a time on each thread.
 * Scratch memory holds the block's scores against all visible keys, so that no full (positions,
 * positions) matrix exists; backward recomputes the probabilities from the saved logarithms of the
 * rows' sums.  A head's queries, keys and values lie within the rows that the preceding linear
 * layer writes; they are copied, because dense matrices multiply faster.
 *
 * Source: Dao et al. 2022 (FlashAttention), without its running maximum: a row of scores fits.
 */
#include "common/base/memory.h"
#include "worker/compute/cpu/cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#define BLOCK 64 /* queries */

struct plan {
    size_t head;   /* floats of one head of one sample: positions * size, rounded up */
    size_t rows;   /* of a block: BLOCK * size */
    size_t scores; /* of a block */
    float *memory; /* (threads, floats_of) */
};

/* Scratch memory of a thread; each (positions, size) but where stated. */
struct scratch {
    float *q; /* scaled by 1 / sqrt(size) */
    float *k, *v, *dy, *dk, *dv;
    float *rows;               /* (BLOCK, size) */
    float *scores, *gradients; /* (BLOCK, stride) */
};

static size_t floats_of(const struct plan *plan)
{
    return 6 * plan->head + plan->rows + 2 * plan->scores;
}

enum status cpu_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                  struct error *err)
{
    size_t threads = ((const struct cpu *)c)->threads;
    size_t size = a->width / a->heads;
    struct plan *plan = NULL;
    enum status status = mem_calloc(1, sizeof(*plan), "attention", &plan, err);

    (void)max_batch;
    if (status != STATUS_OK)
        return status;
    a->plan = plan;
    plan->head = size_round_up(a->positions * size, MEM_LINE_FLOATS);
    plan->rows = BLOCK * size;
    plan->scores = BLOCK * size_round_up(a->positions, SCORE_LANES);
    status = mem_calloc_aligned(threads * floats_of(plan), sizeof(float), "attention's scratch",
                                &plan->memory, err);
    if (status != STATUS_OK)
        cpu_attention_release(c, a);
    return status;
}

void cpu_attention_release(struct compute *c, struct attention *a)
{
    struct plan *plan = a->plan;

    (void)c;
    free(plan->memory);
    free(plan);
    a->plan = NULL;
}

/* That of the calling thread of a parallel loop. */
static struct scratch own_scratch(const struct attention *a)
{
    const struct plan *plan = a->plan;
    float *at = plan->memory + matrix_thread() * floats_of(plan);
    float *rows = at + 6 * plan->head;

    return (struct scratch){
        .q = at,
        .k = at + plan->head,
        .v = at + 2 * plan->head,
        .dy = at + 3 * plan->head,
        .dk = at + 4 * plan->head,
        .dv = at + 5 * plan->head,
        .rows = rows,
        .scores = rows + plan->rows,
        .gradients = rows + plan->rows + plan->scores,
    };
}

/* Iteration i of the loop over all heads of all samples. */
struct head {
    size_t positions, size, width;
    float factor; /* 1 / sqrt(size) */
    size_t qkv;   /* where its queries begin in qkv: rows of 3 * width, keys at + width */
    size_t y;     /* where it begins in y: rows of width */
};

static struct head head_at(const struct attention *a, size_t i)
{
    size_t size = a->width / a->heads;
    size_t row = i / a->heads * a->positions;
    size_t column = i % a->heads * size;

    return (struct head){
        .positions = a->positions,
        .size = size,
        .width = a->width,
        .factor = (float)(1.0 / sqrt((double)size)),
        .qkv = row * 3 * a->width + column,
        .y = row * a->width + column,
    };
}

/* to (h->positions, h->size) = factor from; strides in floats. */
static void copy_rows(const struct cpu *cpu, const struct head *h, const float *from,
                      size_t from_stride, float factor, float *to, size_t to_stride)
{
    for (size_t i = 0; i < h->positions; i++)
        cpu->sequence->scale(from + i * from_stride, factor, to + i * to_stride, h->size);
}

static void copy_qkv(const struct cpu *cpu, const struct head *h, const float *qkv,
                     const struct scratch *s)
{
    size_t stride = 3 * h->width;
    const float *q = qkv + h->qkv;

    copy_rows(cpu, h, q, stride, h->factor, s->q, h->size);
    copy_rows(cpu, h, q + h->width, stride, 1.0f, s->k, h->size);
    copy_rows(cpu, h, q + 2 * h->width, stride, 1.0f, s->v, h->size);
}

static struct matrix matrix_of(const float *data, size_t stride)
{
    return (struct matrix){data, stride, false};
}

static struct matrix transposed(const float *data, size_t stride)
{
    return (struct matrix){data, stride, true};
}

/* The block of queries that begins at `at`. */
static struct score_rows rows_at(const struct head *h, size_t at)
{
    size_t rows = h->positions - at < BLOCK ? h->positions - at : BLOCK;

    return (struct score_rows){.rows = rows,
                               .first = at,
                               .keys = at + rows,
                               .stride = size_round_up(at + rows, SCORE_LANES)};
}

/* out (r->rows, r->keys): the block's rows of `left` against all rows of `right` that its last one
 * uses. */
static enum status multiply_rows(const struct head *h, const struct score_rows *r,
                                 const float *left, const float *right, float *out)
{
    return matrix_product(r->rows, r->keys, h->size, matrix_of(left + r->first * h->size, h->size),
                          transposed(right, h->size), false, out, r->stride, NULL);
}

static enum status head_forward(const struct cpu *cpu, const struct scratch *s,
                                const struct head *h, float *log_sums, float *y)
{
    float inverse_sums[BLOCK];
    enum status status = STATUS_OK;

    for (size_t at = 0; at < h->positions && status == STATUS_OK; at += BLOCK) {
        struct score_rows r = rows_at(h, at);

        status = multiply_rows(h, &r, s->q, s->k, s->scores);
        if (status != STATUS_OK)
            break;
        cpu->sequence->softmax_rows(&r, s->scores, log_sums + at, inverse_sums);
        status = matrix_product(r.rows, h->size, r.keys, matrix_of(s->scores, r.stride),
                                matrix_of(s->v, h->size), false, s->rows, h->size, NULL);
        for (size_t i = 0; i < r.rows; i++)
            cpu->sequence->scale(s->rows + i * h->size, inverse_sums[i], y + (at + i) * h->width,
                                 h->size);
    }
    return status;
}

static enum status attention_status(enum status status, struct error *err)
{
    return status == STATUS_OK
               ? STATUS_OK
               : error_set(err, status, "oneDNN does not multiply matrices of attention");
}

enum status cpu_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                  float *log_sums, void *y, size_t batch, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    atomic_int status = STATUS_OK;

    matrix_use_threads(cpu->threads);
    PARALLEL_LOOP(batch * a->positions * a->width)
    for (size_t i = 0; i < batch * a->heads; i++) {
        struct scratch s = own_scratch(a);
        struct head h = head_at(a, i);
        enum status own;

        copy_qkv(cpu, &h, qkv, &s);
        own = head_forward(cpu, &s, &h, log_sums + i * a->positions, (float *)y + h.y);
        if (own != STATUS_OK)
            atomic_store(&status, (int)own);
    }
    return attention_status((enum status)atomic_load(&status), err);
}

/* The block's probabilities, and the gradients of its scores. */
static enum status block_gradients(const struct cpu *cpu, const struct scratch *s,
                                   const struct head *h, const float *log_sums, const float *y,
                                   const struct score_rows *r)
{
    float shifts[BLOCK];
    enum status status = multiply_rows(h, r, s->q, s->k, s->scores);

    if (status == STATUS_OK)
        status = multiply_rows(h, r, s->dy, s->v, s->gradients);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < r->rows; i++)
        shifts[i] = cpu->sequence->dot(y + (r->first + i) * h->width,
                                       s->dy + (r->first + i) * h->size, h->size);
    cpu->sequence->softmax_rows_backward(r, s->scores, s->gradients, log_sums + r->first, shifts);
    return STATUS_OK;
}

/* dq is the head's in dqkv.  The last block comes first: it uses all keys, so it sets their
 * gradients and the others add. */
static enum status head_backward(const struct cpu *cpu, const struct scratch *s,
                                 const struct head *h, const float *log_sums, const float *y,
                                 float *dq)
{
    size_t stride = 3 * h->width;
    enum status status = STATUS_OK;

    for (size_t block = (h->positions + BLOCK - 1) / BLOCK; block-- > 0 && status == STATUS_OK;) {
        struct score_rows r = rows_at(h, block * BLOCK);
        size_t first = r.first * h->size;
        bool add = r.keys < h->positions;

        status = block_gradients(cpu, s, h, log_sums, y, &r);
        if (status == STATUS_OK)
            status = matrix_product(r.keys, h->size, r.rows, transposed(s->scores, r.stride),
                                    matrix_of(s->dy + first, h->size), add, s->dv, h->size, NULL);
        if (status == STATUS_OK)
            status = matrix_product(r.keys, h->size, r.rows, transposed(s->gradients, r.stride),
                                    matrix_of(s->q + first, h->size), add, s->dk, h->size, NULL);
        if (status == STATUS_OK)
            status = matrix_product(r.rows, h->size, r.keys, matrix_of(s->gradients, r.stride),
                                    matrix_of(s->k, h->size), false, s->rows, h->size, NULL);
        for (size_t i = 0; i < r.rows; i++)
            cpu->sequence->scale(s->rows + i * h->size, h->factor, dq + (r.first + i) * stride,
                                 h->size);
    }
    copy_rows(cpu, h, s->dk, h->size, 1.0f, dq + h->width, stride);
    copy_rows(cpu, h, s->dv, h->size, 1.0f, dq + 2 * h->width, stride);
    return status;
}

enum status cpu_attention_backward(struct compute *c, const struct attention *a, const void *qkv,
                                   const float *log_sums, const void *y, const void *dy, void *dqkv,
                                   size_t batch, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    atomic_int status = STATUS_OK;

    matrix_use_threads(cpu->threads);
    PARALLEL_LOOP(batch * a->positions * a->width)
    for (size_t i = 0; i < batch * a->heads; i++) {
        struct scratch s = own_scratch(a);
        struct head h = head_at(a, i);
        enum status own;

        copy_qkv(cpu, &h, qkv, &s);
        copy_rows(cpu, &h, (const float *)dy + h.y, h.width, 1.0f, s.dy, h.size);
        own = head_backward(cpu, &s, &h, log_sums + i * a->positions, (const float *)y + h.y,
                            (float *)dqkv + h.qkv);
        if (own != STATUS_OK)
            atomic_store(&status, (int)own);
    }
    return attention_status((enum status)atomic_load(&status), err);
}
