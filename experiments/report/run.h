/*
 * run: the contents of one run directory.  Its files and the meaning of each figure are described
 * in experiments/METRICS.md.  A run that crashed has state RUN_FAILED and a reason; a malformed
 * file is an error.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_RUN_H
#define SPARRING_EXPERIMENTS_REPORT_RUN_H

#include "common/base/error.h"
#include "experiments/report/design.h"
#include "experiments/report/json_fields.h"
#include "experiments/report/records.h"
#include "experiments/report/run_faults.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* attempt.json: written by `sparring compare` beside the records, so that a run that wrote no file
 * of its own still belongs to its mode. */
#define ATTEMPT_FILE "attempt.json"
struct attempt {
    char title[256];
    char mode[64], label[128];
    uint64_t mode_index, repeat, order; /* order: which run of the experiment it was, from 0 */
    char seed[32];
    char outcome[64]; /* "ok", "exit code 1", "timed out after 60 s", "" */
    double seconds;   /* that it took; NaN: not recorded */
    char command[4096];
};

/* The settings of a run that define its mode, as texts, so that any value can be shown. */
struct run_configuration {
    char model[256], data[256], sync[32], backend[32], transport[32], servers[32], batch_size[32];
    char lr[32], seed[32], reduce[32], ps_update[32], device[64];
    char consistency[32], staleness[32], backup_workers[32], server_placement[32];
};
extern const struct json_field run_configuration_fields[];
extern const size_t run_configuration_length;

#define RUN_NOT_RECORDED "(not recorded)" /* shown in reports for values missing in a manifest */

struct run_manifest {
    char run[128], start[32], program[64], git[64];
    uint64_t world_size; /* 0: not known */
    double parameters, parameter_bytes;
    char host[256], cpu[128], kernel[128];
    uint64_t cores;
    double processor_quota, memory_limit; /* of control groups; NaN: none, or not recorded */
    bool has_environment;                 /* false: a version that records no limits either */
    double load;                          /* at the start; NaN: not recorded */
    char governor[32], congestion_control[32];
    char processors[256], bind[16]; /* of rank 0; processors "": not recorded */
    char network[256];              /* emulated; "": the host's own */
    char environment[512];          /* the variables that libraries read */
};

#define RUN_SUMMARY_SCHEMA 3 /* the newest of worker/train/run_record.c that is known here */

struct run_summary {
    char status[64], error[512];
    uint64_t schema; /* 1: samples_per_second is that of the median step, 2: with the last step */
    double test_accuracy, test_loss, samples_per_second, step_ms_median, wall_seconds;
    uint64_t steps, epochs;
    uint64_t recoveries, samples_lost;
    char lost_ranks[256]; /* "1,2" */
};

/* As measured in an emulated network, over its links; NaN: not recorded. */
struct run_network {
    double lowest_rate_bits_s, highest_round_trip_ms, late_p99_ms;
    double link_bytes; /* sent over all links by the end */
};

enum run_state { RUN_OK, RUN_FAILED };

struct run {
    char *path; /* owned */
    char name[256];
    enum run_state state;
    char reason[1024]; /* why it is not RUN_OK */
    bool has_attempt, has_manifest, has_summary;
    struct attempt attempt;
    struct run_manifest manifest;
    struct run_configuration configuration;
    struct run_summary summary;
    struct run_network network;
    struct run_faults faults;
    json_t *options;       /* of the manifest: {"name": {"value":..}}; owned, may be NULL */
    struct records *ranks; /* owned, by rank; only the files that are there */
    size_t rank_count;
    struct records *servers; /* owned, by number */
    size_t server_count;
};

/* True when `path` holds a manifest, a summary, an attempt or a rank's records. */
bool run_is_folder(const char *path);

enum status run_open(const char *path, struct run *ret, struct error *err);

/* Without the records of ranks, servers and faults, and without `state`. */
enum status run_open_head(const char *path, struct run *ret, struct error *err);
void run_release(struct run *run);

/* The value of an option of sparring-worker in a struct run, as recorded; "": not recorded. */
const char *run_option(const void *run, const char *name);

/* In a folder of an experiment: runs that were discarded and made again. */
#define RUN_DISCARDED_FOLDER "discarded"

/* Several runs, in the order of the arguments and, inside a folder, of their names ("ring-2" before
 * "ring-10"). */
struct run_list {
    struct run *runs; /* owned */
    size_t length, capacity;
    struct design design; /* of the one folder that was added, if it had one */
    bool has_design;
    size_t folders;   /* added so far */
    size_t discarded; /* runs, which are not among these */
};

/* `path` is a run directory, a folder with runs/ in it, or a folder of run directories. */
enum status run_list_add(struct run_list *list, const char *path, struct error *err);
void run_list_release(struct run_list *list);

#endif
