/*
 * figure_parts: elements of every figure: frame, legend, labels, colours.  The colours are those of
 * Okabe and Ito, distinguishable with the common kinds of colour blindness.
 */
#include "experiments/report/figure.h"

#include "experiments/report/gnuplot.h"

#include <stdio.h>
#include <string.h>

#define LABEL_MAX 30

static const char *const contender_colors[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                               "#56b4e9", "#d55e00", "#8c6bb1", "#b3a100"};
#define CONTROL_COLOR "#757575"
#define SINGLE_COLOR  "#b0b0b0"

const char *figure_color(enum mode_role role, size_t contenders)
{
    if (role == MODE_CONTROL)
        return CONTROL_COLOR;
    if (role == MODE_SINGLE)
        return SINGLE_COLOR;
    return contender_colors[contenders % (sizeof(contender_colors) / sizeof(contender_colors[0]))];
}

const char *figure_mode_color(const struct comparison *c, size_t mode)
{
    size_t contenders = 0;

    for (size_t i = 0; i < mode; i++)
        contenders += c->modes[i].role == MODE_CONTENDER;
    return figure_color(c->modes[mode].role, contenders);
}

int figure_mode_dash(const struct comparison *c, size_t mode)
{
    static const int dashes[] = {[MODE_CONTENDER] = 1, [MODE_CONTROL] = 2, [MODE_SINGLE] = 3};

    return dashes[c->modes[mode].role];
}

void figure_begin(struct figure *f, unsigned height, double left, char grid_axis)
{
    f->height = height;
    strbuf_addf(&f->script,
                "unset key\nset border 3 lc rgb '" GNUPLOT_INK "' lw 1\n"
                "set tics nomirror out scale 0.6 textcolor rgb '" GNUPLOT_INK "'\n"
                "set grid %ctics lt 1 lc rgb '" GNUPLOT_GRID "' lw 1\n"
                "set lmargin at screen %g\nset rmargin at screen 0.97\n"
                "set xlabel textcolor rgb '" GNUPLOT_INK "'\n"
                "set ylabel textcolor rgb '" GNUPLOT_INK "'\n",
                grid_axis, left);
}

void figure_set_title(struct figure *f, const char *title)
{
    (void)snprintf(f->title, sizeof(f->title), "%s", title);
}

void figure_add_legend(struct figure *f, const char *label, const char *color)
{
    struct legend_entry *entry = &f->legend[f->legend_count];

    if (f->legend_count == sizeof(f->legend) / sizeof(f->legend[0]))
        return;
    (void)snprintf(entry->label, sizeof(entry->label), "%s", label);
    (void)snprintf(entry->color, sizeof(entry->color), "%s", color);
    f->legend_count++;
}

/* Cut between characters: UTF-8 continuation bytes are 10xxxxxx. */
void figure_add_text(struct figure *f, const char *label)
{
    size_t length = strlen(label);
    size_t kept = length;

    if (length > LABEL_MAX) {
        kept = LABEL_MAX - 3;
        while (kept > 0 && ((unsigned char)label[kept] & 0xc0) == 0x80)
            kept--;
    }
    text_list_addf(&f->texts, "%.*s%s", (int)kept, label, kept < length ? "..." : "");
}
