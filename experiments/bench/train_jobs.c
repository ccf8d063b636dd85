/*
 * train_jobs: the command lines of the jobs of bench train, and the order in which they run.
 */
#include "experiments/bench/train_jobs.h"

#include "common/base/memory.h"
#include "common/base/stop.h"
#include "experiments/bench/peer_script.h"
#include "experiments/subprocess/subprocess.h"
#include "experiments/subprocess/temporary_folder.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 64
#define WORD_MAX  1024

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

static void add_launch(const struct train_jobs *c, struct words *w, const struct contender *who,
                       const char *run_dir)
{
    add_word(w, "%s/sparring", c->bin);
    add_word(w, "launch");
    add_word(w, "--standalone");
    add_number(w, "nproc-per-node", c->options->nproc);
    if (strcmp(who->sync, "ps") == 0)
        add_number(w, "servers", c->options->servers);
    if (strcmp(who->backend, "mpi") == 0)
        add_option(w, "backend", "mpi"); /* mpirun starts the ranks, and would bind them itself */
    else
        add_option(w, "bind", c->options->bind);
    if (run_dir)
        add_option(w, "run-dir", run_dir);
    add_word(w, "--");
}

static void add_our_job(const struct train_jobs *c, const struct train_model *m,
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
    add_option(w, "precision", o->precision);
    add_option(w, "optimizer", o->optimizer);
    add_option(w, "evaluate", "never");
    add_option(w, "log-level", "warning");
}

static void add_torch_job(const struct train_jobs *c, const struct train_model *m,
                          const struct contender *who, struct words *w, const char *out)
{
    const struct train_options *o = c->options;

    add_launch(c, w, who, NULL);
    add_word(w, "%s", o->peer);
    add_word(w, "%s", c->peer_script);
    add_option(w, "model", m->spec);
    add_number(w, "batch-size", m->batch_size);
    add_number(w, "steps", m->steps);
    add_number(w, "threads", o->threads);
    add_option(w, "device", o->device);
    add_option(w, "precision", o->precision);
    add_option(w, "optimizer", o->optimizer);
    if (strcmp(who->sync, "torch-ddp") == 0)
        add_word(w, "--ddp");
    if (strcmp(who->sync, "torch-compile") == 0)
        add_word(w, "--compile");
    add_option(w, "out", out);
}

/* ---- jobs ---- */

/* `what` names the job in the error text. */
static enum status run_command(const struct train_jobs *c, const struct words *w, const char *what,
                               const char *log, struct error *err)
{
    struct subprocess_request request = {
        .argv = w->argv, .timeout_ms = c->options->timeout_ms, .log_path = log};
    struct subprocess_result result;
    enum status status = subprocess_run(&request, &result, err);

    if (status != STATUS_OK)
        return status;
    if (result.outcome == SUBPROCESS_STOPPED || stop_requested())
        return error_set(err, STATUS_CANCELLED, "stopped by a signal");
    if (result.outcome != SUBPROCESS_EXITED || result.code != 0) {
        char how[128];
        char last[256] = "";

        subprocess_result_text(&result, how, sizeof(how));
        if (subprocess_last_line(log, last, sizeof(last), NULL) != STATUS_OK || last[0] == '\0')
            (void)snprintf(last, sizeof(last), "no output");
        return error_set(err, STATUS_INTERNAL, "%s failed: %s (%s); its output is in '%s'", what,
                         how, last, log);
    }
    return STATUS_OK;
}

static bool is_torch(const struct contender *who)
{
    return strncmp(who->sync, "torch", 5) == 0;
}

static enum status run_job(struct train_jobs *c, size_t model, size_t index, size_t repeat,
                           struct error *err)
{
    const struct train_model *m = &c->models[model];
    struct contender *who = &c->contenders[index];
    struct train_figures *figures = &who->jobs[repeat];
    struct words w = {.length = 0};
    struct error why = {0};
    char base_path[1200];
    char log[1280];
    char what[128];
    enum status status;

    *figures = train_figures_none();
    if (who->not_measured[0])
        return STATUS_OK;
    (void)snprintf(base_path, sizeof(base_path), "%s/%zu-%s-%s-%zu", c->folder, model, who->sync,
                   who->backend, repeat);
    (void)snprintf(log, sizeof(log), "%s.log", base_path);
    (void)snprintf(what, sizeof(what), "the %s job over %s", who->sync, who->backend);
    if (is_torch(who))
        add_torch_job(c, m, who, &w, base_path);
    else
        add_our_job(c, m, who, &w, base_path);
    status = run_command(c, &w, what, log, err);
    if (status != STATUS_OK)
        return status;
    if (!is_torch(who))
        return train_figures_read_run(base_path, (size_t)m->steps, figures, err);
    status = train_figures_read_torch(base_path, figures, &why);
    if (status == STATUS_UNSUPPORTED) {
        (void)snprintf(who->not_measured, sizeof(who->not_measured), "%.255s", why.text);
        return STATUS_OK;
    }
    return status == STATUS_OK ? status : error_set(err, status, "%s", why.text);
}

enum status train_jobs_run(struct train_jobs *c, size_t model, struct error *err)
{
    for (size_t i = 0; i < c->length; i++)
        c->contenders[i].not_measured[0] = '\0';
    for (size_t repeat = 0; repeat < (size_t)c->options->repeats; repeat++) {
        for (size_t i = 0; i < c->length; i++) {
            enum status status = run_job(c, model, (i + repeat) % c->length, repeat, err);

            if (status != STATUS_OK)
                return status;
        }
    }
    return STATUS_OK;
}

enum status train_jobs_ceiling(struct train_jobs *c, struct error *err)
{
    struct words w = {.length = 0};
    char file[1200];
    char log[1280];
    json_t *report;
    enum status status;

    (void)snprintf(file, sizeof(file), "%s/matmul.json", c->folder);
    (void)snprintf(log, sizeof(log), "%s/matmul.log", c->folder);
    add_word(&w, "%s/sparring", c->bin);
    add_word(&w, "launch");
    add_word(&w, "--standalone");
    add_number(&w, "nproc-per-node", c->options->nproc);
    add_word(&w, "--");
    add_word(&w, "%s/sparring", c->bin);
    add_word(&w, "bench");
    add_word(&w, "matmul");
    add_option(&w, "device", c->options->device);
    add_option(&w, "precision", c->options->precision);
    add_number(&w, "threads", c->options->threads);
    add_option(&w, "json", file);
    status = run_command(c, &w, "bench matmul", log, err);
    if (status != STATUS_OK)
        return status;
    report = json_load_file(file, 0, NULL);
    c->ceiling = json_number_value(json_object_get(report, "ceiling_flop_per_s"));
    json_decref(report);
    return c->ceiling > 0 ? STATUS_OK : error_set(err, STATUS_DATA, "no ceiling in '%s'", file);
}

const struct contender *train_jobs_find(const struct train_jobs *c, const char *sync)
{
    for (size_t i = 0; i < c->length; i++)
        if (strcmp(c->contenders[i].sync, sync) == 0)
            return c->contenders[i].not_measured[0] ? NULL : &c->contenders[i];
    return NULL;
}

/* ---- contenders ---- */

static enum status add_contender(struct train_jobs *c, const char *sync, const char *backend,
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

static enum status add_transports(struct train_jobs *c, struct error *err)
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

static enum status add_backends(struct train_jobs *c, struct error *err)
{
    char names[OPTION_TEXT_MAX];
    char *rest = NULL;
    enum status status = STATUS_OK;

    (void)snprintf(names, sizeof(names), "%s", c->options->backend);
    for (const char *name = strtok_r(names, ",", &rest); name && status == STATUS_OK;
         name = strtok_r(NULL, ",", &rest)) {
        status = add_contender(c, "allreduce", name, 0, err);
        if (strcmp(name, "mpi") == 0) { /* Open MPI refuses to run as root without these */
            (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
            (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        }
    }
    return status;
}

static enum status list_contenders(struct train_jobs *c, struct error *err)
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
    if (status == STATUS_OK && o->peer[0])
        status = add_contender(c, "torch-compile", "none", c->length - 1, err);
    if (status == STATUS_OK && o->peer[0] && o->nproc > 1)
        status = add_contender(c, "torch-ddp", strcmp(o->device, "cpu") == 0 ? "gloo" : "nccl",
                               c->length - 2, err);
    return status;
}

enum status train_jobs_open(struct train_jobs *c, const struct train_options *options,
                            struct error *err)
{
    enum status status;

    *c = (struct train_jobs){.options = options, .ceiling = (double)NAN};
    status = subprocess_program_folder(c->bin, sizeof(c->bin), err);
    if (status == STATUS_OK)
        status = train_models_parse(options->model, options->batch_size, options->steps,
                                    options->nproc, c->models, MODELS_MAX, &c->model_count, err);
    if (status == STATUS_OK && options->peer[0])
        status = peer_script_find(options->peer_script, "torch_train.py", c->peer_script,
                                  sizeof(c->peer_script), err);
    if (status == STATUS_OK)
        status = list_contenders(c, err);
    if (status == STATUS_OK)
        status = temporary_folder_make("bench", c->folder, sizeof(c->folder), err);
    return status;
}

void train_jobs_close(struct train_jobs *c, enum status how)
{
    for (size_t i = 0; i < c->length; i++)
        free(c->contenders[i].jobs);
    if (how == STATUS_OK || how == STATUS_CANCELLED)
        temporary_folder_remove(c->folder);
}
