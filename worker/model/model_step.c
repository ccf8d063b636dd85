/*
 * Forward and backward of the program.  Backward computes an operation's parameter gradients before
 * its input gradient, so that their transfer overlaps the backward of the earlier operations; the
 * gradient of the model's input is not computed.  Nothing is allocated.  No locks: one caller.
 */
#include "common/base/clock.h"
#include "worker/model/step.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* With a GPU each download has at least this share of the slab, so that their number stays below
 * COMPUTE_DOWNLOADS_MAX. */
#define DOWNLOAD_SHARE (COMPUTE_DOWNLOADS_MAX - 4)

/* ---- input ---- */

/* Validate the ids: they come from a file. */
static enum status check_ids(const struct model *m, const float *ids, size_t batch,
                             struct error *err)
{
    size_t positions = m->values[INPUT_VALUE].count;

    for (size_t i = 0; m->vocabulary > 0 && i < batch * positions; i++)
        if (!(ids[i] >= 0.0f && ids[i] < (float)m->vocabulary && ids[i] == truncf(ids[i])))
            return error_set(err, STATUS_DATA,
                             "sample %zu of the batch, position %zu: token %.9g, not one of the "
                             "vocabulary's 0 to %zu",
                             i / positions, i % positions, (double)ids[i], m->vocabulary - 1);
    return STATUS_OK;
}

/* Upload the batch in the order that the first operation reads, and reset every value's `current`.
 */
static enum status upload_input(struct model *m, const float *x, size_t batch, struct error *err)
{
    struct value *input = &m->values[INPUT_VALUE];
    enum status status;

    if (batch == 0 || batch > m->max_batch)
        return error_set(err, STATUS_INVALID, "a batch of %zu samples, the model takes 1 to %zu",
                         batch, m->max_batch);
    status = check_ids(m, x, batch, err);
    if (status != STATUS_OK)
        return status;
    for (size_t v = 0; v < m->values_length; v++)
        m->values[v].current = m->values[v].data;
    if (!input->data) {
        input->current = x;
        return STATUS_OK;
    }
    if (m->vocabulary > 0)
        return compute_upload(m->compute, input->data, x, batch * input->count, err);
    if (m->operations[0].kind == &operation_linear) /* features, of an image in PyTorch's order */
        return compute_upload_values(m->compute, input->data, x, batch * input->count, err);
    return compute_upload_images(m->compute, input->data, x, batch, input->channels,
                                 input->height * input->width, err);
}

/* ---- forward ---- */

static void draw_dropped_blocks(struct model *m)
{
    for (size_t i = 0; i < m->blocks_length; i++) {
        const struct block *block = &m->blocks[i];
        bool dropped = m->drop_probability > 0 &&
                       (double)random_u32(&m->random) < m->drop_probability * 4294967296.0;

        for (size_t k = block->first; k < block->end; k++)
            m->operations[k].dropped = dropped;
    }
}

static bool buffers_are_copied(const struct model *m)
{
    return m->buffers != m->host_buffers && !step_buffers_on_device(m);
}

/* Count this batch, and upload the host's buffers unless they stay on the device. */
static enum status upload_buffers(struct model *m, struct error *err)
{
    for (size_t i = 0; i < m->length; i++) {
        float *tracked = m->operations[i].batches_tracked;

        if (tracked && !m->operations[i].dropped)
            tensor_set_int64(tracked, tensor_get_int64(tracked) + 1);
    }
    m->host_is_stale = m->host_is_stale || step_buffers_on_device(m);
    if (!buffers_are_copied(m))
        return STATUS_OK;
    return compute_upload(m->compute, m->buffers, m->host_buffers, m->buffer_table.count, err);
}

static enum status await_params(const struct model *m, size_t offset, size_t count,
                                struct error *err)
{
    return m->await ? m->await(m->await_user, offset, count, err) : STATUS_OK;
}

/* The output of a skipped block is its input. */
static void forward_dropped_block(struct model *m, size_t first)
{
    for (size_t i = 0; i < m->blocks_length; i++)
        if (m->blocks[i].first == first)
            m->values[m->blocks[i].out].current = m->values[m->blocks[i].in].current;
}

static enum status forward_training(struct model *m, size_t batch, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < m->length && status == STATUS_OK; i++) {
        struct operation *op = &m->operations[i];

        if (op->dropped) {
            forward_dropped_block(m, i);
            continue;
        }
        if (op->first_use)
            status = await_params(m, op->start, op->count, err);
        if (status == STATUS_OK)
            status = op->kind->forward(m, op, batch, err);
    }
    return status;
}

static enum status forward_evaluation(struct model *m, size_t batch, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < m->length && status == STATUS_OK; i++) {
        struct operation *op = &m->operations[i];

        status = op->kind->evaluate ? op->kind->evaluate(m, op, batch, err)
                                    : op->kind->forward(m, op, batch, err);
    }
    return status;
}

/* gradient: also compute the gradient, in place of the logits. */
static enum status compute_loss(struct model *m, const int32_t *labels, size_t batch, bool gradient,
                                struct error *err)
{
    void *logits = m->values[m->values_length - 1].data;

    return compute_softmax_cross_entropy(m->compute, logits, labels, gradient ? logits : NULL,
                                         batch * m->positions, model_classes(m), m->logits_stride,
                                         err);
}

/* ---- backward ---- */

/* The work for gradients [0, ready_count) is issued: on the host they are final now; on a GPU start
 * their download. */
static enum status publish_gradients(struct model *m, struct step *s, size_t ready_count,
                                     struct error *err)
{
    size_t start = s->ready_count;
    size_t count = ready_count - start;

    if (count == 0)
        return STATUS_OK;
    if (compute_is_host(m->compute)) {
        s->ready_count = ready_count;
        if (s->ready)
            s->ready(s->user, ready_count);
        return STATUS_OK;
    }
    if (m->optimizer && (m->path == GRADIENTS_STAY || !s->ready)) /* no reader before the update */
        return STATUS_OK;
    if (count < m->table.count / DOWNLOAD_SHARE && ready_count < m->table.count)
        return STATUS_OK;
    s->ready_count = ready_count;
    assert(m->downloads_length < COMPUTE_DOWNLOADS_MAX);
    m->downloads[m->downloads_length++] = ready_count;
    if (m->optimizer && m->path == GRADIENTS_SHARED) /* no elements: only marks their completion */
        count = 0;
    return compute_download_start(m->compute, m->host_grads + start, m->grads + start, count, err);
}

/* A skipped operation contributes zeros: keep the earlier batches' gradient, or clear it. */
static enum status clear_gradients(struct model *m, const struct operation *op, bool accumulate,
                                   struct error *err)
{
    if (accumulate || op->count == 0)
        return STATUS_OK;
    memset(m->host_grads + op->start, 0, op->count * sizeof(float));
    if (compute_is_host(m->compute))
        return STATUS_OK;
    return compute_upload(m->compute, m->grads + op->start, m->host_grads + op->start, op->count,
                          err);
}

/* The gradient of a skipped block's output is that of its input: swap their buffers, which have
 * equal sizes.  The plan has nothing in the input's buffer at this point. */
static void backward_dropped_block(struct model *m, size_t first)
{
    for (size_t i = 0; i < m->blocks_length; i++) {
        const struct block *block = &m->blocks[i];

        if (block->first == first) {
            size_t in = m->values[block->in].gradient;
            size_t out = m->values[block->out].gradient;
            void *swapped = m->pool[in];

            m->pool[in] = m->pool[out];
            m->pool[out] = swapped;
        }
    }
}

static enum status backward_operation(struct model *m, size_t index, struct step *s,
                                      struct error *err)
{
    struct operation *op = &m->operations[index];
    enum status status = STATUS_OK;

    if (op->dropped) {
        status = clear_gradients(m, op, s->accumulate, err);
        backward_dropped_block(m, index);
        return status == STATUS_OK ? publish_gradients(m, s, op->ready_count, err) : status;
    }
    if (op->kind->backward)
        status = op->kind->backward(m, op, s->batch, s->accumulate, err);
    if (status == STATUS_OK && !m->ready_after_reads)
        status = publish_gradients(m, s, op->ready_count, err);
    if (status == STATUS_OK && op->kind->backward_input && op->in != INPUT_VALUE)
        status = op->kind->backward_input(m, op, s->batch, err);
    if (status == STATUS_OK && m->ready_after_reads)
        status = publish_gradients(m, s, op->ready_count, err);
    return status;
}

/* With a GPU: downloads complete in the order in which they were started, the buffers first. */
static enum status wait_downloads(struct model *m, const struct step *s, struct error *err)
{
    enum status status = buffers_are_copied(m) ? compute_download_wait(m->compute, err) : STATUS_OK;

    for (size_t i = 0; i < m->downloads_length && status == STATUS_OK; i++) {
        status = compute_download_wait(m->compute, err);
        if (status == STATUS_OK && s->ready)
            s->ready(s->user, m->downloads[i]);
    }
    if (status == STATUS_OK && m->optimizer && m->path == GRADIENTS_STAY && s->ready)
        s->ready(s->user, m->table.count);
    return status;
}

void step_mark_used(struct model *m, bool accumulate)
{
    if (!accumulate)
        memset(m->used, 0, m->table.length * sizeof(*m->used));
    for (size_t i = 0; i < m->length; i++) {
        const struct operation *op = &m->operations[i];

        for (size_t v = 0; v < op->views && !op->dropped; v++)
            m->used[op->first_view + v] = true;
    }
}

static enum status backward(struct model *m, struct step *s, struct error *err)
{
    enum status status = STATUS_OK;

    if (buffers_are_copied(m)) /* forward has completed them */
        status = compute_download_start(m->compute, m->host_buffers, m->buffers,
                                        m->buffer_table.count, err);
    for (size_t i = m->length; i-- > 0 && status == STATUS_OK;)
        status = backward_operation(m, i, s, err);
    return status;
}

enum status step_issue(struct model *m, struct step *s, struct error *err)
{
    int64_t started_ns = clock_now_ns();
    enum status status = forward_training(m, s->batch, err);

    s->ready_count = 0;
    m->downloads_length = 0;
    if (status == STATUS_OK) /* backward overwrites gradients that may still be in a send */
        status = await_params(m, 0, m->table.count, err);
    if (status == STATUS_OK)
        status = compute_loss(m, s->labels, s->batch, true, err);
    m->forward_ns += clock_now_ns() - started_ns;
    if (status != STATUS_OK)
        return status;
    step_mark_used(m, s->accumulate);
    return backward(m, s, err);
}

/* Issue the step after the input has been uploaded: as one launch if possible, else call by call.
 */
static enum status issue_step(struct model *m, struct step *s, struct error *err)
{
    int64_t started_ns = clock_now_ns();
    bool launched = false;
    enum status status;

    m->forward_ns = 0;
    status = step_launch(m, s, &launched, err);
    m->forward_ns = clock_now_ns() - started_ns;
    if (status == STATUS_OK && !launched)
        status = step_issue(m, s, err);
    m->update.planned = false;
    return status;
}

/* ---- public ---- */

enum status model_step(struct model *m, const float *x, const int32_t *labels, size_t batch,
                       bool accumulate, model_ready_fn *ready, void *user, double *ret_loss,
                       struct error *err)
{
    struct step s = {
        .labels = labels, .batch = batch, .accumulate = accumulate, .ready = ready, .user = user};
    int64_t started_ns = clock_now_ns();
    int64_t placed_ns;
    size_t correct;
    enum status status = upload_input(m, x, batch, err);

    if (status == STATUS_OK) {
        draw_dropped_blocks(m);
        status = upload_buffers(m, err);
    }
    placed_ns = clock_now_ns() - started_ns;
    if (status == STATUS_OK)
        status = issue_step(m, &s, err);
    m->forward_ns += placed_ns;
    if (status == STATUS_OK && m->issued && !compute_is_host(m->compute))
        status = m->issued(m->issued_user, err);
    if (status == STATUS_OK)
        status = wait_downloads(m, &s, err);
    if (status == STATUS_OK)
        status = compute_loss_wait(m->compute, ret_loss, &correct, err);
    return status;
}

enum status model_evaluate(struct model *m, const float *x, const int32_t *labels, size_t batch,
                           double *ret_loss, size_t *ret_correct, struct error *err)
{
    enum status status = upload_input(m, x, batch, err);

    if (status == STATUS_OK)
        status = forward_evaluation(m, batch, err);
    if (status == STATUS_OK)
        status = compute_loss(m, labels, batch, false, err);
    if (status == STATUS_OK)
        status = compute_loss_wait(m->compute, ret_loss, ret_correct, err);
    return status;
}
