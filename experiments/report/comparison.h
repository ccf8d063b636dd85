/*
 * comparison: runs grouped into modes, the figures of each mode, the reasons why modes are not
 * comparable, and the verdict.  It holds everything that a report shows; the writers only format
 * it.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_COMPARISON_H
#define SPARRING_EXPERIMENTS_REPORT_COMPARISON_H

#include "common/base/text_list.h"
#include "experiments/report/critical_path.h"
#include "experiments/report/design.h"
#include "experiments/report/metric.h"
#include "experiments/report/paired.h"
#include "experiments/report/run.h"
#include "experiments/report/statistics.h"

#include <stdbool.h>
#include <stddef.h>

enum mode_role {
    MODE_CONTENDER, /* it synchronises: one side of a comparison */
    MODE_CONTROL,   /* local with several ranks: n independent processes, no communication */
    MODE_SINGLE,    /* local with one rank: what one process does alone */
};

struct mode {
    char name[64], label[160];
    enum mode_role role;
    double ranks, servers;               /* of its first good run */
    size_t failed;                       /* failed runs */
    const struct run *first;             /* first good run, whose settings are shown; NULL: none */
    struct spread spreads[METRIC_COUNT]; /* over its good runs whose figure is known */
    double *values[METRIC_COUNT];        /* owned; spreads[i].n of them, in order of the runs */
    struct critical_path path;           /* of the steps of its good runs */
};

enum ratio_state {
    RATIO_FASTER,         /* one mode is faster */
    RATIO_EQUIVALENT,     /* they differ by no more than the design's margin */
    RATIO_UNDECIDED,      /* neither is significant */
    RATIO_TOO_FEW,        /* too few blocks for any result to be significant */
    RATIO_NOT_COMPARABLE, /* they differ in a setting that must be equal */
    RATIO_NO_TARGET,      /* their steps differ in worth, and the design has no target accuracy */
    RATIO_NOT_ASKED,      /* not registered before the runs: a figure without a verdict */
};

/* Mode a over mode b, over the blocks in which both have a good run: throughput; or, where stale or
 * dropped pushes or compression reduce the worth of a step, the speed of reaching the design's
 * target accuracy, if it has one. */
struct ratio {
    size_t a, b; /* indices into modes */
    bool is_to_target;
    struct paired paired; /* of the logarithms */
    double value;         /* the geometric mean of the blocks' ratios */
    struct interval interval;
    double p;             /* p-value of no difference, adjusted by Holm; NaN: not registered */
    double p_equivalence; /* p-value of a difference beyond the margin; likewise */
    size_t broken;        /* blocks with a run of one of them that failed */
    bool is_registered;
    enum ratio_state state;
};

/* One setting, and as a text the set of its values in the good runs of each mode. */
struct fact {
    char name[64];
    bool is_compared; /* the subject of the comparison: it may differ between modes */
    char **values;    /* owned, one per mode; NULL: the mode has no good run */
};

struct condition {
    char name[48];
    char value[512];
};

struct comparison {
    const struct run_list *list; /* borrowed */
    double price;                /* of a host for an hour; 0, the initial value: not known */
    const struct design *design; /* the list's */
    size_t *mode_of;             /* owned; mode of each run */
    struct run_metrics *metrics; /* owned; of each run, unspecified unless RUN_OK */
    double *outlier_scores;      /* owned; of each run's throughput among its mode's */
    struct mode *modes;          /* owned */
    size_t mode_count;
    struct ratio *ratios; /* owned; every pair of contenders or control with equal ranks */
    size_t ratio_count;
    struct fact *facts; /* owned */
    size_t fact_count;
    struct text_list reasons;  /* why modes are not comparable */
    struct text_list warnings; /* what weakens a figure */
    struct text_list notes;    /* what to keep in mind when reading it */
    struct condition conditions[32];
    size_t condition_count;
    char title[256];
    char location[128];             /* "On this host, over loopback" */
    char verdict[1024];             /* one sentence */
    char why[2048];                 /* the sentences after it, or "" */
    size_t main_ratio;              /* index of the ratio of the verdict; SIZE_MAX: there is none,
                                       or its pair of the design did not run well */
    struct text_list more_verdicts; /* about further registered pairs */
};

/* Group the runs, compute the figures, derive the verdicts.  `list` must outlive *ret. */
enum status comparison_make(const struct run_list *list, struct comparison *ret, struct error *err);
void comparison_release(struct comparison *c);

/* Index of the ratio of a pair of modes' names, or SIZE_MAX. */
size_t comparison_find_ratio(const struct comparison *c, const struct design_pair *pair);

/* Throughput over that of the control, and over ranks times that of the single process; NaN
 * without them. */
double comparison_relative(const struct comparison *c, const struct mode *mode);
double comparison_efficiency(const struct comparison *c, const struct mode *mode);

/* Cost of the hosts for a million samples, and until the target accuracy, in the unit of the price;
 * NaN: not known. */
double comparison_cost_of_samples(const struct comparison *c, const struct mode *mode);
double comparison_cost_to_target(const struct comparison *c, const struct mode *mode);

/* The number of pairs that were registered for a verdict before the runs. */
size_t comparison_registered(const struct comparison *c);

/* True when no registered pair is undecided or has too few blocks. */
bool comparison_is_decided(const struct comparison *c);

/* True when its ring, alone or between the hosts of hier, runs over gRPC (--transport grpc). */
bool comparison_over_grpc(const struct mode *mode);

/* The transport of a mode's bytes ("shared memory", "TCP"); NULL: none, or not known. */
const char *comparison_carrier(const struct mode *mode);

/* Compare the two modes by another figure, over the blocks in which it is known and not 0 for both.
 */
enum status comparison_pair_by(const struct comparison *c, const struct ratio *ratio,
                               enum metric_index metric, struct paired *ret, struct error *err);

/* ---- steps of comparison_make, each in a file of its own ---- */

enum status comparison_group(struct comparison *c, struct error *err);          /* group.c */
enum status comparison_check_fairness(struct comparison *c, struct error *err); /* fairness.c */
enum status comparison_pair(struct comparison *c, struct error *err);           /* pairs.c */
void comparison_write_verdict(struct comparison *c);                            /* verdict.c */
void comparison_add_conditions(struct comparison *c);                           /* conditions.c */

/* False when a setting that must be equal differs between the modes.  Call it after
 * comparison_check_fairness. */
bool comparison_is_fair(const struct comparison *c, size_t a, size_t b);

#endif
