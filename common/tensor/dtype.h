/*
 * dtype: the element types that collectives move and reduce.  Values are part of wire headers and
 * of the flight recorder's file: never renumber.
 */
#ifndef SPARRING_COMMON_TENSOR_DTYPE_H
#define SPARRING_COMMON_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, text (PyTorch's name), bytes per element */
#define DTYPE_LIST(X)                                                                              \
    X(FLOAT32, "float32", 4)                                                                       \
    X(BFLOAT16, "bfloat16", 2)                                                                     \
    X(FLOAT16, "float16", 2)                                                                       \
    X(FLOAT64, "float64", 8)                                                                       \
    X(INT32, "int32", 4)                                                                           \
    X(INT64, "int64", 8)                                                                           \
    X(BYTE, "uint8", 1) /* copied only, never reduced */

enum dtype {
#define X(name, text, size) DTYPE_##name,
    DTYPE_LIST(X)
#undef X
        DTYPE_COUNT
};

size_t dtype_size(enum dtype dtype);      /* bytes per element; 0 outside the list */
const char *dtype_name(enum dtype dtype); /* "float32"; "?" outside the list */
bool dtype_parse(const char *text, enum dtype *ret);
bool dtype_is_float(enum dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
