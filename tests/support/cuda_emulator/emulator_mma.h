/*
 * emulator_mma: the functions of cuda_mma.cuh that are PTX on a GPU, with the layouts of the PTX
 * ISA.  An asynchronous copy is made when its thread waits for it, not earlier.
 */
#ifndef SPARRING_TESTS_EMULATOR_MMA_H
#define SPARRING_TESTS_EMULATOR_MMA_H

#include "tests/support/cuda_emulator/cuda_emulator.h"

#include <cstdlib>

namespace cuda_emulator
{

static inline void expect_aligned(const void *at)
{
    if (reinterpret_cast<uintptr_t>(at) % 16 != 0)
        abort(); /* required by ldmatrix and cp.async */
}

/* ldmatrix: returns the row of each lane. */
static inline void *const *exchange_rows(const void *row, int line)
{
    expect_aligned(row);
    return exchange(0xffffffffu, row, 16, __FILE__, line);
}

template <typename T> static inline float element(const uint32_t *registers, unsigned i)
{
    T value;

    memcpy(&value, reinterpret_cast<const unsigned char *>(registers) + i * sizeof(T),
           sizeof(value));
    return to_float(value);
}

/* TF32 has 10 bits of fraction: the other 13 are ignored. */
template <> inline float element<float>(const uint32_t *registers, unsigned i)
{
    uint32_t bits = registers[i] & 0xffffe000u;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

struct operands {
    uint32_t a[4], b[2];
};

/* Lane 4 g + t has the t-th four bytes of each half of rows g and g + 8 of A and column g of B. */
template <typename T>
void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int line)
{
    const unsigned each = 4 / sizeof(T); /* elements of a register */
    const operands mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    void *const *all = exchange(0xffffffffu, &mine, sizeof(mine), __FILE__, line);
    unsigned g = lane() / 4;
    unsigned t = lane() % 4;

    for (unsigned i = 0; i < 4; i++) {
        unsigned column = 2 * t + i % 2;

        for (unsigned half = 0; half < 2; half++)
            for (unsigned k = 0; k < 4 * each; k++) {
                const operands *left = static_cast<const operands *>(all[4 * g + k / each]);
                const operands *right = static_cast<const operands *>(all[4 * column + k / each]);

                d[i] += element<T>(&left->a[i / 2 + 2 * half], k % each) *
                        element<T>(&right->b[half], k % each);
            }
    }
}

} // namespace cuda_emulator

static inline void load_matrices(uint32_t (&to)[4], const void *row)
{
    void *const *rows = cuda_emulator::exchange_rows(row, __LINE__);
    unsigned lane = cuda_emulator::lane();

    for (unsigned j = 0; j < 4; j++)
        memcpy(&to[j], static_cast<const unsigned char *>(rows[8 * j + lane / 4]) + lane % 4 * 4,
               4);
}

static inline void load_matrices_transposed(uint32_t (&to)[4], const void *row)
{
    void *const *rows = cuda_emulator::exchange_rows(row, __LINE__);
    unsigned lane = cuda_emulator::lane();

    for (unsigned j = 0; j < 4; j++) {
        uint16_t pair[2];

        for (unsigned i = 0; i < 2; i++)
            memcpy(&pair[i],
                   static_cast<const unsigned char *>(rows[8 * j + lane % 4 * 2 + i]) +
                       lane / 4 * sizeof(pair[i]),
                   sizeof(pair[i]));
        memcpy(&to[j], pair, sizeof(to[j]));
    }
}

template <typename T>
static inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                type_tag<T>)
{
    cuda_emulator::multiply<T>(d, a, b0, b1, __LINE__);
}

/* Round to nearest, ties away from zero; infinities and NaNs are kept. */
static inline uint32_t round_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

static inline float exp2_fast(float x)
{
    float y = exp2f(x);

    return y < 0x1p-126f ? 0.0f : y; /* NaN is kept */
}

static inline void copy_async(void *shared, const void *global, bool is_there)
{
    cuda_emulator::expect_aligned(shared);
    cuda_emulator::expect_aligned(global);
    cuda_emulator::defer_copy(shared, is_there ? global : nullptr);
}

static inline void copies_wait()
{
    cuda_emulator::complete_deferred_copies();
}

#endif
