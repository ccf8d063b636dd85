/*
 * Training without the host: the optimizer's state lies beside the parameters on the device, and
 * the host's slabs are what model_fetch brought last.
 */
#include "worker/model/program.h"

enum status model_keep_on_device(struct model *m, struct optimizer *o, struct error *err)
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
    if (status == STATUS_OK)
        m->optimizer = o;
    return status;
}

bool model_on_device(const struct model *m)
{
    return m->optimizer != NULL;
}

enum status model_update(struct model *m, double learning_rate, uint64_t step, struct error *err)
{
    const struct compute_update update = {.params = m->params,
                                          .grads = m->grads,
                                          .state = {m->device_state[0], m->device_state[1]},
                                          .count = m->table.count};

    m->host_is_old = true;
    return compute_optimizer_update(m->compute, &m->optimizer->config, learning_rate, step, &update,
                                    err);
}

enum status model_fetch(struct model *m, struct error *err)
{
    size_t count = m->table.count;
    enum status status = STATUS_OK;

    if (!m->optimizer || !m->host_is_old)
        return STATUS_OK;
    status = compute_download(m->compute, m->host_params, m->params, count, err);
    for (unsigned s = 0; s < m->optimizer->states && status == STATUS_OK; s++)
        status =
            compute_download(m->compute, m->optimizer->state[s], m->device_state[s], count, err);
    if (status == STATUS_OK)
        m->host_is_old = false;
    return status;
}
