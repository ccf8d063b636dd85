#include "worker/train/ahead.h"

#include "worker/train/trainer.h"

static enum status alloc_locked(void *user, size_t count, float **ret, struct error *err)
{
    return compute_alloc_host(user, count, ret, err);
}

static void free_locked(void *user, float *memory)
{
    compute_free_host(user, memory);
}

const struct loader_memory *ahead_memory(struct trainer *t)
{
    if (compute_is_host(t->compute) || t->replicas)
        return NULL;
    t->ahead.memory = (struct loader_memory){alloc_locked, free_locked, t->compute};
    return &t->ahead.memory;
}

/* A batch that the loader has not got yet is not waited for here, where gradients may be on their
 * way to the host: the next step takes it from the loader's memory itself. */
static enum status start(void *user, struct error *err)
{
    struct trainer *t = user;
    struct batch next;
    enum status status;

    if (!loader_try_peek(t->loader, &next))
        return STATUS_OK;
    status = compute_upload_ahead(t->compute, next.x, next.count * model_inputs(t->model), err);
    t->ahead.started = status == STATUS_OK;
    t->ahead.number = next.number;
    return status;
}

void ahead_open(struct trainer *t)
{
    if (t->ahead.memory.alloc)
        model_set_issued(t->model, start, t);
}

enum status ahead_take(struct trainer *t, const struct batch *batch, struct error *err)
{
    bool wrong = t->ahead.started && t->ahead.number != batch->number;

    t->ahead.started = false;
    return wrong ? compute_forget_ahead(t->compute, err) : STATUS_OK;
}

enum status ahead_drop(struct trainer *t, struct error *err)
{
    enum status status;

    if (!t->ahead.memory.alloc)
        return STATUS_OK;
    t->ahead.started = false;
    status = compute_forget_ahead(t->compute, err);
    return status == STATUS_OK ? compute_synchronize(t->compute, err) : status;
}
