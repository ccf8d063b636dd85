/*
 * Mode against mode, block by block.  The pairs that get a verdict were registered before the runs
 * (design.h).  Runs without a design have one such pair, the same whatever they measured: the first
 * all-reduce mode and the first parameter-server mode, else the first two contenders, else the
 * first contender and the control.
 */
#include "experiments/report/comparison.h"

#include "common/base/memory.h"
#include "common/base/parse.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NO_BLOCK UINT64_MAX

/* What `sparring compare` counted; of other runs those with one seed belong together. */
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

/* Logarithms of the ratios of all blocks in which both ran well; d has room for all runs. */
static size_t collect(const struct comparison *c, struct ratio *r, double *d)
{
    size_t n = 0;

    for (size_t i = 0; i < c->list->length && n < PAIRED_BLOCKS_MAX; i++) {
        const uint64_t block = block_of(&c->list->runs[i]);
        size_t other;

        if (c->mode_of[i] != r->a || block == NO_BLOCK || find_run(c, r->a, block) != i)
            continue;
        other = find_run(c, r->b, block);
        if (other == SIZE_MAX)
            continue;
        if (c->list->runs[i].state != RUN_OK || c->list->runs[other].state != RUN_OK)
            r->broken++;
        else
            d[n++] = log(c->metrics[i].samples_per_second / c->metrics[other].samples_per_second);
    }
    return n;
}

static enum status make_ratio(const struct comparison *c, double *scratch, struct ratio *r,
                              struct error *err)
{
    const size_t n = collect(c, r, scratch);
    enum status status =
        paired_compare(scratch, n, c->design->level, log1p(c->design->margin), &r->paired, err);

    if (status != STATUS_OK)
        return status;
    r->value = exp(r->paired.mean);
    r->interval = (struct interval){exp(r->paired.interval.low), exp(r->paired.interval.high)};
    r->p = r->p_equivalence = (double)NAN;
    r->state = RATIO_UNREGISTERED;
    return STATUS_OK;
}

static bool belong_together(const struct mode *a, const struct mode *b)
{
    return a->first && b->first && a->role != MODE_SINGLE && b->role != MODE_SINGLE &&
           a->ranks == b->ranks;
}

static enum status make_ratios(struct comparison *c, struct error *err)
{
    double *scratch = NULL;
    enum status status =
        mem_calloc(c->mode_count * c->mode_count, sizeof(*c->ratios), "ratios", &c->ratios, err);

    if (status == STATUS_OK)
        status = mem_calloc(c->list->length, sizeof(double), "a pair of modes", &scratch, err);
    for (size_t a = 0; a < c->mode_count && status == STATUS_OK; a++) {
        for (size_t b = a + 1; b < c->mode_count && status == STATUS_OK; b++) {
            struct ratio *r = &c->ratios[c->ratio_count];

            if (!belong_together(&c->modes[a], &c->modes[b]))
                continue;
            *r = (struct ratio){.a = a, .b = b};
            status = make_ratio(c, scratch, r, err);
            if (status == STATUS_OK)
                c->ratio_count++;
        }
    }
    free(scratch);
    return status;
}

/* ---- which of them were asked for ---- */

static bool has_sync(const struct mode *mode, const char *sync)
{
    return strcmp(mode->first->configuration.sync, sync) == 0;
}

/* 3 all-reduce against parameter server, 2 two contenders, 1 anything. */
static int suitability(const struct comparison *c, const struct ratio *r)
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
        if (!best || suitability(c, &c->ratios[i]) > suitability(c, best))
            best = &c->ratios[i];
    if (best)
        best->is_registered = true;
}

static void register_those_of_design(struct comparison *c)
{
    for (size_t i = 0; i < c->ratio_count; i++)
        c->ratios[i].is_registered = design_has_pair(c->design, c->modes[c->ratios[i].a].name,
                                                     c->modes[c->ratios[i].b].name);
}

/* The first pair of the design that ran, or the one by the rule. */
static void choose_match(struct comparison *c)
{
    c->match = SIZE_MAX;
    for (size_t k = 0; k < c->design->pair_count && c->match == SIZE_MAX; k++) {
        const struct design one = {.pairs = {c->design->pairs[k]}, .pair_count = 1};

        for (size_t i = 0; i < c->ratio_count; i++)
            if (design_has_pair(&one, c->modes[c->ratios[i].a].name, c->modes[c->ratios[i].b].name))
                c->match = i;
    }
    for (size_t i = 0; i < c->ratio_count && c->match == SIZE_MAX; i++)
        if (c->ratios[i].is_registered)
            c->match = i;
}

/* ---- what can be said ---- */

/* Holm over the registered pairs; those that never ran well count, too: they were asked for. */
static enum status adjust(struct comparison *c, size_t registered, struct error *err)
{
    double *p[2] = {NULL, NULL};
    size_t count = 0;
    enum status status = mem_calloc(registered, sizeof(double), "p-values", &p[0], err);

    if (status == STATUS_OK)
        status = mem_calloc(registered, sizeof(double), "p-values", &p[1], err);
    for (size_t i = 0; i < registered && status == STATUS_OK; i++)
        p[0][i] = p[1][i] = 1;
    for (size_t i = 0; i < c->ratio_count && status == STATUS_OK; i++) {
        if (!c->ratios[i].is_registered)
            continue;
        p[0][count] = c->ratios[i].paired.p_difference;
        p[1][count++] = c->ratios[i].paired.p_equivalence;
    }
    if (status == STATUS_OK) {
        paired_holm(p[0], registered);
        paired_holm(p[1], registered);
    }
    count = 0;
    for (size_t i = 0; i < c->ratio_count && status == STATUS_OK; i++) {
        if (!c->ratios[i].is_registered)
            continue;
        c->ratios[i].p = p[0][count];
        c->ratios[i].p_equivalence = p[1][count++];
    }
    free(p[0]);
    free(p[1]);
    return status;
}

static enum ratio_state judge(const struct comparison *c, const struct ratio *r, size_t registered)
{
    if (!r->is_registered)
        return RATIO_UNREGISTERED;
    if (!comparison_is_fair(c, r->a, r->b))
        return RATIO_UNFAIR;
    if (r->paired.n < paired_least_blocks(registered, c->design->level))
        return RATIO_TOO_FEW;
    if (r->p_equivalence <= c->design->level)
        return RATIO_EQUIVALENT;
    return r->p <= c->design->level ? RATIO_FASTER : RATIO_UNDECIDED;
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
        register_those_of_design(c);
    else
        register_by_rule(c);
    choose_match(c);
    status = adjust(c, registered, err);
    for (size_t i = 0; i < c->ratio_count && status == STATUS_OK; i++)
        c->ratios[i].state = judge(c, &c->ratios[i], registered);
    return status;
}
