/*
 * The address to publish: the one given, or that of the named interface, or the local address of a
 * socket that is routed to the store's host.  A host whose own name is a loopback address in
 * /etc/hosts (Debian's 127.0.1.1) would publish an address that other hosts cannot reach; the first
 * non-loopback interface is used instead.  No state.
 */
#include "common/collective/host_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOPBACK "127.0.0.1"

/* Is this the named interface, or (name NULL) any interface but loopback? */
static bool is_usable_interface(const struct ifaddrs *a, const char *name)
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
        if (is_usable_interface(a, name))
            found = getnameinfo(a->ifa_addr,
                                a->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                                  : sizeof(struct sockaddr_in6),
                                host, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0;
    freeifaddrs(list);
    return found;
}

/* The local address of a datagram socket that is connected to `e`: nothing is sent. */
static bool local_address_towards(const struct endpoint *e, char *host, size_t size)
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

void host_address_choose(const char *wanted, const char *store, char *host)
{
    static const char tcp[] = "tcp://";
    struct endpoint store_end;
    struct endpoint self = {.host = LOOPBACK};

    if (wanted && wanted[0] != '\0') {
        if (!interface_address(wanted, self.host, sizeof(self.host)))
            (void)snprintf(self.host, sizeof(self.host), "%s", wanted);
    } else if (strncmp(store, tcp, sizeof(tcp) - 1) == 0 &&
               endpoint_parse(store + sizeof(tcp) - 1, "store", &store_end, NULL) == STATUS_OK &&
               !endpoint_is_loopback(&store_end)) {
        if (local_address_towards(&store_end, self.host, sizeof(self.host)) &&
            endpoint_is_loopback(&self))
            (void)interface_address(NULL, self.host, sizeof(self.host));
    }
    memcpy(host, self.host, sizeof(self.host));
}
