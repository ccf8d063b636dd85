/*
 * The backend table and the checks that hold for every backend.  No locks: one caller at a time
 * per group.
 */
#include "common/collective/collective.h"

#include "common/base/strbuf.h"
#include "common/collective/collective_ops.h"

#include <assert.h>
#include <string.h>

/* The first one is "auto". */
static const struct collective_ops *const backends[] = {
    &collective_ring_ops,
#ifdef SPARRING_HAVE_GLOO
    &collective_gloo_ops,
#endif
};

#define BACKEND_COUNT (sizeof(backends) / sizeof(backends[0]))

const char *const *collective_backends(void)
{
    static const char *const names[] = {
        "ring",
#ifdef SPARRING_HAVE_GLOO
        "gloo",
#endif
        NULL,
    };

    return names;
}

static const struct collective_ops *find_backend(const char *name)
{
    if (strcmp(name, "auto") == 0)
        return backends[0];
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

enum status collective_open(const struct collective_config *config, struct collective **ret_group,
                            struct error *err)
{
    const struct collective_ops *ops = find_backend(config->backend);

    if (!ops)
        return unknown_backend(config->backend, err);
    if (config->world_size == 0 || config->rank >= config->world_size)
        return error_set(err, STATUS_CONFIG, "rank %u is not below the world size %u", config->rank,
                         config->world_size);
    return ops->open(config, ret_group, err);
}

enum status collective_all_reduce(struct collective *group, float *data, size_t count,
                                  enum reduce_order order, struct error *err)
{
    return group->ops->all_reduce(group, data, count, order, err);
}

enum status collective_broadcast(struct collective *group, void *data, size_t bytes, unsigned root,
                                 struct error *err)
{
    assert(root < group->world_size);
    return group->ops->broadcast(group, data, bytes, root, err);
}

enum status collective_all_gather(struct collective *group, const void *mine, size_t bytes,
                                  void *all, struct error *err)
{
    if (bytes > 0)
        memmove((char *)all + group->rank * bytes, mine, bytes);
    return group->ops->all_gather(group, bytes, all, err);
}

enum status collective_barrier(struct collective *group, struct error *err)
{
    return group->ops->barrier(group, err);
}

void collective_all_reduce_bytes(const struct collective *group, size_t count,
                                 enum reduce_order order, uint64_t *ret_tx, uint64_t *ret_rx)
{
    group->ops->all_reduce_bytes(group, count, order, ret_tx, ret_rx);
}

double collective_bus_factor(unsigned world_size)
{
    return world_size == 0 ? 0 : 2.0 * (world_size - 1) / world_size;
}

struct collective_stats collective_get_stats(const struct collective *group)
{
    return group->stats;
}

const char *collective_backend(const struct collective *group)
{
    return group->ops->name;
}

void collective_close(struct collective *group)
{
    if (group)
        group->ops->close(group);
}
