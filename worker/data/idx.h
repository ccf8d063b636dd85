/*
 * idx: the array format of MNIST, plain or compressed with gzip (detected by content).
 * Layout: two zero bytes, type, number of dimensions, each dimension as big-endian u32, then the
 * elements, last index fastest.  Only unsigned bytes (type 0x08) are read; the file must hold
 * exactly the elements that its dimensions specify.
 * Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database".
 * Called by dataset_mnist and its fuzzer.  Threads: no shared state.
 */
#ifndef SPARRING_WORKER_DATA_IDX_H
#define SPARRING_WORKER_DATA_IDX_H

#include "common/base/error.h"

#include <stddef.h>

#define IDX_DIMS_MAX 4

struct idx {
    unsigned dims; /* 1 to IDX_DIMS_MAX */
    size_t shape[IDX_DIMS_MAX];
    size_t count;          /* elements, at most 2 GiB */
    unsigned char *values; /* owned; (shape[0], ..., shape[dims - 1]) row-major */
};

/* Read and check a file of at most 2 GiB.  A failure names the path. */
enum status idx_read(const char *path, struct idx *ret, struct error *err);

/* The same from memory; `name` is used in messages.  The fuzzer calls this. */
enum status idx_parse(const char *name, const void *data, size_t size, struct idx *ret,
                      struct error *err);

void idx_release(struct idx *i); /* NULL and zeroed structs allowed */

#endif
