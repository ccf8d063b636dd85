/*
 * experiment_run: runs the blocks of an experiment.  A block (repeat) runs every mode once, in a
 * random order, so that a drift of the machine affects all modes, and no mode always follows the
 * same one; all modes of one block share a seed.  Each run is a child process `sparring launch ...
 * -- sparring-worker ...` whose output is kept in the run directory.
 */
#include "experiments/compare/experiment_run.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/progress.h"
#include "common/base/stop.h"
#include "common/base/strbuf.h"
#include "common/base/text_list.h"
#include "experiments/compare/hosts.h"
#include "experiments/report/report.h"
#include "experiments/report/run.h"
#include "experiments/subprocess/subprocess.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_LINES     12 /* shown of a run that failed */
#define TRIES         3  /* of a run in an emulated network that this machine did not keep to */
#define LOG_BYTES_MAX ((size_t)256 << 20)

/* One run of one mode. */
struct attempt_run {
    const struct experiment_run_request *request;
    const struct experiment_mode *mode;
    size_t mode_index, repeat, order;
    char folder[4096];
    struct text_list words; /* its command line */
    struct strbuf command;  /* the same as one line */
    struct subprocess_result result;
    struct progress *progress;
};

static uint64_t seed_of(const struct attempt_run *run)
{
    return (uint64_t)run->request->experiment->seed + run->repeat;
}

/* Options that `launch` reads and passes to the workers; all others go to the workers alone. */
static const char *const launch_options[] = {
    "backend",        "server-placement", "server-transport", "replicas",
    "on-rank-loss",   "on-worker-loss",   "max-restarts",     "bind",
    "ranks-per-host", "network-rate",     "network-delay",    "network-jitter",
    "network-loss",   "network-seed",     "network-check",    "fault-schedule",
    "fault-seed"};

bool experiment_run_is_for_launch(const char *name)
{
    for (size_t i = 0; i < sizeof(launch_options) / sizeof(launch_options[0]); i++)
        if (strcmp(launch_options[i], name) == 0)
            return true;
    return false;
}

/* Add the options of the whole file, then those of the mode. */
static void add_options(const struct experiment *e, const struct experiment_mode *mode,
                        bool for_launch, struct text_list *words)
{
    const struct experiment_options *both[] = {&e->options, &mode->options};

    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < both[k]->length; i++)
            if (experiment_run_is_for_launch(both[k]->items[i].name) == for_launch)
                text_list_addf(words, "--%s=%s", both[k]->items[i].name, both[k]->items[i].value);
}

void experiment_run_words(const struct experiment *e, const struct experiment_mode *mode,
                          const char *programs, const char *folder, const char *hosts,
                          struct text_list *words)
{
    text_list_addf(words, "%s/sparring", programs);
    text_list_addf(words, "launch");
    if (e->engine)
        text_list_addf(words, "--on=%s", e->engine->name);
    else
        text_list_addf(words, "--standalone");
    if (hosts)
        text_list_addf(words, "--hosts=%s", hosts);
    text_list_addf(words, "--nproc-per-node=%" PRId64, mode->nproc);
    if (mode->servers > 0)
        text_list_addf(words, "--servers=%" PRId64, mode->servers);
    if (folder)
        text_list_addf(words, "--run-dir=%s", folder);
    add_options(e, mode, true, words);
    text_list_addf(words, "--");
    text_list_addf(words, "%s/sparring-worker", programs);
    add_options(e, mode, false, words);
}

static void build_command(struct attempt_run *run)
{
    const struct experiment *e = run->request->experiment;
    struct text_list *words = &run->words;
    struct strbuf hosts = STRBUF_INIT;

    if (e->engine)
        hosts_draw(e, &run->request->host_check->hosts, run->repeat, hosts_of_mode(e, run->mode),
                   &hosts);
    words->failed = words->failed || !strbuf_ok(&hosts);
    experiment_run_words(e, run->mode, run->request->programs, run->folder,
                         e->engine ? hosts.text : NULL, words);
    strbuf_release(&hosts);
    text_list_addf(words, "--seed=%" PRIu64, seed_of(run));
    text_list_addf(words, "--run-dir=%s", run->folder);
    for (size_t i = 0; i < words->length; i++) {
        strbuf_add(&run->command, i > 0 ? " " : "");
        strbuf_add_shell_word(&run->command, words->texts[i]);
    }
}

/* Write attempt.json: before the run with outcome "", so that a crash of `compare` leaves a trace;
 * after it with the outcome. */
static enum status write_attempt(const struct attempt_run *run, const char *outcome,
                                 struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    char path[4096];
    enum status status = file_join(path, sizeof(path), run->folder, ATTEMPT_FILE, err);

    if (status != STATUS_OK)
        return status;
    strbuf_add(&text, "{\"schema\":1,\"title\":");
    strbuf_add_json(&text, run->request->experiment->design.title);
    strbuf_add(&text, ",\"mode\":");
    strbuf_add_json(&text, run->mode->name);
    strbuf_add(&text, ",\"label\":");
    strbuf_add_json(&text, run->mode->label);
    strbuf_addf(&text, ",\"mode_index\":%zu,\"repeat\":%zu,\"order\":%zu,\"seed\":%" PRIu64,
                run->mode_index, run->repeat, run->order, seed_of(run));
    strbuf_addf(&text, ",\"seconds\":%.3f,\"outcome\":", run->result.seconds);
    strbuf_add_json(&text, outcome);
    strbuf_add(&text, ",\"command\":");
    strbuf_add_json(&text, run->command.text);
    strbuf_add(&text, "}\n");
    status = file_write_text(path, &text, err);
    strbuf_release(&text);
    return status;
}

static void show_progress(void *context)
{
    const struct attempt_run *run = context;
    char detail[128];

    (void)snprintf(detail, sizeof(detail), "%.30s%s%s, repeat %zu", run->request->cell,
                   run->request->cell[0] != '\0' ? ": " : "", run->mode->name, run->repeat + 1);
    progress_update(run->progress, run->order, detail);
}

/* Print the last lines of a failed run's log, indented by two spaces. */
static void print_log_tail(const char *path)
{
    char *text = NULL;
    size_t size = 0;
    const char *start;
    unsigned lines = 0;

    if (file_read(path, LOG_BYTES_MAX, &text, &size, NULL) != STATUS_OK)
        return;
    while (size > 0 && text[size - 1] == '\n')
        text[--size] = '\0';
    for (start = text + size; start > text && lines < LOG_LINES; start--)
        if (start[-1] == '\n' && ++lines == LOG_LINES)
            break;
    while (size > 0 && *start) {
        size_t length = strcspn(start, "\n");

        (void)fprintf(stderr, "  %.*s\n", (int)length, start);
        start += length + (start[length] == '\n');
    }
    free(text);
}

static void print_outcome(const struct attempt_run *run, const char *log_path, const char *outcome)
{
    const struct experiment *e = run->request->experiment;
    bool good = strcmp(outcome, "ok") == 0;
    bool bar = run->progress->active;

    if (good && bar)
        return;
    if (bar)
        (void)fprintf(stderr, "\r\033[K");
    (void)fprintf(stderr, "%s%s%zu/%zu %s-%zu: %s, %.1f s\n", run->request->cell,
                  run->request->cell[0] != '\0' ? ": " : "", run->order + 1,
                  (size_t)e->repeats * e->mode_count, run->mode->name, run->repeat, outcome,
                  run->result.seconds);
    if (!good) {
        (void)fprintf(stderr, "  the end of %s:\n", log_path);
        print_log_tail(log_path);
    }
}

/* Did this machine not keep to the emulated network? */
static bool is_disturbed(const struct attempt_run *run)
{
    return run->result.outcome == SUBPROCESS_EXITED &&
           run->result.code == status_exit_code(STATUS_DISTURBED);
}

static enum status start_and_wait(struct attempt_run *run, char *outcome, size_t size,
                                  struct error *err)
{
    char log_path[4096];
    struct subprocess_request request = {
        .log_path = log_path,
        .timeout_ms = run->request->experiment->deadline_seconds * 1000,
        .tick = show_progress,
        .context = run,
    };
    enum status status = file_join(log_path, sizeof(log_path), run->folder, "log.txt", err);

    if (status != STATUS_OK)
        return status;
    request.argv = (const char *const *)text_list_words(&run->words);
    show_progress(run);
    status = request.argv ? subprocess_run(&request, &run->result, err)
                          : error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    if (status != STATUS_OK)
        return status;
    subprocess_result_text(&run->result, outcome, size);
    if (run->result.outcome == SUBPROCESS_EXITED && run->result.code == 0)
        (void)snprintf(outcome, size, "ok");
    if (is_disturbed(run))
        (void)snprintf(outcome, size, "discarded, the emulated network was not kept to");
    print_outcome(run, log_path, outcome);
    return STATUS_OK;
}

enum status experiment_run_put_aside(const char *out, const char *below, const char *run,
                                     struct error *err)
{
    char name[160], from[4096], folder[4096], to[4096];
    enum status status = file_join(folder, sizeof(folder), out, below, err);

    (void)snprintf(name, sizeof(name), "runs/%s", run);
    if (status == STATUS_OK)
        status = file_join(from, sizeof(from), out, name, err);
    if (status == STATUS_OK)
        status = file_make_folder(folder, err);
    for (unsigned k = 1; status == STATUS_OK; k++) {
        (void)snprintf(name, sizeof(name), "%s.%u", run, k);
        status = file_join(to, sizeof(to), folder, name, err);
        if (status == STATUS_OK && access(to, F_OK) != 0)
            break;
    }
    if (status == STATUS_OK && rename(from, to) != 0)
        status = error_set_errno(err, errno, "cannot move '%s' to '%s'", from, to);
    return status;
}

/* A run that failed together with the hosts says nothing of its mode, so it gets no outcome. */
static enum status check_lost(const struct attempt_run *run, const char *outcome, struct error *err)
{
    struct error why = {0};

    if (!run->request->experiment->engine || strcmp(outcome, "ok") == 0 ||
        run->result.outcome == SUBPROCESS_STOPPED ||
        host_check_present(run->request->host_check, &why) == STATUS_OK)
        return STATUS_OK;
    return error_set(err, STATUS_CANCELLED,
                     "%s-%zu is lost: %s; started again, compare runs its block again whole",
                     run->mode->name, run->repeat, why.text);
}

static enum status run_once(struct attempt_run *run, char *outcome, size_t size, struct error *err)
{
    enum status status = file_make_folder(run->folder, err);

    if (status == STATUS_OK)
        status = write_attempt(run, "", err);
    if (status == STATUS_OK)
        status = start_and_wait(run, outcome, size, err);
    if (status == STATUS_OK)
        status = check_lost(run, outcome, err);
    if (status == STATUS_OK)
        status = write_attempt(run, outcome, err);
    return status;
}

/* Run one mode once, and again while it is discarded; a failed run is counted in *result and is no
 * error. */
static enum status run_attempt(struct attempt_run *run, struct experiment_run_result *result,
                               struct error *err)
{
    char name[64];
    char outcome[96] = "";
    enum status status;

    (void)snprintf(name, sizeof(name), "runs/%s-%zu", run->mode->name, run->repeat);
    status = file_join(run->folder, sizeof(run->folder), run->request->out, name, err);
    if (status != STATUS_OK)
        return status;
    build_command(run);
    if (run->words.failed || !strbuf_ok(&run->command))
        return error_set(err, STATUS_NO_MEMORY, "no memory for a command line");
    status = run_once(run, outcome, sizeof(outcome), err);
    for (int tries = 1; tries < TRIES && status == STATUS_OK && is_disturbed(run); tries++) {
        status = experiment_run_put_aside(run->request->out, RUN_DISCARDED_FOLDER,
                                          strrchr(run->folder, '/') + 1, err);
        if (status == STATUS_OK)
            status = run_once(run, outcome, sizeof(outcome), err);
    }
    if (status != STATUS_OK)
        return status;
    result->started++;
    result->failed += strcmp(outcome, "ok") != 0;
    if (run->result.outcome == SUBPROCESS_STOPPED)
        return error_set(
            err, STATUS_CANCELLED,
            "%s: stopped %s-%zu and what it had started; 'sparring report %s' reports what ran",
            strsignal(stop_requested()), run->mode->name, run->repeat, run->request->out);
    return STATUS_OK;
}

enum status experiment_run_check_programs(const char *folder, struct error *err)
{
    static const char *const names[] = {"sparring", "sparring-worker"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[4096];
        enum status status = file_join(path, sizeof(path), folder, names[i], err);

        if (status != STATUS_OK)
            return status;
        if (access(path, X_OK) != 0)
            return error_set_errno(err, errno, "cannot run '%s'", path);
    }
    return STATUS_OK;
}

static enum status run_blocks(const struct experiment_run_request *request, size_t first,
                              size_t count, struct progress *progress,
                              struct experiment_run_result *result, struct error *err)
{
    const struct experiment *e = request->experiment;
    enum status status = STATUS_OK;

    for (size_t order = first * e->mode_count;
         order < (first + count) * e->mode_count && status == STATUS_OK; order++) {
        size_t repeat = order / e->mode_count;
        size_t modes[EXPERIMENT_MODES_MAX];
        struct attempt_run run = {.request = request,
                                  .repeat = repeat,
                                  .order = order,
                                  .command = STRBUF_INIT,
                                  .progress = progress};

        if (e->engine && order % e->mode_count == 0)
            status = host_check_block(request->host_check, err);
        if (status != STATUS_OK)
            break;
        experiment_order(e, repeat, modes);
        run.mode_index = modes[order % e->mode_count];
        run.mode = &e->modes[run.mode_index];
        status = stop_requested()
                     ? error_set(err, STATUS_CANCELLED, "%s: no further run is started",
                                 strsignal(stop_requested()))
                     : run_attempt(&run, result, err);
        text_list_release(&run.words);
        strbuf_release(&run.command);
    }
    return status;
}

enum status experiment_run_prepare(const struct experiment_run_request *request, struct error *err)
{
    char runs[4096];
    enum status status = file_join(runs, sizeof(runs), request->out, "runs", err);

    if (status == STATUS_OK)
        status = file_make_folder(runs, err);
    return status == STATUS_OK ? design_write(request->out, &request->experiment->design, err)
                               : status;
}

enum status experiment_run_blocks(const struct experiment_run_request *request, size_t first,
                                  size_t count, struct experiment_run_result *result,
                                  struct error *err)
{
    struct progress progress;
    enum status status;

    progress_open(&progress, "compare", count * request->experiment->mode_count);
    status = run_blocks(request, first, count, &progress, result, err);
    progress_close(&progress);
    return status;
}
