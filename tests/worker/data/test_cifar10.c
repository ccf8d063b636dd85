/*
 * cifar10:DIR with records written here: order of the files, planes and classes; files that are
 * missing or cut off, or have an invalid class; failing allocations.
 */
#include "common/base/memory.h"
#include "tests/support/support.h"
#include "worker/data/cifar10.h"
#include "worker/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORDS_MAX 8

static struct error err;

static const char *spec(void)
{
    static char text[4096 + 16];

    (void)snprintf(text, sizeof(text), "cifar10:%s", support_folder());
    return text;
}

static enum status open_split(enum dataset_split split, size_t samples, struct dataset **ret)
{
    struct dataset_config config = {.spec = spec(), .split = split, .samples = samples};

    return dataset_open(&config, ret, &err);
}

static unsigned char pixel(unsigned sample, size_t k)
{
    return (unsigned char)(sample * 31 + k * 7 + k / 1024);
}

/* Write `count` records, with samples numbered from `first` and the number modulo 10 as class, and
 * the first `more` bytes of another record. */
static void write_file(const char *name, unsigned first, unsigned count, size_t more)
{
    static unsigned char records[(RECORDS_MAX + 1) * CIFAR10_RECORD];

    ck_assert_uint_le(count, RECORDS_MAX);
    for (unsigned i = 0; i <= count; i++) {
        unsigned char *record = records + i * CIFAR10_RECORD;

        record[0] = (unsigned char)((first + i) % 10);
        for (size_t k = 0; k < CIFAR10_PIXELS; k++)
            record[1 + k] = pixel(first + i, k);
    }
    (void)support_write(name, records, count * CIFAR10_RECORD + more);
}

/* 3 + 1 + 2 + 4 + 5 records for training, 2 for testing. */
#define TRAIN 15
static void write_all(void)
{
    static const unsigned counts[] = {3, 1, 2, 4, 5};
    unsigned first = 0;

    for (unsigned i = 0; i < 5; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "data_batch_%u.bin", i + 1);
        write_file(name, first, counts[i], 0);
        first += counts[i];
    }
    write_file("test_batch.bin", 100, 2, 0);
}

static void check_sample(const struct dataset *d, int64_t index, unsigned sample)
{
    float x[CIFAR10_PIXELS];
    int32_t y;

    dataset_gather(d, &index, 1, x, &y);
    ck_assert_int_eq(y, (int32_t)(sample % 10));
    for (size_t k = 0; k < CIFAR10_PIXELS; k++)
        ck_assert(x[k] == (float)pixel(sample, k) / 255.0F);
}

START_TEST(files_in_order)
{
    struct dataset *d;

    write_all();
    assert_ok(open_split(SPLIT_TRAIN, 0, &d));
    ck_assert_uint_eq(dataset_count(d), TRAIN);
    ck_assert_uint_eq(dataset_features(d), 3 * 32 * 32);
    ck_assert_uint_eq(dataset_classes(d), 10);
    ck_assert_uint_eq(dataset_positions(d), 1);
    for (unsigned i = 0; i < TRAIN; i++)
        check_sample(d, i, i);
    dataset_close(d);
    assert_ok(open_split(SPLIT_TEST, 0, &d));
    ck_assert_uint_eq(dataset_count(d), 2);
    check_sample(d, 1, 101);
    dataset_close(d);
    assert_ok(open_split(SPLIT_TRAIN, 4, &d));
    ck_assert_uint_eq(dataset_count(d), 4);
    check_sample(d, 3, 3);
    dataset_close(d);
    assert_fails(open_split(SPLIT_TRAIN, TRAIN + 1, &d), STATUS_CONFIG,
                 "has 15 samples, 16 were asked for");
}
END_TEST

START_TEST(refuses)
{
    struct dataset *d;
    char *records;

    write_all();
    write_file("data_batch_3.bin", 4, 2, 1);
    assert_fails(open_split(SPLIT_TRAIN, 0, &d), STATUS_DATA, "data_batch_3.bin': record 2 is cut");
    write_file("data_batch_3.bin", 4, 1, CIFAR10_RECORD - 1);
    assert_fails(open_split(SPLIT_TRAIN, 0, &d), STATUS_DATA,
                 "record 1 is cut off: it has 3072 bytes, a record has 3073");
    write_file("data_batch_3.bin", 4, 0, 0);
    assert_fails(open_split(SPLIT_TRAIN, 0, &d), STATUS_DATA, "data_batch_3.bin' is empty");
    ck_assert_int_eq(unlink(support_path("data_batch_3.bin")), 0);
    assert_fails(open_split(SPLIT_TRAIN, 0, &d), STATUS_NOT_FOUND, "data_batch_3.bin");
    assert_ok(mem_calloc(3, CIFAR10_RECORD, "records", &records, &err));
    records[2 * CIFAR10_RECORD] = 10;
    (void)support_write("data_batch_3.bin", records, 3 * CIFAR10_RECORD);
    assert_fails(open_split(SPLIT_TRAIN, 0, &d), STATUS_DATA,
                 "data_batch_3.bin': record 2 has class 10; classes are 0 to 9");
    (void)support_write("test_batch.bin", records, 2 * CIFAR10_RECORD);
    assert_ok(open_split(SPLIT_TEST, 0, &d)); /* does not read the training files */
    dataset_close(d);
    free(records);
    assert_fails(dataset_open(&(struct dataset_config){.spec = "cifar10:/nowhere"}, &d, &err),
                 STATUS_NOT_FOUND, "cannot find '/nowhere/data_batch_1.bin'");
}
END_TEST

START_TEST(survives_failing_allocations)
{
    struct dataset *d;
    size_t n = 0;

    write_all();
    for (;;) {
        enum status status;

        mem_fail_nth(++n);
        status = open_split(SPLIT_TRAIN, 0, &d);
        mem_fail_nth(0);
        if (status == STATUS_OK)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
    }
    ck_assert_uint_gt(n, 4);
    dataset_close(d);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("cifar10", 0, TEST(files_in_order), TEST(refuses),
                       TEST(survives_failing_allocations));
}
