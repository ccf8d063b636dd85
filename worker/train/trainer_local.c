/*
 * Opens the parts of a run that need no other rank, in dependency order: device, model, data,
 * loader, optimizer, initial parameters.  Checks that model and data fit, and computes the length
 * of the run.  No locking: training thread only.
 */
#include "worker/train/trainer_local.h"

#include "common/base/host.h"
#include "common/base/memory.h"
#include "common/checkpoint/checkpoint.h"

#include <string.h>
#include <unistd.h>

static unsigned default_threads(const struct launch_env *launch)
{
    unsigned ranks = launch->local_world_size ? launch->local_world_size : launch->world_size;

    return host_cores_part(ranks > 0 ? ranks : 1);
}

/* Tokens per sample that the model reads; 0: no sequence model. */
static size_t sequence_positions(const struct trainer *t)
{
    return model_vocabulary(t->model) > 0 ? model_positions(t->model) : 0;
}

enum status trainer_open_test_set(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    struct dataset_config config = {.spec = o->data,
                                    .split = SPLIT_TEST,
                                    .seed = (uint64_t)o->seed,
                                    .positions = sequence_positions(t)};
    enum status status;

    if (t->test_set || strcmp(o->evaluate, "never") == 0)
        return STATUS_OK;
    status = dataset_open(&config, &t->test_set, err);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static enum status open_data(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    struct dataset_config config = {
        .spec = o->data,
        .split = SPLIT_TRAIN,
        .samples = (size_t)o->samples,
        .seed = (uint64_t)o->seed,
        .positions = sequence_positions(t),
    };
    enum status status = dataset_open(&config, &t->train_set, err);

    return status == STATUS_OK && t->rank == 0 ? trainer_open_test_set(t, err) : status;
}

static enum status check_model_fits_data(const struct trainer *t, struct error *err)
{
    if (dataset_features(t->train_set) != model_inputs(t->model))
        return error_set(err, STATUS_CONFIG, "model '%s' takes %zu features, data '%s' has %zu",
                         t->options->model, model_inputs(t->model), t->options->data,
                         dataset_features(t->train_set));
    if (dataset_positions(t->train_set) != model_positions(t->model))
        return error_set(err, STATUS_CONFIG,
                         "model '%s' predicts %zu labels per sample, data '%s' has %zu",
                         t->options->model, model_positions(t->model), t->options->data,
                         dataset_positions(t->train_set));
    if (dataset_classes(t->train_set) > model_classes(t->model))
        return error_set(err, STATUS_CONFIG,
                         "model '%s' distinguishes %zu classes, data '%s' has %zu",
                         t->options->model, model_classes(t->model), t->options->data,
                         dataset_classes(t->train_set));
    return STATUS_OK;
}

uint64_t trainer_longest_part(const struct trainer *t)
{
    uint64_t count = dataset_count(t->train_set);
    uint64_t ranks = t->sampler.world_size;

    if (worker_options_uneven(t->options) && strcmp(t->options->sync, "local") != 0)
        return count / ranks + (count % ranks != 0); /* rank 0 has the most */
    return sampler_length(&t->sampler, 0);
}

static enum status open_loader(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    enum status status = sampler_init(&t->sampler, dataset_count(t->train_set), t->launch->rank,
                                      t->launch->world_size, o->shuffle,
                                      worker_options_remainder(o), (uint64_t)o->seed, err);

    if (status != STATUS_OK)
        return status;
    if (t->sampler.length == 0)
        return error_set(err, STATUS_CONFIG, "data '%s' has %zu samples, none for each of %u ranks",
                         o->data, dataset_count(t->train_set), t->launch->world_size);
    t->updates_per_epoch = worker_options_updates(o, trainer_longest_part(t));
    t->total_steps = o->steps > 0 ? (uint64_t)o->steps : (uint64_t)o->epochs * t->updates_per_epoch;
    t->announces_samples = worker_options_uneven(o) || strcmp(o->weighting, "samples") == 0;
    return loader_open(t->train_set, &t->sampler, (size_t)o->batch_size, upload_ahead_memory(t),
                       &t->loader, err); /* owns the sampler from here on */
}

/* Also loads a checkpoint, of which it ignores the optimizer's state. */
static enum status load_state(struct trainer *t, const struct safetensors *file, struct error *err)
{
    const struct safetensors_part part = {"", model_state_table(t->model), model_params(t->model)};

    return safetensors_load_parts(file, &part, 1, CHECKPOINT_OPTIMIZER, err);
}

static enum status init_params(struct trainer *t, struct error *err)
{
    const char *how = t->options->init;
    struct safetensors file = {0};
    bool resumed;
    enum status status = checkpointer_resume(t, &resumed, err);

    if (status != STATUS_OK || resumed)
        return status;
    if (strcmp(how, "torch") == 0 || strcmp(how, "torch-fma") == 0)
        return model_init(t->model, (uint64_t)t->options->seed,
                          how[5] ? RANDOM_FMA : RANDOM_TWO_ROUNDINGS, err);
    status = safetensors_read(how, CHECKPOINT_BYTES_MAX, &file, err);
    if (status == STATUS_OK)
        status = load_state(t, &file, err);
    if (status == STATUS_OK)
        checkpointer_log_conversions(t, &file);
    safetensors_release(&file);
    return status;
}

static enum status alloc_used(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;

    t->tracks_used = o->layer_drop > 0 || o->find_unused_parameters || o->static_graph;
    return mem_calloc(model_table(t->model)->length, sizeof(*t->used), "used parameters", &t->used,
                      err);
}

/* --sync dataparallel: the devices other than the model's own. */
static enum status open_replicas(struct trainer *t, const struct compute_config *compute,
                                 struct error *err)
{
    const struct worker_options *o = t->options;
    const struct replicas_config config = {
        .spec = o->model,
        .device = compute->device,
        .local_rank = compute->local_rank,
        .threads = compute->threads,
        .precision = compute->precision,
        .deterministic = compute->deterministic,
        .count = (unsigned)o->devices,
        .max_batch = (size_t)o->batch_size,
    };

    if (!worker_options_data_parallel(o))
        return STATUS_OK;
    if (t->launch->world_size > 1)
        return error_set(err, STATUS_INVALID,
                         "--sync dataparallel is one process with several --devices, there are %u",
                         t->launch->world_size);
    return replicas_open(&config, t->model, &t->replicas, err);
}

enum status trainer_open_local(struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    unsigned threads = o->threads > 0 ? (unsigned)o->threads : default_threads(t->launch);
    enum status status = worker_options_optimizer(o, &t->optimizer_config, err);
    struct compute_config compute = {.device = o->device,
                                     .local_rank = t->launch->local_rank,
                                     .deterministic = o->deterministic};

    if (worker_options_data_parallel(o) && o->threads == 0)
        threads = threads > (unsigned)o->devices ? threads / (unsigned)o->devices : 1;
    compute.threads = threads;
    if (status == STATUS_OK && !precision_parse(o->precision, &compute.precision))
        status = error_set(err, STATUS_INVALID,
                           "--precision '%s': not one of float32, tf32, bf16, fp16", o->precision);
    if (status == STATUS_OK)
        status = compute_open_config(&compute, &t->compute, err);
    if (status == STATUS_OK)
        status = model_open(o->model, t->compute, (size_t)o->batch_size, &t->model, err);
    if (status == STATUS_OK)
        model_use_graphs(t->model, o->cuda_graph);
    if (status == STATUS_OK)
        status = open_replicas(t, &compute, err);
    if (status == STATUS_OK)
        status = alloc_used(t, err);
    if (status == STATUS_OK)
        status = open_data(t, err);
    if (status == STATUS_OK)
        status = check_model_fits_data(t, err);
    if (status == STATUS_OK)
        status = open_loader(t, err);
    if (status == STATUS_OK)
        status =
            optimizer_init(&t->optimizer, &t->optimizer_config, model_table(t->model)->count, err);
    if (status == STATUS_OK)
        status = init_params(t, err);
    return status;
}
