/*
 * sweep_rank: one rank of a sweep: for each size, type, operation and root the series take turns.
 * Rank 0 writes a result per series into the pipe that the parent reads.
 */
#include "common/base/file.h"
#include "experiments/bench/sweep_measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- results ---- */

static enum status send_result(struct bench_rank *b, const struct sweep_result *result,
                               const double *times, struct error *err)
{
    enum status status;

    if (b->rank != 0)
        return STATUS_OK;
    status = file_write_all(b->out_fd, "the pipe to the parent", result, sizeof(*result), err);
    if (status == STATUS_OK && result->times > 0)
        status = file_write_all(b->out_fd, "the pipe to the parent", times,
                                (size_t)result->times * sizeof(*times), err);
    return status;
}

enum status bench_note(struct bench_rank *b, size_t series, const char *text, struct error *err)
{
    struct sweep_result result = {.kind = RESULT_NOTE, .series = series};

    (void)snprintf(result.note, sizeof(result.note), "%s", text);
    return send_result(b, &result, NULL, err);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Percentiles by nearest rank; the times are left sorted. */
static void summarise_times(double *times, size_t count, struct iteration_figures *ret)
{
    double sum = 0;
    double squares = 0;

    *ret = (struct iteration_figures){.samples = count};
    if (count == 0)
        return;
    qsort(times, count, sizeof(*times), compare_doubles);
    for (size_t i = 0; i < count; i++)
        sum += times[i];
    ret->mean = sum / (double)count;
    for (size_t i = 0; i < count; i++)
        squares += (times[i] - ret->mean) * (times[i] - ret->mean);
    ret->stdev = count > 1 ? sqrt(squares / (double)(count - 1)) : 0;
    ret->min = times[0];
    ret->max = times[count - 1];
    ret->median = times[(count + 1) / 2 - 1];
    ret->p99 = times[(size_t)ceil(0.99 * (double)count) - 1];
}

/* ---- one size ---- */

/* True when the series was opened and supports the point; a ceiling is measured in one placement.
 */
static bool is_measured(const struct bench_rank *b, const struct sweep_point *s)
{
    if (!b->sweep.placements[s->placement])
        return false;
    if (b->sweep.series[s->series].kind != SERIES_BACKEND)
        return s->placement == OUT_OF_PLACE || !b->sweep.placements[OUT_OF_PLACE];
    return b->groups[s->series] && bench_supports(b, s);
}

static size_t sample_index(size_t series, enum placement placement)
{
    return series * PLACEMENTS + (size_t)placement;
}

static double *times_of(const struct bench_rank *b, size_t series, enum placement placement)
{
    return b->times ? b->times + sample_index(series, placement) * b->times_max : NULL;
}

/* Warm up, then run the rounds in turns.  Sets measured and iterations of the results. */
static enum status measure_rounds(struct bench_rank *b, struct sweep_point s,
                                  struct sweep_result *results, struct error *err)
{
    size_t rounds = (size_t)b->options->rounds;
    enum status status = STATUS_OK;

    for (s.series = 0; s.series < b->sweep.length; s.series++)
        for (unsigned p = 0; p < PLACEMENTS && status == STATUS_OK; p++) {
            struct placement_result *result = &results[s.series].placements[p];

            s.placement = (enum placement)p;
            result->measured = is_measured(b, &s);
            if (result->measured)
                status = bench_prepare(b, &s, &result->iterations, err);
        }
    for (size_t round = 0; round < rounds; round++)
        for (s.series = 0; s.series < b->sweep.length; s.series++)
            for (unsigned p = 0; p < PLACEMENTS && status == STATUS_OK; p++) {
                const struct placement_result *result = &results[s.series].placements[p];
                double *times = times_of(b, s.series, (enum placement)p);

                s.placement = (enum placement)p;
                if (result->measured)
                    status = bench_round(
                        b, &s, result->iterations,
                        times ? times + round * result->iterations : NULL,
                        b->samples + sample_index(s.series, s.placement) * rounds + round, err);
            }
    return status;
}

static enum status finish_series(struct bench_rank *b, struct sweep_point s,
                                 struct sweep_result *result, struct error *err)
{
    size_t rounds = (size_t)b->options->rounds;
    double *first = times_of(b, s.series, OUT_OF_PLACE);
    enum status status = STATUS_OK;

    for (unsigned p = 0; p < PLACEMENTS && status == STATUS_OK; p++) {
        struct placement_result *one = &result->placements[p];
        double *times = times_of(b, s.series, (enum placement)p);

        s.placement = (enum placement)p;
        if (!one->measured)
            continue;
        one->seconds =
            bench_summarise(b->samples + sample_index(s.series, s.placement) * rounds, rounds);
        if (times) {
            summarise_times(times, rounds * (size_t)one->iterations, &one->per_iteration);
            memmove(first + result->times, times,
                    (size_t)one->per_iteration.samples * sizeof(*times));
            result->times += one->per_iteration.samples;
        }
        one->checked = b->sweep.series[s.series].kind == SERIES_BACKEND && b->options->check > 0 &&
                       b->sweep.call != COLLECTIVE_BARRIER;
        if (one->checked)
            status = bench_check(b, &s, &one->wrong, err);
    }
    return status == STATUS_OK ? send_result(b, result, first, err) : status;
}

/* Send the reason why a series has no row, once per type and operation. */
static enum status send_unsupported_note(struct bench_rank *b, const struct sweep_point *s,
                                         struct error *err)
{
    char text[200];

    (void)snprintf(text, sizeof(text), "cannot do %s of %s%s%s%s%s", sweep_call_name(b->sweep.call),
                   sweep_dtype_name(s->dtype), collective_call_reduces(b->sweep.call) ? ", " : "",
                   collective_call_reduces(b->sweep.call) ? sweep_op_name(s->op) : "",
                   b->sweep.order == REDUCE_REPRODUCIBLE ? ", reproducible" : "",
                   s->count == 0 ? ", 0 elements" : "");
    return bench_note(b, s->series, text, err);
}

static enum status measure_point(struct bench_rank *b, struct sweep_point s, bool first,
                                 struct error *err)
{
    struct sweep_result results[SERIES_MAX] = {{.kind = 0}};
    enum status status = measure_rounds(b, s, results, err);

    for (s.series = 0; s.series < b->sweep.length && status == STATUS_OK; s.series++) {
        struct sweep_result *r = &results[s.series];

        if (!r->placements[OUT_OF_PLACE].measured && !r->placements[IN_PLACE].measured) {
            if (first && b->groups[s.series])
                status = send_unsupported_note(b, &s, err);
            continue;
        }
        r->kind = RESULT_ROW;
        r->series = s.series;
        r->bytes = s.bytes;
        r->count = s.count;
        r->dtype = s.dtype;
        r->op = s.op;
        r->cycle = b->cycle;
        r->root = sweep_call_has_root(b->sweep.call) ? (int64_t)s.root : -1;
        status = finish_series(b, s, r, err);
    }
    return status;
}

/* ---- the sweep ---- */

static enum status measure_sizes(struct bench_rank *b, struct sweep_point s, struct error *err)
{
    size_t unit = dtype_size(s.dtype);
    bool barrier = b->sweep.call == COLLECTIVE_BARRIER;
    enum status status = STATUS_OK;

    for (uint64_t bytes = b->options->min_bytes; status == STATUS_OK && bytes != UINT64_MAX;
         bytes = barrier ? UINT64_MAX : sweep_next_size(b->options, bytes)) {
        bool first = bytes == b->options->min_bytes && b->cycle == 0;

        if (sweep_call_has_blocks(b->sweep.call)) {
            s.count = (size_t)bytes / unit / b->world_size;
            s.bytes = s.count * unit * b->world_size;
        } else {
            s.count = barrier ? 0 : (size_t)bytes / unit;
            s.bytes = s.count * unit;
        }
        status = measure_point(b, s, first, err);
    }
    return status;
}

enum status bench_sweep(struct bench_rank *b, struct error *err)
{
    const struct sweep *sweep = &b->sweep;
    size_t pairs = sweep->dtype_count * sweep->op_count;
    enum status status = STATUS_OK;

    for (b->cycle = 0; b->cycle < (uint64_t)b->options->cycles; b->cycle++)
        for (size_t i = 0; i < pairs && status == STATUS_OK; i++) {
            struct sweep_point s = {.dtype = sweep->dtypes[i / sweep->op_count],
                                    .op = sweep->ops[i % sweep->op_count]};

            b->input = b->input_page + (size_t)b->options->misalign * dtype_size(s.dtype);
            b->output = b->output_page + (size_t)b->options->misalign * dtype_size(s.dtype);
            status = sweep_values_open(&b->values, s.dtype, s.op, b->world_size, err);
            for (s.root = sweep->first_root; s.root <= sweep->last_root && status == STATUS_OK;
                 s.root++)
                status = measure_sizes(b, s, err);
            sweep_values_release(&b->values);
        }
    return status;
}
