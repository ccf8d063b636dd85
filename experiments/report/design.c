/*
 * design: reads and writes design.json.  It is read strictly, because verdicts depend on it, and
 * written before the first run.
 */
#include "experiments/report/design.h"

#include "common/base/file.h"
#include "experiments/report/json_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const struct json_field fields[] = {
    {"title", FIELD_TEXT, offsetof(struct design, title), sizeof(((struct design *)0)->title), 1},
    {"level", FIELD_NUMBER, offsetof(struct design, level), 0, 1},
    {"margin", FIELD_NUMBER, offsetof(struct design, margin), 0, 1},
    {"steady_seconds", FIELD_NUMBER, offsetof(struct design, steady_seconds), 0, 1},
    {"target_accuracy", FIELD_NUMBER, offsetof(struct design, target_accuracy), 0, 0},
    {"blocks", FIELD_COUNT, offsetof(struct design, blocks), 0, 1},
    {"sweep", FIELD_TEXT, offsetof(struct design, sweep), sizeof(((struct design *)0)->sweep), 0},
    {"most_blocks", FIELD_COUNT, offsetof(struct design, most_blocks), 0, 0},
};

static enum status read_axes(const char *path, const json_t *axes, struct design *design,
                             struct error *err)
{
    size_t i;
    const json_t *axis;

    if (axes && (!json_is_array(axes) || json_array_size(axes) > DESIGN_AXES_MAX))
        return error_set(err, STATUS_DATA, "%s:1: 'axes' must be a list of at most %d", path,
                         DESIGN_AXES_MAX);
    json_array_foreach(axes, i, axis)
    {
        struct design_axis *to = &design->axes[design->axis_count++];
        const char *name = json_string_value(json_array_get(axis, 0));
        const char *value = json_string_value(json_array_get(axis, 1));

        if (!name || !value || strlen(name) >= sizeof(to->name) ||
            strlen(value) >= sizeof(to->value))
            return error_set(err, STATUS_DATA, "%s:1: 'axes' must hold a name and a value each",
                             path);
        (void)snprintf(to->name, sizeof(to->name), "%s", name);
        (void)snprintf(to->value, sizeof(to->value), "%s", value);
    }
    return STATUS_OK;
}

static enum status read_pairs(const char *path, const json_t *pairs, struct design *design,
                              struct error *err)
{
    size_t i;
    const json_t *pair;

    if (!json_is_array(pairs) || json_array_size(pairs) > DESIGN_PAIRS_MAX)
        return error_set(err, STATUS_DATA, "%s:1: 'pairs' must be a list of at most %d", path,
                         DESIGN_PAIRS_MAX);
    json_array_foreach(pairs, i, pair)
    {
        for (size_t k = 0; k < 2; k++) {
            const char *name = json_string_value(json_array_get(pair, k));
            char *to = design->pairs[i].names[k];

            if (!name || strlen(name) >= sizeof(design->pairs[i].names[k]))
                return error_set(err, STATUS_DATA, "%s:1: 'pairs' must hold two names each", path);
            memcpy(to, name, strlen(name) + 1);
        }
        design->pair_count++;
    }
    return STATUS_OK;
}

struct design design_default(void)
{
    return (struct design){.level = DESIGN_LEVEL,
                           .margin = DESIGN_MARGIN,
                           .steady_seconds = DESIGN_SECONDS,
                           .target_accuracy = (double)NAN};
}

enum status design_read(const char *folder, struct design *ret, bool *ret_found, struct error *err)
{
    struct design design = design_default();
    char path[4096];
    struct json_position position = {path, 1};
    json_t *object = NULL;
    enum status status = file_join(path, sizeof(path), folder, DESIGN_FILE, err);

    *ret_found = false;
    if (status == STATUS_OK)
        status = json_file_read(path, &object, err);
    if (status == STATUS_NOT_FOUND) {
        *ret = design;
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        status = json_fields_read(object, &position, fields, sizeof(fields) / sizeof(fields[0]),
                                  &design, err);
    if (status == STATUS_OK)
        status = read_pairs(path, json_object_get(object, "pairs"), &design, err);
    if (status == STATUS_OK)
        status = read_axes(path, json_object_get(object, "axes"), &design, err);
    json_decref(object);
    if (status != STATUS_OK)
        return status;
    if (!(design.level > 0 && design.level < 1 && design.margin > 0 && design.margin < 1))
        return error_set(err, STATUS_DATA, "%s:1: 'level' and 'margin' must lie between 0 and 1",
                         path);
    *ret = design;
    *ret_found = true;
    return STATUS_OK;
}

static void add_axes(const struct design *design, struct strbuf *text)
{
    if (design->axis_count == 0)
        return;
    strbuf_add(text, ",\"sweep\":");
    strbuf_add_json(text, design->sweep);
    strbuf_add(text, ",\"axes\":[");
    for (size_t i = 0; i < design->axis_count; i++) {
        strbuf_add(text, i > 0 ? ",[" : "[");
        strbuf_add_json(text, design->axes[i].name);
        strbuf_add(text, ",");
        strbuf_add_json(text, design->axes[i].value);
        strbuf_add(text, "]");
    }
    strbuf_add(text, "]");
}

enum status design_write(const char *folder, const struct design *design, struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    char path[4096];
    enum status status = file_join(path, sizeof(path), folder, DESIGN_FILE, err);

    if (status != STATUS_OK)
        return status;
    strbuf_add(&text, "{\"schema\":1,\"title\":");
    strbuf_add_json(&text, design->title);
    strbuf_addf(&text,
                ",\"level\":%.17g,\"margin\":%.17g,\"steady_seconds\":%.17g,\"blocks\":%" PRIu64,
                design->level, design->margin, design->steady_seconds, design->blocks);
    if (design_looks(design) > 1)
        strbuf_addf(&text, ",\"most_blocks\":%" PRIu64, design->most_blocks);
    if (isfinite(design->target_accuracy))
        strbuf_addf(&text, ",\"target_accuracy\":%.17g", design->target_accuracy);
    strbuf_add(&text, ",\"pairs\":[");
    for (size_t i = 0; i < design->pair_count; i++) {
        strbuf_add(&text, i > 0 ? ",[" : "[");
        strbuf_add_json(&text, design->pairs[i].names[0]);
        strbuf_add(&text, ",");
        strbuf_add_json(&text, design->pairs[i].names[1]);
        strbuf_add(&text, "]");
    }
    strbuf_add(&text, "]");
    add_axes(design, &text);
    strbuf_add(&text, "}\n");
    status = file_write_text(path, &text, err);
    strbuf_release(&text);
    return status;
}

uint64_t design_step(const struct design *design)
{
    return (design->blocks + 1) / 2;
}

uint64_t design_looks(const struct design *design)
{
    const uint64_t step = design_step(design);

    if (step == 0 || design->most_blocks <= design->blocks)
        return 1;
    return 1 + (design->most_blocks - design->blocks + step - 1) / step;
}

double design_level(const struct design *design)
{
    return design->level / (double)design_looks(design);
}

static bool is_exact(const char *compression)
{
    static const char *const names[] = {"", "none", "rows", "named"};

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(compression, names[i]) == 0)
            return true;
    return false;
}

bool design_is_lockstep(const char *(*option)(const void *mode, const char *name), const void *mode)
{
    const char *sync = option(mode, "sync"), *consistency = option(mode, "consistency");

    if (strcmp(sync, "ps") == 0)
        return strcmp(consistency, "asp") != 0 &&
               (strcmp(consistency, "ssp") != 0 || strcmp(option(mode, "staleness"), "0") == 0) &&
               strtoul(option(mode, "backup-workers"), NULL, 10) == 0;
    return strcmp(sync, "local") != 0;
}

bool design_trades_accuracy(const char *(*option)(const void *mode, const char *name),
                            const void *mode)
{
    const char *sync = option(mode, "sync");

    if (strcmp(sync, "ps") == 0)
        return !design_is_lockstep(option, mode) || !is_exact(option(mode, "compression")) ||
               !is_exact(option(mode, "compression-down"));
    return strcmp(sync, "local") != 0 && !is_exact(option(mode, "comm-hook"));
}

double design_log_margin(double margin)
{
    return -log1p(-margin);
}

bool design_has_pair(const struct design *design, const char *a, const char *b)
{
    for (size_t i = 0; i < design->pair_count; i++) {
        const struct design_pair *p = &design->pairs[i];

        if ((strcmp(p->names[0], a) == 0 && strcmp(p->names[1], b) == 0) ||
            (strcmp(p->names[0], b) == 0 && strcmp(p->names[1], a) == 0))
            return true;
    }
    return false;
}
