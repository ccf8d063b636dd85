/*
 * Checked allocation.  The tests' allocation fault is an atomic countdown and the only state; any
 * thread may allocate.
 */
#include "common/base/memory.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GROWN_FIRST 16 /* elements */

static atomic_size_t fail_countdown; /* 0: no fault */

void mem_fail_nth(size_t n)
{
    atomic_store(&fail_countdown, n);
}

static int is_fault_due(void)
{
    size_t left = atomic_load(&fail_countdown);

    while (left > 0)
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1))
            return left == 1;
    return 0;
}

int size_multiply(size_t a, size_t b, size_t *ret)
{
    size_t product;

    if (__builtin_mul_overflow(a, b, &product)) /* stores the wrapped product, too */
        return 0;
    *ret = product;
    return 1;
}

/* The requested bytes, at least 1; an overflow or an injected fault is an error that names `what`.
 */
static enum status check_request(size_t count, size_t size, const char *what, size_t *ret_bytes,
                                 struct error *err)
{
    size_t bytes = 1;

    if (!size_multiply(count, size, &bytes) || bytes > (size_t)PTRDIFF_MAX)
        return error_set(err, STATUS_NO_MEMORY, "%s: %zu elements of %zu bytes overflow", what,
                         count, size);
    if (is_fault_due())
        return error_set(err, STATUS_NO_MEMORY, "%s: cannot allocate %zu bytes", what, bytes);
    *ret_bytes = bytes ? bytes : 1;
    return STATUS_OK;
}

/* Store the pointer through the caller's own pointer type. */
static enum status store_allocation(void *pointer, size_t bytes, const char *what,
                                    void *ret_pointer, struct error *err)
{
    if (!pointer)
        return error_set(err, STATUS_NO_MEMORY, "%s: cannot allocate %zu bytes", what, bytes);
    memcpy(ret_pointer, &pointer, sizeof(pointer));
    return STATUS_OK;
}

enum status mem_calloc(size_t count, size_t size, const char *what, void *ret_pointer,
                       struct error *err)
{
    size_t bytes = 1;
    enum status status = check_request(count, size, what, &bytes, err);

    if (status != STATUS_OK)
        return status;
    return store_allocation(calloc(1, bytes), bytes, what, ret_pointer, err);
}

enum status mem_calloc_aligned(size_t count, size_t size, const char *what, void *ret_pointer,
                               struct error *err)
{
    void *pointer = NULL;
    size_t bytes = 1;
    enum status status = check_request(count, size, what, &bytes, err);

    if (status != STATUS_OK)
        return status;
    if (posix_memalign(&pointer, 64, bytes) != 0)
        pointer = NULL;
    else
        memset(pointer, 0, bytes);
    return store_allocation(pointer, bytes, what, ret_pointer, err);
}

enum status mem_grow(size_t length, size_t *capacity, size_t size, const char *what,
                     void *array_pointer, struct error *err)
{
    const size_t more = *capacity > 0 ? 2 * *capacity : GROWN_FIRST;
    void *array;
    size_t bytes = 1;
    enum status status;

    if (length < *capacity)
        return STATUS_OK;
    status = check_request(more, size, what, &bytes, err);
    if (status != STATUS_OK)
        return status;
    memcpy(&array, array_pointer, sizeof(array));
    status = store_allocation(realloc(array, bytes), bytes, what, array_pointer, err);
    if (status == STATUS_OK)
        *capacity = more;
    return status;
}

enum status mem_strdup(const char *text, char **ret_copy, struct error *err)
{
    char *copy = is_fault_due() ? NULL : strdup(text);

    if (!copy)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate %zu bytes for a string",
                         strlen(text) + 1);
    *ret_copy = copy;
    return STATUS_OK;
}
