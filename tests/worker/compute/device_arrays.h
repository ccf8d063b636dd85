/*
 * device_arrays: arrays on the host and on a device, and error bounds of float32 results.  For the
 * checks of a device's operations; every failure ends the test.
 */
#ifndef SPARRING_TESTS_WORKER_COMPUTE_DEVICE_ARRAYS_H
#define SPARRING_TESTS_WORKER_COMPUTE_DEVICE_ARRAYS_H

#include "tests/support/bounded.h"
#include "worker/compute/compute.h"

#define ULP 0x1p-23 /* float32's, of values between 1 and 2 */

struct array {
    float *host;
    float *device; /* of values: memory of the device's precision */
    size_t count;
    bool values; /* activations and their gradients; false: parameters and statistics */
    /* Images: (images, channels, points) on the host, in the device's layout there; else 0. */
    size_t channels, points;
};

/* Uninitialised on the host, zeros on the device. */
struct array array_make(struct compute *c, size_t count);
/* Uniform between -1 and 1, or NaN, on both sides.  The host holds values as rounded to the
 * device's precision. */
struct array array_random(struct compute *c, size_t count);
struct array array_poisoned(struct compute *c, size_t count);
struct array values_random(struct compute *c, size_t count);
struct array values_poisoned(struct compute *c, size_t count);
struct array images_random(struct compute *c, size_t images, size_t channels, size_t points);
struct array images_poisoned(struct compute *c, size_t images, size_t channels, size_t points);
/* NaNs as 32-bit words, for the indices of pooling. */
struct array argmax_poisoned(struct compute *c, size_t images, size_t channels, size_t points);
void array_free(struct compute *c, struct array *a);

void array_upload(struct compute *c, const struct array *a);
void array_download(struct compute *c, const struct array *a);

/* A copy of the host's side, for free(). */
float *array_copy(const struct array *a);

/* A sum in double, with the data for the float32 error bound of its terms. */
struct exact {
    double value;
    double magnitude;
    size_t terms;
};

void exact_add(struct exact *e, double term);

/* Bound of a sum of products in any order.  Each product and each sum rounds by 2^-24 at most; the
 * 8 is for the transforms of convolutions.  In a coarser precision two factors and the result are
 * rounded to it. */
struct bounded exact_product(const struct exact *e);
void exact_expect(const char *what, size_t index, float got, const struct exact *e);
/* The same for terms that are exact or rounded once. */
void exact_expect_sum(const char *what, size_t index, float got, const struct exact *e);

/* got is within the float32 bound plus the rounding of a value in the device's precision. */
void expect_bounded(const char *what, size_t index, float got, struct bounded expected);

/* got is within `allowed` of expected; a NaN never is. */
void expect_near(const char *what, size_t index, float got, double expected, double allowed);

/* Set the precision of the following expectations; default float32. */
void expect_precision(enum precision precision);
double precision_unit(void); /* relative rounding error; 0: float32, which bounds include */

size_t random_size(size_t limit); /* from 1 to limit */

#endif
