/*
 * policy: what its sources share.
 *
 *   policy.c        contributions, and whom they allow to be answered
 *   policy_slots.c  ranks that finish, leave, come and come back; what outlives a server
 */
#ifndef SPARRING_SERVER_SHARD_POLICY_INTERNAL_H
#define SPARRING_SERVER_SHARD_POLICY_INTERNAL_H

#include "server/shard/policy.h"

/* Contributions that complete the round under way: of ranks that are gone without one none will
 * come. */
unsigned policy_required(const struct policy *p);

/* A step of that many contributions is made. */
void policy_complete(struct policy *p, unsigned contributions);

/* Without a contribution that is held: it is not to be read yet. */
uint64_t policy_applied_clock(const struct policy_rank *r);

/* Only ssp asks for `slowest`. */
void policy_find_slowest(struct policy *p);

#endif
