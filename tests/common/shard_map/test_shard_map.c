/*
 * The map against the literal rule (assign each partition to the server with the least resulting
 * load / weight), the rule against all assignments, and the invariants that workers and servers
 * rely on, for every small shape with 1 to 8 servers, with and without weights.
 */
#include "common/shard_map/shard_map.h"

#include "common/base/memory.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVERS_MAX 8u
#define UNIT        (PARTITION_BYTES_MIN / sizeof(float)) /* elements of the smallest partition */

static struct error err;

/* Every element is in exactly one partition, and at exactly one offset of one server. */
static void check_cover(const struct shard_map *m, size_t element_count)
{
    size_t next = 0;
    size_t used[SERVERS_MAX] = {0};
    uint32_t local_counts[SERVERS_MAX] = {0};
    size_t held = 0;

    for (size_t i = 0; i < m->length; i++) {
        const struct partition *p = &m->partitions[i];

        ck_assert_uint_eq(p->offset, next);
        ck_assert_uint_gt(p->count, 0);
        ck_assert_uint_lt(p->server, m->server_count);
        ck_assert_uint_eq(p->local_offset, used[p->server]);
        ck_assert_uint_eq(p->local_index, local_counts[p->server]);
        local_counts[p->server]++;
        used[p->server] += p->count;
        next += p->count;
    }
    ck_assert_uint_eq(next, element_count);
    for (unsigned k = 0; k < m->server_count; k++) {
        const uint32_t *list;
        size_t length = shard_map_held(m, k, &list);

        ck_assert_uint_eq(used[k], m->server_elements[k]);
        ck_assert_uint_eq(length, local_counts[k]);
        for (size_t i = 0; i < length; i++) {
            ck_assert_uint_eq(m->partitions[list[i]].server, k);
            ck_assert_uint_eq(m->partitions[list[i]].local_index, i);
        }
        held += length;
    }
    ck_assert_uint_eq(held, m->length);
}

static int larger_first(const void *left, const void *right)
{
    const struct partition *a = left, *b = right;

    if (a->count != b->count)
        return a->count > b->count ? -1 : 1;
    return a->offset < b->offset ? -1 : 1;
}

/* The documented rule, step by step.  Loads and weights are small here. */
static void check_rule(const struct shard_map *m, const uint32_t *weights)
{
    struct partition *sorted;
    size_t load[SERVERS_MAX] = {0};

    assert_ok(mem_calloc(m->length, sizeof(*sorted), "model", &sorted, &err));
    memcpy(sorted, m->partitions, m->length * sizeof(*sorted));
    qsort(sorted, m->length, sizeof(*sorted), larger_first);
    for (size_t i = 0; i < m->length; i++) {
        unsigned least = m->server_count;

        for (unsigned k = 0; k < m->server_count; k++) {
            size_t weight = weights ? weights[k] : 1;

            if (weight > 0 && (least == m->server_count ||
                               (load[k] + sorted[i].count) * (weights ? weights[least] : 1) <
                                   (load[least] + sorted[i].count) * weight))
                least = k;
        }
        ck_assert_uint_lt(least, m->server_count);
        ck_assert_uint_eq(sorted[i].server, least);
        load[least] += sorted[i].count;
    }
    free(sorted);
}

/* Loads differ by at most one partition, and the imbalance is max over mean. */
static void check_balance(const struct shard_map *m, size_t element_count, size_t full)
{
    size_t least = SIZE_MAX, most = 0;

    for (unsigned k = 0; k < m->server_count; k++) {
        size_t load = m->server_elements[k];

        least = load < least ? load : least;
        most = load > most ? load : most;
    }
    ck_assert_uint_le(most - least, full);
    ck_assert_double_eq(shard_map_imbalance(m),
                        (double)most * m->server_count / (double)element_count);
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
                check_rule(&map, NULL);
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
        check_rule(&map, NULL);
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
    ck_assert_double_eq(shard_map_imbalance(&map), 1.5 / 1.25);
    shard_map_release(&map);
    /* One element, eight servers: one of them works. */
    assert_ok(shard_map_make(1, PARTITION_BYTES_DEFAULT, 8, &map, &err));
    ck_assert_uint_eq(map.server_elements[0], 1);
    ck_assert_uint_eq(map.server_elements[7], 0);
    ck_assert_double_eq(shard_map_imbalance(&map), 8.0);
    shard_map_release(&map);
}
END_TEST

/* ------------------------------------------------------------------ weights */

/* Minimum of the largest load / weight for `parts` equal partitions, by trying all assignments. */
static double best_misfit(const uint32_t *weights, unsigned servers, unsigned server, size_t parts)
{
    double best = 1e300;

    if (server == servers)
        return parts == 0 ? 0 : 1e300;
    for (size_t own = 0; own <= parts; own++) {
        double here = own == 0 ? 0 : weights[server] ? (double)own / weights[server] : 1e300;
        double rest = here < best ? best_misfit(weights, servers, server + 1, parts - own) : 1e300;
        double both = here > rest ? here : rest;

        best = both < best ? both : best;
    }
    return best;
}

static double largest_share(const struct shard_map *m, const uint32_t *weights)
{
    double largest = 0;

    for (unsigned k = 0; k < m->server_count; k++) {
        ck_assert(weights[k] > 0 || m->server_elements[k] == 0);
        if (weights[k] > 0 && (double)m->server_elements[k] / weights[k] > largest)
            largest = (double)m->server_elements[k] / weights[k];
    }
    return largest;
}

START_TEST(test_no_assignment_is_better)
{
    for (int round = 0; round < 400; round++) {
        unsigned servers = 1 + (unsigned)random_below(4);
        size_t parts = 1 + random_below(14);
        size_t unit = UNIT;
        uint32_t weights[4] = {0};
        struct shard_map map = {0};

        for (unsigned k = 0; k < servers; k++)
            weights[k] = (uint32_t)random_below(9);
        weights[random_below(servers)] = 1 + (uint32_t)random_below(8);
        assert_ok(shard_map_make_weighted(parts * UNIT, PARTITION_BYTES_MIN, servers, weights, &map,
                                          &err));
        check_cover(&map, parts * UNIT);
        check_rule(&map, weights);
        ck_assert_double_eq_tol(largest_share(&map, weights) / (double)unit,
                                best_misfit(weights, servers, 0, parts), 1e-9);
        shard_map_release(&map);
    }
}
END_TEST

START_TEST(test_random_weights)
{
    for (int round = 0; round < 300; round++) {
        size_t words = UNIT + random_below(8 * UNIT);
        size_t count = 1 + random_below(200 * UNIT);
        unsigned servers = 1 + (unsigned)random_below(SERVERS_MAX);
        uint32_t weights[SERVERS_MAX] = {0}, equal[SERVERS_MAX] = {0};
        struct shard_map map = {0}, same = {0};

        for (unsigned k = 0; k < servers; k++) {
            weights[k] = (uint32_t)random_below(1000);
            equal[k] = 7;
        }
        weights[random_below(servers)] = SHARD_MAP_WEIGHT_MAX;
        assert_ok(
            shard_map_make_weighted(count, words * sizeof(float), servers, weights, &map, &err));
        check_cover(&map, count);
        check_rule(&map, weights);
        shard_map_release(&map);
        assert_ok(
            shard_map_make_weighted(count, words * sizeof(float), servers, equal, &same, &err));
        for (size_t i = 0; i + same.server_count < same.length; i++)
            ck_assert_uint_eq(same.partitions[i + same.server_count].server,
                              same.partitions[i].server);
        /* Four roundings in one, two in the other. */
        ck_assert_double_eq_tol(shard_map_weighted_imbalance(&same, equal),
                                shard_map_imbalance(&same),
                                6 * 0x1p-53 * shard_map_imbalance(&same));
        shard_map_release(&same);
    }
}
END_TEST

/* Every range of the slab is spread like the whole: no server idles while backward fills it. */
START_TEST(test_neighbours_are_spread)
{
    static const uint32_t weights[] = {6, 6, 6, 6, 14, 14};
    struct shard_map map = {0};

    assert_ok(shard_map_make_weighted(52 * 4 * UNIT, PARTITION_BYTES_MIN, 6, weights, &map, &err));
    for (size_t first = 0; first + 26 <= map.length; first++) {
        size_t here[6] = {0};

        for (size_t i = first; i < first + 26; i++)
            here[map.partitions[i].server]++;
        for (unsigned k = 0; k < 6; k++) {
            ck_assert_uint_ge(here[k], weights[k] / 2 - 1);
            ck_assert_uint_le(here[k], weights[k] / 2 + 1);
        }
    }
    for (size_t i = 1; i < map.length; i++)
        ck_assert_uint_ne(map.partitions[i].server, map.partitions[i - 1].server);
    shard_map_release(&map);
}
END_TEST

/* Bytes through the busiest link of n workers' hosts and k others, one direction, in units of the
 * slab. */
static double busiest_link(const uint32_t *weights, unsigned n, unsigned k)
{
    double sum = 0, busiest = 0;

    for (unsigned i = 0; i < n + k; i++)
        sum += weights[i];
    ck_assert(sum > 0);
    for (unsigned i = 0; i < n + k; i++) {
        double share = weights[i] / sum;
        double bytes = i < n ? (1 - share) + (n - 1) * share : n * share;

        busiest = bytes > busiest ? bytes : busiest;
    }
    return busiest;
}

/* The table of the paper's optimum, 2n(n-1) / (n^2 + kn - 2k); and no other split of the same form
 * is better. */
START_TEST(test_mixed_shares)
{
    static const struct {
        unsigned n, k;
        double time;
    } table[] = {{2, 0, 1.00},  {2, 1, 1.00},  {4, 0, 1.50},   {4, 1, 1.33},  {4, 2, 1.20},
                 {4, 4, 1.00},  {8, 0, 1.75},  {8, 2, 1.47},   {8, 4, 1.27},  {8, 8, 1.00},
                 {16, 4, 1.54}, {16, 8, 1.30}, {16, 0, 1.875}, {16, 16, 1.00}};
    uint32_t weights[64];

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        shard_map_mixed_weights(table[i].n, table[i].k, weights);
        ck_assert_double_eq_tol(busiest_link(weights, table[i].n, table[i].k), table[i].time,
                                0.005);
    }
    for (unsigned n = 2; n <= 16; n++)
        for (unsigned k = 0; k <= n; k++) {
            double formula = 2.0 * n * (n - 1) / ((double)n * n + (double)k * n - 2.0 * k);
            uint32_t other[64];

            shard_map_mixed_weights(n, k, weights);
            ck_assert_double_eq_tol(busiest_link(weights, n, k), formula, 1e-12);
            for (uint32_t split = 0; split <= 100; split++) {
                for (unsigned i = 0; i < n + k; i++)
                    other[i] = i < n ? split : 100 - split;
                if (split > 0 || k > 0)
                    ck_assert_double_ge(busiest_link(other, n, k), formula - 1e-12);
            }
        }
}
END_TEST

START_TEST(test_mixed_shares_at_the_edges)
{
    uint32_t weights[8];

    shard_map_mixed_weights(1, 0, weights);
    ck_assert_uint_eq(weights[0], 1);
    shard_map_mixed_weights(1, 2, weights);
    ck_assert_uint_eq(weights[0], 0);
    ck_assert_uint_eq(weights[1], 1);
    ck_assert_uint_eq(weights[2], 1);
    shard_map_mixed_weights(2, 5, weights);
    ck_assert_uint_eq(weights[1], 0);
    ck_assert_uint_eq(weights[2], weights[6]);
    shard_map_mixed_weights(3, 0, weights);
    ck_assert_uint_eq(weights[0], weights[2]);
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
    assert_fails(shard_map_make_weighted(1, 4096, 2, (uint32_t[]){0, 0}, &map, &err),
                 STATUS_INVALID, "weights of all 2 servers are 0");
    assert_fails(
        shard_map_make_weighted(1, 4096, 2, (uint32_t[]){1, SHARD_MAP_WEIGHT_MAX + 1}, &map, &err),
        STATUS_INVALID, "server 1 has weight 1048577");
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
    for (size_t n = 1; n <= 5; n++) {
        struct shard_map map = {0};

        mem_fail_nth(n);
        assert_fails(shard_map_make(UNIT, 4096, 2, &map, &err), STATUS_NO_MEMORY, "shard map");
        mem_fail_nth(0);
        ck_assert_ptr_null(map.partitions);
    }
}
END_TEST

/* ------------------------------------------------------------------ real models */

/* Weight or bias of a layer: tensors and elements so far. */
static void add_tensor(size_t *tensors, size_t *elements, size_t size)
{
    (*tensors)++;
    *elements += size;
}

/* A convolution without bias, and the scale and shift of the batch norm after it. */
static void add_conv(size_t *tensors, size_t *elements, size_t in, size_t out, size_t kernel)
{
    add_tensor(tensors, elements, out * in * kernel * kernel);
    add_tensor(tensors, elements, out);
    add_tensor(tensors, elements, out);
}

/* ResNet-50 (He et al. 2015, table 1) as torchvision builds it. */
static size_t resnet50_elements(void)
{
    static const size_t blocks[] = {3, 4, 6, 3};
    size_t tensors = 0, elements = 0, in = 64;

    add_conv(&tensors, &elements, 3, 64, 7);
    for (size_t stage = 0; stage < 4; stage++)
        for (size_t b = 0; b < blocks[stage]; b++) {
            size_t width = (size_t)64 << stage;

            add_conv(&tensors, &elements, in, width, 1);
            add_conv(&tensors, &elements, width, width, 3);
            add_conv(&tensors, &elements, width, 4 * width, 1);
            if (b == 0)
                add_conv(&tensors, &elements, in, 4 * width, 1);
            in = 4 * width;
        }
    add_tensor(&tensors, &elements, 1000 * 2048);
    add_tensor(&tensors, &elements, 1000);
    ck_assert_uint_eq(tensors, 161);
    return elements;
}

/* k servers share the bytes of real models within 3 % (in fact: within one element each). */
START_TEST(test_real_models_balance)
{
    const struct {
        const char *name;
        size_t elements;
    } models[] = {{"resnet50", resnet50_elements()},
                  {"mlp:784-128-10", 784 * 128 + 128 + 128 * 10 + 10},
                  {"mlp:784-1024-1024-10", 785 * 1024 + 1025 * 1024 + 1025 * 10}};

    ck_assert_uint_eq(models[0].elements, 25557032);
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        printf("%s, %zu elements: max/mean of the servers' bytes, k = 1..16:", models[i].name,
               models[i].elements);
        for (unsigned k = 1; k <= 16; k++) {
            size_t bytes = shard_map_partition_bytes(models[i].elements, k, NULL, 0);
            struct shard_map map = {0};

            assert_ok(shard_map_make(models[i].elements, bytes, k, &map, &err));
            printf(" %.6f", shard_map_imbalance(&map));
            ck_assert_double_le(shard_map_imbalance(&map), 1.03);
            shard_map_release(&map);
        }
        printf("\n");
    }
}
END_TEST

static const double link_rates[] = {0, 1e6, 125e6, 312.5e6, 1e10}; /* bytes/s */

/* The largest load over its weight, over the mean, with the size that is chosen for any link. */
static double worst_chosen(size_t count, unsigned servers, const uint32_t *weights)
{
    double worst = 0;

    for (size_t i = 0; i < sizeof(link_rates) / sizeof(link_rates[0]); i++) {
        const size_t bytes = shard_map_partition_bytes(count, servers, weights, link_rates[i]);
        struct shard_map map = {0};
        double imbalance;

        ck_assert_uint_le(bytes, PARTITION_BYTES_DEFAULT);
        assert_ok(shard_map_make_weighted(count, bytes, servers, weights, &map, &err));
        if (!weights)
            ck_assert_uint_eq(map.length % servers, 0);
        imbalance =
            weights ? shard_map_weighted_imbalance(&map, weights) : shard_map_imbalance(&map);
        worst = imbalance > worst ? imbalance : worst;
        shard_map_release(&map);
    }
    return worst;
}

/* The chosen size follows the weights of the mixed placement as well. */
START_TEST(test_real_models_follow_weights)
{
    const size_t counts[] = {resnet50_elements(), 1863690};
    double worst = 0;

    for (size_t i = 0; i < 2; i++)
        for (unsigned n = 1; n <= 16; n++)
            for (unsigned k = 0; k <= 16; k++) {
                uint32_t weights[32];
                double imbalance;

                shard_map_mixed_weights(n, k, weights);
                imbalance = worst_chosen(counts[i], n + k, weights);
                worst = imbalance > worst ? imbalance : worst;
            }
    printf("mixed placement, n and k to 16: largest load / weight over the mean is %.6f at most\n",
           worst);
    ck_assert_double_le(worst, 1.03);
}
END_TEST

START_TEST(test_chosen_size_balances)
{
    /* mlp:784-128-10, mlp:784-1024-1024-10, resnet50, 64 MiB and one element less or more */
    static const size_t counts[] = {101770, 1863690, 25557032, 16777216, 16777215, 16777217};
    static const uint32_t odd[] = {99991, 104729};

    ck_assert_uint_eq(shard_map_partition_bytes(12800, 2, (uint32_t[]){6, 14}, 0), 5120);
    ck_assert_uint_eq(shard_map_partition_bytes(16777216, 2, odd, 0), 524288);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (unsigned k = 1; k <= SERVERS_MAX; k++)
            ck_assert_double_le(worst_chosen(counts[i], k, NULL), 1.001);
    ck_assert_uint_eq(shard_map_partition_bytes(67, 2, NULL, 0), PARTITION_BYTES_MIN);
    ck_assert_uint_eq(shard_map_partition_bytes(101770, 2, NULL, 0), 203540);
}
END_TEST

START_TEST(test_chosen_size_suits_the_links)
{
    static const struct {
        size_t count;
        unsigned servers;
        double rate;
        size_t bytes;
    } cases[] = {{4 << 20, 1, 0, 512 << 10},       {4 << 20, 1, 1e6, 256 << 10}, /* 64 pieces */
                 {4 << 20, 4, 1e6, 64 << 10},      {4 << 20, 4, 125e6, 64 << 10},
                 {4 << 20, 4, 312.5e6, 128 << 10}, {4 << 20, 4, 1.25e9, 512 << 10},
                 {4 << 20, 4, 1e12, 512 << 10},    {128 << 20, 1, 125e6, 512 << 10},
                 {25000, 2, 125e6, 50000},         {1, 1, 125e6, PARTITION_BYTES_MIN}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_uint_eq(
            shard_map_partition_bytes(cases[i].count, cases[i].servers, NULL, cases[i].rate),
            cases[i].bytes);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("shard_map", 0, TEST(test_every_small_shape), TEST(test_random_shapes),
                       TEST(test_known_maps), TEST(test_no_assignment_is_better),
                       TEST(test_random_weights), TEST(test_neighbours_are_spread),
                       TEST(test_mixed_shares), TEST(test_mixed_shares_at_the_edges),
                       TEST(test_real_models_balance), TEST(test_real_models_follow_weights),
                       TEST(test_chosen_size_balances), TEST(test_chosen_size_suits_the_links),
                       TEST(test_refused_numbers), TEST(test_allocations_fail));
}
