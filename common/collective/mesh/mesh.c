/*
 * Lifetime of the mesh.  Leaving in order sends MESH_GOODBYE to every peer and waits until the peer
 * has closed the connection, which proves the receipt: closing a socket with unread input discards
 * data that the peer has not received yet.
 */
#include "common/collective/mesh/mesh.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/memory.h"
#include "common/collective/mesh/mesh_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define GOODBYE_MS 500

static enum status watch_connections(struct mesh *m, struct error *err)
{
    struct epoll_event wake = {.events = EPOLLIN, .data.u32 = UINT32_MAX};

    m->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (m->epoll_fd < 0 || m->wake_fd < 0 ||
        epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, m->wake_fd, &wake) != 0)
        return error_set_errno(err, errno, "cannot watch the control connections");
    for (unsigned r = 0; r < m->world_size; r++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = r};

        if (r != m->rank && epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, m->peers[r].fd, &event) != 0)
            return error_set_errno(err, errno, "cannot watch the control connection to rank %u", r);
    }
    return STATUS_OK;
}

static enum status start_thread(struct mesh *m, struct error *err)
{
    int failed;

    for (unsigned r = 0; r < m->world_size; r++)
        m->peers[r].heard_ns = clock_now_ns();
    failed = pthread_create(&m->thread, NULL, mesh_thread_run, m);
    if (failed != 0)
        return error_set_errno(err, failed, "cannot start the mesh's thread");
    m->has_thread = true;
    return STATUS_OK;
}

static void free_mesh(struct mesh *m)
{
    for (unsigned r = 0; m->peers && r < m->world_size; r++) {
        struct mesh_peer *p = &m->peers[r];

        if (p->fd >= 0)
            (void)close(p->fd);
        while (p->items) {
            struct mesh_stored *next = p->items->next;

            free(p->items);
            p->items = next;
        }
        free(p->out);
    }
    mesh_agreements_release(m);
    for (size_t i = 0; i < MESH_GROUPS_MAX; i++)
        mesh_group_state_release(&m->groups[i]);
    for (size_t i = 0; i < MESH_GROUPS_MAX; i++)
        free(m->groups[i].trail);
    if (m->epoll_fd >= 0)
        (void)close(m->epoll_fd);
    if (m->wake_fd >= 0)
        (void)close(m->wake_fd);
    free(m->peers);
    (void)pthread_cond_destroy(&m->changed);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

enum status mesh_open(const struct mesh_config *config, struct mesh **ret, struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(config->timeout_ms);
    struct mesh *m;
    enum status status;

    if (config->world_size == 0 || config->rank >= config->world_size)
        return error_set(err, STATUS_CONFIG, "rank %u is not below the world size %u", config->rank,
                         config->world_size);
    if (config->world_size > MESH_RANKS_MAX)
        return error_set(err, STATUS_CONFIG, "a world of %u ranks is too large: at most %d",
                         config->world_size, MESH_RANKS_MAX);
    status = mem_calloc(1, sizeof(*m), "a mesh", &m, err);
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_init(&m->lock, NULL);
    condition_init(&m->changed);
    m->epoll_fd = m->wake_fd = -1;
    m->rank = config->rank;
    m->world_size = config->world_size;
    m->timeout_ms = config->timeout_ms;
    m->heartbeat_timeout_ms =
        config->heartbeat_timeout_ms > 0 ? config->heartbeat_timeout_ms : 1500;
    status = mem_calloc(m->world_size, sizeof(*m->peers), "peers", &m->peers, err);
    for (unsigned r = 0; r < m->world_size && status == STATUS_OK; r++)
        m->peers[r].fd = -1;
    if (status == STATUS_OK && m->world_size > 1)
        status = mesh_connect(m, config, deadline_ns, err);
    if (status == STATUS_OK && m->world_size > 1)
        status = watch_connections(m, err);
    if (status == STATUS_OK && m->world_size > 1)
        status = start_thread(m, err);
    if (status != STATUS_OK) {
        free_mesh(m);
        return status;
    }
    *ret = m;
    return STATUS_OK;
}

/* Has a living peer not yet closed its connection? */
static bool has_connected_peer(const struct mesh *m)
{
    for (unsigned r = 0; r < m->world_size; r++)
        if (m->peers[r].fd >= 0 && m->peers[r].state == MESH_PEER_UP)
            return true;
    return false;
}

static void send_goodbyes(struct mesh *m)
{
    const struct mesh_message goodbye = {.kind = MESH_GOODBYE};
    int64_t deadline_ns = clock_deadline_ns(GOODBYE_MS);

    (void)pthread_mutex_lock(&m->lock);
    m->closing = true;
    mesh_send_all(m, &goodbye);
    while (has_connected_peer(m) && clock_now_ns() < deadline_ns)
        mesh_wait(m, deadline_ns);
    m->stop = true;
    (void)pthread_mutex_unlock(&m->lock);
}

void mesh_close(struct mesh *m)
{
    if (!m)
        return;
    if (m->has_thread) {
        send_goodbyes(m);
        mesh_wake(m);
        (void)pthread_join(m->thread, NULL);
    }
    free_mesh(m);
}

unsigned mesh_rank(const struct mesh *m)
{
    return m->rank;
}
