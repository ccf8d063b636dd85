/*
 * ring_grpc: what the two sources of the gRPC transport share.  A link is one call of
 * /sparring.v1.Ring/Link, a stream of messages in both directions; the lower rank is its server.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_GRPC_H
#define SPARRING_COMMON_COLLECTIVE_RING_GRPC_H

#include "common/collective/ring/ring_endpoint.h"
#include "common/collective/ring/ring_transport.h"
#include "common/collective/ring/ring_wire.h"
#include "common/rpc/rpc.h"

#include <pthread.h>
#include <stdatomic.h>

#define GRPC_PIECE_BYTES ((size_t)512 << 10) /* of a message, at most */
#define GRPC_WINDOW      4                   /* messages on the way out, and read but not taken */
#define GRPC_LINK_PATH   "/sparring.v1.Ring/Link"

struct grpc_links;

/* A message on its way out: the bytes are core's until `busy` falls. */
struct grpc_piece {
    struct grpc_links *links;
    unsigned char *bytes; /* GRPC_PIECE_BYTES; belongs to links->memory */
    atomic_bool busy;
};

struct grpc_link {
    struct grpc_links *links;
    unsigned peer;
    struct rpc_client *client; /* to lower ranks; owned */

    /* ---- the engine's thread ---- */
    struct grpc_piece out[GRPC_WINDOW];
    size_t next_out;
    size_t taken; /* bytes of the oldest message */

    unsigned char *in[GRPC_WINDOW]; /* message k is in[k % GRPC_WINDOW]: of the call's thread until
                                       it counts as written, of the engine's until it is read */
    size_t in_bytes[GRPC_WINDOW];

    /* ---- under links->lock ---- */
    struct rpc_call *call;  /* a reference of ours; set before `is_ready` */
    uint64_t written, read; /* messages */
    bool full;              /* no more were asked for */
    bool is_ready;          /* both hellos have been exchanged */
    bool ended;
    char why[160]; /* it ended before `is_ready` */
};

/* The transport of one rank. */
struct grpc_links {
    struct transport head;
    unsigned rank, world_size;
    struct rpc_server *server;
    struct ring_hello hello; /* of this rank; the cookie is the peer's */
    struct ring_endpoint *endpoints;
    struct grpc_link *links;        /* [world_size] */
    unsigned char *memory;          /* of all pieces and messages */
    const struct mesh_alarm *alarm; /* borrowed: a member is lost */
    int event_fd;                   /* readable when anything has changed */
    pthread_mutex_t lock;
    atomic_bool closing; /* what still comes is dropped */
};

/* Wake the engine's thread; any thread. */
void grpc_links_wake(struct grpc_links *l);

/* Call every lower rank and serve every higher one until all links stand. */
enum status grpc_links_connect(struct grpc_links *l, struct collective *group, int64_t deadline_ns,
                               struct error *err);

#endif
