/*
 * The order of the steps cannot deadlock: a connect succeeds as soon as the peer listens (the
 * kernel accepts for it), so all hellos go out before this rank accepts, and the answers are read
 * last.
 */
#include "common/collective/ring_connect.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"
#include "common/collective/host_address.h"
#include "common/collective/ring_accept.h"
#include "common/collective/ring_wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* What a rank tells the others. */
struct place {
    char address[288];
    uint64_t cookie;
    uint32_t streams;
    uint32_t unused;
};

/* What is needed to connect. */
struct joining {
    struct collective *group;
    unsigned streams;
    int64_t deadline_ns;
    struct endpoint self;
    int listen_fd;
    struct place *places; /* owned: of every rank */
    uint64_t *cookies;    /* owned: likewise */
    int *fds;
};

static struct ring_hello hello_to(const struct joining *j, unsigned peer, unsigned stream)
{
    return (struct ring_hello){.group = j->group->id,
                               .cookie = j->cookies[peer],
                               .generation = j->group->generation,
                               .rank = j->group->rank,
                               .world_size = j->group->world_size,
                               .stream = stream};
}

static enum status exchange_places(struct joining *j, struct error *err)
{
    struct collective *g = j->group;
    struct place mine = {.streams = j->streams};
    enum status status;

    if (getrandom(&mine.cookie, sizeof(mine.cookie), 0) != (ssize_t)sizeof(mine.cookie))
        return error_set_errno(err, errno, "cannot draw a cookie");
    endpoint_format(&j->self, mine.address, sizeof(mine.address));
    status = mem_calloc(g->world_size, sizeof(*j->places), "addresses", &j->places, err);
    if (status == STATUS_OK)
        status = mem_calloc(g->world_size, sizeof(*j->cookies), "cookies", &j->cookies, err);
    if (status == STATUS_OK)
        status = collective_exchange(g, "ring addresses", &mine, sizeof(mine), j->places,
                                     j->deadline_ns, err);
    for (unsigned r = 0; r < g->world_size && status == STATUS_OK; r++) {
        j->places[r].address[sizeof(j->places[r].address) - 1] = '\0';
        j->cookies[r] = j->places[r].cookie;
        if (j->places[r].streams != j->streams)
            status = error_set(err, STATUS_MISMATCH,
                               "rank %u wants %" PRIu32 " streams, this rank %u wants %u", r,
                               j->places[r].streams, g->rank, j->streams);
    }
    return status;
}

static enum status connect_one(struct joining *j, unsigned peer, unsigned stream, struct error *err)
{
    struct ring_hello hello = hello_to(j, peer, stream);
    unsigned char bytes[RING_HELLO_BYTES];
    struct endpoint e = {.port = 0};
    int *fd = &j->fds[peer * j->streams + stream];
    enum status status = endpoint_parse(j->places[peer].address, "its address", &e, err);

    if (status != STATUS_OK)
        return status;
    if (endpoint_is_loopback(&e) && !endpoint_is_loopback(&j->self))
        return error_set(err, STATUS_CONFIG,
                         "it published the loopback address %s, which this host (%s) cannot reach: "
                         "give that rank its interface",
                         e.host, j->self.host);
    status = net_connect(&e, j->deadline_ns, fd, err);
    if (status != STATUS_OK)
        return status;
    ring_hello_encode(&hello, bytes);
    return net_send_all(*fd, bytes, sizeof(bytes), j->deadline_ns, err);
}

static enum status connect_lower(struct joining *j, struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned peer = 0; peer < j->group->rank && status == STATUS_OK; peer++) {
        for (unsigned s = 0; s < j->streams && status == STATUS_OK; s++) {
            status = connect_one(j, peer, s, err);
            if (status != STATUS_OK)
                status = error_prefix(err, "to rank %u: ", peer);
        }
    }
    return status;
}

static enum status read_answer(struct joining *j, unsigned peer, unsigned stream, struct error *err)
{
    struct ring_hello wanted = hello_to(j, j->group->rank, stream);
    unsigned char bytes[RING_HELLO_BYTES];
    unsigned char expected[RING_HELLO_BYTES];
    enum status status =
        net_recv_all(j->fds[peer * j->streams + stream], bytes, sizeof(bytes), j->deadline_ns, err);

    wanted.rank = peer;
    ring_hello_encode(&wanted, expected);
    if (status != STATUS_OK)
        return error_prefix(err, "no answer from rank %u: ", peer);
    if (memcmp(bytes, expected, sizeof(bytes)) != 0)
        return error_set(err, STATUS_PROTOCOL, "what answered is not rank %u of %u", peer,
                         j->group->world_size);
    return STATUS_OK;
}

static enum status join(struct joining *j, struct error *err)
{
    struct collective *g = j->group;
    struct ring_hello self;
    enum status status = exchange_places(j, err);

    if (status == STATUS_OK)
        status = connect_lower(j, err);
    if (status != STATUS_OK)
        return status;
    self = hello_to(j, g->rank, 0);
    status = ring_accept(j->listen_fd, &self, j->cookies, j->streams, j->deadline_ns, j->fds, err);
    for (unsigned peer = 0; peer < g->rank && status == STATUS_OK; peer++)
        for (unsigned s = 0; s < j->streams && status == STATUS_OK; s++)
            status = read_answer(j, peer, s, err);
    return status;
}

/* A group that is made later, without a store, finds its host in its parent's head. */
static void choose_host(struct collective *group, char *host)
{
    host_address_choose(group->interface_host, group->store ? store_address(group->store) : "",
                        host);
    if (strlen(host) < sizeof(group->interface_host))
        (void)snprintf(group->interface_host, sizeof(group->interface_host), "%s", host);
}

enum status ring_connect(struct collective *group, unsigned streams, int64_t deadline_ns, int *fds,
                         struct error *err)
{
    struct joining j = {.group = group,
                        .streams = streams,
                        .deadline_ns = deadline_ns,
                        .self = {.port = 0},
                        .listen_fd = -1,
                        .fds = fds};
    enum status status;

    choose_host(group, j.self.host);
    status = net_listen(&j.self, "the ring's interface", &j.listen_fd, &j.self.port, err);
    if (status == STATUS_OK)
        status = join(&j, err);
    if (j.listen_fd >= 0)
        (void)close(j.listen_fd);
    free(j.places);
    free(j.cookies);
    return status;
}
