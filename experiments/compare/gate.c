/*
 * The gate compares medians over runs and asks the bootstrap whether the difference is real.  The
 * values of the baseline come from the "runs" of its report.json, so both sides are treated alike.
 */
#include "experiments/compare/gate.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "experiments/report/json_fields.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sample {
    const char *name; /* borrowed */
    double *values;
    size_t n;
};

enum status gate_parse(const char *text, struct gate *ret, struct error *err)
{
    struct gate gate = {0};
    char name[64];
    char number[64];
    const char *colon = strchr(text, ':');
    size_t length = strlen(text);

    if (!colon || text[length - 1] != '%' || (size_t)(colon - text) >= sizeof(name) ||
        length - (size_t)(colon - text) >= sizeof(number) || length >= sizeof(gate.text))
        return error_set(err, STATUS_INVALID,
                         "--fail-if '%s' is not METRIC:CHANGE, such as throughput:-5%%", text);
    (void)snprintf(name, sizeof(name), "%.*s", (int)(colon - text), text);
    (void)snprintf(number, sizeof(number), "%.*s", (int)(length - (size_t)(colon - text) - 2),
                   colon + 1);
    if (strcmp(name, "throughput") == 0)
        (void)snprintf(name, sizeof(name), "samples_per_second");
    gate.metric = metric_find(name);
    if (gate.metric == METRIC_COUNT)
        return error_set(err, STATUS_INVALID,
                         "--fail-if '%s': unknown metric '%s' (throughput, step_ms_p50, "
                         "test_accuracy and others of METRICS.md)",
                         text, name);
    if (!parse_double(number[0] == '+' ? number + 1 : number, &gate.change) || gate.change == 0)
        return error_set(err, STATUS_INVALID, "--fail-if '%s': '%s%%' is not a change", text,
                         number);
    gate.change /= 100;
    (void)snprintf(gate.text, sizeof(gate.text), "%s", text);
    *ret = gate;
    return STATUS_OK;
}

static bool is_past(const struct gate *gate, double ratio)
{
    return gate->change < 0 ? ratio < 1 + gate->change : ratio > 1 + gate->change;
}

/* Judge new against old and write a line. */
static enum status judge(const struct gate *gate, const struct sample *new_sample,
                         const struct sample *old_sample, bool *failed, struct strbuf *lines,
                         struct error *err)
{
    struct spread new_spread;
    struct spread old_spread;
    struct interval interval = {(double)NAN, (double)NAN};
    double ratio;
    bool is_real;
    enum status status = statistics_spread(new_sample->values, new_sample->n, &new_spread, err);

    if (status == STATUS_OK)
        status = statistics_spread(old_sample->values, old_sample->n, &old_spread, err);
    if (status == STATUS_OK)
        status = statistics_ratio_interval(new_sample->values, new_sample->n, old_sample->values,
                                           old_sample->n, &interval, err);
    if (status != STATUS_OK)
        return status;
    ratio = new_spread.median / old_spread.median;
    if (!isfinite(ratio))
        return error_set(err, STATUS_CONFIG, "--fail-if %s: the median of %s is 0, no ratio to it",
                         gate->text, old_sample->name);
    is_real = !isfinite(interval.low) || interval.low > 1 || interval.high < 1;
    strbuf_addf(lines, "%s: %s is %.3fx that of %s", gate->text, new_sample->name, ratio,
                old_sample->name);
    if (isfinite(interval.low))
        strbuf_addf(lines, " (95 %% interval %.3f to %.3f)", interval.low, interval.high);
    else
        strbuf_addf(lines, " (%zu and %zu runs, too few for an interval)", new_sample->n,
                    old_sample->n);
    strbuf_addf(lines, ": %s\n",
                !is_past(gate, ratio) ? "passed"
                : is_real             ? "FAILED"
                                      : "passed, the interval includes no change");
    *failed = *failed || (is_past(gate, ratio) && is_real);
    return STATUS_OK;
}

static struct sample sample_of(const struct gate *gate, const struct mode *mode)
{
    return (struct sample){mode->name, mode->values[gate->metric], mode->spreads[gate->metric].n};
}

static enum status check_pair(const struct gate *gate, const struct comparison *c, bool *failed,
                              struct strbuf *lines, struct error *err)
{
    struct sample first;
    struct sample second;

    if (c->match == SIZE_MAX)
        return error_set(err, STATUS_CONFIG, "--fail-if %s: there are no two modes to compare",
                         gate->text);
    first = sample_of(gate, &c->modes[c->ratios[c->match].a]);
    second = sample_of(gate, &c->modes[c->ratios[c->match].b]);
    if (first.n == 0 || second.n == 0)
        return error_set(err, STATUS_CONFIG, "--fail-if %s: no run recorded it", gate->text);
    return judge(gate, &first, &second, failed, lines, err);
}

/* Values of one mode's runs in an earlier report.json; sample->values has room for all runs. */
static void read_baseline(const json_t *runs, const struct gate *gate, const char *mode,
                          struct sample *sample)
{
    size_t i;
    const json_t *run;

    json_array_foreach(runs, i, run)
    {
        const char *name = json_string_value(json_object_get(run, "mode"));
        const json_t *value =
            json_object_get(json_object_get(run, "metrics"), metric_specs[gate->metric].name);

        if (name && strcmp(name, mode) == 0 && json_is_number(value))
            sample->values[sample->n++] = json_number_value(value);
    }
}

static enum status check_modes(const struct gate *gate, const struct comparison *c,
                               const json_t *runs, bool *failed, struct strbuf *lines,
                               struct error *err)
{
    size_t compared = 0;
    double *values = NULL;
    enum status status =
        mem_calloc(json_array_size(runs), sizeof(double), "the baseline", &values, err);

    for (size_t m = 0; m < c->mode_count && status == STATUS_OK; m++) {
        struct sample now = sample_of(gate, &c->modes[m]);
        struct sample before = {.name = "the baseline", .values = values};

        read_baseline(runs, gate, c->modes[m].name, &before);
        if (now.n == 0 || before.n == 0)
            continue;
        status = judge(gate, &now, &before, failed, lines, err);
        compared++;
    }
    free(values);
    if (status == STATUS_OK && compared == 0)
        status = error_set(err, STATUS_CONFIG,
                           "--fail-if %s: the baseline shares no mode with good runs", gate->text);
    return status;
}

/* What may differ between a baseline and what is held against it: the program is what is judged. */
static bool may_differ(const char *condition)
{
    static const char *const names[] = {"program", "commit", "started", "seeds", "runs"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], condition) == 0)
            return true;
    return false;
}

/* Of another host, or another job, a figure is no baseline. */
static enum status check_conditions(const struct gate *gate, const struct comparison *c,
                                    const json_t *conditions, struct error *err)
{
    struct strbuf differences = STRBUF_INIT;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < c->condition_count; i++) {
        const struct condition *now = &c->conditions[i];
        const char *before = json_string_value(json_object_get(conditions, now->name));

        if (!may_differ(now->name) && (!before || strcmp(before, now->value) != 0))
            strbuf_addf(&differences, "%s %s was '%.200s' and is '%.200s'",
                        differences.length > 0 ? ";" : "", now->name, before ? before : "",
                        now->value);
    }
    if (differences.length > 0)
        status = error_set(err, STATUS_CONFIG,
                           "--fail-if %s: the baseline was measured under other conditions:%.1500s",
                           gate->text, strbuf_ok(&differences) ? differences.text : "");
    strbuf_release(&differences);
    return status;
}

enum status gate_check(const struct gate *gate, const struct comparison *c, const char *baseline,
                       bool *ret_failed, struct strbuf *lines, struct error *err)
{
    json_t *report = NULL;
    enum status status;

    *ret_failed = false;
    if (!baseline)
        return check_pair(gate, c, ret_failed, lines, err);
    status = json_file_read(baseline, &report, err);
    if (status != STATUS_OK)
        return status;
    if (json_integer_value(json_object_get(report, "schema")) != 1 ||
        !json_is_array(json_object_get(report, "runs")))
        status = error_set(err, STATUS_DATA, "'%s' is not a report.json of schema 1", baseline);
    if (status == STATUS_OK)
        status = check_conditions(gate, c, json_object_get(report, "conditions"), err);
    if (status == STATUS_OK)
        status = check_modes(gate, c, json_object_get(report, "runs"), ret_failed, lines, err);
    json_decref(report);
    return status;
}
