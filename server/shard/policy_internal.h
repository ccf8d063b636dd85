/*
 * policy: what its sources share.
 *
 *   policy.c        contributions, and the replies that they make due
 *   policy_ranks.c  ranks that finish, leave, join and reconnect; save and restore
 */
#ifndef SPARRING_SERVER_SHARD_POLICY_INTERNAL_H
#define SPARRING_SERVER_SHARD_POLICY_INTERNAL_H

#include "server/shard/policy.h"

/* Contributions that complete the round under way; inactive ranks that have not contributed to it
 * are not waited for. */
unsigned policy_required(const struct policy *p);

/* Count a step of that many contributions. */
void policy_count_step(struct policy *p, unsigned contributions);

/* The rank's clock without a held contribution, which no other rank can have read yet. */
uint64_t policy_applied_clock(const struct policy_rank *r);

/* Update p->slowest, which only ssp uses. */
void policy_update_slowest(struct policy *p);

#endif
