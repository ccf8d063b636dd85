/*
 * shard_reply: initial values, pulls, row selection, and the data of each reply.
 *
 * In lockstep all replies are sent from one slab (selected rows from a buffer of the rank); else
 * each is copied to the rank's slab of `rank_values` under the lock.  The reply to a pull has
 * values, never a delta against what the rank holds (server/shard/reply_encoding.h).
 */
#include "server/shard/shard_internal.h"

#include <inttypes.h>
#include <string.h>

/* The data of a reply to `rank`, not coded.  whole: not as a delta.  Lock held. */
static const float *reply_data(struct shard *s, const struct shard_part *part, unsigned rank,
                               bool whole)
{
    float *copy;

    if (!s->rank_values)
        return (s->config.update ? s->values : s->accumulators[part->policy.steps % 2]) +
               part->offset;
    copy = s->rank_values + rank * s->count + part->offset;
    reply_encoding_encode_for_rank(&s->encoding, rank, (size_t)(part - s->parts), part->offset,
                                   part->count, s->values + part->offset, copy, whole);
    return copy;
}

uint64_t shard_target_staleness(const struct shard_config *c, unsigned rank, uint64_t round)
{
    for (size_t i = c->rule_count; i-- > 0;) {
        const struct exact_staleness *r = &c->rules[i];

        if (r->rank == rank && r->first <= round && round <= r->last)
            return r->steps;
    }
    return POLICY_NO_TARGET;
}

/* The rank's buffer for coded rows. */
static uint8_t *selection_buffer(struct shard *s, const struct shard_part *part, unsigned rank)
{
    size_t at = rank * s->count + part->offset;

    return s->rank_values ? (uint8_t *)(s->rank_values + at)
                          : s->selection.coded + at * sizeof(float);
}

/* Fill the reply with the rows of `values` (of the whole shard) that the rank has selected; false:
 * it gets all rows.  Uses up the selection.  Lock held. */
static bool fill_selected_rows(struct shard *s, const struct shard_part *part, unsigned rank,
                               const float *values, struct shard_reply *ret)
{
    size_t local_index = (size_t)(part - s->parts);
    uint8_t *buffer;

    if (!s->selection.bits || !*row_selection_flag(&s->selection, local_index, rank))
        return false;
    *row_selection_flag(&s->selection, local_index, rank) = false;
    buffer = selection_buffer(s, part, rank);
    ret->bytes =
        ret->is_final
            ? 0
            : codec_encode_selected_rows(values + part->offset,
                                         row_selection_bits(&s->selection, local_index, rank),
                                         part->count, buffer);
    if (ret->bytes == 0)
        return false;
    ret->data = values + part->offset;
    ret->coded = buffer;
    ret->codec.kind = CODEC_SELECTED_ROWS;
    return true;
}

size_t shard_selected_bytes(const struct shard *s, const struct shard_part *part)
{
    size_t local_index = (size_t)(part - s->parts), sum = 0;

    for (unsigned rank = 0; s->selection.bits && rank < s->config.world_size; rank++) {
        const struct policy_rank *r = &part->policy.ranks[rank];
        bool selected = *row_selection_flag(&s->selection, local_index, rank);
        size_t bytes = selected
                           ? codec_selected_rows_bytes(
                                 row_selection_bits(&s->selection, local_index, rank), part->count)
                           : 0;

        if (!r->vacant && r->clock == part->policy.steps)
            sum += bytes > 0 ? bytes : part->count * sizeof(float);
    }
    return sum;
}

/* The fields beside the data.  Lock held. */
static void fill_reply_header(struct shard *s, struct shard_part *part, unsigned rank,
                              struct shard_reply *ret)
{
    struct policy *p = &part->policy;

    ret->round = consistency_steps_per_push(&p->consistency) ? p->ranks[rank].clock : p->steps;
    ret->is_final = p->ranks[rank].finished;
    ret->count = part->count;
    ret->sequence = part->sequence;
    if (s->held_sources)
        policy_set_target(p, rank,
                          shard_target_staleness(&s->config, rank, p->ranks[rank].clock + 1));
}

/* Fill the reply with all rows of a partition, or with a delta.  Lock held. */
static void fill_all_rows(struct shard *s, struct shard_part *part, unsigned rank, bool whole,
                          struct shard_reply *ret)
{
    size_t local_index = (size_t)(part - s->parts);
    const float *common_copy = reply_encoding_common_copy(&s->encoding, part->offset);

    ret->data = reply_data(s, part, rank, whole || ret->is_final);
    ret->codec = s->encoding.codec;
    if (!whole || !s->encoding.sends_deltas)
        ret->coded = reply_encoding_coded(&s->encoding, rank, local_index);
    if (!ret->coded && common_copy)
        ret->data = common_copy;
    ret->bytes = ret->coded ? reply_encoding_size(&s->encoding, rank, local_index, part->count)
                            : part->count * sizeof(float);
}

void shard_fill_reply(struct shard *s, struct shard_part *part, unsigned rank,
                      struct shard_reply *ret)
{
    fill_reply_header(s, part, rank, ret);
    if (!fill_selected_rows(s, part, rank, s->values, ret))
        fill_all_rows(s, part, rank, false, ret);
}

/* The reply to a pull: all values (rounded if all ranks hold rounded values) or the selected rows;
 * older: the values before the last step.  Lock held. */
static void fill_pull_reply(struct shard *s, struct shard_part *part, unsigned rank, bool older,
                            struct shard_reply *ret)
{
    fill_reply_header(s, part, rank, ret);
    ret->round -= older;
    if (fill_selected_rows(s, part, rank, older ? s->previous : s->values, ret))
        return;
    fill_all_rows(s, part, rank, true, ret);
    if (!older)
        return;
    ret->data = s->previous + part->offset;
    ret->coded = NULL;
    ret->bytes = part->count * sizeof(float);
}

static void fill_newest_reply(struct shard *s, struct shard_part *part, unsigned rank,
                              struct shard_reply *ret)
{
    fill_pull_reply(s, part, rank, false, ret);
}

/* ------------------------------------------------------------------ row selection */

/* The body of shard_select_rows.  Lock held. */
static enum status select_rows_locked(struct shard *s, struct shard_part *part, unsigned rank,
                                      bool again, const struct row_reader *source,
                                      struct error *err)
{
    const struct policy_rank *r = &part->policy.ranks[rank];
    size_t local_index = (size_t)(part - s->parts);
    bool waits = r->parked || r->read == POLICY_READ_PARKED;
    struct codec_selection_decoder decoder;
    bool *selected;
    enum status status;

    if (!s->selection.bits || r->vacant || waits)
        return error_set(err, STATUS_PROTOCOL, "the row selection of partition %" PRIu32 " %s",
                         part->partition,
                         !s->selection.bits ? "came in a job without row selection"
                         : waits            ? "came while a reply to the rank is pending"
                                            : policy_outcome_text(POLICY_VACANT));
    selected = row_selection_flag(&s->selection, local_index, rank);
    if (*selected && !again)
        return error_set(err, STATUS_PROTOCOL,
                         "the row selection of partition %" PRIu32 " came twice", part->partition);
    *selected = false;
    codec_selection_decode_start(&decoder, row_selection_bits(&s->selection, local_index, rank),
                                 part->count);
    status = source->read(source->user, &decoder, err);
    if (status == STATUS_OK)
        status = codec_selection_decode_end(&decoder, err);
    *selected = status == STATUS_OK;
    return status;
}

enum status shard_select_rows(struct shard *s, uint32_t partition, unsigned rank, bool again,
                              const struct row_reader *source, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    status = select_rows_locked(s, part, rank, again, source, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

void shard_clear_selection(struct shard *s, const struct shard_part *part, unsigned rank)
{
    if (s->selection.bits)
        *row_selection_flag(&s->selection, (size_t)(part - s->parts), rank) = false;
}

/* ------------------------------------------------------------------ initial values */

/* Emit the optimizer's states directly before the values, so that a replica and a journal have both
 * or neither.  Lock held. */
static enum status emit_optimizer_states(struct shard *s, struct shard_part *part,
                                         struct error *err)
{
    enum status status = STATUS_OK;

    if (s->config.steps_before == 0 || !s->config.update)
        return STATUS_OK;
    if (part->states_set != (1u << s->optimizer.states) - 1)
        return error_set(err, STATUS_PROTOCOL,
                         "the initial value of partition %" PRIu32
                         " came without the optimizer's state after %" PRIu64 " steps",
                         part->partition, s->config.steps_before);
    for (unsigned i = 0; status == STATUS_OK && i < s->optimizer.states; i++)
        status = shard_emit_state(s, part, i, err);
    return status;
}

/* The body of shard_set.  Lock held. */
static enum status set_locked(struct shard *s, struct shard_part *part,
                              const struct shard_source *source, struct error *err)
{
    float *values = s->values + part->offset;
    enum status status = shard_copy_source(source, values, part->count, err);

    if (status != STATUS_OK)
        return status;
    status = emit_optimizer_states(s, part, err);
    if (status != STATUS_OK)
        return status;
    (void)policy_set(&part->policy);
    reply_encoding_set_initial(&s->encoding, values, part->offset, part->count);
    return shard_emit_mutation(s, part, MUTATION_INIT, 0, values, err);
}

enum status shard_set_state(struct shard *s, uint32_t partition, unsigned index,
                            const struct shard_source *source, bool again, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    if (!s->config.update || s->config.steps_before == 0 || index >= s->optimizer.states)
        return error_set(err, STATUS_PROTOCOL,
                         "state %u of the optimizer of partition %" PRIu32
                         " came where none is wanted",
                         index, partition);
    (void)pthread_mutex_lock(&part->lock);
    if (!part->policy.initialised) {
        status =
            shard_copy_source(source, s->optimizer.state[index] + part->offset, part->count, err);
        part->states_set |= status == STATUS_OK ? 1u << index : 0;
    } else if (!again) {
        status = error_set(err, STATUS_PROTOCOL,
                           "state %u of the optimizer of partition %" PRIu32
                           " came behind the initial value",
                           index, partition);
    }
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

enum status shard_set(struct shard *s, uint32_t partition, const struct shard_source *source,
                      bool again, bool *ret_again, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&part->lock);
    *ret_again = part->policy.initialised;
    if (!*ret_again)
        status = set_locked(s, part, source, err);
    else if (!again)
        status = error_set(err, STATUS_PROTOCOL, "the initial value of partition %" PRIu32 " %s",
                           partition, policy_outcome_text(POLICY_TWICE));
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

/* Are the values of that round here, or the initial values still to come?  Lock held. */
static enum status check_pull(const struct shard *s, const struct shard_part *part, uint64_t round,
                              struct error *err)
{
    const struct policy *p = &part->policy;

    if (!s->config.update && p->steps > 0)
        return error_set(err, STATUS_PROTOCOL,
                         "the pull of partition %" PRIu32
                         " asks for values, but the optimizer runs on the workers",
                         part->partition);
    if (round == 0 || !consistency_is_lockstep(&p->consistency) || round == p->steps + 1 ||
        (s->previous && round == p->steps))
        return STATUS_OK;
    return error_set(err, STATUS_PROTOCOL,
                     "the pull of partition %" PRIu32 " asks for round %" PRIu64
                     ", which is not here (round %" PRIu64 " is complete)",
                     part->partition, round - 1, p->steps);
}

/* The body of shard_pull.  Lock held. */
static enum status pull_locked(struct shard *s, struct shard_part *part, unsigned rank,
                               uint64_t round, bool again, struct shard_reply *ret,
                               struct error *err)
{
    struct policy *p = &part->policy;
    enum policy_outcome outcome;
    enum status status = check_pull(s, part, round, err);

    if (status != STATUS_OK)
        return status;
    outcome = policy_pull(p, rank, again);
    if (outcome == POLICY_TWICE || outcome == POLICY_VACANT)
        return error_set(err, STATUS_PROTOCOL, "the pull of partition %" PRIu32 " %s",
                         part->partition, policy_outcome_text(outcome));
    ret->again = outcome == POLICY_AGAIN || outcome == POLICY_AGAIN_WAITS;
    if (p->initialised && part->deferred > 0 && (round == 0 || round == p->steps + 1)) {
        p->ranks[rank].read = POLICY_READ_PARKED;
        return STATUS_OK;
    }
    ret->complete = outcome == POLICY_COMPLETE || outcome == POLICY_AGAIN;
    if (!ret->complete)
        return STATUS_OK;
    fill_pull_reply(s, part, rank, s->previous && round > 0 && round == p->steps, ret);
    return STATUS_OK;
}

enum status shard_pull(struct shard *s, uint32_t partition, unsigned rank, uint64_t round,
                       bool again, struct shard_reply *ret, struct error *err)
{
    struct shard_part *part = NULL;
    enum status status = shard_look_up(s, partition, &part, err);

    if (status != STATUS_OK)
        return status;
    *ret = (struct shard_reply){0};
    (void)pthread_mutex_lock(&part->lock);
    status = part->failed ? shard_refuse_failed(part, err)
                          : pull_locked(s, part, rank, round, again, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

/* ------------------------------------------------------------------ pending replies */

/* Find the next rank that may be answered, and fill its reply. */
static bool next_reply(struct shard *s, uint32_t partition, unsigned *rank, struct shard_reply *ret,
                       bool (*find)(struct policy *p, unsigned *rank),
                       void (*fill)(struct shard *s, struct shard_part *part, unsigned rank,
                                    struct shard_reply *ret))
{
    struct shard_part *part = shard_find(s, partition);
    bool found;

    *ret = (struct shard_reply){0};
    if (!part)
        return false;
    (void)pthread_mutex_lock(&part->lock);
    found = part->deferred == 0 && !part->failed && find(&part->policy, rank);
    if (found)
        fill(s, part, *rank, ret);
    (void)pthread_mutex_unlock(&part->lock);
    return found;
}

bool shard_next_parked(struct shard *s, uint32_t partition, unsigned *ret_rank,
                       struct shard_reply *ret)
{
    return next_reply(s, partition, ret_rank, ret, policy_next_parked, fill_newest_reply);
}

void shard_release_replies(struct shard *s, uint32_t partition)
{
    struct shard_part *part = shard_find(s, partition);

    if (!part || !s->config.defer_replies)
        return;
    (void)pthread_mutex_lock(&part->lock);
    part->deferred -= part->deferred > 0;
    (void)pthread_mutex_unlock(&part->lock);
}

bool shard_next_reply(struct shard *s, uint32_t partition, unsigned *rank, struct shard_reply *ret)
{
    return next_reply(s, partition, rank, ret, policy_next_reply, shard_fill_reply);
}
