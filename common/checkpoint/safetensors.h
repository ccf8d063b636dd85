/*
 * safetensors: named tensors in one file, u64 LE header length, JSON header, packed little-endian
 * data. The reader applies every check of the format (huggingface/safetensors): header size, UTF-8
 * JSON without duplicate keys, offsets in order without holes or overlaps and up to the last byte,
 * shapes whose product does not overflow and matches.  Each failure names the file and the tensor.
 */
#ifndef SPARRING_COMMON_CHECKPOINT_SAFETENSORS_H
#define SPARRING_COMMON_CHECKPOINT_SAFETENSORS_H

#include "common/base/error.h"
#include "common/tensor/tensor.h"

#include <stddef.h>
#include <stdint.h>

struct safetensors_entry {
    char *name;     /* owned */
    char dtype[12]; /* "F32", "I64", ... as in the file */
    unsigned dims;
    size_t shape[TENSOR_DIMS_MAX];
    size_t count; /* elements */
    const unsigned char
        *data; /* borrowed from the file's buffer; bytes little-endian, maybe unaligned */
    size_t bytes;
};

struct safetensors {
    char *path;                        /* owned */
    char *buffer;                      /* owned */
    struct safetensors_entry *entries; /* owned, in file order */
    size_t length;
};

/* Read and check a whole file of at most max_bytes. */
enum status safetensors_read(const char *path, size_t max_bytes, struct safetensors *ret,
                             struct error *err);
/* The same from memory, which is copied; `name` stands in messages.  This is what the fuzzer
 * drives. */
enum status safetensors_parse(const char *name, const void *data, size_t size,
                              struct safetensors *ret, struct error *err);
void safetensors_release(struct safetensors *s);
const struct safetensors_entry *safetensors_find(const struct safetensors *s, const char *name);

/* Fill the slab from the file: every view of the table must be there as F32 with its shape and
 * finite values; all missing, superfluous and differing tensors are listed in one error. */
enum status safetensors_load_slab(const struct safetensors *s, const struct tensor_table *table,
                                  float *slab, struct error *err);

/* Write the slab's views atomically, header padded to 8 bytes.  metadata: count pairs key, value.
 */
enum status safetensors_save_slab(const char *path, const struct tensor_table *table,
                                  const float *slab, const char *const *metadata, size_t pairs,
                                  struct error *err);

#endif
