/*
 * emulator_wmma: products of 16 x 16 tiles by a warp, as <mma.h> has them.  Which lane holds which
 * element is not specified there, and here it is another than on any GPU.
 */
#ifndef SPARRING_TESTS_EMULATOR_WMMA_H
#define SPARRING_TESTS_EMULATOR_WMMA_H

#include "tests/support/cuda_emulator/cuda_emulator.h"

#include <cstdlib>

namespace nvcuda
{
namespace wmma
{

struct row_major {
};
struct col_major {
};
struct matrix_a {
};
struct matrix_b {
};
struct accumulator {
};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
    static const int num_elements = 8;
    T x[num_elements];
};

/* Element i of this lane stands in this row and column. */
static inline unsigned row_of(int i)
{
    return (cuda_emulator::lane() * 8 + (unsigned)i) / 16;
}

static inline unsigned column_of(int i)
{
    return (cuda_emulator::lane() * 8 + (unsigned)i) % 16;
}

static inline void check(const void *at, unsigned stride, size_t size)
{
    if (reinterpret_cast<uintptr_t>(at) % 32 != 0 || stride * size % 16 != 0)
        abort(); /* the rules of wmma */
}

template <typename Use, typename T, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &f, const T *at, unsigned stride)
{
    check(at, stride, sizeof(T));
    for (int i = 0; i < 8; i++)
        f.x[i] = std::is_same<Layout, row_major>::value ? at[row_of(i) * stride + column_of(i)]
                                                        : at[column_of(i) * stride + row_of(i)];
    __syncwarp();
}

template <typename T>
void load_matrix_sync(fragment<accumulator, 16, 16, 16, T> &f, const T *at, unsigned stride,
                      layout_t layout)
{
    check(at, stride, sizeof(T));
    for (int i = 0; i < 8; i++)
        f.x[i] = layout == mem_row_major ? at[row_of(i) * stride + column_of(i)]
                                         : at[column_of(i) * stride + row_of(i)];
    __syncwarp();
}

template <typename T>
void store_matrix_sync(T *at, const fragment<accumulator, 16, 16, 16, T> &f, unsigned stride,
                       layout_t layout)
{
    check(at, stride, sizeof(T));
    for (int i = 0; i < 8; i++)
        at[layout == mem_row_major ? row_of(i) * stride + column_of(i)
                                   : column_of(i) * stride + row_of(i)] = f.x[i];
    __syncwarp();
}

template <typename T> void fill_fragment(fragment<accumulator, 16, 16, 16, T> &f, const T &value)
{
    for (int i = 0; i < 8; i++)
        f.x[i] = value;
}

template <typename T, typename A, typename B>
void mma_sync(fragment<accumulator, 16, 16, 16, float> &d,
              const fragment<matrix_a, 16, 16, 16, T, A> &a,
              const fragment<matrix_b, 16, 16, 16, T, B> &b,
              const fragment<accumulator, 16, 16, 16, float> &c)
{
    struct both {
        T a[8], b[8];
    } mine;
    void *const *all;

    memcpy(mine.a, a.x, sizeof(mine.a));
    memcpy(mine.b, b.x, sizeof(mine.b));
    all = cuda_emulator::exchange(0xffffffffu, &mine, sizeof(mine), __FILE__, __LINE__);
    for (int i = 0; i < 8; i++) {
        float sum = c.x[i];

        for (unsigned k = 0; k < 16; k++) {
            unsigned in_a = row_of(i) * 16 + k;
            unsigned in_b = k * 16 + column_of(i);

            sum += (float)static_cast<const both *>(all[in_a / 8])->a[in_a % 8] *
                   (float)static_cast<const both *>(all[in_b / 8])->b[in_b % 8];
        }
        d.x[i] = sum;
    }
}

} // namespace wmma
} // namespace nvcuda

#endif
