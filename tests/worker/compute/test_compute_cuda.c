/*
 * The GPU device: the same checks against double precision as for the CPU, in every precision,
 * uploads ahead, the choice of a device and running out of memory.  Without a GPU, or without the
 * module, every test reports why it is skipped.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"
#include "tests/worker/compute/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

START_TEST(test_operations)
{
    struct compute *c = open_gpu("cuda", PRECISION_FLOAT32);

    if (!c)
        return;
    (void)printf("checking %s\n", compute_name(c));
    ck_assert(!compute_is_host(c));
    check_device(c, 25);
    compute_close(c);
}
END_TEST

/* Coarser values; counts, indices and copies are still exact. */
START_TEST(test_precisions)
{
    const enum precision precision = _i == 0 ? PRECISION_TF32 : PRECISION_BF16;
    struct compute *c = open_gpu("cuda", precision);

    if (!c)
        return;
    ck_assert_int_eq(compute_precision(c), precision);
    expect_precision(precision);
    check_device(c, 2);
    compute_close(c);
}
END_TEST

/* Products whose epilogues the library does not support, for each way it reports that (the emulator
 * is configured so; a GPU's library may support them): the separate passes are used. */
START_TEST(test_without_epilogues)
{
    static const char *const ways[] = {"1", "invalid", "late"};
    struct compute *c;

    (void)setenv("CUDA_EMULATOR_NO_EPILOGUES", ways[_i / 2], 1);
    c = open_gpu("cuda", _i % 2 == 0 ? PRECISION_FLOAT32 : PRECISION_BF16);
    if (!c)
        return;
    expect_precision(compute_precision(c));
    check_linears(c, 0);
    compute_close(c);
    (void)unsetenv("CUDA_EMULATOR_NO_EPILOGUES");
}
END_TEST

/* ---- uploads ahead ---- */

enum { AHEAD_COUNT = 1000 };

static void fill(float *values, float first)
{
    for (size_t i = 0; i < AHEAD_COUNT; i++)
        values[i] = first + (float)(i % 64);
}

/* The upload of `count` from host yields first, first + 1, ... */
static void check_upload(struct compute *c, struct array *a, const float *host, size_t count,
                         float first)
{
    assert_ok(compute_upload_values(c, a->device, host, count, &err));
    assert_ok(compute_download_values(c, a->host, a->device, count, &err));
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(a->host[i] == first + (float)(i % 64), "element %zu is %.9g, not %.9g", i,
                      (double)a->host[i], (double)(first + (float)(i % 64)));
}

/* An upload uses the floats uploaded ahead; any other upload reads the host. */
START_TEST(test_uploads_ahead)
{
    struct compute *c = open_gpu("cuda", _i == 0 ? PRECISION_FLOAT32 : PRECISION_BF16);
    struct array a;
    float *host[2];

    if (!c)
        return;
    a = array_random(c, AHEAD_COUNT);
    for (int i = 0; i < 2; i++)
        assert_ok(compute_alloc_host(c, AHEAD_COUNT, &host[i], &err));
    fill(host[0], 1);
    check_upload(c, &a, host[0], AHEAD_COUNT, 1); /* none is pending */
    for (unsigned turn = 0; turn < 6; turn++) {
        float *mine = host[turn % 2];

        fill(mine, (float)turn);
        assert_ok(compute_upload_ahead(c, mine, AHEAD_COUNT - turn, &err));
        if (turn % 3 == 2) { /* it is complete by then: the host memory is no longer read */
            assert_ok(compute_synchronize(c, &err));
            fill(mine, 100);
        }
        check_upload(c, &a, mine, AHEAD_COUNT - turn, (float)turn);
        fill(mine, 99);
        check_upload(c, &a, mine, AHEAD_COUNT - turn, 99); /* used once */
    }
    fill(host[0], 7);
    assert_ok(compute_upload_ahead(c, host[0], AHEAD_COUNT, &err));
    check_upload(c, &a, host[0], AHEAD_COUNT / 2, 7); /* a different count */
    fill(host[1], 8);
    assert_ok(compute_upload_ahead(c, host[1], AHEAD_COUNT, &err)); /* replaces the first */
    assert_ok(compute_synchronize(c, &err));
    fill(host[0], 9);
    check_upload(c, &a, host[0], AHEAD_COUNT, 9);
    (void)compute_upload_ahead_wait_ns(c);
    fill(host[1], 8);
    assert_ok(compute_upload_ahead(c, host[1], AHEAD_COUNT, &err));
    check_upload(c, &a, host[1], AHEAD_COUNT, 8);
    ck_assert_int_gt(compute_upload_ahead_wait_ns(c), 0);
    ck_assert_int_eq(compute_upload_ahead_wait_ns(c), 0); /* already reported */
    assert_ok(compute_upload_ahead(c, host[1], AHEAD_COUNT, &err));
    assert_ok(compute_upload_ahead_cancel(c, &err));
    fill(host[1], 10);
    check_upload(c, &a, host[1], AHEAD_COUNT, 10);
    assert_ok(compute_upload_ahead(c, host[1], AHEAD_COUNT, &err)); /* still pending at the end */
    for (int i = 0; i < 2; i++)
        compute_free_host(c, host[i]);
    array_free(c, &a);
    compute_close(c);
}
END_TEST

/* ---- choosing, and running out of memory ---- */

START_TEST(test_choice)
{
    struct compute *c = open_gpu("cuda:0", PRECISION_FLOAT32);

    if (!c)
        return;
    ck_assert_msg(strncmp(compute_name(c), "cuda:0 (", 8) == 0, "%s", compute_name(c));
    compute_close(c);
    c = NULL;
    assert_fails(compute_open("cuda:1000", 0, 1, &c, &err), STATUS_UNAVAILABLE,
                 "device 'cuda:1000': no GPU 1000: this host has ");
    assert_ok(compute_open("cuda", 1000003, 1, &c, &err)); /* a local rank modulo the devices */
    compute_close(c);
    assert_ok(compute_open("auto", 0, 1, &c, &err));
    ck_assert(!compute_is_host(c));
    ck_assert_str_eq(compute_fallback_reason(c), "");
    compute_close(c);
}
END_TEST

START_TEST(test_out_of_memory)
{
    struct compute *c = open_gpu("cuda", PRECISION_FLOAT32);
    float *memory = NULL;

    if (!c)
        return;
    assert_fails(compute_alloc(c, SIZE_MAX / 8, "test", &memory, &err), STATUS_NO_MEMORY,
                 "of GPU memory");
    assert_fails(compute_alloc(c, SIZE_MAX / 2, "test", &memory, &err), STATUS_NO_MEMORY,
                 "overflow");
    assert_fails(compute_download_wait(c, &err), STATUS_INTERNAL, "no download");
    ck_assert_ptr_null(memory);
    check_transfers(c); /* the device still works */
    compute_close(c);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("compute_cuda", 100, TEST(test_operations), LOOP_TEST(test_precisions, 0, 2),
                       LOOP_TEST(test_without_epilogues, 0, 6), LOOP_TEST(test_uploads_ahead, 0, 2),
                       TEST(test_choice), TEST(test_out_of_memory));
}
