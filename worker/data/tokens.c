/*
 * Ids are read byte by byte, since a file's bytes have no guaranteed alignment; compilers merge the
 * bytes into one load.  Pure functions of immutable bytes, no locking.
 */
#include "worker/data/tokens.h"

#include <assert.h>

enum status tokens_init(struct tokens *t, const char *name, const void *bytes, size_t size,
                        unsigned width, size_t vocabulary, struct error *err)
{
    assert(width == 1 || width == 2 || width == 4);
    if (size % width != 0)
        return error_set(err, STATUS_DATA, "'%s' has %zu bytes: not whole tokens of %u bytes", name,
                         size, width);
    *t = (struct tokens){bytes, size / width, width, vocabulary};
    return STATUS_OK;
}

void tokens_split(struct tokens *t, enum dataset_split split, size_t *ret_first)
{
    size_t train = t->count / 10 * 9 + t->count % 10 * 9 / 10;

    *ret_first = split == SPLIT_TRAIN ? 0 : train;
    t->bytes += *ret_first * t->width;
    t->count = split == SPLIT_TRAIN ? train : t->count - train;
}

size_t tokens_samples(const struct tokens *t, size_t positions)
{
    return t->count > 0 ? (t->count - 1) / positions : 0;
}

static inline uint32_t id_at(const unsigned char *b, unsigned width)
{
    if (width == 1)
        return b[0];
    if (width == 2)
        return b[0] | (uint32_t)b[1] << 8;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Finds the largest id first, a loop that compilers vectorise; the index of an invalid id is
 * searched only if there is one. */
enum status tokens_check(const struct tokens *t, const char *name, size_t first, struct error *err)
{
    uint32_t largest = 0;
    size_t i = 0;

    if (t->width < 4 && (size_t)1 << (8 * t->width) <= t->vocabulary)
        return STATUS_OK;
    for (size_t k = 0; k < t->count; k++) {
        uint32_t id = id_at(t->bytes + k * t->width, t->width);

        largest = id > largest ? id : largest;
    }
    if (largest < t->vocabulary)
        return STATUS_OK;
    while (id_at(t->bytes + i * t->width, t->width) < t->vocabulary)
        i++;
    return error_set(err, STATUS_DATA, "'%s': token %zu is %u; the vocabulary has %zu", name,
                     first + i, id_at(t->bytes + i * t->width, t->width), t->vocabulary);
}

void tokens_sample(const struct tokens *t, size_t positions, size_t index, float *x, int32_t *y)
{
    const unsigned char *bytes = t->bytes + index * positions * t->width;

    assert(index < tokens_samples(t, positions));
    for (size_t i = 0; i < positions; i++) {
        x[i] = (float)id_at(bytes + i * t->width, t->width);
        y[i] = (int32_t)id_at(bytes + (i + 1) * t->width, t->width);
    }
}
