/*
 * What the sources of the service share.  Lock: the job table's (server/job/job_table.h).
 */
#ifndef SPARRING_SERVER_SERVICE_SERVICE_INTERNAL_H
#define SPARRING_SERVER_SERVICE_SERVICE_INTERNAL_H

#include "common/base/host_id.h"
#include "server/job/job_table.h"
#include "server/job/session_cut.h"
#include "server/observe/metrics_page.h"
#include "server/observe/run_log.h"
#include "server/persistence/persistence.h"
#include "server/replication/replication.h"
#include "server/service/service.h"
#include "server/service/worker_memory.h"

#include <pthread.h>
#include <stdbool.h>

struct service {
    struct job_table table;
    struct replication replication;
    struct persistence persistence;
    struct run_log run_log;          /* supervisor only, once it runs */
    bool bind_ranks;                 /* constant */
    double start_time_seconds;       /* constant, Unix time */
    uint64_t connections_from;       /* constant, random: numbers of connections are above it */
    struct metrics_page *page;       /* NULL: none */
    struct fd_listener *fd_listener; /* NULL: no memory is shared; constant */
    char host_id[HOST_ID_SIZE];      /* constant */
    pthread_t supervisor;
    bool supervisor_started;

    /* The table's lock guards what follows. */
    int64_t looked_ns;      /* when rank_recovery_next looked last */
    struct rpc_server *rpc; /* constant once it is open: calls may come before that */
    struct asking *asking;  /* list of the open State calls that were let in; see state_fetch.c */
    bool stop; /* all calls are closed: the supervisor ends when nothing is left to do */
};

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

/* ------------------------------------------------------------------ restore.c */

/* Take the state folder (NULL: none) and go on with the job that is in it.  Before there are calls
 * and a supervisor. */
enum status restore_open(struct service *s, const char *state_dir, struct error *err);

/* ------------------------------------------------------------------ join.c */

/* Reply to the joins of a job that runs now.  Supervisor only, no lock. */
void join_answer_all(struct service *s, struct job *j);

/* Reply to one join of `rank`, whose place it holds, in a job that has run for a while.  round:
 * as in JoinReply.  Supervisor only, no lock. */
void join_answer(struct service *s, struct job *j, unsigned rank, struct rpc_call *call,
                 uint64_t epoch, uint64_t round);

/* ------------------------------------------------------------------ supervisor.c */

enum status supervisor_start(struct service *s, struct error *err);

/* service->stop is set: finish and join. */
void supervisor_stop(struct service *s);

#endif
