/*
 * device_arrays: allocation, random and NaN contents, transfers between the two sides, and error
 * bounds.  Values are rounded by an upload and a download, so that both sides start equal.  The
 * precision of the expectations is global to the test process.
 */
#include "tests/worker/compute/device_arrays.h"

#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST 0x1p-126 /* smallest normal number: a device may flush smaller ones to 0 */

static struct error err;
static double unit; /* relative rounding error of a value; 0 in float32 */

void expect_precision(enum precision precision)
{
    unit = precision == PRECISION_FLOAT32 ? 0.0 : precision == PRECISION_BF16 ? 0x1p-8 : 0x1p-10;
}

/* Whether the device's layout differs from the host's. */
static bool is_transposed(struct compute *c, const struct array *a)
{
    return compute_channels_last(c) && a->channels > 1 && a->points > 1;
}

/* Convert between the host's and the device's layout. */
static void transpose(const struct array *a, const float *from, float *to, bool to_device)
{
    for (size_t i = 0; i < a->count; i++) {
        size_t point = i % a->points;
        size_t channel = i / a->points % a->channels;
        size_t image = i / a->points / a->channels;
        size_t j = (image * a->points + point) * a->channels + channel;

        to[to_device ? j : i] = from[to_device ? i : j];
    }
}

static struct array make_shaped(struct compute *c, struct array a)
{
    size_t count = a.count;
    bool values = a.values;
    void *memory = NULL;

    a.host = malloc(count * sizeof(float));
    ck_assert_ptr_nonnull(a.host);
    if (values) {
        assert_ok(compute_alloc_values(c, count, "test", &memory, &err));
        a.device = memory;
    } else {
        assert_ok(compute_alloc(c, count, "test", &a.device, &err));
    }
    return a;
}

static struct array make(struct compute *c, size_t count, bool values)
{
    return make_shaped(c, (struct array){.count = count, .values = values});
}

struct array array_make(struct compute *c, size_t count)
{
    return make(c, count, false);
}

static struct array randomised(struct compute *c, struct array a)
{
    for (size_t i = 0; i < a.count; i++)
        a.host[i] = (float)(2.0 * support_random() - 1.0);
    array_upload(c, &a);
    return a;
}

static struct array poisoned(struct compute *c, struct array a)
{
    for (size_t i = 0; i < a.count; i++)
        a.host[i] = nanf("");
    array_upload(c, &a);
    return a;
}

struct array array_random(struct compute *c, size_t count)
{
    return randomised(c, make(c, count, false));
}

struct array array_poisoned(struct compute *c, size_t count)
{
    return poisoned(c, make(c, count, false));
}

struct array values_random(struct compute *c, size_t count)
{
    return randomised(c, make(c, count, true));
}

struct array values_poisoned(struct compute *c, size_t count)
{
    return poisoned(c, make(c, count, true));
}

static struct array make_images(struct compute *c, size_t images, size_t channels, size_t points,
                                bool values)
{
    return make_shaped(c, (struct array){.count = images * channels * points,
                                         .values = values,
                                         .channels = channels,
                                         .points = points});
}

struct array images_random(struct compute *c, size_t images, size_t channels, size_t points)
{
    return randomised(c, make_images(c, images, channels, points, true));
}

struct array images_poisoned(struct compute *c, size_t images, size_t channels, size_t points)
{
    return poisoned(c, make_images(c, images, channels, points, true));
}

struct array argmax_poisoned(struct compute *c, size_t images, size_t channels, size_t points)
{
    return poisoned(c, make_images(c, images, channels, points, false));
}

void array_free(struct compute *c, struct array *a)
{
    compute_free(c, a->device);
    free(a->host);
}

static void upload_words(struct compute *c, const struct array *a)
{
    float *other = is_transposed(c, a) ? array_copy(a) : NULL;

    if (other)
        transpose(a, a->host, other, true);
    assert_ok(compute_upload(c, a->device, other ? other : a->host, a->count, &err));
    free(other);
}

void array_upload(struct compute *c, const struct array *a)
{
    if (!a->values) {
        upload_words(c, a);
        return;
    }
    if (a->channels > 0)
        assert_ok(compute_upload_images(c, a->device, a->host, a->count / a->channels / a->points,
                                        a->channels, a->points, &err));
    else
        assert_ok(compute_upload_values(c, a->device, a->host, a->count, &err));
    array_download(c, a); /* as rounded by the device */
}

void array_download(struct compute *c, const struct array *a)
{
    float *other;

    if (a->values)
        assert_ok(compute_download_values(c, a->host, a->device, a->count, &err));
    else
        assert_ok(compute_download(c, a->host, a->device, a->count, &err));
    if (!is_transposed(c, a))
        return;
    other = array_copy(a);
    transpose(a, other, a->host, false);
    free(other);
}

float *array_copy(const struct array *a)
{
    float *copy = malloc(a->count * sizeof(float));

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, a->host, a->count * sizeof(float));
    return copy;
}

void exact_add(struct exact *e, double term)
{
    e->value += term;
    e->magnitude += fabs(term);
    e->terms++;
}

struct bounded exact_product(const struct exact *e)
{
    return (struct bounded){e->value,
                            ((double)(e->terms + 8) * ULP + 3.0 * unit) * e->magnitude + SMALLEST};
}

void exact_expect(const char *what, size_t index, float got, const struct exact *e)
{
    struct bounded b = exact_product(e);

    expect_near(what, index, got, b.value, b.error);
}

void exact_expect_sum(const char *what, size_t index, float got, const struct exact *e)
{
    expect_bounded(what, index, got,
                   (struct bounded){e->value, (double)e->terms * ROUNDING * e->magnitude});
}

void expect_bounded(const char *what, size_t index, float got, struct bounded expected)
{
    expect_near(what, index, got, expected.value,
                expected.error + unit * (fabs(expected.value) + expected.error) + SMALLEST);
}

void expect_near(const char *what, size_t index, float got, double expected, double allowed)
{
    /* Written so that a NaN fails.  Check logs every assertion in a file, so compare before
     * asserting. */
    if (!(fabs((double)got - expected) <= allowed))
        ck_abort_msg("%s: element %zu is %.9g, wanted %.9g within %.2g", what, index, (double)got,
                     expected, allowed);
}

double precision_unit(void)
{
    return unit;
}

size_t random_size(size_t limit)
{
    return 1 + (size_t)(support_random() * (double)limit);
}
