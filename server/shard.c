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

#define ARENA_LINE 64 /* bytes: the boundary of mem_calloc_aligned */

static size_t held_ranks(const struct shard_config *c)
{
    return c->rank_order && c->world_size > 2 ? c->world_size - 2 : 0;
}

static size_t sent_ranks(const struct shard_config *c)
{
    return consistency_is_lockstep(&c->consistency) ? 0 : c->world_size;
}

size_t shard_bytes(const struct shard_config *c)
{
    size_t states = 0, slabs;

    if (c->update)
        states = c->optimizer.kind != OPTIMIZER_SGD ? 2 : c->optimizer.momentum != 0.0;
    slabs = 2 + states + held_ranks(c) + sent_ranks(c);
    return slabs * c->map->server_elements[c->index] * sizeof(float);
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
        part->offset = p->local_offset;
        part->count = p->count;
    }
}

/* Elements of one slab in the arena: the next one begins on a boundary, too. */
static size_t arena_stride(const struct shard *s)
{
    size_t line = ARENA_LINE / sizeof(float);

    return (s->count + line - 1) / line * line;
}

/* Memory for all slabs that answers lie in; without it they are ordinary memory, and sent. */
static void open_arena(struct shard *s)
{
    const struct shard_config *c = &s->config;
    size_t slabs = sent_ranks(c) > 0 ? sent_ranks(c) : c->update ? 1 : 2;

    if (c->shared && shared_memory_open(slabs * arena_stride(s) * sizeof(float), "sparring-shard",
                                        &s->arena, NULL) != STATUS_OK)
        s->arena = SHARED_MEMORY_NONE;
}

/* `slabs` slabs, one behind the other; `answered`: answers lie in them. */
static enum status take_slabs(struct shard *s, size_t slabs, bool answered, const char *what,
                              float **ret, struct error *err)
{
    if (!answered || !s->arena.base)
        return mem_calloc_aligned(s->count * slabs, sizeof(float), what, ret, err);
    *ret = (float *)s->arena.base + s->arena_used;
    s->arena_used += slabs > 1 ? s->count * slabs : arena_stride(s);
    return STATUS_OK;
}

static void free_slabs(const struct shard *s, float *slabs)
{
    if (!shard_arena_has(s, slabs))
        free(slabs);
}

static enum status allocate(struct shard *s, struct error *err)
{
    const struct shard_config *c = &s->config;
    struct optimizer_config optimizer = c->optimizer;
    bool copies = sent_ranks(c) > 0; /* only they are answered from */
    enum status status;

    open_arena(s);

    if (consistency_steps_each(&c->consistency)) /* n pushes move as far as one step of bsp */
        optimizer.learning_rate /= c->world_size;
    status = mem_calloc(s->length, sizeof(*s->parts), "partitions", &s->parts, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->length * c->world_size, sizeof(*s->ranks), "clocks of partitions",
                            &s->ranks, err);
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
    if (status == STATUS_OK && c->rule_count > 0)
        status = mem_calloc(s->length * c->world_size, sizeof(*s->kept), "kept contributions",
                            &s->kept, err);
    if (status == STATUS_OK && c->update)
        status = optimizer_init(&s->optimizer, &optimizer, s->count, err);
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

static void drop_kept(struct shard_source *kept)
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
        drop_kept(&s->kept[i]);
    free(s->kept);
    free(s->held);
    free_slabs(s, s->sent);
    free(s->ranks);
    free(s->parts);
    if (s->arena.base)
        shared_memory_release(&s->arena);
    memset(s, 0, sizeof(*s));
}

bool shard_arena_has(const struct shard *s, const float *data)
{
    uintptr_t base = (uintptr_t)s->arena.base, at = (uintptr_t)data;

    return base != 0 && at >= base && at - base < s->arena.size;
}

static struct shard_part *find_part(const struct shard *s, uint32_t partition)
{
    const struct shard_map *map = s->config.map;

    if (partition >= map->length || map->partitions[partition].server != s->config.index)
        return NULL;
    return &s->parts[map->partitions[partition].slot];
}

size_t shard_partition_count(const struct shard *s, uint32_t partition)
{
    const struct shard_part *part = find_part(s, partition);

    return part ? part->count : 0;
}

/* ------------------------------------------------------------------ answers */

/* Where an answer to `rank` is sent from.  Lock held. */
static const float *answer_data(struct shard *s, const struct shard_part *part, unsigned rank)
{
    float *copy;

    if (!s->sent)
        return (s->config.update ? s->values : s->accumulators[part->policy.steps % 2]) +
               part->offset;
    copy = s->sent + rank * s->count + part->offset;
    memcpy(copy, s->values + part->offset, part->count * sizeof(float));
    return copy;
}

/* How many other steps are to come before the rank's push of that round. */
static uint64_t wanted_staleness(const struct shard_config *c, unsigned rank, uint64_t round)
{
    for (size_t i = c->rule_count; i-- > 0;) {
        const struct exact_staleness *r = &c->rules[i];

        if (r->rank == rank && r->first <= round && round <= r->last)
            return r->steps;
    }
    return POLICY_NO_TARGET;
}

/* The policy has said that `rank` reads now.  Lock held. */
static void answer(struct shard *s, struct shard_part *part, unsigned rank,
                   struct shard_answer *ret)
{
    struct policy *p = &part->policy;

    ret->round = consistency_steps_each(&p->consistency) ? p->ranks[rank].clock : p->steps;
    ret->is_final = p->ranks[rank].finished;
    ret->data = answer_data(s, part, rank);
    ret->count = part->count;
    if (s->kept)
        policy_aim(p, rank, wanted_staleness(&s->config, rank, p->ranks[rank].clock + 1));
}

enum status shard_set(struct shard *s, uint32_t partition, const struct shard_source *source,
                      struct error *err)
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
    if (status == STATUS_OK)
        (void)policy_set(&part->policy);
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
    *ret = (struct shard_answer){0};
    (void)pthread_mutex_lock(&part->lock);
    verdict = policy_pull(&part->policy, rank);
    ret->complete = verdict == POLICY_COMPLETE;
    if (ret->complete)
        answer(s, part, rank, ret);
    (void)pthread_mutex_unlock(&part->lock);
    if (verdict == POLICY_TWICE)
        return error_set(err, STATUS_PROTOCOL, "the pull of partition %u %s", partition,
                         policy_verdict_text(verdict));
    return STATUS_OK;
}

bool shard_next_parked(struct shard *s, uint32_t partition, unsigned *ret_rank,
                       struct shard_answer *ret)
{
    struct shard_part *part = find_part(s, partition);
    bool found;

    *ret = (struct shard_answer){0};
    (void)pthread_mutex_lock(&part->lock);
    found = policy_next_parked(&part->policy, ret_rank);
    if (found)
        answer(s, part, *ret_rank, ret);
    (void)pthread_mutex_unlock(&part->lock);
    return found;
}

bool shard_next_answer(struct shard *s, uint32_t partition, unsigned *rank,
                       struct shard_answer *ret)
{
    struct shard_part *part = find_part(s, partition);
    bool found;

    *ret = (struct shard_answer){0};
    (void)pthread_mutex_lock(&part->lock);
    found = policy_next_answer(&part->policy, rank);
    if (found)
        answer(s, part, *rank, ret);
    (void)pthread_mutex_unlock(&part->lock);
    return found;
}

/* ------------------------------------------------------------------ sums and steps */

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

/* The sum is whole: step.  Lock held. */
static void complete(struct shard *s, struct shard_part *part, struct shard_answer *ret)
{
    if (s->config.update)
        optimizer_update(&s->optimizer, part->policy.steps, part->offset, part->count,
                         s->values + part->offset, s->accumulators[0] + part->offset);
    ret->complete = true;
    part->turn = 0;
}

/* g += lambda g g (w - w_read). */
static void compensate(float *gradient, float lambda, const float *now, const float *read,
                       size_t count)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] += lambda * gradient[i] * gradient[i] * (now[i] - read[i]);
}

/* A step of one contribution, which is in the accumulator.  Lock held. */
static void step(struct shard *s, struct shard_part *part, unsigned rank, uint64_t staleness)
{
    const struct consistency *c = &s->config.consistency;
    float *gradient = s->accumulators[0] + part->offset;
    float *values = s->values + part->offset;
    double rate = s->optimizer.config.learning_rate;

    if (c->lr_by_staleness && staleness > 1)
        rate /= (double)staleness;
    if (c->delay_compensation > 0)
        compensate(gradient, (float)c->delay_compensation, values,
                   s->sent + rank * s->count + part->offset, part->count);
    optimizer_update_at(&s->optimizer, rate, part->policy.steps, part->offset, part->count, values,
                        gradient);
    part->turn = 0;
}

static struct shard_source *kept_source(const struct shard *s, const struct shard_part *part,
                                        unsigned rank)
{
    return &s->kept[(size_t)(part - s->parts) * s->config.world_size + rank];
}

/* Lock held. */
static enum status keep(struct shard *s, struct shard_part *part, unsigned rank, uint64_t round,
                        const struct shard_source *source, struct shard_answer *ret,
                        struct error *err)
{
    enum status status = source->keep(source->user, kept_source(s, part, rank), err);

    if (status != STATUS_OK)
        return status;
    (void)policy_push(&part->policy, rank, round);
    ret->held = true;
    return STATUS_OK;
}

/* Lock held, and it is this rank's turn. */
static enum status apply_kept(struct shard *s, struct shard_part *part, unsigned rank,
                              struct shard_answer *ret, struct error *err)
{
    const struct policy *p = &part->policy;
    struct shard_source *source = kept_source(s, part, rank);
    int64_t start_ns = clock_now_ns();
    uint64_t wanted = wanted_staleness(&s->config, rank, p->ranks[rank].clock);
    enum status status;

    *ret = (struct shard_answer){
        .complete = true, .count = part->count, .staleness = policy_staleness(p, rank) - 1};
    ret->missed = wanted != POLICY_NO_TARGET && wanted != ret->staleness;
    status = source->copy(source->user, s->accumulators[0] + part->offset, part->count, err);
    drop_kept(source);
    if (status != STATUS_OK)
        return status;
    step(s, part, rank, ret->staleness);
    ret->sum_ns = clock_now_ns() - start_ns;
    return STATUS_OK;
}

static enum status refuse(const struct shard_part *part, unsigned rank, enum policy_verdict verdict,
                          struct error *err)
{
    if (consistency_steps_each(&part->policy.consistency))
        return error_set(err, STATUS_PROTOCOL, "the push %s (its clock is %" PRIu64 ")",
                         policy_verdict_text(verdict), part->policy.ranks[rank].clock);
    return error_set(err, STATUS_PROTOCOL, "the push %s (round %" PRIu64 " is complete)",
                     policy_verdict_text(verdict), part->policy.steps);
}

/* A contribution that the policy takes.  Lock held. */
static enum status contribute(struct shard *s, struct shard_part *part, unsigned rank,
                              uint64_t round, const struct shard_source *source,
                              struct shard_answer *ret, struct error *err)
{
    bool steps_each = consistency_steps_each(&s->config.consistency);
    float *sum = s->accumulators[round % 2] + part->offset;
    int64_t arrival_ns = clock_now_ns();
    enum status status;

    if (part->policy.arrived == 0) {
        part->first_ns = arrival_ns;
        part->sum_ns = 0;
    }
    status = take(s, part, rank, sum, source, err);
    if (status != STATUS_OK)
        return status;
    ret->complete = policy_push(&part->policy, rank, round) == POLICY_COMPLETE;
    sum_held(s, part, sum, round);
    if (steps_each)
        step(s, part, rank, ret->staleness);
    else if (ret->complete)
        complete(s, part, ret);
    part->sum_ns += clock_now_ns() - arrival_ns;
    ret->sum_ns = part->sum_ns;
    ret->wait_ns = arrival_ns - part->first_ns;
    return STATUS_OK;
}

/* The body of shard_push for a held partition.  Lock held. */
static enum status push(struct shard *s, struct shard_part *part, unsigned rank, uint64_t round,
                        const struct shard_source *source, struct shard_answer *ret,
                        struct error *err)
{
    enum policy_verdict verdict = policy_check(&part->policy, rank, round);

    *ret = (struct shard_answer){.count = part->count,
                                 .staleness = policy_staleness(&part->policy, rank)};
    if (s->kept && verdict == POLICY_ACCEPTED)
        return keep(s, part, rank, round, source, ret, err);
    if (verdict == POLICY_ACCEPTED || verdict == POLICY_COMPLETE)
        return contribute(s, part, rank, round, source, ret, err);
    if (verdict != POLICY_LATE)
        return refuse(part, rank, verdict, err);
    (void)policy_push(&part->policy, rank, round);
    policy_answer(&part->policy, rank);
    ret->late = true;
    answer(s, part, rank, ret);
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

enum status shard_next_apply(struct shard *s, uint32_t partition, bool *ret_found,
                             unsigned *ret_rank, struct shard_answer *ret, struct error *err)
{
    struct shard_part *part = find_part(s, partition);
    enum status status = STATUS_OK;

    *ret_found = false;
    if (!s->kept)
        return STATUS_OK;
    (void)pthread_mutex_lock(&part->lock);
    *ret_found = policy_next_apply(&part->policy, ret_rank);
    if (*ret_found)
        status = apply_kept(s, part, *ret_rank, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

enum status shard_finish(struct shard *s, uint32_t partition, unsigned rank, bool wants_final,
                         struct shard_answer *ret, struct error *err)
{
    struct shard_part *part = find_part(s, partition);
    enum policy_verdict verdict;

    if (!part)
        return error_set(err, STATUS_PROTOCOL, "partition %u is not held here", partition);
    if (consistency_is_lockstep(&s->config.consistency))
        return error_set(err, STATUS_PROTOCOL,
                         "final values are asked for, but all ranks are in step here");
    *ret = (struct shard_answer){.count = part->count};
    (void)pthread_mutex_lock(&part->lock);
    verdict = policy_finish(&part->policy, rank, wants_final);
    if (verdict == POLICY_COMPLETE) {
        complete(s, part, ret);
        ret->sum_ns = part->sum_ns;
        ret->wait_ns = clock_now_ns() - part->first_ns;
    }
    (void)pthread_mutex_unlock(&part->lock);
    if (verdict == POLICY_FINISHED)
        return error_set(err, STATUS_PROTOCOL, "the end of partition %u %s", partition,
                         policy_verdict_text(POLICY_TWICE));
    return STATUS_OK;
}
