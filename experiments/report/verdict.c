/*
 * The verdict: ratios of throughput between modes, and the sentence on top of the report.  The
 * sentence is about the first all-reduce mode and the first parameter-server mode in the order of
 * the experiment file, so the pair was chosen before the runs; without such a pair it is about the
 * first two contenders, else the first contender and the control.
 */
#include "experiments/report/comparison.h"

#include "common/base/memory.h"
#include "experiments/report/format.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status make_ratio(struct comparison *c, size_t a, size_t b, struct ratio *ret,
                              struct error *err)
{
    const struct mode *first = &c->modes[a];
    const struct mode *second = &c->modes[b];
    const struct spread *over = &first->spreads[METRIC_samples_per_second];
    const struct spread *under = &second->spreads[METRIC_samples_per_second];
    struct ratio ratio = {.a = a, .b = b, .value = over->median / under->median};
    enum status status;

    status = statistics_ratio_interval(first->values[METRIC_samples_per_second], over->n,
                                       second->values[METRIC_samples_per_second], under->n,
                                       &ratio.interval, err);
    if (status == STATUS_OK)
        status = statistics_rank_test(first->values[METRIC_samples_per_second], over->n,
                                      second->values[METRIC_samples_per_second], under->n, &ratio.p,
                                      err);
    if (status != STATUS_OK)
        return status;
    if (!comparison_is_fair(c, a, b))
        ratio.state = RATIO_UNFAIR;
    else if (!isfinite(ratio.interval.low) || !isfinite(ratio.interval.high))
        ratio.state = RATIO_TOO_FEW;
    else
        ratio.state =
            ratio.interval.low > 1 || ratio.interval.high < 1 ? RATIO_SEPARATE : RATIO_TOGETHER;
    *ret = ratio;
    return STATUS_OK;
}

static bool belong_together(const struct mode *a, const struct mode *b)
{
    return a->first && b->first && a->role != MODE_SINGLE && b->role != MODE_SINGLE &&
           a->ranks == b->ranks;
}

static enum status make_ratios(struct comparison *c, struct error *err)
{
    enum status status =
        mem_calloc(c->mode_count * c->mode_count, sizeof(*c->ratios), "ratios", &c->ratios, err);

    for (size_t a = 0; a < c->mode_count && status == STATUS_OK; a++) {
        for (size_t b = a + 1; b < c->mode_count && status == STATUS_OK; b++) {
            if (!belong_together(&c->modes[a], &c->modes[b]))
                continue;
            status = make_ratio(c, a, b, &c->ratios[c->ratio_count], err);
            if (status == STATUS_OK)
                c->ratio_count++;
        }
    }
    return status;
}

static bool has_sync(const struct mode *mode, const char *sync)
{
    return strcmp(mode->first->configuration.sync, sync) == 0;
}

/* How well a ratio suits the verdict: 3 all-reduce against parameter server, 2 two contenders,
 * 1 anything. */
static int suitability(const struct comparison *c, const struct ratio *r)
{
    const struct mode *a = &c->modes[r->a];
    const struct mode *b = &c->modes[r->b];

    if ((has_sync(a, "allreduce") && has_sync(b, "ps")) ||
        (has_sync(a, "ps") && has_sync(b, "allreduce")))
        return 3;
    return a->role == MODE_CONTENDER && b->role == MODE_CONTENDER ? 2 : 1;
}

static void choose_match(struct comparison *c)
{
    int best = 0;

    c->match = SIZE_MAX;
    for (size_t i = 0; i < c->ratio_count; i++) {
        if (suitability(c, &c->ratios[i]) > best) {
            best = suitability(c, &c->ratios[i]);
            c->match = i;
        }
    }
}

bool comparison_over_grpc(const struct mode *mode)
{
    const struct run_configuration *f = mode->first ? &mode->first->configuration : NULL;

    return f && strcmp(f->sync, "allreduce") == 0 && strcmp(f->transport, "grpc") == 0 &&
           (strcmp(f->backend, "ring") == 0 || strcmp(f->backend, "hier") == 0);
}

const char *comparison_carrier(const struct mode *mode)
{
    static const char *const carriers[][2] = {
        {"shm", "shared memory"},
        {"hier", "shared memory inside a host and TCP between hosts"},
        {"ring", "TCP"},
        {"gloo", "TCP (Gloo)"},
        {"grpc", "gRPC over TCP"},
        {"mpi", "what MPI chooses"},
        {"nccl", "what NCCL chooses"},
    };
    const struct run *run = mode->first;

    if (!run || mode->ranks < 2 || strcmp(run->configuration.sync, "local") == 0)
        return NULL;
    if (strcmp(run->configuration.sync, "ps") == 0 &&
        strncmp(run->configuration.backend, "shm", 3) != 0)
        return "gRPC over TCP";
    if (strcmp(run->configuration.backend, "shm and grpc") == 0)
        return "shared memory inside a host and gRPC over TCP between hosts";
    if (comparison_over_grpc(mode))
        return strcmp(run->configuration.backend, "ring") == 0
                   ? "gRPC over TCP"
                   : "shared memory inside a host and gRPC over TCP between hosts";
    for (size_t i = 0; i < sizeof(carriers) / sizeof(carriers[0]); i++)
        if (strcmp(run->configuration.backend, carriers[i][0]) == 0)
            return carriers[i][1];
    return NULL;
}

/* Does every mode that communicates do so through the network's code? */
static bool all_over_loopback(const struct comparison *c)
{
    for (size_t i = 0; i < c->mode_count; i++) {
        const char *carrier = comparison_carrier(&c->modes[i]);

        if (carrier && !strstr(carrier, "TCP"))
            return false;
    }
    return true;
}

static void describe_place(struct comparison *c)
{
    const char *host = NULL;
    bool is_one = true;
    bool has_many_ranks = false;

    for (size_t i = 0; i < c->list->length; i++) {
        const struct run *run = &c->list->runs[i];

        for (size_t r = 0; r < run->rank_count && run->state == RUN_OK; r++) {
            if (host && strcmp(host, run->ranks[r].host) != 0)
                is_one = false;
            host = run->ranks[r].host;
        }
        has_many_ranks = has_many_ranks || run->rank_count > 1;
    }
    (void)snprintf(c->place, sizeof(c->place), "%s",
                   !is_one                                  ? "Between hosts"
                   : has_many_ranks && all_over_loopback(c) ? "On this host, over loopback"
                                                            : "On this host");
}

static void count_text(const struct comparison *c, const struct ratio *r, char *text, size_t size)
{
    size_t a = c->modes[r->a].spreads[METRIC_samples_per_second].n;
    size_t b = c->modes[r->b].spreads[METRIC_samples_per_second].n;

    if (a == b)
        (void)snprintf(text, size, "n=%zu runs each", a);
    else
        (void)snprintf(text, size, "n=%zu and %zu runs", a, b);
}

static void write_verdict(struct comparison *c)
{
    const struct ratio *r = &c->ratios[c->match];
    bool first_wins = r->value >= 1;
    const char *faster = c->modes[first_wins ? r->a : r->b].label;
    const char *slower = c->modes[first_wins ? r->b : r->a].label;
    double value = first_wins ? r->value : 1 / r->value;
    double low = first_wins ? r->interval.low : 1 / r->interval.high;
    double high = first_wins ? r->interval.high : 1 / r->interval.low;
    char runs[64];

    count_text(c, r, runs, sizeof(runs));
    switch (r->state) {
    case RATIO_SEPARATE:
        (void)snprintf(c->verdict, sizeof(c->verdict),
                       "%s: %s has %.2fx (95 %% interval %.2f to %.2f) the throughput of %s, %s.",
                       c->place, faster, value, low, high, slower, runs);
        break;
    case RATIO_TOGETHER:
        (void)snprintf(c->verdict, sizeof(c->verdict),
                       "%s: the runs do not separate: %s has %.2fx (95 %% interval %.2f to %.2f) "
                       "the throughput of %s, %s.",
                       c->place, faster, value, low, high, slower, runs);
        break;
    case RATIO_TOO_FEW:
        (void)snprintf(c->verdict, sizeof(c->verdict),
                       "No verdict: it takes %d good runs of each mode, and there are %zu and %zu "
                       "(by medians, %s has %.2fx the throughput of %s).",
                       STATISTICS_RUNS_MINIMUM, c->modes[r->a].spreads[METRIC_samples_per_second].n,
                       c->modes[r->b].spreads[METRIC_samples_per_second].n, faster, value, slower);
        break;
    case RATIO_UNFAIR:
        (void)snprintf(c->verdict, sizeof(c->verdict),
                       "No verdict: %s and %s are not comparable, see the reasons below.",
                       c->modes[r->a].label, c->modes[r->b].label);
        break;
    }
}

/* Where the difference is, from the parts of a step. */
static void write_why(struct comparison *c)
{
    const struct mode *a = &c->modes[c->ratios[c->match].a];
    const struct mode *b = &c->modes[c->ratios[c->match].b];
    const char *over_a = comparison_carrier(a);
    const char *over_b = comparison_carrier(b);
    char sent_a[FORMAT_MAX];
    char sent_b[FORMAT_MAX];
    char sent[2 * FORMAT_MAX + 16];

    if (c->ratios[c->match].state == RATIO_UNFAIR)
        return;
    format_number(a->spreads[METRIC_tx_payload_bytes].median, 0, sent_a);
    format_number(b->spreads[METRIC_tx_payload_bytes].median, 0, sent_b);
    if (strcmp(sent_a, sent_b) == 0)
        (void)snprintf(sent, sizeof(sent), "%s bytes in both", sent_a);
    else
        (void)snprintf(sent, sizeof(sent), "%s and %s bytes", sent_a, sent_b);
    (void)snprintf(
        c->why, sizeof(c->why),
        "In a step of %s, %.3f ms of %.3f ms are spent waiting for communication; in "
        "one of %s, %.3f ms of %.3f ms. Each rank sends %s.%s",
        a->label, a->spreads[METRIC_exposed_comm_ms].median, a->spreads[METRIC_step_ms_mean].median,
        b->label, b->spreads[METRIC_exposed_comm_ms].median, b->spreads[METRIC_step_ms_mean].median,
        sent,
        over_a && over_b && strcmp(over_a, over_b) != 0 ? " Their transports differ: see the notes."
                                                        : "");
}

enum status comparison_judge(struct comparison *c, struct error *err)
{
    enum status status = make_ratios(c, err);

    if (status != STATUS_OK)
        return status;
    choose_match(c);
    describe_place(c);
    if (c->match != SIZE_MAX) {
        write_verdict(c);
        write_why(c);
        return STATUS_OK;
    }
    (void)snprintf(c->verdict, sizeof(c->verdict),
                   "No verdict: there are no two modes with good runs of equally many ranks.");
    return STATUS_OK;
}
