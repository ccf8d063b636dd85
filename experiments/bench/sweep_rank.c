/*
 * One rank of a sweep: opens every series, then for each size, type, operation and root lets them
 * take turns.  Rank 0 writes a record per series into the pipe that the parent reads.
 */
#include "common/base/file.h"
#include "experiments/bench/sweep_measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- telling ---- */

static enum status tell(struct bench_rank *b, const struct sweep_record *record,
                        const double *times, struct error *err)
{
    enum status status;

    if (b->rank != 0)
        return STATUS_OK;
    status = file_write_all(b->out_fd, "the pipe to the parent", record, sizeof(*record), err);
    if (status == STATUS_OK && record->times > 0)
        status = file_write_all(b->out_fd, "the pipe to the parent", times,
                                (size_t)record->times * sizeof(*times), err);
    return status;
}

enum status bench_note(struct bench_rank *b, size_t series, const char *text, struct error *err)
{
    struct sweep_record record = {.kind = RECORD_NOTE, .series = series};

    (void)snprintf(record.note, sizeof(record.note), "%s", text);
    return tell(b, &record, NULL, err);
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

/* A series takes part: it was opened, supports it, and, for a ceiling, has not had its turn in the
 * other placement. */
static bool takes_part(const struct bench_rank *b, const struct subject *s)
{
    if (!b->sweep.placements[s->placement])
        return false;
    if (b->sweep.series[s->series].kind != SERIES_BACKEND)
        return s->placement == OUT_OF_PLACE || !b->sweep.placements[OUT_OF_PLACE];
    return b->groups[s->series] && bench_supports(b, s);
}

static size_t slot(size_t series, enum placement placement)
{
    return series * PLACEMENTS + (size_t)placement;
}

static double *slot_times(const struct bench_rank *b, size_t series, enum placement placement)
{
    return b->times ? b->times + slot(series, placement) * b->times_max : NULL;
}

/* Warm-up, rounds in turns.  `records` holds the iterations. */
static enum status measure(struct bench_rank *b, struct subject s, struct sweep_record *records,
                           struct error *err)
{
    size_t rounds = (size_t)b->options->rounds;
    enum status status = STATUS_OK;

    for (s.series = 0; s.series < b->sweep.length; s.series++)
        for (unsigned p = 0; p < PLACEMENTS && status == STATUS_OK; p++) {
            struct placement_record *record = &records[s.series].placements[p];

            s.placement = (enum placement)p;
            record->measured = takes_part(b, &s);
            if (record->measured)
                status = bench_prepare(b, &s, &record->iterations, err);
        }
    for (size_t round = 0; round < rounds; round++)
        for (s.series = 0; s.series < b->sweep.length; s.series++)
            for (unsigned p = 0; p < PLACEMENTS && status == STATUS_OK; p++) {
                const struct placement_record *record = &records[s.series].placements[p];
                double *times = slot_times(b, s.series, (enum placement)p);

                s.placement = (enum placement)p;
                if (record->measured)
                    status =
                        bench_round(b, &s, record->iterations,
                                    times ? times + round * record->iterations : NULL,
                                    b->samples + slot(s.series, s.placement) * rounds + round, err);
            }
    return status;
}

static enum status finish(struct bench_rank *b, struct subject s, struct sweep_record *record,
                          struct error *err)
{
    size_t rounds = (size_t)b->options->rounds;
    double *first = slot_times(b, s.series, OUT_OF_PLACE);
    enum status status = STATUS_OK;

    for (unsigned p = 0; p < PLACEMENTS && status == STATUS_OK; p++) {
        struct placement_record *one = &record->placements[p];
        double *times = slot_times(b, s.series, (enum placement)p);

        s.placement = (enum placement)p;
        if (!one->measured)
            continue;
        one->seconds = bench_summarise(b->samples + slot(s.series, s.placement) * rounds, rounds);
        if (times) {
            summarise_times(times, rounds * (size_t)one->iterations, &one->per_iteration);
            memmove(first + record->times, times,
                    (size_t)one->per_iteration.samples * sizeof(*times));
            record->times += one->per_iteration.samples;
        }
        one->checked = b->sweep.series[s.series].kind == SERIES_BACKEND && b->options->check > 0 &&
                       b->sweep.call != COLLECTIVE_BARRIER;
        if (one->checked)
            status = bench_check(b, &s, &one->wrong, err);
    }
    return status == STATUS_OK ? tell(b, record, first, err) : status;
}

/* Why a series has no row, once per type and operation. */
static enum status tell_unsupported(struct bench_rank *b, const struct subject *s,
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

static enum status measure_subject(struct bench_rank *b, struct subject s, bool first,
                                   struct error *err)
{
    struct sweep_record records[SERIES_MAX] = {{.kind = 0}};
    enum status status = measure(b, s, records, err);

    for (s.series = 0; s.series < b->sweep.length && status == STATUS_OK; s.series++) {
        struct sweep_record *r = &records[s.series];

        if (!r->placements[OUT_OF_PLACE].measured && !r->placements[IN_PLACE].measured) {
            if (first && b->groups[s.series])
                status = tell_unsupported(b, &s, err);
            continue;
        }
        r->kind = RECORD_ROW;
        r->series = s.series;
        r->bytes = s.bytes;
        r->count = s.count;
        r->dtype = s.dtype;
        r->op = s.op;
        r->cycle = b->cycle;
        r->root = sweep_call_has_root(b->sweep.call) ? (int64_t)s.root : -1;
        status = finish(b, s, r, err);
    }
    return status;
}

/* ---- the sweep ---- */

static enum status measure_sizes(struct bench_rank *b, struct subject s, struct error *err)
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
        status = measure_subject(b, s, first, err);
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
            struct subject s = {.dtype = sweep->dtypes[i / sweep->op_count],
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
