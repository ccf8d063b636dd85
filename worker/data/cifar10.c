/*
 * Splits records into pixels and labels.  Every byte pattern is a valid image, so the only checks
 * are the class of each record and the length of the file.  Pure functions, no locking.
 */
#include "worker/data/cifar10.h"

#include <string.h>

enum status cifar10_count(const char *name, uint64_t size, size_t *ret_count, struct error *err)
{
    uint64_t count = size / CIFAR10_RECORD;

    if (size == 0)
        return error_set(err, STATUS_DATA, "'%s' is empty: no records", name);
    if (size % CIFAR10_RECORD != 0)
        return error_set(err, STATUS_DATA,
                         "'%s': record %ju is cut off: it has %ju bytes, a record has %zu", name,
                         (uintmax_t)count, (uintmax_t)(size % CIFAR10_RECORD), CIFAR10_RECORD);
    *ret_count = (size_t)count;
    return STATUS_OK;
}

enum status cifar10_split(const char *name, const void *data, size_t count, unsigned char *pixels,
                          int32_t *labels, struct error *err)
{
    const unsigned char *record = data;

    for (size_t i = 0; i < count; i++, record += CIFAR10_RECORD) {
        if (record[0] >= CIFAR10_CLASSES)
            return error_set(err, STATUS_DATA, "'%s': record %zu has class %u; classes are 0 to %d",
                             name, i, record[0], CIFAR10_CLASSES - 1);
        labels[i] = record[0];
        memcpy(pixels + i * CIFAR10_PIXELS, record + 1, CIFAR10_PIXELS);
    }
    return STATUS_OK;
}
