/*
 * The nccl backend: NCCL from the CUDA module (nccl.h), driven without blocking.
 *
 * Opening: every rank sends its identity (library, GPU, or why it cannot), and rank 0 of the group
 * provides a unique id that is fresh in every generation; so a rank without NCCL, two versions or
 * one GPU for two ranks are named before NCCL is asked.  NCCL never times out and sees no death
 * inside a host: the core watches (mesh, deadline), and closing a failed group aborts the
 * communicator.  A shrunk group is a new communicator with a new id; nothing is kept.
 *
 * Sends and receives that were started are launched together, because NCCL runs launches one
 * behind the other: those that need each other must be started before the first is polled or
 * waited for.  Nothing shows what NCCL sends: payload is counted by the ring's formula, and no
 * wire bytes.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/module.h"
#include "common/collective/collective_ops.h"
#include "common/collective/flight/flight.h"
#include "common/collective/library/nccl.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS  50000 /* before sleeping begins */
#define NAP_NS   20000
#define CLOSE_MS 5000 /* for the library to come back */

struct nccl_group {
    struct collective base;
    const struct nccl_ops *module;
    struct nccl *nccl;
    uint64_t batches;  /* started */
    uint64_t finished; /* ended: all but the one under way */
    unsigned regions;  /* offered so far */
};

/* In a work's own space. */
struct nccl_work {
    uint64_t batch; /* 0: not launched yet */
};

static struct nccl_work *work_state(struct collective_work *w)
{
    return (struct nccl_work *)(void *)w->backend;
}

/* ---- the module ---- */

static enum status load_cuda_module(const struct nccl_ops **ret, struct error *err)
{
    union {
        void *object;
        nccl_module_fn *function; /* POSIX allows it, ISO C has no cast for it */
    } symbol;
    void *module;
    enum status status = module_open(&module_cuda, &module, err);

    if (status == STATUS_OK)
        status = module_symbol(&module_cuda, module, NCCL_MODULE_SYMBOL, &symbol.object, err);
    if (status != STATUS_OK)
        return status;
    *ret = symbol.function();
    if (!*ret)
        return error_set(err, STATUS_CONFIG, "the CUDA module was built without NCCL's headers");
    if ((*ret)->version != NCCL_MODULE_VERSION)
        return error_set(err, STATUS_CONFIG,
                         "the CUDA module is of another build: its nccl interface is %u, not %u",
                         (*ret)->version, NCCL_MODULE_VERSION);
    return STATUS_OK;
}

static enum status nccl_group_check(const struct collective_config *config, struct error *err)
{
    const struct nccl_ops *module;
    struct error why = {0};
    enum status status = load_cuda_module(&module, &why);

    (void)config;
    if (status == STATUS_OK)
        status = module->check(&why);
    return status == STATUS_OK
               ? STATUS_OK
               : error_set(err, STATUS_CONFIG, "the nccl backend cannot run here: %s", why.text);
}

/* ---- opening ---- */

static bool is_alarmed(const struct collective *g)
{
    return g->alarm && atomic_load(&g->alarm->raised);
}

static bool is_cancelled(const void *argument)
{
    return is_alarmed(argument);
}

/* Ranks of this host that come before this one. */
static enum status find_local_rank(struct collective *g, int64_t deadline_ns, unsigned *ret,
                                   struct error *err)
{
    char(*hosts)[sizeof(g->host_id)];
    enum status status = mem_calloc(g->world_size, sizeof(*hosts), "host names", &hosts, err);

    if (status != STATUS_OK)
        return status;
    status = collective_exchange(g, "nccl/hosts", g->host_id, sizeof(g->host_id), hosts,
                                 deadline_ns, err);
    *ret = 0;
    for (unsigned r = 0; r < g->rank && status == STATUS_OK; r++)
        *ret += strncmp(hosts[r], g->host_id, sizeof(g->host_id)) == 0;
    free(hosts);
    return status;
}

static enum status compare_two(const struct collective *g, const struct nccl_identity *all,
                               unsigned a, unsigned b, struct error *err)
{
    if (all[a].version != all[b].version)
        return error_set(err, STATUS_CONFIG,
                         "nccl: ranks %u and %u have different libraries: %d and %d", g->members[a],
                         g->members[b], all[a].version, all[b].version);
    if (memcmp(all[a].gpu, all[b].gpu, sizeof(all[a].gpu)) == 0 &&
        (!all[a].colocated || !all[b].colocated))
        return error_set(err, STATUS_CONFIG,
                         "nccl: ranks %u and %u have the same GPU (their devices %d and %d); "
                         "SPARRING_NCCL_COLOCATED=1 allows it for tests, never for timing",
                         g->members[a], g->members[b], all[a].device, all[b].device);
    return STATUS_OK;
}

static enum status compare_identities(const struct collective *g, const struct nccl_identity *all,
                                      struct error *err)
{
    enum status status = STATUS_OK;

    for (unsigned r = 0; r < g->world_size; r++)
        if (all[r].status != STATUS_OK)
            return error_set(err, STATUS_CONFIG, "nccl: rank %u: %.255s", g->members[r],
                             all[r].text);
    for (unsigned a = 0; a < g->world_size && status == STATUS_OK; a++)
        for (unsigned b = a + 1; b < g->world_size && status == STATUS_OK; b++)
            status = compare_two(g, all, a, b, err);
    return status;
}

static void log_library(const struct nccl_group *g, const struct nccl_identity *mine)
{
    char text[128];

    if (g->base.rank != 0 || g->base.generation != 1)
        return;
    g->module->describe(text, sizeof(text));
    log_info("group '%s': %s%s", g->base.name, text,
             mine->colocated ? "; co-located ranks (SPARRING_NCCL_COLOCATED): not NCCL performance"
                             : "");
}

static enum status connect_ranks(struct nccl_group *g, struct nccl_identity *all,
                                 int64_t deadline_ns, struct error *err)
{
    struct nccl_identity *mine = &all[g->base.world_size];
    struct error why = {0};
    char name[128];
    unsigned local_rank;
    struct nccl_config config = {.rank = g->base.rank,
                                 .world_size = g->base.world_size,
                                 .id = all[0].id,
                                 .name = name,
                                 .deadline_ns = deadline_ns,
                                 .cancelled = is_cancelled,
                                 .argument = &g->base};
    enum status status = find_local_rank(&g->base, deadline_ns, &local_rank, err);

    if (status != STATUS_OK)
        return status;
    mine->status = (uint32_t)g->module->identify(local_rank, g->base.rank == 0, mine, &why);
    (void)snprintf(mine->text, sizeof(mine->text), "%.255s", why.text);
    status =
        collective_exchange(&g->base, "nccl/identity", mine, sizeof(*mine), all, deadline_ns, err);
    if (status == STATUS_OK)
        status = compare_identities(&g->base, all, err);
    if (status != STATUS_OK)
        return status;
    log_library(g, mine);
    config.device = mine->device;
    (void)snprintf(name, sizeof(name), "%s/%u", g->base.name, g->base.generation);
    return g->module->open(&config, &g->nccl, err);
}

static enum status nccl_group_open(struct collective *group, int64_t deadline_ns, struct error *err)
{
    struct nccl_group *g = (struct nccl_group *)group;
    struct nccl_identity *all;
    enum status status = load_cuda_module(&g->module, err);

    _Static_assert(sizeof(struct nccl_identity) <= MESH_EXCHANGE_MAX, "one exchange must hold it");
    if (status == STATUS_OK) /* one more: our own */
        status = mem_calloc((size_t)group->world_size + 1, sizeof(*all), "identities", &all, err);
    if (status != STATUS_OK)
        return status;
    status = connect_ranks(g, all, deadline_ns, err);
    free(all);
    return status;
}

static void nccl_group_close(struct collective *group)
{
    struct nccl_group *g = (struct nccl_group *)group;
    bool in_order = group->failure.status == STATUS_OK && g->batches == g->finished;
    struct error err = {0};

    if (!g->nccl)
        return;
    if (g->module->close(g->nccl, in_order, clock_deadline_ns(CLOSE_MS)))
        return;
    /* The GPU or the library holds the memory that we are about to free. */
    (void)error_set(&err, STATUS_TIMEOUT,
                    "nccl does not let go of group '%s' after %d s, so this process ends%s%s",
                    group->name, CLOSE_MS / 1000, group->failure.status == STATUS_OK ? "" : ": ",
                    group->failure.text);
    flight_fail(group->flight, group->fault, group->culprit, err.text);
    _exit(log_failure(&err));
}

/* All ranks or none: NCCL leaves open what else happens.  Without, operations cost a copy more. */
static enum status nccl_group_register(struct collective *group, const struct shared_memory *memory,
                                       int64_t deadline_ns, struct error *err)
{
    struct nccl_group *g = (struct nccl_group *)group;
    unsigned char mine, *all;
    bool everywhere = true;
    char what[32];
    enum status status = mem_calloc(group->world_size, 1, "answers", &all, err);

    if (status != STATUS_OK)
        return status;
    mine = memory->base &&
           g->module->register_memory(g->nccl, memory->base, memory->size, NULL) == STATUS_OK;
    (void)snprintf(what, sizeof(what), "nccl/region/%u", g->regions++);
    status = collective_exchange(group, what, &mine, 1, all, deadline_ns, err);
    for (unsigned r = 0; r < group->world_size; r++)
        everywhere = everywhere && all[r] == 1;
    if (mine && !everywhere)
        g->module->unregister_memory(g->nccl, memory->base);
    free(all);
    return status;
}

/* ---- what is supported, and its bytes ---- */

static bool nccl_group_supports(const struct collective *group, const struct collective_args *args)
{
    (void)group;
    return !collective_call_reduces(args->call) || args->order == REDUCE_FAST;
}

static void nccl_group_expected_bytes(const struct collective *group,
                                      const struct collective_args *args, uint64_t *ret_tx,
                                      uint64_t *ret_rx)
{
    uint64_t bytes = (uint64_t)args->count * dtype_size(args->dtype);
    uint64_t others = group->world_size - 1;
    bool root = group->rank == args->root;

    *ret_tx = *ret_rx = 0;
    switch (args->call) {
    case COLLECTIVE_ALL_REDUCE:
        *ret_tx = *ret_rx = 2 * others * bytes / group->world_size;
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_TO_ALL:
        *ret_tx = *ret_rx = others * bytes;
        break;
    case COLLECTIVE_BROADCAST: /* what must leave the root and reach the others */
        *(root ? ret_tx : ret_rx) = bytes;
        break;
    case COLLECTIVE_REDUCE:
        *(root ? ret_rx : ret_tx) = bytes;
        break;
    case COLLECTIVE_GATHER:
        *(root ? ret_rx : ret_tx) = root ? others * bytes : bytes;
        break;
    case COLLECTIVE_SCATTER:
        *(root ? ret_tx : ret_rx) = root ? others * bytes : bytes;
        break;
    case COLLECTIVE_SEND:
        *ret_tx = bytes;
        break;
    case COLLECTIVE_RECV:
        *ret_rx = bytes;
        break;
    default:
        break;
    }
}

/* ---- running ---- */

/* The work, and where it is a send or receive all others that stand beside it in the queue. */
static unsigned collect_batch(struct nccl_group *g, struct collective_work *work,
                              const struct collective_args *args[NCCL_BATCH_MAX])
{
    struct collective *base = &g->base;
    unsigned count = 0;

    for (size_t i = 0; i < base->work_count; i++) {
        struct collective_work *w = &base->works[(base->first_work + i) % COLLECTIVE_WORKS_MAX];
        bool waits = w->state == WORK_QUEUED || w->state == WORK_RUNNING;

        if (!waits || work_state(w)->batch != 0)
            continue;
        if (w != work &&
            (!collective_call_is_pair(work->args.call) || !collective_call_is_pair(w->args.call)))
            break;
        work_state(w)->batch = g->batches + 1;
        args[count++] = &w->args;
        if (!collective_call_is_pair(work->args.call))
            break;
    }
    return count;
}

static enum status launch_batch(struct nccl_group *g, struct collective_work *work,
                                struct error *err)
{
    const struct collective_args *args[NCCL_BATCH_MAX];
    unsigned count = collect_batch(g, work, args);

    g->batches++;
    return g->module->start(g->nccl, args, count, err);
}

/* Between polls of an operation that began at begin_ns. */
static void pause_between_polls(int64_t begin_ns, int64_t now_ns)
{
    const struct timespec pause = {.tv_nsec = NAP_NS};

    if (now_ns - begin_ns < SPIN_NS)
        (void)sched_yield();
    else
        (void)nanosleep(&pause, NULL);
}

/* Until no batch is under way; RUN_PENDING when until_ns or an alarm comes first. */
static enum run_outcome wait_for_batches(struct nccl_group *g, int64_t until_ns, struct error *err)
{
    int64_t begin_ns = clock_now_ns();

    while (g->finished < g->batches) {
        enum nccl_progress progress = g->module->advance(g->nccl, err);
        int64_t now_ns = clock_now_ns();

        if (progress == NCCL_FAILED)
            return RUN_FAILED;
        if (progress == NCCL_IDLE)
            g->finished = g->batches;
        else if (now_ns >= until_ns || is_alarmed(&g->base))
            return RUN_PENDING;
        else
            pause_between_polls(begin_ns, now_ns);
    }
    return RUN_DONE;
}

static enum run_outcome finish_work(struct nccl_group *g, struct collective_work *work)
{
    uint64_t tx = 0, rx = 0;

    collective_expected_bytes(&g->base, &work->args, &tx, &rx);
    work->total_bytes = work->done_bytes = tx + rx;
    g->base.stats.operations++;
    g->base.stats.tx_payload_bytes += tx;
    g->base.stats.rx_payload_bytes += rx;
    return RUN_DONE;
}

static enum run_outcome nccl_group_run(struct collective *group, struct collective_work *work,
                                       int64_t until_ns, struct error *err)
{
    struct nccl_group *g = (struct nccl_group *)group;
    struct nccl_work *state = work_state(work);
    enum run_outcome outcome;

    if (work->args.count == 0 && work->args.call != COLLECTIVE_BARRIER)
        return finish_work(g, work);
    if (state->batch == 0) {
        outcome = wait_for_batches(g, until_ns, err);
        if (outcome != RUN_DONE)
            return outcome;
        if (launch_batch(g, work, err) != STATUS_OK)
            return RUN_FAILED;
    }
    if (state->batch > g->finished) {
        outcome = wait_for_batches(g, until_ns, err);
        if (outcome != RUN_DONE)
            return outcome;
    }
    return finish_work(g, work);
}

const struct collective_ops collective_nccl_ops = {
    .name = "nccl",
    .size = sizeof(struct nccl_group),
    .unchecked = true,
    .alone = true,
    .check = nccl_group_check,
    .open = nccl_group_open,
    .supports = nccl_group_supports,
    .run = nccl_group_run,
    .register_memory = nccl_group_register,
    .expected_bytes = nccl_group_expected_bytes,
    .close = nccl_group_close,
};
