/*
 * A prefetch thread and its consumer share a ring of slots.  The thread fills them in turn as they
 * become free; the consumer takes them in the same order and holds one until its next call.  The
 * thread is woken when half of the slots are empty, not for each: with small models a wake-up costs
 * as much as a batch (two slots: 448,000 samples/s; eight: 530,000; mlp:784-128-10, 2 ranks).  A
 * slot's buffers belong to the thread while it is EMPTY and to the consumer while it is FULL;
 * `mutex` guards the states and `stopping` only, and gathering happens without it.
 */
#include "worker/data/loader.h"

#include "common/base/memory.h"

#include <pthread.h>
#include <stdlib.h>

#define SLOTS       8
#define SLOTS_LEAST 3 /* one that is held, the next one, and one that is being filled */
/* Of memory that is not the heap's; beyond it there are no more slots. */
#define MEMORY_BYTES ((size_t)128 << 20)

enum slot_state { SLOT_EMPTY, SLOT_FULL };

struct slot {
    enum slot_state state; /* guarded by loader.mutex */
    float *x;              /* owned; (batch_size, features) */
    int32_t *y;            /* owned; (batch_size, positions) */
    struct batch batch;
};

struct loader {
    const struct dataset *dataset;
    struct sampler *sampler;            /* the thread's */
    const struct loader_memory *memory; /* NULL: the heap */
    size_t wanted_batch_size;
    size_t batch_size;    /* not larger than this rank's part of any epoch to come */
    uint64_t first_epoch; /* the thread's: where it starts ... */
    size_t first_at;      /* ... and at which sample */
    uint64_t gathered;    /* the thread's: batches so far */
    struct slot slots[SLOTS];
    unsigned slots_length;
    unsigned empty; /* guarded by mutex: slots that are EMPTY */
    unsigned next;  /* consumer's: the slot that loader_next takes */
    bool held;      /* consumer's: the slot before `next` is still borrowed */
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex;
    pthread_cond_t filled;  /* a slot became FULL */
    pthread_cond_t emptied; /* a slot became EMPTY, or stopping was set */
    bool stopping;          /* guarded by mutex */
};

/* False when the loader stops. */
static bool wait_for_empty(struct loader *l, const struct slot *slot)
{
    bool stopping;

    (void)pthread_mutex_lock(&l->mutex);
    while (slot->state == SLOT_FULL && !l->stopping)
        (void)pthread_cond_wait(&l->emptied, &l->mutex);
    stopping = l->stopping;
    (void)pthread_mutex_unlock(&l->mutex);
    return !stopping;
}

static void hand_over(struct loader *l, struct slot *slot)
{
    (void)pthread_mutex_lock(&l->mutex);
    slot->state = SLOT_FULL;
    l->empty--;
    (void)pthread_cond_signal(&l->filled);
    (void)pthread_mutex_unlock(&l->mutex);
}

static void fill(struct loader *l, struct slot *slot, uint64_t epoch, size_t at)
{
    size_t left = l->sampler->length - at;
    size_t count = left < l->batch_size ? left : l->batch_size;

    dataset_gather(l->dataset, l->sampler->order + at, count, slot->x, slot->y);
    slot->batch = (struct batch){
        .x = slot->x,
        .y = slot->y,
        .count = count,
        .epoch = epoch,
        .at = at,
        .left = left,
        .last_of_epoch = count == left,
        .number = ++l->gathered,
    };
}

static void *prefetch(void *argument)
{
    struct loader *l = argument;
    size_t at = l->first_at;
    unsigned turn = 0;

    for (uint64_t epoch = l->first_epoch;; epoch++) {
        sampler_set_epoch(l->sampler, epoch);
        for (; at < l->sampler->length; at += l->batch_size) {
            struct slot *slot = &l->slots[turn];

            if (!wait_for_empty(l, slot))
                return NULL;
            fill(l, slot, epoch, at);
            hand_over(l, slot);
            turn = (turn + 1) % l->slots_length;
        }
        at = 0;
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

static unsigned count_slots(const struct loader *l, size_t floats)
{
    size_t fit = MEMORY_BYTES / sizeof(float) / floats;

    if (!l->memory || fit >= SLOTS)
        return SLOTS;
    return fit > SLOTS_LEAST ? (unsigned)fit : SLOTS_LEAST;
}

static enum status open_slots(struct loader *l, struct error *err)
{
    size_t features = dataset_features(l->dataset);
    size_t floats;
    size_t labels;
    enum status status = STATUS_OK;

    if (!size_multiply(l->batch_size, features, &floats) ||
        !size_multiply(l->batch_size, dataset_positions(l->dataset), &labels))
        return error_set(err, STATUS_NO_MEMORY, "batch: %zu samples of %zu features overflow",
                         l->batch_size, features);
    l->slots_length = count_slots(l, floats);
    l->empty = l->slots_length;
    for (unsigned i = 0; i < l->slots_length && status == STATUS_OK; i++) {
        status = alloc_samples(l, floats, &l->slots[i].x, err);
        if (status == STATUS_OK)
            status =
                mem_calloc_aligned(labels, sizeof(int32_t), "batch labels", &l->slots[i].y, err);
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
    l->wanted_batch_size = batch_size;
    l->batch_size = batch_size < sampler->length ? batch_size : sampler->length;
    (void)pthread_mutex_init(&l->mutex, NULL);
    (void)pthread_cond_init(&l->filled, NULL);
    (void)pthread_cond_init(&l->emptied, NULL);
    status = open_slots(l, err);
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
    const struct slot *slot = &l->slots[l->next];

    (void)pthread_mutex_lock(&l->mutex);
    while (slot->state == SLOT_EMPTY)
        (void)pthread_cond_wait(&l->filled, &l->mutex);
    (void)pthread_mutex_unlock(&l->mutex);
    *ret = slot->batch;
}

bool loader_try_peek(struct loader *l, struct batch *ret)
{
    const struct slot *slot = &l->slots[l->next];
    bool full;

    (void)pthread_mutex_lock(&l->mutex);
    full = slot->state == SLOT_FULL;
    (void)pthread_mutex_unlock(&l->mutex);
    if (full)
        *ret = slot->batch;
    return full;
}

void loader_next(struct loader *l, struct batch *ret)
{
    struct slot *slot = &l->slots[l->next];

    (void)pthread_mutex_lock(&l->mutex);
    if (l->held) {
        l->slots[(l->next + l->slots_length - 1) % l->slots_length].state = SLOT_EMPTY;
        if (++l->empty == l->slots_length / 2)
            (void)pthread_cond_signal(&l->emptied);
    }
    while (slot->state == SLOT_EMPTY)
        (void)pthread_cond_wait(&l->filled, &l->mutex);
    (void)pthread_mutex_unlock(&l->mutex);
    l->held = true;
    l->next = (l->next + 1) % l->slots_length;
    *ret = slot->batch;
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

static void release_slots(struct loader *l)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        if (!l->memory)
            free(l->slots[i].x);
        else if (l->slots[i].x)
            l->memory->free(l->memory->user, l->slots[i].x);
        free(l->slots[i].y);
        l->slots[i] = (struct slot){0};
    }
}

enum status loader_resume(struct loader *l, uint64_t epoch, size_t at, struct error *err)
{
    size_t length = sampler_length(l->sampler, epoch);
    size_t later = sampler_length(l->sampler, UINT64_MAX);
    size_t longest = length > later ? length : later;
    enum status status;

    if (at >= length || later == 0)
        return error_set(err, STATUS_INVALID, "sample %zu of epoch %ju: this rank has %zu", at,
                         (uintmax_t)epoch, length);
    release_slots(l); /* parts may have grown, and batches with them */
    l->batch_size = l->wanted_batch_size < longest ? l->wanted_batch_size : longest;
    status = open_slots(l, err);
    if (status != STATUS_OK)
        return status;
    l->next = 0;
    l->held = false;
    l->stopping = false;
    l->first_epoch = epoch;
    l->first_at = at;
    return start_thread(l, err);
}

void loader_close(struct loader *l)
{
    if (!l)
        return;
    loader_pause(l);
    release_slots(l);
    (void)pthread_cond_destroy(&l->emptied);
    (void)pthread_cond_destroy(&l->filled);
    (void)pthread_mutex_destroy(&l->mutex);
    free(l);
}
