/*
 * What the sources of the service share.  Lock order: the service's lock is never held while a
 * shard's lock is taken, a file is written, or rpc is called.
 */
#ifndef SPARRING_SERVER_SERVICE_SERVICE_INTERNAL_H
#define SPARRING_SERVER_SERVICE_SERVICE_INTERNAL_H

#include "common/base/host_id.h"
#include "server/job/job.h"
#include "server/observe/metrics_page.h"
#include "server/observe/run_log.h"
#include "server/observe/stats.h"
#include "server/persistence/state_dir.h"
#include "server/service/service.h"
#include "server/service/worker_memory.h"

#include <pthread.h>
#include <stdbool.h>

struct service {
    int64_t timeout_ms;              /* constant */
    bool bind_ranks;                 /* constant */
    struct rpc_security security;    /* constant, borrowed: as the client of replicas */
    double start_time_seconds;       /* constant, Unix time */
    uint64_t connections_from;       /* constant, random: numbers of connections are above it */
    struct metrics_page *page;       /* NULL: none */
    struct fd_listener *fd_listener; /* NULL: no memory is shared; constant */
    char host_id[HOST_ID_SIZE];      /* constant */
    struct run_log run_log;          /* supervisor only, once it runs */
    struct state_dir state_dir;      /* the same; its path "": none */
    uint64_t snapshot_every;         /* constant */
    uint64_t journal_bytes;          /* the same */
    pthread_t supervisor;
    bool supervisor_started;

    pthread_mutex_t lock;       /* guards what follows, and the jobs (see job.h) */
    pthread_cond_t changed;     /* CLOCK_MONOTONIC; wakes the supervisor, and service_close */
    int64_t looked_ns;          /* when rank_recovery_look looked last */
    struct rpc_server *rpc;     /* constant once it is open: calls may come before that */
    struct stats_counters past; /* of the jobs that are over */
    uint64_t jobs_ok, jobs_failed;
    struct job *current;   /* served now; NULL: none */
    struct asking *asking; /* list of the open State calls that were let in; see state_fetch.c */
    struct job *over;      /* list of those that wait to be recorded and freed */
    char last_job[WIRE_JOB_MAX]; /* the newest that is over, for who comes back to it; "": none */
    struct error last_failure;   /* why; STATUS_OK: it is done */
    bool draining;
    int64_t drain_begin_ns, drain_deadline_ns;
    bool stop; /* all calls are closed: the supervisor ends when nothing is left to do */
};

/* ------------------------------------------------------------------ service.c */

/* End a job and tell its ranks: failure's status and text, or with NULL nothing (their streams end
 * when they close them).  Takes the lock.  The first caller wins. */
void service_end_job(struct service *s, struct job *j, const struct error *failure);

/* The same in two steps, for a caller that holds the lock: no other failure can come between what
 * it has noted and the end.  begin: lock held; false: the job has ended before.  finish: no lock;
 * only behind a begin that was true. */
bool service_begin_end(struct service *s, struct job *j, const struct error *failure);
void service_finish_end(struct service *s, struct job *j, const struct error *failure);

/* The same when the last one that gathered has gone; nothing when another one has come meanwhile.
 */
void service_end_deserted(struct service *s, struct job *j, const struct error *failure);

/* One use of the job (job->users) ends.  Takes the lock; the job may be gone afterwards. */
void service_drop_job(struct service *s, struct job *j);

/* ------------------------------------------------------------------ authorize.c */

/* STATUS_DENIED when ranks are bound to certificates and the one of the call's peer does not name
 * this rank.  From a handler. */
enum status authorize_rank(const struct service *s, const struct rpc_call *call, unsigned rank,
                           struct error *err);

/* The same for a server that brings its records: its certificate must say that it is one. */
enum status authorize_server(const struct service *s, const struct rpc_call *call,
                             struct error *err);

/* ------------------------------------------------------------------ memory_sharing.c */

/* A listener that cannot be had is said in the log: then no memory is shared. */
void memory_sharing_open(struct service *s);

/* Does a rank that joins so want to share memory, and can it? */
bool memory_sharing_serves(const struct service *s, const struct join_request *request);

/* ------------------------------------------------------------------ handlers */

extern const struct rpc_handler join_handler;
extern const struct rpc_handler leave_handler;
extern const struct rpc_handler heartbeat_handler;
extern const struct rpc_handler exchange_handler;
extern const struct rpc_handler state_handler;
extern const struct rpc_handler stats_handler;

/* Not in lockstep: a rank has left in order, and contributes no more.  No lock; with a use of the
 * job. */
void exchange_finish_rank(struct service *s, struct job *j, unsigned rank);

/* A rank is lost, or has left where the others go on: all partitions go without it.  As above. */
void exchange_vacate_rank(struct service *s, struct job *j, unsigned rank);

/* Another session has the rank's place: of one that was waited for (replaces), or in the rounds
 * under way.  No lock; no call of the rank is open.  A failure must end the job. */
enum status exchange_occupy_rank(struct job *j, unsigned rank, bool replaces, struct error *err);

/* ------------------------------------------------------------------ primary.c */

/* The job is built and its ranks want a replica: have one take the terms.  Supervisor only, no
 * lock; blocks until then, or until the first join would be answered too late. */
enum status primary_open(struct service *s, struct job *j, struct error *err);

/* The job, whose file is read and whose ranks are away, was one of two when its server died.
 * While the service starts. */
enum status primary_restore(struct service *s, struct job *j, struct error *err);

/* What the membership file says of it.  Lock held. */
enum replica_stream_standing primary_standing(const struct job *j);

/* The supervisor's look at the replica of the current job.  Lock held on entry and return. */
void primary_look(struct service *s);

/* A beat of a rank: *ret_propose is the question for the ranks.  No lock, with a use of the job. */
void primary_beat(struct service *s, struct job *j, unsigned rank, uint64_t vote,
                  uint64_t *ret_propose);

/* A rank has left in order.  As above. */
void primary_settle(struct service *s, struct job *j, unsigned rank);

/* Who holds the job's slots has changed: see replica_stream_members, which this returns.  Lock
 * held. */
uint64_t primary_members(struct job *j);

/* The job is over: does its replica forget it?  No lock. */
void primary_end(struct job *j, const struct error *failure);

/* ------------------------------------------------------------------ join.c */

/* Answer the joins of a job that runs now.  Supervisor only, no lock. */
void join_answer_all(struct service *s, struct job *j);

/* Answer one join of `rank`, whose slot is held by it, in a job that has run for a while.  round:
 * as in JoinReply.  Supervisor only, no lock. */
void join_answer(struct service *s, struct job *j, unsigned rank, struct rpc_call *call,
                 uint64_t epoch, uint64_t round);

/* ------------------------------------------------------------------ rank_recovery.c */

/* The given connection of a rank broke: end all of its calls.  Any thread, no lock, with a use of
 * the job.  Nothing happens when the slot has moved on from that connection already. */
void rank_recovery_cut(struct service *s, struct job *j, unsigned rank, uint64_t connection,
                       const char *how);

/* Its parts: the slot, which is HELD, becomes AWAY (lock held), with references to its calls, at
 * most RANK_SESSION_CALLS_MAX, which rank_recovery_end_calls then ends (no lock). */
size_t rank_recovery_cut_slot(struct service *s, struct job *j, unsigned rank, const char *how,
                              struct rpc_call **ret_calls);
void rank_recovery_end_calls(struct rpc_call **calls, size_t count);

/* How long a session that is wanted elsewhere, or comes back, may take from the answer to its join
 * to its first stream.  Lock held. */
int64_t rank_recovery_open_ms(const struct job *j);

/* In a job that comes from elsewhere: partitions that do not know yet which ranks have left, or are
 * lost for good, go without them.  No lock. */
void rank_recovery_take_out(struct service *s, struct job *j);

/* Is a rank of the current job silent, back, overdue or replaced?  Do something about the first.
 * Supervisor only; lock held on entry and return; returns whether anything was done. */
bool rank_recovery_look(struct service *s);

/* ------------------------------------------------------------------ supervisor.c */

enum status supervisor_start(struct service *s, struct error *err);

/* service->stop is set: finish and join. */
void supervisor_stop(struct service *s);

#endif
