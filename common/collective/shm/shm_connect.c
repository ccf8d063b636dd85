/*
 * How ranks come to see each other's memory.  Every rank listens on an abstract Unix socket whose
 * name nobody can guess, and the ranks tell each other names and tokens through
 * collective_exchange.  Higher ranks connect to lower ones; both sides check the other's user and
 * token, and send a ticket with the descriptor of their arena.  The connections stay: registered
 * regions follow over them, and one that closes tells that a process has ended.
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

#define STRANGER_WAIT_MS 2000 /* for a ticket on an accepted connection */

/* What ranks tell each other before they connect. */
struct card {
    char host_id[HOST_ID_SIZE];
    char name[HANDOVER_NAME_SIZE]; /* of the socket */
    unsigned char token[HANDOVER_TOKEN_BYTES];
};

static enum status make_card(const struct shm_group *g, struct card *ret, struct error *err)
{
    *ret = (struct card){.name = ""};
    memcpy(ret->host_id, g->base.host_id, sizeof(ret->host_id));
    return handover_draw(ret->name, ret->token, err);
}

/* ---- memory over a connection ---- */

/* Hand memory (base NULL: none) to a peer. */
static enum status send_memory(const struct shm_group *g, unsigned peer,
                               const struct shared_memory *memory, int64_t deadline_ns,
                               struct error *err)
{
    struct handover_ticket ticket = {
        .sender = g->base.rank, .has_memory = memory->base != NULL, .size = memory->size};
    enum status status;

    memcpy(ticket.token, g->peers[peer].token, HANDOVER_TOKEN_BYTES);
    status =
        handover_send(g->peers[peer].fd, &ticket, memory->base ? memory->fd : -1, deadline_ns, err);
    return status == STATUS_OK ? status : error_prefix(err, "rank %u: ", g->base.members[peer]);
}

/* Map what a ticket of `peer` brought. */
static enum status take_memory(const struct shm_group *g, unsigned peer,
                               const struct handover_ticket *ticket, int memory_fd,
                               struct shared_memory *ret, struct error *err)
{
    enum status status = STATUS_OK;

    *ret = SHARED_MEMORY_NONE;
    if (memory_fd >= 0)
        status = shared_memory_map(memory_fd, ticket->size, ret, err);
    return status == STATUS_OK ? status : error_prefix(err, "rank %u: ", g->base.members[peer]);
}

static enum status receive_memory(const struct shm_group *g, unsigned peer, int64_t deadline_ns,
                                  struct shared_memory *ret, struct error *err)
{
    struct handover_ticket ticket;
    int memory_fd;
    enum status status = handover_receive(g->peers[peer].fd, g->peers[g->base.rank].token,
                                          deadline_ns, &ticket, &memory_fd, err);

    if (status != STATUS_OK)
        return error_prefix(err, "rank %u: ", g->base.members[peer]);
    return take_memory(g, peer, &ticket, memory_fd, ret, err);
}

/* ---- meeting ---- */

struct meeting {
    struct shm_group *g;
    const struct card *cards;
    int listen_fd;
    int64_t deadline_ns;
};

static enum status send_arena(const struct meeting *m, unsigned peer, struct error *err)
{
    return send_memory(m->g, peer, &m->g->peers[m->g->base.rank].arena, m->deadline_ns, err);
}

static enum status connect_to(const struct meeting *m, unsigned peer, struct error *err)
{
    enum status status =
        handover_connect(m->cards[peer].name, m->deadline_ns, &m->g->peers[peer].fd, err);

    if (status != STATUS_OK)
        return error_prefix(err, "rank %u: ", m->g->base.members[peer]);
    return send_arena(m, peer, err);
}

static enum status missing_ranks(const struct meeting *m, struct error *err)
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

/* One connection from whoever comes; strangers are sent away without a word. */
static enum status accept_one(const struct meeting *m, struct error *err)
{
    const struct collective *base = &m->g->base;
    int64_t patience_ns = clock_deadline_ns(STRANGER_WAIT_MS);
    struct error reason = {0};
    struct handover_ticket ticket;
    int memory_fd = -1;
    int fd = accept4(m->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    enum status status;

    if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
        return STATUS_OK;
    if (fd < 0)
        return error_set_errno(err, errno, "cannot accept a rank");
    if (!handover_is_our_user(fd) ||
        handover_receive(fd, m->g->peers[base->rank].token,
                         patience_ns < m->deadline_ns ? patience_ns : m->deadline_ns, &ticket,
                         &memory_fd, &reason) != STATUS_OK ||
        ticket.sender <= base->rank || ticket.sender >= base->world_size ||
        m->g->peers[ticket.sender].fd >= 0) {
        if (memory_fd >= 0)
            (void)close(memory_fd);
        (void)close(fd);
        return STATUS_OK;
    }
    m->g->peers[ticket.sender].fd = fd;
    status = take_memory(m->g, ticket.sender, &ticket, memory_fd, &m->g->peers[ticket.sender].arena,
                         err);
    if (status == STATUS_OK)
        status = check_arena(m->g, ticket.sender, err);
    return status == STATUS_OK ? send_arena(m, ticket.sender, err) : status;
}

static enum status accept_higher(const struct meeting *m, struct error *err)
{
    const struct collective *base = &m->g->base;
    enum status status = STATUS_OK;

    for (;;) {
        unsigned there = 0;

        for (unsigned r = base->rank + 1; r < base->world_size; r++)
            there += m->g->peers[r].fd >= 0;
        if (there == base->world_size - base->rank - 1)
            return STATUS_OK;
        status = handover_poll(m->listen_fd, POLLIN, m->deadline_ns, err);
        if (status == STATUS_TIMEOUT)
            return missing_ranks(m, err);
        if (status == STATUS_OK)
            status = accept_one(m, err);
        if (status != STATUS_OK)
            return status;
    }
}

static enum status receive_lower(const struct meeting *m, struct error *err)
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

static enum status check_hosts(const struct meeting *m, struct error *err)
{
    const struct collective *base = &m->g->base;

    for (unsigned r = 0; r < base->world_size; r++)
        if (strncmp(m->cards[r].host_id, m->cards[base->rank].host_id, HOST_ID_SIZE) != 0)
            return error_set(err, STATUS_CONFIG,
                             "shm needs all ranks on one host: rank %u is on '%.*s', rank %u on "
                             "'%.*s'; choose ring, hier or auto",
                             base->members[base->rank], HOST_ID_SIZE, m->cards[base->rank].host_id,
                             base->members[r], HOST_ID_SIZE, m->cards[r].host_id);
    return STATUS_OK;
}

static enum status meet(const struct meeting *m, struct error *err)
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
    struct meeting m = {.g = g, .listen_fd = -1, .deadline_ns = deadline_ns};
    struct shm_peer *self = &g->peers[g->base.rank];
    struct card mine;
    struct card *cards = NULL;
    enum status status = make_card(g, &mine, err);

    if (status == STATUS_OK)
        status = shared_memory_open(shm_arena_size(g->base.world_size), "sparring-arena",
                                    &self->arena, err);
    if (status == STATUS_OK)
        status = handover_listen(mine.name, &m.listen_fd, err);
    if (status == STATUS_OK)
        status = mem_calloc(g->base.world_size, sizeof(*cards), "cards", &cards, err);
    if (status == STATUS_OK)
        status = collective_exchange(&g->base, "shm", &mine, sizeof(mine), cards, deadline_ns, err);
    m.cards = cards;
    for (unsigned r = 0; r < g->base.world_size && status == STATUS_OK; r++) {
        cards[r].name[HANDOVER_NAME_SIZE - 1] = '\0'; /* whatever came */
        memcpy(g->peers[r].token, cards[r].token, HANDOVER_TOKEN_BYTES);
    }
    if (status == STATUS_OK)
        status = meet(&m, err);
    if (m.listen_fd >= 0)
        (void)close(m.listen_fd);
    free(cards);
    return status;
}

/* ---- registered regions ---- */

/* Page faults now, not in the first step; a kernel that cannot takes them one by one. */
static void touch(const struct shared_memory *m)
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
            touch(region);
    }
    if (status == STATUS_OK)
        g->region_count++;
    return status;
}

struct shm_place shm_find_place(const struct shm_group *g, const void *buffer, size_t bytes)
{
    const struct shared_memory *mine = g->peers[g->base.rank].regions;
    uintptr_t from = (uintptr_t)buffer;

    for (uint32_t i = 0; buffer && i < g->region_count; i++) {
        uintptr_t base = (uintptr_t)mine[i].base;

        if (base != 0 && from >= base && from - base <= mine[i].size &&
            bytes <= mine[i].size - (from - base))
            return (struct shm_place){.region = i, .offset = from - base};
    }
    return (struct shm_place){.region = SHM_NO_REGION};
}

unsigned char *shm_resolve(const struct shm_group *g, unsigned peer, struct shm_place place,
                           size_t bytes)
{
    const struct shared_memory *region;

    if (place.region >= g->region_count)
        return NULL;
    region = &g->peers[peer].regions[place.region];
    if (!region->base || place.offset > region->size || bytes > region->size - place.offset)
        return NULL;
    return (unsigned char *)region->base + place.offset;
}
