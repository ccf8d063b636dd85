/*
 * watch_json: numbers that are not known become null.
 */
#include "experiments/watch/watch_json.h"

#include <math.h>

#define FAILURES_SHOWN 20 /* of a cell */

static void add_number(struct strbuf *out, const char *name, double value)
{
    strbuf_addf(out, isfinite(value) ? "\"%s\":%.6g" : "\"%s\":null", name, value);
}

static void add_text(struct strbuf *out, const char *name, const char *text)
{
    strbuf_addf(out, "\"%s\":", name);
    strbuf_add_json(out, text);
}

static void add_totals(struct strbuf *out, const struct watched_totals *t)
{
    strbuf_addf(out, ",\"totals\":{\"planned\":%zu,\"running\":%zu,\"ok\":%zu,\"failed\":%zu,",
                t->planned, t->running, t->ok, t->failed);
    add_number(out, "seconds_left", t->seconds_left);
    strbuf_add(out, "}");
}

static void add_mode(struct strbuf *out, const struct watched_mode *m)
{
    strbuf_add(out, "{");
    add_text(out, "name", m->name);
    strbuf_addf(out, ",\"planned\":%zu,\"running\":%zu,\"ok\":%zu,\"failed\":%zu,", m->planned,
                m->running, m->ok, m->failed);
    add_number(out, "samples_per_second", m->samples_per_second);
    strbuf_add(out, "}");
}

static void add_failures(struct strbuf *out, const struct watched_cell *cell)
{
    size_t shown = 0;

    strbuf_add(out, "],\"failures\":[");
    for (size_t i = 0; i < cell->run_count && shown < FAILURES_SHOWN; i++) {
        if (cell->runs[i].state != WATCHED_FAILED)
            continue;
        strbuf_add(out, shown++ > 0 ? ",{" : "{");
        add_text(out, "run", cell->runs[i].name);
        strbuf_add(out, ",");
        add_text(out, "reason", cell->runs[i].reason);
        strbuf_add(out, "}");
    }
    strbuf_add(out, "]}");
}

static void add_cell(struct strbuf *out, const struct watched_cell *cell, size_t index)
{
    strbuf_addf(out, "{\"index\":%zu,", index);
    add_text(out, "name", cell->name);
    strbuf_add(out, ",");
    add_text(out, "report", cell->has_report ? cell->folder[0] != '\0' ? cell->folder : "." : "");
    strbuf_add(out, ",\"modes\":[");
    for (size_t m = 0; m < cell->mode_count; m++) {
        strbuf_add(out, m > 0 ? "," : "");
        add_mode(out, &cell->modes[m]);
    }
    add_failures(out, cell);
}

static void add_run(struct strbuf *out, const struct watched_cell *cell,
                    const struct watched_run *run)
{
    strbuf_add(out, "{");
    add_text(out, "cell", cell->name);
    strbuf_add(out, ",");
    add_text(out, "run", run->name);
    strbuf_add(out, ",");
    add_text(out, "mode", run->mode);
    strbuf_add(out, ",");
    add_text(out, "host", run->host);
    strbuf_add(out, ",");
    add_text(out, "state", watched_state_text(run->state));
    strbuf_addf(out, ",\"ranks\":%u,\"steps\":%ju,\"planned_steps\":%ju,\"changed\":%jd",
                run->ranks, (uintmax_t)run->steps, (uintmax_t)run->planned_steps,
                (intmax_t)run->last_change);
    strbuf_add(out, ",\"points\":[");
    for (size_t i = 0; i < run->point_count; i++) {
        const struct watched_point *p = &run->points[i];

        strbuf_addf(out, i > 0 ? ",[%ju," : "[%ju,", (uintmax_t)p->step);
        strbuf_addf(out, isfinite(p->loss) ? "%.5g," : "null,", p->loss);
        strbuf_addf(out, isfinite(p->samples_per_second) ? "%.5g]" : "null]",
                    p->samples_per_second);
    }
    strbuf_add(out, "]}");
}

void watch_json(const struct watched *w, uint64_t since, struct strbuf *out)
{
    const struct watched_totals totals = watched_totals(w);
    size_t count = 0;

    strbuf_add(out, "{");
    add_text(out, "path", w->path);
    strbuf_add(out, ",");
    add_text(out, "title", w->title);
    strbuf_addf(out, ",\"index\":%s", w->has_index ? "true" : "false");
    add_totals(out, &totals);
    strbuf_add(out, ",\"cells\":[");
    for (size_t i = 0; i < w->cell_count; i++) {
        if (since > 0 && w->cells[i].version <= since)
            continue;
        strbuf_add(out, count++ > 0 ? "," : "");
        add_cell(out, &w->cells[i], i);
    }
    strbuf_add(out, "],\"runs\":[");
    count = 0;
    for (size_t i = 0; i < w->cell_count; i++)
        for (size_t r = 0; r < w->cells[i].run_count; r++) {
            const struct watched_run *run = &w->cells[i].runs[r];

            if (run->point_count == 0 && run->state != WATCHED_RUNNING)
                continue;
            strbuf_add(out, count++ > 0 ? "," : "");
            add_run(out, &w->cells[i], run);
        }
    strbuf_add(out, "]}");
}
