/*
 * replica_stream: the primary's side of a shard that a second server, its replica, also holds.
 *
 * The replica receives the job's terms, then each mutation of the shard (mutation.h) as a record,
 * and acknowledges every one.  A reply to a rank is held here until the replica has acknowledged
 * the newest record that the reply depends on, so every value that a worker has received is on both
 * servers.  When one of them is lost, the workers decide which continues (common/succession).
 *
 * Memory: records are sent from the shard's own memory, as replies are.  The shard overwrites it
 * only after the ranks were replied to, which waits until gRPC has released it.  Where each push is
 * a step the memory is overwritten at once, so payloads are copied first.
 *
 * Threads: any.  The stream's lock may be taken under a partition's or the job table's, takes none
 * itself, and is not held during call-backs.  Called by: replication.c.
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICA_STREAM_H
#define SPARRING_SERVER_REPLICATION_REPLICA_STREAM_H

#include "server/replication/replication.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct replica_stream;

struct replica_stream_config {
    struct rpc_security security;     /* of this server as the replica's client */
    const struct join_request *terms; /* with the replica's address and the manifest; borrowed until
                                         replica_stream_open returns, like sessions */
    const uint64_t *sessions;         /* (world_size) */
    uint64_t epoch;
    struct shard *shard;        /* borrowed until replica_stream_close; the stream is its sink */
    atomic_size_t *outstanding; /* counts payloads inside the shard that gRPC reads */
    /* From any thread, without the stream's lock.  send_reply: a held reply may be sent.
     * on_superseded: the replica has taken over, this server must end the job.
     * on_membership_acknowledged: replica_stream_membership_acknowledged may have become true. */
    void (*send_reply)(struct replication *owner, struct job *j, const struct held_reply *reply);
    void (*on_superseded)(struct replication *owner, struct job *j, const struct error *why);
    void (*on_membership_acknowledged)(struct replication *owner);
    struct replication *owner;
    struct job *job;
};

/*
 * Connect to the replica and send the terms; blocks until it has accepted them.  Before other
 * threads use the shard.  Errors name the replica: STATUS_TIMEOUT when it has not replied by
 * deadline_ns, STATUS_UNSUPPORTED for a configuration that cannot be replicated, else the
 * replica's own status and text.
 */
enum status replica_stream_open(const struct replica_stream_config *config, int64_t deadline_ns,
                                struct replica_stream **ret_stream, struct error *err);

/*
 * The primary of a job that an earlier process of this server began.  Sends no records; queries
 * whether the replica has taken over and proposes to continue alone.  `settled`: see
 * succession_primary_restore.  Does not block.
 */
enum status replica_stream_restore(const struct replica_stream_config *config, const bool *settled,
                                   struct replica_stream **ret_stream, struct error *err);

/* JOB_ALONE: all ranks agreed to continue without the replica.  JOB_PAIR: the replica has
 * acknowledged that these sessions hold the ranks.  JOB_CHANGING: it may not know them. */
enum job_role replica_stream_role(struct replica_stream *s, const uint64_t *sessions);

/* The shard's sink. */
enum status replica_stream_append(void *stream, const struct mutation *record, struct error *err);

/* True: the reply is held (as a copy) and sent later; it replaces a held reply to the same rank for
 * the same partition.  False also for NULL.  No lock held. */
bool replica_stream_hold(struct replica_stream *s, const struct held_reply *reply);

/* Drop the held replies to a rank whose connection broke: it requests them again when it has
 * reconnected.  NULL is allowed. */
void replica_stream_drop_held(struct replica_stream *s, unsigned rank);

/* The epoch in which this server would continue alone, for the ranks to vote on; 0: none. */
uint64_t replica_stream_proposal(struct replica_stream *s);

/* Count a rank's vote; a rank has left in order and has no vote any more.  When this was the last
 * missing one, the held replies are sent and *ret_epoch is the new epoch; else it is 0. */
void replica_stream_vote(struct replica_stream *s, unsigned rank, uint64_t epoch,
                         uint64_t *ret_epoch);
void replica_stream_mark_settled(struct replica_stream *s, unsigned rank, uint64_t *ret_epoch);

/* Send which session holds each rank (0: none) from `epoch` on; returns the number of the change.
 * The job table's lock may be held.  membership_acknowledged: the replica has that change, or there
 * is no replica any more; until then the join of a new session is not replied to. */
uint64_t replica_stream_send_membership(struct replica_stream *s, uint64_t epoch,
                                        const uint64_t *sessions);
bool replica_stream_membership_acknowledged(struct replica_stream *s, uint64_t number);

/* Send heartbeats and check the replica's.  Call at least every 100 ms. */
void replica_stream_tick(struct replica_stream *s, int64_t now_ns);

/* The job has ended with `status` (STATUS_OK: in order), and the replica ends its copy with the
 * same.  Without this call the replica waits for the ranks. */
void replica_stream_end(struct replica_stream *s, enum status status);

void replica_stream_count(struct replica_stream *s, struct replica_stream_figures *ret);

/* Cancel the call, so that gRPC releases its payloads. */
void replica_stream_cancel(struct replica_stream *s);

/* Free, when *outstanding is 0 and no other thread uses the shard.  After replica_stream_end it
 * waits up to 1 s for the replica to end the stream.  NULL is allowed; not from a call-back. */
void replica_stream_close(struct replica_stream *s);

#endif
