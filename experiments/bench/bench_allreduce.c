/*
 * bench allreduce: the options, and the choice between parent and rank process.  Figures and format
 * are those of nccl-tests (doc/PERFORMANCE.md): algbw = bytes / time, busbw = algbw * 2(n-1)/n,
 * GB = 1e9 bytes.
 */
#include "experiments/bench/bench_allreduce.h"

#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/bench/bench.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define AT(field) offsetof(struct allreduce_options, field)

static const struct option_spec specs[] = {
    {.name = "backend",
     .kind = OPTION_TEXT,
     .offset = AT(backend),
     .default_text = "all",
     .metavar = "NAME,...",
     .help = "ring, gloo (where the build has it), or all."},
    {.name = "nproc",
     .kind = OPTION_INT,
     .offset = AT(nproc),
     .default_text = "2",
     .min = 2,
     .max = 64,
     .metavar = "N",
     .help = "Rank processes on this host."},
    {.name = "min-bytes",
     .kind = OPTION_BYTES,
     .offset = AT(min_bytes),
     .default_text = "4K",
     .min = 4,
     .max = 4294967296.0,
     .metavar = "SIZE",
     .help = "Smallest buffer per rank."},
    {.name = "max-bytes",
     .kind = OPTION_BYTES,
     .offset = AT(max_bytes),
     .default_text = "256M",
     .min = 4,
     .max = 4294967296.0,
     .metavar = "SIZE",
     .help = "Largest buffer per rank."},
    {.name = "factor",
     .kind = OPTION_INT,
     .offset = AT(factor),
     .default_text = "4",
     .min = 2,
     .max = 1024,
     .metavar = "F",
     .help = "From one size to the next."},
    {.name = "iterations",
     .kind = OPTION_TEXT,
     .offset = AT(iterations),
     .default_text = "auto",
     .metavar = "I",
     .help = "Operations per round, back to back; auto: as many as take 50 ms."},
    {.name = "rounds",
     .kind = OPTION_INT,
     .offset = AT(rounds),
     .default_text = "9",
     .min = 1,
     .max = ROUNDS_MAX,
     .metavar = "R",
     .help = "The backends take turns R times; the median counts."},
    {.name = "warmup",
     .kind = OPTION_INT,
     .offset = AT(warmup),
     .default_text = "2",
     .min = 0,
     .max = 1e6,
     .metavar = "I",
     .help = "Operations before the first round of a size."},
    {.name = "order",
     .kind = OPTION_CHOICE,
     .offset = AT(order),
     .default_text = "fast",
     .choices = "fast|reproducible",
     .help = "How sums associate: the algorithm's way, or by ascending rank."},
    {.name = "ceiling",
     .kind = OPTION_BOOL,
     .offset = AT(ceiling),
     .default_text = "true",
     .help = "Also measure plain TCP and memcpy, in the same rounds."},
    {.name = "timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "60000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "Longest wait for a rank, and longest operation."},
    {.name = "json",
     .kind = OPTION_TEXT,
     .offset = AT(json),
     .metavar = "FILE",
     .help = "Write the rows there."},
};

static const struct option_set option_set = {
    .program = "sparring bench allreduce",
    .summary = "Measure all-reduce by backend and size, backends taking turns.",
    .usage = "[OPTION]...",
    .specs = specs,
    .count = sizeof(specs) / sizeof(specs[0]),
};

enum reduce_order allreduce_order(const struct allreduce_options *options)
{
    return strcmp(options->order, "reproducible") == 0 ? REDUCE_REPRODUCIBLE : REDUCE_FAST;
}

uint64_t allreduce_iterations(const struct allreduce_options *options)
{
    uint64_t iterations = 0;

    return parse_uint64(options->iterations, &iterations) ? iterations : 0;
}

/* ---- the list of series ---- */

static bool is_backend(const char *name)
{
    for (const char *const *known = collective_backends(); *known; known++)
        if (strcmp(*known, name) == 0)
            return true;
    return false;
}

static enum status add_series(struct series_list *list, enum series_kind kind, const char *name,
                              struct error *err)
{
    if (list->length == SERIES_MAX)
        return error_set(err, STATUS_INVALID, "--backend names more than %d backends",
                         SERIES_MAX - 2);
    list->series[list->length].kind = kind;
    (void)snprintf(list->series[list->length].name, sizeof(list->series[0].name), "%s", name);
    list->length++;
    return STATUS_OK;
}

static enum status add_backend(struct series_list *list, const struct allreduce_options *options,
                               const char *name, struct error *err)
{
    if (!is_backend(name))
        return error_set(err, STATUS_INVALID, "--backend: this build has no backend '%s'", name);
    if (allreduce_order(options) == REDUCE_REPRODUCIBLE && strcmp(name, "gloo") == 0)
        return error_set(err, STATUS_UNSUPPORTED,
                         "gloo cannot sum in rank order: leave it out of --backend, or use --order "
                         "fast");
    return add_series(list, SERIES_BACKEND, name, err);
}

static enum status add_named_backends(struct series_list *list,
                                      const struct allreduce_options *options, struct error *err)
{
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;

    (void)snprintf(names, sizeof(names), "%s", options->backend);
    for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        enum status status = add_backend(list, options, name, err);

        if (status != STATUS_OK)
            return status;
    }
    if (list->length == 0)
        return error_set(err, STATUS_INVALID, "--backend names no backend");
    return STATUS_OK;
}

/* Those that can do it: Gloo has no rank order. */
static enum status add_all_backends(struct series_list *list,
                                    const struct allreduce_options *options, struct error *err)
{
    enum status status = STATUS_OK;

    for (const char *const *name = collective_backends(); *name && status == STATUS_OK; name++)
        if (allreduce_order(options) == REDUCE_FAST || strcmp(*name, "gloo") != 0)
            status = add_backend(list, options, *name, err);
    return status;
}

enum status allreduce_series(const struct allreduce_options *options, struct series_list *ret,
                             struct error *err)
{
    struct series_list list = {.length = 0};
    enum status status;

    if (options->min_bytes % sizeof(float) != 0 || options->max_bytes < options->min_bytes)
        return error_set(err, STATUS_INVALID,
                         "--min-bytes must be a multiple of 4 and at most --max-bytes");
    if (strcmp(options->iterations, "auto") != 0 && allreduce_iterations(options) == 0)
        return error_set(err, STATUS_INVALID, "--iterations: '%s' is neither auto nor a number",
                         options->iterations);
    if (strcmp(options->backend, "all") == 0)
        status = add_all_backends(&list, options, err);
    else
        status = add_named_backends(&list, options, err);
    if (status == STATUS_OK && options->ceiling)
        status = add_series(&list, SERIES_TCP, "ceiling-tcp", err);
    if (status == STATUS_OK && options->ceiling)
        status = add_series(&list, SERIES_MEMCPY, "ceiling-memcpy", err);
    if (status == STATUS_OK)
        *ret = list;
    return status;
}

/* ---- parent and ranks ---- */

static void take(void *context, const struct allreduce_record *record)
{
    allreduce_table_add(context, record);
}

static enum status run_parent(const void *options, const struct option_result *origins,
                              struct error *err)
{
    struct series_list list;
    struct allreduce_table table;
    enum status status = allreduce_series(options, &list, err);

    (void)origins;
    if (status == STATUS_OK)
        status = stop_install(err);
    if (status != STATUS_OK)
        return status;
    allreduce_table_open(&table, options, &list);
    status = allreduce_run(options, take, &table, err);
    if (status == STATUS_OK)
        return allreduce_table_close(&table, err);
    bench_report_release(&table.report);
    return status;
}

/* Words: --as-rank RANK FOLDER [OPTION]...; records go to stdout. */
static int rank_main(int argc, char **argv)
{
    struct allreduce_options options = {0};
    struct option_result origins = {0};
    struct error err = {0};
    uint64_t rank = 0;
    enum status status;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives its parent */
    if (argc < 4 || !parse_uint64(argv[2], &rank)) {
        log_open(option_set.program, -1);
        (void)error_set(&err, STATUS_INVALID, "%s is for bench allreduce itself",
                        ALLREDUCE_AS_RANK);
        return log_failure(&err);
    }
    log_open(option_set.program, (int)rank);
    status = option_parse(&option_set, argc - 3, argv + 3, &options, &origins, &err);
    option_result_release(&origins);
    if (status == STATUS_OK && (int64_t)rank >= options.nproc)
        status = error_set(&err, STATUS_INVALID, "rank %ju of %jd", (uintmax_t)rank,
                           (intmax_t)options.nproc);
    if (status == STATUS_OK)
        status = allreduce_rank(&options, (unsigned)rank, argv[3], STDOUT_FILENO, &err);
    return status == STATUS_OK ? 0 : log_failure(&err);
}

int bench_allreduce_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &option_set,
        .options_size = sizeof(struct allreduce_options),
        .run = run_parent,
    };

    if (argc > 1 && strcmp(argv[1], ALLREDUCE_AS_RANK) == 0)
        return rank_main(argc, argv);
    return program_main(&program, argc, argv);
}
