/*
 * table: the rows of the main table, their order, and the text of each cell.
 */
#include "experiments/report/table.h"

#include "experiments/report/format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum row_kind { ROW_SECTION, ROW_METRIC, ROW_MEAN, ROW_QUARTILES, ROW_SPECIAL };

struct row_spec {
    enum row_kind kind;
    const char *label; /* NULL: the metric's title and unit */
    enum metric_index metric;
    void (*special)(const struct comparison *c, const struct mode *m, char text[2 * FORMAT_MAX]);
};

#define CELL_MAX (2 * (size_t)FORMAT_MAX)

static void relative_cell(const struct comparison *c, const struct mode *m,
                          char text[2 * FORMAT_MAX])
{
    format_ratio(comparison_relative(c, m), text);
}

static void format_cost(double value, char text[2 * FORMAT_MAX])
{
    if (isfinite(value))
        (void)snprintf(text, CELL_MAX, "%.4g", value);
    else
        (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
}

static void cost_of_samples_cell(const struct comparison *c, const struct mode *m,
                                 char text[2 * FORMAT_MAX])
{
    format_cost(comparison_cost_of_samples(c, m), text);
}

static void cost_to_target_cell(const struct comparison *c, const struct mode *m,
                                char text[2 * FORMAT_MAX])
{
    format_cost(comparison_cost_to_target(c, m), text);
}

static void efficiency_cell(const struct comparison *c, const struct mode *m,
                            char text[2 * FORMAT_MAX])
{
    double share = comparison_efficiency(c, m);

    if (isfinite(share))
        (void)snprintf(text, CELL_MAX, "%.1f %%", 100 * share);
    else
        (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
}

static void processes_cell(const struct comparison *c, const struct mode *m,
                           char text[2 * FORMAT_MAX])
{
    (void)c;
    if (!m->first)
        (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
    else if (m->servers > 0)
        (void)snprintf(text, CELL_MAX, "%.0f + %.0f", m->ranks, m->servers);
    else
        (void)snprintf(text, CELL_MAX, "%.0f", m->ranks);
}

static void good_runs_cell(const struct comparison *c, const struct mode *m,
                           char text[2 * FORMAT_MAX])
{
    (void)c;
    (void)snprintf(text, CELL_MAX, "%zu", m->spreads[METRIC_samples_per_second].n);
}

static void failed_runs_cell(const struct comparison *c, const struct mode *m,
                             char text[2 * FORMAT_MAX])
{
    (void)c;
    (void)snprintf(text, CELL_MAX, "%zu", m->failed);
}

#define CONFIGURATION_CELL(name)                                                                   \
    static void name##_cell(const struct comparison *c, const struct mode *m,                      \
                            char text[2 * FORMAT_MAX])                                             \
    {                                                                                              \
        (void)c;                                                                                   \
        (void)snprintf(text, CELL_MAX, "%.60s",                                                    \
                       m->first && m->first->configuration.name[0] ? m->first->configuration.name  \
                                                                   : FORMAT_UNKNOWN);              \
    }
CONFIGURATION_CELL(sync)
CONFIGURATION_CELL(reduce)

static void backend_cell(const struct comparison *c, const struct mode *m,
                         char text[2 * FORMAT_MAX])
{
    (void)c;
    (void)snprintf(text, CELL_MAX, "%.60s%s",
                   m->first && m->first->configuration.backend[0] ? m->first->configuration.backend
                                                                  : FORMAT_UNKNOWN,
                   comparison_over_grpc(m) ? " over grpc" : "");
}

static void optimizer_cell(const struct comparison *c, const struct mode *m,
                           char text[2 * FORMAT_MAX])
{
    (void)c;
    if (!m->first)
        (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
    else
        (void)snprintf(text, CELL_MAX, "%s",
                       strcmp(m->first->configuration.sync, "ps") == 0 &&
                               strcmp(m->first->configuration.ps_update, "worker") != 0
                           ? "server"
                           : "worker");
}

/* "ssp, at most 4 behind". */
static void consistency_cell(const struct comparison *c, const struct mode *m,
                             char text[2 * FORMAT_MAX])
{
    const struct run_configuration *of = m->first ? &m->first->configuration : NULL;

    (void)c;
    if (!of || strcmp(of->sync, "ps") != 0 || of->consistency[0] == '\0')
        (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
    else if (strcmp(of->consistency, "ssp") == 0)
        (void)snprintf(text, CELL_MAX, "ssp, at most %.20s behind", of->staleness);
    else if (of->backup_workers[0] != '\0' && strcmp(of->backup_workers, "0") != 0)
        (void)snprintf(text, CELL_MAX, "bsp, %.20s backup", of->backup_workers);
    else
        (void)snprintf(text, CELL_MAX, "%.30s", of->consistency);
}

/* "0", "3-4" or ">1024". */
static void bucket_name(const struct end_record *end, size_t i, char name[64])
{
    double low = i > 0 ? end->bounds[i - 1] + 1 : 0;

    if (i + 1 == end->buckets)
        (void)snprintf(name, 64, ">%.0f", end->bounds[i - 1]);
    else if (low < end->bounds[i])
        (void)snprintf(name, 64, "%.0f-%.0f", low, end->bounds[i]);
    else
        (void)snprintf(name, 64, "%.0f", end->bounds[i]);
}

/* Shares of pushes by staleness, of the mode's first good run over its servers: "0: 10 %, 1: 85 %,
 * 2: 5 %".  Buckets below half a percent are left out; report.json has the means of all runs. */
static void histogram_cell(const struct comparison *c, const struct mode *m,
                           char text[2 * FORMAT_MAX])
{
    const struct run *run = m->first;
    double pushes[STALENESS_BUCKETS_MAX] = {0};
    double total = 0;
    size_t used = 0;

    (void)c;
    for (size_t k = 0; run && k < run->server_count; k++)
        for (size_t i = 0; i < run->servers[k].end.buckets; i++) {
            pushes[i] += run->servers[k].end.pushes[i];
            total += run->servers[k].end.pushes[i];
        }
    (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
    for (size_t i = 0; run && total > 0 && i < run->servers[0].end.buckets && used < CELL_MAX;
         i++) {
        char name[64];

        if (pushes[i] / total < 0.005)
            continue;
        bucket_name(&run->servers[0].end, i, name);
        used += (size_t)snprintf(text + used, CELL_MAX - used, "%s%.12s: %.0f %%", used ? ", " : "",
                                 name, 100 * pushes[i] / total);
    }
}

static void path_cell(const struct critical_path *p, enum path_part part, char text[2 * FORMAT_MAX])
{
    const double share = critical_path_share(p, part);
    char process[32];

    (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
    if (!(share > 0))
        return;
    critical_path_process(p, part, process, sizeof(process));
    if (process[0] == '\0' || share < 0.01)
        (void)snprintf(text, CELL_MAX, "%.1f %%", 100 * share);
    else
        (void)snprintf(text, CELL_MAX, "%.1f %% (%s)", 100 * share, process);
}

#define PATH_CELL(name, part)                                                                      \
    static void path_##name##_cell(const struct comparison *c, const struct mode *m,               \
                                   char text[2 * FORMAT_MAX])                                      \
    {                                                                                              \
        (void)c;                                                                                   \
        path_cell(&m->path, part, text);                                                           \
    }
PATH_CELL(input, PATH_INPUT)
PATH_CELL(forward, PATH_FORWARD)
PATH_CELL(backward, PATH_BACKWARD)
PATH_CELL(compute, PATH_COMPUTE)
PATH_CELL(sum, PATH_SUM)
PATH_CELL(communication, PATH_COMMUNICATION)
PATH_CELL(optimizer, PATH_OPTIMIZER)
PATH_CELL(other, PATH_OTHER)

static void waiting_cell(const struct comparison *c, const struct mode *m,
                         char text[2 * FORMAT_MAX])
{
    const size_t latest = critical_path_latest(&m->path);
    double sum_ms = 0;

    (void)c;
    for (size_t i = 0; i < m->path.ranks; i++)
        sum_ms += critical_path_caused_ms(&m->path, i);
    if (latest == SIZE_MAX)
        (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
    else
        (void)snprintf(text, CELL_MAX, "%.3f ms (%.0f %% for rank %zu)", sum_ms,
                       100 * critical_path_caused_ms(&m->path, latest) / sum_ms, latest);
}

static void messages_cell(const struct comparison *c, const struct mode *m,
                          char text[2 * FORMAT_MAX])
{
    const double messages_ms = critical_path_messages_ms(&m->path);

    (void)c;
    (void)snprintf(text, CELL_MAX, "%s", FORMAT_UNKNOWN);
    if (isfinite(messages_ms))
        (void)snprintf(text, CELL_MAX, "%.3f ms", messages_ms);
}

static const struct row_spec row_specs[] = {
    {ROW_SECTION, "Design", METRIC_COUNT, NULL},
    {ROW_SPECIAL, "synchronisation", METRIC_COUNT, sync_cell},
    {ROW_SPECIAL, "transport", METRIC_COUNT, backend_cell},
    {ROW_SPECIAL, "order of sums", METRIC_COUNT, reduce_cell},
    {ROW_SPECIAL, "consistency", METRIC_COUNT, consistency_cell},
    {ROW_SPECIAL, "optimizer runs on", METRIC_COUNT, optimizer_cell},
    {ROW_SPECIAL, "processes (ranks + servers)", METRIC_COUNT, processes_cell},
    {ROW_SPECIAL, "good runs (n)", METRIC_COUNT, good_runs_cell},
    {ROW_SPECIAL, "failed runs", METRIC_COUNT, failed_runs_cell},
    {ROW_SECTION, "Speed", METRIC_COUNT, NULL},
    {ROW_METRIC, "samples/s, median", METRIC_samples_per_second, NULL},
    {ROW_QUARTILES, "middle half of the runs (IQR)", METRIC_samples_per_second, NULL},
    {ROW_METRIC, "samples/s of the median step", METRIC_samples_per_second_median, NULL},
    {ROW_SPECIAL, "relative to no communication", METRIC_COUNT, relative_cell},
    {ROW_SPECIAL, "scaling efficiency (weak)", METRIC_COUNT, efficiency_cell},
    {ROW_METRIC, NULL, METRIC_step_ms_p50, NULL},
    {ROW_METRIC, NULL, METRIC_step_ms_p95, NULL},
    {ROW_METRIC, NULL, METRIC_step_ms_p99, NULL},
    {ROW_SECTION, "Where a step's time goes (means)", METRIC_COUNT, NULL},
    {ROW_MEAN, NULL, METRIC_compute_ms, NULL},
    {ROW_MEAN, NULL, METRIC_exposed_comm_ms, NULL},
    {ROW_MEAN, NULL, METRIC_input_ms, NULL},
    {ROW_MEAN, NULL, METRIC_optimizer_ms, NULL},
    {ROW_MEAN, NULL, METRIC_other_ms, NULL},
    {ROW_SECTION, "Critical path of a step: the last rank", METRIC_COUNT, NULL},
    {ROW_SPECIAL, "input", METRIC_COUNT, path_input_cell},
    {ROW_SPECIAL, "forward", METRIC_COUNT, path_forward_cell},
    {ROW_SPECIAL, "backward", METRIC_COUNT, path_backward_cell},
    {ROW_SPECIAL, "forward and backward", METRIC_COUNT, path_compute_cell},
    {ROW_SPECIAL, "sum on a server", METRIC_COUNT, path_sum_cell},
    {ROW_SPECIAL, "communication", METRIC_COUNT, path_communication_cell},
    {ROW_SPECIAL, "optimizer", METRIC_COUNT, path_optimizer_cell},
    {ROW_SPECIAL, "other", METRIC_COUNT, path_other_cell},
    {ROW_SECTION, "Who waits for whom (means)", METRIC_COUNT, NULL},
    {ROW_SPECIAL, "a rank for the last one, per step", METRIC_COUNT, waiting_cell},
    {ROW_SPECIAL, "then all for the messages", METRIC_COUNT, messages_cell},
    {ROW_MEAN, NULL, METRIC_server_wait_ms, NULL},
    {ROW_MEAN, NULL, METRIC_server_sum_ms, NULL},
    {ROW_MEAN, NULL, METRIC_server_cpu_ms, NULL},
    {ROW_SECTION, "Bytes per step", METRIC_COUNT, NULL},
    {ROW_METRIC, "a rank sends: payload", METRIC_tx_payload_bytes, NULL},
    {ROW_METRIC, "by the formula", METRIC_expected_tx_payload_bytes, NULL},
    {ROW_METRIC, "residual", METRIC_tx_residual_bytes, NULL},
    {ROW_METRIC, "a rank receives: payload", METRIC_rx_payload_bytes, NULL},
    {ROW_METRIC, "by the formula", METRIC_expected_rx_payload_bytes, NULL},
    {ROW_METRIC, "residual", METRIC_rx_residual_bytes, NULL},
    {ROW_METRIC, "a rank sends: on the wire", METRIC_tx_wire_bytes, NULL},
    {ROW_METRIC, "all links: with every header", METRIC_link_bytes, NULL},
    {ROW_METRIC, "a server sends: payload", METRIC_server_tx_payload_bytes, NULL},
    {ROW_METRIC, "a server receives: payload", METRIC_server_rx_payload_bytes, NULL},
    {ROW_SECTION, "How far ranks drift apart", METRIC_COUNT, NULL},
    {ROW_METRIC, "steps/s, fastest rank over slowest", METRIC_rank_spread, NULL},
    {ROW_METRIC, "staleness of a push, mean", METRIC_staleness_mean, NULL},
    {ROW_SPECIAL, "pushes by staleness", METRIC_COUNT, histogram_cell},
    {ROW_METRIC, "late pushes, dropped (share)", METRIC_late_share, NULL},
    {ROW_METRIC, "steps that late ranks skipped", METRIC_skipped_steps, NULL},
    {ROW_SECTION, "Learning", METRIC_COUNT, NULL},
    {ROW_METRIC, "time to the target accuracy (s)", METRIC_seconds_to_target, NULL},
    {ROW_METRIC, "test accuracy", METRIC_test_accuracy, NULL},
    {ROW_METRIC, "test loss", METRIC_test_loss, NULL},
    {ROW_METRIC, "training loss at the end", METRIC_final_loss, NULL},
    {ROW_SECTION, "Resources", METRIC_COUNT, NULL},
    {ROW_METRIC, "peak memory of the largest rank", METRIC_peak_rss_bytes, NULL},
    {ROW_METRIC, "of ranks and servers together", METRIC_total_rss_bytes, NULL},
    {ROW_METRIC, "hosts", METRIC_hosts, NULL},
    {ROW_SPECIAL, "cost of a million samples (--price)", METRIC_COUNT, cost_of_samples_cell},
    {ROW_SPECIAL, "cost to the target accuracy", METRIC_COUNT, cost_to_target_cell},
    {ROW_METRIC, NULL, METRIC_cpu_seconds, NULL},
    {ROW_METRIC, NULL, METRIC_cpu_us_per_sample, NULL},
    {ROW_METRIC, NULL, METRIC_wall_seconds, NULL},
    {ROW_METRIC, NULL, METRIC_steady_seconds, NULL},
};

_Static_assert(sizeof(row_specs) / sizeof(row_specs[0]) <= TABLE_ROWS_MAX, "rows");

static void write_cell(const struct comparison *c, const struct row_spec *spec,
                       const struct mode *m, char text[2 * FORMAT_MAX])
{
    text[0] = '\0';
    switch (spec->kind) {
    case ROW_SECTION:
        break;
    case ROW_METRIC:
        format_metric(spec->metric, m->spreads[spec->metric].median, text);
        break;
    case ROW_MEAN:
        format_metric(spec->metric,
                      statistics_mean(m->values[spec->metric], m->spreads[spec->metric].n), text);
        break;
    case ROW_QUARTILES:
        format_quartiles(spec->metric, &m->spreads[spec->metric], text);
        break;
    case ROW_SPECIAL:
        spec->special(c, m, text);
        break;
    }
}

static bool is_known(const struct comparison *c, const struct row_spec *spec)
{
    char text[2 * FORMAT_MAX];

    if (spec->kind == ROW_SECTION)
        return true;
    for (size_t m = 0; m < c->mode_count; m++) {
        write_cell(c, spec, &c->modes[m], text);
        if (strcmp(text, FORMAT_UNKNOWN) != 0)
            return true;
    }
    return false;
}

enum status table_make(const struct comparison *c, struct table *ret, struct error *err)
{
    *ret = (struct table){.columns = c->mode_count};
    for (size_t i = 0; i < sizeof(row_specs) / sizeof(row_specs[0]); i++) {
        const struct row_spec *spec = &row_specs[i];
        struct table_row *row = &ret->rows[ret->row_count];

        if (!is_known(c, spec))
            continue;
        row->is_section = spec->kind == ROW_SECTION;
        if (spec->label)
            (void)snprintf(row->label, sizeof(row->label), "%s", spec->label);
        else
            (void)snprintf(row->label, sizeof(row->label), "%s (%s)",
                           metric_specs[spec->metric].title, metric_specs[spec->metric].unit);
        for (size_t m = 0; m < c->mode_count; m++) {
            char text[2 * FORMAT_MAX];

            write_cell(c, spec, &c->modes[m], text);
            text_list_addf(&ret->cells, "%s", text);
        }
        ret->row_count++;
    }
    if (!ret->cells.failed)
        return STATUS_OK;
    table_release(ret);
    return error_set(err, STATUS_NO_MEMORY, "no memory for the table");
}

void table_release(struct table *t)
{
    text_list_release(&t->cells);
}

const char *ratio_state_name(enum ratio_state state)
{
    static const char *const names[] = {"faster",         "equivalent", "undecided", "too_few",
                                        "not_comparable", "no_target",  "not_asked"};

    return names[state];
}

const char *ratio_words(const struct ratio *ratio)
{
    static const char *const words[][2] = {
        {"they differ", "they differ in time to target"},
        {"equivalent", "equivalent in time to target"},
        {"undecided", "undecided in time to target"},
        {"too few blocks", "too few blocks at the target"},
        {"not comparable", "not comparable"},
        {"no target accuracy", ""},
        {"-", "- (speed to target)"},
    };

    return words[ratio->state][ratio->is_to_target];
}
