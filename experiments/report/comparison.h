/*
 * comparison: runs grouped into modes, the figures of each mode, what keeps modes from being
 * compared, and the verdict.  Everything that a report shows is here; the writers only lay it out.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_COMPARISON_H
#define SPARRING_EXPERIMENTS_REPORT_COMPARISON_H

#include "experiments/report/design.h"
#include "experiments/report/metric.h"
#include "experiments/report/paired.h"
#include "experiments/report/run.h"
#include "experiments/report/statistics.h"
#include "experiments/report/text_list.h"

#include <stdbool.h>
#include <stddef.h>

enum mode_role {
    MODE_CONTENDER, /* it synchronises: one side of the match */
    MODE_CONTROL,   /* local with several ranks: n independent processes, no communication */
    MODE_SINGLE,    /* local with one rank: what one process does alone */
};

struct mode {
    char name[64], label[160];
    enum mode_role role;
    double ranks, servers;   /* of its first good run */
    size_t failed;           /* runs that did not come to a good end */
    const struct run *first; /* good run that stands for the mode's settings; NULL: none */
    struct spread spreads[METRIC_COUNT]; /* over its good runs whose figure is known */
    double *values[METRIC_COUNT];        /* owned; spreads[i].n of them, in order of the runs */
};

enum ratio_state {
    RATIO_FASTER,       /* one of them is */
    RATIO_EQUIVALENT,   /* they differ by no more than the design's margin */
    RATIO_UNDECIDED,    /* neither can be said */
    RATIO_TOO_FEW,      /* with so few blocks neither ever could */
    RATIO_UNFAIR,       /* they differ in more than what is compared */
    RATIO_NO_TARGET,    /* their steps differ in worth, and no accuracy was named to be reached */
    RATIO_UNREGISTERED, /* nobody asked beforehand: a figure without a verdict */
};

/* Mode a over mode b, over the blocks in which both have a good run: throughput; or, where stale or
 * dropped pushes or compression make a step worth less, the speed with which they reach the
 * design's target accuracy, if it names one. */
struct ratio {
    size_t a, b; /* indices into modes */
    bool is_to_target;
    struct paired paired; /* of the logarithms */
    double value;         /* the geometric mean of the blocks' ratios */
    struct interval interval;
    double p;             /* that they do not differ; of registered ones, by Holm; else NaN */
    double p_equivalence; /* that they differ by more than the margin; likewise */
    size_t broken;        /* blocks with a run of one of them that failed */
    bool is_registered;
    enum ratio_state state;
};

/* One setting and the set of values that it has in the good runs of each mode, as a text. */
struct fact {
    char name[64];
    bool is_compared; /* what a comparison is about: it may differ between modes */
    char **values;    /* owned, one per mode; NULL: the mode has no good run */
};

struct condition {
    char name[48];
    char value[512];
};

struct comparison {
    const struct run_list *list; /* borrowed */
    double price;                /* of a host for an hour; 0, as made: not said */
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
    char place[128];                /* "On this host, over loopback" */
    char verdict[1024];             /* one sentence */
    char why[2048];                 /* the sentences after it, or "" */
    size_t match;                   /* the ratio that the verdict is about, or SIZE_MAX */
    struct text_list more_verdicts; /* about further registered pairs */
};

/* Group, compute, judge.  `list` must outlive *ret. */
enum status comparison_make(const struct run_list *list, struct comparison *ret, struct error *err);
void comparison_release(struct comparison *c);

/* Throughput over that of the control, and over ranks times that of the single process; NaN
 * without them. */
double comparison_relative(const struct comparison *c, const struct mode *mode);
double comparison_efficiency(const struct comparison *c, const struct mode *mode);

/* What the hosts cost for a million samples, and until the target accuracy, in the unit of the
 * price; NaN: not known. */
double comparison_cost_of_samples(const struct comparison *c, const struct mode *mode);
double comparison_cost_to_target(const struct comparison *c, const struct mode *mode);

/* Pairs that a verdict was asked for before the runs. */
size_t comparison_registered(const struct comparison *c);

/* Would more blocks change nothing about the registered pairs? */
bool comparison_is_decided(const struct comparison *c);

/* Does its ring, alone or between the hosts of hier, stand on gRPC (--transport grpc)? */
bool comparison_over_grpc(const struct mode *mode);

/* What carries a mode's bytes, in words ("shared memory", "TCP"); NULL: nothing, or not known. */
const char *comparison_carrier(const struct mode *mode);

/* Two modes by another figure, over the blocks in which both know it and it is not 0. */
enum status comparison_pair_by(const struct comparison *c, const struct ratio *ratio,
                               enum metric_index metric, struct paired *ret, struct error *err);

/* ---- steps of comparison_make, each in a file of its own ---- */

enum status comparison_group(struct comparison *c, struct error *err);          /* group.c */
enum status comparison_check_fairness(struct comparison *c, struct error *err); /* fairness.c */
enum status comparison_pair(struct comparison *c, struct error *err);           /* pairs.c */
void comparison_judge(struct comparison *c);                                    /* verdict.c */
void comparison_add_conditions(struct comparison *c);                           /* conditions.c */

/* False when a setting that must be the same differs between the modes; after check_fairness. */
bool comparison_is_fair(const struct comparison *c, size_t a, size_t b);

#endif
