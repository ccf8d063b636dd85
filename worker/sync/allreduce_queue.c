/*
 * The queue of buckets.  A communication thread reduces full buckets in order while backward
 * computes the next ones.  Waking that thread costs two context switches, so it is woken only for
 * buckets that can overlap with the rest of backward; buckets that are ready and not started when
 * backward has ended are reduced by the training thread.  A model of one bucket never wakes the
 * thread.
 *
 * Locking: `lock` guards the fields listed under it in struct bucket_queue; the group belongs to
 * the thread that has set `reducing`.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "worker/sync/allreduce.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Reduce the next bucket.  Lock held and !reducing on entry; released during the reduction. */
static void reduce_next_bucket(struct sync_allreduce *s)
{
    struct bucket_queue *q = &s->queue;
    size_t index = q->reduced;
    struct sync_bucket *times = &q->times[index];
    struct error err = {0};
    enum status status;

    q->reducing = true;
    pthread_mutex_unlock(&q->lock);
    times->started_ns = clock_now_ns();
    status = s->hook->reduce(s, index, &err); /* its error text has the bucket's number */
    times->done_ns = clock_now_ns();
    pthread_mutex_lock(&q->lock);
    q->reducing = false;
    if (status == STATUS_OK) {
        q->reduced++;
        return;
    }
    q->failed = true;
    q->failure = err;
}

static bool has_work(const struct bucket_queue *q)
{
    return !q->reducing && !q->failed && q->reduced < q->ready;
}

static void *run_communication(void *argument)
{
    struct sync_allreduce *s = argument;
    struct bucket_queue *q = &s->queue;

    pthread_mutex_lock(&q->lock);
    while (!q->stop) {
        if (!has_work(q)) {
            q->asleep = true;
            pthread_cond_wait(&q->work, &q->lock);
            q->asleep = false;
            continue;
        }
        reduce_next_bucket(s);
        if (q->failed || q->reduced == q->length || s->arrived)
            pthread_cond_signal(&q->done);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static enum status set_affinity(pthread_attr_t *attributes, int cpu, struct error *err)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    if (pthread_attr_setaffinity_np(attributes, sizeof(set), &set) != 0)
        return error_set(err, STATUS_CONFIG, "no core %d for the communication thread", cpu);
    return STATUS_OK;
}

enum status bucket_queue_start(struct sync_allreduce *s, int cpu, struct error *err)
{
    struct bucket_queue *q = &s->queue;
    pthread_attr_t attributes;
    enum status status;
    int failed;

    q->length = q->ready = q->reduced = s->plan.length;
    status = mem_calloc(q->length, sizeof(*q->times), "bucket times", &q->times, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < q->length; i++)
        q->times[i].bytes = s->plan.buckets[i].count * sizeof(float);
    if (cpu >= CPU_SETSIZE)
        return error_set(err, STATUS_CONFIG, "core %d for the communication thread: at most %d",
                         cpu, CPU_SETSIZE - 1);
    if (pthread_attr_init(&attributes) != 0)
        return error_set(err, STATUS_NO_MEMORY, "cannot start the communication thread");
    status = cpu >= 0 ? set_affinity(&attributes, cpu, err) : STATUS_OK;
    failed =
        status == STATUS_OK ? pthread_create(&q->thread, &attributes, run_communication, s) : 0;
    (void)pthread_attr_destroy(&attributes);
    if (failed != 0)
        return error_set(err, cpu >= 0 ? STATUS_CONFIG : STATUS_NO_MEMORY,
                         "cannot start the communication thread%s: %s",
                         cpu >= 0 ? " on the core of --comm-cpu" : "", strerror(failed));
    q->thread_started = status == STATUS_OK;
    return status;
}

void bucket_queue_stop(struct bucket_queue *q)
{
    if (q->thread_started) {
        pthread_mutex_lock(&q->lock);
        q->stop = true;
        pthread_cond_signal(&q->work);
        pthread_mutex_unlock(&q->lock);
        (void)pthread_join(q->thread, NULL);
        q->thread_started = false;
    }
    free(q->times);
    q->times = NULL;
}

void bucket_queue_reset(struct bucket_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->ready = q->reduced = q->length;
    q->failed = false;
    pthread_mutex_unlock(&q->lock);
}

void bucket_queue_begin(struct sync_allreduce *s)
{
    struct bucket_queue *q = &s->queue;

    pthread_mutex_lock(&q->lock);
    q->ready = 0;
    q->reduced = 0;
    pthread_mutex_unlock(&q->lock);
}

void bucket_queue_ready(struct sync_allreduce *s, size_t ready_count)
{
    struct bucket_queue *q = &s->queue;
    const struct bucket *buckets = s->plan.buckets;
    size_t ready = q->ready; /* only this thread writes it */
    int64_t now_ns;

    while (ready < q->length && ready_count >= buckets[ready].offset + buckets[ready].count)
        ready++;
    if (ready == q->ready)
        return;
    now_ns = clock_now_ns();
    for (size_t i = q->ready; i < ready; i++)
        q->times[i].ready_ns = now_ns;
    pthread_mutex_lock(&q->lock);
    q->ready = ready;
    if (q->asleep && ready < q->length)
        pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

/* Report buckets [*notified, reduced) to `arrived`.  Lock held; released during the call. */
static enum status notify_arrived(struct sync_allreduce *s, size_t *notified, struct error *err)
{
    struct bucket_queue *q = &s->queue;
    const struct bucket *first = &s->plan.buckets[*notified];
    const struct bucket *last = &s->plan.buckets[q->reduced - 1];
    enum status status;

    *notified = q->reduced;
    pthread_mutex_unlock(&q->lock);
    status = s->arrived(s->user, first->offset, last->offset + last->count - first->offset, err);
    pthread_mutex_lock(&q->lock);
    return status;
}

enum status bucket_queue_finish(struct sync_allreduce *s, struct error *err)
{
    struct bucket_queue *q = &s->queue;
    size_t notified = s->arrived ? 0 : q->length;
    enum status status = STATUS_OK;

    pthread_mutex_lock(&q->lock);
    assert(q->ready == q->length);
    while (status == STATUS_OK && !q->failed && (q->reduced < q->length || notified < q->length)) {
        if (notified < q->reduced)
            status = notify_arrived(s, &notified, err);
        else if (has_work(q))
            reduce_next_bucket(s);
        else
            pthread_cond_wait(&q->done, &q->lock); /* every reduction has its own deadline */
    }
    if (status == STATUS_OK && q->failed)
        status = error_set(err, q->failure.status, "%s", q->failure.text);
    q->failed = q->failed || status != STATUS_OK; /* no more buckets are started ... */
    while (q->reducing)                           /* ... and the current one has ended */
        pthread_cond_wait(&q->done, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return status;
}
