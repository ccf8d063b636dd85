/*
 * Selects the k largest magnitudes in a fixed number of passes over the array.  float32 magnitudes
 * are ordered like their bits without the sign as integers: three counting passes, by the upper 11
 * of these 31 bits, the next 10 and the last 10, find the k-th largest; one more pass takes all
 * elements above it, and the first of those equal to it.  Pure, no locks.
 *
 * Source: radix selection; Alabi, Blanchard, Gordon and Steinbach 2012.
 */
#include "common/codec/codec_internal.h"

#include "common/tensor/half.h"

#include <assert.h>
#include <string.h>

#define DIGITS   3
#define BINS_MAX 2048
#define COUNTERS                                                                                   \
    4 /* separate counters, so that equal neighbours have no store-to-load dependency */

static const unsigned digit_shift[DIGITS] = {20, 10, 0};
static const unsigned digit_bins[DIGITS] = {2048, 1024, 1024};

static inline uint32_t magnitude(float value)
{
    return float_bits(value) & 0x7fffffff;
}

/* Count the upper digit of every element. */
static void count_first_digit(const float *values, size_t count, uint32_t bins[BINS_MAX])
{
    uint32_t beside[COUNTERS - 1][BINS_MAX];
    size_t i = 0;

    memset(beside, 0, sizeof(beside));
    for (; i + COUNTERS <= count; i += COUNTERS) {
        bins[magnitude(values[i]) >> digit_shift[0]]++;
        for (size_t l = 1; l < COUNTERS; l++)
            beside[l - 1][magnitude(values[i + l]) >> digit_shift[0]]++;
    }
    for (; i < count; i++)
        bins[magnitude(values[i]) >> digit_shift[0]]++;
    for (size_t l = 0; l < COUNTERS - 1; l++)
        for (size_t bin = 0; bin < BINS_MAX; bin++)
            bins[bin] += beside[l][bin];
}

/* Count the next digit of the elements whose higher digits equal those of `found`. */
static void count_matching(const float *values, size_t count, uint32_t found, unsigned digit,
                           uint32_t bins[BINS_MAX])
{
    unsigned above = digit_shift[digit - 1];

    for (size_t i = 0; i < count; i++) {
        uint32_t m = magnitude(values[i]);

        if (m >> above == found >> above)
            bins[(m >> digit_shift[digit]) % digit_bins[digit]]++;
    }
}

/* The k-th largest magnitude; *ret_equal: how many elements equal to it are among the k. */
static uint32_t find_threshold(const float *values, size_t count, size_t k, size_t *ret_equal)
{
    uint32_t bins[BINS_MAX];
    uint32_t found = 0;

    for (unsigned digit = 0; digit < DIGITS; digit++) {
        uint32_t bin = digit_bins[digit] - 1;

        memset(bins, 0, sizeof(bins));
        if (digit == 0)
            count_first_digit(values, count, bins);
        else
            count_matching(values, count, found, digit, bins);
        for (; bins[bin] < k; bin--)
            k -= bins[bin];
        found |= bin << digit_shift[digit];
    }
    *ret_equal = k;
    return found;
}

void codec_extract_largest(float *values, size_t count, size_t k, uint8_t *dst)
{
    size_t equal = 0;
    uint32_t threshold;

    assert(k >= 1 && k <= count && count <= UINT32_MAX);
    threshold = find_threshold(values, count, k, &equal);
    for (uint32_t i = 0; k > 0; i++) {
        uint32_t m = magnitude(values[i]);

        if (m < threshold || (m == threshold && equal == 0))
            continue;
        equal -= m == threshold;
        memcpy(dst, &i, sizeof(i));
        memcpy(dst + sizeof(i), &values[i], sizeof(float));
        dst += TOP_K_RECORD;
        values[i] = 0.0f;
        k--;
    }
}
