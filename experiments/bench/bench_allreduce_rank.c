/*
 * One rank of bench allreduce: opens every series, then for each size lets them take turns.  The
 * control group (a ring of its own) carries barriers, the number of iterations and the samples, so
 * that no backend times itself.  Buffers hold zeros while the clock runs (sums of sums would
 * overflow) and integers when the result is checked.
 */
#include "experiments/bench/bench_allreduce.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/memory.h"
#include "experiments/bench/tcp_ceiling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_NS       50000000 /* what `--iterations auto` aims at */
#define ITERATIONS_MAX 10000

struct bench_rank {
    const struct allreduce_options *options;
    struct series_list list;
    unsigned rank, world_size;
    int64_t timeout_ms;
    struct store *store;
    struct collective *control;
    struct collective *groups[SERIES_MAX]; /* NULL for a ceiling */
    struct tcp_ceiling tcp;
    float *data;     /* max_bytes */
    double *samples; /* [series][rounds] */
    double *gather;  /* one per rank */
    int out_fd;
};

/* ---- values ---- */

/* At most 64 ranks give sums below 2^24, where float32 still holds every integer. */
float allreduce_value(unsigned rank, size_t i)
{
    return (float)((i * 31 + rank * 17) % 1021);
}

size_t allreduce_count_wrong(const float *data, size_t count, unsigned world_size)
{
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++) {
        float sum = 0;

        for (unsigned r = 0; r < world_size; r++)
            sum += allreduce_value(r, i);
        wrong += !(data[i] >= sum && data[i] <= sum); /* NaN is wrong, too */
    }
    return wrong;
}

/* ---- one operation of a series ---- */

static uint64_t ring_bytes(const struct bench_rank *b, uint64_t bytes)
{
    return 2 * bytes * (b->world_size - 1) / b->world_size;
}

static void copy_halves(float *data, uint64_t bytes)
{
    size_t half = (size_t)bytes / 2;

    memcpy((char *)data + half, data, half);
    memcpy(data, (char *)data + half, half);
}

static enum status operate(struct bench_rank *b, size_t series, uint64_t bytes, struct error *err)
{
    switch (b->list.series[series].kind) {
    case SERIES_BACKEND:
        return collective_all_reduce(b->groups[series], b->data, (size_t)bytes / sizeof(float),
                                     allreduce_order(b->options), err);
    case SERIES_TCP:
        return tcp_ceiling_run(&b->tcp, b->data, (size_t)bytes, ring_bytes(b, bytes), b->timeout_ms,
                               err);
    case SERIES_MEMCPY:
        copy_halves(b->data, bytes);
        /* The copies must not be left out because nobody reads them. */
        __asm__ volatile("" : : "r"(b->data) : "memory");
        break;
    }
    return STATUS_OK;
}

/* ---- timing ---- */

/* Seconds per operation of the slowest rank, over `iterations` in a row. */
static enum status time_round(struct bench_rank *b, size_t series, uint64_t bytes,
                              uint64_t iterations, double *ret_seconds, struct error *err)
{
    int64_t start_ns;
    double mine;
    enum status status = collective_barrier(b->control, err);

    start_ns = clock_now_ns();
    for (uint64_t i = 0; i < iterations && status == STATUS_OK; i++)
        status = operate(b, series, bytes, err);
    mine = (double)(clock_now_ns() - start_ns) * 1e-9 / (double)iterations;
    if (status == STATUS_OK)
        status = collective_all_gather(b->control, &mine, sizeof(mine), b->gather, err);
    if (status != STATUS_OK)
        return status;
    *ret_seconds = b->gather[0];
    for (unsigned r = 1; r < b->world_size; r++)
        if (b->gather[r] > *ret_seconds)
            *ret_seconds = b->gather[r];
    return STATUS_OK;
}

/* How many operations fill ROUND_NS.  The number grows until a round is long enough to judge by:
 * the first operations after a pause can cost ten times the later ones (Gloo's threads wake late).
 */
static enum status calibrate(struct bench_rank *b, size_t series, uint64_t bytes,
                             uint64_t *ret_iterations, struct error *err)
{
    uint64_t count = 1;
    double seconds = 0;
    enum status status = time_round(b, series, bytes, count, &seconds, err);

    while (status == STATUS_OK && seconds * (double)count < ROUND_NS * 0.5e-9 &&
           count < ITERATIONS_MAX) {
        count = 4 * count < ITERATIONS_MAX ? 4 * count : ITERATIONS_MAX;
        status = time_round(b, series, bytes, count, &seconds, err);
    }
    if (status != STATUS_OK)
        return status;
    count = seconds > 0 ? (uint64_t)(ROUND_NS * 1e-9 / seconds) : ITERATIONS_MAX;
    *ret_iterations = count < 1 ? 1 : count > ITERATIONS_MAX ? ITERATIONS_MAX : count;
    return STATUS_OK;
}

/* Warm up and choose the length of a round; the same on all ranks, because the slowest rank's time
 * is. */
static enum status prepare(struct bench_rank *b, size_t series, uint64_t bytes,
                           uint64_t *ret_iterations, struct error *err)
{
    double seconds;
    enum status status = STATUS_OK;

    if (b->options->warmup > 0)
        status = time_round(b, series, bytes, (uint64_t)b->options->warmup, &seconds, err);
    *ret_iterations = allreduce_iterations(b->options);
    if (status == STATUS_OK && *ret_iterations == 0)
        status = calibrate(b, series, bytes, ret_iterations, err);
    return status;
}

/* One operation on known values; elements of all ranks that are wrong. */
static enum status check(struct bench_rank *b, size_t series, uint64_t bytes, uint64_t *ret_wrong,
                         struct error *err)
{
    size_t count = (size_t)bytes / sizeof(float);
    double mine;
    enum status status;

    *ret_wrong = 0;
    if (b->list.series[series].kind != SERIES_BACKEND)
        return STATUS_OK;
    for (size_t i = 0; i < count; i++)
        b->data[i] = allreduce_value(b->rank, i);
    status = operate(b, series, bytes, err);
    mine = (double)allreduce_count_wrong(b->data, count, b->world_size);
    memset(b->data, 0, (size_t)bytes);
    if (status == STATUS_OK)
        status = collective_all_gather(b->control, &mine, sizeof(mine), b->gather, err);
    for (unsigned r = 0; r < b->world_size && status == STATUS_OK; r++)
        *ret_wrong += (uint64_t)b->gather[r];
    return status;
}

static enum status tell(struct bench_rank *b, size_t series, struct allreduce_record *record,
                        struct error *err)
{
    size_t rounds = (size_t)b->options->rounds;
    enum status status = check(b, series, record->bytes, &record->wrong, err);

    record->series = series;
    record->rounds = rounds;
    record->seconds = bench_summarise(b->samples + series * rounds, rounds);
    if (status != STATUS_OK || b->rank != 0)
        return status;
    return file_write_all(b->out_fd, "the pipe to the parent", record, sizeof(*record), err);
}

static enum status measure_size(struct bench_rank *b, uint64_t bytes, struct error *err)
{
    struct allreduce_record records[SERIES_MAX] = {{.bytes = 0}};
    size_t rounds = (size_t)b->options->rounds;
    enum status status = STATUS_OK;

    for (size_t s = 0; s < b->list.length && status == STATUS_OK; s++) {
        records[s].bytes = bytes;
        status = prepare(b, s, bytes, &records[s].iterations, err);
    }
    for (size_t round = 0; round < rounds; round++)
        for (size_t s = 0; s < b->list.length && status == STATUS_OK; s++)
            status = time_round(b, s, bytes, records[s].iterations, b->samples + s * rounds + round,
                                err);
    for (size_t s = 0; s < b->list.length && status == STATUS_OK; s++)
        status = tell(b, s, &records[s], err);
    return status;
}

/* ---- lifetime ---- */

static enum status open_group(struct bench_rank *b, const char *backend, const char *name,
                              struct collective **ret_group, struct error *err)
{
    struct collective_config config = {.backend = backend,
                                       .name = name,
                                       .rank = b->rank,
                                       .world_size = b->world_size,
                                       .store = b->store,
                                       .timeout_ms = b->timeout_ms};

    return collective_open(&config, ret_group, err);
}

static enum status open_series(struct bench_rank *b, struct error *err)
{
    enum status status = open_group(b, "ring", "control", &b->control, err);

    for (size_t s = 0; s < b->list.length && status == STATUS_OK; s++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "series%zu", s);
        if (b->list.series[s].kind == SERIES_BACKEND)
            status = open_group(b, b->list.series[s].name, name, &b->groups[s], err);
        else if (b->list.series[s].kind == SERIES_TCP)
            status = tcp_ceiling_open(&b->tcp, b->store, b->timeout_ms, err);
    }
    return status;
}

static enum status open_store(struct bench_rank *b, const char *folder, struct error *err)
{
    struct launch_env launch = {.rank = b->rank, .world_size = b->world_size};
    char method[512];
    struct store_config config = {
        .init_method = method, .launch = &launch, .group = "", .timeout_ms = b->timeout_ms};

    (void)snprintf(method, sizeof(method), "file://%s/store", folder);
    return store_open(&config, &b->store, err);
}

static enum status allocate(struct bench_rank *b, struct error *err)
{
    size_t rounds = (size_t)b->options->rounds;
    enum status status =
        mem_calloc_aligned((size_t)b->options->max_bytes, 1, "buffer", &b->data, err);

    if (status == STATUS_OK)
        status = mem_calloc(SERIES_MAX * rounds, sizeof(double), "samples", &b->samples, err);
    if (status == STATUS_OK)
        status = mem_calloc(b->world_size, sizeof(double), "ranks", &b->gather, err);
    return status;
}

/* Failed groups say nothing to the others: that a rank fails stops all of them. */
static void release(struct bench_rank *b)
{
    for (size_t s = 0; s < SERIES_MAX; s++)
        collective_close(b->groups[s]);
    collective_close(b->control);
    tcp_ceiling_close(&b->tcp);
    store_close(b->store, 0);
    free(b->data);
    free(b->samples);
    free(b->gather);
}

enum status allreduce_rank(const struct allreduce_options *options, unsigned rank,
                           const char *folder, int out_fd, struct error *err)
{
    struct bench_rank b = {.options = options,
                           .rank = rank,
                           .world_size = (unsigned)options->nproc,
                           .timeout_ms = options->timeout_ms,
                           .tcp = {.right_fd = -1, .left_fd = -1},
                           .out_fd = out_fd};
    enum status status = allreduce_series(options, &b.list, err);

    if (status == STATUS_OK)
        status = allocate(&b, err);
    if (status == STATUS_OK)
        status = open_store(&b, folder, err);
    if (status == STATUS_OK)
        status = open_series(&b, err);
    for (uint64_t bytes = options->min_bytes; status == STATUS_OK && bytes <= options->max_bytes;
         bytes *= (uint64_t)options->factor)
        status = measure_size(&b, bytes, err);
    release(&b);
    return status;
}
