/*
 * simd: selects the copy of the kernels for this processor.  The compiler's start-up code reads
 * CPUID once (and checks that the operating system saves the wide registers); this file only tests
 * its result, so it has no state and no lock.
 */
#include "common/tensor/simd.h"

enum simd_level simd_level(void)
{
#ifdef SPARRING_SIMD_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return SIMD_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return SIMD_AVX2;
#endif
    return SIMD_BASELINE;
}

const char *simd_level_name(enum simd_level level)
{
    static const char *const names[SIMD_LEVELS] = {
        [SIMD_BASELINE] = "baseline",
#ifdef SPARRING_SIMD_X86
        [SIMD_AVX2] = "avx2",
        [SIMD_AVX512] = "avx512",
#endif
    };

    return names[level];
}
