/*
 * metrics: typed records as JSON lines, one write(2) per line, appended.  Every figure is defined
 * once, with its formula, in experiments/METRICS.md.  Nothing is allocated per record.
 * Threads: one writer per struct metrics.
 *
 * Library.  Needs only base.  Called by the training loop, the parameter server and the report.
 */
#ifndef SPARRING_COMMON_METRICS_METRICS_H
#define SPARRING_COMMON_METRICS_METRICS_H

#include "common/base/error.h"
#include "common/base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

struct metrics {
    char path[4096];
    int fd;             /* -1: records are dropped (no --run-dir) */
    struct strbuf line; /* reused */
};

/* One training step of one rank. */
struct step_record {
    uint64_t step; /* 0 for the first step of the run */
    uint64_t epoch;
    double loss; /* mean cross-entropy of this rank's batch, before the update */
    uint64_t samples;
    double begin_wall; /* seconds since 1970; 0: unknown, and not written */
    int64_t step_ns, input_ns, compute_ns, exposed_comm_ns, optimizer_ns;
    int64_t forward_ns; /* of compute_ns */
    int64_t comm_ns;    /* all communication, exposed or not; 0 if unknown */
    uint64_t tx_payload_bytes, rx_payload_bytes; /* of this step */
};

/* Open for append (created when missing); path NULL drops everything. */
enum status metrics_open(struct metrics *m, const char *path, struct error *err);
enum status metrics_step(struct metrics *m, const struct step_record *record, struct error *err);

/* A record of any kind: metrics_begin(kind), the adders, metrics_end writes the line. */
void metrics_begin(struct metrics *m, const char *kind);
void metrics_add_text(struct metrics *m, const char *name, const char *value);
void metrics_add_int(struct metrics *m, const char *name, int64_t value);
void metrics_add_double(struct metrics *m, const char *name, double value); /* not finite: null */
/* A list of counts. */
void metrics_add_counts(struct metrics *m, const char *name, const uint64_t *values, size_t length);
enum status metrics_end(struct metrics *m, struct error *err);

void metrics_close(struct metrics *m);

#endif
