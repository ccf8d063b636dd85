/*
 * The order of the steps cannot deadlock: a connect succeeds as soon as the right neighbour
 * listens (the kernel accepts for it), so hello goes out before this rank accepts, and the answer
 * is read last.
 */
#include "common/collective/ring_connect.h"

#include "common/base/clock.h"
#include "common/base/net.h"
#include "common/collective/host_address.h"
#include "common/collective/ring_accept.h"
#include "common/collective/ring_wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- through the store ---- */

static void address_key(const struct collective *group, unsigned rank, char *key, size_t size)
{
    (void)snprintf(key, size, "%s/address/%u", group->name, rank);
}

static enum status publish(const struct collective *group, const struct endpoint *self,
                           struct error *err)
{
    char key[256];
    char text[300];

    address_key(group, group->rank, key, sizeof(key));
    endpoint_format(self, text, sizeof(text));
    return store_set(group->store, key, text, strlen(text), err);
}

static enum status look_up(const struct collective *group, unsigned rank, int64_t deadline_ns,
                           struct endpoint *ret, struct error *err)
{
    char key[256];
    char *text = NULL;
    size_t size;
    enum status status;

    address_key(group, rank, key, sizeof(key));
    status = store_get(group->store, key, clock_left_ms(deadline_ns), &text, &size, err);
    if (status != STATUS_OK)
        return status;
    status = endpoint_parse(text, "address in the store", ret, err);
    free(text);
    return status;
}

/* ---- the neighbours ---- */

/* Wait until every rank has published its address, so that all ranks name the one that is missing,
 * not a neighbour that waits for it; *ret_right is where the right neighbour listens. */
static enum status gather(const struct collective *group, int64_t deadline_ns,
                          struct endpoint *ret_right, struct error *err)
{
    unsigned right = (group->rank + 1) % group->world_size;

    for (unsigned r = 0; r < group->world_size; r++) {
        struct endpoint peer;
        enum status status = look_up(group, r, deadline_ns, &peer, err);

        if (status != STATUS_OK)
            return error_prefix(err, "rank %u has not published its address: ", r);
        if (r == right)
            *ret_right = peer;
    }
    return STATUS_OK;
}

static enum status connect_right(const struct collective *group, const struct endpoint *self,
                                 const struct ring_hello *hello, int64_t deadline_ns, int *ret_fd,
                                 struct error *err)
{
    unsigned right = (group->rank + 1) % group->world_size;
    unsigned char bytes[RING_HELLO_BYTES];
    struct endpoint peer = {.port = 0};
    enum status status = gather(group, deadline_ns, &peer, err);

    if (status != STATUS_OK)
        return status;
    if (endpoint_is_loopback(&peer) && !endpoint_is_loopback(self))
        return error_set(err, STATUS_CONFIG,
                         "rank %u published the loopback address %s, which this host (%s) cannot "
                         "reach: give that rank its interface",
                         right, peer.host, self->host);
    status = net_connect(&peer, deadline_ns, ret_fd, err);
    if (status == STATUS_OK) {
        ring_hello_encode(hello, bytes);
        status = net_send_all(*ret_fd, bytes, sizeof(bytes), deadline_ns, err);
    }
    return status == STATUS_OK ? STATUS_OK : error_prefix(err, "to rank %u: ", right);
}

static enum status answer_left(const struct ring_hello *hello, int fd, int64_t deadline_ns,
                               struct error *err)
{
    unsigned char bytes[RING_HELLO_BYTES];

    ring_hello_encode(hello, bytes);
    return net_send_all(fd, bytes, sizeof(bytes), deadline_ns, err);
}

static enum status read_answer(const struct ring_hello *hello, int fd, int64_t deadline_ns,
                               struct error *err)
{
    uint32_t right = (hello->rank + 1) % hello->world_size;
    unsigned char bytes[RING_HELLO_BYTES];
    struct ring_hello answer;
    enum status status = net_recv_all(fd, bytes, sizeof(bytes), deadline_ns, err);

    if (status != STATUS_OK)
        return error_prefix(err, "no answer from rank %" PRIu32 ": ", right);
    if (!ring_hello_decode(bytes, &answer) || answer.group != hello->group ||
        answer.rank != right || answer.world_size != hello->world_size)
        return error_set(err, STATUS_PROTOCOL, "what answered is not rank %" PRIu32 " of %" PRIu32,
                         right, hello->world_size);
    return STATUS_OK;
}

static enum status join(const struct collective *group, int listen_fd, const struct endpoint *self,
                        int64_t deadline_ns, int *right_fd, int *left_fd, struct error *err)
{
    struct ring_hello hello = {
        .group = ring_group_id(group->name), .rank = group->rank, .world_size = group->world_size};
    struct ring_hello left = hello;
    enum status status = publish(group, self, err);

    left.rank = (group->rank + group->world_size - 1) % group->world_size;
    if (status == STATUS_OK)
        status = connect_right(group, self, &hello, deadline_ns, right_fd, err);
    if (status == STATUS_OK)
        status = ring_accept(listen_fd, &left, deadline_ns, left_fd, err);
    if (status == STATUS_OK)
        status = answer_left(&hello, *left_fd, deadline_ns, err);
    if (status == STATUS_OK)
        status = read_answer(&hello, *right_fd, deadline_ns, err);
    return status;
}

enum status ring_connect(const struct collective *group, int64_t deadline_ns, int *ret_right_fd,
                         int *ret_left_fd, struct error *err)
{
    struct endpoint self = {.port = 0};
    int listen_fd = -1;
    int right_fd = -1;
    int left_fd = -1;
    enum status status;

    host_address_choose(group->interface_host, store_address(group->store), self.host);
    status = net_listen(&self, "the ring's interface", &listen_fd, &self.port, err);
    if (status == STATUS_OK)
        status = join(group, listen_fd, &self, deadline_ns, &right_fd, &left_fd, err);
    if (listen_fd >= 0)
        (void)close(listen_fd);
    if (status == STATUS_OK) {
        *ret_right_fd = right_fd;
        *ret_left_fd = left_fd;
        return STATUS_OK;
    }
    if (right_fd >= 0)
        (void)close(right_fd);
    if (left_fd >= 0)
        (void)close(left_fd);
    return status;
}
