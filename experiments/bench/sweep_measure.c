/*
 * sweep_measure: one operation, a round, a check on one rank.  Buffers hold zeros during timing
 * (repeated sums would overflow) and integers when the result is checked.
 */
#include "experiments/bench/sweep_measure.h"

#include "common/base/clock.h"

#include <string.h>

#define ROUND_NS 50000000 /* target length of a round with `--iterations auto` */

/* ---- one operation ---- */

/* A rank's own block of a buffer with a block per rank. */
static unsigned char *own_block(const struct bench_rank *b, unsigned char *buffer,
                                const struct sweep_point *s)
{
    return buffer + b->rank * s->count * dtype_size(s->dtype);
}

/* The arguments of the point's operation on this rank; not for SWEEP_SENDRECV. */
static struct collective_args bench_args(const struct bench_rank *b, const struct sweep_point *s)
{
    enum collective_call call = b->sweep.call;
    struct collective_args args = {
        .call = call,
        .dtype = s->dtype,
        .op = s->op,
        .order = b->sweep.order,
        .input = s->placement == IN_PLACE ? b->output : b->input,
        .output = b->output,
        .count = s->count,
        .root = s->root,
        .factor = sweep_factor(b->rank),
    };

    if (s->placement != IN_PLACE)
        return args;
    if (sweep_call_spreads(call))
        args.output = own_block(b, b->output, s);
    else if (call == COLLECTIVE_ALL_GATHER || call == COLLECTIVE_GATHER)
        args.input = own_block(b, b->output, s);
    return args;
}

bool bench_supports(const struct bench_rank *b, const struct sweep_point *s)
{
    struct collective_args args = bench_args(b, s);

    if (b->sweep.series[s->series].kind != SERIES_BACKEND)
        return true;
    if (b->sweep.call != SWEEP_SENDRECV)
        return collective_supports(b->groups[s->series], &args);
    args.call = COLLECTIVE_SEND;
    args.root = (b->rank + 1) % b->world_size;
    return collective_supports(b->groups[s->series], &args);
}

/* Operations of a group run in the order of their start: even ranks send first and odd ranks
 * receive first, so that neighbours do not both wait to send. */
static enum status start_sendrecv(struct bench_rank *b, const struct sweep_point *s,
                                  struct collective_work **works, struct error *err)
{
    struct collective_args args = bench_args(b, s);
    enum collective_call order[2] = {COLLECTIVE_SEND, COLLECTIVE_RECV};
    enum status status = STATUS_OK;

    if (b->rank % 2 == 1) {
        order[0] = COLLECTIVE_RECV;
        order[1] = COLLECTIVE_SEND;
    }
    for (size_t i = 0; i < 2 && status == STATUS_OK; i++) {
        args.call = order[i];
        args.root =
            (b->rank + (order[i] == COLLECTIVE_SEND ? 1 : b->world_size - 1)) % b->world_size;
        status = collective_start(b->groups[s->series], &args, &works[i], err);
    }
    return status;
}

/* `burst` operations: all started, then all waited for. */
static enum status run_backend(struct bench_rank *b, const struct sweep_point *s, int64_t burst,
                               struct error *err)
{
    struct collective_work *works[2 * AGGREGATE_MAX];
    struct collective_args args = bench_args(b, s);
    size_t count = 0;
    enum status status = STATUS_OK;

    if (burst == 1 && b->sweep.call != SWEEP_SENDRECV)
        return collective_run(b->groups[s->series], &args, err);
    for (int64_t i = 0; i < burst && status == STATUS_OK; i++) {
        if (b->sweep.call == SWEEP_SENDRECV) {
            status = start_sendrecv(b, s, works + count, err);
            count += 2;
        } else {
            status = collective_start(b->groups[s->series], &args, &works[count], err);
            count++;
        }
    }
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = collective_wait(works[i], INT64_MAX, err);
    return status;
}

/* Bytes that a rank of a ring sends. */
static uint64_t ring_bytes(const struct bench_rank *b, const struct sweep_point *s)
{
    return (uint64_t)((double)s->bytes * sweep_bus_factor(b->sweep.call, b->world_size));
}

static void copy_halves(unsigned char *data, uint64_t bytes)
{
    size_t half = (size_t)bytes / 2;

    memcpy(data + half, data, half);
    memcpy(data, data + half, half);
    /* Keeps the compiler from removing the copies as dead stores. */
    __asm__ volatile("" : : "r"(data) : "memory");
}

static enum status run_operations(struct bench_rank *b, const struct sweep_point *s,
                                  struct error *err)
{
    enum series_kind kind = b->sweep.series[s->series].kind;

    if (kind == SERIES_BACKEND)
        return run_backend(b, s, b->options->aggregate, err);
    for (int64_t i = 0; i < b->options->aggregate; i++) {
        enum status status = STATUS_OK;

        if (kind == SERIES_TCP)
            status = tcp_ceiling_run(&b->tcp, b->output, (size_t)s->bytes, ring_bytes(b, s),
                                     b->options->timeout_ms, err);
        else if (kind == SERIES_SHM)
            shm_ceiling_run(&b->shm, (size_t)s->bytes / sizeof(float));
        else
            copy_halves(b->output, s->bytes);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* ---- timing ---- */

static double over_ranks(const struct bench_rank *b)
{
    double least = b->gathered[0];
    double most = b->gathered[0];
    double sum = 0;

    for (unsigned r = 0; r < b->world_size; r++) {
        least = b->gathered[r] < least ? b->gathered[r] : least;
        most = b->gathered[r] > most ? b->gathered[r] : most;
        sum += b->gathered[r];
    }
    switch (b->options->average) {
    case 0:
        return b->gathered[0];
    case 1:
        return sum / b->world_size;
    case 2:
        return least;
    default:
        return most;
    }
}

/* Replace times (this rank's) by the slowest rank's time of each operation. */
static enum status gather_times(struct bench_rank *b, double *times, size_t count,
                                struct error *err)
{
    enum status status =
        collective_all_gather(b->control, times, count * sizeof(*times), b->round_times, err);

    for (unsigned r = 0; r < b->world_size && status == STATUS_OK; r++)
        for (size_t i = 0; i < count; i++)
            if (b->round_times[r * count + i] > times[i])
                times[i] = b->round_times[r * count + i];
    return status;
}

/* The number of input elements of this rank. */
static size_t input_count(const struct bench_rank *b, const struct sweep_point *s)
{
    enum collective_call call = b->sweep.call;
    bool root = b->rank == s->root;

    if ((call == COLLECTIVE_BROADCAST || call == COLLECTIVE_SCATTER) && !root)
        return 0;
    if (sweep_call_spreads(call) || call == COLLECTIVE_ALL_TO_ALL)
        return s->count * b->world_size;
    return s->count;
}

/* --fresh: rewrite this rank's input; returns the time that it took, in ns. */
static int64_t rewrite_input(struct bench_rank *b, const struct sweep_point *s)
{
    enum series_kind kind = b->sweep.series[s->series].kind;
    struct collective_args args = bench_args(b, s);
    int64_t start_ns = clock_now_ns();

    if (kind == SERIES_SHM)
        memset(b->shm.data, 0, (size_t)s->bytes);
    else if (kind == SERIES_BACKEND)
        memset((void *)(uintptr_t)args.input, 0, input_count(b, s) * dtype_size(s->dtype));
    return clock_now_ns() - start_ns;
}

/* At the start of a round, move each rank to its own core, then allow all cores again: the
 * scheduler may have moved the waiting ranks of the previous backend to one core, which must not
 * affect the next. */
static void spread_over_cores(const struct bench_rank *b)
{
    if (b->options->pin)
        return; /* already bound */
    (void)sched_setaffinity(0, sizeof(b->core), &b->core);
    (void)sched_setaffinity(0, sizeof(b->cores), &b->cores);
}

enum status bench_round(struct bench_rank *b, const struct sweep_point *s, uint64_t iterations,
                        double *times, double *ret_seconds, struct error *err)
{
    double per_operation = 1e-9 / (double)b->options->aggregate;
    int64_t start_ns, last_ns;
    int64_t rewriting_ns = 0;
    double mine;
    enum status status;

    spread_over_cores(b);
    status = collective_barrier(b->control, err);
    start_ns = last_ns = clock_now_ns();
    for (uint64_t i = 0; i < iterations && status == STATUS_OK; i++) {
        int64_t took_ns = b->options->fresh ? rewrite_input(b, s) : 0;

        status = run_operations(b, s, err);
        rewriting_ns += took_ns;
        last_ns += took_ns;
        if (times) {
            int64_t now_ns = clock_now_ns();

            times[i] = (double)(now_ns - last_ns) * per_operation;
            last_ns = now_ns;
        }
    }
    mine = (double)(clock_now_ns() - start_ns - rewriting_ns) * per_operation / (double)iterations;
    if (status == STATUS_OK)
        status = collective_all_gather(b->control, &mine, sizeof(mine), b->gathered, err);
    if (status == STATUS_OK && times)
        status = gather_times(b, times, (size_t)iterations, err);
    if (status == STATUS_OK)
        *ret_seconds = over_ranks(b);
    return status;
}

/* The number of operations that fill ROUND_NS.  It grows until a round is long enough for an
 * estimate: the first operations after a pause can cost ten times the later ones (Gloo's threads
 * wake late). */
static enum status choose_iterations(struct bench_rank *b, const struct sweep_point *s,
                                     uint64_t *ret_iterations, struct error *err)
{
    uint64_t count = 1;
    double wanted = ROUND_NS * 1e-9 / (double)b->options->aggregate;
    double seconds = 0;
    enum status status = bench_round(b, s, count, NULL, &seconds, err);

    while (status == STATUS_OK && seconds * (double)count < wanted / 2 && count < ITERATIONS_MAX) {
        count = 4 * count < ITERATIONS_MAX ? 4 * count : ITERATIONS_MAX;
        status = bench_round(b, s, count, NULL, &seconds, err);
    }
    if (status != STATUS_OK)
        return status;
    count = seconds > 0 && wanted / seconds < ITERATIONS_MAX ? (uint64_t)(wanted / seconds)
                                                             : ITERATIONS_MAX;
    *ret_iterations = count < 1 ? 1 : count;
    return STATUS_OK;
}

enum status bench_prepare(struct bench_rank *b, const struct sweep_point *s,
                          uint64_t *ret_iterations, struct error *err)
{
    double seconds;
    enum status status = STATUS_OK;

    if (b->options->warmup > 0)
        status = bench_round(b, s, (uint64_t)b->options->warmup, NULL, &seconds, err);
    *ret_iterations = b->sweep.iterations;
    if (status == STATUS_OK && *ret_iterations == 0)
        status = choose_iterations(b, s, ret_iterations, err);
    return status;
}

/* ---- checking ---- */

/* Compare one block of the output with its expected values. */
static uint64_t block_wrong(const struct bench_rank *b, const void *block, unsigned whose,
                            size_t first, size_t count)
{
    return sweep_values_wrong(&b->values, block, whose, first, count);
}

static uint64_t output_wrong(const struct bench_rank *b, const struct sweep_point *s,
                             const unsigned char *output)
{
    size_t own = b->rank * s->count;
    size_t block_bytes = s->count * dtype_size(s->dtype);
    unsigned left = (b->rank + b->world_size - 1) % b->world_size;
    uint64_t wrong = 0;

    switch ((int)b->sweep.call) {
    case COLLECTIVE_ALL_REDUCE:
        return block_wrong(b, output, b->world_size, 0, s->count);
    case COLLECTIVE_REDUCE:
        return b->rank == s->root ? block_wrong(b, output, b->world_size, 0, s->count) : 0;
    case COLLECTIVE_REDUCE_SCATTER:
        return block_wrong(b, output, b->world_size, own, s->count);
    case COLLECTIVE_BROADCAST:
        return block_wrong(b, output, s->root, 0, s->count);
    case COLLECTIVE_SCATTER:
        return block_wrong(b, output, s->root, own, s->count);
    case SWEEP_SENDRECV:
        return block_wrong(b, output, left, 0, s->count);
    case COLLECTIVE_GATHER:
        if (b->rank != s->root)
            return 0;
        break;
    default:
        break;
    }
    for (unsigned r = 0; r < b->world_size; r++)
        wrong += block_wrong(b, output + r * block_bytes, r,
                             b->sweep.call == COLLECTIVE_ALL_TO_ALL ? own : 0, s->count);
    return wrong;
}

static enum status check_once(struct bench_rank *b, const struct sweep_point *s, uint64_t *wrong,
                              struct error *err)
{
    struct collective_args args = bench_args(b, s);
    size_t inputs = input_count(b, s);
    enum status status = STATUS_OK;

    memset(b->output, 0xff, (size_t)s->bytes); /* stale output must not pass the check */
    sweep_values_fill(&b->values,
                      s->placement == IN_PLACE ? (unsigned char *)(uintptr_t)args.input : b->input,
                      b->rank, 0, inputs);
    status = run_backend(b, s, 1, err);
    if (status != STATUS_OK)
        return status;
    if (b->corrupt)
        b->corrupt(args.output, s->count * dtype_size(s->dtype));
    *wrong += output_wrong(b, s, args.output);
    if (s->placement == OUT_OF_PLACE)
        *wrong += sweep_values_wrong(&b->values, b->input, b->rank, 0, inputs);
    return STATUS_OK;
}

enum status bench_check(struct bench_rank *b, const struct sweep_point *s, uint64_t *ret_wrong,
                        struct error *err)
{
    uint64_t wrong = 0;
    double mine;
    enum status status = STATUS_OK;

    for (int64_t i = 0; i < b->options->check && status == STATUS_OK; i++)
        status = check_once(b, s, &wrong, err);
    memset(b->input, 0, (size_t)s->bytes);
    memset(b->output, 0, (size_t)s->bytes);
    mine = (double)wrong;
    if (status == STATUS_OK)
        status = collective_all_gather(b->control, &mine, sizeof(mine), b->gathered, err);
    *ret_wrong = 0;
    for (unsigned r = 0; r < b->world_size && status == STATUS_OK; r++)
        *ret_wrong += (uint64_t)b->gathered[r];
    return status;
}
