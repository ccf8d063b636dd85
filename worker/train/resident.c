#include "worker/train/resident.h"

#include "worker/train/trainer.h"

#include <string.h>

/* Does this worker make the update, and none but whole ones? */
static const char *find_obstacle(const struct trainer *t)
{
    const struct worker_options *o = t->options;

    if (strcmp(o->sync, "ps") == 0 && strcmp(o->ps_update, "server") == 0)
        return "--ps-update server";
    if (t->replicas)
        return "--sync dataparallel";
    if (t->may_skip)
        return o->layer_drop > 0           ? "--layer-drop"
               : o->find_unused_parameters ? "--find-unused-parameters"
                                           : "--static-graph";
    return compute_has_optimizer(t->compute) ? NULL : compute_name(t->compute);
}

/* What keeps the part of a gradient that it did not say keeps an overflow for ever. */
static const char *find_memory(const struct trainer *t)
{
    const struct worker_options *o = t->options;

    if (strcmp(o->sync, "allreduce") == 0 && strcmp(o->comm_hook, "powersgd") == 0)
        return "--comm-hook powersgd";
    if (strcmp(o->sync, "ps") != 0)
        return NULL;
    if (t->compression.up.kind == CODEC_TOP_K || t->compression.up.kind == CODEC_ONE_BIT)
        return "--compression topk or onebit";
    return t->compression.down.kind == CODEC_TOP_K || t->compression.down.kind == CODEC_ONE_BIT
               ? "--compression-down topk or onebit"
               : NULL;
}

enum status resident_check(const struct trainer *t, struct error *err)
{
    const char *obstacle = find_obstacle(t);
    const char *memory = find_memory(t);

    if (compute_precision(t->compute) != PRECISION_FP16)
        return STATUS_OK;
    if (obstacle)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--precision fp16: not with %s: an update that overflowed is left out, by "
                         "the optimizer on the GPU",
                         obstacle);
    if (memory)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--precision fp16: not with %s, which would not forget a gradient that "
                         "overflowed",
                         memory);
    return STATUS_OK;
}

static enum gradient_path find_path(const struct trainer *t)
{
    const struct worker_options *o = t->options;

    if (strcmp(o->sync, "local") == 0 || (t->launch->world_size == 1 && strcmp(o->sync, "ps") != 0))
        return GRADIENTS_STAY;
    return strcmp(o->sync, "allreduce") == 0 && strcmp(o->backend, "nccl") == 0 &&
                   strcmp(o->comm_hook, "none") == 0
               ? GRADIENTS_SHARED
               : GRADIENTS_STAGED;
}

enum status resident_open(struct trainer *t, struct error *err)
{
    if (compute_is_host(t->compute) || find_obstacle(t))
        return STATUS_OK;
    return model_keep_on_device(t->model, &t->optimizer, find_path(t), err);
}

static enum status take_arrived(void *user, size_t offset, size_t count, struct error *err)
{
    struct trainer *t = user;

    if (sync_yields(t->sync) == SYNC_YIELDS_PARAMETERS)
        return model_params_arrived(t->model, offset, count, err);
    return model_on_device(t->model) ? model_grads_arrived(t->model, offset, count, err)
                                     : STATUS_OK;
}

static enum status make_current(void *user, struct error *err)
{
    struct trainer *t = user;

    return model_fetch(t->model, err);
}

void resident_configure(struct trainer *t, struct sync_config *config)
{
    if (compute_is_host(t->compute))
        return;
    config->user = t;
    config->current = make_current;
    config->grads_on_device = !find_obstacle(t) && find_path(t) == GRADIENTS_SHARED;
    if (config->grads_on_device)
        config->grads = model_device_grads(t->model);
    else
        config->arrived = take_arrived;
}
