/*
 * Attention on a GPU, in every precision, against double with the roundings of that precision only:
 * those of exponentials, of their gradients and of results.  Scores and sums are float32, and the
 * random inputs are exact in TF32.  Shapes are around the tiles' sizes; heads are whole chunks of
 * 16 bytes and others.  Without a GPU every test reports why it is skipped.
 */
#include "common/base/clock.h"
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

/* Bounds of a rounding: fp16 has few numbers below 2^-14. sums: relative, of a head's scores,
 * exponentials and sums in float32. */
struct rounding {
    double unit, least, sums;
};

static struct rounding rounding_of(enum precision precision)
{
    return (struct rounding){
        .unit = precision == PRECISION_BF16      ? 0x1p-8
                : precision == PRECISION_FLOAT32 ? 0x1p-24
                                                 : 0x1p-11,
        .least = precision == PRECISION_FP16 ? 0x1p-25 : 0x1p-126,
    };
}

static double off_by(struct rounding r, double x)
{
    return (r.unit + r.sums) * fabs(x) + r.least;
}

struct shape {
    size_t batch, heads, positions, size; /* size: width of a head */
};

struct sample { /* one call of attention, and its exact results */
    struct attention attention;
    struct shape shape;
    struct array qkv, y, dy, dqkv, log_sums;
    double *p, *slopes; /* (positions, positions) of one head; zeros where masked */
};

static float *row_of(const struct sample *a, const struct array *of, size_t sample, size_t position,
                     size_t which, size_t head)
{
    size_t parts = of == &a->qkv || of == &a->dqkv ? 3 : 1;
    size_t row = (sample * a->shape.positions + position) * parts + which;

    return of->host + row * a->attention.width + head * a->shape.size;
}

static double dot(const float *a, const float *b, size_t size)
{
    double sum = 0.0;

    for (size_t j = 0; j < size; j++)
        sum += (double)a[j] * (double)b[j];
    return sum;
}

static double size_of(const float *a, const float *b, size_t size)
{
    double sum = 0.0;

    for (size_t j = 0; j < size; j++)
        sum += fabs((double)a[j] * (double)b[j]);
    return sum;
}

static void make_exact_in_tf32(struct compute *c, struct array *a)
{
    for (size_t i = 0; i < a->count; i++)
        a->host[i] = roundf(a->host[i] * 512.0f) / 512.0f;
    array_upload(c, a);
}

static struct sample sample_make(struct compute *c, const struct shape *s)
{
    struct sample a = {
        .shape = *s,
        .attention = {.heads = s->heads, .positions = s->positions, .width = s->heads * s->size},
        .log_sums = array_poisoned(c, s->batch * s->heads * s->positions),
        .p = calloc(s->positions * s->positions, sizeof(double)),
        .slopes = calloc(s->positions * s->positions, sizeof(double)),
    };
    size_t count = s->batch * s->positions * a.attention.width;

    ck_assert(a.p && a.slopes);
    a.qkv = values_random(c, 3 * count);
    a.dy = values_random(c, count);
    a.y = values_poisoned(c, count);
    a.dqkv = values_poisoned(c, 3 * count);
    make_exact_in_tf32(c, &a.qkv);
    make_exact_in_tf32(c, &a.dy);
    assert_ok(compute_attention_prepare(c, &a.attention, s->batch, &err));
    return a;
}

static void sample_free(struct compute *c, struct sample *a)
{
    compute_attention_release(c, &a->attention);
    array_free(c, &a->qkv);
    array_free(c, &a->y);
    array_free(c, &a->dy);
    array_free(c, &a->dqkv);
    array_free(c, &a->log_sums);
    free(a->p);
    free(a->slopes);
}

static void run_attention(struct compute *c, const struct sample *a)
{
    assert_ok(compute_attention_forward(c, &a->attention, a->qkv.device, a->log_sums.device,
                                        a->y.device, a->shape.batch, &err));
    assert_ok(compute_attention_backward(c, &a->attention, a->qkv.device, a->log_sums.device,
                                         a->y.device, a->dy.device, a->dqkv.device, a->shape.batch,
                                         &err));
    array_download(c, &a->y);
    array_download(c, &a->log_sums);
    array_download(c, &a->dqkv);
}

/* Compute p of a head, and check its rows' logarithms.  Returns the relative error of p in float32:
 * a score's n terms round twice by 2^-24 at most where tensor cores truncate, and both it and the
 * logarithm are in the exponent; then the sums over keys, and the roundings of each step. */
static double find_probabilities(const struct sample *a, size_t sample, size_t head)
{
    size_t positions = a->shape.positions;
    double scale = 1.0 / sqrt((double)a->shape.size);
    double largest = 0.0;

    for (size_t q = 0; q < positions; q++) {
        double *p = a->p + q * positions;
        size_t at = (sample * a->shape.heads + head) * positions + q;
        double sum = 0.0;
        double off = 0.0;

        for (size_t k = 0; k <= q; k++) {
            const float *query = row_of(a, &a->qkv, sample, q, 0, head);
            const float *key = row_of(a, &a->qkv, sample, k, 1, head);

            p[k] = exp(scale * dot(query, key, a->shape.size));
            off = fmax(off, (double)(a->shape.size + 8) * ULP * scale *
                                size_of(query, key, a->shape.size));
            sum += p[k];
        }
        for (size_t k = 0; k <= q; k++)
            p[k] /= sum;
        expect_near("logarithm of a sum", at, a->log_sums.host[at], log(sum),
                    off + (double)(q + 8) * ULP + 4.0 * ROUNDING * fabs(log(sum)));
        largest = fmax(largest, off);
    }
    return 2.0 * largest + (double)(positions + a->shape.size + 16) * ULP;
}

static void expect_output(const struct sample *a, size_t sample, size_t head, size_t i,
                          struct rounding r)
{
    for (size_t j = 0; j < a->shape.size; j++) {
        double value = 0.0;
        double off = 0.0;

        for (size_t k = 0; k <= i; k++) {
            double p = a->p[i * a->shape.positions + k];
            double v = (double)row_of(a, &a->qkv, sample, k, 2, head)[j];

            value += p * v;
            off += off_by(r, p) * fabs(v);
        }
        expect_near("output", i, row_of(a, &a->y, sample, i, 0, head)[j], value,
                    off + off_by(r, value));
    }
}

/* slopes: gradients of scores without the scale; ret_off (positions): a row's error per unit of p,
 * since the device subtracts dy . y with the rounded y. */
static void find_slopes(const struct sample *a, size_t sample, size_t head, struct rounding r,
                        double *ret_off)
{
    size_t positions = a->shape.positions;
    size_t size = a->shape.size;

    for (size_t q = 0; q < positions; q++) {
        const float *dy = row_of(a, &a->dy, sample, q, 0, head);
        double *slopes = a->slopes + q * positions;
        const double *p = a->p + q * positions;
        double delta = 0.0;
        double largest = 0.0;

        ret_off[q] = 0.0;
        for (size_t k = 0; k <= q; k++) {
            const float *v = row_of(a, &a->qkv, sample, k, 2, head);
            double magnitude = size_of(dy, v, size);

            slopes[k] = dot(dy, v, size);
            delta += p[k] * slopes[k];
            largest = fmax(largest, magnitude);
            ret_off[q] += off_by(r, p[k]) * magnitude;
        }
        for (size_t j = 0; j < size; j++)
            ret_off[q] +=
                off_by(r, (double)row_of(a, &a->y, sample, q, 0, head)[j]) * fabs((double)dy[j]);
        for (size_t k = 0; k <= q; k++)
            slopes[k] = p[k] * (slopes[k] - delta);
        ret_off[q] += r.sums * largest;
    }
}

/* A sum of values times weights that the device rounds. */
struct weighted {
    double value, off;
};

static void add_weighted(struct weighted *sum, double weight, double off, double value)
{
    sum->value += weight * value;
    sum->off += off * fabs(value);
}

static void expect_gradients(const struct sample *a, size_t sample, size_t head, size_t i,
                             const double *off, struct rounding r)
{
    size_t positions = a->shape.positions;
    double scale = 1.0 / sqrt((double)a->shape.size);

    for (size_t j = 0; j < a->shape.size; j++) {
        struct weighted dq = {0}, dk = {0}, dv = {0};

        for (size_t k = 0; k <= i; k++) {
            size_t at = i * positions + k;

            add_weighted(&dq, a->slopes[at], off_by(r, a->slopes[at]) + off[i] * a->p[at],
                         (double)row_of(a, &a->qkv, sample, k, 1, head)[j]);
        }
        for (size_t q = i; q < positions; q++) {
            size_t at = q * positions + i;

            add_weighted(&dk, a->slopes[at], off_by(r, a->slopes[at]) + off[q] * a->p[at],
                         (double)row_of(a, &a->qkv, sample, q, 0, head)[j]);
            add_weighted(&dv, a->p[at], off_by(r, a->p[at]),
                         (double)row_of(a, &a->dy, sample, q, 0, head)[j]);
        }
        expect_near("gradient of a query", i, row_of(a, &a->dqkv, sample, i, 0, head)[j],
                    scale * dq.value, scale * dq.off + off_by(r, scale * dq.value));
        expect_near("gradient of a key", i, row_of(a, &a->dqkv, sample, i, 1, head)[j],
                    scale * dk.value, scale * dk.off + off_by(r, scale * dk.value));
        expect_near("gradient of a value", i, row_of(a, &a->dqkv, sample, i, 2, head)[j], dv.value,
                    dv.off + off_by(r, dv.value));
    }
}

static void check_shape(struct compute *c, const struct shape *s)
{
    struct sample a = sample_make(c, s);
    struct rounding r = rounding_of(compute_precision(c));
    double *off = calloc(s->positions, sizeof(*off));
    float *before;

    ck_assert_ptr_nonnull(off);
    run_attention(c, &a);
    for (size_t i = 0; i < s->batch * s->heads; i++) {
        r.sums = find_probabilities(&a, i / s->heads, i % s->heads);
        find_slopes(&a, i / s->heads, i % s->heads, r, off);
        for (size_t position = 0; position < s->positions; position++) {
            expect_output(&a, i / s->heads, i % s->heads, position, r);
            expect_gradients(&a, i / s->heads, i % s->heads, position, off, r);
        }
    }
    before = array_copy(&a.dqkv);
    run_attention(c, &a);
    ck_assert_msg(memcmp(before, a.dqkv.host, a.dqkv.count * sizeof(*before)) == 0,
                  "other bits the second time");
    free(before);
    free(off);
    sample_free(c, &a);
}

/* Time of the calls of a GPT of 124M parameters in each of its 12 layers, in milliseconds and
 * TFLOP/s of the products that a causal mask leaves: 2 forward, 5 backward. */
static void print_speed(struct compute *c)
{
    const struct shape s = {.batch = 16, .heads = 12, .positions = 1024, .size = 64};
    enum { CALLS = 50 };
    struct sample a = sample_make(c, &s);
    double flops = 2.0 * (double)(s.batch * s.heads * s.positions * s.positions * s.size) / 2.0;

    for (int backward = 0; backward < 2; backward++) {
        int64_t begin = 0;
        double seconds;

        for (int i = -5; i < CALLS; i++) {
            if (i == 0) {
                assert_ok(compute_synchronize(c, &err));
                begin = clock_now_ns();
            }
            if (backward)
                assert_ok(compute_attention_backward(c, &a.attention, a.qkv.device,
                                                     a.log_sums.device, a.y.device, a.dy.device,
                                                     a.dqkv.device, s.batch, &err));
            else
                assert_ok(compute_attention_forward(c, &a.attention, a.qkv.device,
                                                    a.log_sums.device, a.y.device, s.batch, &err));
        }
        assert_ok(compute_synchronize(c, &err));
        seconds = (double)(clock_now_ns() - begin) * 1e-9 / CALLS;
        (void)printf("%s, attention %s, 16 x 1024, 12 heads of 64: %.3f ms, %.0f TFLOP/s\n",
                     precision_name(compute_precision(c)), backward ? "backward" : "forward",
                     1e3 * seconds, (backward ? 5.0 : 2.0) * flops / seconds * 1e-12);
    }
    sample_free(c, &a);
}

static const enum precision precisions[] = {PRECISION_FLOAT32, PRECISION_TF32, PRECISION_BF16,
                                            PRECISION_FP16};

START_TEST(test_shapes)
{
    /* Every compiled head size; rows of whole chunks, and others. */
    static const struct shape shapes[] = {
        {1, 1, 1, 64},   {2, 3, 33, 64}, {1, 1, 64, 64}, {1, 2, 65, 64},  {1, 1, 129, 64},
        {1, 1, 200, 64}, {2, 1, 70, 32}, {1, 2, 97, 9},  {1, 1, 66, 96},  {1, 2, 40, 72},
        {1, 1, 63, 128}, {1, 1, 65, 67}, {1, 2, 34, 50}, {3, 2, 17, 101},
    };
    struct compute *c = open_gpu("cuda", precisions[_i]);

    if (!c)
        return;
    (void)printf("checking %s, %s\n", compute_name(c), precision_name(precisions[_i]));
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_shape(c, &shapes[i]);
    if (!strstr(compute_name(c), "emulated"))
        print_speed(c);
    compute_close(c);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("attention", 120, /* for the random numbers of a large batch */
                       LOOP_TEST(test_shapes, 0, sizeof(precisions) / sizeof(precisions[0])));
}
