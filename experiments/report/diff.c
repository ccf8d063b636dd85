/*
 * diff: compares two reports in their JSON form, read from a file or made from runs: modes are
 * matched by name, conditions are each mode's "facts" in report.json, and figures are those of its
 * runs.
 */
#include "experiments/report/diff.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "experiments/report/design.h"
#include "experiments/report/format.h"
#include "experiments/report/json_fields.h"
#include "experiments/report/report.h"
#include "experiments/report/run.h"
#include "experiments/report/unpaired.h"
#include "experiments/report/write.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- reading ---- */

enum status diff_report_of(const struct comparison *c, json_t **ret, struct error *err)
{
    const struct report_content content = {.comparison = c, .command = ""};
    struct strbuf text = STRBUF_INIT;
    enum status status = STATUS_OK;

    write_json(&content, &text);
    *ret = strbuf_ok(&text) ? json_loadb(text.text, text.length, 0, NULL) : NULL;
    if (!*ret)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for a report");
    strbuf_release(&text);
    return status;
}

static enum status load_folder(const char *path, json_t **ret, struct error *err)
{
    struct report report = {0};
    char file[4096];
    enum status status = report_read(&report, &path, 1, err);

    if (status == STATUS_OK) {
        status = diff_report_of(&report.comparison, ret, err);
    } else if (status == STATUS_NOT_FOUND &&
               file_join(file, sizeof(file), path, "report.json", NULL) == STATUS_OK) {
        struct error other = {0};

        if (json_file_read(file, ret, &other) != STATUS_NOT_FOUND)
            status = other.status;
        if (status != STATUS_NOT_FOUND && status != STATUS_OK)
            *err = other;
    }
    report_release(&report);
    return status;
}

enum status diff_load(const char *path, json_t **ret, struct error *err)
{
    struct stat info;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return load_folder(path, ret, err);
    return json_file_read(path, ret, err);
}

static json_int_t schema_of(const json_t *report)
{
    return json_integer_value(json_object_get(report, "schema"));
}

static enum status check_schema(const json_t *report, const char *name, struct error *err)
{
    const json_int_t schema = schema_of(report);

    if ((schema == REPORT_SCHEMA || schema == 2) &&
        json_is_array(json_object_get(report, "runs")) &&
        json_is_array(json_object_get(report, "modes")))
        return STATUS_OK;
    if (schema == 1)
        return error_set(err, STATUS_DATA,
                         "'%s' is a report of schema 1, whose throughput is that of the median "
                         "step: make it again from its runs with 'sparring report'",
                         name);
    return error_set(err, STATUS_DATA, "'%s' is not a report.json of schema %d", name,
                     REPORT_SCHEMA);
}

/* ---- conditions ---- */

static const json_t *find_mode(const json_t *report, const char *name)
{
    size_t i;
    const json_t *mode;

    json_array_foreach(json_object_get(report, "modes"), i, mode)
    {
        const char *other = json_string_value(json_object_get(mode, "name"));

        if (name && other && strcmp(name, other) == 0)
            return mode;
    }
    return NULL;
}

/* An empty fact counts as missing. */
static const char *fact_of(const json_t *mode, const char *name)
{
    const char *value = json_string_value(json_object_get(json_object_get(mode, "facts"), name));

    return value && value[0] != '\0' ? value : RUN_NOT_RECORDED;
}

/* The program is the subject of the comparison, and other seeds are other samples of the same. */
static bool may_differ(const struct diff_request *r, const char *name)
{
    return parse_list_has("program,commit,seed", name) || parse_list_has(r->ignore, name);
}

static bool fact_differs(const json_t *before, const json_t *now, const char *name)
{
    return strcmp(fact_of(before, name), fact_of(now, name)) != 0;
}

/* True when an earlier mode that both reports have shows the same difference. */
static bool was_listed(const struct diff_request *r, size_t index, const char *name)
{
    const json_t *modes = json_object_get(r->now, "modes");
    const json_t *now = json_array_get(modes, index);
    const json_t *before = find_mode(r->before, json_string_value(json_object_get(now, "name")));

    for (size_t i = 0; i < index; i++) {
        const json_t *mode = json_array_get(modes, i);
        const json_t *other =
            find_mode(r->before, json_string_value(json_object_get(mode, "name")));

        if (other && strcmp(fact_of(mode, name), fact_of(now, name)) == 0 &&
            strcmp(fact_of(other, name), fact_of(before, name)) == 0)
            return true;
    }
    return false;
}

static size_t list_difference(const struct diff_request *r, size_t index, const json_t *before,
                              const char *name, struct strbuf *out)
{
    const json_t *now = json_array_get(json_object_get(r->now, "modes"), index);
    const bool may = may_differ(r, name);
    struct strbuf line = STRBUF_INIT;

    if (!fact_differs(before, now, name) || was_listed(r, index, name))
        return 0;
    strbuf_addf(&line, "%s: %s (%s) was '%s' and is '%s'", may ? "differs" : "NOT COMPARABLE", name,
                json_string_value(json_object_get(now, "name")), fact_of(before, name),
                fact_of(now, name));
    report_add_wrapped(out, line.text, 0);
    out->failed = out->failed || !strbuf_ok(&line);
    strbuf_release(&line);
    return !may;
}

/* A mode without good runs has next to no facts. */
static bool has_facts(const json_t *mode)
{
    return json_object_get(json_object_get(mode, "facts"), "world_size") != NULL;
}

/* List every setting that differs; returns the number of those that must not differ. */
static size_t list_differences(const struct diff_request *r, struct strbuf *out)
{
    size_t count = 0, i;
    const json_t *now;
    const char *name;
    json_t *value;

    json_array_foreach(json_object_get(r->now, "modes"), i, now)
    {
        const json_t *before =
            find_mode(r->before, json_string_value(json_object_get(now, "name")));

        if (!before || !has_facts(before) || !has_facts(now))
            continue;
        json_object_foreach(json_object_get(now, "facts"), name, value) count +=
            list_difference(r, i, before, name, out);
        json_object_foreach(json_object_get(before, "facts"), name,
                            value) if (!json_object_get(json_object_get(now, "facts"), name))
            count += list_difference(r, i, before, name, out);
    }
    return count;
}

static void list_unmatched_modes(const json_t *report, const json_t *other, const char *name,
                                 struct strbuf *out)
{
    size_t i;
    const json_t *mode;

    json_array_foreach(json_object_get(report, "modes"), i, mode)
    {
        const char *mode_name = json_string_value(json_object_get(mode, "name"));

        if (mode_name && !find_mode(other, mode_name))
            strbuf_addf(out, "only in %s: %s\n", name, mode_name);
    }
}

/* ---- figures ---- */

/* One mode in both reports: [0] before, [1] now. */
struct mode_pair {
    const char *name;  /* borrowed */
    double *values[2]; /* owned */
    struct sample samples[2];
    struct spread spreads[2];
    struct unpaired unpaired;
};

/* Logarithms of the figure of the mode's good runs, in the order of the report, which is that of
 * the blocks; `values` has room for all runs of the report. */
static size_t collect_log_values(const json_t *report, const char *mode, enum metric_index metric,
                                 double *values)
{
    size_t n = 0, i;
    const json_t *run;

    json_array_foreach(json_object_get(report, "runs"), i, run)
    {
        const char *name = json_string_value(json_object_get(run, "mode"));
        const json_t *value =
            json_object_get(json_object_get(run, "metrics"), metric_specs[metric].name);

        if (name && strcmp(name, mode) == 0 && json_number_value(value) > 0)
            values[n++] = log(json_number_value(value));
    }
    return n;
}

static enum status read_pair(const struct diff_request *r, enum metric_index metric,
                             struct mode_pair *pair, struct error *err)
{
    const json_t *const reports[2] = {r->before, r->now};
    enum status status = STATUS_OK;

    for (size_t k = 0; k < 2 && status == STATUS_OK; k++) {
        status = mem_calloc(json_array_size(json_object_get(reports[k], "runs")), sizeof(double),
                            "a mode's runs", &pair->values[k], err);
        if (status != STATUS_OK)
            break;
        pair->samples[k] = (struct sample){
            pair->values[k], collect_log_values(reports[k], pair->name, metric, pair->values[k])};
        status = statistics_spread(pair->values[k], pair->samples[k].n, &pair->spreads[k], err);
    }
    return status;
}

static bool has_both(const struct mode_pair *pair)
{
    return pair->samples[0].n > 0 && pair->samples[1].n > 0;
}

/* Fill pairs[].unpaired.  One correlation for all modes: they share the machine. */
static enum status compare_pairs(struct mode_pair *pairs, size_t count, struct error *err)
{
    struct sample *all = NULL;
    double correlation;
    enum status status = mem_calloc(2 * count, sizeof(*all), "samples", &all, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        memcpy(all + 2 * i, pairs[i].samples, sizeof(pairs[i].samples));
    correlation = unpaired_correlation(all, 2 * count);
    free(all);
    for (size_t i = 0; i < count; i++)
        pairs[i].unpaired =
            unpaired_compare(&pairs[i].samples[0], &pairs[i].samples[1], correlation, DESIGN_LEVEL,
                             design_log_margin(DIFF_MARGIN));
    statistics_holm(&pairs->unpaired.p_difference, sizeof(*pairs), count, count);
    statistics_holm(&pairs->unpaired.p_equivalence, sizeof(*pairs), count, count);
    return STATUS_OK;
}

static bool has_too_few(const struct mode_pair *pair)
{
    return isnan(pair->unpaired.interval.low);
}

static const char *state_of(const struct mode_pair *pair, int better)
{
    const struct unpaired *u = &pair->unpaired;

    if (has_too_few(pair))
        return "too few runs";
    if (u->p_equivalence <= DESIGN_LEVEL)
        return "equivalent";
    if (u->p_difference > DESIGN_LEVEL)
        return "undecided";
    return better == 0 ? "differs" : (u->difference > 0) == (better > 0) ? "better" : "worse";
}

static void add_pair(const struct mode_pair *pair, enum metric_index metric, struct strbuf *out)
{
    const struct interval interval = {exp(pair->unpaired.interval.low),
                                      exp(pair->unpaired.interval.high)};
    char before[FORMAT_MAX], now[FORMAT_MAX], ratio[2 * FORMAT_MAX];

    format_metric(metric, exp(pair->spreads[0].median), before);
    format_metric(metric, exp(pair->spreads[1].median), now);
    format_ratio_interval(exp(pair->unpaired.difference), &interval, ratio);
    strbuf_addf(out, "%-15.31s %11s %11s  %-19s %6.2g  %s\n", pair->name, before, now, ratio,
                pair->unpaired.p_difference, state_of(pair, metric_specs[metric].better));
}

static enum status refuse_gate(const struct gate *gate, const struct mode_pair *pair,
                               struct error *err)
{
    return error_set(err, STATUS_CONFIG,
                     "--fail-if %s: %zu and %zu good runs of %s that recorded it above 0, at least "
                     "%d of each are needed",
                     gate->text, pair->samples[0].n, pair->samples[1].n, pair->name,
                     STATISTICS_RUNS_MINIMUM);
}

static enum status check_gate(const struct gate *gate, const struct mode_pair *pairs, size_t count,
                              bool *ret_failed, struct strbuf *out, struct error *err)
{
    for (size_t i = 0; i < count; i++) {
        const struct unpaired *u = &pairs[i].unpaired;
        const double ratio = exp(u->difference);

        if (has_too_few(&pairs[i]))
            return refuse_gate(gate, &pairs[i], err);
        if (!gate_is_past(gate, ratio))
            continue;
        *ret_failed = *ret_failed || u->p_difference <= DESIGN_LEVEL;
        strbuf_addf(out, "%s: %s has %.3fx: %s\n", gate->text, pairs[i].name, ratio,
                    u->p_difference <= DESIGN_LEVEL ? "FAILED" : "passed, it may be chance");
    }
    if (!*ret_failed)
        strbuf_addf(out, "%s: passed\n", gate->text);
    return STATUS_OK;
}

static void release_pair(struct mode_pair *pair)
{
    free(pair->values[0]);
    free(pair->values[1]);
}

/* Read every mode that has good runs in both reports: *ret_count of them into `pairs`, which has
 * room for all modes. */
static enum status read_pairs(const struct diff_request *r, enum metric_index metric,
                              struct mode_pair *pairs, size_t *ret_count, struct strbuf *out,
                              struct error *err)
{
    enum status status = STATUS_OK;
    size_t count = 0, i;
    const json_t *mode;

    json_array_foreach(json_object_get(r->now, "modes"), i, mode)
    {
        struct mode_pair pair = {.name = json_string_value(json_object_get(mode, "name"))};

        if (!find_mode(r->before, pair.name) || status != STATUS_OK)
            continue;
        status = read_pair(r, metric, &pair, err);
        if (status == STATUS_OK && has_both(&pair)) {
            pairs[count++] = pair;
            continue;
        }
        if (status == STATUS_OK && r->gate && pair.samples[0].n + pair.samples[1].n > 0)
            status = refuse_gate(r->gate, &pair, err);
        else if (status == STATUS_OK)
            strbuf_addf(out, "no run of %s in both that recorded %s\n", pair.name,
                        metric_specs[metric].name);
        release_pair(&pair);
    }
    *ret_count = count;
    if (status == STATUS_OK && count == 0)
        status = error_set(err, STATUS_CONFIG, "'%s' and '%s' share no mode with good runs",
                           r->names[0], r->names[1]);
    return status;
}

static enum status write_figures(const struct diff_request *r, bool *ret_failed, struct strbuf *out,
                                 struct error *err)
{
    const enum metric_index metric = r->gate ? r->gate->metric : METRIC_samples_per_second;
    struct mode_pair *pairs = NULL;
    size_t count = 0;
    enum status status = mem_calloc(json_array_size(json_object_get(r->now, "modes")),
                                    sizeof(*pairs), "modes", &pairs, err);

    if (status != STATUS_OK)
        return status;
    status = read_pairs(r, metric, pairs, &count, out, err);
    if (status == STATUS_OK)
        status = compare_pairs(pairs, count, err);
    if (status == STATUS_OK) {
        strbuf_addf(out, "%s\n%-15s %11s %11s  %-19s %6s\n", metric_specs[metric].title, "mode",
                    "before", "now", "ratio (95 %)", "p");
        for (size_t i = 0; i < count; i++)
            add_pair(&pairs[i], metric, out);
        if (r->gate)
            status = check_gate(r->gate, pairs, count, ret_failed, out, err);
    }
    for (size_t i = 0; i < count; i++)
        release_pair(&pairs[i]);
    free(pairs);
    return status;
}

enum status diff_write(const struct diff_request *r, bool *ret_failed, struct strbuf *out,
                       struct error *err)
{
    size_t differences;
    enum status status = check_schema(r->before, r->names[0], err);

    *ret_failed = false;
    if (status == STATUS_OK)
        status = check_schema(r->now, r->names[1], err);
    if (status != STATUS_OK)
        return status;
    strbuf_addf(out, "before: %s\nnow:    %s\n", r->names[0], r->names[1]);
    if (schema_of(r->before) != schema_of(r->now))
        strbuf_add(out,
                   "of different schemas: throughput of ranks that do not wait for each other\n"
                   "(asp, ssp, backup workers) is of other steps; 'sparring report'\n"
                   "makes the older one again from its runs\n");
    list_unmatched_modes(r->before, r->now, r->names[0], out);
    list_unmatched_modes(r->now, r->before, r->names[1], out);
    differences = list_differences(r, out);
    if (differences > 0)
        return error_set(err, STATUS_CONFIG,
                         "the reports were measured under other conditions, %zu of them; --ignore "
                         "NAME,... lets those pass that do not matter",
                         differences);
    return write_figures(r, ret_failed, out, err);
}
