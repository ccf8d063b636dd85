/*
 * Which way an all-reduce of some size goes is measured when a group opens, because it depends on
 * latency, bandwidth and on how many ranks share the cores.  All ways run at a few sizes; the best
 * of some repeats counts, of the slowest rank, so that all ranks decide alike.  Measuring stops
 * after some milliseconds: a slow network says enough with its small sizes.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/collective/ring/ring.h"

#include <stdlib.h>

#define REPEATS   4 /* the first warms up */
#define BUDGET_NS 8e6
#define WHOLE_MIN ((size_t)1 << 10) /* in one round without asking */
#define WAYS      3

static const size_t sizes[] = {(size_t)8 << 10, (size_t)32 << 10, (size_t)128 << 10,
                               (size_t)512 << 10, (size_t)2 << 20};

#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static const struct ring_way ways[WAYS] = {
    {.is_pairs = true, .pairs = PAIRS_ALL_REDUCE_WHOLE},
    {.is_pairs = true, .pairs = PAIRS_ALL_REDUCE_CHUNKS},
    {.ring = RING_ALL_REDUCE},
};

struct tuning {
    struct ring *ring;
    int64_t deadline_ns;
    void *data;        /* of the largest size, zeros */
    uint64_t sequence; /* of these operations: their own numbers, before the group's */
};

static enum status complete(struct tuning *t, const struct collective_args *args,
                            struct ring_way way, struct error *err)
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

    ring_begin(r, args, &signature, way);
    switch (ring_advance(r, t->deadline_ns)) {
    case RING_DONE:
        return STATUS_OK;
    case RING_PAUSED:
        return error_set(err, STATUS_TIMEOUT, "the first exchange of bytes did not end");
    default:
        peer = r->io.trouble.peer;
        return error_set(err, STATUS_PEER_LOST,
                         "the connection to rank %u ended in the first exchange of bytes", peer);
    }
}

/* Nanoseconds of the best repeat of each way. */
static enum status measure(struct tuning *t, size_t bytes, double *best, struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .dtype = DTYPE_FLOAT32,
                                   .input = t->data,
                                   .output = t->data,
                                   .count = bytes / sizeof(float)};
    enum status status = STATUS_OK;

    for (size_t k = 0; k < WAYS * REPEATS && status == STATUS_OK; k++) {
        size_t way = k % WAYS;
        int64_t start_ns = clock_now_ns();
        double spent;

        status = complete(t, &args, ways[way], err);
        spent = (double)(clock_now_ns() - start_ns);
        if (k < WAYS || spent < best[way])
            best[way] = spent;
    }
    return status;
}

/* The slowest rank's times, on every rank. */
static enum status agree(struct tuning *t, double *times, size_t count, struct error *err)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .dtype = DTYPE_FLOAT64,
                                   .op = REDUCE_MAX,
                                   .input = times,
                                   .output = times,
                                   .count = count};

    return complete(t, &args, ways[0], err);
}

enum status ring_tune(struct ring *r, int64_t deadline_ns, struct error *err)
{
    struct tuning t = {.ring = r, .deadline_ns = deadline_ns};
    double start_ns = (double)clock_now_ns();
    double times[WAYS + 1] = {0}; /* and what all of this took so far */
    enum status status = mem_calloc_aligned(sizes[SIZES - 1], 1, "tuning", &t.data, err);

    r->whole_bytes = r->chunks_bytes = WHOLE_MIN;
    for (size_t i = 0; i < SIZES && status == STATUS_OK && times[WAYS] < BUDGET_NS; i++) {
        status = measure(&t, sizes[i], times, err);
        times[WAYS] = (double)clock_now_ns() - start_ns;
        if (status == STATUS_OK)
            status = agree(&t, times, WAYS + 1, err);
        log_debug("ring '%s': %zu bytes take %.1f us in one round, %.1f in two, %.1f in a ring",
                  r->base.name, sizes[i], times[0] / 1e3, times[1] / 1e3, times[2] / 1e3);
        if (times[0] <= times[1] && times[0] <= times[2])
            r->whole_bytes = r->chunks_bytes = sizes[i];
        else if (times[1] <= times[2])
            r->chunks_bytes = sizes[i];
    }
    free(t.data);
    log_debug("ring '%s' over %s: one round up to %zu bytes, two up to %zu, segments of %zu",
              r->base.name, r->io.transport->ops->name, r->whole_bytes, r->chunks_bytes,
              r->io.segment_bytes);
    return status;
}
