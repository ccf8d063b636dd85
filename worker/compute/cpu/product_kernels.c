/*
 * product_kernels: tiles of ROWS times three registers of columns. k is split into steps of DEPTH,
 * so that a panel of b (DEPTH * COLUMNS floats) stays in the first-level cache while the rows of a
 * stream through.  A narrow last panel computes only the registers in use; elements of panels
 * beyond the matrix are uninitialised, and their products are never stored.
 */
#include "worker/compute/cpu/product_kernels.h"

#include <string.h>

#if defined(__AVX512F__)
#define WIDTH 16
#define ROWS  8
#elif defined(__AVX2__)
#define WIDTH 8
#define ROWS  4
#else
#define WIDTH 4
#define ROWS  4
#endif
#define COLUMNS (3 * WIDTH)
#define DEPTH   192 /* 36 KiB of b with the widest registers */

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

typedef float vector __attribute__((vector_size(WIDTH * sizeof(float))));
typedef float four __attribute__((vector_size(4 * sizeof(float))));

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- panels ---- */

/* out[p * width + i] = in[i * in_row + p] for four i and k of p. */
static void transpose_four(const float *in, size_t in_row, size_t k, size_t width, float *out)
{
    size_t p = 0;

    for (; p + 4 <= k; p += 4, out += 4 * width) {
        four a, b, c, d, low, high, low2, high2;

        memcpy(&a, in + p, sizeof(a));
        memcpy(&b, in + in_row + p, sizeof(b));
        memcpy(&c, in + 2 * in_row + p, sizeof(c));
        memcpy(&d, in + 3 * in_row + p, sizeof(d));
        low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        low2 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
        high2 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
        a = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
        b = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
        c = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
        d = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
        memcpy(out, &a, sizeof(a));
        memcpy(out + width, &b, sizeof(b));
        memcpy(out + 2 * width, &c, sizeof(c));
        memcpy(out + 3 * width, &d, sizeof(d));
    }
    for (; p < k; p++, out += width)
        for (size_t i = 0; i < 4; i++)
            out[i] = in[i * in_row + p];
}

/* One panel of rows that are contiguous along k.  Elements beyond `count` are not written. */
static void pack_across(const float *in, size_t in_row, size_t count, size_t k, size_t width,
                        float *out)
{
    size_t i = 0;

    for (; i + 4 <= count; i += 4)
        transpose_four(in + i * in_row, in_row, k, width, out + i);
    for (; i < count; i++)
        for (size_t p = 0; p < k; p++)
            out[p * width + i] = in[i * in_row + p];
}

/* `k` steps of panels whose `width` elements per step are contiguous; `out` is the first panel. */
static void pack_along(const float *in, size_t in_row, size_t count, size_t k, size_t width,
                       float *out)
{
    for (size_t p = 0; p < k; p++, in += in_row, out += width) {
        for (size_t i = 0; i < count; i += width) {
            float *step = out + i * k;

            if (i + width > count)
                memcpy(step, in + i, (count - i) * sizeof(*out));
            else if (width == COLUMNS)
                memcpy(step, in + i, COLUMNS * sizeof(*out));
            else
                memcpy(step, in + i, ROWS * sizeof(*out));
        }
    }
}

static void pack(const float *in, size_t in_row, bool along, size_t count, size_t k, size_t width,
                 float *out)
{
    /* Rows across k: one panel at a time.  Otherwise several panels: enough of each row to use its
     * page, but few enough panels that writing them stays efficient. */
    size_t part = along ? width * (size_t)(128 / width + 1) : width;

    for (size_t p = 0; p < k; p += DEPTH) {
        size_t depth = smaller(DEPTH, k - p);

        for (size_t i = 0; i < count; i += part) {
            if (along)
                pack_along(in + p * in_row + i, in_row, smaller(part, count - i), depth, width,
                           out);
            else
                pack_across(in + i * in_row + p, in_row, smaller(part, count - i), depth, width,
                            out);
            out += product_packed(smaller(part, count - i), depth, width);
        }
    }
}

/* ---- tiles ---- */

struct target {
    float *c;
    size_t c_row, m, n; /* m <= ROWS and n <= COLUMNS are inside the matrix */
    bool accumulate;
};

static void store_part(const struct target *t, const float *tile, size_t tile_row)
{
    for (size_t i = 0; i < t->m; i++) {
        float *row = t->c + i * t->c_row;

        for (size_t j = 0; j < t->n; j++)
            row[j] = t->accumulate ? row[j] + tile[i * tile_row + j] : tile[i * tile_row + j];
    }
}

/* Pointers to the rows of a tile and the distance to the next k: packed a, or a in place. */
struct rows {
    const float *at[ROWS];
    size_t step;
};

/* registers: a constant, so that all loops except the one over k are unrolled. */
static inline __attribute__((always_inline)) void multiply_tile(const struct target *t, size_t k,
                                                                const struct rows *rows,
                                                                const float *b, size_t registers)
{
    const struct rows a = *rows;
    vector sums[ROWS][3] = {{{0}}};

    for (size_t p = 0; p < k * a.step; p += a.step, b += COLUMNS) {
        vector columns[3];

        UNROLL
        for (size_t j = 0; j < registers; j++)
            memcpy(&columns[j], b + j * WIDTH, sizeof(vector));
        UNROLL
        for (size_t i = 0; i < ROWS; i++) {
            UNROLL
            for (size_t j = 0; j < registers; j++)
                sums[i][j] += a.at[i][p] * columns[j];
        }
    }
    if (t->m < ROWS || t->n < registers * WIDTH) {
        store_part(t, (const float *)&sums[0][0], COLUMNS);
        return;
    }
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t j = 0; j < registers; j++) {
            float *c = t->c + i * t->c_row + j * WIDTH;
            vector before = {0};

            if (t->accumulate)
                memcpy(&before, c, sizeof(before));
            before += sums[i][j];
            memcpy(c, &before, sizeof(before));
        }
    }
}

/* A tile of fewer rows repeats its last row. */
static struct rows rows_of(const float *a, size_t a_row, size_t m)
{
    struct rows rows = {.step = a_row ? 1 : ROWS};

    for (size_t i = 0; i < ROWS; i++)
        rows.at[i] = a + (a_row ? smaller(i, m - 1) * a_row : i);
    return rows;
}

static void multiply(size_t m, size_t n, size_t k, const float *a, size_t a_row, const float *b,
                     bool accumulate, float *c, size_t c_row)
{
    size_t a_rows = product_packed(m, 1, ROWS);
    size_t b_columns = product_packed(n, 1, COLUMNS);

    for (size_t p = 0; p < k; p += DEPTH) {
        size_t depth = smaller(DEPTH, k - p);

        for (size_t j = 0; j < n; j += COLUMNS) {
            const float *columns = b + p * b_columns + j * depth;

            for (size_t i = 0; i < m; i += ROWS) {
                struct target t = {.c = c + i * c_row + j,
                                   .c_row = c_row,
                                   .m = smaller(ROWS, m - i),
                                   .n = smaller(COLUMNS, n - j),
                                   .accumulate = accumulate || p > 0};
                struct rows rows =
                    rows_of(a_row ? a + i * a_row + p : a + p * a_rows + i * depth, a_row, t.m);

                if (t.n > 2 * WIDTH)
                    multiply_tile(&t, depth, &rows, columns, 3);
                else if (t.n > WIDTH)
                    multiply_tile(&t, depth, &rows, columns, 2);
                else
                    multiply_tile(&t, depth, &rows, columns, 1);
            }
        }
    }
}

const struct product_kernels SIMD_NAME(product_kernels) = {
    .rows = ROWS,
    .columns = COLUMNS,
    .pack = pack,
    .multiply = multiply,
};
