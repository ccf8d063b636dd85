/*
 * sweep_values: inputs whose results are known exactly, for every element type and operation, and
 * the count of elements that differ from them.
 *
 * Every rank's values repeat after a prime number of elements, so a block that is displaced by any
 * power of two differs.  They are small integers: sums, products and extremes are exact in every
 * type whatever the order, rounding in between included.  Averages of floats over a world that is
 * no power of two have one rank that is not zero per element, so that the factor 1/n is applied to
 * one number.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_SWEEP_VALUES_H
#define SPARRING_EXPERIMENTS_BENCH_SWEEP_VALUES_H

#include "common/base/error.h"
#include "common/tensor/dtype.h"
#include "common/tensor/reduce.h"

#include <stddef.h>
#include <stdint.h>

#define VALUES_PERIOD 1021

struct sweep_values {
    enum dtype dtype;
    enum reduce_op op;
    unsigned world_size;
    unsigned char *tables; /* owned: world_size + 1 times VALUES_PERIOD elements; the last one is
                              the reduction of the others */
};

/* STATUS_NO_MEMORY.  Open again for another type or operation after release. */
enum status sweep_values_open(struct sweep_values *v, enum dtype dtype, enum reduce_op op,
                              unsigned world_size, struct error *err);
void sweep_values_release(struct sweep_values *v); /* zeroed allowed */

/* Whose values: a rank, or world_size for the reduction of all. */
void sweep_values_fill(const struct sweep_values *v, void *data, unsigned whose, size_t first,
                       size_t count);
/* Elements of data[0..count) that are not the bits of element first, first + 1, ... */
uint64_t sweep_values_wrong(const struct sweep_values *v, const void *data, unsigned whose,
                            size_t first, size_t count);

/* A rank's element, before it is converted; REDUCE_PREMUL_SUM: the rank's factor. */
double sweep_value(const struct sweep_values *v, unsigned rank, size_t i);
double sweep_factor(unsigned rank);

#endif
