/*
 * rank_session: one rank's place in a running job: which session holds it, over which calls, and
 * what becomes of it when they break.
 *
 *   HELD    by a session, whose calls are open or about to be
 *   AWAY    the calls broke or fell silent; the session may come back until until_ns
 *   LOST    it did not, and the job waits for another session until until_ns (on_loss wait)
 *   VACANT  rounds go without it, until another session takes it (on_loss shrink, and whoever left)
 *
 * A connection is all calls of one holder between two breaks: its Exchange streams (lanes) and the
 * Attend calls beside them.  When one breaks or falls silent, all are ended.  A slot moves on from
 * AWAY, LOST or VACANT only once every call of its last connection is closed
 * (rank_session_is_quiet), so whoever changes a rank's contributions finds no handler at work on
 * them.
 *
 * Pure book-keeping; the job's lock guards it.
 */
#ifndef SPARRING_SERVER_JOB_RANK_SESSION_H
#define SPARRING_SERVER_JOB_RANK_SESSION_H

#include "common/rpc/rpc.h"
#include "common/wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

#define RANK_SESSION_CALLS_MAX (2 * WIRE_LANES_MAX)
#define RANK_SESSION_HOW_MAX   192

enum rank_state { RANK_HELD, RANK_AWAY, RANK_LOST, RANK_VACANT };

struct rank_session {
    enum rank_state state;
    uint64_t id;         /* the session: the last holder's; 0: it does not come back */
    uint64_t connection; /* rises with each; 0: none yet */
    unsigned lanes;      /* at least 1 */
    struct rpc_call *streams[WIRE_LANES_MAX];    /* of the connection; one reference each */
    struct rpc_call *heartbeats[WIRE_LANES_MAX]; /* the same */
    int64_t alive_ns[WIRE_LANES_MAX];            /* last sign of life: a chunk or a beat */
    size_t calls;      /* of this and of earlier connections: bound to the slot, not closed yet */
    uint32_t opened;   /* bit l: the connection opened lane l, whose stream may be closed by now */
    bool is_new;       /* the connection is its session's first one */
    bool has_chunks;   /* it sent something else than its name */
    size_t retries;    /* answers that it has asked for again */
    int64_t held_ns;   /* when it began */
    int64_t cut_ns;    /* when the calls broke */
    int64_t silent_ns; /* to that from the last sign of life of the lane that was silent longest */
    int64_t until_ns;  /* see above */
    bool partial_renewal;           /* what renewed it last was a connection that lacked a lane */
    char how[RANK_SESSION_HOW_MAX]; /* "its connection closed" */
};

/* A session holds it from now on, with a new connection. */
void rank_session_hold(struct rank_session *s, uint64_t session, unsigned lanes, int64_t now_ns);

/* HELD becomes AWAY, for reconnect_ms when it may come back at all.  A connection that broke before
 * it was of any use does not renew that time: who only ever comes back is given up.  Nor does one
 * that lacked a lane where one like that has renewed it last: so is who has a lane that never
 * connects. */
void rank_session_cut(struct rank_session *s, const char *how, int64_t reconnect_ms,
                      int64_t now_ns);

/* HELD becomes AWAY until until_ns without a connection that broke: its holder was known from
 * elsewhere. */
void rank_session_send_away(struct rank_session *s, const char *how, int64_t until_ns,
                            int64_t now_ns);

/* It is time to give it up: AWAY, or LOST, for too long. */
bool rank_session_is_overdue(const struct rank_session *s, int64_t now_ns);

/* No handler is at work for it. */
bool rank_session_is_quiet(const struct rank_session *s);

/* HELD, and no sign of life for timeout_ms (0: never) of a lane that is attended, *ret_lane. */
bool rank_session_is_silent(const struct rank_session *s, int64_t timeout_ms, int64_t now_ns,
                            unsigned *ret_lane);

/* A lane has an Attend call: silence is noticed. */
bool rank_session_has_heartbeat(const struct rank_session *s);

/* Nobody has listened from since_ns to now_ns: that is not the rank's silence. */
void rank_session_forgive(struct rank_session *s, int64_t since_ns, int64_t now_ns);

/* Every lane was opened. */
bool rank_session_is_open(const struct rank_session *s);

/* HELD by a session that has not opened all of its lanes for timeout_ms: it may have died before,
 * or a connection has. */
bool rank_session_is_unopened(const struct rank_session *s, int64_t timeout_ms, int64_t now_ns);

/* References to its open calls (the caller's), at most RANK_SESSION_CALLS_MAX; their number. */
size_t rank_session_take_calls(const struct rank_session *s, struct rpc_call **ret);

/* "held", "away", ... */
const char *rank_session_state_name(enum rank_state state);

#endif
