/*
 * figure: the pictures of a report, each with the table of the numbers that it shows.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_FIGURE_H
#define SPARRING_EXPERIMENTS_REPORT_FIGURE_H

#include "common/base/strbuf.h"
#include "common/base/text_list.h"
#include "experiments/report/comparison.h"

#include <stddef.h>

#define FIGURE_COUNT_MAX 10

struct legend_entry {
    char label[160];
    char color[8]; /* "#0072b2" */
};

struct figure {
    const char *name;          /* "throughput"; an identifier in the page */
    char title[256];           /* what it shows */
    struct strbuf description; /* for screen readers */
    struct strbuf script;      /* of gnuplot, without terminal and output */
    struct strbuf svg;         /* "" without gnuplot */
    struct strbuf caption;     /* how to read it */
    unsigned height;
    struct text_list texts, tool_tips; /* see gnuplot.h */
    struct legend_entry legend[24];
    size_t legend_count;
    /* The table: headings.length columns, then cells row by row. */
    struct text_list headings, cells;
};

struct figure_set {
    struct figure figures[FIGURE_COUNT_MAX];
    size_t count;
    char problem[512]; /* why there are no pictures, or not all; "" */
};

/* Make and draw every figure for which the runs have data.  A missing gnuplot is no failure: it is
 * noted in `problem`, and the tables remain. */
enum status figure_set_make(const struct comparison *c, struct figure_set *ret, struct error *err);
void figure_set_release(struct figure_set *set);

/* The same of a sweep: for every pair a map over the first two axes of numbers, then the throughput
 * of the modes along every such axis; one figure for each combination of the other axes' values,
 * FIGURE_COUNT_MAX at most. */
struct overview;
enum status figure_set_make_axes(const struct overview *o, struct figure_set *ret,
                                 struct error *err);

/* The colour of a mode, the same in all figures and in the page's tables. */
const char *figure_mode_color(const struct comparison *c, size_t mode);

/* That of the mode with this role which follows so many contenders. */
const char *figure_color(enum mode_role role, size_t contenders);

/* The dash type of gnuplot for a line of a mode: contenders are solid, controls are dashed. */
int figure_mode_dash(const struct comparison *c, size_t mode);

/* ---- shared by figure*.c ---- */

#define FIGURE_GREY "#9e9e9e" /* of what is no mode's */

/* Append a figure to the set, and draw it once it is made; without cells it is dropped again. */
struct figure *figure_set_begin(struct figure_set *set);
enum status figure_set_end(struct figure_set *set, struct error *err);

/* Add the maps of a sweep to the set. */
enum status figure_add_maps(const struct overview *o, struct figure_set *set, struct error *err);

enum status figure_throughput(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_split(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_waiting(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_bytes(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_loss_time(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_loss_step(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_step_times(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_staleness(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_cost(const struct comparison *c, struct figure *f, struct error *err);
enum status figure_faults(const struct comparison *c, struct figure *f, struct error *err);

/* Script lines that all figures share: no key, quiet axes, grid along `grid_axis` ('x' or 'y'). */
void figure_begin(struct figure *f, unsigned height, double left, char grid_axis);

void figure_set_title(struct figure *f, const char *title);

/* A mode's entry in the legend. */
void figure_add_legend(struct figure *f, const char *label, const char *color);

/* Label cut to what fits left of the axis. */
void figure_add_text(struct figure *f, const char *label);

#endif
