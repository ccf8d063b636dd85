/*
 * axes: ranges, conditions, and the product of the axes.
 */
#include "experiments/compare/axes.h"

#include "common/base/memory.h"
#include "common/base/parse.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- values */

static enum status find_or_add_axis(struct axes *a, const char *name, struct axis **ret,
                                    struct error *err)
{
    for (size_t i = 0; i < a->length; i++) {
        *ret = &a->items[i];
        if (strcmp(a->items[i].name, name) == 0)
            return STATUS_OK;
    }
    if (a->length == AXES_MAX)
        return error_set(err, STATUS_CONFIG, "is one axis too many (%d)", AXES_MAX);
    *ret = &a->items[a->length++];
    (void)snprintf((*ret)->name, sizeof((*ret)->name), "%s", name);
    return STATUS_OK;
}

static enum status add_one(struct axis *axis, const char *value, struct error *err)
{
    if (axis->length == AXIS_VALUES_MAX)
        return error_set(err, STATUS_CONFIG, "has more than %d values", AXIS_VALUES_MAX);
    if (strlen(value) >= sizeof(axis->values[0]))
        return error_set(err, STATUS_CONFIG, "has a value of more than %zu bytes",
                         sizeof(axis->values[0]) - 1);
    for (size_t i = 0; i < axis->length; i++)
        if (strcmp(axis->values[i], value) == 0)
            return error_set(err, STATUS_CONFIG, "has the value '%s' twice", value);
    (void)snprintf(axis->values[axis->length++], sizeof(axis->values[0]), "%s", value);
    return STATUS_OK;
}

/* "16..256 *2" or "1..9 +2". */
static bool read_range(const char *text, int64_t *first, int64_t *last, char *operation,
                       int64_t *by)
{
    int end = 0;

    return sscanf(text, "%" SCNd64 "..%" SCNd64 " %1[*+]%" SCNd64 "%n", first, last, operation, by,
                  &end) == 4 &&
           text[end] == '\0';
}

enum status axes_add_value(struct axes *a, const char *name, const char *value, struct error *err)
{
    struct axis *axis = NULL;
    int64_t at, last, by;
    char operation[2];
    enum status status = find_or_add_axis(a, name, &axis, err);

    if (status != STATUS_OK)
        return status;
    if (!read_range(value, &at, &last, operation, &by))
        return add_one(axis, value, err);
    if (at > last || at < INT32_MIN || last > INT32_MAX || by < 1 || by > INT32_MAX ||
        (operation[0] == '*' && (by < 2 || at < 1)))
        return error_set(err, STATUS_CONFIG,
                         "is a range without end or values, '%s': as 1..9 +2 or 16..256 *2", value);
    for (; at <= last && status == STATUS_OK; at = operation[0] == '*' ? at * by : at + by) {
        char text[32];

        (void)snprintf(text, sizeof(text), "%" PRId64, at);
        status = add_one(axis, text, err);
    }
    return status;
}

/* ---- conditions */

static bool is_operation(const char *text)
{
    static const char *const operations[] = {"<", "<=", "==", "!=", ">=", ">"};

    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
        if (strcmp(operations[i], text) == 0)
            return true;
    return false;
}

enum status axes_add_condition(struct axes *a, const char *text, struct error *err)
{
    struct axes_condition *c = &a->conditions[a->condition_count];
    int end = 0;

    if (a->condition_count == AXES_CONDITIONS_MAX)
        return error_set(err, STATUS_CONFIG, "is one condition too many (%d)", AXES_CONDITIONS_MAX);
    if (sscanf(text, " %63[^<>=! ] %3[<>=!] %63[^<>=! ] %n", c->sides[0], c->operation, c->sides[1],
               &end) != 3 ||
        text[end] != '\0' || !is_operation(c->operation))
        return error_set(err, STATUS_CONFIG,
                         "must be a condition on axes, as 'servers <= nproc', not '%s'", text);
    a->condition_count++;
    return STATUS_OK;
}

const char *axes_value(const struct axes *a, const struct cell *cell, size_t axis)
{
    return a->items[axis].values[cell->values[axis]];
}

/* The value of an axis, or the text itself, which must then be a number. */
static enum status find_side(const struct axes *a, const struct cell *cell, const char *side,
                             const char **ret, struct error *err)
{
    double number;

    for (size_t i = 0; i < a->length; i++) {
        *ret = axes_value(a, cell, i);
        if (strcmp(a->items[i].name, side) == 0)
            return STATUS_OK;
    }
    *ret = side;
    if (parse_double(side, &number))
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG, "where: '%s' is neither an axis nor a number", side);
}

static bool holds(double difference, const char *operation)
{
    return (difference < 0 && (operation[0] == '<' || operation[0] == '!')) ||
           (difference > 0 && (operation[0] == '>' || operation[0] == '!')) ||
           (difference == 0 && operation[1] == '=' && operation[0] != '!');
}

static enum status check_condition(const struct axes *a, const struct cell *cell,
                                   const struct axes_condition *c, bool *ret, struct error *err)
{
    const char *sides[2];
    double numbers[2];

    for (int i = 0; i < 2; i++) {
        enum status status = find_side(a, cell, c->sides[i], &sides[i], err);

        if (status != STATUS_OK)
            return status;
    }
    if (parse_double(sides[0], &numbers[0]) && parse_double(sides[1], &numbers[1])) {
        *ret = holds(numbers[0] - numbers[1], c->operation);
        return STATUS_OK;
    }
    if (c->operation[0] == '<' || c->operation[0] == '>')
        return error_set(err, STATUS_CONFIG, "where: '%s' and '%s' are not numbers to compare",
                         sides[0], sides[1]);
    *ret = holds(strcmp(sides[0], sides[1]) == 0 ? 0 : 1, c->operation);
    return STATUS_OK;
}

/* ---- cells */

/* Characters that a folder's name should not have become '_'. */
static void make_name(const struct axes *a, struct cell *cell)
{
    static const char kept[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                               "_-.=,+";
    size_t length = 0;

    for (size_t i = 0; i < a->length && length < sizeof(cell->name); i++)
        length += (size_t)snprintf(cell->name + length, sizeof(cell->name) - length, "%s%s=%s",
                                   i > 0 ? "," : "", a->items[i].name, axes_value(a, cell, i));
    for (char *p = cell->name + strspn(cell->name, kept); *p; p += strspn(p, kept))
        *p = '_';
}

static enum status check_names(const struct cell *cells, size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(cells[i].name, cells[k].name) == 0)
                return error_set(err, STATUS_CONFIG,
                                 "two cells would have the folder '%s': use shorter or simpler "
                                 "values",
                                 cells[i].name);
    return STATUS_OK;
}

/* The next combination; false after the last one. */
static bool advance(const struct axes *a, struct cell *cell)
{
    for (size_t i = a->length; i-- > 0;) {
        if (++cell->values[i] < a->items[i].length)
            return true;
        cell->values[i] = 0;
    }
    return false;
}

static enum status keep_cells(const struct axes *a, struct cell *cells, size_t *ret_count,
                              struct error *err)
{
    struct cell cell = {0};
    enum status status = STATUS_OK;

    *ret_count = 0;
    do {
        bool is_kept = true;

        for (size_t i = 0; i < a->condition_count && is_kept && status == STATUS_OK; i++)
            status = check_condition(a, &cell, &a->conditions[i], &is_kept, err);
        if (is_kept && status == STATUS_OK && *ret_count == CELLS_MAX)
            status = error_set(err, STATUS_CONFIG, "the axes have more than %d cells", CELLS_MAX);
        if (is_kept && status == STATUS_OK) {
            make_name(a, &cell);
            cells[(*ret_count)++] = cell;
        }
    } while (status == STATUS_OK && advance(a, &cell));
    if (status == STATUS_OK && *ret_count == 0)
        status = error_set(err, STATUS_CONFIG, "where: no cell meets all conditions");
    return status == STATUS_OK ? check_names(cells, *ret_count, err) : status;
}

enum status axes_make_cells(const struct axes *a, struct cell **ret_cells, size_t *ret_count,
                            struct error *err)
{
    enum status status = mem_calloc(CELLS_MAX, sizeof(**ret_cells), "cells", ret_cells, err);

    return status == STATUS_OK ? keep_cells(a, *ret_cells, ret_count, err) : status;
}
