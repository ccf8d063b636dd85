/*
 * counts: per-method counters of started calls and of ended calls by status.
 *
 * Atomics and no lock: each call increments two of them.  A reader loads the ends before the
 * starts, so it never sees more ended than started calls.
 */
#include "common/rpc/rpc_internal.h"

void rpc_counts_start(struct rpc_counts *counts)
{
    (void)atomic_fetch_add(&counts->started, 1);
}

void rpc_counts_end(struct rpc_counts *counts, enum status status)
{
    (void)atomic_fetch_add(&counts->ended[-(int)status], 1);
}

void rpc_counts_read(const struct rpc_counts *counts, struct rpc_call_counts *ret)
{
    for (size_t i = 0; i < STATUS_COUNT; i++)
        ret->ended[i] = atomic_load(&counts->ended[i]);
    ret->started = atomic_load(&counts->started);
}
