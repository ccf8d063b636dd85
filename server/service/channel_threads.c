/*
 * Each thread holds its lock while it reads its channels, which is the exclusion against add and
 * remove; those announce themselves, because a thread that polls would hardly let them in.
 *
 * Locking: `lock` of one thread; handlers run under it and take the locks of the service.  So no
 * caller may hold one of those.
 */
#include "server/service/channel_threads.h"

#include "common/base/clock.h"
#include "common/base/host.h"
#include "common/base/memory.h"
#include "common/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define THREADS_MAX 4u
#define BATCH       16          /* messages of one channel before the next channel's turn */
#define SLEEP_NS    1000000000L /* a peer that garbles the bell costs at most this */

struct channel_thread {
    struct shared_memory bell;
    pthread_t thread;
    bool started;
    atomic_uint callers; /* that want the lock */
    pthread_mutex_t lock;
    bool stop;                      /* (lock) */
    struct channel_reader *readers; /* (lock) */
};

struct channel_threads {
    unsigned count;
    pthread_mutex_t start_lock; /* guards bell and started of all */
    struct channel_thread threads[THREADS_MAX];
};

/* ------------------------------------------------------------------ reading */

/* False: nothing has come. */
static bool read_channel(struct channel_reader *r)
{
    uint8_t bytes[CHANNEL_MESSAGE_MAX];
    struct error why = {0};
    size_t size = 0;
    unsigned count = 0;

    while (count < BATCH && !r->is_stopped) {
        if (channel_receive(r->channel, bytes, &size, &why) != STATUS_OK)
            r->is_stopped = true;
        else if (size == 0)
            break;
        r->is_stopped = !r->message(r->user, bytes, size, r->is_stopped ? &why : NULL);
        count++;
    }
    return count > 0;
}

static bool read_channels(struct channel_thread *t)
{
    bool found = false;

    for (struct channel_reader *r = t->readers; r; r = r->next)
        found = read_channel(r) || found;
    return found;
}

static bool has_messages(const struct channel_thread *t)
{
    bool found = false;

    for (const struct channel_reader *r = t->readers; r && !found; r = r->next)
        found = !r->is_stopped && channel_has_message(r->channel);
    return found;
}

static void lock_as_thread(struct channel_thread *t)
{
    while (atomic_load(&t->callers) > 0)
        (void)sched_yield();
    (void)pthread_mutex_lock(&t->lock);
}

static void sleep_on_bell(struct channel_thread *t)
{
    bool must_wake;

    channel_bell_set_asleep(&t->bell, true);
    lock_as_thread(t);
    must_wake = t->stop || has_messages(t);
    (void)pthread_mutex_unlock(&t->lock);
    if (!must_wake)
        channel_bell_sleep(&t->bell, SLEEP_NS);
    channel_bell_set_asleep(&t->bell, false);
}

static void *run(void *user)
{
    struct channel_thread *t = user;
    struct polling polling = {0};
    int64_t poll_until_ns = 0; /* 0: not polling */

    for (;;) {
        bool found, stop;

        lock_as_thread(t);
        found = read_channels(t);
        stop = t->stop;
        (void)pthread_mutex_unlock(&t->lock);
        if (stop)
            return NULL;
        if (found) {
            if (poll_until_ns != 0)
                polling_ended(&polling, true);
            poll_until_ns = 0;
        } else if (poll_until_ns == 0) {
            poll_until_ns = polling_until_ns(&polling, clock_now_ns());
        } else if (clock_now_ns() < poll_until_ns) {
            (void)sched_yield();
        } else {
            polling_ended(&polling, false);
            sleep_on_bell(t);
            poll_until_ns = 0;
        }
    }
}

/* ------------------------------------------------------------------ callers */

static void lock_as_caller(struct channel_thread *t)
{
    (void)atomic_fetch_add(&t->callers, 1);
    (void)pthread_mutex_lock(&t->lock);
    (void)atomic_fetch_sub(&t->callers, 1);
}

static struct channel_thread *thread_of(struct channel_threads *t, unsigned rank)
{
    return &t->threads[rank % t->count];
}

enum status channel_threads_open(unsigned threads, struct channel_threads **ret_threads,
                                 struct error *err)
{
    struct channel_threads *t = NULL;
    enum status status = mem_calloc(1, sizeof(*t), "channel threads", &t, err);

    if (status != STATUS_OK)
        return status;
    t->count = threads > 0 ? threads : host_cores_part(2);
    t->count = t->count > THREADS_MAX ? THREADS_MAX : t->count;
    (void)pthread_mutex_init(&t->start_lock, NULL);
    for (unsigned i = 0; i < t->count; i++) {
        t->threads[i].bell = SHARED_MEMORY_NONE;
        (void)pthread_mutex_init(&t->threads[i].lock, NULL);
    }
    *ret_threads = t;
    return STATUS_OK;
}

static enum status start_thread(struct channel_thread *t, struct error *err)
{
    int failed;
    enum status status = t->bell.base ? STATUS_OK : channel_bell_open(&t->bell, err);

    if (status != STATUS_OK)
        return status;
    failed = thread_start(&t->thread, run, t);
    if (failed)
        return error_set_errno(err, failed, "cannot start the thread for workers' channels");
    t->started = true;
    return STATUS_OK;
}

enum status channel_threads_start(struct channel_threads *threads, unsigned rank, int *ret_bell_fd,
                                  struct error *err)
{
    struct channel_thread *t = thread_of(threads, rank);
    enum status status;

    (void)pthread_mutex_lock(&threads->start_lock);
    status = t->started ? STATUS_OK : start_thread(t, err);
    *ret_bell_fd = t->bell.fd;
    (void)pthread_mutex_unlock(&threads->start_lock);
    return status;
}

void channel_threads_add(struct channel_threads *threads, struct channel_reader *r)
{
    struct channel_thread *t = thread_of(threads, r->rank);

    lock_as_caller(t);
    r->next = t->readers;
    t->readers = r;
    (void)pthread_mutex_unlock(&t->lock);
    channel_bell_ring(&t->bell);
}

void channel_threads_remove(struct channel_threads *threads, struct channel_reader *r)
{
    struct channel_thread *t = thread_of(threads, r->rank);

    lock_as_caller(t);
    for (struct channel_reader **at = &t->readers; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    (void)pthread_mutex_unlock(&t->lock);
}

void channel_threads_close(struct channel_threads *threads)
{
    if (!threads)
        return;
    for (unsigned i = 0; i < threads->count; i++) {
        struct channel_thread *t = &threads->threads[i];

        lock_as_caller(t);
        t->stop = true;
        (void)pthread_mutex_unlock(&t->lock);
        if (t->started) {
            channel_bell_ring(&t->bell);
            (void)pthread_join(t->thread, NULL);
        }
        shared_memory_release(&t->bell);
        (void)pthread_mutex_destroy(&t->lock);
    }
    (void)pthread_mutex_destroy(&threads->start_lock);
    free(threads);
}
