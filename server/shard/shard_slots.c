/*
 * Ranks that finish, leave, come and come back: what that means for the rounds of a partition.
 */
#include "server/shard/shard_internal.h"

#include "common/base/clock.h"

#include <inttypes.h>

/* A rank is waited for no more: the policy's verdict on that made the round under way complete, or
 * did not.  Lock held. */
static enum status go(struct shard *s, struct shard_part *part, enum policy_verdict verdict,
                      struct shard_reply *ret, struct error *err)
{
    bool complete = verdict == POLICY_COMPLETE;
    enum status status;

    if (!complete && part->policy.arrived > 0)
        shard_sum_early(s, part, part->policy.steps + 1);
    else if (complete)
        shard_sum_early(s, part, part->policy.steps);
    if (!complete)
        return shard_tell(s, part, MUTATION_RANKS, 0, NULL, err);
    status = shard_complete(s, part, ret, err);
    ret->sum_ns = part->sum_ns;
    ret->wait_ns = clock_now_ns() - part->first_ns;
    return status;
}

static enum status finish(struct shard *s, struct shard_part *part, unsigned rank, bool wants_final,
                          bool again, struct shard_reply *ret, struct error *err)
{
    enum policy_verdict verdict = policy_finish(&part->policy, rank, wants_final, again);

    ret->again = verdict == POLICY_AGAIN_WAITS;
    if (ret->again)
        return STATUS_OK;
    if (verdict == POLICY_FINISHED || verdict == POLICY_VACANT)
        return error_set(err, STATUS_PROTOCOL, "the end of partition %" PRIu32 " %s",
                         part->partition,
                         policy_verdict_text(verdict == POLICY_FINISHED ? POLICY_TWICE : verdict));
    return go(s, part, verdict, ret, err);
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
    status = finish(s, part, rank, wants_final, again, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

/* What the rank holds is not known any more; of interest where answers are compressed. */
static void shard_forget_told(struct shard *s, const struct shard_part *part, unsigned rank)
{
    reply_encoding_forget(&s->down, rank, (size_t)(part - s->parts));
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
    shard_forget_told(s, part, rank);
    if (!part->policy.ranks[rank].vacant)
        status = go(s, part, policy_vacate(&part->policy, rank), ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

/* Can somebody come who has seen nothing?  Lock held. */
static enum status check_newcomer(const struct shard *s, const struct shard_part *part,
                                  unsigned rank, struct error *err)
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
    status = check_newcomer(s, part, rank, err);
    shard_forget_told(s, part, rank);
    if (status == STATUS_OK && part->policy.ranks[rank].vacant) {
        policy_occupy(&part->policy, rank);
        shard_forget_names(s, part, rank);
        status = shard_tell(s, part, MUTATION_RANKS, 0, NULL, err);
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
    status = check_newcomer(s, part, rank, err);
    shard_forget_told(s, part, rank);
    if (status == STATUS_OK) {
        policy_replace(&part->policy, rank);
        shard_forget_names(s, part, rank);
    }
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

void shard_suspend(struct shard *s, unsigned rank)
{
    for (size_t i = 0; i < s->length; i++) {
        struct shard_part *part = &s->parts[i];

        (void)pthread_mutex_lock(&part->lock);
        policy_suspend(&part->policy, rank);
        shard_forget_told(s, part, rank);
        (void)pthread_mutex_unlock(&part->lock);
    }
}

bool shard_is_in(struct shard *s, uint32_t partition, unsigned rank, uint64_t round)
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
