/*
 * overview: rows in the order of the cells, from which the page, the CSV file and the text are
 * written.
 */
#include "experiments/report/overview.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "experiments/report/figure.h"
#include "experiments/report/format.h"
#include "experiments/report/report.h"
#include "experiments/report/write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLIPS_SHOWN 6 /* more of them are folded */

/* ---- rows */

enum status overview_add_row(struct overview *o, const struct overview_row *row, struct error *err)
{
    enum status status = mem_grow(o->length, &o->capacity, sizeof(*row), "cells", &o->rows, err);

    if (status == STATUS_OK)
        o->rows[o->length++] = *row;
    return status;
}

enum status overview_add_point(struct overview *o, const struct overview_point *point,
                               struct error *err)
{
    enum status status =
        mem_grow(o->point_count, &o->point_capacity, sizeof(*point), "cells", &o->points, err);

    if (status == STATUS_OK)
        o->points[o->point_count++] = *point;
    return status;
}

static void borrow_values(const struct design *design, const char **values)
{
    for (size_t i = 0; i < design->axis_count; i++)
        values[i] = design->axes[i].value;
}

/* A pair of the design of which one mode has no good run. */
static enum status add_missing(struct overview *o, size_t cell, const struct design *design,
                               const struct design_pair *pair, struct error *err)
{
    struct overview_row row = {.cell = cell,
                               .state = RATIO_TOO_FEW,
                               .throughput = {(double)NAN, (double)NAN},
                               .value = (double)NAN,
                               .interval = {(double)NAN, (double)NAN},
                               .p = (double)NAN};

    borrow_values(design, row.values);
    for (int k = 0; k < 2; k++)
        (void)snprintf(row.labels[k], sizeof(row.labels[k]), "%s", pair->names[k]);
    return overview_add_row(o, &row, err);
}

static enum status add_ratio(struct overview *o, size_t cell, const struct design *design,
                             const struct comparison *c, const struct ratio *r, struct error *err)
{
    const struct mode *modes[2] = {&c->modes[r->a], &c->modes[r->b]};
    struct overview_row row = {.cell = cell,
                               .state = r->state,
                               .value = r->value,
                               .interval = r->interval,
                               .is_to_target = r->is_to_target,
                               .p = r->p,
                               .blocks = r->paired.n};

    borrow_values(design, row.values);
    for (int k = 0; k < 2; k++) {
        (void)snprintf(row.labels[k], sizeof(row.labels[k]), "%s", modes[k]->label);
        (void)snprintf(row.colors[k], sizeof(row.colors[k]), "%s",
                       figure_mode_color(c, k == 0 ? r->a : r->b));
        row.throughput[k] = modes[k]->spreads[METRIC_samples_per_second].median;
    }
    return overview_add_row(o, &row, err);
}

static enum status add_point(struct overview *o, const struct design *design,
                             const struct comparison *c, size_t mode, struct error *err)
{
    const struct spread *s = &c->modes[mode].spreads[METRIC_samples_per_second];
    struct overview_point point = {
        .dash = figure_mode_dash(c, mode), .low = s->q1, .median = s->median, .high = s->q3};

    borrow_values(design, point.values);
    (void)snprintf(point.label, sizeof(point.label), "%s", c->modes[mode].label);
    (void)snprintf(point.color, sizeof(point.color), "%s", figure_mode_color(c, mode));
    return overview_add_point(o, &point, err);
}

enum status overview_add(struct overview *o, size_t cell, const struct design *design,
                         const struct comparison *c, struct error *err)
{
    static const struct design_pair any = {.names = {"any", "any"}};
    enum status status = STATUS_OK;

    for (size_t i = 0; i < design->pair_count && status == STATUS_OK; i++)
        if (!c || comparison_find_ratio(c, &design->pairs[i]) == SIZE_MAX)
            status = add_missing(o, cell, design, &design->pairs[i], err);
    if (!c && design->pair_count == 0)
        status = add_missing(o, cell, design, &any, err);
    for (size_t i = 0; c && i < c->ratio_count && status == STATUS_OK; i++)
        if (c->ratios[i].is_registered || design->pair_count == 0)
            status = add_ratio(o, cell, design, c, &c->ratios[i], err);
    for (size_t m = 0; c && m < c->mode_count && status == STATUS_OK; m++)
        if (c->modes[m].spreads[METRIC_samples_per_second].n > 0)
            status = add_point(o, design, c, m, err);
    return status;
}

void overview_release(struct overview *o)
{
    free(o->rows);
    free(o->points);
}

bool overview_number(const char *text, double *ret)
{
    uint64_t bytes;

    if (parse_double(text, ret) || parse_rate(text, ret))
        return true;
    if (!parse_bytes(text, &bytes))
        return false;
    *ret = (double)bytes;
    return true;
}

static const char *state_text(enum ratio_state state)
{
    switch (state) {
    case RATIO_FASTER:
        return "faster";
    case RATIO_EQUIVALENT:
        return "equivalent";
    case RATIO_UNDECIDED:
        return "undecided";
    case RATIO_TOO_FEW:
        return "too few blocks";
    case RATIO_NOT_COMPARABLE:
        return "not comparable";
    case RATIO_NO_TARGET:
        return "no target accuracy";
    case RATIO_NOT_ASKED:
        break;
    }
    return "no verdict";
}

/* The index of the faster mode. */
static int winner_of(const struct overview_row *row)
{
    return row->value < 1;
}

static bool has_ratio(const struct overview_row *row)
{
    return row->state == RATIO_FASTER || row->state == RATIO_EQUIVALENT ||
           row->state == RATIO_UNDECIDED || row->state == RATIO_NOT_ASKED;
}

void overview_result_text(const struct overview_row *row, char *text, size_t size)
{
    const bool turned = row->value < 1;
    const struct interval interval = {turned ? 1 / row->interval.high : row->interval.low,
                                      turned ? 1 / row->interval.low : row->interval.high};
    const int winner = winner_of(row);
    char ratio[2 * FORMAT_MAX] = "";

    if (has_ratio(row))
        format_ratio_interval(turned ? 1 / row->value : row->value, &interval, ratio);
    (void)snprintf(text, size, "%s: %s, %s", state_text(row->state), row->labels[0],
                   row->labels[1]);
    if (has_ratio(row))
        (void)snprintf(text, size, "%s%s%s %s times %s%s",
                       row->state == RATIO_FASTER ? "" : state_text(row->state),
                       row->state == RATIO_FASTER ? "" : ": ", row->labels[winner], ratio,
                       row->labels[!winner], row->is_to_target ? ", to the target" : "");
}

/* ---- flips */

bool overview_is_line(const struct overview *o, const char *const *a, const char *const *b,
                      size_t axis)
{
    for (size_t i = 0; i < o->axis_count; i++)
        if (i != axis && strcmp(a[i], b[i]) != 0)
            return false;
    return true;
}

static bool is_same_line(const struct overview *o, const struct overview_row *a,
                         const struct overview_row *b, size_t axis)
{
    return overview_is_line(o, a->values, b->values, axis) &&
           strcmp(a->labels[0], b->labels[0]) == 0 && strcmp(a->labels[1], b->labels[1]) == 0;
}

static double number_at(const struct overview_row *row, size_t axis)
{
    double value = (double)NAN;

    return overview_number(row->values[axis], &value) ? value : (double)NAN;
}

/* The row of that line with the next larger value of the axis that has a ratio, or NULL. */
static const struct overview_row *next_on_line(const struct overview *o,
                                               const struct overview_row *row, size_t axis)
{
    const struct overview_row *next = NULL;
    const double at = number_at(row, axis);
    double nearest = (double)INFINITY;

    for (size_t i = 0; i < o->length; i++) {
        const struct overview_row *other = &o->rows[i];
        const double value = number_at(other, axis);

        if (has_ratio(other) && is_same_line(o, row, other, axis) && value > at &&
            value < nearest) {
            nearest = value;
            next = other;
        }
    }
    return next;
}

static const struct overview_row *next_decided(const struct overview *o,
                                               const struct overview_row *row, size_t axis)
{
    do
        row = next_on_line(o, row, axis);
    while (row && row->state != RATIO_FASTER);
    return row;
}

/* Where the ratio is 1: its logarithm is linear between two rows, over the logarithm of the axis
 * where it is positive. */
static double crossing_at(const struct overview_row *before, const struct overview_row *after,
                          size_t axis)
{
    const double low = number_at(before, axis), high = number_at(after, axis);
    const double share = log(before->value) / (log(before->value) - log(after->value));

    return low > 0 ? low * pow(high / low, share) : low + (high - low) * share;
}

/* A value of the axis between those of two rows, in the unit of the first: "455mbit". */
static void add_value(double value, const struct overview_row *before,
                      const struct overview_row *after, size_t axis, struct strbuf *out)
{
    const double low = number_at(before, axis);
    const char *text = (low != 0 ? before : after)->values[axis];
    char *suffix;
    const double units = strtod(text, &suffix);
    const double shown = value * units / (low != 0 ? low : number_at(after, axis));

    strbuf_addf(out, "%.*f%s", fabs(shown) >= 100 ? 0 : fabs(shown) >= 10 ? 1 : 2, shown, suffix);
}

/* Between the first two neighbours, from a row on, of which one mode is ahead in the one, the other
 * in the other. */
static void add_crossing(const struct overview *o, const struct overview_row *before, size_t axis,
                         struct strbuf *out)
{
    const struct overview_row *next = next_on_line(o, before, axis);

    while (next && winner_of(next) == winner_of(before)) {
        before = next;
        next = next_on_line(o, before, axis);
    }
    if (next)
        add_value(crossing_at(before, next, axis), before, next, axis, out);
}

static void add_flip(const struct overview *o, const struct overview_row *before,
                     const struct overview_row *after, size_t axis, struct text_list *flips)
{
    struct strbuf others = STRBUF_INIT, crossing = STRBUF_INIT;

    for (size_t i = 0; i < o->axis_count; i++)
        if (i != axis)
            strbuf_addf(&others, "%s%s=%s", others.length > 0 ? ", " : " (", o->axes[i],
                        before->values[i]);
    strbuf_add(&others, others.length > 0 ? ")" : "");
    add_crossing(o, before, axis, &crossing);
    text_list_addf(flips, "Between %s %s and %s%s the winner changes from %s to %s, near %s.",
                   o->axes[axis], before->values[axis], after->values[axis],
                   others.text ? others.text : "", before->labels[winner_of(before)],
                   after->labels[winner_of(after)], crossing.text ? crossing.text : "");
    strbuf_release(&others);
    strbuf_release(&crossing);
}

void overview_add_flips(const struct overview *o, struct text_list *flips)
{
    for (size_t axis = 0; axis < o->axis_count; axis++) {
        for (size_t i = 0; i < o->length; i++) {
            const struct overview_row *row = &o->rows[i];
            const struct overview_row *next =
                row->state == RATIO_FASTER ? next_decided(o, row, axis) : NULL;

            if (next && winner_of(next) != winner_of(row))
                add_flip(o, row, next, axis, flips);
        }
    }
}

/* ---- the page */

static void add_heading(struct strbuf *out, const char *text)
{
    strbuf_add(out, "<th>");
    strbuf_add_html(out, text);
    strbuf_add(out, "</th>");
}

static void add_cell(struct strbuf *out, const char *text)
{
    strbuf_add(out, "<td>");
    strbuf_add_html(out, text);
    strbuf_add(out, "</td>");
}

static void add_page_row(const struct overview *o, const struct overview_row *row,
                         const char *folder, struct strbuf *out)
{
    char text[512];

    strbuf_add(out, "<tr>");
    for (size_t i = 0; i < o->axis_count; i++)
        add_cell(out, row->values[i]);
    (void)snprintf(text, sizeof(text), "%s, %s", row->labels[0], row->labels[1]);
    add_cell(out, text);
    overview_result_text(row, text, sizeof(text));
    add_cell(out, text);
    for (int k = 0; k < 2; k++) {
        format_metric(METRIC_samples_per_second, row->throughput[k], text);
        add_cell(out, text);
    }
    (void)snprintf(text, sizeof(text), "%zu", row->blocks);
    if (o->is_predicted)
        format_ratio(row->measured, text);
    add_cell(out, text);
    strbuf_add(out, "<td>");
    if (folder) {
        strbuf_add(out, "<a href=\"");
        strbuf_add_html(out, folder);
        strbuf_add(out, "/report.html\">report</a>");
    }
    strbuf_add(out, "</td></tr>\n");
}

static void write_page(const struct overview *o, const char *const *folders,
                       const struct figure_set *figures, struct strbuf *out)
{
    struct text_list flips = {0};

    overview_add_flips(o, &flips);
    write_html_top(o->title, out);
    if (flips.length > FLIPS_SHOWN)
        strbuf_addf(out, "<details><summary>The winner changes at %zu places</summary>\n",
                    flips.length);
    for (size_t i = 0; i < flips.length; i++) {
        strbuf_add(out, flips.length > FLIPS_SHOWN ? "<p>" : "<p class=\"verdict\">");
        strbuf_add_html(out, flips.texts[i]);
        strbuf_add(out, "</p>\n");
    }
    strbuf_add(out, flips.length > FLIPS_SHOWN ? "</details>\n" : "");
    if (figures->count > 0)
        strbuf_add(out, "<h2 id=\"axes\">Over the axes</h2>\n");
    for (size_t i = 0; i < figures->count; i++)
        write_html_figure(o->command, &figures->figures[i], out);
    strbuf_add(out, "<h2 id=\"cells\">Cell by cell</h2>\n<p class=\"soft\">");
    strbuf_add(out,
               o->is_predicted
                   ? "Who is faster, by how much, with the 90 % interval of the ratio, if the "
                     "errors of predictions are known from measured cells."
                   : "Who is faster, by how much, with the interval of the ratio. The level of "
                     "5 % is divided among the cells, so that at most 5 % of all sweeps have a "
                     "false verdict in any of them.");
    strbuf_add(out, "</p>\n<div class=\"scroll\"><table class=\"wide left\"><thead><tr>");
    for (size_t i = 0; i < o->axis_count; i++)
        add_heading(out, o->axes[i]);
    strbuf_add(out, "<th>modes</th><th>result</th><th>samples/s, first</th>"
                    "<th>samples/s, second</th><th>");
    strbuf_add(out, o->is_predicted ? "ratio, measured" : "blocks");
    strbuf_add(out, "</th><th></th></tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < o->length; i++)
        add_page_row(o, &o->rows[i], folders[o->rows[i].cell], out);
    strbuf_add(out, "</tbody></table></div>\n");
    strbuf_add(out, "</main>\n</body>\n</html>\n");
    text_list_release(&flips);
}

/* ---- CSV, text */

static void add_csv_number(struct strbuf *out, double value)
{
    if (isfinite(value))
        strbuf_addf(out, ",%.9g", value);
    else
        strbuf_add(out, ",");
}

static void write_table(const struct overview *o, struct strbuf *out)
{
    for (size_t i = 0; i < o->axis_count; i++) {
        write_csv_text(out, o->axes[i]);
        strbuf_add(out, ",");
    }
    strbuf_add(out, "first,second,state,to_target,blocks,ratio,low,high,p,"
                    "samples_per_second_first,samples_per_second_second\n");
    for (size_t i = 0; i < o->length; i++) {
        const struct overview_row *row = &o->rows[i];
        const double numbers[] = {row->value, row->interval.low,  row->interval.high,
                                  row->p,     row->throughput[0], row->throughput[1]};

        for (size_t k = 0; k < o->axis_count; k++) {
            write_csv_text(out, row->values[k]);
            strbuf_add(out, ",");
        }
        write_csv_text(out, row->labels[0]);
        strbuf_add(out, ",");
        write_csv_text(out, row->labels[1]);
        strbuf_addf(out, ",%s,%d,%zu", ratio_state_name(row->state), row->is_to_target,
                    row->blocks);
        for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
            add_csv_number(out, numbers[k]);
        strbuf_add(out, "\n");
    }
}

static enum status write_text(const char *folder, const char *name, const struct strbuf *text,
                              struct error *err)
{
    char path[4096];
    enum status status = file_join(path, sizeof(path), folder, name, err);

    return status == STATUS_OK ? file_write_text(path, text, err) : status;
}

enum status overview_write(const struct overview *o, const char *folder, const char *const *folders,
                           char *ret_problem, size_t problem_size, struct error *err)
{
    struct strbuf page = STRBUF_INIT, table = STRBUF_INIT;
    struct figure_set *figures = NULL;
    enum status status = mem_calloc(1, sizeof(*figures), "figures", &figures, err);

    if (status == STATUS_OK)
        status = figure_set_make_axes(o, figures, err);
    if (status != STATUS_OK) {
        free(figures);
        return status;
    }
    (void)snprintf(ret_problem, problem_size, "%s", figures->problem);
    write_page(o, folders, figures, &page);
    write_table(o, &table);
    status = write_text(folder, "cells.csv", &table, err);
    if (status == STATUS_OK)
        status = write_text(folder, "index.html", &page, err);
    figure_set_release(figures);
    free(figures);
    strbuf_release(&page);
    strbuf_release(&table);
    return status;
}

void overview_summarise(const struct overview *o, struct strbuf *out)
{
    struct text_list flips = {0};

    for (size_t i = 0; i < o->length; i++) {
        const struct overview_row *row = &o->rows[i];
        struct strbuf line = STRBUF_INIT;
        char result[512];

        if (row->state == RATIO_NOT_ASKED)
            continue;
        for (size_t k = 0; k < o->axis_count; k++)
            strbuf_addf(&line, "%s%s=%s", k > 0 ? "," : "", o->axes[k], row->values[k]);
        overview_result_text(row, result, sizeof(result));
        strbuf_addf(&line, ": %s", result);
        report_add_wrapped(out, strbuf_ok(&line) ? line.text : "", 0);
        strbuf_release(&line);
    }
    overview_add_flips(o, &flips);
    for (size_t i = 0; i < flips.length; i++)
        report_add_wrapped(out, flips.texts[i], 0);
    text_list_release(&flips);
}
