/*
 * A contribution is summed under its partition's lock while it is read from the network's slices;
 * about 0.1 ms for 1 MiB.  In rank order a contribution that comes before its turn is copied to its
 * rank's own storage first, without the lock: nobody else writes there (one thread per rank), and
 * nobody reads it before policy_push has said that it is in.
 *
 * Ranks 0 and 1 never wait for each other: g1 + g0 is g0 + g1 bit for bit.
 */
#include "server/shard.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/tensor/tensor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t held_ranks(const struct shard_config *c)
{
    return c->rank_order && c->world_size > 2 ? c->world_size - 2 : 0;
}

size_t shard_bytes(const struct shard_config *c)
{
    size_t states = 0, slabs;

    if (c->update)
        states = c->optimizer.kind != OPTIMIZER_SGD ? 2 : c->optimizer.momentum != 0.0;
    slabs = 2 + states + held_ranks(c);
    return slabs * c->map->server_elements[c->index] * sizeof(float);
}

/* Sizes come from a wire; refuse what this host cannot hold before the kernel kills somebody. */
static enum status check_memory(const struct shard_config *c, struct error *err)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t parts = c->map->length / c->map->server_count + 1;
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
    size_t slot = 0;

    for (size_t i = s->config.index; i < s->config.map->length; i += s->config.map->server_count) {
        const struct partition *p = &s->config.map->partitions[i];
        struct shard_part *part = &s->parts[slot];

        (void)pthread_mutex_init(&part->lock, NULL);
        policy_init(&part->policy, &(struct consistency){.mode = CONSISTENCY_BSP},
                    s->config.world_size, s->ranks + slot * s->config.world_size);
        part->offset = p->local_offset;
        part->count = p->count;
        slot++;
    }
}

static enum status allocate(struct shard *s, struct error *err)
{
    const struct shard_config *c = &s->config;
    enum status status;

    status = mem_calloc(s->length, sizeof(*s->parts), "partitions", &s->parts, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->length * c->world_size, sizeof(*s->ranks), "clocks of partitions",
                            &s->ranks, err);
    for (unsigned parity = 0; status == STATUS_OK && parity < (c->update ? 1 : 2); parity++)
        status = mem_calloc_aligned(s->count, sizeof(float), "accumulators",
                                    &s->accumulators[parity], err);
    if (status == STATUS_OK && c->update)
        status = mem_calloc_aligned(s->count, sizeof(float), "values", &s->values, err);
    if (status == STATUS_OK && held_ranks(c) > 0)
        status = mem_calloc_aligned(s->count * held_ranks(c), sizeof(float),
                                    "contributions held for their turn", &s->held, err);
    if (status == STATUS_OK && c->update)
        status = optimizer_init(&s->optimizer, &c->optimizer, s->count, err);
    return status;
}

enum status shard_init(struct shard *s, const struct shard_config *config, struct error *err)
{
    const struct shard_map *map = config->map;
    enum status status = check_memory(config, err);

    if (status != STATUS_OK)
        return status;
    *s = (struct shard){.config = *config, .count = map->server_elements[config->index]};
    s->length = (map->length + map->server_count - 1 - config->index) / map->server_count;
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

void shard_release(struct shard *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->parts && i < s->length; i++)
        (void)pthread_mutex_destroy(&s->parts[i].lock);
    if (s->config.update) {
        free(s->values);
        optimizer_release(&s->optimizer);
    }
    if (s->accumulators[1] != s->accumulators[0])
        free(s->accumulators[1]);
    free(s->accumulators[0]);
    free(s->held);
    free(s->ranks);
    free(s->parts);
    memset(s, 0, sizeof(*s));
}

static struct shard_part *find_part(const struct shard *s, uint32_t partition)
{
    const struct shard_map *map = s->config.map;

    if (partition >= map->length || map->partitions[partition].server != s->config.index)
        return NULL;
    return &s->parts[partition / map->server_count];
}

size_t shard_partition_count(const struct shard *s, uint32_t partition)
{
    const struct shard_part *part = find_part(s, partition);

    return part ? part->count : 0;
}

static void answer(struct shard_answer *ret, bool complete, const struct shard_part *part,
                   const float *slab)
{
    *ret = (struct shard_answer){
        .complete = complete, .data = slab + part->offset, .count = part->count};
}

enum status shard_set(struct shard *s, uint32_t partition, const struct shard_source *source,
                      struct shard_answer *ret, struct error *err)
{
    struct shard_part *part = find_part(s, partition);
    enum status status;

    if (!part)
        return error_set(err, STATUS_PROTOCOL, "partition %u is not held here", partition);
    (void)pthread_mutex_lock(&part->lock);
    if (part->policy.initialised)
        status = error_set(err, STATUS_PROTOCOL, "the initial value of partition %u %s", partition,
                           policy_verdict_text(POLICY_TWICE));
    else
        status = source->copy(source->user, s->values + part->offset, part->count, err);
    if (status == STATUS_OK) {
        (void)policy_set(&part->policy);
        answer(ret, true, part, s->values);
    }
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

enum status shard_pull(struct shard *s, uint32_t partition, unsigned rank, struct shard_answer *ret,
                       struct error *err)
{
    struct shard_part *part = find_part(s, partition);
    enum policy_verdict verdict;

    if (!part)
        return error_set(err, STATUS_PROTOCOL, "partition %u is not held here", partition);
    (void)pthread_mutex_lock(&part->lock);
    verdict = policy_pull(&part->policy, rank);
    (void)pthread_mutex_unlock(&part->lock);
    if (verdict == POLICY_TWICE)
        return error_set(err, STATUS_PROTOCOL, "the pull of partition %u %s", partition,
                         policy_verdict_text(verdict));
    answer(ret, verdict == POLICY_COMPLETE, part, s->values);
    return STATUS_OK;
}

bool shard_next_parked(struct shard *s, uint32_t partition, unsigned *ret_rank)
{
    struct shard_part *part = find_part(s, partition);
    bool found;

    (void)pthread_mutex_lock(&part->lock);
    found = policy_next_parked(&part->policy, ret_rank);
    (void)pthread_mutex_unlock(&part->lock);
    return found;
}

static float *held_part(const struct shard *s, const struct shard_part *part, unsigned rank)
{
    return s->held + (rank - 2) * s->count + part->offset;
}

/* Is the contribution of `rank` summed when it comes, or must it wait for lower ranks?  Lock held.
 */
static bool is_early(const struct shard *s, const struct shard_part *part, unsigned rank)
{
    return s->config.rank_order && rank >= 2 && part->turn != rank;
}

/* Sum one contribution straight from its source.  Lock held, and it is this rank's turn. */
static enum status sum_now(struct shard_part *part, float *sum, const struct shard_source *source,
                           struct error *err)
{
    bool first = part->turn++ == 0;

    return first ? source->copy(source->user, sum, part->count, err)
                 : source->add(source->user, sum, part->count, err);
}

/* Sum those whose turn has come and whose contribution came early.  Lock held. */
static void sum_held(struct shard *s, struct shard_part *part, float *sum, uint64_t round)
{
    const struct policy *policy = &part->policy;

    while (s->held && part->turn >= 2 && part->turn < policy->world_size &&
           policy->ranks[part->turn].clock == round)
        vector_add(sum, held_part(s, part, part->turn++), part->count);
}

/* Read the source into the accumulator or, before this rank's turn, into its own storage.  Lock
 * held, but given up in between. */
static enum status take(struct shard *s, struct shard_part *part, unsigned rank, float *sum,
                        const struct shard_source *source, struct error *err)
{
    enum status status;

    if (!is_early(s, part, rank))
        return sum_now(part, sum, source, err);
    (void)pthread_mutex_unlock(&part->lock);
    status = source->copy(source->user, held_part(s, part, rank), part->count, err);
    (void)pthread_mutex_lock(&part->lock);
    return status;
}

/* Everyone's contribution is summed.  Lock held. */
static void complete(struct shard *s, struct shard_part *part, uint64_t round, float *sum,
                     struct shard_answer *ret)
{
    unsigned rank = 0;

    while (policy_next_answer(&part->policy, &rank)) /* the caller answers all of them */
        rank++;
    if (s->config.update)
        optimizer_update(&s->optimizer, round, part->offset, part->count, s->values + part->offset,
                         sum);
    answer(ret, true, part, s->config.update ? s->values : s->accumulators[round % 2]);
    part->turn = 0;
}

/* The body of shard_push for a held partition.  Lock held. */
static enum status push(struct shard *s, struct shard_part *part, unsigned rank, uint64_t round,
                        const struct shard_source *source, struct shard_answer *ret,
                        struct error *err)
{
    float *sum = s->accumulators[round % 2] + part->offset;
    int64_t arrival_ns = clock_now_ns();
    enum policy_verdict verdict = policy_check(&part->policy, rank, round);
    enum status status;

    if (verdict != POLICY_ACCEPTED && verdict != POLICY_COMPLETE)
        return error_set(err, STATUS_PROTOCOL, "the push %s (round %" PRIu64 " is complete)",
                         policy_verdict_text(verdict), part->policy.steps);
    if (part->policy.arrived == 0) {
        part->first_ns = arrival_ns;
        part->sum_ns = 0;
    }
    status = take(s, part, rank, sum, source, err);
    if (status != STATUS_OK)
        return status;
    verdict = policy_push(&part->policy, rank, round);
    sum_held(s, part, sum, round);
    *ret = (struct shard_answer){.count = part->count};
    if (verdict == POLICY_COMPLETE)
        complete(s, part, round, sum, ret);
    part->sum_ns += clock_now_ns() - arrival_ns;
    ret->sum_ns = part->sum_ns;
    ret->wait_ns = arrival_ns - part->first_ns;
    return STATUS_OK;
}

enum status shard_push(struct shard *s, uint32_t partition, unsigned rank, uint64_t round,
                       const struct shard_source *source, struct shard_answer *ret,
                       struct error *err)
{
    struct shard_part *part = find_part(s, partition);
    enum status status;

    if (!part)
        return error_set(err, STATUS_PROTOCOL, "partition %u is not held here", partition);
    (void)pthread_mutex_lock(&part->lock);
    status = push(s, part, rank, round, source, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}
