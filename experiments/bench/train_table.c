/*
 * train_table: a row is one contender of one model.  Its figures are medians over the repeats, its
 * ratios medians of the ratios within a repeat.
 */
#include "experiments/bench/train_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define REPEATS_MAX 100

struct train_row {
    struct bench_summary step_ms;
    struct bench_summary over_control; /* over its own control: for PyTorch's rows PyTorch's */
    struct bench_summary sync_us;      /* step minus control */
    /* over PyTorch's rows: DistributedDataParallel, eager, torch.compile; no samples: none */
    struct bench_summary over_ddp, over_eager, over_compile;
    struct train_figures parts; /* medians; NAN: none */
    double flop_per_s;          /* of the model, on one rank; NAN: not known */
};

typedef double figure(const struct train_figures *job, const struct train_figures *base);

static double step_ms(const struct train_figures *job, const struct train_figures *base)
{
    (void)base;
    return job->step_ms;
}

static double step_over(const struct train_figures *job, const struct train_figures *base)
{
    return job->step_ms / base->step_ms;
}

static double sync_us(const struct train_figures *job, const struct train_figures *base)
{
    return (job->step_ms - base->step_ms) * 1e3;
}

static struct bench_summary summarise_repeats(const struct train_jobs *c,
                                              const struct contender *who,
                                              const struct contender *base, figure *what)
{
    double samples[REPEATS_MAX];
    size_t repeats = (size_t)c->options->repeats;

    if (!base)
        return (struct bench_summary){.samples = 0};
    for (size_t r = 0; r < repeats; r++)
        samples[r] = what(&who->jobs[r], &base->jobs[r]);
    return bench_summarise(samples, repeats);
}

/* The median over the repeats of the figure at `offset` in struct train_figures. */
static double median_at(const struct train_jobs *c, const struct contender *who, size_t offset)
{
    double samples[REPEATS_MAX];
    size_t repeats = (size_t)c->options->repeats;

    for (size_t r = 0; r < repeats; r++) {
        (void)memcpy(&samples[r], (const char *)&who->jobs[r] + offset, sizeof(samples[r]));
        if (!isfinite(samples[r]))
            return (double)NAN;
    }
    return bench_summarise(samples, repeats).median;
}

#define MEDIAN(field) median_at(c, who, offsetof(struct train_figures, field))

static struct train_figures median_parts(const struct train_jobs *c, const struct contender *who)
{
    return (struct train_figures){
        .step_ms = MEDIAN(step_ms),
        .comm_ms = MEDIAN(comm_ms),
        .exposed_ms = MEDIAN(exposed_ms),
        .input_ms = MEDIAN(input_ms),
        .forward_ms = MEDIAN(forward_ms),
        .backward_ms = MEDIAN(backward_ms),
        .optimizer_ms = MEDIAN(optimizer_ms),
        .model_flops = MEDIAN(model_flops),
        .rss_bytes = MEDIAN(rss_bytes),
        .device_bytes = MEDIAN(device_bytes),
    };
}

static struct train_row make_row(const struct train_jobs *c, const struct train_model *m,
                                 const struct contender *who)
{
    const struct contender *control = &c->contenders[who->control];
    struct train_row row = {
        .step_ms = summarise_repeats(c, who, who, step_ms),
        .over_control = summarise_repeats(c, who, control, step_over),
        .sync_us = summarise_repeats(c, who, control, sync_us),
        .over_ddp = summarise_repeats(c, who, train_jobs_find(c, "torch-ddp"), step_over),
        .over_eager = summarise_repeats(c, who, train_jobs_find(c, "torch-local"), step_over),
        .over_compile = summarise_repeats(c, who, train_jobs_find(c, "torch-compile"), step_over),
        .parts = median_parts(c, who),
    };

    row.flop_per_s = row.parts.model_flops * (double)m->batch_size / (row.step_ms.median * 1e-3);
    return row;
}

/* The rest of a step outside its parts. */
static double other_ms(const struct train_figures *p)
{
    double exposed = isfinite(p->exposed_ms) ? p->exposed_ms : 0;

    return p->step_ms - p->input_ms - p->forward_ms - p->backward_ms - p->optimizer_ms - exposed;
}

/* ---- print ---- */

/* A column whose value may be missing. */
static void print_optional(int digits, double value)
{
    if (isfinite(value))
        (void)printf("%10.*f", digits, value);
    else
        (void)printf("%10s", "-");
}

static double median_or_nan(struct bench_summary s)
{
    return s.samples > 0 ? s.median : (double)NAN;
}

static double samples_per_s(const struct train_jobs *c, const struct train_model *m,
                            const struct train_row *row)
{
    return (double)(m->batch_size * c->options->nproc) / row->step_ms.median * 1e3;
}

static void print_times(const struct train_jobs *c, const struct train_model *m,
                        const struct contender *who, const struct train_row *row)
{
    const struct train_figures *p = &row->parts;

    (void)printf("  %-13s %-8s %10.3f %10.3f %10.3f %14.0f", who->sync, who->backend,
                 row->step_ms.median, row->step_ms.min, row->step_ms.max, samples_per_s(c, m, row));
    print_optional(3, row->over_control.median);
    print_optional(3, median_or_nan(c->options->nproc > 1 ? row->over_ddp : row->over_eager));
    print_optional(3, median_or_nan(row->over_compile));
    print_optional(1, row->sync_us.median);
    print_optional(3, p->comm_ms);
    print_optional(3, p->exposed_ms);
    print_optional(2, p->comm_ms > 0 ? p->exposed_ms / p->comm_ms : (double)NAN);
    (void)printf("\n");
}

static void print_parts(const struct train_jobs *c, const struct contender *who,
                        const struct train_row *row)
{
    const struct train_figures *p = &row->parts;

    (void)printf("  %-13s %-8s", who->sync, who->backend);
    print_optional(3, p->input_ms);
    print_optional(3, p->forward_ms);
    print_optional(3, p->backward_ms);
    print_optional(3, p->exposed_ms);
    print_optional(3, p->optimizer_ms);
    print_optional(3, other_ms(p));
    print_optional(1, row->flop_per_s * 1e-9);
    print_optional(3, row->flop_per_s / c->ceiling);
    print_optional(1, p->rss_bytes / (1 << 20));
    print_optional(1, p->device_bytes / (1 << 20));
    (void)printf("\n");
}

static void print_head(const struct train_jobs *c, const struct train_model *m)
{
    const struct train_options *o = c->options;

    (void)printf("# %s, batch %jd per rank, %jd ranks, %jd threads each, %s, %s, %jd steps, median "
                 "of %jd jobs\n",
                 m->spec, (intmax_t)m->batch_size, (intmax_t)o->nproc, (intmax_t)o->threads,
                 o->optimizer, o->precision, (intmax_t)m->steps, (intmax_t)o->repeats);
    (void)printf("# %.1f MFLOP per sample forward and backward",
                 c->contenders[0].jobs[0].model_flops * 1e-6);
    if (isfinite(c->ceiling))
        (void)printf("; matrix products reach %.1f GFLOP/s per rank", c->ceiling * 1e-9);
    (void)printf("\n");
}

/* ---- JSON ---- */

static void add_ratio(struct bench_report *out, const char *name, struct bench_summary s)
{
    if (s.samples > 0)
        bench_row_summary(out, name, s);
}

static void add_parts(struct bench_report *out, const struct train_jobs *c,
                      const struct train_model *m, const struct train_row *row)
{
    const struct train_figures *p = &row->parts;

    bench_row_double(out, "comm_ms", p->comm_ms);
    bench_row_double(out, "exposed_comm_ms", p->exposed_ms);
    bench_row_double(out, "input_ms", p->input_ms);
    bench_row_double(out, "forward_ms", p->forward_ms);
    bench_row_double(out, "backward_ms", p->backward_ms);
    bench_row_double(out, "optimizer_ms", p->optimizer_ms);
    bench_row_double(out, "other_ms", other_ms(p));
    if (m->positions > 1)
        bench_row_double(out, "tokens_per_s", samples_per_s(c, m, row) * (double)m->positions);
    bench_row_double(out, "model_flops_per_sample", p->model_flops);
    bench_row_double(out, "gflop_per_s", row->flop_per_s * 1e-9);
    bench_row_double(out, "ceiling_gflop_per_s", c->ceiling * 1e-9);
    bench_row_double(out, "model_flop_utilisation", row->flop_per_s / c->ceiling);
    bench_row_double(out, "peak_rss_bytes", p->rss_bytes);
    bench_row_double(out, "peak_device_bytes", p->device_bytes);
}

static void begin_row(struct bench_report *out, const struct train_jobs *c,
                      const struct train_model *m, const struct contender *who)
{
    bench_row_begin(out);
    bench_row_text(out, "model", m->spec);
    bench_row_text(out, "sync", who->sync);
    bench_row_text(out, "backend", who->backend);
    bench_row_int(out, "nranks", c->options->nproc);
    bench_row_int(out, "batch", m->batch_size);
    bench_row_int(out, "steps", m->steps);
    bench_row_int(out, "threads", c->options->threads);
    bench_row_int(out, "repeats", c->options->repeats);
    bench_row_text(out, "device", c->options->device);
    bench_row_text(out, "precision", c->options->precision);
    bench_row_text(out, "optimizer", c->options->optimizer);
}

static void add_row(struct bench_report *out, const struct train_jobs *c,
                    const struct train_model *m, const struct contender *who,
                    const struct train_row *row)
{
    begin_row(out, c, m, who);
    bench_row_summary(out, "step_ms", row->step_ms);
    bench_row_double(out, "samples_per_s", samples_per_s(c, m, row));
    bench_row_summary(out, "over_control", row->over_control);
    add_ratio(out, "over_torch_ddp", row->over_ddp);
    add_ratio(out, "over_torch_eager", row->over_eager);
    add_ratio(out, "over_torch_compile", row->over_compile);
    bench_row_summary(out, "sync_us", row->sync_us);
    add_parts(out, c, m, row);
    bench_row_end(out);
}

static void add_not_measured_row(struct bench_report *out, const struct train_jobs *c,
                                 const struct train_model *m, const struct contender *who)
{
    begin_row(out, c, m, who);
    bench_row_text(out, "not_measured", who->not_measured);
    bench_row_end(out);
}

void train_table_report(const struct train_jobs *c, const struct train_model *m,
                        struct bench_report *out)
{
    struct train_row rows[CONTENDERS_MAX] = {0};

    print_head(c, m);
    (void)printf("# %-13s %-8s %10s %10s %10s %14s%10s%10s%10s%10s%10s%10s%10s\n", "sync",
                 "backend", "step_ms", "min", "max", "samples_per_s", "x control", "x torch",
                 "x compile", "sync_us", "comm_ms", "exposed", "share");
    for (size_t i = 0; i < c->length; i++) {
        const struct contender *who = &c->contenders[i];

        if (who->not_measured[0]) {
            (void)printf("  %-13s %-8s not measured: %s\n", who->sync, who->backend,
                         who->not_measured);
            add_not_measured_row(out, c, m, who);
            continue;
        }
        rows[i] = make_row(c, m, who);
        print_times(c, m, who, &rows[i]);
        add_row(out, c, m, who, &rows[i]);
    }
    (void)printf("# %-13s %-8s%10s%10s%10s%10s%10s%10s%10s%10s%10s%10s\n", "ms of a step", "",
                 "input", "forward", "backward", "exposed", "optimizer", "other", "GFLOP/s",
                 "of ceil.", "res. MiB", "dev. MiB");
    for (size_t i = 0; i < c->length; i++)
        if (!c->contenders[i].not_measured[0])
            print_parts(c, &c->contenders[i], &rows[i]);
    (void)fflush(stdout);
}
