/*
 * cpu_kernels: each kernel is one pass over memory, compiled once per vector width.  Sums run over
 * the rows in order, so every width gives the same bits.  ReLU propagates NaN forward and backward,
 * as in PyTorch, so that divergence stays visible.
 */
#include "worker/compute/cpu/cpu_kernels.h"

#define COLUMN_BLOCK 512 /* floats: 2 KiB of running sums stay in the first-level cache */

static void epilogue(float *y, const float *bias, const float *residual, size_t batch, size_t out,
                     bool relu)
{
    for (size_t row = 0; row < batch; row++, y += out) {
        SIMD_LOOP
        for (size_t j = 0; j < out; j++) {
            float value = y[j];

            if (bias)
                value += bias[j];
            if (relu)
                value = value < 0.0f ? 0.0f : value;
            if (residual)
                value += residual[row * out + j];
            y[j] = value;
        }
    }
}

static void relu_backward(const float *y, float *dy, size_t count)
{
    SIMD_LOOP
    for (size_t i = 0; i < count; i++)
        dy[i] = y[i] <= 0.0f ? 0.0f : dy[i];
}

static void add_row(float *sums, const float *row, size_t count)
{
    SIMD_LOOP
    for (size_t j = 0; j < count; j++)
        sums[j] += row[j];
}

static void column_sums(const float *dy, float *sums, size_t batch, size_t out, bool accumulate)
{
    float block[COLUMN_BLOCK];

    for (size_t at = 0; at < out; at += COLUMN_BLOCK) {
        size_t length = out - at < COLUMN_BLOCK ? out - at : COLUMN_BLOCK;

        for (size_t j = 0; j < length; j++)
            block[j] = 0.0f;
        for (size_t row = 0; row < batch; row++)
            add_row(block, dy + row * out + at, length);
        for (size_t j = 0; j < length; j++)
            sums[at + j] = accumulate ? sums[at + j] + block[j] : block[j];
    }
}

const struct cpu_kernels SIMD_NAME(cpu_kernels) = {
    .epilogue = epilogue,
    .relu_backward = relu_backward,
    .column_sums = column_sums,
};
