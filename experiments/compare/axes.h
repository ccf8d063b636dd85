/*
 * axes: the settings that an experiment file sweeps.  Every combination of their values that meets
 * all conditions is a cell: an experiment of its own, with the same modes.
 *
 *   axes:
 *     nproc: [1, 2, 4, 8]
 *     servers: [1, 2]             # of the modes that have servers
 *     batch-size: 16..256 *2      # a range: 16, 32, ..., 256; or 1..9 +2
 *   where: [servers <= nproc]
 *
 * Pure functions, apart from the memory of the list of cells.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_AXES_H
#define SPARRING_EXPERIMENTS_COMPARE_AXES_H

#include "common/base/error.h"
#include "experiments/report/design.h"

#include <stdbool.h>
#include <stddef.h>

#define AXES_MAX            DESIGN_AXES_MAX
#define AXES_CONDITIONS_MAX 16
#define AXIS_VALUES_MAX     64
#define CELLS_MAX           1000
#define CELL_NAME_MAX       128

struct axis {
    char name[64]; /* "nproc", "servers", or an option of sparring-worker or launch */
    char values[AXIS_VALUES_MAX][256];
    size_t length;
    unsigned line; /* of the file, of its first value; set by the reader of the file */
};

struct axes_condition {
    char sides[2][64]; /* axes or numbers */
    char operation[4]; /* <, <=, ==, !=, >= or > */
};

struct axes {
    struct axis items[AXES_MAX];
    size_t length;
    struct axes_condition conditions[AXES_CONDITIONS_MAX];
    size_t condition_count;
};

/* One value of each axis. */
struct cell {
    size_t values[AXES_MAX];
    char name[CELL_NAME_MAX]; /* "nproc=4,batch-size=16": for a folder; unique */
};

/* Add one value, or all values of a range, to the axis of that name, which is made when it is
 * missing; one condition.  STATUS_CONFIG with what is wrong, for the caller to prefix. */
enum status axes_add_value(struct axes *a, const char *name, const char *value, struct error *err);
enum status axes_add_condition(struct axes *a, const char *text, struct error *err);

/* The cells, owned by the caller, the last axis running fastest; without axes one cell named "".
 * STATUS_CONFIG: a condition names no axis, compares texts by size, or leaves no cell; or there are
 * more than CELLS_MAX. */
enum status axes_make_cells(const struct axes *a, struct cell **ret_cells, size_t *ret_count,
                            struct error *err);

const char *axes_value(const struct axes *a, const struct cell *cell, size_t axis);

#endif
