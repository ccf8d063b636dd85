/*
 * predict: calibrates, measures the load of every number of ranks once, or reads it from what a
 * cluster is described by, then computes each mode of each cell.
 */
#include "experiments/predict/predict.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/compare/experiment.h"
#include "experiments/compare/find_experiment.h"
#include "experiments/network/network_options.h"
#include "experiments/predict/calibration.h"
#include "experiments/predict/described_load.h"
#include "experiments/predict/job_load.h"
#include "experiments/predict/mode_costs.h"
#include "experiments/predict/prediction.h"
#include "experiments/report/report.h"
#include "experiments/subprocess/subprocess.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOADS_MAX 64

struct predict_options {
    char out[OPTION_TEXT_MAX];
    char calibration[OPTION_TEXT_MAX];
    char against[OPTION_TEXT_MAX];
    bool own_cores;
    bool what_if;
    double parameters, step_ms;
    char programs[OPTION_TEXT_MAX];
};

#define AT(field) offsetof(struct predict_options, field)

static const struct option_spec specs[] = {
    {.name = "out",
     .kind = OPTION_TEXT,
     .offset = AT(out),
     .default_text = "predict",
     .metavar = "DIR",
     .help = "Where the short runs, calibration.json and predictions.csv go, and of a sweep "
             "index.html with maps and cells.csv."},
    {.name = "calibration",
     .kind = OPTION_TEXT,
     .offset = AT(calibration),
     .metavar = "FILE",
     .help = "An earlier calibration.json instead of runs that measure this machine (10 s); after "
             "--against it also has the errors that intervals follow from."},
    {.name = "against",
     .kind = OPTION_TEXT,
     .offset = AT(against),
     .metavar = "DIR",
     .help =
         "What 'sparring compare' measured for the same file: each prediction is printed beside "
         "it, with its error."},
    {.name = "what-if",
     .kind = OPTION_BOOL,
     .offset = AT(what_if),
     .help = "Run nothing: for a cluster and a model that are not here.  Every rank and server has "
             "enough processors; without --calibration software takes no time."},
    {.name = "parameters",
     .kind = OPTION_DOUBLE,
     .offset = AT(parameters),
     .default_text = "0",
     .min = 0,
     .max = 1e12,
     .metavar = "N",
     .help = "Of the model, float32, with --what-if; instead of the experiment's model."},
    {.name = "step-ms",
     .kind = OPTION_DOUBLE,
     .offset = AT(step_ms),
     .default_text = "0",
     .min = 0,
     .max = 1e7,
     .metavar = "MS",
     .help = "Forward and backward, with --what-if, of a model that is not a profile."},
    {.name = "own-cores",
     .kind = OPTION_BOOL,
     .offset = AT(own_cores),
     .help =
         "Every rank and server has enough processors, as on hosts of their own; without it they "
         "share those of this machine."},
    {.name = "programs",
     .env = "SPARRING_PROGRAMS",
     .kind = OPTION_TEXT,
     .offset = AT(programs),
     .metavar = "DIR",
     .help = "Folder of sparring and sparring-worker; by default that of this program."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring predict",
    .summary = "Say what a step of each mode of an experiment takes, and what limits it, without "
               "running the experiment.",
    .usage = "EXPERIMENT.yaml [OPTION]...",
    .tables = {{specs, 0}},
};

struct predictor {
    const struct predict_options *options;
    struct trial trial;
    struct calibration calibration;
    const struct experiment *experiment;
    struct experiment *of_cell; /* owned */
    struct cell *cells;         /* owned */
    size_t cell_count;
    struct {
        char key[4096];
        struct job_load load;
    } * loads; /* owned; LOADS_MAX */
    size_t load_count;
    struct prediction_set set; /* items are owned */
};

/* ---- inputs of the model ---- */

/* Loads differ by ranks and by what all modes share; those of cells that differ in the network
 * alone are measured once.  Described ones differ by the mode's model alone. */
static void add_key(const struct predictor *p, const struct experiment_mode *mode, char *key,
                    size_t size)
{
    const struct experiment *e = p->of_cell;
    size_t length = (size_t)snprintf(key, size, "%u", (unsigned)mode->nproc);

    if (p->options->what_if) {
        (void)snprintf(key, size, "%s", experiment_option(e, mode, "model"));
        return;
    }
    for (size_t i = 0; i < e->options.length && length < size; i++)
        if (strncmp(e->options.items[i].name, "network-", 8) != 0)
            length += (size_t)snprintf(key + length, size - length, " %s=%s",
                                       e->options.items[i].name, e->options.items[i].value);
}

static enum status make_load(struct predictor *p, const char *key, unsigned ranks,
                             struct job_load *ret, struct error *err)
{
    const struct predict_options *o = p->options;
    char name[32];

    if (o->what_if)
        return described_load_read(key, o->parameters, o->step_ms * 1e-3, ret, err);
    (void)snprintf(name, sizeof(name), "load-%zu", p->load_count);
    return job_load_measure(&p->trial, name, p->of_cell, ranks, ret, err);
}

static enum status find_load(struct predictor *p, const struct experiment_mode *mode,
                             const struct job_load **ret, struct error *err)
{
    char key[sizeof(p->loads->key)];
    enum status status;

    add_key(p, mode, key, sizeof(key));
    for (size_t i = 0; i < p->load_count; i++)
        if (strcmp(p->loads[i].key, key) == 0) {
            *ret = &p->loads[i].load;
            return STATUS_OK;
        }
    if (p->load_count == LOADS_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the experiment has more than %d different loads of ranks", LOADS_MAX);
    (void)snprintf(p->loads[p->load_count].key, sizeof(key), "%s", key);
    status = make_load(p, key, (unsigned)mode->nproc, &p->loads[p->load_count].load, err);
    *ret = &p->loads[p->load_count++].load; /* released with the others */
    return status;
}

static uint64_t accumulated_steps(const struct predictor *p, const struct experiment_mode *mode)
{
    uint64_t steps;

    return parse_uint64(experiment_option(p->of_cell, mode, "accumulate-steps"), &steps) ? steps
                                                                                         : 1;
}

/* Is its load that of the mode?  One that is described is a step without a schedule's delays; one
 * that is measured is of the options that all modes share. */
static bool is_load_known(const struct predictor *p, const struct experiment_mode *mode)
{
    static const char *const of_load[] = {
        "model",     "data",      "batch-size", "threads", "accumulate-steps", "delay-schedule",
        "optimizer", "precision", "layer-drop", "device",  "deterministic",    "cuda-graph"};
    static const struct experiment_mode none = {.nproc = 0};

    if (p->options->what_if)
        return experiment_option(p->of_cell, mode, "delay-schedule")[0] == '\0' &&
               accumulated_steps(p, mode) == 1;
    for (size_t k = 0; k < sizeof(of_load) / sizeof(of_load[0]); k++)
        if (strcmp(experiment_option(p->of_cell, mode, of_load[k]),
                   experiment_option(p->of_cell, &none, of_load[k])) != 0)
            return false;
    return true;
}

static enum status predict_mode(struct predictor *p, const struct experiment_mode *mode,
                                struct prediction *ret, struct error *err)
{
    const bool shares_cores = !p->options->own_cores && !p->options->what_if;
    const struct job_load *load = NULL;
    struct mode_costs costs = {.experiment = p->of_cell,
                               .mode = mode,
                               .inputs = {.machine = p->calibration.machine},
                               .min_delay_ms = p->options->what_if ? 0 : NETWORK_DELAY_MIN_MS};
    uint64_t batch;
    enum status status = find_load(p, mode, &load, err);

    if (status == STATUS_OK)
        status = mode_costs_read(&costs, load, err);
    if (status != STATUS_OK)
        return status;
    costs.is_known = costs.is_known && is_load_known(p, mode);
    costs.inputs.job.cores = shares_cores ? p->calibration.cores : 0;
    status = mode_costs_predict(&costs, &ret->cost, err);
    if (status == STATUS_OK && costs.is_known)
        mode_costs_sensitivities(&costs, ret->cost.step_s, ret->sensitivities);
    ret->is_known = costs.is_known;
    ret->side = costs.inputs.side;
    ret->ranks = (double)mode->nproc;
    if (!parse_uint64(experiment_option(p->of_cell, mode, "batch-size"), &batch))
        batch = load->batch;
    ret->samples = (double)(batch * accumulated_steps(p, mode)) * (double)mode->nproc;
    return status;
}

/* ---- what was measured ---- */

static enum status read_measured(const struct predictor *p, const struct cell *cell,
                                 struct prediction *predictions, struct error *err)
{
    const struct experiment *e = p->of_cell;
    struct report report = {0};
    char path[4096];
    const char *paths = path;
    enum status status;

    for (size_t m = 0; m < e->mode_count; m++)
        predictions[m].measured_s = (double)NAN;
    if (p->options->against[0] == '\0')
        return STATUS_OK;
    (void)snprintf(path, sizeof(path), "%.2000s%s%s", p->options->against,
                   cell->name[0] ? "/cells/" : "", cell->name);
    status = report_read(&report, &paths, 1, err);
    for (size_t m = 0; m < e->mode_count && status == STATUS_OK; m++)
        for (size_t i = 0; i < report.comparison.mode_count; i++)
            if (strcmp(report.comparison.modes[i].name, e->modes[m].name) == 0) {
                const struct spread *spreads = report.comparison.modes[i].spreads;

                predictions[m].measured_s = spreads[METRIC_step_ms_mean].median * 1e-3;
                predictions[m].speeds = spreads[METRIC_samples_per_second];
            }
    report_release(&report);
    return status;
}

static enum status predict_cell(struct predictor *p, size_t index, struct error *err)
{
    const struct cell *cell = &p->cells[index];
    struct prediction *predictions = &p->set.items[index * p->experiment->mode_count];
    enum status status = STATUS_OK;

    experiment_make_cell(p->experiment, cell, p->cell_count, p->of_cell);
    for (size_t m = 0; m < p->of_cell->mode_count && status == STATUS_OK; m++)
        status = predict_mode(p, &p->of_cell->modes[m], &predictions[m], err);
    return status == STATUS_OK ? read_measured(p, cell, predictions, err) : status;
}

/* ---- the command ---- */

static enum status read_calibration(struct predictor *p, struct error *err)
{
    const char *path = p->options->calibration;
    enum status status = calibration_read(path, &p->calibration, err);

    if (status == STATUS_OK && !p->options->what_if &&
        p->calibration.in_network != p->trial.in_network)
        status = error_set(err, STATUS_CONFIG, "'%s' was measured %s emulated hosts, and %s", path,
                           p->calibration.in_network ? "on" : "without",
                           p->trial.in_network ? "the experiment has some" : "it has none");
    return status;
}

static enum status get_calibration(struct predictor *p, struct error *err)
{
    p->calibration = calibration_none();
    if (p->options->calibration[0] != '\0')
        return read_calibration(p, err);
    if (!p->options->what_if)
        return calibration_measure(&p->trial, &p->calibration, err);
    (void)printf("Software takes no time here, for want of --calibration.\n");
    return STATUS_OK;
}

/* With the errors that --against has shown. */
static enum status keep_calibration(struct predictor *p, struct error *err)
{
    char path[4096];
    enum status status = file_join(path, sizeof(path), p->trial.folder, "calibration.json", err);

    return status == STATUS_OK ? calibration_write(&p->calibration, path, err) : status;
}

/* That makes the same page again, but for its folder. */
static void add_command(const struct predictor *p, struct strbuf *out)
{
    const struct predict_options *o = p->options;
    const struct {
        const char *name, *path;
    } paths[] = {{" --calibration ", o->calibration}, {" --against ", o->against}};

    strbuf_add(out, "sparring predict ");
    strbuf_add_shell_word(out, p->experiment->name);
    strbuf_add(out, o->what_if ? " --what-if" : o->own_cores ? " --own-cores" : "");
    if (o->parameters > 0)
        strbuf_addf(out, " --parameters %.9g", o->parameters);
    if (o->step_ms > 0)
        strbuf_addf(out, " --step-ms %.9g", o->step_ms);
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (paths[i].path[0] != '\0') {
            strbuf_add(out, paths[i].name);
            strbuf_add_shell_word(out, paths[i].path);
        }
}

static enum status predict_all(struct predictor *p, struct error *err)
{
    struct strbuf command = STRBUF_INIT;
    enum status status = get_calibration(p, err);

    for (size_t i = 0; i < p->cell_count && status == STATUS_OK; i++)
        status = predict_cell(p, i, err);
    if (status == STATUS_OK && p->options->against[0] != '\0')
        status = prediction_errors_update(&p->set, &p->calibration.errors, err);
    if (status == STATUS_OK)
        status = prediction_set_errors(&p->set, &p->calibration.errors, err);
    if (status == STATUS_OK && (!p->options->what_if || p->options->against[0] != '\0'))
        status = keep_calibration(p, err);
    add_command(p, &command);
    if (status == STATUS_OK)
        status = prediction_show(&p->set, p->trial.folder, command.text, err);
    strbuf_release(&command);
    return status;
}

static enum status open_predictor(struct predictor *p, struct error *err)
{
    enum status status = axes_make_cells(&p->experiment->axes, &p->cells, &p->cell_count, err);

    if (status == STATUS_OK)
        status = mem_calloc(1, sizeof(*p->of_cell), "an experiment", &p->of_cell, err);
    if (status == STATUS_OK)
        status = mem_calloc(LOADS_MAX, sizeof(*p->loads), "loads", &p->loads, err);
    if (status == STATUS_OK)
        status = mem_calloc(p->cell_count * p->experiment->mode_count, sizeof(*p->set.items),
                            "predictions", &p->set.items, err);
    if (status == STATUS_OK)
        status = file_make_folder(p->trial.folder, err);
    p->set.experiment = p->experiment;
    p->set.cells = p->cells;
    p->set.cell_count = p->cell_count;
    return status;
}

static void close_predictor(struct predictor *p)
{
    for (size_t i = 0; i < p->load_count; i++)
        job_load_release(&p->loads[i].load);
    free(p->loads);
    free(p->set.items);
    free(p->of_cell);
    free(p->cells);
}

static enum status predict_experiment(const struct predict_options *o, const char *programs,
                                      const char *path, struct error *err)
{
    struct yaml_file file = {0};
    struct experiment *e = NULL;
    struct predictor p = {.options = o, .trial = {.programs = programs, .folder = o->out}};
    enum status status = mem_calloc(1, sizeof(*e), "an experiment", &e, err);

    if (status == STATUS_OK)
        status = yaml_read(path, &file, err);
    if (status == STATUS_OK)
        status = experiment_parse(&file, e, err);
    yaml_release(&file);
    p.experiment = e;
    if (status == STATUS_OK) {
        p.trial.in_network = experiment_has_network(e);
        p.trial.timeout_ms = e->deadline_seconds * 1000;
        status = open_predictor(&p, err);
    }
    if (status == STATUS_OK)
        status = predict_all(&p, err);
    close_predictor(&p);
    free(e);
    return status;
}

static enum status run_predict(const void *parsed, const char *const *words, size_t count,
                               int *ret_exit_code, struct error *err)
{
    const struct predict_options *o = parsed;
    char programs[4096], path[4096];
    enum status status = stop_install(err);

    (void)ret_exit_code;
    if (status == STATUS_OK && count != 1)
        status = error_set(err, STATUS_INVALID,
                           "name one experiment; 'sparring predict --help' explains");
    if (status == STATUS_OK && !o->what_if && (o->parameters > 0 || o->step_ms > 0))
        status = error_set(err, STATUS_INVALID, "--parameters and --step-ms need --what-if");
    if (status == STATUS_OK && o->programs[0] != '\0')
        (void)snprintf(programs, sizeof(programs), "%s", o->programs);
    else if (status == STATUS_OK)
        status = subprocess_program_folder(programs, sizeof(programs), err);
    if (status == STATUS_OK)
        status = find_experiment(words[0], programs, path, sizeof(path), err);
    return status == STATUS_OK ? predict_experiment(o, programs, path, err) : status;
}

int predict_main(int argc, char **argv)
{
    static const struct program program = {.set = &options_set,
                                           .options_size = sizeof(struct predict_options),
                                           .run_words = run_predict};

    return program_main(&program, argc, argv);
}
