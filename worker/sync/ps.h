/*
 * ps: what the sources of the parameter server's worker share; see ps.c for the model.
 *
 *   ps.c          rounds: the calls of sync
 *   ps_open.c, ps_close.c
 *   ps_fetch.c    all that the servers have, for a checkpoint
 *   ps_tend.c     the thread that beats, judges silence and sees lost links off to ...
 *   ps_resume.c   ... their way back,
 *   ps_replica.c  which leads to the other one of two servers with the same shard
 *   ps_join.c     the join of one server
 *   ps_wait.c     the waits
 *   ps_send.c     what goes up, and up again after a loss
 *   ps_receive.c  what comes down
 *   ps_state.c    the state of links and of the synchronisation
 *
 * Each calls only those below it.
 */
#ifndef SPARRING_WORKER_SYNC_PS_H
#define SPARRING_WORKER_SYNC_PS_H

#include "common/shard_map/shard_map.h"
#include "worker/sync/ps_codec.h"
#include "worker/sync/ps_link.h"
#include "worker/sync/ps_names.h"
#include "worker/sync/ps_payload.h"
#include "worker/sync/sync.h"

#include <pthread.h>
#include <stdatomic.h>

#define PS_MARGIN_MS 2000 /* at a time-out the server, which knows the ranks, speaks first */

struct sync_ps {
    struct sync base;
    float *params;
    float *grads;
    sync_arrived_fn *arrived; /* or NULL */
    void *user;
    const float *moments[2]; /* borrowed: initial state of the servers' optimizer; rank 0's */
    unsigned states;         /* that it has */
    size_t count;
    float scale;    /* of a gradient before it is summed: 1 / consistency_divisor */
    bool undivided; /* the server does it */
    struct consistency consistency;
    unsigned rank, world_size;
    int64_t timeout_ms;
    int64_t reconnect_ms; /* 0: a lost link ends the job */
    int64_t heartbeat_ms; /* 0: no beats */
    int64_t heartbeat_timeout_ms;
    struct join_request terms; /* of every join, but for the server's index; owned */
    struct shard_map map;
    struct ps_codec codec;
    struct ps_names names;
    atomic_size_t outstanding; /* payloads that core still holds */
    enum sync_transport transport;
    const struct shared_memory *memory; /* borrowed, of the slabs; NULL: not to be shared */
    bool priority;
    uint32_t *weights;     /* owned; of the servers; NULL: equal */
    struct ps_link *links; /* owned, one per server */
    unsigned link_count;
    size_t marked;       /* what ready said last; the training thread's */
    bool overlaps;       /* finish does not wait for parameters */
    bool begin_waits;    /* begin was called while they are outstanding; the training thread's */
    int64_t deadline_ns; /* of those outstanding; the training thread's */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC: received, the links' states or failed changed */
    uint64_t round;         /* (L) 0: initial values */
    size_t queued;          /* (L) partitions of this round handed over; the training thread's */
    size_t received;        /* (L) partitions of this round that are here */
    uint64_t contributed;   /* (L) last round that this process pushed and had all answers of */
    bool awaited;           /* (L) the training thread waits for single partitions */
    uint64_t oldest;        /* (L) least round of their answers */
    size_t told;            /* partitions of this round told of; the training thread's, like ... */
    size_t untold;          /* ... the first that was not */
    uint64_t skipped;       /* rounds that the last one was late by; the training thread's */
    bool ending;            /* (L) the round is the final values */
    bool gives_initial;     /* (L) round 0: this rank's values are the initial ones */
    bool catching_up;       /* (L) round 0 of a job that runs already: values of any round */
    uint64_t wanted;        /* (L) catching up: round + 1 of the values; 0: the newest */
    uint64_t newest;        /* (L) catching up: greatest round of the values */
    uint64_t again_through; /* (L) rounds up to here may hold what an earlier process pushed */
    int64_t extended_ns;    /* (L) the round may take until then, servers say */
    struct ps_partition *partitions; /* (L) owned */
    bool closing;                    /* (L) an end is no failure any more */
    bool giving_up;                  /* (L) lost links stay lost */
    bool failed;                     /* (L) */
    struct error failure;            /* (L) the first one */
    struct sync_counters counters;   /* (L) */

    pthread_t tender;
    bool tending;        /* the thread is there */
    bool tended;         /* (L) it is to end */
    bool beat_soon;      /* (L) there is something to tell the servers */
    pthread_cond_t tend; /* CLOCK_MONOTONIC: something for the tender to do */
};

/* What became of one partition. */
struct ps_partition {
    uint64_t sent;       /* round + 1 that it was last asked for in ... */
    uint64_t connection; /* ... on this one of its link's */
    uint64_t answered;   /* round + 1 that it was last received in */
    uint64_t here;       /* round + 1 whose answer is in the slab */
    uint64_t of;         /* round of the values that came */
    uint64_t told;       /* round + 1 that its arrival was last told of in; the training thread's */
    uint32_t extra;      /* answers that may still come twice, because it was asked for again */
};

/* The links' call-backs. */
enum status ps_take_chunk(void *user, struct ps_link *link, const struct chunk_header *h,
                          struct rpc_message *message, struct error *err);
void ps_take_beat(void *user, struct ps_link *link, const struct heartbeat *beat);
void ps_link_closed(void *user, struct ps_link *link, const struct error *why, bool may_return);

/* The job is lost to this rank, with the first reason.  Lock held. */
void ps_fail(struct sync_ps *s, const struct error *why);

/* May the servers have what is sent now from an earlier process of this rank, or be ahead of it?
 * Lock held. */
bool ps_may_repeat(const struct sync_ps *s);

/* When a round that begins to be waited for now is late. */
int64_t ps_deadline(const struct sync_ps *s);

/* Until partitions [first, end) of the round are here, and sync_arrived_fn has been told of them
 * and of all others that came meanwhile (of initial values it is not).  STATUS_TIMEOUT: not by
 * deadline_ns, or what links that are away and servers that wait for a rank ask for; or the sync's
 * failure. */
enum status ps_wait(struct sync_ps *s, size_t first, size_t end, int64_t deadline_ns,
                    struct error *err);

/* Until the final values are here: when the last rank has made its last step, which nobody can know
 * beforehand.  The servers watch over the ranks, and the beats over the servers. */
enum status ps_wait_others(struct sync_ps *s, struct error *err);

/* From now on the answer to `partition` is expected, the next one of the round; send what asks for
 * it, now or when its link is back. */
void ps_ask(struct sync_ps *s, size_t partition);

/* Send what the link's server has not answered and was not asked for on this connection: the link
 * is UP again, or answers are wanted anew.  Nothing, where it is away. */
void ps_ask_again(struct sync_ps *s, struct ps_link *l);

/* Until core has let go of the slabs; a moment, once the answers are here.  False: not by then. */
bool ps_wait_release(struct sync_ps *s, int64_t deadline_ns);

/* Join one server with the sync's terms and compare what it says; blocks until deadline_ns.
 * The link is open. */
enum status ps_join(struct sync_ps *s, struct ps_link *l, bool resume, int64_t deadline_ns,
                    struct error *err);

/* Take config's replicas for the links that are parsed.  STATUS_CONFIG. */
enum status ps_replica_parse(struct sync_ps *s, const struct sync_config *config,
                             struct error *err);

/* The first join, of a process that may have come late: has the link's replica taken the job over?
 * Then it has joined there.  False: there is none, or it has not; the link is shut, and leads to
 * the server again. */
bool ps_replica_find(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns);

/* Where the next attempt to bring the link back goes, until when at most; `count` rises from 0 with
 * the attempts, which end at deadline_ns.  The link is shut. */
int64_t ps_replica_aim(struct sync_ps *s, struct ps_link *l, unsigned count, int64_t deadline_ns);

/* What the attempt's failure means: may another one, perhaps at the other server, succeed? */
bool ps_replica_may_retry(struct sync_ps *s, struct ps_link *l, enum status status);

/* The server asks to go on without its replica.  Lock held. */
void ps_replica_propose(struct sync_ps *s, struct ps_link *l, uint64_t epoch);

/* Bring an AWAY link back, or give it up; the body of its resumer. */
void *ps_resume(void *link);

enum status ps_tend_start(struct sync_ps *s, struct error *err);
void ps_tend_stop(struct sync_ps *s); /* and whatever is on its way back */

/* May this link be talked to?  So may one that is over because this rank refused what came.  Waits
 * for one that is on its way back.  Until ps_let_go it stays. */
bool ps_hold_link(struct sync_ps *s, struct ps_link *l, int64_t deadline_ns);
void ps_let_go(struct sync_ps *s, struct ps_link *l);

/* See sync_fetch_state. */
enum status ps_fetch_state(struct sync *base, float *values, float *const *moments,
                           uint64_t *ret_steps, struct error *err);

enum status ps_open(const struct sync_config *config, struct sync **ret_sync, struct error *err);
bool ps_close(struct sync *base, const struct error *failure); /* half-built ones too */

#endif
