/*
 * service_internal: declarations shared by the sources of service.  Lock: the job table's
 * (server/job/job_table.h). "Lock held" below means that one.
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
#include "server/service/channel_threads.h"
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
    uint64_t connection_base;        /* constant, random; connection numbers start above it */
    struct metrics_page *page;       /* NULL: none */
    struct fd_listener *fd_listener; /* NULL: no memory is shared; constant */
    struct channel_threads *channel_threads; /* NULL only if fd_listener is; constant */
    char host_id[HOST_ID_SIZE];              /* constant */
    pthread_t supervisor;
    bool supervisor_started;

    /* The table's lock guards the fields below. */
    int64_t recovery_checked_ns;    /* time of the last rank_recovery_next */
    struct rpc_server *rpc;         /* constant once open; calls may arrive before it is set */
    struct state_call *state_calls; /* list of the admitted open State calls; see state_fetch.c */
    bool stop; /* all calls are closed; the supervisor ends when no job is left */
};

/* ------------------------------------------------------------------ authorize.c */

/* STATUS_DENIED when ranks are bound to certificates and the certificate of the call's peer does
 * not name this rank.  From a handler. */
enum status authorize_rank(const struct service *s, const struct rpc_call *call, unsigned rank,
                           struct error *err);

/* The same for a primary that sends its mutations: its certificate must name a server. */
enum status authorize_server(const struct service *s, const struct rpc_call *call,
                             struct error *err);

/* ------------------------------------------------------------------ memory_sharing.c */

/* Open the listener.  A failure is logged, and no memory is shared. */
void memory_sharing_open(struct service *s, unsigned threads);

/* True when the joining rank requests shared memory and runs on this host. */
bool memory_sharing_is_possible(const struct service *s, const struct join_request *request);

/* ------------------------------------------------------------------ handlers */

extern const struct rpc_handler join_handler;
extern const struct rpc_handler leave_handler;
extern const struct rpc_handler heartbeat_handler;
extern const struct rpc_handler exchange_handler;
extern const struct rpc_handler state_handler;
extern const struct rpc_handler stats_handler;

/* Not in lockstep: a rank has left normally and contributes no more.  No lock; the caller holds a
 * use of the job. */
void exchange_finish_rank(struct service *s, struct job *j, unsigned rank);

/* A rank is lost, or has left a job that continues without it: remove it from all partitions.  As
 * above. */
void exchange_vacate_rank(struct service *s, struct job *j, unsigned rank);

/* Another session continues as this rank: it replaces a rank that the job waited for (replaces), or
 * joins the current rounds.  No lock; no call of the rank is open.  On failure the caller ends the
 * job. */
enum status exchange_occupy_rank(struct job *j, unsigned rank, bool replaces, struct error *err);

/* ------------------------------------------------------------------ restore.c */

/* Open the state folder (NULL: none) and continue the job in it.  Before calls and the supervisor
 * start. */
enum status restore_open(struct service *s, const char *state_dir, struct error *err);

/* ------------------------------------------------------------------ join.c */

/* Reply to all pending joins of a job that has just started.  Supervisor only, no lock. */
void join_send_replies(struct service *s, struct job *j);

/* Reply to one join of `rank`, whose session has the rank, in a running job.  round: as in
 * JoinReply.  Supervisor only, no lock. */
void join_send_reply(struct service *s, struct job *j, unsigned rank, struct rpc_call *call,
                     uint64_t epoch, uint64_t round);

/* ------------------------------------------------------------------ supervisor.c */

enum status supervisor_start(struct service *s, struct error *err);

/* Set service->stop, let the supervisor finish, and join its thread. */
void supervisor_stop(struct service *s);

#endif
