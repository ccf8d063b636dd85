/*
 * cifar10: records of CIFAR-10's binary version: one byte with the class, then 3072 pixels as
 * planes (32, 32) of red, green and blue.  A file contains records only.  Called by
 * dataset_cifar10.  Source: A. Krizhevsky, "Learning multiple layers of features from tiny images",
 * 2009; https://www.cs.toronto.edu/~kriz/cifar.html.
 */
#ifndef SPARRING_WORKER_DATA_CIFAR10_H
#define SPARRING_WORKER_DATA_CIFAR10_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define CIFAR10_PIXELS  ((size_t)3 * 32 * 32)
#define CIFAR10_RECORD  (1 + CIFAR10_PIXELS)
#define CIFAR10_CLASSES 10

/* Number of records in a file of `size` bytes.  STATUS_DATA: none, or the last one is cut off;
 * `name` is used in messages. */
enum status cifar10_count(const char *name, uint64_t size, size_t *ret_count, struct error *err);

/*
 * Split records.
 *   data    (count, CIFAR10_RECORD)
 *   pixels  (count, 3, 32, 32), written
 *   labels  (count), written
 * STATUS_DATA names the file and a record whose class is not below 10; the outputs are then
 * unspecified.
 */
enum status cifar10_split(const char *name, const void *data, size_t count, unsigned char *pixels,
                          int32_t *labels, struct error *err);

#endif
