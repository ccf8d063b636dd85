/*
 * The algorithm of an all-reduce of some size is measured when a group opens, because it depends on
 * latency, bandwidth and on how many ranks share the cores.  All algorithms run at a few sizes; the
 * best of some repeats counts, of the slowest rank, so that all ranks decide alike.  Measuring
 * stops after some milliseconds: on a slow network the small sizes are enough.
 *
 * Between hosts some connections per neighbour are open; how many of them carry a large message
 * fastest is measured likewise, and the rest closed.
 *
 * Doubling against one round, on loopback of 2 cores: equal for n = 2 (it is the same exchange),
 * 1.2 to 1.4 times as fast for n = 4, 1.5 to 2 for n = 8, 2.5 to 4 for n = 16, from 64 bytes to 128
 * KiB; between hosts its log2(n) latencies may cost more than the fewer messages save.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/collective/ring/ring.h"
#include "common/collective/ring/ring_connect.h"

#include <math.h>
#include <stdlib.h>

#define REPEATS      4   /* the first warms up ... */
#define REPEATS_LATE 2   /* ... and so many once half of the budget is used */
#define BUDGET_NS    4e6 /* per rank, of at least BUDGET_RANKS */
#define BUDGET_RANKS 4
#define WHOLE_MIN    ((size_t)1 << 10)  /* the least size to measure */
#define ROUNDS_MIN   ((size_t)32 << 10) /* below it, two rounds and the ring only add latency */
#define IN_A_ROW     2                  /* ranks start a single operation too far apart */
#define PRUNE_FACTOR 2.0                /* times the best: not for larger messages either */

#define DATA_BYTES       ((size_t)2 << 20)   /* the most to measure */
#define STREAM_BYTES_MIN ((size_t)512 << 10) /* some stripes for each of the streams */
#define STREAM_NS        4e6                 /* that one run should take */
#define STREAM_BUDGET_NS 25e6                /* that all should */
#define STREAM_LIMIT_NS  250e6               /* if one run of each took longer: give up */
#define STREAM_GAIN      0.9
#define STREAM_COUNTS    3

static const unsigned stream_counts[STREAM_COUNTS] = {1, 2, RING_STREAMS_TUNED};

enum { WHOLE, CHUNKS, RING, DOUBLING, ALGORITHM_COUNT };

const size_t ring_tuned_sizes[RING_TUNED_SIZES] = {
    WHOLE_MIN, (size_t)8 << 10, (size_t)32 << 10, (size_t)128 << 10, (size_t)512 << 10, DATA_BYTES,
};

static const struct ring_algorithm algorithms[ALGORITHM_COUNT] = {
    [WHOLE] = {.by = BY_PAIRS, .pairs = PAIRS_ALL_REDUCE_WHOLE},
    [CHUNKS] = {.by = BY_PAIRS, .pairs = PAIRS_ALL_REDUCE_CHUNKS},
    [RING] = {.by = BY_RING, .ring = RING_ALL_REDUCE},
    [DOUBLING] = {.by = BY_DOUBLING},
};

static const char *const algorithm_names[ALGORITHM_COUNT] = {"in one round", "in two", "in a ring",
                                                             "by doubling"};

struct tuning {
    struct ring *ring;
    int64_t deadline_ns;
    void *data; /* of the largest size, zeros */
    bool dropped[ALGORITHM_COUNT];
    size_t ring_bytes; /* the largest message that went through the ring so far ... */
    double ring_ns;    /* ... and how long that took */
    uint64_t sequence; /* of these operations: their own numbers, before the group's */
};

static enum status run_operation(struct tuning *t, const struct collective_args *args,
                                 struct ring_algorithm algorithm, struct error *err)
{
    struct ring *r = t->ring;
    struct signature signature = {.call = args->call,
                                  .dtype = args->dtype,
                                  .op = args->op,
                                  .group = r->base.id,
                                  .generation = r->base.generation,
                                  .sequence = ++t->sequence,
                                  .count = args->count};
    unsigned peer;

    ring_begin(r, args, &signature, algorithm);
    switch (ring_advance(r, t->deadline_ns)) {
    case RING_DONE:
        return STATUS_OK;
    case RING_PAUSED:
        if (r->io.alarm && atomic_load(r->io.alarm)) {
            (void)mesh_alarm_error(r->base.alarm, err);
            return error_prefix(err, "the first exchange of bytes: ");
        }
        return error_set(err, STATUS_TIMEOUT, "the first exchange of bytes did not end");
    default:
        peer = r->io.trouble.peer;
        return error_set(err, STATUS_PEER_LOST,
                         "the connection to rank %u ended in the first exchange of bytes",
                         r->base.members[peer]);
    }
}

/* Doubling between two ranks is the one round; and its message must fit in a buffer. */
static bool is_candidate(const struct tuning *t, unsigned algorithm, size_t bytes)
{
    if (algorithm == CHUNKS || algorithm == RING)
        return bytes >= ROUNDS_MIN;
    if (algorithm == DOUBLING &&
        (t->ring->base.world_size == 2 || bytes > t->ring->pairs.buffer_bytes))
        return false;
    return !t->dropped[algorithm];
}

/* Nanoseconds of the best repeat of each algorithm; HUGE_VAL where it is no candidate. */
static enum status measure_algorithms(struct tuning *t, size_t bytes, unsigned repeats,
                                      double *best, struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .dtype = DTYPE_FLOAT32,
                                   .input = t->data,
                                   .output = t->data,
                                   .count = bytes / sizeof(float)};
    enum status status = STATUS_OK;

    for (unsigned algorithm = 0; algorithm < ALGORITHM_COUNT; algorithm++)
        best[algorithm] = HUGE_VAL;
    for (unsigned k = 0; k < ALGORITHM_COUNT * repeats && status == STATUS_OK; k++) {
        unsigned algorithm = k % ALGORITHM_COUNT;
        int64_t start_ns = clock_now_ns();
        double spent;

        if (!is_candidate(t, algorithm, bytes))
            continue;
        for (unsigned i = 0; i < IN_A_ROW && status == STATUS_OK; i++)
            status = run_operation(t, &args, algorithms[algorithm], err);
        spent = (double)(clock_now_ns() - start_ns) / IN_A_ROW;
        if (k < ALGORITHM_COUNT || spent < best[algorithm])
            best[algorithm] = spent;
    }
    return status;
}

/* The slowest rank's times, on every rank. */
static enum status share_slowest_times(struct tuning *t, double *times, size_t count,
                                       struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .dtype = DTYPE_FLOAT64,
                                   .op = REDUCE_MAX,
                                   .input = times,
                                   .output = times,
                                   .count = count};

    return run_operation(t, &args, algorithms[WHOLE], err);
}

/* Choose the algorithm of one size by its times. */
static void choose_algorithm(struct tuning *t, size_t size, const double *times)
{
    struct ring *r = t->ring;
    unsigned best = 0;

    for (unsigned algorithm = 1; algorithm < ALGORITHM_COUNT; algorithm++)
        if (times[algorithm] < times[best])
            best = algorithm;
    r->all_reduce_algorithms[r->tuned_sizes++] = algorithms[best];
    if (times[WHOLE] <= times[CHUNKS] && times[WHOLE] <= times[RING])
        r->whole_bytes = r->chunks_bytes = size;
    else if (times[CHUNKS] <= times[RING])
        r->chunks_bytes = size;
    if (times[RING] < HUGE_VAL) {
        t->ring_bytes = size;
        t->ring_ns = times[RING];
    }
    for (unsigned algorithm = 0; algorithm < ALGORITHM_COUNT; algorithm++) {
        t->dropped[algorithm] |= times[algorithm] > PRUNE_FACTOR * times[best];
        if (times[algorithm] < HUGE_VAL)
            log_debug("ring '%s': %zu bytes take %.1f us %s%s", r->base.name, size,
                      times[algorithm] / 1e3, algorithm_names[algorithm],
                      algorithm == best ? ", the fastest" : "");
    }
}

static enum status tune_algorithms(struct tuning *t, struct error *err)
{
    struct ring *r = t->ring;
    unsigned ranks = r->base.world_size > BUDGET_RANKS ? r->base.world_size : BUDGET_RANKS;
    double budget_ns = BUDGET_NS * ranks;
    double start_ns = (double)clock_now_ns();
    double times[ALGORITHM_COUNT + 1] = {0}; /* and what all of this took so far */
    enum status status = STATUS_OK;

    r->whole_bytes = r->chunks_bytes = WHOLE_MIN;
    for (size_t i = 0;
         i < RING_TUNED_SIZES && status == STATUS_OK && times[ALGORITHM_COUNT] < budget_ns; i++) {
        unsigned repeats = times[ALGORITHM_COUNT] < budget_ns / 2 ? REPEATS : REPEATS_LATE;

        status = measure_algorithms(t, ring_tuned_sizes[i], repeats, times, err);
        times[ALGORITHM_COUNT] = (double)clock_now_ns() - start_ns;
        if (status == STATUS_OK)
            status = share_slowest_times(t, times, ALGORITHM_COUNT + 1, err);
        if (status == STATUS_OK)
            choose_algorithm(t, ring_tuned_sizes[i], times);
    }
    return status;
}

/* ---- streams ---- */

/* One all-reduce over `count` connections per neighbour. */
static enum status try_streams(struct tuning *t, unsigned count, size_t bytes, double since_ns,
                               double *ret_ns, double *ret_elapsed_ns, struct error *err)
{
    struct transport *transport = t->ring->io.transport;
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .dtype = DTYPE_FLOAT32,
                                   .input = t->data,
                                   .output = t->data,
                                   .count = bytes / sizeof(float)};
    double start_ns = (double)clock_now_ns();
    double times[2];
    enum status status;

    (void)transport->ops->use_streams(transport, count);
    status = run_operation(t, &args, algorithms[RING], err);
    times[0] = (double)clock_now_ns() - start_ns;
    times[1] = (double)clock_now_ns() - since_ns;
    if (status == STATUS_OK)
        status = share_slowest_times(t, times, 2, err);
    *ret_ns = times[0];
    *ret_elapsed_ns = times[1];
    return status;
}

/* A larger number must gain STREAM_GAIN. */
static unsigned best_streams(const double *times)
{
    unsigned best = 0;

    for (unsigned i = 1; i < STREAM_COUNTS; i++)
        if (times[i] < STREAM_GAIN * times[best])
            best = i;
    return stream_counts[best];
}

/* As many bytes as take STREAM_NS at the rate of the largest ring so far. */
static size_t stream_bytes(const struct tuning *t)
{
    double bytes = t->ring_ns > 0 ? (double)t->ring_bytes * STREAM_NS / t->ring_ns : 0;

    if (bytes < (double)STREAM_BYTES_MIN)
        return STREAM_BYTES_MIN;
    return bytes < (double)DATA_BYTES ? (size_t)bytes / 4096 * 4096 : DATA_BYTES;
}

/* The first run, over all connections, ends their slow start; then the counts take turns.  A link
 * on which that run alone takes too long keeps one connection. */
static enum status measure_streams(struct tuning *t, size_t bytes, double *best, struct error *err)
{
    double since_ns = (double)clock_now_ns();
    double spent;
    double elapsed_ns;
    enum status status =
        try_streams(t, RING_STREAMS_TUNED, bytes, since_ns, &spent, &elapsed_ns, err);

    for (unsigned k = 0; k < STREAM_COUNTS * REPEATS && status == STATUS_OK; k++) {
        unsigned i = k % STREAM_COUNTS;

        if (elapsed_ns > (k < STREAM_COUNTS ? STREAM_LIMIT_NS : STREAM_BUDGET_NS))
            break;
        status = try_streams(t, stream_counts[i], bytes, since_ns, &spent, &elapsed_ns, err);
        if (spent < best[i])
            best[i] = spent;
    }
    return status;
}

static enum status tune_streams(struct tuning *t, struct error *err)
{
    struct ring *r = t->ring;
    struct transport *transport = r->io.transport;
    double best[STREAM_COUNTS];
    size_t bytes = stream_bytes(t);
    double start_ns = (double)clock_now_ns();
    enum status status;

    r->streams = r->base.streams > 0 ? r->base.streams : 1;
    if (!transport->ops->use_streams || transport->ops->use_streams(transport, r->streams) <= 1)
        return STATUS_OK;
    for (unsigned i = 0; i < STREAM_COUNTS; i++)
        best[i] = HUGE_VAL;
    status = measure_streams(t, bytes, best, err);
    if (status != STATUS_OK)
        return status;
    r->streams = best_streams(best);
    (void)transport->ops->use_streams(transport, r->streams);
    transport->ops->settle_streams(transport);
    for (unsigned i = 0; i < STREAM_COUNTS; i++)
        if (best[i] < HUGE_VAL)
            log_debug("ring '%s': %zu bytes take %.1f us over %u connections per neighbour%s",
                      r->base.name, bytes, best[i] / 1e3, stream_counts[i],
                      stream_counts[i] == r->streams ? ", chosen" : "");
    log_debug("ring '%s': measuring connections took %.1f ms", r->base.name,
              ((double)clock_now_ns() - start_ns) / 1e6);
    return STATUS_OK;
}

enum status ring_tune(struct ring *r, int64_t deadline_ns, struct error *err)
{
    struct tuning t = {.ring = r, .deadline_ns = deadline_ns};
    double start_ns = (double)clock_now_ns();
    enum status status = mem_calloc_aligned(DATA_BYTES, 1, "tuning", &t.data, err);

    ring_watch(r);
    if (status == STATUS_OK)
        status = tune_algorithms(&t, err);
    if (status == STATUS_OK)
        status = tune_streams(&t, err);
    free(t.data);
    if (status == STATUS_OK)
        log_debug("ring '%s' over %s: tuned up to %zu bytes in %.1f ms: segments of %zu, %u "
                  "connection%s per neighbour",
                  r->base.name, r->io.transport->ops->name, ring_tuned_sizes[r->tuned_sizes - 1],
                  ((double)clock_now_ns() - start_ns) / 1e6, r->io.segment_bytes, r->streams,
                  r->streams == 1 ? "" : "s");
    return status;
}
