/*
 * shard: what its sources share.
 *
 *   shard.c           memory, and finding partitions
 *   shard_push.c      contributions: accepted, held, and steps
 *   shard_sum.c       sums, and the optimizer's pass over them
 *   shard_reply.c     initial values, row selection, and replies
 *   shard_ranks.c     ranks that finish, leave, join and reconnect
 *   mutation.c        mutations: emitted to the sinks
 *   mutation_apply.c  mutations of another shard: applied to this one
 *   shard_state.c     export and import of a partition's state
 */
#ifndef SPARRING_SERVER_SHARD_SHARD_INTERNAL_H
#define SPARRING_SERVER_SHARD_SHARD_INTERNAL_H

#include "server/shard/shard.h"

/* NULL where the partition does not exist or is not held here. */
struct shard_part *shard_find(const struct shard *s, uint32_t partition);

/* The same, or STATUS_PROTOCOL. */
enum status shard_look_up(const struct shard *s, uint32_t partition, struct shard_part **ret,
                          struct error *err);

/* Release a kept contribution; an empty one is allowed. */
void shard_drop_kept(struct shard_source *kept);

/* The rank's part of `early`; rank >= 2. */
static inline float *shard_early_part(const struct shard *s, const struct shard_part *part,
                                      unsigned rank)
{
    return s->early + (rank - 2) * s->count + part->offset;
}

/* ------------------------------------------------------------------ the partition's lock held */

/* Fill the data fields of *ret with the reply to `rank`, which the policy allows now. */
void shard_fill_reply(struct shard *s, struct shard_part *part, unsigned rank,
                      struct shard_reply *ret);

/* In lockstep with row selection, once a round is complete: bytes of the replies to all ranks that
 * contributed to it.  Without row selection 0. */
size_t shard_selected_bytes(const struct shard *s, const struct shard_part *part);

/* Another session has the rank now: drop the row selection of the last one. */
void shard_clear_selection(struct shard *s, const struct shard_part *part, unsigned rank);

/* Required staleness of the rank's push of that round, in steps; POLICY_NO_TARGET: any. */
uint64_t shard_target_staleness(const struct shard_config *c, unsigned rank, uint64_t round);

/* Returns the errors of the source's copy. */
enum status shard_copy_source(const struct shard_source *source, float *dst, size_t count,
                              struct error *err);

/* Sum a contribution from its source, or note it as pending.  completes: shard_step follows before
 * the source ends. */
enum status shard_sum_source(struct shard_part *part, float *sum, const struct shard_source *source,
                             bool completes, struct error *err);

/* Rank order: sum the early contributions whose turn it is. */
void shard_sum_early(struct shard *s, struct shard_part *part, uint64_t round);

/* Sum the pending contributions now; none are allowed. */
void shard_sum_pending(struct shard_part *part, float *sum);
void shard_drop_pending(struct shard_part *part);

/* Add what is pending to `sum`, scale it, and update the values by it if the optimizer runs here,
 * with that learning rate.  Then `sum` is whole only if something else needs it: the replies, or a
 * sink.  The accumulator is empty afterwards. */
void shard_step(struct shard *s, struct shard_part *part, float *sum, float scale, double rate);

/* The policy has completed a round: scale, step, encode the common reply, emit the mutation, fill
 * ret. */
enum status shard_complete(struct shard *s, struct shard_part *part, struct shard_reply *ret,
                           struct error *err);

/* Copy the values that the ranks hold before a step; only with config.previous. */
void shard_keep_previous(struct shard *s, const struct shard_part *part);

/* STATUS_CANCELLED: an earlier mutation was lost, and the job is about to end for it. */
enum status shard_refuse_failed(const struct shard_part *part, struct error *err);

bool shard_has_sink(const struct shard *s);

/* Emit a mutation to the sinks, if there are any; if one fails, the partition is marked failed. */
enum status shard_emit_mutation(struct shard *s, struct shard_part *part, enum mutation_kind kind,
                                double rate, const float *payload, struct error *err);

/* The same for initial state `index` of the optimizer. */
enum status shard_emit_state(struct shard *s, struct shard_part *part, unsigned index,
                             struct error *err);

#endif
