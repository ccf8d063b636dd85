/*
 * What the sources of the replica stream share:
 *   replica_stream_open.c    from an address to a replica that has the terms, and the end
 *   replica_stream_record.c  records: packed, lent or copied, sent
 *   takeover_query.c         what a primary without a stream asks its replica
 *   replica_stream.c         held replies, acknowledgements, and who goes on when the replica is
 * lost
 */
#ifndef SPARRING_SERVER_REPLICATION_REPLICA_STREAM_INTERNAL_H
#define SPARRING_SERVER_REPLICATION_REPLICA_STREAM_INTERNAL_H

#include "server/replication/replica_stream.h"

#include <pthread.h>

#define REPLICA_STREAM_PATH "/sparring.v1.ParameterServer/Replicate"

/* Memory that core reads: a partition's own, or a copy of it. */
struct replica_stream_loan {
    atomic_size_t held;         /* by core */
    atomic_size_t *outstanding; /* of the job, which lives until it is 0 */
};

struct waiting {
    bool is_held;
    int64_t since_ns;
    struct held_reply answer;
};

struct replica_stream_slot {
    uint64_t put, acknowledged; /* records: sequence of the newest */
    unsigned held;              /* answers that wait */
};

struct replica_stream {
    char name[WIRE_ADDRESS_MAX + 16]; /* "replica 127.0.0.1:5758"; constant, like the next */
    struct shard *shard;
    unsigned world_size;
    bool copies; /* each push is a step */
    int64_t beat_ns, silence_ns;
    atomic_size_t *outstanding;
    void (*send)(struct replication *owner, struct job *j, const struct held_reply *reply);
    void (*lost)(struct replication *owner, struct job *j, const struct error *why);
    void (*knows)(struct replication *owner);
    struct replication *owner;
    struct job *job;
    struct rpc_client *client;
    struct rpc_call *call; /* one reference; NULL in a restored job, like nothing is heard */
    uint8_t *question;     /* owned; a packed RECORD_TAKEOVER_QUERY */
    size_t question_size;
    struct replica_stream_loan *loans;  /* owned; one per slot */
    float *copy;                        /* owned; (world_size, count of the shard); copies only */
    struct replica_stream_loan *copied; /* owned; (slot, world_size); copies only */

    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t changed; /* CLOCK_MONOTONIC; taken or ended */
    struct succession_primary succession;
    bool *settled;                     /* owned; of succession */
    struct replica_stream_slot *slots; /* owned; one per partition held */
    struct waiting *waiting;           /* owned; (slot, world_size) */
    size_t stuck;                      /* answers that wait for core alone, at most */
    uint64_t epoch;                    /* of the newest record, in force or not */
    uint64_t *sessions;                /* owned; that hold the slots, as the replica was told */
    uint64_t members, known;           /* changes of them: told, and known to the replica */
    bool restored;                     /* what it has acknowledged is not known; constant */
    bool asking;                       /* whether the replica serves by now */
    int64_t asked_ns;                  /* the last time */
    bool taken;                        /* the replica has the terms */
    bool ended;                        /* the stream is over, for the reason below */
    bool end_sent;                     /* by replica_stream_end, and the replica ends the stream */
    bool over; /* replica_stream_end or replica_stream_close: its end means nothing any more */
    struct error why;
    int64_t heard_ns, sent_ns, ticked_ns;
    struct replica_stream_figures counts;
    uint64_t *clocks; /* owned; of the record that is packed */
    uint8_t *flags;   /* owned; the same */
    uint8_t head[WIRE_RECORD_MAX];
};

/* The partition's place in the shard; it is held there. */
size_t replica_stream_slot_of(const struct replica_stream *c, uint32_t partition);

/* The replica says that it has taken over, in this epoch.  No lock held. */
void replica_stream_step_down(struct replica_stream *c, uint64_t epoch);

/* Ask it, if it has to be asked now.  No lock held. */
void replica_stream_ask(struct replica_stream *c, int64_t now_ns);

/* Of the stream. */
extern const struct rpc_handler replica_stream_handler;

#endif
