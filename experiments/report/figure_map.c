/*
 * figure_map: a cell of a sweep is a field, in the colour of the faster mode.  Fields lie in the
 * order of the axes' values, evenly, whatever their distances.
 */
#include "experiments/report/figure.h"

#include "experiments/report/format.h"
#include "experiments/report/gnuplot.h"
#include "experiments/report/overview.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEFT         0.115
#define VALUES_MAX   64
#define TEXT_COLUMNS 14 /* no ratios in the fields of wider maps */
#define FRAME_HEIGHT 80
#define FIELD_HEIGHT 34
#define HEIGHT_MIN   220
#define HEIGHT_MAX   720

struct map {
    const struct overview *overview;
    const struct overview_row *sample; /* one of its cells */
    size_t axes[2];                    /* to the right, upwards */
    const char *values[2][VALUES_MAX]; /* rising; borrowed */
    size_t lengths[2];
};

static bool is_on_map(const struct map *m, const struct overview_row *row)
{
    for (size_t i = 0; i < m->overview->axis_count; i++)
        if (i != m->axes[0] && i != m->axes[1] && strcmp(row->values[i], m->sample->values[i]) != 0)
            return false;
    return isfinite(row->value) && strcmp(row->labels[0], m->sample->labels[0]) == 0 &&
           strcmp(row->labels[1], m->sample->labels[1]) == 0;
}

static double number_of(const char *text)
{
    double value = 0;

    (void)overview_number(text, &value);
    return value;
}

/* Insert a value in its place, unless it is there.  False: no room. */
static bool add_value(struct map *m, size_t k, const char *text)
{
    size_t at = m->lengths[k];

    for (size_t i = 0; i < m->lengths[k]; i++)
        if (strcmp(m->values[k][i], text) == 0)
            return true;
    if (at == VALUES_MAX)
        return false;
    for (; at > 0 && number_of(m->values[k][at - 1]) > number_of(text); at--)
        m->values[k][at] = m->values[k][at - 1];
    m->values[k][at] = text;
    m->lengths[k]++;
    return true;
}

static size_t place_of(const struct map *m, size_t k, const struct overview_row *row)
{
    size_t i = 0;

    while (i + 1 < m->lengths[k] && strcmp(m->values[k][i], row->values[m->axes[k]]) != 0)
        i++;
    return i;
}

static const struct overview_row *at_place(const struct map *m, size_t x, size_t y)
{
    for (size_t i = 0; i < m->overview->length; i++) {
        const struct overview_row *row = &m->overview->rows[i];

        if (is_on_map(m, row) && place_of(m, 0, row) == x && place_of(m, 1, row) == y)
            return row;
    }
    return NULL;
}

static bool is_decided(const struct overview_row *row)
{
    return row->state == RATIO_FASTER || row->state == RATIO_NOT_ASKED;
}

static size_t winner_of(double ratio)
{
    return ratio < 1;
}

/* ---- the elements, each with a tool tip */

__attribute__((format(printf, 3, 4))) static void
add_element(struct strbuf *plots, const char *with, const char *format, ...)
{
    va_list args;

    strbuf_add(plots, plots->length > 0 ? ", '+' using " : "'+' using ");
    va_start(args, format);
    strbuf_vaddf(plots, format, args);
    va_end(args);
    strbuf_addf(plots, " every ::0::0 with %s", with);
}

static void add_field(const struct map *m, const struct overview_row *row, struct figure *f,
                      struct strbuf *plots)
{
    const double x = (double)place_of(m, 0, row), y = (double)place_of(m, 1, row);
    const double strength = 0.2 + 0.4 * fmin(1, fabs(log2(row->value)));
    char with[128], result[512];

    overview_result_text(row, result, sizeof(result));
    (void)snprintf(with, sizeof(with), "boxxyerror fs transparent solid %.2f noborder lc rgb '%s'",
                   is_decided(row) ? strength : 0.4,
                   is_decided(row) ? row->colors[winner_of(row->value)] : FIGURE_GREY);
    add_element(plots, with, "(%g):(%g):(%g):(%g):(%g):(%g)", x, y, x - 0.48, x + 0.48, y - 0.46,
                y + 0.46);
    text_list_addf(&f->tool_tips, "%s=%s, %s=%s: %s", m->overview->axes[m->axes[0]],
                   row->values[m->axes[0]], m->overview->axes[m->axes[1]], row->values[m->axes[1]],
                   result);
    for (size_t k = 0; k < 2; k++)
        text_list_addf(&f->cells, "%s", row->values[m->axes[k]]);
    text_list_addf(&f->cells, "%s", result);
}

static void format_field(double ratio, char text[FORMAT_MAX])
{
    (void)snprintf(text, FORMAT_MAX, "%.*f", ratio < 10 ? 2 : ratio < 100, ratio);
}

/* The ratio as a text, and what was measured as a dot beside it. */
static void add_marks(const struct map *m, const struct overview_row *row, struct figure *f,
                      struct strbuf *plots)
{
    const double x = (double)place_of(m, 0, row), y = (double)place_of(m, 1, row);
    char text[FORMAT_MAX], with[128];

    format_field(fmax(row->value, 1 / row->value), text);
    if (m->lengths[0] <= TEXT_COLUMNS) {
        add_element(plots, "labels tc rgb '" GNUPLOT_INK "'", "(%g):(%g):('%s')", x, y, text);
        text_list_addf(&f->tool_tips, "%s", text);
    }
    if (!isfinite(row->measured))
        return;
    (void)snprintf(with, sizeof(with), "points pt 7 ps 0.7 lc rgb '%s'",
                   row->colors[winner_of(row->measured)]);
    add_element(plots, with, "(%g):(%g)", x + 0.38, y - 0.3);
    format_ratio(fmax(row->measured, 1 / row->measured), text);
    text_list_addf(&f->tool_tips, "measured: %s %s times %s", row->labels[winner_of(row->measured)],
                   text, row->labels[!winner_of(row->measured)]);
}

/* Between two neighbours with different winners. */
static void add_border(const struct map *m, size_t x, size_t y, size_t next_x, size_t next_y,
                       struct figure *f, struct strbuf *plots)
{
    const struct overview_row *a = at_place(m, x, y), *b = at_place(m, next_x, next_y);
    const bool is_upright = next_x != x;

    if (!a || !b || winner_of(a->value) == winner_of(b->value))
        return;
    add_element(plots, "vectors nohead lw 3 lc rgb '" GNUPLOT_INK "'", "(%g):(%g):(%d):(%d)",
                (double)x + (is_upright ? 0.5 : -0.5), (double)y + (is_upright ? -0.5 : 0.5),
                !is_upright, is_upright);
    text_list_addf(&f->tool_tips, "the winner changes");
}

/* ---- the figure */

static void add_axis(const struct map *m, size_t k, struct figure *f)
{
    const char letter = k == 0 ? 'x' : 'y';

    strbuf_addf(&f->script, "set %clabel '@%zu@'\nset %ctics (", letter, f->texts.length, letter);
    figure_add_text(f, m->overview->axes[m->axes[k]]);
    for (size_t i = 0; i < m->lengths[k]; i++) {
        strbuf_addf(&f->script, "%s'@%zu@' %zu", i > 0 ? ", " : "", f->texts.length, i);
        figure_add_text(f, m->values[k][i]);
    }
    strbuf_addf(&f->script, ")\nset %crange [-0.5:%g]\n", letter, (double)m->lengths[k] - 0.5);
}

static void set_title(const struct map *m, struct figure *f)
{
    const struct overview *o = m->overview;
    struct strbuf title = STRBUF_INIT;

    strbuf_addf(&title, "Who wins where: %s, %s", m->sample->labels[0], m->sample->labels[1]);
    for (size_t i = 0, others = 0; i < o->axis_count; i++)
        if (i != m->axes[0] && i != m->axes[1])
            strbuf_addf(&title, "%s%s=%s", others++ == 0 ? " where " : ", ", o->axes[i],
                        m->sample->values[i]);
    figure_set_title(f, title.text);
    strbuf_release(&title);
}

static void add_elements(const struct map *m, struct figure *f, struct strbuf *plots)
{
    const struct overview *o = m->overview;

    for (size_t i = 0; i < o->length; i++)
        if (is_on_map(m, &o->rows[i]))
            add_field(m, &o->rows[i], f, plots);
    for (size_t y = 0; y < m->lengths[1]; y++)
        for (size_t x = 0; x < m->lengths[0]; x++) {
            add_border(m, x, y, x + 1, y, f, plots);
            add_border(m, x, y, x, y + 1, f, plots);
        }
    for (size_t i = 0; i < o->length; i++)
        if (is_on_map(m, &o->rows[i]))
            add_marks(m, &o->rows[i], f, plots);
}

static void make_map(const struct map *m, const char *name, struct figure *f)
{
    const unsigned height = FRAME_HEIGHT + FIELD_HEIGHT * (unsigned)m->lengths[1];
    struct strbuf plots = STRBUF_INIT;

    f->name = name;
    set_title(m, f);
    strbuf_add(&f->description, "A field for each cell, in the colour of the faster mode.");
    strbuf_add(&f->caption,
               "Each field has the colour of the faster mode, the stronger the more it is faster; "
               "the number is how many times. Grey: not decided. The winner changes at the line.");
    if (m->overview->is_predicted)
        strbuf_add(&f->caption, " A dot is a measured cell, in the colour of its winner.");
    for (size_t k = 0; k < 2; k++)
        text_list_addf(&f->headings, "%s", m->overview->axes[m->axes[k]]);
    text_list_addf(&f->headings, "result");
    figure_begin(f,
                 height < HEIGHT_MIN   ? HEIGHT_MIN
                 : height > HEIGHT_MAX ? HEIGHT_MAX
                                       : height,
                 LEFT, 'y');
    strbuf_add(&f->script, "unset grid\nset tics scale 0\n");
    add_axis(m, 0, f);
    add_axis(m, 1, f);
    add_elements(m, f, &plots);
    for (size_t k = 0; k < 2; k++)
        figure_add_legend(f, m->sample->labels[k], m->sample->colors[k]);
    strbuf_addf(&f->script, "plot %s\n", plots.text);
    f->script.failed = f->script.failed || !strbuf_ok(&plots);
    strbuf_release(&plots);
}

/* An axis of numbers with more than one value. */
static bool is_scale(const struct overview *o, size_t axis)
{
    bool differs = false;
    double value;

    for (size_t i = 0; i < o->length; i++) {
        if (!overview_number(o->rows[i].values[axis], &value))
            return false;
        differs = differs || strcmp(o->rows[i].values[axis], o->rows[0].values[axis]) != 0;
    }
    return differs;
}

/* The map that this row is on; false: it is on that of an earlier row, or there is none. */
static bool find_map(const struct overview *o, size_t index, const size_t axes[2], struct map *m)
{
    *m = (struct map){.overview = o, .sample = &o->rows[index], .axes = {axes[0], axes[1]}};
    for (size_t i = 0; i < o->length; i++) {
        if (!is_on_map(m, &o->rows[i]))
            continue;
        if (i < index || !add_value(m, 0, o->rows[i].values[axes[0]]) ||
            !add_value(m, 1, o->rows[i].values[axes[1]]))
            return false;
    }
    return m->lengths[0] > 1 && m->lengths[1] > 1;
}

enum status figure_add_maps(const struct overview *o, struct figure_set *set, struct error *err)
{
    static const char *const names[FIGURE_COUNT_MAX] = {"map0", "map1", "map2", "map3", "map4",
                                                        "map5", "map6", "map7", "map8", "map9"};
    size_t axes[2], count = 0;
    enum status status = STATUS_OK;

    for (size_t axis = 0; axis < o->axis_count && count < 2; axis++)
        if (is_scale(o, axis))
            axes[count++] = axis;
    for (size_t i = 0; count == 2 && i < o->length && set->count < FIGURE_COUNT_MAX; i++) {
        const char *name = names[set->count];
        struct map map;

        if (!find_map(o, i, axes, &map))
            continue;
        make_map(&map, name, figure_set_begin(set));
        status = figure_set_end(set, err);
        if (status != STATUS_OK)
            break;
    }
    return status;
}
