/*
 * model: opening, memory and accessors.  The computation is in model_step.c, the architectures are
 * in build/, the operations in operation/.
 *
 * One slab of parameters and one of gradients on the device.  On the CPU they are also the host
 * slabs, in one region of shared memory in which the ranks of a host may reduce in place; with a
 * GPU the host slabs are page-locked staging copies.  Buffers follow the parameters in memory, so
 * that one table describes a checkpoint.  Everything is allocated in model_open.  Threads: one
 * caller; the model has no threads of its own.
 */
#include "common/base/memory.h"
#include "worker/model/builder.h"
#include "worker/model/spec.h"

#include <assert.h>
#include <stdlib.h>

/* ---- tables ---- */

/* Parameters at their offsets, buffers after them. */
static enum status build_state_table(struct model *m, struct error *err)
{
    const struct tensor_table *parts[] = {&m->table, &m->buffer_table};
    size_t base = 0;

    for (size_t p = 0; p < 2; p++) {
        for (size_t i = 0; i < parts[p]->length; i++) {
            const struct tensor_view *v = &parts[p]->views[i];
            enum status status =
                tensor_table_add_kind(&m->state_table, v->name, v->kind, v->dims, v->shape, err);

            if (status != STATUS_OK)
                return status;
            m->state_table.views[m->state_table.length - 1].offset = base + v->offset;
        }
        base += parts[p]->count;
    }
    return STATUS_OK;
}

static enum status build_program(struct model *m, const struct spec *spec, struct error *err)
{
    static void (*const builders[])(struct builder *, const struct spec *) = {
        [SPEC_MLP] = build_mlp, [SPEC_CNN] = build_cnn, [SPEC_RESNET] = build_resnet,
        [SPEC_VGG] = build_vgg, [SPEC_GPT] = build_gpt, [SPEC_PROFILE] = build_profile};
    struct builder b = {.model = m, .status = STATUS_OK, .err = err};
    struct operation *last;

    builders[spec->kind](&b, spec);
    if (b.status != STATUS_OK)
        return b.status;
    last = &m->operations[m->length - 1];
    assert(last->residual == INPUT_VALUE);
    m->positions = last->rows;
    m->logits_stride = compute_row_stride(m->compute, model_classes(m));
    if (last->kind == &operation_linear) {
        assert(last->linear.activation == ACTIVATION_NONE);
        last->linear.stride = m->logits_stride;
    }
    tensor_table_layout(&m->table);
    tensor_table_layout(&m->buffer_table);
    return build_state_table(m, err);
}

/* ---- memory ---- */

enum status program_alloc(struct model *m, size_t count, const char *what, float **ret,
                          struct error *err)
{
    size_t all;

    if (!size_multiply(m->max_batch, count, &all))
        return error_set(err, STATUS_NO_MEMORY, "%s of %zu samples overflow", what, m->max_batch);
    return compute_alloc(m->compute, all, what, ret, err);
}

enum status program_alloc_values(struct model *m, size_t count, const char *what, void **ret,
                                 struct error *err)
{
    size_t all;

    if (!size_multiply(m->max_batch, count, &all))
        return error_set(err, STATUS_NO_MEMORY, "%s of %zu samples overflow", what, m->max_batch);
    return compute_alloc_values(m->compute, all, what, ret, err);
}

/* Slabs start on a cache line. */
static size_t round_to_cache_line(size_t count)
{
    return (count + 15) / 16 * 16;
}

static enum status alloc_shared_slabs(struct model *m, struct error *err)
{
    size_t state = round_to_cache_line(m->state_table.count);
    size_t bytes;
    enum status status;

    if (!size_multiply(state + m->table.count, sizeof(float), &bytes))
        return error_set(err, STATUS_NO_MEMORY, "parameters and gradients overflow");
    status = shared_memory_open(bytes, "sparring-model", &m->memory, err);
    if (status != STATUS_OK)
        return status;
    m->params = m->host_params = m->memory.base;
    m->grads = m->host_grads = m->params + state;
    if (m->buffer_table.count > 0)
        m->buffers = m->host_buffers = m->params + m->table.count;
    return STATUS_OK;
}

/* A device with 16-bit values keeps 16-bit copies of the parameters. */
static enum status register_params(struct model *m, struct error *err)
{
    size_t *starts = NULL;
    enum status status = mem_calloc(m->table.length, sizeof(*starts), "views", &starts, err);

    if (status != STATUS_OK)
        return status;
    for (size_t v = 0; v < m->table.length; v++)
        starts[v] =
            m->table.views[m->table.length - 1 - v].offset; /* the slab is in reverse order */
    status = compute_register_params(m->compute, m->params, m->table.count, starts, m->table.length,
                                     err);
    free(starts);
    return status;
}

static enum status alloc_device_slabs(struct model *m, struct error *err)
{
    size_t count = m->table.count;
    enum status status = compute_alloc(m->compute, count, "parameters", &m->params, err);

    if (status == STATUS_OK && compute_has_optimizer(m->compute))
        status = register_params(m, err);
    if (status == STATUS_OK)
        status = compute_alloc(m->compute, count, "gradients", &m->grads, err);
    if (status == STATUS_OK)
        status = compute_alloc_host(m->compute, m->state_table.count, &m->host_params, err);
    if (status == STATUS_OK)
        status = compute_alloc_host(m->compute, count, &m->host_grads, err);
    if (status != STATUS_OK || m->buffer_table.count == 0)
        return status;
    m->host_buffers = m->host_params + count;
    return compute_alloc(m->compute, m->buffer_table.count, "buffers", &m->buffers, err);
}

static enum status alloc_input(struct model *m, struct error *err)
{
    struct value *input = &m->values[INPUT_VALUE];
    float *ids = NULL;
    enum status status;

    if (compute_is_host(m->compute))
        return STATUS_OK;
    if (m->vocabulary == 0)
        return program_alloc_values(m, input->count, "inputs", &input->data, err);
    status = program_alloc(m, input->count, "inputs", &ids, err);
    input->data = ids;
    return status;
}

static enum status alloc_activations(struct model *m, struct error *err)
{
    enum status status =
        mem_calloc(m->table.length, sizeof(*m->used), "used parameters", &m->used, err);

    if (status == STATUS_OK)
        status = alloc_input(m, err);
    for (size_t v = 1; v + 1 < m->values_length && status == STATUS_OK; v++)
        status =
            program_alloc_values(m, m->values[v].count, "activations", &m->values[v].data, err);
    if (status == STATUS_OK)
        status = program_alloc_values(m, m->positions * m->logits_stride, "logits",
                                      &m->values[m->values_length - 1].data, err);
    if (status == STATUS_OK)
        status = program_plan_gradients(m, err);
    for (size_t i = 0; i < m->length && status == STATUS_OK; i++)
        if (m->operations[i].kind->open)
            status = m->operations[i].kind->open(m, &m->operations[i], err);
    return status;
}

static enum status alloc_memory(struct model *m, struct error *err)
{
    enum status status =
        compute_is_host(m->compute) ? alloc_shared_slabs(m, err) : alloc_device_slabs(m, err);

    return status == STATUS_OK ? alloc_activations(m, err) : status;
}

static enum status open_model(const char *spec_text, struct compute *compute, size_t max_batch,
                              bool has_memory, struct model **ret_model, struct error *err)
{
    struct spec spec;
    struct model *m = NULL;
    enum status status = spec_parse(spec_text, &spec, err);

    if (status == STATUS_OK)
        status = mem_calloc(1, sizeof(*m), "model", &m, err);
    if (status != STATUS_OK)
        return status;
    m->compute = compute;
    m->max_batch = max_batch;
    m->memory = SHARED_MEMORY_NONE;
    status = build_program(m, &spec, err);
    if (status == STATUS_OK)
        status = program_analyse(m, err);
    if (status == STATUS_OK && has_memory)
        status = alloc_memory(m, err);
    if (status != STATUS_OK) {
        model_close(m);
        return err ? error_prefix(err, "model '%s': ", spec_text) : status;
    }
    *ret_model = m;
    return STATUS_OK;
}

enum status model_open(const char *spec_text, struct compute *compute, size_t max_batch,
                       struct model **ret_model, struct error *err)
{
    if (max_batch == 0 || max_batch > SPEC_WIDTH_MAX)
        return error_set(err, STATUS_INVALID, "a batch of %zu samples: 1 to %d", max_batch,
                         SPEC_WIDTH_MAX);
    return open_model(spec_text, compute, max_batch, true, ret_model, err);
}

enum status model_read_table(const char *spec_text, struct tensor_table *ret, struct error *err)
{
    struct compute *compute = NULL;
    struct model *m = NULL;
    enum status status = compute_open("cpu", 0, 1, &compute, err);

    if (status == STATUS_OK)
        status = open_model(spec_text, compute, 1, false, &m, err);
    if (status == STATUS_OK && m) {
        *ret = m->table;
        m->table = (struct tensor_table){.length = 0};
    }
    model_close(m);
    compute_close(compute);
    return status;
}

static void close_operation(struct model *m, struct operation *op)
{
    if (op->kind->close)
        op->kind->close(m, op);
    compute_free(m->compute, op->pre_activation);
    compute_free(m->compute, op->saved[0]);
    compute_free(m->compute, op->saved[1]);
    compute_free(m->compute, op->argmax);
}

void model_close(struct model *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < MODEL_GRAPHS; i++)
        compute_graph_free(m->compute, m->graphs[i].graph);
    for (size_t i = 0; i < m->length; i++)
        close_operation(m, &m->operations[i]);
    for (size_t i = 0; i < m->pool_length; i++)
        compute_free(m->compute, m->pool[i]);
    for (size_t v = 0; v < m->values_length; v++)
        compute_free(m->compute, m->values[v].data);
    if (!compute_is_host(m->compute)) {
        compute_free_host(m->compute, m->host_params);
        compute_free_host(m->compute, m->host_grads);
        compute_free(m->compute, m->params);
        compute_free(m->compute, m->grads);
        compute_free(m->compute, m->buffers);
    }
    shared_memory_release(&m->memory);
    free(m->pool);
    free(m->blocks);
    free(m->operations);
    free(m->values);
    compute_free(m->compute, m->device_state[0]);
    compute_free(m->compute, m->device_state[1]);
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
    const struct operation *first = &m->operations[0];

    return first->kind == &operation_linear ? &m->table.views[first->first_view] : NULL;
}

size_t model_inputs(const struct model *m)
{
    return m->values[INPUT_VALUE].count;
}

size_t model_classes(const struct model *m)
{
    return m->values[m->values_length - 1].count / m->positions;
}

size_t model_positions(const struct model *m)
{
    return m->positions;
}

size_t model_vocabulary(const struct model *m)
{
    return m->vocabulary;
}

uint64_t model_flops(const struct model *m)
{
    uint64_t forward = 0;

    for (size_t i = 0; i < m->length; i++)
        if (m->operations[i].kind->forward_flops)
            forward += m->operations[i].kind->forward_flops(&m->operations[i]);
    return 3 * forward;
}

uint64_t model_times_hash(const struct model *m)
{
    return m->times_hash;
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
    return m->host_buffers;
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

void model_set_issued(struct model *m, model_issued_fn *issued, void *user)
{
    m->issued = issued;
    m->issued_user = user;
}

void model_set_await(struct model *m, model_await_fn *await, void *user)
{
    assert(compute_is_host(m->compute) || !await);
    m->await = await;
    m->await_user = user;
}

void model_set_ready_after_reads(struct model *m, bool after_reads)
{
    m->ready_after_reads = after_reads;
}

void model_set_layer_drop(struct model *m, double p, uint64_t seed)
{
    m->drop_probability = p;
    random_seed(&m->random, seed);
}
