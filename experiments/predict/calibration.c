/*
 * calibration: with few bytes a step is messages alone; what more bytes add is bytes alone.
 */
#include "experiments/predict/calibration.h"

#include "common/base/file.h"
#include "common/base/host.h"
#include "experiments/report/json_fields.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define RANKS       2
#define SMALL_BYTES 4096
#define LARGE_BYTES (16 << 20)
#define SMALL_STEPS 1000
#define LARGE_STEPS 40
#define PARTITION   "1M"
#define TIMEOUT_MS  60000
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

#define NUMBER(member)                                                                             \
    {                                                                                              \
#member, FIELD_NUMBER, offsetof(struct calibration, machine.member), 0, 1                  \
    }

static const struct json_field fields[] = {
    NUMBER(ring_message_s),
    NUMBER(ring_byte_s),
    NUMBER(ring_cpu_s),
    NUMBER(ring_cpu_byte_s),
    NUMBER(local_s),
    NUMBER(local_byte_s),
    NUMBER(local_cpu_s),
    NUMBER(local_cpu_byte_s),
    NUMBER(exchange_s),
    NUMBER(exchange_byte_s),
    NUMBER(exchange_cpu_s),
    NUMBER(exchange_cpu_byte_s),
    {"cores", FIELD_NUMBER, offsetof(struct calibration, cores), 0, 1},
    {"error_control", FIELD_NUMBER, offsetof(struct calibration, errors.of_side[COST_CONTROL]), 0,
     0},
    {"error_ring", FIELD_NUMBER, offsetof(struct calibration, errors.of_side[COST_ALLREDUCE]), 0,
     0},
    {"error_servers", FIELD_NUMBER, offsetof(struct calibration, errors.of_side[COST_SERVERS]), 0,
     0},
    {"error_ranks", FIELD_NUMBER, offsetof(struct calibration, errors.ranks), 0, 0},
};

struct calibration calibration_none(void)
{
    struct calibration c = {.cores = 0};

    for (enum cost_side side = 0; side < COST_SIDES; side++)
        c.errors.of_side[side] = (double)NAN;
    return c;
}

/* Write a model of so many bytes in one layer that takes no time. */
static enum status write_model(const struct trial *t, const char *name, size_t bytes, char *path,
                               size_t size, struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    enum status status = file_join(path, size, t->folder, name, err);

    strbuf_addf(&text,
                "{\"version\":1,\"compute\":\"idle\",\"layers\":[{\"name\":\"all\","
                "\"forward_us\":0,\"backward_us\":0,\"bytes\":%zu}]}\n",
                bytes);
    if (status == STATUS_OK)
        status = file_write_text(path, &text, err);
    strbuf_release(&text);
    return status;
}

struct calibration_job {
    const char *name, *sync, *backend; /* backend: NULL, or of the all-reduce */
    unsigned servers;
    size_t bytes;
    int steps;
};

static enum status run_job(const struct trial *t, const struct calibration_job *job,
                           struct trial_times *ret, struct error *err)
{
    char file[64], path[4096];
    struct text_list options = {0};
    struct run run = {0};
    struct trial where = *t;
    enum status status;

    (void)snprintf(file, sizeof(file), "%s.json", job->name);
    status = write_model(t, file, job->bytes, path, sizeof(path), err);
    text_list_addf(&options, "--model=profile:%s", path);
    text_list_addf(&options, "--data=random:64,1,2");
    text_list_addf(&options, "--batch-size=1");
    text_list_addf(&options, "--threads=1");
    text_list_addf(&options, "--evaluate=never");
    text_list_addf(&options, "--lr=0.01");
    text_list_addf(&options, "--steps=%d", job->steps);
    text_list_addf(&options, "--sync=%s", job->sync);
    if (job->backend)
        text_list_addf(&options, "--backend=%s", job->backend);
    if (job->backend && strcmp(job->backend, "shm") == 0)
        where.in_network = false; /* of one host */
    if (job->servers > 0) {
        text_list_addf(&options, "--ps-transport=grpc");
        text_list_addf(&options, "--partition-bytes=" PARTITION);
    }
    where.timeout_ms = TIMEOUT_MS;
    if (status == STATUS_OK)
        status = trial_run(&where, job->name, RANKS, job->servers, &options, &run, err);
    if (status == STATUS_OK)
        status = trial_read_times(&run, ret, err);
    run_release(&run);
    text_list_release(&options);
    return status;
}

/* Processor time of one rank for what all of them do `count` times in the job with these times. */
static double rank_cpu_s(const struct trial_times *times, const struct trial_times *control,
                         double count)
{
    return fmax(0, times->cpu_s - control->cpu_s) / (RANKS * count);
}

/* Of each the times with few bytes, then with many. */
static struct cost_machine fit_machine(const struct trial_times *ring,
                                       const struct trial_times *local,
                                       const struct trial_times *ps,
                                       const struct trial_times *control)
{
    const double messages = 2 * (RANKS - 1), more = LARGE_BYTES - SMALL_BYTES;
    const double sent = messages / RANKS * more; /* by one rank of the ring */
    const double partitions = (double)LARGE_BYTES / (1 << 20);
    struct cost_machine m = {.ring_message_s = ring[0].exposed_s / messages,
                             .ring_byte_s = (ring[1].exposed_s - ring[0].exposed_s) / sent,
                             .ring_cpu_s = rank_cpu_s(&ring[0], &control[0], messages),
                             .local_s = local[0].exposed_s,
                             .local_byte_s = (local[1].exposed_s - local[0].exposed_s) / more,
                             .local_cpu_s = rank_cpu_s(&local[0], &control[0], 1),
                             .exchange_s = ps[0].exposed_s,
                             .exchange_byte_s = (ps[1].exposed_s - ps[0].exposed_s) / more,
                             .exchange_cpu_s = rank_cpu_s(&ps[0], &control[0], 1)};

    m.ring_cpu_byte_s =
        fmax(0, rank_cpu_s(&ring[1], &control[1], 1) - messages * m.ring_cpu_s) / sent;
    m.local_cpu_byte_s = fmax(0, rank_cpu_s(&local[1], &control[1], 1) - m.local_cpu_s) / more;
    m.exchange_cpu_byte_s =
        fmax(0, rank_cpu_s(&ps[1], &control[1], 1) - partitions * m.exchange_cpu_s) / more;
    return m;
}

enum status calibration_measure(const struct trial *t, struct calibration *ret, struct error *err)
{
    static const struct calibration_job jobs[] = {
        {"ring-small", "allreduce", "ring", 0, SMALL_BYTES, SMALL_STEPS},
        {"ring-large", "allreduce", "ring", 0, LARGE_BYTES, LARGE_STEPS},
        {"local-small", "allreduce", "shm", 0, SMALL_BYTES, SMALL_STEPS},
        {"local-large", "allreduce", "shm", 0, LARGE_BYTES, LARGE_STEPS},
        {"ps-small", "ps", NULL, 1, SMALL_BYTES, SMALL_STEPS},
        {"ps-large", "ps", NULL, 1, LARGE_BYTES, LARGE_STEPS},
        {"control-small", "local", NULL, 0, SMALL_BYTES, SMALL_STEPS},
        {"control-large", "local", NULL, 0, LARGE_BYTES, LARGE_STEPS},
    };
    struct trial_times times[COUNT_OF(jobs)];
    enum status status = STATUS_OK;

    for (size_t i = 0; i < COUNT_OF(jobs) && status == STATUS_OK; i++)
        status = run_job(t, &jobs[i], &times[i], err);
    if (status != STATUS_OK)
        return status;
    *ret = calibration_none();
    ret->machine = fit_machine(&times[0], &times[2], &times[4], &times[6]);
    ret->cores = host_cores();
    ret->in_network = t->in_network;
    return STATUS_OK;
}

enum status calibration_write(const struct calibration *c, const char *path, struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    enum status status;

    strbuf_addf(&text, "{\"schema\":1,\"in_network\":%s", c->in_network ? "true" : "false");
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        double value;

        memcpy(&value, (const char *)c + fields[i].offset, sizeof(value));
        strbuf_addf(&text, isfinite(value) ? ",\n\"%s\":%.9g" : ",\n\"%s\":null", fields[i].name,
                    value);
    }
    strbuf_add(&text, "}\n");
    status = file_write_text(path, &text, err);
    strbuf_release(&text);
    return status;
}

enum status calibration_read(const char *path, struct calibration *ret, struct error *err)
{
    struct json_position position = {path, 1};
    json_t *object = NULL;
    enum status status = json_file_read(path, &object, err);

    *ret = calibration_none();
    if (status == STATUS_OK)
        status = json_fields_read(object, &position, fields, COUNT_OF(fields), ret, err);
    ret->in_network = json_is_true(json_object_get(object, "in_network"));
    json_decref(object);
    return status;
}
