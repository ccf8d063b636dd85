/*
 * sweep_table: the table of a sweep: nccl-tests' columns and widths, then the extremes of the bus
 * bandwidth over the rounds, with --per-iteration the percentiles of single operations, the share
 * of the link, the series.
 */
#include "common/base/clock.h"
#include "experiments/bench/sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The factor from algorithm to bus bandwidth; 1 for a copy, which stays inside its rank. */
static double bus_factor(const struct sweep_table *t, uint64_t series)
{
    if (t->sweep->series[series].kind == SERIES_MEMCPY)
        return 1;
    return sweep_bus_factor(t->sweep->call, t->sweep->nproc);
}

struct sweep_bandwidth sweep_bandwidth(const struct sweep_table *t,
                                       const struct sweep_result *result, enum placement placement)
{
    struct sweep_bandwidth b = {.link_share = 0};
    double on_link = sweep_bus_factor(t->sweep->call, t->sweep->hosts);

    b.algbw = bench_rate((double)result->bytes * 1e-9, result->placements[placement].seconds);
    b.busbw = bench_scale(b.algbw, bus_factor(t, result->series));
    if (t->sweep->link_gb_s > 0 && t->sweep->series[result->series].kind != SERIES_MEMCPY)
        b.link_share = b.algbw.median * on_link / t->sweep->link_gb_s;
    return b;
}

/* ---- header ---- */

static void print_where(const struct sweep_table *t)
{
    char text[256];

    network_options_text(&t->options->network, text, sizeof(text));
    if (t->sweep->hosts > 1)
        (void)printf("on %u hosts, %s", t->sweep->hosts, text);
    else
        (void)printf("on one host over loopback");
}

void sweep_table_open(struct sweep_table *t, const struct sweep_options *options,
                      const struct sweep *sweep)
{
    static const char *const over[] = {"rank 0", "the mean rank", "the fastest rank",
                                       "the slowest rank"};

    *t = (struct sweep_table){.options = options, .sweep = sweep, .results = STRBUF_INIT};
    clock_wall_text(t->start_time, sizeof(t->start_time));
    bench_report_init(&t->report, sweep_call_name(sweep->call));
    (void)printf("# %s (%s order), %u ranks%s ", sweep_call_name(sweep->call), options->order,
                 sweep->nproc, options->pin ? ", each pinned to a core," : "");
    print_where(t);
    (void)printf("\n# time of %s; median of %jd rounds in which the backends take turns%s\n#\n",
                 over[options->average], (intmax_t)options->rounds,
                 options->fresh ? "; inputs are rewritten before each operation" : "");
    (void)printf("# %10s  %12s  %8s  %6s  %6s  %31s  %31s  %14s  %14s\n", "", "", "", "", "",
                 "out-of-place          ", "in-place            ", "busbw out", "busbw in");
    (void)printf("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root");
    for (int p = 0; p < PLACEMENTS; p++)
        (void)printf("  %7s  %6s  %6s  %6s", "time", "algbw", "busbw", "#wrong");
    (void)printf("  %6s  %6s  %6s  %6s", "min", "max", "min", "max");
    for (int p = 0; p < PLACEMENTS && options->per_iteration; p++)
        (void)printf("  %7s  %7s  %7s  %7s  %6s", "i_min", "i_p50", "i_p99", "i_max", "i_cv%");
    (void)printf("%s  backend\n", sweep->link_gb_s > 0 ? "   link%" : "");
    (void)printf("# %10s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "");
    for (int p = 0; p < PLACEMENTS; p++)
        (void)printf("  %7s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "");
    (void)printf("  %6s  %6s  %6s  %6s", "(GB/s)", "(GB/s)", "(GB/s)", "(GB/s)");
    for (int p = 0; p < PLACEMENTS && options->per_iteration; p++)
        (void)printf("  %7s  %7s  %7s  %7s  %6s", "(us)", "(us)", "(us)", "(us)", "");
    (void)printf("\n");
    (void)fflush(stdout);
}

/* ---- rows ---- */

/* Microseconds in at most seven characters, as nccl-tests prints them. */
static void print_time(double seconds)
{
    double us = seconds * 1e6;

    (void)printf("  %7.*f", us >= 10000.0 ? 0 : us >= 100.0 ? 1 : 2, us);
}

static void print_figures(const struct sweep_table *t, const struct sweep_result *result,
                          enum placement p)
{
    const struct placement_result *one = &result->placements[p];
    struct sweep_bandwidth b = sweep_bandwidth(t, result, p);

    if (!one->measured) {
        (void)printf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    print_time(one->seconds.median);
    (void)printf("  %6.2f  %6.2f", b.algbw.median, b.busbw.median);
    if (one->checked)
        (void)printf("  %6" PRIu64, one->wrong);
    else
        (void)printf("  %6s", "N/A");
}

static void print_spread(const struct sweep_table *t, const struct sweep_result *result,
                         enum placement p)
{
    struct sweep_bandwidth b = sweep_bandwidth(t, result, p);

    if (result->placements[p].measured)
        (void)printf("  %6.2f  %6.2f", b.busbw.min, b.busbw.max);
    else
        (void)printf("  %6s  %6s", "N/A", "N/A");
}

static void print_iterations(const struct iteration_figures *f)
{
    if (f->samples == 0) {
        (void)printf("  %7s  %7s  %7s  %7s  %6s", "N/A", "N/A", "N/A", "N/A", "N/A");
        return;
    }
    print_time(f->min);
    print_time(f->median);
    print_time(f->p99);
    print_time(f->max);
    (void)printf("  %6.1f", f->mean > 0 ? f->stdev / f->mean * 100 : 0);
}

static void print_row(const struct sweep_table *t, const struct sweep_result *result)
{
    bool backend = t->sweep->series[result->series].kind == SERIES_BACKEND;
    double share = 0;

    (void)printf("%12" PRIu64 "  %12" PRIu64 "  %8s  %6s  %6" PRId64, result->bytes, result->count,
                 sweep_dtype_name((enum dtype)result->dtype),
                 backend && collective_call_reduces(t->sweep->call)
                     ? sweep_op_name((enum reduce_op)result->op)
                     : "none",
                 result->root);
    for (unsigned p = 0; p < PLACEMENTS; p++)
        print_figures(t, result, (enum placement)p);
    for (unsigned p = 0; p < PLACEMENTS; p++)
        print_spread(t, result, (enum placement)p);
    for (unsigned p = 0; p < PLACEMENTS && t->options->per_iteration; p++)
        print_iterations(&result->placements[p].per_iteration);
    for (unsigned p = 0; p < PLACEMENTS && share <= 0; p++)
        if (result->placements[p].measured)
            share = sweep_bandwidth(t, result, (enum placement)p).link_share;
    if (t->sweep->link_gb_s > 0)
        (void)printf("  %6.1f", share * 100);
    (void)printf("  %s\n", t->sweep->series[result->series].name);
}

void sweep_table_add(struct sweep_table *t, const struct sweep_result *result, const double *times)
{
    if (result->kind == RESULT_NOTE) {
        (void)printf("# %s: not measured: %s\n", t->sweep->series[result->series].name,
                     result->note);
        (void)fflush(stdout);
        return;
    }
    print_row(t, result);
    (void)fflush(stdout);
    sweep_json_add(t, result, times);
    for (unsigned p = 0; p < PLACEMENTS; p++) {
        if (!result->placements[p].measured)
            continue;
        t->wrong += result->placements[p].wrong;
        t->busbw_sum[result->series] += sweep_bandwidth(t, result, (enum placement)p).busbw.median;
        t->figures[result->series]++;
    }
}

enum status sweep_table_close(struct sweep_table *t, char *const *argv, struct error *err)
{
    enum status status = STATUS_OK;
    size_t rows = 0;

    (void)printf("# Out of bounds values : %" PRIu64 " %s\n", t->wrong,
                 t->wrong == 0 ? "OK" : "FAILED");
    for (size_t i = 0; i < t->sweep->length; i++) {
        if (t->figures[i] > 0)
            (void)printf("# Avg bus bandwidth    : %g %s\n",
                         t->busbw_sum[i] / (double)t->figures[i], t->sweep->series[i].name);
        rows += t->sweep->series[i].kind == SERIES_BACKEND ? t->figures[i] : 0;
    }
    (void)fflush(stdout);
    if (t->options->json[0] != '\0')
        status = sweep_json_write(t, argv, err);
    if (status == STATUS_OK && t->wrong > 0)
        status =
            error_set(err, STATUS_DATA, "%" PRIu64 " elements were not as they must be", t->wrong);
    if (status == STATUS_OK && rows == 0)
        status = error_set(err, STATUS_UNSUPPORTED, "no backend could do it");
    return status;
}

void sweep_table_release(struct sweep_table *t)
{
    bench_report_release(&t->report);
    strbuf_release(&t->results);
}
