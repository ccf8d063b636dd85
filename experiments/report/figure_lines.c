/*
 * figure_lines: figures with one line per run or mode: loss against time and against steps, and the
 * distributions of step times and of staleness.  Long runs are averaged down to LOSS_POINTS points
 * before drawing.
 */
#include "experiments/report/figure.h"
#include "experiments/report/format.h"
#include "experiments/report/gnuplot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEIGHT        360
#define LEFT          0.115
#define LOSS_POINTS   60
#define RUNS_DRAWN    8  /* per mode */
#define LOG_RATIO     20 /* of largest to smallest loss above which the axis is logarithmic */
#define TABLE_POINTS  5
#define CDF_POINTS    200
#define NS_PER_SECOND 1e9

struct loss_range {
    double low, high;
};

/* Loss of step s over the ranks of a run that had samples. */
static double mean_loss(const struct run *run, size_t s)
{
    double sum = 0, count = 0;

    for (size_t i = 0; i < run->rank_count; i++) {
        const struct step_record *step = &run->ranks[i].steps[s];

        if (step->samples > 0) {
            sum += step->loss;
            count++;
        }
    }
    return sum / count;
}

static size_t shortest_rank_steps(const struct run *run)
{
    size_t steps = run->ranks[0].length;

    for (size_t i = 1; i < run->rank_count; i++)
        steps = run->ranks[i].length < steps ? run->ranks[i].length : steps;
    return steps;
}

/* One data block of "time step loss" lines, averaged over bins of equal length; the time of a point
 * is the training time of rank 0 until the end of its bin. */
static void add_loss_block(struct figure *f, const struct run *run, size_t block,
                           struct loss_range *range)
{
    size_t steps = shortest_rank_steps(run);
    size_t bin = (steps + LOSS_POINTS - 1) / LOSS_POINTS;
    double seconds = 0;

    strbuf_addf(&f->script, "$run%zu << END\n", block);
    for (size_t first = 0; first < steps; first += bin) {
        size_t last = first + bin < steps ? first + bin : steps;
        double sum = 0;

        for (size_t s = first; s < last; s++) {
            sum += mean_loss(run, s);
            seconds += (double)run->ranks[0].steps[s].step_ns / NS_PER_SECOND;
        }
        sum /= (double)(last - first);
        if (!isfinite(sum))
            continue;
        range->low = fmin(range->low, sum);
        range->high = fmax(range->high, sum);
        strbuf_addf(&f->script, "%.6g %.1f %.6g\n", seconds, (double)(first + last - 1) / 2, sum);
    }
    strbuf_add(&f->script, "END\n");
}

/* Loss of a run at TABLE_POINTS equidistant steps: each a mean over a window of a twentieth of all.
 */
static void add_loss_cells(struct figure *f, const struct mode *mode, const struct run *run)
{
    size_t steps = shortest_rank_steps(run);
    size_t window = steps / 20 > 0 ? steps / 20 : 1;
    double seconds = 0;

    text_list_addf(&f->cells, "%s, %s", mode->label, run->name);
    for (size_t k = 0; k < TABLE_POINTS; k++) {
        size_t first = (steps - window) * k / (TABLE_POINTS - 1);
        double sum = 0;

        for (size_t s = first; s < first + window; s++)
            sum += mean_loss(run, s);
        text_list_addf(&f->cells, "%.4f", sum / (double)window);
    }
    for (size_t s = 0; s < steps; s++)
        seconds += (double)run->ranks[0].steps[s].step_ns / NS_PER_SECOND;
    text_list_addf(&f->cells, "%.3f", seconds);
}

static void add_loss_headings(struct figure *f)
{
    static const char *const headings[] = {
        "run",        "loss at the start", "after 25 %",       "after 50 %",
        "after 75 %", "at the end",        "training time (s)"};

    for (size_t i = 0; i < sizeof(headings) / sizeof(headings[0]); i++)
        text_list_addf(&f->headings, "%s", headings[i]);
}

/* The runs of a mode that are drawn: indices into the list. */
static size_t list_runs(const struct comparison *c, size_t mode, size_t runs[RUNS_DRAWN])
{
    size_t count = 0;

    for (size_t i = 0; i < c->list->length && count < RUNS_DRAWN; i++)
        if (c->mode_of[i] == mode && c->list->runs[i].state == RUN_OK)
            runs[count++] = i;
    return count;
}

static void add_loss_table(const struct comparison *c, struct figure *f)
{
    size_t runs[RUNS_DRAWN];

    add_loss_headings(f);
    for (size_t m = 0; m < c->mode_count; m++) {
        size_t count = list_runs(c, m, runs);

        for (size_t i = 0; i < count; i++)
            add_loss_cells(f, &c->modes[m], &c->list->runs[runs[i]]);
        if (count > 0)
            figure_add_legend(f, c->modes[m].label, figure_mode_color(c, m));
    }
}

/* Every run of every mode as a thin line, the first mode on top; `column` 1 is time, 2 is step. */
static void draw_losses(const struct comparison *c, struct figure *f, int column, const char *axis)
{
    struct strbuf plots = STRBUF_INIT;
    struct loss_range range = {(double)INFINITY, 0};
    size_t runs[RUNS_DRAWN];

    figure_begin(f, HEIGHT, LEFT, 'y');
    add_loss_table(c, f);
    for (size_t m = c->mode_count; m-- > 0;) {
        size_t count = list_runs(c, m, runs);

        for (size_t i = 0; i < count; i++) {
            add_loss_block(f, &c->list->runs[runs[i]], runs[i], &range);
            strbuf_addf(&plots, "%s$run%zu using %d:3 with lines lw 1.4 dt %d lc rgb '%s'",
                        plots.length > 0 ? ", " : "", runs[i], column, figure_mode_dash(c, m),
                        figure_mode_color(c, m));
            text_list_addf(&f->tool_tips, "%s, %s", c->modes[m].label, c->list->runs[runs[i]].name);
        }
    }
    if (range.low > 0 && range.high / range.low > LOG_RATIO)
        strbuf_addf(&f->script, "set logscale y\nset format y '%%g'\nset yrange [%.6g:%.6g]\n",
                    range.low / 1.2, range.high * 1.2);
    strbuf_addf(&f->script,
                "set ylabel 'training loss'\nset xlabel '%s'\nset xrange [0:*]\nplot %s\n", axis,
                plots.text);
    if (!strbuf_ok(&plots))
        f->script.failed = true;
    strbuf_release(&plots);
}

enum status figure_loss_time(const struct comparison *c, struct figure *f, struct error *err)
{
    (void)err;
    f->name = "losstime";
    figure_set_title(f, "Loss against training time");
    strbuf_add(&f->description, "One falling line per run: training loss against the seconds that "
                                "training took so far.");
    strbuf_addf(&f->caption,
                "What a user waits for: speed and learning together. Mean over the ranks, averaged "
                "down to %d points; evaluation time is left out; at most %d runs per mode.",
                LOSS_POINTS, RUNS_DRAWN);
    draw_losses(c, f, 1, "training time (s)");
    return STATUS_OK;
}

enum status figure_loss_step(const struct comparison *c, struct figure *f, struct error *err)
{
    (void)err;
    f->name = "lossstep";
    figure_set_title(f, "Loss against steps");
    strbuf_add(&f->description, "One falling line per run: training loss against the step.");
    strbuf_add(&f->caption, "Learning alone, without speed: modes that compute the same thing from "
                            "the same seed lie on one line.");
    draw_losses(c, f, 2, "step");
    return STATUS_OK;
}

/* Steady step times of all good runs of a mode, sorted. */
static enum status pool_times(const struct comparison *c, size_t mode, double **ret,
                              size_t *ret_count, struct error *err)
{
    double *all = NULL;
    size_t count = 0;

    for (size_t i = 0; i < c->list->length; i++) {
        double *times = NULL;
        double *grown;
        size_t more = 0;
        enum status status;

        if (c->mode_of[i] != mode || c->list->runs[i].state != RUN_OK)
            continue;
        status = metric_step_times(&c->list->runs[i], &times, &more, err);
        if (status != STATUS_OK) {
            free(all);
            return status;
        }
        grown = realloc(all, (count + more + 1) * sizeof(double));
        if (!grown) {
            free(times);
            free(all);
            return error_set(err, STATUS_NO_MEMORY, "no memory for step times");
        }
        all = grown;
        for (size_t k = 0; k < more; k++)
            all[count++] = times[k];
        free(times);
    }
    statistics_sort(all, count);
    *ret = all;
    *ret_count = count;
    return STATUS_OK;
}

static void add_cdf_cells(struct figure *f, const struct mode *mode, const double *times,
                          size_t count)
{
    static const double shares[] = {0.05, 0.25, 0.50, 0.75, 0.95, 0.99, 1.00};

    text_list_addf(&f->cells, "%s", mode->label);
    for (size_t k = 0; k < sizeof(shares) / sizeof(shares[0]); k++)
        text_list_addf(&f->cells, "%.3f", statistics_quantile(times, count, shares[k]));
}

static void add_cdf_block(struct figure *f, size_t mode, const double *times, size_t count)
{
    strbuf_addf(&f->script, "$mode%zu << END\n", mode);
    for (int k = 0; k <= CDF_POINTS; k++)
        strbuf_addf(&f->script, "%.6g %.1f\n",
                    statistics_quantile(times, count, (double)k / CDF_POINTS),
                    100.0 * k / CDF_POINTS);
    strbuf_add(&f->script, "END\n");
}

static void end_step_times(struct figure *f, double slowest, const struct strbuf *plots)
{
    strbuf_addf(&f->script,
                "set ylabel 'steps that took at most so long (%%)'\nset xlabel 'step time (ms)'\n"
                "set yrange [0:102]\nset xrange [0:%.9g]\nplot %s\n",
                slowest * 1.15, plots->text);
    if (!strbuf_ok(plots))
        f->script.failed = true;
}

enum status figure_step_times(const struct comparison *c, struct figure *f, struct error *err)
{
    static const char *const headings[] = {"mode (ms)", "5 %",  "25 %", "50 %",
                                           "75 %",      "95 %", "99 %", "100 %"};
    struct strbuf plots = STRBUF_INIT;
    double slowest = 1e-6;

    f->name = "steptimes";
    figure_set_title(f, "Distribution of step times");
    strbuf_add(&f->description, "One rising line per mode: the share of steps that took at most so "
                                "many milliseconds.");
    strbuf_add(&f->caption, "Steady steps of all ranks and runs together. A long foot to the right "
                            "is stragglers; the axis ends a little after the slowest mode's 99th "
                            "percentile.");
    for (size_t i = 0; i < sizeof(headings) / sizeof(headings[0]); i++)
        text_list_addf(&f->headings, "%s", headings[i]);
    figure_begin(f, HEIGHT, LEFT, 'y');
    for (size_t m = 0; m < c->mode_count; m++) {
        double *times = NULL;
        size_t count = 0;
        enum status status = pool_times(c, m, &times, &count, err);

        if (status != STATUS_OK) {
            strbuf_release(&plots);
            return status;
        }
        if (count > 0) {
            add_cdf_cells(f, &c->modes[m], times, count);
            add_cdf_block(f, m, times, count);
            slowest = fmax(slowest, statistics_quantile(times, count, 0.99));
            strbuf_addf(&plots, "%s$mode%zu using 1:2 with lines lw 2 dt %d lc rgb '%s'",
                        plots.length > 0 ? ", " : "", m, figure_mode_dash(c, m),
                        figure_mode_color(c, m));
            text_list_addf(&f->tool_tips, "%s", c->modes[m].label);
            figure_add_legend(f, c->modes[m].label, figure_mode_color(c, m));
        }
        free(times);
    }
    end_step_times(f, slowest, &plots);
    strbuf_release(&plots);
    return STATUS_OK;
}

/* The counts of all servers of a mode's good runs, by the bounds of the first one. */
static struct end_record sum_staleness(const struct comparison *c, size_t mode)
{
    struct end_record sum = {.buckets = 0};

    for (size_t i = 0; i < c->list->length; i++) {
        const struct run *run = &c->list->runs[i];

        for (size_t k = 0; k < run->server_count && c->mode_of[i] == mode && run->state == RUN_OK;
             k++) {
            const struct end_record *end = &run->servers[k].end;

            if (sum.buckets == 0) {
                sum.buckets = end->buckets;
                memcpy(sum.bounds, end->bounds, sizeof(sum.bounds));
            }
            for (size_t b = 0; b < end->buckets && end->buckets == sum.buckets; b++)
                sum.pushes[b] += end->pushes[b];
        }
    }
    for (size_t b = 0; b < sum.buckets; b++)
        sum.used_pushes += sum.pushes[b];
    return sum;
}

/* "3 to 4", "above 64" */
static void name_bucket(const struct end_record *r, size_t b, char *text, size_t size)
{
    const double low = b == 0 ? 0 : r->bounds[b - 1] + 1;

    if (b + 1 == r->buckets)
        (void)snprintf(text, size, "above %.0f", low - 1);
    else if (low >= r->bounds[b])
        (void)snprintf(text, size, "%.0f", r->bounds[b]);
    else
        (void)snprintf(text, size, "%.0f to %.0f", low, r->bounds[b]);
}

static void add_staleness_heads(struct figure *f, const struct end_record *r, size_t shown)
{
    char name[64];

    text_list_addf(&f->headings, "mode (%% of the pushes)");
    strbuf_add(&f->script, "set xtics (");
    for (size_t b = 0; b < shown; b++) {
        name_bucket(r, b, name, sizeof(name));
        text_list_addf(&f->headings, "%s", name);
        strbuf_addf(&f->script, "%s'%s' %zu", b > 0 ? ", " : "", name, b);
    }
    strbuf_add(&f->script, ")\n");
}

static void add_staleness_line(const struct comparison *c, size_t mode, const struct end_record *r,
                               size_t shown, struct figure *f, struct strbuf *plots)
{
    double below = 0;

    text_list_addf(&f->cells, "%s", c->modes[mode].label);
    strbuf_addf(&f->script, "$mode%zu << END\n", mode);
    for (size_t b = 0; b < shown; b++) {
        below += r->pushes[b];
        strbuf_addf(&f->script, "%zu %.6g\n", b, 100 * below / r->used_pushes);
        text_list_addf(&f->cells, "%.1f", 100 * r->pushes[b] / r->used_pushes);
    }
    strbuf_add(&f->script, "END\n");
    strbuf_addf(plots, "%s$mode%zu using 1:2 with linespoints lw 2 pt 7 ps 0.5 dt %d lc rgb '%s'",
                plots->length > 0 ? ", " : "", mode, figure_mode_dash(c, mode),
                figure_mode_color(c, mode));
    text_list_addf(&f->tool_tips, "%s", c->modes[mode].label);
    figure_add_legend(f, c->modes[mode].label, figure_mode_color(c, mode));
}

/* Without a mode whose pushes are stale there is no figure. */
enum status figure_staleness(const struct comparison *c, struct figure *f, struct error *err)
{
    struct strbuf plots = STRBUF_INIT;
    size_t shown = 0;

    (void)err;
    f->name = "staleness";
    figure_set_title(f, "How stale gradients are");
    strbuf_add(&f->description,
               "One rising line per mode with servers: the share of pushes at most "
               "so many optimizer steps behind.");
    strbuf_add(&f->caption,
               "Optimizer steps between a rank's read of a partition and its own step; "
               "all servers and runs. In lockstep it is 0.");
    for (size_t m = 0; m < c->mode_count; m++) {
        const struct end_record r = sum_staleness(c, m);

        for (size_t b = 0; b < r.buckets; b++)
            if (r.pushes[b] > 0 && b + 1 > shown)
                shown = b + 1;
    }
    if (shown < 2)
        return STATUS_OK;
    figure_begin(f, HEIGHT, LEFT, 'y');
    for (size_t m = 0; m < c->mode_count; m++) {
        const struct end_record r = sum_staleness(c, m);

        if (!(r.used_pushes > 0))
            continue;
        if (f->headings.length == 0)
            add_staleness_heads(f, &r, shown);
        add_staleness_line(c, m, &r, shown, f, &plots);
    }
    strbuf_addf(&f->script,
                "set ylabel 'pushes at most so stale (%%)'\nset xlabel 'staleness (optimizer "
                "steps)'\nset yrange [0:102]\nset xrange [-0.3:%zu.3]\nplot %s\n",
                shown - 1, plots.text);
    if (!strbuf_ok(&plots))
        f->script.failed = true;
    strbuf_release(&plots);
    return STATUS_OK;
}
