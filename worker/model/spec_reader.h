/*
 * spec_reader: a place in a spec, and what is read there.  Internal to spec.c and spec_cnn.c.
 */
#ifndef SPARRING_WORKER_MODEL_SPEC_READER_H
#define SPARRING_WORKER_MODEL_SPEC_READER_H

#include "worker/model/spec.h"

struct spec_reader {
    const char *text;
    const char *at;
    struct error *err;
};

/* STATUS_CONFIG that names the spec and the position of `at`. */
enum status spec_fail(const struct spec_reader *r, const char *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Digits, from min (0 or 1) to max; what: with its article, "a width". */
enum status spec_number(struct spec_reader *r, const char *what, size_t min, size_t max,
                        size_t *ret);

/* The word if it stands here; the reader then stands behind it. */
bool spec_word(struct spec_reader *r, const char *word);

/* Anything else at `at` is an error that names `expected`. */
enum status spec_expect(struct spec_reader *r, const char *word, const char *expected);

/* "CxHxW" into channels, height and width. */
enum status spec_image(struct spec_reader *r, struct spec *spec);

/* "CxHxW-layer-layer...", up to the end. */
enum status spec_read_cnn(struct spec_reader *r, struct spec *spec);

#endif
