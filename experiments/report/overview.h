/*
 * overview: the cells of a sweep side by side: who wins in each, and where along an axis the winner
 * changes.  Written as index.html and cells.csv beside the cells' own reports, and as text.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_OVERVIEW_H
#define SPARRING_EXPERIMENTS_REPORT_OVERVIEW_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "experiments/report/comparison.h"

#include <stddef.h>

#define OVERVIEW_AXES_MAX 6

/* One registered pair in one cell. */
struct overview_row {
    size_t cell;
    const char *values[OVERVIEW_AXES_MAX]; /* borrowed */
    char labels[2][160];                   /* of the modes */
    double throughput[2];                  /* medians */
    enum ratio_state state;
    double value; /* of the first mode over the second, as in struct ratio */
    struct interval interval;
    bool is_to_target;
    double p;
    size_t blocks;
};

struct overview {
    const char *title;
    const char *axes[OVERVIEW_AXES_MAX]; /* borrowed */
    size_t axis_count;
    struct overview_row *rows; /* owned */
    size_t length, capacity;
};

/* Add the registered pairs of the next cell (without a design all pairs), which has these values of
 * the axes.  c is NULL for a cell without runs.  STATUS_NO_MEMORY only. */
enum status overview_add(struct overview *o, size_t cell, const char *const *values,
                         const struct design *design, const struct comparison *c,
                         struct error *err);
void overview_release(struct overview *o);

/* "ring 1.32 (1.21 to 1.44)", "equivalent", "undecided: ...", ... */
void overview_result_text(const struct overview_row *row, char *text, size_t size);

/* Where along an axis, all else equal, one mode is faster before and the other after; one line
 * each. */
void overview_add_flips(const struct overview *o, struct text_list *flips);

/* Write FOLDER/index.html and FOLDER/cells.csv; folders[cell] is that of a cell, relative to
 * FOLDER, or NULL for one without a report. */
enum status overview_write(const struct overview *o, const char *folder, const char *const *folders,
                           struct error *err);

/* For a terminal of 80 columns. */
void overview_summarise(const struct overview *o, struct strbuf *out);

#endif
