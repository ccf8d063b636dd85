/*
 * shard_ranks: ranks that finish, leave, join, are replaced or reconnect, and what this means for
 * the round under way of each partition.
 *
 * The policy (policy_ranks.c) decides whether the round is complete; this file sums, steps and
 * emits the mutation.  Each function locks one partition at a time, so a change reaches the
 * partitions of a shard one after the other.
 */
#include "server/shard/shard_internal.h"

#include "common/base/clock.h"

#include <inttypes.h>

/* The policy no longer waits for a rank; outcome: COMPLETE if this completed the round under way.
 * Lock held. */
static enum status stop_waiting_for_rank(struct shard *s, struct shard_part *part,
                                         enum policy_outcome outcome, struct shard_reply *ret,
                                         struct error *err)
{
    bool complete = outcome == POLICY_COMPLETE;
    enum status status;

    if (!complete && part->policy.arrived > 0)
        shard_sum_early(s, part, part->policy.steps + 1);
    else if (complete)
        shard_sum_early(s, part, part->policy.steps);
    if (!complete)
        return shard_emit_mutation(s, part, MUTATION_RANKS, 0, NULL, err);
    status = shard_complete(s, part, ret, err);
    ret->sum_ns = part->sum_ns;
    ret->wait_ns = clock_now_ns() - part->first_push_ns;
    return status;
}

static enum status finish_rank(struct shard *s, struct shard_part *part, unsigned rank,
                               bool wants_final, bool again, struct shard_reply *ret,
                               struct error *err)
{
    enum policy_outcome outcome = policy_finish(&part->policy, rank, wants_final, again);

    ret->again = outcome == POLICY_AGAIN_WAITS;
    if (ret->again)
        return STATUS_OK;
    if (outcome == POLICY_FINISHED || outcome == POLICY_VACANT)
        return error_set(err, STATUS_PROTOCOL, "the end of partition %" PRIu32 " %s",
                         part->partition,
                         policy_outcome_text(outcome == POLICY_FINISHED ? POLICY_TWICE : outcome));
    return stop_waiting_for_rank(s, part, outcome, ret, err);
}

enum status shard_finish(struct shard *s, uint32_t partition, unsigned rank, bool wants_final,
                         bool again, struct shard_reply *ret, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    if (consistency_is_lockstep(&s->config.consistency))
        return error_set(err, STATUS_PROTOCOL,
                         "final values are asked for, but all ranks are in step here");
    *ret = (struct shard_reply){.count = part->count};
    (void)pthread_mutex_lock(&part->lock);
    status = finish_rank(s, part, rank, wants_final, again, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

/* Without lockstep: the rank's copy is unknown from now on, so its next reply is no delta.  No
 * effect in lockstep. */
static void forget_rank_copy(struct shard *s, const struct shard_part *part, unsigned rank)
{
    reply_encoding_invalidate(&s->encoding, rank, (size_t)(part - s->parts));
}

enum status shard_vacate(struct shard *s, uint32_t partition, unsigned rank,
                         struct shard_reply *ret, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    *ret = (struct shard_reply){.count = part->count};
    (void)pthread_mutex_lock(&part->lock);
    forget_rank_copy(s, part, rank);
    if (!part->policy.ranks[rank].vacant)
        status = stop_waiting_for_rank(s, part, policy_vacate(&part->policy, rank), ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

/* Can a new session start from this partition's values?  Lock held. */
static enum status check_join(const struct shard *s, const struct shard_part *part, unsigned rank,
                              struct error *err)
{
    if (s->config.update || part->policy.steps == 0)
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED,
                     "rank %u cannot join in round %" PRIu64
                     ": the optimizer runs on the workers, so the values are not here",
                     rank, part->policy.steps + 1);
}

enum status shard_occupy(struct shard *s, uint32_t partition, unsigned rank, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    status = check_join(s, part, rank, err);
    forget_rank_copy(s, part, rank);
    if (status == STATUS_OK && part->policy.ranks[rank].vacant) {
        policy_occupy(&part->policy, rank);
        shard_clear_selection(s, part, rank);
        status = shard_emit_mutation(s, part, MUTATION_RANKS, 0, NULL, err);
    }
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

enum status shard_replace(struct shard *s, uint32_t partition, unsigned rank, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    status = check_join(s, part, rank, err);
    forget_rank_copy(s, part, rank);
    if (status == STATUS_OK) {
        policy_replace(&part->policy, rank);
        shard_clear_selection(s, part, rank);
    }
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

void shard_suspend(struct shard *s, unsigned rank)
{
    for (size_t i = 0; i < s->length; i++) {
        struct shard_part *part = &s->parts[i];

        (void)pthread_mutex_lock(&part->lock);
        /* its memory may be written again, once it is not waiting for a reply any more */
        shard_sum_pending(part, s->accumulators[(part->policy.steps + 1) % 2] + part->offset);
        policy_suspend(&part->policy, rank);
        forget_rank_copy(s, part, rank);
        (void)pthread_mutex_unlock(&part->lock);
    }
}

bool shard_has_contributed(struct shard *s, uint32_t partition, unsigned rank, uint64_t round)
{
    struct shard_part *part = shard_find(s, partition);
    const struct policy_rank *r;
    bool in;

    if (!part)
        return false;
    (void)pthread_mutex_lock(&part->lock);
    r = &part->policy.ranks[rank];
    in = round <= r->clock + r->inherited;
    (void)pthread_mutex_unlock(&part->lock);
    return in;
}

uint64_t shard_clock(struct shard *s, unsigned rank)
{
    bool steps_each = consistency_steps_per_push(&s->config.consistency);
    uint64_t least = UINT64_MAX;

    for (size_t i = 0; i < s->length; i++) {
        struct shard_part *part = &s->parts[i];
        uint64_t clock, steps;

        (void)pthread_mutex_lock(&part->lock);
        clock = part->policy.ranks[rank].clock;
        steps = steps_each ? 0 : part->policy.steps;
        (void)pthread_mutex_unlock(&part->lock);
        clock = clock > steps ? clock : steps;
        least = clock < least ? clock : least;
    }
    return least;
}
