/*
 * model: opening, tables and memory; the computation is in model_step.c.
 *
 * One slab of parameters and one of gradients on the device.  On the CPU they are the host slabs
 * too, in one region of shared memory that the ranks of a host may reduce in place; with a GPU the
 * host slabs are page-locked staging copies.  Buffers follow the parameters in memory, so that one
 * table describes a checkpoint.  Everything is allocated in model_open.
 * Threads: one caller; the model has no threads of its own.
 */
#include "worker/model/model_layers.h"

#include "common/base/memory.h"
#include "worker/model/spec.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define NORM_MOMENTUM 0.1f
#define NORM_EPSILON  1e-5f

/* ---- tables ---- */

static enum status add_view(struct tensor_table *t, size_t module, const char *prefix,
                            const char *name, unsigned dims, const size_t *shape, struct error *err)
{
    char full[TENSOR_NAME_MAX];

    (void)snprintf(full, sizeof(full), "%s%zu.%s", prefix, module, name);
    return tensor_table_add(t, full, dims, shape, err);
}

static enum status add_norm(struct model *m, size_t module, size_t width, struct error *err)
{
    enum status status = add_view(&m->table, module, "", "weight", 1, &width, err);

    if (status == STATUS_OK)
        status = add_view(&m->table, module, "", "bias", 1, &width, err);
    if (status == STATUS_OK)
        status = add_view(&m->buffer_table, module, "", "running_mean", 1, &width, err);
    if (status == STATUS_OK)
        status = add_view(&m->buffer_table, module, "", "running_var", 1, &width, err);
    if (status == STATUS_OK)
        status = add_view(&m->buffer_table, module, "", "num_batches_tracked", 0, NULL, err);
    return status;
}

/* Names and shapes as their PyTorch counterparts: weight (out, in), then bias (out). */
static enum status build_table(struct model *m, const struct spec *spec, struct error *err)
{
    const char *prefix = spec->batch_norm ? "" : "fc";
    enum status status = STATUS_OK;

    for (size_t l = 0; l < spec->layers && status == STATUS_OK; l++) {
        size_t module = spec->batch_norm ? 3 * l : l + 1;
        size_t shape[2] = {spec->widths[l + 1], spec->widths[l]};

        status = add_view(&m->table, module, prefix, "weight", 2, shape, err);
        if (status == STATUS_OK)
            status = add_view(&m->table, module, prefix, "bias", 1, shape, err);
        if (status == STATUS_OK && spec->batch_norm && l + 1 < spec->layers)
            status = add_norm(m, module + 1, spec->widths[l + 1], err);
    }
    if (status != STATUS_OK)
        return status;
    tensor_table_layout(&m->table);
    tensor_table_layout(&m->buffer_table);
    return STATUS_OK;
}

/* Parameters at their offsets, buffers behind them. */
static enum status build_state_table(struct model *m, struct error *err)
{
    const struct tensor_table *parts[] = {&m->table, &m->buffer_table};
    size_t base = 0;

    for (size_t p = 0; p < 2; p++) {
        for (size_t i = 0; i < parts[p]->length; i++) {
            const struct tensor_view *v = &parts[p]->views[i];
            enum status status = tensor_table_add(&m->state_table, v->name, v->dims, v->shape, err);

            if (status != STATUS_OK)
                return status;
            m->state_table.views[m->state_table.length - 1].offset = base + v->offset;
        }
        base += parts[p]->count;
    }
    return STATUS_OK;
}

static void build_layers(struct model *m, const struct spec *spec)
{
    size_t view = 0;

    m->length = spec->layers;
    for (size_t l = 0; l < spec->layers; l++) {
        bool hidden = l + 1 < spec->layers;
        const struct tensor_view *weight = &m->table.views[view];
        const struct tensor_view *bias = &m->table.views[view + 1];
        struct layer *layer = &m->layers[l];

        assert(bias->offset + bias->count == weight->offset);
        *layer =
            (struct layer){.in = spec->widths[l],
                           .out = spec->widths[l + 1],
                           .norm = spec->batch_norm && hidden,
                           .may_drop = l > 0 && hidden && spec->widths[l] == spec->widths[l + 1],
                           .first_view = view,
                           .views = spec->batch_norm && hidden ? 4 : 2,
                           .weight_offset = weight->offset,
                           .bias_offset = bias->offset,
                           .ready_count = weight->offset + weight->count};
        view += layer->views;
        layer->start = m->table.views[view - 1].offset;
        layer->linear = (struct linear){.in = layer->in, .out = layer->out};
        if (spec->relu && hidden)
            *(layer->norm ? &layer->batch_norm.activation : &layer->linear.activation) =
                ACTIVATION_RELU;
    }
}

/* ---- memory ---- */

/* Both factors are at most SPEC_WIDTH_MAX, so the product does not overflow. */
static enum status alloc_batch(struct model *m, size_t width, float **ret, struct error *err)
{
    return compute_alloc(m->compute, m->max_batch * width, "activations", ret, err);
}

/* Slabs start on a cache line. */
static size_t line(size_t count)
{
    return (count + 15) / 16 * 16;
}

static enum status alloc_shared_slabs(struct model *m, struct error *err)
{
    size_t state = line(m->state_table.count);
    size_t bytes;
    enum status status;

    if (!size_multiply(state + m->table.count, sizeof(float), &bytes))
        return error_set(err, STATUS_NO_MEMORY, "parameters and gradients overflow");
    status = shared_memory_open(bytes, "sparring-model", &m->memory, err);
    if (status != STATUS_OK)
        return status;
    m->params = m->host_params = m->memory.base;
    m->grads = m->host_grads = m->params + state;
    m->buffers = m->buffer_table.count > 0 ? m->params + m->table.count : NULL;
    return STATUS_OK;
}

static enum status alloc_slabs(struct model *m, struct error *err)
{
    size_t count = m->table.count;
    enum status status;

    if (compute_is_host(m->compute))
        return alloc_shared_slabs(m, err);
    if (m->buffer_table.count > 0)
        return error_set(err, STATUS_UNSUPPORTED, "batch normalisation runs on the CPU only");
    status = compute_alloc(m->compute, count, "parameters", &m->params, err);
    if (status == STATUS_OK)
        status = compute_alloc(m->compute, count, "gradients", &m->grads, err);
    if (status == STATUS_OK)
        status = compute_alloc_host(m->compute, count, &m->host_params, err);
    if (status == STATUS_OK)
        status = compute_alloc_host(m->compute, count, &m->host_grads, err);
    return status;
}

static enum status alloc_layer(struct model *m, struct layer *layer, struct error *err)
{
    enum status status = alloc_batch(m, layer->out, &layer->output, err);

    if (status == STATUS_OK && layer->norm)
        status = alloc_batch(m, layer->out, &layer->normalised, err);
    if (status == STATUS_OK && layer->norm)
        status = compute_alloc(m->compute, layer->out, "statistics", &layer->inverse_std, err);
    return status;
}

static enum status alloc_activations(struct model *m, struct error *err)
{
    size_t widest = 0;
    enum status status =
        mem_calloc(m->table.length, sizeof(*m->used), "used parameters", &m->used, err);

    for (size_t l = 0; l < m->length && status == STATUS_OK; l++) {
        status = alloc_layer(m, &m->layers[l], err);
        if (m->layers[l].out > widest)
            widest = m->layers[l].out;
    }
    for (int i = 0; i < 2 && status == STATUS_OK; i++)
        status = alloc_batch(m, widest, &m->flow[i], err);
    if (status == STATUS_OK && !compute_is_host(m->compute))
        status = alloc_batch(m, m->layers[0].in, &m->input, err);
    return status;
}

/* Where each layer finds its arrays. */
static void place_layers(struct model *m)
{
    const struct tensor_view *buffers = m->buffer_table.views;

    for (size_t l = 0; l < m->length; l++) {
        struct layer *layer = &m->layers[l];
        const struct tensor_view *views = &m->table.views[layer->first_view];

        layer->linear.weight = m->params + layer->weight_offset;
        layer->linear.bias = m->params + layer->bias_offset;
        layer->linear.dweight = m->grads + layer->weight_offset;
        layer->linear.dbias = m->grads + layer->bias_offset;
        if (!layer->norm)
            continue;
        layer->norm_weight_offset = views[2].offset;
        layer->norm_bias_offset = views[3].offset;
        layer->batch_norm = (struct batch_norm){
            .channels = layer->out,
            .inner = 1,
            .activation = layer->batch_norm.activation,
            .dweight = m->grads + views[2].offset,
            .dbias = m->grads + views[3].offset,
            .weight = m->params + views[2].offset,
            .bias = m->params + views[3].offset,
            .running_mean = m->buffers + buffers[3 * l].offset,
            .running_var = m->buffers + buffers[3 * l + 1].offset,
            .inverse_std = layer->inverse_std,
            .momentum = NORM_MOMENTUM,
            .epsilon = NORM_EPSILON,
        };
        layer->batches_tracked = m->buffers + buffers[3 * l + 2].offset;
    }
}

static enum status open_parts(struct model *m, const struct spec *spec, struct error *err)
{
    enum status status = build_table(m, spec, err);

    if (status == STATUS_OK)
        status = build_state_table(m, err);
    if (status != STATUS_OK)
        return status;
    build_layers(m, spec);
    status = alloc_slabs(m, err);
    if (status == STATUS_OK)
        status = alloc_activations(m, err);
    if (status == STATUS_OK)
        place_layers(m);
    return status;
}

enum status model_open(const char *spec_text, struct compute *compute, size_t max_batch,
                       struct model **ret_model, struct error *err)
{
    struct spec spec;
    struct model *m = NULL;
    enum status status = spec_parse(spec_text, &spec, err);

    if (status != STATUS_OK)
        return status;
    if (max_batch == 0 || max_batch > SPEC_WIDTH_MAX)
        return error_set(err, STATUS_INVALID, "a batch of %zu samples: 1 to %d", max_batch,
                         SPEC_WIDTH_MAX);
    status = mem_calloc(1, sizeof(*m), "model", &m, err);
    if (status != STATUS_OK)
        return status;
    m->compute = compute;
    m->max_batch = max_batch;
    m->memory = SHARED_MEMORY_NONE;
    status = open_parts(m, &spec, err);
    if (status != STATUS_OK) {
        model_close(m);
        return err ? error_prefix(err, "model '%s': ", spec_text) : status;
    }
    *ret_model = m;
    return STATUS_OK;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    if (!compute_is_host(m->compute)) {
        compute_free_host(m->compute, m->host_params);
        compute_free_host(m->compute, m->host_grads);
        compute_free(m->compute, m->params);
        compute_free(m->compute, m->grads);
    }
    shared_memory_release(&m->memory);
    compute_free(m->compute, m->input);
    compute_free(m->compute, m->flow[0]);
    compute_free(m->compute, m->flow[1]);
    for (size_t l = 0; l < m->length; l++) {
        compute_free(m->compute, m->layers[l].output);
        compute_free(m->compute, m->layers[l].normalised);
        compute_free(m->compute, m->layers[l].inverse_std);
    }
    free(m->used);
    tensor_table_release(&m->state_table);
    tensor_table_release(&m->buffer_table);
    tensor_table_release(&m->table);
    free(m);
}

/* ---- facts ---- */

const struct tensor_table *model_table(const struct model *m)
{
    return &m->table;
}

const struct tensor_table *model_buffer_table(const struct model *m)
{
    return &m->buffer_table;
}

const struct tensor_table *model_state_table(const struct model *m)
{
    return &m->state_table;
}

const struct tensor_view *model_input_weight(const struct model *m)
{
    return &m->table.views[m->layers[0].first_view];
}

size_t model_inputs(const struct model *m)
{
    return m->layers[0].in;
}

size_t model_classes(const struct model *m)
{
    return m->layers[m->length - 1].out;
}

size_t model_positions(const struct model *m)
{
    (void)m;
    return 1;
}

float *model_params(struct model *m)
{
    return m->host_params;
}

float *model_grads(struct model *m)
{
    return m->host_grads;
}

float *model_buffers(struct model *m)
{
    return m->buffers;
}

const struct shared_memory *model_memory(const struct model *m)
{
    return m->memory.base ? &m->memory : NULL;
}

enum status model_fence_memory(struct model *m, struct error *err)
{
    return m->memory.base ? shared_memory_renew(&m->memory, "sparring-model", err) : STATUS_OK;
}

const bool *model_used(const struct model *m)
{
    return m->used;
}

int64_t model_forward_ns(const struct model *m)
{
    return m->forward_ns;
}

void model_set_await(struct model *m, model_await_fn *await, void *user)
{
    assert(compute_is_host(m->compute) || !await);
    m->await = await;
    m->await_user = user;
}

void model_set_layer_drop(struct model *m, double p, uint64_t seed)
{
    m->drop = p;
    random_seed(&m->random, seed);
}

enum status model_init(struct model *m, uint64_t seed, enum random_rounding rounding,
                       struct error *err)
{
    struct random r;

    random_seed(&r, seed);
    for (size_t l = 0; l < m->length; l++) {
        const struct layer *layer = &m->layers[l];

        random_linear_init(&r, m->host_params + layer->weight_offset,
                           m->host_params + layer->bias_offset, layer->in, layer->out, rounding);
        for (size_t j = 0; layer->norm && j < layer->out; j++) {
            m->host_params[layer->norm_weight_offset + j] = 1.0f;
            m->host_params[layer->norm_bias_offset + j] = 0.0f;
            layer->batch_norm.running_mean[j] = 0.0f;
            layer->batch_norm.running_var[j] = 1.0f;
        }
        if (layer->norm)
            *layer->batches_tracked = 0.0f;
    }
    return model_params_changed(m, err);
}

enum status model_params_changed(struct model *m, struct error *err)
{
    if (m->host_params == m->params)
        return STATUS_OK;
    return compute_upload(m->compute, m->params, m->host_params, m->table.count, err);
}
