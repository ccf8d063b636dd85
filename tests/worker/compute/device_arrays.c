#include "tests/worker/compute/device_arrays.h"

#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SMALLEST 0x1p-126 /* normal number: a device may make 0 of what is below */

static struct error err;
static double unit; /* relative, of rounding a value where that is not float32 */

void expect_precision(enum precision precision)
{
    unit = precision == PRECISION_FLOAT32 ? 0.0 : precision == PRECISION_BF16 ? 0x1p-8 : 0x1p-10;
}

/* Whether the two sides have orders of their own. */
static bool turned(struct compute *c, const struct array *a)
{
    return compute_channels_last(c) && a->channels > 1 && a->points > 1;
}

/* The host's order from the device's, or the other way. */
static void turn(const struct array *a, const float *from, float *to, bool to_device)
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
    array_send(c, &a);
    return a;
}

static struct array poisoned(struct compute *c, struct array a)
{
    for (size_t i = 0; i < a.count; i++)
        a.host[i] = nanf("");
    array_send(c, &a);
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

struct array choices_poisoned(struct compute *c, size_t images, size_t channels, size_t points)
{
    return poisoned(c, make_images(c, images, channels, points, false));
}

void array_free(struct compute *c, struct array *a)
{
    compute_free(c, a->device);
    free(a->host);
}

static void send_words(struct compute *c, const struct array *a)
{
    float *other = turned(c, a) ? array_copy(a) : NULL;

    if (other)
        turn(a, a->host, other, true);
    assert_ok(compute_upload(c, a->device, other ? other : a->host, a->count, &err));
    free(other);
}

void array_send(struct compute *c, const struct array *a)
{
    if (!a->values) {
        send_words(c, a);
        return;
    }
    if (a->channels > 0)
        assert_ok(compute_upload_images(c, a->device, a->host, a->count / a->channels / a->points,
                                        a->channels, a->points, &err));
    else
        assert_ok(compute_upload_values(c, a->device, a->host, a->count, &err));
    array_receive(c, a); /* as the device rounded them */
}

void array_receive(struct compute *c, const struct array *a)
{
    float *other;

    if (a->values)
        assert_ok(compute_download_values(c, a->host, a->device, a->count, &err));
    else
        assert_ok(compute_download(c, a->host, a->device, a->count, &err));
    if (!turned(c, a))
        return;
    other = array_copy(a);
    turn(a, other, a->host, false);
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

void expect_bounded(const char *what, size_t index, float got, struct bounded wanted)
{
    expect_near(what, index, got, wanted.value,
                wanted.error + unit * (fabs(wanted.value) + wanted.error) + SMALLEST);
}

void expect_near(const char *what, size_t index, float got, double wanted, double allowed)
{
    /* Written so that a NaN fails; Check notes every assertion in a file, so this compares first.
     */
    if (!(fabs((double)got - wanted) <= allowed))
        ck_abort_msg("%s: element %zu is %.9g, wanted %.9g within %.2g", what, index, (double)got,
                     wanted, allowed);
}

double precision_unit(void)
{
    return unit;
}

size_t random_size(size_t limit)
{
    return 1 + (size_t)(support_random() * (double)limit);
}
