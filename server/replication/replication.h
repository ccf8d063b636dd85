/*
 * replication: a shard that two servers keep, the primary and its replica.
 *
 * Promises: no rank gets a reply before the replica has every record that is in it; never do both
 * servers go on with the job.  Needs: job, shard, succession, rpc.  Called by: service.
 *
 * The primary's side is a stream of records (replica_stream.h), the replica's a job whose ranks are
 * all away (replica.h).  In a job without either, what is not said to be of a copy does nothing.
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICATION_H
#define SPARRING_SERVER_REPLICATION_REPLICATION_H

#include "common/rpc/rpc.h"
#include "common/wire/wire.h"
#include "server/job/job_table.h"

/* A reply to a rank, which may have to wait for the replica. */
struct held_reply {
    unsigned rank;
    bool is_pull; /* not to a push */
    struct chunk_header header;
    struct shard_reply answer;
};

/* One of a server.  All constant. */
struct replication {
    struct job_table *table;
    struct rpc_security security; /* borrowed: as the client of replicas */
    /* May this peer have its jobs copied here?  From a handler, no lock. */
    enum status (*authorize)(void *user, const struct rpc_call *call, struct error *err);
    /* A reply that was held may leave now.  Any thread, no lock. */
    void (*reply)(void *user, struct job *j, const struct held_reply *reply);
    void *user;
};

/* ------------------------------------------------------------------ the primary */

/* The job is built and its ranks want a replica: have one take the terms.  Supervisor only, no
 * lock; blocks until then, or until the first join would be replied to too late. */
enum status replication_open(struct replication *p, struct job *j, struct error *err);

/* The job, whose members are read and whose ranks are away, was one of two when its server died.
 * While the service starts. */
enum status replication_restore(struct replication *p, struct job *j, struct error *err);

/* j->role as the replica's knowledge is by now.  Lock held. */
void replication_update_role(struct job *j);

/* Signs of life, and the replica's.  Supervisor only, no lock, every tenth of a second at least. */
void replication_tick(struct job *j);

/* A rank votes (0: for nothing); *ret_propose is the question to the ranks (0: none).  And: a rank
 * has left in order, and votes no more.  No lock, with a use of the job. */
void replication_vote(struct replication *p, struct job *j, unsigned rank, uint64_t vote,
                      uint64_t *ret_propose);
void replication_settle(struct replication *p, struct job *j, unsigned rank);

/* Who holds the job's places has changed: the number of the change.  And: does the replica know of
 * it, or is there none any more?  Until then a newcomer does not hear that it is in.  Lock held. */
uint64_t replication_change_members(struct job *j);
bool replication_knows(const struct job *j, uint64_t change);

/* True: the reply waits (in a copy) and leaves later; an earlier one to the same rank from the same
 * partition that still waits is dropped.  And: drop what waits for a rank whose connection broke;
 * it asks again on the next one.  No lock. */
bool replication_hold(struct job *j, const struct held_reply *reply);
void replication_forget(struct job *j, unsigned rank);

/* ------------------------------------------------------------------ the replica */

/* Replicate calls; user: the struct replication. */
extern const struct rpc_handler replicate_handler;

/* May this worker, whose session holds its place in a copy, be served?  Promotes this server if it
 * must be.  STATUS_UNAVAILABLE: not now.  Lock held. */
enum status replica_admit(struct job *j, const struct join_request *request, struct error *err);

/* A copy is built and runs: its ranks are the primary's, which is kept.  Lock held.  Then, no lock:
 * the primary may send records. */
void replica_run(struct replication *p, struct job *j);
void replica_ask_records(struct replication *p, struct job *j);

enum replica_event {
    REPLICA_NOTHING,
    REPLICA_TAKES_OVER, /* call replica_take_over */
    REPLICA_DESERTED    /* the primary is lost and no worker came: the job has to end, with *err */
};

/* Supervisor only, lock held. */
enum replica_event replica_look(const struct replication *p, struct job *j, struct error *err);

/* From here on it is a job like any other whose ranks are away.  False: it has ended instead.  The
 * caller takes the ranks out that have left, then replica_announce tells the primary, which removes
 * what it has.  Supervisor only, no lock. */
bool replica_take_over(struct replication *p, struct job *j);
void replica_announce(struct replication *p, struct job *j);

/* A copy that an earlier process of this server has kept, or taken over (j->role); its ranks are
 * away.  While the service starts. */
enum status replica_restore(struct job *j, int64_t now_ns, struct error *err);

/* ------------------------------------------------------------------ both */

/* The job is over: the other server is told.  No lock, with a use of the job. */
void replication_end(struct replication *p, struct job *j, const struct error *failure);

/* Break the stream off; gRPC then lets go of what it holds. */
void replication_cancel(struct job *j);

/* Lock held. */
void replication_count(const struct job *j, struct job_figures *ret);

/* Free what is in the job.  Nothing refers to it any more. */
void replication_release(struct job *j);

#endif
