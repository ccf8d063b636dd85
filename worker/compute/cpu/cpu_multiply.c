/*
 * Matrix products of operations that build their operands.  On processors with wide registers they
 * use the kernels of product_kernels.c on the caller's thread: a block's products are small, and
 * two threads of OpenBLAS took longer for them.  Other processors use OpenBLAS.
 */
#include "worker/compute/cpu/cpu_multiply.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>

/* Offset of packed b: after packed a, aligned.  A whose rows are contiguous along k is not packed.
 */
static size_t packed_b_offset(const struct product_kernels *kernels, size_t m, size_t k,
                              bool a_transposed)
{
    size_t a = a_transposed ? product_packed(m, k, kernels->rows) : 0;

    return (a + IMAGE_CHUNK - 1) / IMAGE_CHUNK * IMAGE_CHUNK;
}

size_t cpu_multiply_scratch(const struct cpu *cpu, size_t m, size_t n, size_t k, bool a_transposed)
{
    if (!cpu->product)
        return 0;
    return packed_b_offset(cpu->product, m, k, a_transposed) +
           product_packed(n, k, cpu->product->columns);
}

static void multiply_packed(const struct product_kernels *kernels, const struct multiplication *p,
                            bool same_a, float *scratch)
{
    const float *a = p->a.transposed ? scratch : p->a.data;
    float *b = scratch + packed_b_offset(kernels, p->m, p->k, p->a.transposed);

    if (p->a.transposed && !same_a)
        kernels->pack(p->a.data, p->a.row, true, p->m, p->k, kernels->rows, scratch);
    kernels->pack(p->b.data, p->b.row, !p->b.transposed, p->n, p->k, kernels->columns, b);
    kernels->multiply(p->m, p->n, p->k, a, p->a.transposed ? 0 : p->a.row, b, p->accumulate, p->c,
                      p->c_row);
}

void cpu_multiply(const struct cpu *cpu, const struct multiplication *p, bool same_a,
                  float *scratch)
{
    assert(p->m <= INT_MAX && p->n <= INT_MAX && p->k <= INT_MAX && p->a.row <= INT_MAX &&
           p->b.row <= INT_MAX && p->c_row <= INT_MAX);
    if (cpu->product) {
        multiply_packed(cpu->product, p, same_a, scratch);
        return;
    }
    cblas_sgemm(CblasRowMajor, p->a.transposed ? CblasTrans : CblasNoTrans,
                p->b.transposed ? CblasTrans : CblasNoTrans, (blasint)p->m, (blasint)p->n,
                (blasint)p->k, 1.0f, p->a.data, (blasint)p->a.row, p->b.data, (blasint)p->b.row,
                p->accumulate ? 1.0f : 0.0f, p->c, (blasint)p->c_row);
}
