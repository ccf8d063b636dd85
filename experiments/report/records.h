/*
 * records: the lines of one rank<r>.jsonl or server<k>.jsonl.  The kinds are "start", "step",
 * "evaluation", "round" and "end"; other kinds are skipped.  A malformed line is an error that
 * names file and line; only an incomplete last line, as a killed process leaves it, is dropped and
 * sets was_cut.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_RECORDS_H
#define SPARRING_EXPERIMENTS_REPORT_RECORDS_H

#include "common/base/error.h"
#include "common/metrics/metrics.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STALENESS_BUCKETS_MAX 32

/* Of a server. */
struct round_record {
    uint64_t round;
    double begin_wall;                 /* seconds since 1970; 0: not recorded */
    int64_t round_ns, sum_ns, wait_ns; /* the latter two summed over the partitions */
};

struct evaluation {
    uint64_t epoch;
    size_t steps;                    /* steps of this rank before it */
    double test_loss, test_accuracy; /* NaN: not known */
};

struct end_record {
    char status[128]; /* "" when there is no "end" line */
    char error[512];
    double tx_wire_bytes, rx_wire_bytes;       /* of the whole run; NaN: not known */
    double tx_queued_bytes;                    /* of a rank, likewise */
    double tx_payload_bytes, rx_payload_bytes; /* of the whole run; servers write them */
    double expected_tx_payload_bytes, expected_rx_payload_bytes; /* per step */
    double peak_rss_bytes, cpu_seconds;
    double steps_cpu_seconds;          /* of a rank; NaN: not known */
    double processor_wait;             /* likewise */
    double skipped_steps;              /* likewise */
    double used_pushes, staleness_sum; /* of a server, like the members below; NaN: not known */
    double late_pushes;
    size_t buckets;                       /* of the histogram of staleness; 0: there is none */
    double bounds[STALENESS_BUCKETS_MAX]; /* greatest staleness of each; the last is unbounded */
    double pushes[STALENESS_BUCKETS_MAX];
};

struct records {
    unsigned index;            /* rank or server number */
    char host[256];            /* of the "start" line; "" without one */
    char settings[512];        /* of a server: "threads=2 tls=0 ..."; "": none recorded */
    uint64_t partitions;       /* of a server; 0: not recorded */
    struct step_record *steps; /* owned, in order of step */
    size_t length, capacity;
    struct round_record *rounds; /* owned, in order of round; none if they begin anew */
    size_t round_count, round_capacity;
    bool rounds_began_anew;         /* a restarted server, or another job */
    struct evaluation *evaluations; /* owned, in order of epoch */
    size_t evaluation_count;
    struct end_record end;
    bool was_cut; /* the last line was not complete */
};

/* Read a file of at most 1 GiB.  Steps must rise. */
enum status records_read(const char *path, unsigned index, struct records *ret, struct error *err);

/* The same from memory; `name` stands for the path in messages. */
enum status records_parse(const char *name, const char *text, size_t size, unsigned index,
                          struct records *ret, struct error *err);
void records_release(struct records *r);

#endif
