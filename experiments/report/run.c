/*
 * run: reads one run directory: attempt.json, manifest.json, summary.json, then the records of
 * ranks and servers, and last decides whether the run is RUN_OK.  Every file may be missing (the
 * run crashed before writing it), none may be malformed.
 */
#include "experiments/report/run.h"

#include "common/base/file.h"
#include "common/base/memory.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define INDEX_MAX       65536
#define BYTES_ROUNDING  1.0 /* per step: formulas may divide */

#define TEXT_FIELD(type, member)                                                                   \
    {                                                                                              \
#member, FIELD_TEXT, offsetof(struct type, member), sizeof(((struct type *)0)->member), 0  \
    }
#define OTHER_FIELD(type, member, kind)                                                            \
    {                                                                                              \
#member, kind, offsetof(struct type, member), 0, 0                                         \
    }

static const struct json_field attempt_fields[] = {
    TEXT_FIELD(attempt, title),
    TEXT_FIELD(attempt, mode),
    TEXT_FIELD(attempt, label),
    OTHER_FIELD(attempt, mode_index, FIELD_COUNT),
    OTHER_FIELD(attempt, repeat, FIELD_COUNT),
    OTHER_FIELD(attempt, order, FIELD_COUNT),
    TEXT_FIELD(attempt, seed),
    TEXT_FIELD(attempt, outcome),
    OTHER_FIELD(attempt, seconds, FIELD_NUMBER),
    TEXT_FIELD(attempt, command),
};

const struct json_field run_configuration_fields[] = {
    TEXT_FIELD(run_configuration, model),
    TEXT_FIELD(run_configuration, data),
    TEXT_FIELD(run_configuration, sync),
    TEXT_FIELD(run_configuration, backend),
    TEXT_FIELD(run_configuration, servers),
    TEXT_FIELD(run_configuration, batch_size),
    TEXT_FIELD(run_configuration, lr),
    TEXT_FIELD(run_configuration, seed),
    TEXT_FIELD(run_configuration, reduce),
    TEXT_FIELD(run_configuration, ps_update),
    TEXT_FIELD(run_configuration, device),
    TEXT_FIELD(run_configuration, transport),
    TEXT_FIELD(run_configuration, consistency),
    TEXT_FIELD(run_configuration, staleness),
    TEXT_FIELD(run_configuration, backup_workers),
    TEXT_FIELD(run_configuration, server_placement),
};
const size_t run_configuration_length = COUNT_OF(run_configuration_fields);

static const struct json_field manifest_fields[] = {
    TEXT_FIELD(run_manifest, run),
    TEXT_FIELD(run_manifest, start),
    TEXT_FIELD(run_manifest, program),
    TEXT_FIELD(run_manifest, git),
    OTHER_FIELD(run_manifest, world_size, FIELD_COUNT),
    OTHER_FIELD(run_manifest, parameters, FIELD_NUMBER),
    OTHER_FIELD(run_manifest, parameter_bytes, FIELD_NUMBER),
};

static const struct json_field host_fields[] = {
    {"name", FIELD_TEXT, offsetof(struct run_manifest, host), 256, 0},
    TEXT_FIELD(run_manifest, cpu),
    TEXT_FIELD(run_manifest, kernel),
    OTHER_FIELD(run_manifest, cores, FIELD_COUNT),
    OTHER_FIELD(run_manifest, processor_quota, FIELD_NUMBER),
    OTHER_FIELD(run_manifest, memory_limit, FIELD_NUMBER),
    OTHER_FIELD(run_manifest, load, FIELD_NUMBER),
    TEXT_FIELD(run_manifest, governor),
    TEXT_FIELD(run_manifest, congestion_control),
    TEXT_FIELD(run_manifest, processors),
    TEXT_FIELD(run_manifest, bind),
    TEXT_FIELD(run_manifest, network),
    TEXT_FIELD(run_manifest, environment),
};

static const struct json_field summary_fields[] = {
    OTHER_FIELD(run_summary, schema, FIELD_COUNT),
    TEXT_FIELD(run_summary, status),
    TEXT_FIELD(run_summary, error),
    OTHER_FIELD(run_summary, test_accuracy, FIELD_NUMBER),
    OTHER_FIELD(run_summary, test_loss, FIELD_NUMBER),
    OTHER_FIELD(run_summary, samples_per_second, FIELD_NUMBER),
    OTHER_FIELD(run_summary, step_ms_median, FIELD_NUMBER),
    OTHER_FIELD(run_summary, wall_seconds, FIELD_NUMBER),
    OTHER_FIELD(run_summary, steps, FIELD_COUNT),
    OTHER_FIELD(run_summary, epochs, FIELD_COUNT),
    OTHER_FIELD(run_summary, recoveries, FIELD_COUNT),
    OTHER_FIELD(run_summary, samples_lost, FIELD_COUNT),
    TEXT_FIELD(run_summary, lost_ranks),
};

static const struct json_field network_fields[] = {
    OTHER_FIELD(run_network, lowest_rate_bits_s, FIELD_NUMBER),
    OTHER_FIELD(run_network, highest_round_trip_ms, FIELD_NUMBER),
    OTHER_FIELD(run_network, late_p99_ms, FIELD_NUMBER),
    OTHER_FIELD(run_network, link_bytes, FIELD_NUMBER),
};

void run_release(struct run *run)
{
    if (!run)
        return;
    free(run->path);
    json_decref(run->options);
    run_faults_release(&run->faults);
    for (size_t i = 0; i < run->rank_count; i++)
        records_release(&run->ranks[i]);
    for (size_t i = 0; i < run->server_count; i++)
        records_release(&run->servers[i]);
    free(run->ranks);
    free(run->servers);
    *run = (struct run){0};
}

/* Read PATH/NAME as an object; *ret stays NULL when the file does not exist. */
static enum status read_member(const char *folder, const char *name, json_t **ret,
                               struct json_position *position, char *path, size_t size,
                               struct error *err)
{
    enum status status = file_join(path, size, folder, name, err);

    *position = (struct json_position){path, 1};
    if (status != STATUS_OK || access(path, F_OK) != 0)
        return status;
    return json_file_read(path, ret, err);
}

static enum status read_attempt(struct run *run, struct error *err)
{
    char path[4096];
    struct json_position position;
    json_t *object = NULL;
    enum status status =
        read_member(run->path, ATTEMPT_FILE, &object, &position, path, sizeof(path), err);

    if (status != STATUS_OK || !object)
        return status;
    status = json_fields_read(object, &position, attempt_fields, COUNT_OF(attempt_fields),
                              &run->attempt, err);
    run->has_attempt = true;
    json_decref(object);
    return status;
}

/* Fill the configuration from the manifest's options: "batch_size" is option "batch-size". */
static void configuration_from_options(struct run *run)
{
    for (size_t i = 0; i < run_configuration_length; i++) {
        const struct json_field *field = &run_configuration_fields[i];
        char name[64];
        const json_t *value;

        (void)snprintf(name, sizeof(name), "%s", field->name);
        for (char *p = name; *p; p++)
            *p = *p == '_' ? '-' : *p;
        value = json_object_get(json_object_get(run->options, name), "value");
        if (value)
            (void)json_scalar_text(value, (char *)&run->configuration + field->offset, field->size);
    }
}

static enum status read_manifest(struct run *run, struct error *err)
{
    char path[4096];
    struct json_position position;
    json_t *object = NULL;
    json_t *host;
    enum status status =
        read_member(run->path, "manifest.json", &object, &position, path, sizeof(path), err);

    if (status != STATUS_OK || !object)
        return status;
    run->has_manifest = true;
    host = json_object_get(object, "host");
    status = json_fields_read(object, &position, manifest_fields, COUNT_OF(manifest_fields),
                              &run->manifest, err);
    run->manifest.has_environment = json_object_get(host, "environment") != NULL;
    if (status == STATUS_OK && json_is_object(host))
        status = json_fields_read(host, &position, host_fields, COUNT_OF(host_fields),
                                  &run->manifest, err);
    if (json_is_object(json_object_get(object, "options")))
        run->options = json_incref(json_object_get(object, "options"));
    configuration_from_options(run);
    json_decref(object);
    return status;
}

static enum status read_summary(struct run *run, struct error *err)
{
    char path[4096];
    struct json_position position;
    json_t *object = NULL;
    json_t *configuration;
    enum status status =
        read_member(run->path, "summary.json", &object, &position, path, sizeof(path), err);

    if (status != STATUS_OK || !object)
        return status;
    run->has_summary = true;
    configuration = json_object_get(object, "configuration");
    status = json_fields_read(object, &position, summary_fields, COUNT_OF(summary_fields),
                              &run->summary, err);
    if (status == STATUS_OK && json_is_object(configuration))
        status = json_fields_read(configuration, &position, run_configuration_fields,
                                  run_configuration_length, &run->configuration, err);
    json_decref(object);
    return status;
}

/* "rank12.jsonl" with prefix "rank" -> 12; false for any other name. */
static bool record_index(const char *name, const char *prefix, unsigned *ret)
{
    size_t length = strlen(prefix);
    unsigned value = 0;
    const char *p = name + length;

    if (strncmp(name, prefix, length) != 0 || *p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9' && value < INDEX_MAX; p++)
        value = value * 10 + (unsigned)(*p - '0');
    *ret = value;
    return strcmp(p, ".jsonl") == 0;
}

static int is_record_file(const struct dirent *entry)
{
    unsigned index;

    return record_index(entry->d_name, "rank", &index) ||
           record_index(entry->d_name, "server", &index);
}

static enum status read_network(struct run *run, struct error *err)
{
    char path[4096];
    struct json_position position;
    json_t *object = NULL;
    enum status status =
        read_member(run->path, "network.json", &object, &position, path, sizeof(path), err);

    run->network = (struct run_network){(double)NAN, (double)NAN, (double)NAN, (double)NAN};
    if (status != STATUS_OK || !object)
        return status;
    status = json_fields_read(object, &position, network_fields, COUNT_OF(network_fields),
                              &run->network, err);
    json_decref(object);
    return status;
}

/* Read every rank<r>.jsonl and server<k>.jsonl, by number. */
static enum status read_all_records(struct run *run, struct error *err)
{
    struct dirent **entries = NULL;
    int found = scandir(run->path, &entries, is_record_file, versionsort);
    enum status status = STATUS_OK;

    if (found < 0)
        return error_set(err, STATUS_IO, "cannot list '%s'", run->path);
    status = mem_calloc((size_t)found, sizeof(*run->ranks), "ranks", &run->ranks, err);
    if (status == STATUS_OK)
        status = mem_calloc((size_t)found, sizeof(*run->servers), "servers", &run->servers, err);
    for (int i = 0; i < found && status == STATUS_OK; i++) {
        char path[4096];
        unsigned index = 0;
        bool is_rank = record_index(entries[i]->d_name, "rank", &index);
        struct records *to =
            is_rank ? &run->ranks[run->rank_count] : &run->servers[run->server_count];

        if (!is_rank)
            (void)record_index(entries[i]->d_name, "server", &index);
        status = file_join(path, sizeof(path), run->path, entries[i]->d_name, err);
        if (status == STATUS_OK)
            status = records_read(path, index, to, err);
        if (status == STATUS_OK && is_rank)
            run->rank_count++;
        else if (status == STATUS_OK)
            run->server_count++;
    }
    for (int i = 0; i < found; i++)
        free(entries[i]);
    free(entries);
    return status;
}

static void fail_run(struct run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void fail_run(struct run *run, const char *format, ...)
{
    va_list args;

    if (run->state == RUN_FAILED)
        return;
    run->state = RUN_FAILED;
    va_start(args, format);
    (void)vsnprintf(run->reason, sizeof(run->reason), format, args);
    va_end(args);
}

/* Every rank, and no other, must have a file with an end record, a step and no incomplete line;
 * that of a server may have no incomplete line either. */
static void judge_files(struct run *run)
{
    for (size_t i = 0; i < run->rank_count && run->manifest.world_size > 0; i++)
        if (run->ranks[i].index >= run->manifest.world_size)
            fail_run(run, "rank%u.jsonl is there, and the world size is %" PRIu64,
                     run->ranks[i].index, run->manifest.world_size);
    for (size_t i = 0; i < run->server_count; i++)
        if (run->servers[i].was_cut)
            fail_run(run, "server%u.jsonl ends inside a line", run->servers[i].index);
    for (size_t rank = 0; rank < run->manifest.world_size && run->state != RUN_FAILED; rank++) {
        const struct records *records = NULL;

        for (size_t i = 0; i < run->rank_count; i++)
            if (run->ranks[i].index == rank)
                records = &run->ranks[i];
        if (!records)
            fail_run(run, "rank%zu.jsonl is missing (the world size is %" PRIu64 ")", rank,
                     run->manifest.world_size);
        else if (records->was_cut)
            fail_run(run, "rank%zu.jsonl ends inside a line", rank);
        else if (records->end.status[0] == '\0')
            fail_run(run, "rank %zu wrote no end record", rank);
    }
    for (size_t i = 0; i < run->rank_count; i++)
        if (run->ranks[i].length == 0)
            fail_run(run, "rank %u recorded no step", run->ranks[i].index);
}

/* Each synchronisation mode has a formula for its payload bytes: a run whose counters differ from
 * it did not do what its configuration says.  All steps count, warm-up included. */
static void judge_payload(struct run *run)
{
    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];
        const double sides[2] = {rank->end.expected_tx_payload_bytes,
                                 rank->end.expected_rx_payload_bytes};

        for (size_t s = 0; s < 2 && rank->length > 0; s++) {
            double sum = 0;

            for (size_t k = 0; k < rank->length; k++)
                sum += (double)(s == 0 ? rank->steps[k].tx_payload_bytes
                                       : rank->steps[k].rx_payload_bytes);
            sum -= sides[s] * (double)rank->length; /* NaN: there is no formula */
            if (fabs(sum) > BYTES_ROUNDING * (double)rank->length)
                fail_run(run, "rank %u %s %+.1f bytes per step against its formula's %.1f",
                         rank->index, s == 0 ? "sent" : "received", sum / (double)rank->length,
                         sides[s]);
        }
    }
}

/* Failures in the end records of ranks or servers. */
static void judge_ends(struct run *run, const char *kind, const struct records *all, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct end_record *end = &all[i].end;

        if (end->status[0] != '\0' && strcmp(end->status, "ok") != 0)
            fail_run(run, "%s %u: %s", kind, all[i].index,
                     end->error[0] ? end->error : end->status);
    }
}

/* The first reason is kept: causes (errors that processes recorded) are checked before symptoms. */
static void judge_run(struct run *run)
{
    if (run->configuration.seed[0] == '\0')
        (void)snprintf(run->configuration.seed, sizeof(run->configuration.seed), "%s",
                       run->attempt.seed);
    run->state = RUN_OK;
    if (run->summary.schema > RUN_SUMMARY_SCHEMA)
        fail_run(run, "summary.json has schema %" PRIu64 ", and this program reads up to %d",
                 run->summary.schema, RUN_SUMMARY_SCHEMA);
    if (run->has_summary && strcmp(run->summary.status, "ok") != 0)
        fail_run(run, "%s", run->summary.error[0] ? run->summary.error : run->summary.status);
    if (run->summary.recoveries > 0)
        fail_run(run,
                 "lost rank %s and went on without (%" PRIu64 " recoveries, %" PRIu64
                 " samples not seen)",
                 run->summary.lost_ranks, run->summary.recoveries, run->summary.samples_lost);
    judge_ends(run, "rank", run->ranks, run->rank_count);
    judge_ends(run, "server", run->servers, run->server_count);
    if (run->has_attempt && strcmp(run->attempt.outcome, "ok") != 0)
        fail_run(run, "%s", run->attempt.outcome[0] ? run->attempt.outcome : "not finished");
    if (!run->has_manifest)
        fail_run(run, "manifest.json is missing");
    if (!run->has_summary)
        fail_run(run, "summary.json is missing: the run did not end in order");
    judge_files(run);
    if (run->rank_count == 0)
        fail_run(run, "there is no rank<r>.jsonl");
    judge_payload(run);
}

bool run_is_folder(const char *path)
{
    static const char *const names[] = {"manifest.json", "summary.json", ATTEMPT_FILE,
                                        "rank0.jsonl"};

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char file[4096];

        if (file_join(file, sizeof(file), path, names[i], NULL) == STATUS_OK &&
            access(file, F_OK) == 0)
            return true;
    }
    return false;
}

const char *run_option(const void *run, const char *name)
{
    const struct run *of = run;
    const struct run_configuration *f = &of->configuration;
    const json_t *option = json_object_get(of->options, name);
    const char *value = json_string_value(json_object_get(option, "value"));

    return strcmp(name, "sync") == 0             ? f->sync
           : strcmp(name, "consistency") == 0    ? f->consistency
           : strcmp(name, "staleness") == 0      ? f->staleness
           : strcmp(name, "backup-workers") == 0 ? f->backup_workers
           : value                               ? value
                                                 : "";
}

static void set_name(struct run *run)
{
    size_t length = strlen(run->path);
    const char *slash;

    while (length > 1 && run->path[length - 1] == '/')
        run->path[--length] = '\0';
    slash = strrchr(run->path, '/');
    (void)snprintf(run->name, sizeof(run->name), "%s", slash && slash[1] ? slash + 1 : run->path);
}

enum status run_open_head(const char *path, struct run *ret, struct error *err)
{
    struct run run = {0};
    const double unknown = (double)NAN;
    enum status status;

    if (!run_is_folder(path))
        return error_set(err, STATUS_NOT_FOUND,
                         "'%s' is not a run directory: it holds no manifest.json, summary.json, "
                         "rank0.jsonl or " ATTEMPT_FILE,
                         path);
    run.attempt.seconds = unknown;
    run.manifest.parameters = run.manifest.parameter_bytes = unknown;
    run.manifest.processor_quota = run.manifest.memory_limit = run.manifest.load = unknown;
    run.summary.test_accuracy = run.summary.test_loss = run.summary.samples_per_second = unknown;
    run.summary.step_ms_median = run.summary.wall_seconds = unknown;
    status = mem_strdup(path, &run.path, err);
    if (status != STATUS_OK)
        return status;
    set_name(&run);
    status = read_attempt(&run, err);
    if (status == STATUS_OK)
        status = read_manifest(&run, err);
    if (status == STATUS_OK)
        status = read_summary(&run, err);
    if (status == STATUS_OK)
        status = read_network(&run, err);
    if (status != STATUS_OK)
        run_release(&run);
    *ret = run;
    return status;
}

enum status run_open(const char *path, struct run *ret, struct error *err)
{
    struct run run = {0};
    enum status status = run_open_head(path, &run, err);

    if (status != STATUS_OK)
        return status;
    status = run_faults_read(run.path, &run.faults, err);
    if (status == STATUS_OK)
        status = read_all_records(&run, err);
    if (status != STATUS_OK) {
        run_release(&run);
        return status;
    }
    judge_run(&run);
    *ret = run;
    return STATUS_OK;
}
