/*
 * Initial values, rows by name, and who is answered with what.  In lockstep all answers are sent
 * from one slab; else each is copied to its rank's own memory under the lock.  Values that are
 * pulled come whole: not as a change of what the rank holds (server/reply_encoding.h).
 */
#include "server/shard/shard_internal.h"

#include <inttypes.h>
#include <string.h>

/* Where an answer to `rank` lies, if it is not coded.  Lock held. */
static const float *answer_data(struct shard *s, const struct shard_part *part, unsigned rank,
                                bool whole)
{
    float *copy;

    if (!s->sent)
        return (s->config.update ? s->values : s->accumulators[part->policy.steps % 2]) +
               part->offset;
    copy = s->sent + rank * s->count + part->offset;
    reply_encoding_tell(&s->down, rank, (size_t)(part - s->parts), part->offset, part->count,
                        s->values + part->offset, copy, whole);
    return copy;
}

uint64_t shard_wanted_staleness(const struct shard_config *c, unsigned rank, uint64_t round)
{
    for (size_t i = c->rule_count; i-- > 0;) {
        const struct exact_staleness *r = &c->rules[i];

        if (r->rank == rank && r->first <= round && round <= r->last)
            return r->steps;
    }
    return POLICY_NO_TARGET;
}

/* Memory of the rank's own, for rows that it has named. */
static uint8_t *named_place(struct shard *s, const struct shard_part *part, unsigned rank)
{
    size_t at = rank * s->count + part->offset;

    return s->sent ? (uint8_t *)(s->sent + at) : s->names.coded + at * sizeof(float);
}

/* Answer with the rows of `values` (of the whole shard) that the rank has named; false: it is told
 * all of them.  Lock held. */
static bool answer_named(struct shard *s, const struct shard_part *part, unsigned rank,
                         const float *values, struct shard_reply *ret)
{
    size_t slot = (size_t)(part - s->parts);
    uint8_t *place;

    if (!s->names.set || !*row_selection_is_set(&s->names, slot, rank))
        return false;
    *row_selection_is_set(&s->names, slot, rank) = false;
    place = named_place(s, part, rank);
    ret->bytes = ret->is_final ? 0
                               : codec_encode_selected_rows(values + part->offset,
                                                            row_selection_of(&s->names, slot, rank),
                                                            part->count, place);
    if (ret->bytes == 0)
        return false;
    ret->data = values + part->offset;
    ret->coded = place;
    ret->codec.kind = CODEC_SELECTED_ROWS;
    return true;
}

size_t shard_named_bytes(const struct shard *s, const struct shard_part *part)
{
    size_t slot = (size_t)(part - s->parts), sum = 0;

    for (unsigned rank = 0; s->names.set && rank < s->config.world_size; rank++) {
        const struct policy_rank *r = &part->policy.ranks[rank];
        bool named = *row_selection_is_set(&s->names, slot, rank);
        size_t bytes =
            named ? codec_selected_rows_bytes(row_selection_of(&s->names, slot, rank), part->count)
                  : 0;

        if (!r->vacant && r->clock == part->policy.steps)
            sum += bytes > 0 ? bytes : part->count * sizeof(float);
    }
    return sum;
}

/* What is told beside the values.  Lock held. */
static void describe(struct shard *s, struct shard_part *part, unsigned rank,
                     struct shard_reply *ret)
{
    struct policy *p = &part->policy;

    ret->round = consistency_steps_per_push(&p->consistency) ? p->ranks[rank].clock : p->steps;
    ret->is_final = p->ranks[rank].finished;
    ret->count = part->count;
    ret->sequence = part->sequence;
    if (s->kept)
        policy_aim(p, rank, shard_wanted_staleness(&s->config, rank, p->ranks[rank].clock + 1));
}

/* All of a partition, or what has changed of it.  Lock held. */
static void answer_all(struct shard *s, struct shard_part *part, unsigned rank, bool whole,
                       struct shard_reply *ret)
{
    size_t slot = (size_t)(part - s->parts);
    const float *held = reply_encoding_whole(&s->down, part->offset);

    ret->data = answer_data(s, part, rank, whole || ret->is_final);
    ret->codec = s->down.codec;
    if (!whole || !s->down.tells_changes)
        ret->coded = reply_encoding_coded(&s->down, rank, slot);
    if (!ret->coded && held)
        ret->data = held;
    ret->bytes = ret->coded ? reply_encoding_size(&s->down, rank, slot, part->count)
                            : part->count * sizeof(float);
}

void shard_answer_rank(struct shard *s, struct shard_part *part, unsigned rank,
                       struct shard_reply *ret)
{
    describe(s, part, rank, ret);
    if (!answer_named(s, part, rank, s->values, ret))
        answer_all(s, part, rank, false, ret);
}

/* The answer to a pull: values, rounded where all ranks' are, or named rows of them; older: those
 * before the last step.  Lock held. */
static void reply_pull(struct shard *s, struct shard_part *part, unsigned rank, bool older,
                       struct shard_reply *ret)
{
    describe(s, part, rank, ret);
    ret->round -= older;
    if (answer_named(s, part, rank, older ? s->previous : s->values, ret))
        return;
    answer_all(s, part, rank, true, ret);
    if (!older)
        return;
    ret->data = s->previous + part->offset;
    ret->coded = NULL;
    ret->bytes = part->count * sizeof(float);
}

static void answer_newest(struct shard *s, struct shard_part *part, unsigned rank,
                          struct shard_reply *ret)
{
    reply_pull(s, part, rank, false, ret);
}

/* ------------------------------------------------------------------ rows by name */

/* Lock held. */
static enum status name(struct shard *s, struct shard_part *part, unsigned rank, bool again,
                        const struct row_reader *source, struct error *err)
{
    const struct policy_rank *r = &part->policy.ranks[rank];
    size_t slot = (size_t)(part - s->parts);
    bool waits = r->parked || r->read == POLICY_READ_PARKED;
    struct codec_selection_decoder names;
    bool *named;
    enum status status;

    if (!s->names.set || r->vacant || waits)
        return error_set(err, STATUS_PROTOCOL, "the names of rows of partition %" PRIu32 " %s",
                         part->partition,
                         !s->names.set ? "came in a job whose terms name none"
                         : waits       ? "came while the rank waits for its answer"
                                       : policy_verdict_text(POLICY_VACANT));
    named = row_selection_is_set(&s->names, slot, rank);
    if (*named && !again)
        return error_set(err, STATUS_PROTOCOL,
                         "the names of rows of partition %" PRIu32 " came twice", part->partition);
    *named = false;
    codec_selection_decode_start(&names, row_selection_of(&s->names, slot, rank), part->count);
    status = source->read(source->user, &names, err);
    if (status == STATUS_OK)
        status = codec_selection_decode_end(&names, err);
    *named = status == STATUS_OK;
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
    status = name(s, part, rank, again, source, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

void shard_forget_names(struct shard *s, const struct shard_part *part, unsigned rank)
{
    if (s->names.set)
        *row_selection_is_set(&s->names, (size_t)(part - s->parts), rank) = false;
}

/* ------------------------------------------------------------------ initial values */

/* The optimizer's state is told right before the values, so that a copy of this shard has both or
 * neither.  Lock held. */
static enum status tell_states(struct shard *s, struct shard_part *part, struct error *err)
{
    enum status status = STATUS_OK;

    if (s->config.steps_before == 0 || !s->config.update)
        return STATUS_OK;
    if (part->stated != (1u << s->optimizer.states) - 1)
        return error_set(err, STATUS_PROTOCOL,
                         "the initial value of partition %" PRIu32
                         " came without the optimizer's state after %" PRIu64 " steps",
                         part->partition, s->config.steps_before);
    for (unsigned i = 0; status == STATUS_OK && i < s->optimizer.states; i++)
        status = shard_tell_state(s, part, i, err);
    return status;
}

/* Lock held. */
static enum status set(struct shard *s, struct shard_part *part, const struct shard_source *source,
                       struct error *err)
{
    float *values = s->values + part->offset;
    enum status status = source->copy(source->user, values, part->count, err);

    if (status != STATUS_OK)
        return status;
    status = tell_states(s, part, err);
    if (status != STATUS_OK)
        return status;
    (void)policy_set(&part->policy);
    reply_encoding_begin(&s->down, values, part->offset, part->count);
    return shard_tell(s, part, MUTATION_INIT, 0, values, err);
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
            source->copy(source->user, s->optimizer.state[index] + part->offset, part->count, err);
        part->stated |= status == STATUS_OK ? 1u << index : 0;
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
        status = set(s, part, source, err);
    else if (!again)
        status = error_set(err, STATUS_PROTOCOL, "the initial value of partition %" PRIu32 " %s",
                           partition, policy_verdict_text(POLICY_TWICE));
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

/* Are the values of that round here, or will they be?  Lock held. */
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

/* The body of shard_pull for a held partition.  Lock held. */
static enum status pull(struct shard *s, struct shard_part *part, unsigned rank, uint64_t round,
                        bool again, struct shard_reply *ret, struct error *err)
{
    struct policy *p = &part->policy;
    enum policy_verdict verdict;
    enum status status = check_pull(s, part, round, err);

    if (status != STATUS_OK)
        return status;
    verdict = policy_pull(p, rank, again);
    if (verdict == POLICY_TWICE || verdict == POLICY_VACANT)
        return error_set(err, STATUS_PROTOCOL, "the pull of partition %" PRIu32 " %s",
                         part->partition, policy_verdict_text(verdict));
    ret->again = verdict == POLICY_AGAIN || verdict == POLICY_AGAIN_WAITS;
    if (p->initialised && part->deferred > 0 && (round == 0 || round == p->steps + 1)) {
        p->ranks[rank].read = POLICY_READ_PARKED;
        return STATUS_OK;
    }
    ret->complete = verdict == POLICY_COMPLETE || verdict == POLICY_AGAIN;
    if (!ret->complete)
        return STATUS_OK;
    reply_pull(s, part, rank, s->previous && round > 0 && round == p->steps, ret);
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
    status =
        part->failed ? shard_refuse_failed(part, err) : pull(s, part, rank, round, again, ret, err);
    (void)pthread_mutex_unlock(&part->lock);
    return status;
}

/* ------------------------------------------------------------------ whoever waits */

/* Take one rank off that may be answered, and its answer. */
static bool next(struct shard *s, uint32_t partition, unsigned *rank, struct shard_reply *ret,
                 bool (*take)(struct policy *p, unsigned *rank),
                 void (*answer)(struct shard *s, struct shard_part *part, unsigned rank,
                                struct shard_reply *ret))
{
    struct shard_part *part = shard_find(s, partition);
    bool found;

    *ret = (struct shard_reply){0};
    if (!part)
        return false;
    (void)pthread_mutex_lock(&part->lock);
    found = part->deferred == 0 && !part->failed && take(&part->policy, rank);
    if (found)
        answer(s, part, *rank, ret);
    (void)pthread_mutex_unlock(&part->lock);
    return found;
}

bool shard_next_parked(struct shard *s, uint32_t partition, unsigned *ret_rank,
                       struct shard_reply *ret)
{
    return next(s, partition, ret_rank, ret, policy_next_parked, answer_newest);
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
    return next(s, partition, rank, ret, policy_next_answer, shard_answer_rank);
}
