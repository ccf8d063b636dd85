/*
 * run_plan: makes the plan as JSON, compares it with the old one member by member, and finds the
 * runs that are there.
 */
#include "experiments/compare/run_plan.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "experiments/report/json_fields.h"
#include "experiments/report/run.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLAN_FILE     "plan.json"
#define HASHED_MAX    ((size_t)64 << 20) /* of a larger file its size and time stand for it */
#define CHANGES_SHOWN 8

/* ---- making */

/* FNV-1a over the bytes, in hexadecimal. */
static enum status hash_file(const char *path, char *text, size_t size, struct error *err)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    char *data = NULL;
    size_t bytes = 0;
    enum status status = file_read(path, HASHED_MAX, &data, &bytes, err);

    for (size_t i = 0; i < bytes && status == STATUS_OK; i++)
        hash = (hash ^ (unsigned char)data[i]) * UINT64_C(1099511628211);
    free(data);
    (void)snprintf(text, size, "%016" PRIx64, hash);
    return status;
}

/* What stands for the contents of a regular file becomes a member of `files`; other paths are
 * passed over. */
static enum status add_file(json_t *files, const char *name, const char *path, struct error *err)
{
    struct stat info;
    char hash[80];
    enum status status = STATUS_OK;

    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || json_object_get(files, name))
        return STATUS_OK;
    if ((size_t)info.st_size <= HASHED_MAX)
        status = hash_file(path, hash, sizeof(hash), err);
    else
        (void)snprintf(hash, sizeof(hash), "%jd bytes of %jd.%09ld", (intmax_t)info.st_size,
                       (intmax_t)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    if (status == STATUS_OK && json_object_set_new(files, name, json_string(hash)) != 0)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a plan");
    return status;
}

/* A value that names a file ("./x.delays") or ends in one after a colon ("profile:x.json"). */
static enum status add_files_of(json_t *files, const char *word, struct error *err)
{
    const char *value = strchr(word, '=');
    const char *colon = value ? strchr(value, ':') : NULL;
    enum status status = value ? add_file(files, value + 1, value + 1, err) : STATUS_OK;

    return status == STATUS_OK && colon ? add_file(files, colon + 1, colon + 1, err) : status;
}

/* The command line without the folder of the programs: hashes stand for them. */
static enum status add_mode(const struct experiment *e, const struct experiment_mode *mode,
                            json_t *modes, json_t *files, struct error *err)
{
    struct text_list words = {0};
    json_t *command = json_array();
    enum status status = STATUS_OK;

    experiment_run_words(e, mode, ".", NULL, NULL, &words);
    for (size_t i = 0; i < words.length && status == STATUS_OK; i++) {
        (void)json_array_append_new(command, json_string(words.texts[i]));
        status = add_files_of(files, words.texts[i], err);
    }
    if (status == STATUS_OK && (words.failed || json_array_size(command) != words.length ||
                                json_object_set(modes, mode->name, command) != 0))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a plan");
    json_decref(command);
    text_list_release(&words);
    return status;
}

/* Without axes the one cell has no name. */
static const char *cell_key(const struct cell *cell)
{
    return cell->name[0] != '\0' ? cell->name : "all";
}

static enum status add_cells(struct compare_sweep *s, json_t *cells, json_t *files,
                             struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < s->count && status == STATUS_OK; i++) {
        const struct experiment *e = compare_sweep_experiment(s, i);
        json_t *modes = json_object();

        for (size_t m = 0; m < e->mode_count && status == STATUS_OK; m++)
            status = add_mode(e, &e->modes[m], modes, files, err);
        if (status == STATUS_OK && json_object_set(cells, cell_key(&s->cells[i].cell), modes) != 0)
            status = error_set(err, STATUS_NO_MEMORY, "no memory for a plan");
        json_decref(modes);
    }
    return status;
}

static json_t *make_pairs(const struct design *d)
{
    json_t *pairs = json_array();

    for (size_t i = 0; i < d->pair_count; i++)
        (void)json_array_append_new(
            pairs, json_sprintf("%s, %s", d->pairs[i].names[0], d->pairs[i].names[1]));
    return pairs;
}

static enum status make_plan(struct compare_sweep *s, json_t **ret, struct error *err)
{
    static const char *const programs[] = {"sparring", "sparring-worker", "sparring-server"};
    const struct experiment *e = s->experiment;
    const struct design *d = &e->design;
    json_t *files = json_object(), *cells = json_object();
    enum status status = STATUS_OK;

    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]) && status == STATUS_OK; i++) {
        char path[4096];

        status = file_join(path, sizeof(path), s->programs, programs[i], err);
        if (status == STATUS_OK)
            status = add_file(files, programs[i], path, err);
    }
    if (status == STATUS_OK)
        status = add_cells(s, cells, files, err);
    *ret = json_pack("{s:i, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:O, s:O}", "schema", 1, "seed",
                     (json_int_t)e->seed, "repeats", (json_int_t)e->repeats, "until_decided",
                     (json_int_t)d->most_blocks, "deadline", (json_int_t)e->deadline_seconds,
                     "margin", json_sprintf("%g", d->margin), "target_accuracy",
                     json_sprintf("%g", d->target_accuracy), "verdict", make_pairs(d), "files",
                     files, "cells", cells);
    json_decref(files);
    json_decref(cells);
    if (status == STATUS_OK && !*ret)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a plan");
    return status;
}

/* ---- comparing */

static void add_change(struct text_list *changes, const char *where, const char *name,
                       const json_t *before, const json_t *now)
{
    char *texts[2] = {before ? json_dumps(before, JSON_ENCODE_ANY) : NULL,
                      now ? json_dumps(now, JSON_ENCODE_ANY) : NULL};

    text_list_addf(changes, "%s%s: %s, was %s", where, name, texts[1] ? texts[1] : "nothing",
                   texts[0] ? texts[0] : "nothing");
    free(texts[0]);
    free(texts[1]);
}

static bool has_element(const json_t *array, const json_t *element)
{
    size_t i;
    const json_t *other;

    json_array_foreach(array, i, other) if (json_equal(element, other)) return true;
    return false;
}

/* The words of one list that the other lacks. */
static void compare_words(const char *where, const char *name, const json_t *before,
                          const json_t *now, struct text_list *changes)
{
    const json_t *sides[2] = {before, now};
    const size_t known = changes->length;
    size_t i;
    const json_t *word;

    for (int k = 0; k < 2; k++)
        json_array_foreach(sides[k], i, word) if (!has_element(sides[1 - k], word))
            text_list_addf(changes, "%s%s: %s %s", where, name, k ? "now has" : "no longer has",
                           json_string_value(word));
    if (json_array_size(before) != json_array_size(now) && changes->length == known)
        text_list_addf(changes, "%s%s: other words", where, name);
}

static void compare_objects(const char *where, json_t *before, json_t *now, bool may_grow,
                            struct text_list *changes)
{
    const char *name;
    json_t *value;

    json_object_foreach(before, name, value)
    {
        json_t *other = json_object_get(now, name);
        char below[512];

        (void)snprintf(below, sizeof(below), "%s%.100s: ", where, name);
        if (json_is_object(value) && json_is_object(other))
            compare_objects(below, value, other,
                            where[0] == '\0' &&
                                (strcmp(name, "cells") == 0 || strcmp(name, "files") == 0),
                            changes);
        else if (json_is_array(value) && json_is_array(other))
            compare_words(where, name, value, other, changes);
        else if (!json_equal(value, other))
            add_change(changes, where, name, value, other);
    }
    json_object_foreach(now, name, value) if (!may_grow && !json_object_get(before, name))
        add_change(changes, where, name, NULL, value);
}

static enum status compare_plans(const char *path, json_t *before, json_t *now, struct error *err)
{
    struct text_list changes = {0};
    struct strbuf text = STRBUF_INIT;
    enum status status = STATUS_OK;

    compare_objects("", before, now, false, &changes);
    for (size_t i = 0; i < changes.length && i < CHANGES_SHOWN; i++)
        strbuf_addf(&text, "\n  %s", changes.texts[i]);
    if (changes.length > CHANGES_SHOWN)
        strbuf_addf(&text, "\n  and %zu more", changes.length - CHANGES_SHOWN);
    if (changes.length > 0)
        status =
            error_set(err, STATUS_CONFIG, "'%s' is the plan of other runs; choose another --out:%s",
                      path, text.text);
    strbuf_release(&text);
    text_list_release(&changes);
    return status;
}

/* ---- the runs that are there */

static bool is_finished(const char *folder, bool *ret_is_good)
{
    char path[4096];
    json_t *attempt = NULL;
    const char *outcome;
    bool finished;

    if (file_join(path, sizeof(path), folder, ATTEMPT_FILE, NULL) != STATUS_OK ||
        json_file_read(path, &attempt, NULL) != STATUS_OK)
        return false;
    outcome = json_string_value(json_object_get(attempt, "outcome"));
    *ret_is_good = outcome && strcmp(outcome, "ok") == 0;
    finished = outcome && outcome[0] != '\0' && strncmp(outcome, "stopped", 7) != 0;
    json_decref(attempt);
    return finished;
}

static enum status run_folder(const struct sweep_cell *cell, const struct experiment_mode *mode,
                              size_t block, char *text, size_t size, struct error *err)
{
    char name[128];

    (void)snprintf(name, sizeof(name), "runs/%s-%zu", mode->name, block);
    return file_join(text, size, cell->out, name, err);
}

/* Move the runs of a block that is not whole out of the way. */
static enum status set_aside(const struct sweep_cell *cell, const struct experiment *e,
                             size_t block, struct error *err)
{
    bool has_moved = false;
    enum status status = STATUS_OK;

    for (size_t m = 0; m < e->mode_count && status == STATUS_OK; m++) {
        char folder[4096];

        status = run_folder(cell, &e->modes[m], block, folder, sizeof(folder), err);
        if (status != STATUS_OK || access(folder, F_OK) != 0)
            continue;
        status = experiment_run_put_aside(cell->out, "lost", strrchr(folder, '/') + 1, err);
        has_moved = true;
    }
    if (has_moved)
        log_info(
            "%s%sblock %zu runs again, as it or one before it was not whole; what ran of it is "
            "in %s/lost",
            cell->cell.name, cell->cell.name[0] != '\0' ? ": " : "", block + 1, cell->out);
    return status;
}

static enum status find_blocks(struct compare_sweep *s, size_t index, struct error *err)
{
    struct sweep_cell *cell = &s->cells[index];
    const struct experiment *e = compare_sweep_experiment(s, index);
    size_t most =
        e->design.most_blocks > e->design.blocks ? e->design.most_blocks : e->design.blocks;
    bool is_whole = true;
    enum status status = STATUS_OK;

    for (cell->blocks = 0; cell->blocks < most && is_whole; cell->blocks += is_whole) {
        size_t good = 0;

        for (size_t m = 0; m < e->mode_count && is_whole; m++) {
            char folder[4096];
            bool is_good = false;

            is_whole = run_folder(cell, &e->modes[m], cell->blocks, folder, sizeof(folder), err) ==
                           STATUS_OK &&
                       is_finished(folder, &is_good);
            good += is_good;
        }
        s->good_before += is_whole ? good : 0;
    }
    for (size_t b = cell->blocks; b < most && status == STATUS_OK; b++)
        status = set_aside(cell, e, b, err);
    return status;
}

/* STATUS_EXISTS when OUT/runs holds runs, of which nothing is known. */
static enum status check_no_runs(const char *out, struct error *err)
{
    char runs[4096];
    DIR *folder;
    const struct dirent *entry;
    bool is_empty = true;
    enum status status = file_join(runs, sizeof(runs), out, "runs", err);

    folder = status == STATUS_OK ? opendir(runs) : NULL;
    if (!folder)
        return status;
    while ((entry = readdir(folder)) != NULL)
        is_empty = is_empty && entry->d_name[0] == '.';
    (void)closedir(folder);
    if (is_empty)
        return STATUS_OK;
    return error_set(err, STATUS_EXISTS,
                     "'%s' holds runs already: choose another --out, or 'sparring report %s' for "
                     "the report of these",
                     runs, out);
}

static enum status write_plan(const struct compare_sweep *s, const char *path, const json_t *plan,
                              struct error *err)
{
    char *text = json_dumps(plan, JSON_INDENT(1));
    enum status status;

    if (!text)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a plan");
    status = file_make_folder(s->out, err);
    if (status == STATUS_OK)
        status = file_write_atomic(path, text, strlen(text), err);
    free(text);
    return status;
}

enum status run_plan_resume(struct compare_sweep *s, struct error *err)
{
    char path[4096];
    json_t *before = NULL, *now = NULL;
    enum status status = file_join(path, sizeof(path), s->out, PLAN_FILE, err);

    if (status == STATUS_OK)
        status = make_plan(s, &now, err);
    if (status == STATUS_OK)
        status = json_file_read(path, &before, err);
    if (status == STATUS_OK) {
        status = compare_plans(path, before, now, err);
        for (size_t i = 0; i < s->count && status == STATUS_OK; i++)
            status = find_blocks(s, i, err);
    } else if (status == STATUS_NOT_FOUND) {
        status = check_no_runs(s->out, err);
    }
    if (status == STATUS_OK)
        status = write_plan(s, path, now, err);
    json_decref(before);
    json_decref(now);
    return status;
}
