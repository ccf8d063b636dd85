/*
 * Sizes and names of the element types, generated from DTYPE_LIST.  Constant data, no locks.
 */
#include "common/tensor/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[DTYPE_COUNT] = {
#define X(name, text, size) [DTYPE_##name] = {text, size},
    DTYPE_LIST(X)
#undef X
};

size_t dtype_size(enum dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *dtype_name(enum dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

bool dtype_parse(const char *text, enum dtype *ret)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, text) == 0) {
            *ret = (enum dtype)i;
            return true;
        }
    }
    return false;
}

bool dtype_is_float(enum dtype dtype)
{
    return dtype == DTYPE_FLOAT32 || dtype == DTYPE_BFLOAT16 || dtype == DTYPE_FLOAT16 ||
           dtype == DTYPE_FLOAT64;
}
