/*
 * shard: allocates all memory of a shard and finds its partitions.
 *
 * Slabs store the partitions held in the order of the shard map.  Each partition has a lock, its
 * policy and, for each rank, a clock.  Slabs that replies are sent from lie in shared memory if
 * config.shared is set and it is available; else in ordinary memory.  shard_init and shard_release
 * run while no other thread uses the shard.
 */
#include "server/shard/shard_internal.h"

#include "common/base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLAB_ALIGNMENT 64 /* bytes, as mem_calloc_aligned */

static size_t early_copies(const struct shard_config *c)
{
    return c->rank_order && c->world_size > 2 ? c->world_size - 2 : 0;
}

static size_t rank_value_copies(const struct shard_config *c)
{
    return consistency_is_lockstep(&c->consistency) ? 0 : c->world_size;
}

static bool has_previous(const struct shard_config *c)
{
    return c->previous && c->update && consistency_is_lockstep(&c->consistency);
}

static struct reply_encoding_config encoding_config(const struct shard_config *c)
{
    return (struct reply_encoding_config){.codec = c->compression.down,
                                          .update = c->update,
                                          .ranks = rank_value_copies(c) > 0 ? c->world_size : 0,
                                          .map = c->map,
                                          .index = c->index};
}

size_t shard_bytes(const struct shard_config *c)
{
    struct reply_encoding_config encoding = encoding_config(c);
    bool copies = rank_value_copies(c) > 0;
    size_t states = 0, slabs;

    if (c->update)
        states = c->optimizer.kind != OPTIMIZER_SGD ? 2 : c->optimizer.momentum != 0.0;
    slabs = 2 + states + early_copies(c) + rank_value_copies(c) + has_previous(c);
    return slabs * c->map->server_elements[c->index] * sizeof(float) +
           reply_encoding_bytes(&encoding) +
           row_selection_bytes(&c->compression.down, c->map, c->index, c->world_size, copies);
}

/* Sizes come from the network: refuse more than this host has before the kernel kills a process. */
static enum status check_memory(const struct shard_config *c, struct error *err)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint32_t *partitions;
    size_t parts = shard_map_held(c->map, c->index, &partitions);
    size_t bytes = shard_bytes(c) + parts * c->world_size * sizeof(struct policy_rank);

    if (pages > 0 && page > 0 && bytes / (size_t)page >= (size_t)pages)
        return error_set(err, STATUS_NO_MEMORY,
                         "shard %u of %u needs %zu bytes for %zu elements, this host has %zu",
                         c->index, c->map->server_count, bytes, c->map->server_elements[c->index],
                         (size_t)pages * (size_t)page);
    return STATUS_OK;
}

static void init_parts(struct shard *s)
{
    const uint32_t *partitions;

    (void)shard_map_held(s->config.map, s->config.index, &partitions);
    for (size_t local_index = 0; local_index < s->length; local_index++) {
        const struct partition *p = &s->config.map->partitions[partitions[local_index]];
        struct shard_part *part = &s->parts[local_index];

        (void)pthread_mutex_init(&part->lock, NULL);
        policy_init(&part->policy, &s->config.consistency, s->config.world_size,
                    s->ranks + local_index * s->config.world_size);
        if (s->held_sources)
            policy_make_exact(&part->policy);
        part->partition = partitions[local_index];
        part->offset = p->local_offset;
        part->count = p->count;
    }
}

/* Elements of one slab in the reply memory, rounded up so that each slab is aligned. */
static size_t reply_memory_stride(const struct shard *s)
{
    size_t line = SLAB_ALIGNMENT / sizeof(float);

    return (s->count + line - 1) / line * line;
}

/* Shared memory for all slabs that replies are sent from; on failure ordinary memory is used. */
static void open_reply_memory(struct shard *s)
{
    const struct shard_config *c = &s->config;
    size_t slabs = rank_value_copies(c) > 0 ? rank_value_copies(c)
                   : c->update              ? 1u + has_previous(c)
                                            : 2u;

    if (c->shared && shared_memory_open(slabs * reply_memory_stride(s) * sizeof(float),
                                        "sparring-shard", &s->reply_memory, NULL) != STATUS_OK)
        s->reply_memory = SHARED_MEMORY_NONE;
}

/* Allocate `slabs` consecutive slabs; `sent`: replies are sent from them. */
static enum status allocate_slabs(struct shard *s, size_t slabs, bool sent, const char *what,
                                  float **ret, struct error *err)
{
    if (!sent || !s->reply_memory.base)
        return mem_calloc_aligned(s->count * slabs, sizeof(float), what, ret, err);
    *ret = (float *)s->reply_memory.base + s->reply_memory_used;
    s->reply_memory_used += slabs > 1 ? s->count * slabs : reply_memory_stride(s);
    return STATUS_OK;
}

static void free_slabs(const struct shard *s, float *slabs)
{
    if (!shard_reply_memory_has(s, slabs))
        free(slabs);
}

/* The arrays with one element per partition and rank. */
static enum status allocate_ranks(struct shard *s, struct error *err)
{
    const struct shard_config *c = &s->config;
    size_t length = s->length * c->world_size;
    enum status status =
        mem_calloc(length, sizeof(*s->ranks), "clocks of partitions", &s->ranks, err);

    if (status == STATUS_OK)
        status = mem_calloc(length, sizeof(*s->clocks), "clocks of records", &s->clocks, err);
    if (status == STATUS_OK)
        status = mem_calloc(length, sizeof(*s->flags), "flags of records", &s->flags, err);
    if (status == STATUS_OK && c->rule_count > 0)
        status = mem_calloc(length, sizeof(*s->held_sources), "held contributions",
                            &s->held_sources, err);
    return status;
}

static enum status allocate(struct shard *s, struct error *err)
{
    const struct shard_config *c = &s->config;
    struct optimizer_config optimizer = c->optimizer;
    struct reply_encoding_config encoding = encoding_config(c);
    bool copies = rank_value_copies(c) > 0; /* replies are sent only from these */
    enum status status;

    open_reply_memory(s);

    if (consistency_steps_per_push(&c->consistency)) /* n pushes move as far as one step of bsp */
        optimizer.learning_rate /= c->world_size;
    status = mem_calloc(s->length, sizeof(*s->parts), "partitions", &s->parts, err);
    if (status == STATUS_OK)
        status = allocate_ranks(s, err);
    for (unsigned parity = 0; status == STATUS_OK && parity < (c->update ? 1 : 2); parity++)
        status = allocate_slabs(s, 1, !c->update && !copies, "accumulators",
                                &s->accumulators[parity], err);
    if (status == STATUS_OK && c->update)
        status = allocate_slabs(s, 1, !copies, "values", &s->values, err);
    if (status == STATUS_OK && early_copies(c) > 0)
        status = mem_calloc_aligned(s->count * early_copies(c), sizeof(float),
                                    "early contributions", &s->early, err);
    if (status == STATUS_OK && rank_value_copies(c) > 0)
        status = allocate_slabs(s, rank_value_copies(c), true, "values as the ranks read them",
                                &s->rank_values, err);
    if (status == STATUS_OK && has_previous(c))
        status = allocate_slabs(s, 1, true, "values before the last step", &s->previous, err);
    if (status == STATUS_OK && c->update)
        status = optimizer_init(&s->optimizer, &optimizer, s->count, err);
    if (status == STATUS_OK)
        status = reply_encoding_init(&s->encoding, &encoding, err);
    if (status == STATUS_OK)
        status = row_selection_init(&s->selection, &c->compression.down, c->map, c->index,
                                    c->world_size, copies, err);
    return status;
}

enum status shard_init(struct shard *s, const struct shard_config *config, struct error *err)
{
    const struct shard_map *map = config->map;
    const uint32_t *partitions;
    enum status status = check_memory(config, err);

    if (status != STATUS_OK)
        return status;
    *s = (struct shard){.config = *config, .count = map->server_elements[config->index]};
    s->length = shard_map_held(map, config->index, &partitions);
    status = allocate(s, err);
    if (status != STATUS_OK) {
        free(s->parts); /* its locks are not initialised yet */
        s->parts = NULL;
        shard_release(s);
        return status;
    }
    if (config->update)
        s->accumulators[1] = s->accumulators[0];
    else
        s->values = s->accumulators[0];
    init_parts(s);
    return STATUS_OK;
}

void shard_drop_kept(struct shard_source *kept)
{
    if (kept->drop)
        kept->drop(kept->user);
    *kept = (struct shard_source){0};
}

void shard_release(struct shard *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->parts && i < s->length; i++) {
        shard_drop_pending(&s->parts[i]);
        (void)pthread_mutex_destroy(&s->parts[i].lock);
    }
    if (s->config.update) {
        free_slabs(s, s->values);
        optimizer_release(&s->optimizer);
    }
    if (s->accumulators[1] != s->accumulators[0])
        free_slabs(s, s->accumulators[1]);
    free_slabs(s, s->accumulators[0]);
    for (size_t i = 0; s->held_sources && i < s->length * s->config.world_size; i++)
        shard_drop_kept(&s->held_sources[i]);
    free(s->held_sources);
    free(s->early);
    free_slabs(s, s->rank_values);
    reply_encoding_release(&s->encoding);
    row_selection_release(&s->selection);
    free_slabs(s, s->previous);
    free(s->ranks);
    free(s->clocks);
    free(s->flags);
    free(s->parts);
    if (s->reply_memory.base)
        shared_memory_release(&s->reply_memory);
    memset(s, 0, sizeof(*s));
}

bool shard_reply_memory_has(const struct shard *s, const float *data)
{
    uintptr_t base = (uintptr_t)s->reply_memory.base, at = (uintptr_t)data;

    return base != 0 && at >= base && at - base < s->reply_memory.size;
}

struct shard_part *shard_find(const struct shard *s, uint32_t partition)
{
    const struct shard_map *map = s->config.map;

    if (partition >= map->length || map->partitions[partition].server != s->config.index)
        return NULL;
    return &s->parts[map->partitions[partition].local_index];
}

enum status shard_look_up(const struct shard *s, uint32_t partition, struct shard_part **ret,
                          struct error *err)
{
    struct shard_part *part = shard_find(s, partition);

    if (!part)
        return error_set(err, STATUS_PROTOCOL, "partition %" PRIu32 " is not held here", partition);
    *ret = part;
    return STATUS_OK;
}

size_t shard_partition_count(const struct shard *s, uint32_t partition)
{
    const struct shard_part *part = shard_find(s, partition);

    return part ? part->count : 0;
}
