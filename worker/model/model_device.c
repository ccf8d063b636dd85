/*
 * Training on the device: the optimizer's state lies next to the parameters there; the host's
 * copies are those of the last model_fetch.  The mean of staged gradients is uploaded part by part.
 * These uploads are ordered before the update and before the next step's downloads into the same
 * memory, because the device executes calls in the order of issue.  No locks: one caller per model.
 */
#include "worker/model/step.h"

#include <assert.h>
#include <string.h>

enum status model_keep_on_device(struct model *m, struct optimizer *o, enum gradient_path path,
                                 struct error *err)
{
    size_t count = m->table.count;
    enum status status = STATUS_OK;

    if (!compute_has_optimizer(m->compute))
        return error_set(err, STATUS_UNSUPPORTED, "%s has no optimizer", compute_name(m->compute));
    for (unsigned s = 0; s < o->states && status == STATUS_OK; s++) {
        status = compute_alloc(m->compute, count, "optimizer state", &m->device_state[s], err);
        if (status == STATUS_OK)
            status = compute_upload(m->compute, m->device_state[s], o->state[s], count, err);
    }
    if (status == STATUS_OK) {
        m->optimizer = o;
        m->path = path;
    }
    return status;
}

float *model_device_grads(struct model *m)
{
    return m->grads;
}

bool model_on_device(const struct model *m)
{
    return m->optimizer != NULL;
}

enum status step_update(struct model *m, double learning_rate, uint64_t step, struct error *err)
{
    const struct compute_update update = {.params = m->params,
                                          .grads = m->grads,
                                          .state = {m->device_state[0], m->device_state[1]},
                                          .count = m->table.count};

    return compute_optimizer_update(m->compute, &m->optimizer->config, learning_rate, step, &update,
                                    err);
}

enum status model_update(struct model *m, double learning_rate, uint64_t step, struct error *err)
{
    bool applied = m->update.applied;

    assert(!applied || (m->update.step == step && m->update.learning_rate == learning_rate));
    m->update = (struct planned_update){0};
    m->host_is_stale = true;
    return applied ? STATUS_OK : step_update(m, learning_rate, step, err);
}

/* num_batches_tracked is counted on the host: save it, since the download overwrites all buffers.
 */
static enum status fetch_buffers(struct model *m, struct error *err)
{
    enum status status;

    for (size_t i = 0; i < m->length; i++)
        if (m->operations[i].batches_tracked)
            m->operations[i].batches = tensor_get_int64(m->operations[i].batches_tracked);
    status = compute_download(m->compute, m->host_buffers, m->buffers, m->buffer_table.count, err);
    for (size_t i = 0; i < m->length; i++)
        if (m->operations[i].batches_tracked)
            tensor_set_int64(m->operations[i].batches_tracked, m->operations[i].batches);
    return status;
}

enum status model_fetch(struct model *m, struct error *err)
{
    size_t count = m->table.count;
    enum status status = STATUS_OK;

    if (!m->optimizer || !m->host_is_stale)
        return STATUS_OK;
    status = compute_download(m->compute, m->host_params, m->params, count, err);
    for (unsigned s = 0; s < m->optimizer->states && status == STATUS_OK; s++)
        status =
            compute_download(m->compute, m->optimizer->state[s], m->device_state[s], count, err);
    if (status == STATUS_OK && m->buffers && step_buffers_on_device(m))
        status = fetch_buffers(m, err);
    if (status == STATUS_OK)
        m->host_is_stale = false;
    return status;
}

enum status model_restore(struct model *m, struct error *err)
{
    enum status status = model_params_changed(m, err);

    if (!m->optimizer)
        return status;
    for (unsigned s = 0; s < m->optimizer->states && status == STATUS_OK; s++)
        status = compute_upload(m->compute, m->device_state[s], m->optimizer->state[s],
                                m->table.count, err);
    if (status == STATUS_OK)
        m->host_is_stale = false;
    return status;
}

/* ---- results of the other ranks ---- */

enum status model_grads_arrived(struct model *m, size_t offset, size_t count, struct error *err)
{
    assert(m->path == GRADIENTS_STAGED && m->host_grads != m->grads);
    return compute_upload(m->compute, m->grads + offset, m->host_grads + offset, count, err);
}

enum status model_params_arrived(struct model *m, size_t offset, size_t count, struct error *err)
{
    if (m->host_params == m->params)
        return STATUS_OK;
    return compute_upload(m->compute, m->params + offset, m->host_params + offset, count, err);
}

/* Synchronize first: uploads of the last mean may still read the slab. */
enum status model_clear_grads(struct model *m, struct error *err)
{
    enum status status =
        compute_is_host(m->compute) ? STATUS_OK : compute_synchronize(m->compute, err);

    if (status != STATUS_OK)
        return status;
    memset(m->host_grads, 0, m->table.count * sizeof(float));
    if (!m->optimizer || m->path != GRADIENTS_SHARED)
        return STATUS_OK;
    status = compute_upload(m->compute, m->grads, m->host_grads, m->table.count, err);
    return status == STATUS_OK ? compute_synchronize(m->compute, err) : status;
}
