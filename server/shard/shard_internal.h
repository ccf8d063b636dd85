/*
 * shard: what its sources share.
 *
 *   shard.c        memory, and finding partitions
 *   shard_push.c   contributions: sums and steps
 *   shard_reply.c  initial values, rows by name, and replies
 *   shard_slots.c  ranks that finish, leave, come and come back
 *   mutation.c     records: given to the sinks
 *   mutation_apply.c  and applied here
 *   shard_state.c  one partition as a whole, out and in
 */
#ifndef SPARRING_SERVER_SHARD_SHARD_INTERNAL_H
#define SPARRING_SERVER_SHARD_SHARD_INTERNAL_H

#include "server/shard/shard.h"

/* NULL where the partition does not exist or is not held here. */
struct shard_part *shard_find(const struct shard *s, uint32_t partition);

/* The same, or STATUS_PROTOCOL. */
enum status shard_look_up(const struct shard *s, uint32_t partition, struct shard_part **ret,
                          struct error *err);

/* Let go of a kept contribution; of none, too. */
void shard_drop_kept(struct shard_source *kept);

/* ------------------------------------------------------------------ the partition's lock held */

/* The policy has said that `rank` reads now: data and what goes with it, in *ret, which has
 * neither.
 */
void shard_answer_rank(struct shard *s, struct shard_part *part, unsigned rank,
                       struct shard_reply *ret);

/* In lockstep, once a round is whole: of the answers to those who contributed to it, where rows are
 * named; else 0. */
size_t shard_named_bytes(const struct shard *s, const struct shard_part *part);

/* Another one holds the rank's slot, who names rows of its own. */
void shard_forget_names(struct shard *s, const struct shard_part *part, unsigned rank);

/* Other steps that are to come before the rank's push of that round; POLICY_NO_TARGET: any. */
uint64_t shard_wanted_staleness(const struct shard_config *c, unsigned rank, uint64_t round);

/* Rank order: sum contributions that came early and whose turn has come. */
void shard_sum_early(struct shard *s, struct shard_part *part, uint64_t round);

/* The policy has completed a round: scale, step, tell the sink, code the answer to all, fill ret.
 */
enum status shard_complete(struct shard *s, struct shard_part *part, struct shard_reply *ret,
                           struct error *err);

/* Keep what the ranks hold before a step that the policy has counted, where that is asked for. */
void shard_keep_previous(struct shard *s, const struct shard_part *part);

/* STATUS_CANCELLED: the record of an earlier change is lost, and the job is about to end by that.
 */
enum status shard_refuse_failed(const struct shard_part *part, struct error *err);

/* Tell the sink, if there is one; when it fails the partition has failed. */
enum status shard_tell(struct shard *s, struct shard_part *part, enum mutation_kind kind,
                       double rate, const float *payload, struct error *err);

/* The same of initial state `index` of the optimizer. */
enum status shard_tell_state(struct shard *s, struct shard_part *part, unsigned index,
                             struct error *err);

#endif
