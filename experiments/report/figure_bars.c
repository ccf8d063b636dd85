/*
 * figure_bars: figures with one row per mode: throughput, the parts of a step, who waits for whom,
 * bytes against the formula, processor time.  Rows run down the page in the order of the modes; y
 * points up, so row 0 is at y = rows - 1.
 */
#include "experiments/report/figure.h"
#include "experiments/report/format.h"
#include "experiments/report/gnuplot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEFT          0.29
#define ROW_HEIGHT    48
#define FRAME_HEIGHT  70 /* axis, its title, the space above */
#define BAR_HALF      0.17
#define CAP           0.09 /* half height of an interval's ends */
#define LARGEST_START 1e-9

/* Modes with at least one good run, from top to bottom. */
static size_t list_modes(const struct comparison *c, size_t modes[], size_t capacity)
{
    size_t count = 0;

    for (size_t i = 0; i < c->mode_count && count < capacity; i++)
        if (c->modes[i].first)
            modes[count++] = i;
    return count;
}

#define ROWS_MAX 32

static void begin_rows(struct figure *f, size_t rows)
{
    figure_begin(f, FRAME_HEIGHT + ROW_HEIGHT * (unsigned)rows, LEFT, 'x');
    strbuf_addf(&f->script, "set yrange [-0.6:%g]\nset ytics scale 0\nset ytics (",
                (double)rows - 0.4);
    for (size_t row = 0; row < rows; row++)
        strbuf_addf(&f->script, "%s'@%zu@' %zu", row > 0 ? ", " : "", row, rows - 1 - row);
    strbuf_add(&f->script, ")\n");
}

/* A horizontal bar from `from` to `to` at height y, as one plot element. */
static void add_bar(struct strbuf *plots, double from, double to, double y, double half,
                    const char *color)
{
    strbuf_addf(plots,
                ", '+' using (%.9g):(%g):(%.9g):(%.9g):(%g):(%g) every ::0::0 with boxxyerror "
                "fs solid 1 noborder lc rgb '%s'",
                (from + to) / 2, y, from, to, y - half, y + half, color);
}

/* A straight line in ink, as one plot element. */
static void add_line(struct strbuf *plots, double x, double y, double to_x, double to_y, int width)
{
    strbuf_addf(plots,
                ", '+' using (%.9g):(%g):(%.9g):(%.9g) every ::0::0 with vectors nohead lw %d lc "
                "rgb '" GNUPLOT_INK "'",
                x, y, to_x - x, to_y - y, width);
}

static void add_head(struct figure *f, const char *const *headings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        text_list_addf(&f->headings, "%s", headings[i]);
}

static void throughput_row(const struct comparison *c, size_t mode, double y, double scale,
                           struct figure *f, struct strbuf *plots)
{
    const struct mode *m = &c->modes[mode];
    const struct spread *s = &m->spreads[METRIC_samples_per_second];
    const char *color = figure_mode_color(c, mode);
    char cell[2 * FORMAT_MAX];

    figure_add_text(f, m->label);
    add_bar(plots, 0, s->median / scale, y, BAR_HALF, color);
    text_list_addf(&f->tool_tips, "%s: median %.0f samples/s of %zu runs", m->label, s->median,
                   s->n);
    if (isfinite(s->interval.low)) {
        add_line(plots, s->interval.low / scale, y, s->interval.high / scale, y, 2);
        add_line(plots, s->interval.low / scale, y - CAP, s->interval.low / scale, y + CAP, 2);
        add_line(plots, s->interval.high / scale, y - CAP, s->interval.high / scale, y + CAP, 2);
        for (int part = 0; part < 3; part++)
            text_list_addf(&f->tool_tips, "%s: 95 %% interval %.0f to %.0f samples/s", m->label,
                           s->interval.low, s->interval.high);
    }
    for (size_t i = 0; i < s->n; i++) {
        double value = m->values[METRIC_samples_per_second][i];

        strbuf_addf(plots,
                    ", '+' using (%.9g):(%g) every ::0::0 with points pt 7 ps 0.55 lc rgb '%s'",
                    value / scale, y - 0.32, color);
        text_list_addf(&f->tool_tips, "%s: a run with %.0f samples/s", m->label, value);
    }
    text_list_addf(&f->cells, "%s", m->label);
    format_number(s->median, 0, cell);
    text_list_addf(&f->cells, "%s", cell);
    format_quartiles(METRIC_samples_per_second, s, cell);
    text_list_addf(&f->cells, "%s", cell);
    format_number(s->interval.low, 0, cell);
    text_list_addf(&f->cells, "%s", cell);
    format_number(s->interval.high, 0, cell);
    text_list_addf(&f->cells, "%s", cell);
    text_list_addf(&f->cells, "%zu", s->n);
}

static double largest_median(const struct comparison *c, const size_t *modes, size_t count,
                             enum metric_index metric)
{
    double largest = LARGEST_START;

    for (size_t i = 0; i < count; i++) {
        const struct mode *m = &c->modes[modes[i]];

        for (size_t k = 0; k < m->spreads[metric].n; k++)
            largest = fmax(largest, m->values[metric][k]);
    }
    return largest;
}

/* "set xrange", the axis title, then the plot command: its first element draws nothing, so that the
 * others can all begin with a comma. */
static void end_rows(struct figure *f, double largest, const char *axis, const struct strbuf *plots)
{
    strbuf_addf(&f->script, "set xrange [0:%.9g]\nset xlabel '%s'\nset samples 2\nplot NaN",
                largest * 1.06, axis);
    strbuf_add(&f->script, plots->text);
    strbuf_add(&f->script, "\n");
    if (!strbuf_ok(plots))
        f->script.failed = true;
}

/* The NaN element of end_rows has a title of its own. */
static void begin_tool_tips(struct figure *f)
{
    text_list_addf(&f->tool_tips, "%s", f->title);
}

enum status figure_throughput(const struct comparison *c, struct figure *f, struct error *err)
{
    static const char *const headings[] = {
        "mode", "samples/s, median", "middle half (IQR)", "95 % interval from", "to", "runs"};
    struct strbuf plots = STRBUF_INIT;
    size_t modes[ROWS_MAX];
    size_t rows = list_modes(c, modes, ROWS_MAX);
    double largest = largest_median(c, modes, rows, METRIC_samples_per_second);
    const char *prefix;
    double scale = format_scale(largest, 0, &prefix);
    char axis[64];

    (void)err;
    f->name = "throughput";
    figure_set_title(f, "Throughput per mode");
    strbuf_add(&f->description, c->verdict);
    strbuf_add(&f->caption, "All ranks together. Bar: median over the runs; line: its 95 % "
                            "bootstrap interval; dots: the runs.");
    add_head(f, headings, sizeof(headings) / sizeof(headings[0]));
    begin_tool_tips(f);
    begin_rows(f, rows);
    for (size_t i = 0; i < rows; i++)
        throughput_row(c, modes[i], (double)(rows - 1 - i), scale, f, &plots);
    (void)snprintf(axis, sizeof(axis), "%ssamples/s", prefix);
    end_rows(f, largest / scale, axis, &plots);
    strbuf_release(&plots);
    return STATUS_OK;
}

static const struct {
    enum metric_index metric;
    const char *color;
} parts[] = {
    {METRIC_compute_ms, "#7088a6"}, {METRIC_exposed_comm_ms, "#d55e00"},
    {METRIC_input_ms, "#8ccbe8"},   {METRIC_optimizer_ms, "#c9b400"},
    {METRIC_other_ms, "#c4c4c4"},
};
#define PART_COUNT (sizeof(parts) / sizeof(parts[0]))

static double mean_of(const struct mode *m, enum metric_index metric)
{
    return statistics_mean(m->values[metric], m->spreads[metric].n);
}

static void split_row(const struct comparison *c, size_t mode, double y, struct figure *f,
                      struct strbuf *plots)
{
    const struct mode *m = &c->modes[mode];
    double from = 0;
    char cell[FORMAT_MAX];

    figure_add_text(f, m->label);
    text_list_addf(&f->cells, "%s", m->label);
    for (size_t k = 0; k < PART_COUNT; k++) {
        double value = mean_of(m, parts[k].metric);

        format_number(value, 3, cell);
        text_list_addf(&f->cells, "%s", cell);
        if (!(value > 0))
            continue;
        add_bar(plots, from, from + value, y, 2 * BAR_HALF, parts[k].color);
        text_list_addf(&f->tool_tips, "%s: %s %s ms", m->label, metric_specs[parts[k].metric].title,
                       cell);
        from += value;
    }
    format_number(mean_of(m, METRIC_step_ms_mean), 3, cell);
    text_list_addf(&f->cells, "%s", cell);
}

enum status figure_split(const struct comparison *c, struct figure *f, struct error *err)
{
    struct strbuf plots = STRBUF_INIT;
    size_t modes[ROWS_MAX];
    size_t rows = list_modes(c, modes, ROWS_MAX);
    double largest = LARGEST_START;

    (void)err;
    f->name = "split";
    figure_set_title(f, "Where a step's time goes");
    strbuf_add(&f->description, "One stacked bar per mode: compute, exposed communication, input, "
                                "optimizer and the rest of a step, in milliseconds.");
    strbuf_add(&f->caption, "Mean over the steady steps of all ranks and runs. Exposed "
                            "communication is what backward does not hide.");
    text_list_addf(&f->headings, "mode (ms per step)");
    for (size_t k = 0; k < PART_COUNT; k++) {
        text_list_addf(&f->headings, "%s", metric_specs[parts[k].metric].title);
        figure_add_legend(f, metric_specs[parts[k].metric].title, parts[k].color);
    }
    text_list_addf(&f->headings, "step");
    begin_tool_tips(f);
    begin_rows(f, rows);
    for (size_t i = 0; i < rows; i++) {
        largest = fmax(largest, mean_of(&c->modes[modes[i]], METRIC_step_ms_mean));
        split_row(c, modes[i], (double)(rows - 1 - i), f, &plots);
    }
    end_rows(f, largest, "ms per step", &plots);
    strbuf_release(&plots);
    return STATUS_OK;
}

#define MESSAGES_COLOR "#c4c4c4"
#define LATEST_COLOR   "#d55e00"
#define OTHERS_COLOR   "#8ccbe8"

/* Of what a rank waits for: the messages, the rank that is waited for longest, the other ranks. */
static void waiting_row(const struct mode *m, double y, struct figure *f, struct strbuf *plots,
                        double *largest)
{
    const size_t latest = critical_path_latest(&m->path);
    const char *const colors[] = {MESSAGES_COLOR, LATEST_COLOR, OTHERS_COLOR};
    double values[] = {critical_path_messages_ms(&m->path), 0, 0}, from = 0;
    char names[3][32] = {"the messages", "-", "other ranks"}, cell[FORMAT_MAX];

    for (size_t i = 0; i < m->path.ranks; i++)
        values[i == latest ? 1 : 2] += critical_path_caused_ms(&m->path, i);
    if (latest != SIZE_MAX)
        (void)snprintf(names[1], sizeof(names[1]), "rank %zu", latest);
    figure_add_text(f, m->label);
    text_list_addf(&f->cells, "%s", m->label);
    for (size_t k = 0; k < 3; k++) {
        format_number(values[k], 3, cell);
        if (k == 1)
            text_list_addf(&f->cells, "%s", names[k]);
        text_list_addf(&f->cells, "%s", cell);
        if (!(values[k] > 0))
            continue;
        add_bar(plots, from, from + values[k], y, 2 * BAR_HALF, colors[k]);
        text_list_addf(&f->tool_tips, "%s: %s ms for %s", m->label, cell, names[k]);
        from += values[k];
    }
    *largest = fmax(*largest, from);
}

enum status figure_waiting(const struct comparison *c, struct figure *f, struct error *err)
{
    static const char *const headings[] = {"mode (ms per step)", "for the messages",
                                           "rank waited for longest", "for it", "for other ranks"};
    struct strbuf plots = STRBUF_INIT;
    size_t modes[ROWS_MAX], rows = 0;
    const size_t all = list_modes(c, modes, ROWS_MAX);
    double largest = LARGEST_START;

    (void)err;
    for (size_t i = 0; i < all; i++)
        if (c->modes[modes[i]].path.steps > 0 && c->modes[modes[i]].ranks > 1)
            modes[rows++] = modes[i];
    f->name = "waiting";
    figure_set_title(f, "Who waits for whom");
    strbuf_add(&f->description, "One stacked bar per mode in lockstep: for what a rank waits in a "
                                "step, in milliseconds.");
    strbuf_add(&f->caption,
               "Mean over the steady steps of all ranks and runs: for the last rank to "
               "contribute, and then for the messages.");
    add_head(f, headings, sizeof(headings) / sizeof(headings[0]));
    figure_add_legend(f, "messages", MESSAGES_COLOR);
    figure_add_legend(f, "the rank that is waited for longest", LATEST_COLOR);
    figure_add_legend(f, "other ranks", OTHERS_COLOR);
    begin_tool_tips(f);
    begin_rows(f, rows);
    for (size_t i = 0; i < rows; i++)
        waiting_row(&c->modes[modes[i]], (double)(rows - 1 - i), f, &plots, &largest);
    end_rows(f, largest, "ms per step", &plots);
    strbuf_release(&plots);
    return STATUS_OK;
}

struct byte_row {
    char label[192];
    double measured, formula;
    const char *color;
};

/* Bytes of a server that holds a part of the model, by the formula; NaN where what the ranks send
 * is compressed, since replies may be otherwise. */
static double server_formula_bytes(const struct mode *m)
{
    const double bytes = m->first->manifest.parameter_bytes;
    const double of_rank = metric_formula_bytes(m->first->configuration.sync, m->ranks, bytes);

    return m->spreads[METRIC_expected_tx_payload_bytes].median == of_rank
               ? m->ranks / (double)m->first->server_count * bytes
               : (double)NAN;
}

/* One row for the ranks of each mode, one more for each of its servers. */
static size_t list_byte_rows(const struct comparison *c, struct byte_row rows[], size_t capacity)
{
    size_t count = 0;

    for (size_t i = 0; i < c->mode_count && count + 2 <= capacity; i++) {
        const struct mode *m = &c->modes[i];
        double server = m->spreads[METRIC_server_tx_payload_bytes].median;

        if (!m->first)
            continue;
        rows[count] =
            (struct byte_row){.measured = m->spreads[METRIC_tx_payload_bytes].median,
                              .formula = m->spreads[METRIC_expected_tx_payload_bytes].median,
                              .color = figure_mode_color(c, i)};
        (void)snprintf(rows[count++].label, sizeof(rows[0].label), "%s: a rank", m->name);
        if (!isfinite(server))
            continue;
        rows[count] = (struct byte_row){.measured = server,
                                        .formula = server_formula_bytes(m),
                                        .color = figure_mode_color(c, i)};
        (void)snprintf(rows[count++].label, sizeof(rows[0].label), "%s: a server", m->name);
    }
    return count;
}

static void bytes_row(const struct byte_row *row, double y, double scale, struct figure *f,
                      struct strbuf *plots)
{
    char cell[FORMAT_MAX];

    figure_add_text(f, row->label);
    text_list_addf(&f->cells, "%s", row->label);
    if (row->measured > 0) {
        add_bar(plots, 0, row->measured / scale, y, BAR_HALF, row->color);
        text_list_addf(&f->tool_tips, "%s sends %.0f bytes per step", row->label, row->measured);
    }
    if (isfinite(row->formula)) {
        add_line(plots, row->formula / scale, y - 0.3, row->formula / scale, y + 0.3, 3);
        text_list_addf(&f->tool_tips, "%s by the formula: %.0f bytes", row->label, row->formula);
    }
    format_number(row->measured, 0, cell);
    text_list_addf(&f->cells, "%s", cell);
    format_number(row->formula, 0, cell);
    text_list_addf(&f->cells, "%s", cell);
    format_number(row->measured - row->formula, 1, cell);
    text_list_addf(&f->cells, "%s", cell);
}

enum status figure_bytes(const struct comparison *c, struct figure *f, struct error *err)
{
    static const char *const headings[] = {"who", "bytes counted", "by the formula", "residual"};
    struct strbuf plots = STRBUF_INIT;
    struct byte_row rows[ROWS_MAX];
    size_t count = list_byte_rows(c, rows, ROWS_MAX);
    double largest = LARGEST_START;
    const char *prefix;
    double scale;
    char axis[64];

    (void)err;
    f->name = "bytes";
    figure_set_title(f, "Payload bytes sent per step, against the formula");
    strbuf_add(&f->description,
               "One bar per rank or server with the payload bytes that it sends in "
               "a step; a mark shows what the algorithm's formula says.");
    strbuf_add(&f->caption,
               "Bar: counted; upright mark: formula (without compression ring 2(n-1)/n M, "
               "parameter server M per rank and nM/k per server, M the parameters' bytes).");
    add_head(f, headings, sizeof(headings) / sizeof(headings[0]));
    begin_tool_tips(f);
    begin_rows(f, count);
    for (size_t i = 0; i < count; i++)
        largest =
            fmax(largest, fmax(rows[i].measured, isfinite(rows[i].formula) ? rows[i].formula : 0));
    scale = format_scale(largest, 1, &prefix);
    for (size_t i = 0; i < count; i++)
        bytes_row(&rows[i], (double)(count - 1 - i), scale, f, &plots);
    (void)snprintf(axis, sizeof(axis), "%sB per step", prefix);
    end_rows(f, largest / scale, axis, &plots);
    strbuf_release(&plots);
    return STATUS_OK;
}

#define RANKS_COLOR   "#7088a6"
#define SERVERS_COLOR "#d55e00"

/* Microseconds of processor time per sample, over the good runs of a mode. */
struct cost {
    double ranks, servers;
};

static struct cost cost_of(const struct comparison *c, size_t mode)
{
    double ranks = 0, servers = 0, samples = 0;

    for (size_t i = 0; i < c->list->length; i++) {
        const struct run *run = &c->list->runs[i];

        if (c->mode_of[i] != mode || run->state != RUN_OK)
            continue;
        for (size_t k = 0; k < run->rank_count; k++) {
            ranks += run->ranks[k].end.cpu_seconds;
            for (size_t s = 0; s < run->ranks[k].length; s++)
                samples += (double)run->ranks[k].steps[s].samples;
        }
        for (size_t k = 0; k < run->server_count; k++)
            servers += run->servers[k].end.cpu_seconds;
    }
    return (struct cost){ranks / samples * 1e6, servers / samples * 1e6};
}

static void cost_row(const struct mode *m, const struct cost *cost, double least, double y,
                     struct figure *f, struct strbuf *plots)
{
    const double all = cost->ranks + cost->servers;
    char cell[FORMAT_MAX];

    figure_add_text(f, m->label);
    add_bar(plots, 0, cost->ranks, y, 2 * BAR_HALF, RANKS_COLOR);
    text_list_addf(&f->tool_tips, "%s: %.1f us in ranks", m->label, cost->ranks);
    if (cost->servers > 0) {
        add_bar(plots, cost->ranks, all, y, 2 * BAR_HALF, SERVERS_COLOR);
        text_list_addf(&f->tool_tips, "%s: %.1f us in servers", m->label, cost->servers);
    }
    text_list_addf(&f->cells, "%s", m->label);
    text_list_addf(&f->cells, "%.1f", cost->ranks);
    text_list_addf(&f->cells, "%.1f", cost->servers);
    text_list_addf(&f->cells, "%.1f", all);
    text_list_addf(&f->cells, "%.2f", all / least);
    format_number(m->spreads[METRIC_total_rss_bytes].median / 1048576, 0, cell);
    text_list_addf(&f->cells, "%s", cell);
}

enum status figure_cost(const struct comparison *c, struct figure *f, struct error *err)
{
    static const char *const headings[] = {
        "mode (us per sample)",   "in ranks",           "in servers", "together",
        "times the least of all", "memory of all (MiB)"};
    struct strbuf plots = STRBUF_INIT;
    struct cost costs[ROWS_MAX];
    size_t modes[ROWS_MAX], rows = 0;
    const size_t all = list_modes(c, modes, ROWS_MAX);
    double largest = LARGEST_START, least = (double)INFINITY;

    (void)err;
    for (size_t i = 0; i < all; i++) {
        costs[rows] = cost_of(c, modes[i]);
        if (!isfinite(costs[rows].ranks + costs[rows].servers))
            continue;
        modes[rows] = modes[i];
        largest = fmax(largest, costs[rows].ranks + costs[rows].servers);
        least = fmin(least, costs[rows].ranks + costs[rows].servers);
        rows++;
    }
    f->name = "cost";
    figure_set_title(f, "What a sample costs");
    strbuf_add(&f->description, "One stacked bar per mode: processor time of the ranks and of the "
                                "servers per sample, in microseconds.");
    strbuf_add(&f->caption,
               "Processor time of all processes from start to end, over all samples of "
               "all runs: copies, sums and spinning, also where a step hides them.");
    add_head(f, headings, sizeof(headings) / sizeof(headings[0]));
    figure_add_legend(f, "ranks", RANKS_COLOR);
    figure_add_legend(f, "servers", SERVERS_COLOR);
    begin_tool_tips(f);
    begin_rows(f, rows);
    for (size_t i = 0; i < rows; i++)
        cost_row(&c->modes[modes[i]], &costs[i], least, (double)(rows - 1 - i), f, &plots);
    end_rows(f, largest, "us of processor time per sample", &plots);
    strbuf_release(&plots);
    return STATUS_OK;
}
