/*
 * memory: allocation with overflow checks and an error text.  Modules size and allocate everything
 * in `open` and nothing inside the step loop.  Free with free().
 */
#ifndef SPARRING_COMMON_BASE_MEMORY_H
#define SPARRING_COMMON_BASE_MEMORY_H

#include "common/base/error.h"

#include <stddef.h>

/* a * b into *ret; false on overflow, and *ret is untouched. */
int size_multiply(size_t a, size_t b, size_t *ret);

/* size, rounded up to a multiple of unit (at least 1). */
static inline size_t size_round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

#define MEM_LINE_FLOATS 16 /* of a cache line */

/* count * size zeroed bytes in *ret (at least one byte, so never NULL on success).
 * STATUS_NO_MEMORY names `what` and the requested bytes. */
enum status mem_calloc(size_t count, size_t size, const char *what, void *ret_pointer,
                       struct error *err);

/* The same on a 64-byte boundary (a cache line, an AVX-512 register); for slabs and batches. */
enum status mem_calloc_aligned(size_t count, size_t size, const char *what, void *ret_pointer,
                               struct error *err);

/* Room for an element behind the `length` ones of the array in *array_pointer, which holds up to
 * *capacity; both change when it grows.  New room is not zeroed; after a failure the array is as it
 * was. */
enum status mem_grow(size_t length, size_t *capacity, size_t size, const char *what,
                     void *array_pointer, struct error *err);

/* A copy of `text` that the caller frees. */
enum status mem_strdup(const char *text, char **ret_copy, struct error *err);

/* Tests only: the n-th allocation from now (1 = next) fails once; 0 disables the fault. */
void mem_fail_nth(size_t n);

#endif
