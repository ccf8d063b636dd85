/*
 * figure_faults: the throughput of every mode over the time since the ranks were started, with the
 * faults that were injected as bands.  A step's samples are spread evenly over its time; a mode's
 * line is the mean over its good runs that train at that time.
 */
#include "experiments/report/figure.h"
#include "experiments/report/format.h"
#include "experiments/report/gnuplot.h"

#include <math.h>

#define HEIGHT       360
#define LEFT         0.13
#define BINS         80
#define FAULTS_SHOWN 6
#define BAND_COLOR   "#d55e00"

struct span {
    double from, to; /* seconds since the ranks were started */
};

static bool is_shown(const struct comparison *c, size_t run)
{
    return c->list->runs[run].state == RUN_OK && c->list->runs[run].faults.length > 0;
}

static struct span step_span(const struct run *run, const struct step_record *step)
{
    const double from = step->begin_wall - run->faults.start_wall;

    return (struct span){from, from + (double)step->step_ns * 1e-9};
}

/* From the first step to the end of the last, of any rank; empty where it is not recorded. */
static struct span training_span(const struct run *run)
{
    struct span all = {(double)INFINITY, -(double)INFINITY};

    for (size_t r = 0; r < run->rank_count; r++)
        for (size_t s = 0; s < run->ranks[r].length; s++) {
            const struct step_record *step = &run->ranks[r].steps[s];

            if (step->begin_wall == 0)
                continue;
            all.from = fmin(all.from, step_span(run, step).from);
            all.to = fmax(all.to, step_span(run, step).to);
        }
    return all;
}

/* The part of `a` that lies in `b`, in seconds. */
static double overlap(struct span a, struct span b)
{
    return fmax(0, fmin(a.to, b.to) - fmax(a.from, b.from));
}

/* Samples of all ranks in that time. */
static double samples_in(const struct run *run, struct span time)
{
    double sum = 0;

    for (size_t r = 0; r < run->rank_count; r++)
        for (size_t s = 0; s < run->ranks[r].length; s++) {
            const struct step_record *step = &run->ranks[r].steps[s];

            if (step->step_ns > 0)
                sum += (double)step->samples * overlap(step_span(run, step), time) /
                       ((double)step->step_ns * 1e-9);
        }
    return sum;
}

/* While a fault was in force and the run trained. */
static struct span fault_span(const struct run *run, size_t fault)
{
    const struct run_fault *f = &run->faults.faults[fault];
    const struct span all = training_span(run);
    const double begin = f->begin_wall - run->faults.start_wall;
    const double end = isfinite(f->end_wall) ? f->end_wall - run->faults.start_wall : all.to;

    if (!isfinite(begin))
        return (struct span){0, 0};
    return (struct span){fmax(begin, all.from), fmin(end, all.to)};
}

/* ---- table ---- */

struct rate {
    double samples, seconds;
};

static void add_rate(const struct run *run, struct span time, struct rate *to)
{
    if (!(time.to > time.from))
        return;
    to->samples += samples_in(run, time);
    to->seconds += time.to - time.from;
}

/* While no fault is in force; faults may overlap. */
static void add_rate_without(const struct run *run, struct rate *to)
{
    const struct span all = training_span(run);
    double at = all.from;

    while (at < all.to) {
        double end = at, next = all.to; /* of the faults at that time, of the time without one */

        for (size_t k = 0; k < run->faults.length; k++) {
            const struct span fault = fault_span(run, k);

            if (fault.from > at)
                next = fmin(next, fault.from);
            else
                end = fmax(end, fault.to);
        }
        if (end == at)
            add_rate(run, (struct span){at, next}, to);
        at = end > at ? end : next;
    }
}

static void add_cells(const struct comparison *c, size_t mode, size_t faults, struct figure *f)
{
    struct rate rates[FAULTS_SHOWN + 1] = {{0, 0}};
    size_t runs = 0;

    for (size_t i = 0; i < c->list->length; i++) {
        const struct run *run = &c->list->runs[i];

        if (c->mode_of[i] != mode || !is_shown(c, i))
            continue;
        runs++;
        add_rate_without(run, &rates[0]);
        for (size_t k = 0; k < run->faults.length && k < faults; k++)
            add_rate(run, fault_span(run, k), &rates[k + 1]);
    }
    if (runs == 0)
        return;
    text_list_addf(&f->cells, "%s", c->modes[mode].label);
    for (size_t k = 0; k <= faults; k++) {
        char cell[FORMAT_MAX] = "-";

        if (rates[k].seconds > 0)
            format_number(rates[k].samples / rates[k].seconds, 0, cell);
        text_list_addf(&f->cells, "%s", cell);
    }
}

static void add_headings(const struct run *run, size_t faults, struct figure *f)
{
    text_list_addf(&f->headings, "mode (samples/s)");
    text_list_addf(&f->headings, "without a fault");
    for (size_t k = 0; k < faults; k++)
        text_list_addf(&f->headings, "%zu: %s %s", k + 1, run->faults.faults[k].action,
                       run->faults.faults[k].target);
}

/* ---- picture ---- */

/* The faults of one run; they are the same in all, but for when exactly they came. */
static void draw_bands(const struct run *run, double end, struct figure *f)
{
    for (size_t k = 0; k < run->faults.length; k++) {
        const struct run_fault *fault = &run->faults.faults[k];
        const double from = fault->planned_s;
        const double to = isfinite(fault->length_s) ? from + fault->length_s : end;

        if (!(from < end))
            continue;
        strbuf_addf(&f->script,
                    "set object %zu rect from %.6g, graph 0 to %.6g, graph 1 behind fc rgb "
                    "'" BAND_COLOR "' fs solid 0.15 noborder\n"
                    "set label %zu '%zu' at %.6g, graph 1.03 center tc rgb '" GNUPLOT_INK "'\n",
                    k + 1, from, fmin(to, end), k + 1, k + 1, (from + fmin(to, end)) / 2);
    }
}

/* Of one mode, in every bin. */
struct curve {
    double samples[BINS];
    size_t runs[BINS]; /* that train in most of it */
};

static void add_run(const struct run *run, double width, struct curve *curve)
{
    const struct span all = training_span(run);

    for (size_t bin = 0; bin < BINS; bin++) {
        const struct span time = {width * (double)bin, width * (double)(bin + 1)};

        curve->runs[bin] += overlap(all, time) > width / 2;
    }
    for (size_t r = 0; r < run->rank_count; r++)
        for (size_t s = 0; s < run->ranks[r].length; s++) {
            const struct step_record *step = &run->ranks[r].steps[s];
            const struct span time = step_span(run, step);

            for (size_t bin = (size_t)fmax(0, time.from / width);
                 step->step_ns > 0 && bin < BINS && width * (double)bin < time.to; bin++)
                curve->samples[bin] +=
                    (double)step->samples * 1e9 / (double)step->step_ns *
                    overlap(time, (struct span){width * (double)bin, width * (double)(bin + 1)});
        }
}

/* False: the mode has no runs with faults. */
static bool add_block(const struct comparison *c, size_t mode, double end, struct figure *f)
{
    const double width = end / BINS;
    struct curve curve = {.runs = {0}};
    bool any = false;

    for (size_t i = 0; i < c->list->length; i++)
        if (c->mode_of[i] == mode && is_shown(c, i)) {
            add_run(&c->list->runs[i], width, &curve);
            any = true;
        }
    if (!any)
        return false;
    strbuf_addf(&f->script, "$mode%zu << END\n", mode);
    for (size_t bin = 0; bin < BINS; bin++)
        if (curve.runs[bin] > 0)
            strbuf_addf(&f->script, "%.6g %.6g\n", width * ((double)bin + 0.5),
                        curve.samples[bin] / width / (double)curve.runs[bin]);
    strbuf_add(&f->script, "END\n");
    return true;
}

static void draw(const struct comparison *c, const struct run *example, double end,
                 struct figure *f)
{
    struct strbuf plots = STRBUF_INIT;

    figure_begin(f, HEIGHT, LEFT, 'y');
    draw_bands(example, end, f);
    for (size_t m = 0; m < c->mode_count; m++) {
        if (!add_block(c, m, end, f))
            continue;
        strbuf_addf(&plots, "%s$mode%zu using 1:2 with lines lw 2 dt %d lc rgb '%s'",
                    plots.length > 0 ? ", " : "", m, figure_mode_dash(c, m),
                    figure_mode_color(c, m));
        text_list_addf(&f->tool_tips, "%s", c->modes[m].label);
        figure_add_legend(f, c->modes[m].label, figure_mode_color(c, m));
    }
    strbuf_addf(&f->script,
                "set tmargin 2.5\nset ylabel 'samples/s'\nset xlabel 'time since the ranks were "
                "started (s)'\nset xrange [0:%.9g]\nset yrange [0:*]\nplot %s\n",
                end, plots.text);
    if (!strbuf_ok(&plots))
        f->script.failed = true;
    strbuf_release(&plots);
}

enum status figure_faults(const struct comparison *c, struct figure *f, struct error *err)
{
    const struct run *example = NULL;
    double end = 0;
    size_t faults;

    (void)err;
    f->name = "faults";
    for (size_t i = c->list->length; i-- > 0;) {
        const struct run *run = &c->list->runs[i];

        if (!is_shown(c, i) || !(training_span(run).to > 0))
            continue;
        example = run;
        end = fmax(end, training_span(run).to);
    }
    if (!example)
        return STATUS_OK;
    faults = example->faults.length < FAULTS_SHOWN ? example->faults.length : FAULTS_SHOWN;
    figure_set_title(f, "Throughput under faults");
    strbuf_add(&f->description, "One line per mode: samples per second of all ranks over the time "
                                "since the ranks were started, with a band for each fault.");
    strbuf_addf(&f->caption,
                "What a fault costs, and how soon a mode is back. Mean over the good runs; a "
                "step's samples are spread evenly over its time; evaluation counts as standing "
                "still. The table has the throughput while no fault is in force, and during each "
                "(the first %d).",
                FAULTS_SHOWN);
    add_headings(example, faults, f);
    for (size_t m = 0; m < c->mode_count; m++)
        add_cells(c, m, faults, f);
    draw(c, example, end, f);
    for (size_t k = 0; k < faults; k++)
        figure_add_legend(f, f->headings.texts[k + 2], BAND_COLOR);
    return STATUS_OK;
}
