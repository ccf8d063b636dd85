/*
 * report: the subcommand: reads runs, compares them, draws figures, writes four files.  Each file
 * is made in memory and written atomically, so that a failure leaves no half-written file.
 */
#include "experiments/report/report.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "experiments/report/diff.h"
#include "experiments/report/figure.h"
#include "experiments/report/gate.h"
#include "experiments/report/sweep_report.h"
#include "experiments/report/table.h"
#include "experiments/report/write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WRAP_COLUMNS 80

enum status report_read(struct report *r, const char *const *paths, size_t count, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = run_list_add(&r->list, paths[i], err);
    return status == STATUS_OK ? comparison_make(&r->list, &r->comparison, err) : status;
}

void report_release(struct report *r)
{
    comparison_release(&r->comparison);
    run_list_release(&r->list);
}

static enum status write_report_file(const struct report_content *content, const char *folder,
                                     const char *name,
                                     void (*write)(const struct report_content *, struct strbuf *),
                                     struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    char path[4096];
    enum status status = file_join(path, sizeof(path), folder, name, err);

    if (status == STATUS_OK) {
        write(content, &text);
        status = file_write_text(path, &text, err);
    }
    strbuf_release(&text);
    return status;
}

static enum status write_report_files(const struct report_content *content, const char *folder,
                                      struct error *err)
{
    enum status status = write_report_file(content, folder, "report.md", write_markdown, err);

    if (status == STATUS_OK)
        status = write_report_file(content, folder, "report.json", write_json, err);
    if (status == STATUS_OK)
        status = write_report_file(content, folder, "report.csv", write_csv, err);
    if (status == STATUS_OK)
        status = write_report_file(content, folder, "report.html", write_html, err);
    return status;
}

enum status report_write(const struct report *r, const char *folder, const char *command,
                         char *ret_problem, size_t problem_size, struct error *err)
{
    struct table table = {0};
    struct figure_set *figures = NULL;
    struct report_content content = {.comparison = &r->comparison, .command = command};
    enum status status = file_make_folder(folder, err);

    if (status == STATUS_OK)
        status = mem_calloc(1, sizeof(*figures), "figures", &figures, err);
    if (status == STATUS_OK)
        status = table_make(&r->comparison, &table, err);
    if (status == STATUS_OK)
        status = figure_set_make(&r->comparison, figures, err);
    if (status == STATUS_OK) {
        content.table = &table;
        content.figures = figures;
        status = write_report_files(&content, folder, err);
        (void)snprintf(ret_problem, problem_size, "%s", figures->problem);
        figure_set_release(figures);
    }
    table_release(&table);
    free(figures);
    return status;
}

void report_add_wrapped(struct strbuf *out, const char *text, unsigned indent)
{
    size_t column = 0;

    while (*text) {
        size_t length = strcspn(text, " \n");

        if (length > 0 && column > 0 && column + 1 + length > WRAP_COLUMNS) {
            strbuf_add(out, "\n");
            column = 0;
        }
        if (length > 0 && column == 0) {
            strbuf_addf(out, "%*s", (int)indent, "");
            column = indent + length;
        } else if (length > 0) {
            strbuf_add(out, " ");
            column += 1 + length;
        }
        strbuf_add_bytes(out, text, length);
        text += length;
        text += strspn(text, " \n");
    }
    strbuf_add(out, "\n");
}

static void summarise_list(struct strbuf *out, const char *heading, const struct text_list *list)
{
    if (list->length == 0)
        return;
    strbuf_addf(out, "%s:\n", heading);
    for (size_t i = 0; i < list->length; i++)
        report_add_wrapped(out, list->texts[i], 2);
}

void report_summarise(const struct report *r, struct strbuf *out)
{
    const struct comparison *c = &r->comparison;
    struct text_list failed = {0};

    report_add_wrapped(out, c->verdict, 0);
    if (c->why[0] != '\0')
        report_add_wrapped(out, c->why, 0);
    for (size_t i = 0; i < c->more_verdicts.length; i++)
        report_add_wrapped(out, c->more_verdicts.texts[i], 0);
    for (size_t i = 0; i < r->list.length; i++)
        if (r->list.runs[i].state == RUN_FAILED)
            text_list_addf(&failed, "%s: %s", r->list.runs[i].name, r->list.runs[i].reason);
    summarise_list(out, "not comparable because", &c->reasons);
    summarise_list(out, "failed runs", &failed);
    text_list_release(&failed);
}

/* ---- the subcommand ---- */

struct report_options {
    char out[OPTION_TEXT_MAX];
    double price;
    bool diff;
    char fail_if[OPTION_TEXT_MAX];
    char ignore[OPTION_TEXT_MAX];
};

static const struct option_spec specs[] = {
    {.name = "out",
     .kind = OPTION_TEXT,
     .offset = offsetof(struct report_options, out),
     .metavar = "DIR",
     .help = "Where report.html, report.md, report.json and report.csv go; by default into the "
             "one folder named, when it holds runs/, else into ./report."},
    {.name = "price",
     .kind = OPTION_DOUBLE,
     .offset = offsetof(struct report_options, price),
     .default_text = "0",
     .min = 0,
     .max = 1e9,
     .metavar = "AMOUNT",
     .help = "Of a host for an hour, in any unit: adds what a million samples cost with each mode, "
             "and to get to the experiment's target_accuracy."},
    {.name = "diff",
     .kind = OPTION_BOOL,
     .offset = offsetof(struct report_options, diff),
     .help = "Hold the second of two reports (folders, or report.json) against the first, mode by "
             "mode; nothing is written."},
    {.name = "fail-if",
     .kind = OPTION_TEXT,
     .offset = offsetof(struct report_options, fail_if),
     .metavar = "METRIC:CHANGE",
     .help = "With --diff: this figure instead of throughput; exit code 5 when it has got worse by "
             "more than that in a mode (throughput:-5%, step_ms_p50:+10%) and not by chance."},
    {.name = "ignore",
     .kind = OPTION_TEXT,
     .offset = offsetof(struct report_options, ignore),
     .metavar = "NAME,...",
     .help = "With --diff: settings that may differ, beside program, commit and seed."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring report",
    .summary = "Make a report of run directories.",
    .usage = "RUN... [--out DIR] | --diff BEFORE NOW [--fail-if METRIC:CHANGE] [--ignore NAME,...]",
    .tables = {{specs, 0}},
};

static void default_folder(const char *const *paths, size_t count, char *text, size_t size)
{
    char runs[4096];
    struct stat info;

    (void)snprintf(text, size, "report");
    if (count == 1 && file_join(runs, sizeof(runs), paths[0], "runs", NULL) == STATUS_OK &&
        stat(runs, &info) == 0 && S_ISDIR(info.st_mode))
        (void)snprintf(text, size, "%s", paths[0]);
}

static void write_command(const char *const *paths, size_t count, const char *out,
                          struct strbuf *command)
{
    strbuf_add(command, "sparring report");
    for (size_t i = 0; i < count; i++) {
        strbuf_add(command, " ");
        strbuf_add_shell_word(command, paths[i]);
    }
    strbuf_add(command, " --out ");
    strbuf_add_shell_word(command, out);
}

static enum status make_report(const struct report_options *o, const char *const *paths,
                               size_t count, const char *folder, struct error *err)
{
    struct report report = {0};
    struct strbuf command = STRBUF_INIT;
    struct strbuf text = STRBUF_INIT;
    char problem[512] = "";
    enum status status = report_read(&report, paths, count, err);

    report.comparison.price = o->price;
    write_command(paths, count, folder, &command);
    if (o->price > 0)
        strbuf_addf(&command, " --price %g", o->price);
    if (status == STATUS_OK)
        status = report_write(&report, folder, command.text, problem, sizeof(problem), err);
    if (status == STATUS_OK) {
        report_summarise(&report, &text);
        (void)printf("%sreport: %s/report.html\n", text.text, folder);
        if (problem[0] != '\0')
            log_warning("%s", problem);
    }
    strbuf_release(&command);
    strbuf_release(&text);
    report_release(&report);
    return status;
}

static enum status write_diff(const struct report_options *o, const char *const *paths,
                              int *ret_exit_code, struct error *err)
{
    json_t *reports[2] = {NULL, NULL};
    struct strbuf text = STRBUF_INIT;
    struct gate gate;
    bool failed = false;
    enum status status = STATUS_OK;

    if (o->fail_if[0] != '\0')
        status = gate_parse(o->fail_if, &gate, err);
    for (size_t i = 0; i < 2 && status == STATUS_OK; i++)
        status = diff_load(paths[i], &reports[i], err);
    if (status == STATUS_OK) {
        const struct diff_request request = {.before = reports[0],
                                             .now = reports[1],
                                             .names = {paths[0], paths[1]},
                                             .ignore = o->ignore,
                                             .gate = o->fail_if[0] != '\0' ? &gate : NULL};

        status = diff_write(&request, &failed, &text, err);
        (void)printf("%s", text.text);
    }
    *ret_exit_code = failed ? GATE_EXIT_CODE : 0;
    json_decref(reports[0]);
    json_decref(reports[1]);
    strbuf_release(&text);
    return status;
}

static enum status run_report(const void *parsed, const char *const *paths, size_t count,
                              int *ret_exit_code, struct error *err)
{
    const struct report_options *o = parsed;
    char folder[OPTION_TEXT_MAX];
    enum status status = stop_install(err);

    if (status != STATUS_OK)
        return status;
    if (count == 0)
        return error_set(err, STATUS_INVALID,
                         "no run directory given; 'sparring report --help' explains");
    if (o->diff && count != 2)
        return error_set(err, STATUS_INVALID, "--diff takes two reports, BEFORE and NOW");
    if (o->diff && (o->price > 0 || o->out[0] != '\0'))
        return error_set(err, STATUS_INVALID, "--diff prints: --out and --price go without it");
    if (o->diff)
        return write_diff(o, paths, ret_exit_code, err);
    if (o->fail_if[0] != '\0' || o->ignore[0] != '\0')
        return error_set(err, STATUS_INVALID, "--fail-if and --ignore go with --diff");
    if (count == 1 && sweep_report_is_folder(paths[0]))
        return o->out[0] == '\0' && o->price == 0
                   ? sweep_report_make(paths[0], err)
                   : error_set(
                         err, STATUS_INVALID,
                         "'%s' is a sweep, whose report goes there: --out and --price are for "
                         "its cells",
                         paths[0]);
    default_folder(paths, count, folder, sizeof(folder));
    if (o->out[0] != '\0')
        (void)snprintf(folder, sizeof(folder), "%s", o->out);
    return make_report(o, paths, count, folder, err);
}

int report_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct report_options),
        .run_words = run_report,
    };

    return program_main(&program, argc, argv);
}
