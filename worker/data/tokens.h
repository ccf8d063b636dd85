/*
 * tokens: a stream of token ids, little-endian numbers of 1, 2 or 4 bytes one after the other, and
 * the samples that a language model learns from: `positions` ids and, as labels, the ids one place
 * on.  Sample i begins at token i * positions, so samples do not overlap but for the one id that
 * is a label of one and the first input of the next.
 * The bytes are borrowed.  Threads: reading is safe from any number of threads.
 */
#ifndef SPARRING_WORKER_DATA_TOKENS_H
#define SPARRING_WORKER_DATA_TOKENS_H

#include "common/base/error.h"
#include "worker/data/dataset.h"

#include <stddef.h>
#include <stdint.h>

#define TOKENS_VOCABULARY_MAX 16777216 /* 2^24: ids are handed on as float32 */

struct tokens {
    const unsigned char *bytes; /* borrowed; (count, width) */
    size_t count;
    unsigned width;    /* bytes of an id */
    size_t vocabulary; /* ids are below it */
};

/* `size` bytes as tokens.  STATUS_DATA, with `name`, for a size that is no multiple of the width.
 */
enum status tokens_init(struct tokens *t, const char *name, const void *bytes, size_t size,
                        unsigned width, size_t vocabulary, struct error *err);

/* The first nine tenths for training, what is left for testing (as nanoGPT divides a text). */
void tokens_split(struct tokens *t, enum dataset_split split, size_t *ret_first);

/* Samples that the stream has. */
size_t tokens_samples(const struct tokens *t, size_t positions);

/* Every id is below the vocabulary?  STATUS_DATA names the file, the index of the first that is
 * not (counted from `first`) and its id.  Reads the whole stream. */
enum status tokens_check(const struct tokens *t, const char *name, size_t first, struct error *err);

/* Sample `index` of those that tokens_samples counts: x and y (positions). */
void tokens_sample(const struct tokens *t, size_t positions, size_t index, float *x, int32_t *y);

#endif
