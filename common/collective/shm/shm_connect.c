/*
 * Mapping of the ranks' memory into each other.  Every rank listens on an abstract Unix socket with
 * a random name, and the ranks exchange names and tokens through collective_exchange.  Higher ranks
 * connect to lower ones; both sides check the other's user and token, and send a message with the
 * descriptor of their arena.  The connections stay: registered regions follow over them, and one
 * that closes means that a process has ended.
 */
#include "common/collective/shm/shm.h"

#include "common/base/clock.h"
#include "common/base/host_id.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGE_WAIT_MS 2000 /* for a message on an accepted connection */

/* What ranks exchange before they connect. */
struct connect_info {
    char host_id[HOST_ID_SIZE];
    char name[HANDOVER_NAME_SIZE]; /* of the socket */
    unsigned char token[HANDOVER_TOKEN_BYTES];
};

static enum status make_connect_info(const struct shm_group *g, struct connect_info *ret,
                                     struct error *err)
{
    *ret = (struct connect_info){.name = ""};
    memcpy(ret->host_id, g->base.host_id, sizeof(ret->host_id));
    return handover_generate(ret->name, ret->token, err);
}

/* Wait until the descriptor is readable, until the deadline or the loss of a rank: after that a
 * living peer may send nothing any more. */
static enum status await_readable(const struct shm_group *g, int fd, int64_t deadline_ns,
                                  struct error *err)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = fd, .events = POLLIN},
                                {.fd = g->base.setup_alarm->fd, .events = POLLIN}};
        int left_ms = clock_left_ms(deadline_ns);

        if (poll(fds, 2, left_ms) < 0 && errno != EINTR)
            return error_set_errno(err, errno, "cannot wait for a rank");
        if (fds[1].revents)
            return mesh_alarm_error(g->base.setup_alarm, err);
        if (fds[0].revents)
            return STATUS_OK;
        if (left_ms == 0)
            return error_set(err, STATUS_TIMEOUT, "nothing came in time");
    }
}

/* ---- memory over a connection ---- */

/* Hand memory (base NULL: none) to a peer. */
static enum status send_memory(const struct shm_group *g, unsigned peer,
                               const struct shared_memory *memory, int64_t deadline_ns,
                               struct error *err)
{
    struct handover_message message = {
        .sender = g->base.rank, .has_memory = memory->base != NULL, .size = memory->size};
    enum status status;

    memcpy(message.token, g->peers[peer].token, HANDOVER_TOKEN_BYTES);
    status = handover_send(g->peers[peer].fd, &message, memory->base ? memory->fd : -1, deadline_ns,
                           err);
    return status == STATUS_OK ? status : error_prefix(err, "rank %u: ", g->base.members[peer]);
}

/* Map what a message of `peer` brought. */
static enum status take_memory(const struct shm_group *g, unsigned peer,
                               const struct handover_message *message, int memory_fd,
                               struct shared_memory *ret, struct error *err)
{
    enum status status = STATUS_OK;

    *ret = SHARED_MEMORY_NONE;
    if (memory_fd >= 0)
        status = shared_memory_map(memory_fd, message->size, ret, err);
    return status == STATUS_OK ? status : error_prefix(err, "rank %u: ", g->base.members[peer]);
}

static enum status receive_memory(const struct shm_group *g, unsigned peer, int64_t deadline_ns,
                                  struct shared_memory *ret, struct error *err)
{
    struct handover_message message;
    int memory_fd;
    enum status status = await_readable(g, g->peers[peer].fd, deadline_ns, err);

    if (status == STATUS_OK)
        status = handover_receive(g->peers[peer].fd, g->peers[g->base.rank].token, deadline_ns,
                                  &message, &memory_fd, err);
    if (status != STATUS_OK)
        return error_prefix(err, "rank %u: ", g->base.members[peer]);
    return take_memory(g, peer, &message, memory_fd, ret, err);
}

/* ---- connecting ---- */

struct connecting {
    struct shm_group *g;
    const struct connect_info *infos;
    int listen_fd;
    int64_t deadline_ns;
};

static enum status send_arena(const struct connecting *m, unsigned peer, struct error *err)
{
    return send_memory(m->g, peer, &m->g->peers[m->g->base.rank].arena, m->deadline_ns, err);
}

static enum status connect_to(const struct connecting *m, unsigned peer, struct error *err)
{
    enum status status =
        handover_connect(m->infos[peer].name, m->deadline_ns, &m->g->peers[peer].fd, err);

    if (status != STATUS_OK)
        return error_prefix(err, "rank %u: ", m->g->base.members[peer]);
    return send_arena(m, peer, err);
}

static enum status missing_ranks(const struct connecting *m, struct error *err)
{
    const struct collective *base = &m->g->base;
    struct strbuf list = STRBUF_INIT;

    for (unsigned r = base->rank + 1; r < base->world_size; r++)
        if (m->g->peers[r].fd < 0)
            strbuf_addf(&list, "%s%u", list.length > 0 ? ", " : "", base->members[r]);
    (void)error_set(err, STATUS_TIMEOUT, "no connection from rank %s", list.text);
    strbuf_release(&list);
    return STATUS_TIMEOUT;
}

static enum status check_arena(const struct shm_group *g, unsigned peer, struct error *err)
{
    size_t size = g->peers[g->base.rank].arena.size;

    if (g->peers[peer].arena.base && g->peers[peer].arena.size == size)
        return STATUS_OK;
    return error_set(err, STATUS_PROTOCOL, "rank %u has an arena of %zu bytes, not %zu",
                     g->base.members[peer], g->peers[peer].arena.size, size);
}

/* Accept one connection; close it silently if it is not an expected rank. */
static enum status accept_one(const struct connecting *m, struct error *err)
{
    const struct collective *base = &m->g->base;
    int64_t message_deadline_ns = clock_deadline_ns(MESSAGE_WAIT_MS);
    struct error reason = {0};
    struct handover_message message;
    int memory_fd = -1;
    int fd = accept4(m->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    enum status status;

    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return STATUS_OK;
    if (fd < 0)
        return error_set_errno(err, errno, "cannot accept a rank");
    status = !handover_is_our_user(fd)
                 ? STATUS_PROTOCOL
                 : handover_receive(fd, m->g->peers[base->rank].token,
                                    message_deadline_ns < m->deadline_ns ? message_deadline_ns
                                                                         : m->deadline_ns,
                                    &message, &memory_fd, &reason);
    if (status == STATUS_IO) { /* a failure of this process */
        (void)close(fd);
        return error_set(err, STATUS_IO, "%s", reason.text);
    }
    if (status != STATUS_OK || message.sender <= base->rank || message.sender >= base->world_size ||
        m->g->peers[message.sender].fd >= 0) {
        if (memory_fd >= 0)
            (void)close(memory_fd);
        (void)close(fd);
        return STATUS_OK;
    }
    m->g->peers[message.sender].fd = fd;
    status = take_memory(m->g, message.sender, &message, memory_fd,
                         &m->g->peers[message.sender].arena, err);
    if (status == STATUS_OK)
        status = check_arena(m->g, message.sender, err);
    return status == STATUS_OK ? send_arena(m, message.sender, err) : status;
}

static enum status accept_higher(const struct connecting *m, struct error *err)
{
    const struct collective *base = &m->g->base;
    enum status status = STATUS_OK;

    for (;;) {
        unsigned there = 0;

        for (unsigned r = base->rank + 1; r < base->world_size; r++)
            there += m->g->peers[r].fd >= 0;
        if (there == base->world_size - base->rank - 1)
            return STATUS_OK;
        status = await_readable(m->g, m->listen_fd, m->deadline_ns, err);
        if (status == STATUS_TIMEOUT)
            return missing_ranks(m, err);
        if (status == STATUS_OK)
            status = accept_one(m, err);
        if (status != STATUS_OK)
            return status;
    }
}

static enum status receive_lower(const struct connecting *m, struct error *err)
{
    const struct collective *base = &m->g->base;
    enum status status = STATUS_OK;

    for (unsigned r = 0; r < base->rank && status == STATUS_OK; r++) {
        status = receive_memory(m->g, r, m->deadline_ns, &m->g->peers[r].arena, err);
        if (status == STATUS_OK)
            status = check_arena(m->g, r, err);
    }
    return status;
}

static enum status check_hosts(const struct connecting *m, struct error *err)
{
    const struct collective *base = &m->g->base;

    for (unsigned r = 0; r < base->world_size; r++)
        if (strncmp(m->infos[r].host_id, m->infos[base->rank].host_id, HOST_ID_SIZE) != 0)
            return error_set(err, STATUS_CONFIG,
                             "shm needs all ranks on one host: rank %u is on '%.*s', rank %u on "
                             "'%.*s'; choose ring, hier or auto",
                             base->members[base->rank], HOST_ID_SIZE, m->infos[base->rank].host_id,
                             base->members[r], HOST_ID_SIZE, m->infos[r].host_id);
    return STATUS_OK;
}

static enum status connect_ranks(const struct connecting *m, struct error *err)
{
    enum status status = check_hosts(m, err);

    for (unsigned r = 0; r < m->g->base.rank && status == STATUS_OK; r++)
        status = connect_to(m, r, err);
    if (status == STATUS_OK)
        status = accept_higher(m, err);
    if (status == STATUS_OK)
        status = receive_lower(m, err);
    return status;
}

enum status shm_connect(struct shm_group *g, int64_t deadline_ns, struct error *err)
{
    struct connecting m = {.g = g, .listen_fd = -1, .deadline_ns = deadline_ns};
    struct shm_peer *self = &g->peers[g->base.rank];
    struct connect_info mine;
    struct connect_info *infos = NULL;
    enum status status = make_connect_info(g, &mine, err);

    if (status == STATUS_OK)
        status = shared_memory_open(shm_arena_size(g->base.world_size), "sparring-arena",
                                    &self->arena, err);
    if (status == STATUS_OK)
        status = handover_listen(mine.name, &m.listen_fd, err);
    if (status == STATUS_OK)
        status = mem_calloc(g->base.world_size, sizeof(*infos), "infos", &infos, err);
    if (status == STATUS_OK)
        status = collective_exchange(&g->base, "shm", &mine, sizeof(mine), infos, deadline_ns, err);
    m.infos = infos;
    for (unsigned r = 0; r < g->base.world_size && status == STATUS_OK; r++) {
        infos[r].name[HANDOVER_NAME_SIZE - 1] = '\0'; /* not trusted */
        memcpy(g->peers[r].token, infos[r].token, HANDOVER_TOKEN_BYTES);
    }
    if (status == STATUS_OK)
        status = connect_ranks(&m, err);
    if (m.listen_fd >= 0)
        (void)close(m.listen_fd);
    free(infos);
    return status;
}

/* ---- registered regions ---- */

/* Populate the pages now, not in the first step; older kernels fault them in one by one. */
static void prefault_region(const struct shared_memory *m)
{
#ifdef MADV_POPULATE_WRITE
    if (m->base)
        (void)madvise(m->base, m->size, MADV_POPULATE_WRITE);
#else
    (void)m;
#endif
}

enum status shm_share_region(struct shm_group *g, const struct shared_memory *memory,
                             int64_t deadline_ns, struct error *err)
{
    size_t index = g->region_count;
    enum status status = STATUS_OK;

    if (index == SHM_REGIONS_MAX)
        return error_set(err, STATUS_INVALID, "group '%s' has %d registered regions, the most",
                         g->base.name, SHM_REGIONS_MAX);
    for (unsigned r = 0; r < g->base.world_size && status == STATUS_OK; r++)
        if (r != g->base.rank)
            status = send_memory(g, r, memory, deadline_ns, err);
    for (unsigned r = 0; r < g->base.world_size && status == STATUS_OK; r++) {
        struct shared_memory *region = &g->peers[r].regions[index];

        if (r != g->base.rank)
            status = receive_memory(g, r, deadline_ns, region, err);
        else
            *region = (struct shared_memory){.base = memory->base, .size = memory->size, .fd = -1};
        if (status == STATUS_OK)
            prefault_region(region);
    }
    if (status == STATUS_OK)
        g->region_count++;
    return status;
}

struct shm_location shm_find_location(const struct shm_group *g, const void *buffer, size_t bytes)
{
    const struct shared_memory *mine = g->peers[g->base.rank].regions;
    uintptr_t from = (uintptr_t)buffer;

    for (uint32_t i = 0; buffer && i < g->region_count; i++) {
        uintptr_t base = (uintptr_t)mine[i].base;

        if (base != 0 && from >= base && from - base <= mine[i].size &&
            bytes <= mine[i].size - (from - base))
            return (struct shm_location){.region = i, .offset = from - base};
    }
    return (struct shm_location){.region = SHM_NO_REGION};
}

unsigned char *shm_resolve(const struct shm_group *g, unsigned peer, struct shm_location location,
                           size_t bytes)
{
    const struct shared_memory *region;

    if (location.region >= g->region_count)
        return NULL;
    region = &g->peers[peer].regions[location.region];
    if (!region->base || location.offset > region->size || bytes > region->size - location.offset)
        return NULL;
    return (unsigned char *)region->base + location.offset;
}
