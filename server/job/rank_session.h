/*
 * rank_session: the session of one rank in a running job, its calls, and the deadlines that follow
 * when they break.
 *
 *   HELD    a session has the rank; its calls are open or about to be
 *   AWAY    the calls broke or became silent; the session may reconnect until until_ns
 *   LOST    it did not reconnect; the job waits for another session until until_ns (on_loss wait)
 *   VACANT  rounds continue without the rank, until another session takes it (on_loss shrink, or
 *           after the rank has left)
 *
 * A connection is all calls of one session between two breaks: its Exchange streams (lanes) and the
 * Attend calls beside them.  When one breaks or becomes silent, all are ended.  A rank leaves AWAY,
 * LOST or VACANT only once every call of its last connection is closed (rank_session_is_quiet), so
 * no handler uses the rank's contributions while they are changed.
 *
 * No locks, no I/O; the job table's lock guards it.
 */
#ifndef SPARRING_SERVER_JOB_RANK_SESSION_H
#define SPARRING_SERVER_JOB_RANK_SESSION_H

#include "common/base/channel.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

#define RANK_SESSION_CALLS_MAX (2 * WIRE_LANES_MAX)
#define RANK_SESSION_HOW_MAX   192

enum rank_state { RANK_HELD, RANK_AWAY, RANK_LOST, RANK_VACANT };

struct rank_session {
    enum rank_state state;
    uint64_t id;                                 /* of the newest session; 0: it cannot reconnect */
    uint64_t connection;                         /* number of the newest connection; 0: none yet */
    unsigned lanes;                              /* at least 1 */
    struct rpc_call *streams[WIRE_LANES_MAX];    /* of the connection; one reference each */
    struct rpc_call *heartbeats[WIRE_LANES_MAX]; /* the same */
    struct channel *channel; /* of the connection, while lane 0's stream is open, which owns it;
                                NULL: none */
    int64_t alive_ns[WIRE_LANES_MAX]; /* last sign of life: a chunk or a heartbeat */
    size_t calls;      /* of this and of earlier connections: bound to the rank, not closed yet */
    uint32_t opened;   /* bit l: the connection opened lane l; its stream may be closed by now */
    bool is_new;       /* the connection is its session's first one */
    bool has_chunks;   /* it sent chunks after the stream's first message */
    size_t retries;    /* requests that the connection has resent */
    int64_t held_ns;   /* when the connection began */
    int64_t cut_ns;    /* when the calls broke */
    int64_t silent_ns; /* from the last sign of life of the longest silent lane to cut_ns */
    int64_t until_ns;  /* deadline of AWAY and LOST; kept until a new session takes the rank */
    bool partial_renewal; /* until_ns was last renewed by a connection that lacked a lane */
    char how[RANK_SESSION_HOW_MAX]; /* "its connection closed" */
};

/* HELD by this session from now on, with a new connection. */
void rank_session_hold(struct rank_session *s, uint64_t session, unsigned lanes, int64_t now_ns);

/* HELD becomes AWAY, for reconnect_ms if the session can reconnect.  The deadline of an earlier
 * break stays unless the connection sent chunks or lasted for reconnect_ms: a session that only
 * reconnects is lost in the end.  A connection that lacked a lane renews the deadline once, but not
 * twice in a row: a session with a lane that never connects is lost, too. */
void rank_session_cut(struct rank_session *s, const char *how, int64_t reconnect_ms,
                      int64_t now_ns);

/* HELD becomes AWAY until until_ns.  For a session that was restored from another server or from
 * disk and had no connection to this server. */
void rank_session_mark_away(struct rank_session *s, const char *how, int64_t until_ns,
                            int64_t now_ns);

/* Has its deadline passed while AWAY or LOST? */
bool rank_session_is_overdue(const struct rank_session *s, int64_t now_ns);

/* Are all its calls closed, so that no handler uses it? */
bool rank_session_is_quiet(const struct rank_session *s);

/* Is it HELD without a sign of life for timeout_ms (0: never silent) of a lane that has an Attend
 * call?  *ret_lane: that lane. */
bool rank_session_is_silent(const struct rank_session *s, int64_t timeout_ms, int64_t now_ns,
                            unsigned *ret_lane);

/* Does a lane have an Attend call, so that silence is detected? */
bool rank_session_has_heartbeat(const struct rank_session *s);

/* The server did not run from since_ns to now_ns: do not count that time as the rank's silence. */
void rank_session_exclude_pause(struct rank_session *s, int64_t since_ns, int64_t now_ns);

/* Has the connection opened every lane? */
bool rank_session_is_open(const struct rank_session *s);

/* Is it HELD by a session that has not opened all of its lanes within timeout_ms?  The process or a
 * TCP connection may be dead. */
bool rank_session_is_unopened(const struct rank_session *s, int64_t timeout_ms, int64_t now_ns);

/* Add a reference to each of its open calls for the caller; returns their number, at most
 * RANK_SESSION_CALLS_MAX. */
size_t rank_session_ref_calls(const struct rank_session *s, struct rpc_call **ret);

/* "held", "away", ... */
const char *rank_session_state_name(enum rank_state state);

#endif
