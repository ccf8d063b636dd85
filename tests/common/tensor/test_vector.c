/*
 * Every width of the element-wise kernels against plain loops: equal bits at every length around
 * the vector sizes, at any alignment, in place or not, and nothing written past the end.
 */
#include "common/tensor/tensor.h"
#include "common/tensor/vector_kernels.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNT 2500 /* more than two blocks of the sum */
#define SOURCES   5
#define GUARD     12345.0f

static const struct vector_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(vector_kernels);
static float in[SOURCES][MAX_COUNT + 8];
static float got[MAX_COUNT + 8];
static float wanted[MAX_COUNT + 8];

/* Mostly values of mixed magnitude, where the order and the rounding of a sum show; some special
 * ones. */
static float random_float(void)
{
    static const float special[] = {0.0f, -0.0f, INFINITY, 1e-42f, -3e38f, 0x1p-126f};
    double pick = support_random();

    if (pick < 0.05)
        return special[(size_t)(support_random() * 6)];
    return ldexpf((float)(pick - 0.5), (int)(support_random() * 24.0) - 12);
}

static void fill_random(void)
{
    for (size_t k = 0; k < SOURCES; k++)
        for (size_t i = 0; i < MAX_COUNT + 8; i++)
            in[k][i] = random_float();
}

static bool same_bits(float a, float b)
{
    uint32_t bits[2];

    memcpy(&bits[0], &a, sizeof(a));
    memcpy(&bits[1], &b, sizeof(b));
    return bits[0] == bits[1] || (isnan(a) && isnan(b));
}

/* Check writes every assertion to a file, so the loops compare first. */
static void check_result(size_t count, size_t shift, const char *what, int level)
{
    for (size_t i = 0; i < MAX_COUNT + 8; i++) {
        bool inside = i >= shift && i < shift + count;

        if (!same_bits(got[i], inside ? wanted[i] : GUARD))
            ck_abort_msg("%s, %s, count %zu, shift %zu: element %zu is %a, wanted %a", what,
                         simd_level_name((enum simd_level)level), count, shift, i, (double)got[i],
                         inside ? (double)wanted[i] : (double)GUARD);
    }
}

static void fill_guard(void)
{
    for (size_t i = 0; i < MAX_COUNT + 8; i++)
        got[i] = GUARD;
}

/* Lengths 0..70 cover every tail of every width; some long ones follow. */
static size_t length_of(int round)
{
    return round < 70 ? (size_t)round : (size_t)(support_random() * MAX_COUNT);
}

START_TEST(test_add_to)
{
    const struct vector_kernels *k = tables[_i];

    for (int round = 0; round < 90; round++) {
        size_t count = length_of(round);
        size_t shift = (size_t)round % 5;

        fill_random();
        fill_guard();
        for (size_t i = 0; i < count; i++)
            wanted[shift + i] = in[0][i] + in[1][i + 1];
        k->add_to(got + shift, in[0], in[1] + 1, count);
        check_result(count, shift, "add_to", _i);
        memcpy(got + shift, in[0], count * sizeof(float)); /* in place */
        k->add_to(got + shift, got + shift, in[1] + 1, count);
        check_result(count, shift, "add_to in place", _i);
    }
}
END_TEST

START_TEST(test_scale_to)
{
    const struct vector_kernels *k = tables[_i];

    for (int round = 0; round < 90; round++) {
        size_t count = length_of(round);
        size_t shift = (size_t)round % 5;
        float factor = random_float();

        fill_random();
        fill_guard();
        for (size_t i = 0; i < count; i++)
            wanted[shift + i] = in[0][i + 3] * factor;
        k->scale_to(got + shift, in[0] + 3, factor, count);
        check_result(count, shift, "scale_to", _i);
        memcpy(got + shift, in[0] + 3, count * sizeof(float));
        k->scale_to(got + shift, got + shift, factor, count);
        check_result(count, shift, "scale_to in place", _i);
    }
}
END_TEST

/* In the order of the sources, also when dst is one of them. */
START_TEST(test_sum)
{
    const struct vector_kernels *k = tables[_i];

    for (int round = 0; round < 120; round++) {
        size_t count = length_of(round);
        size_t sources = 1 + (size_t)round % SOURCES;
        size_t own = (size_t)(support_random() * (double)sources);
        const float *src[SOURCES];

        fill_random();
        fill_guard();
        for (size_t s = 0; s < sources; s++)
            src[s] = in[s] + s;
        for (size_t i = 0; i < count; i++) {
            wanted[i] = src[0][i];
            for (size_t s = 1; s < sources; s++)
                wanted[i] += src[s][i];
        }
        k->sum(got, src, sources, count);
        check_result(count, 0, "sum", _i);
        memcpy(got, src[own], count * sizeof(float));
        src[own] = got;
        k->sum(got, src, sources, count);
        check_result(count, 0, "sum in place", _i);
    }
}
END_TEST

START_TEST(test_add_bytes)
{
    static unsigned char bytes[sizeof(float) * (MAX_COUNT + 8)];
    const struct vector_kernels *k = tables[_i];

    for (int round = 0; round < 90; round++) {
        size_t count = length_of(round);
        size_t shift = (size_t)round % 7; /* bytes: unaligned */

        fill_random();
        fill_guard();
        memcpy(bytes + shift, in[0], count * sizeof(float));
        memcpy(got, in[1], count * sizeof(float));
        for (size_t i = 0; i < count; i++)
            wanted[i] = in[1][i] + in[0][i];
        k->add_bytes(got, bytes + shift, count);
        check_result(count, 0, "add_bytes", _i);
    }
}
END_TEST

/* Product and sum are each rounded. */
START_TEST(test_scaled_bytes)
{
    static unsigned char bytes[sizeof(float) * (MAX_COUNT + 8)];
    const struct vector_kernels *k = tables[_i];
    const float third = 1.0f / 3.0f;

    for (int round = 0; round < 90; round++) {
        size_t count = length_of(round);
        size_t shift = (size_t)round % 7;

        fill_random();
        fill_guard();
        memcpy(bytes + shift, in[0], count * sizeof(float));
        for (size_t i = 0; i < count; i++)
            wanted[i] = in[0][i] * third;
        k->scale_bytes(got, bytes + shift, third, count);
        check_result(count, 0, "scale_bytes", _i);
        memcpy(got, in[1], count * sizeof(float));
        for (size_t i = 0; i < count; i++) {
            volatile float product = in[0][i] * third;

            wanted[i] = in[1][i] + product;
        }
        k->add_scaled_bytes(got, bytes + shift, third, count);
        check_result(count, 0, "add_scaled_bytes", _i);
    }
}
END_TEST

/* Every byte divided, bit for bit as one at a time. */
START_TEST(test_divide_uint8)
{
    static uint8_t bytes[MAX_COUNT + 8];
    const struct vector_kernels *k = tables[_i];

    for (int round = 0; round < 90; round++) {
        size_t count = length_of(round);
        size_t shift = (size_t)round % 7;

        fill_guard();
        for (size_t i = 0; i < count; i++) {
            volatile float value = (float)(uint8_t)(i + (size_t)round);

            bytes[shift + i] = (uint8_t)(i + (size_t)round);
            wanted[i] = value / 255.0f;
        }
        k->divide_uint8(got, bytes + shift, 255.0f, count);
        check_result(count, 0, "divide_uint8", _i);
    }
}
END_TEST

/* The public functions reach the same loops. */
START_TEST(test_public_functions)
{
    float a[] = {1.0f, 2.0f, 3.0f};
    float b[] = {10.0f, 20.0f, 30.0f};
    const uint8_t bytes[] = {1, 255, 0};
    float dst[3];
    const float *const src[] = {a, b, a};

    vector_add_to(dst, a, b, 3);
    ck_assert(dst[0] == 11.0f && dst[1] == 22.0f && dst[2] == 33.0f);
    vector_add(dst, a, 3);
    ck_assert(dst[0] == 12.0f && dst[1] == 24.0f && dst[2] == 36.0f);
    vector_scale(dst, 0.5f, 3);
    ck_assert(dst[0] == 6.0f && dst[1] == 12.0f && dst[2] == 18.0f);
    vector_scale_to(dst, b, 2.0f, 3);
    ck_assert(dst[0] == 20.0f && dst[1] == 40.0f && dst[2] == 60.0f);
    vector_sum(dst, src, 3, 3);
    ck_assert(dst[0] == 12.0f && dst[1] == 24.0f && dst[2] == 36.0f);
    vector_add_bytes(dst, (const unsigned char *)a, 3);
    ck_assert(dst[0] == 13.0f && dst[1] == 26.0f && dst[2] == 39.0f);
    vector_add_scaled_bytes(dst, (const unsigned char *)b, 0.5f, 3);
    ck_assert(dst[0] == 18.0f && dst[1] == 36.0f && dst[2] == 54.0f);
    vector_scale_bytes(dst, (const unsigned char *)b, 0.5f, 3);
    ck_assert(dst[0] == 5.0f && dst[1] == 10.0f && dst[2] == 15.0f);
    vector_divide_uint8(dst, bytes, 2.0f, 3);
    ck_assert(dst[0] == 0.5f && dst[1] == 127.5f && dst[2] == 0.0f);
}
END_TEST

int main(void)
{
    int levels = (int)simd_level() + 1;

    return SUPPORT_RUN("vector", 0, LOOP_TEST(test_add_to, 0, levels),
                       LOOP_TEST(test_scale_to, 0, levels), LOOP_TEST(test_sum, 0, levels),
                       LOOP_TEST(test_add_bytes, 0, levels),
                       LOOP_TEST(test_scaled_bytes, 0, levels),
                       LOOP_TEST(test_divide_uint8, 0, levels), TEST(test_public_functions));
}
