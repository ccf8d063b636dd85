/*
 * replica: a job of which this server keeps a copy for its primary
 * (server/replication/replica_stream.h), and how it becomes the primary itself.
 *
 * The Replicate stream brings the terms, from which the supervisor builds the job as from joins,
 * and then the records.  The slots are held by the sessions that the primary knows, and all AWAY. A
 * join that returns such a session promotes this server (common/succession): no record is taken any
 * more, the primary is told, and all ranks have some time to come.
 *
 * Lock: the service's.
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICA_H
#define SPARRING_SERVER_REPLICATION_REPLICA_H

#include "common/base/error.h"
#include "common/rpc/rpc.h"
#include "common/succession/succession.h"
#include "common/wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct job;
struct service;

/* A job's part of it; all zero in jobs that began here. */
struct replica {
    bool is_copy; /* it began so; constant */
    bool is_kept; /* and is one: workers are not served (yet) */
    struct succession_replica succession;
    struct rpc_call *stream; /* of the primary; one reference; NULL: it is over */
    bool applying;           /* a record is on its way into the shard */
    uint64_t records, bytes; /* of partitions, applied; of their payloads */
    int64_t gone_ns;         /* when the stream ended */
    char gone_how[192];
    int64_t promoted_ns; /* 0: it is not */
};

#define REPLICA_AWAY "it is with the primary" /* how the ranks of a copy are away */

/* To a record, or a question. */
void replica_reply(struct rpc_call *call, const struct record_reply *m);

/* May this worker, whose session holds its slot, be served?  Promotes the replica if it must be.
 * STATUS_UNAVAILABLE: not now.  Lock held. */
enum status replica_admit(struct job *j, const struct join_request *request, struct error *err);

/* The supervisor's, lock held on entry and return.  The job is built: take records.  And: has
 * something to be done about it?  Returns whether anything was. */
void replica_start(struct service *s, struct job *j);
bool replica_look(struct service *s);

/* A copy that an earlier process of this server has kept, or taken over; its ranks are away.  While
 * the service starts. */
void replica_restore(struct job *j, bool promoted, int64_t now_ns);

/* The job has failed: tell the primary.  No lock, with a use of the job. */
void replica_end(struct service *s, struct job *j, const struct error *failure);

extern const struct rpc_handler replicate_handler;

#endif
