/*
 * bench train: the time of one training step, ours and optionally PyTorch's, beside the
 * no-communication control (n independent processes).  Every figure comes from real jobs: each
 * contender is a launched job of `steps` steps, and the contenders take turns within each repeat,
 * so that a drifting machine hits all alike.
 *
 * A job's figure is the median step of rank 0 over its steady steps; a row has the median over the
 * repeats with the extremes beside it.
 */
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/bench_report.h"
#include "experiments/subprocess/subprocess.h"

#include <ftw.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTENDERS_MAX 8
#define WORDS_MAX      64
#define WORD_MAX       256
#define DATA_SAMPLES   4096

struct train_options {
    char model[OPTION_TEXT_MAX];
    int64_t batch_size, nproc, servers, steps, repeats, threads, timeout_ms;
    char sync[OPTION_TEXT_MAX];
    char backend[OPTION_TEXT_MAX];
    char device[OPTION_TEXT_MAX];
    char peer[OPTION_TEXT_MAX];
    char peer_script[OPTION_TEXT_MAX];
    char json[OPTION_TEXT_MAX];
};

#define AT(field) offsetof(struct train_options, field)

static const struct option_spec specs[] = {
    {.name = "model",
     .kind = OPTION_TEXT,
     .offset = AT(model),
     .metavar = "SPEC",
     .default_text = "mlp:784-1024-1024-10",
     .help = "As sparring-worker takes it."},
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
     .default_text = "ring",
     .metavar = "NAME",
     .help = "Of allreduce."},
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
};

static const struct option_set option_set = {
    .program = "sparring bench train",
    .summary = "Time one training step beside the no-communication control.",
    .usage = "[OPTION]...",
    .specs = specs,
    .count = sizeof(specs) / sizeof(specs[0]),
};

struct contender {
    const char *sync; /* "local", "allreduce", "ps", "torch-local", "torch-ddp" */
    const char *backend;
    double *step_ms; /* owned; one per repeat */
};

struct train_bench {
    const struct train_options *options;
    struct contender contenders[CONTENDERS_MAX];
    size_t length;
    char bin[1024];    /* folder of our programs */
    char folder[1024]; /* temporary */
    char data[64];     /* data spec that fits the model */
};

/* Words of a command line, kept in one place. */
struct words {
    char text[WORDS_MAX][WORD_MAX];
    const char *argv[WORDS_MAX + 1];
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void add_word(struct words *w, const char *format, ...)
{
    va_list args;

    if (w->length == WORDS_MAX)
        return;
    va_start(args, format);
    (void)vsnprintf(w->text[w->length], WORD_MAX, format, args);
    va_end(args);
    w->argv[w->length] = w->text[w->length];
    w->length++;
    w->argv[w->length] = NULL;
}

static void add_option(struct words *w, const char *name, const char *value)
{
    add_word(w, "--%s", name);
    add_word(w, "%s", value);
}

static void add_number(struct words *w, const char *name, int64_t value)
{
    add_word(w, "--%s", name);
    add_word(w, "%jd", (intmax_t)value);
}

static void add_launch(const struct train_bench *b, struct words *w, const char *sync,
                       const char *run_dir)
{
    add_word(w, "%s/sparring", b->bin);
    add_word(w, "launch");
    add_word(w, "--standalone");
    add_number(w, "nproc-per-node", b->options->nproc);
    if (strcmp(sync, "ps") == 0)
        add_number(w, "servers", b->options->servers);
    if (run_dir)
        add_option(w, "run-dir", run_dir);
    add_word(w, "--");
}

static void add_our_job(const struct train_bench *b, const struct contender *c, struct words *w,
                        const char *run_dir)
{
    const struct train_options *o = b->options;

    add_launch(b, w, c->sync, run_dir);
    add_word(w, "%s/sparring-worker", b->bin);
    add_option(w, "model", o->model);
    add_option(w, "data", b->data);
    add_number(w, "batch-size", o->batch_size);
    add_number(w, "steps", o->steps);
    add_number(w, "threads", o->threads);
    add_option(w, "sync", c->sync);
    add_option(w, "backend", o->backend);
    add_option(w, "device", o->device);
    add_option(w, "evaluate", "never");
    add_option(w, "log-level", "warning");
}

static void add_torch_job(const struct train_bench *b, const struct contender *c, struct words *w,
                          const char *out)
{
    const struct train_options *o = b->options;

    add_launch(b, w, c->sync, NULL);
    add_word(w, "%s", o->peer);
    add_word(w, "%s", o->peer_script);
    add_option(w, "model", o->model);
    add_number(w, "batch-size", o->batch_size);
    add_number(w, "steps", o->steps);
    add_number(w, "threads", o->threads);
    if (strcmp(c->sync, "torch-ddp") == 0)
        add_word(w, "--ddp");
    add_option(w, "out", out);
}

static enum status read_figure(const char *path, const char *member, double *ret, struct error *err)
{
    json_error_t problem;
    json_t *file = json_load_file(path, 0, &problem);
    const json_t *value = json_object_get(file, member);
    enum status status = STATUS_OK;

    if (!json_is_number(value))
        status = error_set(err, STATUS_DATA, "no '%s' in '%s'%s%s", member, path, file ? "" : ": ",
                           file ? "" : problem.text);
    else
        *ret = json_number_value(value);
    json_decref(file);
    return status;
}

static enum status run_job(const struct train_bench *b, const struct contender *c, size_t repeat,
                           double *ret_step_ms, struct error *err)
{
    struct words w = {.length = 0};
    bool torch = strncmp(c->sync, "torch", 5) == 0;
    char place[1200];
    char log[1200];
    char figures[1280];
    struct subprocess_result result;
    struct subprocess_request request = {.timeout_ms = b->options->timeout_ms, .log_path = log};
    enum status status;

    (void)snprintf(place, sizeof(place), "%s/%s-%zu", b->folder, c->sync, repeat);
    (void)snprintf(log, sizeof(log), "%s/%s-%zu.log", b->folder, c->sync, repeat);
    (void)snprintf(figures, sizeof(figures), "%s%s", place, torch ? "" : "/summary.json");
    if (torch)
        add_torch_job(b, c, &w, place);
    else
        add_our_job(b, c, &w, place);
    request.argv = w.argv;
    status = subprocess_run(&request, &result, err);
    if (status != STATUS_OK)
        return status;
    if (result.outcome != SUBPROCESS_EXITED || result.code != 0) {
        char how[128];

        subprocess_result_text(&result, how, sizeof(how));
        return error_set(err, STATUS_INTERNAL, "the %s job failed: %s; its output is in '%s'",
                         c->sync, how, log);
    }
    return read_figure(figures, torch ? "step_ms" : "step_ms_median", ret_step_ms, err);
}

static enum status add_contender(struct train_bench *b, const char *sync, const char *backend,
                                 struct error *err)
{
    struct contender *c = &b->contenders[b->length];

    if (b->length == CONTENDERS_MAX)
        return error_set(err, STATUS_INVALID, "more than %d contenders", CONTENDERS_MAX);
    c->sync = sync;
    c->backend = backend;
    b->length++;
    return mem_calloc((size_t)b->options->repeats, sizeof(double), "step times", &c->step_ms, err);
}

static enum status list_contenders(struct train_bench *b, struct error *err)
{
    const struct train_options *o = b->options;
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;
    enum status status = add_contender(b, "local", "none", err);

    (void)snprintf(names, sizeof(names), "%s", o->sync);
    for (const char *name = strtok_r(names, ",", &rest); name && status == STATUS_OK;
         name = strtok_r(NULL, ",", &rest)) {
        if (strcmp(name, "allreduce") == 0)
            status = o->nproc > 1 ? add_contender(b, "allreduce", o->backend, err) : STATUS_OK;
        else if (strcmp(name, "ps") == 0)
            status = add_contender(b, "ps", "grpc", err);
        else if (strcmp(name, "local") != 0)
            status =
                error_set(err, STATUS_INVALID, "--sync: unknown '%s' (allreduce, ps, local)", name);
    }
    if (status == STATUS_OK && o->peer[0])
        status = add_contender(b, "torch-local", "none", err);
    if (status == STATUS_OK && o->peer[0] && o->nproc > 1)
        status = add_contender(b, "torch-ddp", "gloo", err);
    return status;
}

/* random:N,D,C with the model's first and last size. */
static enum status fit_data(struct train_bench *b, struct error *err)
{
    const char *first = strchr(b->options->model, ':');
    const char *last = strrchr(b->options->model, '-');

    if (!first || !last)
        return error_set(err, STATUS_CONFIG, "model '%s' has no sizes like mlp:784-128-10",
                         b->options->model);
    (void)snprintf(b->data, sizeof(b->data), "random:%d,%.*s,%.12s", DATA_SAMPLES,
                   (int)strspn(first + 1, "0123456789"), first + 1, last + 1);
    return STATUS_OK;
}

static enum status run_all(struct train_bench *b, struct error *err)
{
    for (size_t repeat = 0; repeat < (size_t)b->options->repeats; repeat++) {
        for (size_t i = 0; i < b->length; i++) {
            struct contender *c = &b->contenders[(i + repeat) % b->length];
            enum status status = run_job(b, c, repeat, &c->step_ms[repeat], err);

            if (status != STATUS_OK)
                return status;
        }
    }
    return STATUS_OK;
}

static enum status report(struct train_bench *b, struct error *err)
{
    const struct train_options *o = b->options;
    struct bench_report out;
    double control = 0;
    enum status status = STATUS_OK;

    bench_report_init(&out, "train");
    (void)printf("# %s, batch %jd per rank, %jd ranks, %jd threads each, median of %jd jobs\n",
                 o->model, (intmax_t)o->batch_size, (intmax_t)o->nproc, (intmax_t)o->threads,
                 (intmax_t)o->repeats);
    (void)printf("# %-12s %-8s %10s %10s %10s %14s %12s\n", "sync", "backend", "step_ms", "min",
                 "max", "samples_per_s", "x control");
    for (size_t i = 0; i < b->length; i++) {
        const struct contender *c = &b->contenders[i];
        struct bench_summary ms = bench_summarise(c->step_ms, (size_t)o->repeats);
        double samples = (double)(o->batch_size * o->nproc);

        if (i == 0)
            control = ms.median;
        (void)printf("  %-12s %-8s %10.3f %10.3f %10.3f %14.0f %12.3f\n", c->sync, c->backend,
                     ms.median, ms.min, ms.max, samples / ms.median * 1e3, ms.median / control);
        bench_row_begin(&out);
        bench_row_text(&out, "model", o->model);
        bench_row_text(&out, "sync", c->sync);
        bench_row_text(&out, "backend", c->backend);
        bench_row_int(&out, "nranks", o->nproc);
        bench_row_int(&out, "batch", o->batch_size);
        bench_row_int(&out, "threads", o->threads);
        bench_row_int(&out, "repeats", o->repeats);
        bench_row_summary(&out, "step_ms", ms);
        bench_row_double(&out, "samples_per_s", samples / ms.median * 1e3);
        bench_row_double(&out, "over_control", ms.median / control);
        bench_row_end(&out);
    }
    if (o->json[0])
        status = bench_report_write(&out, o->json, err);
    bench_report_release(&out);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static enum status run_bench(const void *options, const struct option_result *origins,
                             struct error *err)
{
    struct train_bench b = {.options = options};
    const char *temporary = getenv("TMPDIR");
    enum status status = stop_install(err);

    (void)origins;
    if (status == STATUS_OK)
        status = subprocess_program_folder(b.bin, sizeof(b.bin), err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(b.folder, sizeof(b.folder), "%.900s/sparring-bench-XXXXXX",
                   temporary ? temporary : "/tmp");
    if (!mkdtemp(b.folder))
        return error_set(err, STATUS_IO, "cannot make a temporary folder '%s'", b.folder);
    status = fit_data(&b, err);
    if (status == STATUS_OK)
        status = list_contenders(&b, err);
    if (status == STATUS_OK)
        status = run_all(&b, err);
    if (status == STATUS_OK)
        status = report(&b, err);
    for (size_t i = 0; i < b.length; i++)
        free(b.contenders[i].step_ms);
    if (status == STATUS_OK) /* after a failure the logs stay for reading */
        (void)nftw(b.folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
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
