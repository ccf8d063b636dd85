#include "tests/worker/compute/device_arrays.h"

#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct error err;
static double coarseness = 1.0;

void expect_precision(enum precision precision)
{
    coarseness = precision == PRECISION_FLOAT32 ? 1.0
                 : precision == PRECISION_BF16  ? 0x1p-8 / 0x1p-23
                                                : 0x1p-10 / 0x1p-23;
}

static struct array make(struct compute *c, size_t count, bool values)
{
    struct array a = {.count = count, .values = values};
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

struct array array_make(struct compute *c, size_t count)
{
    return make(c, count, false);
}

static struct array make_random(struct compute *c, size_t count, bool values)
{
    struct array a = make(c, count, values);

    for (size_t i = 0; i < count; i++)
        a.host[i] = (float)(2.0 * support_random() - 1.0);
    array_send(c, &a);
    return a;
}

static struct array make_poisoned(struct compute *c, size_t count, bool values)
{
    struct array a = make(c, count, values);

    for (size_t i = 0; i < count; i++)
        a.host[i] = nanf("");
    array_send(c, &a);
    return a;
}

struct array array_random(struct compute *c, size_t count)
{
    return make_random(c, count, false);
}

struct array array_poisoned(struct compute *c, size_t count)
{
    return make_poisoned(c, count, false);
}

struct array values_random(struct compute *c, size_t count)
{
    return make_random(c, count, true);
}

struct array values_poisoned(struct compute *c, size_t count)
{
    return make_poisoned(c, count, true);
}

void array_free(struct compute *c, struct array *a)
{
    compute_free(c, a->device);
    free(a->host);
}

void array_send(struct compute *c, const struct array *a)
{
    if (!a->values) {
        assert_ok(compute_upload(c, a->device, a->host, a->count, &err));
        return;
    }
    assert_ok(compute_upload_values(c, a->device, a->host, a->count, &err));
    array_receive(c, a); /* as the device rounded them */
}

void array_receive(struct compute *c, const struct array *a)
{
    if (a->values)
        assert_ok(compute_download_values(c, a->host, a->device, a->count, &err));
    else
        assert_ok(compute_download(c, a->host, a->device, a->count, &err));
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

void exact_expect(const char *what, size_t index, float got, const struct exact *e)
{
    expect_near(what, index, got, e->value,
                (double)(e->terms + 8) * 0x1p-23 * e->magnitude + 1e-37);
}

void expect_near(const char *what, size_t index, float got, double wanted, double allowed)
{
    /* Written so that a NaN fails; Check notes every assertion in a file, so this compares first.
     */
    if (!(fabs((double)got - wanted) <= allowed * coarseness))
        ck_abort_msg("%s: element %zu is %.9g, wanted %.9g", what, index, (double)got, wanted);
}

size_t random_size(size_t limit)
{
    return 1 + (size_t)(support_random() * (double)limit);
}
