/*
 * ps_link: one worker's connection to one parameter server: join, the Exchange stream, leave.
 *
 * Chunks that come down are handed to `take` on the link's own I/O thread; everything else is
 * called from the training thread and may block up to the deadline it is given.
 */
#ifndef SPARRING_WORKER_SYNC_PS_LINK_H
#define SPARRING_WORKER_SYNC_PS_LINK_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/rpc/rpc.h"
#include "common/rpc/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_link {
    struct endpoint server;
    char name[400]; /* "parameter server 127.0.0.1:5757 (--servers)"; for messages */
    unsigned rank;  /* of this worker */
    struct rpc_client *client;
    struct rpc_call *stream; /* one reference; NULL before ps_link_start */
    bool joined;
    bool over; /* guarded by the owner's lock: `ended` has run */

    /* Both run on the I/O thread.  take: a failure cancels the stream.  ended: once, last; err says
     * why the stream is over. */
    enum status (*take)(void *user, struct ps_link *link, const struct chunk_header *header,
                        struct rpc_message *message, struct error *err);
    void (*ended)(void *user, struct ps_link *link, const struct error *err);
    void *user;
    struct error refused; /* I/O thread: what `take` returned */
};

/* Connect nothing yet: make the client.  name, server, rank, take, ended and user are set. */
enum status ps_link_open(struct ps_link *l, const struct rpc_security *security, struct error *err);

/* Join until deadline_ns; blocks until every rank has joined.  The caller releases *ret_reply
 * (wire_release_join_reply).  Errors name the server and the rank. */
enum status ps_link_join(struct ps_link *l, const struct join_request *request, int64_t deadline_ns,
                         struct join_reply *ret_reply, struct error *err);

/* Open the stream; from here `ended` is certain. */
enum status ps_link_start(struct ps_link *l, struct error *err);

/* Queue one chunk; never blocks.  *ret_wire_bytes: its size with our headers.  A failure means that
 * the stream is over (`ended` says why); payload->release has then been called. */
enum status ps_link_send(struct ps_link *l, const struct chunk_header *header,
                         const struct rpc_payload *payload, size_t *ret_wire_bytes);

/* Bytes of a chunk on the wire: gRPC's prefix, header, payload. */
size_t ps_link_wire_bytes(size_t head_bytes, size_t payload_bytes);

/* Tell the server that this rank goes, with the reason when it failed, then half-close. */
void ps_link_leave(struct ps_link *l, const char *job, const char *reason, int64_t deadline_ns);

/* Cancel what is under way and free; a zeroed link is allowed. */
void ps_link_close(struct ps_link *l);

#endif
