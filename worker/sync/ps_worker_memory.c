/*
 * Worker and server exchange descriptors of their memory (common/base/handover) after every join.
 * The worker connects to the server's abstract socket, whose name and token are in the reply to
 * Join; so a restarted server exchanges memory again, and the mapping is replaced while no stream
 * of the link is open.  Each side can only read the other's memory.
 *
 * Locking: the link's lock guards handover_fd, which ps_link_interrupt shuts down; sync_ps.lock
 * guards by_reference.
 */
#include "worker/sync/ps_worker_memory.h"

#include "common/base/clock.h"
#include "common/base/handover.h"
#include "common/base/host_id.h"
#include "common/base/log.h"
#include "worker/sync/ps.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXCHANGE_MS 5000 /* a running server replies at once */

_Static_assert(HOST_ID_SIZE <= WIRE_MEMORY_ADDRESS_MAX &&
                   HANDOVER_ADDRESS_SIZE <= WIRE_MEMORY_ADDRESS_MAX,
               "both fit into the messages");

/* ------------------------------------------------------------------ this worker's memory */

static bool is_inside(const struct shared_memory *m, const float *slab, size_t count)
{
    uintptr_t base = (uintptr_t)m->base, at = (uintptr_t)slab;

    return at >= base && at - base <= m->size && count <= (m->size - (at - base)) / sizeof(float);
}

enum status ps_worker_memory_init(struct sync_ps *s, const struct sync_config *config,
                                  struct error *err)
{
    const struct shared_memory *m = config->memory;
    const struct compression *c = &config->compression;
    bool compressed = c->up.kind != CODEC_NONE || c->down.kind != CODEC_NONE;

    s->transport = config->ps_transport;
    if (compressed && s->transport == SYNC_TRANSPORT_SHM)
        return error_set(err, STATUS_CONFIG,
                         "rank %u: gradients are not compressed in shared memory: --ps-transport "
                         "shm and compression exclude each other",
                         s->rank);
    if (compressed && s->transport == SYNC_TRANSPORT_AUTO && m)
        log_info("rank %u: gradients go through the sockets, which is where they are compressed",
                 s->rank);
    if (s->transport == SYNC_TRANSPORT_GRPC || compressed)
        return STATUS_OK;
    if (!m || !is_inside(m, s->params, s->count) || !is_inside(m, s->grads, s->count))
        return s->transport == SYNC_TRANSPORT_AUTO
                   ? STATUS_OK
                   : error_set(err, STATUS_CONFIG,
                               "rank %u: its gradients are not in shared memory, as --ps-transport "
                               "shm demands (are they on a GPU?)",
                               s->rank);
    s->memory = m;
    host_id_find(NULL, s->terms.host_id);
    return STATUS_OK;
}

uint64_t ps_worker_memory_offset(const struct sync_ps *s, const float *data)
{
    return (uint64_t)((uintptr_t)data - (uintptr_t)s->memory->base);
}

/* ------------------------------------------------------------------ the server's memory */

const float *ps_server_memory_resolve(const struct ps_link *l, uint64_t offset, size_t bytes)
{
    const struct shared_memory *m = &l->server_memory;

    if (!m->base || offset % sizeof(float) != 0 || offset > m->size || bytes > m->size - offset)
        return NULL;
    return (const float *)m->base + offset / sizeof(float);
}

void ps_server_memory_release(struct ps_link *l)
{
    if (l->server_memory.base)
        shared_memory_release(&l->server_memory);
}

/* Send this worker's message and descriptor, then receive the server's, and map its memory. */
static enum status exchange_memory(const struct sync_ps *s, int fd, const unsigned char *token,
                                   int64_t deadline_ns, struct shared_memory *ret,
                                   bool *ret_takes_channel, struct error *err)
{
    struct handover_message message = {
        .sender = s->rank, .has_memory = 1, .size = s->memory->size, .session = s->terms.session};
    int memory_fd = -1;
    enum status status;

    memcpy(message.token, token, sizeof(message.token));
    status = handover_send(fd, &message, s->memory->fd, deadline_ns, err);
    if (status == STATUS_OK)
        status = handover_receive(fd, token, deadline_ns, &message, &memory_fd, err);
    if (status == STATUS_OK && memory_fd < 0)
        status = error_set(err, STATUS_PROTOCOL, "the server's message has no memory descriptor");
    if (status == STATUS_OK)
        status = shared_memory_map_read_only(memory_fd, message.size, ret, err);
    *ret_takes_channel = message.sender == HANDOVER_TAKES_CHANNEL;
    return status;
}

/* Set the socket for ps_link_interrupt; -1: the exchange has ended. */
static void set_handover_fd(struct ps_link *l, int fd)
{
    (void)pthread_mutex_lock(&l->lock);
    l->handover_fd = fd;
    (void)pthread_mutex_unlock(&l->lock);
}

static enum status connect_and_exchange(struct sync_ps *s, struct ps_link *l, const char *address,
                                        int64_t deadline_ns, struct shared_memory *ret,
                                        struct error *err)
{
    int64_t limit_ns = clock_deadline_ns(EXCHANGE_MS);
    char name[HANDOVER_NAME_SIZE];
    unsigned char token[HANDOVER_TOKEN_BYTES];
    struct error why = {0};
    int fd = -1;
    bool takes_channel = false;
    enum status status;

    if (address[0] == '\0')
        return error_set(err, STATUS_UNSUPPORTED,
                         "it shares no memory with this worker (another host, user or network "
                         "namespace, or its --share-memory is false)");
    if (!handover_parse(address, name, token))
        return error_set(err, STATUS_PROTOCOL, "'%s' is not an address of its memory", address);
    if (limit_ns < deadline_ns)
        deadline_ns = limit_ns;
    status = handover_connect(name, deadline_ns, &fd, err);
    if (status != STATUS_OK)
        return status;
    set_handover_fd(l, fd);
    status = exchange_memory(s, fd, token, deadline_ns, ret, &takes_channel, err);
    if (status == STATUS_OK && takes_channel &&
        ps_channel_exchange(s, l, fd, token, deadline_ns, &why) != STATUS_OK)
        log_info("rank %u, %s: headers go through the socket: %s", s->rank, l->name, why.text);
    set_handover_fd(l, -1);
    (void)close(fd);
    return status;
}

enum status ps_worker_memory_exchange(struct sync_ps *s, struct ps_link *l, const char *address,
                                      bool resume, int64_t deadline_ns, struct error *err)
{
    struct shared_memory server_memory = SHARED_MEMORY_NONE;
    struct error why = {0};
    enum status status;

    ps_channel_drop(s, l);
    ps_server_memory_release(l);
    if (!s->memory)
        return STATUS_OK;
    status = connect_and_exchange(s, l, address, deadline_ns, &server_memory, &why);
    l->server_memory = server_memory;
    (void)pthread_mutex_lock(&s->lock);
    l->by_reference = status == STATUS_OK;
    (void)pthread_mutex_unlock(&s->lock);
    if (status == STATUS_OK)
        return STATUS_OK;
    if (s->transport == SYNC_TRANSPORT_SHM && !resume)
        return error_set(err, status, "rank %u, %s, shared memory: %s", s->rank, l->name, why.text);
    log_info("rank %u, %s: gradients go through the socket: %s", s->rank, l->name, why.text);
    return STATUS_OK;
}
