/*
 * Gradients through batch normalisation against complex-step derivatives of a double-precision
 * model, within a bound of the float32 error.  Source: Squire and Trapp 1998 (the complex step).
 */
#include "tests/support/support.h"
#include "tests/worker/model/bounded_model.h"
#include "worker/model/model.h"
#include "worker/model/spec.h"

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_MAX 16
#define BATCH_MAX 16
#define EPSILON   1e-5 /* of the variance */
#define BLUNT     4e-3 /* of the largest gradient */

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

/* ---- gradients ---- */

static void draw_inputs(struct model *m, float *x, int32_t *labels)
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

/* True if the bound is too wide to detect a wrong gradient, or rounding may change a ReLU. */
static bool is_blunt(const struct bounded_model *a)
{
    double largest = 0;
    double error = 0;

    for (size_t i = 0; i < a->table->count; i++) {
        largest = fmax(largest, fabs(a->grads[i].value));
        error = fmax(error, a->grads[i].error);
    }
    return a->undecided || error > BLUNT * largest;
}

static void expect_within(const char *what, double got, double expected, double error)
{
    ck_assert_msg(fabs(got - expected) <= error, "%s: %.9g, not %.9g within %.1e", what, got,
                  expected, error);
}

START_TEST(test_gradients)
{
    static const char *const specs[] = {"mlp-bn:5-7-3", "mlp-bn:6-9-8-4", "mlp-bn:3-2"};
    static struct bounded_model a;
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
        draw_inputs(m, x, labels);
        bounded_model_step(&a, &spec, model_table(m), model_params(m), x, labels, batch);
    } while (is_blunt(&a));
    assert_ok(model_step(m, x, labels, batch, false, NULL, NULL, &loss, &err));
    expect_within("loss", loss, creal(exact_loss(m, &spec, x, labels, batch)), a.loss_error);
    for (size_t i = 0; i < model_table(m)->count; i++) {
        const double h = 1e-30;
        double exact;

        params[i] += h * (complex double)I;
        exact = cimag(exact_loss(m, &spec, x, labels, batch)) / h;
        params[i] = creal(params[i]);
        /* The error analysis computes the same gradient: in double its error is 2^-29 times as
         * large. */
        expect_within("analysis", a.grads[i].value, exact, 1e-7 * a.grads[i].error);
        expect_within("gradient", (double)model_grads(m)[i], exact, a.grads[i].error);
    }
    model_close(m);
    compute_close(compute);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("batch_norm_gradients", 0, LOOP_TEST(test_gradients, 0, 3));
}
