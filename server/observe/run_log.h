/*
 * run_log: a server's records in the run directory, server<index>.jsonl.  Kinds of lines:
 *
 *   start       job, host, pid, ranks, servers, the process's settings, update, order, elements and
 *               partitions held, load max/mean
 *   round       one round: bytes, sum time, wait time (METRICS.md)
 *   disconnect  a rank's connection broke: how, how it ended, detection and recovery time
 *   rank        one per rank, before end, not in lockstep: its pushes and their staleness
 *   replica     before end, if the job had a replica or was one: records, held replies
 *   state       before end, with --state-dir: journal and snapshots
 *   end         totals; "status" is "ok" or names what ended the job, "error" its text
 *
 * The lines of a job are contiguous.  The first job of this process replaces the file of an earlier
 * process; further jobs append.  A job that began here as a replica is written to
 * replica<index>.jsonl; one that an earlier process began (--state-dir) is continued in its file.
 * Threads: the supervisor only.
 */
#ifndef SPARRING_SERVER_OBSERVE_RUN_LOG_H
#define SPARRING_SERVER_OBSERVE_RUN_LOG_H

#include "common/base/error.h"
#include "common/metrics/metrics.h"
#include "server/job/job_table.h"

#include <stdbool.h>

/* Settings of the process that affect its speed. */
struct run_log_settings {
    unsigned threads; /* 0: chosen by rpc */
    bool shares_memory, has_tls, has_token, is_durable;
};

struct run_log {
    const char *folder; /* borrowed; NULL: nothing is written */
    struct run_log_settings settings;
    struct metrics metrics;
    bool open;
    bool written[2][64]; /* by this process: append; [is a replica][server index % 64] */
};

void run_log_init(struct run_log *r, const char *folder, const struct run_log_settings *settings);

/* The job's counters must be copies or constant.  Without the table's lock, which start and end
 * take briefly.  Without an open file the other functions do nothing. */
enum status run_log_start(struct run_log *r, struct job_table *t, const struct job *j,
                          struct error *err);
enum status run_log_round(struct run_log *r, const struct round_record *round, struct error *err);
enum status run_log_incident(struct run_log *r, const struct incident *i, struct error *err);
enum status run_log_end(struct run_log *r, struct job_table *t, const struct job *j,
                        struct error *err);
void run_log_close(struct run_log *r);

#endif
