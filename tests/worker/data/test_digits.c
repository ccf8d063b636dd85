/*
 * The built-in digits: the same bytes on every machine and in any order; different for every seed,
 * split and index; evenly distributed over the classes; with a plausible amount of ink.
 */
#include "tests/support/support.h"
#include "worker/data/digits.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a, 64 bits. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_sample(uint64_t seed, enum dataset_split split, uint64_t index)
{
    unsigned char pixels[DIGITS_PIXELS];
    unsigned char label = (unsigned char)digits_draw(seed, split, index, pixels);
    uint64_t hash = hash_bytes(UINT64_C(0xcbf29ce484222325), pixels, sizeof(pixels));

    return hash_bytes(hash, &label, 1);
}

/* Pins the drawing: a change of a digit invalidates every figure measured with it. */
START_TEST(draws_these_bytes)
{
    uint64_t all = UINT64_C(0xcbf29ce484222325);

    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t hash = hash_sample(0, i % 2 == 0 ? SPLIT_TRAIN : SPLIT_TEST, i / 2);

        for (unsigned k = 0; k < 8; k++) {
            unsigned char byte = (unsigned char)(hash >> (8 * k));

            all = hash_bytes(all, &byte, 1);
        }
    }
    ck_assert_uint_eq(all, UINT64_C(0xb0fc421e5cc83f6d));
}
END_TEST

static int compare_hashes(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

START_TEST(all_samples_differ)
{
    uint64_t hashes[4 * 500];
    size_t n = 0;

    for (uint64_t i = 0; i < 500; i++) {
        hashes[n++] = hash_sample(0, SPLIT_TRAIN, i);
        hashes[n++] = hash_sample(0, SPLIT_TEST, i);
        hashes[n++] = hash_sample(1, SPLIT_TRAIN, i);
        hashes[n++] = hash_sample(UINT64_C(1) << 40, SPLIT_TRAIN, i);
    }
    qsort(hashes, n, sizeof(hashes[0]), compare_hashes);
    for (size_t i = 1; i < n; i++)
        ck_assert_uint_ne(hashes[i - 1], hashes[i]);
}
END_TEST

/* Sample i of the set is digits_draw's sample i, for any number of samples. */
START_TEST(set_is_addressed_by_index)
{
    static const int64_t indices[] = {299, 0, 17};
    struct error err = {0};
    struct dataset *d;
    float x[3 * DIGITS_PIXELS];
    int32_t y[3];

    assert_ok(dataset_open(
        &(struct dataset_config){.spec = "digits", .split = SPLIT_TEST, .samples = 300, .seed = 42},
        &d, &err));
    ck_assert_uint_eq(dataset_count(d), 300);
    ck_assert_uint_eq(dataset_features(d), DIGITS_PIXELS);
    ck_assert_uint_eq(dataset_classes(d), DIGITS_CLASSES);
    dataset_gather(d, indices, 3, x, y);
    for (unsigned i = 0; i < 3; i++) {
        unsigned char pixels[DIGITS_PIXELS];

        ck_assert_int_eq(y[i], (int)digits_draw(42, SPLIT_TEST, (uint64_t)indices[i], pixels));
        for (unsigned k = 0; k < DIGITS_PIXELS; k++)
            ck_assert(x[i * DIGITS_PIXELS + k] == (float)pixels[k] / 255.0F);
    }
    dataset_close(d);
}
END_TEST

/* Expected 400 of each class, standard deviation 19. */
START_TEST(classes_are_even_and_inked)
{
    unsigned counts[DIGITS_CLASSES] = {0};
    unsigned char pixels[DIGITS_PIXELS];

    for (uint64_t i = 0; i < 4000; i++) {
        unsigned dark = 0;

        counts[digits_draw(3, SPLIT_TRAIN, i, pixels)]++;
        for (unsigned k = 0; k < DIGITS_PIXELS; k++)
            dark += pixels[k] > 128;
        ck_assert_uint_ge(dark, 8);
        ck_assert_uint_le(dark, DIGITS_PIXELS / 2);
    }
    for (unsigned c = 0; c < DIGITS_CLASSES; c++) {
        ck_assert_uint_ge(counts[c], 400 - 6 * 19);
        ck_assert_uint_le(counts[c], 400 + 6 * 19);
    }
}
END_TEST

START_TEST(default_sizes)
{
    struct error err = {0};
    struct dataset *d;

    assert_ok(dataset_open(&(struct dataset_config){.spec = "digits"}, &d, &err));
    ck_assert_uint_eq(dataset_count(d), 12000);
    dataset_close(d);
    assert_ok(
        dataset_open(&(struct dataset_config){.spec = "digits", .split = SPLIT_TEST}, &d, &err));
    ck_assert_uint_eq(dataset_count(d), 2000);
    dataset_close(d);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("digits", 60, TEST(draws_these_bytes), TEST(all_samples_differ),
                       TEST(set_is_addressed_by_index), TEST(classes_are_even_and_inked),
                       TEST(default_sizes));
}
