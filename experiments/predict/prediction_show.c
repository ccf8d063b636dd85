/*
 * prediction_show: lines, predictions.csv, and the overview of a sweep with predicted rows.
 */
#include "experiments/predict/prediction.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "experiments/report/figure.h"
#include "experiments/report/overview.h"
#include "experiments/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct prediction *of_cell(const struct prediction_set *set, size_t cell)
{
    return &set->items[cell * set->experiment->mode_count];
}

static const char *label_of(const struct experiment_mode *mode)
{
    return mode->label[0] != '\0' ? mode->label : mode->name;
}

#define CELLS_SHOWN 40 /* on the terminal; of more than that, where the winner changes */

/* ---- lines and CSV */

static void print_ms(double seconds)
{
    const double ms = seconds * 1e3;

    (void)printf(" %8.*f ms", ms < 10 ? 3 : ms < 1000, ms);
}

static void print_mode(const struct experiment_mode *mode, const struct prediction *p)
{
    (void)printf("  %-15.15s", mode->name);
    if (!p->is_known) {
        (void)printf(" not covered by the model\n");
        return;
    }
    print_ms(p->cost.step_s);
    if (isfinite(p->error))
        (void)printf(" +-%4.1f %%", expm1(p->error) * 100);
    if (isfinite(p->measured_s))
        print_ms(p->measured_s);
    if (isfinite(p->measured_s))
        (void)printf(" %+5.1f %%", (p->cost.step_s / p->measured_s - 1) * 100);
    (void)printf("  %s\n", cost_limit_text(p->cost.limit));
}

static void add_number(struct strbuf *out, double value)
{
    if (isfinite(value))
        strbuf_addf(out, "%.6g", value);
    strbuf_add(out, ",");
}

static void add_line(const struct cell *cell, const struct experiment_mode *mode,
                     const struct prediction *p, struct strbuf *out)
{
    const double numbers[] = {p->cost.step_s,
                              p->cost.step_s * exp(-p->error),
                              p->cost.step_s * exp(p->error),
                              p->cost.exposed_s,
                              p->cost.processor_s,
                              p->measured_s,
                              p->sensitivities[COST_PART_LINKS],
                              p->sensitivities[COST_PART_DELAY],
                              p->sensitivities[COST_PART_SOFTWARE],
                              p->sensitivities[COST_PART_COMPUTE]};

    if (!p->is_known)
        return;
    strbuf_addf(out, "\"%s\",\"%s\",", cell->name, mode->name);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        add_number(out, numbers[i]);
    strbuf_addf(out, "\"%s\"\n", cost_limit_text(p->cost.limit));
}

static enum status write_table(const struct prediction_set *set, const char *folder,
                               struct error *err)
{
    const struct experiment *e = set->experiment;
    struct strbuf table = STRBUF_INIT;
    char path[4096];
    enum status status = file_join(path, sizeof(path), folder, "predictions.csv", err);

    strbuf_add(&table, "cell,mode,step_s,low_s,high_s,exposed_s,processor_s,measured_step_s,"
                       "per_link_time,per_delay,per_software_time,per_compute_time,limit\n");
    for (size_t i = 0; i < set->cell_count; i++)
        for (size_t m = 0; m < e->mode_count; m++)
            add_line(&set->cells[i], &e->modes[m], &of_cell(set, i)[m], &table);
    if (status == STATUS_OK)
        status = file_write_text(path, &table, err);
    strbuf_release(&table);
    return status;
}

/* ---- the overview */

/* Both modes of a registered pair, if the model covers them. */
static bool find_pair(const struct prediction_set *set, size_t cell, const struct design_pair *pair,
                      size_t ret[2])
{
    const struct experiment *e = set->experiment;
    size_t found = 0;

    for (int k = 0; k < 2; k++)
        for (size_t m = 0; m < e->mode_count; m++)
            if (strcmp(e->modes[m].name, pair->names[k]) == 0 && of_cell(set, cell)[m].is_known) {
                ret[k] = m;
                found++;
            }
    return found == 2;
}

static void set_color(const struct prediction_set *set, size_t mode, char color[8])
{
    size_t contenders = 0;

    for (size_t m = 0; m < mode; m++)
        contenders += of_cell(set, 0)[m].side != COST_CONTROL;
    (void)snprintf(
        color, 8, "%s",
        figure_color(of_cell(set, 0)[mode].side == COST_CONTROL ? MODE_CONTROL : MODE_CONTENDER,
                     contenders));
}

static void set_values(const struct prediction_set *set, size_t cell, const char **values)
{
    const struct axes *axes = &set->experiment->axes;

    for (size_t i = 0; i < axes->length; i++)
        values[i] = axes_value(axes, &set->cells[cell], i);
}

/* Errors of two sides are independent, those of modes of one side only in part: never narrower. */
static struct overview_row make_row(const struct prediction_set *set, size_t cell,
                                    const size_t modes[2])
{
    const struct prediction *a = &of_cell(set, cell)[modes[0]];
    const struct prediction *b = &of_cell(set, cell)[modes[1]];
    const double value = b->cost.step_s / a->cost.step_s, error = hypot(a->error, b->error);
    const double least =
        isfinite(error) ? error : design_log_margin(set->experiment->design.margin);
    struct overview_row row = {
        .cell = cell,
        .throughput = {a->samples / a->cost.step_s, b->samples / b->cost.step_s},
        .value = value,
        .interval = {value * exp(-error), value * exp(error)},
        .p = (double)NAN,
        .measured = b->measured_s / a->measured_s};

    row.state = fabs(log(value)) > least ? RATIO_FASTER
                                         : (isfinite(error) ? RATIO_UNDECIDED : RATIO_EQUIVALENT);
    set_values(set, cell, row.values);
    for (int k = 0; k < 2; k++) {
        (void)snprintf(row.labels[k], sizeof(row.labels[k]), "%s",
                       label_of(&set->experiment->modes[modes[k]]));
        set_color(set, modes[k], row.colors[k]);
    }
    return row;
}

static enum status add_rows(const struct prediction_set *set, struct overview *o, struct error *err)
{
    const struct design *design = &set->experiment->design;
    enum status status = STATUS_OK;
    size_t modes[2];

    for (size_t cell = 0; cell < set->cell_count; cell++)
        for (size_t i = 0; i < design->pair_count && status == STATUS_OK; i++)
            if (find_pair(set, cell, &design->pairs[i], modes)) {
                const struct overview_row row = make_row(set, cell, modes);

                status = overview_add_row(o, &row, err);
            }
    return status;
}

static enum status add_points(const struct prediction_set *set, size_t cell, size_t mode,
                              struct overview *o, struct error *err)
{
    const struct prediction *p = &of_cell(set, cell)[mode];
    const double speed = p->samples / p->cost.step_s, error = isfinite(p->error) ? p->error : 0;
    const char *label = label_of(&set->experiment->modes[mode]);
    struct overview_point point = {
        .dash = 2, .low = speed * exp(-error), .median = speed, .high = speed * exp(error)};
    enum status status;

    set_values(set, cell, point.values);
    set_color(set, mode, point.color);
    (void)snprintf(point.label, sizeof(point.label), "%.127s, predicted", label);
    status = overview_add_point(o, &point, err);
    if (status != STATUS_OK || p->speeds.n == 0)
        return status;
    point.dash = 1;
    point.low = p->speeds.q1;
    point.median = p->speeds.median;
    point.high = p->speeds.q3;
    (void)snprintf(point.label, sizeof(point.label), "%.127s, measured", label);
    return overview_add_point(o, &point, err);
}

static enum status write_overview(const struct prediction_set *set, const struct overview *o,
                                  const char *folder, struct error *err)
{
    const char **reports = NULL;
    char problem[512] = "";
    enum status status = mem_calloc(set->cell_count, sizeof(*reports), "cells", &reports, err);

    if (status == STATUS_OK)
        status = overview_write(o, folder, reports, problem, sizeof(problem), err);
    if (status == STATUS_OK && problem[0] != '\0')
        log_warning("%s", problem);
    if (status == STATUS_OK)
        (void)printf("maps: %s/index.html\n", folder);
    free(reports);
    return status;
}

static enum status show_overview(const struct prediction_set *set, const char *folder,
                                 const char *command, struct error *err)
{
    const struct experiment *e = set->experiment;
    struct overview o = {.command = command, .is_predicted = true, .axis_count = e->axes.length};
    struct text_list flips = {0};
    struct strbuf text = STRBUF_INIT;
    char title[300];
    enum status status;

    (void)snprintf(title, sizeof(title), "Predicted: %s", e->design.title);
    o.title = title;
    for (size_t i = 0; i < e->axes.length; i++)
        o.axes[i] = e->axes.items[i].name;
    status = add_rows(set, &o, err);
    for (size_t cell = 0; cell < set->cell_count; cell++)
        for (size_t m = 0; m < e->mode_count && status == STATUS_OK; m++)
            if (of_cell(set, cell)[m].is_known)
                status = add_points(set, cell, m, &o, err);
    overview_add_flips(&o, &flips);
    for (size_t i = 0; i < flips.length; i++)
        report_add_wrapped(&text, flips.texts[i], 0);
    (void)printf("%s", text.text);
    if (status == STATUS_OK && o.point_count > 0)
        status = write_overview(set, &o, folder, err);
    strbuf_release(&text);
    text_list_release(&flips);
    overview_release(&o);
    return status;
}

/* ---- together */

static void print_winner(const struct design_pair *pair, const struct overview_row *row)
{
    (void)printf("  %s is %.2f times as fast as %s", pair->names[row->value < 1],
                 fmax(row->value, 1 / row->value), pair->names[row->value >= 1]);
    if (isfinite(row->measured))
        (void)printf(", measured %.2f", row->value < 1 ? 1 / row->measured : row->measured);
    (void)printf("%s\n", row->state == RATIO_UNDECIDED ? ", within the error" : "");
}

/* Of every registered pair who is predicted to win, and whether that was measured. */
static void count_winners(const struct prediction_set *set, size_t cell, bool is_shown,
                          size_t counts[2])
{
    const struct experiment *e = set->experiment;
    size_t modes[2];

    for (size_t i = 0; i < e->design.pair_count; i++) {
        const struct design_pair *pair = &e->design.pairs[i];
        struct overview_row row;

        if (!find_pair(set, cell, pair, modes))
            continue;
        row = make_row(set, cell, modes);
        if (isfinite(row.measured) && fabs(log(row.measured)) > design_log_margin(0.05)) {
            counts[0]++;
            counts[1] += (row.value < 1) == (row.measured < 1);
        }
        if (is_shown)
            print_winner(pair, &row);
    }
}

static enum status print_errors(const struct prediction_set *set, const size_t winners[2],
                                struct error *err)
{
    const size_t length = set->cell_count * set->experiment->mode_count;
    size_t count = 0, with_interval = 0, covered = 0;
    double *errors;
    enum status status = mem_calloc(length, sizeof(*errors), "errors", &errors, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < length; i++) {
        const struct prediction *p = &set->items[i];
        const double ratio = p->cost.step_s / p->measured_s;

        if (!p->is_known || !isfinite(ratio))
            continue;
        errors[count++] = fabs(ratio - 1);
        with_interval += p->error >= 0; /* NaN is not */
        covered += fabs(log(ratio)) <= p->error;
    }
    statistics_sort(errors, count);
    if (count > 0)
        (void)printf("%zu predictions beside measured steps: median error %.1f %%, 95 %% of them "
                     "at most %.1f %%",
                     count, statistics_quantile(errors, count, 0.5) * 100,
                     statistics_quantile(errors, count, 0.95) * 100);
    if (with_interval > 0)
        (void)printf("; the 90 %% interval has %zu of %zu", covered, with_interval);
    if (winners[0] > 0)
        (void)printf("; the winner is right in %zu of %zu pairs that differ by more than 5 %%",
                     winners[1], winners[0]);
    (void)printf("%s", count > 0 ? "\n" : "");
    free(errors);
    return STATUS_OK;
}

enum status prediction_show(const struct prediction_set *set, const char *folder,
                            const char *command, struct error *err)
{
    const struct experiment *e = set->experiment;
    size_t winners[2] = {0, 0};
    enum status status;

    for (size_t cell = 0; cell < set->cell_count; cell++) {
        const bool is_shown = set->cell_count <= CELLS_SHOWN;

        if (is_shown && set->cells[cell].name[0] != '\0')
            (void)printf("%s\n", set->cells[cell].name);
        for (size_t m = 0; m < e->mode_count && is_shown; m++)
            print_mode(&e->modes[m], &of_cell(set, cell)[m]);
        count_winners(set, cell, is_shown, winners);
    }
    status = print_errors(set, winners, err);
    if (status == STATUS_OK)
        status = write_table(set, folder, err);
    return status == STATUS_OK && e->axes.length > 0 ? show_overview(set, folder, command, err)
                                                     : status;
}
