/*
 * device_arrays: an array on the host and on a device, and what a float32 result may differ from
 * the exact one.  For the checks of a device's operations; every failure ends the test.
 */
#ifndef SPARRING_TESTS_WORKER_COMPUTE_DEVICE_ARRAYS_H
#define SPARRING_TESTS_WORKER_COMPUTE_DEVICE_ARRAYS_H

#include "tests/support/bounded.h"
#include "worker/compute/compute.h"

#define ULP 0x1p-23 /* float32's, of what lies between 1 and 2 */

struct array {
    float *host;
    float *device; /* of values: memory of the device's precision */
    size_t count;
    bool values; /* activations and their gradients; false: parameters and statistics */
    /* Of images, (images, channels, points) on the host and in the device's order there; else 0. */
    size_t channels, points;
};

/* Uninitialised on the host, zeros on the device. */
struct array array_make(struct compute *c, size_t count);
/* Uniform between -1 and 1, or NaN, on both sides.  Of values the host has what the device's
 * precision makes of them. */
struct array array_random(struct compute *c, size_t count);
struct array array_poisoned(struct compute *c, size_t count);
struct array values_random(struct compute *c, size_t count);
struct array values_poisoned(struct compute *c, size_t count);
struct array images_random(struct compute *c, size_t images, size_t channels, size_t points);
struct array images_poisoned(struct compute *c, size_t images, size_t channels, size_t points);
/* NaNs in whole words: where pooling writes its choices. */
struct array choices_poisoned(struct compute *c, size_t images, size_t channels, size_t points);
void array_free(struct compute *c, struct array *a);

void array_send(struct compute *c, const struct array *a);
void array_receive(struct compute *c, const struct array *a);

/* A copy of the host's side, for free(). */
float *array_copy(const struct array *a);

/* A sum in double, with what its terms allow as rounding of float32. */
struct exact {
    double value;
    double magnitude;
    size_t terms;
};

void exact_add(struct exact *e, double term);

/* A sum of products in any order.  Each rounds twice by 2^-24 at most; the 8 are for the transforms
 * of convolutions.  In a coarser precision two factors round to it, and the result. */
struct bounded exact_product(const struct exact *e);
void exact_expect(const char *what, size_t index, float got, const struct exact *e);
/* Of terms that are given, or round once: each passes so many sums at most. */
void exact_expect_sum(const char *what, size_t index, float got, const struct exact *e);

/* got is as near as float32 allows, and the rounding of a value in the device's precision. */
void expect_bounded(const char *what, size_t index, float got, struct bounded wanted);

/* got is within `allowed` of wanted; a NaN never is. */
void expect_near(const char *what, size_t index, float got, double wanted, double allowed);

/* From here on results are expected as this precision rounds them, not float32's. */
void expect_precision(enum precision precision);
double
precision_unit(void); /* relative, of rounding to it; 0: float32, which bounds have already */

size_t random_size(size_t limit); /* from 1 to limit */

#endif
