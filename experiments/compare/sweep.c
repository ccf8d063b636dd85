/*
 * sweep: opens the cells, and runs their blocks in turn.
 */
#include "experiments/compare/sweep.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/random.h"
#include "experiments/compare/hosts.h"
#include "experiments/compare/run_plan.h"
#include "experiments/report/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

const struct experiment *compare_sweep_experiment(struct compare_sweep *s, size_t cell)
{
    experiment_make_cell(s->experiment, &s->cells[cell].cell, s->count, s->of_cell);
    return s->of_cell;
}

static enum status open_cell(struct compare_sweep *s, size_t index, struct error *err)
{
    struct sweep_cell *cell = &s->cells[index];
    enum status status;

    (void)compare_sweep_experiment(s, index);
    status = experiment_check_design(s->of_cell, err);
    if (status != STATUS_OK || s->experiment->axes.length == 0) {
        (void)snprintf(cell->out, sizeof(cell->out), "%s", s->out);
        return status;
    }
    (void)snprintf(cell->folder, sizeof(cell->folder), "cells/%s", cell->cell.name);
    return file_join(cell->out, sizeof(cell->out), s->out, cell->folder, err);
}

enum status compare_sweep_open(const struct experiment *e, const char *programs, const char *out,
                               struct compare_sweep *ret, struct error *err)
{
    struct cell *cells = NULL;
    enum status status;

    *ret = (struct compare_sweep){.experiment = e, .programs = programs, .out = out};
    status = axes_make_cells(&e->axes, &cells, &ret->count, err);
    if (status == STATUS_OK)
        status = mem_calloc(ret->count, sizeof(*ret->cells), "cells", &ret->cells, err);
    if (status == STATUS_OK)
        status = mem_calloc(1, sizeof(*ret->of_cell), "an experiment", &ret->of_cell, err);
    for (size_t i = 0; i < ret->count && status == STATUS_OK; i++) {
        ret->cells[i].cell = cells[i];
        status = open_cell(ret, i, err);
    }
    free(cells);
    return status;
}

void compare_sweep_close(struct compare_sweep *s)
{
    free(s->cells);
    free(s->of_cell);
    host_check_close(&s->host_check);
}

size_t compare_sweep_hosts(struct compare_sweep *s)
{
    size_t most = 0;

    for (size_t i = 0; i < s->count; i++) {
        const size_t count = hosts_needed(compare_sweep_experiment(s, i));

        most = count > most ? count : most;
    }
    return most;
}

static struct experiment_run_request cell_request(struct compare_sweep *s, size_t cell)
{
    return (struct experiment_run_request){.experiment = compare_sweep_experiment(s, cell),
                                           .programs = s->programs,
                                           .out = s->cells[cell].out,
                                           .cell = s->cells[cell].cell.name,
                                           .host_check = &s->host_check};
}

/* Run blocks until the cell has `blocks`. */
static enum status run_cell(struct compare_sweep *s, size_t index, size_t blocks,
                            struct experiment_run_result *result, struct error *err)
{
    const struct experiment_run_request request = cell_request(s, index);
    struct sweep_cell *cell = &s->cells[index];
    enum status status;

    if (blocks <= cell->blocks)
        return STATUS_OK;
    status = experiment_run_blocks(&request, cell->blocks, blocks - cell->blocks, result, err);
    if (status == STATUS_OK)
        cell->blocks = blocks;
    return status;
}

/* Run blocks until every cell that is not decided has `blocks`. */
static enum status run_cells(struct compare_sweep *s, size_t blocks,
                             struct experiment_run_result *result, struct error *err)
{
    struct random random;
    int64_t *order = NULL;
    enum status status = mem_calloc(s->count, sizeof(*order), "an order", &order, err);

    if (status != STATUS_OK)
        return status;
    random_seed(&random, (uint64_t)s->experiment->seed * 1000033 + blocks);
    random_permutation(&random, order, s->count);
    for (size_t i = 0; i < s->count && status == STATUS_OK; i++)
        if (!s->cells[order[i]].is_decided)
            status = run_cell(s, (size_t)order[i], blocks, result, err);
    free(order);
    return status;
}

static enum status check_decided(struct sweep_cell *cell, struct error *err)
{
    const char *out = cell->out;
    struct report report = {0};
    enum status status = report_read(&report, &out, 1, err);

    cell->is_decided = status == STATUS_OK && comparison_is_decided(&report.comparison);
    report_release(&report);
    return status;
}

/* *ret_undecided: the number of cells that need more than so many blocks.  One that has more, from
 * before an interruption, was looked at then: a look between would be one too many. */
static enum status check_cells(struct compare_sweep *s, size_t blocks, size_t *ret_undecided,
                               struct error *err)
{
    enum status status = STATUS_OK;

    *ret_undecided = 0;
    for (size_t i = 0; i < s->count && status == STATUS_OK; i++) {
        if (!s->cells[i].is_decided && s->cells[i].blocks <= blocks)
            status = check_decided(&s->cells[i], err);
        *ret_undecided += !s->cells[i].is_decided;
    }
    return status;
}

/* Has this process run its block, with --allocation block? */
static bool ends_here(const struct compare_sweep *s, const struct experiment_run_result *result)
{
    return s->experiment->ends_after_block && result->started > 0;
}

static enum status run_until_decided(struct compare_sweep *s, struct experiment_run_result *result,
                                     struct error *err)
{
    const struct design *design = &s->of_cell->design; /* equal in all cells */
    const size_t most = design->most_blocks, step = design_step(design);
    size_t blocks = design->blocks;
    size_t undecided = 0, until;
    enum status status = STATUS_OK;

    while (status == STATUS_OK && blocks < most && !ends_here(s, result)) {
        const size_t more = most - blocks < step ? most - blocks : step;

        status = check_cells(s, blocks, &undecided, err);
        if (status != STATUS_OK || undecided == 0)
            break;
        (void)fprintf(stderr, "undecided after %zu blocks: %zu more", blocks, more);
        if (s->count > 1)
            (void)fprintf(stderr, " in %zu of %zu cells", undecided, s->count);
        (void)fprintf(stderr, "\n");
        until = blocks + more;
        while (blocks < until && status == STATUS_OK && !ends_here(s, result)) {
            blocks = s->experiment->ends_after_block ? blocks + 1 : until;
            status = run_cells(s, blocks, result, err);
        }
    }
    result->has_more = result->has_more || (blocks < most && ends_here(s, result));
    return status;
}

static void print_resumed(const struct compare_sweep *s)
{
    size_t blocks = 0;

    for (size_t i = 0; i < s->count; i++)
        blocks += s->cells[i].blocks;
    if (blocks > 0)
        (void)fprintf(stderr, "%zu runs are there already\n", blocks * s->experiment->mode_count);
}

static enum status open_hosts(struct compare_sweep *s, struct error *err)
{
    const size_t needed = compare_sweep_hosts(s);
    enum status status = host_check_open(s->experiment, s->programs, s->out, &s->host_check, err);

    if (status == STATUS_OK && s->host_check.hosts.length < needed)
        status = error_set(err, STATUS_CONFIG, "'%s' takes %zu hosts, and there are %zu",
                           s->experiment->name, needed, s->host_check.hosts.length);
    return status;
}

enum status compare_sweep_run(struct compare_sweep *s, struct experiment_run_result *result,
                              struct error *err)
{
    const size_t blocks = (size_t)s->experiment->repeats;
    const bool is_at_once = s->count == 1 && !s->experiment->ends_after_block;
    enum status status = run_plan_resume(s, err);

    if (status == STATUS_OK && s->experiment->engine)
        status = open_hosts(s, err);
    for (size_t i = 0; i < s->count && status == STATUS_OK; i++) {
        const struct experiment_run_request request = cell_request(s, i);

        status = experiment_run_prepare(&request, err);
    }
    if (status != STATUS_OK)
        return status;
    print_resumed(s);
    if (is_at_once)
        status = run_cell(s, 0, blocks, result, err);
    for (size_t b = 1; b <= blocks && !is_at_once && status == STATUS_OK && !ends_here(s, result);
         b++) {
        status = run_cells(s, b, result, err);
        result->has_more = b < blocks && ends_here(s, result);
    }
    return status == STATUS_OK ? run_until_decided(s, result, err) : status;
}

static void print_duration(const char *before, double seconds)
{
    if (seconds < 120)
        (void)printf("%s%.0f s", before, seconds);
    else if (seconds < 7200)
        (void)printf("%s%.0f min", before, seconds / 60);
    else
        (void)printf("%s%.1f h", before, seconds / 3600);
}

void compare_sweep_print_plan(struct compare_sweep *s)
{
    const struct experiment *e = s->experiment;
    size_t runs = s->count * e->mode_count * (size_t)e->repeats;

    for (size_t i = 0; i < s->count && e->axes.length > 0; i++)
        (void)printf("%s\n", s->cells[i].cell.name);
    (void)printf("%zu cell%s of %zu modes, %" PRId64 " blocks: %zu runs", s->count,
                 s->count == 1 ? "" : "s", e->mode_count, e->repeats, runs);
    print_duration(", at least ", (double)runs * e->design.steady_seconds);
    print_duration(" with runs as long as they should be, at most ",
                   (double)runs * (double)e->deadline_seconds);
    (void)printf(" by their deadline\n");
}
