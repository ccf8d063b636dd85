/*
 * verdict: the sentences at the top of the report: the results of the registered pairs, which
 * pairs.c has judged, and which part of a step explains the main ratio.
 */
#include "experiments/report/comparison.h"

#include "experiments/report/format.h"

#include "common/base/strbuf.h"
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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
        {"shm, headers by grpc", "shared memory, with headers by gRPC"},
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

/* True when every mode that communicates uses TCP. */
static bool all_over_loopback(const struct comparison *c)
{
    for (size_t i = 0; i < c->mode_count; i++) {
        const char *carrier = comparison_carrier(&c->modes[i]);

        if (carrier && !strstr(carrier, "TCP"))
            return false;
    }
    return true;
}

static void set_location(struct comparison *c)
{
    const char *host = NULL;
    bool is_one = true, is_emulated = false;
    bool has_many_ranks = false;

    for (size_t i = 0; i < c->list->length; i++) {
        const struct run *run = &c->list->runs[i];

        is_emulated = is_emulated || isfinite(run->network.lowest_rate_bits_s);
        for (size_t r = 0; r < run->rank_count && run->state == RUN_OK; r++) {
            if (host && strcmp(host, run->ranks[r].host) != 0)
                is_one = false;
            host = run->ranks[r].host;
        }
        has_many_ranks = has_many_ranks || run->rank_count > 1;
    }
    (void)snprintf(c->location, sizeof(c->location), "%s",
                   !is_one                                  ? "Between hosts"
                   : is_emulated                            ? "On emulated hosts of one machine"
                   : has_many_ranks && all_over_loopback(c) ? "On this host, over loopback"
                                                            : "On this host");
}

/* "1.41x (95 % interval 1.36 to 1.47)", of the faster one over the other. */
static void ratio_text(const struct comparison *c, const struct ratio *r, char *text, size_t size)
{
    const bool turned = r->value < 1;

    (void)snprintf(text, size, "%.2fx (%.3g %% interval %.2f to %.2f)",
                   turned ? 1 / r->value : r->value, 100 * (1 - design_level(c->design)),
                   turned ? 1 / r->interval.high : r->interval.low,
                   turned ? 1 / r->interval.low : r->interval.high);
}

/* "7 blocks (and 1 with a run that failed)" */
static void blocks_text(const struct ratio *r, char *text, size_t size)
{
    if (r->broken > 0)
        (void)snprintf(text, size, "%zu blocks (and %zu with a run that failed%s)", r->paired.n,
                       r->broken, r->is_to_target ? " or missed the target" : "");
    else
        (void)snprintf(text, size, "%zu blocks", r->paired.n);
}

/* " (both over gRPC over TCP; server: 3 processes on 2 cores)": differences of the two modes of a
 * ratio other than their architecture. */
static void add_circumstances(const struct comparison *c, const struct ratio *r,
                              struct strbuf *text)
{
    const struct mode *modes[] = {&c->modes[r->a], &c->modes[r->b]};
    const char *over[] = {comparison_carrier(modes[0]), comparison_carrier(modes[1])};
    const bool known = over[0] && over[1];
    const bool differs = known && strcmp(over[0], over[1]) != 0;
    const bool one_host = strncmp(c->location, "Between hosts", strlen("Between hosts")) != 0;
    const char *before = " (";

    if (known && !differs) {
        strbuf_addf(text, " (both over %s", over[0]);
        before = "; ";
    }
    for (size_t k = 0; k < 2; k++) {
        const double processes = modes[k]->ranks + modes[k]->servers;
        const uint64_t cores = modes[k]->first->manifest.cores;
        const bool competes = one_host && cores > 0 && processes > (double)cores;

        if (!competes && !differs)
            continue;
        strbuf_addf(text, "%s%s: ", before, modes[k]->label);
        if (competes)
            strbuf_addf(text, "%.0f processes on %" PRIu64 " cores%s", processes, cores,
                        differs ? ", " : "");
        if (differs)
            strbuf_add(text, over[k]);
        before = "; ";
    }
    if (before[0] == ';')
        strbuf_add(text, ")");
}

static void blocks_advice(const struct comparison *c, const struct ratio *r, char *text,
                          size_t size)
{
    const size_t blocks = paired_blocks_to_decide(
        &r->paired, design_level(c->design) / (double)comparison_registered(c),
        design_log_margin(c->design->margin));

    if (blocks > r->paired.n)
        (void)snprintf(text, size, "about %zu would probably decide", blocks);
    else if (blocks > 0)
        (void)snprintf(text, size, "a few more would probably decide");
    else
        (void)snprintf(text, size, "more than %d would be needed", PAIRED_BLOCKS_MAX);
}

static void add_verdict_sentence(const struct comparison *c, const struct ratio *r,
                                 struct strbuf *text)
{
    const bool first_wins = r->value >= 1;
    const char *faster = c->modes[first_wins ? r->a : r->b].label;
    const char *slower = c->modes[first_wins ? r->b : r->a].label;
    char ratio[96], blocks[128], more[64];

    if (r->state == RATIO_NOT_COMPARABLE) {
        strbuf_addf(text, "No verdict: %s and %s are not comparable, see the reasons below.",
                    c->modes[r->a].label, c->modes[r->b].label);
        return;
    }
    if (r->state == RATIO_TOO_FEW) {
        strbuf_addf(text,
                    "No verdict on %s and %s: it takes %zu blocks in which both ran well%s, and "
                    "there are %zu.",
                    c->modes[r->a].label, c->modes[r->b].label,
                    paired_least_blocks(comparison_registered(c), design_level(c->design)),
                    r->is_to_target ? " and reached the target accuracy" : "", r->paired.n);
        return;
    }
    if (r->state == RATIO_NO_TARGET) {
        strbuf_addf(
            text,
            "No verdict on %s and %s: with stale or dropped pushes or compression a step is "
            "not worth the same, so what counts is the time to an accuracy, and the "
            "experiment names no target_accuracy.",
            c->modes[r->a].label, c->modes[r->b].label);
        return;
    }
    ratio_text(c, r, ratio, sizeof(ratio));
    blocks_text(r, blocks, sizeof(blocks));
    strbuf_addf(text, "%s: ", c->location);
    if (r->state == RATIO_EQUIVALENT)
        strbuf_addf(text, "%s and %s are equivalent within %.3g %%: ", faster, slower,
                    100 * c->design->margin);
    else if (r->state == RATIO_UNDECIDED)
        strbuf_add(text, "undecided: ");
    if (r->is_to_target)
        strbuf_addf(text, "%s reaches an accuracy of %.4g %% %s as fast as %s; %s", faster,
                    100 * c->design->target_accuracy, ratio, slower, blocks);
    else
        strbuf_addf(text, "%s has %s the throughput of %s; %s", faster, ratio, slower, blocks);
    blocks_advice(c, r, more, sizeof(more));
    if (r->state == RATIO_FASTER)
        strbuf_addf(text, ", p = %.2g", r->p);
    else if (r->state == RATIO_UNDECIDED)
        strbuf_addf(text, ", %s", more);
    add_circumstances(c, r, text);
    strbuf_add(text, ".");
}

static bool has_sync(const struct mode *mode, const char *sync)
{
    return strcmp(mode->first->configuration.sync, sync) == 0;
}

/* True for all-reduce against a parameter server over the same transport. */
static bool isolates_architecture(const struct comparison *c, const struct ratio *r)
{
    const struct mode *a = &c->modes[r->a], *b = &c->modes[r->b];
    const char *over_a = comparison_carrier(a), *over_b = comparison_carrier(b);

    return ((has_sync(a, "allreduce") && has_sync(b, "ps")) ||
            (has_sync(a, "ps") && has_sync(b, "allreduce"))) &&
           over_a && over_b && strcmp(over_a, over_b) == 0 && r->paired.n > 1 &&
           comparison_is_fair(c, r->a, r->b);
}

/* The ratios of the architectures over equal transports, other than the main ratio. */
static void add_equal_transports(const struct comparison *c, struct strbuf *text)
{
    const char *before = " Over equal transports: ";

    for (size_t i = 0; i < c->ratio_count; i++) {
        const struct ratio *r = &c->ratios[i];
        char ratio[96];

        if (i == c->main_ratio || !isolates_architecture(c, r))
            continue;
        ratio_text(c, r, ratio, sizeof(ratio));
        strbuf_addf(text, "%s%s, %s %s %s %s %s", before, comparison_carrier(&c->modes[r->a]),
                    c->modes[r->value >= 1 ? r->a : r->b].label,
                    r->is_to_target ? "reaches the target accuracy" : "has", ratio,
                    r->is_to_target ? "as fast as" : "the throughput of",
                    c->modes[r->value >= 1 ? r->b : r->a].label);
        before = "; ";
    }
    if (before[0] == ';')
        strbuf_add(text, ".");
}

static void add_critical_path(const struct mode *mode, const char *before, struct strbuf *text)
{
    if (mode->path.steps == 0)
        return;
    strbuf_addf(text, "%s %s: ", before, mode->label);
    critical_path_describe(&mode->path, text);
    strbuf_add(text, ".");
}

/* Explain the main ratio by the parts of a step. */
static void set_why(struct comparison *c)
{
    struct strbuf text = STRBUF_INIT;
    const struct mode *a = &c->modes[c->ratios[c->main_ratio].a];
    const struct mode *b = &c->modes[c->ratios[c->main_ratio].b];
    char sent_a[FORMAT_MAX];
    char sent_b[FORMAT_MAX];
    char sent[2 * FORMAT_MAX + 16];

    if (c->ratios[c->main_ratio].state == RATIO_NOT_COMPARABLE)
        return;
    format_number(a->spreads[METRIC_tx_payload_bytes].median, 0, sent_a);
    format_number(b->spreads[METRIC_tx_payload_bytes].median, 0, sent_b);
    if (strcmp(sent_a, sent_b) == 0)
        (void)snprintf(sent, sizeof(sent), "%s bytes in both", sent_a);
    else
        (void)snprintf(sent, sizeof(sent), "%s and %s bytes", sent_a, sent_b);
    strbuf_addf(&text,
                "In a step of %s, %.3f ms of %.3f ms are spent waiting for communication; in "
                "one of %s, %.3f ms of %.3f ms. Each rank sends %s.",
                a->label, a->spreads[METRIC_exposed_comm_ms].median,
                a->spreads[METRIC_step_ms_mean].median, b->label,
                b->spreads[METRIC_exposed_comm_ms].median, b->spreads[METRIC_step_ms_mean].median,
                sent);
    add_critical_path(a, " Critical path of a step of", &text);
    add_critical_path(b, " Of", &text);
    add_equal_transports(c, &text);
    (void)snprintf(c->why, sizeof(c->why), "%s", text.text);
    c->notes.failed = c->notes.failed || !strbuf_ok(&text);
    strbuf_release(&text);
}

/* A pair of the design without a ratio. */
static void add_missing_sentence(const struct comparison *c, const struct design_pair *pair,
                                 struct strbuf *text)
{
    size_t good = 0;

    strbuf_addf(text, "No verdict on %s and %s: ", pair->names[0], pair->names[1]);
    for (size_t k = 0; k < 2; k++) {
        const struct mode *mode = NULL;

        for (size_t m = 0; m < c->mode_count && !mode; m++)
            if (strcmp(c->modes[m].name, pair->names[k]) == 0 && c->modes[m].first)
                mode = &c->modes[m];
        if (!mode)
            strbuf_addf(text, "%s%s has no good run", good < k ? ", and " : "", pair->names[k]);
        good += mode != NULL;
    }
    strbuf_add(text, good == 2 ? "they do not run with equally many ranks." : ".");
}

static void write_more_verdicts(struct comparison *c)
{
    struct strbuf text = STRBUF_INIT;

    for (size_t i = 0; i < c->ratio_count; i++) {
        if (i == c->main_ratio || !c->ratios[i].is_registered)
            continue;
        strbuf_reset(&text);
        add_verdict_sentence(c, &c->ratios[i], &text);
        text_list_addf(&c->more_verdicts, "%s", text.text);
    }
    for (size_t i = 1; i < c->design->pair_count; i++) {
        if (comparison_find_ratio(c, &c->design->pairs[i]) != SIZE_MAX)
            continue;
        strbuf_reset(&text);
        add_missing_sentence(c, &c->design->pairs[i], &text);
        text_list_addf(&c->more_verdicts, "%s", text.text);
    }
    c->notes.failed = c->notes.failed || !strbuf_ok(&text);
    strbuf_release(&text);
}

void comparison_write_verdict(struct comparison *c)
{
    struct strbuf text = STRBUF_INIT;

    set_location(c);
    if (c->main_ratio != SIZE_MAX)
        add_verdict_sentence(c, &c->ratios[c->main_ratio], &text);
    else if (c->design->pair_count > 0)
        add_missing_sentence(c, &c->design->pairs[0], &text);
    else
        strbuf_add(&text, c->list->has_design
                              ? "No verdict was asked for: what follows are figures."
                              : "No verdict: there are no two modes with good runs of equally many "
                                "ranks.");
    (void)snprintf(c->verdict, sizeof(c->verdict), "%s", text.text);
    if (c->main_ratio != SIZE_MAX)
        set_why(c);
    write_more_verdicts(c);
    c->notes.failed = c->notes.failed || !strbuf_ok(&text);
    strbuf_release(&text);
}
