/*
 * run_list: finds run directories below the folders that the user named.  Folders are read in
 * natural order, so that a report does not depend on the file system.
 */
#include "experiments/report/run.h"

#include "common/base/file.h"
#include "common/base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void run_list_release(struct run_list *list)
{
    if (!list)
        return;
    for (size_t i = 0; i < list->length; i++)
        run_release(&list->runs[i]);
    free(list->runs);
    *list = (struct run_list){0};
}

static enum status add_run(struct run_list *list, const char *path, struct error *err)
{
    enum status status =
        mem_grow(list->length, &list->capacity, sizeof(*list->runs), "runs", &list->runs, err);

    if (status == STATUS_OK)
        status = run_open(path, &list->runs[list->length], err);
    if (status == STATUS_OK)
        list->length++;
    return status;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Call `add` for every run directory right below `folder`; other entries are passed over. */
static enum status add_below(struct run_list *list, const char *folder,
                             enum status (*add)(struct run_list *, const char *, struct error *),
                             struct error *err)
{
    struct dirent **entries = NULL;
    int found = scandir(folder, &entries, is_visible, versionsort);
    enum status status = STATUS_OK;

    if (found < 0)
        return error_set_errno(err, errno, "cannot list '%s'", folder);
    for (int i = 0; i < found && status == STATUS_OK; i++) {
        char path[4096];

        status = file_join(path, sizeof(path), folder, entries[i]->d_name, err);
        if (status == STATUS_OK && run_is_folder(path))
            status = add(list, path, err);
    }
    for (int i = 0; i < found; i++)
        free(entries[i]);
    free(entries);
    return status;
}

static enum status count_discarded(struct run_list *list, const char *path, struct error *err)
{
    (void)path;
    (void)err;
    list->discarded++;
    return STATUS_OK;
}

enum status run_list_add(struct run_list *list, const char *path, struct error *err)
{
    char below[4096];
    struct stat info;
    size_t before = list->length;
    enum status status;

    if (stat(path, &info) != 0)
        return error_set_errno(err, errno, "cannot open '%s'", path);
    if (!S_ISDIR(info.st_mode))
        return error_set(err, STATUS_INVALID, "'%s' is not a folder", path);
    status = design_read(path, &list->design, &list->has_design, err);
    if (status != STATUS_OK)
        return status;
    if (list->folders++ > 0) { /* the design of one of several folders does not apply to all runs */
        list->design = design_default();
        list->has_design = false;
    }
    if (run_is_folder(path))
        return add_run(list, path, err);
    status = file_join(below, sizeof(below), path, "runs", err);
    if (status != STATUS_OK)
        return status;
    if (stat(below, &info) == 0 && S_ISDIR(info.st_mode))
        status = add_below(list, below, add_run, err);
    else
        status = add_below(list, path, add_run, err);
    if (status == STATUS_OK)
        status = file_join(below, sizeof(below), path, RUN_DISCARDED_FOLDER, err);
    if (status == STATUS_OK && stat(below, &info) == 0 && S_ISDIR(info.st_mode))
        status = add_below(list, below, count_discarded, err);
    if (status == STATUS_OK && list->length == before)
        return error_set(err, STATUS_NOT_FOUND,
                         "'%s' holds no run: neither a run directory, nor runs/ with some in it",
                         path);
    return status;
}
