/*
 * replica_stream_internal: shared by the sources of the replica stream:
 *   replica_stream_open.c    creation, connection, exchange of the terms, and release
 *   replica_stream_record.c  records: packing, copying of payloads, sending
 *   replica_stream.c         held replies, acknowledgements, heartbeats, loss of the replica
 *   takeover_query.c         query of a primary without a stream whether it was superseded
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICA_STREAM_INTERNAL_H
#define SPARRING_SERVER_REPLICATION_REPLICA_STREAM_INTERNAL_H

#include "server/replication/replica_stream.h"

#include <pthread.h>

#define REPLICA_STREAM_PATH "/sparring.v1.ParameterServer/Replicate"

/* Payload memory that gRPC reads: a partition's own, or a copy of it. */
struct replica_stream_buffer {
    atomic_size_t in_flight;    /* sends that gRPC has not released */
    atomic_size_t *outstanding; /* of the job, which lives until it is 0 */
};

/* A reply to one rank for one partition. */
struct replica_stream_held {
    bool is_held;
    int64_t since_ns;
    struct held_reply reply;
};

struct replica_stream_part {
    uint64_t newest, acknowledged; /* sequences of records */
    unsigned held_count;           /* replies */
};

struct replica_stream {
    char name[WIRE_ADDRESS_MAX + 16]; /* "replica 127.0.0.1:5758"; constant once open, like all
                                         fields before `lock` */
    struct shard *shard;
    unsigned world_size;
    bool copies_payloads; /* each push is a step, which overwrites the partition at once */
    int64_t heartbeat_ns, heartbeat_timeout_ns;
    atomic_size_t *outstanding;
    void (*send_reply)(struct replication *owner, struct job *j, const struct held_reply *reply);
    void (*on_superseded)(struct replication *owner, struct job *j, const struct error *why);
    void (*on_membership_acknowledged)(struct replication *owner);
    struct replication *owner;
    struct job *job;
    struct rpc_client *client;
    struct rpc_call *call;   /* one reference; NULL in a restored job */
    uint8_t *takeover_query; /* owned; a packed RECORD_TAKEOVER_QUERY */
    size_t takeover_query_size;
    struct replica_stream_buffer *buffers;      /* owned; one per partition held */
    float *copy_data;                           /* owned; (world_size, count of the shard);
                                                   only with copies_payloads, like the next */
    struct replica_stream_buffer *copy_buffers; /* owned; (partition, world_size) */

    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t changed; /* CLOCK_MONOTONIC; terms_accepted or stream_ended */
    struct succession_primary succession;
    bool *settled;                     /* owned; of succession */
    struct replica_stream_part *parts; /* owned; one per partition held */
    struct replica_stream_held *held;  /* owned; (partition, world_size) */
    size_t blocked_by_transport;       /* upper bound of the replies held only because gRPC still
                                          reads the partition's memory */
    uint64_t epoch;                    /* of the newest record, in force or not */
    uint64_t *sessions;                /* owned; of each rank, as sent to the replica */
    uint64_t membership_sent, membership_acknowledged; /* numbers of membership changes */
    bool restored;                                     /* acknowledgements are unknown; constant */
    bool query_pending;                                /* a takeover query */
    int64_t queried_ns;                                /* start of the newest one */
    bool terms_accepted;                               /* by the replica */
    bool stream_ended;                                 /* for the reason end_error */
    bool end_sent; /* by replica_stream_end; the replica then ends the stream */
    bool closing;  /* by replica_stream_end, _cancel or _close: ignore the end of the stream */
    struct error end_error;
    int64_t received_ns, sent_ns, ticked_ns; /* newest reply, record or heartbeat, tick */
    struct replica_stream_figures counts;
    uint64_t *clocks; /* owned; of the record that is packed */
    uint8_t *flags;   /* owned; the same */
    uint8_t head[WIRE_RECORD_MAX];
};

/* Index of the partition among those of this shard, which must hold it. */
size_t replica_stream_local_index(const struct replica_stream *s, uint32_t partition);

/* End the job: the replica has taken over in this epoch.  No lock held. */
void replica_stream_step_down(struct replica_stream *s, uint64_t epoch);

/* Send a takeover query if one is due.  No lock held. */
void replica_stream_query_takeover(struct replica_stream *s, int64_t now_ns);

/* Of the Replicate call. */
extern const struct rpc_handler replica_stream_handler;

#endif
