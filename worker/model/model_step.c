/*
 * Forward and backward.  Activations of every layer are kept for backward; two buffers take turns
 * as the gradient that flows back.  Backward computes a layer's weight gradient before its input
 * gradient, so that its bytes can travel while the layers before it still compute; the first
 * layer's input gradient is not needed and not computed.  Nothing is allocated.
 */
#include "common/base/clock.h"
#include "worker/model/model_layers.h"

#include <string.h>

/* The batch as the first layer reads it. */
static enum status place_input(struct model *m, const float *x, size_t batch, const float **ret_x,
                               struct error *err)
{
    if (batch == 0 || batch > m->max_batch)
        return error_set(err, STATUS_INVALID, "a batch of %zu samples, the model takes 1 to %zu",
                         batch, m->max_batch);
    if (!m->input) {
        *ret_x = x;
        return STATUS_OK;
    }
    *ret_x = m->input;
    return compute_upload(m->compute, m->input, x, batch * m->layers[0].in, err);
}

/* ---- forward ---- */

static enum status forward_layer(struct model *m, struct layer *layer, size_t batch, bool training,
                                 struct error *err)
{
    enum status status =
        compute_linear_forward(m->compute, &layer->linear, layer->input, NULL, NULL,
                               layer->norm ? layer->normalised : layer->output, batch, err);

    if (status != STATUS_OK || !layer->norm)
        return status;
    if (!training)
        return compute_batch_norm_evaluate(m->compute, &layer->batch_norm, layer->normalised, NULL,
                                           layer->output, batch, err);
    *layer->batches_tracked += 1.0f;
    return compute_batch_norm_forward(m->compute, &layer->batch_norm, layer->normalised, NULL,
                                      layer->output, batch, err);
}

static bool draw_drop(struct model *m, const struct layer *layer)
{
    return m->drop > 0 && layer->may_drop &&
           (double)random_u32(&m->random) < m->drop * 4294967296.0;
}

static enum status await_params(const struct model *m, size_t offset, size_t count,
                                struct error *err)
{
    return m->await ? m->await(m->await_user, offset, count, err) : STATUS_OK;
}

static enum status forward(struct model *m, const float *x, size_t batch, bool training,
                           struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t l = 0; l < m->length && status == STATUS_OK; l++) {
        struct layer *layer = &m->layers[l];

        layer->input = x;
        layer->dropped = training && draw_drop(m, layer);
        if (layer->dropped)
            continue;
        if (training)
            status = await_params(m, layer->start, layer->ready_count - layer->start, err);
        if (status == STATUS_OK)
            status = forward_layer(m, layer, batch, training, err);
        x = layer->output;
    }
    return status;
}

/* ---- backward ---- */

/* A layer's gradient is issued: final here and now on the host, on its way from a GPU. */
static enum status hand_over(struct model *m, const struct layer *layer, model_ready_fn *ready,
                             void *user, struct error *err)
{
    if (!compute_is_host(m->compute))
        return compute_download_start(m->compute, m->host_grads + layer->start,
                                      m->grads + layer->start, layer->ready_count - layer->start,
                                      err);
    if (ready)
        ready(user, layer->ready_count);
    return STATUS_OK;
}

/* A layer that was skipped has a gradient of zeros, or the one of the batches before. */
static enum status skip_layer(struct model *m, const struct layer *layer, bool accumulate,
                              struct error *err)
{
    size_t count = layer->ready_count - layer->start;

    if (accumulate)
        return STATUS_OK;
    memset(m->host_grads + layer->start, 0, count * sizeof(float));
    if (compute_is_host(m->compute))
        return STATUS_OK;
    return compute_upload(m->compute, m->grads + layer->start, m->host_grads + layer->start, count,
                          err);
}

/* dy: the gradient of the layer's output, in m->flow[m->current]; becomes that of the Linear's. */
static enum status through_activation(struct model *m, const struct layer *layer, float *dy,
                                      size_t batch, bool accumulate, struct error *err)
{
    enum activation activation =
        layer->norm ? layer->batch_norm.activation : layer->linear.activation;
    enum status status = compute_activation_backward(m->compute, activation, layer->output, dy,
                                                     batch * layer->out, err);

    if (status == STATUS_OK && layer->norm)
        status = compute_batch_norm_backward(m->compute, &layer->batch_norm, layer->normalised, dy,
                                             dy, batch, accumulate, err);
    return status;
}

static enum status backward_layer(struct model *m, size_t l, size_t batch, bool accumulate,
                                  model_ready_fn *ready, void *user, struct error *err)
{
    const struct layer *layer = &m->layers[l];
    float *dy = m->flow[m->current];
    enum status status;

    if (layer->dropped) {
        status = skip_layer(m, layer, accumulate, err);
        return status == STATUS_OK ? hand_over(m, layer, ready, user, err) : status;
    }
    status = through_activation(m, layer, dy, batch, accumulate, err);
    if (status == STATUS_OK)
        status = compute_linear_backward_weight(m->compute, &layer->linear, layer->input, dy, batch,
                                                accumulate, err);
    if (status == STATUS_OK)
        status = hand_over(m, layer, ready, user, err);
    if (status != STATUS_OK || l == 0)
        return status;
    m->current = 1 - m->current;
    return compute_linear_backward_input(m->compute, &layer->linear, dy, m->flow[m->current], batch,
                                         false, err);
}

/* With a GPU: the copies arrive in the order in which they were started. */
static enum status collect_gradients(struct model *m, model_ready_fn *ready, void *user,
                                     struct error *err)
{
    if (compute_is_host(m->compute))
        return STATUS_OK;
    for (size_t l = m->length; l-- > 0;) {
        enum status status = compute_download_wait(m->compute, err);

        if (status != STATUS_OK)
            return status;
        if (ready)
            ready(user, m->layers[l].ready_count);
    }
    return STATUS_OK;
}

static void note_used(struct model *m, bool accumulate)
{
    if (!accumulate)
        memset(m->used, 0, m->table.length * sizeof(*m->used));
    for (size_t l = 0; l < m->length; l++)
        for (size_t v = 0; v < m->layers[l].views && !m->layers[l].dropped; v++)
            m->used[m->layers[l].first_view + v] = true;
}

enum status model_step(struct model *m, const float *x, const int32_t *labels, size_t batch,
                       bool accumulate, model_ready_fn *ready, void *user, double *ret_loss,
                       struct error *err)
{
    const float *input = NULL;
    const struct layer *last = &m->layers[m->length - 1];
    int64_t started_ns = clock_now_ns();
    size_t correct;
    enum status status = place_input(m, x, batch, &input, err);

    m->current = 0;
    if (status == STATUS_OK)
        status = forward(m, input, batch, true, err);
    if (status == STATUS_OK) /* backward writes where gradients may still be sent from */
        status = await_params(m, 0, m->table.count, err);
    if (status == STATUS_OK)
        status = compute_softmax_cross_entropy(m->compute, last->output, labels, m->flow[0], batch,
                                               last->out, err);
    m->forward_ns = clock_now_ns() - started_ns;
    if (status == STATUS_OK)
        note_used(m, accumulate);
    for (size_t l = m->length; l-- > 0 && status == STATUS_OK;)
        status = backward_layer(m, l, batch, accumulate, ready, user, err);
    if (status == STATUS_OK)
        status = collect_gradients(m, ready, user, err);
    if (status == STATUS_OK)
        status = compute_loss_wait(m->compute, ret_loss, &correct, err);
    return status;
}

enum status model_evaluate(struct model *m, const float *x, const int32_t *labels, size_t batch,
                           double *ret_loss, size_t *ret_correct, struct error *err)
{
    const float *input = NULL;
    const struct layer *last = &m->layers[m->length - 1];
    enum status status = place_input(m, x, batch, &input, err);

    if (status == STATUS_OK)
        status = forward(m, input, batch, false, err);
    if (status == STATUS_OK)
        status = compute_softmax_cross_entropy(m->compute, last->output, labels, NULL, batch,
                                               last->out, err);
    if (status == STATUS_OK)
        status = compute_loss_wait(m->compute, ret_loss, ret_correct, err);
    return status;
}
