/*
 * ps_link: the connections of one worker to one parameter server: Join, the Exchange streams
 * (lanes), the heartbeats of Attend, Leave.
 *
 * A lane is one connection with one Exchange stream and one Attend call, whose heartbeats detect a
 * dead connection; lane 0's connection also carries Join and Leave.  A lost link is opened again
 * from the start: ps_link_shut, then open, join and start.
 *
 * Threads: `take_chunk`, `take_heartbeat` and `stream_closed` run on the lanes' I/O threads;
 * ps_link_send, ps_link_send_heartbeat and ps_link_interrupt may be called from any thread; all
 * other functions are called by one thread at a time (the training thread, or the one that
 * reconnects the link) and may block until their deadline.
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
    struct rpc_client *client;       /* owned; the link's lock guards the pointer */
    struct rpc_call *stream;         /* one reference; NULL: not started */
    struct rpc_call *heartbeat_call; /* Attend; one reference; NULL: not started */
    atomic_bool heartbeats_active;   /* the Attend call is open */
    atomic_bool has_received;        /* a message has arrived since this was last cleared */
    unsigned silent_heartbeats;      /* the monitor's: sent since a message last arrived */
    struct error rejection;          /* (the link's lock) why a message was rejected: malformed, or
                                        take_chunk's error */
};

/* Call-backs into the owner of a link. */
struct ps_link_owner {
    /* A chunk has arrived; an error ends the stream. */
    enum status (*take_chunk)(void *user, struct ps_link *link, const struct chunk_header *header,
                              struct rpc_message *message, struct error *err);
    void (*take_heartbeat)(void *user, struct ps_link *link, const struct heartbeat *heartbeat);
    /* A stream has ended, with `why`.  may_return: a new connection may succeed. */
    void (*stream_closed)(void *user, struct ps_link *link, const struct error *why,
                          bool may_return);
    void *user;
};

enum ps_link_state {
    PS_LINK_IDLE, /* the server holds no partition, or the link has not joined yet */
    PS_LINK_UP,
    PS_LINK_RECONNECTING, /* lost; ps_reconnect.c */
    PS_LINK_CLOSED,       /* a stream has ended for good: left, failed, or not restored in time */
};

struct ps_link {
    struct endpoint server;         /* current or next target of the connections */
    char name[400];                 /* "parameter server 127.0.0.1:5757 (--servers)"; for texts */
    unsigned index;                 /* of the server */
    unsigned rank;                  /* of this worker */
    struct rpc_security security;   /* its texts are borrowed */
    struct rpc_keepalive keepalive; /* of calls before the lanes send heartbeats */
    struct ps_link_owner owner;
    struct ps_lane lanes[WIRE_LANES_MAX];
    unsigned lane_count;
    uint64_t ahead_max; /* pushes of a lane without replies; 0: no limit.  See send_limit.h */
    uint64_t session;
    atomic_bool joined;
    atomic_bool reply_rejected; /* this rank closed the stream: the server must receive a leave */
    bool failed_by_peer;        /* the last error of Join or Leave was returned by the server */
    uint64_t epoch;             /* from the reply to Join; 0: the server supports no sessions */
    uint64_t join_attempts;     /* successful or not */
    uint64_t connection;        /* number in the reply to Join */
    uint64_t heartbeats_sent;   /* the monitor's */
    uint64_t pushed_round;      /* from the reply to Join: last round that this rank has pushed */
    pthread_mutex_t lock;
    atomic_uint open_streams; /* lanes whose stream has not ended */

    int handover_fd; /* (lock) socket of a memory exchange in progress; -1: none */
    struct shared_memory server_memory; /* owned; read-only mapping of the server's replies;
                                           replaced only while no stream is open */

    /* Fields of ps_replica.c; without a replica replica_text is "". */
    struct endpoint primary, replica;
    char replica_text[WIRE_ADDRESS_MAX]; /* as sent to the primary */
    char origin[64];                     /* of its address, for messages */
    char primary_name[400];              /* as `name` */
    bool at_replica;                     /* server is the replica */
    bool promoted;                       /* the replica has taken over and accepted this worker: the
                                            link stays there */
    bool follows;                        /* its join must not promote the replica */
    bool replica_contacted;              /* since the vote for it: it may have received the vote */

    /* Fields of the owner, under its lock. */
    struct succession_worker succession;
    uint64_t vote_epoch;     /* sent with each heartbeat; 0: no vote */
    bool by_reference;       /* each side has mapped the other's memory */
    struct channel *channel; /* of the connection, one reference; NULL: none.  See ps_channel.c */
    bool channel_failed;     /* the receiving thread's: a reply was rejected */
    enum ps_link_state state;
    uint64_t connection_count; /* times that it became UP */
    bool waits_for_rank;       /* UP: the server waits for a lost rank or its replacement */
    struct error loss;         /* RECONNECTING: why it was lost ... */
    int64_t lost_ns;           /* ... and when */
    struct error stream_error; /* RECONNECTING: a new stream has ended already */
    bool in_use;               /* acquired for a call: it must not be shut */
    bool reconnect_started;    /* reconnect_thread runs, or must be joined */
    bool reconnect_done;       /* reconnect_thread is ending: join it */
    pthread_t reconnect_thread;
};

/* Create the clients; no connection yet.  server, name, rank, security, owner and lane_count are
 * set, `lock` is initialised. */
enum status ps_link_open(struct ps_link *l, struct error *err);

/* Join until deadline_ns; a job's first join blocks until every rank has joined.  The caller
 * releases *ret_reply (wire_release_join_reply).  Errors name the server and the rank. */
enum status ps_link_join(struct ps_link *l, const struct join_request *request, int64_t deadline_ns,
                         struct join_reply *ret_reply, struct error *err);

/* Open the streams and Attend calls; `stream_closed` will be called for each open stream. */
enum status ps_link_start(struct ps_link *l, struct error *err);

/* Queue one chunk on a stream of this link, before those of a lower priority; never blocks.
 * *ret_wire_bytes: its size with our headers.  An error means that the stream has ended
 * (`stream_closed` receives the reason); payload->release has then been called. */
enum status ps_link_send(struct rpc_call *stream, uint32_t priority,
                         const struct chunk_header *header, const struct rpc_payload *payload,
                         size_t *ret_wire_bytes);

/* Reject a message: cancel the lane's stream, which then ends with this error.  On the lane's I/O
 * thread, or on another one that received a chunk which belongs to the lane. */
void ps_link_reject(struct ps_link *l, unsigned lane, const struct error *why);

/* Queue one heartbeat; never blocks. */
void ps_link_send_heartbeat(struct rpc_call *heartbeat_call, const struct heartbeat *heartbeat);

/* Bytes of a chunk on the wire: gRPC's prefix, header, payload. */
size_t ps_link_wire_bytes(size_t head_bytes, size_t payload_bytes);

/* Send Leave, with the reason if this rank failed, then half-close.  Returns only errors that
 * another connection may avoid; a server that does not know this rank any more is no error. */
enum status ps_link_leave(struct ps_link *l, const char *job, const char *reason,
                          int64_t deadline_ns, struct error *err);

/* May a call that ended with `status` succeed on another connection?  by_peer: the server returned
 * the status; else it describes the connection. */
bool ps_link_may_return(enum status status, bool by_peer);

/* Cancel calls and a memory exchange in progress, so that their callers return soon. */
void ps_link_interrupt(struct ps_link *l);

/* Cancel calls in progress, wait for their ends, close the connections; a link that is not open is
 * allowed. */
void ps_link_shut(struct ps_link *l);

#endif
