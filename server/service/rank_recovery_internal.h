/*
 * rank_recovery_internal: what rank_recovery.c and rank_return.c share.  The supervisor calls all
 * of it; the lock is held on entry and return, and dropped meanwhile, unless said otherwise.
 */
#ifndef SPARRING_SERVER_SERVICE_RANK_RECOVERY_INTERNAL_H
#define SPARRING_SERVER_SERVICE_RANK_RECOVERY_INTERNAL_H

#include "server/service/service_internal.h"

/* Why it is not welcome after all. */
#define RECOVERY_PLACE_GONE "its place is another session's, or vacant, by now"

/* The join that waits for this rank's slot: the slot is another's, or it has waited too long. */
void rank_recovery_refuse_join(struct service *s, struct job *j, unsigned rank);

/* Its session holds the slot again, as if nothing had happened: where it waits to be told that it
 * is in, it still does. */
void rank_recovery_bring_back(struct service *s, struct job *j, unsigned rank);

/* Another session takes the place: of one that was waited for, or in the round under way. */
void rank_recovery_take_slot(struct service *s, struct job *j, unsigned rank);

/* Whoever took the slot is told that it is in. */
void rank_recovery_reply(struct service *s, struct job *j, unsigned rank);

/* Who took the slot and waits to be told, which it will not be: for rank_recovery_end_pending; or
 * NULL.  The lock stays held. */
struct rpc_call *rank_recovery_take_pending(struct job_rank *r);

/* No lock; drops the reference.  NULL allowed. */
void rank_recovery_end_pending(struct rpc_call *call, const char *why);

#endif
