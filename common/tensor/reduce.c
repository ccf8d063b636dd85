/*
 * Scaling, element by element.
 */
#include "common/tensor/reduce.h"

#include "common/tensor/tensor.h"

#include <assert.h>

void reduce_scale(enum dtype dtype, void *data, double factor, size_t count)
{
    double *doubles = data;

    assert(dtype == DTYPE_FLOAT32 || dtype == DTYPE_FLOAT64);
    if (dtype == DTYPE_FLOAT32) {
        vector_scale(data, (float)factor, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        doubles[i] *= factor;
}
