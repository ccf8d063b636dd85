/*
 * group: groups runs into modes.  A run that `sparring compare` started has its mode's name and
 * index in attempt.json; the mode of any other run is named after the synchronisation settings of
 * its configuration.  Modes keep the order of the experiment file, else: all-reduce, parameter
 * server, control, single process.
 */
#include "experiments/report/comparison.h"

#include "common/base/memory.h"
#include "common/base/parse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORDER_WITHOUT_FILE 1000000

struct mode_key {
    char name[64], label[160];
    uint64_t order;
};

static bool is_local(const struct run *run)
{
    return strcmp(run->configuration.sync, "local") == 0;
}

static bool has_many_world_sizes(const struct run_list *list)
{
    uint64_t seen = 0;

    for (size_t i = 0; i < list->length; i++) {
        uint64_t ranks = list->runs[i].manifest.world_size;

        if (ranks <= 1)
            continue;
        if (seen != 0 && ranks != seen)
            return true;
        seen = ranks;
    }
    return false;
}

static void derive_key(const struct run *run, bool with_ranks, struct mode_key *key)
{
    const struct run_configuration *c = &run->configuration;
    char suffix[64] = "";

    if (with_ranks && run->manifest.world_size > 1)
        (void)snprintf(suffix, sizeof(suffix), "-n%ju", (uintmax_t)run->manifest.world_size);
    if (strcmp(c->reduce, "reproducible") == 0 && !is_local(run))
        (void)strncat(suffix, "-reproducible", sizeof(suffix) - strlen(suffix) - 1);
    if (is_local(run) && run->manifest.world_size <= 1) {
        *key = (struct mode_key){"single", "one process", ORDER_WITHOUT_FILE + 3};
    } else if (is_local(run)) {
        *key = (struct mode_key){.label = "no communication (control)",
                                 .order = ORDER_WITHOUT_FILE + 2};
        (void)snprintf(key->name, sizeof(key->name), "local%s", suffix);
    } else if (strcmp(c->sync, "allreduce") == 0) {
        key->order = ORDER_WITHOUT_FILE;
        (void)snprintf(key->name, sizeof(key->name), "%.20s%s", c->backend, suffix);
        (void)snprintf(key->label, sizeof(key->label), "%s all-reduce", c->backend);
    } else if (strcmp(c->sync, "ps") == 0) {
        bool on_worker = strcmp(c->ps_update, "worker") == 0;
        bool apart =
            c->server_placement[0] == '\0' || strcmp(c->server_placement, "dedicated") == 0;

        key->order = ORDER_WITHOUT_FILE + 1;
        (void)snprintf(key->name, sizeof(key->name), "ps-%.10s%s%.12s%s%s", c->servers,
                       apart ? "" : "-", apart ? "" : c->server_placement, on_worker ? "-sum" : "",
                       suffix);
        (void)snprintf(key->label, sizeof(key->label), "parameter server (%s server%s%s%s%s)",
                       c->servers, strcmp(c->servers, "1") == 0 ? "" : "s", apart ? "" : ", ",
                       apart ? "" : c->server_placement, on_worker ? ", sum only" : "");
    } else {
        *key = (struct mode_key){"unknown", "unknown (no configuration recorded)",
                                 ORDER_WITHOUT_FILE + 4};
    }
}

static void find_key(const struct run *run, bool with_ranks, struct mode_key *key)
{
    *key = (struct mode_key){0};
    if (!run->has_attempt || run->attempt.mode[0] == '\0') {
        derive_key(run, with_ranks, key);
        return;
    }
    key->order = run->attempt.mode_index;
    (void)snprintf(key->name, sizeof(key->name), "%s", run->attempt.mode);
    (void)snprintf(key->label, sizeof(key->label), "%s",
                   run->attempt.label[0] ? run->attempt.label : run->attempt.mode);
}

/* Insert the key unless its name exists; sorted by `order`, equal ones by appearance. */
static void insert_key(struct mode_key *keys, size_t *count, const struct mode_key *key)
{
    size_t position = *count;

    for (size_t i = 0; i < *count; i++)
        if (strcmp(keys[i].name, key->name) == 0)
            return;
    for (; position > 0 && keys[position - 1].order > key->order; position--)
        keys[position] = keys[position - 1];
    keys[position] = *key;
    (*count)++;
}

static size_t key_index(const struct mode_key *keys, size_t count, const char *name)
{
    size_t i = 0;

    while (i < count && strcmp(keys[i].name, name) != 0)
        i++;
    return i;
}

static void set_role(struct mode *mode, const struct run *run)
{
    double servers = 0;

    mode->first = run;
    mode->ranks = (double)run->manifest.world_size;
    mode->role = MODE_CONTENDER;
    if (is_local(run))
        mode->role = mode->ranks > 1 ? MODE_CONTROL : MODE_SINGLE;
    if (strcmp(run->configuration.sync, "ps") == 0 &&
        parse_double(run->configuration.servers, &servers))
        mode->servers = servers;
}

static void assign_runs(struct comparison *c, const struct mode_key *keys, bool with_ranks)
{
    for (size_t i = 0; i < c->list->length; i++) {
        const struct run *run = &c->list->runs[i];
        struct mode_key key;
        struct mode *mode;

        find_key(run, with_ranks, &key);
        c->mode_of[i] = key_index(keys, c->mode_count, key.name);
        mode = &c->modes[c->mode_of[i]];
        (void)snprintf(mode->name, sizeof(mode->name), "%s", key.name);
        (void)snprintf(mode->label, sizeof(mode->label), "%s", key.label);
        if (run->state == RUN_FAILED)
            mode->failed++;
        else if (!mode->first)
            set_role(mode, run);
    }
}

/* A figure's known values over the good runs of a mode, and their spread. */
static enum status collect_metric(struct comparison *c, size_t mode_index, enum metric_index metric,
                                  struct error *err)
{
    struct mode *mode = &c->modes[mode_index];
    size_t n = 0;
    double *values = NULL;
    enum status status = mem_calloc(c->list->length, sizeof(double), "a figure", &values, err);

    if (status != STATUS_OK)
        return status;
    mode->values[metric] = values;
    for (size_t i = 0; i < c->list->length; i++) {
        if (c->mode_of[i] != mode_index || c->list->runs[i].state != RUN_OK)
            continue;
        if (isfinite(metric_of(&c->metrics[i], metric)))
            values[n++] = metric_of(&c->metrics[i], metric);
    }
    return statistics_spread(values, n, &mode->spreads[metric], err);
}

static enum status score_outliers(struct comparison *c, struct error *err)
{
    for (size_t i = 0; i < c->list->length; i++) {
        const struct mode *mode = &c->modes[c->mode_of[i]];
        enum status status;

        if (c->list->runs[i].state != RUN_OK)
            continue;
        status = statistics_outlier_score(
            mode->values[METRIC_samples_per_second], mode->spreads[METRIC_samples_per_second].n,
            c->metrics[i].samples_per_second, &c->outlier_scores[i], err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status compute_figures(struct comparison *c, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < c->list->length && status == STATUS_OK; i++) {
        const struct run *run = &c->list->runs[i];

        if (run->state != RUN_OK)
            continue;
        status = metric_compute(run, c->design->target_accuracy, &c->metrics[i], err);
        if (status == STATUS_OK)
            status = critical_path_add(&c->modes[c->mode_of[i]].path, run, err);
    }
    for (size_t m = 0; m < c->mode_count; m++)
        for (int k = 0; k < METRIC_COUNT && status == STATUS_OK; k++)
            status = collect_metric(c, m, (enum metric_index)k, err);
    return status == STATUS_OK ? score_outliers(c, err) : status;
}

enum status comparison_group(struct comparison *c, struct error *err)
{
    size_t runs = c->list->length;
    bool with_ranks = has_many_world_sizes(c->list);
    struct mode_key *keys = NULL;
    enum status status = mem_calloc(runs, sizeof(*keys), "modes", &keys, err);

    if (status == STATUS_OK)
        status = mem_calloc(runs, sizeof(*c->mode_of), "modes", &c->mode_of, err);
    if (status == STATUS_OK)
        status = mem_calloc(runs, sizeof(*c->metrics), "figures", &c->metrics, err);
    if (status == STATUS_OK)
        status = mem_calloc(runs, sizeof(double), "scores", &c->outlier_scores, err);
    for (size_t i = 0; i < runs && status == STATUS_OK; i++) {
        struct mode_key key;

        find_key(&c->list->runs[i], with_ranks, &key);
        insert_key(keys, &c->mode_count, &key);
    }
    if (status == STATUS_OK)
        status = mem_calloc(c->mode_count, sizeof(*c->modes), "modes", &c->modes, err);
    if (status == STATUS_OK) {
        assign_runs(c, keys, with_ranks);
        status = compute_figures(c, err);
    }
    free(keys);
    return status;
}
