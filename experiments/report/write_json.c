/*
 * write_json: report.json, schema 2: everything that the page shows.  Unknown numbers are null.
 */
#include "experiments/report/write.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>

static void add_text(struct strbuf *out, const char *name, const char *value)
{
    strbuf_add_json(out, name);
    strbuf_add(out, ":");
    strbuf_add_json(out, value);
}

static void add_number(struct strbuf *out, const char *name, double value)
{
    strbuf_add_json(out, name);
    if (isfinite(value))
        strbuf_addf(out, ":%.15g", value);
    else
        strbuf_add(out, ":null");
}

static void add_texts(struct strbuf *out, const char *name, const struct text_list *list)
{
    strbuf_addf(out, ",\n\"%s\":[", name);
    for (size_t i = 0; i < list->length; i++) {
        strbuf_add(out, i > 0 ? "," : "");
        strbuf_add_json(out, list->texts[i]);
    }
    strbuf_add(out, "]");
}

static void add_ratio(const struct comparison *c, const struct ratio *ratio, struct strbuf *out)
{
    strbuf_add(out, "{");
    add_text(out, "over", c->modes[ratio->a].name);
    strbuf_add(out, ",");
    add_text(out, "under", c->modes[ratio->b].name);
    strbuf_add(out, ",");
    add_text(out, "of", ratio->is_to_target ? "speed to the target accuracy" : "throughput");
    strbuf_add(out, ",");
    add_number(out, "ratio", ratio->value);
    strbuf_add(out, ",");
    add_number(out, "low", ratio->interval.low);
    strbuf_add(out, ",");
    add_number(out, "high", ratio->interval.high);
    strbuf_add(out, ",");
    add_number(out, "p", ratio->p);
    strbuf_add(out, ",");
    add_number(out, "p_equivalence", ratio->p_equivalence);
    strbuf_addf(out, ",\"blocks\":%zu,\"broken_blocks\":%zu,", ratio->paired.n, ratio->broken);
    add_number(out, "deviation", ratio->paired.deviation);
    strbuf_add(out, ",");
    add_text(out, "state", ratio_state_name(ratio->state));
    strbuf_add(out, "}");
}

static void add_verdict(const struct comparison *c, struct strbuf *out)
{
    strbuf_add(out, ",\n\"verdict\":{");
    add_text(out, "text", c->verdict);
    strbuf_add(out, ",");
    add_text(out, "why", c->why);
    strbuf_add(out, ",\"match\":");
    if (c->main_ratio == SIZE_MAX)
        strbuf_add(out, "null");
    else
        add_ratio(c, &c->ratios[c->main_ratio], out);
    strbuf_addf(out, ",\"level\":%.9g,\"looks\":%" PRIu64 ",\"margin\":%.9g}", c->design->level,
                design_looks(c->design), c->design->margin);
    add_texts(out, "more_verdicts", &c->more_verdicts);
}

static void add_spread(const struct spread *s, struct strbuf *out)
{
    strbuf_addf(out, "{\"n\":%zu,", s->n);
    add_number(out, "median", s->median);
    strbuf_add(out, ",");
    add_number(out, "q1", s->q1);
    strbuf_add(out, ",");
    add_number(out, "q3", s->q3);
    strbuf_add(out, ",");
    add_number(out, "low", s->interval.low);
    strbuf_add(out, ",");
    add_number(out, "high", s->interval.high);
    strbuf_add(out, "}");
}

/* Settings of its runs; several values of one are a list in one text. */
static void add_facts(const struct comparison *c, const struct mode *m, struct strbuf *out)
{
    const char *before = "";

    strbuf_add(out, ",\"facts\":{");
    for (size_t i = 0; i < c->fact_count; i++) {
        const char *value = c->facts[i].values[m - c->modes];

        if (!value)
            continue;
        strbuf_add(out, before);
        add_text(out, c->facts[i].name, value);
        before = ",";
    }
    strbuf_add(out, "}");
}

static void add_mode(const struct comparison *c, const struct mode *m, struct strbuf *out)
{
    static const char *const roles[] = {"contender", "control", "single"};

    strbuf_add(out, "\n{");
    add_text(out, "name", m->name);
    strbuf_add(out, ",");
    add_text(out, "label", m->label);
    strbuf_addf(out, ",\"role\":\"%s\",\"ranks\":%.0f,\"servers\":%.0f,\"failed_runs\":%zu,",
                roles[m->role], m->ranks, m->servers, m->failed);
    add_number(out, "relative_to_control", comparison_relative(c, m));
    strbuf_add(out, ",");
    add_number(out, "scaling_efficiency", comparison_efficiency(c, m));
    strbuf_add(out, ",");
    add_number(out, "cost_per_million_samples", comparison_cost_of_samples(c, m));
    strbuf_add(out, ",");
    add_number(out, "cost_to_target", comparison_cost_to_target(c, m));
    strbuf_add(out, ",\"metrics\":{");
    for (int k = 0; k < METRIC_COUNT; k++) {
        strbuf_addf(out, "%s\"%s\":", k > 0 ? "," : "", metric_specs[k].name);
        add_spread(&m->spreads[k], out);
    }
    strbuf_add(out, "}");
    strbuf_add(out, ",\"critical_path\":");
    critical_path_write_json(&m->path, out);
    add_facts(c, m, out);
    strbuf_add(out, "}");
}

static void add_run(const struct comparison *c, size_t i, struct strbuf *out)
{
    const struct run *run = &c->list->runs[i];

    strbuf_add(out, "\n{");
    add_text(out, "run", run->name);
    strbuf_add(out, ",");
    add_text(out, "folder", run->path);
    strbuf_add(out, ",");
    add_text(out, "mode", c->modes[c->mode_of[i]].name);
    strbuf_addf(out, ",\"repeat\":%" PRIu64 ",\"order\":%" PRIu64 ",", run->attempt.repeat,
                run->attempt.order);
    add_text(out, "seed", run->configuration.seed);
    strbuf_add(out, ",");
    add_text(out, "state", run->state == RUN_OK ? "good" : "failed");
    strbuf_add(out, ",");
    add_text(out, "reason", run->reason);
    strbuf_add(out, ",");
    add_number(out, "outlier_score", c->outlier_scores[i]);
    strbuf_add(out, ",\"metrics\":");
    for (int k = 0; k < METRIC_COUNT && run->state == RUN_OK; k++) {
        strbuf_add(out, k > 0 ? "," : "{");
        add_number(out, metric_specs[k].name, metric_of(&c->metrics[i], (enum metric_index)k));
    }
    strbuf_add(out, run->state == RUN_OK ? "}}" : "null}");
}

static void add_conditions(const struct comparison *c, struct strbuf *out)
{
    strbuf_add(out, ",\n\"conditions\":{");
    for (size_t i = 0; i < c->condition_count; i++) {
        strbuf_add(out, i > 0 ? "," : "");
        add_text(out, c->conditions[i].name, c->conditions[i].value);
    }
    strbuf_add(out, "}");
}

void write_json(const struct report_content *r, struct strbuf *out)
{
    const struct comparison *c = r->comparison;

    strbuf_addf(out, "{\"schema\":%d,\"generator\":\"sparring report %s\",", REPORT_SCHEMA,
                SPARRING_VERSION);
    add_text(out, "title", c->title);
    strbuf_add(out, ",");
    add_text(out, "command", r->command);
    add_verdict(c, out);
    add_conditions(c, out);
    add_texts(out, "not_comparable_because", &c->reasons);
    add_texts(out, "warnings", &c->warnings);
    add_texts(out, "notes", &c->notes);
    strbuf_add(out, ",\n\"modes\":[");
    for (size_t i = 0; i < c->mode_count; i++) {
        strbuf_add(out, i > 0 ? "," : "");
        add_mode(c, &c->modes[i], out);
    }
    strbuf_add(out, "],\n\"ratios\":[");
    for (size_t i = 0; i < c->ratio_count; i++) {
        strbuf_add(out, i > 0 ? "," : "");
        add_ratio(c, &c->ratios[i], out);
    }
    strbuf_add(out, "],\n\"runs\":[");
    for (size_t i = 0; i < c->list->length; i++) {
        strbuf_add(out, i > 0 ? "," : "");
        add_run(c, i, out);
    }
    strbuf_add(out, "]}\n");
}
