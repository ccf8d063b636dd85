/*
 * job: builds the command line of `sparring launch`, runs it, and reads the JSON records and
 * checkpoints of its processes.  Failures fail the test.  Returned texts are static buffers.
 */
#include "tests/integration/job.h"

#include "common/base/clock.h"
#include "common/checkpoint/safetensors.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENTS_MAX 96

static const char *last_output = "";

const char *job_output(void)
{
    return last_output;
}

const char *job_device(void)
{
    const char *device = getenv("SPARRING_TEST_DEVICE");

    return device ? device : "cpu";
}

const char *job_pace_and_hold(unsigned ranks, unsigned step, const unsigned *held, unsigned count)
{
    char text[256];
    size_t length = 0;

    for (unsigned i = 0; i < ranks + count; i++) {
        if (i < ranks)
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%u 0- 1\n", i);
        else
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%u %u 15000\n",
                                       held[i - ranks], step);
        ck_assert_uint_lt(length, sizeof(text));
    }
    return support_write("pace", text, length);
}

const char *job_pace(unsigned ranks)
{
    return job_pace_and_hold(ranks, 0, NULL, 0);
}

const char *job_run(const struct job *job, int wanted)
{
    static unsigned serial;
    const char *arguments[ARGUMENTS_MAX];
    size_t count = 0;
    char name[32];
    char ranks[16];
    char servers[16];
    const char *run_dir;

    (void)snprintf(name, sizeof(name), "run-%u", serial++);
    (void)snprintf(ranks, sizeof(ranks), "%u", job->ranks);
    (void)snprintf(servers, sizeof(servers), "%u", job->servers);
    run_dir = support_path(name);
    arguments[count++] = support_program("sparring");
    arguments[count++] = "launch";
    arguments[count++] = "--standalone";
    arguments[count++] = "--nproc-per-node";
    arguments[count++] = ranks;
    if (job->servers > 0) {
        arguments[count++] = "--servers";
        arguments[count++] = servers;
    }
    if (job->backend) {
        arguments[count++] = "--backend";
        arguments[count++] = job->backend;
    }
    arguments[count++] = "--run-dir";
    arguments[count++] = run_dir;
    arguments[count++] = "--";
    for (const char *const *argument = job->wrapper; argument && *argument; argument++)
        arguments[count++] = *argument;
    arguments[count++] = support_program("sparring-worker");
    for (const char *const *argument = job->worker; *argument; argument++) {
        ck_assert_uint_lt(count, ARGUMENTS_MAX - 1);
        arguments[count++] = *argument;
    }
    arguments[count] = NULL;
    /* Open MPI leaks memory in plug-ins that it unloads at exit; no suppression matches those. */
    last_output = process_run(wanted, JOB_TIMEOUT_MS,
                              job->backend && strcmp(job->backend, "mpi") == 0
                                  ? ARGS("ASAN_OPTIONS=detect_leaks=0")
                                  : NULL,
                              arguments);
    return run_dir;
}

static FILE *open_jsonl(const char *run_dir, const char *role, unsigned index)
{
    char path[4096];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s%u.jsonl", run_dir, role, index);
    file = fopen(path, "re");
    ck_assert_msg(file != NULL, "no %s", path);
    return file;
}

static FILE *open_records(const char *run_dir, unsigned rank)
{
    return open_jsonl(run_dir, "rank", rank);
}

static int next_record(FILE *file, json_t **ret_record)
{
    char line[4096];

    if (!fgets(line, sizeof(line), file))
        return 0;
    *ret_record = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(*ret_record != NULL, "not JSON: %s", line);
    return 1;
}

static int is_kind(const json_t *record, const char *kind)
{
    const char *text = json_string_value(json_object_get(record, "kind"));

    return text && strcmp(text, kind) == 0;
}

size_t job_losses(const char *run_dir, unsigned rank, double *losses, size_t max)
{
    FILE *file = open_records(run_dir, rank);
    size_t count = 0;
    json_t *record;

    while (next_record(file, &record)) {
        if (is_kind(record, "step") && count < max) {
            ck_assert_uint_eq((size_t)json_integer_value(json_object_get(record, "step")), count);
            losses[count++] = json_number_value(json_object_get(record, "loss"));
        }
        json_decref(record);
    }
    (void)fclose(file);
    return count;
}

int64_t job_record_int(const char *run_dir, unsigned rank, const char *kind, const char *member)
{
    FILE *file = open_records(run_dir, rank);
    int64_t value = -1;
    json_t *record;

    while (value < 0 && next_record(file, &record)) {
        if (is_kind(record, kind))
            value = json_integer_value(json_object_get(record, member));
        json_decref(record);
    }
    (void)fclose(file);
    return value;
}

const char *job_record_text(const char *run_dir, unsigned rank, const char *kind,
                            const char *member)
{
    static char text[1024];
    FILE *file = open_records(run_dir, rank);
    json_t *record;

    text[0] = '\0';
    while (text[0] == '\0' && next_record(file, &record)) {
        if (is_kind(record, kind) && json_object_get(record, member))
            (void)snprintf(text, sizeof(text), "%s",
                           json_string_value(json_object_get(record, member)));
        json_decref(record);
    }
    (void)fclose(file);
    return text;
}

json_t *job_server_record(const char *run_dir, unsigned server, const char *kind)
{
    FILE *file = open_jsonl(run_dir, "server", server);
    json_t *record;

    while (next_record(file, &record)) {
        if (is_kind(record, kind)) {
            (void)fclose(file);
            return record;
        }
        json_decref(record);
    }
    ck_abort_msg("server %u has no record of kind '%s'", server, kind);
}

static int64_t last_record_int(const char *run_dir, const char *who, unsigned index,
                               const char *kind, const char *member)
{
    char path[4200];
    char line[4096];
    char start[64];
    char name[64];
    int64_t value = -1;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s%u.jsonl", run_dir, who, index);
    (void)snprintf(start, sizeof(start), "{\"kind\":\"%s\",", kind);
    (void)snprintf(name, sizeof(name), "\"%s\":", member);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        const char *at = strncmp(line, start, strlen(start)) == 0
                             ? strstr(line + strlen(start) - 1, name)
                             : NULL;

        if (at)
            value = strtoll(at + strlen(name), NULL, 10);
    }
    if (file)
        (void)fclose(file);
    return value;
}

int64_t job_newest_int(const char *run_dir, unsigned rank, const char *kind, const char *member)
{
    return last_record_int(run_dir, "rank", rank, kind, member);
}

int64_t job_server_int(const char *run_dir, unsigned server, const char *kind, const char *member)
{
    return last_record_int(run_dir, "server", server, kind, member);
}

/* Wait until the newest record of that kind has a member of at least `from`. */
static void await_record(const char *run_dir, unsigned rank, const char *kind, const char *member,
                         int64_t from)
{
    int64_t deadline_ns = clock_deadline_ns(60000);

    while (job_newest_int(run_dir, rank, kind, member) < from) {
        ck_assert_msg(clock_now_ns() < deadline_ns, "rank %u: no record '%s' with %s >= %jd", rank,
                      kind, member, (intmax_t)from);
        (void)poll(NULL, 0, 2);
    }
}

void job_await_step(const char *run_dir, unsigned rank, int64_t step)
{
    await_record(run_dir, rank, "step", "step", step);
}

void job_await_end(const char *run_dir, unsigned rank)
{
    await_record(run_dir, rank, "end", "steps", 0);
}

json_t *job_summary(const char *run_dir)
{
    char path[4096];
    json_t *summary;

    (void)snprintf(path, sizeof(path), "%s/summary.json", run_dir);
    summary = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(summary != NULL, "no JSON in %s", path);
    return summary;
}

static void read_two_files(const char *a, const char *b, struct safetensors *ret_a,
                           struct safetensors *ret_b)
{
    struct error err = {0};

    assert_ok(safetensors_read(a, (size_t)1 << 30, ret_a, &err));
    assert_ok(safetensors_read(b, (size_t)1 << 30, ret_b, &err));
    ck_assert_uint_eq(ret_a->length, ret_b->length);
}

/* The value of a scalar entry such as num_batches_tracked. */
static int64_t read_int64_entry(const struct safetensors_entry *e)
{
    int64_t count;

    ck_assert_uint_eq(e->bytes, sizeof(count));
    memcpy(&count, e->data, sizeof(count));
    return count;
}

static double entry_distance(const struct safetensors_entry *x, const struct safetensors_entry *y)
{
    double largest = 0;

    ck_assert_uint_eq(x->count, y->count);
    ck_assert_str_eq(x->dtype, y->dtype);
    if (strcmp(x->dtype, "I64") == 0)
        return (double)llabs(read_int64_entry(x) - read_int64_entry(y));
    ck_assert_str_eq(x->dtype, "F32");
    for (size_t i = 0; i < x->count; i++) {
        float u;
        float v;
        double gap;

        memcpy(&u, x->data + i * sizeof(u), sizeof(u));
        memcpy(&v, y->data + i * sizeof(v), sizeof(v));
        gap = fabs((double)u - (double)v);
        largest = gap > largest ? gap : largest;
    }
    return largest;
}

double job_checkpoint_distance(const char *a, const char *b)
{
    struct safetensors x = {0};
    struct safetensors y = {0};
    double largest = 0;

    read_two_files(a, b, &x, &y);
    for (size_t i = 0; i < x.length; i++) {
        const struct safetensors_entry *other = safetensors_find(&y, x.entries[i].name);
        double gap;

        ck_assert_msg(other != NULL, "%s lacks %s", b, x.entries[i].name);
        gap = entry_distance(&x.entries[i], other);
        largest = gap > largest ? gap : largest;
    }
    safetensors_release(&x);
    safetensors_release(&y);
    return largest;
}

int job_same_tensors(const char *a, const char *b)
{
    struct safetensors x = {0};
    struct safetensors y = {0};
    int same = 1;

    read_two_files(a, b, &x, &y);
    for (size_t i = 0; i < x.length; i++) {
        const struct safetensors_entry *mine = &x.entries[i];
        const struct safetensors_entry *other = safetensors_find(&y, mine->name);

        ck_assert_ptr_nonnull(other);
        same = same && mine->bytes == other->bytes &&
               memcmp(mine->data, other->data, mine->bytes) == 0;
    }
    safetensors_release(&x);
    safetensors_release(&y);
    return same;
}
