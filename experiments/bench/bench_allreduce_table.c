/*
 * The table of bench allreduce: nccl-tests' columns and widths in place, then the extremes of the
 * bus bandwidth and the series.
 */
#include "experiments/bench/bench_allreduce.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a figure is multiplied by to be a bus bandwidth: a copy keeps to its own rank. */
static double bus_factor(const struct allreduce_table *t, enum series_kind kind)
{
    if (kind == SERIES_MEMCPY)
        return 1;
    return collective_bus_factor(COLLECTIVE_ALL_REDUCE, (unsigned)t->options->nproc);
}

void allreduce_table_open(struct allreduce_table *t, const struct allreduce_options *options,
                          const struct series_list *list)
{
    *t = (struct allreduce_table){.options = options, .list = list};
    bench_report_init(&t->report, "allreduce");
    (void)printf("# all-reduce (%s order), %jd ranks on one host over loopback, median of %jd "
                 "rounds\n#\n",
                 options->order, (intmax_t)options->nproc, (intmax_t)options->rounds);
    (void)printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %6s  %6s  %s\n", "size", "count",
                 "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "min", "max",
                 "backend");
    (void)printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %6s  %6s\n", "(B)", "(elements)",
                 "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(GB/s)", "(GB/s)");
    (void)fflush(stdout);
}

/* Microseconds in at most seven characters, as nccl-tests prints them. */
static void time_text(double us, char *text, size_t size)
{
    int digits = us >= 10000.0 ? 0 : us >= 100.0 ? 1 : 2;

    (void)snprintf(text, size, "%.*f", digits, us);
}

static void add_row(struct allreduce_table *t, const struct allreduce_record *record,
                    const char *name, bool is_backend, struct bench_summary algbw,
                    struct bench_summary busbw)
{
    struct bench_report *r = &t->report;

    bench_row_begin(r);
    bench_row_text(r, "backend", name);
    bench_row_text(r, "collective", is_backend ? "all_reduce" : "none");
    bench_row_text(r, "order", t->options->order);
    bench_row_int(r, "nranks", t->options->nproc);
    bench_row_int(r, "bytes", (int64_t)record->bytes);
    bench_row_int(r, "count", (int64_t)(record->bytes / sizeof(float)));
    bench_row_text(r, "type", "float32");
    bench_row_text(r, "network", "loopback");
    bench_row_int(r, "iterations", (int64_t)record->iterations);
    bench_row_int(r, "rounds", (int64_t)record->rounds);
    bench_row_summary(r, "time_us", bench_scale(record->seconds, 1e6));
    bench_row_summary(r, "algbw", algbw);
    bench_row_summary(r, "busbw", busbw);
    if (is_backend)
        bench_row_int(r, "wrong", (int64_t)record->wrong);
    bench_row_end(r);
}

void allreduce_table_add(struct allreduce_table *t, const struct allreduce_record *record)
{
    enum series_kind kind = t->list->series[record->series].kind;
    const char *name = t->list->series[record->series].name;
    struct bench_summary algbw = bench_rate((double)record->bytes * 1e-9, record->seconds);
    struct bench_summary busbw = bench_scale(algbw, bus_factor(t, kind));
    char time[32];
    char wrong[32] = "N/A";

    time_text(record->seconds.median * 1e6, time, sizeof(time));
    if (kind == SERIES_BACKEND)
        (void)snprintf(wrong, sizeof(wrong), "%" PRIu64, record->wrong);
    (void)printf("%12" PRIu64 "  %12" PRIu64 "  %8s  %6s  %6s  %7s  %6.2f  %6.2f  %6s  %6.2f  "
                 "%6.2f  %s\n",
                 record->bytes, record->bytes / (uint64_t)sizeof(float), "float",
                 kind == SERIES_BACKEND ? "sum" : "none", "-1", time, algbw.median, busbw.median,
                 wrong, busbw.min, busbw.max, name);
    (void)fflush(stdout);
    add_row(t, record, name, kind == SERIES_BACKEND, algbw, busbw);
    t->wrong += record->wrong;
    t->busbw_sum[record->series] += busbw.median;
    t->rows[record->series]++;
}

enum status allreduce_table_close(struct allreduce_table *t, struct error *err)
{
    enum status status = STATUS_OK;

    (void)printf("# Out of bounds values : %" PRIu64 " %s\n", t->wrong,
                 t->wrong == 0 ? "OK" : "FAILED");
    for (size_t i = 0; i < t->list->length; i++)
        if (t->rows[i] > 0)
            (void)printf("# Avg bus bandwidth    : %g %s\n", t->busbw_sum[i] / (double)t->rows[i],
                         t->list->series[i].name);
    (void)fflush(stdout);
    if (t->options->json[0] != '\0')
        status = bench_report_write(&t->report, t->options->json, err);
    bench_report_release(&t->report);
    if (status == STATUS_OK && t->wrong > 0)
        status = error_set(err, STATUS_DATA, "%" PRIu64 " elements were not the sum", t->wrong);
    return status;
}
