/*
 * After a loss: the survivors agree over the mesh and open the same group anew, one generation on.
 * Also the barrier over the control connections, which tells who is missing.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "common/collective/collective_ops.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Who is left, in *ret_members (owned by the caller). */
static enum status find_survivors(const struct collective *g, unsigned **ret_members,
                                  unsigned *ret_count, struct error *err)
{
    char tag[MESH_TAG_MAX];
    unsigned *members = NULL;
    enum status status = mem_calloc(g->world_size, sizeof(*members), "survivors", &members, err);

    if (status != STATUS_OK)
        return status;
    (void)snprintf(tag, sizeof(tag), "%016" PRIx64 "/%" PRIu32 "/shrink", g->id, g->generation);
    status = mesh_agree(g->mesh, g->members, g->world_size, tag, clock_deadline_ns(g->timeout_ms),
                        members, ret_count, err);
    if (status != STATUS_OK) {
        free(members);
        return err ? error_prefix(err, "group '%s': ", g->name) : status;
    }
    *ret_members = members;
    return STATUS_OK;
}

enum status collective_shrink(struct collective **group, struct error *err)
{
    struct collective *old = *group;
    struct collective *shrunk = NULL;
    unsigned *members = NULL;
    unsigned count = 0;
    enum status status;

    *group = NULL;
    if (old->fault == FAULT_EXCLUDED)
        status = error_set(err, STATUS_PEER_LOST, "group '%s': %s", old->name, old->failure.text);
    else if (old->world_size == 1)
        status = error_set(err, STATUS_INVALID, "group '%s' of one rank cannot shrink", old->name);
    else
        status = find_survivors(old, &members, &count, err);
    if (status == STATUS_OK)
        status = collective_open_like(old, old->ops, old->name, old->generation + 1, members, count,
                                      &shrunk, err);
    if (status == STATUS_OK) {
        shrunk->owns_mesh = old->owns_mesh;
        shrunk->owns_flight = old->owns_flight;
        old->owns_mesh = old->owns_flight = false;
        *group = shrunk;
    }
    collective_close(old);
    free(members);
    return status;
}

/* ---- the monitored barrier ---- */

static enum status name_missing(const struct collective *g, const unsigned char *here,
                                int64_t timeout_ms, bool wait_all, struct error *err)
{
    struct strbuf missing = STRBUF_INIT;
    unsigned count = 0;

    for (unsigned r = 0; r < g->world_size && (wait_all || count == 0); r++)
        if (!here[r])
            strbuf_addf(&missing, "%s%u", count++ == 0 ? "" : ", ", g->members[r]);
    (void)error_set(err, STATUS_TIMEOUT,
                    "group '%s': rank%s %s did not reach the barrier within %" PRId64 " ms",
                    g->name, count == 1 ? "" : "s", missing.text, timeout_ms);
    strbuf_release(&missing);
    return STATUS_TIMEOUT;
}

enum status collective_monitored_barrier(struct collective *group, int64_t timeout_ms,
                                         bool wait_all, struct error *err)
{
    unsigned char *here = NULL;
    char tag[MESH_TAG_MAX];
    enum status status;

    if (group->world_size == 1)
        return STATUS_OK;
    status = mem_calloc(group->world_size, 1, "a barrier", &here, err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(tag, sizeof(tag), "%016" PRIx64 "/%" PRIu32 "/barrier/%" PRIu64, group->id,
                   group->generation, ++group->monitored);
    status = mesh_gather(group->mesh, group->members, group->world_size, tag,
                         clock_deadline_ns(timeout_ms), here, err);
    if (status == STATUS_TIMEOUT)
        status = name_missing(group, here, timeout_ms, wait_all, err);
    else if (status != STATUS_OK && err)
        status = error_prefix(err, "group '%s': monitored barrier: ", group->name);
    free(here);
    return status;
}
