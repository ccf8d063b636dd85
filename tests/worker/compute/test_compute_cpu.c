/*
 * The CPU device against double precision, its kernels at every vector width, the parsing of device
 * names, and the errors when a GPU is requested and not available.
 */
#include "common/base/memory.h"
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"
#include "worker/compute/cpu/cpu_kernels.h"
#include "worker/compute/cpu/image_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

START_TEST(test_operations)
{
    struct compute *c = NULL;

    assert_ok(compute_open("cpu", 0, 1 + (unsigned)_i, &c, &err));
    ck_assert(compute_is_host(c));
    ck_assert_str_eq(compute_fallback_reason(c), "");
    ck_assert_ptr_nonnull(strstr(compute_name(c), _i == 0 ? ", 1 thread)" : ", 2 threads)"));
    check_device(c, 25);
    compute_close(c);
}
END_TEST

/* ---- vector widths ---- */

enum { BATCH = 9, OUT = 1100 };

static const struct cpu_kernels *const tables[SIMD_LEVELS] = SIMD_TABLES(cpu_kernels);

static void fill(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(support_random() - 0.5);
}

static void assert_same(const float *a, const float *b, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i])
            ck_abort_msg("%s: element %zu differs between vector widths", what, i);
}

START_TEST(test_widths)
{
    static float a[BATCH * OUT];
    static float b[BATCH * OUT];
    static float y[BATCH * OUT];
    float sums[2][OUT];
    float bias[OUT];

    for (int round = 0; round < 100; round++) {
        size_t out = round < 50 ? 1 + (size_t)round : 1 + (size_t)(support_random() * (OUT - 1));
        bool flag = round % 2 == 0;

        fill(a, BATCH * OUT);
        fill(y, BATCH * OUT);
        fill(bias, OUT);
        memcpy(b, a, sizeof(a));
        tables[SIMD_BASELINE]->epilogue(a, round % 3 ? bias : NULL, round % 5 ? y : NULL, BATCH,
                                        out, flag);
        tables[_i]->epilogue(b, round % 3 ? bias : NULL, round % 5 ? y : NULL, BATCH, out, flag);
        assert_same(a, b, BATCH * OUT, "finish");
        tables[SIMD_BASELINE]->relu_backward(y, a, BATCH * out);
        tables[_i]->relu_backward(y, b, BATCH * out);
        assert_same(a, b, BATCH * OUT, "relu_backward");
        fill(sums[0], OUT);
        memcpy(sums[1], sums[0], sizeof(sums[0]));
        tables[SIMD_BASELINE]->column_sums(y, sums[0], BATCH, out, flag);
        tables[_i]->column_sums(y, sums[1], BATCH, out, flag);
        assert_same(sums[0], sums[1], OUT, "column_sums");
    }
}
END_TEST

/* Sums in eight lanes, whatever the width: the same bits. */
START_TEST(test_image_widths)
{
    static const struct image_kernels *const images[SIMD_LEVELS] = SIMD_TABLES(image_kernels);
    static float x[OUT];
    static float dy[OUT];
    static float out[2][OUT];

    for (size_t count = 1; count < OUT; count += 1 + count / 7) {
        const struct norm_channel n = {
            .mean = 0.1f, .inverse_std = 1.7f, .weight = 0.3f, .bias = -0.2f, .relu = count % 2};
        const struct pool pool = {1, 1, count, 1 + count % 3, 1 + count % 4, count % 3 > 0};
        double sums[2][2] = {{0.5, 0.25}, {0.5, 0.25}};
        int32_t argmax[2][OUT];

        fill(x, OUT);
        fill(dy, OUT);
        for (size_t i = 0; i < 2; i++) {
            const struct image_kernels *k = images[i == 0 ? SIMD_BASELINE : _i];

            ck_assert(k->sum(x, count) == images[_i]->sum(x, count));
            ck_assert(k->squared_deviations(x, count, 0.1) ==
                      images[_i]->squared_deviations(x, count, 0.1));
            k->norm_gradient_sums(&n, x, dy, count, sums[i]);
            k->normalise(&n, x, count % 3 ? dy : NULL, out[i], count);
        }
        assert_same(out[0], out[1], count, "normalise");
        ck_assert(sums[0][0] == sums[1][0] && sums[0][1] == sums[1][1]);
        for (size_t i = 0; i < 2; i++) {
            const struct image_kernels *k = images[i == 0 ? SIMD_BASELINE : _i];

            k->norm_gradient(&n, x, dy, out[i], count, 0.01f, -0.02f);
            k->add_scalar(out[i], out[i], count, 0.125f, count % 2);
        }
        assert_same(out[0], out[1], count, "norm_gradient");
        for (size_t i = 0; i < 2; i++)
            images[i == 0 ? SIMD_BASELINE : _i]->max_pool(&pool, x, argmax[i], out[i]);
        assert_same(out[0], out[1], compute_windows(count, pool.kernel, pool.stride, pool.padding),
                    "max_pool");
    }
}
END_TEST

/* ---- choosing a device ---- */

static void expect_refused(const char *device, enum status expected, const char *part)
{
    struct compute *c = NULL;

    assert_fails(compute_open(device, 0, 1, &c, &err), expected, part);
    ck_assert_ptr_null(c);
    ck_assert_msg(!strchr(err.text, '\n'), "not one line: %s", err.text);
}

START_TEST(test_refused_devices)
{
    struct compute *c = NULL;

    expect_refused("", STATUS_INVALID, "device ''");
    expect_refused("gpu", STATUS_INVALID, "'gpu': not one of auto, cpu, cuda, cuda:I");
    expect_refused("CPU", STATUS_INVALID, "'CPU'");
    expect_refused("cuda:", STATUS_INVALID, "'cuda:'");
    expect_refused("cuda:-1", STATUS_INVALID, "'cuda:-1'");
    expect_refused("cuda:1x", STATUS_INVALID, "'cuda:1x'");
    expect_refused("cuda:1024", STATUS_INVALID, "0 to 1023");
    assert_fails(compute_open("cpu", 0, 0, &c, &err), STATUS_INVALID, "0 threads");
    assert_fails(compute_open("cpu", 0, 5000, &c, &err), STATUS_INVALID, "5000 threads");
    compute_close(NULL);
}
END_TEST

/* A module named by the user must load, or opening fails: there is no silent fallback. */
START_TEST(test_named_module_is_missing)
{
    struct compute *c = NULL;

    ck_assert_int_eq(setenv("SPARRING_CUDA_MODULE", "/nowhere/sparring_cuda.so", 1), 0);
    expect_refused(
        "cuda", STATUS_NOT_FOUND,
        "device 'cuda': SPARRING_CUDA_MODULE: cannot find '/nowhere/sparring_cuda.so': ");
    assert_ok(compute_open("auto", 0, 1, &c, &err));
    ck_assert(compute_is_host(c));
    ck_assert_ptr_nonnull(strstr(compute_fallback_reason(c), "/nowhere/sparring_cuda.so"));
    compute_close(c);
}
END_TEST

/* Without a GPU, `cuda` fails with a reason and `auto` opens the CPU with the same reason. */
START_TEST(test_without_gpu)
{
    struct compute *c = NULL;
    enum status status = compute_open("cuda:0", 0, 1, &c, &err);

    if (status == STATUS_OK) {
        (void)printf("skipped: a GPU is here, so nothing is missing\n");
        compute_close(c);
        return;
    }
    ck_assert_msg(status == STATUS_NOT_FOUND || status == STATUS_UNAVAILABLE, "%s", err.text);
    ck_assert_msg(strncmp(err.text, "device 'cuda:0': ", 17) == 0, "%s", err.text);
    ck_assert(!strchr(err.text, '\n'));
    assert_ok(compute_open("auto", 0, 1, &c, &err));
    ck_assert(compute_is_host(c));
    ck_assert_uint_gt(strlen(compute_fallback_reason(c)), 0);
    compute_close(c);
}
END_TEST

START_TEST(test_failing_allocations)
{
    struct compute *c = NULL;
    float *memory = NULL;

    mem_fail_nth(1);
    assert_fails(compute_open("cpu", 0, 1, &c, &err), STATUS_NO_MEMORY, "cpu device");
    assert_ok(compute_open("cpu", 0, 1, &c, &err));
    mem_fail_nth(1);
    assert_fails(compute_alloc(c, 10, "tensor memory", &memory, &err), STATUS_NO_MEMORY,
                 "tensor memory");
    ck_assert_ptr_null(memory);
    for (size_t nth = 1; nth <= 2; nth++) {
        struct convolution conv = {
            .channels = 2, .height = 5, .width = 5, .filters = 3, .kernel = 3, .stride = 1};

        mem_fail_nth(nth);
        assert_fails(compute_conv_prepare(c, &conv, 4, &err), STATUS_NO_MEMORY,
                     nth == 1 ? "plan of a convolution" : "scratch memory of a convolution");
        ck_assert_ptr_null(conv.plan);
    }
    for (size_t nth = 1; nth <= 2; nth++) {
        struct attention attention = {.heads = 2, .positions = 5, .width = 6};

        mem_fail_nth(nth);
        assert_fails(compute_attention_prepare(c, &attention, 4, &err), STATUS_NO_MEMORY,
                     "attention");
        ck_assert_ptr_null(attention.plan);
    }
    compute_close(c);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("compute_cpu", 60, LOOP_TEST(test_operations, 0, 2),
                       LOOP_TEST(test_widths, 1, simd_level() + 1),
                       LOOP_TEST(test_image_widths, 1, simd_level() + 1), TEST_CASE("devices", 0),
                       TEST(test_refused_devices), TEST(test_named_module_is_missing),
                       TEST(test_without_gpu), TEST(test_failing_allocations));
}
