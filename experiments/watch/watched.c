/*
 * watched: a plan says which cells, modes and runs there will be; the folders say which there are.
 */
#include "experiments/watch/watched.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "experiments/report/json_fields.h"
#include "experiments/report/run.h"
#include "experiments/report/statistics.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POINTS_MAX  400 /* then every other one goes */
#define CHUNK_BYTES ((size_t)256 << 10)

/* ---- the plan */

static enum status add_mode(struct watched_cell *cell, const char *name, size_t planned,
                            struct error *err)
{
    enum status status = mem_grow(cell->mode_count, &cell->mode_capacity, sizeof(*cell->modes),
                                  "modes", &cell->modes, err);

    if (status != STATUS_OK)
        return status;
    cell->modes[cell->mode_count] = (struct watched_mode){
        .planned = planned, .seconds = (double)NAN, .samples_per_second = (double)NAN};
    (void)snprintf(cell->modes[cell->mode_count++].name, sizeof(cell->modes->name), "%s", name);
    return STATUS_OK;
}

static enum status add_planned_cell(struct watched *w, const char *name, json_t *modes,
                                    size_t repeats, struct error *err)
{
    struct watched_cell *cell = &w->cells[w->cell_count++];
    const bool is_alone = strcmp(name, "all") == 0;
    const char *mode;
    json_t *words;
    enum status status = STATUS_OK;

    (void)snprintf(cell->name, sizeof(cell->name), "%s", is_alone ? "" : name);
    if (!is_alone)
        (void)snprintf(cell->folder, sizeof(cell->folder), "cells/%s", name);
    json_object_foreach(modes, mode, words)
    {
        if (status == STATUS_OK)
            status = add_mode(cell, mode, repeats, err);
    }
    return status;
}

static enum status read_plan(struct watched *w, const char *path, struct error *err)
{
    json_t *plan = NULL;
    json_t *cells;
    const char *name;
    json_t *modes;
    size_t repeats;
    enum status status = json_file_read(path, &plan, err);

    if (status != STATUS_OK)
        return status;
    cells = json_object_get(plan, "cells");
    repeats = (size_t)json_integer_value(json_object_get(plan, "repeats"));
    status = mem_calloc(json_object_size(cells), sizeof(*w->cells), "cells", &w->cells, err);
    json_object_foreach(cells, name, modes)
    {
        if (status == STATUS_OK)
            status = add_planned_cell(w, name, modes, repeats, err);
    }
    json_decref(plan);
    if (status == STATUS_OK && w->cell_count == 0)
        return error_set(err, STATUS_DATA, "'%s' has no cells", path);
    return status;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

enum status watched_open(const char *path, struct watched *ret, struct error *err)
{
    struct watched w = {.version = 0};
    char plan[4096], runs[4096];
    enum status status = file_join(plan, sizeof(plan), path, "plan.json", err);

    if (status == STATUS_OK)
        status = file_join(runs, sizeof(runs), path, "runs", err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(w.path, sizeof(w.path), "%s", path);
    if (access(plan, F_OK) == 0) {
        status = read_plan(&w, plan, err);
    } else if (is_folder(runs) || run_is_folder(path)) {
        status = mem_calloc(1, sizeof(*w.cells), "cells", &w.cells, err);
        w.cell_count = status == STATUS_OK;
    } else {
        return error_set(err, STATUS_NOT_FOUND,
                         "'%s' is neither a run directory nor a folder of compare: it has no "
                         "plan.json, no runs/ and no records",
                         path);
    }
    if (status != STATUS_OK) {
        watched_release(&w);
        return status;
    }
    *ret = w;
    return STATUS_OK;
}

void watched_release(struct watched *w)
{
    for (size_t i = 0; i < w->cell_count; i++) {
        for (size_t r = 0; r < w->cells[i].run_count; r++)
            free(w->cells[i].runs[r].points);
        free(w->cells[i].runs);
        free(w->cells[i].modes);
    }
    free(w->cells);
    *w = (struct watched){.version = 0};
}

/* ---- the records of a run */

static enum status add_point(struct watched_run *run, const struct watched_point *point,
                             struct error *err)
{
    enum status status;

    if (run->point_count == POINTS_MAX) {
        for (size_t i = 0; i < POINTS_MAX / 2; i++)
            run->points[i] = run->points[2 * i];
        run->point_count = POINTS_MAX / 2;
    }
    status = mem_grow(run->point_count, &run->point_capacity, sizeof(*run->points), "points",
                      &run->points, err);
    if (status == STATUS_OK)
        run->points[run->point_count++] = *point;
    return status;
}

/* Steps between the points that are kept. */
static uint64_t stride_of(const struct watched_run *run)
{
    const bool is_known = run->point_count > 1 && run->points[1].step > run->points[0].step;

    return is_known ? run->points[1].step - run->points[0].step : 1;
}

static enum status take_record(struct watched_run *run, const json_t *record, struct error *err)
{
    const char *kind = json_string_value(json_object_get(record, "kind"));
    const double step_s = json_number_value(json_object_get(record, "step_ns")) * 1e-9;
    const double samples = json_number_value(json_object_get(record, "samples"));
    const json_t *loss = json_object_get(record, "loss"); /* null: the step had no samples */
    const struct watched_point point = {
        .step = (uint64_t)json_integer_value(json_object_get(record, "step")),
        .loss = json_is_number(loss) ? json_number_value(loss) : (double)NAN,
        .samples_per_second = step_s > 0 ? samples / step_s * run->ranks : (double)NAN};

    if (kind && strcmp(kind, "start") == 0)
        run->planned_steps = (uint64_t)json_integer_value(json_object_get(record, "planned_steps"));
    if (!kind || strcmp(kind, "step") != 0)
        return STATUS_OK;
    run->steps = point.step + 1;
    return point.step % stride_of(run) == 0 ? add_point(run, &point, err) : STATUS_OK;
}

/* The complete lines of `text`; returns their bytes. */
static enum status take_lines(struct watched_run *run, char *text, size_t size, size_t *ret_bytes,
                              struct error *err)
{
    char *end;
    enum status status = STATUS_OK;

    *ret_bytes = 0;
    while ((end = memchr(text + *ret_bytes, '\n', size - *ret_bytes)) && status == STATUS_OK) {
        json_t *record = json_loadb(text + *ret_bytes, (size_t)(end - text) - *ret_bytes, 0, NULL);

        status = take_record(run, record, err);
        json_decref(record);
        *ret_bytes = (size_t)(end - text) + 1;
    }
    return status;
}

/* What was appended to the records of rank 0.  A run that is made again empties them. */
static enum status read_records(struct watched_run *run, const char *folder, bool *changed,
                                struct error *err)
{
    char path[4096];
    struct stat info;
    char *text = NULL;
    ssize_t size = 1;
    size_t taken = 1;
    int fd;
    enum status status = file_join(path, sizeof(path), folder, "rank0.jsonl", err);

    if (status != STATUS_OK)
        return status;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        if (fd >= 0)
            (void)close(fd);
        return STATUS_OK; /* not yet, or not any more */
    }
    if ((size_t)info.st_size < run->read_bytes)
        run->read_bytes = run->point_count = run->steps = 0;
    run->last_change = info.st_mtim.tv_sec;
    status = mem_calloc(CHUNK_BYTES, 1, "records", &text, err);
    while (status == STATUS_OK && size > 0 && taken > 0) {
        size = pread(fd, text, CHUNK_BYTES, (off_t)run->read_bytes);
        status = take_lines(run, text, size > 0 ? (size_t)size : 0, &taken, err);
        run->read_bytes += taken;
        *changed = *changed || taken > 0;
    }
    free(text);
    (void)close(fd);
    return status;
}

/* ---- a run */

static void set_state(struct watched_run *run, const struct run *read)
{
    const char *outcome = read->has_attempt   ? read->attempt.outcome
                          : read->has_summary ? read->summary.status
                                              : "";

    run->state = outcome[0] == '\0'           ? WATCHED_RUNNING
                 : strcmp(outcome, "ok") == 0 ? WATCHED_OK
                                              : WATCHED_FAILED;
    (void)snprintf(run->reason, sizeof(run->reason), "%s",
                   run->state != WATCHED_FAILED ? ""
                   : read->summary.error[0]     ? read->summary.error
                                                : outcome);
}

/* Of a cell of a sweep: "TITLE: CELL". */
static void set_title(struct watched *w, const char *title, const char *cell)
{
    const size_t length = strlen(title), cell_length = strlen(cell);
    const size_t shown =
        cell_length > 0 && length > cell_length + 2 ? length - cell_length - 2 : length;

    (void)snprintf(w->title, sizeof(w->title), "%.*s", (int)shown, title);
}

/* What its files say; unreadable ones are half written. */
static void read_head(struct watched *w, const struct watched_cell *cell, struct watched_run *run,
                      const char *folder)
{
    struct run read = {0};

    if (run_open_head(folder, &read, NULL) != STATUS_OK)
        return;
    set_state(run, &read);
    if (w->title[0] == '\0')
        set_title(w, read.attempt.title, cell->name);
    (void)snprintf(run->mode, sizeof(run->mode), "%s", read.attempt.mode);
    (void)snprintf(run->host, sizeof(run->host), "%s", read.manifest.host);
    run->ranks = read.manifest.world_size > 0 ? (unsigned)read.manifest.world_size : 1;
    run->seconds = read.has_attempt ? read.attempt.seconds : read.summary.wall_seconds;
    if (read.has_summary)
        run->steps = read.summary.steps;
    if (read.has_summary)
        run->samples_per_second = read.summary.samples_per_second;
    run_release(&read);
}

static enum status scan_run(struct watched *w, struct watched_cell *cell, struct watched_run *run,
                            struct error *err)
{
    const bool was_running = run->version > 0;
    const bool is_alone = cell->folder[0] == '\0' && run->name[0] == '\0';
    char folder[4096];
    bool changed = !was_running;
    enum status status;

    if (was_running && run->state != WATCHED_RUNNING)
        return STATUS_OK;
    (void)snprintf(folder, sizeof(folder), "%.2000s/%.1500s%s%.256s", w->path, cell->folder,
                   is_alone ? "" : "/runs/", run->name);
    read_head(w, cell, run, folder);
    status = run->state == WATCHED_RUNNING || is_alone || was_running
                 ? read_records(run, folder, &changed, err)
                 : STATUS_OK;
    if (changed || run->state != WATCHED_RUNNING)
        run->version = cell->version = w->version;
    return status;
}

/* ---- a cell */

static struct watched_run *find_run(struct watched_cell *cell, const char *name)
{
    for (size_t i = 0; i < cell->run_count; i++)
        if (strcmp(cell->runs[i].name, name) == 0)
            return &cell->runs[i];
    return NULL;
}

/* 0: it is no folder. */
static ino_t folder_inode(const char *runs, const char *name)
{
    char path[4096];
    struct stat info;

    (void)snprintf(path, sizeof(path), "%.3500s/%.256s", runs, name);
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? info.st_ino : 0;
}

static enum status add_run(struct watched_cell *cell, const char *folder, const char *name,
                           struct error *err)
{
    struct watched_run run = {.seconds = (double)NAN,
                              .samples_per_second = (double)NAN,
                              .inode = folder_inode(folder, name)};
    enum status status;

    (void)snprintf(run.name, sizeof(run.name), "%s", name);
    status = mem_grow(cell->run_count, &cell->run_capacity, sizeof(run), "runs", &cell->runs, err);
    if (status == STATUS_OK)
        cell->runs[cell->run_count++] = run;
    return status;
}

/* Those that were moved away, since they are made again: another folder may have the name by now.
 */
static void drop_runs(struct watched *w, struct watched_cell *cell, const char *folder)
{
    size_t kept = 0;

    for (size_t i = 0; i < cell->run_count; i++) {
        const ino_t inode = folder_inode(folder, cell->runs[i].name);

        if (inode != 0 && inode == cell->runs[i].inode) {
            cell->runs[kept++] = cell->runs[i];
            continue;
        }
        free(cell->runs[i].points);
        cell->version = w->version;
    }
    cell->run_count = kept;
}

/* Find the runs, when the folder has changed. */
static enum status list_runs(struct watched *w, struct watched_cell *cell, const char *folder,
                             struct error *err)
{
    struct stat info;
    const struct dirent *entry;
    DIR *list;
    enum status status = STATUS_OK;

    if (stat(folder, &info) != 0 || (info.st_mtim.tv_sec == cell->listed.tv_sec &&
                                     info.st_mtim.tv_nsec == cell->listed.tv_nsec))
        return STATUS_OK;
    list = opendir(folder);
    if (!list)
        return errno == ENOENT ? STATUS_OK
                               : error_set_errno(err, errno, "cannot list '%s'", folder);
    cell->listed = info.st_mtim;
    drop_runs(w, cell, folder);
    while (status == STATUS_OK && (entry = readdir(list)))
        if (entry->d_name[0] != '.' && !find_run(cell, entry->d_name))
            status = add_run(cell, folder, entry->d_name, err);
    (void)closedir(list);
    return status;
}

static struct watched_mode *find_mode(struct watched_cell *cell, const char *name)
{
    for (size_t i = 0; i < cell->mode_count; i++)
        if (strcmp(cell->modes[i].name, name) == 0)
            return &cell->modes[i];
    return NULL;
}

/* Count the runs of each mode; those without a plan make their modes. */
static enum status count_runs(struct watched_cell *cell, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t m = 0; m < cell->mode_count; m++)
        cell->modes[m].running = cell->modes[m].ok = cell->modes[m].failed = 0;
    for (size_t i = 0; i < cell->run_count && status == STATUS_OK; i++) {
        const struct watched_run *run = &cell->runs[i];
        struct watched_mode *mode = find_mode(cell, run->mode);

        if (!mode)
            status = add_mode(cell, run->mode, 0, err);
        if (status != STATUS_OK)
            return status;
        mode = find_mode(cell, run->mode);
        mode->running += run->state == WATCHED_RUNNING;
        mode->ok += run->state == WATCHED_OK;
        mode->failed += run->state == WATCHED_FAILED;
    }
    return status;
}

/* Over the runs of a mode that have ended. */
static enum status measure_mode(const struct watched_cell *cell, struct watched_mode *mode,
                                struct error *err)
{
    double *rates = NULL;
    double seconds = 0;
    size_t rate_count = 0, timed = 0;
    enum status status = mem_calloc(cell->run_count + 1, sizeof(*rates), "rates", &rates, err);

    for (size_t i = 0; i < cell->run_count && status == STATUS_OK; i++) {
        const struct watched_run *run = &cell->runs[i];

        if (strcmp(run->mode, mode->name) != 0 || run->state == WATCHED_RUNNING)
            continue;
        if (isfinite(run->seconds)) {
            seconds += run->seconds;
            timed++;
        }
        if (run->state == WATCHED_OK && isfinite(run->samples_per_second))
            rates[rate_count++] = run->samples_per_second;
    }
    mode->seconds = timed > 0 ? seconds / (double)timed : (double)NAN;
    mode->samples_per_second = (double)NAN;
    if (rate_count > 0) {
        statistics_sort(rates, rate_count);
        mode->samples_per_second = statistics_quantile(rates, rate_count, 0.5);
    }
    free(rates);
    return status;
}

static bool has_file(const struct watched *w, const char *folder, const char *name)
{
    char path[4096];

    (void)snprintf(path, sizeof(path), "%.2000s/%.1500s/%s", w->path, folder, name);
    return access(path, F_OK) == 0;
}

static enum status scan_cell(struct watched *w, struct watched_cell *cell, struct error *err)
{
    char folder[4096];
    const bool had_report = cell->has_report;
    enum status status = STATUS_OK;

    (void)snprintf(folder, sizeof(folder), "%.2000s/%.1500s/runs", w->path, cell->folder);
    if (run_is_folder(w->path)) {
        if (cell->run_count == 0)
            status = add_run(cell, w->path, "", err);
    } else {
        status = list_runs(w, cell, folder, err);
    }
    for (size_t i = 0; i < cell->run_count && status == STATUS_OK; i++)
        status = scan_run(w, cell, &cell->runs[i], err);
    cell->has_report = has_file(w, cell->folder, "report.html");
    if (status != STATUS_OK || (cell->version < w->version && cell->has_report == had_report))
        return status;
    cell->version = w->version;
    status = count_runs(cell, err);
    for (size_t m = 0; m < cell->mode_count && status == STATUS_OK; m++)
        status = measure_mode(cell, &cell->modes[m], err);
    return status;
}

/* ---- all of it */

static struct watched_run *newest_with_points(const struct watched *w)
{
    struct watched_run *newest = NULL;

    for (size_t c = 0; c < w->cell_count; c++)
        for (size_t i = 0; i < w->cells[c].run_count; i++) {
            struct watched_run *run = &w->cells[c].runs[i];

            if (run->point_count > 0 && (!newest || run->version >= newest->version))
                newest = run;
        }
    return newest;
}

/* Of runs that have ended, those of the newest are kept, unless another goes on. */
static void drop_points(struct watched *w)
{
    const struct watched_run *newest = newest_with_points(w);

    for (size_t c = 0; c < w->cell_count; c++)
        for (size_t i = 0; i < w->cells[c].run_count; i++) {
            struct watched_run *run = &w->cells[c].runs[i];

            if (run == newest || run->state == WATCHED_RUNNING)
                continue;
            free(run->points);
            run->points = NULL;
            run->point_count = run->point_capacity = 0;
        }
}

enum status watched_scan(struct watched *w, struct error *err)
{
    const uint64_t before = w->version++;
    const bool had_index = w->has_index;
    bool has_changed;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < w->cell_count && status == STATUS_OK; i++)
        status = scan_cell(w, &w->cells[i], err);
    w->has_index = has_file(w, "", "index.html");
    has_changed = before == 0 || w->has_index != had_index;
    for (size_t i = 0; i < w->cell_count; i++)
        has_changed = has_changed || w->cells[i].version == w->version;
    if (has_changed)
        drop_points(w);
    else
        w->version = before;
    return status;
}

struct watched_totals watched_totals(const struct watched *w)
{
    struct watched_totals t = {.seconds_left = 0};
    double seconds = 0, timed = 0, untimed = 0;

    for (size_t c = 0; c < w->cell_count; c++)
        for (size_t m = 0; m < w->cells[c].mode_count; m++) {
            const struct watched_mode *mode = &w->cells[c].modes[m];
            const size_t ended = mode->ok + mode->failed, begun = ended + mode->running;
            const double left = mode->planned > ended ? (double)(mode->planned - ended) : 0;

            t.planned += mode->planned > begun ? mode->planned : begun;
            t.running += mode->running;
            t.ok += mode->ok;
            t.failed += mode->failed;
            if (!isfinite(mode->seconds)) {
                untimed += left;
                continue;
            }
            t.seconds_left += left * mode->seconds;
            seconds += (double)ended * mode->seconds;
            timed += (double)ended;
        }
    if (untimed > 0)
        t.seconds_left = timed > 0 ? t.seconds_left + untimed * seconds / timed : (double)NAN;
    return t;
}

const char *watched_state_text(enum watched_state state)
{
    static const char *const texts[] = {
        [WATCHED_RUNNING] = "running", [WATCHED_OK] = "ok", [WATCHED_FAILED] = "failed"};

    return texts[state];
}
