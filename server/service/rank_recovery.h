/*
 * rank_recovery: loss and rejoin of ranks.  The supervisor selects an action for one rank under the
 * table's lock (rank_recovery_next) and carries it out without the lock (rank_recovery_run).
 *
 * Needs: session_cut, exchange (removal of ranks), replication, join.  Called by: supervisor.c,
 * restore.c.
 */
#ifndef SPARRING_SERVER_SERVICE_RANK_RECOVERY_H
#define SPARRING_SERVER_SERVICE_RANK_RECOVERY_H

#include "server/service/service_internal.h"

enum recovery_action {
    RECOVERY_NONE,
    RECOVERY_CUT,     /* the connection is silent, or was not opened in time */
    RECOVERY_REFUSE,  /* a join whose rank has another session, or that has waited too long */
    RECOVERY_RESUME,  /* the session resumes */
    RECOVERY_OCCUPY,  /* another session takes the rank */
    RECOVERY_REPLY,   /* the replica has acknowledged the join: reply to it */
    RECOVERY_GIVE_UP, /* AWAY for too long: the job ends, or waits for a replacement */
    RECOVERY_VACATE,  /* AWAY for too long: the job continues without the rank */
    RECOVERY_END,     /* LOST for too long: the job ends */
    RECOVERY_DESERTED /* no rank is left, and none is joining */
};

/* An action, with the data taken under the lock. */
struct recovery {
    enum recovery_action action;
    struct job *job;
    unsigned rank;
    struct rpc_call *join;          /* to be replied to; a reference, or NULL */
    struct rpc_call *displaced;     /* a pending join to be refused; a reference, or NULL */
    struct joining_session joining; /* RESUME, OCCUPY */
    uint64_t connection;            /* CUT: the connection to cut off */
    uint64_t round;                 /* RESUME: the last round that the worker has completed */
    uint64_t epoch;                 /* of the reply */
    bool replaces;                  /* OCCUPY: the rank is not vacant, the job waited for it */
    bool ends;                      /* GIVE_UP: the job ends */
    char how[64];                   /* CUT: the reason */
    struct error err;               /* the refusal, or the reason to give the rank up */
};

/* The first rank of the current job that needs an action (silent, resumed, overdue, occupied);
 * false: none.  Lock held. */
bool rank_recovery_next(struct service *s, struct recovery *ret);
void rank_recovery_run(struct service *s, struct recovery *r);

/* After a restore or takeover: remove the ranks that have left or are lost for good from the
 * partitions that still count them.  No lock. */
void rank_recovery_vacate_departed(struct service *s, struct job *j);

/* ------------------------------------------------------------------ rank_rejoin.c */

/* The parts of the actions that concern joins. prepare: lock held.  The others: no lock. */
void rank_rejoin_prepare(struct recovery *r);
void rank_rejoin_refuse(struct recovery *r);
void rank_rejoin_resume(struct service *s, struct recovery *r);
void rank_rejoin_occupy(struct service *s, struct recovery *r);
void rank_rejoin_reply(struct service *s, struct recovery *r);

/* Detach the pending join reply of a rank that lost its session again: a reference, or NULL.  Lock
 * held.  Then refuse it; NULL is allowed.  No lock. */
struct rpc_call *rank_rejoin_detach_pending(struct job_rank *r);
void rank_rejoin_refuse_pending(struct rpc_call *call);

#endif
