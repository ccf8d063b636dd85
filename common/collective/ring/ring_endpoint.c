/*
 * Exchange of the ranks' data addresses.  Addresses and cookies go through collective_exchange,
 * over the mesh: no store is needed.
 */
#include "common/collective/ring/ring_endpoint.h"

#include "common/collective/host_address.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void ring_choose_host(struct collective *group, char *host)
{
    host_address_choose(group->interface_host, group->store ? store_address(group->store) : "",
                        host);
    if (strlen(host) < sizeof(group->interface_host))
        (void)snprintf(group->interface_host, sizeof(group->interface_host), "%s", host);
}

enum status ring_endpoints_exchange(struct collective *group, const struct endpoint *self,
                                    unsigned streams, int64_t deadline_ns,
                                    struct ring_endpoint *ret_endpoints, struct error *err)
{
    struct ring_endpoint mine = {.streams = streams, .host = signature_group_id(group->host_id)};
    enum status status;

    if (getrandom(&mine.cookie, sizeof(mine.cookie), 0) != (ssize_t)sizeof(mine.cookie))
        return error_set_errno(err, errno, "cannot draw a cookie");
    endpoint_format(self, mine.address, sizeof(mine.address));
    status = collective_exchange(group, "ring addresses", &mine, sizeof(mine), ret_endpoints,
                                 deadline_ns, err);
    for (unsigned r = 0; r < group->world_size && status == STATUS_OK; r++) {
        struct ring_endpoint *endpoint = &ret_endpoints[r];

        endpoint->address[sizeof(endpoint->address) - 1] = '\0';
        if (endpoint->streams != streams)
            status = error_set(
                err, STATUS_MISMATCH,
                "rank %u wants %" PRIu32 " streams (0: tuned), this rank %u wants %u",
                group->members[r], endpoint->streams, group->members[group->rank], streams);
    }
    return status;
}

enum status ring_endpoint_parse(const struct ring_endpoint *endpoint, const struct endpoint *self,
                                struct endpoint *ret, struct error *err)
{
    enum status status = endpoint_parse(endpoint->address, "its address", ret, err);

    if (status == STATUS_OK && endpoint_is_loopback(ret) && !endpoint_is_loopback(self))
        status = error_set(err, STATUS_CONFIG,
                           "it published the loopback address %s, which this host (%s) cannot "
                           "reach: give that rank its interface",
                           ret->host, self->host);
    return status;
}
