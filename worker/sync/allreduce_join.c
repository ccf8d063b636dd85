/*
 * Uneven inputs (DistributedDataParallel's join).  Before each step every rank tells how many
 * samples it brings; a rank that brings none shadows the step with a gradient of zeros, so the
 * others never wait for it.  When nobody brings any, the last rank that trained (of several, the
 * largest) broadcasts the model.
 *
 * Differs from PyTorch: there the active ranks only are counted; here each rank's number is
 * gathered, which costs the same and yields the weights of a mean over samples, and the name of the
 * rank that ended first.
 *
 * Source: torch/nn/parallel/distributed.py, join; torch/distributed/algorithms/join.py.
 */
#include "worker/sync/allreduce.h"

#include <inttypes.h>

static enum status stopped_early(const struct sync_allreduce *s, struct error *err)
{
    unsigned first = 0;

    while (s->samples[first] > 0)
        first++;
    return error_set(err, STATUS_DATA,
                     "rank %u has no inputs left after step %" PRIu64
                     " while others have (--uneven stop)",
                     first, s->step);
}

static enum status share_model(struct sync_allreduce *s, struct error *err)
{
    bool mine = s->rank == s->last_trained;
    enum status status = mine && s->current ? s->current(s->user, err) : STATUS_OK;

    if (status == STATUS_OK)
        status = collective_broadcast(s->group, s->params, s->table->count * sizeof(float),
                                      s->last_trained, err);
    if (status == STATUS_OK && s->buffer_count > 0)
        status = collective_broadcast(s->group, s->buffers, s->buffer_count * sizeof(float),
                                      s->last_trained, err);
    return status;
}

enum status allreduce_enlist(struct sync *base, size_t samples, unsigned *ret_active,
                             struct error *err)
{
    struct sync_allreduce *s = (struct sync_allreduce *)base;
    uint64_t mine = samples;
    uint64_t total = 0;
    unsigned active = 0;
    unsigned largest = 0;
    enum status status = collective_all_gather(s->group, &mine, sizeof(mine), s->samples, err);

    if (status != STATUS_OK)
        return status;
    for (unsigned r = 0; r < s->world_size; r++) {
        total += s->samples[r];
        active += s->samples[r] > 0;
        largest = s->samples[r] > 0 ? r : largest;
    }
    *ret_active = active;
    if (active == 0)
        return share_model(s, err);
    if (active < s->world_size && s->config.uneven == DDP_STOP)
        return stopped_early(s, err);
    s->last_trained = largest;
    s->even =
        !s->config.weight_by_samples && (!s->config.divide_by_active || active == s->world_size);
    if (s->config.weight_by_samples)
        s->factor = (double)samples / (double)total;
    else if (s->config.divide_by_active)
        s->factor = 1.0 / active;
    return STATUS_OK;
}
