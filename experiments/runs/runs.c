/*
 * runs: one row for each run, of texts; what is listed, filtered and sorted are these texts.
 */
#include "experiments/runs/runs.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/text_list.h"
#include "common/option/program.h"
#include "experiments/report/run.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_MAX  16
#define SYNC_WIDTH 18

struct runs_options {
    char where[OPTION_TEXT_MAX];
    char sort[OPTION_TEXT_MAX];
    bool json;
};

#define AT(field) offsetof(struct runs_options, field)

static const struct option_spec specs[] = {
    {.name = "where",
     .kind = OPTION_TEXT,
     .offset = AT(where),
     .metavar = "NAME=VALUE,...",
     .help = "Only runs of which all of this holds: a column of --json, or an option of the "
             "worker, with a value that may have the * and ? of a shell: status=ok,model=mlp*,"
             "lr=0.05."},
    {.name = "sort",
     .kind = OPTION_TEXT,
     .offset = AT(sort),
     .metavar = "NAME",
     .help = "Sort by such a value, numbers as numbers; by default by path."},
    {.name = "json",
     .kind = OPTION_BOOL,
     .offset = AT(json),
     .help = "Print a JSON object for each run, one per line."},
    {0},
};

static const struct option_set options_set = {
    .program = "sparring runs",
    .summary = "List the run directories below a folder: what each was, and how it ended.",
    .usage = "[DIR]... [OPTION]...",
    .tables = {{specs, 0}},
};

/* ---- what is known of a run */

static const struct column {
    const char *name;
    bool is_number;
} columns[] = {
    {"run", false},  {"start", false},        {"status", false},      {"sync", false},
    {"ranks", true}, {"servers", false},      {"model", false},       {"data", false},
    {"mode", false}, {"repeat", true},        {"steps", true},        {"samples_per_second", true},
    {"host", false}, {"test_accuracy", true}, {"wall_seconds", true}, {"commit", false},
};

static void number_text(double value, char *text, size_t size)
{
    text[0] = '\0';
    if (isfinite(value))
        (void)snprintf(text, size, value == rint(value) && fabs(value) < 1e15 ? "%.0f" : "%.6g",
                       value);
}

/* "local", "allreduce ring", "ps", "ps asp", "ps ssp 8", "ps backup 1". */
static void sync_text(const struct run_configuration *c, char *text, size_t size)
{
    if (strcmp(c->sync, "allreduce") == 0)
        (void)snprintf(text, size, "%s %s", c->sync, c->backend);
    else if (strcmp(c->consistency, "ssp") == 0)
        (void)snprintf(text, size, "%s ssp %s", c->sync, c->staleness);
    else if (strcmp(c->consistency, "asp") == 0)
        (void)snprintf(text, size, "%s asp", c->sync);
    else if (c->backup_workers[0] > '0')
        (void)snprintf(text, size, "%s backup %s", c->sync, c->backup_workers);
    else
        (void)snprintf(text, size, "%s", c->sync);
}

static const char *status_of(const struct run *run)
{
    if (run->has_summary)
        return run->summary.status;
    return run->has_attempt && run->attempt.outcome[0] != '\0' ? run->attempt.outcome : "not ended";
}

/* A setting that defines the run's mode, else any option of the worker. */
static void option_text(const struct run *run, const char *name, char *text, size_t size)
{
    const json_t *option = json_object_get(json_object_get(run->options, name), "value");

    for (size_t i = 0; i < run_configuration_length; i++) {
        const struct json_field *field = &run_configuration_fields[i];

        if (strcmp(field->name, name) == 0)
            (void)snprintf(text, size, "%s", (const char *)&run->configuration + field->offset);
    }
    if (text[0] == '\0' && option)
        (void)json_scalar_text(option, text, size);
}

/* "" where it is not known, or no run has it. */
static void value_of(const struct run *run, const char *name, char *text, size_t size)
{
    const struct run_manifest *m = &run->manifest;

    text[0] = '\0';
    if (strcmp(name, "run") == 0)
        (void)snprintf(text, size, "%s", run->path);
    else if (strcmp(name, "start") == 0)
        (void)snprintf(text, size, "%s", m->start);
    else if (strcmp(name, "status") == 0)
        (void)snprintf(text, size, "%s", status_of(run));
    else if (strcmp(name, "sync") == 0)
        sync_text(&run->configuration, text, size);
    else if (strcmp(name, "ranks") == 0)
        number_text(m->world_size > 0 ? (double)m->world_size : (double)NAN, text, size);
    else if (strcmp(name, "mode") == 0)
        (void)snprintf(text, size, "%s", run->attempt.mode);
    else if (strcmp(name, "repeat") == 0)
        number_text(run->has_attempt ? (double)run->attempt.repeat : (double)NAN, text, size);
    else if (strcmp(name, "steps") == 0 && run->has_summary)
        number_text((double)run->summary.steps, text, size);
    else if (strcmp(name, "samples_per_second") == 0)
        number_text(run->summary.samples_per_second, text, size);
    else if (strcmp(name, "test_accuracy") == 0)
        number_text(run->summary.test_accuracy, text, size);
    else if (strcmp(name, "wall_seconds") == 0)
        number_text(run->summary.wall_seconds, text, size);
    else if (strcmp(name, "host") == 0)
        (void)snprintf(text, size, "%s", m->host);
    else if (strcmp(name, "commit") == 0)
        (void)snprintf(text, size, "%s", m->git);
    else
        option_text(run, name, text, size);
}

/* ---- finding them */

struct run_rows {
    struct run *runs; /* owned */
    size_t length, capacity;
    struct text_list unreadable;
};

static enum status add_run(struct run_rows *rows, const char *path, struct error *err)
{
    struct run run = {0};
    struct error why = {0};
    enum status status = run_open_head(path, &run, &why);

    if (status != STATUS_OK) {
        text_list_addf(&rows->unreadable, "%s", why.text);
        return STATUS_OK;
    }
    status = mem_grow(rows->length, &rows->capacity, sizeof(run), "runs", &rows->runs, err);
    if (status == STATUS_OK)
        rows->runs[rows->length++] = run;
    else
        run_release(&run);
    return status;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Run directories hold no others. */
static enum status find_runs(struct run_rows *rows, const char *folder, unsigned depth,
                             struct error *err)
{
    struct dirent **entries = NULL;
    enum status status = STATUS_OK;
    int found;

    if (run_is_folder(folder))
        return add_run(rows, folder, err);
    found = scandir(folder, &entries, is_visible, versionsort);
    if (found < 0 && depth > 0 && errno != ENOMEM) {
        if (errno != ENOENT) /* moved away meanwhile */
            text_list_addf(&rows->unreadable, "cannot list '%s': %s", folder, strerror(errno));
        return STATUS_OK;
    }
    if (found < 0)
        return error_set_errno(err, errno, "cannot list '%s'", folder);
    for (int i = 0; i < found && status == STATUS_OK; i++) {
        char path[4096];
        struct stat info;

        status = file_join(path, sizeof(path), folder, entries[i]->d_name, err);
        if (status == STATUS_OK && depth < DEPTH_MAX && lstat(path, &info) == 0 &&
            S_ISDIR(info.st_mode))
            status = find_runs(rows, path, depth + 1, err);
    }
    for (int i = 0; i < found; i++)
        free(entries[i]);
    free(entries);
    return status;
}

/* ---- filter and order */

/* Does "NAME=VALUE,..." hold? */
static enum status matches(const struct run *run, const char *where, bool *ret, struct error *err)
{
    *ret = true;
    while (*where) {
        char condition[OPTION_TEXT_MAX], value[OPTION_TEXT_MAX];
        char *wanted;

        where = parse_list_next(where, condition, sizeof(condition));
        wanted = strchr(condition, '=');
        if (!wanted)
            return error_set(err, STATUS_INVALID, "--where: '%s' is not NAME=VALUE", condition);
        *wanted++ = '\0';
        value_of(run, condition, value, sizeof(value));
        *ret = *ret && fnmatch(wanted, value, 0) == 0;
    }
    return STATUS_OK;
}

static const char *sort_name; /* for qsort */

static int compare_runs(const void *a, const void *b)
{
    char texts[2][OPTION_TEXT_MAX];
    double numbers[2];
    bool are_numbers;

    value_of(a, sort_name, texts[0], sizeof(texts[0]));
    value_of(b, sort_name, texts[1], sizeof(texts[1]));
    are_numbers = parse_double(texts[0], &numbers[0]) && parse_double(texts[1], &numbers[1]);
    if (are_numbers && numbers[0] != numbers[1])
        return numbers[0] < numbers[1] ? -1 : 1;
    return strverscmp(texts[0], texts[1]) != 0
               ? strverscmp(texts[0], texts[1])
               : strverscmp(((const struct run *)a)->path, ((const struct run *)b)->path);
}

static enum status keep_matching(struct run_rows *rows, const char *where, struct error *err)
{
    size_t kept = 0;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < rows->length; i++) {
        bool is_kept = true;

        if (status == STATUS_OK)
            status = matches(&rows->runs[i], where, &is_kept, err);
        if (is_kept)
            rows->runs[kept++] = rows->runs[i];
        else
            run_release(&rows->runs[i]);
    }
    rows->length = kept;
    return status;
}

/* ---- printing */

static void print_json(const struct run *run)
{
    struct strbuf out = STRBUF_INIT;

    for (size_t c = 0; c < sizeof(columns) / sizeof(columns[0]); c++) {
        char text[4096];

        value_of(run, columns[c].name, text, sizeof(text));
        strbuf_add(&out, c == 0 ? "{" : ",");
        strbuf_add_json(&out, columns[c].name);
        strbuf_add(&out, ":");
        if (text[0] == '\0')
            strbuf_add(&out, "null");
        else if (columns[c].is_number)
            strbuf_add(&out, text);
        else
            strbuf_add_json(&out, text);
    }
    (void)printf("%s}\n", out.text);
    strbuf_release(&out);
}

static void print_rows(const struct run_rows *rows)
{
    if (rows->length > 0)
        (void)printf("%-16s %-10s %-*s %5s %7s %9s  %s\n", "start", "status", SYNC_WIDTH, "sync",
                     "ranks", "steps", "samples/s", "run");
    for (size_t i = 0; i < rows->length; i++) {
        const struct run *run = &rows->runs[i];
        char start[32], status[128], sync[128], ranks[32], steps[32], rate[32];

        value_of(run, "start", start, sizeof(start));
        value_of(run, "status", status, sizeof(status));
        value_of(run, "sync", sync, sizeof(sync));
        value_of(run, "ranks", ranks, sizeof(ranks));
        value_of(run, "steps", steps, sizeof(steps));
        rate[0] = '\0';
        if (isfinite(run->summary.samples_per_second))
            (void)snprintf(rate, sizeof(rate), "%.1f", run->summary.samples_per_second);
        if (strchr(start, 'T'))
            *strchr(start, 'T') = ' ';
        (void)printf("%-16.16s %-10.10s %-*.*s %5s %7s %9s  %s\n", start, status, SYNC_WIDTH,
                     SYNC_WIDTH, sync, ranks, steps, rate, run->path);
    }
    (void)printf("%zu run%s\n", rows->length, rows->length == 1 ? "" : "s");
}

static enum status list_runs(const struct runs_options *o, struct run_rows *rows, struct error *err)
{
    enum status status = keep_matching(rows, o->where, err);

    if (status != STATUS_OK)
        return status;
    sort_name = o->sort;
    if (rows->length > 0 && sort_name[0] != '\0')
        qsort(rows->runs, rows->length, sizeof(*rows->runs), compare_runs);
    for (size_t i = 0; i < rows->length && o->json; i++)
        print_json(&rows->runs[i]);
    if (!o->json)
        print_rows(rows);
    for (size_t i = 0; i < rows->unreadable.length; i++)
        (void)fprintf(stderr, "sparring runs: left out: %s\n", rows->unreadable.texts[i]);
    return STATUS_OK;
}

static enum status run_runs(const void *parsed, const char *const *words, size_t count,
                            int *ret_exit_code, struct error *err)
{
    struct run_rows rows = {0};
    enum status status = STATUS_OK;

    for (size_t i = 0; i < (count > 0 ? count : 1) && status == STATUS_OK; i++)
        status = find_runs(&rows, count > 0 ? words[i] : "runs", 0, err);
    if (status == STATUS_OK)
        status = list_runs(parsed, &rows, err);
    *ret_exit_code = rows.unreadable.length > 0 ? 1 : 0;
    for (size_t i = 0; i < rows.length; i++)
        run_release(&rows.runs[i]);
    free(rows.runs);
    text_list_release(&rows.unreadable);
    return status;
}

int runs_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &options_set,
        .options_size = sizeof(struct runs_options),
        .run_words = run_runs,
    };

    return program_main(&program, argc, argv);
}
