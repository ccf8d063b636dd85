/*
 * shard_push: takes contributions, sums them and runs the optimizer.
 *
 * A contribution is summed under its partition's lock (shard_sum.c) while it is read from the
 * network's slices; about 0.1 ms for 1 MiB.  In rank order a contribution that arrives before its
 * turn is first copied to its rank's part of `early`, without the lock: only the rank's own thread
 * writes there, and no thread reads it before policy_push has counted it.
 */
#include "server/shard/shard_internal.h"

#include "common/base/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* One call of shard_push. */
struct push {
    unsigned rank;
    uint64_t round;
    bool again;
    const struct shard_source *source; /* NULL: it is in `early` already */
    int64_t arrival_ns;
};

/* ------------------------------------------------------------------ sums and steps */

static bool is_accepted(enum policy_outcome outcome)
{
    return outcome == POLICY_ACCEPTED || outcome == POLICY_COMPLETE;
}

/* Whether a push comes before its turn, so that it is first stored in `early`.  A session that took
 * a rank which was skipped is summed on arrival.  Lock held. */
static bool comes_early(struct shard *s, struct shard_part *part, const struct push *p)
{
    if (!s->early || p->rank < 2 || part->policy.ranks[p->rank].inherited ||
        !is_accepted(policy_check(&part->policy, p->rank, p->round, p->again)))
        return false;
    shard_sum_early(s, part, p->round); /* skips vacant ranks at the start of a round */
    return p->rank > part->next_rank;
}

/* Sum the source into the accumulator: it is this rank's turn.  Lock held. */
static enum status sum_in_turn(struct shard *s, struct shard_part *part, const struct push *p,
                               struct error *err)
{
    bool completes = policy_check(&part->policy, p->rank, p->round, p->again) == POLICY_COMPLETE;

    part->next_rank += s->early && p->rank >= 2 && p->rank == part->next_rank;
    return shard_sum_source(part, s->accumulators[p->round % 2] + part->offset, p->source,
                            completes, err);
}

void shard_keep_previous(struct shard *s, const struct shard_part *part)
{
    size_t local_index = (size_t)(part - s->parts);
    const uint8_t *coded = reply_encoding_coded(&s->encoding, 0, local_index);
    const float *common_copy = reply_encoding_common_copy(&s->encoding, part->offset);
    float *previous;

    if (!s->previous)
        return;
    previous = s->previous + part->offset;
    if (!common_copy && coded) /* rounded values, encoded here, so decoding cannot fail */
        (void)codec_decode(&s->encoding.codec, coded,
                           reply_encoding_size(&s->encoding, 0, local_index, part->count), previous,
                           part->count, CODEC_REPLACE, NULL);
    else
        memcpy(previous, common_copy ? common_copy : s->values + part->offset,
               part->count * sizeof(float));
}

enum status shard_complete(struct shard *s, struct shard_part *part, struct shard_reply *ret,
                           struct error *err)
{
    const struct policy *p = &part->policy;
    unsigned divisor = consistency_divisor(&p->consistency, p->world_size);
    float *sum = s->accumulators[p->steps % 2] + part->offset;
    double rate = s->config.update ? s->optimizer.config.learning_rate : 0;
    size_t local_index = (size_t)(part - s->parts);
    enum status status;

    if (s->config.update)
        shard_keep_previous(s, part);
    shard_step(s, part, sum, (float)((double)divisor / p->contributions), rate);
    ret->complete = true;
    ret->contributions = p->contributions;
    part->deferred += s->config.defer_replies && consistency_is_lockstep(&p->consistency);
    /* Encode before emitting: a step whose reply cannot be encoded ends the job, so no replica or
     * journal may have it. */
    status = reply_encoding_encode(&s->encoding, local_index, part->offset, part->count,
                                   s->config.update ? s->values + part->offset : sum, err);
    part->failed = part->failed || status != STATUS_OK;
    if (status == STATUS_OK)
        status = shard_emit_mutation(s, part, MUTATION_STEP, rate, sum, err);
    if (status != STATUS_OK)
        return status;
    ret->bytes = reply_encoding_size(&s->encoding, 0, local_index, part->count);
    ret->all_bytes = shard_selected_bytes(s, part);
    return status;
}

/* g += lambda g g (w - w_read). */
static void compensate(float *gradient, float lambda, const float *now, const float *read,
                       size_t count)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] += lambda * gradient[i] * gradient[i] * (now[i] - read[i]);
}

/* Make a step of the single contribution.  Lock held. */
static enum status step_one_push(struct shard *s, struct shard_part *part, unsigned rank,
                                 struct shard_reply *ret, struct error *err)
{
    const struct consistency *c = &s->config.consistency;
    float *gradient = s->accumulators[0] + part->offset;
    double rate = s->optimizer.config.learning_rate;

    if (c->lr_by_staleness && ret->staleness > 1)
        rate /= (double)ret->staleness;
    if (c->delay_compensation > 0) {
        shard_sum_pending(part, gradient);
        compensate(gradient, (float)c->delay_compensation, s->values + part->offset,
                   s->rank_values + rank * s->count + part->offset, part->count);
    }
    shard_step(s, part, gradient, 1, rate);
    ret->complete = true;
    ret->contributions = 1;
    return shard_emit_mutation(s, part, MUTATION_STEP, rate, gradient, err);
}

static struct shard_source *held_source(const struct shard *s, const struct shard_part *part,
                                        unsigned rank)
{
    return &s->held_sources[(size_t)(part - s->parts) * s->config.world_size + rank];
}

/* Store a push until policy_next_apply selects it.  Lock held. */
static enum status hold_push(struct shard *s, struct shard_part *part, const struct push *p,
                             struct shard_reply *ret, struct error *err)
{
    enum status status;

    assert(p->source); /* with rules of staleness there are no sums in rank order, so no `early` */
    status = p->source->keep(p->source->user, held_source(s, part, p->rank), err);
    if (status != STATUS_OK)
        return status;
    (void)policy_push(&part->policy, p->rank, p->round, false);
    ret->held = true;
    return STATUS_OK;
}

/* Apply the rank's held push, which policy_next_apply has selected.  Lock held. */
static enum status apply_held(struct shard *s, struct shard_part *part, unsigned rank,
                              struct shard_reply *ret, struct error *err)
{
    const struct policy *p = &part->policy;
    struct shard_source *source = held_source(s, part, rank);
    int64_t start_ns = clock_now_ns();
    uint64_t target = shard_target_staleness(&s->config, rank, p->ranks[rank].clock);
    enum status status;

    *ret = (struct shard_reply){.count = part->count, .staleness = policy_staleness(p, rank) - 1};
    ret->missed = target != POLICY_NO_TARGET && target != ret->staleness;
    status = shard_sum_source(part, s->accumulators[0] + part->offset, source, true, err);
    if (status == STATUS_OK)
        status = step_one_push(s, part, rank, ret, err);
    shard_drop_kept(source);
    ret->sum_ns = clock_now_ns() - start_ns;
    return status;
}

static enum status refuse_push(const struct shard_part *part, unsigned rank,
                               enum policy_outcome outcome, struct error *err)
{
    if (consistency_steps_per_push(&part->policy.consistency))
        return error_set(err, STATUS_PROTOCOL, "the push %s (its clock is %" PRIu64 ")",
                         policy_outcome_text(outcome), part->policy.ranks[rank].clock);
    return error_set(err, STATUS_PROTOCOL, "the push %s (round %" PRIu64 " is complete)",
                     policy_outcome_text(outcome), part->policy.steps);
}

/* Sum a push that the policy accepts, and step if it completes the round.  Lock held. */
static enum status accept_push(struct shard *s, struct shard_part *part, const struct push *p,
                               struct shard_reply *ret, struct error *err)
{
    enum policy_outcome outcome;
    enum status status = STATUS_OK;

    if (part->policy.arrived == 0)
        part->sum_ns = 0;
    /* one that was copied before its turn may be counted after a later one */
    if (part->policy.arrived == 0 || p->arrival_ns < part->first_push_ns)
        part->first_push_ns = p->arrival_ns;
    ret->again = part->policy.ranks[p->rank].inherited;
    if (!ret->again && p->source)
        status = sum_in_turn(s, part, p, err);
    if (status != STATUS_OK)
        return status;
    outcome = policy_push(&part->policy, p->rank, p->round, false);
    shard_sum_early(s, part, p->round);
    if (consistency_steps_per_push(&s->config.consistency))
        status = step_one_push(s, part, p->rank, ret, err);
    else if (outcome == POLICY_COMPLETE)
        status = shard_complete(s, part, ret, err);
    part->sum_ns += clock_now_ns() - p->arrival_ns;
    ret->sum_ns = part->sum_ns;
    ret->wait_ns = p->arrival_ns - part->first_push_ns;
    return status;
}

/* The body of shard_push.  Lock held. */
static enum status push_locked(struct shard *s, struct shard_part *part, const struct push *p,
                               struct shard_reply *ret, struct error *err)
{
    enum policy_outcome outcome = policy_check(&part->policy, p->rank, p->round, p->again);

    *ret = (struct shard_reply){.count = part->count,
                                .staleness = policy_staleness(&part->policy, p->rank)};
    if (s->held_sources && outcome == POLICY_ACCEPTED)
        return hold_push(s, part, p, ret, err);
    if (is_accepted(outcome))
        return accept_push(s, part, p, ret, err);
    (void)policy_push(&part->policy, p->rank, p->round, p->again);
    ret->late = outcome == POLICY_LATE;
    ret->again = outcome == POLICY_AGAIN || outcome == POLICY_AGAIN_WAITS;
    if (!ret->late && !ret->again)
        return refuse_push(part, p->rank, outcome, err);
    if (outcome == POLICY_AGAIN && part->deferred > 0) {
        part->policy.ranks[p->rank].parked = true;
    } else if (outcome != POLICY_AGAIN_WAITS) {
        policy_mark_replied(&part->policy, p->rank);
        shard_fill_reply(s, part, p->rank, ret);
    }
    return STATUS_OK;
}

enum status shard_push(struct shard *s, uint32_t partition, unsigned rank, uint64_t round,
                       bool again, const struct shard_source *source, struct shard_reply *ret,
                       struct error *err)
{
    struct push push = {.rank = rank, .round = round, .again = again, .source = source};
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    push.arrival_ns = clock_now_ns();
    if (!part->failed && comes_early(s, part, &push)) {
        (void)pthread_mutex_unlock(&part->lock);
        status = shard_copy_source(source, shard_early_part(s, part, rank), part->count, err);
        push.source = NULL;
        (void)pthread_mutex_lock(&part->lock);
    }
    if (status == STATUS_OK)
        status =
            part->failed ? shard_refuse_failed(part, err) : push_locked(s, part, &push, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

enum status shard_next_apply(struct shard *s, uint32_t partition, bool *ret_found,
                             unsigned *ret_rank, struct shard_reply *ret, struct error *err)
{
    struct shard_part *part = shard_find(s, partition);
    enum status status = STATUS_OK;

    *ret_found = false;
    if (!part || !s->held_sources)
        return STATUS_OK;
    (void)pthread_mutex_lock(&part->lock);
    *ret_found = policy_next_apply(&part->policy, ret_rank);
    if (*ret_found)
        status = apply_held(s, part, *ret_rank, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}
