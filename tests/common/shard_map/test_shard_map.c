/*
 * The map against the rule played literally (sort by size, give each to the least loaded server),
 * and the invariants that a worker and a server rely on, over every small shape with 1 to 8
 * servers.
 */
#include "common/shard_map/shard_map.h"

#include "common/base/memory.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#define SERVERS_MAX 8u
#define UNIT        (PARTITION_BYTES_MIN / sizeof(float)) /* elements of the smallest partition */

static struct error err;

/* Every element lies in exactly one partition, and in exactly one place of one server. */
static void check_cover(const struct shard_map *m, size_t element_count)
{
    size_t next = 0;
    size_t used[SERVERS_MAX] = {0};

    for (size_t i = 0; i < m->length; i++) {
        const struct partition *p = &m->partitions[i];

        ck_assert_uint_eq(p->offset, next);
        ck_assert_uint_gt(p->count, 0);
        ck_assert_uint_lt(p->server, m->server_count);
        ck_assert_uint_eq(p->local_offset, used[p->server]);
        used[p->server] += p->count;
        next += p->count;
    }
    ck_assert_uint_eq(next, element_count);
    for (unsigned k = 0; k < m->server_count; k++)
        ck_assert_uint_eq(used[k], m->server_elements[k]);
}

static int larger_first(const void *left, const void *right)
{
    const struct partition *a = left, *b = right;

    if (a->count != b->count)
        return a->count > b->count ? -1 : 1;
    return a->offset < b->offset ? -1 : 1;
}

/* The documented rule, step by step. */
static void check_rule(const struct shard_map *m)
{
    struct partition *sorted;
    size_t load[SERVERS_MAX] = {0};

    assert_ok(mem_calloc(m->length, sizeof(*sorted), "model", &sorted, &err));
    memcpy(sorted, m->partitions, m->length * sizeof(*sorted));
    qsort(sorted, m->length, sizeof(*sorted), larger_first);
    for (size_t i = 0; i < m->length; i++) {
        unsigned least = 0;

        for (unsigned k = 1; k < m->server_count; k++)
            if (load[k] < load[least])
                least = k;
        ck_assert_uint_eq(sorted[i].server, least);
        load[least] += sorted[i].count;
    }
    free(sorted);
}

/* Loads differ by at most one partition, and the figure says max over mean. */
static void check_balance(const struct shard_map *m, size_t element_count, size_t full)
{
    size_t least = SIZE_MAX, most = 0;

    for (unsigned k = 0; k < m->server_count; k++) {
        size_t load = m->server_elements[k];

        least = load < least ? load : least;
        most = load > most ? load : most;
    }
    ck_assert_uint_le(most - least, full);
    ck_assert_double_eq_tol(shard_map_imbalance(m),
                            (double)most / ((double)element_count / m->server_count), 1e-12);
}

START_TEST(test_every_small_shape)
{
    size_t edges[] = {1, 2, UNIT / 2, UNIT - 1, 0};

    for (unsigned servers = 1; servers <= SERVERS_MAX; servers++)
        for (size_t partitions = 1; partitions <= 3 * SERVERS_MAX + 1; partitions++)
            for (size_t e = 0; e < sizeof(edges) / sizeof(edges[0]); e++) {
                size_t count = (partitions - 1) * UNIT + (edges[e] ? edges[e] : UNIT);
                struct shard_map map = {0};

                assert_ok(shard_map_make(count, UNIT * sizeof(float), servers, &map, &err));
                ck_assert_uint_eq(map.length, partitions);
                check_cover(&map, count);
                check_rule(&map);
                check_balance(&map, count, UNIT);
                shard_map_release(&map);
            }
}
END_TEST

static size_t random_below(size_t limit)
{
    return (size_t)(support_random() * (double)limit);
}

START_TEST(test_random_shapes)
{
    for (int round = 0; round < 300; round++) {
        size_t words = UNIT + random_below(8 * UNIT);
        size_t count = 1 + random_below(200 * UNIT);
        unsigned servers = 1 + (unsigned)random_below(SERVERS_MAX);
        struct shard_map map = {0};

        assert_ok(shard_map_make(count, words * sizeof(float), servers, &map, &err));
        check_cover(&map, count);
        check_rule(&map);
        check_balance(&map, count, words);
        shard_map_release(&map);
    }
}
END_TEST

START_TEST(test_known_maps)
{
    struct shard_map map = {0};

    /* 2.5 partitions on 2 servers: 1 + 0.5 against 1. */
    assert_ok(shard_map_make(UNIT * 5 / 2, UNIT * 4, 2, &map, &err));
    ck_assert_uint_eq(map.length, 3);
    ck_assert_uint_eq(map.partitions[1].server, 1);
    ck_assert_uint_eq(map.partitions[2].server, 0);
    ck_assert_uint_eq(map.partitions[2].local_offset, UNIT);
    ck_assert_uint_eq(map.partitions[2].count, UNIT / 2);
    ck_assert_double_eq_tol(shard_map_imbalance(&map), 1.5 / 1.25, 1e-12);
    shard_map_release(&map);
    /* One element, eight servers: one of them works. */
    assert_ok(shard_map_make(1, PARTITION_BYTES_DEFAULT, 8, &map, &err));
    ck_assert_uint_eq(map.server_elements[0], 1);
    ck_assert_uint_eq(map.server_elements[7], 0);
    ck_assert_double_eq_tol(shard_map_imbalance(&map), 8.0, 1e-12);
    shard_map_release(&map);
}
END_TEST

START_TEST(test_refused_numbers)
{
    struct shard_map map = {0};
    size_t most = (size_t)SHARD_MAP_PARTITIONS_MAX * UNIT;

    assert_fails(shard_map_make(0, 4096, 1, &map, &err), STATUS_INVALID, "no elements");
    assert_fails(shard_map_make(1, 4092, 1, &map, &err), STATUS_INVALID, "4092 bytes");
    assert_fails(shard_map_make(1, PARTITION_BYTES_MAX + 4, 1, &map, &err), STATUS_INVALID,
                 "4194308 bytes");
    assert_fails(shard_map_make(1, 4098, 1, &map, &err), STATUS_INVALID, "multiple of 4");
    assert_fails(shard_map_make(1, 4096, 0, &map, &err), STATUS_INVALID, "0 servers");
    assert_fails(shard_map_make(1, 4096, 4097, &map, &err), STATUS_INVALID, "4097 servers");
    assert_fails(shard_map_make(most + 1, 4096, 1, &map, &err), STATUS_INVALID, "larger");
    assert_fails(shard_map_make(SIZE_MAX, 4096, 1, &map, &err), STATUS_INVALID, "larger");
    ck_assert_ptr_null(map.partitions);
    assert_ok(shard_map_make(most, 4096, SHARD_MAP_SERVERS_MAX, &map, &err));
    ck_assert_uint_eq(map.length, SHARD_MAP_PARTITIONS_MAX);
    shard_map_release(&map);
    shard_map_release(&map);
    shard_map_release(NULL);
}
END_TEST

START_TEST(test_allocations_fail)
{
    for (size_t n = 1; n <= 2; n++) {
        struct shard_map map = {0};

        mem_fail_nth(n);
        assert_fails(shard_map_make(UNIT, 4096, 2, &map, &err), STATUS_NO_MEMORY, "shard map");
        mem_fail_nth(0);
        ck_assert_ptr_null(map.partitions);
    }
}
END_TEST

START_TEST(test_chosen_size_balances)
{
    /* mlp:784-128-10, mlp:784-1024-1024-10, resnet50, 64 MiB and one element less or more */
    static const size_t counts[] = {101770, 1863690, 25557032, 16777216, 16777215, 16777217};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (unsigned k = 1; k <= SERVERS_MAX; k++) {
            size_t bytes = shard_map_partition_bytes(counts[i], k);
            struct shard_map map = {0};

            ck_assert_uint_le(bytes, PARTITION_BYTES_DEFAULT);
            assert_ok(shard_map_make(counts[i], bytes, k, &map, &err));
            ck_assert_uint_eq(map.length % k, 0);
            ck_assert_double_le(shard_map_imbalance(&map), 1.001);
            shard_map_release(&map);
        }
    }
    ck_assert_uint_eq(shard_map_partition_bytes(67, 2), PARTITION_BYTES_MIN);
    ck_assert_uint_eq(shard_map_partition_bytes(101770, 2), 203540);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shard_map");
    TCase *tests = tcase_create("shard_map");

    tcase_add_test(tests, test_every_small_shape);
    tcase_add_test(tests, test_random_shapes);
    tcase_add_test(tests, test_known_maps);
    tcase_add_test(tests, test_chosen_size_balances);
    tcase_add_test(tests, test_refused_numbers);
    tcase_add_test(tests, test_allocations_fail);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
