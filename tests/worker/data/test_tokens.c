/*
 * Tokens: the decoder with ids encoded here, for every width; text:, tokens: and random-tokens: as
 * data sets, their splits and their errors; tiny Shakespeare if it is available.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "tests/support/support.h"
#include "worker/data/dataset.h"
#include "worker/data/tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct error err;

static enum status open_spec(const char *spec, enum dataset_split split, size_t samples,
                             size_t positions, struct dataset **ret)
{
    struct dataset_config config = {
        .spec = spec, .split = split, .samples = samples, .seed = 9, .positions = positions};

    return dataset_open(&config, ret, &err);
}

/* "KIND:PATH", valid until the next call. */
static const char *spec_of(const char *kind, const char *path)
{
    static char spec[4096 + 64];

    (void)snprintf(spec, sizeof(spec), "%s:%s", kind, path);
    return spec;
}

/* ---- the decoder ---- */

START_TEST(every_width_and_position)
{
    static const unsigned widths[] = {1, 2, 4};

    for (unsigned w = 0; w < 3; w++) {
        unsigned width = widths[w];
        size_t count = 1 + (size_t)(support_random() * 300);
        size_t positions = 1 + (size_t)(support_random() * 20);
        unsigned char *bytes = calloc(count, width); /* exact size, for AddressSanitizer */
        uint32_t ids[301];
        float x[21];
        int32_t y[21];
        struct tokens t;

        ck_assert_ptr_nonnull(bytes);
        for (size_t i = 0; i < count; i++) {
            ids[i] = (uint32_t)(support_random() * (width == 1 ? 256 : width == 2 ? 65536 : 1e7));
            for (unsigned k = 0; k < width; k++)
                bytes[i * width + k] = (unsigned char)(ids[i] >> (8 * k));
        }
        assert_ok(tokens_init(&t, "t", bytes, count * width, width, TOKENS_VOCABULARY_MAX, &err));
        assert_ok(tokens_check(&t, "t", 0, &err));
        ck_assert_uint_eq(tokens_samples(&t, positions), (count - 1) / positions);
        for (size_t i = 0; i < tokens_samples(&t, positions); i++) {
            tokens_sample(&t, positions, i, x, y);
            for (size_t p = 0; p < positions; p++) {
                ck_assert(x[p] == (float)ids[i * positions + p]);
                ck_assert_int_eq(y[p], (int32_t)ids[i * positions + p + 1]);
            }
        }
        free(bytes);
    }
}
END_TEST

START_TEST(splits_are_nine_to_one)
{
    static unsigned char bytes[1000];

    for (size_t count = 0; count <= sizeof(bytes); count++) {
        struct tokens train = {bytes, count, 1, 256};
        struct tokens test = train;
        size_t first;

        tokens_split(&train, SPLIT_TRAIN, &first);
        ck_assert_uint_eq(first, 0);
        ck_assert_uint_eq(train.count, count * 9 / 10);
        tokens_split(&test, SPLIT_TEST, &first);
        ck_assert_uint_eq(first, train.count);
        ck_assert_ptr_eq(test.bytes, bytes + first);
        ck_assert_uint_eq(test.count, count - train.count);
    }
}
END_TEST

START_TEST(ids_beyond_the_vocabulary)
{
    unsigned char bytes[] = {0, 0, 5, 0, 0, 1, 6, 0, 255, 255};
    struct tokens t;

    assert_ok(tokens_init(&t, "t", bytes, sizeof(bytes), 2, 65536, &err));
    assert_ok(tokens_check(&t, "t", 0, &err));
    t.vocabulary = 65535;
    assert_fails(tokens_check(&t, "t", 100, &err), STATUS_DATA,
                 "'t': token 104 is 65535; the vocabulary has 65535");
    t.vocabulary = 256;
    assert_fails(tokens_check(&t, "t", 0, &err), STATUS_DATA, "token 2 is 256");
    t.vocabulary = 1;
    assert_fails(tokens_check(&t, "t", 0, &err), STATUS_DATA, "token 1 is 5;");
    t.count = 1;
    assert_ok(tokens_check(&t, "t", 0, &err));
    assert_fails(tokens_init(&t, "t", bytes, 9, 2, 1, &err), STATUS_DATA,
                 "'t' has 9 bytes: not whole tokens of 2 bytes");
    ck_assert_uint_eq(t.count, 1);
}
END_TEST

/* ---- text ---- */

/* 40 bytes, 36 of them to train. */
#define LETTERS "abcdefghijklmnopqrstuvwxyz0123456789\xff\n\0*"

START_TEST(text_by_bytes)
{
    static const int64_t indices[] = {3, 0};
    const char *path = support_write("letters", LETTERS, 40);
    struct dataset *d;
    float x[20];
    int32_t y[20];

    assert_ok(open_spec(spec_of("text", path), SPLIT_TRAIN, 0, 8, &d));
    ck_assert_uint_eq(dataset_count(d), 4);
    ck_assert_uint_eq(dataset_features(d), 8);
    ck_assert_uint_eq(dataset_positions(d), 8);
    ck_assert_uint_eq(dataset_classes(d), 256);
    dataset_gather(d, indices, 2, x, y);
    for (unsigned i = 0; i < 8; i++) {
        ck_assert(x[i] == (float)LETTERS[24 + i] && y[i] == LETTERS[25 + i]);
        ck_assert(x[8 + i] == (float)LETTERS[i] && y[8 + i] == LETTERS[i + 1]);
    }
    dataset_close(d);
    assert_ok(open_spec(spec_of("text", path), SPLIT_TRAIN, 2, 5, &d));
    ck_assert_uint_eq(dataset_count(d), 2); /* of 7: the 36th byte is a label only */
    dataset_close(d);
    assert_fails(open_spec(spec_of("text", path), SPLIT_TRAIN, 8, 5, &d), STATUS_CONFIG,
                 "has 7 samples, 8 were asked for");
    assert_ok(open_spec(spec_of("text", path), SPLIT_TEST, 0, 3, &d));
    ck_assert_uint_eq(dataset_count(d), 1);
    dataset_gather(d, &indices[1], 1, x, y);
    ck_assert(x[0] == 255 && x[1] == '\n' && x[2] == 0 && y[0] == '\n' && y[1] == 0 && y[2] == '*');
    dataset_close(d);
}
END_TEST

START_TEST(text_refuses)
{
    const char *path = support_write("letters", LETTERS, 40);
    struct dataset *d;

    assert_fails(open_spec(spec_of("text", path), SPLIT_TRAIN, 0, 0, &d), STATUS_CONFIG,
                 "needs a model that reads sequences");
    assert_fails(open_spec(spec_of("text", path), SPLIT_TRAIN, 0, 36, &d), STATUS_DATA,
                 "36 tokens for training: too few for one sample of 36 and the token behind it");
    assert_fails(open_spec(spec_of("text", path), SPLIT_TEST, 0, 4, &d), STATUS_DATA,
                 "4 tokens for testing: too few");
    assert_fails(open_spec(spec_of("text", path), SPLIT_TRAIN, 0, SIZE_MAX, &d), STATUS_DATA,
                 "too few");
    path = support_write("nothing", "", 0);
    assert_fails(open_spec(spec_of("text", path), SPLIT_TRAIN, 0, 4, &d), STATUS_DATA, "is empty");
    assert_fails(open_spec(spec_of("text", support_folder()), SPLIT_TRAIN, 0, 4, &d), STATUS_DATA,
                 "is not a file");
    path = support_path("pipe");
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* without a writer */
    assert_fails(open_spec(spec_of("text", path), SPLIT_TRAIN, 0, 4, &d), STATUS_DATA,
                 "pipe' is not a file");
    assert_fails(open_spec("text:/nowhere", SPLIT_TRAIN, 0, 4, &d), STATUS_NOT_FOUND,
                 "cannot open '/nowhere'");
    assert_fails(open_spec("text:", SPLIT_TRAIN, 0, 4, &d), STATUS_CONFIG, "it is text:FILE");
}
END_TEST

START_TEST(text_outlives_its_file)
{
    static const int64_t zero;
    const char *path = support_write("letters", LETTERS, 40);
    struct dataset *d;
    float x[8];
    int32_t y[8];

    assert_ok(open_spec(spec_of("text", path), SPLIT_TRAIN, 0, 8, &d));
    ck_assert_int_eq(truncate(path, 0), 0);
    dataset_gather(d, &zero, 1, x, y);
    for (unsigned i = 0; i < 8; i++)
        ck_assert(x[i] == (float)LETTERS[i] && y[i] == LETTERS[i + 1]);
    dataset_close(d);
}
END_TEST

START_TEST(tiny_shakespeare)
{
    static const int64_t zero;
    const char *data = support_data("tokens: tiny_shakespeare");
    char path[4096];
    struct dataset *d;
    float x[64];
    int32_t y[64];

    if (!data)
        return;
    assert_ok(file_join(path, sizeof(path), data, "tinyshakespeare/input.txt", &err));
    assert_ok(open_spec(spec_of("text", path), SPLIT_TRAIN, 0, 64, &d));
    ck_assert_uint_eq(dataset_count(d), 1003853 / 64); /* nanoGPT has 1003854 of 1115394 */
    dataset_gather(d, &zero, 1, x, y);
    for (unsigned i = 0; i < 14; i++)
        ck_assert(x[i] == (float)"First Citizen:"[i]);
    ck_assert_int_eq(y[0], 'i');
    dataset_close(d);
    assert_ok(open_spec(spec_of("text", path), SPLIT_TEST, 0, 64, &d));
    ck_assert_uint_eq(dataset_count(d), 111539 / 64);
    dataset_gather(d, &zero, 1, x, y);
    for (unsigned i = 0; i < 12; i++)
        ck_assert(x[i] == (float)"?\n\nGREMIO:\nG"[i]);
    dataset_close(d);
}
END_TEST

/* ---- tokens ---- */

START_TEST(tokens_of_16_bits)
{
    static const int64_t indices[] = {1};
    unsigned char bytes[40];
    const char *path;
    struct dataset *d;
    char spec[4200];
    float x[4];
    int32_t y[4];

    for (unsigned i = 0; i < 20; i++) { /* 0, 2600, 5200, ... 49400 */
        bytes[2 * i] = (unsigned char)(i * 2600 & 0xff);
        bytes[2 * i + 1] = (unsigned char)(i * 2600 >> 8);
    }
    path = support_write("train,1.bin", bytes, sizeof(bytes));
    assert_ok(open_spec(spec_of("tokens", path), SPLIT_TRAIN, 0, 4, &d));
    ck_assert_uint_eq(dataset_count(d), 4); /* of 18 tokens */
    ck_assert_uint_eq(dataset_classes(d), 50257);
    dataset_gather(d, indices, 1, x, y);
    for (unsigned i = 0; i < 4; i++)
        ck_assert(x[i] == (float)((4 + i) * 2600) && y[i] == (int32_t)((5 + i) * 2600));
    dataset_close(d);
    (void)snprintf(spec, sizeof(spec), "tokens:%s,44201", path);
    assert_ok(open_spec(spec, SPLIT_TRAIN, 0, 4, &d));
    ck_assert_uint_eq(dataset_classes(d), 44201);
    dataset_close(d);
    assert_fails(open_spec(spec, SPLIT_TEST, 0, 1, &d), STATUS_DATA,
                 "train,1.bin': token 18 is 46800; the vocabulary has 44201");
    (void)snprintf(spec, sizeof(spec), "tokens:%s,44200", path);
    assert_fails(open_spec(spec, SPLIT_TRAIN, 0, 4, &d), STATUS_DATA, "token 17 is 44200");
    (void)snprintf(spec, sizeof(spec), "tokens:%s,0", path);
    assert_fails(open_spec(spec, SPLIT_TRAIN, 0, 4, &d), STATUS_CONFIG, "has 1 to 16777216 tokens");
    (void)snprintf(spec, sizeof(spec), "tokens:%s,16777217", path);
    assert_fails(open_spec(spec, SPLIT_TRAIN, 0, 4, &d), STATUS_CONFIG, "not 16777217");
    (void)snprintf(spec, sizeof(spec), "tokens:%s,x", path);
    assert_fails(open_spec(spec, SPLIT_TRAIN, 0, 4, &d), STATUS_NOT_FOUND, ",x'");
    path = support_write("odd.bin", bytes, 39);
    assert_fails(open_spec(spec_of("tokens", path), SPLIT_TRAIN, 0, 4, &d), STATUS_DATA,
                 "odd.bin' has 39 bytes: not whole tokens");
    assert_fails(open_spec(spec_of("tokens", path), SPLIT_TRAIN, 0, 0, &d), STATUS_CONFIG,
                 "needs a model that reads sequences");
}
END_TEST

/* ---- random ---- */

START_TEST(random_tokens)
{
    struct dataset *d;
    struct dataset *other;
    float x[3][7];
    int32_t y[3][7];
    unsigned counts[11] = {0};

    assert_ok(open_spec("random-tokens:2000,7,11", SPLIT_TRAIN, 0, 0, &d));
    ck_assert_uint_eq(dataset_count(d), 2000);
    ck_assert_uint_eq(dataset_features(d), 7);
    ck_assert_uint_eq(dataset_positions(d), 7);
    ck_assert_uint_eq(dataset_classes(d), 11);
    for (int64_t i = 0; i < 2000; i++) {
        dataset_gather(d, &i, 1, x[0], y[0]);
        for (unsigned p = 0; p < 7; p++) {
            ck_assert(y[0][p] >= 0 && y[0][p] < 11);
            ck_assert(p == 0 || x[0][p] == (float)y[0][p - 1]);
            counts[y[0][p]]++;
        }
    }
    for (unsigned c = 0; c < 11; c++)
        ck_assert_uint_ge(counts[c], 1100); /* 1273 expected */
    assert_ok(open_spec("random-tokens:2000,7,11", SPLIT_TRAIN, 3, 0, &other));
    ck_assert_uint_eq(dataset_count(other), 3);
    dataset_gather(d, (const int64_t[]){0, 1, 2}, 3, x[0], y[0]);
    for (int64_t i = 0; i < 3; i++) {
        float once[7];
        int32_t labels[7];

        dataset_gather(other, &i, 1, once, labels);
        ck_assert_mem_eq(once, x[i], sizeof(once));
        ck_assert_mem_eq(labels, y[i], sizeof(labels));
    }
    dataset_close(other);
    assert_ok(open_spec("random-tokens:2000,7,11", SPLIT_TEST, 0, 0, &other));
    dataset_gather(other, (const int64_t[]){0, 1}, 2, x[1], y[1]);
    ck_assert(memcmp(x[0], x[1], sizeof(x[0])) != 0);
    dataset_close(other);
    dataset_close(d);
}
END_TEST

START_TEST(random_tokens_refuse)
{
    static const char *const specs[] = {
        "random-tokens:1",      "random-tokens:1,2",       "random-tokens:0,1,2",
        "random-tokens:1,0,2",  "random-tokens:1,2,0",     "random-tokens:1,2,16777217",
        "random-tokens:1,2,3,", "random-tokens:1,2x2x2,3",
    };
    struct dataset *d;

    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
        assert_fails(open_spec(specs[i], SPLIT_TRAIN, 0, 0, &d), STATUS_CONFIG,
                     "not random-tokens:SAMPLES,POSITIONS,VOCABULARY");
    assert_fails(open_spec("random-tokens:5,2,3", SPLIT_TRAIN, 6, 0, &d), STATUS_CONFIG,
                 "has 5 samples, 6 were asked for");
    assert_fails(open_spec("random-tokens:2147483647,2147483647,3", SPLIT_TRAIN, 0, 0, &d),
                 STATUS_NO_MEMORY, "random tokens");
}
END_TEST

START_TEST(survives_failing_allocations)
{
    const char *specs[3] = {"random-tokens:5,2,3"};

    specs[1] = strdup(spec_of("text", support_write("letters", LETTERS, 40)));
    specs[2] = spec_of("tokens", support_write("zeros", (const char[40]){0}, 40));
    for (unsigned i = 0; i < 3; i++) {
        struct dataset *d;
        size_t n = 0;

        for (;;) {
            enum status status;

            mem_fail_nth(++n);
            status = open_spec(specs[i], SPLIT_TRAIN, 3, 4, &d);
            mem_fail_nth(0);
            if (status == STATUS_OK)
                break;
            ck_assert_int_eq(status, STATUS_NO_MEMORY);
        }
        ck_assert_uint_gt(n, i == 0 ? 3 : 2); /* the set and its name; drawn ids */
        dataset_close(d);
    }
    free((char *)(uintptr_t)specs[1]);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("tokens", 0, LOOP_TEST(every_width_and_position, 0, 50),
                       TEST(splits_are_nine_to_one), TEST(ids_beyond_the_vocabulary),
                       TEST(text_by_bytes), TEST(text_refuses), TEST(text_outlives_its_file),
                       TEST(tiny_shakespeare), TEST(tokens_of_16_bits), TEST(random_tokens),
                       TEST(random_tokens_refuse), TEST(survives_failing_allocations));
}
