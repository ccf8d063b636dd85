/*
 * Groups over a library: opening, comparison of signatures, transfers, byte counts.  The
 * collectives themselves are in library_run.c.  Threads: as collective_ops.
 */
#include "common/collective/library/library_backend.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

#define SCRATCH_BYTES   ((size_t)8 << 20) /* all ranks' pieces together */
#define PIECE_MIN_BYTES ((size_t)4096)

_Static_assert(LIBRARY_HEADER_BYTES == SIGNATURE_BYTES, "a transfer's header is a signature");

struct transfer_state {
    struct library_transfer *transfer;
    bool posted;
};

_Static_assert(sizeof(struct transfer_state) <= COLLECTIVE_WORK_STATE, "");

/* FNV-1a */
static uint64_t fnv1a_hash(uint64_t seed, const void *data, size_t size)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < size; i++)
        seed = (seed ^ bytes[i]) * 0x100000001b3u;
    return seed;
}

static uint64_t signature_hash(const struct signature *s)
{
    unsigned char bytes[SIGNATURE_BYTES];

    signature_encode(s, bytes);
    return fnv1a_hash(0xcbf29ce484222325u, bytes, sizeof(bytes));
}

/* ---- agreement ---- */

/* The first operation of its kind: do all ranks have the same one? */
static enum run_outcome compare_signatures(struct library_group *g, struct collective_work *work,
                                           struct error *err)
{
    struct collective *group = &g->base;
    unsigned char mine[SIGNATURE_BYTES];
    const unsigned char *all = (const unsigned char *)g->gathered;

    signature_encode(&work->signature, mine);
    if (g->library->all_gather(g->context, mine, sizeof(mine), g->gathered, err) != STATUS_OK)
        return RUN_FAILED;
    for (unsigned r = 0; r < group->world_size; r++) {
        const unsigned char *theirs = all + r * sizeof(mine);
        struct signature other = {0};

        if (memcmp(theirs, mine, sizeof(mine)) == 0)
            continue;
        if (!signature_decode(theirs, &other)) {
            (void)error_set(err, STATUS_PROTOCOL, "rank %u sent something that is no operation",
                            group->members[r]);
            return RUN_FAILED;
        }
        return collective_mismatch(group, work, r, &other, err);
    }
    return RUN_DONE;
}

/* Compare signatures once per kind, and set the library's tag for this operation. */
static enum run_outcome check_agreement(struct library_group *g, struct collective_work *work,
                                        struct error *err)
{
    struct signature kind = work->signature;
    uint64_t key;
    uint64_t *entry;
    enum run_outcome outcome;

    kind.sequence = 0;
    key = signature_hash(&kind) | 1;
    entry = &g->compared[key / 2 % LIBRARY_KINDS];
    if (*entry != key) {
        if (g->library->mark) /* of the sequence alone: the comparison must meet */
            g->library->mark(g->context, (uint32_t)work->signature.sequence << 4);
        outcome = compare_signatures(g, work, err);
        if (outcome != RUN_DONE)
            return outcome;
        *entry = key;
    }
    if (g->library->mark)
        g->library->mark(g->context, (uint32_t)signature_hash(&work->signature) | 0x80000000u);
    return RUN_DONE;
}

/* ---- counting ---- */

static void add_bytes(const struct collective *group, enum collective_call call, uint64_t bytes,
                      const struct collective_args *a, uint64_t *tx, uint64_t *rx)
{
    const struct library_group *g = (const struct library_group *)group;
    uint64_t more_tx;
    uint64_t more_rx;

    g->library->bytes(call, group->rank, group->world_size, bytes, dtype_size(a->dtype), a->root,
                      &more_tx, &more_rx);
    *tx += more_tx;
    *rx += more_rx;
}

/* In pieces of `step` bytes. */
static void add_pieces(const struct collective *group, enum collective_call call, uint64_t bytes,
                       uint64_t step, const struct collective_args *a, uint64_t *tx, uint64_t *rx)
{
    for (uint64_t from = 0; from < bytes; from += step)
        add_bytes(group, call, bytes - from < step ? bytes - from : step, a, tx, rx);
}

void library_group_expected_bytes(const struct collective *group,
                                  const struct collective_args *args, uint64_t *ret_tx,
                                  uint64_t *ret_rx)
{
    const struct library_group *g = (const struct library_group *)group;
    size_t element = dtype_size(args->dtype);
    uint64_t bytes = (uint64_t)args->count * element;
    bool is_sum = args->call == COLLECTIVE_ALL_REDUCE || args->call == COLLECTIVE_REDUCE;

    *ret_tx = *ret_rx = 0;
    if (bytes == 0)
        return;
    if (args->call == COLLECTIVE_SEND)
        *ret_tx = bytes;
    else if (args->call == COLLECTIVE_RECV)
        *ret_rx = bytes;
    else if (is_sum && args->order == REDUCE_REPRODUCIBLE)
        add_bytes(group,
                  args->call == COLLECTIVE_REDUCE ? COLLECTIVE_GATHER : COLLECTIVE_ALL_GATHER,
                  bytes, args, ret_tx, ret_rx);
    else if (args->call == COLLECTIVE_REDUCE)
        add_pieces(group, args->call, bytes, g->piece_bytes * group->world_size, args, ret_tx,
                   ret_rx);
    else if (args->call == COLLECTIVE_REDUCE_SCATTER)
        add_bytes(group, COLLECTIVE_ALL_TO_ALL, bytes, args, ret_tx, ret_rx);
    else
        add_bytes(group, args->call, bytes, args, ret_tx, ret_rx);
}

/* ---- transfers ---- */

/* A transfer's signature as the sender has it. */
static struct signature transfer_signature(const struct collective_work *work)
{
    struct signature s = work->signature;

    s.call = COLLECTIVE_SEND;
    s.root = work->args.call == COLLECTIVE_SEND ? work->args.root : work->group->rank;
    return s;
}

static enum status post_transfer(struct library_group *g, struct collective_work *work,
                                 struct error *err)
{
    struct transfer_state *state = (struct transfer_state *)work->backend;
    const struct collective_args *a = &work->args;
    size_t bytes = a->count * dtype_size(a->dtype);
    struct signature s = transfer_signature(work);
    struct library_transfer_id id = {
        .peer = a->root, .number = s.sequence, .key = signature_hash(&s)};
    unsigned char header[SIGNATURE_BYTES];
    enum status status;

    signature_encode(&s, header);
    if (a->call == COLLECTIVE_SEND)
        status = g->library->send(g->context, &id, header, a->input, bytes, &state->transfer, err);
    else
        status = g->library->recv(g->context, &id, a->output, bytes, &state->transfer, err);
    state->posted = status == STATUS_OK;
    return status;
}

static enum run_outcome await_transfer(struct library_group *g, struct collective_work *work,
                                       struct error *err)
{
    struct transfer_state *state = (struct transfer_state *)work->backend;
    unsigned char header[SIGNATURE_BYTES];
    struct signature mine = transfer_signature(work);
    struct signature theirs = {0};

    if (work->args.call == COLLECTIVE_RECV) {
        if (g->library->await_header(g->context, state->transfer, header, err) != STATUS_OK)
            return RUN_FAILED;
        if (!signature_decode(header, &theirs) || !signature_equal(&theirs, &mine))
            return collective_mismatch(&g->base, work, work->args.root, &theirs, err);
    }
    if (g->library->await(g->context, state->transfer, err) != STATUS_OK)
        return RUN_FAILED;
    return RUN_DONE;
}

/* The first call only starts the transfer; one that may block waits for it. */
static enum run_outcome run_transfer(struct library_group *g, struct collective_work *work,
                                     int64_t until_ns, struct error *err)
{
    struct transfer_state *state = (struct transfer_state *)work->backend;
    enum run_outcome outcome;

    if (!state->posted && post_transfer(g, work, err) != STATUS_OK)
        return RUN_FAILED;
    if (until_ns <= clock_now_ns())
        return RUN_PENDING;
    outcome = await_transfer(g, work, err);
    g->library->release_transfer(g->context, state->transfer);
    state->transfer = NULL;
    return outcome;
}

/* ---- the backend ---- */

enum run_outcome library_group_run(struct collective *group, struct collective_work *work,
                                   int64_t until_ns, struct error *err)
{
    struct library_group *g = (struct library_group *)group;
    const struct collective_args *a = &work->args;
    enum run_outcome outcome;

    if (collective_call_is_pair(a->call))
        return run_transfer(g, work, until_ns, err);
    outcome = check_agreement(g, work, err);
    if (outcome != RUN_DONE)
        return outcome;
    if (a->count > 0 || a->call == COLLECTIVE_BARRIER)
        if (library_run(g, a, err) != STATUS_OK)
            return RUN_FAILED;
    return RUN_DONE;
}

bool library_group_is_waiting(const struct collective *group)
{
    const struct library_group *g = (const struct library_group *)group;

    return g->library->is_waiting(g->context);
}

void library_group_interrupt(struct collective *group)
{
    struct library_group *g = (struct library_group *)group;

    g->library->interrupt(g->context);
}

static enum status exchange_while_opening(void *argument, const char *what, const void *mine,
                                          size_t size, void *all, struct error *err)
{
    struct collective *group = argument;

    return collective_exchange(group, what, mine, size, all, clock_deadline_ns(group->timeout_ms),
                               err);
}

static void reduce_pair(const struct reduction *r, void *target, const void *a, const void *b,
                        size_t count)
{
    const void *inputs[] = {a, b};

    reduce_arrays(r, &target, 1, inputs, 2, count);
}

static enum status allocate_scratch(struct library_group *g, struct error *err)
{
    size_t n = g->base.world_size;
    enum status status;

    g->piece_bytes = SCRATCH_BYTES / n / 64 * 64;
    if (g->piece_bytes < PIECE_MIN_BYTES)
        g->piece_bytes = PIECE_MIN_BYTES;
    status = mem_calloc_aligned(n, g->piece_bytes, "scratch", &g->packed, err);
    if (status == STATUS_OK)
        status = mem_calloc_aligned(n, g->piece_bytes, "scratch", &g->gathered, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*g->inputs), "inputs", &g->inputs, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*g->factors), "factors", &g->factors, err);
    return status;
}

enum status library_group_open(struct collective *group, const struct library_ops *library,
                               struct error *err)
{
    struct library_group *g = (struct library_group *)group;
    struct library_config config = {.rank = group->rank,
                                    .world_size = group->world_size,
                                    .members = group->members,
                                    .group = group->id + group->generation,
                                    .host = group->interface_host,
                                    .timeout_ms = group->timeout_ms,
                                    .reduce = reduce_pair,
                                    .exchange_max = MESH_EXCHANGE_MAX,
                                    .exchange = exchange_while_opening,
                                    .argument = group};
    enum status status;

    g->library = library;
    if (group->world_size == 1)
        return STATUS_OK;
    status = allocate_scratch(g, err);
    if (status != STATUS_OK)
        return status;
    return library->open(&config, &g->context, err);
}

void library_group_close(struct collective *group)
{
    struct library_group *g = (struct library_group *)group;

    for (size_t i = 0; i < group->work_count && g->context; i++) {
        struct collective_work *w = &group->works[(group->first_work + i) % COLLECTIVE_WORKS_MAX];
        struct transfer_state *state = (struct transfer_state *)w->backend;

        if (collective_call_is_pair(w->args.call) && state->transfer)
            g->library->release_transfer(g->context, state->transfer);
    }
    if (g->context)
        g->library->close(g->context, group->failure.status == STATUS_OK);
    free(g->packed);
    free(g->gathered);
    free((void *)g->inputs);
    free(g->factors);
}
