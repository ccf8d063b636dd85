/*
 * replica_stream: the primary's side of a shard that a second server, its replica, keeps as well.
 *
 * The replica gets the job's terms, then each record of the shard as it happens (mutation.h),
 * and acknowledges every one.  An answer waits here until the replica has the newest record that is
 * in it; so whatever a worker was told is on both servers.  When one of them is lost the workers
 * decide who goes on (common/succession).
 *
 * Memory.  Records leave from the shard's own memory, as answers do: the shard overwrites it only
 * after the ranks were answered, and they are not answered before gRPC has let go of it.  Where
 * each push is a step it is overwritten at once; there records are copied first.
 *
 * Threads: any.  Its lock may be taken under a partition's or the job table's, takes none itself,
 * and is not held during its call-backs.
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICA_STREAM_H
#define SPARRING_SERVER_REPLICATION_REPLICA_STREAM_H

#include "server/replication/replication.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct replica_stream;

struct replica_stream_config {
    struct rpc_security security;     /* of this server, which is the replica's client */
    const struct join_request *terms; /* with the replica's address and the manifest; borrowed until
                                         replica_stream_open returns, like sessions */
    const uint64_t *sessions;         /* world_size of them */
    uint64_t epoch;
    struct shard *shard;        /* borrowed until replica_stream_close; this becomes its sink */
    atomic_size_t *outstanding; /* counts payloads inside the shard that core holds */
    /* All without a lock of the replica stream's, from any thread.  send: the reply may leave now.
     * lost: this server must end the job, which the replica has taken over.  knows:
     * replica_stream_knows may say more than before. */
    void (*send)(struct replication *owner, struct job *j, const struct held_reply *reply);
    void (*lost)(struct replication *owner, struct job *j, const struct error *why);
    void (*knows)(struct replication *owner);
    struct replication *owner;
    struct job *job;
};

/*
 * Connect to the replica and give it the terms; blocks until it has taken them.  Errors name it:
 * STATUS_TIMEOUT when it has not by deadline_ns, STATUS_UNSUPPORTED for what cannot be kept twice,
 * its own words when it refuses.  Before anybody uses the shard.
 */
enum status replica_stream_open(const struct replica_stream_config *config, int64_t deadline_ns,
                                struct replica_stream **ret_stream, struct error *err);

/*
 * In a job that an earlier process of this server has begun, as one of two (see
 * succession_primary_restore, for `settled`, too): nothing is sent to the replica any more, but it
 * is asked whether it serves by now.  Gets no records.  Does not block.
 */
enum status replica_stream_restore(const struct replica_stream_config *config, const bool *settled,
                                   struct replica_stream **ret_stream, struct error *err);

/* JOB_PAIR: not alone, and the replica knows that these sessions hold the places; JOB_CHANGING: not
 * alone, and it may not know that; JOB_ALONE. */
enum job_role replica_stream_role(struct replica_stream *c, const uint64_t *sessions);

/* The shard's sink. */
enum status replica_stream_put(void *stream, const struct mutation *record, struct error *err);

/* True: the answer waits (in a copy) and is sent later; an earlier one to the same rank from the
 * same partition that still waits is forgotten.  NULL: there is no replica stream.  No lock held.
 */
bool replica_stream_hold(struct replica_stream *c, const struct held_reply *answer);

/* What waits for this rank is dropped: its connection broke, and on the next one it asks again.
 * NULL is allowed. */
void replica_stream_forget(struct replica_stream *c, unsigned rank);

/* The epoch in which this server would go on alone, for the workers to vote on; 0: no question. */
uint64_t replica_stream_proposal(struct replica_stream *c);

/* A rank's vote, and: a rank has left in order and votes no more.  Either may be the last that was
 * waited for: then what waits is sent, and *ret_epoch is the new epoch; else it is 0. */
void replica_stream_vote(struct replica_stream *c, unsigned rank, uint64_t epoch,
                         uint64_t *ret_epoch);
void replica_stream_settle(struct replica_stream *c, unsigned rank, uint64_t *ret_epoch);

/* Who holds the slots has changed: sessions, world_size of them, 0 for nobody; from `epoch` on. The
 * number of the change; the job table's lock may be held.  And: does the replica know of it (or is
 * there none any more)?  Until then a newcomer is not told that it is in. */
uint64_t replica_stream_members(struct replica_stream *c, uint64_t epoch, const uint64_t *sessions);
bool replica_stream_knows(struct replica_stream *c, uint64_t number);

/* From time to time (at least every tenth of a second): gives signs of life and looks for the
 * replica's. */
void replica_stream_tick(struct replica_stream *c, int64_t now_ns);

/* The job is over for good, and the replica may forget it.  Without this it waits for workers. */
void replica_stream_end(struct replica_stream *c);

void replica_stream_count(struct replica_stream *c, struct replica_stream_figures *ret);

/* Break the stream off; gRPC then lets go of what it holds. */
void replica_stream_cancel(struct replica_stream *c);

/* Free.  Only when *outstanding is 0 and nobody uses the shard.  NULL is allowed; not from a
 * call-back. */
void replica_stream_close(struct replica_stream *c);

#endif
