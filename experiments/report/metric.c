/*
 * metric: computes the figures of one run from its records.  Times are pooled over the steady steps
 * of all ranks of a run, never over runs.
 */
#include "experiments/report/metric.h"

#include "common/base/memory.h"
#include "experiments/report/design.h"
#include "experiments/report/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UP_STEPS 5
#define WARM_UP_SHARE 10 /* one step in ten */
#define LAST_SHARE    20 /* one step in twenty makes the final loss */
#define NS_PER_MS     1e6
#define NS_PER_SECOND 1e9

const struct metric_spec metric_specs[METRIC_COUNT] = {
#define X(name, title, unit, decimals, better) {#name, title, unit, decimals, better},
    METRIC_LIST(X)
#undef X
};

double metric_of(const struct run_metrics *metrics, enum metric_index index)
{
    switch (index) {
#define X(name, title, unit, decimals, better)                                                     \
    case METRIC_##name:                                                                            \
        return metrics->name;
        METRIC_LIST(X)
#undef X
    case METRIC_COUNT:
        break;
    }
    return (double)NAN;
}

enum metric_index metric_find(const char *name)
{
    int i = 0;

    while (i < METRIC_COUNT && strcmp(metric_specs[i].name, name) != 0)
        i++;
    return (enum metric_index)i;
}

struct metric_steady metric_steady(size_t steps)
{
    const size_t share = steps / WARM_UP_SHARE;
    const size_t skipped = share > WARM_UP_STEPS ? share : WARM_UP_STEPS;

    return skipped + 1 < steps ? (struct metric_steady){skipped, steps - 1}
                               : (struct metric_steady){0, steps};
}

static double end_wall(const struct step_record *step)
{
    return step->begin_wall + (double)step->step_ns / NS_PER_SECOND;
}

/* From when one rank is steady and all have begun until the first has no more steady steps; empty
 * if the records have no times. */
static struct interval common_time(const struct run *run)
{
    double begun = 0, steady_begin = (double)INFINITY, end = (double)INFINITY;

    for (size_t i = 0; i < run->rank_count && end > 0; i++) {
        const struct records *rank = &run->ranks[i];
        const struct metric_steady steady = metric_steady(rank->length);

        if (rank->length == 0 || rank->steps[0].begin_wall <= 0)
            end = 0;
        else {
            begun = fmax(begun, rank->steps[0].begin_wall);
            steady_begin = fmin(steady_begin, rank->steps[steady.first].begin_wall);
            end = fmin(end, end_wall(&rank->steps[steady.end - 1]));
        }
    }
    return (struct interval){fmax(begun, steady_begin), end};
}

/* With servers, where ranks do not wait for each other, those of the common time: alone a rank is
 * faster. */
static struct metric_steady steady_of(const struct run *run, const struct records *rank)
{
    const struct metric_steady own = metric_steady(rank->length);
    struct metric_steady common = {0, 0};
    struct interval time;

    if (strcmp(run->configuration.sync, "ps") != 0 || design_is_lockstep(run_option, run))
        return own;
    time = common_time(run);
    if (!(time.low < time.high))
        return own;
    for (size_t s = 0; s < own.end; s++) {
        const double middle = (rank->steps[s].begin_wall + end_wall(&rank->steps[s])) / 2;

        common.first = middle < time.low && s + 1 < own.end ? s + 1 : common.first;
        common.end = middle < time.high ? s + 1 : common.end;
    }
    if (common.end <= common.first) /* its step is longer than the common time */
        common.end = common.first + 1;
    return common;
}

double metric_formula_bytes(const char *sync, double ranks, double parameter_bytes)
{
    if (strcmp(sync, "allreduce") == 0)
        return 2 * (ranks - 1) / ranks * parameter_bytes;
    if (strcmp(sync, "ps") == 0)
        return parameter_bytes;
    return strcmp(sync, "local") == 0 ? 0 : (double)NAN;
}

/* Steps that every rank has recorded. */
static size_t common_steps(const struct run *run)
{
    size_t steps = run->rank_count > 0 ? run->ranks[0].length : 0;

    for (size_t i = 1; i < run->rank_count; i++)
        if (run->ranks[i].length < steps)
            steps = run->ranks[i].length;
    return steps;
}

enum status metric_step_times(const struct run *run, double **ret, size_t *ret_count,
                              struct error *err)
{
    size_t total = 0;
    size_t filled = 0;
    double *times = NULL;
    enum status status;

    for (size_t i = 0; i < run->rank_count; i++)
        total += run->ranks[i].length;
    status = mem_calloc(total, sizeof(double), "step times", &times, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];

        const struct metric_steady steady = steady_of(run, rank);

        for (size_t s = steady.first; s < steady.end; s++)
            times[filled++] = (double)rank->steps[s].step_ns / NS_PER_MS;
    }
    *ret = times;
    *ret_count = filled;
    return STATUS_OK;
}

/* Sums over the ranks: samples of a rank over its time, and the median rate of its steps. */
static enum status compute_throughput(const struct run *run, struct run_metrics *m,
                                      struct error *err)
{
    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];
        const struct metric_steady steady = steady_of(run, rank);
        size_t count = 0;
        double samples = 0, seconds = 0;
        double *rates = NULL;
        enum status status = mem_calloc(rank->length, sizeof(double), "rates", &rates, err);

        if (status != STATUS_OK)
            return status;
        for (size_t s = steady.first; s < steady.end; s++) {
            double step_seconds = (double)rank->steps[s].step_ns / NS_PER_SECOND;

            samples += (double)rank->steps[s].samples;
            seconds += step_seconds;
            if (step_seconds > 0)
                rates[count++] = (double)rank->steps[s].samples / step_seconds;
        }
        statistics_sort(rates, count);
        m->samples_per_second += samples / seconds;
        m->samples_per_second_median += statistics_quantile(rates, count, 0.5);
        free(rates);
    }
    return STATUS_OK;
}

/* Sum over ranks of samples over time in one half of the steady steps. */
static double half_throughput(const struct run *run, unsigned half)
{
    double sum = 0;

    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];
        const struct metric_steady steady = steady_of(run, rank);
        const size_t middle = steady.first + (steady.end - steady.first) / 2;
        double samples = 0, seconds = 0;

        for (size_t s = half ? middle : steady.first; s < (half ? steady.end : middle); s++) {
            samples += (double)rank->steps[s].samples;
            seconds += (double)rank->steps[s].step_ns / NS_PER_SECOND;
        }
        sum += samples / seconds;
    }
    return sum;
}

static enum status compute_percentiles(const struct run *run, struct run_metrics *m,
                                       struct error *err)
{
    double *times = NULL;
    size_t count = 0;
    enum status status = metric_step_times(run, &times, &count, err);

    if (status != STATUS_OK)
        return status;
    statistics_sort(times, count);
    m->step_ms_p50 = statistics_quantile(times, count, 0.50);
    m->step_ms_p95 = statistics_quantile(times, count, 0.95);
    m->step_ms_p99 = statistics_quantile(times, count, 0.99);
    m->step_ms_mean = statistics_mean(times, count);
    free(times);
    return STATUS_OK;
}

/* Means over the steady steps of all ranks: the parts of a step, and its bytes. */
static void compute_step_parts(const struct run *run, struct run_metrics *m)
{
    double compute = 0, comm = 0, input = 0, optimizer = 0, tx = 0, rx = 0;
    double count = 0;

    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];
        const struct metric_steady steady = steady_of(run, rank);

        for (size_t s = steady.first; s < steady.end; s++, count++) {
            const struct step_record *step = &rank->steps[s];

            compute += (double)step->compute_ns;
            comm += (double)step->exposed_comm_ns;
            input += (double)step->input_ns;
            optimizer += (double)step->optimizer_ns;
            tx += (double)step->tx_payload_bytes;
            rx += (double)step->rx_payload_bytes;
        }
    }
    m->steady_seconds = m->step_ms_mean * count / (double)run->rank_count / 1e3;
    m->compute_ms = compute / count / NS_PER_MS;
    m->exposed_comm_ms = comm / count / NS_PER_MS;
    m->input_ms = input / count / NS_PER_MS;
    m->optimizer_ms = optimizer / count / NS_PER_MS;
    m->other_ms =
        m->step_ms_mean - m->compute_ms - m->exposed_comm_ms - m->input_ms - m->optimizer_ms;
    m->tx_payload_bytes = tx / count;
    m->rx_payload_bytes = rx / count;
}

/* Figures from the end records of ranks and servers. */
static void compute_end_figures(const struct run *run, struct run_metrics *m)
{
    double ranks = (double)run->rank_count;
    double expected_tx = 0, expected_rx = 0, wire = 0, cpu = 0, peak = 0, total = 0, samples = 0;
    double wait = 0;

    for (size_t i = 0; i < run->rank_count; i++) {
        const struct end_record *end = &run->ranks[i].end;

        expected_tx += end->expected_tx_payload_bytes;
        expected_rx += end->expected_rx_payload_bytes;
        wire += end->tx_wire_bytes / (double)run->ranks[i].length;
        cpu += end->cpu_seconds;
        wait += end->processor_wait;
        if (!(end->peak_rss_bytes <= peak) && !isnan(peak)) /* NaN when one of them is NaN */
            peak = end->peak_rss_bytes;
        total += end->peak_rss_bytes;
        for (size_t s = 0; s < run->ranks[i].length; s++)
            samples += (double)run->ranks[i].steps[s].samples;
    }
    for (size_t i = 0; i < run->server_count; i++) {
        cpu += run->servers[i].end.cpu_seconds;
        total += run->servers[i].end.peak_rss_bytes;
    }
    m->expected_tx_payload_bytes = expected_tx / ranks;
    m->expected_rx_payload_bytes = expected_rx / ranks;
    m->tx_residual_bytes = m->tx_payload_bytes - m->expected_tx_payload_bytes;
    m->rx_residual_bytes = m->rx_payload_bytes - m->expected_rx_payload_bytes;
    m->tx_wire_bytes = wire / ranks;
    m->link_bytes = run->network.link_bytes / (double)run->ranks[0].length;
    m->cpu_seconds = cpu;
    m->cpu_us_per_sample = cpu / samples * 1e6;
    m->processor_wait = wait / ranks;
    m->peak_rss_bytes = peak;
    m->total_rss_bytes = total;
}

/* The number of different host names in the start records; NaN: a process wrote none. */
static double count_hosts(const struct run *run)
{
    const size_t total = run->rank_count + run->server_count;
    double count = 0;

    for (size_t i = 0; i < total; i++) {
        const char *name =
            i < run->rank_count ? run->ranks[i].host : run->servers[i - run->rank_count].host;
        bool is_new = true;

        for (size_t k = 0; k < i && is_new; k++)
            is_new =
                strcmp(name, k < run->rank_count ? run->ranks[k].host
                                                 : run->servers[k - run->rank_count].host) != 0;
        count += name[0] != '\0' ? is_new : (double)NAN;
    }
    return count;
}

static void compute_server_figures(const struct run *run, struct run_metrics *m)
{
    double tx = 0, rx = 0, cpu = 0, sum = 0, wait = 0, recorded = 0, partitions;
    double rounds = (double)run->ranks[0].length * (double)run->server_count;

    for (size_t i = 0; i < run->server_count; i++) {
        tx += run->servers[i].end.tx_payload_bytes;
        rx += run->servers[i].end.rx_payload_bytes;
        cpu += run->servers[i].end.cpu_seconds;
        recorded += (double)run->servers[i].round_count;
        partitions =
            run->servers[i].partitions > 0 ? (double)run->servers[i].partitions : (double)NAN;
        for (size_t k = 0; k < run->servers[i].round_count; k++) {
            sum += (double)run->servers[i].rounds[k].sum_ns;
            wait += (double)run->servers[i].rounds[k].wait_ns / partitions;
        }
    }
    m->server_wait_ms = wait / recorded / NS_PER_MS; /* no server: 0 / 0, not known */
    m->server_sum_ms = sum / recorded / NS_PER_MS;
    m->server_cpu_ms = cpu / rounds * 1e3;
    m->server_tx_payload_bytes = tx / rounds;
    m->server_rx_payload_bytes = rx / rounds;
}

/* Staleness and late pushes from the servers, skipped steps, and the spread of the ranks' speeds.
 */
static void compute_rank_spread(const struct run *run, struct run_metrics *m)
{
    double used = 0, sum = 0, late = 0, fastest = 0, slowest = 0;

    for (size_t i = 0; i < run->server_count; i++) {
        used += run->servers[i].end.used_pushes;
        sum += run->servers[i].end.staleness_sum;
        late += run->servers[i].end.late_pushes;
    }
    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];
        const struct metric_steady steady = steady_of(run, rank);
        double step_ns = 0, rate;

        m->skipped_steps += rank->end.skipped_steps;
        for (size_t s = steady.first; s < steady.end; s++)
            step_ns += (double)rank->steps[s].step_ns;
        rate = (double)(steady.end - steady.first) / step_ns;
        fastest = i == 0 || rate > fastest ? rate : fastest;
        slowest = i == 0 || rate < slowest ? rate : slowest;
    }
    m->staleness_mean = sum / used; /* no server: 0 / 0, not known */
    m->late_share = late / (late + used);
    m->rank_spread = fastest / slowest;
}

/* Mean over ranks and the last twentieth of the steps, at least one; without those in which a rank
 * had no samples. */
static double final_loss(const struct run *run)
{
    double sum = 0;
    double count = 0;

    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];
        size_t last = rank->length / LAST_SHARE > 0 ? rank->length / LAST_SHARE : 1;

        for (size_t s = rank->length - last; s < rank->length; s++) {
            if (rank->steps[s].samples == 0)
                continue;
            sum += rank->steps[s].loss;
            count++;
        }
    }
    return sum / count;
}

/* Time of the evaluating rank's steps until it first measured the target accuracy; NaN: never. */
static double seconds_to_target(const struct run *run, double target)
{
    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];

        for (size_t k = 0; k < rank->evaluation_count; k++) {
            double ns = 0;

            if (!(rank->evaluations[k].test_accuracy >= target))
                continue;
            for (size_t s = 0; s < rank->evaluations[k].steps; s++)
                ns += (double)rank->steps[s].step_ns;
            return ns > 0 ? ns / NS_PER_SECOND : (double)NAN;
        }
    }
    return (double)NAN;
}

enum status metric_compute(const struct run *run, double target, struct run_metrics *ret,
                           struct error *err)
{
    struct run_metrics m = {0};
    enum status status;

    status = compute_throughput(run, &m, err);
    if (status == STATUS_OK)
        status = compute_percentiles(run, &m, err);
    if (status != STATUS_OK)
        return status;
    compute_step_parts(run, &m);
    compute_end_figures(run, &m);
    compute_server_figures(run, &m);
    compute_rank_spread(run, &m);
    m.final_loss = final_loss(run);
    m.seconds_to_target = seconds_to_target(run, target);
    m.test_accuracy = run->summary.test_accuracy;
    m.test_loss = run->summary.test_loss;
    m.hosts = count_hosts(run);
    m.wall_seconds = run->summary.wall_seconds;
    m.steps = (double)common_steps(run);
    m.drift = half_throughput(run, 1) / half_throughput(run, 0);
    *ret = m;
    return STATUS_OK;
}
