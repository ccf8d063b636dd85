/*
 * dataset_open and the kinds that read files or draw noise: their samples, their errors, and no
 * leak when any allocation fails.  Digits, CIFAR-10 and tokens have tests of their own.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "tests/support/support.h"
#include "worker/data/dataset.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

static enum status open_spec(const char *spec, enum dataset_split split, size_t samples,
                             struct dataset **ret)
{
    struct dataset_config config = {.spec = spec, .split = split, .samples = samples, .seed = 9};

    return dataset_open(&config, ret, &err);
}

/* "mnist:FOLDER", valid until the next call. */
static const char *mnist_spec(const char *folder)
{
    static char spec[4096 + 8];

    (void)snprintf(spec, sizeof(spec), "mnist:%s", folder);
    return spec;
}

START_TEST(unknown_specs)
{
    static const char *const specs[] = {
        "", "digit", "digits:3", "mnist", "x.safetensor", ".safetensors", "imagenet:/data"};
    struct dataset *d;

    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
        assert_fails(open_spec(specs[i], SPLIT_TRAIN, 0, &d), STATUS_CONFIG,
                     "known are digits, mnist:DIR, cifar10:DIR, random:N,D,C, random-tokens:N,T,V, "
                     "text:FILE, tokens:FILE[,V], FILE.safetensors");
    assert_fails(open_spec("mnist:", SPLIT_TRAIN, 0, &d), STATUS_CONFIG, "it is mnist:DIR");
    assert_fails(open_spec("tokens:", SPLIT_TRAIN, 0, &d), STATUS_CONFIG, "it is tokens:FILE[,V]");
    dataset_close(NULL);
}
END_TEST

/* ---- random ---- */

START_TEST(random_is_seeded_noise)
{
    struct dataset *d;
    struct dataset *other;
    int64_t indices[2000];
    float *x = calloc(2 * 2000 * 5, sizeof(float));
    int32_t y[2000];
    double sum = 0;
    double squares = 0;
    unsigned counts[4] = {0};

    ck_assert_ptr_nonnull(x);
    for (int i = 0; i < 2000; i++)
        indices[i] = i;
    assert_ok(open_spec("random:2000,5,4", SPLIT_TRAIN, 0, &d));
    ck_assert_str_eq(dataset_name(d), "random:2000,5,4");
    ck_assert_uint_eq(dataset_count(d), 2000);
    ck_assert_uint_eq(dataset_features(d), 5);
    ck_assert_uint_eq(dataset_classes(d), 4);
    dataset_gather(d, indices, 2000, x, y);
    for (int i = 0; i < 2000; i++) {
        ck_assert_int_ge(y[i], 0);
        ck_assert_int_lt(y[i], 4);
        counts[y[i]]++;
    }
    for (int i = 0; i < 10000; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    ck_assert_double_eq_tol(sum / 10000, 0, 0.05); /* five standard errors */
    ck_assert_double_eq_tol(squares / 10000, 1, 0.08);
    for (int c = 0; c < 4; c++)
        ck_assert_uint_ge(counts[c], 400); /* 500 expected */
    assert_ok(open_spec("random:2000,5,4", SPLIT_TRAIN, 700, &other));
    ck_assert_uint_eq(dataset_count(other), 700);
    dataset_gather(other, indices, 700, x + 10000, y);
    ck_assert_mem_eq(x, x + 10000, 700 * 5 * sizeof(float));
    dataset_close(other);
    assert_ok(open_spec("random:2000,5x1x1,4", SPLIT_TRAIN, 0, &other)); /* the same values */
    dataset_gather(other, indices, 2000, x + 10000, y);
    ck_assert_mem_eq(x, x + 10000, 10000 * sizeof(float));
    dataset_close(other);
    assert_ok(open_spec("random:2,3x7x5,4", SPLIT_TRAIN, 0, &other));
    ck_assert_uint_eq(dataset_features(other), 3 * 7 * 5);
    ck_assert_uint_eq(dataset_positions(other), 1);
    dataset_close(other);
    assert_ok(open_spec("random:2000,5,4", SPLIT_TEST, 0, &other));
    dataset_gather(other, indices, 2000, x + 10000, y);
    ck_assert(x[0] != x[10000] && x[9999] != x[19999]);
    dataset_close(other);
    dataset_close(d);
    free(x);
}
END_TEST

START_TEST(random_refuses)
{
    static const char *const specs[] = {
        "random:1",
        "random:1,2",
        "random:1,2,3,4",
        "random:0,2,3",
        "random:1,0,3",
        "random:1,2,0",
        "random:-1,2,3",
        "random:1,2,3 ",
        "random:1,,3",
        "random:a,2,3",
        "random:1,2,3,",
        "random:1.5,2,3",
        "random:1;2;3",
        "random:2147483648,1,1",
        "random:2,3x4,2",
        "random:2,3x4x5x6,2",
        "random:2,3x4x,2",
        "random:2,x4x5,2",
        "random:2,3xx5,2",
        "random:2,3x0x5,2",
        "random:2x3x4,5,2",
        "random:2,3,2x1x1",
        "random:2,3x4x5x,2",
        "random:1,65536x32768x1,1",
        "random:1,2147483647x2147483647x2147483647,1",
        "random:99999999999999999999999999,1,1",
    };
    struct dataset *d;

    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
        assert_fails(open_spec(specs[i], SPLIT_TRAIN, 0, &d), STATUS_CONFIG,
                     "not random:SAMPLES,FEATURES,CLASSES");
    assert_fails(open_spec("random:5,2,3", SPLIT_TRAIN, 6, &d), STATUS_CONFIG,
                 "has 5 samples, 6 were asked for");
    assert_fails(open_spec("random:2147483647,2147483647,3", SPLIT_TRAIN, 0, &d), STATUS_NO_MEMORY,
                 "random samples");
}
END_TEST

/* ---- safetensors ---- */

START_TEST(tensors_of_pytorch)
{
    static const int64_t indices[] = {1002, 0};
    struct dataset *d;
    float x[20];
    int32_t y[2];

    assert_ok(open_spec(support_source("tests/data/parity/linear10_w4.data.safetensors"),
                        SPLIT_TRAIN, 0, &d));
    ck_assert_uint_eq(dataset_count(d), 1003);
    ck_assert_uint_eq(dataset_features(d), 10);
    ck_assert_uint_eq(dataset_classes(d), 10);
    dataset_gather(d, indices, 2, x, y);
    ck_assert(x[9] == 0.4285023808479309F && x[10] == -1.5255959033966064F);
    ck_assert_int_eq(y[0], 7);
    ck_assert_int_eq(y[1], 8);
    dataset_close(d);
    assert_fails(open_spec(support_source("tests/data/parity/linear10_w4.data.safetensors"),
                           SPLIT_TEST, 0, &d),
                 STATUS_NOT_FOUND, "no test split");
}
END_TEST

/* Write a safetensors file of this header and these data bytes. */
static const char *write_tensors(const char *header, const void *data, size_t bytes)
{
    size_t length = strlen(header);
    unsigned char *file = calloc(1, 8 + length + 1 + bytes);
    const char *path;

    ck_assert_ptr_nonnull(file);
    file[0] = (unsigned char)(length & 0xff);
    file[1] = (unsigned char)(length >> 8);
    memcpy(file + 8, header, length + 1);
    memcpy(file + 8 + length, data, bytes);
    path = support_write("x.safetensors", file, 8 + length + bytes);
    free(file);
    return path;
}

#define X22 "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
#define Y32 "\"y\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[16,24]}}"

START_TEST(tensors_with_int32_labels)
{
    static const struct {
        float x[4];
        int32_t y[2];
    } data = {{1, 2, 3, 4}, {0, 6}};
    static const int64_t indices[] = {1};
    struct dataset *d;
    float x[2];
    int32_t y;

    assert_ok(open_spec(write_tensors(X22 Y32, &data, sizeof(data)), SPLIT_TRAIN, 0, &d));
    ck_assert_uint_eq(dataset_classes(d), 7);
    dataset_gather(d, indices, 1, x, &y);
    ck_assert(x[0] == 3 && x[1] == 4 && y == 6);
    dataset_close(d);
}
END_TEST

START_TEST(tensors_refuse)
{
    static const unsigned char zeros[64];
    static const struct {
        float x[4];
        int32_t y[2];
    } negative = {{1, 2, 3, 4}, {0, -1}};
    struct {
        uint32_t x[4]; /* bits of floats */
        int32_t y[2];
    } infinite = {{0, 0, 0x7f800000, 0}, {0, 0}};
    static const struct {
        const char *header;
        size_t bytes;
        const char *part;
    } cases[] = {
        {"{}", 0, "no tensor 'x'"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16,
         "no tensor 'y'"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "no samples"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]}}", 0, "no samples"},
        {"{\"x\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "'x' is F64"},
        {X22 "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[16,18]}}", 18, "'y' is U8"},
        {X22 "\"y\":{\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[16,28]}}", 28, "3 labels"},
        {X22 "\"y\":{\"dtype\":\"I32\",\"shape\":[2,1],\"data_offsets\":[16,24]}}", 24,
         "2 dimensions"},
        {X22, 24, "not valid JSON"},
    };
    struct dataset *d;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_fails(
            open_spec(write_tensors(cases[i].header, zeros, cases[i].bytes), SPLIT_TRAIN, 0, &d),
            STATUS_DATA, cases[i].part);
    assert_fails(open_spec(write_tensors(X22 Y32, &negative, sizeof(negative)), SPLIT_TRAIN, 0, &d),
                 STATUS_DATA, "'y': element 1 is -1");
    assert_fails(open_spec(write_tensors(X22 Y32, &infinite, sizeof(infinite)), SPLIT_TRAIN, 0, &d),
                 STATUS_DATA, "'x': element 2 is infinite");
    assert_fails(open_spec(write_tensors(X22 Y32, zeros, 24), SPLIT_TRAIN, 3, &d), STATUS_CONFIG,
                 "has 2 samples, 3 were asked for");
    assert_fails(open_spec("/nowhere/x.safetensors", SPLIT_TRAIN, 0, &d), STATUS_NOT_FOUND,
                 "/nowhere/x.safetensors");
}
END_TEST

/* ---- MNIST ---- */

#define COUNT 3

/* Three images of 1 x 256 with pixels k, k, ... and their labels; returns the folder. */
static const char *write_mnist(const char *prefix, unsigned labels, unsigned char last_label)
{
    unsigned char images[16 + COUNT * 256] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, 1, 0, 0, 1, 0};
    unsigned char classes[8 + 8] = {0, 0, 8, 1, 0, 0, 0, 0, 7, 2, 1, 0};
    char name[64];

    for (unsigned i = 0; i < COUNT * 256; i++)
        images[16 + i] = (unsigned char)(i + i / 256);
    classes[7] = (unsigned char)labels;
    classes[8 + labels - 1] = last_label;
    (void)snprintf(name, sizeof(name), "%s-images-idx3-ubyte", prefix);
    (void)support_write(name, images, sizeof(images));
    (void)snprintf(name, sizeof(name), "%s-labels-idx1-ubyte", prefix);
    (void)support_write(name, classes, 8 + labels);
    return support_folder();
}

START_TEST(mnist_in_small)
{
    static const int64_t indices[] = {2, 0};
    const char *folder = write_mnist("train", COUNT, 9);
    struct dataset *d;
    float x[512];
    int32_t y[2];

    assert_ok(open_spec(mnist_spec(folder), SPLIT_TRAIN, 0, &d));
    ck_assert_uint_eq(dataset_count(d), COUNT);
    ck_assert_uint_eq(dataset_features(d), 256);
    ck_assert_uint_eq(dataset_classes(d), 10);
    dataset_gather(d, indices, 2, x, y);
    ck_assert_int_eq(y[0], 9);
    ck_assert_int_eq(y[1], 7);
    for (unsigned k = 0; k < 256; k++) {
        ck_assert(x[256 + k] == (float)k / 255.0F);
        ck_assert(x[k] == (float)((k + 2) % 256) / 255.0F);
    }
    dataset_close(d);
    assert_ok(open_spec(mnist_spec(folder), SPLIT_TRAIN, 2, &d));
    ck_assert_uint_eq(dataset_count(d), 2);
    dataset_close(d);
    assert_fails(open_spec(mnist_spec(folder), SPLIT_TRAIN, 4, &d), STATUS_CONFIG,
                 "has 3 samples, 4 were asked for");
    assert_fails(open_spec(mnist_spec(folder), SPLIT_TEST, 0, &d), STATUS_NOT_FOUND,
                 "neither 't10k-images-idx3-ubyte' nor 't10k-images-idx3-ubyte.gz'");
    (void)write_mnist("t10k", COUNT, 1);
    assert_ok(open_spec(mnist_spec(folder), SPLIT_TEST, 0, &d));
    dataset_close(d);
}
END_TEST

START_TEST(mnist_refuses)
{
    static const unsigned char flat[] = {0, 0, 8, 1, 0, 0, 0, 1, 0};
    const char *folder = write_mnist("train", COUNT, 10);
    struct dataset *d;

    assert_fails(open_spec(mnist_spec(folder), SPLIT_TRAIN, 0, &d), STATUS_DATA,
                 "label 2 is 10; labels are 0 to 9");
    (void)write_mnist("train", COUNT + 1, 0);
    assert_fails(open_spec(mnist_spec(folder), SPLIT_TRAIN, 0, &d), STATUS_DATA,
                 "3 images but 4 labels");
    (void)support_write("train-images-idx3-ubyte", flat, sizeof(flat));
    assert_fails(open_spec(mnist_spec(folder), SPLIT_TRAIN, 0, &d), STATUS_DATA,
                 "has 1 dimensions, not 3");
    (void)support_write("train-images-idx3-ubyte", "\0\0\x08\3\0\0\0\4\0\0\0\0\0\0\0\1", 16);
    assert_fails(open_spec(mnist_spec(folder), SPLIT_TRAIN, 0, &d), STATUS_DATA, "no pixels");
    assert_fails(open_spec("mnist:/nowhere", SPLIT_TRAIN, 0, &d), STATUS_NOT_FOUND, "/nowhere");
}
END_TEST

START_TEST(real_mnist)
{
    static const int64_t indices[] = {0, 1, 2, 3, 59999};
    const char *data = support_data("dataset: real_mnist");
    char folder[4096];
    struct dataset *d;
    float *x;
    int32_t y[5];
    double sum = 0;

    if (!data)
        return;
    assert_ok(file_join(folder, sizeof(folder), data, "mnist", &err));
    assert_ok(open_spec(mnist_spec(folder), SPLIT_TRAIN, 0, &d));
    ck_assert_uint_eq(dataset_count(d), 60000);
    ck_assert_uint_eq(dataset_features(d), 784);
    assert_ok(mem_calloc((size_t)784 * 5, sizeof(float), "images", &x, &err));
    dataset_gather(d, indices, 5, x, y);
    ck_assert(y[0] == 5 && y[1] == 0 && y[2] == 4 && y[3] == 1 && y[4] == 8);
    for (int64_t i = 0; i < 60000; i++) {
        dataset_gather(d, &i, 1, x, y);
        for (size_t k = 0; k < 784; k++)
            sum += (double)x[k];
    }
    ck_assert_double_eq_tol(sum, 6146268.857009364, 1e-4); /* numpy's float32 / 255, summed */
    free(x);
    dataset_close(d);
    assert_ok(open_spec(mnist_spec(folder), SPLIT_TEST, 0, &d));
    ck_assert_uint_eq(dataset_count(d), 10000);
    dataset_close(d);
}
END_TEST

/* Each allocation of each kind fails in turn; the leak checker verifies the clean-up. */
START_TEST(survives_failing_allocations)
{
    const char *specs[4] = {"digits", "random:20,3,2"};

    specs[2] = support_source("tests/data/parity/seed_w2.data.safetensors");
    specs[3] = mnist_spec(write_mnist("train", COUNT, 1));
    for (unsigned i = 0; i < 4; i++) {
        struct dataset *d;
        size_t n = 0;

        for (;;) {
            enum status status;

            mem_fail_nth(++n);
            status = open_spec(specs[i], SPLIT_TRAIN, 3, &d);
            mem_fail_nth(0);
            if (status == STATUS_OK)
                break;
            ck_assert_int_eq(status, STATUS_NO_MEMORY);
        }
        ck_assert_uint_gt(n, 4); /* the set, its name, samples and labels at least */
        dataset_close(d);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("dataset", 60, TEST(unknown_specs), TEST(random_is_seeded_noise),
                       TEST(random_refuses), TEST(tensors_of_pytorch),
                       TEST(tensors_with_int32_labels), TEST(tensors_refuse), TEST(mnist_in_small),
                       TEST(mnist_refuses), TEST(real_mnist), TEST(survives_failing_allocations));
}
