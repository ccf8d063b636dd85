/*
 * A smaller group after ranks were lost.  The survivors form a new group; every rank discards the
 * failed step's state of the buckets and of the used map.  PowerSGD keeps its state of earlier
 * steps: each rank's own error, and Q, which is the same on all ranks.
 *
 * Between a failed step and the next one the communication thread is idle, so the group belongs to
 * the training thread.
 */
#include "worker/sync/allreduce.h"

#include <stdlib.h>
#include <string.h>

enum fault allreduce_fault(const struct sync *base, unsigned *ret_rank)
{
    const struct sync_allreduce *s = (const struct sync_allreduce *)base;

    return s->group ? collective_fault(s->group, ret_rank) : FAULT_NONE;
}

static void add_stats(struct collective_stats *to, const struct collective *group)
{
    struct collective_stats s = collective_get_stats(group);

    to->operations += s.operations;
    to->tx_payload_bytes += s.tx_payload_bytes;
    to->rx_payload_bytes += s.rx_payload_bytes;
    to->tx_wire_bytes += s.tx_wire_bytes;
    to->rx_wire_bytes += s.rx_wire_bytes;
    to->tx_queued_bytes += s.tx_queued_bytes;
}

/* List the members of the old group that are not in the new one. */
static void list_lost(const unsigned *before, unsigned count, const struct collective *after,
                      struct sync_loss *ret)
{
    unsigned kept = 0;

    ret->lost_count = 0;
    for (unsigned i = 0; i < count; i++) {
        if (kept < collective_world_size(after) && collective_world_rank(after, kept) == before[i])
            kept++;
        else if (ret->lost_count < MESH_RANKS_MAX)
            ret->lost[ret->lost_count++] = before[i];
    }
}

/* Reset what depends on the group, and rebuild the hook's state for the new one. */
static enum status rebuild(struct sync_allreduce *s, struct error *err)
{
    enum status status = STATUS_OK;

    s->rank = collective_rank(s->group);
    s->world_size = collective_world_size(s->group);
    s->last_trained = s->world_size - 1;
    s->equal_weights = true;
    s->used_known = s->has_used_first = false;
    bucket_queue_reset(&s->queue);
    if (s->memory)
        status = collective_register(s->group, s->memory, err);
    if (s->hook->rebuild)
        return status == STATUS_OK ? s->hook->rebuild(s, err) : status;
    if (s->hook->close)
        s->hook->close(s);
    shared_memory_release(&s->scratch);
    s->scratch = SHARED_MEMORY_NONE;
    if (status == STATUS_OK && s->hook->open)
        status = s->hook->open(s, err);
    return status;
}

enum status allreduce_shrink(struct sync *base, struct sync_loss *ret, struct error *err)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;
    unsigned before[MESH_RANKS_MAX];
    unsigned count;
    enum status status;

    if (!s->group)
        return error_set(err, STATUS_UNSUPPORTED, "the group is gone");
    count = collective_world_size(s->group);
    ret->fault = collective_fault(s->group, NULL);
    if (ret->fault == FAULT_EXCLUDED)
        return error_set(err, STATUS_PEER_LOST, "the other ranks went on without this one");
    if (!fault_is_loss(ret->fault) || count > MESH_RANKS_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "no rank is lost");
    for (unsigned r = 0; r < count; r++)
        before[r] = collective_world_rank(s->group, r);
    add_stats(&s->past_stats, s->group);
    status = collective_shrink(&s->group, err);
    if (status != STATUS_OK) {
        if (status == STATUS_PEER_LOST)
            ret->fault = FAULT_EXCLUDED;
        return status;
    }
    list_lost(before, count, s->group, ret);
    ret->rank = collective_rank(s->group);
    ret->world_size = collective_world_size(s->group);
    ret->generation = collective_generation(s->group);
    status = rebuild(s, err);
    /* If another rank was lost meanwhile, the next operation fails with that loss, and the caller
     * shrinks again. */
    return fault_is_loss(collective_fault(s->group, NULL)) ? STATUS_OK : status;
}

enum status allreduce_all_gather(struct sync *base, const void *mine, size_t bytes, void *all,
                                 struct error *err)
{
    return collective_all_gather(((struct sync_allreduce *)base)->group, mine, bytes, all, err);
}

enum status allreduce_broadcast(struct sync *base, void *data, size_t bytes, unsigned root,
                                struct error *err)
{
    return collective_broadcast(((struct sync_allreduce *)base)->group, data, bytes, root, err);
}
