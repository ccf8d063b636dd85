/*
 * evidence: everything that a run has written into its directory so far, of all ranks, including
 * killed ranks and running jobs.  Each missing or damaged file is a line in `problems`; the rest is
 * read all the same.
 */
#ifndef SPARRING_EXPERIMENTS_INSPECT_EVIDENCE_H
#define SPARRING_EXPERIMENTS_INSPECT_EVIDENCE_H

#include "common/base/text_list.h"
#include "common/collective/flight/flight.h"
#include "experiments/report/critical_path.h"

#include <jansson.h>
#include <stdbool.h>

#define EVIDENCE_TIMELINE 1024

enum process_state {
    PROCESS_UNKNOWN, /* on another host, or its pid was not recorded */
    PROCESS_GONE,
    PROCESS_RUNS,
    PROCESS_STOPPED, /* SIGSTOP, a debugger */
};

struct evidence_rank {
    unsigned rank;
    bool has_records; /* rank<r>.jsonl */
    char host[64];
    int64_t pid; /* 0: not known */
    size_t steps;
    uint64_t last_step;
    double last_loss;                            /* NaN: not known */
    double step_ms, compute_ms, exposed_comm_ms; /* means over all its steps */
    char status[64], error[1024];                /* of its end record; "" without one */
    json_t *recoveries;                          /* owned array, may be empty */
    json_t *buckets;  /* owned array: the bucket records of the last step that has some */
    json_t *others;   /* owned: the last record of every other kind, by kind */
    json_t *timeline; /* owned array: the newest EVIDENCE_TIMELINE step records */
    bool has_flight;
    struct flight_log flight;
    enum process_state process;
    char parameters_hash[20]; /* at the end; "" not known */
    bool lost;                /* listed in a recovery record of another rank */
};

/* The records of one server. */
struct evidence_server {
    unsigned index;
    json_t *timeline; /* owned array: the newest EVIDENCE_TIMELINE round records */
};

struct evidence {
    char path[4096];
    json_t *manifest, *summary; /* owned; NULL: missing */
    unsigned world_size;        /* 0: not known */
    struct evidence_rank *ranks;
    struct evidence_server *servers; /* owned; those that have left records */
    size_t server_count;
    size_t rank_count;                  /* at least world_size; includes ranks without any file */
    struct critical_path critical_path; /* of a run that ended well, else empty */
    struct text_list problems;          /* what is missing or damaged */
    bool one_clock;                     /* all recorders are of one host: their clock is the same */
    int64_t first_ns;                   /* when the first recorder opened, by that clock ... */
    double first_wall;                  /* ... and in seconds since 1970 */
    bool is_live;                       /* the process of some rank exists and has no end record */
};

/* STATUS_NOT_FOUND when `path` is no folder, or holds nothing of a run. */
enum status evidence_read(const char *path, struct evidence *ret, struct error *err);
void evidence_release(struct evidence *e);

/* A moment of a recorder in seconds since the first one opened.  Between hosts its error is the
 * difference of their clocks. */
double evidence_seconds(const struct evidence *e, const struct flight_log *log, int64_t moment_ns);

/* The value of a worker's option in the manifest as text; "" when it is not known. */
void evidence_option(const struct evidence *e, const char *name, char *text, size_t size);

#endif
