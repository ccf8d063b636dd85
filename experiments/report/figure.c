/*
 * figure: the set of figures, made in the order of the page and drawn by gnuplot one by one.
 */
#include "experiments/report/figure.h"

#include "experiments/report/gnuplot.h"

#include <stdio.h>
#include <string.h>

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

/* Without gnuplot, or when it fails, the page shows the table and the reason. */
static enum status draw_figure(struct figure_set *set, struct figure *f, struct error *err)
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

struct figure *figure_set_begin(struct figure_set *set)
{
    struct figure *f = &set->figures[set->count++];

    figure_init(f);
    return f;
}

enum status figure_set_end(struct figure_set *set, struct error *err)
{
    struct figure *f = &set->figures[set->count - 1];
    enum status status = f->cells.length > 0 ? draw_figure(set, f, err) : STATUS_OK;

    if (status == STATUS_OK && !is_whole(f))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the figure '%s'", f->name);
    if (status == STATUS_OK && f->cells.length == 0) {
        figure_release(f);
        set->count--;
    }
    return status;
}

enum status figure_set_make(const struct comparison *c, struct figure_set *ret, struct error *err)
{
    static enum status (*const makers[])(const struct comparison *, struct figure *,
                                         struct error *) = {
        figure_throughput, figure_split,      figure_waiting,   figure_bytes, figure_loss_time,
        figure_loss_step,  figure_step_times, figure_staleness, figure_cost,  figure_faults,
    };
    enum status status = STATUS_OK;

    ret->count = 0;
    ret->problem[0] = '\0';
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]) && status == STATUS_OK; i++) {
        status = makers[i](c, figure_set_begin(ret), err);
        if (status == STATUS_OK)
            status = figure_set_end(ret, err);
    }
    if (status != STATUS_OK)
        figure_set_release(ret);
    return status;
}
