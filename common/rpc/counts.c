/*
 * counts: how many calls of a method were started and how they ended.
 *
 * Atomics and no lock: each call touches two of them in its life.  A reader sees the ends before
 * the starts, so a call is never ended before it was started.
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
