/*
 * metric: the figures of one run, computed from its records alone.  One table names each figure
 * with its unit; every output (HTML, Markdown, JSON, CSV) loops over it.  Formulas are in
 * experiments/METRICS.md.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_METRIC_H
#define SPARRING_EXPERIMENTS_REPORT_METRIC_H

#include "experiments/report/run.h"

#include <stdbool.h>
#include <stddef.h>

/* name, title, unit, decimals of its text, which direction is better (+1 more, -1 less, 0 none) */
#define METRIC_LIST(X)                                                                             \
    X(samples_per_second, "throughput", "samples/s", 0, 1)                                         \
    X(samples_per_second_median, "throughput of the median step", "samples/s", 0, 1)               \
    X(step_ms_p50, "step time, median", "ms", 3, -1)                                               \
    X(step_ms_p95, "step time, 95th percentile", "ms", 3, -1)                                      \
    X(step_ms_p99, "step time, 99th percentile", "ms", 3, -1)                                      \
    X(step_ms_mean, "step time, mean", "ms", 3, -1)                                                \
    X(compute_ms, "compute", "ms", 3, -1)                                                          \
    X(exposed_comm_ms, "exposed communication", "ms", 3, -1)                                       \
    X(input_ms, "input", "ms", 3, -1)                                                              \
    X(optimizer_ms, "optimizer", "ms", 3, -1)                                                      \
    X(other_ms, "other", "ms", 3, -1)                                                              \
    X(tx_payload_bytes, "payload sent per rank and step", "B", 0, 0)                               \
    X(expected_tx_payload_bytes, "the same by the formula", "B", 0, 0)                             \
    X(tx_residual_bytes, "sent minus formula", "B", 0, 0)                                          \
    X(rx_payload_bytes, "payload received per rank and step", "B", 0, 0)                           \
    X(expected_rx_payload_bytes, "the same by the formula", "B", 0, 0)                             \
    X(rx_residual_bytes, "received minus formula", "B", 0, 0)                                      \
    X(tx_wire_bytes, "wire bytes sent per rank and step", "B", 0, 0)                               \
    X(link_bytes, "bytes on all links together per step", "B", 0, 0)                               \
    X(server_tx_payload_bytes, "payload sent per server and step", "B", 0, 0)                      \
    X(server_rx_payload_bytes, "payload received per server and step", "B", 0, 0)                  \
    X(server_wait_ms, "a partition waits for its last contribution", "ms", 3, -1)                  \
    X(server_sum_ms, "a server sums and replies, per step", "ms", 3, -1)                           \
    X(server_cpu_ms, "processor time of a server per step", "ms", 3, -1)                           \
    X(staleness_mean, "staleness of a push, mean", "updates", 2, 0)                                \
    X(late_share, "pushes that came late and were dropped", "share", 4, -1)                        \
    X(skipped_steps, "steps that late ranks skipped", "", 0, -1)                                   \
    X(rank_spread, "steps/s of the fastest rank over the slowest", "", 2, 0)                       \
    X(seconds_to_target, "training time to the target accuracy", "s", 3, -1)                       \
    X(test_accuracy, "test accuracy", "share", 4, 1)                                               \
    X(test_loss, "test loss", "nats", 4, -1)                                                       \
    X(final_loss, "training loss at the end", "nats", 4, -1)                                       \
    X(peak_rss_bytes, "peak memory of the largest rank", "B", 0, -1)                               \
    X(total_rss_bytes, "peak memory of ranks and servers together", "B", 0, -1)                    \
    X(hosts, "hosts", "", 0, -1)                                                                   \
    X(cpu_seconds, "processor time of ranks and servers", "s", 2, -1)                              \
    X(cpu_us_per_sample, "processor time per sample, ranks and servers", "us", 2, -1)              \
    X(processor_wait, "time in which something on the host waited for a core", "share", 3, 0)      \
    X(wall_seconds, "wall time", "s", 2, -1)                                                       \
    X(steady_seconds, "steady time", "s", 2, 0)                                                    \
    X(drift, "throughput of the second half over that of the first", "", 3, 0)                     \
    X(steps, "steps", "", 0, 0)

/* NaN: not in the records. */
struct run_metrics {
#define X(name, title, unit, decimals, better) double name;
    METRIC_LIST(X)
#undef X
};

enum metric_index {
#define X(name, title, unit, decimals, better) METRIC_##name,
    METRIC_LIST(X)
#undef X
        METRIC_COUNT
};

struct metric_spec {
    const char *name, *title, *unit;
    int decimals;
    int better;
};
extern const struct metric_spec metric_specs[METRIC_COUNT];

/* Steps [first, end) of a rank: without the larger of 5 and a tenth at its start, and without the
 * last, in which the server side waits for the replies of two; all of a run that is not longer.
 * The figures of ranks that do not wait for each other are over others (METRICS.md). */
struct metric_steady {
    size_t first, end;
};
struct metric_steady metric_steady(size_t steps);

double metric_of(const struct run_metrics *metrics, enum metric_index index);

/* The metric of that name, or METRIC_COUNT. */
enum metric_index metric_find(const char *name);

/* Payload bytes that each rank sends and receives per step by the architecture's formula, from
 * n ranks and the parameters' bytes M: all-reduce over a ring 2 (n-1)/n M, parameter server M each
 * way, local 0; NaN for any other `sync`. */
double metric_formula_bytes(const char *sync, double ranks, double parameter_bytes);

/* Steady step times in ms of all ranks together, unsorted; the caller frees *ret. */
enum status metric_step_times(const struct run *run, double **ret, size_t *ret_count,
                              struct error *err);

/* Everything of struct run_metrics for a run that is RUN_OK.  `target` is a test accuracy (0.95);
 * NaN: there is none. */
enum status metric_compute(const struct run *run, double target, struct run_metrics *ret,
                           struct error *err);

#endif
