/*
 * placement: computes how many servers a job has and which of them this node starts, checks the
 * options against each other, and derives the addresses and shares.  Pure functions, no state.
 */
#include "experiments/launch/placement.h"

#include "common/base/memory.h"
#include "common/base/net.h"
#include "common/base/parse.h"
#include "common/shard_map/shard_map.h"
#include "experiments/network/network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVERS_MAX 256

static enum status check_colocated(const struct plan *p, struct error *err)
{
    const struct plan_options *o = &p->options;
    unsigned addresses = parse_list_length(o->node_addresses);

    if (p->nodes > 1 && addresses != p->nodes)
        return error_set(err, STATUS_INVALID,
                         "--server-placement %s on %u nodes needs --node-addresses with an address "
                         "of each, in order; there are %u",
                         o->server_placement, p->nodes, addresses);
    return STATUS_OK;
}

/* Of an emulated network, or of an engine. */
static bool has_hosts(const struct plan *p)
{
    return network_options_given(&p->options.network) || p->hosts.engine;
}

/* Hosts that have ranks, as far as this command line says. */
static unsigned worker_hosts(const struct plan *p)
{
    unsigned per_host = (unsigned)p->options.ranks_per_host;

    if (p->nodes > 1)
        return p->nodes;
    return has_hosts(p) ? (p->ranks + per_host - 1) / per_host : p->ranks;
}

static enum status read_colocated(struct plan *p, struct error *err)
{
    const struct plan_options *o = &p->options;

    if (o->server_addresses[0] != '\0')
        return error_set(err, STATUS_INVALID,
                         "--server-placement colocated and --server-addresses exclude each other");
    if (p->nodes > 1 && o->servers > 0)
        return error_set(err, STATUS_INVALID,
                         "--server-placement colocated on several nodes is one server on each: "
                         "--servers is for one node, or for mixed");
    p->placement.colocated = o->servers > 0 ? (unsigned)o->servers : worker_hosts(p);
    return check_colocated(p, err);
}

static enum status read_mixed(struct plan *p, struct error *err)
{
    struct placement *m = &p->placement;

    m->dedicated = (unsigned)p->options.servers;
    m->given = parse_list_length(p->options.server_addresses);
    if (m->dedicated + m->given == 0)
        return error_set(err, STATUS_INVALID,
                         "--server-placement mixed needs --servers or --server-addresses for the "
                         "servers that stand alone");
    m->hosts = worker_hosts(p);
    /* From as many on, those beside the ranks would hold nothing. */
    m->colocated = m->dedicated + m->given < m->hosts ? m->hosts : 0;
    return check_colocated(p, err);
}

static enum status check_ports(const struct plan *p, struct error *err)
{
    const struct plan_options *o = &p->options;
    unsigned started = p->placement.colocated + p->placement.dedicated;

    if (started == 0 && o->server_port > 0)
        return error_set(err, STATUS_INVALID, "--server-port needs --servers");
    if (started == 0)
        return STATUS_OK;
    if (strcmp(o->server_transport, "unix") == 0 && (p->nodes > 1 || o->server_port > 0))
        return error_set(err, STATUS_INVALID,
                         "--server-transport unix is for one node, and excludes --server-port");
    if (p->nodes > 1 && o->server_port == 0)
        return error_set(err, STATUS_INVALID,
                         "--servers on several nodes needs --server-port, so that every node knows "
                         "the addresses");
    if (o->server_port + started - 1 > 65535)
        return error_set(err, STATUS_INVALID, "%u servers from --server-port %jd go beyond 65535",
                         started, (intmax_t)o->server_port);
    if (placement_own_count(p) > SERVERS_MAX)
        return error_set(err, STATUS_INVALID, "%u servers on one node, allowed are %d",
                         placement_own_count(p), SERVERS_MAX);
    return STATUS_OK;
}

static enum status read_replicas(struct plan *p, struct error *err)
{
    struct placement *m = &p->placement;

    if (!p->options.replicas)
        return STATUS_OK;
    if (p->nodes > 1 || m->given > 0 || m->colocated + m->dedicated == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "--replicas is for servers that are started here, with one node; for "
                         "others, start the replicas yourself and name them with the worker's "
                         "--replicas");
    m->replicas = m->colocated + m->dedicated;
    return STATUS_OK;
}

enum status placement_read(struct plan *p, struct error *err)
{
    const struct plan_options *o = &p->options;
    enum status status = STATUS_OK;

    if (o->servers > 0 && o->server_addresses[0] != '\0')
        return error_set(err, STATUS_INVALID,
                         "--servers and --server-addresses exclude each other");
    if (strcmp(o->server_placement, "colocated") == 0) {
        status = read_colocated(p, err);
    } else if (strcmp(o->server_placement, "mixed") == 0) {
        status = read_mixed(p, err);
    } else {
        p->placement.dedicated = (unsigned)o->servers;
        p->placement.given = parse_list_length(o->server_addresses);
    }
    if (status == STATUS_OK)
        status = read_replicas(p, err);
    if (status == STATUS_OK && has_hosts(p)) {
        p->hosts.workers = worker_hosts(p);
        p->hosts.count = worker_hosts(p) + p->placement.dedicated + p->placement.replicas;
    }
    return status == STATUS_OK ? check_ports(p, err) : status;
}

unsigned placement_own_count(const struct plan *p)
{
    const struct placement *m = &p->placement;

    if (p->nodes == 1)
        return m->colocated + m->dedicated + m->replicas;
    return (m->colocated > 0) + (p->node_rank == 0 ? m->dedicated : 0);
}

unsigned placement_own(const struct plan *p, unsigned local)
{
    const struct placement *m = &p->placement;

    if (p->nodes == 1 || m->colocated == 0)
        return local;
    return local == 0 ? p->node_rank : m->colocated + local - 1;
}

struct placement_rank placement_rank(const struct plan *p, unsigned local)
{
    unsigned per_host = (unsigned)p->options.ranks_per_host;
    unsigned host = local / per_host, left = p->ranks - host * per_host;

    if (p->hosts.count == 0)
        return (struct placement_rank){p->node_rank, p->nodes, local, p->ranks};
    return (struct placement_rank){host, p->hosts.workers, local % per_host,
                                   left < per_host ? left : per_host};
}

unsigned placement_server_host(const struct plan *p, unsigned local)
{
    unsigned colocated = p->placement.colocated, hosts = p->hosts.workers;

    return local < colocated ? local % hosts : hosts + local - colocated;
}

void placement_host_name(const struct plan *p, unsigned host, char *text, size_t size)
{
    placement_entry(p->hosts.names, host, text, size);
}

void placement_host_address(const struct plan *p, unsigned host, char *text, size_t size)
{
    char *port;

    if (!p->hosts.engine) {
        network_address(host, text, size);
        return;
    }
    placement_host_name(p, host, text, size);
    port = strrchr(text, ':');
    if (port && strchr(text, ':') == port)
        *port = '\0';
}

void placement_entry(const char *list, unsigned index, char *text, size_t size)
{
    unsigned count = parse_list_length(list);
    size_t length;

    for (index = count > 0 ? index % count : 0; index > 0; index--)
        list += strcspn(list, ",") + 1;
    length = strcspn(list, ",");
    if (length >= 2 && list[0] == '[' && list[length - 1] == ']') {
        list++;
        length -= 2;
    }
    (void)snprintf(text, size, "%.*s", (int)length, list);
}

void placement_address(const struct plan *p, unsigned index, struct strbuf *addresses)
{
    struct endpoint endpoint = {.port = (uint16_t)(p->options.server_port + (int64_t)index)};
    char text[300];

    if (index < p->placement.colocated)
        placement_entry(p->options.node_addresses, index, endpoint.host, sizeof(endpoint.host));
    else
        (void)snprintf(endpoint.host, sizeof(endpoint.host), "%.255s", p->master_addr);
    endpoint_format(&endpoint, text, sizeof(text));
    strbuf_addf(addresses, "%s%s", addresses->length > 0 ? "," : "", text);
}

enum status placement_weights(const struct plan *p, struct strbuf *weights, struct error *err)
{
    unsigned n = p->placement.hosts, k = p->placement.dedicated + p->placement.given;
    uint32_t *shares;
    enum status status;

    if (p->placement.colocated == 0 || n == 0)
        return STATUS_OK;
    status = mem_calloc(n + k, sizeof(*shares), "weights of servers", &shares, err);
    if (status != STATUS_OK)
        return status;
    shard_map_mixed_weights(n, k, shares);
    for (unsigned i = 0; i < n + k; i++)
        strbuf_addf(weights, "%s%u", i > 0 ? "," : "", shares[i]);
    free(shares);
    return STATUS_OK;
}

const cpu_set_t *placement_processors(const struct plan *p, bool is_server, unsigned local,
                                      cpu_set_t *set)
{
    unsigned servers = placement_own_count(p);

    if (p->topology.count == 0)
        return NULL;
    if (strcmp(p->options.bind, "core") == 0)
        binding_by_core(&p->topology, is_server ? p->ranks + local : local, p->ranks + servers,
                        set);
    else
        binding_by_node(&p->topology, local, is_server ? servers : p->ranks, set);
    return set;
}
