/*
 * Matrix products against sums in double: random shapes and strides, operands transposed or not,
 * added or not, on one thread and on two; several threads at once; more shapes than are kept.
 */
#include "common/base/memory.h"
#include "common/matrix/matrix.h"
#include "tests/support/support.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define EPSILON 5.9604644775390625e-8 /* 2^-24: a float32 operation's relative rounding */
#define LARGEST 70
#define DRAWS   SUPPORT_DRAWS(300, 60)
#define MANY    600 /* shapes, more than matrix.c keeps */

static struct error err;

static size_t random_size(size_t max)
{
    return 1 + (size_t)(support_random() * (double)max);
}

static float random_value(void)
{
    return (float)(2.0 * support_random() - 1.0);
}

/* Row-major, (rows, stride) in memory, owned. */
struct stored {
    size_t rows, stride;
    float *data;
};

static struct stored random_matrix(size_t rows, size_t columns)
{
    struct stored s = {.rows = rows, .stride = columns};

    if (support_random() < 0.5)
        s.stride += random_size(9);
    assert_ok(mem_calloc_aligned(rows * s.stride, sizeof(float), "a matrix", &s.data, &err));
    for (size_t i = 0; i < rows * s.stride; i++)
        s.data[i] = random_value();
    return s;
}

static double element(struct matrix m, size_t row, size_t column)
{
    return (double)(m.transposed ? m.data[column * m.stride + row]
                                 : m.data[row * m.stride + column]);
}

/* A sum of k products and `before` in any order: each of its at most k + 1 roundings is one of a
 * partial sum of terms. */
static void check_element(struct matrix a, struct matrix b, size_t k, size_t i, size_t j,
                          double before, float found)
{
    double sum = before;
    double magnitude = fabs(before);

    for (size_t p = 0; p < k; p++) {
        double term = element(a, i, p) * element(b, p, j);

        sum += term;
        magnitude += fabs(term);
    }
    ck_assert_msg(fabs((double)found - sum) <= ((double)k + 1.0) * EPSILON * magnitude,
                  "row %zu, column %zu: %.9g, wanted %.9g", i, j, (double)found, sum);
}

static void check_product(size_t m, size_t n, size_t k)
{
    bool transposed_a = support_random() < 0.5, transposed_b = support_random() < 0.5;
    bool add = support_random() < 0.5;
    struct stored left = transposed_a ? random_matrix(k, m) : random_matrix(m, k);
    struct stored right = transposed_b ? random_matrix(n, k) : random_matrix(k, n);
    struct stored out = random_matrix(m, n);
    struct matrix a = {left.data, left.stride, transposed_a};
    struct matrix b = {right.data, right.stride, transposed_b};
    float *before = NULL;

    assert_ok(mem_calloc(m * out.stride, sizeof(float), "a copy", &before, &err));
    memcpy(before, out.data, m * out.stride * sizeof(float));
    if (!add) /* what is not read may be anything */
        for (size_t i = 0; i < m * n; i++)
            out.data[i / n * out.stride + i % n] = NAN;
    assert_ok(matrix_product(m, n, k, a, b, add, out.data, out.stride, &err));
    for (size_t i = 0; i < m * out.stride; i++) {
        size_t row = i / out.stride, column = i % out.stride;

        if (column < n)
            check_element(a, b, k, row, column, add ? (double)before[i] : 0.0, out.data[i]);
        else
            ck_assert_msg(out.data[i] == before[i], "element %zu of row %zu was written", column,
                          row);
    }
    free(before);
    free(left.data);
    free(right.data);
    free(out.data);
}

START_TEST(test_random)
{
    for (unsigned i = 0; i < DRAWS; i++) {
        matrix_use_threads(1 + i % 2);
        check_product(random_size(LARGEST), random_size(LARGEST), random_size(LARGEST));
    }
}
END_TEST

START_TEST(test_more_shapes_than_kept)
{
    for (size_t i = 0; i < MANY; i++)
        check_product(1 + i % 34, 1 + i / 34, 3);
}
END_TEST

/* ---- threads ---- */

#define M 20
#define N 30
#define K 40

static float a[M * K], b[K * N];

static void *multiply(void *out)
{
    struct error own;
    enum status status = STATUS_OK;

    matrix_use_threads(1);
    for (unsigned i = 0; i < 50 && status == STATUS_OK; i++)
        status = matrix_product(M, N, K, (struct matrix){a, K, false}, (struct matrix){b, N, false},
                                false, out, N, &own);
    return status == STATUS_OK ? out : NULL;
}

/* A thread's products end with it, which LeakSanitizer would tell. */
START_TEST(test_threads)
{
    static float outs[3][M * N];
    pthread_t threads[2];

    for (size_t i = 0; i < M * K; i++)
        a[i] = random_value();
    for (size_t i = 0; i < K * N; i++)
        b[i] = random_value();
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, multiply, outs[i]), 0);
    ck_assert_ptr_nonnull(multiply(outs[2]));
    for (unsigned i = 0; i < 2; i++) {
        void *done = NULL;

        ck_assert_int_eq(pthread_join(threads[i], &done), 0);
        ck_assert_ptr_nonnull(done);
        ck_assert_mem_eq(outs[i], outs[2], sizeof(outs[2]));
    }
}
END_TEST

START_TEST(test_failing_allocations)
{
    const float x[1] = {3.0f};
    float out[1] = {0.0f};
    struct matrix m = {x, 1, false};

    mem_fail_nth(1);
    assert_fails(matrix_product(1, 1, 1, m, m, false, out, 1, &err), STATUS_NO_MEMORY,
                 "matrix products");
    mem_fail_nth(2);
    assert_fails(matrix_product(1, 1, 1, m, m, false, out, 1, &err), STATUS_NO_MEMORY,
                 "a matrix product");
    assert_ok(matrix_product(1, 1, 1, m, m, true, out, 1, &err));
    ck_assert(out[0] == 9.0f);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("matrix", 60, TEST(test_random), TEST(test_more_shapes_than_kept),
                       TEST(test_threads), TEST(test_failing_allocations));
}
