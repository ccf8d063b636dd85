/*
 * Connects a group by TCP.  The order of the steps cannot deadlock: a connect succeeds as soon as
 * the peer listens (the kernel accepts for it), so all hellos go out before this rank accepts, and
 * the replies are read last.
 */
#include "common/collective/ring/ring_connect.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"
#include "common/collective/ring/ring_accept.h"
#include "common/collective/ring/ring_endpoint.h"
#include "common/collective/ring/ring_wire.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_SLICE_NS 250000000LL /* the first one */

/* What is needed to connect. */
struct joining {
    struct collective *group;
    int64_t deadline_ns;
    struct endpoint self;
    int listen_fd;
    struct ring_endpoint *endpoints; /* owned: of every rank */
    uint64_t *cookies;               /* owned: likewise */
    struct ring_connections *connections;
    bool tunable;
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

static enum status exchange_endpoints(struct joining *j, struct error *err)
{
    unsigned n = j->group->world_size;
    enum status status = mem_calloc(n, sizeof(*j->endpoints), "addresses", &j->endpoints, err);

    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*j->cookies), "cookies", &j->cookies, err);
    if (status == STATUS_OK)
        status = ring_endpoints_exchange(j->group, &j->self, j->group->streams, j->deadline_ns,
                                         j->endpoints, err);
    for (unsigned r = 0; r < n && status == STATUS_OK; r++)
        j->cookies[r] = j->endpoints[r].cookie;
    return status;
}

/* Does the link from `rank` to its right neighbour join two hosts? */
static bool leaves_host(const struct joining *j, unsigned rank)
{
    return j->endpoints[rank].host != j->endpoints[(rank + 1) % j->group->world_size].host;
}

static void count_streams(struct joining *j)
{
    const struct collective *g = j->group;
    unsigned left = (g->rank + g->world_size - 1) % g->world_size;

    for (unsigned r = 0; r < g->world_size; r++) {
        j->connections->counts[r] = g->streams > 0 ? g->streams : 1;
        j->connections->local[r] = j->endpoints[r].host == j->endpoints[g->rank].host;
        j->tunable |= g->streams == 0 && leaves_host(j, r);
    }
    if (g->streams == 0 && leaves_host(j, g->rank))
        j->connections->counts[(g->rank + 1) % g->world_size] = RING_STREAMS_TUNED;
    if (g->streams == 0 && leaves_host(j, left))
        j->connections->counts[left] = RING_STREAMS_TUNED;
}

static int *fd_of(const struct joining *j, unsigned peer, unsigned stream)
{
    return &j->connections->fds[peer * j->connections->stride + stream];
}

/* net_connect tries again while it is refused.  It is called for longer and longer times, and a
 * lost rank ends that. */
static enum status connect_unless_lost(const struct joining *j, const struct endpoint *e, int *fd,
                                       struct error *err)
{
    int64_t slice_ns = CONNECT_SLICE_NS;

    for (;;) {
        int64_t until_ns = clock_now_ns() + slice_ns;
        enum status status =
            net_connect(e, until_ns < j->deadline_ns ? until_ns : j->deadline_ns, fd, err);

        if (status != STATUS_UNREACHABLE || clock_now_ns() >= j->deadline_ns)
            return status;
        if (atomic_load(&j->group->setup_alarm->raised))
            return mesh_alarm_error(j->group->setup_alarm, err);
        slice_ns *= 2;
    }
}

static enum status connect_one(struct joining *j, unsigned peer, unsigned stream, struct error *err)
{
    struct ring_hello hello = hello_to(j, peer, stream);
    unsigned char bytes[RING_HELLO_BYTES];
    struct endpoint e = {.port = 0};
    int *fd = fd_of(j, peer, stream);
    enum status status = ring_endpoint_parse(&j->endpoints[peer], &j->self, &e, err);

    if (status != STATUS_OK)
        return status;
    status = connect_unless_lost(j, &e, fd, err);
    if (status != STATUS_OK)
        return status;
    ring_hello_encode(&hello, bytes);
    return net_send_all(*fd, bytes, sizeof(bytes), j->deadline_ns, err);
}

static enum status connect_lower(struct joining *j, struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned peer = 0; peer < j->group->rank && status == STATUS_OK; peer++) {
        for (unsigned s = 0; s < j->connections->counts[peer] && status == STATUS_OK; s++) {
            status = connect_one(j, peer, s, err);
            if (status != STATUS_OK)
                status = error_prefix(err, "to rank %u: ", j->group->members[peer]);
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
        net_recv_all(*fd_of(j, peer, stream), bytes, sizeof(bytes), j->deadline_ns, err);

    wanted.rank = peer;
    ring_hello_encode(&wanted, expected);
    if (status != STATUS_OK)
        return error_prefix(err, "no answer from rank %u: ", j->group->members[peer]);
    if (memcmp(bytes, expected, sizeof(bytes)) != 0)
        return error_set(err, STATUS_PROTOCOL, "what answered is not rank %u",
                         j->group->members[peer]);
    return STATUS_OK;
}

static enum status join_ranks(struct joining *j, struct error *err)
{
    struct collective *g = j->group;
    struct ring_hello self;
    enum status status = exchange_endpoints(j, err);

    if (status != STATUS_OK)
        return status;
    count_streams(j);
    status = connect_lower(j, err);
    if (status != STATUS_OK)
        return status;
    self = hello_to(j, g->rank, 0);
    status = ring_accept(j->listen_fd, &self, j->cookies, g->setup_alarm, j->deadline_ns,
                         j->connections, err);
    for (unsigned peer = 0; peer < g->rank && status == STATUS_OK; peer++)
        for (unsigned s = 0; s < j->connections->counts[peer] && status == STATUS_OK; s++)
            status = read_answer(j, peer, s, err);
    return status;
}

enum status ring_connect(struct collective *group, int64_t deadline_ns, struct ring_connections *c,
                         bool *ret_tunable, struct error *err)
{
    struct joining j = {.group = group,
                        .deadline_ns = deadline_ns,
                        .self = {.port = 0},
                        .listen_fd = -1,
                        .connections = c};
    enum status status;

    c->members = group->members;
    ring_choose_host(group, j.self.host);
    status = net_listen(&j.self, "the ring's interface", &j.listen_fd, &j.self.port, err);
    if (status == STATUS_OK)
        status = join_ranks(&j, err);
    if (j.listen_fd >= 0)
        (void)close(j.listen_fd);
    free(j.endpoints);
    free(j.cookies);
    if (status == STATUS_OK)
        *ret_tunable = j.tunable;
    return status;
}
