/*
 * Mutations of another shard: applied in order they make this one the same, bit for bit.
 */
#include "server/shard/shard_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Is it a record of this partition, whose turn it is?  *ret_known: it is in already.  Lock held. */
static enum status check_record(const struct shard *s, const struct shard_part *part,
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
        *ret_known = p->initialised || part->stated & 1u << r->step;
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
        return source->copy(source->user, to, count, err);
    memcpy(to, r->payload, count * sizeof(float));
    return STATUS_OK;
}

/* Lock held. */
static enum status apply_state(struct shard *s, struct shard_part *part, const struct mutation *r,
                               const struct shard_source *source, struct error *err)
{
    unsigned index = (unsigned)r->step;
    enum status status =
        copy_payload(r, source, s->optimizer.state[index] + part->offset, part->count, err);

    part->stated |= 1u << index;
    return status == STATUS_OK ? shard_tell_state(s, part, index, err) : status;
}

/* The payload is in `payload`.  Lock held. */
static void apply_payload(struct shard *s, struct shard_part *part, const struct mutation *r,
                          float *payload)
{
    if (r->kind == MUTATION_INIT)
        reply_encoding_begin(&s->down, payload, part->offset, part->count);
    if (r->kind != MUTATION_STEP || !s->config.update)
        return;
    shard_keep_previous(s, part);
    optimizer_update_at(&s->optimizer, r->rate, s->config.steps_before + r->step, part->offset,
                        part->count, s->values + part->offset, payload);
}

/* What the ranks are told of the record, and what they are not.  Lock held. */
static enum status apply_told(struct shard *s, const struct shard_part *part,
                              const struct mutation *r, const float *payload, struct error *err)
{
    if (r->kind != MUTATION_STEP)
        return STATUS_OK;
    return reply_encoding_encode(&s->down, (size_t)(part - s->parts), part->offset, part->count,
                                 s->config.update ? s->values + part->offset : payload, err);
}

/* Lock held. */
static enum status apply(struct shard *s, struct shard_part *part, const struct mutation *r,
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
    part->summed = 0;
    part->turn = 0;
    status = shard_tell(s, part, r->kind, r->rate, r->count > 0 ? payload : NULL, err);
    return status == STATUS_OK ? apply_told(s, part, r, payload, err) : status;
}

enum status shard_apply(struct shard *s, const struct mutation *record,
                        const struct shard_source *source, bool *ret_applied, struct error *err)
{
    struct shard_part *part = shard_find(s, record->partition);
    bool known = false;
    enum status status;

    if (!part)
        return error_set(err, STATUS_DATA, "a record is of partition %" PRIu32 ", not held here",
                         record->partition);
    (void)pthread_mutex_lock(&part->lock);
    status = check_record(s, part, record, &known, err);
    if (status == STATUS_OK && !known)
        status = record->kind == MUTATION_STATE ? apply_state(s, part, record, source, err)
                                                : apply(s, part, record, source, err);
    (void)pthread_mutex_unlock(&part->lock);
    if (status == STATUS_OK)
        *ret_applied = !known;
    return status;
}
