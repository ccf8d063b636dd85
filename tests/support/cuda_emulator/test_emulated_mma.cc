/*
 * The products and fragments of a warp on the emulated GPU against plain loops.  Lanes must hold
 * the elements of the formulas of the PTX ISA, so that kernels which pass on the emulator also read
 * correctly on a GPU.
 */
#include "tests/support/cuda_emulator/cuda_emulator.h"

#include "worker/compute/cuda/cuda_mma.cuh"

extern "C" {
#include "tests/support/support.h"
}

namespace
{

template <typename T> constexpr unsigned DEPTH = MMA_BYTES / sizeof(T);
constexpr unsigned CHUNK_PITCH = 3; /* chunks of 16 bytes from row to row */

/* Small integers: exact in every type, and so are their sums. */
template <typename T> void fill_whole(T *values, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        store_value(&values[i], (float)(int)(support_random() * 17.0) - 8.0f);
}

/* Rows and columns of element i of a lane's A and B, 9.7.14.5 of the PTX ISA: m16n8k16 with
 * .f16/.bf16, m16n8k8 with .tf32. */
struct position {
    unsigned row, column;
};

template <typename T> position position_in_a(unsigned lane, unsigned i)
{
    unsigned group = lane / 4;
    unsigned in_group = lane % 4;

    if (sizeof(T) == 2)
        return {i < 2 || (i >= 4 && i < 6) ? group : group + 8,
                in_group * 2 + (i & 1) + (i >= 4 ? 8u : 0u)};
    return {i == 0 || i == 2 ? group : group + 8, i < 2 ? in_group : in_group + 4};
}

template <typename T> position position_in_b(unsigned lane, unsigned i)
{
    unsigned in_group = lane % 4;

    if (sizeof(T) == 2)
        return {in_group * 2 + (i & 1) + (i >= 2 ? 8u : 0u), lane / 4};
    return {i == 0 ? in_group : in_group + 4, lane / 4};
}

position position_in_d(unsigned lane, unsigned i)
{
    return {i < 2 ? lane / 4 : lane / 4 + 8, lane % 4 * 2 + (i & 1)};
}

void run_warp(const std::function<void()> &lane)
{
    cuda_emulator::run_grid(dim3(1), dim3(WARP), 0, lane);
}

template <typename T> void check_product()
{
    T a[16 * DEPTH<T>], b[DEPTH<T> * 8];
    float d[16 * 8];

    fill_whole(a, 16 * DEPTH<T>);
    fill_whole(b, DEPTH<T> * 8);
    run_warp([&] {
        T left[16 / sizeof(T)], right[8 / sizeof(T)];
        uint32_t a_registers[4], b_registers[2];
        float sums[4] = {1.0f, 2.0f, 3.0f, 4.0f};

        for (unsigned i = 0; i < 16 / sizeof(T); i++) {
            position at = position_in_a<T>(threadIdx.x, i);
            left[i] = a[at.row * DEPTH<T> + at.column];
        }
        for (unsigned i = 0; i < 8 / sizeof(T); i++) {
            position at = position_in_b<T>(threadIdx.x, i);
            right[i] = b[at.row * 8 + at.column];
        }
        memcpy(a_registers, left, sizeof(left));
        memcpy(b_registers, right, sizeof(right));
        multiply_add(sums, a_registers, b_registers[0], b_registers[1], type_tag<T>());
        for (unsigned i = 0; i < 4; i++) {
            position at = position_in_d(threadIdx.x, i);
            d[at.row * 8 + at.column] = sums[i] - (float)(i + 1);
        }
    });
    for (unsigned i = 0; i < 16 * 8; i++) {
        float wanted = 0.0f;

        for (unsigned k = 0; k < DEPTH<T>; k++)
            wanted += to_float(a[i / 8 * DEPTH<T> + k]) * to_float(b[k * 8 + i % 8]);
        if (d[i] != wanted)
            ck_abort_msg("element %u of a product is %g, wanted %g", i, (double)d[i],
                         (double)wanted);
    }
}

/* Compare an element of the registers of this lane with the element of the formula. */
template <typename T> void expect_registers(const uint32_t *registers, unsigned i, const T &wanted)
{
    T got;

    memcpy(&got, reinterpret_cast<const unsigned char *>(registers) + i * sizeof(T), sizeof(got));
    if (to_float(got) != to_float(wanted))
        ck_abort_msg("lane %u, element %u: %g, wanted %g", threadIdx.x, i, (double)to_float(got),
                     (double)to_float(wanted));
}

template <typename T> void check_fragments()
{
    constexpr unsigned PITCH = CHUNK_PITCH * chunk<T>();
    alignas(16) T tile[16 * PITCH];

    fill_whole(tile, 16 * PITCH);
    run_warp([&] {
        uint32_t a[4], b[4];

        load_a(a, tile, PITCH);
        for (unsigned i = 0; i < 16 / sizeof(T); i++) {
            position at = position_in_a<T>(threadIdx.x, i);
            expect_registers(a, i, tile[at.row * PITCH + at.column]);
        }
        load_b_of_rows(b, tile, PITCH);
        for (unsigned i = 0; i < 16 / sizeof(T); i++) { /* two B: columns are rows of the tile */
            position at = position_in_b<T>(threadIdx.x, i % (8 / sizeof(T)));
            unsigned row = at.column + i / (8 / sizeof(T)) * 8;
            expect_registers(b, i, tile[row * PITCH + at.row]);
        }
    });
}

/* Weights (16, DEPTH) in the layout of sums, times a tile (DEPTH, 16).  load_b and sums_as_a use
 * the same order of rows, which does not affect the product. */
template <typename T> void check_weighted()
{
    constexpr unsigned PITCH = 16 + chunk<T>();
    alignas(16) T tile[16 * PITCH];
    T weights[16 * DEPTH<T>];
    float d[16 * 16];

    fill_whole(tile, 16 * PITCH);
    fill_whole(weights, 16 * DEPTH<T>);
    run_warp([&] {
        float accumulators[DEPTH<T> / 8][4];
        float sums[2][4] = {};
        uint32_t left[4], right[4];

        for (unsigned n = 0; n < DEPTH<T> / 8; n++)
            for (unsigned i = 0; i < 4; i++) {
                position at = position_in_d(threadIdx.x, i);
                accumulators[n][i] = to_float(weights[at.row * DEPTH<T> + 8 * n + at.column]);
            }
        sums_as_a(left, accumulators, 0, type_tag<T>());
        load_b(right, tile, PITCH);
        for (unsigned n = 0; n < 2; n++) {
            multiply_add(sums[n], left, right[2 * n], right[2 * n + 1], type_tag<T>());
            for (unsigned i = 0; i < 4; i++) {
                position at = position_in_d(threadIdx.x, i);
                d[at.row * 16 + 8 * n + at.column] = sums[n][i];
            }
        }
    });
    for (unsigned i = 0; i < 16 * 16; i++) {
        float wanted = 0.0f;

        for (unsigned k = 0; k < DEPTH<T>; k++)
            wanted += to_float(weights[i / 16 * DEPTH<T> + k]) * to_float(tile[k * PITCH + i % 16]);
        if (d[i] != wanted)
            ck_abort_msg("element %u of a weighted sum is %g, wanted %g", i, (double)d[i],
                         (double)wanted);
    }
}

template <typename T> void check_type()
{
    for (unsigned round = 0; round < 5; round++) {
        check_product<T>();
        check_fragments<T>();
        check_weighted<T>();
    }
}

START_TEST(test_layouts)
{
    check_type<__nv_bfloat16>();
    check_type<__half>();
    check_type<float>();
}
END_TEST

START_TEST(test_copies)
{
    alignas(16) float from[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    alignas(16) float to[WARP][8];

    memset(to, 0xff, sizeof(to));
    run_warp([&] {
        float *mine = to[threadIdx.x];

        copy_async(mine, from, true);
        copy_async(mine + 4, from, false);
        if (!std::isnan(mine[0]) || !std::isnan(mine[7]))
            ck_abort_msg("a copy was made before it was waited for");
        copies_wait();
        if (memcmp(mine, from, sizeof(from)) != 0 || mine[4] != 0.0f || mine[7] != 0.0f)
            ck_abort_msg("a copy that was waited for was not made");
    });
}
END_TEST

START_TEST(test_rounding)
{
    const struct {
        float x, rounded;
    } cases[] = {{1.0f, 1.0f},
                 {1.0f + 0x1p-11f, 1.0f + 0x1p-10f}, /* ties go away from zero */
                 {-1.0f - 0x1p-11f, -1.0f - 0x1p-10f},
                 {1.0f + 0x1.8p-12f, 1.0f},
                 {HUGE_VALF, HUGE_VALF}};

    for (const auto &c : cases) {
        uint32_t bits = round_tf32(c.x);
        float got;

        memcpy(&got, &bits, sizeof(got));
        ck_assert_msg(got == c.rounded, "%a becomes %a, wanted %a", (double)c.x, (double)got,
                      (double)c.rounded);
    }
}
END_TEST

} // namespace

int main(void)
{
    Suite *suite = suite_create("emulated_mma");
    TCase *tests = tcase_create("mma");

    tcase_add_test(tests, test_layouts);
    tcase_add_test(tests, test_copies);
    tcase_add_test(tests, test_rounding);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
