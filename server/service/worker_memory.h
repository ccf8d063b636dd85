/*
 * memory: memory of workers on this server's host, and the listener where they hand it over.
 *
 * A worker that is told the listener's address in the reply to its join connects to it, sends the
 * descriptor of the memory that its slabs lie in, and gets that of the memory that answers are sent
 * from.  From then on chunks may go by reference: the server adds from the worker's memory, the
 * worker copies from the server's.  Both map the other's to read it, never to write.
 *
 * The listener has one thread, which takes one worker after the other; one that dawdles is sent
 * away.
 */
#ifndef SPARRING_SERVER_SERVICE_WORKER_MEMORY_H
#define SPARRING_SERVER_SERVICE_WORKER_MEMORY_H

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
};

struct worker_memory *worker_memory_ref(struct worker_memory *a);
void worker_memory_unref(struct worker_memory *a); /* NULL is allowed */

/* `count` float32 at `place` bytes from its start; NULL when they are not all inside, or not where
 * a float may be. */
const float *worker_memory_at(const struct worker_memory *a, uint64_t place, size_t count);

struct fd_listener;

struct fd_listener_config {
    /* On the listener's thread: a worker has come.  STATUS_OK keeps the reference to `memory`;
     * *ret_memory is then a descriptor of the caller's own to give away, and its bytes. */
    enum status (*take)(void *user, unsigned rank, struct worker_memory *memory,
                        struct shared_memory *ret_memory, struct error *err);
    void *user;
};

enum status fd_listener_open(const struct fd_listener_config *config,
                             struct fd_listener **ret_listener, struct error *err);

/* For JoinReply.arena (common/base/handover.h). */
const char *fd_listener_address(const struct fd_listener *listener);

void fd_listener_close(struct fd_listener *listener); /* NULL is allowed */

#endif
