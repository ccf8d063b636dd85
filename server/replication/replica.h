/*
 * replica: a job that this server holds as the replica of a primary, and its takeover.
 *
 * The Replicate call brings the terms, from which the supervisor builds the job as from joins, and
 * then the records (replicate_call.c).  The ranks are held by the sessions that the primary knows,
 * all of them away.  A join that resumes such a session promotes this server (common/succession,
 * replica_takeover.c): no record is applied any more, the primary is notified, and all ranks have
 * a time limit to reconnect.
 *
 * Lock: the job table's.  Private to replication.
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICA_H
#define SPARRING_SERVER_REPLICATION_REPLICA_H

#include "common/succession/succession.h"
#include "server/replication/replication.h"

#define REPLICA_AWAY_REASON "it is with the primary" /* of the ranks of a replica */

struct replica {
    struct succession_replica succession;
    struct rpc_call *stream; /* the primary's Replicate call; one reference; NULL: it has ended */
    bool applying;           /* a record is being applied to the shard */
    uint64_t records, bytes; /* of partitions, applied; of their payloads */
    int64_t stream_ended_ns; /* 0: it has not */
    char stream_end_reason[192];
    int64_t promoted_ns; /* 0: not promoted */
};

/* Reply to a record or a takeover query. */
void replica_send_record_reply(struct rpc_call *call, const struct record_reply *m);

/* The job has failed: finish the stream with that error.  No lock, with a use of the job. */
void replica_send_failure(struct job_table *t, struct job *j, const struct error *failure);

#endif
