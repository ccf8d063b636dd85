/*
 * What the sources of the service share.  Lock order: the service's lock is never held while a
 * shard's lock is taken, a file is written, or rpc is called.
 */
#ifndef SPARRING_SERVER_SERVICE_INTERNAL_H
#define SPARRING_SERVER_SERVICE_INTERNAL_H

#include "common/base/host_id.h"
#include "server/arena.h"
#include "server/job.h"
#include "server/metrics_page.h"
#include "server/record.h"
#include "server/service.h"
#include "server/stats.h"

#include <pthread.h>
#include <stdbool.h>

struct service {
    int64_t timeout_ms;         /* constant */
    bool bind_ranks;            /* constant */
    double start_time_seconds;  /* constant, Unix time */
    struct metrics_page *page;  /* NULL: none */
    struct arena_desk *desk;    /* NULL: no memory is shared; constant */
    char host_id[HOST_ID_SIZE]; /* constant */
    struct record record;       /* keeper only, once it runs */
    pthread_t keeper;
    bool keeper_started;

    pthread_mutex_t lock;       /* guards what follows, and the jobs (see job.h) */
    pthread_cond_t changed;     /* CLOCK_MONOTONIC; wakes the keeper, and service_close */
    struct rpc_server *rpc;     /* constant once it is open: calls may come before that */
    struct stats_counters past; /* of the jobs that are over */
    uint64_t jobs_ok, jobs_failed;
    struct job *current; /* served now; NULL: none */
    struct job *over;    /* list of those that wait to be recorded and freed */
    bool draining;
    int64_t drain_deadline_ns;
    bool stop; /* all calls are closed: the keeper ends when nothing is left to do */
};

/* ------------------------------------------------------------------ service.c */

/* End a job and tell its ranks: failure's status and text, or with NULL nothing (their streams end
 * when they close them).  Takes the lock.  The first caller wins. */
void service_end_job(struct service *s, struct job *j, const struct error *failure);

/* One use of the job (job->users) ends.  Takes the lock; the job may be gone afterwards. */
void service_drop_job(struct service *s, struct job *j);

/* ------------------------------------------------------------------ identity.c */

/* STATUS_DENIED when ranks are bound to certificates and the one of the call's peer does not name
 * this rank.  From a handler. */
enum status service_check_rank(const struct service *s, const struct rpc_call *call, unsigned rank,
                               struct error *err);

/* ------------------------------------------------------------------ desk.c */

enum status desk_open(struct service *s, struct error *err);

/* Does a rank that joins so want to share memory, and can it? */
bool desk_serves(const struct service *s, const struct join_request *request);

/* ------------------------------------------------------------------ handlers */

extern const struct rpc_handler join_handler;
extern const struct rpc_handler leave_handler;
extern const struct rpc_handler exchange_handler;
extern const struct rpc_handler stats_handler;

/* Not in lockstep: a rank has left in order, and contributes no more.  No lock; with a use of the
 * job. */
void exchange_finish_rank(struct service *s, struct job *j, unsigned rank);

/* Answer the joins of a job that runs now.  Keeper only, no lock. */
void control_answer_joins(struct service *s, struct job *j);

/* ------------------------------------------------------------------ keeper.c */

enum status keeper_start(struct service *s, struct error *err);

/* service->stop is set: finish and join. */
void keeper_stop(struct service *s);

#endif
