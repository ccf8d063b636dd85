/*
 * design: the decisions made before the first run (preregistration), so that results cannot
 * influence which hypotheses are tested.  `sparring compare` writes it beside runs/; a report of
 * that folder follows it.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_DESIGN_H
#define SPARRING_EXPERIMENTS_REPORT_DESIGN_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DESIGN_FILE      "design.json"
#define DESIGN_PAIRS_MAX 120 /* all of 16 modes */
#define DESIGN_AXES_MAX  6
#define DESIGN_LEVEL     0.05
#define DESIGN_MARGIN    0.02
#define DESIGN_SECONDS   3.0

struct design_pair {
    char names[2][64]; /* of modes */
};

struct design_axis {
    char name[64], value[256];
};

struct design {
    char title[256];
    double level;  /* significance level of all verdicts together (family-wise) */
    double margin; /* largest difference of two equivalent modes, as a share of the throughput of
                      the faster one */
    double steady_seconds;  /* least steady time of a run */
    double target_accuracy; /* modes whose steps differ in worth are compared by the time to it;
                               NaN: none */
    uint64_t blocks;        /* planned runs of each mode */
    uint64_t most_blocks; /* limit for more blocks while a pair is undecided; no more than `blocks`:
                             none are added */
    struct design_pair pairs[DESIGN_PAIRS_MAX]; /* those that get a verdict */
    size_t pair_count;
    char sweep[256];                          /* of a cell: the title of its sweep ... */
    struct design_axis axes[DESIGN_AXES_MAX]; /* ... and its values of the axes */
    size_t axis_count;
};

/* For runs without a design: no pairs, and the defaults above. */
struct design design_default(void);

/* Read FOLDER/design.json.  *ret_found is false when there is none, then *ret is design_default.
 * STATUS_DATA when it is malformed. */
enum status design_read(const char *folder, struct design *ret, bool *ret_found, struct error *err);
enum status design_write(const char *folder, const struct design *design, struct error *err);

/* Interim analyses: one after the planned blocks, and one after every half as many more.  The level
 * is divided equally among them (Bonferroni), so that more looks do not raise the rate of false
 * positives. */
uint64_t design_looks(const struct design *design);
uint64_t design_step(const struct design *design); /* blocks between two looks */
double design_level(const struct design *design);  /* of one look */

/* True when all ranks of a mode end each step together.  `option` returns the value of an option of
 * sparring-worker for the mode; "": not set. */
bool design_is_lockstep(const char *(*option)(const void *mode, const char *name),
                        const void *mode);

/* True when a step of a mode may contribute less than one with exact sums of all gradients: with
 * stale or dropped pushes, or lossy compression. */
bool design_trades_accuracy(const char *(*option)(const void *mode, const char *name),
                            const void *mode);

/* The margin as a log-ratio; the same in either direction. */
double design_log_margin(double margin);

/* True when the pair is registered, in either order. */
bool design_has_pair(const struct design *design, const char *a, const char *b);

#endif
