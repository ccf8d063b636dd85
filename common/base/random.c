/*
 * random: mt19937 and the draws that PyTorch makes from it on the CPU.
 *
 * One 32-bit word per float32 (its low 24 bits), two words per 53-bit double (the first is the
 * upper half), one word modulo the remaining length per step of a permutation.  Every draw is
 * serial, so results do not depend on threads; they depend on the build's contraction of
 * multiply-add, which random_rounding chooses.  Sources: Matsumoto and Nishimura 1998; PyTorch's
 * MT19937RNGEngine.h, TransformationHelper.h and TensorFactories.cpp (formulas only).
 */
#include "common/base/random.h"

#include <math.h>

#define STATE_WORDS  624u
#define STATE_OFFSET 397u
#define TWO_PI       6.283185307179586476925286766559

void random_seed(struct random *r, uint64_t seed)
{
    uint32_t word = (uint32_t)seed;

    for (unsigned i = 0; i < STATE_WORDS; i++) {
        if (i > 0)
            word = 1812433253u * (word ^ (word >> 30)) + i;
        r->state[i] = word;
    }
    r->next = STATE_WORDS;
}

static void refill_state(struct random *r)
{
    uint32_t *s = r->state;

    for (unsigned i = 0; i < STATE_WORDS; i++) {
        uint32_t mixed = (s[i] & 0x80000000u) | (s[(i + 1) % STATE_WORDS] & 0x7fffffffu);

        s[i] = s[(i + STATE_OFFSET) % STATE_WORDS] ^ (mixed >> 1) ^ ((mixed & 1u) * 0x9908b0dfu);
    }
    r->next = 0;
}

uint32_t random_u32(struct random *r)
{
    uint32_t word;

    if (r->next >= STATE_WORDS)
        refill_state(r);
    word = r->state[r->next++];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    word ^= word >> 18;
    return word;
}

uint64_t random_u64(struct random *r)
{
    uint64_t upper = random_u32(r);

    return upper << 32 | random_u32(r);
}

void random_uniform(struct random *r, float *values, size_t count, double from, double to,
                    enum random_rounding rounding)
{
    float low = (float)from;
    float width = (float)to - low;

    for (size_t i = 0; i < count; i++) {
        float x = (float)(random_u32(r) & 0xffffffu) * 0x1p-24f;

        values[i] = rounding == RANDOM_FMA ? fmaf(x, width, low) : x * width + low;
    }
}

void random_permutation(struct random *r, int64_t *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] = (int64_t)i;
    for (size_t i = 0; i + 1 < n; i++) {
        size_t other = i + random_u32(r) % (n - i);
        int64_t kept = values[i];

        values[i] = values[other];
        values[other] = kept;
    }
}

static double uniform_double(struct random *r)
{
    return (double)(random_u64(r) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

/* Pairs share one radius; the second value of a last, half-used pair is dropped. */
void random_normal(struct random *r, float *values, size_t count)
{
    for (size_t i = 0; i < count; i += 2) {
        double angle = TWO_PI * uniform_double(r);
        double radius = sqrt(-2.0 * log1p(-uniform_double(r)));

        values[i] = (float)(radius * cos(angle));
        if (i + 1 < count)
            values[i + 1] = (float)(radius * sin(angle));
    }
}

/* PyTorch computes the weight's bound as sqrt(3) * (gain / sqrt(in)) and the bias's as 1 /
 * sqrt(in); as floats the two are equal for every `in` up to 99999. */
void random_linear_init(struct random *r, float *weight, float *bias, size_t in, size_t out,
                        enum random_rounding rounding)
{
    double bound = in > 0 ? 1.0 / sqrt((double)in) : 0.0;

    random_uniform(r, weight, in * out, -bound, bound, rounding);
    random_uniform(r, bias, out, -bound, bound, rounding);
}
