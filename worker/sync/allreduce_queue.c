/*
 * The queue of buckets.  One communication thread takes them in order as the fill mark passes them
 * and reduces each while backward computes the next ones.  A hand-over to that thread costs two
 * context switches, so it is woken only for buckets that have backward left to hide behind: what is
 * ready when backward has ended, and not yet started, the training thread runs itself.  A model of
 * one bucket never pays for the thread.
 *
 * Locking: `lock` guards the fields that say so; the group belongs to whoever has set `busy`.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "worker/sync/allreduce.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* With the lock held and !busy: reduce the next bucket, without the lock meanwhile. */
static void run_next(struct sync_allreduce *s)
{
    struct bucket_queue *q = &s->queue;
    size_t index = q->reduced;
    struct sync_bucket *times = &q->times[index];
    struct error err = {0};
    enum status status;

    q->busy = true;
    pthread_mutex_unlock(&q->lock);
    times->started_ns = clock_now_ns();
    status = s->hook->reduce(s, index, &err); /* its error names the bucket */
    times->done_ns = clock_now_ns();
    pthread_mutex_lock(&q->lock);
    q->busy = false;
    if (status == STATUS_OK) {
        q->reduced++;
        return;
    }
    q->failed = true;
    q->failure = err;
}

static bool has_work(const struct bucket_queue *q)
{
    return !q->busy && !q->failed && q->reduced < q->ready;
}

static void *communicate(void *argument)
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
        run_next(s);
        if (q->failed || q->reduced == q->length || s->arrived)
            pthread_cond_signal(&q->done);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static enum status pin(pthread_attr_t *attributes, int cpu, struct error *err)
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
    status = cpu >= 0 ? pin(&attributes, cpu, err) : STATUS_OK;
    failed = status == STATUS_OK ? pthread_create(&q->thread, &attributes, communicate, s) : 0;
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

/* With the lock held, and without it meanwhile: buckets [*told, reduced) have arrived. */
static enum status tell(struct sync_allreduce *s, size_t *told, struct error *err)
{
    struct bucket_queue *q = &s->queue;
    const struct bucket *first = &s->plan.buckets[*told];
    const struct bucket *last = &s->plan.buckets[q->reduced - 1];
    enum status status;

    *told = q->reduced;
    pthread_mutex_unlock(&q->lock);
    status = s->arrived(s->user, first->offset, last->offset + last->count - first->offset, err);
    pthread_mutex_lock(&q->lock);
    return status;
}

enum status bucket_queue_finish(struct sync_allreduce *s, struct error *err)
{
    struct bucket_queue *q = &s->queue;
    size_t told = s->arrived ? 0 : q->length;
    enum status status = STATUS_OK;

    pthread_mutex_lock(&q->lock);
    assert(q->ready == q->length);
    while (status == STATUS_OK && !q->failed && (q->reduced < q->length || told < q->length)) {
        if (told < q->reduced)
            status = tell(s, &told, err);
        else if (has_work(q))
            run_next(s);
        else
            pthread_cond_wait(&q->done, &q->lock); /* every reduction has its own deadline */
    }
    if (status == STATUS_OK && q->failed)
        status = error_set(err, q->failure.status, "%s", q->failure.text);
    q->failed = q->failed || status != STATUS_OK; /* the thread takes no more buckets ... */
    while (q->busy)                               /* ... and has put down the one that it had */
        pthread_cond_wait(&q->done, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return status;
}
