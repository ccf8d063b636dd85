/*
 * run_faults: the faults that were injected into a run (faults.json).
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_RUN_FAULTS_H
#define SPARRING_EXPERIMENTS_REPORT_RUN_FAULTS_H

#include "common/base/error.h"

#include <stddef.h>

struct run_fault {
    char action[16], target[32];
    double planned_s;            /* since the ranks were started */
    double length_s;             /* NaN: to the end */
    double rate_bits_s;          /* NaN: none */
    double begin_wall, end_wall; /* seconds since 1970; NaN: it did not begin, or end */
};

struct run_faults {
    struct run_fault *faults; /* owned */
    size_t length;            /* 0: none */
    double start_wall;        /* when the ranks were started */
};

/* No file: none.  STATUS_DATA where it is malformed. */
enum status run_faults_read(const char *folder, struct run_faults *ret, struct error *err);
void run_faults_release(struct run_faults *f);

/* As planned: "pause rank1 at 2 s for 0.5 s; slow host2 to 100 Mbit/s at 3 s"; "none". */
void run_faults_text(const struct run_faults *f, char *text, size_t size);

#endif
