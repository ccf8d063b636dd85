/*
 * rank_recovery: loss and return of ranks.  The supervisor decides under the table's lock what
 * becomes of one rank (rank_recovery_next), and does it without (rank_recovery_run).
 */
#ifndef SPARRING_SERVER_SERVICE_RANK_RECOVERY_H
#define SPARRING_SERVER_SERVICE_RANK_RECOVERY_H

#include "server/service/service_internal.h"

enum recovery_act {
    RECOVERY_NONE,
    RECOVERY_CUT,     /* silent, or never there */
    RECOVERY_REFUSE,  /* a join whose place is another's, or that waited too long */
    RECOVERY_RETURN,  /* the session is back */
    RECOVERY_TAKE,    /* another one is there for the place */
    RECOVERY_REPLY,   /* and may hear that it is in */
    RECOVERY_GIVE_UP, /* AWAY for too long, and the job ends or waits */
    RECOVERY_VACATE,  /* the same, and the job goes on without */
    RECOVERY_END,     /* LOST for too long */
    RECOVERY_DESERTED /* nobody is left, nor comes */
};

/* What is to be done, with what was noted under the lock. */
struct recovery {
    enum recovery_act act;
    struct job *job;
    unsigned rank;
    struct rpc_call *join;      /* to be replied to; a reference, or NULL */
    struct rpc_call *displaced; /* a pending join that is not to be replied to any more; the same */
    struct job_newcomer by;     /* who joins */
    uint64_t connection;        /* CUT: which */
    uint64_t round;             /* RETURN: the last one that its worker has completed */
    uint64_t epoch;             /* of the reply */
    bool replaces;              /* TAKE: of one that was waited for */
    bool ends;                  /* GIVE_UP: the job */
    char how[64];               /* CUT */
    struct error err;           /* the refusal, or why the rank is given up */
};

/* Is a rank of the current job silent, back, overdue or replaced?  The first.  Lock held. */
bool rank_recovery_next(struct service *s, struct recovery *ret);
void rank_recovery_run(struct service *s, struct recovery *r);

/* In a job that comes from elsewhere: partitions that do not know yet which ranks have left, or are
 * lost for good, go without them.  No lock. */
void rank_recovery_take_out(struct service *s, struct job *j);

/* ------------------------------------------------------------------ rank_return.c */

/* The parts of the acts about joins.  note: lock held.  The others: no lock. */
void rank_return_note(struct recovery *r);
void rank_return_refuse(struct recovery *r);
void rank_return_bring_back(struct service *s, struct recovery *r);
void rank_return_take(struct service *s, struct recovery *r);
void rank_return_reply(struct service *s, struct recovery *r);

/* Whoever took the place and waits to hear it, which it will not: a reference, or NULL.  Lock
 * held.  And: end it; NULL is allowed.  No lock. */
struct rpc_call *rank_return_take_pending(struct job_rank *r);
void rank_return_end_pending(struct rpc_call *call);

#endif
