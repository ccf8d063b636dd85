/*
 * idle_connection_reaper: keeps descriptors free for new connections.
 *
 * Core of grpc 1.51 never accepts again once accept4 has failed because descriptors ran out
 * (CVE-2023-4785), so many idle connections would lock out all clients for ever.  A thread counts
 * the descriptors of this process ten times a second; when more than three quarters are in use, it
 * shuts down the listener's connections without a call.  Core closes them; a legitimate client
 * reconnects with its next call.
 *
 * A connection is identified by the peer's port only: an idle peer with the port of a busy one is
 * kept, which is harmless.  Connections over a Unix socket come from the same user and are never
 * closed.  A burst that fills the last quarter within a tenth of a second still causes the failure.
 * Locks: `lock` guards `stop`; the calls have their own.
 */
#include "common/rpc/call.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/thread.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_MS 100

struct rpc_idle_reaper {
    struct rpc_calls *calls; /* borrowed */
    atomic_uint port;        /* of the listener; 0: it does not listen yet */
    size_t limit;            /* descriptors that may be in use */
    DIR *descriptors; /* owned; kept open, so that a check allocates nothing; NULL: no /proc */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;            /* CLOCK_MONOTONIC */
    bool stop;                         /* under lock */
    unsigned reap_count;               /* passes so far; reaper thread only, like the rest */
    unsigned char busy[(1 << 16) / 8]; /* bit set: a call uses this peer port */
};

/* Call visit (may be NULL) with each descriptor; returns their number. */
static size_t for_each_descriptor(const struct rpc_idle_reaper *reaper,
                                  void (*visit)(int fd, void *user), void *user)
{
    const struct dirent *entry;
    size_t count = 0;

    if (!reaper->descriptors)
        return 0;
    rewinddir(reaper->descriptors);
    while ((entry = readdir(reaper->descriptors))) { /* no other thread uses this stream */
        uint64_t fd;

        if (!parse_uint64(entry->d_name, &fd))
            continue;
        count++;
        if (visit && fd != (uint64_t)dirfd(reaper->descriptors))
            visit((int)fd, user);
    }
    return count;
}

/* "ipv4:127.0.0.1:4711" -> 4711 */
static bool port_of(const char *peer, uint64_t *ret_port)
{
    const char *colon = strrchr(peer, ':');

    return colon && parse_uint64(colon + 1, ret_port) && *ret_port < (1 << 16);
}

static void mark_busy(struct rpc_idle_reaper *reaper)
{
    memset(reaper->busy, 0, sizeof(reaper->busy));
    (void)pthread_mutex_lock(&reaper->calls->lock);
    for (const struct rpc_call *call = reaper->calls->first; call; call = call->next) {
        uint64_t port;

        if (port_of(call->peer, &port))
            reaper->busy[port / 8] |= (unsigned char)(1u << port % 8);
    }
    (void)pthread_mutex_unlock(&reaper->calls->lock);
}

/* The port of an IPv4 or IPv6 address; 0 for other families. */
static uint16_t address_port(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)address)->sin_port);
    if (address->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    return 0;
}

struct reap_pass {
    struct rpc_idle_reaper *reaper;
    size_t closed;
};

static bool is_idle(const struct rpc_idle_reaper *reaper, int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
    uint16_t port;

    if (getsockname(fd, (struct sockaddr *)&own, &own_size) != 0 ||
        address_port(&own) != atomic_load(&reaper->port) ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_size) != 0)
        return false;
    port = address_port(&peer);
    return (reaper->busy[port / 8] & 1u << port % 8) == 0;
}

/* Core may close and reuse the descriptor meanwhile: check a duplicate, which cannot change. */
static void shut_down_if_idle(int fd, void *user)
{
    struct reap_pass *pass = user;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (copy < 0)
        return;
    if (is_idle(pass->reaper, copy) && shutdown(copy, SHUT_RDWR) == 0)
        pass->closed++;
    (void)close(copy);
}

static void reap_if_needed(struct rpc_idle_reaper *reaper)
{
    struct reap_pass pass = {.reaper = reaper};
    size_t used;

    if (atomic_load(&reaper->port) == 0)
        return;
    used = for_each_descriptor(reaper, NULL, NULL);
    if (used <= reaper->limit)
        return;
    mark_busy(reaper);
    (void)for_each_descriptor(reaper, shut_down_if_idle, &pass);
    reaper->reap_count++;
    /* Log the first, second, fourth ... pass. */
    if ((reaper->reap_count & (reaper->reap_count - 1)) == 0)
        log_warning("%zu descriptors were in use, more than %zu: %zu connections without a call "
                    "were closed",
                    used, reaper->limit, pass.closed);
}

static void *reaper_main(void *user)
{
    struct rpc_idle_reaper *reaper = user;

    (void)pthread_mutex_lock(&reaper->lock);
    while (!reaper->stop) {
        struct timespec until = condition_until(clock_deadline_ns(TICK_MS));

        (void)pthread_cond_timedwait(&reaper->changed, &reaper->lock, &until);
        (void)pthread_mutex_unlock(&reaper->lock);
        reap_if_needed(reaper);
        (void)pthread_mutex_lock(&reaper->lock);
    }
    (void)pthread_mutex_unlock(&reaper->lock);
    return NULL;
}

static void init_locks(struct rpc_idle_reaper *reaper)
{
    (void)pthread_mutex_init(&reaper->lock, NULL);
    condition_init(&reaper->changed);
}

static void reaper_release(struct rpc_idle_reaper *reaper)
{
    if (reaper->descriptors)
        (void)closedir(reaper->descriptors);
    (void)pthread_cond_destroy(&reaper->changed);
    (void)pthread_mutex_destroy(&reaper->lock);
    free(reaper);
}

size_t rpc_descriptors_max(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY
               ? (size_t)limit.rlim_cur
               : SIZE_MAX;
}

enum status rpc_idle_reaper_start(struct rpc_calls *calls, struct rpc_idle_reaper **ret,
                                  struct error *err)
{
    struct rpc_idle_reaper *reaper = NULL;
    enum status status = mem_calloc(1, sizeof(*reaper), "descriptor watch", &reaper, err);
    int failed;

    if (status != STATUS_OK)
        return status;
    reaper->calls = calls;
    reaper->limit = rpc_descriptors_max() / 4 * 3;
    reaper->descriptors = opendir("/proc/self/fd");
    init_locks(reaper);
    failed = thread_start(&reaper->thread, reaper_main, reaper);
    if (failed) {
        reaper_release(reaper);
        return error_set_errno(err, failed, "cannot start the thread that watches descriptors");
    }
    (void)pthread_setname_np(reaper->thread, "rpc-reaper");
    *ret = reaper;
    return STATUS_OK;
}

void rpc_idle_reaper_set_port(struct rpc_idle_reaper *reaper, uint16_t port)
{
    atomic_store(&reaper->port, port);
}

void rpc_idle_reaper_stop(struct rpc_idle_reaper *reaper)
{
    if (!reaper)
        return;
    (void)pthread_mutex_lock(&reaper->lock);
    reaper->stop = true;
    (void)pthread_cond_signal(&reaper->changed);
    (void)pthread_mutex_unlock(&reaper->lock);
    (void)pthread_join(reaper->thread, NULL);
    reaper_release(reaper);
}
