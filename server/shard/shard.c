/*
 * All memory is allocated here.  Slabs are in the order of the partitions held; per partition there
 * is a lock, its policy and, for each rank, a clock.
 */
#include "server/shard/shard_internal.h"

#include "common/base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARENA_LINE 64 /* bytes: the boundary of mem_calloc_aligned */

static size_t held_ranks(const struct shard_config *c)
{
    return c->rank_order && c->world_size > 2 ? c->world_size - 2 : 0;
}

static size_t sent_ranks(const struct shard_config *c)
{
    return consistency_is_lockstep(&c->consistency) ? 0 : c->world_size;
}

static bool keeps_previous(const struct shard_config *c)
{
    return c->previous && c->update && consistency_is_lockstep(&c->consistency);
}

static struct reply_encoding_config down_config(const struct shard_config *c)
{
    return (struct reply_encoding_config){.codec = c->compression.down,
                                          .update = c->update,
                                          .ranks = sent_ranks(c) > 0 ? c->world_size : 0,
                                          .map = c->map,
                                          .index = c->index};
}

size_t shard_bytes(const struct shard_config *c)
{
    struct reply_encoding_config down = down_config(c);
    bool copies = sent_ranks(c) > 0;
    size_t states = 0, slabs;

    if (c->update)
        states = c->optimizer.kind != OPTIMIZER_SGD ? 2 : c->optimizer.momentum != 0.0;
    slabs = 2 + states + held_ranks(c) + sent_ranks(c) + keeps_previous(c);
    return slabs * c->map->server_elements[c->index] * sizeof(float) + reply_encoding_bytes(&down) +
           row_selection_bytes(&c->compression.down, c->map, c->index, c->world_size, copies);
}

/* Sizes come from a wire; refuse what this host cannot hold before the kernel kills somebody. */
static enum status check_memory(const struct shard_config *c, struct error *err)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint32_t *held;
    size_t parts = shard_map_held(c->map, c->index, &held);
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
    const uint32_t *held;

    (void)shard_map_held(s->config.map, s->config.index, &held);
    for (size_t slot = 0; slot < s->length; slot++) {
        const struct partition *p = &s->config.map->partitions[held[slot]];
        struct shard_part *part = &s->parts[slot];

        (void)pthread_mutex_init(&part->lock, NULL);
        policy_init(&part->policy, &s->config.consistency, s->config.world_size,
                    s->ranks + slot * s->config.world_size);
        if (s->kept)
            policy_make_exact(&part->policy);
        part->partition = held[slot];
        part->offset = p->local_offset;
        part->count = p->count;
    }
}

/* Elements of one slab in the reply memory: the next one begins on a boundary, too. */
static size_t reply_memory_stride(const struct shard *s)
{
    size_t line = ARENA_LINE / sizeof(float);

    return (s->count + line - 1) / line * line;
}

/* Memory for all slabs that answers lie in; without it they are ordinary memory, and sent. */
static void open_reply_memory(struct shard *s)
{
    const struct shard_config *c = &s->config;
    size_t slabs = sent_ranks(c) > 0 ? sent_ranks(c) : c->update ? 1u + keeps_previous(c) : 2u;

    if (c->shared && shared_memory_open(slabs * reply_memory_stride(s) * sizeof(float),
                                        "sparring-shard", &s->reply_memory, NULL) != STATUS_OK)
        s->reply_memory = SHARED_MEMORY_NONE;
}

/* `slabs` slabs, one behind the other; `answered`: answers lie in them. */
static enum status take_slabs(struct shard *s, size_t slabs, bool answered, const char *what,
                              float **ret, struct error *err)
{
    if (!answered || !s->reply_memory.base)
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

/* What there is one of per partition and rank. */
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
        status = mem_calloc(length, sizeof(*s->kept), "kept contributions", &s->kept, err);
    return status;
}

static enum status allocate(struct shard *s, struct error *err)
{
    const struct shard_config *c = &s->config;
    struct optimizer_config optimizer = c->optimizer;
    struct reply_encoding_config down = down_config(c);
    bool copies = sent_ranks(c) > 0; /* only they are answered from */
    enum status status;

    open_reply_memory(s);

    if (consistency_steps_per_push(&c->consistency)) /* n pushes move as far as one step of bsp */
        optimizer.learning_rate /= c->world_size;
    status = mem_calloc(s->length, sizeof(*s->parts), "partitions", &s->parts, err);
    if (status == STATUS_OK)
        status = allocate_ranks(s, err);
    for (unsigned parity = 0; status == STATUS_OK && parity < (c->update ? 1 : 2); parity++)
        status =
            take_slabs(s, 1, !c->update && !copies, "accumulators", &s->accumulators[parity], err);
    if (status == STATUS_OK && c->update)
        status = take_slabs(s, 1, !copies, "values", &s->values, err);
    if (status == STATUS_OK && held_ranks(c) > 0)
        status = mem_calloc_aligned(s->count * held_ranks(c), sizeof(float),
                                    "contributions held for their turn", &s->held, err);
    if (status == STATUS_OK && sent_ranks(c) > 0)
        status = take_slabs(s, sent_ranks(c), true, "values as the ranks read them", &s->sent, err);
    if (status == STATUS_OK && keeps_previous(c))
        status = take_slabs(s, 1, true, "values before the last step", &s->previous, err);
    if (status == STATUS_OK && c->update)
        status = optimizer_init(&s->optimizer, &optimizer, s->count, err);
    if (status == STATUS_OK)
        status = reply_encoding_init(&s->down, &down, err);
    if (status == STATUS_OK)
        status = row_selection_init(&s->names, &c->compression.down, c->map, c->index,
                                    c->world_size, copies, err);
    return status;
}

enum status shard_init(struct shard *s, const struct shard_config *config, struct error *err)
{
    const struct shard_map *map = config->map;
    const uint32_t *held;
    enum status status = check_memory(config, err);

    if (status != STATUS_OK)
        return status;
    *s = (struct shard){.config = *config, .count = map->server_elements[config->index]};
    s->length = shard_map_held(map, config->index, &held);
    status = allocate(s, err);
    if (status != STATUS_OK) {
        free(s->parts); /* no locks in it yet */
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
    if (kept->user)
        kept->drop(kept->user);
    *kept = (struct shard_source){0};
}

void shard_release(struct shard *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->parts && i < s->length; i++)
        (void)pthread_mutex_destroy(&s->parts[i].lock);
    if (s->config.update) {
        free_slabs(s, s->values);
        optimizer_release(&s->optimizer);
    }
    if (s->accumulators[1] != s->accumulators[0])
        free_slabs(s, s->accumulators[1]);
    free_slabs(s, s->accumulators[0]);
    for (size_t i = 0; s->kept && i < s->length * s->config.world_size; i++)
        shard_drop_kept(&s->kept[i]);
    free(s->kept);
    free(s->held);
    free_slabs(s, s->sent);
    reply_encoding_release(&s->down);
    row_selection_release(&s->names);
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
