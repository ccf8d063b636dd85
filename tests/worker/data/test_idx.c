/*
 * IDX: plain and compressed round trips, every wrong length, hostile headers, a decompression bomb,
 * failing allocations, and the real MNIST if it is available.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "tests/support/support.h"
#include "worker/data/idx.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static struct error err;

/* (2, 3): 1 2 3 / 4 5 255 */
static const unsigned char small[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255};

/* gzip of `size` bytes in malloc'd memory. */
static unsigned char *compress_gzip(const void *data, size_t size, size_t *ret_size)
{
    size_t room = size + size / 100 + 128;
    unsigned char *out = calloc(1, room);
    unsigned char *in = calloc(1, size + 1);
    z_stream z = {0};

    ck_assert_ptr_nonnull(out);
    ck_assert_ptr_nonnull(in);
    memcpy(in, data, size);
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = in;
    z.avail_in = (uInt)size;
    z.next_out = out;
    z.avail_out = (uInt)room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    *ret_size = z.total_out;
    (void)deflateEnd(&z);
    free(in);
    return out;
}

static void check_small(const struct idx *i)
{
    ck_assert_uint_eq(i->dims, 2);
    ck_assert_uint_eq(i->shape[0], 2);
    ck_assert_uint_eq(i->shape[1], 3);
    ck_assert_uint_eq(i->count, 6);
    ck_assert_mem_eq(i->values, small + 12, 6);
}

START_TEST(reads_plain_and_gzip)
{
    size_t size;
    unsigned char *packed = compress_gzip(small, sizeof(small), &size);
    struct idx i;

    assert_ok(idx_read(support_write("plain", small, sizeof(small)), &i, &err));
    check_small(&i);
    idx_release(&i);
    assert_ok(idx_read(support_write("any name", packed, size), &i, &err));
    check_small(&i);
    idx_release(&i);
    free(packed);
    assert_fails(idx_read("/nowhere/x", &i, &err), STATUS_NOT_FOUND, "/nowhere/x");
    idx_release(NULL);
}
END_TEST

/* Every proper prefix, and one more byte, is refused. */
static void check_lengths(const unsigned char *file, size_t size)
{
    unsigned char *longer = calloc(1, size + 1);
    struct idx i;

    ck_assert_ptr_nonnull(longer);
    memcpy(longer, file, size);
    for (size_t cut = 0; cut <= size + 1; cut++) {
        enum status status = idx_parse("cut", longer, cut, &i, &err);

        ck_assert_msg(status == (cut == size ? STATUS_OK : STATUS_DATA), "%zu of %zu bytes: %s",
                      cut, size, status_name(status));
        if (status == STATUS_OK)
            idx_release(&i);
        else
            ck_assert_ptr_nonnull(strstr(err.text, "'cut'"));
    }
    free(longer);
}

START_TEST(every_length_but_the_right_one)
{
    size_t size;
    unsigned char *packed = compress_gzip(small, sizeof(small), &size);

    check_lengths(small, sizeof(small));
    check_lengths(packed, size);
    free(packed);
}
END_TEST

/* A flipped bit in compressed data is detected: gzip has a checksum. */
START_TEST(gzip_damage_is_noticed)
{
    size_t size;
    unsigned char *packed = compress_gzip(small, sizeof(small), &size);
    struct idx i;

    for (size_t at = 10; at < size; at++) { /* bytes 4 to 9 are time, flags and system */
        packed[at] ^= 0x10;
        ck_assert_int_ne(idx_parse("bit", packed, size, &i, &err), STATUS_OK);
        packed[at] ^= 0x10;
    }
    free(packed);
}
END_TEST

struct hostile {
    unsigned char bytes[20];
    enum status status;
    size_t size;
    const char *part;
};

static const struct hostile hostile_cases[] = {
    {{1, 0, 8, 1, 0, 0, 0, 0}, STATUS_DATA, 8, "begins 01 00"},
    {{0, 9, 8, 1, 0, 0, 0, 0}, STATUS_DATA, 8, "begins 00 09"},
    {{'P', 'K', 3, 4}, STATUS_DATA, 4, "not an IDX file"},
    {{0, 0, 0x0d, 1, 0, 0, 0, 0}, STATUS_UNSUPPORTED, 8, "type 0x0d"},
    {{0, 0, 0x07, 1, 0, 0, 0, 0}, STATUS_UNSUPPORTED, 8, "type 0x07"},
    {{0, 0, 8, 0}, STATUS_UNSUPPORTED, 4, "0 dimensions"},
    {{0, 0, 8, 5}, STATUS_UNSUPPORTED, 4, "5 dimensions"},
    {{0, 0, 8, 1, 0xff, 0xff, 0xff, 0xff}, STATUS_DATA, 8, "more than the 2147483648 allowed"},
    {{0, 0, 8, 4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0}, STATUS_DATA, 20, "overflows"},
    {{0, 0, 8, 1, 0x7f, 0xff, 0xff, 0xff}, STATUS_DATA, 8, "promises 2147483647 bytes, and 8"},
    {{0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 4, 1, 2, 3}, STATUS_DATA, 15, "15 bytes, 20 are needed"},
    {{0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3}, STATUS_DATA, 11, "goes on after the 10 bytes"},
    {{0x1f, 0x8b}, STATUS_DATA, 2, "cut off"},
    {{0x1f, 0x8b, 7, 0, 0, 0, 0, 0, 0, 0}, STATUS_DATA, 10, "broken gzip"},
};

START_TEST(refuses)
{
    const struct hostile *c = &hostile_cases[_i];
    struct idx i;

    assert_fails(idx_parse("file", c->bytes, c->size, &i, &err), c->status, c->part);
    ck_assert_ptr_nonnull(strstr(err.text, "'file'"));
}
END_TEST

START_TEST(empty_arrays)
{
    static const unsigned char none[] = {0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3};
    struct idx i;

    assert_ok(idx_parse("none", none, sizeof(none), &i, &err));
    ck_assert_uint_eq(i.count, 0);
    idx_release(&i);
}
END_TEST

/* A bomb (8 MiB of zeros in 8 KiB) costs at most what its header specifies, and is refused. */
START_TEST(bombs)
{
    static const unsigned char two_gib[] = {0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1};
    size_t bytes = (size_t)8 << 20;
    unsigned char *zeros = calloc(1, bytes);
    unsigned char *packed;
    size_t size;
    struct idx i;

    ck_assert_ptr_nonnull(zeros);
    memcpy(zeros, small, 12);
    packed = compress_gzip(zeros, bytes, &size);
    assert_fails(idx_parse("bomb", packed, size, &i, &err), STATUS_DATA,
                 "goes on after the 18 bytes");
    free(packed);
    memcpy(zeros + 4, two_gib, sizeof(two_gib)); /* promised by the same 8 KiB */
    packed = compress_gzip(zeros, bytes, &size);
    assert_fails(idx_parse("bomb", packed, size, &i, &err), STATUS_DATA, "compressed");
    free(packed);
    free(zeros);
}
END_TEST

START_TEST(failing_allocation)
{
    struct idx i;

    mem_fail_nth(1);
    assert_fails(idx_parse("file", small, sizeof(small), &i, &err), STATUS_NO_MEMORY, "file");
}
END_TEST

START_TEST(real_mnist)
{
    const char *data = support_data("idx: real_mnist");
    char path[4096];
    struct idx images;
    struct idx labels;
    uint64_t sum = 0;

    if (!data)
        return;
    (void)snprintf(path, sizeof(path), "%s/mnist/t10k-images-idx3-ubyte.gz", data);
    assert_ok(idx_read(path, &images, &err));
    (void)snprintf(path, sizeof(path), "%s/mnist/t10k-labels-idx1-ubyte.gz", data);
    assert_ok(idx_read(path, &labels, &err));
    ck_assert_uint_eq(images.dims, 3);
    ck_assert_uint_eq(images.shape[0], 10000);
    ck_assert_uint_eq(images.shape[1] * images.shape[2], 784);
    for (size_t i = 0; i < images.count; i++)
        sum += images.values[i];
    ck_assert_uint_eq(sum, 264923200); /* counted with Python's gzip */
    ck_assert_mem_eq(labels.values, "\7\2\1\0\4", 5);
    idx_release(&images);
    idx_release(&labels);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("idx", 30, TEST(reads_plain_and_gzip), TEST(every_length_but_the_right_one),
                       TEST(gzip_damage_is_noticed),
                       LOOP_TEST(refuses, 0, sizeof(hostile_cases) / sizeof(hostile_cases[0])),
                       TEST(empty_arrays), TEST(bombs), TEST(failing_allocation), TEST(real_mnist));
}
