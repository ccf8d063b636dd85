/*
 * experiment_set: "all" are the files in the folder of the default experiment.
 */
#include "experiments/compare/experiment_set.h"

#include "common/base/file.h"
#include "common/base/strbuf.h"
#include "experiments/compare/find_experiment.h"
#include "experiments/report/write.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUFFIX ".yaml"

static bool has_suffix(const char *name)
{
    const size_t length = strlen(name);

    return length > strlen(SUFFIX) && strcmp(name + length - strlen(SUFFIX), SUFFIX) == 0;
}

static int is_experiment(const struct dirent *entry)
{
    return has_suffix(entry->d_name);
}

static enum status add_all(const char *programs, struct text_list *ret, struct error *err)
{
    char path[4096];
    struct dirent **entries;
    int count;
    enum status status = find_experiment(EXPERIMENT_SET_DEFAULT, programs, path, sizeof(path), err);

    if (status != STATUS_OK)
        return status;
    *strrchr(path, '/') = '\0';
    count = scandir(path, &entries, is_experiment, alphasort);
    if (count < 0)
        return error_set_errno(err, errno, "cannot list '%s'", path);
    for (int i = 0; i < count; i++) {
        text_list_addf(ret, "%s/%s", path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return STATUS_OK;
}

/* Each has a folder of its name. */
static enum status check_names(const struct text_list *paths, struct error *err)
{
    for (size_t i = 0; i < paths->length; i++)
        for (size_t k = 0; k < i; k++) {
            char names[2][256];

            experiment_set_name(paths->texts[i], names[0], sizeof(names[0]));
            experiment_set_name(paths->texts[k], names[1], sizeof(names[1]));
            if (strcmp(names[0], names[1]) == 0)
                return error_set(err, STATUS_INVALID, "'%s' and '%s' have the same name",
                                 paths->texts[k], paths->texts[i]);
        }
    return STATUS_OK;
}

enum status experiment_set_find(const char *const *names, size_t count, const char *programs,
                                struct text_list *ret, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        char path[4096];

        if (strcmp(names[i], EXPERIMENT_SET_ALL) == 0) {
            status = add_all(programs, ret, err);
            continue;
        }
        status = find_experiment(names[i], programs, path, sizeof(path), err);
        if (status == STATUS_OK)
            text_list_addf(ret, "%s", path);
    }
    if (status == STATUS_OK && ret->failed)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the names of experiments");
    return status == STATUS_OK ? check_names(ret, err) : status;
}

void experiment_set_name(const char *path, char *text, size_t size)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;

    size_t length = strlen(name);

    if (has_suffix(name))
        length -= strlen(SUFFIX);
    (void)snprintf(text, size, "%.*s", (int)length, name);
}

static void add_row(const char *folder, const char *path, const char *result, struct strbuf *page)
{
    static const char *const pages[] = {"index.html", "report.html"};
    char name[256], report[4096];

    experiment_set_name(path, name, sizeof(name));
    strbuf_add(page, "<tr><td>");
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(report, sizeof(report), "%.3000s/%s/%s", folder, name, pages[i]);
        if (access(report, R_OK) != 0)
            continue;
        strbuf_add(page, "<a href=\"");
        strbuf_add_html(page, name);
        strbuf_addf(page, "/%s\">report</a> ", pages[i]);
        break;
    }
    strbuf_add(page, "</td><td>");
    strbuf_add_html(page, name);
    strbuf_add(page, "</td><td>");
    strbuf_add_html(page, result);
    strbuf_add(page, "</td></tr>\n");
}

enum status experiment_set_write(const char *folder, const struct text_list *paths,
                                 const struct text_list *results, struct error *err)
{
    struct strbuf page = STRBUF_INIT;
    char path[4096];
    enum status status = file_join(path, sizeof(path), folder, "index.html", err);

    write_html_top("Experiments", &page);
    strbuf_add(&page, "<div class=\"scroll\"><table class=\"wide left\"><thead><tr><th></th>"
                      "<th>experiment</th><th>result</th></tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < paths->length; i++)
        add_row(folder, paths->texts[i], i < results->length ? results->texts[i] : "has not run",
                &page);
    strbuf_add(&page, "</tbody></table></div>\n</main>\n</body>\n</html>\n");
    if (status == STATUS_OK)
        status = file_write_text(path, &page, err);
    strbuf_release(&page);
    return status;
}
