/*
 * evidence: reads a run directory: manifest.json, summary.json, then per rank its records and its
 * flight recorder, then whether its process exists.  Draws no conclusions: see diagnosis.c.
 */
#include "experiments/inspect/evidence.h"

#include "common/base/file.h"
#include "common/base/host.h"
#include "common/base/memory.h"
#include "experiments/report/json_fields.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANKS_MAX        4096
#define SERVERS_MAX      4096
#define RECORD_BYTES_MAX ((size_t)1 << 30)

/* ---- one rank's records ---- */

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text ? text : "";
}

static void copy_text(char *to, size_t size, const char *text)
{
    (void)snprintf(to, size, "%s", text);
}

static double ms_of(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name)) * 1e-6;
}

static void add_step_record(struct evidence_rank *r, const json_t *object)
{
    r->steps++;
    r->last_step = (uint64_t)json_integer_value(json_object_get(object, "step"));
    if (json_is_number(json_object_get(object, "loss"))) /* else the step had no samples */
        r->last_loss = json_number_value(json_object_get(object, "loss"));
    r->step_ms += ms_of(object, "step_ns");
    r->compute_ms += ms_of(object, "compute_ns");
    r->exposed_comm_ms += ms_of(object, "exposed_comm_ns");
}

static void add_to_timeline(json_t *timeline, json_t *object)
{
    if (json_array_size(timeline) == EVIDENCE_TIMELINE)
        (void)json_array_remove(timeline, 0);
    (void)json_array_append(timeline, object);
}

typedef void record_fn(void *user, json_t *object);

static void add_round_record(void *user, json_t *object)
{
    const struct evidence_server *s = user;

    if (strcmp(text_of(object, "kind"), "round") == 0)
        add_to_timeline(s->timeline, object);
}

static void add_rank_record(void *user, json_t *object)
{
    struct evidence_rank *r = user;
    const char *kind = text_of(object, "kind");

    if (strcmp(kind, "step") == 0) {
        add_step_record(r, object);
        add_to_timeline(r->timeline, object);
    } else if (strcmp(kind, "start") == 0) {
        r->pid = json_integer_value(json_object_get(object, "pid"));
        copy_text(r->host, sizeof(r->host), text_of(object, "host"));
    } else if (strcmp(kind, "end") == 0) {
        copy_text(r->status, sizeof(r->status), text_of(object, "status"));
        copy_text(r->error, sizeof(r->error), text_of(object, "error"));
        copy_text(r->parameters_hash, sizeof(r->parameters_hash),
                  text_of(object, "parameters_hash"));
    } else if (strcmp(kind, "recovery") == 0) {
        (void)json_array_append(r->recoveries, object);
    } else if (strcmp(kind, "bucket") == 0) {
        const json_t *last = json_array_get(r->buckets, 0);

        if (last && json_integer_value(json_object_get(last, "step")) !=
                        json_integer_value(json_object_get(object, "step")))
            (void)json_array_clear(r->buckets);
        (void)json_array_append(r->buckets, object);
    } else if (kind[0] != '\0' && strcmp(kind, "evaluation") != 0) {
        (void)json_object_set(r->others, kind, object);
    }
}

/* Parse up to the first malformed line; a last line without newline is still being written. */
static void parse_lines(struct evidence *e, const char *path, const char *text, size_t size,
                        record_fn *add_record, void *user)
{
    struct json_position position = {.path = path};
    const char *end = text + size;

    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        json_t *object = NULL;
        struct error why = {0};

        position.line++;
        if (!newline)
            break;
        if (json_line_read(text, (size_t)(newline - text), &position, &object, &why) != STATUS_OK) {
            text_list_addf(&e->problems, "%s; the lines after it are left out", why.text);
            break;
        }
        add_record(user, object);
        json_decref(object);
        text = newline + 1;
    }
}

/* False when the file could not be read; the reason is added to the problems. */
static bool read_lines(struct evidence *e, const char *path, record_fn *add_record, void *user)
{
    char *text = NULL;
    size_t size = 0;
    struct error why = {0};

    if (file_read(path, RECORD_BYTES_MAX, &text, &size, &why) != STATUS_OK) {
        text_list_addf(&e->problems, "%s", why.text);
        return false;
    }
    parse_lines(e, path, text, size, add_record, user);
    free(text);
    return true;
}

static void read_records(struct evidence *e, struct evidence_rank *r)
{
    char path[4200];

    (void)snprintf(path, sizeof(path), "%s/rank%u.jsonl", e->path, r->rank);
    if (access(path, F_OK) != 0) {
        text_list_addf(&e->problems, "rank %u left no records (no rank%u.jsonl)", r->rank, r->rank);
        return;
    }
    r->has_records = read_lines(e, path, add_rank_record, r);
    if (r->steps > 0) {
        r->step_ms /= (double)r->steps;
        r->compute_ms /= (double)r->steps;
        r->exposed_comm_ms /= (double)r->steps;
    }
}

/* Read server0.jsonl, server1.jsonl, ...; a server without a part of the model has left none. */
static enum status read_servers(struct evidence *e, struct error *err)
{
    char path[4200];

    for (unsigned k = 0; k < SERVERS_MAX; k++) {
        struct evidence_server *more;

        (void)snprintf(path, sizeof(path), "%s/server%u.jsonl", e->path, k);
        if (access(path, F_OK) != 0)
            continue;
        more = realloc(e->servers, (e->server_count + 1) * sizeof(*more));
        if (!more)
            return error_set(err, STATUS_NO_MEMORY, "no memory for the records of server %u", k);
        e->servers = more;
        more[e->server_count] = (struct evidence_server){.index = k, .timeline = json_array()};
        (void)read_lines(e, path, add_round_record, &more[e->server_count++]);
    }
    return STATUS_OK;
}

static void read_flight(struct evidence *e, struct evidence_rank *r)
{
    char path[4200];
    struct error why = {0};

    (void)snprintf(path, sizeof(path), "%s/flight-rank%u.bin", e->path, r->rank);
    switch (flight_read(path, &r->flight, &why)) {
    case STATUS_OK:
        r->has_flight = true;
        r->pid = r->pid ? r->pid : r->flight.pid;
        if (r->flight.damaged > 0)
            text_list_addf(&e->problems, "%s: %zu entries are damaged and left out", path,
                           r->flight.damaged);
        if (r->flight.rank != r->rank)
            text_list_addf(&e->problems, "%s says that it is rank %u's", path, r->flight.rank);
        break;
    case STATUS_NOT_FOUND: /* reported by read_ranks for all ranks */
        break;
    default:
        text_list_addf(&e->problems, "%s", why.text);
        break;
    }
}

/* ---- processes ---- */

/* The state letter in /proc/<pid>/stat follows the last parenthesis of the command's name. */
static enum process_state process_state(int64_t pid)
{
    char path[64];
    char text[512];
    size_t size;
    const char *name_end;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return access("/proc/self/stat", F_OK) == 0 ? PROCESS_GONE : PROCESS_UNKNOWN;
    size = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[size] = '\0';
    name_end = strrchr(text, ')');
    if (!name_end || !strstr(text, "(sparring-worker") || name_end[1] != ' ')
        return PROCESS_GONE; /* another process has the pid now */
    switch (name_end[2]) {
    case 'T':
    case 't':
        return PROCESS_STOPPED;
    case 'Z':
    case 'X':
        return PROCESS_GONE;
    default:
        return PROCESS_RUNS;
    }
}

static void find_processes(struct evidence *e)
{
    struct host_info host;

    host_info_read(&host);
    for (size_t i = 0; i < e->rank_count; i++) {
        struct evidence_rank *r = &e->ranks[i];

        if (r->pid <= 0 || (r->host[0] != '\0' && strcmp(r->host, host.name) != 0))
            continue;
        r->process = process_state(r->pid);
        if (r->status[0] == '\0' && r->process != PROCESS_GONE)
            e->is_live = true;
    }
}

/* ---- the folder ---- */

static json_t *read_object(struct evidence *e, const char *name)
{
    char path[4200];
    json_t *object = NULL;
    struct error why = {0};

    (void)snprintf(path, sizeof(path), "%s/%s", e->path, name);
    if (json_file_read(path, &object, &why) == STATUS_OK)
        return object;
    if (why.status != STATUS_NOT_FOUND)
        text_list_addf(&e->problems, "%s", why.text);
    return NULL;
}

/* One more than the rank in "rank3.jsonl" or "flight-rank3.bin"; 0: none of these. */
static unsigned ranks_by_name(const char *name)
{
    unsigned rank;
    int end = 0;

    if ((sscanf(name, "rank%4u.jsonl%n", &rank, &end) == 1 && end > 0 && name[end] == '\0') ||
        (sscanf(name, "flight-rank%4u.bin%n", &rank, &end) == 1 && end > 0 && name[end] == '\0'))
        return rank + 1 <= RANKS_MAX ? rank + 1 : 0;
    return 0;
}

static enum status count_ranks(struct evidence *e, struct error *err)
{
    DIR *folder = opendir(e->path);
    json_int_t recorded_size = json_integer_value(json_object_get(e->manifest, "world_size"));
    const struct dirent *entry;

    if (!folder)
        return error_set_errno(err, errno, "cannot open the run directory '%s'", e->path);
    if (recorded_size > 0 && recorded_size <= RANKS_MAX)
        e->world_size = (unsigned)recorded_size;
    e->rank_count = e->world_size;
    while ((entry = readdir(folder)) != NULL) {
        unsigned count = ranks_by_name(entry->d_name);

        e->rank_count = count > e->rank_count ? count : e->rank_count;
    }
    (void)closedir(folder);
    if (e->rank_count == 0)
        return error_set(err, STATUS_NOT_FOUND,
                         "'%s' holds no run: no manifest.json, rank0.jsonl or flight-rank0.bin",
                         e->path);
    return STATUS_OK;
}

static enum status read_ranks(struct evidence *e, struct error *err)
{
    size_t flights = 0;
    enum status status = mem_calloc(e->rank_count, sizeof(*e->ranks), "ranks", &e->ranks, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < e->rank_count; i++) {
        struct evidence_rank *r = &e->ranks[i];

        r->rank = (unsigned)i;
        r->last_loss = (double)NAN;
        r->recoveries = json_array();
        r->others = json_object();
        r->buckets = json_array();
        r->timeline = json_array();
        if (!r->recoveries || !r->buckets || !r->others || !r->timeline)
            return error_set(err, STATUS_NO_MEMORY, "no memory for the records of rank %zu", i);
        read_records(e, r);
        read_flight(e, r);
        flights += r->has_flight;
        if (r->has_flight && e->world_size == 0)
            e->world_size = r->flight.world_size;
    }
    for (size_t i = 0; flights > 0 && i < e->rank_count; i++)
        if (!e->ranks[i].has_flight)
            text_list_addf(&e->problems, "rank %zu has no readable flight recorder", i);
    return STATUS_OK;
}

/* "1,2" */
static void mark_lost(struct evidence *e, const char *list)
{
    while (*list) {
        char *end;
        unsigned long rank = strtoul(list, &end, 10);

        if (end == list)
            return;
        if (rank < e->rank_count)
            e->ranks[rank].lost = true;
        list = *end == ',' ? end + 1 : end;
    }
}

static void find_lost(struct evidence *e)
{
    for (size_t i = 0; i < e->rank_count; i++) {
        size_t index;
        json_t *record;

        json_array_foreach(e->ranks[i].recoveries, index, record)
        {
            mark_lost(e, text_of(record, "lost_ranks"));
        }
    }
}

static void find_clock(struct evidence *e)
{
    const struct evidence_rank *first = NULL;

    e->one_clock = true;
    for (size_t i = 0; i < e->rank_count; i++) {
        const struct evidence_rank *r = &e->ranks[i];

        if (!r->has_flight)
            continue;
        e->one_clock = e->one_clock && (!first || strcmp(first->host, r->host) == 0);
        if (!first || r->flight.opened_wall < e->first_wall)
            e->first_wall = r->flight.opened_wall;
        if (!first || r->flight.opened_ns < e->first_ns)
            e->first_ns = r->flight.opened_ns;
        first = first ? first : r;
    }
}

double evidence_seconds(const struct evidence *e, const struct flight_log *log, int64_t moment_ns)
{
    return e->one_clock ? (double)(moment_ns - e->first_ns) * 1e-9
                        : flight_wall(log, moment_ns) - e->first_wall;
}

static void read_critical_path(struct evidence *e)
{
    struct run run;

    if (run_open(e->path, &run, NULL) != STATUS_OK)
        return;
    if (run.state == RUN_OK)
        (void)critical_path_add(&e->critical_path, &run, NULL);
    run_release(&run);
}

enum status evidence_read(const char *path, struct evidence *ret, struct error *err)
{
    enum status status;

    *ret = (struct evidence){0};
    copy_text(ret->path, sizeof(ret->path), path);
    ret->manifest = read_object(ret, "manifest.json");
    if (!ret->manifest)
        text_list_addf(&ret->problems, "no readable manifest.json: what was run is not known");
    ret->summary = read_object(ret, "summary.json");
    status = count_ranks(ret, err);
    if (status == STATUS_OK)
        status = read_ranks(ret, err);
    if (status == STATUS_OK)
        status = read_servers(ret, err);
    if (status == STATUS_OK && ret->problems.failed)
        status = error_set(err, STATUS_NO_MEMORY, "no memory to read '%s'", path);
    if (status != STATUS_OK) {
        evidence_release(ret);
        return status;
    }
    find_processes(ret);
    find_clock(ret);
    find_lost(ret);
    read_critical_path(ret);
    return STATUS_OK;
}

void evidence_release(struct evidence *e)
{
    if (!e)
        return;
    for (size_t i = 0; e->ranks && i < e->rank_count; i++) {
        json_decref(e->ranks[i].recoveries);
        json_decref(e->ranks[i].others);
        json_decref(e->ranks[i].buckets);
        json_decref(e->ranks[i].timeline);
        flight_log_release(&e->ranks[i].flight);
    }
    free(e->ranks);
    for (size_t i = 0; i < e->server_count; i++)
        json_decref(e->servers[i].timeline);
    free(e->servers);
    json_decref(e->manifest);
    json_decref(e->summary);
    text_list_release(&e->problems);
    critical_path_release(&e->critical_path);
    *e = (struct evidence){0};
}

void evidence_option(const struct evidence *e, const char *name, char *text, size_t size)
{
    const json_t *option = json_object_get(json_object_get(e->manifest, "options"), name);
    const json_t *value = json_object_get(option, "value");
    char member[64];

    text[0] = '\0';
    if (!value) { /* the summary has the main ones, as "batch_size" */
        (void)snprintf(member, sizeof(member), "%s", name);
        for (char *p = member; *p; p++)
            *p = *p == '-' ? '_' : *p;
        value = json_object_get(json_object_get(e->summary, "configuration"), member);
    }
    if (value)
        (void)json_scalar_text(value, text, size);
}
