/*
 * gate: `--fail-if METRIC:CHANGE`, for continuous integration: an exit code when a figure got
 * worse.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_GATE_H
#define SPARRING_EXPERIMENTS_REPORT_GATE_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "experiments/report/comparison.h"

#include <stdbool.h>

#define GATE_EXIT_CODE 5 /* of a program whose gate failed */

struct gate {
    enum metric_index metric;
    double change; /* -0.05: fail when the figure falls below 95 % */
    char text[128];
};

/* "throughput:-5%", "step_ms_p50:+10%": a metric of METRICS.md ("throughput" is short for
 * samples_per_second) and a change that is not 0. */
enum status gate_parse(const char *text, struct gate *ret, struct error *err);

/* True when a figure that is `ratio` times the other one is past the change. */
bool gate_is_past(const struct gate *gate, double ratio);

/*
 * Compare the first mode of the main ratio with the second, block by block: *ret_failed when the
 * ratio is past the change and the sign-flip test finds a difference at the design's level. Appends
 * one line to `lines`.  STATUS_CONFIG when there is no main ratio, or too few blocks for
 * significance.
 */
enum status gate_check(const struct gate *gate, const struct comparison *c, bool *ret_failed,
                       struct strbuf *lines, struct error *err);

#endif
