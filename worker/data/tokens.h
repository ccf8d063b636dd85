/*
 * tokens: a sequence of token ids, little-endian numbers of 1, 2 or 4 bytes, and the samples of a
 * language model: `positions` ids as input and, as labels, the id after each of them.  Sample i
 * begins at token i * positions, so samples overlap only in one id: the last label of one is the
 * first input of the next.
 * The bytes are borrowed.  Called by dataset*.c.  Threads: reading is safe from any number of
 * threads.
 */
#ifndef SPARRING_WORKER_DATA_TOKENS_H
#define SPARRING_WORKER_DATA_TOKENS_H

#include "common/base/error.h"
#include "worker/data/dataset.h"

#include <stddef.h>
#include <stdint.h>

#define TOKENS_VOCABULARY_MAX 16777216 /* 2^24: ids are passed on as float32 */

struct tokens {
    const unsigned char *bytes; /* borrowed; (count, width) */
    size_t count;
    unsigned width;    /* bytes of an id */
    size_t vocabulary; /* ids are below this */
};

/* Interpret `size` bytes as tokens.  STATUS_DATA names `name`: size is not a multiple of the
 * width. */
enum status tokens_init(struct tokens *t, const char *name, const void *bytes, size_t size,
                        unsigned width, size_t vocabulary, struct error *err);

/* Restrict the tokens to a split: the first nine tenths for training, the rest for testing, like
 * nanoGPT.  *ret_first: index of the split's first token in the file. */
void tokens_split(struct tokens *t, enum dataset_split split, size_t *ret_first);

/* Number of samples. */
size_t tokens_samples(const struct tokens *t, size_t positions);

/* Check that every id is below the vocabulary.  STATUS_DATA names the file, the index of the first
 * invalid id (counted from `first`) and the id.  Reads all tokens. */
enum status tokens_check(const struct tokens *t, const char *name, size_t first, struct error *err);

/* Write sample `index`, below tokens_samples, to x and y (positions). */
void tokens_sample(const struct tokens *t, size_t positions, size_t index, float *x, int32_t *y);

#endif
