/*
 * design: what was decided before the first run, so that the results cannot choose the question.
 * `sparring compare` writes it beside runs/; a report of that folder holds itself to it.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_DESIGN_H
#define SPARRING_EXPERIMENTS_REPORT_DESIGN_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DESIGN_FILE      "design.json"
#define DESIGN_PAIRS_MAX 120 /* all of 16 modes */
#define DESIGN_LEVEL     0.05
#define DESIGN_MARGIN    0.02
#define DESIGN_SECONDS   3.0

struct design_pair {
    char names[2][64]; /* of modes */
};

struct design {
    char title[256];
    double level;  /* of all verdicts together: the share of false ones that may be */
    double margin; /* by how much of the faster one's throughput the slower of two equivalent modes
                      may fall behind */
    double steady_seconds;  /* least steady time of a run */
    double target_accuracy; /* that a mode must reach where its steps are not worth those of another
                               one; NaN: none */
    uint64_t blocks;        /* planned runs of each mode */
    uint64_t most_blocks;   /* up to which more are run while a pair is undecided; blocks: none */
    struct design_pair pairs[DESIGN_PAIRS_MAX]; /* those that get a verdict */
    size_t pair_count;
};

/* Of runs that had none: no pairs, and the defaults above. */
struct design design_default(void);

/* FOLDER/design.json.  *ret_found: there is one; without, *ret is design_default.  STATUS_DATA when
 * it is malformed. */
enum status design_read(const char *folder, struct design *ret, bool *ret_found, struct error *err);
enum status design_write(const char *folder, const struct design *design, struct error *err);

/* After the planned blocks, and after every half as many more: how often the runs are looked at.
 * The level is spent over the looks in equal parts, so that looking more often finds no more. */
uint64_t design_looks(const struct design *design);
uint64_t design_step(const struct design *design); /* blocks between two looks */
double design_level(const struct design *design);  /* of one look */

/* May a step of a mode bring less than one with exact sums of all gradients: stale or dropped
 * pushes, or values that are rounded or left out on their way?  `option` has the value of an option
 * of sparring-worker for the mode; "": not set. */
bool design_trades_accuracy(const char *(*option)(const void *mode, const char *name),
                            const void *mode);

/* A margin as the largest log-ratio, in either direction. */
double design_log_margin(double margin);

/* Is it a registered pair, in either order? */
bool design_has_pair(const struct design *design, const char *a, const char *b);

#endif
