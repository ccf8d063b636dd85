/*
 * product_kernels: a matrix product on one thread, one table per vector width
 * (common/tensor/simd.h), for operations that build their operands themselves.  Both operands are
 * first packed into panels: for each step of k, `rows` elements (of a) or `columns` elements (of b)
 * side by side, so that a tile of the result stays in registers while the panels stream through.
 * Sums run in the order of k in float32, with fused multiply-add where the width has it: the same
 * bits in every run, but not at every width.
 *
 * Source: Goto and van de Geijn 2008.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_PRODUCT_KERNELS_H
#define SPARRING_WORKER_COMPUTE_CPU_PRODUCT_KERNELS_H

#include "common/tensor/simd.h"

#include <stdbool.h>
#include <stddef.h>

struct product_kernels {
    size_t rows, columns; /* of a tile: widths of the panels of a and of b */
    /* Element (i, p), i < count, p < k, is in[i * in_row + p], with `along` in[p * in_row + i]; out
     * receives panels of `width`, product_packed(count, k, width) floats. */
    void (*pack)(const float *in, size_t in_row, bool along, size_t count, size_t k, size_t width,
                 float *out);
    /* c (m, n; rows c_row apart) = or += a (m, k) * b (k, n). b is packed; a is packed if a_row is
     * 0, else its rows, contiguous along k, are a_row apart. */
    void (*multiply)(size_t m, size_t n, size_t k, const float *a, size_t a_row, const float *b,
                     bool accumulate, float *c, size_t c_row);
};

static inline size_t product_packed(size_t count, size_t k, size_t width)
{
    return (count + width - 1) / width * width * k;
}

extern const struct product_kernels product_kernels_baseline;
#ifdef SPARRING_SIMD_X86
extern const struct product_kernels product_kernels_avx2;
extern const struct product_kernels product_kernels_avx512;
#endif

#endif
