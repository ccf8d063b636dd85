/*
 * fairness: checks that modes are comparable.  Every setting that a run records becomes a fact: the
 * configuration, the manifest, and each option.  A fact must have one value inside a mode, and,
 * unless it describes synchronisation, the same value in all modes; seeds may vary inside a mode
 * but the sets of seeds must be equal.  Each violation is a reason that names the fact, the modes
 * and the values.
 */
#include "experiments/report/comparison.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/strbuf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_MAX       512
#define FACTS_PER_RUN   128
#define SERVER_SETTINGS "server_settings"
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The subject of a comparison: these may differ between modes. */
static const char *const compared_settings[] = {"sync",
                                                "backend",
                                                "servers",
                                                "replicas",
                                                "server_placement",
                                                "server_weights",
                                                "reduce",
                                                "ps_update",
                                                "bucket_cap_mb",
                                                "consistency",
                                                "staleness",
                                                "backup_workers",
                                                "asp_lr",
                                                "delay_compensation",
                                                "partition_bytes",
                                                "transport",
                                                "comm_hook",
                                                "ps_transport",
                                                "connections",
                                                "priority",
                                                "compression",
                                                "compression_down",
                                                "top_k",
                                                "overlap_forward",
                                                "powersgd_rank",
                                                "powersgd_start_iter",
                                                "powersgd_min_rate",
                                                "broadcast_buffers",
                                                "static_graph",
                                                "join_divide",
                                                "comm_cpu",
                                                "devices"};

/* Settings that differ between runs or processes without effect on results. */
static const char *const ignored_settings[] = {
    "rank",           "world_size",     "local_rank",       "standalone",
    "init_method",    "group",          "run_dir",          "save",
    "log_level",      "seed",           "on_rank_loss",     "reconnect_ms",
    "on_worker_loss", "checkpoint_dir", "checkpoint_every", "checkpoint_keep"};

struct run_fact {
    char name[64];
    char value[VALUE_MAX];
};
struct run_facts {
    struct run_fact facts[FACTS_PER_RUN];
    size_t count;
};

static bool is_listed(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static bool is_configuration(const char *name)
{
    for (size_t i = 0; i < run_configuration_length; i++)
        if (strcmp(run_configuration_fields[i].name, name) == 0)
            return true;
    return false;
}

static void add_fact(struct run_facts *f, const char *name, const char *value)
{
    if (f->count == FACTS_PER_RUN)
        return;
    (void)snprintf(f->facts[f->count].name, sizeof(f->facts[0].name), "%s", name);
    (void)snprintf(f->facts[f->count].value, sizeof(f->facts[0].value), "%s", value);
    f->count++;
}

/* Checkpoints take steady time, so their interval is a fact, and their absence too. */
static void add_checkpoints(struct run_facts *f, const json_t *options)
{
    const json_t *folder = json_object_get(json_object_get(options, "checkpoint-dir"), "value");
    const json_t *every = json_object_get(json_object_get(options, "checkpoint-every"), "value");
    char text[VALUE_MAX] = "";

    if (!folder || !json_scalar_text(folder, text, sizeof(text)) || text[0] == '\0')
        add_fact(f, "checkpoints", "none");
    else if (every && json_scalar_text(every, text, sizeof(text)))
        add_fact(f, "checkpoints", text);
}

static void add_number(struct run_facts *f, const char *name, uint64_t value)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    add_fact(f, name, text);
}

/* A fact of the host or the program; "": not in the manifest. */
static void add_known(struct run_facts *f, const char *name, const char *value)
{
    add_fact(f, name, value[0] != '\0' ? value : RUN_NOT_RECORDED);
}

/* NaN means no limit if the manifest's version records limits, else not recorded. */
static void add_limit(struct run_facts *f, const char *name, double value, bool records_limits)
{
    char text[32] = "";

    if (isfinite(value))
        (void)snprintf(text, sizeof(text), "%.9g", value);
    else if (records_limits)
        (void)snprintf(text, sizeof(text), "none");
    add_known(f, name, text);
}

static void add_host_facts(struct run_facts *f, const struct run_manifest *manifest)
{
    add_known(f, "host", manifest->host);
    add_known(f, "processor", manifest->cpu);
    add_number(f, "cores", manifest->cores);
    add_limit(f, "processor_quota", manifest->processor_quota, manifest->has_environment);
    add_limit(f, "memory_limit", manifest->memory_limit, manifest->has_environment);
    add_known(f, "binding",
              manifest->bind[0] == '\0' && manifest->processors[0] != '\0' ? "none"
                                                                           : manifest->bind);
    add_fact(f, "network", manifest->network[0] != '\0' ? manifest->network : "of the host");
    add_known(f, "governor", manifest->governor);
    add_known(f, "congestion_control", manifest->congestion_control);
    if (manifest->has_environment && manifest->environment[0] == '\0')
        add_fact(f, "environment", "none");
    else
        add_known(f, "environment", manifest->environment);
    add_known(f, "kernel", manifest->kernel);
    add_known(f, "program", manifest->program);
    add_known(f, "commit", manifest->git);
}

/* "threads=2 tls=0"; the different settings of several servers are joined by "; ". */
static void add_servers(struct run_facts *f, const struct run *run)
{
    char text[VALUE_MAX] = "";
    size_t length = 0;

    for (size_t i = 0; i < run->server_count && length < sizeof(text); i++)
        if (!strstr(text, run->servers[i].settings))
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%.400s",
                                       length > 0 ? "; " : "", run->servers[i].settings);
    if (run->server_count > 0)
        add_fact(f, SERVER_SETTINGS, text);
}

/* Options of the manifest that are no facts yet; '-' in names becomes '_'. */
static void add_options(struct run_facts *f, json_t *options)
{
    const char *key;
    json_t *option;

    json_object_foreach(options, key, option)
    {
        const json_t *value = json_object_get(option, "value");
        char name[64];
        char text[VALUE_MAX];

        (void)snprintf(name, sizeof(name), "%s", key);
        for (char *p = name; *p; p++)
            *p = *p == '-' ? '_' : *p;
        if (is_configuration(name) || is_listed(name, ignored_settings, COUNT_OF(ignored_settings)))
            continue;
        if (value && json_scalar_text(value, text, sizeof(text)))
            add_fact(f, name, text);
    }
}

/* The number of devices that share a process's batch (--sync dataparallel): each corresponds to a
 * rank of the other modes, so world size and batch size are compared per device. */
static uint64_t devices_of(const struct run *run)
{
    const json_t *devices = json_object_get(json_object_get(run->options, "devices"), "value");
    char text[VALUE_MAX];
    uint64_t count;

    if (strcmp(run->configuration.sync, "dataparallel") != 0 || !devices ||
        !json_scalar_text(devices, text, sizeof(text)) || !parse_uint64(text, &count) || count == 0)
        return 1;
    return count;
}

static void add_configured(struct run_facts *f, const char *name, const char *value,
                           uint64_t devices)
{
    uint64_t batch;

    if (devices > 1 && strcmp(name, "batch_size") == 0 && parse_uint64(value, &batch) &&
        batch % devices == 0)
        add_number(f, name, batch / devices);
    else
        add_fact(f, name, value);
}

/* A failed run contributes only its seed, which belongs to the set of its mode. */
static void collect_run_facts(const struct run *run, struct run_facts *f)
{
    uint64_t devices = devices_of(run);
    char faults[VALUE_MAX];

    f->count = 0;
    if (run->state == RUN_FAILED) {
        if (run->configuration.seed[0] != '\0')
            add_fact(f, "seed", run->configuration.seed);
        return;
    }
    for (size_t i = 0; i < run_configuration_length; i++) {
        const struct json_field *field = &run_configuration_fields[i];

        add_configured(f, field->name, (const char *)&run->configuration + field->offset, devices);
    }
    add_number(f, "world_size", run->manifest.world_size * devices);
    add_number(f, "steps", run->summary.steps);
    add_checkpoints(f, run->options);
    run_faults_text(&run->faults, faults, sizeof(faults));
    add_fact(f, "faults", faults);
    add_host_facts(f, &run->manifest);
    add_servers(f, run);
    add_options(f, run->options);
}

static const char *find_value(const struct run_facts *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->facts[i].name, name) == 0)
            return f->facts[i].value;
    return NULL;
}

static struct fact *find_fact(struct comparison *c, const char *name)
{
    for (size_t i = 0; i < c->fact_count; i++)
        if (strcmp(c->facts[i].name, name) == 0)
            return &c->facts[i];
    return NULL;
}

/* Add a fact with room for a value of each mode; c->facts has room for FACTS_PER_RUN. */
static enum status add_fact_name(struct comparison *c, const char *name, struct error *err)
{
    struct fact *fact = &c->facts[c->fact_count];
    enum status status;

    if (find_fact(c, name) || c->fact_count == FACTS_PER_RUN)
        return STATUS_OK;
    status = mem_calloc(c->mode_count, sizeof(char *), "facts", &fact->values, err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(fact->name, sizeof(fact->name), "%s", name);
    fact->is_compared = is_listed(name, compared_settings, COUNT_OF(compared_settings));
    c->fact_count++;
    return STATUS_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

/* The set of one fact's values over the runs of a mode that have it: "1, 2, 3", and its size. */
static enum status join_values(const struct comparison *c, const struct run_facts *facts,
                               size_t mode, const char *name, char **ret, size_t *ret_count,
                               struct error *err)
{
    struct text_list values = {0};
    struct strbuf joined = STRBUF_INIT;
    enum status status = STATUS_OK;

    for (size_t i = 0; i < c->list->length; i++) {
        const char *value;

        if (c->mode_of[i] != mode)
            continue;
        value = find_value(&facts[i], name);
        if (!value && (c->list->runs[i].state == RUN_FAILED || strcmp(name, SERVER_SETTINGS) == 0))
            continue;
        value = value ? value : RUN_NOT_RECORDED;
        if (text_list_find(&values, value) == SIZE_MAX)
            text_list_addf(&values, "%s", value);
    }
    if (values.length > 0)
        qsort(values.texts, values.length, sizeof(char *), compare_texts);
    for (size_t i = 0; i < values.length; i++)
        strbuf_addf(&joined, "%s%s", i > 0 ? ", " : "", values.texts[i]);
    *ret_count = values.length;
    if (values.failed || !strbuf_ok(&joined))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for facts");
    else if (values.length > 0)
        status = mem_strdup(joined.text, ret, err);
    text_list_release(&values);
    strbuf_release(&joined);
    return status;
}

/* Fill a fact's values; a mode whose own runs differ is a reason. */
static enum status fill_fact(struct comparison *c, const struct run_facts *facts, struct fact *fact,
                             struct error *err)
{
    for (size_t m = 0; m < c->mode_count; m++) {
        size_t count = 0;
        enum status status = join_values(c, facts, m, fact->name, &fact->values[m], &count, err);

        if (status != STATUS_OK)
            return status;
        if (count > 1 && strcmp(fact->name, "seed") != 0)
            text_list_addf(&c->reasons, "the runs of %s differ in %s: %s", c->modes[m].name,
                           fact->name, fact->values[m]);
    }
    return STATUS_OK;
}

/* The single-process mode differs by design in world size and number of steps; `sparring launch`
 * sets OMP_NUM_THREADS only for several ranks. */
static bool must_match(const struct comparison *c, const struct fact *fact, size_t mode)
{
    static const char *const of_several[] = {"world_size", "steps", "environment"};

    return fact->values[mode] && !fact->is_compared &&
           (c->modes[mode].role != MODE_SINGLE ||
            !is_listed(fact->name, of_several, COUNT_OF(of_several)));
}

static bool modes_differ(const struct comparison *c, const struct fact *fact, size_t a, size_t b)
{
    return must_match(c, fact, a) && must_match(c, fact, b) &&
           strcmp(fact->values[a], fact->values[b]) != 0;
}

bool comparison_is_fair(const struct comparison *c, size_t a, size_t b)
{
    for (size_t i = 0; i < c->fact_count; i++)
        if (modes_differ(c, &c->facts[i], a, b))
            return false;
    return true;
}

/* "batch_size differs: 64 (ring), 32 (ps-1, ps-2)". */
static void add_reason(struct comparison *c, const struct fact *fact)
{
    struct strbuf text = STRBUF_INIT;

    for (size_t m = 0; m < c->mode_count; m++) {
        bool is_first = true;

        for (size_t earlier = 0; earlier < m; earlier++)
            if (must_match(c, fact, earlier) && !modes_differ(c, fact, earlier, m))
                is_first = false;
        if (!must_match(c, fact, m) || !is_first)
            continue;
        strbuf_addf(&text, "%s%s (%s", text.length > 0 ? ", " : "",
                    fact->values[m][0] ? fact->values[m] : "none", c->modes[m].name);
        for (size_t later = m + 1; later < c->mode_count; later++)
            if (must_match(c, fact, later) && !modes_differ(c, fact, m, later))
                strbuf_addf(&text, ", %s", c->modes[later].name);
        strbuf_add(&text, ")");
    }
    text_list_addf(&c->reasons, "%s differs: %s", fact->name, text.text);
    strbuf_release(&text);
}

static void compare_modes(struct comparison *c)
{
    for (size_t i = 0; i < c->fact_count; i++) {
        bool unequal = false;

        for (size_t a = 0; a < c->mode_count; a++)
            for (size_t b = a + 1; b < c->mode_count; b++)
                unequal = unequal || modes_differ(c, &c->facts[i], a, b);
        if (unequal)
            add_reason(c, &c->facts[i]);
    }
}

enum status comparison_check_fairness(struct comparison *c, struct error *err)
{
    struct run_facts *facts = NULL;
    enum status status =
        mem_calloc(c->list->length, sizeof(*facts), "the facts of the runs", &facts, err);

    if (status == STATUS_OK)
        status = mem_calloc(FACTS_PER_RUN, sizeof(*c->facts), "facts", &c->facts, err);
    for (size_t i = 0; i < c->list->length && status == STATUS_OK; i++) {
        collect_run_facts(&c->list->runs[i], &facts[i]);
        for (size_t k = 0; k < facts[i].count && status == STATUS_OK; k++)
            status = add_fact_name(c, facts[i].facts[k].name, err);
    }
    for (size_t i = 0; i < c->fact_count && status == STATUS_OK; i++)
        status = fill_fact(c, facts, &c->facts[i], err);
    free(facts);
    if (status != STATUS_OK)
        return status;
    compare_modes(c);
    return STATUS_OK;
}
