/*
 * ps: declarations shared by the sources of the parameter server's worker; ps.c has the model.
 *
 *   ps.c          rounds: the operations of sync
 *   ps_open.c, ps_close.c
 *   ps_fetch.c    reads values and optimizer state of all servers, for a checkpoint
 *   ps_monitor.c  thread: sends heartbeats, detects silent servers, starts the reconnection of ...
 *   ps_reconnect.c  ... a lost link,
 *   ps_replica.c  to the primary or to the replica of a server
 *   ps_join.c     join of one server
 *   ps_wait.c     waits for replies
 *   ps_send.c     requests, and their repetition after a loss
 *   ps_receive.c  replies
 *   ps_channel.c  requests and replies through shared memory
 *   ps_state.c    state of the links and of the synchronisation
 *
 * Each source calls only those below it.  Private to worker/sync and its tests.
 */
#ifndef SPARRING_WORKER_SYNC_PS_H
#define SPARRING_WORKER_SYNC_PS_H

#include "common/base/futex.h"
#include "common/shard_map/shard_map.h"
#include "worker/sync/ps_channel.h"
#include "worker/sync/ps_codec.h"
#include "worker/sync/ps_link.h"
#include "worker/sync/ps_payload.h"
#include "worker/sync/ps_row_selection.h"
#include "worker/sync/sync.h"

#include <pthread.h>
#include <stdatomic.h>

/* Added to timeouts: the server, which knows the missing rank, reports the timeout first. */
#define PS_MARGIN_MS 2000

/* struct sync_counters, counted without the lock by every thread that sends or receives. */
struct ps_counters {
    _Atomic uint64_t tx_payload_bytes, rx_payload_bytes, tx_wire_bytes, rx_wire_bytes;
    _Atomic uint64_t tx_reference_bytes, rx_reference_bytes;
    _Atomic uint64_t takeovers, reconnects, away_ns, retries;
};

/* Fields marked (L) are guarded by `lock`, those marked (T) belong to the training thread; both: it
 * writes them under the lock. */
struct sync_ps {
    struct sync base;
    float *params;
    float *grads;
    sync_arrived_fn *arrived; /* NULL: no call-back */
    void *user;
    const float *moments[2]; /* borrowed; rank 0: initial state of the servers' optimizer */
    unsigned states;         /* slabs in moments */
    size_t count;
    float scale;    /* of a gradient before it is summed: 1 / consistency_divisor */
    bool undivided; /* the server scales */
    struct consistency consistency;
    unsigned rank, world_size;
    int64_t timeout_ms;
    int64_t reconnect_ms; /* 0: a lost link ends the job */
    int64_t heartbeat_ms; /* 0: no heartbeats */
    int64_t heartbeat_timeout_ms;
    struct join_request terms; /* owned; of every join, except the server's index */
    struct shard_map map;
    struct ps_codec codec;
    struct ps_row_selection selection;
    struct in_flight unreleased_payloads; /* payloads that gRPC still references */
    enum sync_transport transport;
    const struct shared_memory *memory; /* borrowed; the slabs'; NULL: not shared */
    bool priority;
    struct ps_link *links; /* owned, one per server */
    unsigned link_count;
    struct ps_channel_reader reader;
    bool overlaps;       /* finish does not wait for parameters */
    bool begin_deferred; /* (T) begin was called while parameters were outstanding */
    int64_t deadline_ns; /* (T) for outstanding parameters */

    pthread_mutex_t lock;
    pthread_cond_t changed;   /* CLOCK_MONOTONIC: received, a link's state or failed has changed */
    uint64_t round;           /* (L) 0: initial values */
    size_t queued;            /* (L) (T) partitions of this round requested so far */
    size_t received;          /* (L) partitions of this round that are in the slab */
    uint64_t completed_round; /* (L) last round that this process pushed and has all replies of */
    bool signal_each_partition;      /* (L) the training thread waits for single partitions */
    uint64_t oldest_round;           /* (L) smallest round among this round's replies */
    size_t notified_count;           /* (T) partitions of this round reported to `arrived` */
    size_t first_unnotified;         /* (T) all partitions below it are reported */
    uint64_t skipped;                /* (T) rounds by which the last push was late */
    bool is_final_round;             /* (L) the round requests the final values */
    bool sends_initial;              /* (L) round 0: this rank sends the initial values */
    bool catching_up;                /* (L) round 0 of a running job: values of any round */
    uint64_t requested_round;        /* (L) catching up: round + 1 of the values; 0: the newest */
    uint64_t newest_round;           /* (L) catching up: greatest round of the values */
    uint64_t repeat_through_round;   /* (L) an earlier process may have pushed rounds up to this */
    int64_t extended_deadline_ns;    /* (L) of the round, as granted by the servers or after a
                                        reconnection */
    struct ps_partition *partitions; /* (L) owned */
    bool closing;                    /* (L) the end of a stream is no failure */
    bool reconnect_disabled;         /* (L) lost links stay lost */
    bool failed;                     /* (L) */
    struct error failure;            /* (L) the first one */
    struct ps_counters counters;

    pthread_t monitor_thread;
    bool monitor_started;        /* monitor_thread must be joined */
    bool monitor_stop;           /* (L) monitor_thread must end */
    bool heartbeat_due;          /* (L) send heartbeats without waiting for the interval */
    pthread_cond_t monitor_wake; /* CLOCK_MONOTONIC: wakes monitor_thread */
};

/* Progress of one partition.  A mark is round + 1; 0: never. */
struct ps_partition {
    uint64_t requested_mark;      /* last requested in this round ... */
    uint64_t requested_on;        /* ... on this connection (ps_link.connection_count) */
    uint64_t replied_mark;        /* reply of this round accepted */
    uint64_t stored_mark;         /* reply of this round is in the slab */
    uint64_t values_round;        /* round of the values received last */
    uint64_t notified_mark;       /* (T) reported to `arrived` in this round */
    uint32_t duplicates_expected; /* duplicate replies that repeated requests may cause */
};

/* Call-backs of the links (struct ps_link_owner); a chunk of a channel has no message. */
enum status ps_take_chunk(void *user, struct ps_link *link, const struct chunk_header *h,
                          struct rpc_message *message, struct error *err);
void ps_take_heartbeat(void *user, struct ps_link *link, const struct heartbeat *heartbeat);
void ps_link_closed(void *user, struct ps_link *link, const struct error *why, bool may_return);

/* Fail the job for this rank; the first error is kept.  Lock held. */
void ps_fail(struct sync_ps *s, const struct error *why);

/* May an earlier process of this rank have sent this round's chunks, or the servers be ahead of
 * it?  Lock held. */
bool ps_may_repeat(const struct sync_ps *s);

/* The deadline of a round for which a wait begins now. */
int64_t ps_deadline(const struct sync_ps *s);

/* Wait until partitions [first, end) of the round are in the slab, and report them and all others
 * that arrived meanwhile to sync_arrived_fn (not in round 0).  STATUS_TIMEOUT: not by deadline_ns,
 * which links that reconnect and servers that wait for a rank extend.  STATUS_CANCELLED: a stop was
 * requested during such an extension.  Else the error of sync_arrived_fn, or the sync's failure. */
enum status ps_wait(struct sync_ps *s, size_t first, size_t end, int64_t deadline_ns,
                    struct error *err);

/* Wait until the final values are in the slab.  No deadline: they are sent when the last rank has
 * made its last step.  The servers detect lost ranks, and heartbeats detect lost servers.
 * STATUS_CANCELLED: a stop was requested. */
enum status ps_wait_final(struct sync_ps *s, struct error *err);

/* Expect a reply for `partition`, the next one of the round, and send the request for it, now or
 * when its link is up again. */
void ps_request_partition(struct sync_ps *s, size_t partition);

/* Send the requests without a reply that were not sent on the link's current connection: the link
 * is UP again, or values are requested anew.  Does nothing if the link is not UP. */
void ps_repeat_requests(struct sync_ps *s, struct ps_link *l);

/* Join one server with s->terms and check its reply; blocks until deadline_ns.  The link is open.
 */
enum status ps_join(struct sync_ps *s, struct ps_link *l, bool resume, int64_t deadline_ns,
                    struct error *err);

/* Parse config's replicas into the links, whose servers are parsed.  STATUS_CONFIG. */
enum status ps_replica_parse(struct sync_ps *s, const struct sync_config *config,
                             struct error *err);

/* First join of a process that may be a late replacement: if the link's replica has taken over the
 * job, join it.  False: there is no replica, or it has not; the link is shut and set to the
 * primary. */
bool ps_replica_find(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns);

/* Select the server of reconnection attempt number `count` (from 0); returns the attempt's
 * deadline, at most deadline_ns, which ends all attempts.  The link is shut. */
int64_t ps_replica_select(struct sync_ps *s, struct ps_link *l, unsigned count,
                          int64_t deadline_ns);

/* After an attempt that failed with `status`: may another one, at either server, succeed? */
bool ps_replica_may_retry(struct sync_ps *s, struct ps_link *l, enum status status);

/* The primary proposes to continue without its replica.  Lock held. */
void ps_replica_propose(struct sync_ps *s, struct ps_link *l, uint64_t epoch);

/* Thread function: reconnect a RECONNECTING link, or close it for good. */
void *ps_reconnect(void *link);

enum status ps_monitor_start(struct sync_ps *s, struct error *err);
void ps_monitor_stop(struct sync_ps *s); /* also ends all reconnections */

/* Acquire a link for a call beside its streams; it is not shut until ps_release_link.  Waits until
 * deadline_ns for a link that reconnects.  True also, once, for a CLOSED link whose reply this rank
 * rejected: its server still runs and must receive the leave. */
bool ps_acquire_link(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns);
void ps_release_link(struct sync_ps *s, struct ps_link *l);

/* See sync_fetch_state. */
enum status ps_fetch_state(struct sync *base, float *values, float *const *moments,
                           uint64_t *ret_steps, struct error *err);

enum status ps_open(const struct sync_config *config, struct sync **ret_sync, struct error *err);
bool ps_close(struct sync *base, const struct error *failure); /* also half-built ones */

#endif
