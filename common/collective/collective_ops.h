/*
 * collective_ops: what a backend provides; private to this folder.  Callers use collective.h.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_COLLECTIVE_OPS_H
#define SPARRING_COMMON_COLLECTIVE_COLLECTIVE_OPS_H

#include "common/collective/collective.h"

/* The head of every backend's struct. */
struct collective {
    const struct collective_ops *ops;
    unsigned rank;
    unsigned world_size;
    struct collective_stats stats; /* kept by the backend */
};

/* Every call but all_reduce_bytes blocks, at most the configured time-out; one caller at a time.
 * The world has at least one rank; counts and sizes may be 0. */
struct collective_ops {
    const char *name;
    /* Fills the head of *ret_group, which it owns until close. */
    enum status (*open)(const struct collective_config *config, struct collective **ret_group,
                        struct error *err);
    enum status (*all_reduce)(struct collective *group, float *data, size_t count,
                              enum reduce_order order, struct error *err);
    enum status (*broadcast)(struct collective *group, void *data, size_t bytes, unsigned root,
                             struct error *err);
    /* all[rank * bytes ..) already holds this rank's block. */
    enum status (*all_gather)(struct collective *group, size_t bytes, void *all, struct error *err);
    enum status (*barrier)(struct collective *group, struct error *err);
    /* Pure: the algorithm's formula. */
    void (*all_reduce_bytes)(const struct collective *group, size_t count, enum reduce_order order,
                             uint64_t *ret_tx, uint64_t *ret_rx);
    void (*close)(struct collective *group);
};

extern const struct collective_ops collective_ring_ops;
extern const struct collective_ops collective_gloo_ops; /* where the build has Gloo */

#endif
