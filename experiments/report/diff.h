/*
 * diff: `sparring report --diff BEFORE NOW`.  Compares each mode of one report with the same mode
 * of another: first the conditions, which must be equal, then the figure, over runs of different
 * times (unpaired.h), adjusted by Holm over the modes.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_DIFF_H
#define SPARRING_EXPERIMENTS_REPORT_DIFF_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "experiments/report/comparison.h"
#include "experiments/report/gate.h"

#include <jansson.h>
#include <stdbool.h>

#define DIFF_MARGIN 0.03 /* a smaller relative change between two reports counts as none */

/* Load a report in the form of report.json: made from a folder's runs, or read from a folder with
 * only a report.json, or from that file.  The caller decrefs *ret. */
enum status diff_load(const char *path, json_t **ret, struct error *err);

/* The same for runs that are read already. */
enum status diff_report_of(const struct comparison *c, json_t **ret, struct error *err);

struct diff_request {
    const json_t *before, *now;
    const char *names[2];    /* of both reports, for the texts */
    const char *ignore;      /* names of settings that may differ: "kernel,commit"; "" */
    const struct gate *gate; /* NULL: throughput, and nothing fails */
};

/*
 * Write the differences that are allowed (program, commit, seed, and `ignore`), then a line per
 * common mode, and the result of the gate.  *ret_failed: a mode's ratio is past the gate's change,
 * and the difference is significant at the level.  STATUS_CONFIG, with every difference in `out`,
 * when the conditions differ; when they share no mode; when the gate has too few runs. STATUS_DATA:
 * not a report of this schema.
 */
enum status diff_write(const struct diff_request *request, bool *ret_failed, struct strbuf *out,
                       struct error *err);

#endif
