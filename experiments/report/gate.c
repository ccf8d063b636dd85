/*
 * gate: a change fails only when it is past the limit and significant by the sign-flip test over
 * the blocks.
 */
#include "experiments/report/gate.h"

#include "common/base/parse.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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

bool gate_is_past(const struct gate *gate, double ratio)
{
    return gate->change < 0 ? ratio < 1 + gate->change : ratio > 1 + gate->change;
}

enum status gate_check(const struct gate *gate, const struct comparison *c, bool *ret_failed,
                       struct strbuf *lines, struct error *err)
{
    const size_t least = paired_least_blocks(1, design_level(c->design));
    const char *first, *second;
    struct paired p;
    enum status status;
    double ratio;
    bool is_past;

    *ret_failed = false;
    if (c->main_ratio == SIZE_MAX)
        return error_set(err, STATUS_CONFIG,
                         "--fail-if %s: there are no two modes to compare, or no good runs of the "
                         "first pair of the verdict",
                         gate->text);
    first = c->modes[c->ratios[c->main_ratio].a].name;
    second = c->modes[c->ratios[c->main_ratio].b].name;
    status = comparison_pair_by(c, &c->ratios[c->main_ratio], gate->metric, &p, err);
    if (status != STATUS_OK)
        return status;
    ratio = exp(p.mean);
    if (p.n < least)
        return error_set(err, STATUS_CONFIG,
                         "--fail-if %s: %zu blocks with good runs of %s and %s that recorded it "
                         "cannot tell a difference from chance: it takes %zu",
                         gate->text, p.n, first, second, least);
    is_past = gate_is_past(gate, ratio);
    *ret_failed = is_past && p.p_difference <= design_level(c->design);
    strbuf_addf(lines,
                "%s: %s has %.3fx that of %s (%.3g %% interval %.3f to %.3f; %zu blocks, p = "
                "%.2g): %s\n",
                gate->text, first, ratio, second, 100 * (1 - design_level(c->design)),
                exp(p.interval.low), exp(p.interval.high), p.n, p.p_difference,
                *ret_failed ? "FAILED"
                : is_past   ? "passed, it may be chance"
                            : "passed");
    return STATUS_OK;
}
