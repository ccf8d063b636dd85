/*
 * compare: the subcommand.  Reads the experiment, runs its blocks, makes the report, checks
 * --fail-if.
 */
#include "experiments/compare/compare.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/cluster/kubernetes.h"
#include "experiments/compare/allocation.h"
#include "experiments/compare/experiment.h"
#include "experiments/compare/experiment_set.h"
#include "experiments/compare/option_check.h"
#include "experiments/compare/sweep.h"
#include "experiments/report/diff.h"
#include "experiments/report/gate.h"
#include "experiments/report/report.h"
#include "experiments/report/sweep_report.h"
#include "experiments/subprocess/subprocess.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct compare_options {
    char out[OPTION_TEXT_MAX];
    int64_t repeats, until_decided, nproc, deadline;
    bool dry_run, quick;
    char verdict[OPTION_TEXT_MAX];
    char fail_if[OPTION_TEXT_MAX];
    char baseline[OPTION_TEXT_MAX];
    char ignore[OPTION_TEXT_MAX];
    char programs[OPTION_TEXT_MAX];
    char on[OPTION_TEXT_MAX], allocation[OPTION_TEXT_MAX], host_check[OPTION_TEXT_MAX];
    struct kubernetes_options kubernetes;
};

static char *const *arguments; /* of this command, its name first */

/* Of one experiment. */
struct compare_result {
    int exit_code;
    char text[1024]; /* the verdict, or how many cells there are */
};

#define AT(field) offsetof(struct compare_options, field)

static const struct option_spec specs[] = {
    {.name = "out",
     .kind = OPTION_TEXT,
     .offset = AT(out),
     .metavar = "DIR",
     .help =
         "Where the runs and the report go; by default runs/NAME-TIME.  In a folder of the same "
         "experiment and programs it goes on where it was; one of others is refused.  Of several "
         "experiments each has its folder there, and index.html links the reports."},
    {.name = "repeats",
     .kind = OPTION_INT,
     .offset = AT(repeats),
     .default_text = "0",
     .min = 0,
     .max = 1000,
     .metavar = "N",
     .help =
         "Blocks, each of one run of every mode; 0: as the file says.  A verdict on one pair of "
         "modes needs 6."},
    {.name = "until-decided",
     .kind = OPTION_INT,
     .offset = AT(until_decided),
     .default_text = "0",
     .min = 0,
     .max = 1000,
     .metavar = "MAX",
     .help =
         "Run half as many blocks more while the verdict is undecided, up to so many; 0: none.  "
         "Each look at the runs has its part of the level."},
    {.name = "verdict",
     .kind = OPTION_TEXT,
     .offset = AT(verdict),
     .metavar = "PAIRS",
     .help = "Pairs of modes to judge: A:B,... or all or none; by default as the file says.  It is "
             "written down before the first run, and the more pairs the more blocks it takes."},
    {.name = "nproc",
     .kind = OPTION_INT,
     .offset = AT(nproc),
     .default_text = "0",
     .min = 0,
     .max = 4096,
     .metavar = "N",
     .help = "Ranks of each run whose mode does not set its own; 0: as the file says."},
    {.name = "deadline",
     .kind = OPTION_INT,
     .offset = AT(deadline),
     .default_text = "0",
     .min = 0,
     .max = 604800,
     .metavar = "SECONDS",
     .help = "Longest that a run may take; 0: as the file says."},
    {.name = "dry-run",
     .kind = OPTION_BOOL,
     .offset = AT(dry_run),
     .help = "Print the cells of the axes and how many runs they are, and make none.  With --on "
             "slurm print the script for sbatch that runs them, with --on kubernetes the manifests "
             "of pods with standby daemons and of one with this command."},
    {.name = "on",
     .kind = OPTION_TEXT,
     .offset = AT(on),
     .default_text = "local",
     .metavar = ENGINE_METAVAR,
     .help = "Where the runs take place.  slurm: on the hosts of the Slurm allocation that this "
             "command is in, or else of a new one (salloc); ssh: on these; standby: on these, "
             "which are held meanwhile.  Each rank "
             "(ranks-per-host) and each server that stands alone has a host of its own."},
    {.name = "allocation",
     .kind = OPTION_CHOICE,
     .offset = AT(allocation),
     .default_text = "plan",
     .choices = "plan|block",
     .help =
         "One allocation of the engine for all blocks, or one for each, which waits in the queue "
         "again and may have other hosts.  block, inside an allocation: run one block, and end "
         "with exit code 75 when more are left."},
    {.name = "host-check",
     .env = "SPARRING_HOST_CHECK",
     .kind = OPTION_CHOICE,
     .offset = AT(host_check),
     .default_text = "fail",
     .choices = "fail|warn",
     .help =
         "What follows where the hosts of --on are not as they should be before a block: another "
         "host's clock within 1 s, others on at most 20 % of its processors, links at least "
         "three quarters as fast as at first.  fail: wait up to a minute, then exit code 8."},
    {.name = "quick",
     .kind = OPTION_BOOL,
     .offset = AT(quick),
     .help =
         "Try the file: one block of runs of 2 steps, of each axis the first and the last value, "
         "no verdict."},
    {.name = "fail-if",
     .kind = OPTION_TEXT,
     .offset = AT(fail_if),
     .metavar = "METRIC:CHANGE",
     .help = "End with exit code 5 when a figure got worse, such as throughput:-5% or "
             "step_ms_p50:+10%: against --baseline, or the first mode of the verdict against the "
             "second."},
    {.name = "baseline",
     .kind = OPTION_TEXT,
     .offset = AT(baseline),
     .metavar = "FILE",
     .help = "The report.json of an earlier match, or its folder, for --fail-if."},
    {.name = "ignore",
     .kind = OPTION_TEXT,
     .offset = AT(ignore),
     .metavar = "NAME,...",
     .help = "Settings that may differ from the baseline's, beside program, commit and seed."},
    {.name = "programs",
     .env = "SPARRING_PROGRAMS",
     .kind = OPTION_TEXT,
     .offset = AT(programs),
     .metavar = "DIR",
     .help = "Folder of sparring and sparring-worker; by default that of this program."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring compare",
    .summary = "Run the modes of an experiment in turn and report which is faster, and why.",
    .usage = "[EXPERIMENT.yaml|NAME|all]... [OPTION]...",
    .tables = {{specs, 0}, {kubernetes_option_specs, AT(kubernetes)}},
};

static enum status read_experiment(const char *path, const struct compare_options *options,
                                   struct experiment *ret, struct error *err)
{
    struct yaml_file file = {0};
    enum status status = yaml_read(path, &file, err);

    if (status != STATUS_OK)
        return status;
    status = experiment_parse(&file, ret, err);
    yaml_release(&file);
    if (status != STATUS_OK)
        return status;
    if (options->nproc > 0 && experiment_has_axis(ret, "nproc"))
        return error_set(err, STATUS_INVALID, "--nproc: nproc is an axis of '%s'", path);
    for (size_t i = 0; i < ret->mode_count; i++)
        if (options->nproc > 0 && !ret->modes[i].has_nproc)
            ret->modes[i].nproc = options->nproc;
    status = engine_find(options->on, &ret->engine, err);
    if (status != STATUS_OK)
        return status;
    ret->on = options->on;
    ret->needs_quiet_hosts = strcmp(options->host_check, "fail") == 0 && !options->quick;
    ret->ends_after_block = strcmp(options->allocation, "block") == 0;
    if (ret->engine && experiment_has_network(ret))
        return error_set(err, STATUS_CONFIG,
                         "'%s' describes an emulated network, which --on %s does not have", path,
                         ret->engine->name);
    if (options->repeats > 0)
        ret->repeats = options->repeats;
    ret->design.most_blocks = (uint64_t)options->until_decided;
    if (options->deadline > 0)
        ret->deadline_seconds = options->deadline;
    if (options->fail_if[0] != '\0' && ret->axes.length > 0)
        return error_set(err, STATUS_INVALID, "--fail-if goes with an experiment without axes");
    if (options->verdict[0] != '\0')
        status = experiment_set_verdict(ret, options->verdict, err);
    if (options->quick)
        experiment_make_quick(ret);
    return status;
}

/* "runs/quickstart-20261120T180405Z" for ".../quickstart.yaml". */
static void default_out(const char *path, char *text, size_t size)
{
    char name[256], stamp[32] = "now";
    time_t now = time(NULL);
    struct tm parts;

    if (gmtime_r(&now, &parts))
        (void)strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", &parts);
    experiment_set_name(path, name, sizeof(name));
    (void)snprintf(text, size, "runs/%s-%s", name, stamp);
}

static void print_announcement(const struct compare_sweep *s)
{
    const struct experiment *e = s->experiment;
    struct strbuf text = STRBUF_INIT;
    struct strbuf line = STRBUF_INIT;

    strbuf_addf(&line, "%s: ", e->design.title[0] ? e->design.title : e->name);
    if (e->axes.length > 0)
        strbuf_addf(&line, "%zu cells, each ", s->count);
    strbuf_addf(&line, "%" PRId64 " block%s of %zu modes in an order of its own; results in %s",
                e->repeats, e->repeats == 1 ? "" : "s", e->mode_count, s->out);
    report_add_wrapped(&text, line.text, 0);
    (void)fprintf(stderr, "%s", text.text);
    strbuf_release(&text);
    strbuf_release(&line);
}

static enum status check_gate(const struct compare_options *options, const char *out,
                              const struct comparison *c, bool *ret_failed, struct strbuf *text,
                              struct error *err)
{
    json_t *before = NULL, *now = NULL;
    struct gate gate;
    enum status status = gate_parse(options->fail_if, &gate, err);

    if (status != STATUS_OK)
        return status;
    if (options->baseline[0] == '\0')
        return gate_check(&gate, c, ret_failed, text, err);
    status = diff_load(options->baseline, &before, err);
    if (status == STATUS_OK)
        status = diff_report_of(c, &now, err);
    if (status == STATUS_OK) {
        const struct diff_request request = {.before = before,
                                             .now = now,
                                             .names = {options->baseline, out},
                                             .ignore = options->ignore,
                                             .gate = &gate};

        status = diff_write(&request, ret_failed, text, err);
    }
    json_decref(before);
    json_decref(now);
    return status;
}

/* Make the report of OUT/runs and check the gate; *ret_exit_code is that of compare. */
static enum status report_and_check_gate(const struct compare_options *options, const char *out,
                                         struct compare_result *ret, struct error *err)
{
    struct report report = {0};
    struct strbuf command = STRBUF_INIT;
    struct strbuf text = STRBUF_INIT;
    bool failed = false;
    char problem[512] = "";
    enum status status = report_read(&report, &out, 1, err);

    strbuf_add(&command, "sparring report ");
    strbuf_add_shell_word(&command, out);
    if (status == STATUS_OK)
        status = report_write(&report, out, command.text, problem, sizeof(problem), err);
    if (status == STATUS_OK) {
        report_summarise(&report, &text);
        strbuf_addf(&text, "report: %s/report.html\n", out);
        if (problem[0] != '\0')
            log_warning("%s", problem);
    }
    if (status == STATUS_OK && options->fail_if[0] != '\0')
        status = check_gate(options, out, &report.comparison, &failed, &text, err);
    (void)printf("%s", text.text);
    (void)snprintf(ret->text, sizeof(ret->text), "%s", report.comparison.verdict);
    ret->exit_code = failed ? GATE_EXIT_CODE : 0;
    strbuf_release(&command);
    strbuf_release(&text);
    report_release(&report);
    return status;
}

static enum status report_sweep(struct compare_sweep *s, const struct compare_options *options,
                                struct compare_result *ret, struct error *err)
{
    if (s->experiment->axes.length == 0)
        return report_and_check_gate(options, s->out, ret, err);
    (void)snprintf(ret->text, sizeof(ret->text), "%s: %zu cells", s->experiment->design.title,
                   s->count);
    return sweep_report_make(s->out, err);
}

/* Run, and report what ran, also after a stop signal. */
static enum status run_sweep(struct compare_sweep *s, const struct compare_options *options,
                             struct compare_result *ret, struct error *err)
{
    struct experiment_run_result result = {0};
    struct error why = {0};
    enum status status;

    print_announcement(s);
    status = compare_sweep_run(s, &result, err);
    if (status == STATUS_OK && result.has_more) {
        ret->exit_code = ALLOCATION_MORE;
        return STATUS_OK;
    }
    if (status == STATUS_CANCELLED && report_sweep(s, options, ret, &why) != STATUS_OK)
        log_warning("no report of what ran: %s", why.text);
    if (status == STATUS_OK)
        status = report_sweep(s, options, ret, err);
    if (status == STATUS_OK && result.failed == result.started && s->good_before == 0)
        status = error_set(err, STATUS_IO, "no run succeeded, see '%s'", s->out);
    return status;
}

/* Make the folder, and keep a second `compare` out of it.  Some filesystems of clusters have no
 * locks. */
static enum status lock_folder(const char *out, int *ret_fd, struct error *err)
{
    struct error why = {0};
    enum status status = file_make_folder(out, err);

    if (status != STATUS_OK)
        return status;
    status = file_lock_folder(out, "compare", ret_fd, &why);
    if (status == STATUS_UNSUPPORTED) {
        log_warning("%s: do not run compare twice at once in it", why.text);
        return STATUS_OK;
    }
    return status == STATUS_OK ? status : error_set(err, status, "%s", why.text);
}

static void unlock_folder(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

static enum status run_experiment(const struct compare_options *options, const char *programs,
                                  const char *path, const char *out, struct compare_result *ret,
                                  struct error *err)
{
    struct experiment *experiment = NULL;
    struct compare_sweep sweep = {0};
    int lock_fd = -1;
    enum status status = mem_calloc(1, sizeof(*experiment), "an experiment", &experiment, err);

    if (status == STATUS_OK)
        status = read_experiment(path, options, experiment, err);
    if (status == STATUS_OK)
        status = compare_sweep_open(experiment, programs, out, &sweep, err);
    if (status == STATUS_OK)
        status = option_check(&sweep, err);
    if (status == STATUS_OK && options->dry_run)
        compare_sweep_print_plan(&sweep);
    else if (status == STATUS_OK)
        status = lock_folder(out, &lock_fd, err);
    if (status == STATUS_OK && !options->dry_run)
        status = run_sweep(&sweep, options, ret, err);
    unlock_folder(lock_fd);
    compare_sweep_close(&sweep);
    free(experiment);
    return status;
}

/* The hosts of the experiment that takes most. */
static enum status count_hosts(const struct compare_options *options, const char *programs,
                               const struct text_list *paths, size_t *ret, struct error *err)
{
    struct experiment *e = NULL;
    enum status status = mem_calloc(1, sizeof(*e), "an experiment", &e, err);

    *ret = 0;
    for (size_t i = 0; i < paths->length && status == STATUS_OK; i++) {
        struct compare_sweep sweep = {0};

        status = read_experiment(paths->texts[i], options, e, err);
        if (status == STATUS_OK)
            status = compare_sweep_open(e, programs, ".", &sweep, err);
        if (status == STATUS_OK)
            status = option_check(&sweep, err);
        if (status == STATUS_OK && compare_sweep_hosts(&sweep) > *ret)
            *ret = compare_sweep_hosts(&sweep);
        compare_sweep_close(&sweep);
    }
    free(e);
    return status;
}

/* One after the other; one that fails does not stop the others. */
static enum status run_set(const struct compare_options *options, const char *programs,
                           const struct text_list *paths, const char *out, struct error *err)
{
    struct text_list results = {0};
    struct error why = {0};
    size_t failed = 0;
    int lock_fd = -1;
    enum status status = options->dry_run ? STATUS_OK : lock_folder(out, &lock_fd, err);

    if (status != STATUS_OK)
        return status;

    for (size_t i = 0; i < paths->length && status == STATUS_OK; i++) {
        struct compare_result result = {.exit_code = 0};
        char name[256], folder[OPTION_TEXT_MAX + 256];
        enum status ended;

        experiment_set_name(paths->texts[i], name, sizeof(name));
        (void)snprintf(folder, sizeof(folder), "%s/%s", out, name);
        ended = run_experiment(options, programs, paths->texts[i], folder, &result, &why);
        text_list_addf(&results, "%s", ended == STATUS_OK ? result.text : why.text);
        if (ended == STATUS_CANCELLED)
            status = error_set(err, ended, "%s", why.text);
        else if (ended != STATUS_OK)
            log_error("%s: %s", name, why.text);
        failed += ended != STATUS_OK;
    }
    if (!options->dry_run && experiment_set_write(out, paths, &results, &why) == STATUS_OK)
        (void)printf("reports: %s/index.html\n", out);
    else if (!options->dry_run && status == STATUS_OK)
        status = error_set(err, why.status, "%s", why.text);
    if (status == STATUS_OK && failed > 0)
        status = error_set(err, STATUS_IO, "%zu of %zu experiments failed", failed, paths->length);
    unlock_folder(lock_fd);
    text_list_release(&results);
    return status;
}

static enum status run_paths(const struct compare_options *options, const char *programs,
                             const struct text_list *paths, int *ret_exit_code, struct error *err)
{
    struct compare_result result = {.exit_code = 0};
    const struct engine *engine;
    const bool is_by_block = strcmp(options->allocation, "block") == 0;
    char out[OPTION_TEXT_MAX];
    enum status status = engine_find(options->on, &engine, err);

    if (status != STATUS_OK)
        return status;
    if (!engine || !engine->writes_manifests)
        status = kubernetes_check_unused(&options->kubernetes, err);
    if (status != STATUS_OK)
        return status;
    if (is_by_block &&
        (!engine || !engine->add_allocation || options->dry_run || paths->length > 1))
        return error_set(err, STATUS_INVALID,
                         "--allocation block goes with one experiment, --on an engine, and no "
                         "--dry-run");
    default_out(paths->length == 1 ? paths->texts[0] : "experiments", out, sizeof(out));
    if (options->out[0] != '\0')
        (void)snprintf(out, sizeof(out), "%s", options->out);
    if (paths->length > 1 && options->fail_if[0] != '\0')
        return error_set(err, STATUS_INVALID, "--fail-if goes with one experiment");
    if (engine && (options->dry_run ? engine->add_script != NULL : !engine->is_allocated())) {
        struct allocation_request request = {.engine = engine,
                                             .on = options->on,
                                             .kubernetes = &options->kubernetes,
                                             .arguments = arguments,
                                             .out = out};
        char name[256];

        status = count_hosts(options, programs, paths, &request.hosts, err);
        if (status != STATUS_OK)
            return status;
        experiment_set_name(paths->texts[0], name, sizeof(name));
        return options->dry_run ? allocation_print_script(&request, name, err)
               : is_by_block    ? allocation_repeat(&request, ret_exit_code, err)
                                : allocation_enter(&request, err);
    }
    if (paths->length > 1)
        return run_set(options, programs, paths, out, err);
    status = run_experiment(options, programs, paths->texts[0], out, &result, err);
    *ret_exit_code = result.exit_code;
    return status;
}

/* Reject errors of the command line before the first run. */
static enum status check_options(const struct compare_options *options, struct error *err)
{
    struct gate gate;

    if (options->fail_if[0] != '\0')
        return gate_parse(options->fail_if, &gate, err);
    if (options->baseline[0] != '\0' || options->ignore[0] != '\0')
        return error_set(err, STATUS_INVALID,
                         "--baseline and --ignore go with --fail-if METRIC:CHANGE");
    return STATUS_OK;
}

static enum status run_compare(const void *parsed, const char *const *words, size_t count,
                               int *ret_exit_code, struct error *err)
{
    const struct compare_options *o = parsed;
    static const char *const by_default[] = {EXPERIMENT_SET_DEFAULT};
    struct text_list paths = {0};
    char programs[4096];
    enum status status = stop_install(err);

    if (status == STATUS_OK)
        status = check_options(o, err);
    if (status == STATUS_OK && o->programs[0] != '\0')
        (void)snprintf(programs, sizeof(programs), "%s", o->programs);
    else if (status == STATUS_OK)
        status = subprocess_program_folder(programs, sizeof(programs), err);
    if (status == STATUS_OK)
        status = experiment_set_find(count > 0 ? words : by_default, count > 0 ? count : 1,
                                     programs, &paths, err);
    if (status == STATUS_OK)
        status = run_paths(o, programs, &paths, ret_exit_code, err);
    text_list_release(&paths);
    return status;
}

int compare_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct compare_options),
        .run_words = run_compare,
    };

    arguments = argv;
    return program_main(&program, argc, argv);
}
