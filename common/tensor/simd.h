/*
 * simd: the same loops compiled once per vector width, chosen at run time.
 *
 * A kernel file (vector_kernels.c, ...) is plain C that the build compiles once per level, with
 * SIMD_LEVEL naming the level; SIMD_NAME gives each copy of its exported table its own name.
 * Contraction of multiply-add is off and every operation is a correctly rounded IEEE one, so the
 * levels, and a loop's vector body and its tail, agree bit for bit.
 */
#ifndef SPARRING_COMMON_TENSOR_SIMD_H
#define SPARRING_COMMON_TENSOR_SIMD_H

enum simd_level {
    SIMD_BASELINE, /* what the compiler assumes: SSE2 on x86-64, NEON on AArch64 */
#ifdef SPARRING_SIMD_X86
    SIMD_AVX2,   /* x86-64-v3 */
    SIMD_AVX512, /* x86-64-v4 */
#endif
    SIMD_LEVELS
};

/* The widest level that this processor and its operating system run.  Costs a load and a test. */
enum simd_level simd_level(void);

const char *simd_level_name(enum simd_level level);

#define SIMD_PASTE_(name, level)  name##_##level
#define SIMD_EXPAND_(name, level) SIMD_PASTE_(name, level)
#define SIMD_NAME(name)           SIMD_EXPAND_(name, SIMD_LEVEL)

/* Initialiser of an array indexed by enum simd_level: pointers to each level's copy of `name`. */
#ifdef SPARRING_SIMD_X86
#define SIMD_TABLES(name)                                                                          \
    {                                                                                              \
        &name##_baseline, &name##_avx2, &name##_avx512                                             \
    }
#else
#define SIMD_TABLES(name)                                                                          \
    {                                                                                              \
        &name##_baseline                                                                           \
    }
#endif

/* Before a loop whose arrays are equal or disjoint, never partly overlapping: no alias checks. */
#ifdef __clang__
#define SIMD_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define SIMD_LOOP _Pragma("GCC ivdep")
#endif

#endif
