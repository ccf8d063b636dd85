/*
 * Fuzzes the readers of sample files.  The first byte selects the format: CIFAR-10, or tokens of 1,
 * 2 or 4 bytes with vocabulary and length of samples from the next five bytes.  All samples of an
 * accepted file must be readable, with classes and ids within bounds.
 */
#include "tests/fuzz/fuzz.h"
#include "worker/data/cifar10.h"
#include "worker/data/tokens.h"

#include <string.h>

/* A copy of exact size, so that the sanitizer finds an access outside it. */
static void *copy_exact(const uint8_t *data, size_t size)
{
    void *bytes = allocate(size);

    if (size > 0)
        memcpy(bytes, data, size);
    return bytes;
}

static void check_cifar10(const uint8_t *data, size_t size)
{
    size_t count;
    int32_t *labels;
    unsigned char *pixels;
    void *bytes;

    if (cifar10_count("fuzz", size, &count, NULL) != STATUS_OK)
        return;
    require(count > 0 && count * CIFAR10_RECORD == size);
    bytes = copy_exact(data, size);
    labels = allocate(count * sizeof(*labels));
    pixels = allocate(count * CIFAR10_PIXELS);
    if (cifar10_split("fuzz", bytes, count, pixels, labels, NULL) == STATUS_OK)
        for (size_t i = 0; i < count; i++) {
            const uint8_t *record = data + i * CIFAR10_RECORD;

            require(labels[i] == record[0] && labels[i] < CIFAR10_CLASSES);
            require(memcmp(pixels + i * CIFAR10_PIXELS, record + 1, CIFAR10_PIXELS) == 0);
        }
    free(pixels);
    free(labels);
    free(bytes);
}

static void read_split(const struct tokens *whole, enum dataset_split split, size_t positions)
{
    struct tokens t = *whole;
    size_t first;
    size_t samples;
    float *x = allocate(positions * sizeof(*x));
    int32_t *y = allocate(positions * sizeof(*y));

    tokens_split(&t, split, &first);
    require(first + t.count <= whole->count);
    samples = tokens_samples(&t, positions);
    require(samples == 0 || samples * positions < t.count);
    for (size_t i = 0; i < samples; i++) {
        tokens_sample(&t, positions, i, x, y);
        for (size_t p = 0; p < positions; p++) {
            require(y[p] >= 0 && (size_t)y[p] < t.vocabulary);
            require(x[p] >= 0 && x[p] < (float)t.vocabulary);
            require(p == 0 || x[p] == (float)y[p - 1]);
        }
    }
    free(y);
    free(x);
}

static void check_tokens(const uint8_t *data, size_t size, unsigned width)
{
    size_t vocabulary;
    size_t positions;
    void *bytes;
    struct tokens t;

    if (size < 5)
        return;
    vocabulary = 1 + (data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16);
    positions = 1 + (data[3] | (size_t)data[4] << 8);
    bytes = copy_exact(data + 5, size - 5);
    if (tokens_init(&t, "fuzz", bytes, size - 5, width, vocabulary, NULL) == STATUS_OK &&
        tokens_check(&t, "fuzz", 0, NULL) == STATUS_OK) {
        read_split(&t, SPLIT_TRAIN, positions);
        read_split(&t, SPLIT_TEST, positions);
    }
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] % 4 == 3)
        check_cifar10(data + 1, size - 1);
    else
        check_tokens(data + 1, size - 1, 1U << (data[0] % 4));
    return 0;
}
