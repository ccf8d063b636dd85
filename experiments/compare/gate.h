/*
 * gate: `--fail-if METRIC:CHANGE`, for continuous integration: an exit code when a figure got
 * worse.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_GATE_H
#define SPARRING_EXPERIMENTS_COMPARE_GATE_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "experiments/report/comparison.h"

#include <stdbool.h>

struct gate {
    enum metric_index metric;
    double change; /* -0.05: fail when the figure falls below 95 % of the baseline's */
    char text[128];
};

/* "throughput:-5%", "step_ms_p50:+10%": a metric of METRICS.md ("throughput" is short for
 * samples_per_second) and a change that is not 0. */
enum status gate_parse(const char *text, struct gate *ret, struct error *err);

/*
 * Compare with an earlier report.json, mode by mode (same name), or without one (baseline NULL) the
 * first mode of the match with the second.  A mode fails when the ratio of medians is past the
 * change; with 3 runs of both or more, only when the 95 % interval excludes 1 as well, so that
 * noise does not.  Without an earlier report the interval is that of the ratio; against one it is
 * drawn from the runs that the report lists.  Each comparison is a line in `lines`.
 * *ret_failed: one of them failed.  STATUS_CONFIG when nothing can be compared.
 */
enum status gate_check(const struct gate *gate, const struct comparison *c, const char *baseline,
                       bool *ret_failed, struct strbuf *lines, struct error *err);

#endif
