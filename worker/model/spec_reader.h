/*
 * spec_reader: a cursor over the text of a spec and its tokens.  Internal to spec.c and spec_cnn.c.
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

/* True if the text continues with `word`; the cursor then moves behind it. */
bool spec_accept(struct spec_reader *r, const char *word);

/* Like spec_accept, but anything else is an error that names `expected`. */
enum status spec_expect(struct spec_reader *r, const char *word, const char *expected);

/* "CxHxW" into channels, height and width. */
enum status spec_image(struct spec_reader *r, struct spec *spec);

/* "CxHxW-layer-layer...", up to the end. */
enum status spec_read_cnn(struct spec_reader *r, struct spec *spec);

#endif
