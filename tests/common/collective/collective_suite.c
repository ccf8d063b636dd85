/*
 * The behaviour of a backend, each operation against a model that is one loop.
 */
#include "tests/common/collective/collective_suite.h"

#include "tests/common/collective/ring_world.h"

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MIB_COUNT ((size_t)262144)

static const size_t counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 13, 127, 1009, 65537, MIB_COUNT};

static float *new_floats(size_t count)
{
    float *data = calloc(count + 1, sizeof(float));

    ck_assert_ptr_nonnull(data);
    return data;
}

/* ---- sums of integers ---- */

static float integer_value(unsigned rank, size_t i)
{
    return (float)((i * 7 + rank * 13) % 101) - 50.0f;
}

static void check_counters(const struct collective *group, struct collective_stats before,
                           size_t count, enum reduce_order order)
{
    struct collective_stats after = collective_get_stats(group);
    uint64_t tx;
    uint64_t rx;

    collective_expected_bytes(
        group,
        &(struct collective_args){.call = COLLECTIVE_ALL_REDUCE, .order = order, .count = count},
        &tx, &rx);
    ck_assert_uint_eq(after.operations - before.operations, 1);
    ck_assert_uint_eq(after.tx_payload_bytes - before.tx_payload_bytes, tx);
    ck_assert_uint_eq(after.rx_payload_bytes - before.rx_payload_bytes, rx);
    if (strcmp(collective_backend(group), "shm") == 0) /* through no wire */
        tx = rx = 0;
    ck_assert_uint_ge(after.tx_wire_bytes - before.tx_wire_bytes, tx);
    ck_assert_uint_ge(after.rx_wire_bytes - before.rx_wire_bytes, rx);
}

static void exact_sum(struct collective *group, unsigned rank, unsigned size, size_t count,
                      enum reduce_order order)
{
    struct error err = {0};
    struct collective_stats before = collective_get_stats(group);
    float *data = new_floats(count);
    size_t wrong = 0;

    data[count] = 12345.0f; /* behind the end */
    for (size_t i = 0; i < count; i++)
        data[i] = integer_value(rank, i);
    assert_ok(collective_all_reduce(group, data, count, order, &err));
    for (size_t i = 0; i < count; i++) {
        float sum = 0;

        for (unsigned r = 0; r < size; r++)
            sum += integer_value(r, i);
        wrong += data[i] < sum || data[i] > sum;
    }
    ck_assert_uint_eq(wrong, 0);
    ck_assert_int_eq((int)data[count], 12345);
    check_counters(group, before, count, order);
    free(data);
}

static void exact_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    const enum reduce_order *order = argument;

    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++)
        exact_sum(group, rank, size, counts[k], *order);
}

void suite_exact_sums(const char *backend, unsigned ranks, bool reproducible)
{
    enum reduce_order order = reproducible ? REDUCE_REPRODUCIBLE : REDUCE_FAST;

    for (unsigned n = 1; n <= ranks; n++)
        world_run(backend, n, exact_body, &order);
}

/* ---- sums of anything ---- */

struct random_case {
    enum reduce_order order;
    size_t count;
    const float *inputs; /* [rank][count] */
    float *results;      /* [rank][count] */
};

static void random_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    const struct random_case *c = argument;
    struct error err = {0};
    float *mine = c->results + rank * c->count;

    (void)size;
    memcpy(mine, c->inputs + rank * c->count, c->count * sizeof(float));
    assert_ok(collective_all_reduce(group, mine, c->count, c->order, &err));
}

/* Values over many magnitudes, so that the order of a sum shows in its bits. */
static void fill_random(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)ldexp(support_random() * 2 - 1, (int)(support_random() * 20) - 10);
}

/* Is got the float32 sum of n terms, in some order? */
static bool is_near(float got, const struct random_case *c, unsigned n, size_t i)
{
    double sum = 0;
    double magnitude = 0;

    for (unsigned r = 0; r < n; r++) {
        sum += (double)c->inputs[r * c->count + i];
        magnitude += fabs((double)c->inputs[r * c->count + i]);
    }
    return fabs((double)got - sum) <= (n - 1) * 0x1p-24 * magnitude;
}

static float ascending_sum(const struct random_case *c, unsigned n, size_t i)
{
    float sum = c->inputs[i];

    for (unsigned r = 1; r < n; r++)
        sum += c->inputs[r * c->count + i];
    return sum;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static void check_random(const struct random_case *c, unsigned n)
{
    size_t far = 0;
    size_t other = 0;

    for (size_t i = 0; i < c->count; i++) {
        far += !is_near(c->results[i], c, n, i);
        if (c->order == REDUCE_REPRODUCIBLE)
            other += bits_of(ascending_sum(c, n, i)) != bits_of(c->results[i]);
    }
    ck_assert_uint_eq(far, 0);
    ck_assert_uint_eq(other, 0);
    for (unsigned r = 1; r < n; r++)
        ck_assert_int_eq(memcmp(c->results, c->results + r * c->count, c->count * sizeof(float)),
                         0);
}

void suite_random_sums(const char *backend, unsigned ranks, bool reproducible)
{
    for (unsigned n = 2; n <= ranks; n++) {
        size_t count = 50021; /* a prime: chunks are uneven */
        float *inputs = new_floats(n * count);
        float *results = new_floats(n * count);
        struct random_case c = {.order = reproducible ? REDUCE_REPRODUCIBLE : REDUCE_FAST,
                                .count = count,
                                .inputs = inputs,
                                .results = results};

        fill_random(inputs, n * count);
        world_run(backend, n, random_body, &c);
        check_random(&c, n);
        free(inputs);
        free(results);
    }
}

static void special_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    const enum reduce_order *order = argument;
    struct error err = {0};
    float data[] = {rank == 0 ? INFINITY : 1.0f, rank + 1 == size ? -INFINITY : 1.0f,
                    rank == 0 ? NAN : 1.0f, (rank % 2 ? -1.0f : 1.0f) * INFINITY, -0.0f};

    assert_ok(collective_all_reduce(group, data, 5, *order, &err));
    ck_assert(isinf(data[0]) && data[0] > 0);
    ck_assert(isinf(data[1]) && data[1] < 0);
    ck_assert(isnan(data[2]));
    ck_assert(isnan(data[3]));
    ck_assert(signbit(data[4]));
}

void suite_special_values(const char *backend, unsigned ranks, bool reproducible)
{
    enum reduce_order order = reproducible ? REDUCE_REPRODUCIBLE : REDUCE_FAST;

    for (unsigned n = 2; n <= ranks; n++)
        world_run(backend, n, special_body, &order);
}

/* ---- copies ---- */

static unsigned char byte_of(unsigned rank, size_t i)
{
    return (unsigned char)(rank * 37 + i * 11 + i / 251);
}

static size_t count_wrong(const unsigned char *bytes, size_t size, unsigned rank)
{
    size_t wrong = 0;

    for (size_t i = 0; i < size; i++)
        wrong += bytes[i] != byte_of(rank, i);
    return wrong;
}

static void broadcast_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    static const size_t sizes[] = {0, 1, 3, 1021, (size_t)3 << 20};
    struct error err = {0};
    unsigned char *data = malloc((size_t)3 << 20);

    (void)argument;
    ck_assert_ptr_nonnull(data);
    for (unsigned root = 0; root < size; root++) {
        for (size_t k = 0; k < 5; k++) {
            for (size_t i = 0; i < sizes[k]; i++)
                data[i] = byte_of(rank, i);
            assert_ok(collective_broadcast(group, data, sizes[k], root, &err));
            ck_assert_uint_eq(count_wrong(data, sizes[k], root), 0);
        }
    }
    free(data);
}

void suite_broadcast(const char *backend, unsigned ranks)
{
    for (unsigned n = 1; n <= ranks; n++)
        world_run(backend, n, broadcast_body, NULL);
}

/* Gathers from a buffer of its own, then from its place inside `all`. */
static void all_gather_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    static const size_t sizes[] = {0, 1, 5, 1021, (size_t)1 << 20};
    struct error err = {0};
    unsigned char *all = malloc((size_t)size << 20);
    unsigned char *mine = malloc((size_t)1 << 20);

    (void)argument;
    ck_assert(all && mine);
    for (size_t k = 0; k < 10; k++) {
        size_t bytes = sizes[k / 2];
        unsigned char *from = k % 2 ? all + rank * bytes : mine;

        memset(all, 0, size * bytes);
        for (size_t i = 0; i < bytes; i++)
            from[i] = byte_of(rank, i);
        assert_ok(collective_all_gather(group, from, bytes, all, &err));
        for (unsigned r = 0; r < size; r++)
            ck_assert_uint_eq(count_wrong(all + r * bytes, bytes, r), 0);
    }
    free(all);
    free(mine);
}

void suite_all_gather(const char *backend, unsigned ranks)
{
    for (unsigned n = 1; n <= ranks; n++)
        world_run(backend, n, all_gather_body, NULL);
}

static void barrier_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    atomic_uint *entered = argument;
    struct error err = {0};
    struct collective_stats stats;

    (void)rank;
    for (unsigned round = 1; round <= 50; round++) {
        atomic_fetch_add(entered, 1);
        assert_ok(collective_barrier(group, &err));
        ck_assert_uint_ge(atomic_load(entered), round * size);
    }
    stats = collective_get_stats(group);
    ck_assert_uint_eq(stats.operations, 50);
    ck_assert_uint_eq(stats.tx_payload_bytes + stats.rx_payload_bytes, 0);
}

void suite_barrier(const char *backend, unsigned ranks)
{
    for (unsigned n = 1; n <= ranks; n++) {
        atomic_uint entered = 0;

        world_run(backend, n, barrier_body, &entered);
    }
}
