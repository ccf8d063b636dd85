/*
 * replication: a shard that two servers hold, the primary and its replica.
 *
 * Promises: no rank gets a reply before the replica has every record that the reply depends on; at
 * most one of the servers continues the job.  Needs: job, shard, succession, rpc.  Called by:
 * service.
 *
 * The primary's side is a stream of records (replica_stream.h), the replica's a job whose ranks are
 * all away (replica.h).  The functions below do nothing for a job without a replica, except those
 * called replica_..., which need a job that is one.
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICATION_H
#define SPARRING_SERVER_REPLICATION_REPLICATION_H

#include "common/rpc/rpc.h"
#include "common/wire/wire.h"
#include "server/job/job_table.h"

/* A reply to a rank, which may be held until the replica has acknowledged its records. */
struct held_reply {
    unsigned rank;
    bool is_pull; /* not to a push */
    struct chunk_header header;
    struct shard_reply shard_reply;
};

/* One per server.  All constant. */
struct replication {
    struct job_table *table;
    struct rpc_security security; /* borrowed; of this server as a replica's client */
    /* May this peer have its jobs replicated here?  From a handler, no lock. */
    enum status (*authorize)(void *user, const struct rpc_call *call, struct error *err);
    /* Send a reply that was held.  Any thread, no lock. */
    void (*reply)(void *user, struct job *j, const struct held_reply *reply);
    void *user;
};

/* ------------------------------------------------------------------ the primary */

/* Open the stream of a job that is built and whose terms name a replica.  Supervisor only, no lock.
 * Blocks until the replica has accepted the terms, at most until the earliest join deadline.
 * STATUS_UNSUPPORTED: a rank has no session or cannot reconnect; else as replica_stream_open. */
enum status replication_open(struct replication *p, struct job *j, struct error *err);

/* The job, whose membership was restored and whose ranks are away, had a replica when the server
 * ended.  While the service starts. */
enum status replication_restore(struct replication *p, struct job *j, struct error *err);

/* Set j->role by what the replica has acknowledged.  Lock held. */
void replication_update_role(struct job *j);

/* Send heartbeats and check the replica's.  Supervisor only, no lock, at least every 100 ms. */
void replication_tick(struct job *j);

/* Count a rank's vote (0: none); *ret_propose is the epoch to vote on (0: none; untouched without a
 * replica).  mark_settled: a rank has left in order and has no vote any more.  No lock, with a use
 * of the job. */
void replication_vote(struct replication *p, struct job *j, unsigned rank, uint64_t vote,
                      uint64_t *ret_propose);
void replication_mark_settled(struct replication *p, struct job *j, unsigned rank);

/* The membership has changed: send it to the replica; returns the number of the change.
 * membership_acknowledged: the replica has that change, or there is none any more; until then the
 * join of a new session is not replied to.  Lock held. */
uint64_t replication_send_membership(struct job *j);
bool replication_membership_acknowledged(const struct job *j, uint64_t change);

/* True: the reply is held (as a copy) and sent later; it replaces a held reply to the same rank for
 * the same partition.  drop_held: drop the held replies to a rank whose connection broke; it
 * requests them again when it has reconnected.  No lock. */
bool replication_hold(struct job *j, const struct held_reply *reply);
void replication_drop_held(struct job *j, unsigned rank);

/* ------------------------------------------------------------------ the replica */

/* Of Replicate calls; user: the struct replication. */
extern const struct rpc_handler replicate_handler;

/* May this worker, whose session holds its rank in a replica, be served?  Promotes this server when
 * the worker has lost the primary.  STATUS_UNAVAILABLE: the primary serves the job.  Lock held. */
enum status replica_admit(struct job *j, const struct join_request *request, struct error *err);

/* A replica is built and runs: mark its ranks away and persist that.  Lock held.  Then, without
 * it: reply to the terms, so that the primary sends records. */
void replica_start(struct replication *p, struct job *j);
void replica_request_records(struct replication *p, struct job *j);

enum replica_event {
    REPLICA_NO_EVENT,
    REPLICA_TAKEOVER_DUE,    /* call replica_take_over */
    REPLICA_TAKEOVER_TIMEOUT /* the primary is lost and no worker came: end the job with *err */
};

/* Supervisor only, lock held. */
enum replica_event replica_poll(const struct replication *p, struct job *j, struct error *err);

/* Turn the replica into an ordinary job whose ranks are away, in the next epoch.  False: the job
 * has ended instead.  The caller then removes the ranks that have left; replica_send_superseded
 * comes last and notifies the primary, which removes its files.  Supervisor only, no lock. */
bool replica_take_over(struct replication *p, struct job *j);
void replica_send_superseded(struct replication *p, struct job *j);

/* A replica of an earlier process of this server, promoted or not (j->role); its ranks are away.
 * While the service starts. */
enum status replica_restore(struct job *j, int64_t now_ns, struct error *err);

/* ------------------------------------------------------------------ both */

/* The job has ended (failure NULL: in order): notify the other server.  No lock, with a use of the
 * job. */
void replication_end(struct replication *p, struct job *j, const struct error *failure);

/* Cancel the replica stream, so that gRPC releases its payloads. */
void replication_cancel(struct job *j);

/* Set the counters of replication in ret.  Lock held. */
void replication_count(const struct job *j, struct job_figures *ret);

/* Free replication's part of the job, to which nothing refers any more. */
void replication_release(struct job *j);

#endif
