/*
 * A worker process of bench ps: the training worker's own synchronisation, with nothing to compute.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "experiments/bench/bench_ps.h"
#include "worker/sync/sync.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS 10 /* of the command line */

struct ps_worker {
    uint64_t rank, world_size, bytes, partition_bytes, iterations, warmup, timeout_ms;
    const char *servers;
    struct tensor_table table;
    float *params, *grads;
    struct sync *sync;
};

static enum status parse(struct ps_worker *w, int argc, char **argv, struct error *err)
{
    uint64_t *numbers[] = {&w->rank,   &w->world_size,      NULL,
                           &w->bytes,  &w->partition_bytes, &w->iterations,
                           &w->warmup, &w->timeout_ms};

    if (argc != WORDS)
        return error_set(err, STATUS_INVALID, "%s is for bench ps itself", BENCH_PS_WORKER);
    w->servers = argv[4];
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i] && !parse_uint64(argv[2 + i], numbers[i]))
            return error_set(err, STATUS_INVALID, "'%s' is no number", argv[2 + i]);
    return STATUS_OK;
}

static enum status open_sync(struct ps_worker *w, struct error *err)
{
    size_t count = w->bytes / sizeof(float);
    struct sync_config config = {.kind = "ps",
                                 .table = &w->table,
                                 .rank = (unsigned)w->rank,
                                 .world_size = (unsigned)w->world_size,
                                 .timeout_ms = (int64_t)w->timeout_ms,
                                 .order = REDUCE_FAST,
                                 .job = "bench",
                                 .servers = w->servers,
                                 .servers_origin = "bench ps",
                                 .partition_bytes = w->partition_bytes,
                                 .optimizer = optimizer_defaults(OPTIMIZER_SGD)};
    enum status status = tensor_table_add(&w->table, "slab", 1, &count, err);

    if (status != STATUS_OK)
        return status;
    tensor_table_layout(&w->table);
    status = mem_calloc_aligned(count, sizeof(float), "parameters", &w->params, err);
    if (status == STATUS_OK)
        status = mem_calloc_aligned(count, sizeof(float), "gradients", &w->grads, err);
    config.params = w->params;
    config.grads = w->grads;
    if (status == STATUS_OK)
        status = sync_open(&config, &w->sync, err);
    if (status == STATUS_OK)
        status = sync_start(w->sync, err);
    return status;
}

static bool is_off(float value, double wanted)
{
    return fabs((double)value - wanted) > 1e-4 * wanted;
}

static enum status iterate(struct ps_worker *w, uint64_t index, struct error *err)
{
    int64_t moments[2];
    enum status status;

    w->grads[0] = (float)(w->rank + 1);
    w->grads[w->table.count - 1] = (float)index;
    moments[0] = clock_now_ns();
    status = sync_begin(w->sync, index, err);
    if (status != STATUS_OK)
        return status;
    sync_ready(w->sync, w->table.count);
    status = sync_finish(w->sync, err);
    moments[1] = clock_now_ns();
    if (status != STATUS_OK || index < w->warmup)
        return status;
    /* A benchmark that computes nonsense measures nothing: look at the sum's two ends. */
    if (w->table.count > 1 && (is_off(w->grads[0], (double)(w->world_size + 1) / 2) ||
                               is_off(w->grads[w->table.count - 1], (double)index)))
        return error_set(err, STATUS_DATA, "iteration %ju: the mean gradient is wrong",
                         (uintmax_t)index);
    return file_write_all(STDOUT_FILENO, "stdout", moments, sizeof(moments), err);
}

int bench_ps_worker(int argc, char **argv)
{
    struct ps_worker w = {0};
    struct error err = {0};
    enum status status = parse(&w, argc, argv, &err);

    if (status == STATUS_OK)
        status = open_sync(&w, &err);
    for (uint64_t i = 0; status == STATUS_OK && i < w.warmup + w.iterations; i++)
        status = iterate(&w, i, &err);
    sync_close(w.sync, status == STATUS_OK ? NULL : &err);
    free(w.params);
    free(w.grads);
    tensor_table_release(&w.table);
    return status == STATUS_OK ? 0 : log_failure(&err);
}
