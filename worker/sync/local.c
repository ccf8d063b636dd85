/*
 * sync local: no communication.  Every rank trains alone on its part of the data; n such ranks are
 * the baseline for the cost of communication.  No locks, no threads.
 */
#include "common/base/memory.h"
#include "worker/sync/sync.h"

#include <stdlib.h>

static enum status local_open(const struct sync_config *config, struct sync **ret_sync,
                              struct error *err)
{
    struct sync *s;
    enum status status = mem_calloc(1, sizeof(*s), "local sync", &s, err);

    (void)config;
    if (status != STATUS_OK)
        return status;
    s->yields = SYNC_YIELDS_GRADIENTS;
    *ret_sync = s;
    return STATUS_OK;
}

static enum status local_start(struct sync *s, struct error *err)
{
    (void)s;
    (void)err;
    return STATUS_OK;
}

static enum status local_begin(struct sync *s, uint64_t step, struct error *err)
{
    (void)s;
    (void)step;
    (void)err;
    return STATUS_OK;
}

static void local_ready(struct sync *s, size_t ready_count)
{
    (void)s;
    (void)ready_count;
}

static struct sync_counters local_counters(const struct sync *s)
{
    (void)s;
    return (struct sync_counters){0};
}

static void local_expected_bytes(const struct sync *s, uint64_t *ret_tx, uint64_t *ret_rx)
{
    (void)s;
    *ret_tx = 0;
    *ret_rx = 0;
}

static bool local_close(struct sync *s, const struct error *failure)
{
    (void)failure;
    free(s);
    return true;
}

static const char *local_backend(const struct sync *base)
{
    (void)base;
    return "none";
}

const struct sync_ops sync_local_ops = {
    .name = "local",
    .open = local_open,
    .start = local_start,
    .begin = local_begin,
    .ready = local_ready,
    .finish = local_start,
    .counters = local_counters,
    .expected_bytes = local_expected_bytes,
    .backend = local_backend,
    .close = local_close,
};
