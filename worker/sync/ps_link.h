/*
 * ps_link: one worker's connections to one parameter server: join, the Exchange streams (lanes),
 * the beats of Attend, leave.
 *
 * A lane is a connection of its own with one stream on it, and beside it the beats that tell
 * whether it is alive; lane 0's connection carries join and leave, too.  A link that was cut off is
 * opened again from scratch: ps_link_shut, then open, join and start once more.
 *
 * Threads: `take`, `beat` and `closed` run on the lanes' own I/O threads; ps_link_send and
 * ps_link_beat may be called from any thread, ps_link_interrupt too; everything else is called by
 * one thread at a time (the training thread, or the one that brings the link back) and may block up
 * to the deadline it is given.
 */
#ifndef SPARRING_WORKER_SYNC_PS_LINK_H
#define SPARRING_WORKER_SYNC_PS_LINK_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/base/shared_memory.h"
#include "common/rpc/rpc.h"
#include "common/succession/succession.h"
#include "common/wire/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PS_METHOD(name) "/sparring.v1.ParameterServer/" name

struct ps_link;

struct ps_lane {
    struct ps_link *link;
    struct rpc_client *client; /* owned; the link's lock guards the pointer */
    struct rpc_call *stream;   /* one reference; NULL: not started */
    struct rpc_call *attend;   /* the same */
    atomic_bool attended;      /* beats are answered */
    atomic_bool heard;         /* something came since this was last cleared */
    unsigned silent;           /* the tender's: its beats since anything was heard */
    struct error refused;      /* its I/O thread's: what `take` returned */
};

/* What a link tells its owner. */
struct ps_link_owner {
    /* A chunk came down; a failure ends the stream. */
    enum status (*take)(void *user, struct ps_link *link, const struct chunk_header *header,
                        struct rpc_message *message, struct error *err);
    void (*beat)(void *user, struct ps_link *link, const struct heartbeat *beat);
    /* A stream is over, `why` says how.  may_return: a new connection may mend it. */
    void (*closed)(void *user, struct ps_link *link, const struct error *why, bool may_return);
    void *user;
};

enum ps_link_state {
    PS_LINK_IDLE, /* it holds none of the partitions, or has not joined yet */
    PS_LINK_UP,
    PS_LINK_AWAY, /* lost, and on its way back (ps_resume.c) */
    PS_LINK_OVER, /* this rank has left, or the link is given up */
};

struct ps_link {
    struct endpoint server;       /* that it is connected to, or tries to be */
    char name[400];               /* "parameter server 127.0.0.1:5757 (--servers)"; for messages */
    unsigned index;               /* of the server */
    unsigned rank;                /* of this worker */
    struct rpc_security security; /* its texts are borrowed */
    struct rpc_keepalive keepalive; /* of calls that take long, until the lanes beat */
    struct ps_link_owner owner;
    struct ps_lane lanes[WIRE_LANES_MAX];
    unsigned lane_count;
    uint64_t session;
    atomic_bool joined;
    atomic_bool refused;  /* this rank wants no more of it: the server lives, and is to be told */
    bool told;            /* the last failure of join or leave was the server's own word */
    uint64_t epoch;       /* the server's word at the join; 0: it knows no sessions */
    uint64_t joins;       /* attempts, whatever became of them */
    uint64_t connection;  /* the number that the join's reply gave it */
    uint64_t beats;       /* sent; the tender's */
    uint64_t contributed; /* as its join said: the last round that this rank's slot has pushed */
    pthread_mutex_t lock;
    atomic_uint open; /* lanes whose stream is not over */

    int meeting;                /* (lock) socket of a meeting for it that is under way; -1: none */
    struct shared_memory arena; /* owned: what the server answers from, to be read; changes only
                                   while no stream is open */

    /* ps_replica.c's; no replica: replica_text is "". */
    struct endpoint primary, replica;
    char replica_text[WIRE_ADDRESS_MAX]; /* as the primary is told */
    char origin[64];                     /* of its address, for messages */
    char primary_name[400];              /* as `name` */
    bool at_replica;                     /* server is the replica */
    bool promoted;                       /* which has taken this worker in: it stays there */
    bool follows;                        /* its join must not make it the primary */
    bool replica_heard;                  /* since the vote for it: it may know of that */

    /* The owner's, under its lock. */
    struct succession_worker succession;
    uint64_t vote_epoch; /* to be told with each beat; 0: nothing */
    bool by_reference;   /* both see the other's memory */
    enum ps_link_state state;
    uint64_t connections; /* times that it came UP */
    bool waits;           /* UP: the server says that a rank is away, or to be replaced */
    struct error loss;    /* AWAY: why it was lost ... */
    int64_t lost_ns;      /* ... and when */
    struct error broken;  /* AWAY: a new stream is over already */
    bool busy;            /* somebody calls on it: it must not be shut */
    bool resuming;        /* `resumer` runs or waits to be joined */
    bool resumed;         /* it has ended */
    pthread_t resumer;
};

/* Connect nothing yet: make the clients.  server, name, rank, security, owner and lane_count are
 * set, `lock` is initialised. */
enum status ps_link_open(struct ps_link *l, struct error *err);

/* Join until deadline_ns; of a job's first joins it blocks until every rank has joined.  The caller
 * releases *ret_reply (wire_release_join_reply).  Errors name the server and the rank. */
enum status ps_link_join(struct ps_link *l, const struct join_request *request, int64_t deadline_ns,
                         struct join_reply *ret_reply, struct error *err);

/* Open the lanes and begin to attend; from here a `closed` for each lane is certain. */
enum status ps_link_start(struct ps_link *l, struct error *err);

/* Queue one chunk on a stream of this link; never blocks.  It overtakes those of a lower priority.
 * *ret_wire_bytes: its size with our headers.  A failure means that the stream is over (`closed`
 * says why); payload->release has then been called. */
enum status ps_link_send(struct rpc_call *stream, uint32_t priority,
                         const struct chunk_header *header, const struct rpc_payload *payload,
                         size_t *ret_wire_bytes);

/* Queue one beat; never blocks. */
void ps_link_beat(struct rpc_call *attend, const struct heartbeat *beat);

/* Bytes of a chunk on the wire: gRPC's prefix, header, payload. */
size_t ps_link_wire_bytes(size_t head_bytes, size_t payload_bytes);

/* Tell the server that this rank goes, with the reason when it failed, then half-close.  A failure
 * is one that another connection may mend; a server that knows us no more has nothing to be told.
 */
enum status ps_link_leave(struct ps_link *l, const char *job, const char *reason,
                          int64_t deadline_ns, struct error *err);

/* Can a call that ended so, by the server's own word or else by what became of the connection, end
 * well on another connection? */
bool ps_link_may_return(enum status status, bool by_peer);

/* Cancel what is under way, calls and the meeting, so that whoever is in one of this link returns
 * soon. */
void ps_link_interrupt(struct ps_link *l);

/* Cancel what is under way, wait for the ends, close the connections; a link that is not open is
 * allowed. */
void ps_link_shut(struct ps_link *l);

#endif
