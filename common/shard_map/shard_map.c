/*
 * The greedy rule (largest first, to the least loaded server, ties to the lower index) has a closed
 * form here, because all partitions but the last are equal: the equal ones go round the servers in
 * slab order, and when the shorter one comes the server whose turn it is holds the least.  So
 * partition i is on server i mod k, at the local offset of i div k full partitions before it.
 * tests/common/shard_map compares this with the rule played literally.
 */
#include "common/shard_map/shard_map.h"

#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

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

enum status shard_map_make(size_t element_count, size_t partition_bytes, unsigned server_count,
                           struct shard_map *ret, struct error *err)
{
    struct shard_map map = {.server_count = server_count};
    size_t full = partition_bytes / sizeof(float);
    enum status status = check_numbers(element_count, partition_bytes, server_count, err);

    if (status != STATUS_OK)
        return status;
    map.length = (element_count - 1) / full + 1;
    status = mem_calloc(map.length, sizeof(*map.partitions), "shard map", &map.partitions, err);
    if (status == STATUS_OK)
        status = mem_calloc(server_count, sizeof(*map.server_elements), "shard map",
                            &map.server_elements, err);
    if (status != STATUS_OK) {
        shard_map_release(&map);
        return status;
    }
    for (size_t i = 0; i < map.length; i++) {
        struct partition *p = &map.partitions[i];

        p->offset = i * full;
        p->count = element_count - p->offset < full ? element_count - p->offset : full;
        p->server = (unsigned)(i % server_count);
        p->local_offset = map.server_elements[p->server];
        map.server_elements[p->server] += p->count;
    }
    *ret = map;
    return STATUS_OK;
}

static size_t divide_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

size_t shard_map_partition_bytes(size_t element_count, unsigned server_count)
{
    size_t default_elements = PARTITION_BYTES_DEFAULT / sizeof(float);
    size_t per_server = divide_up(element_count, server_count);
    size_t rounds = divide_up(per_server, default_elements);
    size_t bytes = rounds ? divide_up(per_server, rounds) * sizeof(float) : 0;

    return bytes < PARTITION_BYTES_MIN ? PARTITION_BYTES_MIN : bytes;
}

void shard_map_release(struct shard_map *m)
{
    if (!m)
        return;
    free(m->partitions);
    free(m->server_elements);
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
