/*
 * call_binding: what binds a call (an Exchange stream, an Attend call) to a rank's slot, from the
 * message that says whose it is until the call is closed.
 */
#ifndef SPARRING_SERVER_SERVICE_CALL_BINDING_H
#define SPARRING_SERVER_SERVICE_CALL_BINDING_H

#include "server/service/service_internal.h"

struct call_binding {
    struct service *service;
    struct job *job; /* one use of it; NULL: not bound */
    unsigned rank;
    uint64_t connection; /* of the slot, when it was bound */
};

/* Whose a call says it is. */
struct call_claim {
    unsigned rank;
    uint64_t session;
    uint64_t connection; /* its number; 0: not said */
    const char *what;    /* "sent a chunk" */
};

/* The number of the slot's present connection, for whoever is told that it has begun.  Those of two
 * connections differ, also where a server was started anew or its replica took over, so what comes
 * late, from the network or from a process that was stopped, is known by it.  Lock held. */
uint64_t call_binding_number(const struct service *s, const struct rank_session *session);

/* May such a call be bound to the service's job now?  Lock held.
 *   STATUS_PROTOCOL     no job runs, or the rank is not in it
 *   STATUS_PEER_LOST    the rank's place is another session's, or nobody's
 *   STATUS_UNAVAILABLE  the connection was cut off meanwhile: join again */
enum status call_binding_check(const struct service *s, const struct call_claim *claim,
                               struct error *err);

/* Bind a call that call_binding_check allows: one more use of the job, one more call of the slot,
 * and a reference to the call, which the caller puts to its place in the slot.  Lock held. */
void call_binding_bind(struct call_binding *t, struct job *j, unsigned rank, struct rpc_call *call);

/* It still belongs to whoever holds the slot.  Lock held. */
bool call_binding_holds(const struct call_binding *t);

/* The call is closed: give back what call_binding_bind took.  *place is the call's place in the
 * slot.  No lock. */
void call_binding_release(struct call_binding *t, struct rpc_call *call, struct rpc_call **place);

/* The call broke, and with it the connection that it belongs to; see rank_recovery.c.  No lock. */
void call_binding_cut(const struct call_binding *t, const char *how);

#endif
