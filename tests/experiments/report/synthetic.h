/*
 * synthetic: run directories as a worker writes them, written by the tests with known figures.
 */
#ifndef SPARRING_TESTS_EXPERIMENTS_REPORT_SYNTHETIC_H
#define SPARRING_TESTS_EXPERIMENTS_REPORT_SYNTHETIC_H

#include <stddef.h>

#define SYNTHETIC_PARAMETER_BYTES 407080.0

struct synthetic_run {
    const char *folder;       /* below support_folder() */
    const char *mode, *label; /* mode NULL: no attempt.json, as without `sparring compare` */
    const char *title;
    unsigned mode_index, repeat;
    const char *outcome;
    const char *sync, *backend, *transport; /* transport NULL: not recorded */
    const char *placement;                  /* of the servers; NULL: not recorded */
    const char *consistency;                /* likewise */
    unsigned servers, ranks, steps;
    unsigned shadowed;          /* the last steps of the last rank, in which it has no samples */
    double compute_ms, comm_ms; /* of every step; input takes 0.02, optimizer 0.06, other 0.01 ms */
    double loss;                /* of step 0; falls by half over the run */
    double accuracy;            /* at the end; after half of the steps 0.05 less */
    unsigned seed, batch;
    const char *host, *commit, *model;
    const char *checkpoint_every; /* NULL: none are made */
    const char *network;          /* NULL: not emulated */
};

/* A good run of mode ring; tests change the members under test. */
struct synthetic_run synthetic_ring(const char *folder);

/* Write it; returns the folder's path, valid until the test ends. */
const char *synthetic_write(const struct synthetic_run *run);

/* FOLDER/runs/ with `repeats` runs each of ring, ps-1, control and single; returns FOLDER's path.
 * In repeat r every step takes (1 + r/100) times as long; ps-1 waits 0.63 ms for communication. */
const char *synthetic_experiment(const char *folder, unsigned repeats);

/* Replace, extend or remove a file of a run; `path` as synthetic_write returned it. */
void synthetic_replace(const char *path, const char *name, const char *text);
void synthetic_append(const char *path, const char *name, const char *text);
void synthetic_remove(const char *path, const char *name);

#endif
