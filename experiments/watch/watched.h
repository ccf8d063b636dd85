/*
 * watched: what the runs of a folder are doing now.  A scan reads what is new: what has ended is
 * read once, and of what runs the lines that were appended.
 */
#ifndef SPARRING_EXPERIMENTS_WATCH_WATCHED_H
#define SPARRING_EXPERIMENTS_WATCH_WATCHED_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

enum watched_state { WATCHED_RUNNING, WATCHED_OK, WATCHED_FAILED };

/* Of rank 0. */
struct watched_point {
    uint64_t step; /* from 0 */
    double loss, samples_per_second;
};

struct watched_run {
    char name[256], mode[64];
    char host[256]; /* of rank 0 */
    char reason[512];
    ino_t inode; /* of its folder; 0: it is none */
    enum watched_state state;
    uint64_t steps, planned_steps; /* of rank 0; planned: 0 while it is not known */
    unsigned ranks;
    double seconds;               /* that it took; NaN: not known */
    double samples_per_second;    /* of all ranks, when it has ended; NaN: not known */
    time_t last_change;           /* of its records */
    uint64_t version;             /* of the scan that saw its last change */
    struct watched_point *points; /* owned; evenly over its steps, while it runs and of the last
                                     one; of others none */
    size_t point_count, point_capacity;
    size_t read_bytes; /* of the records of rank 0 */
};

/* Runs of one mode in one cell. */
struct watched_mode {
    char name[64];
    size_t planned; /* 0: as many as there are */
    size_t running, ok, failed;
    double seconds;            /* mean of those that have ended; NaN: there is none */
    double samples_per_second; /* median over runs that ended well; NaN: there is none */
};

/* A folder with runs/ in it, of one setting of the axes; or one run directory. */
struct watched_cell {
    char name[160];    /* "" where there is one */
    char folder[4096]; /* relative to the path that is watched; "": that one */
    bool has_report;
    struct watched_run *runs; /* owned */
    size_t run_count, run_capacity;
    struct watched_mode *modes; /* owned */
    size_t mode_count, mode_capacity;
    struct timespec listed; /* time of change of the folder when it was read */
    uint64_t version;       /* as that of a run */
};

struct watched {
    char path[4096];
    char title[256];
    bool has_index;             /* the page of all reports */
    struct watched_cell *cells; /* owned */
    size_t cell_count;
    uint64_t version; /* rises with every scan that saw a change */
};

struct watched_totals {
    size_t planned, running, ok, failed;
    double seconds_left; /* NaN: not known */
};

/* A folder that `compare` writes (with a plan, or runs/), or a run directory.  STATUS_NOT_FOUND:
 * it is none of these (yet). */
enum status watched_open(const char *path, struct watched *ret, struct error *err);

/* Files that appear, vanish or are half written are no errors: the next scan reads them again. */
enum status watched_scan(struct watched *w, struct error *err);
void watched_release(struct watched *w);

struct watched_totals watched_totals(const struct watched *w);

/* "running", "ok", "failed". */
const char *watched_state_text(enum watched_state state);

#endif
