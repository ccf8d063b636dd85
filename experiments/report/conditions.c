/*
 * conditions: the conditions of the runs, warnings about causes that weaken a figure, and notes on
 * the limits of the figures.
 */
#include "experiments/report/comparison.h"

#include "common/base/strbuf.h"
#include "experiments/report/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(array)     (sizeof(array) / sizeof((array)[0]))
#define NOISY_SHARE         0.10  /* interquartile range over median */
#define SUMMARY_SHARE       0.001 /* throughput of the records against that of summary.json */
#define UNEVEN_SHARE        0.80  /* throughput against that of the median step */
#define DRIFT_SHARE         0.05  /* throughput of a run's second half against the first */
#define ACCURACY_DIFFERENCE 0.02
#define WAIT_SHARE          0.33 /* of the time, with something that waits for a core */

static void add_condition(struct comparison *c, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add_condition(struct comparison *c, const char *name, const char *format, ...)
{
    struct condition *condition = &c->conditions[c->condition_count];
    va_list args;

    if (c->condition_count == COUNT_OF(c->conditions))
        return;
    (void)snprintf(condition->name, sizeof(condition->name), "%s", name);
    va_start(args, format);
    (void)vsnprintf(condition->value, sizeof(condition->value), format, args);
    va_end(args);
    if (condition->value[0] != '\0')
        c->condition_count++;
}

/* The value that all modes share, or a text that says why there is none. */
static const char *shared_fact(const struct comparison *c, const char *name)
{
    for (size_t i = 0; i < c->fact_count; i++) {
        const char *value = NULL;

        if (strcmp(c->facts[i].name, name) != 0)
            continue;
        for (size_t m = 0; m < c->mode_count; m++) {
            const char *other = c->facts[i].values[m];

            if (!other || c->modes[m].role == MODE_SINGLE)
                continue;
            if (value && strcmp(value, other) != 0)
                return "differs, see the reasons";
            value = other;
        }
        return value && value[0] != '\0' ? value : RUN_NOT_RECORDED;
    }
    return RUN_NOT_RECORDED;
}

static const struct mode *representative_mode(const struct comparison *c)
{
    for (size_t i = 0; i < c->mode_count; i++)
        if (c->modes[i].first && c->modes[i].role != MODE_SINGLE)
            return &c->modes[i];
    for (size_t i = 0; i < c->mode_count; i++)
        if (c->modes[i].first)
            return &c->modes[i];
    return NULL;
}

static void add_job(struct comparison *c, const struct run *run)
{
    char parameters[FORMAT_MAX];
    char bytes[FORMAT_MAX];

    add_condition(c, "ranks", "%s", shared_fact(c, "world_size"));
    format_number(run->manifest.parameters, 0, parameters);
    format_number(run->manifest.parameter_bytes, 0, bytes);
    add_condition(c, "model", "%s (%s parameters, %s bytes)", shared_fact(c, "model"), parameters,
                  bytes);
    add_condition(c, "data", "%s", shared_fact(c, "data"));
    add_condition(c, "batch size per rank", "%s", shared_fact(c, "batch_size"));
    add_condition(c, "optimizer", "%s", shared_fact(c, "optimizer"));
    add_condition(c, "learning rate", "%s", shared_fact(c, "lr"));
    add_condition(c, "steps per run", "%s", shared_fact(c, "steps"));
    add_condition(c, "seeds", "%s", shared_fact(c, "seed"));
    add_condition(c, "device", "%s", shared_fact(c, "device"));
}

/* The links of an emulated network, over all runs. */
static void add_links(struct comparison *c)
{
    struct run_network all = {(double)NAN, (double)NAN, (double)NAN, (double)NAN};
    char late[64] = "";

    for (size_t i = 0; i < c->list->length; i++) {
        const struct run_network *n = &c->list->runs[i].network;

        all.lowest_rate_bits_s = fmin(all.lowest_rate_bits_s, n->lowest_rate_bits_s);
        all.highest_round_trip_ms = fmax(all.highest_round_trip_ms, n->highest_round_trip_ms);
        all.late_p99_ms = fmax(all.late_p99_ms, n->late_p99_ms);
    }
    if (isfinite(all.late_p99_ms))
        (void)snprintf(late, sizeof(late), ", 99 %% of packets at most %.2f ms late",
                       all.late_p99_ms);
    if (isfinite(all.lowest_rate_bits_s))
        add_condition(c, "links as measured",
                      "at least %.4g Mbit/s, round trips of at most %.3g ms%s",
                      all.lowest_rate_bits_s * 1e-6, all.highest_round_trip_ms, late);
    if (c->list->discarded > 0)
        add_condition(c, "discarded runs",
                      "%zu, made again: this machine did not keep to the emulated network",
                      c->list->discarded);
}

static void add_host(struct comparison *c, const struct run *run)
{
    add_condition(c, "where", "%s", c->location);
    add_condition(c, "host", "%s", shared_fact(c, "host"));
    add_condition(c, "processor", "%s", shared_fact(c, "processor"));
    add_condition(c, "cores", "%s", shared_fact(c, "cores"));
    add_condition(c, "processor quota", "%s", shared_fact(c, "processor_quota"));
    add_condition(c, "memory limit", "%s", shared_fact(c, "memory_limit"));
    add_condition(c, "binding", "%s", shared_fact(c, "binding"));
    add_condition(c, "network", "%s", shared_fact(c, "network"));
    add_links(c);
    if (run->faults.length > 0)
        add_condition(c, "faults", "%s", shared_fact(c, "faults"));
    add_condition(c, "governor", "%s", shared_fact(c, "governor"));
    add_condition(c, "congestion control", "%s", shared_fact(c, "congestion_control"));
    add_condition(c, "environment", "%s", shared_fact(c, "environment"));
    add_condition(c, "kernel", "%s", shared_fact(c, "kernel"));
    add_condition(c, "program", "%s", shared_fact(c, "program"));
    add_condition(c, "commit", "%s", shared_fact(c, "commit"));
    add_condition(c, "started", "%s", run->manifest.start);
}

/* One-minute load averages at the start of a run; they include the run before. */
static void add_load(struct comparison *c)
{
    double low = (double)INFINITY, high = -(double)INFINITY;

    for (size_t i = 0; i < c->list->length; i++) {
        const double load = c->list->runs[i].manifest.load;

        low = load < low ? load : low;
        high = load > high ? load : high;
    }
    if (low <= high)
        add_condition(c, "load", "%.2f to %.2f when a run began", low, high);
    else
        add_condition(c, "load", RUN_NOT_RECORDED);
}

static void add_runs(struct comparison *c)
{
    size_t failed = 0;
    bool interleaved = true;

    for (size_t i = 0; i < c->list->length; i++) {
        failed += c->list->runs[i].state == RUN_FAILED;
        interleaved = interleaved && c->list->runs[i].has_attempt;
    }
    add_condition(c, "runs", "%zu, %zu of them failed%s", c->list->length, failed,
                  interleaved ? "; the modes ran in blocks" : "");
}

static void warn_about_speed(struct comparison *c, const struct mode *m)
{
    const struct spread *rate = &m->spreads[METRIC_samples_per_second];
    double typical = m->spreads[METRIC_samples_per_second_median].median;

    if (m->failed > 0)
        text_list_addf(&c->warnings, "%zu of %zu runs of %s failed", m->failed, m->failed + rate->n,
                       m->name);
    if (rate->n > 1 && (rate->q3 - rate->q1) / rate->median > NOISY_SHARE)
        text_list_addf(&c->warnings,
                       "the throughput of %s is noisy: the middle half of its runs spans %.0f %% "
                       "of the median",
                       m->name, 100 * (rate->q3 - rate->q1) / rate->median);
    if (rate->median < UNEVEN_SHARE * typical)
        text_list_addf(
            &c->warnings,
            "the steps of %s are uneven: its throughput is %.0f %% of that of its median "
            "step",
            m->name, 100 * rate->median / typical);
}

static void warn_about_time(struct comparison *c, const struct mode *m)
{
    const double seconds = m->spreads[METRIC_steady_seconds].median;
    const double drift = m->spreads[METRIC_drift].median;

    if (c->list->has_design && seconds < c->design->steady_seconds)
        text_list_addf(&c->warnings,
                       "the runs of %s have %.2f s of steady time, less than the %.3g s planned",
                       m->name, seconds, c->design->steady_seconds);
    if (fabs(drift - 1) > DRIFT_SHARE)
        text_list_addf(&c->warnings,
                       "the runs of %s drift: their second half has %.2fx the throughput of the "
                       "first",
                       m->name, drift);
}

static void warn_about_processes(struct comparison *c, const struct mode *m)
{
    if (!m->first)
        return;
    if (m->first->manifest.cores > 0 && m->ranks + m->servers > (double)m->first->manifest.cores)
        text_list_addf(&c->warnings,
                       "%s runs %.0f processes (ranks and servers) on %" PRIu64
                       " cores: they compete for them",
                       m->name, m->ranks + m->servers, m->first->manifest.cores);
    if (m->first->manifest.network[0] != '\0' &&
        m->spreads[METRIC_processor_wait].median > WAIT_SHARE)
        text_list_addf(
            &c->warnings,
            "in %.0f %% of the time of %s a process or the relay of the emulated network "
            "waited for a core: on hosts of its own it would be faster",
            100 * m->spreads[METRIC_processor_wait].median, m->name);
    if (m->first->server_count > 0 && m->servers > (double)m->first->server_count)
        text_list_addf(&c->warnings,
                       "only %zu of the %.0f servers of %s hold a part of the model: its "
                       "partitions are too few (partition-bytes), or others have no weight",
                       m->first->server_count, m->servers, m->name);
}

static void warn_about_run(struct comparison *c, size_t i)
{
    const struct run *run = &c->list->runs[i];
    double recorded = run->summary.schema < 2   ? c->metrics[i].samples_per_second_median
                      : run->summary.schema < 3 ? (double)NAN /* with the last step */
                                                : c->metrics[i].samples_per_second;
    double said = run->summary.samples_per_second;

    if (run->state == RUN_FAILED)
        return;
    if (isfinite(said) && fabs(recorded - said) > SUMMARY_SHARE * recorded)
        text_list_addf(&c->warnings,
                       "run %s: summary.json says %.0f samples/s, its records say %.0f", run->name,
                       said, recorded);
    if (!isfinite(c->metrics[i].final_loss))
        text_list_addf(&c->warnings, "run %s diverged: its loss is not finite", run->name);
    if (metric_steady((size_t)c->metrics[i].steps).first == 0)
        text_list_addf(&c->warnings, "run %s has %.0f steps, too few to leave out the first ones",
                       run->name, c->metrics[i].steps);
}

static void warn_about_outliers(struct comparison *c)
{
    struct strbuf names = STRBUF_INIT;

    for (size_t i = 0; i < c->list->length; i++)
        if (c->outlier_scores[i] > STATISTICS_OUTLIER)
            strbuf_addf(&names, "%s%s (%.1f)", names.length > 0 ? ", " : "", c->list->runs[i].name,
                        c->outlier_scores[i]);
    if (names.length > 0)
        text_list_addf(
            &c->warnings,
            "outliers among the runs of their mode (modified z-score), kept in every figure: "
            "%s",
            names.text);
    if (!strbuf_ok(&names))
        c->warnings.failed = true;
    strbuf_release(&names);
}

/* With the same seeds, contenders must reach the same accuracy; staleness or a defect shows here.
 */
static void warn_about_learning(struct comparison *c)
{
    for (size_t i = 0; i < c->ratio_count; i++) {
        const struct mode *a = &c->modes[c->ratios[i].a];
        const struct mode *b = &c->modes[c->ratios[i].b];
        double difference =
            fabs(a->spreads[METRIC_test_accuracy].median - b->spreads[METRIC_test_accuracy].median);

        if (a->role == MODE_CONTENDER && b->role == MODE_CONTENDER &&
            difference > ACCURACY_DIFFERENCE)
            text_list_addf(&c->warnings,
                           "%s and %s differ by %.3f in test accuracy: the faster one may learn "
                           "less per step",
                           a->name, b->name, difference);
    }
}

/* The modes of the verdict may differ in transport as well as in architecture. */
static void note_transports(struct comparison *c)
{
    const struct mode *a;
    const struct mode *b;
    const char *over_a;
    const char *over_b;

    if (c->main_ratio == SIZE_MAX)
        return;
    a = &c->modes[c->ratios[c->main_ratio].a];
    b = &c->modes[c->ratios[c->main_ratio].b];
    over_a = comparison_carrier(a);
    over_b = comparison_carrier(b);
    if (over_a && over_b && strcmp(over_a, over_b) != 0)
        text_list_addf(
            &c->notes,
            "The transports differ: %s goes through %s, %s through %s. So the verdict is "
            "about architecture and transport together, as a user would choose them; "
            "all-reduce with backend grpc goes through the same gRPC as the servers, "
            "and with backend ring through plain TCP.",
            a->label, over_a, b->label, over_b);
}

/* True when a mode sends bytes over TCP while all ranks are on one host. */
static bool uses_loopback(const struct comparison *c)
{
    bool uses = false;

    for (size_t i = 0; i < c->mode_count; i++) {
        const char *carrier = comparison_carrier(&c->modes[i]);

        uses = uses || (carrier && strstr(carrier, "TCP"));
    }
    return uses && strncmp(c->location, "On this host", strlen("On this host")) == 0;
}

static void add_notes(struct comparison *c, const struct mode *mode)
{
    note_transports(c);
    if (uses_loopback(c))
        text_list_addf(&c->notes,
                       "Loopback: no network card takes part. What counts is copies and processor "
                       "time, so compare all bytes together (ring 2(n-1)M, parameter server 2nM; "
                       "M is the size of the parameters) and do not carry the figures over to a "
                       "network.");
    if (mode->ranks == 2)
        text_list_addf(
            &c->notes,
            "With 2 ranks all-reduce sends 2(n-1)/n M = M per rank, as much as a rank of "
            "the parameter server: a difference here is latency, copies or processor "
            "time, not bandwidth.");
    for (size_t i = 0; i < c->mode_count; i++) {
        if (c->modes[i].servers > 0) {
            text_list_addf(&c->notes, "The parameter server has processes besides the ranks; on a "
                                      "cluster they are hosts to be paid for.");
            break;
        }
    }
    if (design_looks(c->design) > 1)
        text_list_addf(&c->notes,
                       "The runs were to be looked at up to %" PRIu64
                       " times, until the verdict is decided, so that the level of each look is "
                       "%.3g %%.",
                       design_looks(c->design), 100 * design_level(c->design));
    text_list_addf(
        &c->notes,
        "The unit is the run, because the steps of a run depend on each other; the "
        "ratio of two modes is taken within blocks of runs that are adjacent in time and "
        "share a seed. Which pairs get a verdict was decided before the first run; the "
        "other ratios are figures, and among many of them one differs by chance. Outliers "
        "are flagged, never dropped.");
    text_list_addf(&c->notes, "The first 5 steps, or the first tenth of a run if that is more, are "
                              "left out of all times.");
}

void comparison_add_conditions(struct comparison *c)
{
    const struct mode *mode = representative_mode(c);

    for (size_t i = 0; i < c->list->length && c->title[0] == '\0'; i++)
        (void)snprintf(c->title, sizeof(c->title), "%s", c->list->runs[i].attempt.title);
    if (mode) {
        add_job(c, mode->first);
        add_host(c, mode->first);
    }
    add_load(c);
    add_runs(c);
    for (size_t i = 0; i < c->mode_count; i++) {
        warn_about_speed(c, &c->modes[i]);
        warn_about_time(c, &c->modes[i]);
        warn_about_processes(c, &c->modes[i]);
    }
    for (size_t i = 0; i < c->list->length; i++)
        warn_about_run(c, i);
    warn_about_outliers(c);
    warn_about_learning(c);
    if (mode)
        add_notes(c, mode);
}
