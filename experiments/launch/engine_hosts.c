/*
 * engine_hosts: which hosts a job with an engine has, and which options it cannot have.
 */
#include "experiments/launch/engine_hosts.h"

#include "common/base/parse.h"
#include "experiments/launch/placement.h"

#include <stdio.h>
#include <string.h>

#define MASTER_PORT 29500
#define SERVER_PORT 5757 /* of the first server */
#define LOOPBACK    "127.0.0.1"

/* What the hosts of an engine cannot have, or what the engine does itself. */
static enum status check_options(const struct plan *p, struct error *err)
{
    const struct plan_options *o = &p->options;
    const char *rival = p->nodes > 1                               ? "--nnodes"
                        : o->standalone                            ? "--standalone"
                        : strcmp(o->master_addr, LOOPBACK) != 0    ? "--master-addr"
                        : network_options_given(&o->network)       ? "--network-..."
                        : p->with_mpirun                           ? "--backend mpi"
                        : strcmp(o->server_transport, "unix") == 0 ? "--server-transport unix"
                        : o->server_addresses[0] != '\0'           ? "--server-addresses"
                        : strcmp(o->bind, "none") != 0             ? "--bind"
                        : strchr(o->interface, ',')                ? "a list of --interface"
                        : o->pass_local_rank                       ? "--pass-local-rank"
                        : o->fault_schedule[0] != '\0'             ? "--fault-schedule"
                        : p->tolerates_rank_loss                   ? "--on-rank-loss"
                                                                   : NULL;

    return !rival ? STATUS_OK
                  : error_set(err, STATUS_UNSUPPORTED, "--on %s and %s exclude each other",
                              p->hosts.engine->name, rival);
}

enum status engine_hosts_read(struct plan *p, struct error *err)
{
    struct hosts *h = &p->hosts;
    struct text_list names = {0};
    struct strbuf list = STRBUF_INIT;
    enum status status = engine_find(p->options.on, &h->engine, err);

    if (status != STATUS_OK)
        return status;
    if (!h->engine && (p->options.hosts[0] != '\0' || p->options.dry_run))
        return error_set(err, STATUS_INVALID, "%s",
                         p->options.dry_run ? "--dry-run goes with --on kubernetes"
                                            : "--hosts goes with --on, such as --on slurm");
    if (!h->engine || !h->engine->writes_manifests)
        status = kubernetes_check_unused(&p->options.kubernetes, err);
    if (!h->engine || status != STATUS_OK)
        return status;
    if (p->options.dry_run != h->engine->writes_manifests)
        return error_set(err, STATUS_UNSUPPORTED, KUBERNETES_DRY_RUN);
    (void)snprintf(h->names, sizeof(h->names), "%s", p->options.hosts);
    if (h->names[0] != '\0' || h->engine->writes_manifests)
        return STATUS_OK;
    status = h->engine->read_hosts(p->options.on, &names, err);
    for (size_t i = 0; i < names.length; i++)
        strbuf_addf(&list, "%s%s", i > 0 ? "," : "", names.texts[i]);
    if (status == STATUS_OK && (!strbuf_ok(&list) || list.length >= sizeof(h->names)))
        status = error_set(err, STATUS_UNSUPPORTED,
                           "the names of %zu hosts are too long; --hosts names those to use",
                           names.length);
    if (status == STATUS_OK)
        (void)snprintf(h->names, sizeof(h->names), "%s", list.text);
    strbuf_release(&list);
    text_list_release(&names);
    return status;
}

enum status engine_hosts_check(struct plan *p, struct error *err)
{
    struct hosts *h = &p->hosts;
    const unsigned there = parse_list_length(h->names);
    enum status status;

    if (!h->engine)
        return STATUS_OK;
    status = check_options(p, err);
    if (p->master_port == 0) /* on the first host nobody looks for a free one */
        p->master_port = MASTER_PORT;
    if (p->options.server_port == 0)
        p->options.server_port = SERVER_PORT;
    if (status != STATUS_OK || h->engine->writes_manifests)
        return status;
    if (there < h->count)
        return error_set(err, STATUS_CONFIG,
                         "the job takes %u hosts, %u of them for ranks, and there are %u: '%s'",
                         h->count, h->workers, there, h->names);
    placement_host_address(p, 0, h->master_addr, sizeof(h->master_addr));
    p->master_addr = h->master_addr;
    p->has_one_child = !h->engine->has_single_tasks;
    return STATUS_OK;
}
