/*
 * flight: the flight recorder, always on.  A ring of the newest operations of one rank, kept in a
 * file that is mapped into memory: writing an entry costs a few stores, and what was written is
 * still in the file when the process is killed.  `sparring inspect RUN` reads the files of all
 * ranks.
 * Threads: entries are written by the caller of each group; groups of one process share a recorder
 * and take entries atomically.  Readers of another process see whole entries (a sequence lock).
 * Calls for one index come from one thread at a time.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_FLIGHT_H
#define SPARRING_COMMON_COLLECTIVE_FLIGHT_H

#include "common/base/error.h"
#include "common/collective/signature.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLIGHT_NAME_MAX   32
#define FLIGHT_ENTRIES    1024 /* default length of the ring */
#define FLIGHT_REASON_MAX 256

enum flight_state { FLIGHT_EMPTY, FLIGHT_QUEUED, FLIGHT_RUNNING, FLIGHT_DONE, FLIGHT_FAILED };

struct flight_entry {
    uint64_t index; /* 1, 2, ...: of all operations that this process recorded */
    struct signature signature;
    char group[FLIGHT_NAME_MAX]; /* zeros behind the text */
    uint64_t step;
    int32_t bucket, buckets; /* 0: none */
    enum flight_state state;
    int64_t queued_ns, started_ns, ended_ns; /* CLOCK_MONOTONIC; 0: not yet */
    uint64_t done_bytes, total_bytes;        /* payload sent and received */
};

struct flight; /* writer */

struct flight_config {
    const char *path; /* created or replaced, mode 0600; NULL: memory only */
    unsigned rank, world_size;
    size_t entries; /* 0: FLIGHT_ENTRIES */
};

enum status flight_open(const struct flight_config *config, struct flight **ret, struct error *err);
void flight_close(struct flight *f); /* keeps the file; NULL allowed */

/* Record a queued operation (state, index and later times are filled in); returns the index for the
 * calls below, which leave an entry alone that a newer operation has taken meanwhile. */
size_t flight_queue(struct flight *f, const struct flight_entry *entry);
void flight_start(struct flight *f, size_t index, int64_t now_ns);
/* One or two stores: for the middle of an operation, any number of times. */
void flight_progress(struct flight *f, size_t index, uint64_t done_bytes, uint64_t total_bytes);
void flight_end(struct flight *f, size_t index, bool ok, uint64_t done_bytes, uint64_t total_bytes,
                int64_t now_ns);

/* Why the rank failed: the first reason stays. */
void flight_fail(struct flight *f, enum fault fault, int culprit, const char *reason);

/* The group has recovered: clear the reason, so that the next one is recorded. */
void flight_rearm(struct flight *f);

/* ---- reading, by anyone, at any time ---- */

struct flight_log {
    unsigned rank, world_size;
    int64_t pid;
    double opened_wall; /* seconds since 1970 ... */
    int64_t opened_ns;  /* ... and the monotonic clock at that moment */
    enum fault fault;   /* FAULT_NONE: none */
    int culprit;        /* rank, -1: none */
    char reason[FLIGHT_REASON_MAX];
    uint64_t recorded;            /* operations so far; the newest `length` of them are here */
    struct flight_entry *entries; /* owned, oldest first */
    size_t length;
    size_t damaged; /* entries left out because they are invalid */
};

/* STATUS_NOT_FOUND, STATUS_DATA (no recorder's file, another version or byte order, cut off). */
enum status flight_read(const char *path, struct flight_log *ret, struct error *err);

/* The same from memory; `name` stands for the path in messages. */
enum status flight_parse(const char *name, const void *bytes, size_t size, struct flight_log *ret,
                         struct error *err);
void flight_log_release(struct flight_log *log);

/* When a moment of the log's monotonic clock was, in seconds since 1970. */
double flight_wall(const struct flight_log *log, int64_t moment_ns);

#endif
