/*
 * arena: memory of workers on this server's host, and the desk where they hand it over.
 *
 * A worker that is told the desk's address in the reply to its join connects to it, sends the
 * descriptor of the memory that its slabs lie in, and gets that of the memory that answers are sent
 * from.  From then on chunks may go by reference: the server adds from the worker's memory, the
 * worker copies from the server's.  Both map the other's to read it, never to write.
 *
 * The desk has one thread, which takes one worker after the other; one that dawdles is sent away.
 */
#ifndef SPARRING_SERVER_SERVICE_WORKER_MEMORY_H
#define SPARRING_SERVER_SERVICE_WORKER_MEMORY_H

#include "common/base/error.h"
#include "common/base/shared_memory.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* A worker's memory; freed with its last reference, from any thread. */
struct arena {
    atomic_uint refs;
    uint64_t session; /* of the worker */
    struct shared_memory memory;
};

struct arena *arena_ref(struct arena *a);
void arena_unref(struct arena *a); /* NULL is allowed */

/* `count` float32 at `place` bytes from its start; NULL when they are not all inside, or not where
 * a float may be. */
const float *arena_at(const struct arena *a, uint64_t place, size_t count);

struct arena_desk;

struct arena_desk_config {
    /* On the desk's thread: a worker has come.  STATUS_OK keeps the reference to `arena`;
     * *ret_memory is then a descriptor of the caller's own to give away, and its bytes. */
    enum status (*take)(void *user, unsigned rank, struct arena *arena,
                        struct shared_memory *ret_memory, struct error *err);
    void *user;
};

enum status arena_desk_open(const struct arena_desk_config *config, struct arena_desk **ret_desk,
                            struct error *err);

/* For JoinReply.arena (common/base/handover.h). */
const char *arena_desk_address(const struct arena_desk *desk);

void arena_desk_close(struct arena_desk *desk); /* NULL is allowed */

#endif
