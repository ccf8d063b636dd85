/*
 * write_html: the page.  Every text that came from a file is escaped by strbuf_add_html; only
 * literals of this file are not.  All elements are closed and all attributes quoted, so an XML
 * parser can check the page.
 */
#include "experiments/report/write.h"

#include "common/base/clock.h"
#include "experiments/report/format.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FIRST_FIGURES 2 /* before the tables: throughput, where the time goes */

static void add_element(struct strbuf *out, const char *tag, const char *text)
{
    strbuf_addf(out, "<%s>", tag);
    strbuf_add_html(out, text);
    strbuf_addf(out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

static void add_list(struct strbuf *out, const struct text_list *list)
{
    strbuf_add(out, "<ul>\n");
    for (size_t i = 0; i < list->length; i++) {
        add_element(out, "li", list->texts[i]);
        strbuf_add(out, "\n");
    }
    strbuf_add(out, "</ul>\n");
}

static void add_swatch(struct strbuf *out, const char *color)
{
    strbuf_addf(out, "<span class=\"swatch\" style=\"background:%s\"></span>", color);
}

void write_html_top(const char *title, struct strbuf *out)
{
    if (title[0] == '\0')
        title = "Parameter server against all-reduce";
    strbuf_add(out, "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n"
                    "<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
                    "content=\"width=device-width, initial-scale=1\"/>\n<title>");
    strbuf_add_html(out, title);
    strbuf_add(out, " - Sparring</title>\n<style>\n");
    strbuf_add(out, write_html_style);
    strbuf_add(out, "</style>\n</head>\n<body>\n<main>\n");
    add_element(out, "h1", title);
    strbuf_add(out, "\n");
}

static void add_top(const struct comparison *c, struct strbuf *out)
{
    write_html_top(c->title, out);
    add_element(out, "p class=\"verdict\"", c->verdict);
    strbuf_add(out, "\n");
    if (c->why[0] != '\0')
        add_element(out, "p class=\"why\"", c->why);
    for (size_t i = 0; i < c->more_verdicts.length; i++)
        add_element(out, "p class=\"verdict\"", c->more_verdicts.texts[i]);
    strbuf_add(out, "\n");
}

static void add_failures(const struct comparison *c, struct strbuf *out)
{
    strbuf_add(out, "<ul>\n");
    for (size_t i = 0; i < c->list->length; i++) {
        const struct run *run = &c->list->runs[i];

        if (run->state != RUN_FAILED)
            continue;
        strbuf_add(out, "<li><code>");
        strbuf_add_html(out, run->name);
        strbuf_add(out, "</code>: ");
        strbuf_add_html(out, run->reason);
        strbuf_add(out, "</li>\n");
    }
    strbuf_add(out, "</ul>\n");
}

static bool any_failed(const struct comparison *c)
{
    for (size_t i = 0; i < c->list->length; i++)
        if (c->list->runs[i].state == RUN_FAILED)
            return true;
    return false;
}

static void add_doubts(const struct comparison *c, struct strbuf *out)
{
    if (c->reasons.length > 0) {
        strbuf_add(out, "<div class=\"alarm\"><h2>Not comparable because</h2>\n");
        add_list(out, &c->reasons);
        strbuf_add(out, "</div>\n");
    }
    if (any_failed(c)) {
        strbuf_add(out, "<div class=\"alarm\"><h2>Runs that failed</h2>\n");
        add_failures(c, out);
        strbuf_add(out, "</div>\n");
    }
    if (c->warnings.length > 0) {
        strbuf_add(out, "<h2>Warnings</h2>\n");
        add_list(out, &c->warnings);
    }
}

static void add_conditions(const struct comparison *c, struct strbuf *out)
{
    strbuf_add(out, "<h2>Conditions</h2>\n<dl class=\"facts\">\n");
    for (size_t i = 0; i < c->condition_count; i++) {
        strbuf_add(out, "<div>");
        add_element(out, "dt", c->conditions[i].name);
        add_element(out, "dd", c->conditions[i].value);
        strbuf_add(out, "</div>\n");
    }
    strbuf_add(out, "</dl>\n");
    if (c->reasons.length == 0)
        strbuf_add(out, "<p class=\"soft\">The modes share every recorded setting but those of "
                        "synchronisation, and the same set of seeds.</p>\n");
}

static void add_main_table(const struct report_content *r, struct strbuf *out)
{
    const struct comparison *c = r->comparison;
    const struct table *t = r->table;

    strbuf_add(out, "<h2>Mode by mode</h2>\n<div class=\"scroll\"><table class=\"wide\"><thead><tr>"
                    "<th></th>");
    for (size_t m = 0; m < c->mode_count; m++) {
        strbuf_add(out, "<th>");
        add_swatch(out, figure_mode_color(c, m));
        strbuf_add_html(out, c->modes[m].label);
        strbuf_add(out, "</th>");
    }
    strbuf_add(out, "</tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < t->row_count; i++) {
        if (t->rows[i].is_section) {
            strbuf_addf(out, "<tr class=\"section\"><th colspan=\"%zu\">", t->columns + 1);
            strbuf_add_html(out, t->rows[i].label);
            strbuf_add(out, "</th></tr>\n");
            continue;
        }
        strbuf_add(out, "<tr>");
        add_element(out, "th", t->rows[i].label);
        for (size_t m = 0; m < t->columns; m++)
            add_element(out, "td", t->cells.texts[i * t->columns + m]);
        strbuf_add(out, "</tr>\n");
    }
    strbuf_add(out, "</tbody></table></div>\n");
}

static void add_ratios(const struct comparison *c, struct strbuf *out)
{
    if (c->ratio_count == 0)
        return;
    strbuf_addf(out,
                "<h2>Mode against mode</h2>\n<div class=\"scroll\"><table><thead><tr>"
                "<th>throughput of</th><th>over</th><th>ratio (%.3g %% interval)</th>"
                "<th>blocks</th><th>p (sign flips, Holm)</th><th>verdict</th></tr></thead>\n"
                "<tbody>\n",
                100 * (1 - design_level(c->design)));
    for (size_t i = 0; i < c->ratio_count; i++) {
        const struct ratio *ratio = &c->ratios[i];
        char text[2 * FORMAT_MAX];

        strbuf_add(out, "<tr>");
        add_element(out, "td", c->modes[ratio->a].label);
        add_element(out, "td", c->modes[ratio->b].label);
        format_ratio_interval(ratio->value, &ratio->interval, text);
        add_element(out, "td", text);
        format_number((double)ratio->paired.n, 0, text);
        add_element(out, "td", text);
        format_number(ratio->p, 4, text);
        add_element(out, "td", text);
        add_element(out, "td", ratio_words(ratio));
        strbuf_add(out, "</tr>\n");
    }
    strbuf_add(out, "</tbody></table></div>\n");
}

static void add_figure_table(const struct figure *f, struct strbuf *out)
{
    size_t columns = f->headings.length;

    strbuf_add(out, "<details><summary>The numbers</summary>\n<div class=\"scroll\"><table><thead>"
                    "<tr>");
    for (size_t i = 0; i < columns; i++)
        add_element(out, "th", f->headings.texts[i]);
    strbuf_add(out, "</tr></thead>\n<tbody>\n");
    for (size_t i = 0; columns > 0 && i < f->cells.length; i++) {
        strbuf_add(out, i % columns == 0 ? "<tr>" : "");
        add_element(out, "td", f->cells.texts[i]);
        strbuf_add(out, i % columns == columns - 1 ? "</tr>\n" : "");
    }
    strbuf_add(out, "</tbody></table></div>\n</details>\n");
}

void write_html_figure(const char *command, const struct figure *f, struct strbuf *out)
{
    strbuf_addf(out, "<figure id=\"%s\">\n", f->name);
    add_element(out, "h3", f->title);
    if (f->legend_count > 0) {
        strbuf_add(out, "\n<ul class=\"legend\">");
        for (size_t i = 0; i < f->legend_count; i++) {
            strbuf_add(out, "<li>");
            add_swatch(out, f->legend[i].color);
            strbuf_add_html(out, f->legend[i].label);
            strbuf_add(out, "</li>");
        }
        strbuf_add(out, "</ul>\n");
    }
    strbuf_add(out, f->svg.text);
    strbuf_add(out, "<figcaption>");
    strbuf_add_html(out, f->caption.text);
    strbuf_add(out, " Made by <code>");
    strbuf_add_html(out, command);
    strbuf_add(out, "</code>.</figcaption>\n");
    add_figure_table(f, out);
    strbuf_add(out, "</figure>\n");
}

static void add_run(const struct comparison *c, size_t i, struct strbuf *out)
{
    static const enum metric_index shown[] = {METRIC_samples_per_second, METRIC_step_ms_p50,
                                              METRIC_exposed_comm_ms, METRIC_test_accuracy,
                                              METRIC_wall_seconds};
    const struct run *run = &c->list->runs[i];
    char text[FORMAT_MAX];

    strbuf_add(out, "<tr><td>");
    add_swatch(out, figure_mode_color(c, c->mode_of[i]));
    strbuf_add_html(out, run->name);
    strbuf_add(out, "</td>");
    add_element(out, "td", run->configuration.seed);
    for (size_t k = 0; k < sizeof(shown) / sizeof(shown[0]); k++) {
        format_metric(shown[k],
                      run->state == RUN_OK ? metric_of(&c->metrics[i], shown[k]) : (double)NAN,
                      text);
        add_element(out, "td", text);
    }
    add_element(out, "td",
                run->state == RUN_FAILED                    ? "failed"
                : c->outlier_scores[i] > STATISTICS_OUTLIER ? "outlier, kept"
                                                            : "good");
    strbuf_add(out, "</tr>\n");
}

static void add_runs(const struct comparison *c, struct strbuf *out)
{
    strbuf_add(out, "<h2>Runs</h2>\n<div class=\"scroll\"><table><thead><tr><th>run</th>"
                    "<th>seed</th><th>samples/s</th><th>step, median (ms)</th>"
                    "<th>exposed communication (ms)</th><th>test accuracy</th>"
                    "<th>wall time (s)</th><th>state</th></tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < c->list->length; i++)
        add_run(c, i, out);
    strbuf_add(out, "</tbody></table></div>\n");
}

static void add_foot(const struct report_content *r, struct strbuf *out)
{
    char now[32];

    clock_wall_text(now, sizeof(now));
    strbuf_add(out, "<h2>How to read this</h2>\n");
    add_list(out, &r->comparison->notes);
    strbuf_addf(out,
                "<footer><p>Made by sparring %s at %s from the run directories alone; the same "
                "runs give the same figures. Formulas: experiments/METRICS.md. The same content "
                "stands beside this page as report.md, report.json and report.csv.</p>\n<pre>",
                SPARRING_VERSION, now);
    strbuf_add_html(out, r->command);
    strbuf_add(out, "</pre></footer>\n</main>\n</body>\n</html>\n");
}

void write_html(const struct report_content *r, struct strbuf *out)
{
    add_top(r->comparison, out);
    add_doubts(r->comparison, out);
    add_conditions(r->comparison, out);
    if (r->figures->count > 0)
        strbuf_add(out, "<h2>Speed</h2>\n");
    if (r->figures->problem[0] != '\0')
        add_element(out, "p class=\"alarm\"", r->figures->problem);
    for (size_t i = 0; i < r->figures->count && i < FIRST_FIGURES; i++)
        write_html_figure(r->command, &r->figures->figures[i], out);
    add_main_table(r, out);
    add_ratios(r->comparison, out);
    if (r->figures->count > FIRST_FIGURES)
        strbuf_add(out, "<h2>Bytes, learning, stragglers, cost</h2>\n");
    for (size_t i = FIRST_FIGURES; i < r->figures->count; i++)
        write_html_figure(r->command, &r->figures->figures[i], out);
    add_runs(r->comparison, out);
    add_foot(r, out);
}
