/*
 * Decides whether the optimizer can run on the GPU with the run's options, and connects the
 * synchronisation to the device: gradients are reduced on the GPU (GRADIENTS_SHARED), staged
 * through the host (GRADIENTS_STAGED), or not synchronised (GRADIENTS_STAY).  No locking: the
 * callbacks run on the training thread, from the synchronisation.
 */
#include "worker/train/resident.h"

#include "worker/train/trainer.h"

#include <string.h>

/* The option that prevents the optimizer on the GPU, or the name of a device without one; NULL:
 * none.  The optimizer on the GPU needs updates made by this worker, of all parameters. */
static const char *find_unsupported(const struct trainer *t)
{
    const struct worker_options *o = t->options;

    if (strcmp(o->sync, "ps") == 0 && strcmp(o->ps_update, "server") == 0)
        return "--ps-update server";
    if (t->replicas)
        return "--sync dataparallel";
    if (t->tracks_used)
        return o->layer_drop > 0           ? "--layer-drop"
               : o->find_unused_parameters ? "--find-unused-parameters"
                                           : "--static-graph";
    return compute_has_optimizer(t->compute) ? NULL : compute_name(t->compute);
}

/* The option with error feedback, whose residual would keep an overflow forever; NULL: none. */
static const char *find_error_feedback(const struct trainer *t)
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
    const char *unsupported = find_unsupported(t);
    const char *error_feedback = find_error_feedback(t);

    if (compute_precision(t->compute) != PRECISION_FP16)
        return STATUS_OK;
    if (unsupported)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--precision fp16: not with %s: an update that overflowed is left out, by "
                         "the optimizer on the GPU",
                         unsupported);
    if (error_feedback)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--precision fp16: not with %s, whose error feedback would keep a "
                         "gradient that overflowed",
                         error_feedback);
    return STATUS_OK;
}

static enum gradient_path choose_gradient_path(const struct trainer *t)
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
    if (compute_is_host(t->compute) || find_unsupported(t))
        return STATUS_OK;
    return model_keep_on_device(t->model, &t->optimizer, choose_gradient_path(t), err);
}

static enum status upload_arrived(void *user, size_t offset, size_t count, struct error *err)
{
    struct trainer *t = user;

    if (sync_yields(t->sync) == SYNC_YIELDS_PARAMETERS)
        return model_params_arrived(t->model, offset, count, err);
    return model_on_device(t->model) ? model_grads_arrived(t->model, offset, count, err)
                                     : STATUS_OK;
}

static enum status fetch_current_params(void *user, struct error *err)
{
    struct trainer *t = user;

    return model_fetch(t->model, err);
}

void resident_configure(struct trainer *t, struct sync_config *config)
{
    if (compute_is_host(t->compute))
        return;
    config->user = t;
    config->refresh_params = fetch_current_params;
    config->grads_on_device = !find_unsupported(t) && choose_gradient_path(t) == GRADIENTS_SHARED;
    if (config->grads_on_device)
        config->grads = model_device_grads(t->model);
    else
        config->arrived = upload_arrived;
}
