/*
 * Gradients through batch normalisation against complex-step derivatives of a double-precision
 * model, within a bound of what float32 may err by.
 * Sources: Squire and Trapp 1998 (the complex step); Higham 2002, section 3.3 (running error
 * analysis).
 */
#include "tests/support/support.h"
#include "worker/model/model.h"
#include "worker/model/spec.h"

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_MAX  16
#define BATCH_MAX  16
#define LAYERS_MAX 3
#define EPSILON    1e-5 /* of the variance */
#define BLUNT      4e-3 /* of the largest gradient */

static struct error err;

/* ---- derivatives: the imaginary part of the loss, exact in double precision ---- */

static complex double params[4096];

static const complex double *view(const struct model *m, const char *format, size_t module)
{
    char name[TENSOR_NAME_MAX];
    const struct tensor_view *v;

    (void)snprintf(name, sizeof(name), "%zu.%s", module, format);
    v = tensor_table_find(model_table(m), name);
    ck_assert_ptr_nonnull(v);
    return params + v->offset;
}

/* BatchNorm1d over the rows of one column, then ReLU. */
static void normalise_column(complex double (*z)[WIDTH_MAX], size_t batch, size_t j,
                             complex double weight, complex double bias)
{
    complex double mean = 0;
    complex double var = 0;

    for (size_t i = 0; i < batch; i++)
        mean += z[i][j] / (double)batch;
    for (size_t i = 0; i < batch; i++)
        var += (z[i][j] - mean) * (z[i][j] - mean) / (double)batch;
    for (size_t i = 0; i < batch; i++) {
        z[i][j] = (z[i][j] - mean) / csqrt(var + EPSILON) * weight + bias;
        if (creal(z[i][j]) <= 0)
            z[i][j] = 0;
    }
}

static complex double cross_entropy(const complex double *logits, size_t classes, size_t label)
{
    complex double sum = 0;

    for (size_t j = 0; j < classes; j++)
        sum += cexp(logits[j]);
    return clog(sum) - logits[label];
}

static complex double exact_loss(const struct model *m, const struct spec *spec, const float *x,
                                 const int32_t *labels, size_t batch)
{
    complex double values[2][BATCH_MAX][WIDTH_MAX];
    complex double loss = 0;

    for (size_t i = 0; i < batch; i++)
        for (size_t k = 0; k < spec->widths[0]; k++)
            values[0][i][k] = (double)x[i * spec->widths[0] + k];
    for (size_t l = 0; l < spec->layers; l++) {
        complex double(*in)[WIDTH_MAX] = values[l % 2];
        complex double(*out)[WIDTH_MAX] = values[(l + 1) % 2];
        const complex double *weight = view(m, "weight", 3 * l);
        const complex double *bias = view(m, "bias", 3 * l);

        for (size_t i = 0; i < batch; i++) {
            for (size_t j = 0; j < spec->widths[l + 1]; j++) {
                out[i][j] = bias[j];
                for (size_t k = 0; k < spec->widths[l]; k++)
                    out[i][j] += weight[j * spec->widths[l] + k] * in[i][k];
            }
        }
        for (size_t j = 0; l + 1 < spec->layers && j < spec->widths[l + 1]; j++)
            normalise_column(out, batch, j, view(m, "weight", 3 * l + 1)[j],
                             view(m, "bias", 3 * l + 1)[j]);
    }
    for (size_t i = 0; i < batch; i++)
        loss += cross_entropy(values[spec->layers % 2][i], spec->widths[spec->layers],
                              (size_t)labels[i]) /
                (double)batch;
    return loss;
}

/* ---- how far from them float32 may be ---- */

/*
 * A running error analysis: beside each value in double precision a bound of the distance to what
 * float32 makes of it.  An operation hands on the errors of its operands and adds the rounding of
 * its own result.  No one tolerance would do: a batch of 4 has columns that hardly vary, and
 * 1 / sqrt(var + eps), of up to 316, makes both their gradients and the errors so much larger.
 */
struct bounded {
    double value, error;
};

#define ROUNDING  0x1p-24 /* relative, of one operation in float32 */
#define IN_DOUBLE 1       /* a sum so long is as good as one in double that is rounded once */
#define EXP_ERROR (4 * ROUNDING)

static struct bounded rounded(double value, double error)
{
    return (struct bounded){value, error + ROUNDING * (fabs(value) + error)};
}

static struct bounded exactly(complex double value)
{
    return (struct bounded){creal(value), 0};
}

static struct bounded product(struct bounded a, struct bounded b)
{
    return rounded(a.value * b.value,
                   fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error);
}

static struct bounded plus(struct bounded a, struct bounded b)
{
    return rounded(a.value + b.value, a.error + b.error);
}

static struct bounded times(struct bounded a, double by)
{
    return rounded(a.value * by, a.error * fabs(by));
}

/* A term of a sum of n, in whatever order they are added. */
static void add(struct bounded *sum, struct bounded term, size_t n)
{
    sum->value += term.value;
    sum->error += term.error + (double)n * ROUNDING * (fabs(term.value) + term.error);
}

typedef struct bounded rows[BATCH_MAX][WIDTH_MAX];

struct analysis {
    const struct model *model;
    const struct spec *spec;
    size_t batch;
    rows values[LAYERS_MAX + 1]; /* what each layer reads; the logits */
    rows normalised[LAYERS_MAX];
    struct bounded inverse_std[LAYERS_MAX][WIDTH_MAX];
    bool undecided; /* rounding may change a choice of ReLU */
    struct bounded grads[sizeof(params) / sizeof(*params)];
    double loss_error;
};

/* y of column j; what backward needs of it stays in a. */
static void normalise_bounded(struct analysis *a, size_t l, size_t j)
{
    struct bounded(*y)[WIDTH_MAX] = a->values[l + 1];
    struct bounded(*hat)[WIDTH_MAX] = a->normalised[l];
    struct bounded mean = {0};
    double var = 0;
    double slack = 0; /* of var */

    for (size_t i = 0; i < a->batch; i++)
        add(&mean, y[i][j], IN_DOUBLE);
    mean = times(mean, 1.0 / (double)a->batch);
    for (size_t i = 0; i < a->batch; i++) {
        hat[i][j] = plus(y[i][j], (struct bounded){-mean.value, mean.error});
        var += hat[i][j].value * hat[i][j].value / (double)a->batch;
        slack += (2 * fabs(hat[i][j].value) + hat[i][j].error) * hat[i][j].error / (double)a->batch;
    }
    slack += ROUNDING * (var + slack + EPSILON);
    a->inverse_std[l][j] = /* convex and falling: furthest away where the variance is least */
        rounded(1 / sqrt(var + EPSILON), 1 / sqrt(fmax(var - slack, 0) + EPSILON * (1 - ROUNDING)) -
                                             1 / sqrt(var + EPSILON));
    for (size_t i = 0; i < a->batch; i++) {
        hat[i][j] = product(hat[i][j], a->inverse_std[l][j]);
        y[i][j] = plus(product(hat[i][j], exactly(view(a->model, "weight", 3 * l + 1)[j])),
                       exactly(view(a->model, "bias", 3 * l + 1)[j]));
        a->undecided = a->undecided || fabs(y[i][j].value) <= y[i][j].error;
        if (y[i][j].value <= 0)
            y[i][j] = (struct bounded){0};
    }
}

static void forward_bounded(struct analysis *a, const float *x)
{
    for (size_t i = 0; i < a->batch; i++)
        for (size_t k = 0; k < a->spec->widths[0]; k++)
            a->values[0][i][k] = exactly((double)x[i * a->spec->widths[0] + k]);
    for (size_t l = 0; l < a->spec->layers; l++) {
        size_t width = a->spec->widths[l];
        const complex double *weight = view(a->model, "weight", 3 * l);
        const complex double *bias = view(a->model, "bias", 3 * l);

        for (size_t i = 0; i < a->batch; i++) {
            for (size_t j = 0; j < a->spec->widths[l + 1]; j++) {
                struct bounded sum = {0};

                add(&sum, exactly(bias[j]), width + 1);
                for (size_t k = 0; k < width; k++)
                    add(&sum, product(exactly(weight[j * width + k]), a->values[l][i][k]),
                        width + 1);
                a->values[l + 1][i][j] = sum;
            }
        }
        for (size_t j = 0; l + 1 < a->spec->layers && j < a->spec->widths[l + 1]; j++)
            normalise_bounded(a, l, j);
    }
}

/* The logits of row i become their gradient, (softmax - one-hot) / batch. */
static void cross_entropy_bounded(struct analysis *a, size_t i, size_t label)
{
    struct bounded *logits = a->values[a->spec->layers][i];
    size_t classes = a->spec->widths[a->spec->layers];
    struct bounded grads[WIDTH_MAX];

    for (size_t j = 0; j < classes; j++) { /* p = 1 / sum of exp(logit - logit j) */
        double sum = 0;
        double exponent = 0;
        double p;

        for (size_t k = 0; k < classes; k++) {
            sum += exp(logits[k].value - logits[j].value);
            exponent = fmax(exponent, logits[j].error + logits[k].error +
                                          2 * ROUNDING * fabs(logits[k].value - logits[j].value));
        }
        exponent += 2 * EXP_ERROR + 4 * ROUNDING;
        p = 1 / sum;
        grads[j] = times(rounded(p - (j == label), p * expm1(exponent) + 2 * ROUNDING),
                         1.0 / (double)a->batch);
        if (j == label)
            a->loss_error += exponent / (double)a->batch;
    }
    memcpy(logits, grads, sizeof(grads));
}

/* dy of column j becomes the gradient of what the layer normalises. */
static void denormalise_bounded(struct analysis *a, rows dy, size_t l, size_t j)
{
    struct bounded(*hat)[WIDTH_MAX] = a->normalised[l];
    struct bounded sums[2] = {{0}};
    struct bounded scale;

    for (size_t i = 0; i < a->batch; i++) {
        add(&sums[0], dy[i][j], IN_DOUBLE);
        add(&sums[1], product(dy[i][j], hat[i][j]), IN_DOUBLE);
    }
    a->grads[view(a->model, "bias", 3 * l + 1) + j - params] = sums[0];
    a->grads[view(a->model, "weight", 3 * l + 1) + j - params] = sums[1];
    scale = product(exactly(view(a->model, "weight", 3 * l + 1)[j]), a->inverse_std[l][j]);
    for (size_t i = 0; i < a->batch; i++) {
        struct bounded d = plus(dy[i][j], times(sums[0], -1.0 / (double)a->batch));

        d = plus(d, product(hat[i][j], times(sums[1], -1.0 / (double)a->batch)));
        dy[i][j] = product(scale, d);
    }
}

static void backward_bounded(struct analysis *a)
{
    static rows d[2];

    memcpy(d[a->spec->layers % 2], a->values[a->spec->layers], sizeof(rows));
    for (size_t l = a->spec->layers; l-- > 0;) {
        struct bounded(*dz)[WIDTH_MAX] = d[(l + 1) % 2];
        struct bounded(*dx)[WIDTH_MAX] = d[l % 2];
        size_t width = a->spec->widths[l];
        const complex double *weight = view(a->model, "weight", 3 * l);
        struct bounded *bias_grads = a->grads + (view(a->model, "bias", 3 * l) - params);

        memset(dx, 0, sizeof(rows));
        for (size_t j = 0; j < a->spec->widths[l + 1]; j++) {
            if (l + 1 < a->spec->layers)
                denormalise_bounded(a, dz, l, j);
            for (size_t i = 0; i < a->batch; i++)
                add(&bias_grads[j], dz[i][j], a->batch);
            for (size_t k = 0; k < width; k++) {
                struct bounded *grad = a->grads + (weight + j * width + k - params);

                for (size_t i = 0; i < a->batch; i++) {
                    add(grad, product(dz[i][j], a->values[l][i][k]), a->batch);
                    if (l > 0 && a->values[l][i][k].value > 0)
                        add(&dx[i][k], product(dz[i][j], exactly(weight[j * width + k])),
                            a->spec->widths[l + 1]);
                }
            }
        }
    }
}

static void analyse(struct analysis *a, const struct model *m, const struct spec *spec,
                    const float *x, const int32_t *labels, size_t batch)
{
    *a = (struct analysis){.model = m, .spec = spec, .batch = batch};
    forward_bounded(a, x);
    for (size_t i = 0; i < batch; i++)
        cross_entropy_bounded(a, i, (size_t)labels[i]);
    backward_bounded(a);
}

/* ---- gradients ---- */

static void draw(struct model *m, float *x, int32_t *labels)
{
    assert_ok(model_init(m, 11, RANDOM_TWO_ROUNDINGS, &err));
    for (size_t i = 0; i < BATCH_MAX * WIDTH_MAX; i++)
        x[i] = (float)(4 * support_random() - 1);
    for (size_t i = 0; i < BATCH_MAX; i++)
        labels[i] = (int32_t)(support_random() * (double)model_classes(m));
    for (size_t i = 0; i < model_table(m)->count; i++) {
        model_params(m)[i] += (float)(0.4 * support_random() - 0.2); /* norms off 1 and 0 */
        params[i] = (double)model_params(m)[i];
    }
}

/* Says little of a wrong gradient, or nothing where ReLU may choose otherwise in float32. */
static bool is_blunt(const struct analysis *a)
{
    double largest = 0;
    double error = 0;

    for (size_t i = 0; i < model_table(a->model)->count; i++) {
        largest = fmax(largest, fabs(a->grads[i].value));
        error = fmax(error, a->grads[i].error);
    }
    return a->undecided || error > BLUNT * largest;
}

static void within(const char *what, double got, double wanted, double error)
{
    ck_assert_msg(fabs(got - wanted) <= error, "%s: %.9g, not %.9g within %.1e", what, got, wanted,
                  error);
}

START_TEST(test_gradients)
{
    static const char *const specs[] = {"mlp-bn:5-7-3", "mlp-bn:6-9-8-4", "mlp-bn:3-2"};
    static struct analysis a;
    size_t batch = 4 + (size_t)_i * 4;
    struct compute *compute;
    struct model *m = NULL;
    struct spec spec;
    float x[BATCH_MAX * WIDTH_MAX];
    int32_t labels[BATCH_MAX];
    double loss;

    assert_ok(compute_open("cpu", 0, 1, &compute, &err));
    assert_ok(model_open(specs[_i], compute, BATCH_MAX, &m, &err));
    assert_ok(spec_parse(specs[_i], &spec, &err));
    do {
        draw(m, x, labels);
        analyse(&a, m, &spec, x, labels, batch);
    } while (is_blunt(&a));
    assert_ok(model_step(m, x, labels, batch, false, NULL, NULL, &loss, &err));
    within("loss", loss, creal(exact_loss(m, &spec, x, labels, batch)), a.loss_error);
    for (size_t i = 0; i < model_table(m)->count; i++) {
        const double h = 1e-30;
        double exact;

        params[i] += h * (complex double)I;
        exact = cimag(exact_loss(m, &spec, x, labels, batch)) / h;
        params[i] = creal(params[i]);
        /* The analysis is of the same gradient: in double it errs 2^-29 times as much. */
        within("analysis", a.grads[i].value, exact, 1e-7 * a.grads[i].error);
        within("gradient", (double)model_grads(m)[i], exact, a.grads[i].error);
    }
    model_close(m);
    compute_close(compute);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("batch_norm_gradients");
    TCase *tests = tcase_create("batch_norm_gradients");

    tcase_add_loop_test(tests, test_gradients, 0, 3);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
