/*
 * gloo: the C face of libgloo, the real library, as a peer to compare the ring with.  Only in
 * builds that found Gloo.  No exception leaves gloo.cc: each becomes a status and a text.
 *
 * Limits are the library's: after any error the context is dead; an error text names the address
 * of a connection, not a rank; sums associate in its own order only.
 * C++ includes it inside extern "C".  Threads: one caller at a time per context; the library runs a
 * thread of its own per context.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_GLOO_H
#define SPARRING_COMMON_COLLECTIVE_GLOO_H

#include "common/collective/collective.h"

#include <stddef.h>

struct gloo_context;

struct gloo_config {
    struct store *store; /* borrowed until gloo_open returns */
    const char *name;    /* keys are "<name>/gloo/..." */
    const char *host;    /* address to bind */
    unsigned rank, world_size;
    int64_t timeout_ms; /* of every operation, too */
};

/* Connect to all ranks through the store. */
enum status gloo_open(const struct gloo_config *config, struct gloo_context **ret_context,
                      struct error *err);

/* As in collective.h.  All-reduce is Gloo's ring, which associates in its own order. */
enum status gloo_all_reduce(struct gloo_context *context, float *data, size_t count,
                            struct error *err);
enum status gloo_broadcast(struct gloo_context *context, void *data, size_t bytes, unsigned root,
                           struct error *err);
enum status gloo_all_gather(struct gloo_context *context, const void *mine, size_t bytes, void *all,
                            struct error *err);
enum status gloo_barrier(struct gloo_context *context, struct error *err);

/* NULL allowed. */
void gloo_close(struct gloo_context *context);

#endif
