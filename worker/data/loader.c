/*
 * A prefetch thread and its consumer share a ring of buffers.  The thread fills them in order as
 * they become empty; the consumer takes them in the same order and holds one until its next call.
 * The thread is woken when half of the buffers are empty, not for each one: with small models a
 * wake-up costs as much as a batch (two buffers: 448,000 samples/s; eight: 530,000; mlp:784-128-10,
 * 2 ranks).  A buffer's memory belongs to the thread while its state is EMPTY and to the consumer
 * while it is FULL.  `mutex` guards the states, `empty` and `stopping` only, and is not held while
 * gathering.
 */
#include "worker/data/loader.h"

#include "common/base/memory.h"

#include <pthread.h>
#include <stdlib.h>

#define BUFFERS_MAX 8
#define BUFFERS_MIN 3 /* one held, the next one, and one being filled */
/* Limits the number of buffers in the caller's memory, above BUFFERS_MIN. */
#define CALLER_MEMORY_BYTES_MAX ((size_t)128 << 20)

enum buffer_state { BUFFER_EMPTY, BUFFER_FULL };

struct buffer {
    enum buffer_state state; /* guarded by loader.mutex */
    float *x;                /* owned; (batch_size, features) */
    int32_t *y;              /* owned; (batch_size, positions) */
    struct batch batch;
};

struct loader {
    const struct dataset *dataset;
    struct sampler *sampler;            /* borrowed; the thread's while it runs */
    const struct loader_memory *memory; /* NULL: the heap */
    size_t requested_batch_size;
    size_t batch_size;    /* at most this rank's part of any later epoch */
    uint64_t first_epoch; /* the thread's: start position ... */
    size_t first_offset;  /* ... in samples of this rank's part */
    uint64_t gathered;    /* the thread's: batches so far */
    struct buffer buffers[BUFFERS_MAX];
    unsigned buffer_count;
    unsigned empty; /* guarded by mutex: EMPTY buffers */
    unsigned next;  /* consumer's: index of the buffer that loader_next takes */
    bool held;      /* consumer's: the buffer before `next` is still borrowed */
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t filled;  /* a buffer became FULL */
    pthread_cond_t emptied; /* half of the buffers are EMPTY, or stopping was set */
    bool stopping;          /* guarded by mutex */
};

/* False when the loader stops. */
static bool wait_for_empty(struct loader *l, const struct buffer *buffer)
{
    bool stopping;

    (void)pthread_mutex_lock(&l->mutex);
    while (buffer->state == BUFFER_FULL && !l->stopping)
        (void)pthread_cond_wait(&l->emptied, &l->mutex);
    stopping = l->stopping;
    (void)pthread_mutex_unlock(&l->mutex);
    return !stopping;
}

static void publish_buffer(struct loader *l, struct buffer *buffer)
{
    (void)pthread_mutex_lock(&l->mutex);
    buffer->state = BUFFER_FULL;
    l->empty--;
    (void)pthread_cond_signal(&l->filled);
    (void)pthread_mutex_unlock(&l->mutex);
}

static void fill_buffer(struct loader *l, struct buffer *buffer, uint64_t epoch, size_t offset)
{
    size_t left = l->sampler->length - offset;
    size_t count = left < l->batch_size ? left : l->batch_size;

    dataset_gather(l->dataset, l->sampler->order + offset, count, buffer->x, buffer->y);
    buffer->batch = (struct batch){
        .x = buffer->x,
        .y = buffer->y,
        .count = count,
        .epoch = epoch,
        .offset = offset,
        .left = left,
        .last_of_epoch = count == left,
        .number = ++l->gathered,
    };
}

static void *prefetch(void *argument)
{
    struct loader *l = argument;
    size_t offset = l->first_offset;
    unsigned index = 0;

    for (uint64_t epoch = l->first_epoch;; epoch++) {
        sampler_set_epoch(l->sampler, epoch);
        for (; offset < l->sampler->length; offset += l->batch_size) {
            struct buffer *buffer = &l->buffers[index];

            if (!wait_for_empty(l, buffer))
                return NULL;
            fill_buffer(l, buffer, epoch, offset);
            publish_buffer(l, buffer);
            index = (index + 1) % l->buffer_count;
        }
        offset = 0;
    }
}

static enum status alloc_samples(const struct loader *l, size_t count, float **ret,
                                 struct error *err)
{
    enum status status;

    if (!l->memory)
        return mem_calloc_aligned(count, sizeof(float), "batch", ret, err);
    status = l->memory->alloc(l->memory->user, count, ret, err);
    return status == STATUS_OK || !err ? status : error_prefix(err, "batch: ");
}

static unsigned count_buffers(const struct loader *l, size_t floats)
{
    size_t fit = CALLER_MEMORY_BYTES_MAX / sizeof(float) / floats;

    if (!l->memory || fit >= BUFFERS_MAX)
        return BUFFERS_MAX;
    return fit > BUFFERS_MIN ? (unsigned)fit : BUFFERS_MIN;
}

static enum status open_buffers(struct loader *l, struct error *err)
{
    size_t features = dataset_features(l->dataset);
    size_t floats;
    size_t labels;
    enum status status = STATUS_OK;

    if (!size_multiply(l->batch_size, features, &floats) ||
        !size_multiply(l->batch_size, dataset_positions(l->dataset), &labels))
        return error_set(err, STATUS_NO_MEMORY, "batch: %zu samples of %zu features overflow",
                         l->batch_size, features);
    l->buffer_count = count_buffers(l, floats);
    l->empty = l->buffer_count;
    for (unsigned i = 0; i < l->buffer_count && status == STATUS_OK; i++) {
        status = alloc_samples(l, floats, &l->buffers[i].x, err);
        if (status == STATUS_OK)
            status =
                mem_calloc_aligned(labels, sizeof(int32_t), "batch labels", &l->buffers[i].y, err);
    }
    return status;
}

static enum status start_thread(struct loader *l, struct error *err)
{
    int failed = pthread_create(&l->thread, NULL, prefetch, l);

    if (failed != 0)
        return error_set_errno(err, failed, "cannot start the loader's thread");
    l->started = true;
    return STATUS_OK;
}

enum status loader_open(const struct dataset *dataset, struct sampler *sampler, size_t batch_size,
                        const struct loader_memory *memory, struct loader **ret_loader,
                        struct error *err)
{
    struct loader *l;
    enum status status;

    if (batch_size == 0)
        return error_set(err, STATUS_INVALID, "batch size 0: a batch has at least one sample");
    if (sampler->length == 0)
        return error_set(err, STATUS_INVALID, "data '%s': %zu samples leave none for rank %u of %u",
                         dataset_name(dataset), dataset_count(dataset), sampler->rank,
                         sampler->world_size);
    status = mem_calloc(1, sizeof(*l), "loader", &l, err);
    if (status != STATUS_OK)
        return status;
    l->dataset = dataset;
    l->sampler = sampler;
    l->memory = memory;
    l->requested_batch_size = batch_size;
    l->batch_size = batch_size < sampler->length ? batch_size : sampler->length;
    (void)pthread_mutex_init(&l->mutex, NULL);
    (void)pthread_cond_init(&l->filled, NULL);
    (void)pthread_cond_init(&l->emptied, NULL);
    status = open_buffers(l, err);
    if (status == STATUS_OK)
        status = start_thread(l, err);
    if (status != STATUS_OK) {
        loader_close(l);
        return status;
    }
    *ret_loader = l;
    return STATUS_OK;
}

void loader_peek(struct loader *l, struct batch *ret)
{
    const struct buffer *buffer = &l->buffers[l->next];

    (void)pthread_mutex_lock(&l->mutex);
    while (buffer->state == BUFFER_EMPTY)
        (void)pthread_cond_wait(&l->filled, &l->mutex);
    (void)pthread_mutex_unlock(&l->mutex);
    *ret = buffer->batch;
}

bool loader_try_peek(struct loader *l, struct batch *ret)
{
    const struct buffer *buffer = &l->buffers[l->next];
    bool full;

    (void)pthread_mutex_lock(&l->mutex);
    full = buffer->state == BUFFER_FULL;
    (void)pthread_mutex_unlock(&l->mutex);
    if (full)
        *ret = buffer->batch;
    return full;
}

void loader_next(struct loader *l, struct batch *ret)
{
    struct buffer *buffer = &l->buffers[l->next];

    (void)pthread_mutex_lock(&l->mutex);
    if (l->held) {
        l->buffers[(l->next + l->buffer_count - 1) % l->buffer_count].state = BUFFER_EMPTY;
        if (++l->empty == l->buffer_count / 2)
            (void)pthread_cond_signal(&l->emptied);
    }
    while (buffer->state == BUFFER_EMPTY)
        (void)pthread_cond_wait(&l->filled, &l->mutex);
    (void)pthread_mutex_unlock(&l->mutex);
    l->held = true;
    l->next = (l->next + 1) % l->buffer_count;
    *ret = buffer->batch;
}

void loader_pause(struct loader *l)
{
    if (!l->started)
        return;
    (void)pthread_mutex_lock(&l->mutex);
    l->stopping = true;
    (void)pthread_cond_signal(&l->emptied);
    (void)pthread_mutex_unlock(&l->mutex);
    (void)pthread_join(l->thread, NULL);
    l->started = false;
}

static void release_buffers(struct loader *l)
{
    for (unsigned i = 0; i < BUFFERS_MAX; i++) {
        if (!l->memory)
            free(l->buffers[i].x);
        else if (l->buffers[i].x)
            l->memory->free(l->memory->user, l->buffers[i].x);
        free(l->buffers[i].y);
        l->buffers[i] = (struct buffer){0};
    }
}

enum status loader_resume(struct loader *l, uint64_t epoch, size_t offset, struct error *err)
{
    size_t length = sampler_length(l->sampler, epoch);
    size_t later = sampler_length(l->sampler, UINT64_MAX);
    size_t longest = length > later ? length : later;
    enum status status;

    if (offset >= length || later == 0)
        return error_set(err, STATUS_INVALID, "sample %zu of epoch %ju: this rank has %zu", offset,
                         (uintmax_t)epoch, length);
    release_buffers(l); /* larger parts may need larger batches */
    l->batch_size = l->requested_batch_size < longest ? l->requested_batch_size : longest;
    status = open_buffers(l, err);
    if (status != STATUS_OK)
        return status;
    l->next = 0;
    l->held = false;
    l->stopping = false;
    l->first_epoch = epoch;
    l->first_offset = offset;
    return start_thread(l, err);
}

void loader_close(struct loader *l)
{
    if (!l)
        return;
    loader_pause(l);
    release_buffers(l);
    (void)pthread_cond_destroy(&l->emptied);
    (void)pthread_cond_destroy(&l->filled);
    (void)pthread_mutex_destroy(&l->mutex);
    free(l);
}
