/*
 * tcp_ceiling: one poll loop over two non-blocking sockets, like the ring's, but with payload only.
 */
#include "experiments/bench/tcp_ceiling.h"

#include "common/base/clock.h"
#include "common/base/net.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)512 << 10) /* as the ring's segments */

static void address_key(unsigned rank, char *key, size_t size)
{
    (void)snprintf(key, size, "ceiling/address/%u", rank);
}

static enum status find_right(struct store *store, int64_t timeout_ms, struct endpoint *ret,
                              struct error *err)
{
    char key[64];
    char *text = NULL;
    size_t size;
    enum status status;

    address_key((store_rank(store) + 1) % store_world_size(store), key, sizeof(key));
    status = store_get(store, key, timeout_ms, &text, &size, err);
    if (status == STATUS_OK)
        status = endpoint_parse(text, key, ret, err);
    free(text);
    return status;
}

enum status tcp_ceiling_open(struct tcp_ceiling *c, struct store *store, const char *host,
                             int64_t timeout_ms, struct error *err)
{
    struct endpoint self = {.port = 0};
    struct endpoint right = self;
    int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    char key[64];
    char text[300];
    int listen_fd = -1;
    enum status status;

    (void)snprintf(self.host, sizeof(self.host), "%s", host);
    status = net_listen(&self, "ceiling", &listen_fd, &self.port, err);
    *c = (struct tcp_ceiling){
        .right_fd = -1, .left_fd = -1, .is_local = endpoint_is_loopback(&self) != 0};
    if (status != STATUS_OK)
        return status;
    address_key(store_rank(store), key, sizeof(key));
    endpoint_format(&self, text, sizeof(text));
    status = store_set(store, key, text, strlen(text), err);
    if (status == STATUS_OK)
        status = find_right(store, timeout_ms, &right, err);
    if (status == STATUS_OK)
        status = net_connect(&right, deadline_ns, &c->right_fd, err);
    if (status == STATUS_OK)
        status = net_accept(listen_fd, deadline_ns, &c->left_fd, err);
    (void)close(listen_fd);
    if (status != STATUS_OK)
        tcp_ceiling_close(c);
    return status;
}

/* Contiguous bytes of the buffer from position `done` on, at most PIECE_BYTES. */
static size_t piece_bytes(size_t size, uint64_t amount, uint64_t done)
{
    size_t at = (size_t)(done % size);
    uint64_t left = amount - done;
    size_t bytes = size - at < PIECE_BYTES ? size - at : PIECE_BYTES;

    return left < bytes ? (size_t)left : bytes;
}

/* Add the result of a send or receive to *done; a call that would have blocked adds nothing. */
static enum status count_transfer(ssize_t result, uint64_t *done, struct error *err)
{
    if (result > 0)
        *done += (uint64_t)result;
    else if (result == 0 || errno == EPIPE || errno == ECONNRESET)
        return error_set(err, STATUS_PEER_LOST, "ceiling-tcp: a neighbour is gone");
    else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        return error_set_errno(err, errno, "ceiling-tcp");
    return STATUS_OK;
}

enum status tcp_ceiling_run(const struct tcp_ceiling *c, void *data, size_t size, uint64_t amount,
                            int64_t timeout_ms, struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    unsigned char *bytes = data;
    uint64_t sent = 0;
    uint64_t received = 0;
    enum status status = STATUS_OK;

    while (status == STATUS_OK && (sent < amount || received < amount)) {
        uint64_t sent_before = sent;
        uint64_t received_before = received;

        if (sent < amount)
            status = count_transfer(send(c->right_fd, bytes + sent % size,
                                         piece_bytes(size, amount, sent), MSG_NOSIGNAL),
                                    &sent, err);
        if (status == STATUS_OK && received < amount)
            status = count_transfer(
                recv(c->left_fd, bytes + received % size, piece_bytes(size, amount, received), 0),
                &received, err);
        if (c->is_local)
            net_limit_local_window(c->left_fd, received_before, received);
        if (status == STATUS_OK && sent == sent_before && received == received_before) {
            struct pollfd fds[2] = {{.fd = sent < amount ? c->right_fd : -1, .events = POLLOUT},
                                    {.fd = received < amount ? c->left_fd : -1, .events = POLLIN}};
            int left_ms = clock_left_ms(deadline_ns);

            if (poll(fds, 2, left_ms) == 0 && left_ms == 0)
                status = error_set(err, STATUS_TIMEOUT, "ceiling-tcp: no byte before the deadline");
        }
    }
    return status;
}

void tcp_ceiling_close(struct tcp_ceiling *c)
{
    if (c->right_fd >= 0)
        (void)close(c->right_fd);
    if (c->left_fd >= 0)
        (void)close(c->left_fd);
    c->right_fd = c->left_fd = -1;
}
