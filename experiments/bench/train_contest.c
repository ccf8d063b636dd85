/*
 * The jobs: command lines, run directories, the figures in them.
 */
#include "experiments/bench/train_contest.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "experiments/subprocess/subprocess.h"

#include <ftw.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX      64
#define WORD_MAX       256
#define DATA_SAMPLES   4096
#define LINE_MAX_BYTES 4096

/* ---- command lines ---- */

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

static void add_launch(const struct train_contest *c, struct words *w, const struct contender *who,
                       const char *run_dir)
{
    add_word(w, "%s/sparring", c->bin);
    add_word(w, "launch");
    add_word(w, "--standalone");
    add_number(w, "nproc-per-node", c->options->nproc);
    if (strcmp(who->sync, "ps") == 0)
        add_number(w, "servers", c->options->servers);
    if (strcmp(who->backend, "mpi") == 0)
        add_option(w, "backend", "mpi"); /* mpirun starts the ranks */
    if (run_dir)
        add_option(w, "run-dir", run_dir);
    add_word(w, "--");
}

static void add_our_job(const struct train_contest *c, const struct train_model *m,
                        const struct contender *who, struct words *w, const char *run_dir)
{
    const struct train_options *o = c->options;

    add_launch(c, w, who, run_dir);
    add_word(w, "%s/sparring-worker", c->bin);
    add_option(w, "model", m->spec);
    add_option(w, "data", m->data);
    add_number(w, "batch-size", m->batch_size);
    add_number(w, "steps", m->steps);
    add_number(w, "threads", o->threads);
    add_option(w, "sync", who->sync);
    if (strcmp(who->sync, "allreduce") == 0)
        add_option(w, "backend", who->backend);
    if (strcmp(who->sync, "ps") == 0)
        add_option(w, "ps-transport", who->backend);
    add_option(w, "device", o->device);
    add_option(w, "evaluate", "never");
    add_option(w, "log-level", "warning");
}

static void add_torch_job(const struct train_contest *c, const struct train_model *m,
                          const struct contender *who, struct words *w, const char *out)
{
    const struct train_options *o = c->options;

    add_launch(c, w, who, NULL);
    add_word(w, "%s", o->peer);
    add_word(w, "%s", o->peer_script);
    add_option(w, "model", m->spec);
    add_number(w, "batch-size", m->batch_size);
    add_number(w, "steps", m->steps);
    add_number(w, "threads", o->threads);
    if (strcmp(who->sync, "torch-ddp") == 0)
        add_word(w, "--ddp");
    add_option(w, "out", out);
}

/* ---- figures ---- */

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

static double member_ms(const json_t *record, const char *name)
{
    const json_t *value = json_object_get(record, name);

    return json_is_number(value) ? json_number_value(value) * 1e-6 : (double)NAN;
}

/* Medians over the steady steps (METRICS.md) of rank 0's records. */
static enum status read_steps(const char *path, size_t steps, double *comm, double *exposed,
                              struct train_figures *ret, struct error *err)
{
    size_t skip = steps / 10 > 5 ? steps / 10 : 5;
    char line[LINE_MAX_BYTES];
    size_t seen = 0;
    size_t kept = 0;
    FILE *file = fopen(path, "re");

    if (!file)
        return error_set(err, STATUS_IO, "cannot open '%s'", path);
    while (fgets(line, sizeof(line), file) && kept < steps) {
        json_t *record = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(record, "kind"));

        if (kind && strcmp(kind, "step") == 0 && (seen++ >= skip || steps <= skip)) {
            comm[kept] = member_ms(record, "comm_ns");
            exposed[kept] = member_ms(record, "exposed_comm_ns");
            kept++;
        }
        json_decref(record);
    }
    (void)fclose(file);
    ret->comm_ms = kept > 0 && isfinite(comm[0]) ? bench_summarise(comm, kept).median : (double)NAN;
    ret->exposed_ms = kept > 0 ? bench_summarise(exposed, kept).median : (double)NAN;
    return STATUS_OK;
}

static enum status read_run(const char *run_dir, size_t steps, struct train_figures *ret,
                            struct error *err)
{
    char path[1400];
    double *samples = NULL;
    enum status status = mem_calloc(2 * steps, sizeof(double), "steps", &samples, err);

    (void)snprintf(path, sizeof(path), "%s/summary.json", run_dir);
    if (status == STATUS_OK)
        status = read_figure(path, "step_ms_median", &ret->step_ms, err);
    (void)snprintf(path, sizeof(path), "%s/rank0.jsonl", run_dir);
    if (status == STATUS_OK)
        status = read_steps(path, steps, samples, samples + steps, ret, err);
    free(samples);
    return status;
}

static enum status run_job(const struct train_contest *c, size_t model, size_t index, size_t repeat,
                           struct error *err)
{
    const struct train_model *m = &c->models[model];
    const struct contender *who = &c->contenders[index];
    struct train_figures *figures = &who->jobs[repeat];
    struct words w = {.length = 0};
    bool torch = strncmp(who->sync, "torch", 5) == 0;
    char place[1200];
    char log[1280];
    struct subprocess_result result;
    struct subprocess_request request = {.timeout_ms = c->options->timeout_ms, .log_path = log};
    enum status status;

    *figures = (struct train_figures){.comm_ms = (double)NAN, .exposed_ms = (double)NAN};
    (void)snprintf(place, sizeof(place), "%s/%zu-%s-%s-%zu", c->folder, model, who->sync,
                   who->backend, repeat);
    (void)snprintf(log, sizeof(log), "%s.log", place);
    if (torch)
        add_torch_job(c, m, who, &w, place);
    else
        add_our_job(c, m, who, &w, place);
    request.argv = w.argv;
    status = subprocess_run(&request, &result, err);
    if (status != STATUS_OK)
        return status;
    if (result.outcome != SUBPROCESS_EXITED || result.code != 0) {
        char how[128];

        subprocess_result_text(&result, how, sizeof(how));
        return error_set(err, STATUS_INTERNAL,
                         "the %s job over %s failed: %s; its output is in '%s'", who->sync,
                         who->backend, how, log);
    }
    return torch ? read_figure(place, "step_ms", &figures->step_ms, err)
                 : read_run(place, (size_t)m->steps, figures, err);
}

enum status train_contest_run(struct train_contest *c, size_t model, struct error *err)
{
    for (size_t repeat = 0; repeat < (size_t)c->options->repeats; repeat++) {
        for (size_t i = 0; i < c->length; i++) {
            enum status status = run_job(c, model, (i + repeat) % c->length, repeat, err);

            if (status != STATUS_OK)
                return status;
        }
    }
    return STATUS_OK;
}

/* ---- what takes part ---- */

static enum status add_contender(struct train_contest *c, const char *sync, const char *backend,
                                 size_t control, struct error *err)
{
    struct contender *who = &c->contenders[c->length];

    if (c->length == CONTENDERS_MAX)
        return error_set(err, STATUS_INVALID, "more than %d contenders", CONTENDERS_MAX);
    who->sync = sync;
    (void)snprintf(who->backend, sizeof(who->backend), "%s", backend);
    who->control = control;
    c->length++;
    return mem_calloc((size_t)c->options->repeats, sizeof(*who->jobs), "step times", &who->jobs,
                      err);
}

static enum status add_transports(struct train_contest *c, struct error *err)
{
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;
    enum status status = STATUS_OK;

    (void)snprintf(names, sizeof(names), "%s", c->options->ps_transport);
    for (const char *name = strtok_r(names, ",", &rest); name && status == STATUS_OK;
         name = strtok_r(NULL, ",", &rest))
        status = add_contender(c, "ps", name, 0, err);
    return status;
}

static enum status add_backends(struct train_contest *c, struct error *err)
{
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;
    enum status status = STATUS_OK;

    (void)snprintf(names, sizeof(names), "%s", c->options->backend);
    for (const char *name = strtok_r(names, ",", &rest); name && status == STATUS_OK;
         name = strtok_r(NULL, ",", &rest)) {
        status = add_contender(c, "allreduce", name, 0, err);
        if (strcmp(name, "mpi") == 0) { /* Open MPI refuses root, whom containers use, unless ... */
            (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
            (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        }
    }
    return status;
}

static enum status list_contenders(struct train_contest *c, struct error *err)
{
    const struct train_options *o = c->options;
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;
    enum status status = add_contender(c, "local", "none", 0, err);

    (void)snprintf(names, sizeof(names), "%s", o->sync);
    for (const char *name = strtok_r(names, ",", &rest); name && status == STATUS_OK;
         name = strtok_r(NULL, ",", &rest)) {
        if (strcmp(name, "allreduce") == 0)
            status = o->nproc > 1 ? add_backends(c, err) : STATUS_OK;
        else if (strcmp(name, "ps") == 0)
            status = add_transports(c, err);
        else if (strcmp(name, "local") != 0)
            status =
                error_set(err, STATUS_INVALID, "--sync: unknown '%s' (allreduce, ps, local)", name);
    }
    if (status == STATUS_OK && o->peer[0])
        status = add_contender(c, "torch-local", "none", c->length, err);
    if (status == STATUS_OK && o->peer[0] && o->nproc > 1)
        status = add_contender(c, "torch-ddp", "gloo", c->length - 1, err);
    return status;
}

/* random:N,D,C with the model's first and last size. */
static enum status fit_data(struct train_model *m, struct error *err)
{
    const char *first = strchr(m->spec, ':');
    const char *last = strrchr(m->spec, '-');

    if (!first || !last)
        return error_set(err, STATUS_CONFIG, "model '%s' has no sizes like mlp:784-128-10",
                         m->spec);
    (void)snprintf(m->data, sizeof(m->data), "random:%d,%.*s,%.12s", DATA_SAMPLES,
                   (int)strspn(first + 1, "0123456789"), first + 1, last + 1);
    return STATUS_OK;
}

/* SPEC[@BATCH[@STEPS]] */
static enum status add_model(struct train_contest *c, const char *text, struct error *err)
{
    struct train_model *m = &c->models[c->model_count];
    char copy[OPTION_TEXT_MAX];
    char *rest = NULL;
    const char *spec, *batch, *steps;
    uint64_t number = 0;

    if (c->model_count == MODELS_MAX)
        return error_set(err, STATUS_INVALID, "--model names more than %d models", MODELS_MAX);
    *m = (struct train_model){.batch_size = c->options->batch_size, .steps = c->options->steps};
    (void)snprintf(copy, sizeof(copy), "%s", text);
    spec = strtok_r(copy, "@", &rest);
    batch = strtok_r(NULL, "@", &rest);
    steps = strtok_r(NULL, "@", &rest);
    (void)snprintf(m->spec, sizeof(m->spec), "%s", spec ? spec : "");
    if (batch && (!parse_uint64(batch, &number) || number < 1 || number > 1000000))
        return error_set(err, STATUS_INVALID, "--model '%s': '%s' is no batch size", text, batch);
    if (batch)
        m->batch_size = (int64_t)number;
    if (steps && (!parse_uint64(steps, &number) || number < 10 || number > 1000000))
        return error_set(err, STATUS_INVALID, "--model '%s': '%s' is no number of steps", text,
                         steps);
    if (steps)
        m->steps = (int64_t)number;
    c->model_count++;
    return fit_data(m, err);
}

static enum status list_models(struct train_contest *c, struct error *err)
{
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;
    enum status status = STATUS_OK;

    (void)snprintf(names, sizeof(names), "%s", c->options->model);
    for (const char *name = strtok_r(names, ",", &rest); name && status == STATUS_OK;
         name = strtok_r(NULL, ",", &rest))
        status = add_model(c, name, err);
    if (status == STATUS_OK && c->model_count == 0)
        return error_set(err, STATUS_INVALID, "--model names none");
    return status;
}

enum status train_contest_open(struct train_contest *c, const struct train_options *options,
                               struct error *err)
{
    const char *temporary = getenv("TMPDIR");
    enum status status;

    *c = (struct train_contest){.options = options};
    status = subprocess_program_folder(c->bin, sizeof(c->bin), err);
    if (status == STATUS_OK)
        status = list_models(c, err);
    if (status == STATUS_OK)
        status = list_contenders(c, err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(c->folder, sizeof(c->folder), "%.900s/sparring-bench-XXXXXX",
                   temporary && temporary[0] ? temporary : "/tmp");
    if (!mkdtemp(c->folder)) {
        status = error_set(err, STATUS_IO, "cannot make a temporary folder '%s'", c->folder);
        c->folder[0] = '\0';
    }
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

void train_contest_close(struct train_contest *c, enum status how)
{
    for (size_t i = 0; i < c->length; i++)
        free(c->contenders[i].jobs);
    if (how == STATUS_OK && c->folder[0])
        (void)nftw(c->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
