/*
 * A contribution is summed under its partition's lock while it is read from the network's slices;
 * about 0.1 ms for 1 MiB.  In rank order a contribution that comes before its turn is copied to its
 * rank's own storage first, without the lock: nobody else writes there (one thread per rank), and
 * nobody reads it before policy_push has said that it is in.
 *
 * Ranks 0 and 1 never wait for each other: g1 + g0 is g0 + g1 bit for bit.
 */
#include "server/shard/shard_internal.h"

#include "common/base/clock.h"
#include "common/tensor/tensor.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------ sums and steps */

static float *held_part(const struct shard *s, const struct shard_part *part, unsigned rank)
{
    return s->held + (rank - 2) * s->count + part->offset;
}

/* Can a contribution of `rank` to the round still come?  Lock held. */
static bool is_awaited(const struct shard_part *part, unsigned rank, uint64_t round)
{
    const struct policy_rank *r = &part->policy.ranks[rank];

    return !r->vacant && r->clock < round;
}

/* Sum a contribution straight from its source.  Lock held. */
static enum status sum_now(struct shard_part *part, float *sum, const struct shard_source *source,
                           struct error *err)
{
    bool first = part->summed++ == 0;

    return first ? source->copy(source->user, sum, part->count, err)
                 : source->add(source->user, sum, part->count, err);
}

static void sum_held(struct shard_part *part, float *sum, const float *held)
{
    if (part->summed++ == 0)
        memcpy(sum, held, part->count * sizeof(float));
    else
        vector_add(sum, held, part->count);
}

/* Those that will not come are passed over. */
void shard_sum_early(struct shard *s, struct shard_part *part, uint64_t round)
{
    const struct policy *p = &part->policy;
    float *sum = s->accumulators[round % 2] + part->offset;

    if (!s->held)
        return;
    if (part->turn < 2 && (is_awaited(part, 0, round) || is_awaited(part, 1, round)))
        return;
    if (part->turn < 2)
        part->turn = 2;
    for (; part->turn < p->world_size && !is_awaited(part, part->turn, round); part->turn++)
        if (p->ranks[part->turn].clock == round)
            sum_held(part, sum, held_part(s, part, part->turn));
}

/* Read the source into the accumulator or, before this rank's turn, into its own storage.  Who
 * occupies a slot that was passed over is summed as it comes.  Lock held, but given up in between.
 */
static enum status take(struct shard *s, struct shard_part *part, unsigned rank, uint64_t round,
                        const struct shard_source *source, struct error *err)
{
    enum status status;

    shard_sum_early(s, part, round); /* passes over vacant slots at the start of a round */
    if (!s->held || rank < 2 || rank <= part->turn) {
        part->turn += s->held && rank >= 2 && rank == part->turn;
        return sum_now(part, s->accumulators[round % 2] + part->offset, source, err);
    }
    (void)pthread_mutex_unlock(&part->lock);
    status = source->copy(source->user, held_part(s, part, rank), part->count, err);
    (void)pthread_mutex_lock(&part->lock);
    return status;
}

void shard_keep_previous(struct shard *s, const struct shard_part *part)
{
    size_t slot = (size_t)(part - s->parts);
    const uint8_t *coded = reply_encoding_coded(&s->down, 0, slot);
    const float *held = reply_encoding_whole(&s->down, part->offset);
    float *previous;

    if (!s->previous)
        return;
    previous = s->previous + part->offset;
    if (!held && coded) /* rounded: these bytes have been coded here */
        (void)codec_decode(&s->down.codec, coded,
                           reply_encoding_size(&s->down, 0, slot, part->count), previous,
                           part->count, CODEC_REPLACE, NULL);
    else
        memcpy(previous, held ? held : s->values + part->offset, part->count * sizeof(float));
}

enum status shard_complete(struct shard *s, struct shard_part *part, struct shard_reply *ret,
                           struct error *err)
{
    const struct policy *p = &part->policy;
    unsigned divisor = consistency_divisor(&p->consistency, p->world_size);
    float *sum = s->accumulators[p->steps % 2] + part->offset;
    double rate = s->config.update ? s->optimizer.config.learning_rate : 0;
    size_t slot = (size_t)(part - s->parts);
    enum status status;

    if (p->contributions != divisor)
        vector_scale(sum, (float)((double)divisor / p->contributions), part->count);
    if (s->config.update) {
        shard_keep_previous(s, part);
        optimizer_update(&s->optimizer, s->config.steps_before + p->steps, part->offset,
                         part->count, s->values + part->offset, sum);
    }
    ret->complete = true;
    ret->contributions = p->contributions;
    part->deferred += s->config.defer_replies && consistency_is_lockstep(&p->consistency);
    part->summed = 0;
    part->turn = 0;
    /* First what cannot be told: nobody else shall come by a step that ends the job wherever it is
     * done again. */
    status = reply_encoding_encode(&s->down, slot, part->offset, part->count,
                                   s->config.update ? s->values + part->offset : sum, err);
    part->failed = part->failed || status != STATUS_OK;
    if (status == STATUS_OK)
        status = shard_tell(s, part, MUTATION_STEP, rate, sum, err);
    if (status != STATUS_OK)
        return status;
    ret->bytes = reply_encoding_size(&s->down, 0, slot, part->count);
    ret->all_bytes = shard_named_bytes(s, part);
    return status;
}

/* g += lambda g g (w - w_read). */
static void compensate(float *gradient, float lambda, const float *now, const float *read,
                       size_t count)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] += lambda * gradient[i] * gradient[i] * (now[i] - read[i]);
}

/* A step of one contribution, which is in the accumulator.  Lock held. */
static enum status step(struct shard *s, struct shard_part *part, unsigned rank,
                        struct shard_reply *ret, struct error *err)
{
    const struct consistency *c = &s->config.consistency;
    float *gradient = s->accumulators[0] + part->offset;
    float *values = s->values + part->offset;
    double rate = s->optimizer.config.learning_rate;

    if (c->lr_by_staleness && ret->staleness > 1)
        rate /= (double)ret->staleness;
    if (c->delay_compensation > 0)
        compensate(gradient, (float)c->delay_compensation, values,
                   s->sent + rank * s->count + part->offset, part->count);
    optimizer_update_at(&s->optimizer, rate, s->config.steps_before + part->policy.steps,
                        part->offset, part->count, values, gradient);
    ret->complete = true;
    ret->contributions = 1;
    part->summed = 0;
    return shard_tell(s, part, MUTATION_STEP, rate, gradient, err);
}

static struct shard_source *kept_source(const struct shard *s, const struct shard_part *part,
                                        unsigned rank)
{
    return &s->kept[(size_t)(part - s->parts) * s->config.world_size + rank];
}

/* Lock held. */
static enum status keep(struct shard *s, struct shard_part *part, unsigned rank, uint64_t round,
                        const struct shard_source *source, struct shard_reply *ret,
                        struct error *err)
{
    enum status status = source->keep(source->user, kept_source(s, part, rank), err);

    if (status != STATUS_OK)
        return status;
    (void)policy_push(&part->policy, rank, round, false);
    ret->held = true;
    return STATUS_OK;
}

/* Lock held, and it is this rank's turn. */
static enum status apply_kept(struct shard *s, struct shard_part *part, unsigned rank,
                              struct shard_reply *ret, struct error *err)
{
    const struct policy *p = &part->policy;
    struct shard_source *source = kept_source(s, part, rank);
    int64_t start_ns = clock_now_ns();
    uint64_t wanted = shard_wanted_staleness(&s->config, rank, p->ranks[rank].clock);
    enum status status;

    *ret = (struct shard_reply){.count = part->count, .staleness = policy_staleness(p, rank) - 1};
    ret->missed = wanted != POLICY_NO_TARGET && wanted != ret->staleness;
    status = source->copy(source->user, s->accumulators[0] + part->offset, part->count, err);
    shard_drop_kept(source);
    if (status == STATUS_OK)
        status = step(s, part, rank, ret, err);
    ret->sum_ns = clock_now_ns() - start_ns;
    return status;
}

static enum status refuse(const struct shard_part *part, unsigned rank, enum policy_verdict verdict,
                          struct error *err)
{
    if (consistency_steps_per_push(&part->policy.consistency))
        return error_set(err, STATUS_PROTOCOL, "the push %s (its clock is %" PRIu64 ")",
                         policy_verdict_text(verdict), part->policy.ranks[rank].clock);
    return error_set(err, STATUS_PROTOCOL, "the push %s (round %" PRIu64 " is complete)",
                     policy_verdict_text(verdict), part->policy.steps);
}

/* A contribution that the policy takes.  Lock held. */
static enum status contribute(struct shard *s, struct shard_part *part, unsigned rank,
                              uint64_t round, const struct shard_source *source,
                              struct shard_reply *ret, struct error *err)
{
    int64_t arrival_ns = clock_now_ns();
    enum policy_verdict verdict;
    enum status status;

    if (part->policy.arrived == 0) {
        part->first_ns = arrival_ns;
        part->sum_ns = 0;
    }
    ret->again = part->policy.ranks[rank].inherited;
    status = ret->again ? STATUS_OK : take(s, part, rank, round, source, err);
    if (status != STATUS_OK)
        return status;
    verdict = policy_push(&part->policy, rank, round, false);
    shard_sum_early(s, part, round);
    if (consistency_steps_per_push(&s->config.consistency))
        status = step(s, part, rank, ret, err);
    else if (verdict == POLICY_COMPLETE)
        status = shard_complete(s, part, ret, err);
    part->sum_ns += clock_now_ns() - arrival_ns;
    ret->sum_ns = part->sum_ns;
    ret->wait_ns = arrival_ns - part->first_ns;
    return status;
}

/* The body of shard_push for a held partition.  Lock held. */
static enum status push(struct shard *s, struct shard_part *part, unsigned rank, uint64_t round,
                        bool again, const struct shard_source *source, struct shard_reply *ret,
                        struct error *err)
{
    enum policy_verdict verdict = policy_check(&part->policy, rank, round, again);

    *ret = (struct shard_reply){.count = part->count,
                                .staleness = policy_staleness(&part->policy, rank)};
    if (s->kept && verdict == POLICY_ACCEPTED)
        return keep(s, part, rank, round, source, ret, err);
    if (verdict == POLICY_ACCEPTED || verdict == POLICY_COMPLETE)
        return contribute(s, part, rank, round, source, ret, err);
    (void)policy_push(&part->policy, rank, round, again);
    ret->late = verdict == POLICY_LATE;
    ret->again = verdict == POLICY_AGAIN || verdict == POLICY_AGAIN_WAITS;
    if (!ret->late && !ret->again)
        return refuse(part, rank, verdict, err);
    if (verdict == POLICY_AGAIN && part->deferred > 0) {
        part->policy.ranks[rank].parked = true;
    } else if (verdict != POLICY_AGAIN_WAITS) {
        policy_answer(&part->policy, rank);
        shard_answer_rank(s, part, rank, ret);
    }
    return STATUS_OK;
}

enum status shard_push(struct shard *s, uint32_t partition, unsigned rank, uint64_t round,
                       bool again, const struct shard_source *source, struct shard_reply *ret,
                       struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    status = part->failed ? shard_refuse_failed(part, err)
                          : push(s, part, rank, round, again, source, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

enum status shard_next_apply(struct shard *s, uint32_t partition, bool *ret_found,
                             unsigned *ret_rank, struct shard_reply *ret, struct error *err)
{
    struct shard_part *part = shard_find(s, partition);
    enum status status = STATUS_OK;

    *ret_found = false;
    if (!part || !s->kept)
        return STATUS_OK;
    (void)pthread_mutex_lock(&part->lock);
    *ret_found = policy_next_apply(&part->policy, ret_rank);
    if (*ret_found)
        status = apply_kept(s, part, *ret_rank, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}
