/*
 * record: what a server leaves in the run directory, server<index>.jsonl.  Kinds of lines:
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
 * Threads: the keeper only.
 */
#ifndef SPARRING_SERVER_OBSERVE_RUN_LOG_H
#define SPARRING_SERVER_OBSERVE_RUN_LOG_H

#include "common/base/error.h"
#include "common/metrics/metrics.h"
#include "server/job/job.h"

#include <stdbool.h>

/* Settings of the process that change how fast it is. */
struct record_settings {
    unsigned threads; /* 0: as many as rpc chooses */
    bool shares_memory, has_tls, has_token, is_durable;
};

struct record {
    const char *folder; /* borrowed; NULL: nothing is written */
    struct record_settings settings;
    struct metrics metrics;
    bool open;
    bool written[2][64]; /* files of this process, [is a copy][server index]: append from the second
                            job on */
};

void record_init(struct record *r, const char *folder, const struct record_settings *settings);

/* The job's counters are copies or constant here: no lock is needed. */
enum status record_start(struct record *r, const struct job *j, struct error *err);
enum status record_round(struct record *r, const struct round_record *round, struct error *err);
enum status record_incident(struct record *r, const struct incident *i, struct error *err);
enum status record_end(struct record *r, const struct job *j, struct error *err);
void record_close(struct record *r);

#endif
