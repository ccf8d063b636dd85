/*
 * diff: `sparring report --diff BEFORE NOW`.  Each mode of one report held against the same mode of
 * another: first what they were measured under, which must be equal, then the figure, by runs of
 * different times (unpaired.h), adjusted by Holm over the modes.
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

/* A report as report.json has it: of a folder's runs, of a folder that holds nothing but a
 * report.json, or of that file.  The caller decrefs *ret. */
enum status diff_load(const char *path, json_t **ret, struct error *err);

/* The same of runs that are read already. */
enum status diff_report_of(const struct comparison *c, json_t **ret, struct error *err);

struct diff_request {
    const json_t *before, *now;
    const char *names[2];    /* of both, for the texts */
    const char *ignore;      /* names of settings that may differ: "kernel,commit"; "" */
    const struct gate *gate; /* NULL: throughput, and nothing fails */
};

/*
 * What differs between the two that may (program, commit, seed, and what is to be ignored), then a
 * line per mode that both have, and what the gate says.  *ret_failed: a mode's ratio is past the
 * gate's change, and the difference is one at the level.  STATUS_CONFIG, with every difference in
 * `out`, when they were measured under other conditions; when they share no mode; when the gate has
 * too few runs.  STATUS_DATA: not a report of this schema.
 */
enum status diff_write(const struct diff_request *request, bool *ret_failed, struct strbuf *out,
                       struct error *err);

#endif
