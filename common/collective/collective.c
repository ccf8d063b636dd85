/*
 * The backend table, and groups from open to close.  Pure queries are in collective_facts.c,
 * operations in collective_work.c.
 */
#include "common/collective/collective.h"

#include "common/base/clock.h"
#include "common/base/host_id.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "common/base/wait.h"
#include "common/collective/collective_blocking.h"
#include "common/collective/collective_ops.h"
#include "common/collective/flight/flight.h"
#include "common/collective/host_address.h"
#include "common/collective/verdict.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SPARRING_HAVE_GLOO
#define WITH_GLOO(X) X(gloo)
#else
#define WITH_GLOO(X)
#endif
#ifdef SPARRING_HAVE_MPI
#define WITH_MPI(X) X(mpi)
#else
#define WITH_MPI(X)
#endif
#define BACKENDS(X) X(ring) X(grpc) X(shm) X(hier) X(nccl) WITH_GLOO(X) WITH_MPI(X)
#define OPS(name)   &collective_##name##_ops,
#define NAME(name)  #name,

static const struct collective_ops *const backends[] = {BACKENDS(OPS)};

#define BACKEND_COUNT (sizeof(backends) / sizeof(backends[0]))

const char *const *collective_backends(void)
{
    static const char *const names[] = {BACKENDS(NAME) NULL};

    return names;
}

/* ---- opening ---- */

static const struct collective_ops *find_backend(const char *name)
{
    for (size_t i = 0; i < BACKEND_COUNT; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

static enum status unknown_backend(const char *name, struct error *err)
{
    struct strbuf known = STRBUF_INIT;

    for (const char *const *known_name = collective_backends(); *known_name; known_name++)
        strbuf_addf(&known, "%s%s", known.length > 0 ? ", " : "", *known_name);
    (void)error_set(err, STATUS_CONFIG, "unknown collective backend '%s'; this build has %s", name,
                    known.text);
    strbuf_release(&known);
    return STATUS_CONFIG;
}

static void copy_text(char *to, size_t size, const char *text)
{
    (void)snprintf(to, size, "%s", text ? text : "");
}

/* members: ranks of the job, NULL: all of them; config->rank counts among them. */
static enum status init_group_head(struct collective *g, const struct collective_config *config,
                                   const unsigned *members, struct error *err)
{
    char host[HOST_ADDRESS_SIZE];
    enum status status;

    copy_text(g->name, sizeof(g->name), config->name);
    host_id_find(config->host_id, g->host_id);
    host_address_choose(config->interface_host, config->store ? store_address(config->store) : "",
                        host);
    copy_text(g->interface_host, sizeof(g->interface_host), host);
    copy_text(g->transport, sizeof(g->transport), config->transport ? config->transport : "tcp");
    g->id = signature_group_id(config->name);
    g->generation = 1;
    g->rank = config->rank;
    g->world_size = config->world_size;
    g->timeout_ms = config->timeout_ms;
    g->heartbeat_timeout_ms =
        config->heartbeat_timeout_ms > 0 ? config->heartbeat_timeout_ms : 1500;
    g->streams = config->streams;
    g->segment_bytes = config->segment_bytes;
    g->security = config->security;
    g->store = config->store;
    g->mesh = config->mesh;
    g->flight = config->flight;
    g->culprit = -1;
    status = mem_calloc(g->world_size, sizeof(*g->members), "members", &g->members, err);
    if (status == STATUS_OK)
        status = mem_calloc(g->world_size, sizeof(*g->sent), "sequences", &g->sent, err);
    if (status == STATUS_OK)
        status = mem_calloc(g->world_size, sizeof(*g->received), "sequences", &g->received, err);
    if (status == STATUS_OK)
        status = mem_calloc(g->world_size, sizeof(*g->views), "views", &g->views, err);
    if (status == STATUS_OK)
        status = mem_calloc(g->world_size, sizeof(*g->left), "leavers", &g->left, err);
    if (status == STATUS_OK)
        status =
            mem_calloc_aligned(COLLECTIVE_WORKS_MAX, sizeof(*g->works), "works", &g->works, err);
    for (unsigned r = 0; r < g->world_size && status == STATUS_OK; r++)
        g->members[r] = members ? members[r] : r;
    if (status == STATUS_OK && !g->flight) {
        const struct flight_config memory = {.rank = g->rank, .world_size = g->world_size};

        status = flight_open(&memory, &g->flight, err);
        g->owns_flight = status == STATUS_OK;
    }
    return status;
}

static void free_group_head(struct collective *g)
{
    if (g->owns_flight)
        flight_close(g->flight);
    free(g->members);
    free(g->views);
    free(g->left);
    free(g->sent);
    free(g->received);
    free(g->works);
    free(g);
}

enum status collective_exchange(struct collective *group, const char *what, const void *mine,
                                size_t size, void *all, int64_t deadline_ns, struct error *err)
{
    char tag[MESH_TAG_MAX];
    enum status status;

    if (group->world_size == 1) {
        if (size > 0)
            memmove(all, mine, size);
        return STATUS_OK;
    }
    (void)snprintf(tag, sizeof(tag), "%016" PRIx64 "/%u/%s", group->id, group->generation, what);
    status = mesh_exchange(group->mesh, group->members, group->world_size, tag, mine, size, all,
                           group->setup_alarm, deadline_ns, err);
    return status == STATUS_OK || !err ? status
                                       : error_prefix(err, "group '%s': %s: ", group->name, what);
}

static void publish_idle(const struct collective *g)
{
    struct mesh_status idle = {.group = g->id, .phase = MESH_IDLE, .since_ns = clock_now_ns()};

    idle.signature.generation = g->generation;
    mesh_publish(g->mesh, g->mesh_group_index, &idle);
}

/* Register the group with the mesh; open a mesh first where the caller has none. */
static enum status join_mesh(struct collective *g, const struct collective_config *config,
                             struct error *err)
{
    const struct mesh_config mesh = {.rank = g->rank,
                                     .world_size = g->world_size,
                                     .store = config->store,
                                     .name = g->name,
                                     .interface_host = g->interface_host,
                                     .timeout_ms = g->timeout_ms,
                                     .heartbeat_timeout_ms = g->heartbeat_timeout_ms};
    enum status status = STATUS_OK;

    if (g->world_size == 1)
        return STATUS_OK;
    if (!g->mesh) {
        status = mesh_open(&mesh, &g->mesh, err);
        if (status != STATUS_OK)
            return err ? error_prefix(err, "group '%s' of %u ranks: ", g->name, g->world_size)
                       : status;
        g->owns_mesh = true;
    }
    status = mesh_add_group(g->mesh, g->id, &g->mesh_group_index, err);
    if (status != STATUS_OK)
        return status;
    g->in_mesh = true;
    publish_idle(g);
    g->alarm = mesh_watch(g->mesh, g->mesh_group_index, g->generation, g->members, g->world_size);
    if (!g->alarm)
        return error_set(err, STATUS_NO_MEMORY, "no memory to watch %u ranks", g->world_size);
    if (!g->setup_alarm)
        g->setup_alarm = g->alarm;
    return STATUS_OK;
}

static void leave_mesh(struct collective *g)
{
    if (g->in_mesh)
        mesh_remove_group(g->mesh, g->mesh_group_index);
    if (g->owns_mesh)
        mesh_close(g->mesh);
}

/* ---- auto ---- */

/* What each rank contributes to the choice of `auto`; all ranks reach the same choice. */
struct auto_support {
    char host_id[HOST_ID_SIZE];
    char can_shm;
    char can_hier;
};

static bool is_backend_usable(const struct collective_ops *ops,
                              const struct collective_config *config)
{
    return ops && (!ops->check || ops->check(config, NULL) == STATUS_OK);
}

/* shm when all ranks share a host, hier when some do, else the ring. */
static const struct collective_ops *choose_by_hosts(const struct auto_support *supports,
                                                    unsigned count)
{
    bool can_shm = true;
    bool can_hier = true;
    bool all_share = true;
    bool some_share = false;

    for (unsigned r = 0; r < count; r++) {
        can_shm = can_shm && supports[r].can_shm;
        can_hier = can_hier && supports[r].can_hier;
        all_share = all_share && strcmp(supports[r].host_id, supports[0].host_id) == 0;
        for (unsigned s = 0; s < r; s++)
            some_share = some_share || strcmp(supports[r].host_id, supports[s].host_id) == 0;
    }
    if (all_share && can_shm)
        return find_backend("shm");
    if (some_share && can_hier)
        return find_backend("hier");
    return find_backend("ring");
}

static enum status choose_backend(struct collective *g, const struct collective_config *config,
                                  int64_t deadline_ns, struct error *err)
{
    struct auto_support mine = {.can_shm = is_backend_usable(find_backend("shm"), config),
                                .can_hier = is_backend_usable(find_backend("hier"), config)};
    struct auto_support *supports;
    enum status status = mem_calloc(g->world_size, sizeof(*supports), "supports", &supports, err);

    if (status != STATUS_OK)
        return status;
    copy_text(mine.host_id, sizeof(mine.host_id), g->host_id);
    status = collective_exchange(g, "auto", &mine, sizeof(mine), supports, deadline_ns, err);
    if (status == STATUS_OK)
        g->ops = choose_by_hosts(supports, g->world_size);
    free(supports);
    return status;
}

/* With auto the struct is allocated before the backend is chosen. */
static size_t largest_backend_size(void)
{
    size_t size = 0;

    for (size_t i = 0; i < BACKEND_COUNT; i++)
        if (backends[i]->size > size)
            size = backends[i]->size;
    return size;
}

/* The head is filled: join the mesh and connect the backend.  Frees g on failure. */
static enum status open_group(struct collective *g, const struct collective_config *config,
                              struct collective **ret_group, struct error *err)
{
    int64_t deadline_ns = clock_deadline_ns(config->timeout_ms);
    enum status status = join_mesh(g, config, err);

    if (status == STATUS_OK && !g->ops)
        status = choose_backend(g, config, deadline_ns, err);
    if (status == STATUS_OK && g->ops->unchecked && g->in_mesh) {
        status = mesh_keep_trail(g->mesh, g->mesh_group_index, err);
        g->keeps_trail = status == STATUS_OK;
    }
    if (status == STATUS_OK) {
        status = g->ops->open(g, deadline_ns, err);
        if (status != STATUS_OK)
            g->ops->close(g);
    }
    if (status != STATUS_OK) {
        leave_mesh(g);
        free_group_head(g);
        return status;
    }
    g->store = NULL;
    *ret_group = g;
    return STATUS_OK;
}

enum status collective_check(const struct collective_config *config, struct error *err)
{
    const struct collective_ops *ops = find_backend(config->backend);

    if (!ops && strcmp(config->backend, "auto") != 0)
        return unknown_backend(config->backend, err);
    if (config->world_size == 0 || config->rank >= config->world_size)
        return error_set(err, STATUS_CONFIG, "rank %u is not below the world size %u", config->rank,
                         config->world_size);
    return ops && ops->check ? ops->check(config, err) : STATUS_OK;
}

enum status collective_open(const struct collective_config *config, struct collective **ret_group,
                            struct error *err)
{
    const struct collective_ops *ops = find_backend(config->backend); /* NULL: auto */
    struct collective *g;
    struct wait wait;
    enum status status = collective_check(config, err);

    if (status == STATUS_OK)
        status = mem_calloc_aligned(1, ops ? ops->size : largest_backend_size(), "group", &g, err);
    if (status != STATUS_OK)
        return status;
    g->ops = ops;
    wait_begin(&wait, clock_deadline_ns(config->timeout_ms), "%u ranks to connect",
               config->world_size);
    status = init_group_head(g, config, NULL, err);
    if (status == STATUS_OK)
        status = open_group(g, config, ret_group, err);
    else
        free_group_head(g);
    wait_end(&wait);
    return status;
}

enum status collective_open_like(const struct collective *like, const struct collective_ops *ops,
                                 const char *name, uint32_t generation, const unsigned *members,
                                 unsigned count, struct collective **ret_group, struct error *err)
{
    struct collective_config config = {.name = name,
                                       .transport = like->transport,
                                       .interface_host = like->interface_host,
                                       .host_id = like->host_id,
                                       .world_size = count,
                                       .mesh = like->mesh,
                                       .flight = like->flight,
                                       .timeout_ms = like->timeout_ms,
                                       .heartbeat_timeout_ms = like->heartbeat_timeout_ms,
                                       .streams = like->streams,
                                       .segment_bytes = like->segment_bytes,
                                       .security = like->security};
    struct collective *g;
    enum status status;

    while (config.rank < count && members[config.rank] != like->members[like->rank])
        config.rank++;
    assert(config.rank < count);
    status = mem_calloc_aligned(1, ops->size, ops->name, &g, err);
    if (status != STATUS_OK)
        return status;
    g->ops = ops;
    status = init_group_head(g, &config, members, err);
    if (status != STATUS_OK) {
        free_group_head(g);
        return status;
    }
    g->generation = generation;
    if (like->ops->composite && ops != like->ops)
        g->setup_alarm = like->setup_alarm;
    return open_group(g, &config, ret_group, err);
}

static enum status check_subset(const struct collective *parent, const unsigned *ranks,
                                unsigned count, const char *name, struct error *err)
{
    if (count == 0)
        return error_set(err, STATUS_INVALID, "group '%s' has no ranks", name);
    for (unsigned i = 0; i < count; i++) {
        if (ranks[i] >= parent->world_size)
            return error_set(err, STATUS_INVALID, "group '%s': rank %u is not in group '%s' of %u",
                             name, ranks[i], parent->name, parent->world_size);
        if (i > 0 && ranks[i] <= ranks[i - 1])
            return error_set(err, STATUS_INVALID, "group '%s': its ranks do not ascend: %u, %u",
                             name, ranks[i - 1], ranks[i]);
    }
    return STATUS_OK;
}

enum status collective_new_group(struct collective *parent, const unsigned *ranks, unsigned count,
                                 const char *name, struct collective **ret_group, struct error *err)
{
    enum status status = check_subset(parent, ranks, count, name, err);
    unsigned *members;
    bool is_member = false;

    if (status == STATUS_OK && parent->failure.status != STATUS_OK)
        status = error_set(err, parent->failure.status, "group '%s' failed before: %s",
                           parent->name, parent->failure.text);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*members), "members", &members, err);
    if (status != STATUS_OK)
        return status;
    for (unsigned i = 0; i < count; i++) {
        members[i] = parent->members[ranks[i]];
        is_member = is_member || ranks[i] == parent->rank;
    }
    if (is_member)
        status = collective_open_like(parent, parent->ops, name, parent->generation, members, count,
                                      ret_group, err);
    else
        *ret_group = NULL;
    free(members);
    return status;
}

void collective_fail(struct collective *group, const struct error *why)
{
    if (group->failure.status != STATUS_OK)
        return;
    group->failure = *why;
    flight_fail(group->flight, group->fault, group->culprit, why->text);
}

enum status collective_finish(struct collective *group, struct error *err)
{
    struct error why = {0};

    if (!group->keeps_trail || group->failure.status != STATUS_OK ||
        verdict_check_trails(group, &why) == STATUS_OK)
        return STATUS_OK;
    collective_fail(group, &why);
    return error_set(err, why.status, "%s", why.text);
}

bool collective_close_backend(struct collective *group)
{
    if (group->is_backend_closed)
        return true;
    if (!collective_blocking_close(group))
        return false;
    group->ops->close(group);
    group->is_backend_closed = true;
    return true;
}

void collective_close(struct collective *group)
{
    struct error err = {0};

    if (!group)
        return;
    if (collective_finish(group, &err) != STATUS_OK)
        log_error("%s", err.text);
    if (!collective_close_backend(group))
        return; /* a library still works in its memory, and the process is about to end */
    leave_mesh(group);
    free_group_head(group);
}

/* The group has failed, because a member is lost. */
static void fail_with_loss(struct collective *g, struct error *why)
{
    for (unsigned r = 0; r < g->world_size && g->failure.status == STATUS_OK; r++) {
        enum fault fault = mesh_fault(g->mesh, g->members[r], NULL, 0);

        if (!fault_is_loss(fault))
            continue;
        g->fault = fault;
        g->culprit = (int)g->members[r];
        why->status = STATUS_PEER_LOST;
        collective_fail(g, why);
    }
}

enum status collective_register(struct collective *group, const struct shared_memory *memory,
                                struct error *err)
{
    struct error why = {0};
    enum status status;

    if (!group->ops->register_memory || group->world_size == 1)
        return STATUS_OK;
    status = group->ops->register_memory(group, memory, clock_deadline_ns(group->timeout_ms), &why);
    if (status == STATUS_OK)
        return STATUS_OK;
    if (collective_await_loss(group, group->members, group->world_size))
        fail_with_loss(group, &why);
    return error_set(err, status, "%s", why.text);
}
