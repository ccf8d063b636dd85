/*
 * experiment_cell: the cells of a swept experiment, as experiments.
 */
#include "experiments/compare/experiment.h"

#include "common/base/parse.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool sets_option(const struct experiment_options *options, const char *name)
{
    for (size_t i = 0; i < options->length; i++)
        if (strcmp(options->items[i].name, name) == 0)
            return true;
    return false;
}

static bool mode_sets(const struct experiment_mode *mode, const char *name)
{
    if (strcmp(name, "nproc") == 0)
        return mode->nproc > 0;
    if (strcmp(name, "servers") == 0)
        return mode->servers > 1;
    return sets_option(&mode->options, name);
}

static enum status check_axis(const struct experiment *e, const char *name, struct error *err)
{
    bool is_servers = strcmp(name, "servers") == 0;
    bool any_servers = false;

    for (size_t i = 0; i < e->mode_count; i++) {
        const struct experiment_mode *mode = &e->modes[i];

        any_servers |= mode->servers > 0;
        if (mode_sets(mode, name))
            return error_set(err, STATUS_CONFIG, "%s:%u: mode '%s' sets the axis '%s' itself%s",
                             e->name, mode->line, mode->name, name,
                             is_servers ? " (1 stands for the axis)" : "");
    }
    if (sets_option(&e->options, name))
        return error_set(err, STATUS_CONFIG, "%s: '%s' is both an option and an axis", e->name,
                         name);
    if (is_servers && !any_servers)
        return error_set(err, STATUS_CONFIG, "%s: an axis of servers, but no mode has any",
                         e->name);
    return STATUS_OK;
}

/* A number from `low` to `high` in every value. */
static enum status check_numbers(const struct experiment *e, const struct axis *axis, int64_t low,
                                 int64_t high, struct error *err)
{
    for (size_t i = 0; i < axis->length; i++) {
        int64_t value;

        if (!parse_int64(axis->values[i], &value) || value < low || value > high)
            return error_set(err, STATUS_CONFIG,
                             "%s: axis '%s' takes whole numbers from %jd to %jd, not '%s'", e->name,
                             axis->name, (intmax_t)low, (intmax_t)high, axis->values[i]);
    }
    return STATUS_OK;
}

enum status experiment_check_axes(const struct experiment *e, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < e->axes.length && status == STATUS_OK; i++) {
        const struct axis *axis = &e->axes.items[i];

        status = check_axis(e, axis->name, err);
        if (status == STATUS_OK &&
            (strcmp(axis->name, "nproc") == 0 || strcmp(axis->name, "servers") == 0))
            status = check_numbers(e, axis, 1, EXPERIMENT_PROCESSES_MAX, err);
    }
    if (status == STATUS_OK && e->axes.length == 0 && e->axes.condition_count > 0)
        status = error_set(err, STATUS_CONFIG, "%s: 'where' goes with axes", e->name);
    if (e->options.length + e->axes.length > EXPERIMENT_OPTIONS_MAX)
        status = error_set(err, STATUS_CONFIG, "%s: options and axes are more than %d", e->name,
                           EXPERIMENT_OPTIONS_MAX);
    return status;
}

bool experiment_has_axis(const struct experiment *e, const char *name)
{
    for (size_t i = 0; i < e->axes.length; i++)
        if (strcmp(e->axes.items[i].name, name) == 0)
            return true;
    return false;
}

/* The values were checked. */
static void set_value(struct experiment *e, const char *name, const char *value, unsigned line)
{
    struct experiment_option *option;
    int64_t number = 0;
    bool is_ranks = strcmp(name, "nproc") == 0;

    if (is_ranks || strcmp(name, "servers") == 0) {
        (void)parse_int64(value, &number);
        for (size_t i = 0; i < e->mode_count; i++) {
            if (is_ranks)
                e->modes[i].nproc = number;
            else if (e->modes[i].servers > 0)
                e->modes[i].servers = number;
        }
        return;
    }
    assert(e->options.length < EXPERIMENT_OPTIONS_MAX);
    option = &e->options.items[e->options.length++];
    (void)snprintf(option->name, sizeof(option->name), "%s", name);
    (void)snprintf(option->value, sizeof(option->value), "%s", value);
    option->line = line;
}

void experiment_make_cell(const struct experiment *e, const struct cell *cell, size_t count,
                          struct experiment *ret)
{
    size_t length = strlen(e->design.title);

    *ret = *e;
    ret->axes = (struct axes){.length = 0};
    ret->design.level = e->design.level / (double)count;
    ret->design.blocks = (uint64_t)e->repeats;
    if (e->axes.length > 0)
        (void)snprintf(ret->design.title + length, sizeof(ret->design.title) - length, "%s%s",
                       length > 0 ? ": " : "", cell->name);
    (void)snprintf(ret->design.sweep, sizeof(ret->design.sweep), "%s", e->design.title);
    ret->design.axis_count = e->axes.length;
    for (size_t i = 0; i < e->axes.length; i++) {
        struct design_axis *axis = &ret->design.axes[i];

        (void)snprintf(axis->name, sizeof(axis->name), "%s", e->axes.items[i].name);
        (void)snprintf(axis->value, sizeof(axis->value), "%s", axes_value(&e->axes, cell, i));
        set_value(ret, axis->name, axis->value, e->axes.items[i].line);
    }
}

static void remove_option(struct experiment_options *options, const char *name)
{
    size_t kept = 0;

    for (size_t i = 0; i < options->length; i++)
        if (strcmp(options->items[i].name, name) != 0)
            options->items[kept++] = options->items[i];
    options->length = kept;
}

static bool sets_network(const struct experiment_options *options)
{
    bool found = false;

    for (size_t i = 0; i < options->length; i++)
        found = found || strncmp(options->items[i].name, "network-", 8) == 0;
    return found;
}

bool experiment_has_network(const struct experiment *e)
{
    bool found = sets_network(&e->options);

    for (size_t m = 0; m < e->mode_count; m++)
        found = found || sets_network(&e->modes[m].options);
    for (size_t i = 0; i < e->axes.length; i++)
        found = found || strncmp(e->axes.items[i].name, "network-", 8) == 0;
    return found;
}

void experiment_make_quick(struct experiment *e)
{
    static const char *const replaced[] = {"epochs", "steps", "network-check"};

    e->repeats = 1;
    e->design.pair_count = 0;
    e->design.most_blocks = 0;
    e->design.target_accuracy = (double)NAN;
    for (size_t i = 0; i < sizeof(replaced) / sizeof(replaced[0]); i++) {
        remove_option(&e->options, replaced[i]);
        for (size_t m = 0; m < e->mode_count; m++)
            remove_option(&e->modes[m].options, replaced[i]);
    }
    if (!experiment_has_axis(e, "steps") && !experiment_has_axis(e, "epochs"))
        set_value(e, "steps", "2", 0);
    if (experiment_has_network(e) && e->options.length + e->axes.length < EXPERIMENT_OPTIONS_MAX)
        set_value(e, "network-check", "warn", 0);
    for (size_t i = 0; i < e->axes.length; i++) {
        struct axis *axis = &e->axes.items[i];

        if (axis->length > 2) {
            memcpy(axis->values[1], axis->values[axis->length - 1], sizeof(axis->values[1]));
            axis->length = 2;
        }
    }
}
