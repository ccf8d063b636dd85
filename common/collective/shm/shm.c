/*
 * The shm backend's operations table and lifetime.  Collectives are in shm_steps.c, send and recv
 * in shm_pair.c.  One caller at a time per group.
 */
#include "common/collective/shm/shm.h"

#include "common/base/host.h"
#include "common/base/memory.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define RANKS_MAX 1024 /* so that a chunk has a line for every rank */

#define SPIN_NS  INT64_C(30000)  /* about what a wake-up costs */
#define YIELD_NS INT64_C(100000) /* then waiting is long, and a wake-up is cheap beside it */

/* ---- lifetime ---- */

static enum status make_tables(struct shm_group *g, struct error *err)
{
    unsigned n = g->base.world_size;
    enum status status = mem_calloc_aligned(n, sizeof(*g->peers), "peers", &g->peers, err);

    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*g->inputs), "inputs", &g->inputs, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*g->outputs), "outputs", &g->outputs, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*g->factors), "factors", &g->factors, err);
    for (unsigned r = 0; g->peers && r < n; r++) {
        g->peers[r].fd = -1;
        g->peers[r].arena = SHARED_MEMORY_NONE;
        for (size_t i = 0; i < SHM_REGIONS_MAX; i++)
            g->peers[r].regions[i] = SHARED_MEMORY_NONE;
    }
    return status;
}

static enum status shm_open_group(struct collective *group, int64_t deadline_ns, struct error *err)
{
    struct shm_group *g = (struct shm_group *)group;
    enum status status;

    if (group->world_size == 1)
        return STATUS_OK;
    if (group->world_size > RANKS_MAX)
        return error_set(err, STATUS_CONFIG, "shm: %u ranks on one host are more than %d",
                         group->world_size, RANKS_MAX);
    shm_flags_prepare();
    g->spin_ns = group->world_size <= host_job_cores() ? SPIN_NS : 0;
    g->yield_ns = YIELD_NS;
    status = make_tables(g, err);
    if (status == STATUS_OK)
        status = shm_connect(g, deadline_ns, err);
    return status == STATUS_OK ? status : error_prefix(err, "shm group '%s': ", group->name);
}

static void release_peer(struct shm_peer *p)
{
    shared_memory_release(&p->arena);
    for (size_t i = 0; i < SHM_REGIONS_MAX; i++)
        shared_memory_release(&p->regions[i]);
    if (p->fd >= 0)
        (void)close(p->fd);
}

/* Peers keep what they have mapped, so leaving needs no agreement: the last operation was complete
 * for all, or the arena's presence says SHM_FAILED. */
static void shm_close_group(struct collective *group)
{
    struct shm_group *g = (struct shm_group *)group;
    bool failed = group->failure.status != STATUS_OK;

    if (!g->peers)
        return;
    if (g->peers[group->rank].arena.base)
        shm_set_presence(g, failed ? SHM_FAILED : SHM_LEFT, &group->failure);
    for (size_t i = 0; i < SHM_REGIONS_MAX; i++) /* the caller's */
        g->peers[group->rank].regions[i] = SHARED_MEMORY_NONE;
    for (unsigned r = 0; r < group->world_size; r++)
        release_peer(&g->peers[r]);
    free(g->peers);
    free(g->inputs);
    free(g->outputs);
    free(g->factors);
}

/* ---- operations ---- */

static enum run_outcome shm_run(struct collective *group, struct collective_work *work,
                                int64_t until_ns, struct error *err)
{
    struct shm_group *g = (struct shm_group *)group;
    bool pair = collective_call_is_pair(work->args.call);
    enum run_outcome outcome =
        pair ? shm_run_pair(g, work, until_ns, err) : shm_run_steps(g, work, until_ns, err);

    if (outcome == RUN_FAILED)
        shm_set_presence(g, SHM_FAILED, err);
    return outcome;
}

static enum status shm_register(struct collective *group, const struct shared_memory *memory,
                                int64_t deadline_ns, struct error *err)
{
    return shm_share_region((struct shm_group *)group, memory, deadline_ns, err);
}

static void shm_expected_bytes(const struct collective *group, const struct collective_args *args,
                               uint64_t *ret_tx, uint64_t *ret_rx)
{
    shm_payload((const struct shm_group *)group, args, ret_tx, ret_rx);
}

const struct collective_ops collective_shm_ops = {
    .name = "shm",
    .size = sizeof(struct shm_group),
    .open = shm_open_group,
    .run = shm_run,
    .register_memory = shm_register,
    .expected_bytes = shm_expected_bytes,
    .close = shm_close_group,
};
