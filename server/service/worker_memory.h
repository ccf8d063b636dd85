/*
 * worker_memory: memory of workers on this server's host, and fd_listener, which receives its
 * descriptors.
 *
 * A worker that gets the listener's address in its join reply connects to it, sends the descriptor
 * of the memory that holds its slabs, and gets the descriptor of the memory that replies are sent
 * from.  From then on chunks may go by reference: the server adds from the worker's memory, and the
 * worker copies from the server's.  Each side maps the other's memory read-only.  Then the worker
 * may send a channel (common/base/channel.h), through which such chunks, which have no payload,
 * travel without a socket.
 *
 * Threads: the listener has one thread and serves one worker after the other; a slow worker is
 * disconnected.  Needs: handover, shared_memory.  Called by service.c, join.c, memory_sharing.c,
 * exchange_chunk.c, payload.c.
 */
#ifndef SPARRING_SERVER_SERVICE_WORKER_MEMORY_H
#define SPARRING_SERVER_SERVICE_WORKER_MEMORY_H

#include "common/base/channel.h"
#include "common/base/error.h"
#include "common/base/shared_memory.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* A worker's memory; freed with its last reference, from any thread. */
struct worker_memory {
    atomic_uint refs;
    uint64_t session; /* of the worker */
    struct shared_memory memory;
    /* Owned; until the worker's stream takes it.  NULL: none.  The job table's lock guards it. */
    struct channel *channel;
};

struct worker_memory *worker_memory_ref(struct worker_memory *m);
void worker_memory_unref(struct worker_memory *m); /* NULL is allowed */

/* `count` float32 at byte `offset`; NULL: not all inside, or misaligned for a float. */
const float *worker_memory_at(const struct worker_memory *m, uint64_t offset, size_t count);

struct fd_listener;

struct fd_listener_config {
    /* On the listener's thread: a worker has sent its memory.  It takes a reference of its own to
     * `memory`; *ret_memory then holds a descriptor owned by the listener, to be sent and closed,
     * and its size. */
    enum status (*accept_memory)(void *user, unsigned rank, struct worker_memory *memory,
                                 struct shared_memory *ret_memory, struct error *err);
    /* Likewise: that worker has sent a channel, too.  STATUS_OK keeps `channel`; *ret_bell_fd is
     * borrowed. */
    enum status (*accept_channel)(void *user, unsigned rank, struct worker_memory *memory,
                                  struct channel *channel, int *ret_bell_fd, struct error *err);
    void *user;
};

enum status fd_listener_open(const struct fd_listener_config *config,
                             struct fd_listener **ret_listener, struct error *err);

/* For join_reply.memory_address (common/base/handover.h). */
const char *fd_listener_address(const struct fd_listener *listener);

void fd_listener_close(struct fd_listener *listener); /* NULL is allowed */

#endif
