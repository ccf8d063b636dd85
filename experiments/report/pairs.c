/*
 * pairs: compares pairs of modes block by block.  The pairs that get a verdict were registered
 * before the runs (design.h).  Runs without a design have one such pair, chosen independently of
 * their results: the first all-reduce mode and the first parameter-server mode, else the first two
 * contenders, else the first contender and the control.
 */
#include "experiments/report/comparison.h"

#include "common/base/memory.h"
#include "common/base/parse.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_BLOCK UINT64_MAX

/* The repeat that `sparring compare` recorded; other runs with the same seed form a block. */
static uint64_t block_of(const struct run *run)
{
    uint64_t seed;

    if (run->has_attempt)
        return run->attempt.repeat;
    return parse_uint64(run->configuration.seed, &seed) ? seed : NO_BLOCK;
}

/* The run of that mode and block, or SIZE_MAX. */
static size_t find_run(const struct comparison *c, size_t mode, uint64_t block)
{
    for (size_t i = 0; i < c->list->length; i++)
        if (c->mode_of[i] == mode && block_of(&c->list->runs[i]) == block)
            return i;
    return SIZE_MAX;
}

/* Logarithms of the ratios of all blocks in which both ran well and have the figure; d has room for
 * all runs. */
static size_t collect_log_ratios(const struct comparison *c, const struct ratio *r,
                                 enum metric_index metric, double *d, size_t *ret_broken)
{
    size_t n = 0;

    *ret_broken = 0;
    for (size_t i = 0; i < c->list->length && n < PAIRED_BLOCKS_MAX; i++) {
        const uint64_t block = block_of(&c->list->runs[i]);
        size_t other;

        if (c->mode_of[i] != r->a || block == NO_BLOCK || find_run(c, r->a, block) != i)
            continue;
        other = find_run(c, r->b, block);
        if (other == SIZE_MAX)
            continue;
        d[n] = log(metric_of(&c->metrics[i], metric) / metric_of(&c->metrics[other], metric));
        if (c->list->runs[i].state == RUN_OK && c->list->runs[other].state == RUN_OK &&
            isfinite(d[n]))
            n++;
        else
            ++*ret_broken;
    }
    return n;
}

static enum status pair_by(const struct comparison *c, const struct ratio *r,
                           enum metric_index metric, struct paired *ret, size_t *ret_broken,
                           struct error *err)
{
    double *d = NULL;
    enum status status = mem_calloc(c->list->length, sizeof(double), "a pair of modes", &d, err);

    if (status == STATUS_OK)
        status =
            paired_compare(d, collect_log_ratios(c, r, metric, d, ret_broken),
                           design_level(c->design), design_log_margin(c->design->margin), ret, err);
    free(d);
    return status;
}

enum status comparison_pair_by(const struct comparison *c, const struct ratio *ratio,
                               enum metric_index metric, struct paired *ret, struct error *err)
{
    size_t broken;

    return pair_by(c, ratio, metric, ret, &broken, err);
}

/* True when a step may contribute less than one of bulk-synchronous sums of exact gradients. */
static bool trades_accuracy(const struct mode *mode)
{
    return mode->first && design_trades_accuracy(run_option, mode->first);
}

static enum status make_ratio(const struct comparison *c, struct ratio *r, struct error *err)
{
    const struct ratio inverse = {.a = r->b, .b = r->a}; /* less time is more speed */
    enum status status;

    r->is_to_target = isfinite(c->design->target_accuracy) &&
                      (trades_accuracy(&c->modes[r->a]) || trades_accuracy(&c->modes[r->b]));
    status = r->is_to_target
                 ? pair_by(c, &inverse, METRIC_seconds_to_target, &r->paired, &r->broken, err)
                 : pair_by(c, r, METRIC_samples_per_second, &r->paired, &r->broken, err);

    if (status != STATUS_OK)
        return status;
    r->value = exp(r->paired.mean);
    r->interval = (struct interval){exp(r->paired.interval.low), exp(r->paired.interval.high)};
    return STATUS_OK;
}

static bool are_comparable(const struct mode *a, const struct mode *b)
{
    return a->first && b->first && a->role != MODE_SINGLE && b->role != MODE_SINGLE &&
           a->ranks == b->ranks;
}

/* Does a pair of the design name b before a? */
static bool is_reversed(const struct design *d, const struct mode *a, const struct mode *b)
{
    for (size_t i = 0; i < d->pair_count; i++)
        if (strcmp(d->pairs[i].names[0], b->name) == 0 &&
            strcmp(d->pairs[i].names[1], a->name) == 0)
            return true;
    return false;
}

/* A ratio has the order of its pair in the design, else that of the modes. */
static enum status make_ratios(struct comparison *c, struct error *err)
{
    enum status status =
        mem_calloc(c->mode_count * c->mode_count, sizeof(*c->ratios), "ratios", &c->ratios, err);

    for (size_t a = 0; a < c->mode_count && status == STATUS_OK; a++) {
        for (size_t b = a + 1; b < c->mode_count && status == STATUS_OK; b++) {
            struct ratio *r = &c->ratios[c->ratio_count];

            if (!are_comparable(&c->modes[a], &c->modes[b]))
                continue;
            *r = is_reversed(c->design, &c->modes[a], &c->modes[b])
                     ? (struct ratio){.a = b, .b = a}
                     : (struct ratio){.a = a, .b = b};
            status = make_ratio(c, r, err);
            if (status == STATUS_OK)
                c->ratio_count++;
        }
    }
    return status;
}

/* ---- registered pairs ---- */

static bool has_sync(const struct mode *mode, const char *sync)
{
    return strcmp(mode->first->configuration.sync, sync) == 0;
}

/* 3 all-reduce against parameter server, 2 two contenders, 1 anything. */
static int ratio_priority(const struct comparison *c, const struct ratio *r)
{
    const struct mode *a = &c->modes[r->a];
    const struct mode *b = &c->modes[r->b];

    if ((has_sync(a, "allreduce") && has_sync(b, "ps")) ||
        (has_sync(a, "ps") && has_sync(b, "allreduce")))
        return 3;
    return a->role == MODE_CONTENDER && b->role == MODE_CONTENDER ? 2 : 1;
}

static void register_by_rule(struct comparison *c)
{
    struct ratio *best = NULL;

    for (size_t i = 0; i < c->ratio_count; i++)
        if (!best || ratio_priority(c, &c->ratios[i]) > ratio_priority(c, best))
            best = &c->ratios[i];
    if (best)
        best->is_registered = true;
}

static void register_design_pairs(struct comparison *c)
{
    for (size_t i = 0; i < c->ratio_count; i++)
        c->ratios[i].is_registered = design_has_pair(c->design, c->modes[c->ratios[i].a].name,
                                                     c->modes[c->ratios[i].b].name);
}

size_t comparison_find_ratio(const struct comparison *c, const struct design_pair *pair)
{
    const struct design one = {.pairs = {*pair}, .pair_count = 1};

    for (size_t i = 0; i < c->ratio_count; i++)
        if (design_has_pair(&one, c->modes[c->ratios[i].a].name, c->modes[c->ratios[i].b].name))
            return i;
    return SIZE_MAX;
}

/* The first pair of the design, also when it did not run: no other one takes its place.  Without
 * pairs that of register_by_rule. */
static void choose_main_ratio(struct comparison *c)
{
    c->main_ratio = SIZE_MAX;
    if (c->design->pair_count > 0) {
        c->main_ratio = comparison_find_ratio(c, &c->design->pairs[0]);
        return;
    }
    for (size_t i = 0; i < c->ratio_count; i++)
        if (c->ratios[i].is_registered)
            c->main_ratio = i;
}

/* ---- verdicts ---- */

/* Holm's adjustment over the registered pairs, including those without good runs. */
static void adjust_p_values(struct comparison *c, size_t registered)
{
    for (size_t i = 0; i < c->ratio_count; i++) {
        struct ratio *r = &c->ratios[i];

        r->p = r->is_registered ? r->paired.p_difference : (double)NAN;
        r->p_equivalence = r->is_registered ? r->paired.p_equivalence : (double)NAN;
    }
    statistics_holm(&c->ratios->p, sizeof(*c->ratios), c->ratio_count, registered);
    statistics_holm(&c->ratios->p_equivalence, sizeof(*c->ratios), c->ratio_count, registered);
}

static enum ratio_state judge_ratio(const struct comparison *c, const struct ratio *r,
                                    size_t registered)
{
    const double level = design_level(c->design);

    if (!r->is_registered)
        return RATIO_NOT_ASKED;
    if (!comparison_is_fair(c, r->a, r->b))
        return RATIO_NOT_COMPARABLE;
    if (!r->is_to_target && (trades_accuracy(&c->modes[r->a]) || trades_accuracy(&c->modes[r->b])))
        return RATIO_NO_TARGET;
    if (r->paired.n < paired_least_blocks(registered, level))
        return RATIO_TOO_FEW;
    if (r->p_equivalence <= level)
        return RATIO_EQUIVALENT;
    return r->p <= level ? RATIO_FASTER : RATIO_UNDECIDED;
}

bool comparison_is_decided(const struct comparison *c)
{
    for (size_t i = 0; i < c->ratio_count; i++)
        if (c->ratios[i].is_registered &&
            (c->ratios[i].state == RATIO_UNDECIDED || c->ratios[i].state == RATIO_TOO_FEW))
            return false;
    return true;
}

size_t comparison_registered(const struct comparison *c)
{
    return c->design->pair_count > 0 ? c->design->pair_count : 1;
}

enum status comparison_pair(struct comparison *c, struct error *err)
{
    const size_t registered = comparison_registered(c);
    enum status status = make_ratios(c, err);

    if (status != STATUS_OK)
        return status;
    if (c->list->has_design)
        register_design_pairs(c);
    else
        register_by_rule(c);
    choose_main_ratio(c);
    adjust_p_values(c, registered);
    for (size_t i = 0; i < c->ratio_count; i++)
        c->ratios[i].state = judge_ratio(c, &c->ratios[i], registered);
    return STATUS_OK;
}
