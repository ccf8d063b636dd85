/*
 * library: backends that are another project's library (Gloo, MPI), as a table of its calls.  What
 * both leave out, library_backend.c composes from these calls, the same way for both.
 *
 * Every function may block for as long as the library does, up to the group's time-out where the
 * library has one.  Buffers are as in collective.h but never in place, where not said otherwise.
 * Limits are the library's: after any error the context is dead, and an error text may name an
 * address instead of a rank.
 * Threads: one collective at a time per context; transfers and interrupt from any thread.
 * C++ includes it inside extern "C".
 */
#ifndef SPARRING_COMMON_COLLECTIVE_LIBRARY_H
#define SPARRING_COMMON_COLLECTIVE_LIBRARY_H

#include "common/collective/collective.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct library;          /* the library's context of one group */
struct library_transfer; /* a send or receive under way */

/* target[i] = a[i] op b[i]; target may be a or b. */
typedef void library_reduce_fn(const struct reduction *r, void *target, const void *a,
                               const void *b, size_t count);

/* Borrowed for the context's life. */
struct library_config {
    unsigned rank, world_size;
    const unsigned *members; /* world_size ranks of the job */
    uint64_t group;          /* a number of the group's own */
    const char *host;        /* address to bind; used while opening */
    int64_t timeout_ms;      /* of every operation */
    library_reduce_fn *reduce;
    size_t exchange_max;
    /* An all-gather of up to exchange_max bytes per rank while opening; `what` must be fresh. */
    enum status (*exchange)(void *argument, const char *what, const void *mine, size_t size,
                            void *all, struct error *err);
    void *argument; /* of exchange */
};

/* Which of the transfers between two ranks. */
struct library_transfer_id {
    unsigned peer;
    uint64_t number; /* of the transfers in this direction; pairs the headers */
    uint64_t key;    /* hash of what both ranks must agree on; pairs the data */
};

#define LIBRARY_HEADER_BYTES 48 /* what goes in front of a transfer: its signature */

struct library_ops {
    const char *name;
    uint32_t version; /* LIBRARY_VERSION: a module of another build is refused */

    /* Why there can be no context here: STATUS_CONFIG.  NULL: nothing to check. */
    enum status (*check)(unsigned rank, unsigned world_size, struct error *err);
    enum status (*open)(const struct library_config *config, struct library **ret,
                        struct error *err);

    /* What the next collectives belong to: a hash of the operation's signature, so that bytes of
     * ranks that disagree cannot meet (Gloo ends the process when sizes differ).  NULL: no use. */
    void (*mark)(struct library *l, uint32_t tag);

    /* In place. */
    enum status (*all_reduce)(struct library *l, void *data, size_t count,
                              const struct reduction *r, struct error *err);
    /* In place at the root; elsewhere data is used up. */
    enum status (*reduce)(struct library *l, void *data, size_t count, const struct reduction *r,
                          unsigned root, struct error *err);
    enum status (*broadcast)(struct library *l, void *data, size_t bytes, unsigned root,
                             struct error *err);
    /* Here mine may be its place in all; `bytes` are those of one rank. */
    enum status (*all_gather)(struct library *l, const void *mine, size_t bytes, void *all,
                              struct error *err);
    enum status (*gather)(struct library *l, const void *mine, size_t bytes, void *all,
                          unsigned root, struct error *err);
    enum status (*scatter)(struct library *l, const void *all, size_t bytes, void *mine,
                           unsigned root, struct error *err);
    enum status (*all_to_all)(struct library *l, const void *input, size_t bytes, void *output,
                              struct error *err);
    enum status (*barrier)(struct library *l, struct error *err);

    /* Start a transfer, without blocking.  The header (LIBRARY_HEADER_BYTES, copied) travels in
     * front. */
    enum status (*send)(struct library *l, const struct library_transfer_id *id, const void *header,
                        const void *data, size_t bytes, struct library_transfer **ret,
                        struct error *err);
    enum status (*recv)(struct library *l, const struct library_transfer_id *id, void *data,
                        size_t bytes, struct library_transfer **ret, struct error *err);
    /* Wait for the header of a recv (LIBRARY_HEADER_BYTES into header), then for all of it. */
    enum status (*await_header)(struct library *l, struct library_transfer *t, void *header,
                                struct error *err);
    enum status (*await)(struct library *l, struct library_transfer *t, struct error *err);
    void (*release_transfer)(struct library *l,
                             struct library_transfer *t); /* frees it, done or not */

    /* Payload bytes that rank `rank` of n moves in one of the calls above with `bytes` bytes of
     * `element_bytes` each: for all_reduce, reduce and broadcast of the whole buffer, else of one
     * rank's block. */
    void (*bytes)(enum collective_call call, unsigned rank, unsigned n, uint64_t bytes,
                  size_t element_bytes, unsigned root, uint64_t *ret_tx, uint64_t *ret_rx);

    /* Is a call blocked until a peer does something, just now?  Any thread.  NULL: the library does
     * not show it. */
    bool (*is_waiting)(struct library *l);

    /* Make a call that blocks in another thread fail soon.  NULL: the library cannot. */
    void (*interrupt)(struct library *l);
    void (*close)(struct library *l, bool in_order);
};

#define LIBRARY_VERSION       2
#define LIBRARY_MODULE_SYMBOL "sparring_collective_library"
typedef const struct library_ops *library_module_fn(void);

#endif
