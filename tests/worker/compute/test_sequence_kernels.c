/*
 * The kernels of transformers at every vector width: the error bound of the exponential over all
 * float32 values, and the same bits from every width.
 */
#include "tests/support/support.h"
#include "worker/compute/cpu/sequence_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct sequence_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(sequence_kernels);

/* ---- the exponential ---- */

enum { BLOCK = 4096 };

/* Error in units of the last place; for subnormals, of the smallest one. */
static double distance(float got, double expected)
{
    int exponent;

    if (expected > (double)3.4028235677973366e38) /* rounds to infinity */
        return isinf(got) ? 0.0 : 1e9;
    (void)frexp(expected, &exponent);
    return fabs((double)got - expected) / ldexp(1.0, exponent - 24 > -149 ? exponent - 24 : -149);
}

static void check_block(const struct sequence_kernels *kernels, const float *x, double *worst)
{
    float y[BLOCK];

    (void)kernels->exponential_sum(x, 0.0f, y, BLOCK);
    for (size_t i = 0; i < BLOCK; i++) {
        double off;

        if (isnan(x[i]) != isnan(y[i]))
            ck_abort_msg("e^%g is %g", (double)x[i], (double)y[i]);
        if (isnan(x[i]))
            continue;
        off = distance(y[i], exp((double)x[i]));
        if (!(off < 1.0 || (off < 1.5 && y[i] < 0x1p-126f)))
            ck_abort_msg("e^%.9g is %.9g: %.2f units off", (double)x[i], (double)y[i], off);
        *worst = fmax(*worst, off);
    }
}

/* Every few thousandth float32 from a random start, including NaNs and infinities. */
START_TEST(test_exponential)
{
    const uint32_t step = SUPPORT_DRAWS(1009, 20011);
    uint32_t bits = (uint32_t)(support_random() * step);
    double worst = 0.0;
    float x[BLOCK];

    for (uint64_t done = 0; done < UINT32_MAX / step; done += BLOCK) {
        for (size_t i = 0; i < BLOCK; i++, bits += step)
            memcpy(&x[i], &bits, sizeof(bits));
        check_block(tables[_i], x, &worst);
    }
    for (size_t i = 0; i < BLOCK; i++)
        x[i] = (float)(192.0 * support_random() - 104.0); /* range of finite results */
    x[0] = -INFINITY;
    x[1] = INFINITY;
    x[2] = 88.722839f; /* the largest with a finite result, and the next */
    x[3] = 88.722847f;
    x[4] = -0.0f;
    check_block(tables[_i], x, &worst);
    ck_assert_double_gt(worst, 0.3); /* the comparison has run */
}
END_TEST

/* ---- the same bits ---- */

enum { ROWS = 5, WIDTH = 1088, COUNT = ROWS * WIDTH };

static void fill(float *values, float spread)
{
    for (size_t i = 0; i < COUNT; i++)
        values[i] = spread * (float)(2.0 * support_random() - 1.0);
}

static void assert_same(const float *a, const float *b, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i])
            ck_abort_msg("%s: element %zu differs between vector widths", what, i);
}

struct outputs {
    float values[COUNT], more[COUNT], small[4 * WIDTH];
    double sum;
};

static void run_elements(const struct sequence_kernels *k, const float *x, const float *y,
                         size_t count, struct outputs *o)
{
    memset(o, 0, sizeof(*o));
    o->small[0] = k->largest(x, count);
    o->small[1] = k->dot(x, y, count);
    o->sum = k->exponential_sum(x, o->small[0], o->values, count) -
             k->exponential_sum(x, o->small[0], NULL, count);
    k->scale(o->values, 0.3f, o->values, count);
    k->add(o->values, y, count);
    memcpy(o->more, x, count * sizeof(float));
    k->gelu(o->more, y, y, o->small + WIDTH, 1, count);
    k->gelu_backward(o->more, o->values, count);
    k->gelu(o->values, NULL, NULL, o->more, 1, count);
}

static void run_rows(const struct sequence_kernels *k, const float *x, const float *y, size_t width,
                     bool accumulate, struct outputs *o)
{
    struct layer_norm n = {
        .width = width,
        .weight = y,
        .bias = x,
        .dweight = o->small,
        .dbias = o->small + WIDTH,
        .mean = o->small + 2 * WIDTH,
        .inverse_std = o->small + 3 * WIDTH,
        .epsilon = 1e-5f,
    };

    memset(o, 0, sizeof(*o));
    k->layer_norm_forward(&n, x, o->values, ROWS);
    k->sum(o->more, o->values, y, ROWS * width);
    k->layer_norm_backward(&n, x, y, o->more, ROWS, accumulate);
}

/* Scores of ROWS queries, the last of which uses `width` keys. */
static void run_scores(const struct sequence_kernels *k, const float *x, const float *y,
                       size_t width, struct outputs *o)
{
    struct score_rows r = {
        .rows = width < ROWS ? width : ROWS, .keys = width, .stride = SCORE_LANES * 34};
    float *log_sums = o->small;
    float *shifts = o->small + WIDTH;

    r.first = r.keys - r.rows;
    memset(o, 0, sizeof(*o));
    memcpy(o->values, x, COUNT * sizeof(float));
    memcpy(o->more, y, COUNT * sizeof(float));
    k->softmax_rows(&r, o->values, log_sums, shifts);
    memcpy(o->values, x, COUNT * sizeof(float));
    k->softmax_rows_backward(&r, o->values, o->more, log_sums, shifts);
    for (size_t i = 0; i < r.rows; i++)
        for (size_t j = r.first + i + 1; j < r.keys; j++)
            if (o->values[i * r.stride + j] != 0.0f || o->more[i * r.stride + j] != 0.0f)
                ck_abort_msg("row %zu sees key %zu", i, j);
}

static void compare(const struct outputs *a, const struct outputs *b, const char *what)
{
    assert_same(a->values, b->values, COUNT, what);
    assert_same(a->more, b->more, COUNT, what);
    assert_same(a->small, b->small, 4 * WIDTH, what);
    ck_assert(a->sum == b->sum);
}

START_TEST(test_widths)
{
    static float x[COUNT];
    static float y[COUNT];
    static struct outputs outputs[2];

    for (size_t round = 0; round < SUPPORT_DRAWS(200, 40); round++) {
        size_t width = round < 70 ? 1 + round : 1 + (size_t)(support_random() * (WIDTH - 1));

        fill(x, 5.0f);
        fill(y, 1.0f);
        run_elements(tables[SIMD_BASELINE], x, y, width, &outputs[0]);
        run_elements(tables[_i], x, y, width, &outputs[1]);
        compare(&outputs[0], &outputs[1], "elements");
        ck_assert(outputs[0].sum == 0.0);
        run_rows(tables[SIMD_BASELINE], x, y, width, round % 2, &outputs[0]);
        run_rows(tables[_i], x, y, width, round % 2, &outputs[1]);
        compare(&outputs[0], &outputs[1], "layer norm");
        run_scores(tables[SIMD_BASELINE], x, y, width, &outputs[0]);
        run_scores(tables[_i], x, y, width, &outputs[1]);
        compare(&outputs[0], &outputs[1], "scores");
    }
}
END_TEST

/* NaN is never the maximum; the maximum of only NaNs is -infinity. */
START_TEST(test_largest)
{
    float row[100];

    for (size_t count = 1; count <= 100; count++) {
        size_t place = (size_t)(support_random() * (double)count);

        for (size_t i = 0; i < count; i++)
            row[i] = i % 3 ? -3.0f : nanf("");
        row[place] = -1.0f;
        ck_assert(tables[_i]->largest(row, count) == -1.0f);
        row[place] = nanf("");
        ck_assert(tables[_i]->largest(row, 1) == (isnan(row[0]) ? -INFINITY : row[0]));
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("sequence_kernels", 60, LOOP_TEST(test_exponential, 0, simd_level() + 1),
                       LOOP_TEST(test_widths, 1, simd_level() + 1),
                       LOOP_TEST(test_largest, 0, simd_level() + 1));
}
