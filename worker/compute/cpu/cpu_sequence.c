/*
 * Layer normalisation and embedding: the loops are in sequence_kernels.c.  Gradients are cleared
 * first unless they accumulate, since the kernels only add.
 */
#include "worker/compute/cpu/cpu.h"

#include <string.h>

#define ROWS 16 /* of an iteration of a parallel loop */

enum status cpu_layer_norm_forward(struct compute *c, const struct layer_norm *n, const void *x,
                                   void *y, size_t rows, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;

    (void)err;
    PARALLEL_LOOP(rows * n->width)
    for (size_t row = 0; row < rows; row += ROWS) {
        struct layer_norm part = *n;

        part.mean += row;
        part.inverse_std += row;
        cpu->sequence->layer_norm_forward(&part, (const float *)x + row * n->width,
                                          (float *)y + row * n->width,
                                          rows - row < ROWS ? rows - row : ROWS);
    }
    return STATUS_OK;
}

enum status cpu_layer_norm_backward(struct compute *c, const struct layer_norm *n, const void *x,
                                    const void *dy, void *dx, size_t rows, bool accumulate_input,
                                    bool accumulate_parameters, struct error *err)
{
    (void)err;
    if (!accumulate_parameters) {
        memset(n->dweight, 0, n->width * sizeof(float));
        memset(n->dbias, 0, n->width * sizeof(float));
    }
    ((const struct cpu *)c)->sequence->layer_norm_backward(n, x, dy, dx, rows, accumulate_input);
    return STATUS_OK;
}

enum status cpu_embedding_forward(struct compute *c, const struct embedding *e, const float *ids,
                                  void *y, size_t batch, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    float *out = y;

    (void)err;
    for (size_t i = 0; i < batch * e->positions; i++)
        cpu->sequence->sum(out + i * e->width, e->token_weight + (size_t)ids[i] * e->width,
                           e->position_weight + i % e->positions * e->width, e->width);
    return STATUS_OK;
}

enum status cpu_embedding_backward(struct compute *c, const struct embedding *e, const float *ids,
                                   const void *dy, size_t batch, bool accumulate_tokens,
                                   bool accumulate, struct error *err)
{
    const struct cpu *cpu = (const struct cpu *)c;
    const float *gradient = dy;

    (void)err;
    if (!accumulate_tokens)
        memset(e->dtoken_weight, 0, e->vocabulary * e->width * sizeof(float));
    if (!accumulate)
        memset(e->dposition_weight, 0, e->positions * e->width * sizeof(float));
    for (size_t i = 0; i < batch * e->positions; i++, gradient += e->width) {
        cpu->sequence->add(e->dtoken_weight + (size_t)ids[i] * e->width, gradient, e->width);
        cpu->sequence->add(e->dposition_weight + i % e->positions * e->width, gradient, e->width);
    }
    return STATUS_OK;
}
