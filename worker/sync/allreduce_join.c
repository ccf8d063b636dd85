/*
 * Uneven inputs (DistributedDataParallel's join).  Before each step an all-gather exchanges the
 * ranks' sample counts; a rank without samples shadows the step with a gradient of zeros, so the
 * others never wait for it.  When no rank has any, the last rank that trained (of several, the
 * greatest) broadcasts the model.  Runs on the training thread, between steps.
 *
 * Differs from PyTorch: there only the number of active ranks is reduced; gathering each rank's
 * count costs the same and also yields the weights of a mean over samples, and the rank whose
 * inputs ended first.
 *
 * Source: torch/nn/parallel/distributed.py, join; torch/distributed/algorithms/join.py.
 */
#include "worker/sync/allreduce.h"

#include <inttypes.h>

static enum status uneven_error(const struct sync_allreduce *s, struct error *err)
{
    unsigned first = 0;

    while (s->samples[first] > 0)
        first++;
    return error_set(err, STATUS_DATA,
                     "rank %u has no inputs left after step %" PRIu64
                     " while others have (--uneven stop)",
                     first, s->step);
}

static enum status broadcast_model(struct sync_allreduce *s, struct error *err)
{
    bool mine = s->rank == s->last_trained;
    enum status status = mine && s->refresh_params ? s->refresh_params(s->user, err) : STATUS_OK;

    if (status == STATUS_OK)
        status = collective_broadcast(s->group, s->params, s->table->count * sizeof(float),
                                      s->last_trained, err);
    if (status == STATUS_OK && s->buffer_count > 0)
        status = collective_broadcast(s->group, s->buffers, s->buffer_count * sizeof(float),
                                      s->last_trained, err);
    return status;
}

enum status allreduce_announce_samples(struct sync *base, size_t samples, unsigned *ret_active,
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
        return broadcast_model(s, err);
    if (active < s->world_size && s->config.uneven == DDP_STOP)
        return uneven_error(s, err);
    s->last_trained = largest;
    s->equal_weights =
        !s->config.weight_by_samples && (!s->config.divide_by_active || active == s->world_size);
    if (s->config.weight_by_samples)
        s->factor = (double)samples / (double)total;
    else if (s->config.divide_by_active)
        s->factor = 1.0 / active;
    return STATUS_OK;
}
