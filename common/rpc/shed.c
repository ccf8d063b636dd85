/*
 * shed: keeps descriptors free for newcomers.
 *
 * Core of grpc 1.51 never accepts again once accept4 has failed for want of a descriptor
 * (CVE-2023-4785), so idle connections in numbers would lock everybody out for good.  A thread
 * counts the descriptors of this process ten times a second; when more than three quarters are in
 * use, it shuts down the connections of the listener that carry no call.  Core sees them end and
 * closes them; an honest client connects again with its next call.
 *
 * A connection is told by the peer's port alone: another peer with the same port is spared, which
 * does no harm.  Whoever would come here by a Unix socket is this very user and is left alone.  A
 * burst that fills the last quarter within a tenth of a second is not survived.
 * Locks: `lock` guards `stop`; the calls have their own.
 */
#include "common/rpc/call.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_MS 100

struct rpc_shed {
    struct rpc_calls *calls; /* borrowed */
    atomic_uint port;        /* of the listener; 0: it does not listen yet */
    size_t most;             /* descriptors that may be in use */
    DIR *descriptors; /* owned; kept open, so that a look allocates nothing; NULL: no /proc */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;            /* CLOCK_MONOTONIC */
    bool stop;                         /* under lock */
    unsigned times;                    /* it had to; thread only, as the rest */
    unsigned char busy[(1 << 16) / 8]; /* bit set: a call comes from this port */
};

/* The numbers of all descriptors, each handed to visit (which may be NULL); how many they are. */
static size_t for_each_descriptor(const struct rpc_shed *shed, void (*visit)(int fd, void *user),
                                  void *user)
{
    const struct dirent *entry;
    size_t count = 0;

    if (!shed->descriptors)
        return 0;
    rewinddir(shed->descriptors);
    while ((entry = readdir(shed->descriptors))) { /* nobody else has this stream */
        uint64_t fd;

        if (!parse_uint64(entry->d_name, &fd))
            continue;
        count++;
        if (visit && fd != (uint64_t)dirfd(shed->descriptors))
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

static void mark_busy(struct rpc_shed *shed)
{
    memset(shed->busy, 0, sizeof(shed->busy));
    (void)pthread_mutex_lock(&shed->calls->lock);
    for (const struct rpc_call *call = shed->calls->first; call; call = call->next) {
        uint64_t port;

        if (port_of(call->peer, &port))
            shed->busy[port / 8] |= (unsigned char)(1u << port % 8);
    }
    (void)pthread_mutex_unlock(&shed->calls->lock);
}

/* The port of an IPv4 or IPv6 address, 0 of another. */
static uint16_t address_port(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)address)->sin_port);
    if (address->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    return 0;
}

struct shedding {
    struct rpc_shed *shed;
    size_t closed;
};

static bool is_idle(const struct rpc_shed *shed, int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
    uint16_t port;

    if (getsockname(fd, (struct sockaddr *)&own, &own_size) != 0 ||
        address_port(&own) != atomic_load(&shed->port) ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_size) != 0)
        return false;
    port = address_port(&peer);
    return (shed->busy[port / 8] & 1u << port % 8) == 0;
}

/* Core may close the number and get it again meanwhile: look at a copy, which stays what it is. */
static void shed_one(int fd, void *user)
{
    struct shedding *s = user;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (copy < 0)
        return;
    if (is_idle(s->shed, copy) && shutdown(copy, SHUT_RDWR) == 0)
        s->closed++;
    (void)close(copy);
}

static void look(struct rpc_shed *shed)
{
    struct shedding s = {.shed = shed};
    size_t used;

    if (atomic_load(&shed->port) == 0)
        return;
    used = for_each_descriptor(shed, NULL, NULL);
    if (used <= shed->most)
        return;
    mark_busy(shed);
    (void)for_each_descriptor(shed, shed_one, &s);
    shed->times++;
    if ((shed->times & (shed->times - 1)) == 0) /* the first, second, fourth ... time */
        log_warning("%zu descriptors were in use, more than %zu: %zu connections without a call "
                    "were closed",
                    used, shed->most, s.closed);
}

static void *run(void *user)
{
    struct rpc_shed *shed = user;

    (void)pthread_mutex_lock(&shed->lock);
    while (!shed->stop) {
        struct timespec until = condition_until(clock_deadline_ns(TICK_MS));

        (void)pthread_cond_timedwait(&shed->changed, &shed->lock, &until);
        (void)pthread_mutex_unlock(&shed->lock);
        look(shed);
        (void)pthread_mutex_lock(&shed->lock);
    }
    (void)pthread_mutex_unlock(&shed->lock);
    return NULL;
}

static void init_locks(struct rpc_shed *shed)
{
    (void)pthread_mutex_init(&shed->lock, NULL);
    condition_init(&shed->changed);
}

static void release(struct rpc_shed *shed)
{
    if (shed->descriptors)
        (void)closedir(shed->descriptors);
    (void)pthread_cond_destroy(&shed->changed);
    (void)pthread_mutex_destroy(&shed->lock);
    free(shed);
}

static int start_thread(struct rpc_shed *shed)
{
    sigset_t all, before;
    int failed;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&shed->thread, NULL, run, shed);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

size_t rpc_descriptors_max(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY
               ? (size_t)limit.rlim_cur
               : SIZE_MAX;
}

enum status rpc_shed_start(struct rpc_calls *calls, struct rpc_shed **ret, struct error *err)
{
    struct rpc_shed *shed = NULL;
    enum status status = mem_calloc(1, sizeof(*shed), "descriptor watch", &shed, err);
    int failed;

    if (status != STATUS_OK)
        return status;
    shed->calls = calls;
    shed->most = rpc_descriptors_max() / 4 * 3;
    shed->descriptors = opendir("/proc/self/fd");
    init_locks(shed);
    failed = start_thread(shed);
    if (failed) {
        release(shed);
        return error_set_errno(err, failed, "cannot start the thread that watches descriptors");
    }
    (void)pthread_setname_np(shed->thread, "rpc-shed");
    *ret = shed;
    return STATUS_OK;
}

void rpc_shed_watch(struct rpc_shed *shed, uint16_t port)
{
    atomic_store(&shed->port, port);
}

void rpc_shed_stop(struct rpc_shed *shed)
{
    if (!shed)
        return;
    (void)pthread_mutex_lock(&shed->lock);
    shed->stop = true;
    (void)pthread_cond_signal(&shed->changed);
    (void)pthread_mutex_unlock(&shed->lock);
    (void)pthread_join(shed->thread, NULL);
    release(shed);
}
