/*
 * replica: a job of which this server keeps a copy for its primary, and how it becomes the primary
 * itself.
 *
 * The Replicate stream brings the terms, from which the supervisor builds the job as from joins,
 * and then the records.  The places are held by the sessions that the primary knows, and all AWAY.
 * A join that returns such a session promotes this server (common/succession): no record is taken
 * any more, the primary is told, and all ranks have some time to come.
 *
 * Lock: the job table's.
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICA_H
#define SPARRING_SERVER_REPLICATION_REPLICA_H

#include "common/succession/succession.h"
#include "server/replication/replication.h"

#define REPLICA_AWAY "it is with the primary" /* how the ranks of a copy are away */

struct replica {
    struct succession_replica succession;
    struct rpc_call *stream; /* of the primary; one reference; NULL: it is over */
    bool applying;           /* a record is on its way into the shard */
    uint64_t records, bytes; /* of partitions, applied; of their payloads */
    int64_t gone_ns;         /* when the stream ended */
    char gone_how[192];
    int64_t promoted_ns; /* 0: it is not */
};

/* To a record, or a question. */
void replica_reply(struct rpc_call *call, const struct record_reply *m);

/* The job has failed: tell the primary.  No lock, with a use of the job. */
void replica_fail(struct job_table *t, struct job *j, const struct error *failure);

#endif
