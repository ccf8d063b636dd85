/*
 * cuda_mma: warp-level operations of the tensor cores: fragments from shared memory (ldmatrix),
 * products of fragments (mma.sync m16n8k16 in 16 bits, m16n8k8 in TF32), asynchronous copies into
 * shared memory (cp.async).  Needs compute capability 8.0; the emulator of the tests has the same
 * functions with the same layouts.
 *
 * Lane 4 g + t of a warp holds, as the PTX ISA defines for these shapes (one register each):
 *   A (16, MMA_BYTES)  x[0] row g, first half; x[1] row g + 8, first half; x[2], x[3] second halves
 *   B (MMA_BYTES, 8)   x[0] column g, first half; x[1] second half
 *   D (16, 8)          x[0], x[1] row g, columns 2 t and 2 t + 1; x[2], x[3] row g + 8
 * where a half is 16 bytes of a row of A or of a column of B, and t selects the t-th four of them.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_MMA_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_MMA_CUH

#include "worker/compute/cuda/cuda_kernel.cuh"

#define MMA_BYTES 32u /* depth of a product: 16 elements of 16 bits, 8 of TF32 */

#ifdef CUDA_EMULATOR
#include "tests/support/cuda_emulator/emulator_mma.h"
#else

static __device__ inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Load four matrices of 8 rows of 16 bytes; lane 8 j + i passes the address of row i of matrix j.
 * to[j] receives the (lane % 4)-th four bytes of row lane / 4. */
static __device__ inline void load_matrices(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
}

/* The same for matrices of 8 x 8 elements of 16 bits, transposed. */
static __device__ inline void load_matrices_transposed(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
}

/* d += a b */
static __device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1, type_tag<__nv_bfloat16>)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1, type_tag<__half>)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Bits beyond TF32's are ignored: apply round_tf32 first. */
static __device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1, type_tag<float>)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ inline uint32_t round_tf32(float x)
{
    uint32_t bits;

    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* 2^x, within a few 2^-22 of it; subnormal results become 0. */
static __device__ inline float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Start copying 16 bytes, both addresses aligned; !is_there: store zeros and read nothing. */
static __device__ inline void copy_async(void *shared, const void *global, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(is_there ? 16 : 0)
                 : "memory");
}

/* Wait for the copies that this thread started; other threads need a barrier afterwards. */
static __device__ inline void copies_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#endif

/* Elements per 16 bytes. */
template <typename T> static __host__ __device__ constexpr unsigned chunk()
{
    return 16 / sizeof(T);
}

/* ---- fragments of a row-major tile in shared memory; rows are an odd number of 16-byte units ----
 */

/* A: rows [0, 16) and MMA_BYTES of columns from `tile`. */
template <typename T>
static __device__ inline void load_a(uint32_t (&a)[4], const T *tile, unsigned pitch)
{
    unsigned lane = threadIdx.x % WARP;

    load_matrices(a, tile + lane % 16 * pitch + lane / 16 * chunk<T>());
}

/* Two adjacent B, the transposed of rows [0, 16): b[0], b[1] from rows [0, 8), b[2], b[3] from the
 * others. */
template <typename T>
static __device__ inline void load_b_of_rows(uint32_t (&b)[4], const T *tile, unsigned pitch)
{
    unsigned lane = threadIdx.x % WARP;

    load_matrices(b, tile + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * chunk<T>());
}

/* Two adjacent B: as many rows as a product's depth, and 16 columns.  In TF32 the rows are permuted
 * as in sums_as_a. */
template <typename T>
static __device__ inline void load_b(uint32_t (&b)[4], const T *tile, unsigned pitch)
{
    unsigned lane = threadIdx.x % WARP;

    load_matrices_transposed(b, tile + lane % 16 * pitch + lane / 16 * chunk<T>());
}

static __device__ inline void load_b(uint32_t (&b)[4], const float *tile, unsigned pitch)
{
    const float *at = tile + threadIdx.x % 4 * 2 * pitch + threadIdx.x % WARP / 4;

    b[0] = (uint32_t)__float_as_int(at[0]);
    b[1] = (uint32_t)__float_as_int(at[pitch]);
    b[2] = (uint32_t)__float_as_int(at[8]);
    b[3] = (uint32_t)__float_as_int(at[pitch + 8]);
}

/* Sums (16, columns), in tiles of 8 columns, as operand A for the k-th part of a product over
 * columns. */
static __device__ inline uint32_t pair_bits(float first, float second, type_tag<__nv_bfloat16>)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof(bits));
    return bits;
}

static __device__ inline uint32_t pair_bits(float first, float second, type_tag<__half>)
{
    __half2 pair = __floats2half2_rn(first, second);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof(bits));
    return bits;
}

template <typename T>
static __device__ inline void sums_as_a(uint32_t (&a)[4], const float (*sums)[4], unsigned k,
                                        type_tag<T> type)
{
    a[0] = pair_bits(sums[2 * k][0], sums[2 * k][1], type);
    a[1] = pair_bits(sums[2 * k][2], sums[2 * k][3], type);
    a[2] = pair_bits(sums[2 * k + 1][0], sums[2 * k + 1][1], type);
    a[3] = pair_bits(sums[2 * k + 1][2], sums[2 * k + 1][3], type);
}

/* A lane holds columns 2 t and 2 t + 1 and passes them as the t-th and the (t + 4)-th. */
static __device__ inline void sums_as_a(uint32_t (&a)[4], const float (*sums)[4], unsigned k,
                                        type_tag<float>)
{
    a[0] = round_tf32(sums[k][0]);
    a[1] = round_tf32(sums[k][2]);
    a[2] = round_tf32(sums[k][1]);
    a[3] = round_tf32(sums[k][3]);
}

#endif
