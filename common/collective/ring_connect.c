/*
 * The order of the steps cannot deadlock: a connect succeeds as soon as the right neighbour
 * listens (the kernel accepts for it), so hello goes out before this rank accepts, and the answer
 * is read last.
 *
 * Which address to publish: the one given, or that of the named interface, or the local address of
 * a socket that is routed to the store's host.  A host whose own name is a loopback address in
 * /etc/hosts (Debian's 127.0.1.1) would publish an address that other hosts cannot reach; the first
 * interface that is no loopback stands in for it.
 */
#include "common/collective/ring_connect.h"

#include "common/base/clock.h"
#include "common/base/net.h"
#include "common/collective/ring_accept.h"
#include "common/collective/ring_wire.h"

#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOPBACK "127.0.0.1"

/* ---- the address of this rank ---- */

/* Is this the interface that is looked for: the named one, or (name NULL) any but loopback? */
static bool suits(const struct ifaddrs *a, const char *name)
{
    if (!a->ifa_addr || (a->ifa_flags & IFF_UP) == 0)
        return false;
    if (a->ifa_addr->sa_family != AF_INET && (!name || a->ifa_addr->sa_family != AF_INET6))
        return false;
    return name ? strcmp(a->ifa_name, name) == 0 : (a->ifa_flags & IFF_LOOPBACK) == 0;
}

/* Address of the interface `name`, or with NULL of the first that is no loopback. */
static bool interface_address(const char *name, char *host, size_t size)
{
    struct ifaddrs *list = NULL;
    bool found = false;

    if (getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *a = list; a && !found; a = a->ifa_next)
        if (suits(a, name))
            found = getnameinfo(a->ifa_addr,
                                a->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                                  : sizeof(struct sockaddr_in6),
                                host, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0;
    freeifaddrs(list);
    return found;
}

/* The local address of a datagram socket that is connected to `e`: nothing is sent. */
static bool route_to(const struct endpoint *e, char *host, size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *list = NULL;
    bool found = false;

    if (getaddrinfo(e->host, "9", &hints, &list) != 0)
        return false;
    for (const struct addrinfo *a = list; a && !found; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
            continue;
        found = connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
                net_local_host(fd, host, size, NULL) == STATUS_OK;
        (void)close(fd);
    }
    freeaddrinfo(list);
    return found;
}

static void choose_host(const struct collective_config *config, struct endpoint *self)
{
    static const char tcp[] = "tcp://";
    const char *address = store_address(config->store);
    struct endpoint store_end;

    if (config->interface_host && config->interface_host[0] != '\0') {
        if (!interface_address(config->interface_host, self->host, sizeof(self->host)))
            (void)snprintf(self->host, sizeof(self->host), "%s", config->interface_host);
        return;
    }
    (void)snprintf(self->host, sizeof(self->host), LOOPBACK);
    if (strncmp(address, tcp, sizeof(tcp) - 1) != 0 ||
        endpoint_parse(address + sizeof(tcp) - 1, "store", &store_end, NULL) != STATUS_OK ||
        endpoint_is_loopback(&store_end))
        return; /* a file or a store on loopback: all ranks are on this host */
    if (route_to(&store_end, self->host, sizeof(self->host)) && endpoint_is_loopback(self))
        (void)interface_address(NULL, self->host, sizeof(self->host));
}

/* ---- through the store ---- */

static void address_key(const struct collective_config *config, unsigned rank, char *key,
                        size_t size)
{
    (void)snprintf(key, size, "%s/address/%u", config->name, rank);
}

static enum status publish(const struct collective_config *config, const struct endpoint *self,
                           struct error *err)
{
    char key[256];
    char text[300];

    address_key(config, config->rank, key, sizeof(key));
    endpoint_format(self, text, sizeof(text));
    return store_set(config->store, key, text, strlen(text), err);
}

static enum status look_up(const struct collective_config *config, unsigned rank,
                           int64_t deadline_ns, struct endpoint *ret, struct error *err)
{
    char key[256];
    char *text = NULL;
    size_t size;
    enum status status;

    address_key(config, rank, key, sizeof(key));
    status = store_get(config->store, key, clock_left_ms(deadline_ns), &text, &size, err);
    if (status != STATUS_OK)
        return status;
    status = endpoint_parse(text, "address in the store", ret, err);
    free(text);
    return status;
}

/* ---- the neighbours ---- */

/* Wait until every rank has published its address, so that all ranks name the one that is missing,
 * not a neighbour that waits for it; *ret_right is where the right neighbour listens. */
static enum status gather(const struct collective_config *config, int64_t deadline_ns,
                          struct endpoint *ret_right, struct error *err)
{
    unsigned right = (config->rank + 1) % config->world_size;

    for (unsigned r = 0; r < config->world_size; r++) {
        struct endpoint peer;
        enum status status = look_up(config, r, deadline_ns, &peer, err);

        if (status != STATUS_OK)
            return error_prefix(err, "rank %u has not published its address: ", r);
        if (r == right)
            *ret_right = peer;
    }
    return STATUS_OK;
}

static enum status connect_right(const struct collective_config *config,
                                 const struct endpoint *self, const struct ring_hello *hello,
                                 int64_t deadline_ns, int *ret_fd, struct error *err)
{
    unsigned right = (config->rank + 1) % config->world_size;
    unsigned char bytes[RING_HELLO_BYTES];
    struct endpoint peer = {.port = 0};
    enum status status = gather(config, deadline_ns, &peer, err);

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

static enum status join(const struct collective_config *config, int listen_fd,
                        const struct endpoint *self, int64_t deadline_ns, int *right_fd,
                        int *left_fd, struct error *err)
{
    struct ring_hello hello = {.group = ring_group_id(config->name),
                               .rank = config->rank,
                               .world_size = config->world_size};
    struct ring_hello left = hello;
    enum status status = publish(config, self, err);

    left.rank = (config->rank + config->world_size - 1) % config->world_size;
    if (status == STATUS_OK)
        status = connect_right(config, self, &hello, deadline_ns, right_fd, err);
    if (status == STATUS_OK)
        status = ring_accept(listen_fd, &left, deadline_ns, left_fd, err);
    if (status == STATUS_OK)
        status = answer_left(&hello, *left_fd, deadline_ns, err);
    if (status == STATUS_OK)
        status = read_answer(&hello, *right_fd, deadline_ns, err);
    return status;
}

enum status ring_connect(const struct collective_config *config, int64_t deadline_ns,
                         int *ret_right_fd, int *ret_left_fd, struct error *err)
{
    struct endpoint self = {.port = 0};
    int listen_fd = -1;
    int right_fd = -1;
    int left_fd = -1;
    enum status status;

    choose_host(config, &self);
    status = net_listen(&self, "the ring's interface", &listen_fd, &self.port, err);
    if (status == STATUS_OK)
        status = join(config, listen_fd, &self, deadline_ns, &right_fd, &left_fd, err);
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
