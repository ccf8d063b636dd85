/*
 * Attention against double, with the full matrix of probabilities.  The error of a float32 score
 * counts as an error of its exponential, and of every sum weighted by it.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

struct attention_case {
    struct attention attention;
    size_t batch, size; /* size: width of a head */
    struct array qkv, log_sums, y;
};

/* Offset in qkv (which 0: query, 1: key, 2: value) of a head's row. */
static size_t row_of(const struct attention_case *a, size_t sample, size_t head, size_t position,
                     size_t which)
{
    return ((sample * a->attention.positions + position) * 3 + which) * a->attention.width +
           head * a->size;
}

static double row_dot(const float *a, const float *b, size_t size, double *ret_magnitude)
{
    double sum = 0.0;

    *ret_magnitude = 0.0;
    for (size_t j = 0; j < size; j++) {
        sum += (double)a[j] * (double)b[j];
        *ret_magnitude += fabs((double)a[j] * (double)b[j]);
    }
    return sum;
}

/* Compute the probabilities of one query into p (positions), zero after it, the error bound of a
 * float32 score, and the logarithm of the sum. */
static double exact_probabilities(const struct attention_case *a, size_t sample, size_t head,
                                  size_t query, double *p, double *ret_log_sum)
{
    double factor = 1.0 / sqrt((double)a->size);
    const float *q = a->qkv.host + row_of(a, sample, head, query, 0);
    double max = -(double)INFINITY;
    double off = 0.0;
    double sum = 0.0;

    memset(p, 0, a->attention.positions * sizeof(*p));
    for (size_t k = 0; k <= query; k++) {
        double magnitude;

        p[k] =
            factor * row_dot(q, a->qkv.host + row_of(a, sample, head, k, 1), a->size, &magnitude);
        max = fmax(max, p[k]);
        off =
            fmax(off, ((double)(a->size + 8) * ULP + 2.0 * precision_unit()) * factor * magnitude);
    }
    for (size_t k = 0; k <= query; k++)
        sum += p[k] = exp(p[k] - max);
    for (size_t k = 0; k <= query; k++)
        p[k] /= sum;
    *ret_log_sum = max + log(sum);
    return off;
}

static struct attention_case attention_make(struct compute *c, size_t batch, size_t heads,
                                            size_t positions, size_t size, float spread)
{
    struct attention_case a = {
        .attention = {.heads = heads, .positions = positions, .width = heads * size},
        .batch = batch,
        .size = size,
        .qkv = values_random(c, batch * positions * 3 * heads * size),
        .log_sums = array_poisoned(c, batch * heads * positions),
        .y = values_poisoned(c, batch * positions * heads * size),
    };

    for (size_t i = 0; i < a.qkv.count; i++)
        a.qkv.host[i] *= spread;
    array_upload(c, &a.qkv);
    assert_ok(compute_attention_prepare(c, &a.attention, batch + 1, &err));
    assert_ok(compute_attention_forward(c, &a.attention, a.qkv.device, a.log_sums.device,
                                        a.y.device, batch, &err));
    array_download(c, &a.y);
    array_download(c, &a.log_sums);
    return a;
}

static void attention_free(struct compute *c, struct attention_case *a)
{
    compute_attention_release(c, &a->attention);
    ck_assert_ptr_null(a->attention.plan);
    compute_attention_release(c, &a->attention); /* release of a struct that was never prepared */
    array_free(c, &a->qkv);
    array_free(c, &a->log_sums);
    array_free(c, &a->y);
}

static void expect_outputs(const struct attention_case *a, size_t sample, size_t head, double *p)
{
    size_t positions = a->attention.positions;

    for (size_t query = 0; query < positions; query++) {
        double log_sum;
        double off = exact_probabilities(a, sample, head, query, p, &log_sum);
        size_t at = (sample * a->attention.heads + head) * positions + query;

        /* Exponentials with the errors of their scores and 4 roundings, `query` sums, a logarithm.
         */
        expect_near("attention, logarithm of a sum", at, a->log_sums.host[at], log_sum,
                    off + (double)(query + 8) * ROUNDING + 4.0 * ROUNDING * fabs(log_sum));
        for (size_t j = 0; j < a->size; j++) {
            struct exact e = {0};

            for (size_t k = 0; k <= query; k++)
                exact_add(&e, p[k] * (double)a->qkv.host[row_of(a, sample, head, k, 2) + j]);
            at = (sample * positions + query) * a->attention.width + head * a->size + j;
            /* Exponentials, their sum and that of products; factors are rounded to the precision.
             */
            e.magnitude *= 2.0 * off + (double)(query + 8) * ULP + 2.0 * precision_unit();
            expect_bounded("attention forward", at, a->y.host[at],
                           (struct bounded){e.value, e.magnitude});
        }
    }
}

static void check_attention_forward(struct compute *c, size_t batch, size_t heads, size_t positions,
                                    size_t size, float spread)
{
    struct attention_case a = attention_make(c, batch, heads, positions, size, spread);
    double *p = calloc(positions, sizeof(*p));

    ck_assert_ptr_nonnull(p);
    for (size_t i = 0; i < batch * heads; i++)
        expect_outputs(&a, i / heads, i % heads, p);
    free(p);
    attention_free(c, &a);
}

/* The three gradients of a head, in qkv's layout: `terms` includes the error of a score. */
struct attention_sums {
    struct exact *dqkv;
    double *p;
};

static void add_gradient(struct exact *e, double coefficient, double size, float factor)
{
    e->value += coefficient * (double)factor;
    e->magnitude += size * fabs((double)factor);
}

/* Adds what one query's output contributes to the gradients of query, keys and values. */
static void add_query(const struct attention_case *a, const float *dy, size_t sample, size_t head,
                      size_t query, const struct attention_sums *s)
{
    double factor = 1.0 / sqrt((double)a->size);
    double log_sum;
    double off = exact_probabilities(a, sample, head, query, s->p, &log_sum);
    /* p and dy . y, which include forward's error; sums over positions and a head's width; in a
     * coarser precision two factors of each of three products. */
    double relative =
        4.0 * off + (double)(a->attention.positions + a->size + 16) * ULP + 6.0 * precision_unit();
    const float *gradient =
        dy + (sample * a->attention.positions + query) * a->attention.width + head * a->size;
    size_t q = row_of(a, sample, head, query, 0);
    double shift = 0.0;
    double shift_magnitude = 0.0;

    for (size_t k = 0; k <= query; k++) {
        double magnitude;

        shift += s->p[k] * row_dot(gradient, a->qkv.host + row_of(a, sample, head, k, 2), a->size,
                                   &magnitude);
        shift_magnitude += s->p[k] * magnitude;
    }
    for (size_t k = 0; k <= query; k++) {
        size_t key = row_of(a, sample, head, k, 1);
        size_t value = row_of(a, sample, head, k, 2);
        double magnitude;
        double slope = row_dot(gradient, a->qkv.host + value, a->size, &magnitude);
        double ds = s->p[k] * (slope - shift) * factor;
        double size = relative * s->p[k] * (magnitude + shift_magnitude) * factor;

        for (size_t j = 0; j < a->size; j++) {
            add_gradient(&s->dqkv[q + j], ds, size, a->qkv.host[key + j]);
            add_gradient(&s->dqkv[key + j], ds, size, a->qkv.host[q + j]);
            add_gradient(&s->dqkv[value + j], s->p[k], relative * s->p[k], gradient[j]);
        }
    }
}

static void check_attention_backward(struct compute *c, size_t batch, size_t heads,
                                     size_t positions, size_t size, float spread)
{
    struct attention_case a = attention_make(c, batch, heads, positions, size, spread);
    struct array dy = values_random(c, a.y.count);
    struct array dqkv = values_poisoned(c, a.qkv.count);
    struct attention_sums sums = {.dqkv = calloc(dqkv.count, sizeof(*sums.dqkv)),
                                  .p = calloc(positions, sizeof(*sums.p))};

    ck_assert(sums.dqkv && sums.p);
    assert_ok(compute_attention_backward(c, &a.attention, a.qkv.device, a.log_sums.device,
                                         a.y.device, dy.device, dqkv.device, batch, &err));
    array_download(c, &dqkv);
    for (size_t i = 0; i < batch * heads * positions; i++)
        add_query(&a, dy.host, i / positions / heads, i / positions % heads, i % positions, &sums);
    for (size_t i = 0; i < dqkv.count; i++)
        expect_bounded("attention backward", i, dqkv.host[i],
                       (struct bounded){sums.dqkv[i].value, sums.dqkv[i].magnitude});
    free(sums.dqkv);
    free(sums.p);
    array_free(c, &dy);
    array_free(c, &dqkv);
    attention_free(c, &a);
}

/* A NaN in a query affects only its own row of its own head. */
static void check_attention_nan(struct compute *c)
{
    struct attention_case a = attention_make(c, 1, 2, 70, 5, 1.0f);

    a.qkv.host[row_of(&a, 0, 1, 66, 0)] = nanf("");
    array_upload(c, &a.qkv);
    assert_ok(compute_attention_forward(c, &a.attention, a.qkv.device, a.log_sums.device,
                                        a.y.device, 1, &err));
    array_download(c, &a.y);
    for (size_t i = 0; i < a.y.count; i++)
        if ((i >= 66 * 10 + 5 && i < 67 * 10) != (bool)isnan(a.y.host[i]))
            ck_abort_msg("attention with a NaN: element %zu is %g", i, (double)a.y.host[i]);
    attention_free(c, &a);
}

static void check_attention_shape(struct compute *c, size_t batch, size_t heads, size_t positions,
                                  size_t size, float spread)
{
    check_attention_forward(c, batch, heads, positions, size, spread);
    check_attention_backward(c, batch, heads, positions, size, spread);
}

void check_attentions(struct compute *c, int rounds)
{
    check_attention_shape(c, 1, 1, 1, 1, 1.0f);
    check_attention_shape(c, 3, 2, 1, 7, 1.0f);
    check_attention_shape(c, 1, 1, 130, 16, 4.0f); /* three blocks, sharp rows */
    check_attention_shape(c, 3, 3, 64, 32, 1.0f);
    check_attention_nan(c);
    for (int round = 0; round < rounds; round++)
        check_attention_shape(c, random_size(3), random_size(4), random_size(140), random_size(40),
                              round % 2 ? 1.0f : 3.0f);
}
