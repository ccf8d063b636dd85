/*
 * predict: calibrates, measures the load of every number of ranks once, then computes each mode of
 * each cell.
 */
#include "experiments/predict/predict.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "common/shard_map/shard_map.h"
#include "experiments/compare/experiment.h"
#include "experiments/compare/find_experiment.h"
#include "experiments/network/network_options.h"
#include "experiments/network/relay.h"
#include "experiments/predict/calibration.h"
#include "experiments/predict/job_load.h"
#include "experiments/report/report.h"
#include "experiments/subprocess/subprocess.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAYLOAD_SHARE (1448.0 / 1514) /* of a full frame, with time stamps */
#define LOADS_MAX     64

struct predict_options {
    char out[OPTION_TEXT_MAX];
    char calibration[OPTION_TEXT_MAX];
    char against[OPTION_TEXT_MAX];
    bool own_cores;
    char programs[OPTION_TEXT_MAX];
};

#define AT(field) offsetof(struct predict_options, field)

static const struct option_spec specs[] = {
    {.name = "out",
     .kind = OPTION_TEXT,
     .offset = AT(out),
     .default_text = "predict",
     .metavar = "DIR",
     .help = "Where the short runs, calibration.json and predictions.csv go."},
    {.name = "calibration",
     .kind = OPTION_TEXT,
     .offset = AT(calibration),
     .metavar = "FILE",
     .help = "An earlier calibration.json instead of runs that measure this machine (10 s)."},
    {.name = "against",
     .kind = OPTION_TEXT,
     .offset = AT(against),
     .metavar = "DIR",
     .help =
         "What 'sparring compare' measured for the same file: each prediction is printed beside "
         "it, with its error."},
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

struct prediction {
    bool is_known; /* the model covers this mode */
    struct cost cost;
    double measured_s; /* NaN: not measured */
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
    struct strbuf table; /* CSV */
    double *errors;      /* owned; of the step times, relative */
    size_t error_count;
    size_t winners, winners_right; /* of cells whose two modes differ by more than the margin */
};

/* ---- inputs of the model ---- */

/* Loads differ by ranks and by what all modes share; those of cells that differ in the network
 * alone are measured once. */
static void add_key(const struct experiment *e, unsigned ranks, char *key, size_t size)
{
    size_t length = (size_t)snprintf(key, size, "%u", ranks);

    for (size_t i = 0; i < e->options.length && length < size; i++)
        if (strncmp(e->options.items[i].name, "network-", 8) != 0)
            length += (size_t)snprintf(key + length, size - length, " %s=%s",
                                       e->options.items[i].name, e->options.items[i].value);
}

static enum status find_load(struct predictor *p, unsigned ranks, const struct job_load **ret,
                             struct error *err)
{
    char key[sizeof(p->loads->key)], name[32];
    enum status status;

    add_key(p->of_cell, ranks, key, sizeof(key));
    for (size_t i = 0; i < p->load_count; i++)
        if (strcmp(p->loads[i].key, key) == 0) {
            *ret = &p->loads[i].load;
            return STATUS_OK;
        }
    if (p->load_count == LOADS_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the experiment has more than %d different loads of ranks", LOADS_MAX);
    (void)snprintf(name, sizeof(name), "load-%zu", p->load_count);
    (void)snprintf(p->loads[p->load_count].key, sizeof(key), "%s", key);
    status = job_load_measure(&p->trial, name, p->of_cell, ranks, p->calibration.start_cpu_s,
                              &p->loads[p->load_count].load, err);
    *ret = &p->loads[p->load_count++].load; /* released with the others */
    return status;
}

/* A host with ranks and one of a dedicated server. */
static enum status find_network(const struct experiment *e, const struct experiment_mode *mode,
                                struct cost_network *ret, struct error *err)
{
    struct network_options o = {.seed = 1};
    struct network_link links[2];
    enum status status;

    (void)snprintf(o.rate, sizeof(o.rate), "%s", experiment_option(e, mode, "network-rate"));
    (void)snprintf(o.delay, sizeof(o.delay), "%s", experiment_option(e, mode, "network-delay"));
    status = network_options_read(&o, 2, 1, links, err);
    if (status != STATUS_OK)
        return status;
    *ret = (struct cost_network){
        .byte_s = links[0].rate > 0 ? 8 / links[0].rate / PAYLOAD_SHARE : 0,
        .server_byte_s = links[1].rate > 0 ? 8 / links[1].rate / PAYLOAD_SHARE : 0,
        .latency_s = (double)(links[0].delay_ns > links[1].delay_ns ? links[0].delay_ns
                                                                    : links[1].delay_ns) *
                     1e-9,
        .queue_s =
            links[1].rate > 0 ? 8 * (double)relay_queue_bytes(&links[1]) / links[1].rate : 0};
    return STATUS_OK;
}

static bool is_any_of(const struct experiment *e, const struct experiment_mode *mode,
                      const char *option, const char *a, const char *b)
{
    const char *word = experiment_option(e, mode, option);

    return word[0] == '\0' || strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

static bool is_set(const struct experiment *e, const struct experiment_mode *mode,
                   const char *option)
{
    return experiment_option(e, mode, option)[0] != '\0';
}

static bool is_ring(const struct experiment *e, const struct experiment_mode *mode)
{
    return strcmp(experiment_option(e, mode, "sync"), "allreduce") == 0 &&
           strcmp(experiment_option(e, mode, "backend"), "ring") == 0 &&
           is_any_of(e, mode, "comm-hook", "none", "none") &&
           is_any_of(e, mode, "bucket-cap-mb", "-1", "-1");
}

/* Plain bsp through sockets. */
static bool is_plain_ps(const struct experiment *e, const struct experiment_mode *mode)
{
    const bool has_hosts = is_set(e, mode, "network-rate") || is_set(e, mode, "network-delay");

    return strcmp(experiment_option(e, mode, "sync"), "ps") == 0 &&
           is_any_of(e, mode, "consistency", "bsp", "bsp") &&
           is_any_of(e, mode, "compression", "none", "none") &&
           is_any_of(e, mode, "backup-workers", "0", "0") &&
           is_any_of(e, mode, "server-placement", "dedicated", "colocated") &&
           (has_hosts || strcmp(experiment_option(e, mode, "ps-transport"), "grpc") == 0);
}

static double partition_bytes(const char *option, double total, unsigned servers)
{
    uint64_t bytes;

    if (parse_bytes(option, &bytes) && bytes > 0)
        return (double)bytes;
    return (double)shard_map_partition_bytes((size_t)total / sizeof(float), servers);
}

static enum status predict_mode(struct predictor *p, const struct experiment_mode *mode,
                                struct prediction *ret, struct error *err)
{
    const struct experiment *e = p->of_cell;
    const struct cost_machine *machine = &p->calibration.machine;
    const struct job_load *load = NULL;
    const char *placement = experiment_option(e, mode, "server-placement");
    struct cost_network network;
    struct cost_job job = {.ranks = (unsigned)mode->nproc,
                           .servers = (unsigned)mode->servers,
                           .cores = p->options->own_cores ? 0 : p->calibration.cores,
                           .is_colocated = strcmp(placement, "colocated") == 0};
    enum status status = find_load(p, job.ranks, &load, err);

    if (status == STATUS_OK)
        status = find_network(e, mode, &network, err);
    if (status != STATUS_OK)
        return status;
    job.buckets = load->buckets;
    job.bucket_count = load->bucket_count;
    ret->is_known = !is_set(e, mode, "network-jitter") && !is_set(e, mode, "network-loss");
    if (strcmp(experiment_option(e, mode, "sync"), "local") == 0) {
        ret->cost = cost_of_control(&load->cost, &job);
    } else if (is_ring(e, mode)) {
        ret->cost = cost_of_ring(machine, &network, &load->cost, &job);
    } else if (is_plain_ps(e, mode)) {
        job.partition_bytes = partition_bytes(experiment_option(e, mode, "partition-bytes"),
                                              load->cost.ready[load->cost.ready_count - 1].bytes,
                                              job.is_colocated ? job.ranks : job.servers);
        ret->cost = cost_of_servers(machine, &network, &load->cost, &job);
    } else {
        ret->is_known = false;
    }
    return STATUS_OK;
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
            if (strcmp(report.comparison.modes[i].name, e->modes[m].name) == 0)
                predictions[m].measured_s =
                    report.comparison.modes[i].spreads[METRIC_step_ms_mean].median * 1e-3;
    report_release(&report);
    return status;
}

/* ---- output ---- */

static void print_mode(struct predictor *p, const struct cell *cell,
                       const struct experiment_mode *mode, const struct prediction *r)
{
    double error = r->cost.step_s / r->measured_s - 1;

    (void)printf("  %-20.20s", mode->name);
    if (!r->is_known) {
        (void)printf(" not covered by the model\n");
        return;
    }
    (void)printf(" %10.3f ms", r->cost.step_s * 1e3);
    if (isfinite(r->measured_s)) {
        (void)printf(" %10.3f ms %+6.1f %%", r->measured_s * 1e3, error * 100);
        p->errors[p->error_count++] = fabs(error);
    }
    (void)printf("  %s\n", cost_limit_text(r->cost.limit));
    strbuf_addf(&p->table, "\"%s\",\"%s\",%.6g,%.6g,%.6g,", cell->name, mode->name, r->cost.step_s,
                r->cost.exposed_s, r->cost.processor_s);
    if (isfinite(r->measured_s))
        strbuf_addf(&p->table, "%.6g", r->measured_s);
    strbuf_addf(&p->table, ",\"%s\"\n", cost_limit_text(r->cost.limit));
}

static const struct prediction *of_mode(const struct experiment *e,
                                        const struct prediction *predictions, const char *name)
{
    for (size_t m = 0; m < e->mode_count; m++)
        if (strcmp(e->modes[m].name, name) == 0)
            return &predictions[m];
    return NULL;
}

/* Of every registered pair who is predicted to win, and whether that was measured. */
static void print_winners(struct predictor *p, const struct prediction *predictions)
{
    const struct experiment *e = p->of_cell;

    for (size_t i = 0; i < e->design.pair_count; i++) {
        const struct design_pair *pair = &e->design.pairs[i];
        const struct prediction *a = of_mode(e, predictions, pair->names[0]);
        const struct prediction *b = of_mode(e, predictions, pair->names[1]);
        double ratio, measured;

        if (!a || !b || !a->is_known || !b->is_known)
            continue;
        ratio = b->cost.step_s / a->cost.step_s;
        measured = b->measured_s / a->measured_s;
        (void)printf("  %s is %.2f times as fast as %s", pair->names[ratio < 1],
                     ratio < 1 ? 1 / ratio : ratio, pair->names[ratio >= 1]);
        if (isfinite(measured)) {
            (void)printf(", measured %.2f", ratio < 1 ? 1 / measured : measured);
            if (fabs(log(measured)) > design_log_margin(0.05)) {
                p->winners++;
                p->winners_right += (ratio < 1) == (measured < 1);
            }
        }
        (void)printf("\n");
    }
}

static enum status predict_cell(struct predictor *p, size_t index, struct error *err)
{
    struct prediction predictions[EXPERIMENT_MODES_MAX] = {{0}};
    const struct cell *cell = &p->cells[index];
    enum status status = STATUS_OK;

    experiment_make_cell(p->experiment, cell, p->cell_count, p->of_cell);
    for (size_t m = 0; m < p->of_cell->mode_count && status == STATUS_OK; m++)
        status = predict_mode(p, &p->of_cell->modes[m], &predictions[m], err);
    if (status == STATUS_OK)
        status = read_measured(p, cell, predictions, err);
    if (status != STATUS_OK)
        return status;
    (void)printf("%s%s", cell->name, cell->name[0] ? "\n" : "");
    for (size_t m = 0; m < p->of_cell->mode_count; m++)
        print_mode(p, cell, &p->of_cell->modes[m], &predictions[m]);
    print_winners(p, predictions);
    return STATUS_OK;
}

static void print_errors(struct predictor *p)
{
    if (p->error_count == 0)
        return;
    statistics_sort(p->errors, p->error_count);
    (void)printf("%zu predictions beside measured steps: median error %.1f %%, 95 %% of them at "
                 "most %.1f %%",
                 p->error_count, statistics_quantile(p->errors, p->error_count, 0.5) * 100,
                 statistics_quantile(p->errors, p->error_count, 0.95) * 100);
    if (p->winners > 0)
        (void)printf("; the winner is right in %zu of %zu pairs that differ by more than 5 %%",
                     p->winners_right, p->winners);
    (void)printf("\n");
}

/* ---- the command ---- */

static enum status get_calibration(struct predictor *p, struct error *err)
{
    char path[4096];
    enum status status = file_join(path, sizeof(path), p->trial.folder, "calibration.json", err);

    if (p->options->calibration[0] != '\0') {
        status = calibration_read(p->options->calibration, &p->calibration, err);
        if (status == STATUS_OK && p->calibration.in_network != p->trial.in_network)
            status =
                error_set(err, STATUS_CONFIG, "'%s' was measured %s emulated hosts, and %s",
                          p->options->calibration, p->calibration.in_network ? "on" : "without",
                          p->trial.in_network ? "the experiment has some" : "it has none");
        return status;
    }
    if (status == STATUS_OK)
        status = calibration_measure(&p->trial, &p->calibration, err);
    return status == STATUS_OK ? calibration_write(&p->calibration, path, err) : status;
}

static enum status predict_all(struct predictor *p, struct error *err)
{
    char path[4096];
    enum status status = file_join(path, sizeof(path), p->trial.folder, "predictions.csv", err);

    strbuf_add(&p->table, "cell,mode,step_s,exposed_s,processor_s,measured_step_s,limit\n");
    if (status == STATUS_OK)
        status = get_calibration(p, err);
    for (size_t i = 0; i < p->cell_count && status == STATUS_OK; i++)
        status = predict_cell(p, i, err);
    if (status == STATUS_OK)
        status = file_write_text(path, &p->table, err);
    if (status == STATUS_OK)
        print_errors(p);
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
        status = mem_calloc(p->cell_count * EXPERIMENT_MODES_MAX, sizeof(*p->errors), "errors",
                            &p->errors, err);
    if (status == STATUS_OK)
        status = file_make_folder(p->trial.folder, err);
    return status;
}

static void close_predictor(struct predictor *p)
{
    for (size_t i = 0; i < p->load_count; i++)
        job_load_release(&p->loads[i].load);
    free(p->loads);
    free(p->errors);
    free(p->of_cell);
    free(p->cells);
    strbuf_release(&p->table);
}

static enum status predict_experiment(const struct predict_options *o, const char *programs,
                                      const char *path, struct error *err)
{
    struct yaml_file file = {0};
    struct experiment *e = NULL;
    struct predictor p = {
        .options = o, .trial = {.programs = programs, .folder = o->out}, .table = STRBUF_INIT};
    enum status status = mem_calloc(1, sizeof(*e), "an experiment", &e, err);

    if (status == STATUS_OK)
        status = yaml_read(path, &file, err);
    if (status == STATUS_OK)
        status = experiment_parse(&file, e, err);
    yaml_release(&file);
    p.experiment = e;
    if (status == STATUS_OK) {
        p.trial.in_network = experiment_has_network(e);
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
