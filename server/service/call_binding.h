/*
 * call_binding: binds a call (an Exchange stream, an Attend call) to a rank's session, from the
 * message that identifies the call until the call closes.
 *
 * A bound call holds one use of the job, so the job outlives the call.  Called by the handlers of
 * the service (exchange.c, heartbeat.c, join.c, state_fetch.c).
 */
#ifndef SPARRING_SERVER_SERVICE_CALL_BINDING_H
#define SPARRING_SERVER_SERVICE_CALL_BINDING_H

#include "server/service/service_internal.h"

struct call_binding {
    struct service *service;
    struct job *job; /* one use of it; NULL: not bound */
    unsigned rank;
    uint64_t connection; /* of the rank's session, at the time of binding */
};

/* The identity that a call claims. */
struct call_claim {
    unsigned rank;
    uint64_t session;
    uint64_t connection; /* its number; 0: not given */
    const char *what;    /* "sent a chunk" */
};

/* The number of the session's current connection, for JoinReply.  Two connections never have the
 * same number, even when the server has restarted or its replica has taken over; so a late message,
 * from the network or from a process that was stopped, can be recognized.  Lock held. */
uint64_t call_binding_connection_number(const struct service *s,
                                        const struct rank_session *session);

/*
 * Check whether a call with this claim may be bound to the current job.  Lock held.
 *   STATUS_PROTOCOL     the rank is not in the job, or the call names no session where one is
 *                       needed; for a call without a session also: no job runs
 *   STATUS_PEER_LOST    the rank belongs to another session, or to none
 *   STATUS_UNAVAILABLE  no job runs, or the connection was cut off meanwhile: join again
 */
enum status call_binding_check(const struct service *s, const struct call_claim *claim,
                               struct error *err);

/* Bind a call that call_binding_check has allowed: takes one use of the job, counts one more call
 * of the session, and takes a reference to the call, which the caller stores in the session.  Lock
 * held. */
void call_binding_bind(struct call_binding *b, struct job *j, unsigned rank, struct rpc_call *call);

/* True while the binding's connection is the session's current one.  Lock held. */
bool call_binding_is_current(const struct call_binding *b);

/* The call is closed: release what call_binding_bind took.  *session_call is the session's pointer
 * to the call.  No lock. */
void call_binding_release(struct call_binding *b, struct rpc_call *call,
                          struct rpc_call **session_call);

/* The call broke: cut off the connection that it belongs to; see rank_recovery.c.  No lock. */
void call_binding_cut(const struct call_binding *b, const char *how);

#endif
