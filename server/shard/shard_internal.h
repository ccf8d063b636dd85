/*
 * shard: what its sources share.
 *
 *   shard.c           memory, and finding partitions
 *   shard_push.c      contributions: sums and steps
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

/* Release a held contribution; an empty one is allowed. */
void shard_drop_held(struct shard_source *held);

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

/* Rank order: sum the early contributions whose turn it is. */
void shard_sum_early(struct shard *s, struct shard_part *part, uint64_t round);

/* The policy has completed a round: scale, step, encode the common reply, emit the mutation, fill
 * ret. */
enum status shard_complete(struct shard *s, struct shard_part *part, struct shard_reply *ret,
                           struct error *err);

/* Copy the values that the ranks hold before a step; only with config.previous. */
void shard_keep_previous(struct shard *s, const struct shard_part *part);

/* STATUS_CANCELLED: an earlier mutation was lost, and the job is about to end for it. */
enum status shard_refuse_failed(const struct shard_part *part, struct error *err);

/* Emit a mutation to the sinks, if there are any; if one fails, the partition is marked failed. */
enum status shard_emit_mutation(struct shard *s, struct shard_part *part, enum mutation_kind kind,
                                double rate, const float *payload, struct error *err);

/* The same for initial state `index` of the optimizer. */
enum status shard_emit_state(struct shard *s, struct shard_part *part, unsigned index,
                             struct error *err);

#endif
