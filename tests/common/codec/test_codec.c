/*
 * Each codec against plain models in double and by sorting; the residual of error feedback; and
 * every vector width against the baseline.
 */
#include "common/codec/codec.h"
#include "common/codec/codec_kernels.h"
#include "common/tensor/half.h"
#include "tests/support/bounded.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNT 9001 /* more than two blocks of signs, and odd */
#define ROUNDS    60

static float src[MAX_COUNT], residual[MAX_COUNT], before[MAX_COUNT], got[MAX_COUNT];
static _Alignas(8) uint8_t bytes[8 * MAX_COUNT + 8];
static struct error err;

static const struct codec none = {.kind = CODEC_NONE};
static const struct codec fp16 = {.kind = CODEC_FP16};
static const struct codec bf16 = {.kind = CODEC_BF16};
static const struct codec one_bit = {.kind = CODEC_ONE_BIT};

static struct codec top_k(uint32_t ppm)
{
    return (struct codec){.kind = CODEC_TOP_K, .top_k_ppm = ppm};
}

static float random_float(void)
{
    return ldexpf((float)(support_random() - 0.5), (int)(support_random() * 24.0) - 12);
}

static void fill_random(float *dst, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = random_float();
}

/* Small and odd ones, then any. */
static size_t count_of(int round)
{
    return round < 40 ? (size_t)round + 1 : 1 + (size_t)(support_random() * (MAX_COUNT - 1));
}

static bool same_bits(float a, float b)
{
    return float_bits(a) == float_bits(b);
}

START_TEST(test_names)
{
    for (unsigned kind = 0; kind < CODEC_KINDS; kind++) {
        enum codec_kind parsed = CODEC_KINDS;

        ck_assert(codec_parse(codec_name((enum codec_kind)kind), &parsed));
        ck_assert_uint_eq(parsed, kind);
    }
    ck_assert(!codec_parse("float32", &(enum codec_kind){0}));
    ck_assert_str_eq(codec_name(CODEC_KINDS), "?");
}
END_TEST

START_TEST(test_sizes)
{
    struct codec share = top_k(10000);

    ck_assert_uint_eq(codec_bytes(&none, 1001), 4004);
    ck_assert_uint_eq(codec_bytes(&fp16, 1001), 2002);
    ck_assert_uint_eq(codec_bytes(&bf16, 1001), 2002);
    ck_assert_uint_eq(codec_bytes(&one_bit, 1001), 8 + 126);
    ck_assert_uint_eq(codec_bytes(&one_bit, 1000), 8 + 125);
    ck_assert_uint_eq(codec_bytes(&share, 1001), 8 * 11); /* 10.01 elements */
    ck_assert_uint_eq(codec_bytes(&share, 1000), 8 * 10);
    ck_assert_uint_eq(codec_bytes(&share, 3), 8);
    ck_assert_uint_eq(codec_bytes(&share, 2), 8); /* records of half the elements: all of them */
    ck_assert_uint_eq(codec_bytes(&share, 1), 4);
    ck_assert_uint_eq(codec_bytes(&share, 0), 0);
    share.top_k_ppm = CODEC_PPM;
    ck_assert_uint_eq(codec_top_k(&share, UINT32_MAX), UINT32_MAX);
}
END_TEST

START_TEST(test_check)
{
    struct codec c = top_k(0);

    assert_fails(codec_check(&c, &err), STATUS_DATA, "topk of 0 parts per million");
    c = top_k(CODEC_PPM + 1);
    assert_fails(codec_check(&c, &err), STATUS_DATA, "topk of 1000001");
    c.kind = CODEC_KINDS;
    assert_fails(codec_check(&c, &err), STATUS_DATA, "compression 7");
    c = top_k(1);
    assert_ok(codec_check(&c, &err));
    assert_ok(codec_check(&one_bit, &err));
    ck_assert(codec_has_residual(&c) && codec_has_residual(&one_bit));
    ck_assert(!codec_has_residual(&none) && !codec_has_residual(&fp16));
}
END_TEST

/* ------------------------------------------------------------------ casts */

START_TEST(test_halves)
{
    static const float special[] = {0.0f,     -0.0f,    INFINITY, -INFINITY, NAN,
                                    65504.0f, 65520.0f, 1e-7f,    0x1p-24f,  -3e38f};

    for (int round = 0; round < 200; round++) {
        size_t count = count_of(round);

        fill_random(src, count);
        for (size_t i = 0; i < count; i++)
            if (support_random() < 0.05)
                src[i] = special[(size_t)(support_random() * 10)];
        assert_ok(codec_encode(&fp16, src, NULL, count, bytes, &err));
        assert_ok(codec_decode(&fp16, bytes, codec_bytes(&fp16, count), got, count, false, &err));
        for (size_t i = 0; i < count; i++)
            if (!same_bits(got[i], float_from_float16(float16_from_float(src[i]))))
                ck_abort_msg("fp16 of %a came back as %a", (double)src[i], (double)got[i]);
        assert_ok(codec_encode(&bf16, src, NULL, count, bytes, &err));
        assert_ok(codec_decode(&bf16, bytes, codec_bytes(&bf16, count), got, count, false, &err));
        for (size_t i = 0; i < count; i++)
            if (!same_bits(got[i], float_from_bfloat16(bfloat16_from_float(src[i]))))
                ck_abort_msg("bf16 of %a came back as %a", (double)src[i], (double)got[i]);
    }
}
END_TEST

/* ------------------------------------------------------------------ topk */

static const float *sorted_values;

static int by_magnitude(const void *a, const void *b)
{
    size_t i = *(const size_t *)a;
    size_t j = *(const size_t *)b;
    uint32_t left = float_bits(sorted_values[i]) & 0x7fffffff;
    uint32_t right = float_bits(sorted_values[j]) & 0x7fffffff;

    if (left != right)
        return left > right ? -1 : 1;
    return i < j ? -1 : 1;
}

/* wanted[i]: is element i among the k? */
static void model_top_k(const float *values, size_t count, size_t k, bool *wanted)
{
    static size_t order[MAX_COUNT];

    for (size_t i = 0; i < count; i++)
        order[i] = i;
    sorted_values = values;
    qsort(order, count, sizeof(*order), by_magnitude);
    memset(wanted, 0, count * sizeof(*wanted));
    for (size_t i = 0; i < k; i++)
        wanted[order[i]] = true;
}

static void check_top_k(const struct codec *c, size_t count)
{
    static bool wanted[MAX_COUNT];

    for (size_t i = 0; i < count; i++)
        before[i] = residual[i] + src[i];
    model_top_k(before, count, codec_top_k(c, count), wanted);
    assert_ok(codec_encode(c, src, residual, count, bytes, &err));
    assert_ok(codec_decode(c, bytes, codec_bytes(c, count), got, count, false, &err));
    for (size_t i = 0; i < count; i++) {
        float said = wanted[i] ? before[i] : 0.0f;
        float kept = wanted[i] ? 0.0f : before[i];

        if (!same_bits(got[i], said) || !same_bits(residual[i], kept))
            ck_abort_msg("element %zu of %zu, %a: said %a, kept %a, wanted %a and %a", i, count,
                         (double)before[i], (double)got[i], (double)residual[i], (double)said,
                         (double)kept);
    }
}

START_TEST(test_top_k)
{
    for (int round = 0; round < 150; round++) {
        struct codec c = top_k(1 + (uint32_t)(support_random() * (CODEC_PPM - 1)));
        size_t count = count_of(round);

        if (round % 3 == 0)
            c.top_k_ppm = 1 + c.top_k_ppm / 100;
        fill_random(src, count);
        fill_random(residual, count);
        for (size_t i = 0; i < count && round % 2 == 0; i++) { /* many equal ones, of both signs */
            src[i] = (float)((int)(support_random() * 7.0) - 3);
            residual[i] = 0.0f;
        }
        check_top_k(&c, count);
    }
}
END_TEST

/* NaN ranks above any number. */
START_TEST(test_top_k_not_finite)
{
    struct codec c = top_k(30000); /* 3 of 100 */

    fill_random(src, 100);
    memset(residual, 0, sizeof(residual));
    src[5] = NAN;
    src[60] = -INFINITY;
    src[99] = 3e38f;
    src[3] = 2e38f;
    assert_ok(codec_encode(&c, src, residual, 100, bytes, &err));
    assert_ok(codec_decode(&c, bytes, codec_bytes(&c, 100), got, 100, false, &err));
    ck_assert(isnan(got[5]) && isinf(got[60]) && same_bits(got[99], 3e38f));
    ck_assert(same_bits(residual[3], 2e38f) && same_bits(residual[5], 0.0f));
}
END_TEST

START_TEST(test_top_k_of_all)
{
    struct codec c = top_k(CODEC_PPM);

    for (int round = 0; round < ROUNDS; round++) {
        size_t count = count_of(round);

        fill_random(src, count);
        memset(residual, 0, sizeof(residual));
        assert_ok(codec_encode(&c, src, residual, count, bytes, &err));
        assert_ok(codec_decode(&c, bytes, codec_bytes(&c, count), got, count, false, &err));
        ck_assert_mem_eq(got, src, count * sizeof(float));
        for (size_t i = 0; i < count; i++)
            if (residual[i] != 0.0f)
                ck_abort_msg("element %zu of %zu stayed behind", i, count);
    }
}
END_TEST

/* ------------------------------------------------------------------ onebit */

static void model_means(const float *values, size_t count, double means[2])
{
    double sums[2] = {0, 0};
    size_t counts[2] = {0, 0};

    for (size_t i = 0; i < count; i++) {
        sums[signbit(values[i]) != 0] += (double)values[i];
        counts[signbit(values[i]) != 0]++;
    }
    for (size_t k = 0; k < 2; k++)
        means[k] = counts[k] > 0 ? sums[k] / (double)counts[k] : 0.0;
}

START_TEST(test_one_bit)
{
    for (int round = 0; round < 150; round++) {
        size_t count = count_of(round);
        double means[2];

        fill_random(src, count);
        fill_random(residual, count);
        if (round % 5 == 0)
            src[0] = residual[0] = -0.0f;
        for (size_t i = 0; i < count; i++)
            before[i] = residual[i] + src[i];
        model_means(before, count, means);
        assert_ok(codec_encode(&one_bit, src, residual, count, bytes, &err));
        assert_ok(
            codec_decode(&one_bit, bytes, codec_bytes(&one_bit, count), got, count, false, &err));
        for (size_t i = 0; i < count; i++) {
            double wanted = means[signbit(before[i]) != 0];

            /* A sum in double, as the model's, rounded once. */
            if (fabs((double)got[i] - wanted) >
                    (ROUNDING + (double)count * 0x1p-52) * fabs(wanted) ||
                !same_bits(residual[i], before[i] - got[i]))
                ck_abort_msg("element %zu of %zu, %a: said %a, kept %a, wanted %a", i, count,
                             (double)before[i], (double)got[i], (double)residual[i], wanted);
        }
    }
}
END_TEST

START_TEST(test_one_bit_extremes)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};

    memset(src, 0, sizeof(src));
    memset(residual, 0, sizeof(residual));
    assert_ok(codec_encode(&one_bit, src, residual, 100, bytes, &err));
    assert_ok(codec_decode(&one_bit, bytes, codec_bytes(&one_bit, 100), got, 100, false, &err));
    for (size_t i = 0; i < 100; i++)
        ck_assert(got[i] == 0.0f && residual[i] == 0.0f);
    for (size_t i = 0; i < MAX_COUNT; i++)
        src[i] = i % 2 ? 3.4e38f : -3.4e38f; /* no sum of float32 would hold them */
    assert_ok(codec_encode(&one_bit, src, residual, MAX_COUNT, bytes, &err));
    assert_ok(codec_decode(&one_bit, bytes, codec_bytes(&one_bit, MAX_COUNT), got, MAX_COUNT, false,
                           &err));
    ck_assert_mem_eq(got, src, sizeof(got));
    for (size_t i = 0; i < 4; i++) {
        memset(residual, 0, sizeof(residual));
        src[MAX_COUNT - 1 - i] = bad[i];
        assert_fails(codec_encode(&one_bit, src, residual, MAX_COUNT, bytes, &err), STATUS_DATA,
                     "NaN or infinity");
        src[MAX_COUNT - 1 - i] = 0.0f;
    }
}
END_TEST

/* Encode only the residual, without a source. */
START_TEST(test_no_source)
{
    struct codec codecs[] = {top_k(100000), one_bit};

    for (size_t k = 0; k < 2; k++) {
        static uint8_t plain[sizeof(bytes)];
        size_t size = codec_bytes(&codecs[k], 1001);

        fill_random(src, 1001);
        memset(residual, 0, sizeof(residual));
        assert_ok(codec_encode(&codecs[k], src, residual, 1001, plain, &err));
        memcpy(before, residual, sizeof(before));
        memcpy(residual, src, sizeof(residual));
        assert_ok(codec_encode(&codecs[k], NULL, residual, 1001, bytes, &err));
        ck_assert_mem_eq(bytes, plain, size);
        ck_assert_mem_eq(residual, before, 1001 * sizeof(float));
    }
}
END_TEST

/* ------------------------------------------------------------------ error feedback */

/* Sum of what was decoded + residual = sum of what was encoded, up to two roundings of the residual
 * per round: with what is encoded, and without what was. */
static void check_feedback(const struct codec *c, size_t count)
{
    static double sent[MAX_COUNT], meant[MAX_COUNT], allowed[MAX_COUNT];

    memset(sent, 0, sizeof(sent));
    memset(meant, 0, sizeof(meant));
    memset(allowed, 0, sizeof(allowed));
    memset(residual, 0, sizeof(residual));
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < count; i++) {
            src[i] = (float)(support_random() - 0.5) + (i % 7 == 0 ? 0.2f : 0.0f);
            meant[i] += (double)src[i];
            allowed[i] += ROUNDING * fabs((double)src[i] + (double)residual[i]);
        }
        assert_ok(codec_encode(c, src, residual, count, bytes, &err));
        assert_ok(codec_decode(c, bytes, codec_bytes(c, count), got, count, false, &err));
        for (size_t i = 0; i < count; i++) {
            sent[i] += (double)got[i];
            allowed[i] += ROUNDING * fabs((double)residual[i]);
        }
    }
    for (size_t i = 0; i < count; i++) {
        double missing = meant[i] - sent[i] - (double)residual[i];

        if (fabs(missing) > allowed[i] + 0x1p-36) /* double's own, of a few hundred terms */
            ck_abort_msg("%s, element %zu: %g of %g is lost", codec_name(c->kind), i, missing,
                         meant[i]);
    }
}

START_TEST(test_feedback)
{
    struct codec codecs[] = {top_k(10000), top_k(300000), top_k(CODEC_PPM), one_bit};

    for (size_t k = 0; k < 4; k++) {
        check_feedback(&codecs[k], 1);
        check_feedback(&codecs[k], 777);
    }
}
END_TEST

/* The residual stays bounded: error feedback delays values but loses none.  Without it the residual
 * would be the whole history. */
START_TEST(test_residual_stays_bounded)
{
    struct codec codecs[] = {top_k(100000), one_bit};

    for (size_t k = 0; k < 2; k++) {
        double half = 0, whole = 0;

        memset(residual, 0, sizeof(residual));
        for (int round = 0; round < 400; round++) {
            double norm = 0;

            for (size_t i = 0; i < 1000; i++)
                src[i] = 0.01f * (float)(i % 10) + (float)(support_random() - 0.5);
            assert_ok(codec_encode(&codecs[k], src, residual, 1000, bytes, &err));
            for (size_t i = 0; i < 1000; i++)
                norm += (double)residual[i] * (double)residual[i];
            half = round < 200 ? fmax(half, norm) : half;
            whole = fmax(whole, norm);
        }
        ck_assert_msg(whole < 2 * half, "%s: the residual grew from %g to %g",
                      codec_name(codecs[k].kind), half, whole);
    }
}
END_TEST

/* ------------------------------------------------------------------ widths */

static const struct codec_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(codec_kernels);

static void check_casts(const struct codec_kernels *k, size_t count)
{
    static float wanted[MAX_COUNT];
    const uint8_t *unaligned = bytes + 1;

    for (size_t i = 0; i < 2 * count; i++)
        bytes[i + 1] = (uint8_t)(support_random() * 256.0);
    for (size_t i = 0; i < count; i++) /* no NaN: its payload may differ */
        bytes[2 * i + 2] &= 0xbf;
    fill_random(got, count);
    memcpy(wanted, got, count * sizeof(float));
    tables[0]->add_float16(wanted, unaligned, count);
    k->add_float16(got, unaligned, count);
    ck_assert_mem_eq(got, wanted, count * sizeof(float));
    tables[0]->add_bfloat16(wanted, unaligned, count);
    k->add_bfloat16(got, unaligned, count);
    ck_assert_mem_eq(got, wanted, count * sizeof(float));
    tables[0]->copy_float16(wanted, unaligned, count);
    k->copy_float16(got, unaligned, count);
    ck_assert_mem_eq(got, wanted, count * sizeof(float));
    tables[0]->copy_bfloat16(wanted, unaligned, count);
    k->copy_bfloat16(got, unaligned, count);
    ck_assert_mem_eq(got, wanted, count * sizeof(float));
}

static void check_signs(const struct codec_kernels *k, size_t count)
{
    static uint8_t bits[2][CODEC_BLOCK / 8];
    static float wanted[MAX_COUNT];
    const float values[2] = {random_float(), random_float()};
    double sums[2][2] = {{0}};

    fill_random(src, count);
    tables[0]->signs(src, count, bits[0], sums[0]);
    k->signs(src, count, bits[1], sums[1]);
    ck_assert_mem_eq(bits[0], bits[1], (count + 7) / 8);
    ck_assert_mem_eq(sums[0], sums[1], sizeof(sums[0]));
    for (size_t i = 0; i < count; i++)
        if ((bits[1][i / 8] >> i % 8 & 1) != (signbit(src[i]) != 0))
            ck_abort_msg("the sign of element %zu of %zu", i, count);
    k->copy_signs(got, bits[0], values, count);
    for (size_t i = 0; i < count; i++)
        if (!same_bits(got[i], values[bits[0][i / 8] >> i % 8 & 1]))
            ck_abort_msg("the value of element %zu of %zu", i, count);
    memcpy(wanted, src, count * sizeof(float));
    tables[0]->add_signs(wanted, bits[0], values, count);
    k->add_signs(src, bits[0], values, count);
    ck_assert_mem_eq(src, wanted, count * sizeof(float));
}

START_TEST(test_widths)
{
    if (_i > (int)simd_level())
        return;
    for (int round = 0; round < 300; round++) {
        check_casts(tables[_i], count_of(round));
        check_signs(tables[_i], count_of(round) % CODEC_BLOCK);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("codec", 120, TEST(test_names), TEST(test_sizes), TEST(test_check),
                       TEST(test_halves), TEST(test_top_k), TEST(test_top_k_not_finite),
                       TEST(test_top_k_of_all), TEST(test_one_bit), TEST(test_one_bit_extremes),
                       TEST(test_no_source), TEST(test_feedback), TEST(test_residual_stays_bounded),
                       LOOP_TEST(test_widths, 0, SIMD_LEVELS));
}
