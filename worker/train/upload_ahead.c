/*
 * The upload is started by the model's "issued" callback: all work of the step is queued on the
 * device by then, and none of it has been waited for.  At most one upload is pending; `number`
 * identifies its batch, so that an upload of another batch than the next step's is discarded.
 * No locking: the callback runs on the training thread.
 */
#include "worker/train/upload_ahead.h"

#include "worker/train/trainer.h"

static enum status alloc_page_locked(void *user, size_t count, float **ret, struct error *err)
{
    return compute_alloc_host(user, count, ret, err);
}

static void free_page_locked(void *user, float *memory)
{
    compute_free_host(user, memory);
}

const struct loader_memory *upload_ahead_memory(struct trainer *t)
{
    if (compute_is_host(t->compute) || t->replicas)
        return NULL;
    t->upload_ahead.memory =
        (struct loader_memory){alloc_page_locked, free_page_locked, t->compute};
    return &t->upload_ahead.memory;
}

/* Does not wait for a batch that the loader has not gathered yet: gradients may be in transfer to
 * the host.  The next step then uploads it itself. */
static enum status start_next_upload(void *user, struct error *err)
{
    struct trainer *t = user;
    struct batch next;
    enum status status;

    if (!loader_try_peek(t->loader, &next))
        return STATUS_OK;
    status = compute_upload_ahead(t->compute, next.x, next.count * model_inputs(t->model), err);
    t->upload_ahead.started = status == STATUS_OK;
    t->upload_ahead.number = next.number;
    return status;
}

void upload_ahead_open(struct trainer *t)
{
    if (t->upload_ahead.memory.alloc)
        model_set_issued(t->model, start_next_upload, t);
}

enum status upload_ahead_consume(struct trainer *t, const struct batch *batch, struct error *err)
{
    bool other_batch = t->upload_ahead.started && t->upload_ahead.number != batch->number;

    t->upload_ahead.started = false;
    return other_batch ? compute_upload_ahead_cancel(t->compute, err) : STATUS_OK;
}

enum status upload_ahead_cancel(struct trainer *t, struct error *err)
{
    enum status status;

    if (!t->upload_ahead.memory.alloc)
        return STATUS_OK;
    t->upload_ahead.started = false;
    status = compute_upload_ahead_cancel(t->compute, err);
    return status == STATUS_OK ? compute_synchronize(t->compute, err) : status;
}
