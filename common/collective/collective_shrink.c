/*
 * After a loss: the survivors agree over the mesh and open the same group anew, one generation on.
 * Also the barrier over the control connections, which names the missing ranks.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "common/collective/collective_ops.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOSS_MARGIN_MS 1000

enum status collective_find_survivors(const struct collective *g, uint32_t generation,
                                      unsigned *members, unsigned *count, struct error *err)
{
    char tag[MESH_TAG_MAX];
    unsigned left_count = 0;
    unsigned *left = NULL;
    enum status status = mem_calloc(*count, sizeof(*left), "survivors", &left, err);

    if (status != STATUS_OK)
        return status;
    (void)snprintf(tag, sizeof(tag), "%016" PRIx64 "/%" PRIu32 "/shrink", g->id, generation);
    status = mesh_agree(g->mesh, members, *count, tag, clock_deadline_ns(g->timeout_ms), left,
                        &left_count, err);
    if (status == STATUS_OK) {
        memcpy(members, left, left_count * sizeof(*left));
        *count = left_count;
    } else if (err) {
        (void)error_prefix(err, "group '%s': ", g->name);
    }
    free(left);
    return status;
}

bool collective_await_loss(const struct collective *g, const unsigned *members, unsigned count)
{
    return mesh_await_loss(g->mesh, members, count,
                           clock_deadline_ns(g->heartbeat_timeout_ms + LOSS_MARGIN_MS));
}

/* Repeat agreement and opening until a group opens: a rank may be lost in between.  Ranks that had
 * already opened fail in that generation and take part in the next agreement.  An opening that
 * fails without a loss would fail again. */
static enum status open_shrunk_group(struct collective *old, struct collective **ret_group,
                                     struct error *err)
{
    uint32_t generation = old->generation;
    unsigned count = old->world_size;
    unsigned *members = NULL;
    struct error why = {0}; /* of the last opening that failed */
    enum status status = mem_calloc(count, sizeof(*members), "survivors", &members, err);

    if (status != STATUS_OK)
        return status;
    memcpy(members, old->members, count * sizeof(*members));
    for (;;) {
        status = collective_find_survivors(old, generation, members, &count, err);
        if (status != STATUS_OK)
            break;
        /* Nobody is in an operation of the old group any more.  Close it first: a kernel of NCCL
         * that waits for the lost rank ends with it, and until then freeing GPU memory blocks. */
        (void)collective_close_backend(old);
        status = collective_open_like(old, old->ops, old->name, ++generation, members, count,
                                      ret_group, &why);
        if (status == STATUS_OK)
            break;
        if (!collective_await_loss(old, members, count)) {
            status = error_set(err, why.status, "%s", why.text);
            break;
        }
    }
    free(members);
    return status;
}

enum status collective_shrink(struct collective **group, struct error *err)
{
    struct collective *old = *group;
    struct collective *shrunk = NULL;
    enum status status;

    *group = NULL;
    if (old->fault == FAULT_EXCLUDED)
        status = error_set(err, STATUS_PEER_LOST, "group '%s': %s", old->name, old->failure.text);
    else if (old->world_size == 1)
        status = error_set(err, STATUS_INVALID, "group '%s' of one rank cannot shrink", old->name);
    else
        status = open_shrunk_group(old, &shrunk, err);
    if (shrunk) {
        shrunk->owns_mesh = old->owns_mesh;
        shrunk->owns_flight = old->owns_flight;
        old->owns_mesh = old->owns_flight = false;
        *group = shrunk;
    }
    collective_close(old);
    return status;
}

/* ---- the monitored barrier ---- */

static enum status missing_ranks_error(const struct collective *g, const unsigned char *here,
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
        status = missing_ranks_error(group, here, timeout_ms, wait_all, err);
    else if (status != STATUS_OK && err)
        status = error_prefix(err, "group '%s': monitored barrier: ", group->name);
    free(here);
    return status;
}
