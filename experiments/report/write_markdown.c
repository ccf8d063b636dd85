/*
 * write_markdown: the report as Markdown, for a pull request, and as CSV, one line per run.
 */
#include "experiments/report/write.h"

#include "experiments/report/format.h"

#include <inttypes.h>
#include <math.h>

/* Text inside a table or a paragraph: no character of it may act as Markdown or HTML. */
static void add_plain(struct strbuf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n' || *text == '\r')
            strbuf_add(out, " ");
        else if (*text == '<')
            strbuf_add(out, "&lt;");
        else if (*text == '&')
            strbuf_add(out, "&amp;");
        else if (*text == '|' || *text == '`' || *text == '[' || *text == ']' || *text == '\\')
            strbuf_add_bytes(out, (char[]){'\\', *text}, 2);
        else
            strbuf_add_bytes(out, text, 1);
    }
}

static void add_section(struct strbuf *out, const char *heading, const struct text_list *list)
{
    if (list->length == 0)
        return;
    strbuf_addf(out, "\n## %s\n\n", heading);
    for (size_t i = 0; i < list->length; i++) {
        strbuf_add(out, "- ");
        add_plain(out, list->texts[i]);
        strbuf_add(out, "\n");
    }
}

static void add_failures(const struct comparison *c, struct strbuf *out)
{
    struct text_list failures = {0};

    for (size_t i = 0; i < c->list->length; i++)
        if (c->list->runs[i].state == RUN_FAILED)
            text_list_addf(&failures, "%s: %s", c->list->runs[i].name, c->list->runs[i].reason);
    add_section(out, "Runs that failed", &failures);
    if (failures.failed)
        out->failed = true;
    text_list_release(&failures);
}

static void add_table(const struct report_content *r, struct strbuf *out)
{
    const struct comparison *c = r->comparison;
    const struct table *t = r->table;

    strbuf_add(out, "\n## Figures\n\n| |");
    for (size_t m = 0; m < c->mode_count; m++) {
        strbuf_add(out, " ");
        add_plain(out, c->modes[m].label);
        strbuf_add(out, " |");
    }
    strbuf_add(out, "\n|---|");
    for (size_t m = 0; m < c->mode_count; m++)
        strbuf_add(out, "---:|");
    strbuf_add(out, "\n");
    for (size_t i = 0; i < t->row_count; i++) {
        strbuf_addf(out, "| %s%s%s |", t->rows[i].is_section ? "**" : "", t->rows[i].label,
                    t->rows[i].is_section ? "**" : "");
        for (size_t m = 0; m < t->columns; m++) {
            strbuf_add(out, " ");
            add_plain(out, t->cells.texts[i * t->columns + m]);
            strbuf_add(out, " |");
        }
        strbuf_add(out, "\n");
    }
}

static void add_ratios(const struct comparison *c, struct strbuf *out)
{
    if (c->ratio_count == 0)
        return;
    strbuf_addf(out,
                "\n## Mode against mode\n\n| throughput of | over | ratio (%.3g %% interval) | "
                "blocks | p (sign flips, Holm) | verdict |\n|---|---|---:|---:|---:|---|\n",
                100 * (1 - design_level(c->design)));
    for (size_t i = 0; i < c->ratio_count; i++) {
        const struct ratio *ratio = &c->ratios[i];
        char interval[2 * FORMAT_MAX];
        char p[FORMAT_MAX];

        format_ratio_interval(ratio->value, &ratio->interval, interval);
        format_number(ratio->p, 4, p);
        strbuf_add(out, "| ");
        add_plain(out, c->modes[ratio->a].label);
        strbuf_add(out, " | ");
        add_plain(out, c->modes[ratio->b].label);
        strbuf_addf(out, " | %s | %zu | %s | %s |\n", interval, ratio->paired.n, p,
                    ratio_words(ratio));
    }
}

static void add_conditions(const struct comparison *c, struct strbuf *out)
{
    strbuf_add(out, "\n## Conditions\n\n| | |\n|---|---|\n");
    for (size_t i = 0; i < c->condition_count; i++) {
        strbuf_addf(out, "| %s | ", c->conditions[i].name);
        add_plain(out, c->conditions[i].value);
        strbuf_add(out, " |\n");
    }
}

void write_markdown(const struct report_content *r, struct strbuf *out)
{
    const struct comparison *c = r->comparison;

    strbuf_add(out, "# ");
    add_plain(out, c->title[0] ? c->title : "Parameter server against all-reduce");
    strbuf_add(out, "\n\n**");
    add_plain(out, c->verdict);
    strbuf_add(out, "**\n\n");
    add_plain(out, c->why);
    strbuf_add(out, "\n");
    for (size_t i = 0; i < c->more_verdicts.length; i++) {
        strbuf_add(out, "\n");
        add_plain(out, c->more_verdicts.texts[i]);
        strbuf_add(out, "\n");
    }
    add_section(out, "Not comparable because", &c->reasons);
    add_failures(c, out);
    add_section(out, "Warnings", &c->warnings);
    add_table(r, out);
    add_ratios(c, out);
    add_conditions(c, out);
    add_section(out, "How to read this", &c->notes);
    strbuf_add(out, "\nMade by:\n\n    ");
    strbuf_add(out, r->command);
    strbuf_add(out, "\n");
}

void write_csv_text(struct strbuf *out, const char *text)
{
    strbuf_add(out, "\"");
    if (*text == '=' || *text == '+' || *text == '-' || *text == '@')
        strbuf_add(out, "'");
    for (; *text; text++) {
        if (*text == '"')
            strbuf_add(out, "\"");
        strbuf_add_bytes(out, text, 1);
    }
    strbuf_add(out, "\"");
}

void write_csv(const struct report_content *r, struct strbuf *out)
{
    const struct comparison *c = r->comparison;

    strbuf_add(out, "run,mode,label,repeat,seed,state,reason,outlier_score");
    for (int k = 0; k < METRIC_COUNT; k++)
        strbuf_addf(out, ",%s", metric_specs[k].name);
    strbuf_add(out, "\n");
    for (size_t i = 0; i < c->list->length; i++) {
        const struct run *run = &c->list->runs[i];
        const struct mode *mode = &c->modes[c->mode_of[i]];

        write_csv_text(out, run->name);
        strbuf_add(out, ",");
        write_csv_text(out, mode->name);
        strbuf_add(out, ",");
        write_csv_text(out, mode->label);
        strbuf_addf(out, ",%" PRIu64 ",", run->attempt.repeat);
        write_csv_text(out, run->configuration.seed);
        strbuf_addf(out, ",%s,", run->state == RUN_OK ? "good" : "failed");
        write_csv_text(out, run->reason);
        strbuf_addf(out, ",%.3f", c->outlier_scores[i]);
        for (int k = 0; k < METRIC_COUNT; k++) {
            double value = metric_of(&c->metrics[i], (enum metric_index)k);

            if (run->state == RUN_OK && isfinite(value))
                strbuf_addf(out, ",%.9g", value);
            else
                strbuf_add(out, ",");
        }
        strbuf_add(out, "\n");
    }
}
