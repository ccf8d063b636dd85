/*
 * safetensors: named tensors in one file: u64 LE header length, JSON header, packed little-endian
 * data.  The reader applies every check of the format (huggingface/safetensors): header size, UTF-8
 * JSON without duplicate keys, offsets in order without holes or overlaps and up to the last byte,
 * shapes whose product does not overflow and matches.  Each failure names the file and the tensor.
 * Values are little-endian and may be unaligned; loading floats fails on NaN and infinity.
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
    size_t bytes;
    const unsigned char *data; /* borrowed from the file's buffer */
};

struct safetensors_pair {
    char *key; /* both owned */
    char *value;
};

struct safetensors {
    char *path;                        /* owned */
    char *buffer;                      /* owned */
    struct safetensors_entry *entries; /* owned, in the order of their data */
    size_t length;
    struct safetensors_pair *metadata; /* owned; "__metadata__", in no order */
    size_t pairs;
};

/* Read and check a whole file of at most max_bytes. */
enum status safetensors_read(const char *path, size_t max_bytes, struct safetensors *ret,
                             struct error *err);

/* The same from memory, which is copied; `name` is for error texts.  Used by the fuzzer. */
enum status safetensors_parse(const char *name, const void *data, size_t size,
                              struct safetensors *ret, struct error *err);

void safetensors_release(struct safetensors *s); /* NULL and zeroed structs allowed */

/* The entry of that name, or NULL. */
const struct safetensors_entry *safetensors_find(const struct safetensors *s, const char *name);

/* The value of a key of "__metadata__", or NULL. */
const char *safetensors_metadata(const struct safetensors *s, const char *key);

/* Copy an F32 entry to `values` (entry->count).  STATUS_DATA: another dtype, or an element that is
 * NaN or infinite (the text names the first); values are then unspecified. */
enum status safetensors_copy_floats(const struct safetensors *s, const struct safetensors_entry *e,
                                    float *values, struct error *err);

/* Fill the slab from the file: every view of the table must exist with its shape and finite values,
 * float32 as F32, F64, F16 or BF16, int64 as I64 or as whole numbers of F32 (as in older files of
 * ours); one error lists all missing, surplus and differing tensors.  On failure the slab is
 * unchanged. */
enum status safetensors_load_slab(const struct safetensors *s, const struct tensor_table *table,
                                  float *slab, struct error *err);

/* One of several slabs in a file: the file's tensor names are prefix + the view's name. */
struct safetensors_part {
    const char *prefix; /* "": none */
    const struct tensor_table *table;
    float *slab; /* written by load, only read by save */
};

/* The same into several slabs.  ignored: a prefix of tensor names that are allowed in the file and
 * skipped; NULL: none. */
enum status safetensors_load_parts(const struct safetensors *s,
                                   const struct safetensors_part *parts, size_t length,
                                   const char *ignored, struct error *err);

/* The tensors that loading converts to float32, as "20 of BF16, 2 of F64"; "": none. */
void safetensors_conversions(const struct safetensors *s, char *text, size_t size);

/* Write the slab's views atomically, sorted by name, header padded to 8 bytes.  metadata: key,
 * value, key, value, ...: 2 * pairs strings with distinct keys; NULL when pairs is 0. */
enum status safetensors_save_slab(const char *path, const struct tensor_table *table,
                                  const float *slab, const char *const *metadata, size_t pairs,
                                  struct error *err);

/* The same for several slabs with distinct names, into a file of at most max_bytes (the reader's
 * limit): otherwise STATUS_UNSUPPORTED, and nothing is written.  *ret_bytes is the size of the
 * file; NULL allowed. */
enum status safetensors_save_parts(const char *path, const struct safetensors_part *parts,
                                   size_t length, const char *const *metadata, size_t pairs,
                                   size_t max_bytes, uint64_t *ret_bytes, struct error *err);

#endif
