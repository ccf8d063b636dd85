/*
 * mutation: emits the changes of a shard to its sinks (journal, replica).
 *
 * The caller holds the partition's lock, so each sink gets the mutations of a partition in order.
 * When a sink fails, the partition is marked failed and sends no more replies.
 */
#include "server/shard/shard_internal.h"

#include <inttypes.h>

enum status shard_check_recorded(const struct shard_config *config, struct error *err)
{
    if (config->consistency.delay_compensation > 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "with delay compensation a step depends on what each rank has read, which "
                         "is not kept beyond this server");
    if (config->rule_count > 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "with rules of exact staleness contributions are held, which are not kept "
                         "beyond this server");
    return STATUS_OK;
}

void shard_set_sink(struct shard *s, enum shard_sink_kind kind, const struct shard_sink *sink)
{
    s->sinks[kind] = sink ? *sink : (struct shard_sink){0};
}

bool shard_has_sink(const struct shard *s)
{
    bool any = false;

    for (size_t i = 0; i < SHARD_SINKS; i++)
        any = any || s->sinks[i].on_mutation;
    return any;
}

static enum status emit(struct shard *s, struct shard_part *part, enum mutation_kind kind,
                        uint64_t step, double rate, const float *payload, struct error *err)
{
    size_t ranks = (size_t)(part - s->parts) * s->config.world_size;
    enum status status = STATUS_OK;
    struct mutation mutation = {.kind = kind,
                                .partition = part->partition,
                                .sequence = part->sequence + 1,
                                .step = step,
                                .rate = rate,
                                .world_size = s->config.world_size,
                                .clocks = s->clocks + ranks,
                                .flags = s->flags + ranks,
                                .payload = payload,
                                .count = payload ? part->count : 0};

    if (!shard_has_sink(s))
        return STATUS_OK;
    part->sequence++;
    policy_save(&part->policy, s->clocks + ranks, NULL, s->flags + ranks);
    for (size_t i = 0; status == STATUS_OK && i < SHARD_SINKS; i++)
        if (s->sinks[i].on_mutation)
            status = s->sinks[i].on_mutation(s->sinks[i].user, &mutation, err);
    part->failed = part->failed || status != STATUS_OK;
    return status;
}

enum status shard_emit_mutation(struct shard *s, struct shard_part *part, enum mutation_kind kind,
                                double rate, const float *payload, struct error *err)
{
    return emit(s, part, kind, part->policy.steps, rate, payload, err);
}

enum status shard_emit_state(struct shard *s, struct shard_part *part, unsigned index,
                             struct error *err)
{
    return emit(s, part, MUTATION_STATE, index, 0, s->optimizer.state[index] + part->offset, err);
}

enum status shard_refuse_failed(const struct shard_part *part, struct error *err)
{
    return error_set(err, STATUS_CANCELLED, "a record of partition %" PRIu32 " was lost",
                     part->partition);
}
