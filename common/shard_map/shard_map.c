/*
 * Greedy assignment with a heap of the servers.  All partitions except the last have equal size, so
 * only a server's number of partitions p matters: its key is (p + 1) / weight, compared by
 * multiplication.  For the last, shorter partition all servers are compared.  With equal weights
 * partition i is assigned to server i mod k.  This is the method of highest averages (D'Hondt),
 * which for equal pieces minimises the largest load / weight.  tests/common/shard_map compares it
 * with the literal rule, and that with all assignments.  Pure, no locks.
 */
#include "common/shard_map/shard_map.h"

#include "common/base/memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SHARES_MAX   64u /* partitions per server when the weights have no small common measure */
#define LIMIT_MIN    (64u << 10) /* of a chosen partition, bytes */
#define LINK_SECONDS 0.7e-3      /* a partition's on a link */
#define PIECES_MAX   64          /* of a server's share: more would not shorten a step by 2 % */

static enum status check_numbers(size_t element_count, size_t partition_bytes,
                                 unsigned server_count, struct error *err)
{
    if (element_count == 0)
        return error_set(err, STATUS_INVALID, "shard map: there are no elements to place");
    if (partition_bytes < PARTITION_BYTES_MIN || partition_bytes > PARTITION_BYTES_MAX ||
        partition_bytes % sizeof(float) != 0)
        return error_set(err, STATUS_INVALID,
                         "shard map: partitions of %zu bytes (allowed: %u to %u, a multiple of 4)",
                         partition_bytes, PARTITION_BYTES_MIN, PARTITION_BYTES_MAX);
    if (server_count == 0 || server_count > SHARD_MAP_SERVERS_MAX)
        return error_set(err, STATUS_INVALID, "shard map: %u servers (allowed: 1 to %u)",
                         server_count, SHARD_MAP_SERVERS_MAX);
    if ((element_count - 1) / (partition_bytes / sizeof(float)) >= SHARD_MAP_PARTITIONS_MAX)
        return error_set(err, STATUS_INVALID,
                         "shard map: %zu elements in partitions of %zu bytes are more than %u "
                         "partitions; make the partitions larger",
                         element_count, partition_bytes, SHARD_MAP_PARTITIONS_MAX);
    return STATUS_OK;
}

static uint32_t weight_of(const uint32_t *weights, unsigned server)
{
    return weights ? weights[server] : 1;
}

static enum status check_weights(unsigned server_count, const uint32_t *weights, struct error *err)
{
    bool some = false;

    for (unsigned k = 0; k < server_count; k++) {
        if (weight_of(weights, k) > SHARD_MAP_WEIGHT_MAX)
            return error_set(err, STATUS_INVALID,
                             "shard map: server %u has weight %u (allowed: 0 to %u)", k, weights[k],
                             SHARD_MAP_WEIGHT_MAX);
        some = some || weight_of(weights, k) > 0;
    }
    if (!some)
        return error_set(err, STATUS_INVALID, "shard map: the weights of all %u servers are 0",
                         server_count);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ placing */

/* The servers with a weight above 0, as a heap: the first one gets the next partition. */
struct placement {
    const uint32_t *weights; /* borrowed; NULL: all 1 */
    uint32_t *parts;         /* of each server, so far */
    uint32_t *heap;          /* servers */
    unsigned length;
};

static bool goes_before(const struct placement *p, uint32_t a, uint32_t b)
{
    uint64_t left = (p->parts[a] + UINT64_C(1)) * weight_of(p->weights, b);
    uint64_t right = (p->parts[b] + UINT64_C(1)) * weight_of(p->weights, a);

    return left != right ? left < right : a < b;
}

static void sift_down(struct placement *p, unsigned at)
{
    for (;;) {
        unsigned least = at;
        uint32_t moved = p->heap[at];

        for (unsigned child = 2 * at + 1; child <= 2 * at + 2 && child < p->length; child++)
            if (goes_before(p, p->heap[child], p->heap[least]))
                least = child;
        if (least == at)
            return;
        p->heap[at] = p->heap[least];
        p->heap[least] = moved;
        at = least;
    }
}

static void placement_init(struct placement *p, unsigned server_count)
{
    for (unsigned k = 0; k < server_count; k++)
        if (weight_of(p->weights, k) > 0)
            p->heap[p->length++] = k;
    for (unsigned at = p->length / 2; at-- > 0;)
        sift_down(p, at);
}

static unsigned assign_full_partition(struct placement *p)
{
    unsigned server = p->heap[0];

    p->parts[server]++;
    sift_down(p, 0);
    return server;
}

static unsigned choose_server_for_last(const struct placement *p, const struct shard_map *map,
                                       size_t size)
{
    unsigned best = p->heap[0];

    for (unsigned i = 1; i < p->length; i++) {
        unsigned k = p->heap[i];
        uint64_t left = (uint64_t)(map->server_elements[k] + size) * weight_of(p->weights, best);
        uint64_t right = (uint64_t)(map->server_elements[best] + size) * weight_of(p->weights, k);

        if (left < right || (left == right && k < best))
            best = k;
    }
    return best;
}

static void assign_partitions(struct shard_map *map, struct placement *placement,
                              size_t element_count, size_t full)
{
    for (size_t i = 0; i < map->length; i++) {
        struct partition *p = &map->partitions[i];

        p->offset = i * full;
        p->count = element_count - p->offset < full ? element_count - p->offset : full;
        p->server = p->count == full ? assign_full_partition(placement)
                                     : choose_server_for_last(placement, map, p->count);
        p->local_offset = map->server_elements[p->server];
        map->server_elements[p->server] += p->count;
        p->local_index = (uint32_t)map->held_end[p->server]++;
    }
}

/* On entry held_end has the number of each server's partitions. */
static void list_held(struct shard_map *map)
{
    size_t end = 0;

    for (unsigned k = 0; k < map->server_count; k++)
        end = map->held_end[k] += end;
    for (size_t i = 0; i < map->length; i++) {
        const struct partition *p = &map->partitions[i];
        size_t first = p->server ? map->held_end[p->server - 1] : 0;

        map->held[first + p->local_index] = (uint32_t)i;
    }
}

static enum status allocate_map(struct shard_map *map, struct placement *placement,
                                struct error *err)
{
    enum status status =
        mem_calloc(map->length, sizeof(*map->partitions), "shard map", &map->partitions, err);

    if (status == STATUS_OK)
        status = mem_calloc(map->length, sizeof(*map->held), "shard map", &map->held, err);
    if (status == STATUS_OK)
        status = mem_calloc(map->server_count, sizeof(*map->server_elements), "shard map",
                            &map->server_elements, err);
    if (status == STATUS_OK)
        status =
            mem_calloc(map->server_count, sizeof(*map->held_end), "shard map", &map->held_end, err);
    if (status == STATUS_OK)
        status = mem_calloc(map->server_count, 2 * sizeof(*placement->heap), "shard map",
                            &placement->heap, err);
    return status;
}

enum status shard_map_make_weighted(size_t element_count, size_t partition_bytes,
                                    unsigned server_count, const uint32_t *weights,
                                    struct shard_map *ret, struct error *err)
{
    struct shard_map map = {.server_count = server_count};
    struct placement placement = {.weights = weights};
    size_t full = partition_bytes / sizeof(float);
    enum status status = check_numbers(element_count, partition_bytes, server_count, err);

    if (status == STATUS_OK)
        status = check_weights(server_count, weights, err);
    if (status != STATUS_OK)
        return status;
    map.length = (element_count - 1) / full + 1;
    status = allocate_map(&map, &placement, err);
    if (status != STATUS_OK) {
        shard_map_release(&map);
        return status;
    }
    placement.parts = placement.heap + server_count;
    placement_init(&placement, server_count);
    assign_partitions(&map, &placement, element_count, full);
    list_held(&map);
    free(placement.heap);
    *ret = map;
    return STATUS_OK;
}

enum status shard_map_make(size_t element_count, size_t partition_bytes, unsigned server_count,
                           struct shard_map *ret, struct error *err)
{
    return shard_map_make_weighted(element_count, partition_bytes, server_count, NULL, ret, err);
}

size_t shard_map_held(const struct shard_map *m, unsigned server, const uint32_t **ret)
{
    size_t first = server ? m->held_end[server - 1] : 0;

    *ret = m->held + first;
    return m->held_end[server] - first;
}

/* ------------------------------------------------------------------ sizes and shares */

static size_t divide_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b > 0) {
        uint64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* The number of equal pieces into which the weights divide a slab. */
static size_t count_equal_shares(unsigned server_count, const uint32_t *weights)
{
    uint64_t sum = 0, divisor = 0, most = (uint64_t)server_count * SHARES_MAX;

    for (unsigned k = 0; k < server_count; k++) {
        sum += weight_of(weights, k);
        divisor = common_divisor(divisor, weight_of(weights, k));
    }
    if (divisor == 0) /* all are 0, or there are none */
        return server_count > 0 ? server_count : 1;
    return (size_t)(sum / divisor < most ? sum / divisor : most);
}

/* The largest partition that suits the links, see shard_map_partition_bytes. */
static size_t partition_limit(size_t element_count, unsigned server_count, double rate)
{
    const size_t share = element_count * sizeof(float) / (server_count > 0 ? server_count : 1);
    size_t limit = LIMIT_MIN;

    while (limit < PARTITION_BYTES_DEFAULT &&
           (2 * (double)limit <= rate * LINK_SECONDS || 2 * limit <= share / PIECES_MAX))
        limit *= 2;
    return rate > 0 ? limit : PARTITION_BYTES_DEFAULT;
}

size_t shard_map_partition_bytes(size_t element_count, unsigned server_count,
                                 const uint32_t *weights, double rate)
{
    size_t limit = partition_limit(element_count, server_count, rate) / sizeof(float);
    size_t per_share = divide_up(element_count, count_equal_shares(server_count, weights));
    size_t rounds = divide_up(per_share, limit);
    size_t bytes = rounds ? divide_up(per_share, rounds) * sizeof(float) : 0;

    return bytes < PARTITION_BYTES_MIN ? PARTITION_BYTES_MIN : bytes;
}

void shard_map_mixed_weights(unsigned n, unsigned k, uint32_t *ret)
{
    for (unsigned i = 0; i < n; i++)
        ret[i] = k < n ? n - k : 0;
    for (unsigned i = 0; i < k; i++) /* one worker has no other host to serve */
        ret[n + i] = n > 1 ? 2 * (n - 1) : 1;
}

void shard_map_release(struct shard_map *m)
{
    if (!m)
        return;
    free(m->partitions);
    free(m->server_elements);
    free(m->held);
    free(m->held_end);
    memset(m, 0, sizeof(*m));
}

double shard_map_imbalance(const struct shard_map *m)
{
    size_t largest = 0, sum = 0;

    for (unsigned k = 0; k < m->server_count; k++) {
        sum += m->server_elements[k];
        if (m->server_elements[k] > largest)
            largest = m->server_elements[k];
    }
    return (double)largest * (double)m->server_count / (double)sum;
}

double shard_map_weighted_imbalance(const struct shard_map *m, const uint32_t *weights)
{
    double largest = 0, elements = 0, sum = 0;

    for (unsigned k = 0; k < m->server_count; k++) {
        double load = (double)m->server_elements[k], weight = weight_of(weights, k);

        elements += load;
        sum += weight;
        if (weight > 0 && load / weight > largest)
            largest = load / weight;
    }
    return largest / (elements / sum);
}
