/*
 * The set of figures: made in the order of the page, drawn by gnuplot one after the other.
 * The colours are those of Okabe and Ito, told apart with the common kinds of colour blindness.
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

const char *figure_mode_color(const struct comparison *c, size_t mode)
{
    size_t contenders = 0;

    if (c->modes[mode].role == MODE_CONTROL)
        return CONTROL_COLOR;
    if (c->modes[mode].role == MODE_SINGLE)
        return SINGLE_COLOR;
    for (size_t i = 0; i < mode; i++)
        contenders += c->modes[i].role == MODE_CONTENDER;
    return contender_colors[contenders % (sizeof(contender_colors) / sizeof(contender_colors[0]))];
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

static void figure_init(struct figure *f)
{
    *f = (struct figure){.description = STRBUF_INIT,
                         .script = STRBUF_INIT,
                         .svg = STRBUF_INIT,
                         .caption = STRBUF_INIT};
}

static void figure_release(struct figure *f)
{
    strbuf_release(&f->description);
    strbuf_release(&f->script);
    strbuf_release(&f->svg);
    strbuf_release(&f->caption);
    text_list_release(&f->texts);
    text_list_release(&f->tool_tips);
    text_list_release(&f->headings);
    text_list_release(&f->cells);
}

void figure_set_release(struct figure_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        figure_release(&set->figures[i]);
    set->count = 0;
}

/* Without gnuplot, or when it fails, the page keeps the table and says why. */
static enum status draw(struct figure_set *set, struct figure *f, struct error *err)
{
    struct gnuplot_picture picture = {.name = f->name,
                                      .title = f->title,
                                      .description = f->description.text,
                                      .height = f->height,
                                      .script = &f->script,
                                      .texts = &f->texts,
                                      .titles = &f->tool_tips};
    struct error reason = {0};
    enum status status;

    if (set->problem[0] != '\0')
        return STATUS_OK;
    status = gnuplot_draw(&picture, &f->svg, &reason);
    if (status == STATUS_NO_MEMORY || status == STATUS_CANCELLED)
        return error_set(err, status, "%s", reason.text);
    if (status == STATUS_NOT_FOUND)
        (void)snprintf(set->problem, sizeof(set->problem),
                       "Figures need gnuplot, which is not in PATH (Debian and Ubuntu: "
                       "gnuplot-nox); their numbers are in the tables.");
    else if (status != STATUS_OK)
        (void)snprintf(set->problem, sizeof(set->problem),
                       "Figures are missing: %.400s; their numbers are in the tables.",
                       reason.text);
    return STATUS_OK;
}

static int is_whole(const struct figure *f)
{
    return strbuf_ok(&f->description) && strbuf_ok(&f->script) && strbuf_ok(&f->svg) &&
           strbuf_ok(&f->caption) && !f->texts.failed && !f->tool_tips.failed &&
           !f->headings.failed && !f->cells.failed;
}

enum status figure_set_make(const struct comparison *c, struct figure_set *ret, struct error *err)
{
    static enum status (*const makers[])(const struct comparison *, struct figure *,
                                         struct error *) = {
        figure_throughput, figure_split,     figure_bytes,
        figure_loss_time,  figure_loss_step, figure_step_times,
    };
    enum status status = STATUS_OK;

    ret->count = 0;
    ret->problem[0] = '\0';
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]) && status == STATUS_OK; i++) {
        struct figure *f = &ret->figures[ret->count];

        figure_init(f);
        ret->count++;
        status = makers[i](c, f, err);
        if (status == STATUS_OK && f->cells.length > 0)
            status = draw(ret, f, err);
        if (status == STATUS_OK && !is_whole(f))
            status = error_set(err, STATUS_NO_MEMORY, "no memory for the figure '%s'", f->name);
        if (status == STATUS_OK && f->cells.length == 0) {
            figure_release(f);
            ret->count--;
        }
    }
    if (status != STATUS_OK)
        figure_set_release(ret);
    return status;
}
