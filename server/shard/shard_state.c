/*
 * shard_state: exports the state of one partition from a shard in use, and imports it into a new
 * shard.
 *
 * The export holds the partition's lock, so the state is consistent between two contributions.  It
 * excludes the contributions to the round under way that are in the accumulator.
 */
#include "server/shard/shard_internal.h"

#include <inttypes.h>
#include <string.h>

/* The partition's part of each slab. */
struct state_slabs {
    float *values, *moments[2], *previous;
};

/* If the optimizer runs on the workers, the newest sum stands for the values. */
static struct state_slabs find_slabs(const struct shard *s, const struct shard_part *part,
                                     uint64_t steps)
{
    struct state_slabs at = {.values = (s->config.update ? s->values : s->accumulators[steps % 2]) +
                                       part->offset};

    for (unsigned i = 0; i < s->optimizer.states; i++)
        at.moments[i] = s->optimizer.state[i] + part->offset;
    if (s->previous)
        at.previous = s->previous + part->offset;
    return at;
}

static void copy_slab(float *to, const float *from, size_t count)
{
    if (to && from)
        memcpy(to, from, count * sizeof(float));
}

enum status shard_read_state(struct shard *s, uint32_t partition, float *values,
                             float *const *moments, uint64_t *ret_steps, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);
    struct state_slabs from;

    if (status == STATUS_OK && !s->config.update)
        status = error_set(err, STATUS_UNSUPPORTED, "the optimizer does not run here");
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    from = find_slabs(s, part, part->policy.steps);
    if (!part->policy.initialised) {
        status =
            error_set(err, STATUS_PROTOCOL, "partition %" PRIu32 " has no values yet", partition);
    } else {
        copy_slab(values, from.values, part->count);
        for (unsigned i = 0; i < s->optimizer.states; i++)
            copy_slab(moments[i], from.moments[i], part->count);
        *ret_steps = s->config.steps_before + part->policy.steps;
    }
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

enum status shard_export(struct shard *s, uint32_t partition, struct shard_state *state,
                         struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);
    struct state_slabs from;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    from = find_slabs(s, part, part->policy.steps);
    state->initialised = part->policy.initialised;
    state->steps = part->policy.steps;
    policy_save(&part->policy, state->clocks, state->seen, state->flags);
    copy_slab(state->values, from.values, part->count);
    copy_slab(state->moments[0], from.moments[0], part->count);
    copy_slab(state->moments[1], from.moments[1], part->count);
    copy_slab(state->previous, from.previous, part->count);
    status = reply_encoding_export(&s->encoding, (size_t)(part - s->parts), part->offset,
                                   part->count, state->values, state->codec_state, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

enum status shard_import(struct shard *s, uint32_t partition, const struct shard_state *state,
                         struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);
    struct state_slabs to;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    to = find_slabs(s, part, state->steps);
    part->policy.initialised = state->initialised;
    if ((!state->initialised && state->steps > 0) ||
        !policy_restore(&part->policy, state->steps, state->clocks, state->seen, state->flags))
        status = error_set(err, STATUS_DATA,
                           "the state of partition %" PRIu32 " at step %" PRIu64
                           " has clocks or flags that cannot be",
                           partition, state->steps);
    if (status == STATUS_OK) {
        copy_slab(to.values, state->values, part->count);
        copy_slab(to.moments[0], state->moments[0], part->count);
        copy_slab(to.moments[1], state->moments[1], part->count);
        copy_slab(to.previous, state->previous, part->count);
        status =
            reply_encoding_import(&s->encoding, (size_t)(part - s->parts), part->offset,
                                  part->count, to.values, state->codec_state, state->steps, err);
    }
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}
