/*
 * The operations of transformers against double.  A result may differ by what float32 makes of its
 * terms: `ULP` times their number and magnitude, where a term's own error counts as more terms.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ULP 0x1p-23

static struct error err;

/* ---- linear layers with GELU, residual, without bias ---- */

static double exact_gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double exact_gelu_slope(double x)
{
    double t = tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x));

    return 0.5 * (1.0 + t) +
           0.5 * x * (1.0 - t * t) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

static double activate(enum activation activation, double x)
{
    if (activation == ACTIVATION_GELU)
        return exact_gelu(x);
    return activation == ACTIVATION_RELU && x < 0.0 ? 0.0 : x;
}

static void check_linear(struct compute *c, const struct linear *shape, size_t rows, bool bias,
                         bool residual)
{
    struct linear l = *shape;
    bool gelu = l.activation == ACTIVATION_GELU;
    struct array x = values_random(c, rows * l.in);
    struct array weight = array_random(c, l.out * l.in);
    struct array b = array_random(c, l.out);
    struct array r = values_random(c, rows * l.out);
    struct array pre = values_poisoned(c, rows * l.out);
    struct array y = values_poisoned(c, rows * l.out);

    l.weight = weight.device;
    l.bias = bias ? b.device : NULL;
    assert_ok(compute_linear_forward(c, &l, x.device, residual ? r.device : NULL,
                                     gelu ? pre.device : NULL, y.device, rows, &err));
    array_receive(c, &y);
    array_receive(c, &pre);
    for (size_t i = 0; i < rows * l.out; i++) {
        struct exact e = {0};
        double added = residual ? (double)r.host[i] : 0.0;
        double allowed;

        if (bias)
            exact_add(&e, (double)b.host[i % l.out]);
        for (size_t k = 0; k < l.in; k++)
            exact_add(&e, (double)x.host[i / l.out * l.in + k] *
                              (double)weight.host[i % l.out * l.in + k]);
        if (gelu)
            exact_expect("GELU's input", i, pre.host[i], &e);
        allowed = (double)(e.terms + 16) * ULP * (1.2 * e.magnitude + fabs(added));
        expect_near("linear forward", i, y.host[i], activate(l.activation, e.value) + added,
                    allowed);
    }
    array_free(c, &x);
    array_free(c, &weight);
    array_free(c, &b);
    array_free(c, &r);
    array_free(c, &pre);
    array_free(c, &y);
}

static void check_gelu_backward(struct compute *c, size_t count)
{
    static const float extremes[] = {0.0f, -0.0f, 100.0f, -100.0f, 1e4f, -1e4f, 1e-30f, -5.5f};
    struct array pre = values_random(c, count);
    struct array dy = values_random(c, count);
    float *before = array_copy(&dy);

    for (size_t i = 0; i < count; i++)
        pre.host[i] = i < sizeof(extremes) / sizeof(extremes[0]) ? extremes[i] : 6 * pre.host[i];
    array_send(c, &pre);
    assert_ok(compute_activation_backward(c, ACTIVATION_GELU, pre.device, dy.device, count, &err));
    array_receive(c, &dy);
    for (size_t i = 0; i < count; i++)
        expect_near("GELU backward", i, dy.host[i],
                    (double)before[i] * exact_gelu_slope((double)pre.host[i]),
                    32 * ULP * fabs((double)before[i]) + 1e-37);
    free(before);
    array_free(c, &pre);
    array_free(c, &dy);
}

static void check_gelu_nan(struct compute *c)
{
    struct array x = values_random(c, 2);
    struct array weight = array_random(c, 1);
    struct array pre = values_poisoned(c, 2);
    struct array y = values_poisoned(c, 2);
    struct linear l = {.in = 1, .out = 1, .weight = weight.device, .activation = ACTIVATION_GELU};

    x.host[0] = nanf("");
    array_send(c, &x);
    assert_ok(compute_linear_forward(c, &l, x.device, NULL, pre.device, y.device, 2, &err));
    array_receive(c, &y);
    ck_assert(isnan(y.host[0]) && !isnan(y.host[1]));
    array_send(c, &x);
    y.host[0] = y.host[1] = 1.0f;
    array_send(c, &y);
    assert_ok(compute_activation_backward(c, ACTIVATION_GELU, pre.device, y.device, 2, &err));
    array_receive(c, &y);
    ck_assert(isnan(y.host[0]) && !isnan(y.host[1]));
    array_free(c, &x);
    array_free(c, &weight);
    array_free(c, &pre);
    array_free(c, &y);
}

/* ---- layer normalisation ---- */

struct norm_case {
    struct layer_norm norm;
    size_t rows;
    struct array x, y, weight, bias, mean, inverse_std;
    double *exact_mean, *exact_inverse; /* (rows) */
};

static void norm_moments(struct norm_case *n)
{
    size_t width = n->norm.width;

    for (size_t row = 0; row < n->rows; row++) {
        const float *x = n->x.host + row * width;
        double mean = 0.0;
        double variance = 0.0;

        for (size_t j = 0; j < width; j++)
            mean += (double)x[j] / (double)width;
        for (size_t j = 0; j < width; j++)
            variance += ((double)x[j] - mean) * ((double)x[j] - mean) / (double)width;
        n->exact_mean[row] = mean;
        n->exact_inverse[row] = 1.0 / sqrt(variance + (double)n->norm.epsilon);
    }
}

/* offset: of all of x; a mean beside which the deviations are small. */
static struct norm_case norm_make(struct compute *c, size_t rows, size_t width, float offset)
{
    struct norm_case n = {
        .norm = {.width = width, .epsilon = 1e-5f},
        .rows = rows,
        .x = values_random(c, rows * width),
        .y = values_poisoned(c, rows * width),
        .weight = array_random(c, width),
        .bias = array_random(c, width),
        .mean = array_poisoned(c, rows),
        .inverse_std = array_poisoned(c, rows),
        .exact_mean = calloc(rows, sizeof(double)),
        .exact_inverse = calloc(rows, sizeof(double)),
    };

    ck_assert(n.exact_mean && n.exact_inverse);
    for (size_t i = 0; i < n.x.count; i++)
        n.x.host[i] += offset;
    array_send(c, &n.x);
    norm_moments(&n);
    n.norm.weight = n.weight.device;
    n.norm.bias = n.bias.device;
    n.norm.mean = n.mean.device;
    n.norm.inverse_std = n.inverse_std.device;
    assert_ok(compute_layer_norm_forward(c, &n.norm, n.x.device, n.y.device, rows, &err));
    array_receive(c, &n.y);
    return n;
}

static void norm_free(struct compute *c, struct norm_case *n)
{
    array_free(c, &n->x);
    array_free(c, &n->y);
    array_free(c, &n->weight);
    array_free(c, &n->bias);
    array_free(c, &n->mean);
    array_free(c, &n->inverse_std);
    free(n->exact_mean);
    free(n->exact_inverse);
}

/* The normalised value of element i, and how large the numbers were that it is made of. */
static double normalised(const struct norm_case *n, size_t i, double *ret_magnitude)
{
    size_t row = i / n->norm.width;

    *ret_magnitude =
        (fabs((double)n->x.host[i]) + fabs(n->exact_mean[row])) * n->exact_inverse[row];
    return ((double)n->x.host[i] - n->exact_mean[row]) * n->exact_inverse[row];
}

static void check_layer_norm_forward(struct compute *c, size_t rows, size_t width, float offset)
{
    struct norm_case n = norm_make(c, rows, width, offset);

    for (size_t i = 0; i < rows * width; i++) {
        double magnitude;
        double value = normalised(&n, i, &magnitude);
        double weight = (double)n.weight.host[i % width];
        double bias = (double)n.bias.host[i % width];

        expect_near("layer norm forward", i, n.y.host[i], value * weight + bias,
                    16 * ULP * (magnitude * (1.0 + fabs(value)) * fabs(weight) + fabs(bias)));
    }
    norm_free(c, &n);
}

/* dx of one row, whose dy * weight is g. */
static void expect_row_gradient(const struct norm_case *n, size_t row, const float *dy,
                                const float *dx, const float *start)
{
    size_t width = n->norm.width;
    struct exact sum = {0};
    struct exact projection = {0};
    double magnitude;

    for (size_t j = 0; j < width; j++) {
        double g = (double)dy[row * width + j] * (double)n->weight.host[j];
        double value = normalised(n, row * width + j, &magnitude);

        exact_add(&sum, g / (double)width);
        exact_add(&projection, g * value / (double)width);
        projection.magnitude += fabs(g) * magnitude / (double)width;
    }
    for (size_t j = 0; j < width; j++) {
        size_t i = row * width + j;
        double g = (double)dy[i] * (double)n->weight.host[j];
        double value = normalised(n, i, &magnitude);
        double before = start ? (double)start[i] : 0.0;
        double size = fabs(g) + sum.magnitude + (fabs(value) + magnitude) * projection.magnitude;

        expect_near("layer norm, input gradient", i, dx[i],
                    before + (g - sum.value - value * projection.value) * n->exact_inverse[row],
                    (double)(width + 32) * ULP * (fabs(before) + n->exact_inverse[row] * size));
    }
}

static void expect_norm_parameters(const struct norm_case *n, const float *dy, const float *start,
                                   const struct array *gradient)
{
    size_t width = n->norm.width;

    for (size_t j = 0; j < width; j++) {
        struct exact weight = {0};
        struct exact bias = {0};

        if (start) {
            exact_add(&weight, (double)start[j]);
            exact_add(&bias, (double)start[width + j]);
        }
        for (size_t row = 0; row < n->rows; row++) {
            double magnitude;
            double d = (double)dy[row * width + j];

            exact_add(&weight, d * normalised(n, row * width + j, &magnitude));
            weight.magnitude += 8.0 * fabs(d) * magnitude;
            exact_add(&bias, d);
        }
        exact_expect("layer norm, weight gradient", j, gradient->host[j], &weight);
        exact_expect("layer norm, bias gradient", j, gradient->host[width + j], &bias);
    }
}

static void check_layer_norm_backward(struct compute *c, size_t rows, size_t width, bool add_input,
                                      bool add_parameters)
{
    struct norm_case n = norm_make(c, rows, width, 0.5f);
    struct array dy = values_random(c, rows * width);
    struct array dx = add_input ? values_random(c, rows * width) : values_poisoned(c, rows * width);
    struct array gradient =
        add_parameters ? array_random(c, 2 * width) : array_poisoned(c, 2 * width);
    float *dx_before = array_copy(&dx);
    float *before = array_copy(&gradient);

    n.norm.dweight = gradient.device;
    n.norm.dbias = gradient.device + width;
    assert_ok(compute_layer_norm_backward(c, &n.norm, n.x.device, dy.device, dx.device, rows,
                                          add_input, add_parameters, &err));
    array_receive(c, &dx);
    array_receive(c, &gradient);
    for (size_t row = 0; row < rows; row++)
        expect_row_gradient(&n, row, dy.host, dx.host, add_input ? dx_before : NULL);
    expect_norm_parameters(&n, dy.host, add_parameters ? before : NULL, &gradient);
    free(dx_before);
    free(before);
    array_free(c, &dy);
    array_free(c, &dx);
    array_free(c, &gradient);
    norm_free(c, &n);
}

/* A NaN spoils its own row and no other. */
static void check_layer_norm_nan(struct compute *c)
{
    struct norm_case n = norm_make(c, 3, 40, 0.0f);

    n.x.host[45] = nanf("");
    array_send(c, &n.x);
    assert_ok(compute_layer_norm_forward(c, &n.norm, n.x.device, n.y.device, 3, &err));
    array_receive(c, &n.y);
    for (size_t i = 0; i < 120; i++)
        if ((i / 40 == 1) != (bool)isnan(n.y.host[i]))
            ck_abort_msg("layer norm of a row with a NaN: element %zu is %g", i,
                         (double)n.y.host[i]);
    norm_free(c, &n);
}

/* ---- embedding ---- */

struct embedding_case {
    struct embedding embedding;
    size_t batch;
    struct array ids, tokens, places;
};

static struct embedding_case embedding_make(struct compute *c, size_t batch, size_t vocabulary,
                                            size_t positions, size_t width)
{
    struct embedding_case e = {
        .embedding = {.vocabulary = vocabulary, .positions = positions, .width = width},
        .batch = batch,
        .ids = array_make(c, batch * positions),
        .tokens = array_random(c, vocabulary * width),
        .places = array_random(c, positions * width),
    };

    for (size_t i = 0; i < batch * positions; i++)
        e.ids.host[i] = (float)(random_size(vocabulary) - 1);
    array_send(c, &e.ids);
    e.embedding.tokens = e.tokens.device;
    e.embedding.places = e.places.device;
    return e;
}

static void embedding_free(struct compute *c, struct embedding_case *e)
{
    array_free(c, &e->ids);
    array_free(c, &e->tokens);
    array_free(c, &e->places);
}

static void check_embedding_forward(struct compute *c, size_t batch, size_t vocabulary,
                                    size_t positions, size_t width)
{
    struct embedding_case e = embedding_make(c, batch, vocabulary, positions, width);
    struct array y = values_poisoned(c, batch * positions * width);

    assert_ok(compute_embedding_forward(c, &e.embedding, e.ids.device, y.device, batch, &err));
    array_receive(c, &y);
    for (size_t i = 0; i < y.count; i++) {
        size_t place = i / width;
        struct exact wanted = {0};

        exact_add(&wanted, (double)e.tokens.host[(size_t)e.ids.host[place] * width + i % width]);
        exact_add(&wanted, (double)e.places.host[place % positions * width + i % width]);
        exact_expect("embedding forward", i, y.host[i], &wanted);
    }
    array_free(c, &y);
    embedding_free(c, &e);
}

static void check_embedding_backward(struct compute *c, size_t batch, size_t vocabulary,
                                     size_t positions, size_t width, bool add_tokens, bool add)
{
    struct embedding_case e = embedding_make(c, batch, vocabulary, positions, width);
    struct array dy = values_random(c, batch * positions * width);
    struct array dtokens =
        add_tokens ? array_random(c, vocabulary * width) : array_poisoned(c, vocabulary * width);
    struct array dplaces =
        add ? array_random(c, positions * width) : array_poisoned(c, positions * width);
    struct exact *tokens = calloc(dtokens.count, sizeof(*tokens));
    struct exact *places = calloc(dplaces.count, sizeof(*places));

    ck_assert(tokens && places);
    e.embedding.dtokens = dtokens.device;
    e.embedding.dplaces = dplaces.device;
    for (size_t i = 0; add_tokens && i < dtokens.count; i++)
        exact_add(&tokens[i], (double)dtokens.host[i]);
    for (size_t i = 0; add && i < dplaces.count; i++)
        exact_add(&places[i], (double)dplaces.host[i]);
    for (size_t i = 0; i < dy.count; i++) {
        size_t place = i / width;

        exact_add(&tokens[(size_t)e.ids.host[place] * width + i % width], (double)dy.host[i]);
        exact_add(&places[place % positions * width + i % width], (double)dy.host[i]);
    }
    assert_ok(compute_embedding_backward(c, &e.embedding, e.ids.device, dy.device, batch,
                                         add_tokens, add, &err));
    array_receive(c, &dtokens);
    array_receive(c, &dplaces);
    for (size_t i = 0; i < dtokens.count; i++)
        exact_expect("token gradient", i, dtokens.host[i], &tokens[i]);
    for (size_t i = 0; i < dplaces.count; i++)
        exact_expect("position gradient", i, dplaces.host[i], &places[i]);
    free(tokens);
    free(places);
    array_free(c, &dy);
    array_free(c, &dtokens);
    array_free(c, &dplaces);
    embedding_free(c, &e);
}

/* ---- attention ---- */

struct attention_case {
    struct attention attention;
    size_t batch, size; /* size: width of a head */
    struct array qkv, log_sums, y;
};

/* Where in qkv (which 0: query, 1: key, 2: value) a head's row lies. */
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

/* Probabilities of one query into p (positions), zero beyond it; what a float32 score may be off
 * by, and the logarithm of the sum. */
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
        off = fmax(off, (double)(a->size + 8) * ULP * factor * magnitude);
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
    array_send(c, &a.qkv);
    assert_ok(compute_attention_prepare(c, &a.attention, batch + 1, &err));
    assert_ok(compute_attention_forward(c, &a.attention, a.qkv.device, a.log_sums.device,
                                        a.y.device, batch, &err));
    array_receive(c, &a.y);
    array_receive(c, &a.log_sums);
    return a;
}

static void attention_free(struct compute *c, struct attention_case *a)
{
    compute_attention_release(c, &a->attention);
    ck_assert_ptr_null(a->attention.plan);
    compute_attention_release(c, &a->attention); /* one that was never prepared */
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

        expect_near("attention, logarithm of a sum", at, a->log_sums.host[at], log_sum,
                    off + (double)(query + 8) * ULP * (1.0 + fabs(log_sum)));
        for (size_t j = 0; j < a->size; j++) {
            struct exact e = {0};

            for (size_t k = 0; k <= query; k++)
                exact_add(&e, p[k] * (double)a->qkv.host[row_of(a, sample, head, k, 2) + j]);
            at = (sample * positions + query) * a->attention.width + head * a->size + j;
            expect_near("attention forward", at, a->y.host[at], e.value,
                        (2.0 * off + (double)(query + 32) * ULP) * e.magnitude);
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

/* The three gradients of a head, as qkv lies: `terms` counts what a score is off by as well. */
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
    double relative = 2.0 * off + (double)(a->attention.positions + a->size + 48) * ULP;
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
    array_receive(c, &dqkv);
    for (size_t i = 0; i < batch * heads * positions; i++)
        add_query(&a, dy.host, i / positions / heads, i / positions % heads, i % positions, &sums);
    for (size_t i = 0; i < dqkv.count; i++)
        expect_near("attention backward", i, dqkv.host[i], sums.dqkv[i].value,
                    sums.dqkv[i].magnitude + 1e-37);
    free(sums.dqkv);
    free(sums.p);
    array_free(c, &dy);
    array_free(c, &dqkv);
    attention_free(c, &a);
}

/* A NaN in a query spoils its own row of its own head. */
static void check_attention_nan(struct compute *c)
{
    struct attention_case a = attention_make(c, 1, 2, 70, 5, 1.0f);

    a.qkv.host[row_of(&a, 0, 1, 66, 0)] = nanf("");
    array_send(c, &a.qkv);
    assert_ok(compute_attention_forward(c, &a.attention, a.qkv.device, a.log_sums.device,
                                        a.y.device, 1, &err));
    array_receive(c, &a.y);
    for (size_t i = 0; i < a.y.count; i++)
        if ((i >= 66 * 10 + 5 && i < 67 * 10) != (bool)isnan(a.y.host[i]))
            ck_abort_msg("attention with a NaN: element %zu is %g", i, (double)a.y.host[i]);
    attention_free(c, &a);
}

/* ---- cross-entropy in place ---- */

static void check_softmax_in_place(struct compute *c, size_t rows, size_t classes)
{
    struct array logits = values_random(c, rows * classes);
    struct array gradient = values_poisoned(c, rows * classes);
    int32_t *labels = malloc(rows * sizeof(*labels));
    double loss[2];
    size_t correct[2];

    ck_assert_ptr_nonnull(labels);
    for (size_t i = 0; i < rows; i++)
        labels[i] = (int32_t)random_size(classes) - 1;
    assert_ok(compute_softmax_cross_entropy(c, logits.device, labels, gradient.device, rows,
                                            classes, &err));
    assert_ok(compute_loss_wait(c, &loss[0], &correct[0], &err));
    assert_ok(compute_softmax_cross_entropy(c, logits.device, labels, logits.device, rows, classes,
                                            &err));
    assert_ok(compute_loss_wait(c, &loss[1], &correct[1], &err));
    array_receive(c, &logits);
    array_receive(c, &gradient);
    ck_assert(loss[0] == loss[1] && correct[0] == correct[1]);
    for (size_t i = 0; i < rows * classes; i++)
        if (logits.host[i] != gradient.host[i])
            ck_abort_msg("cross-entropy in place: element %zu of %zu", i, rows * classes);
    free(labels);
    array_free(c, &logits);
    array_free(c, &gradient);
}

/* ---- all of them ---- */

static void check_linear_shape(struct compute *c, size_t rows, size_t in, size_t out)
{
    for (int variant = 0; variant < 12; variant++) {
        struct linear shape = {.in = in, .out = out, .activation = (enum activation)(variant % 3)};

        check_linear(c, &shape, rows, variant / 3 % 2 == 0, variant / 6 == 0);
    }
    check_gelu_backward(c, rows * out);
}

static void check_norm_shape(struct compute *c, size_t rows, size_t width)
{
    check_layer_norm_forward(c, rows, width, 0.0f);
    check_layer_norm_forward(c, rows, width, 100.0f);
    for (int variant = 0; variant < 4; variant++)
        check_layer_norm_backward(c, rows, width, variant % 2 == 0, variant / 2 == 0);
}

static void check_embedding_shape(struct compute *c, size_t batch, size_t vocabulary,
                                  size_t positions, size_t width)
{
    check_embedding_forward(c, batch, vocabulary, positions, width);
    for (int variant = 0; variant < 4; variant++)
        check_embedding_backward(c, batch, vocabulary, positions, width, variant % 2 == 0,
                                 variant / 2 == 0);
}

static void check_attention_shape(struct compute *c, size_t batch, size_t heads, size_t positions,
                                  size_t size, float spread)
{
    check_attention_forward(c, batch, heads, positions, size, spread);
    check_attention_backward(c, batch, heads, positions, size, spread);
}

void check_sequence(struct compute *c, int rounds)
{
    check_linear_shape(c, 1, 1, 1);
    check_linear_shape(c, 7, 33, 65);
    check_gelu_nan(c);
    check_norm_shape(c, 1, 1);
    check_norm_shape(c, 3, 128);
    check_norm_shape(c, 130, 31);
    check_layer_norm_nan(c);
    check_embedding_shape(c, 1, 1, 1, 1);
    check_embedding_shape(c, 9, 3, 17, 33); /* every token many times */
    check_attention_shape(c, 1, 1, 1, 1, 1.0f);
    check_attention_shape(c, 3, 2, 1, 7, 1.0f);
    check_attention_shape(c, 1, 1, 130, 16, 4.0f); /* three blocks, sharp rows */
    check_attention_shape(c, 2, 3, 64, 32, 1.0f);
    check_attention_nan(c);
    check_softmax_in_place(c, 5, 1030);
    check_softmax_in_place(c, 1, 1);
    for (int round = 0; round < rounds; round++) {
        check_linear_shape(c, random_size(40), random_size(70), random_size(70));
        check_norm_shape(c, random_size(50), random_size(200));
        check_embedding_shape(c, random_size(5), random_size(40), random_size(20), random_size(70));
        check_attention_shape(c, random_size(3), random_size(4), random_size(140), random_size(40),
                              round % 2 ? 1.0f : 3.0f);
    }
}
