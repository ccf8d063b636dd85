/*
 * A step: the caller assigns each thread its part of the batch, processes the first part itself,
 * waits for the threads, and sums the gradients.  The threads read the first model's parameters,
 * which are not written during a step.  Its forward does write its buffers, so these are copied
 * before the threads start.
 *
 * Locking: a replica's `lock` guards its `state`; its other fields belong to its thread while the
 * state is WORKING and to the caller otherwise.
 */
#include "worker/train/replicas.h"

#include "common/base/memory.h"
#include "worker/options/options.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum state { IDLE, WORKING, STOPPED };

struct replica {
    struct compute *compute; /* owned, as is the model */
    struct model *model;
    struct model *first; /* borrowed */
    const float *x;      /* the device's part of the batch, borrowed for the step */
    const int32_t *labels;
    size_t count;
    double loss;
    enum status status;
    struct error failure;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum state state;
};

struct replicas {
    struct model *first;    /* borrowed */
    struct replica *others; /* owned; (count - 1) */
    unsigned count;         /* devices */
    float *accumulated;     /* owned; gradients of the update's earlier batches */
};

size_t replicas_part(size_t batch, unsigned count, unsigned index, size_t *ret_at)
{
    size_t each = (batch + count - 1) / count;
    size_t at = index * each < batch ? index * each : batch;

    *ret_at = at;
    return batch - at < each ? batch - at : each;
}

/* ------------------------------------------------------------------ the thread of a device */

static enum status step_replica(struct replica *p, struct error *err)
{
    enum status status;

    memcpy(model_params(p->model), model_params(p->first),
           model_table(p->model)->count * sizeof(float));
    status = model_params_changed(p->model, err);
    return status == STATUS_OK
               ? model_step(p->model, p->x, p->labels, p->count, false, NULL, NULL, &p->loss, err)
               : status;
}

static void *replica_thread(void *user)
{
    struct replica *p = user;

    (void)pthread_mutex_lock(&p->lock);
    while (p->state != STOPPED) {
        if (p->state == IDLE) {
            (void)pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&p->lock);
        p->status = step_replica(p, &p->failure);
        (void)pthread_mutex_lock(&p->lock);
        p->state = IDLE;
        (void)pthread_cond_broadcast(&p->changed);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void set_state(struct replica *p, enum state state)
{
    (void)pthread_mutex_lock(&p->lock);
    p->state = state;
    (void)pthread_cond_broadcast(&p->changed);
    (void)pthread_mutex_unlock(&p->lock);
}

static void wait_replica(struct replica *p)
{
    (void)pthread_mutex_lock(&p->lock);
    while (p->state == WORKING)
        (void)pthread_cond_wait(&p->changed, &p->lock);
    (void)pthread_mutex_unlock(&p->lock);
}

static void copy_buffers(const struct replica *p)
{
    if (model_buffers(p->model))
        memcpy(model_buffers(p->model), model_buffers(p->first),
               model_buffer_table(p->model)->count * sizeof(float));
}

/* ------------------------------------------------------------------ a step */

/* Start the devices that have a part of the batch; returns the samples of the first device. */
static size_t scatter_batch(struct replicas *r, const float *x, const int32_t *labels, size_t batch)
{
    size_t features = model_inputs(r->first);
    size_t positions = model_positions(r->first);
    size_t at;

    for (unsigned i = 1; i < r->count; i++) {
        struct replica *p = &r->others[i - 1];

        p->count = replicas_part(batch, r->count, i, &at);
        p->x = x + at * features;
        p->labels = labels + at * positions;
        p->status = STATUS_OK;
        if (p->count == 0)
            continue;
        copy_buffers(p);
        set_state(p, WORKING);
    }
    return replicas_part(batch, r->count, 0, &at);
}

/* Gradient of the mean over the batch: the sum of the parts' mean gradients, weighted by
 * samples. */
static void sum_gradients(struct replicas *r, size_t own, size_t batch, double *loss)
{
    size_t count = model_table(r->first)->count;
    float *sum = model_grads(r->first);

    if (own == batch)
        return;
    *loss *= (double)own / (double)batch;
    vector_scale(sum, (float)((double)own / (double)batch), count);
    for (unsigned i = 1; i < r->count; i++) {
        const struct replica *p = &r->others[i - 1];
        double share = (double)p->count / (double)batch;

        if (p->count == 0)
            continue;
        *loss += p->loss * share;
        vector_scale(model_grads(p->model), (float)share, count);
        vector_add(sum, model_grads(p->model), count);
    }
}

enum status replicas_step(struct replicas *r, const float *x, const int32_t *labels, size_t batch,
                          bool accumulate, model_ready_fn *ready, void *user, double *ret_loss,
                          struct error *err)
{
    size_t count = model_table(r->first)->count;
    size_t own;
    double loss;
    enum status status;

    if (accumulate)
        memcpy(r->accumulated, model_grads(r->first), count * sizeof(float));
    own = scatter_batch(r, x, labels, batch);
    status = model_step(r->first, x, labels, own, false, NULL, NULL, &loss, err);
    for (unsigned i = 1; i < r->count; i++) {
        struct replica *p = &r->others[i - 1];

        wait_replica(p);
        if (status == STATUS_OK && p->status != STATUS_OK)
            status = error_set(err, p->status, "device %u: %s", i, p->failure.text);
    }
    if (status != STATUS_OK)
        return status;
    sum_gradients(r, own, batch, &loss);
    if (accumulate)
        vector_add(model_grads(r->first), r->accumulated, count);
    if (ready)
        ready(user, count);
    *ret_loss = loss;
    return STATUS_OK;
}

/* ------------------------------------------------------------------ open, close */

static enum status open_replica(struct replica *p, const struct replicas_config *config,
                                unsigned index, struct error *err)
{
    size_t at;
    size_t batch = replicas_part(config->max_batch, config->count, 0, &at);
    const struct compute_config compute = {.device = config->device,
                                           .local_rank = config->local_rank + index,
                                           .threads = config->threads,
                                           .precision = config->precision,
                                           .deterministic = config->deterministic};
    enum status status = compute_open_config(&compute, &p->compute, err);
    int failed;

    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->changed, NULL);
    if (status == STATUS_OK)
        status = model_open(config->spec, p->compute, batch, &p->model, err);
    if (status != STATUS_OK)
        return status;
    failed = pthread_create(&p->thread, NULL, replica_thread, p);
    if (failed != 0)
        return error_set_errno(err, failed, "cannot start the thread of device %u", index);
    p->started = true;
    return STATUS_OK;
}

enum status replicas_open(const struct replicas_config *config, struct model *first,
                          struct replicas **ret, struct error *err)
{
    struct replicas *r = NULL;
    enum status status;

    if (config->count == 0 || config->count > OPTIONS_DEVICES_MAX)
        return error_set(err, STATUS_INVALID, "%u devices: at least 1, at most %u", config->count,
                         OPTIONS_DEVICES_MAX);
    status = mem_calloc(1, sizeof(*r), "replicas", &r, err);
    if (status != STATUS_OK)
        return status;
    r->first = first;
    status = mem_calloc(config->count, sizeof(*r->others), "replicas", &r->others, err);
    if (status == STATUS_OK)
        status = mem_calloc_aligned(model_table(first)->count, sizeof(float), "gradients",
                                    &r->accumulated, err);
    r->count = 1;
    for (unsigned i = 1; status == STATUS_OK && i < config->count; i++) {
        r->others[i - 1].first = first;
        r->count = i + 1;
        status = open_replica(&r->others[i - 1], config, i, err);
    }
    if (status != STATUS_OK) {
        replicas_close(r);
        return status;
    }
    *ret = r;
    return STATUS_OK;
}

void replicas_close(struct replicas *r)
{
    if (!r)
        return;
    for (unsigned i = 1; i < r->count; i++) {
        struct replica *p = &r->others[i - 1];

        if (p->started) {
            set_state(p, STOPPED);
            (void)pthread_join(p->thread, NULL);
        }
        model_close(p->model);
        compute_close(p->compute);
        (void)pthread_cond_destroy(&p->changed);
        (void)pthread_mutex_destroy(&p->lock);
    }
    free(r->others);
    free(r->accumulated);
    free(r);
}
