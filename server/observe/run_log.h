/*
 * run_log: what a server leaves in the run directory, server<index>.jsonl.  Kinds of lines:
 *
 *   start  job, host, pid, ranks, servers, the process's settings, update, order, elements and
 *          partitions held, load max/mean
 *   rank   one per rank, before end: its pushes and their staleness
 *   round  one round: bytes, sum time, wait time (METRICS.md)
 *   end    totals; "status" is "ok" or names what ended the job, "error" its text
 *
 * A job's lines stand together.  The first job of this process replaces a file
 * that an earlier one left; further jobs append.  A job that this server kept a copy of goes to
 * replica<index>.jsonl; one that an earlier process began (--state-dir) is continued in its file.
 * Threads: the supervisor only.
 */
#ifndef SPARRING_SERVER_OBSERVE_RUN_LOG_H
#define SPARRING_SERVER_OBSERVE_RUN_LOG_H

#include "common/base/error.h"
#include "common/metrics/metrics.h"
#include "server/job/job_table.h"

#include <stdbool.h>

/* Settings of the process that change how fast it is. */
struct run_log_settings {
    unsigned threads; /* 0: as many as rpc chooses */
    bool shares_memory, has_tls, has_token, is_durable;
};

struct run_log {
    const char *folder; /* borrowed; NULL: nothing is written */
    struct run_log_settings settings;
    struct metrics metrics;
    bool open;
    bool written[2][64]; /* files of this process, [is a copy][server index]: append from the second
                            job on */
};

void run_log_init(struct run_log *r, const char *folder, const struct run_log_settings *settings);

/* The job's counters are copies or constant here.  No lock; the table's is taken for a moment. */
enum status run_log_start(struct run_log *r, struct job_table *t, const struct job *j,
                          struct error *err);
enum status run_log_round(struct run_log *r, const struct round_record *round, struct error *err);
enum status run_log_incident(struct run_log *r, const struct incident *i, struct error *err);
enum status run_log_end(struct run_log *r, struct job_table *t, const struct job *j,
                        struct error *err);
void run_log_close(struct run_log *r);

#endif
