/*
 * bench train: the time of one training step, ours over every backend asked for and optionally
 * PyTorch's, beside the no-communication control (n independent processes).  A job's figure is the
 * median step of rank 0 over its steady steps; a row has the median over the repeats with the
 * extremes beside it, and ratios are medians of the ratios within a repeat.
 */
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/train_contest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS_MAX 100

#define AT(field) offsetof(struct train_options, field)

static const struct option_spec specs[] = {
    {.name = "model",
     .kind = OPTION_TEXT,
     .offset = AT(model),
     .metavar = "SPEC,...",
     .default_text = "mlp:784-1024-1024-10",
     .help = "Models as sparring-worker takes them; SPEC@BATCH@STEPS gives one its own batch size "
             "and steps."},
    {.name = "batch-size",
     .kind = OPTION_INT,
     .offset = AT(batch_size),
     .default_text = "64",
     .min = 1,
     .max = 1e6,
     .metavar = "B",
     .help = "Samples per rank and step."},
    {.name = "nproc",
     .kind = OPTION_INT,
     .offset = AT(nproc),
     .default_text = "2",
     .min = 1,
     .max = 256,
     .metavar = "N",
     .help = "Ranks."},
    {.name = "sync",
     .kind = OPTION_TEXT,
     .offset = AT(sync),
     .default_text = "allreduce,ps",
     .metavar = "NAME,...",
     .help = "allreduce, ps; the control, local, always runs."},
    {.name = "backend",
     .kind = OPTION_TEXT,
     .offset = AT(backend),
     .default_text = "auto",
     .metavar = "NAME,...",
     .help = "Of allreduce; each one is a contender."},
    {.name = "ps-transport",
     .kind = OPTION_TEXT,
     .offset = AT(ps_transport),
     .default_text = "auto",
     .metavar = "NAME,...",
     .help = "Of ps (auto, grpc, shm); each one is a contender."},
    {.name = "servers",
     .kind = OPTION_INT,
     .offset = AT(servers),
     .default_text = "1",
     .min = 1,
     .max = 64,
     .metavar = "K",
     .help = "Of ps."},
    {.name = "steps",
     .kind = OPTION_INT,
     .offset = AT(steps),
     .default_text = "200",
     .min = 10,
     .max = 1e6,
     .metavar = "S",
     .help = "Per job."},
    {.name = "repeats",
     .kind = OPTION_INT,
     .offset = AT(repeats),
     .default_text = "3",
     .min = 1,
     .max = 100,
     .metavar = "R",
     .help = "Jobs per contender."},
    {.name = "threads",
     .kind = OPTION_INT,
     .offset = AT(threads),
     .default_text = "1",
     .min = 1,
     .max = 1024,
     .metavar = "N",
     .help = "Of each process's matrix products."},
    {.name = "device",
     .kind = OPTION_TEXT,
     .offset = AT(device),
     .default_text = "cpu",
     .metavar = "DEVICE",
     .help = "As sparring-worker takes it."},
    {.name = "peer",
     .kind = OPTION_TEXT,
     .offset = AT(peer),
     .metavar = "PYTHON",
     .help = "Also time PyTorch with this interpreter: its control and, with several ranks, "
             "DistributedDataParallel over gloo."},
    {.name = "peer-script",
     .kind = OPTION_TEXT,
     .offset = AT(peer_script),
     .metavar = "FILE",
     .default_text = "experiments/peers/torch_train.py",
     .help = "The script that times PyTorch."},
    {.name = "timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "300000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "Of each job."},
    {.name = "json",
     .kind = OPTION_TEXT,
     .offset = AT(json),
     .metavar = "FILE",
     .help = "Write the rows there."},
    {0},
};

static const struct option_set option_set = {
    .program = "sparring bench train",
    .summary = "Time one training step beside the no-communication control.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}},
};

/* ---- rows ---- */

struct row {
    struct bench_summary step_ms;
    struct bench_summary over_control; /* its own: PyTorch's rows that of PyTorch */
    struct bench_summary over_torch;   /* ours over DistributedDataParallel; no samples: none */
    struct bench_summary sync_us;      /* step minus control */
    double comm_ms, exposed_ms;        /* medians; NAN: none */
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

static double comm_ms(const struct train_figures *job, const struct train_figures *base)
{
    (void)base;
    return job->comm_ms;
}

static double exposed_ms(const struct train_figures *job, const struct train_figures *base)
{
    (void)base;
    return job->exposed_ms;
}

static struct bench_summary over_repeats(const struct train_contest *c, size_t who, size_t base,
                                         figure *what)
{
    double samples[REPEATS_MAX];
    size_t repeats = (size_t)c->options->repeats;

    for (size_t r = 0; r < repeats; r++)
        samples[r] = what(&c->contenders[who].jobs[r], &c->contenders[base].jobs[r]);
    return bench_summarise(samples, repeats);
}

static struct row make_row(const struct train_contest *c, size_t who)
{
    size_t control = c->contenders[who].control;
    const struct contender *last = &c->contenders[c->length - 1];
    struct row row = {
        .step_ms = over_repeats(c, who, who, step_ms),
        .over_control = over_repeats(c, who, control, step_over),
        .sync_us = over_repeats(c, who, control, sync_us),
        .comm_ms = over_repeats(c, who, who, comm_ms).median,
        .exposed_ms = over_repeats(c, who, who, exposed_ms).median,
    };

    if (strcmp(last->sync, "torch-ddp") == 0)
        row.over_torch = over_repeats(c, who, c->length - 1, step_over);
    return row;
}

/* A column that has no value in every row. */
static void print_optional(int digits, double value)
{
    if (isfinite(value))
        (void)printf("%10.*f", digits, value);
    else
        (void)printf("%10s", "-");
}

static void print_row(const struct train_contest *c, const struct train_model *m, size_t who,
                      const struct row *row)
{
    double samples = (double)(m->batch_size * c->options->nproc);

    (void)printf("  %-12s %-8s %10.3f %10.3f %10.3f %14.0f %10.3f", c->contenders[who].sync,
                 c->contenders[who].backend, row->step_ms.median, row->step_ms.min,
                 row->step_ms.max, samples / row->step_ms.median * 1e3, row->over_control.median);
    print_optional(3, row->over_torch.samples > 0 ? row->over_torch.median : (double)NAN);
    (void)printf("%10.1f", row->sync_us.median);
    print_optional(3, row->comm_ms);
    print_optional(3, row->exposed_ms);
    print_optional(2, row->comm_ms > 0 ? row->exposed_ms / row->comm_ms : (double)NAN);
    (void)printf("\n");
}

static void add_row(struct bench_report *out, const struct train_contest *c,
                    const struct train_model *m, size_t who, const struct row *row)
{
    double samples = (double)(m->batch_size * c->options->nproc);

    bench_row_begin(out);
    bench_row_text(out, "model", m->spec);
    bench_row_text(out, "sync", c->contenders[who].sync);
    bench_row_text(out, "backend", c->contenders[who].backend);
    bench_row_int(out, "nranks", c->options->nproc);
    bench_row_int(out, "batch", m->batch_size);
    bench_row_int(out, "steps", m->steps);
    bench_row_int(out, "threads", c->options->threads);
    bench_row_int(out, "repeats", c->options->repeats);
    bench_row_summary(out, "step_ms", row->step_ms);
    bench_row_double(out, "samples_per_s", samples / row->step_ms.median * 1e3);
    bench_row_summary(out, "over_control", row->over_control);
    if (row->over_torch.samples > 0)
        bench_row_summary(out, "over_torch_ddp", row->over_torch);
    bench_row_summary(out, "sync_us", row->sync_us);
    bench_row_double(out, "comm_ms", row->comm_ms);
    bench_row_double(out, "exposed_comm_ms", row->exposed_ms);
    bench_row_end(out);
}

static void report_model(const struct train_contest *c, const struct train_model *m,
                         struct bench_report *out)
{
    (void)printf("# %s, batch %jd per rank, %jd ranks, %jd threads each, %jd steps, median of %jd "
                 "jobs\n",
                 m->spec, (intmax_t)m->batch_size, (intmax_t)c->options->nproc,
                 (intmax_t)c->options->threads, (intmax_t)m->steps, (intmax_t)c->options->repeats);
    (void)printf("# %-12s %-8s %10s %10s %10s %14s %10s%10s%10s%10s%10s%10s\n", "sync", "backend",
                 "step_ms", "min", "max", "samples_per_s", "x control", "x torch", "sync_us",
                 "comm_ms", "exposed", "share");
    for (size_t i = 0; i < c->length; i++) {
        struct row row = make_row(c, i);

        print_row(c, m, i, &row);
        add_row(out, c, m, i, &row);
    }
    (void)fflush(stdout);
}

static enum status run_bench(const void *options, const struct option_result *origins,
                             struct error *err)
{
    const struct train_options *o = options;
    struct train_contest c;
    struct bench_report out;
    enum status status = stop_install(err);

    (void)origins;
    if (status != STATUS_OK)
        return status;
    bench_report_init(&out, "train");
    status = train_contest_open(&c, o, err);
    for (size_t m = 0; m < c.model_count && status == STATUS_OK; m++) {
        status = train_contest_run(&c, m, err);
        if (status == STATUS_OK)
            report_model(&c, &c.models[m], &out);
    }
    if (status == STATUS_OK && o->json[0])
        status = bench_report_write(&out, o->json, err);
    train_contest_close(&c, status);
    bench_report_release(&out);
    return status;
}

int bench_train_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &option_set,
        .options_size = sizeof(struct train_options),
        .run = run_bench,
    };

    return program_main(&program, argc, argv);
}
