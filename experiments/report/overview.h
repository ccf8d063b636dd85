/*
 * overview: the cells of a sweep side by side, measured or predicted: who wins in each, and where
 * along an axis the winner changes.  Written as index.html and cells.csv beside the cells' own
 * reports, and as text.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_OVERVIEW_H
#define SPARRING_EXPERIMENTS_REPORT_OVERVIEW_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "experiments/report/comparison.h"

#include <stddef.h>

/* One registered pair in one cell. */
struct overview_row {
    size_t cell;
    const char *values[DESIGN_AXES_MAX]; /* borrowed */
    char labels[2][160], colors[2][8];   /* of the modes */
    double throughput[2];                /* medians */
    enum ratio_state state;
    double value; /* of the first mode over the second, as in struct ratio */
    struct interval interval;
    bool is_to_target;
    double p;
    size_t blocks;
    double measured; /* of a predicted row: the measured ratio, or NaN */
};

/* Throughput of one mode in one cell, for the figures. */
struct overview_point {
    const char *values[DESIGN_AXES_MAX]; /* borrowed */
    char label[160], color[8];           /* of the mode; "#0072b2" */
    int dash;
    double low, median, high; /* quartiles of its runs, samples/s */
};

struct overview {
    const char *title, *command; /* that makes the page again */
    bool is_predicted;
    const char *axes[DESIGN_AXES_MAX]; /* borrowed */
    size_t axis_count;
    struct overview_row *rows; /* owned */
    size_t length, capacity;
    struct overview_point *points; /* owned */
    size_t point_count, point_capacity;
};

/* Add the registered pairs of the next cell (without a design all pairs), and its modes.  c is NULL
 * for a cell without runs.  The design's axes are borrowed.  STATUS_NO_MEMORY only. */
enum status overview_add(struct overview *o, size_t cell, const struct design *design,
                         const struct comparison *c, struct error *err);
enum status overview_add_row(struct overview *o, const struct overview_row *row, struct error *err);
enum status overview_add_point(struct overview *o, const struct overview_point *point,
                               struct error *err);
void overview_release(struct overview *o);

/* A value of an axis as a number: 16, 64K, 1gbit.  False: it is another text. */
bool overview_number(const char *text, double *ret);

/* Do two cells differ in no other axis? */
bool overview_is_line(const struct overview *o, const char *const *a, const char *const *b,
                      size_t axis);

/* "ring 1.32 (1.21 to 1.44)", "equivalent", "undecided: ...", ... */
void overview_result_text(const struct overview_row *row, char *text, size_t size);

/* Where along an axis, all else equal, one mode is faster before and the other after; one line
 * each. */
void overview_add_flips(const struct overview *o, struct text_list *flips);

/* Write FOLDER/index.html and FOLDER/cells.csv; folders[cell] is that of a cell, relative to
 * FOLDER, or NULL for one without a report.  *ret_problem: why there are no figures, "". */
enum status overview_write(const struct overview *o, const char *folder, const char *const *folders,
                           char *ret_problem, size_t problem_size, struct error *err);

/* For a terminal of 80 columns. */
void overview_summarise(const struct overview *o, struct strbuf *out);

#endif
