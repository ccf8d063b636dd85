/*
 * bench ps: bandwidth of the parameter server, push and pull of every byte with the sum between
 * them. gb_per_s counts both directions of all workers together; raw_gb_per_s is what one plain TCP
 * connection on the loopback moves in the same pattern, measured in the same run, half before and
 * half after, so that a drifting machine hits both.
 */
#include "experiments/bench/bench_ps.h"

#include "common/base/memory.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "common/shard_map/shard_map.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/bench_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ps_options {
    int64_t workers, servers, iterations, warmup, timeout_ms;
    uint64_t bytes, partition_bytes;
    char json[OPTION_TEXT_MAX];
};

#define AT(field) offsetof(struct ps_options, field)

static const struct option_spec specs[] = {
    {.name = "workers",
     .kind = OPTION_INT,
     .offset = AT(workers),
     .default_text = "1",
     .min = 1,
     .max = 64,
     .metavar = "N",
     .help = "Worker processes."},
    {.name = "servers",
     .kind = OPTION_INT,
     .offset = AT(servers),
     .default_text = "1",
     .min = 1,
     .max = 64,
     .metavar = "K",
     .help = "sparring-server processes."},
    {.name = "bytes",
     .kind = OPTION_BYTES,
     .offset = AT(bytes),
     .default_text = "64M",
     .min = 4,
     .max = 4294967296.0,
     .metavar = "SIZE",
     .help = "Gradient of each worker; all of it goes up and comes back in every iteration."},
    {.name = "iterations",
     .kind = OPTION_INT,
     .offset = AT(iterations),
     .default_text = "20",
     .min = 1,
     .max = 1e6,
     .metavar = "I",
     .help = "Measured; the median counts."},
    {.name = "warmup",
     .kind = OPTION_INT,
     .offset = AT(warmup),
     .default_text = "3",
     .min = 0,
     .max = 1e6,
     .metavar = "I",
     .help = "Iterations before those."},
    {.name = "partition-bytes",
     .kind = OPTION_BYTES,
     .offset = AT(partition_bytes),
     .default_text = "1M",
     .min = PARTITION_BYTES_MIN,
     .max = PARTITION_BYTES_MAX,
     .metavar = "SIZE",
     .help = "Of a chunk."},
    {.name = "timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "60000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "Longest wait for a process or a round."},
    {.name = "json",
     .kind = OPTION_TEXT,
     .offset = AT(json),
     .metavar = "FILE",
     .help = "Write the rows there."},
};

static const struct option_set option_set = {
    .program = "sparring bench ps",
    .summary = "Measure push and pull through real servers, beside plain TCP.",
    .usage = "[OPTION]...",
    .specs = specs,
    .count = sizeof(specs) / sizeof(specs[0]),
};

struct figures {
    struct bench_summary seconds, gb_per_s, raw_gb_per_s;
};

static void print(const struct ps_options *o, const struct figures *f)
{
    (void)printf("# parameter server over gRPC on the loopback, push plus pull, median of %jd\n",
                 (intmax_t)o->iterations);
    (void)printf("# %7s %7s %12s %12s %10s %8s %8s %10s %6s\n", "workers", "servers", "bytes",
                 "partition", "seconds", "GB/s", "min", "raw GB/s", "ratio");
    (void)printf("  %7jd %7jd %12ju %12ju %10.6f %8.3f %8.3f %10.3f %6.2f\n", (intmax_t)o->workers,
                 (intmax_t)o->servers, (uintmax_t)o->bytes, (uintmax_t)o->partition_bytes,
                 f->seconds.median, f->gb_per_s.median, f->gb_per_s.min, f->raw_gb_per_s.median,
                 f->gb_per_s.median / f->raw_gb_per_s.median);
}

static enum status write_json(const struct ps_options *o, const struct figures *f,
                              struct error *err)
{
    struct bench_report r;
    enum status status = STATUS_OK;

    bench_report_init(&r, "ps");
    bench_row_begin(&r);
    bench_row_int(&r, "workers", o->workers);
    bench_row_int(&r, "servers", o->servers);
    bench_row_int(&r, "bytes", (int64_t)o->bytes);
    bench_row_int(&r, "partition_bytes", (int64_t)o->partition_bytes);
    bench_row_int(&r, "iterations", o->iterations);
    bench_row_text(&r, "network", "loopback");
    bench_row_summary(&r, "seconds", f->seconds);
    bench_row_summary(&r, "gb_per_s", f->gb_per_s);
    bench_row_summary(&r, "raw_gb_per_s", f->raw_gb_per_s);
    bench_row_end(&r);
    if (o->json[0])
        status = bench_report_write(&r, o->json, err);
    bench_report_release(&r);
    return status;
}

/* raw, then the servers, then raw again. */
static enum status measure(const struct ps_options *o, double *seconds, double *raw,
                           struct error *err)
{
    struct bench_ps_config config = {
        .workers = (unsigned)o->workers,
        .servers = (unsigned)o->servers,
        .bytes = o->bytes,
        .partition_bytes = o->partition_bytes,
        .iterations = (size_t)o->iterations,
        .warmup = (size_t)o->warmup,
        .timeout_ms = o->timeout_ms,
    };
    enum status status = bench_ps_raw(&config, raw, err);

    if (status == STATUS_OK)
        status = bench_ps_measure(&config, seconds, err);
    if (status == STATUS_OK)
        status = bench_ps_raw(&config, raw + o->iterations, err);
    return status;
}

static enum status run(const void *options, const struct option_result *origins, struct error *err)
{
    const struct ps_options *o = options;
    size_t count = (size_t)o->iterations;
    double both = 2.0 * (double)o->bytes * 1e-9; /* up and down, in GB */
    double *seconds = NULL, *raw = NULL;
    enum status status = stop_install(err);

    (void)origins;
    if (o->bytes % sizeof(float) != 0 || o->partition_bytes % sizeof(float) != 0)
        return error_set(err, STATUS_INVALID, "--bytes and --partition-bytes: multiples of 4");
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(double), "times", &seconds, err);
    if (status == STATUS_OK)
        status = mem_calloc(2 * count, sizeof(double), "times", &raw, err);
    if (status == STATUS_OK)
        status = measure(o, seconds, raw, err);
    if (status == STATUS_OK) {
        struct figures f = {.seconds = bench_summarise(seconds, count)};

        f.gb_per_s = bench_rate(both * (double)o->workers, f.seconds);
        f.raw_gb_per_s = bench_rate(both, bench_summarise(raw, 2 * count));
        print(o, &f);
        status = write_json(o, &f, err);
    }
    free(seconds);
    free(raw);
    return status;
}

int bench_ps_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &option_set,
        .options_size = sizeof(struct ps_options),
        .run = run,
    };

    if (argc > 1 && strcmp(argv[1], BENCH_PS_WORKER) == 0)
        return bench_ps_worker(argc, argv);
    return program_main(&program, argc, argv);
}
