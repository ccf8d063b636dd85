/*
 * tie: what binds a call (an Exchange stream, an Attend call) to a rank's slot, from the message
 * that says whose it is until the call is closed.
 */
#ifndef SPARRING_SERVER_TIE_H
#define SPARRING_SERVER_TIE_H

#include "server/service_internal.h"

struct tie {
    struct service *service;
    struct job *job; /* one use of it; NULL: not bound */
    unsigned rank;
    uint64_t connection; /* of the slot, when it was bound */
};

/* May a call of this rank and session be bound now?  Lock held; j may be NULL;
 * what: "sent a chunk".
 *   STATUS_PROTOCOL     no job runs, or the rank is not in it
 *   STATUS_PEER_LOST    the rank's place is another session's, or nobody's
 *   STATUS_UNAVAILABLE  the connection was cut off meanwhile: join again */
enum status tie_check(const struct job *j, unsigned rank, uint64_t session, const char *what,
                      struct error *err);

/* Bind a call that tie_check allows: one more use of the job, one more call of the slot, and a
 * reference to the call, which the caller puts to its place in the slot.  Lock held. */
void tie_bind(struct tie *t, struct job *j, unsigned rank, struct rpc_call *call);

/* It still belongs to whoever holds the slot.  Lock held. */
bool tie_holds(const struct tie *t);

/* The call is closed: give back what tie_bind took.  *place is the call's place in the slot.  No
 * lock. */
void tie_release(struct tie *t, struct rpc_call *call, struct rpc_call **place);

/* The call broke, and with it the connection that it belongs to; see loss.c.  No lock. */
void tie_cut(const struct tie *t, const char *how);

#endif
