/*
 * The listener's thread sleeps until somebody connects or the listener is closed.  Strangers
 * (another user, a wrong token, no ticket in time) are sent away without a word, and so are workers
 * that the owner does not want: whoever is sent away uses its streams.
 */
#include "server/service/worker_memory.h"

#include "common/base/clock.h"
#include "common/base/handover.h"
#include "common/base/memory.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICKET_WAIT_MS 2000 /* for a ticket on an accepted connection */

struct worker_memory *worker_memory_ref(struct worker_memory *a)
{
    (void)atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
    return a;
}

void worker_memory_unref(struct worker_memory *a)
{
    if (!a || atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1)
        return;
    shared_memory_release(&a->memory);
    free(a);
}

const float *worker_memory_at(const struct worker_memory *a, uint64_t place, size_t count)
{
    if (place % sizeof(float) != 0 || place > a->memory.size ||
        count > (a->memory.size - place) / sizeof(float))
        return NULL;
    return (const float *)a->memory.base + place / sizeof(float);
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

/* The memory of a ticket, with one reference. */
static enum status open_memory(const struct handover_message *ticket, int memory_fd,
                               struct worker_memory **ret, struct error *err)
{
    struct worker_memory *a = NULL;
    enum status status = mem_calloc(1, sizeof(*a), "worker memory", &a, err);

    if (status != STATUS_OK) {
        (void)close(memory_fd);
        return status;
    }
    atomic_init(&a->refs, 1);
    a->session = ticket->session;
    status = shared_memory_map_read_only(memory_fd, ticket->size, &a->memory, err);
    if (status != STATUS_OK)
        free(a);
    else
        *ret = a;
    return status;
}

static enum status serve(struct fd_listener *d, int fd, struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(TICKET_WAIT_MS);
    struct handover_message ticket = {0};
    struct shared_memory shard = SHARED_MEMORY_NONE;
    struct worker_memory *memory = NULL;
    int memory_fd = -1;
    enum status status = handover_receive(fd, d->token, deadline_ns, &ticket, &memory_fd, err);

    if (status == STATUS_OK && memory_fd < 0)
        status = error_set(err, STATUS_PROTOCOL, "a ticket without memory");
    if (status == STATUS_OK)
        status = open_memory(&ticket, memory_fd, &memory, err);
    if (status == STATUS_OK)
        status = d->config.take(d->config.user, ticket.sender, memory, &shard, err);
    if (status != STATUS_OK) {
        worker_memory_unref(memory);
        return status;
    }
    ticket = (struct handover_message){.has_memory = 1, .size = shard.size};
    memcpy(ticket.token, d->token, sizeof(ticket.token));
    status = handover_send(fd, &ticket, shard.fd, deadline_ns, err);
    (void)close(shard.fd);
    return status;
}

static void *run(void *user)
{
    struct fd_listener *d = user;
    struct pollfd both[] = {{.fd = d->stop_fd, .events = POLLIN},
                            {.fd = d->listen_fd, .events = POLLIN}};

    for (;;) {
        int fd;

        if (poll(both, 2, -1) < 0)
            continue; /* EINTR; signals are blocked here */
        if (both[0].revents)
            return NULL;
        fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
            (void)poll(both, 1, TICKET_WAIT_MS); /* the connection stays: do not spin */
        if (fd < 0)
            continue;
        if (handover_is_our_user(fd))
            (void)serve(d, fd, NULL);
        (void)close(fd);
    }
}

static enum status start(struct fd_listener *d, struct error *err)
{
    sigset_t all, before;
    int failed;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&d->thread, NULL, run, d);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return error_set_errno(err, failed, "cannot start the thread for workers' memory");
    d->started = true;
    return STATUS_OK;
}

enum status fd_listener_open(const struct fd_listener_config *config,
                             struct fd_listener **ret_listener, struct error *err)
{
    struct fd_listener *d = NULL;
    enum status status = mem_calloc(1, sizeof(*d), "listener for workers' memory", &d, err);

    if (status != STATUS_OK)
        return status;
    d->config = *config;
    d->listen_fd = -1;
    d->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->stop_fd < 0)
        status = error_set_errno(err, errno, "cannot make an eventfd");
    if (status == STATUS_OK)
        status = handover_generate(d->name, d->token, err);
    if (status == STATUS_OK)
        status = handover_listen(d->name, &d->listen_fd, err);
    if (status == STATUS_OK) {
        handover_format(d->name, d->token, d->address);
        status = start(d, err);
    }
    if (status != STATUS_OK)
        fd_listener_close(d);
    else
        *ret_listener = d;
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
