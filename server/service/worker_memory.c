/*
 * The listener's thread sleeps until a process connects or the listener is closed.  A process that
 * is not authenticated (another user, a wrong token, no message in time) is disconnected without a
 * reply, and so is a worker that the owner refuses; a worker that gets no reply sends its chunks
 * over its streams.
 *
 * Locking: none; references are atomic, and the owner locks in accept_memory.
 */
#include "server/service/worker_memory.h"

#include "common/base/clock.h"
#include "common/base/handover.h"
#include "common/base/memory.h"
#include "common/base/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGE_TIMEOUT_MS 2000 /* for the message on an accepted connection */

struct worker_memory *worker_memory_ref(struct worker_memory *m)
{
    (void)atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void worker_memory_unref(struct worker_memory *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    shared_memory_release(&m->memory);
    channel_unref(m->channel);
    free(m);
}

const float *worker_memory_at(const struct worker_memory *m, uint64_t offset, size_t count)
{
    if (offset % sizeof(float) != 0 || offset > m->memory.size ||
        count > (m->memory.size - offset) / sizeof(float))
        return NULL;
    return (const float *)m->memory.base + offset / sizeof(float);
}

/* ------------------------------------------------------------------ the listener */

struct fd_listener {
    struct fd_listener_config config;
    char name[HANDOVER_NAME_SIZE];
    unsigned char token[HANDOVER_TOKEN_BYTES];
    char address[HANDOVER_ADDRESS_SIZE];
    int listen_fd;
    int stop_fd; /* readable: stop */
    pthread_t thread;
    bool started;
};

/* Map the memory of a message; one reference. */
static enum status open_memory(const struct handover_message *message, int memory_fd,
                               struct worker_memory **ret, struct error *err)
{
    struct worker_memory *m = NULL;
    enum status status = mem_calloc(1, sizeof(*m), "worker memory", &m, err);

    if (status != STATUS_OK) {
        (void)close(memory_fd);
        return status;
    }
    atomic_init(&m->refs, 1);
    m->session = message->session;
    status = shared_memory_map_read_only(memory_fd, message->size, &m->memory, err);
    if (status != STATUS_OK)
        free(m);
    else
        *ret = m;
    return status;
}

/* Receive the worker's channel and its bell.  A worker of an earlier version closes the connection
 * instead. */
static enum status receive_channel(struct fd_listener *l, int fd, int64_t deadline_ns,
                                   struct channel **ret_channel, struct error *err)
{
    struct handover_message message = {0};
    struct channel *channel = NULL;
    struct shared_memory bell = SHARED_MEMORY_NONE;
    int memory_fd = -1;
    enum status status = handover_receive(fd, l->token, deadline_ns, &message, &memory_fd, err);

    if (status == STATUS_OK && memory_fd < 0)
        status = error_set(err, STATUS_PROTOCOL, "a message without a channel");
    if (status == STATUS_OK)
        status = channel_attach(memory_fd, message.size, &channel, err);
    if (status == STATUS_OK)
        status = handover_receive(fd, l->token, deadline_ns, &message, &memory_fd, err);
    if (status == STATUS_OK && memory_fd < 0)
        status = error_set(err, STATUS_PROTOCOL, "a message without a bell");
    if (status == STATUS_OK)
        status = channel_bell_map(memory_fd, &bell, err);
    if (status != STATUS_OK) {
        channel_unref(channel);
        return status;
    }
    channel_set_bell(channel, bell);
    *ret_channel = channel;
    return STATUS_OK;
}

static enum status serve_channel(struct fd_listener *l, int fd, unsigned rank,
                                 struct worker_memory *memory, int64_t deadline_ns,
                                 struct error *err)
{
    struct handover_message message = {.has_memory = 1};
    struct channel *channel = NULL;
    int bell_fd = -1;
    enum status status = receive_channel(l, fd, deadline_ns, &channel, err);

    if (status != STATUS_OK)
        return status;
    status = l->config.accept_channel(l->config.user, rank, memory, channel, &bell_fd, err);
    if (status != STATUS_OK) {
        channel_unref(channel);
        return status;
    }
    memcpy(message.token, l->token, sizeof(message.token));
    return handover_send(fd, &message, bell_fd, deadline_ns, err);
}

static enum status serve_worker(struct fd_listener *l, int fd, struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(MESSAGE_TIMEOUT_MS);
    struct handover_message message = {0};
    struct shared_memory shard = SHARED_MEMORY_NONE;
    struct worker_memory *memory = NULL;
    int memory_fd = -1;
    unsigned rank;
    enum status status = handover_receive(fd, l->token, deadline_ns, &message, &memory_fd, err);

    if (status == STATUS_OK && memory_fd < 0)
        status = error_set(err, STATUS_PROTOCOL, "a message without memory");
    if (status == STATUS_OK)
        status = open_memory(&message, memory_fd, &memory, err);
    if (status == STATUS_OK)
        status = l->config.accept_memory(l->config.user, message.sender, memory, &shard, err);
    if (status != STATUS_OK) {
        worker_memory_unref(memory);
        return status;
    }
    rank = message.sender;
    message = (struct handover_message){
        .has_memory = 1, .size = shard.size, .sender = HANDOVER_TAKES_CHANNEL};
    memcpy(message.token, l->token, sizeof(message.token));
    status = handover_send(fd, &message, shard.fd, deadline_ns, err);
    (void)close(shard.fd);
    if (status == STATUS_OK)
        status = serve_channel(l, fd, rank, memory, deadline_ns, err);
    worker_memory_unref(memory);
    return status;
}

static void *accept_workers(void *user)
{
    struct fd_listener *l = user;
    struct pollfd both[] = {{.fd = l->stop_fd, .events = POLLIN},
                            {.fd = l->listen_fd, .events = POLLIN}};

    for (;;) {
        int fd;

        if (poll(both, 2, -1) < 0)
            continue; /* EINTR; signals are blocked here */
        if (both[0].revents)
            return NULL;
        fd = accept4(l->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
            (void)poll(both, 1, MESSAGE_TIMEOUT_MS); /* the connection stays queued: do not spin */
        if (fd < 0)
            continue;
        if (handover_is_our_user(fd))
            (void)serve_worker(l, fd, NULL);
        (void)close(fd);
    }
}

static enum status start_thread(struct fd_listener *l, struct error *err)
{
    int failed = thread_start(&l->thread, accept_workers, l);

    if (failed)
        return error_set_errno(err, failed, "cannot start the thread for workers' memory");
    l->started = true;
    return STATUS_OK;
}

enum status fd_listener_open(const struct fd_listener_config *config,
                             struct fd_listener **ret_listener, struct error *err)
{
    struct fd_listener *l = NULL;
    enum status status = mem_calloc(1, sizeof(*l), "listener for workers' memory", &l, err);

    if (status != STATUS_OK)
        return status;
    l->config = *config;
    l->listen_fd = -1;
    l->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->stop_fd < 0)
        status = error_set_errno(err, errno, "cannot make an eventfd");
    if (status == STATUS_OK)
        status = handover_generate(l->name, l->token, err);
    if (status == STATUS_OK)
        status = handover_listen(l->name, &l->listen_fd, err);
    if (status == STATUS_OK) {
        handover_format(l->name, l->token, l->address);
        status = start_thread(l, err);
    }
    if (status != STATUS_OK)
        fd_listener_close(l);
    else
        *ret_listener = l;
    return status;
}

const char *fd_listener_address(const struct fd_listener *listener)
{
    return listener->address;
}

void fd_listener_close(struct fd_listener *listener)
{
    if (!listener)
        return;
    if (listener->started) {
        (void)eventfd_write(listener->stop_fd, 1);
        (void)pthread_join(listener->thread, NULL);
    }
    if (listener->listen_fd >= 0)
        (void)close(listener->listen_fd);
    if (listener->stop_fd >= 0)
        (void)close(listener->stop_fd);
    free(listener);
}
