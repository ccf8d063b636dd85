/*
 * sweep_report: a cell is a folder with a design.json, which has its values of the axes.  A cell
 * that was stopped before its first run has no report, but a row of the overview.
 */
#include "experiments/report/sweep_report.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "experiments/report/overview.h"
#include "experiments/report/report.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct cell_report {
    char folder[280]; /* "cells/nproc=4" */
    bool has_runs;
    struct design design;
};

struct sweep_report {
    const char *folder;
    struct cell_report *cells; /* owned */
    size_t count;
    struct overview overview;
};

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* The number of entries of folder/name; -1: there is no such folder. */
static int count_entries(const char *folder, const char *name, struct dirent ***ret_entries)
{
    char path[4096];

    *ret_entries = NULL;
    if (file_join(path, sizeof(path), folder, name, NULL) != STATUS_OK)
        return -1;
    return scandir(path, ret_entries, is_visible, versionsort);
}

static void free_entries(struct dirent **entries, int count)
{
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
}

bool sweep_report_is_folder(const char *folder)
{
    struct dirent **entries;
    int count = count_entries(folder, "cells", &entries);

    free_entries(entries, count);
    return count > 0;
}

static enum status find_cell(const struct sweep_report *r, const char *name,
                             struct cell_report *cell, bool *ret_found, struct error *err)
{
    char path[4096];
    struct dirent **entries;
    int runs;
    enum status status;

    (void)snprintf(cell->folder, sizeof(cell->folder), "cells/%s", name);
    status = file_join(path, sizeof(path), r->folder, cell->folder, err);
    if (status == STATUS_OK)
        status = design_read(path, &cell->design, ret_found, err);
    if (status != STATUS_OK)
        return status;
    runs = count_entries(path, "runs", &entries);
    free_entries(entries, runs);
    cell->has_runs = runs > 0;
    if (*ret_found && cell->design.axis_count == 0)
        return error_set(err, STATUS_DATA, "'%s' does not say which values of the axes it has",
                         path);
    return STATUS_OK;
}

static enum status find_cells(struct sweep_report *r, struct error *err)
{
    struct dirent **entries;
    int count = count_entries(r->folder, "cells", &entries);
    enum status status;

    if (count < 0)
        return error_set_errno(err, errno, "cannot list '%s/cells'", r->folder);
    status = mem_calloc((size_t)count, sizeof(*r->cells), "cells", &r->cells, err);
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        bool found = false;

        status = find_cell(r, entries[i]->d_name, &r->cells[r->count], &found, err);
        r->count += found;
    }
    free_entries(entries, count);
    if (status == STATUS_OK && r->count == 0)
        status = error_set(err, STATUS_NOT_FOUND, "'%s/cells' holds no cell of a sweep", r->folder);
    return status;
}

/* Write the report of one cell, and add its rows to the overview. */
static enum status report_cell(struct sweep_report *r, size_t index, struct error *err)
{
    const struct cell_report *cell = &r->cells[index];
    char path[4096];
    const char *out = path;
    struct report report = {0};
    struct strbuf command = STRBUF_INIT;
    char problem[512] = "";
    enum status status = file_join(path, sizeof(path), r->folder, cell->folder, err);

    if (!cell->has_runs && status == STATUS_OK)
        return overview_add(&r->overview, index, &cell->design, NULL, err);
    strbuf_add(&command, "sparring report ");
    strbuf_add_shell_word(&command, path);
    if (status == STATUS_OK)
        status = report_read(&report, &out, 1, err);
    if (status == STATUS_OK)
        status = report_write(&report, path, command.text, problem, sizeof(problem), err);
    if (status == STATUS_OK)
        status = overview_add(&r->overview, index, &cell->design, &report.comparison, err);
    strbuf_release(&command);
    report_release(&report);
    return status;
}

static enum status write_overview(struct sweep_report *r, struct error *err)
{
    const char **folders = NULL;
    struct strbuf text = STRBUF_INIT, command = STRBUF_INIT;
    char problem[512] = "";
    enum status status = mem_calloc(r->count, sizeof(*folders), "folders", &folders, err);

    strbuf_add(&command, "sparring report ");
    strbuf_add_shell_word(&command, r->folder);
    r->overview.command = command.text;

    for (size_t i = 0; i < r->count && status == STATUS_OK; i++)
        folders[i] = r->cells[i].has_runs ? r->cells[i].folder : NULL;
    if (status == STATUS_OK)
        status = overview_write(&r->overview, r->folder, folders, problem, sizeof(problem), err);
    if (status == STATUS_OK) {
        overview_summarise(&r->overview, &text);
        (void)printf("%sreport: %s/index.html\n", text.text, r->folder);
        if (problem[0] != '\0')
            log_warning("%s", problem);
    }
    strbuf_release(&text);
    strbuf_release(&command);
    free(folders);
    return status;
}

static enum status report_cells(struct sweep_report *r, struct error *err)
{
    const struct design *first = &r->cells[0].design;
    enum status status = STATUS_OK;

    r->overview.title = first->sweep;
    r->overview.axis_count = first->axis_count;
    for (size_t i = 0; i < first->axis_count; i++)
        r->overview.axes[i] = first->axes[i].name;
    for (size_t i = 0; i < r->count && status == STATUS_OK; i++)
        status = r->cells[i].design.axis_count == r->overview.axis_count
                     ? report_cell(r, i, err)
                     : error_set(err, STATUS_DATA, "the cells of '%s' have other axes", r->folder);
    return status == STATUS_OK ? write_overview(r, err) : status;
}

enum status sweep_report_make(const char *folder, struct error *err)
{
    struct sweep_report r = {.folder = folder};
    enum status status = find_cells(&r, err);

    if (status == STATUS_OK && r.cells)
        status = report_cells(&r, err);
    overview_release(&r.overview);
    free(r.cells);
    return status;
}
