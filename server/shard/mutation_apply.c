/*
 * mutation_apply: applies mutations of another shard to this one.
 *
 * Applied in order they make this shard equal to the other one, bit for bit.  A mutation that is
 * applied already is skipped (but a change of ranks at the newest step is applied again), one that
 * does not follow the newest is refused.  Takes the partition's lock; used by a replica and when a
 * journal is replayed.
 */
#include "server/shard/shard_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Does the mutation fit this partition and follow its newest?  *ret_known: it is applied already.
 * Lock held. */
static enum status check_mutation(const struct shard *s, const struct shard_part *part,
                                  const struct mutation *r, bool *ret_known, struct error *err)
{
    const struct policy *p = &part->policy;
    size_t count = r->kind == MUTATION_RANKS ? 0 : part->count;
    bool step = r->kind == MUTATION_STEP;

    if (r->kind < MUTATION_INIT || r->kind > MUTATION_STATE ||
        (r->kind == MUTATION_STATE && (!s->config.update || r->step >= s->optimizer.states)) ||
        r->world_size != s->config.world_size || r->count != count ||
        (r->kind == MUTATION_INIT && r->step != 0) || (step && r->step == 0) ||
        !isfinite(r->rate) || r->rate < 0)
        return error_set(err, STATUS_DATA,
                         "a record of partition %" PRIu32 " has kind %d, step %" PRIu64
                         ", %u ranks and %zu elements (this one has %u and %zu)",
                         part->partition, (int)r->kind, r->step, r->world_size, r->count,
                         s->config.world_size, part->count);
    if (r->kind == MUTATION_STATE) {
        *ret_known = p->initialised || part->states_set & 1u << r->step;
        return STATUS_OK;
    }
    *ret_known = r->kind == MUTATION_INIT ? p->initialised
                 : step                   ? r->step <= p->steps
                                          : r->step < p->steps;
    if (!*ret_known && (r->step != p->steps + step || (step && !p->initialised)))
        return error_set(err, STATUS_DATA,
                         "a record of step %" PRIu64 " of partition %" PRIu32
                         " came where step %" PRIu64 " is the newest",
                         r->step, part->partition, p->steps);
    return STATUS_OK;
}

static enum status copy_payload(const struct mutation *r, const struct shard_source *source,
                                float *to, size_t count, struct error *err)
{
    if (source)
        return shard_copy_source(source, to, count, err);
    memcpy(to, r->payload, count * sizeof(float));
    return STATUS_OK;
}

/* Set one initial state of the optimizer.  Lock held. */
static enum status apply_state(struct shard *s, struct shard_part *part, const struct mutation *r,
                               const struct shard_source *source, struct error *err)
{
    unsigned index = (unsigned)r->step;
    enum status status =
        copy_payload(r, source, s->optimizer.state[index] + part->offset, part->count, err);

    part->states_set |= 1u << index;
    return status == STATUS_OK ? shard_emit_state(s, part, index, err) : status;
}

/* Update values and encoding by the payload, which has been copied.  Lock held. */
static void apply_payload(struct shard *s, struct shard_part *part, const struct mutation *r,
                          float *payload)
{
    if (r->kind == MUTATION_INIT)
        reply_encoding_set_initial(&s->encoding, payload, part->offset, part->count);
    if (r->kind != MUTATION_STEP || !s->config.update)
        return;
    shard_keep_previous(s, part);
    optimizer_update_at(&s->optimizer, r->rate, s->config.steps_before + r->step, part->offset,
                        part->count, s->values + part->offset, payload);
}

/* Encode the common reply of a step, as the other shard did, for the same codec state.  Lock
 * held. */
static enum status encode_step(struct shard *s, const struct shard_part *part,
                               const struct mutation *r, const float *payload, struct error *err)
{
    if (r->kind != MUTATION_STEP)
        return STATUS_OK;
    return reply_encoding_encode(&s->encoding, (size_t)(part - s->parts), part->offset, part->count,
                                 s->config.update ? s->values + part->offset : payload, err);
}

/* Apply a mutation of any other kind than STATE.  Lock held. */
static enum status apply_change(struct shard *s, struct shard_part *part, const struct mutation *r,
                                const struct shard_source *source, struct error *err)
{
    bool init = r->kind == MUTATION_INIT;
    float *payload = (init ? s->values : s->accumulators[r->step % 2]) + part->offset;
    bool was = part->policy.initialised;
    enum status status = STATUS_OK;

    if (r->count > 0)
        status = copy_payload(r, source, payload, part->count, err);
    if (status != STATUS_OK)
        return status;
    part->policy.initialised = was || init;
    if (!policy_restore(&part->policy, r->step, r->clocks, NULL, r->flags)) {
        part->policy.initialised = was;
        return error_set(err, STATUS_DATA,
                         "a record of step %" PRIu64 " of partition %" PRIu32
                         " has clocks or flags that cannot be",
                         r->step, part->partition);
    }
    apply_payload(s, part, r, payload);
    shard_drop_pending(part);
    part->summed = 0;
    part->next_rank = 0;
    status = shard_emit_mutation(s, part, r->kind, r->rate, r->count > 0 ? payload : NULL, err);
    return status == STATUS_OK ? encode_step(s, part, r, payload, err) : status;
}

enum status shard_apply(struct shard *s, const struct mutation *mutation,
                        const struct shard_source *source, bool *ret_applied, struct error *err)
{
    struct shard_part *part = shard_find(s, mutation->partition);
    bool known = false;
    enum status status;

    if (!part)
        return error_set(err, STATUS_DATA, "a record is of partition %" PRIu32 ", not held here",
                         mutation->partition);
    (void)pthread_mutex_lock(&part->lock);
    status = check_mutation(s, part, mutation, &known, err);
    if (status == STATUS_OK && !known)
        status = mutation->kind == MUTATION_STATE ? apply_state(s, part, mutation, source, err)
                                                  : apply_change(s, part, mutation, source, err);
    (void)pthread_mutex_unlock(&part->lock);
    if (status == STATUS_OK)
        *ret_applied = !known;
    return status;
}
