/*
 * figure_axes: figures of a sweep: the throughput of each mode along one axis; over the number of
 * ranks also the efficiency, and linear scaling as a line.
 */
#include "experiments/report/figure.h"

#include "common/base/memory.h"
#include "experiments/report/format.h"
#include "experiments/report/overview.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEIGHT    360
#define LEFT      0.115
#define RANKS     "nproc" /* the axis of ranks */
#define LOG_RATIO 8       /* of the largest to the smallest value of the axis */

/* One figure: all cells that differ in this axis alone. */
struct axis_line {
    const struct overview *overview;
    size_t axis;
    const char *const *values; /* of one of the cells */
};

static bool is_on_line(const struct axis_line *l, const struct overview_point *p)
{
    return overview_is_line(l->overview, l->values, p->values, l->axis);
}

static double value_of(const struct axis_line *l, const struct overview_point *p)
{
    double value = 0;

    (void)overview_number(p->values[l->axis], &value);
    return value;
}

static bool is_numeric(const struct overview *o, size_t axis)
{
    double value;

    for (size_t i = 0; i < o->point_count; i++)
        if (!overview_number(o->points[i].values[axis], &value))
            return false;
    return true;
}

/* Is this the first point of its line and mode, or of its line (`any_mode`)? */
static bool is_first(const struct axis_line *l, size_t index, bool any_mode)
{
    const struct overview_point *points = l->overview->points;

    for (size_t i = 0; i < index; i++)
        if (is_on_line(l, &points[i]) &&
            (any_mode || strcmp(points[i].label, points[index].label) == 0))
            return false;
    return true;
}

/* The next point of the line and mode after the value `after`; NULL: none. */
static const struct overview_point *next_point(const struct axis_line *l, const char *label,
                                               double after)
{
    const struct overview_point *next = NULL;

    for (size_t i = 0; i < l->overview->point_count; i++) {
        const struct overview_point *p = &l->overview->points[i];

        if (is_on_line(l, p) && strcmp(p->label, label) == 0 && value_of(l, p) > after &&
            (!next || value_of(l, p) < value_of(l, next)))
            next = p;
    }
    return next;
}

static bool is_over_ranks(const struct axis_line *l)
{
    return strcmp(l->overview->axes[l->axis], RANKS) == 0;
}

/* Throughput per rank, of that with the fewest ranks. */
static void add_efficiency(const struct axis_line *l, const struct overview_point *p,
                           const struct overview_point *fewest, struct figure *f)
{
    const double ideal = fewest->median / value_of(l, fewest) * value_of(l, p);

    text_list_addf(&f->cells, "%.0f %%", 100 * p->median / ideal);
}

static void add_block(const struct axis_line *l, size_t mode, const char *label, struct figure *f)
{
    const struct overview_point *p, *first = next_point(l, label, -(double)INFINITY);
    char cell[FORMAT_MAX];

    strbuf_addf(&f->script, "$mode%zu << END\n", mode);
    for (double at = -(double)INFINITY; (p = next_point(l, label, at)); at = value_of(l, p)) {
        strbuf_addf(&f->script, "%.9g %.9g %.9g %.9g\n", value_of(l, p), p->median, p->low,
                    p->high);
        text_list_addf(&f->cells, "%s", label);
        text_list_addf(&f->cells, "%s", p->values[l->axis]);
        format_metric(METRIC_samples_per_second, p->median, cell);
        text_list_addf(&f->cells, "%s", cell);
        if (is_over_ranks(l))
            add_efficiency(l, p, first, f);
    }
    strbuf_add(&f->script, "END\n");
}

/* Linear scaling of the mode that is fastest with the fewest ranks, as far up as the modes go. */
static void add_linear(const struct axis_line *l, struct figure *f, struct strbuf *plots)
{
    double fewest = (double)INFINITY, samples_s = 0, highest = 0;

    for (size_t i = 0; i < l->overview->point_count; i++) {
        const struct overview_point *p = &l->overview->points[i];
        const double ranks = value_of(l, p);

        if (!is_on_line(l, p))
            continue;
        if (ranks < fewest || (ranks <= fewest && p->median > samples_s))
            samples_s = p->median;
        fewest = fmin(fewest, ranks);
        highest = fmax(highest, fmax(p->median, p->high));
    }
    strbuf_addf(&f->script, "set yrange [0:%.9g]\n", 1.1 * highest);
    strbuf_addf(plots, ", %.9g * x with lines lw 1 dt 3 lc rgb '" FIGURE_GREY "'",
                samples_s / fewest);
    text_list_addf(&f->tool_tips, "linear scaling");
    figure_add_legend(f, "linear scaling", FIGURE_GREY);
    strbuf_add(&f->caption, " Dotted: linear scaling of the fastest. Efficiency is throughput per "
                            "rank, of that with the fewest ranks.");
}

/* The tics are the axis' own values, as they were written. */
static void add_axis(const struct axis_line *l, struct figure *f)
{
    double low = (double)INFINITY, high = 0;
    size_t tics = 0;

    figure_add_text(f, l->overview->axes[l->axis]);
    strbuf_add(&f->script, "set xlabel '@0@'\nset xtics (");
    for (size_t i = 0; i < l->overview->point_count; i++) {
        const struct overview_point *p = &l->overview->points[i];

        if (!is_on_line(l, p) || text_list_find(&f->texts, p->values[l->axis]) != SIZE_MAX)
            continue;
        strbuf_addf(&f->script, "%s'@%zu@' %.9g", tics > 0 ? ", " : "", f->texts.length,
                    value_of(l, p));
        figure_add_text(f, p->values[l->axis]);
        low = fmin(low, value_of(l, p));
        high = fmax(high, value_of(l, p));
        tics++;
    }
    strbuf_add(&f->script, ")\n");
    if (low > 0 && high / low >= LOG_RATIO)
        strbuf_addf(&f->script, "set logscale x\nset xrange [%.9g:%.9g]\n", low / 1.2, high * 1.2);
    else
        strbuf_addf(&f->script, "set xrange [%.9g:%.9g]\n", low - (high - low) * 0.05,
                    high + (high - low) * 0.05);
}

static void set_title(const struct axis_line *l, struct figure *f)
{
    const struct overview *o = l->overview;
    struct strbuf title = STRBUF_INIT;

    strbuf_addf(&title, "Throughput over %s", o->axes[l->axis]);
    for (size_t i = 0, others = 0; i < o->axis_count; i++)
        if (i != l->axis)
            strbuf_addf(&title, "%s%s=%s", others++ == 0 ? " where " : ", ", o->axes[i],
                        l->values[i]);
    figure_set_title(f, title.text ? title.text : "");
    strbuf_release(&title);
}

static void make_line(const struct axis_line *l, const char *name, struct figure *f)
{
    const struct overview *o = l->overview;
    struct strbuf plots = STRBUF_INIT;

    f->name = name;
    set_title(l, f);
    strbuf_add(&f->description, "One line per mode: samples per second against the axis.");
    strbuf_add(&f->caption,
               o->is_predicted
                   ? "Predicted (dashed) with its 90 % interval, if that is known, and measured "
                     "with quartiles. "
                   : "Median over the runs of each cell, with quartiles. ");
    strbuf_add(&f->caption, "Where two lines cross, the winner changes.");
    text_list_addf(&f->headings, "mode");
    text_list_addf(&f->headings, "%s", o->axes[l->axis]);
    text_list_addf(&f->headings, "samples/s");
    if (is_over_ranks(l))
        text_list_addf(&f->headings, "efficiency");
    figure_begin(f, HEIGHT, LEFT, 'y');
    add_axis(l, f);
    for (size_t i = 0; i < o->point_count; i++) {
        const struct overview_point *p = &o->points[i];

        if (!is_on_line(l, p) || !is_first(l, i, false))
            continue;
        add_block(l, i, p->label, f);
        strbuf_addf(&plots,
                    "%s$mode%zu using 1:2:3:4 with yerrorlines lw 2 pt 7 ps 0.6 dt %d lc rgb '%s'",
                    plots.length > 0 ? ", " : "", i, p->dash, p->color);
        text_list_addf(&f->tool_tips, "%s", p->label);
        figure_add_legend(f, p->label, p->color);
    }
    strbuf_add(&f->script, "set ylabel 'samples per second'\nset yrange [0:*]\n");
    if (is_over_ranks(l))
        add_linear(l, f, &plots);
    strbuf_addf(&f->script, "plot %s\n", plots.text);
    f->script.failed = f->script.failed || !strbuf_ok(&plots);
    strbuf_release(&plots);
}

/* More than one value? */
static bool has_length(const struct axis_line *l)
{
    for (size_t i = 0; i < l->overview->point_count; i++)
        if (is_on_line(l, &l->overview->points[i]) &&
            strcmp(l->overview->points[i].values[l->axis], l->values[l->axis]) != 0)
            return true;
    return false;
}

enum status figure_set_make_axes(const struct overview *o, struct figure_set *ret,
                                 struct error *err)
{
    static const char *const names[FIGURE_COUNT_MAX] = {
        "axis0", "axis1", "axis2", "axis3", "axis4", "axis5", "axis6", "axis7", "axis8", "axis9"};
    enum status status;

    ret->count = 0;
    ret->problem[0] = '\0';
    status = figure_add_maps(o, ret, err);
    for (size_t axis = 0; axis < o->axis_count; axis++) {
        const size_t points = is_numeric(o, axis) ? o->point_count : 0;

        for (size_t i = 0; i < points && status == STATUS_OK && ret->count < FIGURE_COUNT_MAX;
             i++) {
            const struct axis_line line = {o, axis, o->points[i].values};
            const char *name = names[ret->count];

            if (!is_first(&line, i, true) || !has_length(&line))
                continue;
            make_line(&line, name, figure_set_begin(ret));
            status = figure_set_end(ret, err);
        }
    }
    if (status != STATUS_OK)
        figure_set_release(ret);
    return status;
}
