/*
 * critical_path: what the steps of runs in lockstep wait for.
 *
 * In lockstep no rank ends a step before the last one has contributed.  The last one is the rank
 * that itself waits least, so its step, from the batch to the optimizer, is the critical path:
 * every part of it is time that all ranks spend.  Ranks that wait hardly longer than it share the
 * step.  The clocks of different hosts are not compared.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_CRITICAL_PATH_H
#define SPARRING_EXPERIMENTS_REPORT_CRITICAL_PATH_H

#include "common/base/strbuf.h"
#include "experiments/report/run.h"

#include <stdbool.h>
#include <stddef.h>

enum path_part {
    PATH_INPUT,
    PATH_FORWARD,
    PATH_BACKWARD,
    PATH_COMPUTE,       /* both, where their times are not known apart */
    PATH_SUM,           /* a server, after the last contribution has come */
    PATH_COMMUNICATION, /* the rest of what backward does not hide */
    PATH_OPTIMIZER,     /* on the rank */
    PATH_OTHER,
    PATH_PARTS
};

struct critical_path {
    size_t steps; /* 0: not known */
    size_t runs;
    size_t ranks, servers, processes; /* the greater of both */
    size_t *server_numbers;           /* owned; those that have records, in their order */
    double total_ns;
    double messages_ns; /* that the last rank of every step waited */
    double *ns;         /* owned; [part][rank or server] */
    double *waited;     /* owned; of each rank in one step */
    double *caused;     /* owned; of each rank: how much longer than it the others waited */
    double *queued; /* owned; of each rank: its tx_queued_bytes over its tx_wire_bytes, summed over
                       the runs; NaN: not known */
};

/* Add the steady steps of a run in lockstep; all runs have equally many ranks and servers.
 * STATUS_NO_MEMORY only. */
enum status critical_path_add(struct critical_path *p, const struct run *run, struct error *err);
void critical_path_release(struct critical_path *p);

/* Share of the steps' time; NaN when nothing is known. */
double critical_path_share(const struct critical_path *p, enum path_part part);

/* "rank 2": the process that has at least two thirds of the part's time; "" when there is none, or
 * only one of its kind. */
void critical_path_process(const struct critical_path *p, enum path_part part, char *text,
                           size_t size);

/* How long a rank waits in a step, on average: for the messages, after the last rank's
 * contribution; and for this rank to contribute.  NaN when nothing is known. */
double critical_path_messages_ms(const struct critical_path *p);
double critical_path_caused_ms(const struct critical_path *p, size_t rank);

/* The rank that is waited for longest; SIZE_MAX: none is waited for. */
size_t critical_path_latest(const struct critical_path *p);

/* The link on which the ring waits: "the link of rank 2", in both directions, or "the link from
 * rank 1 to rank 2"; "" when none stands out. */
void critical_path_link(const struct critical_path *p, char *text, size_t size);

/* Append "62 % backward of rank 2, 21 % communication": the largest parts, at most four. */
void critical_path_describe(const struct critical_path *p, struct strbuf *out);

/* Append all parts as one JSON object (experiments/METRICS.md). */
void critical_path_write_json(const struct critical_path *p, struct strbuf *out);

#endif
