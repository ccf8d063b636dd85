/*
 * call: the state of one call, shared by call.c (its life cycle), call_operations.c (requests and
 * the gRPC operations they become) and result.c (how it ended).  Internal to rpc.
 */
#ifndef SPARRING_COMMON_RPC_CALL_H
#define SPARRING_COMMON_RPC_CALL_H

#include "common/base/priority_queue.h"
#include "common/base/send_limit.h"
#include "common/rpc/rpc_internal.h"

#define RPC_NAME_MAX 128

/* A queued outgoing message: header with the payload's tag and length, then the payload. */
struct rpc_send {
    struct rpc_send *next; /* in the list of spare nodes */
    grpc_slice slices[2];  /* owned while queued */
    size_t count;
    uint32_t priority;
};

struct rpc_call {
    atomic_uint refs;
    bool is_client;
    bool fail_fast;          /* as in rpc_call_setup */
    bool is_unauthenticated; /* counted in calls->unauthenticated_count */
    const struct rpc_handler *handler;
    void *user;
    const struct rpc_token *token; /* client; until `closed` */
    grpc_channel *channel;         /* client; these four only until `closed` */
    grpc_call *grpc;
    struct rpc_queue *queue; /* its thread runs everything below `queue thread only` */
    struct rpc_calls *calls;
    struct rpc_counts *counts;        /* server, until `closed` */
    struct rpc_call *previous, *next; /* under calls->lock */
    int64_t opened_ns;
    int64_t deadline_ns;
    char path[RPC_NAME_MAX];
    char peer[RPC_NAME_MAX * 3]; /* client: the target */

    pthread_mutex_t batch_lock; /* held while batches are started; taken before `lock` */
    /* ---- under batch_lock ---- */
    unsigned in_flight; /* batches whose tag has not come back */
    bool begun;         /* client: its first batches are started */
    bool sending, receiving;
    bool initial_sent, last_sent;
    bool cancel_sent;
    bool sent_any;        /* a batch of sends has completed */
    bool send_failed;     /* the stream is broken: the status follows */
    struct error failure; /* detected on this side, e.g. a malformed message; status OK: none */

    /* ---- queue thread only ---- */
    struct rpc_tag on_send, on_receive, on_close, on_wake;
    grpc_byte_buffer *received;
    struct rpc_message message;
    struct byte_run *runs; /* owned, of the message being handled */
    size_t run_capacity;
    int peer_cancelled;                    /* server */
    grpc_metadata_array initial, trailing; /* client */
    grpc_status_code code;
    grpc_slice details;
    bool unreachable; /* client: the deadline passed and there was no connection */

    pthread_mutex_t lock;
    /* ---- under lock ---- */
    bool ended; /* nothing can be started any more */
    bool woken; /* a wake-up batch (on_wake) is pending */
    bool want_receive, want_last, want_cancel;
    enum status finish_status; /* fixed once want_last is set */
    char finish_text[1024];
    struct priority_queue sends; /* of struct rpc_send, owned: queued messages */
    struct rpc_send *spare;      /* used nodes, owned */
    struct send_limit limit;     /* of queued messages that leave */
};

/* call.c, queue thread, after every completion: start what is requested, or close the call.  No
 * lock. */
void rpc_call_advance_or_close(struct rpc_call *call);

/* call_operations.c, batch_lock held: start what is requested and possible. */
void rpc_call_advance(struct rpc_call *call);
/* The tag is always completed; a batch that core rejects ends the call.  batch_lock held. */
void rpc_call_start_batch(struct rpc_call *call, const grpc_op *ops, size_t count,
                          struct rpc_tag *tag);
void rpc_send_drop(struct rpc_call *call); /* unref all queued messages; takes the lock */
void rpc_send_release(struct rpc_call *call);

/* calls.c */
void rpc_calls_add(struct rpc_call *call);
void rpc_calls_remove(struct rpc_call *call);

/* probe.c, queue thread, batch_lock held: find out why there is no connection, and store it in
 * `details`. */
void rpc_probe_start(struct rpc_call *call);

/* result.c, queue thread, before the gRPC call is released. */
bool rpc_call_unreachable(const struct rpc_call *call); /* once the status has arrived */
void rpc_call_result(struct rpc_call *call, struct rpc_result *ret);

#endif
