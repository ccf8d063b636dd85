/*
 * random: the standard 32-bit mt19937 with PyTorch's CPU sampling formulas, so that a seed here
 * gives PyTorch's permutations and weights bit for bit.
 */
#ifndef SPARRING_COMMON_BASE_RANDOM_H
#define SPARRING_COMMON_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

struct random {
    uint32_t state[624];
    unsigned next; /* index of the next word, 624: refill */
};

/* How x * (to - from) + from is rounded; builds of PyTorch differ (50 to 55 % of values, by about 1
 * ulp). */
enum random_rounding {
    RANDOM_TWO_ROUNDINGS, /* multiply, round, add, round */
    RANDOM_FMA,           /* one rounding; Debian 12's python3-torch on x86-64 */
};

/* Seed as torch.manual_seed: the upper 32 bits are ignored. */
void random_seed(struct random *r, uint64_t seed);
uint32_t random_u32(struct random *r);
uint64_t random_u64(struct random *r); /* first word drawn is the upper half */

/* Tensor.uniform_(from, to) of float32: the low 24 bits of one word per element, in memory order.
 */
void random_uniform(struct random *r, float *values, size_t count, double from, double to,
                    enum random_rounding rounding);

/* torch.randperm(n, generator) on the CPU, n < 214748364 (the small branch). */
void random_permutation(struct random *r, int64_t *values, size_t n);

/* torch.randn-like normal values by Box-Muller in double precision; not PyTorch's bits. */
void random_normal(struct random *r, float *values, size_t count);

/* nn.Linear's default initialisation: weight (out, in) then bias (out), both uniform in
 * +-1/sqrt(in). */
void random_linear_init(struct random *r, float *weight, float *bias, size_t in, size_t out,
                        enum random_rounding rounding);

#endif
