/*
 * records: parses JSON lines into struct records.  The file is read whole and split at line ends;
 * every line is one object whose "kind" selects the table of its required members.  Limit: 1 MiB
 * per line.
 */
#include "experiments/report/records.h"

#include "common/base/file.h"
#include "common/base/memory.h"
#include "experiments/report/json_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 30)
#define LINE_BYTES_MAX ((size_t)1 << 20)

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#define STEP_FIELD(member, kind)                                                                   \
    {                                                                                              \
#member, kind, offsetof(struct step_record, member), 0, 1                                  \
    }
static const struct json_field step_fields[] = {
    STEP_FIELD(step, FIELD_COUNT),
    STEP_FIELD(epoch, FIELD_COUNT),
    STEP_FIELD(loss, FIELD_NUMBER),
    STEP_FIELD(samples, FIELD_COUNT),
    STEP_FIELD(step_ns, FIELD_NANOSECONDS),
    STEP_FIELD(input_ns, FIELD_NANOSECONDS),
    STEP_FIELD(compute_ns, FIELD_NANOSECONDS),
    STEP_FIELD(exposed_comm_ns, FIELD_NANOSECONDS),
    STEP_FIELD(optimizer_ns, FIELD_NANOSECONDS),
    STEP_FIELD(tx_payload_bytes, FIELD_COUNT),
    STEP_FIELD(rx_payload_bytes, FIELD_COUNT),
    {"forward_ns", FIELD_NANOSECONDS, offsetof(struct step_record, forward_ns), 0, 0},
    {"begin_wall", FIELD_NUMBER, offsetof(struct step_record, begin_wall), 0, 0},
};

#define ROUND_FIELD(member, kind, is_needed)                                                       \
    {                                                                                              \
#member, kind, offsetof(struct round_record, member), 0, is_needed                         \
    }
static const struct json_field round_fields[] = {
    ROUND_FIELD(round, FIELD_COUNT, 1),          ROUND_FIELD(begin_wall, FIELD_NUMBER, 0),
    ROUND_FIELD(round_ns, FIELD_NANOSECONDS, 0), ROUND_FIELD(sum_ns, FIELD_NANOSECONDS, 0),
    ROUND_FIELD(wait_ns, FIELD_NANOSECONDS, 0),
};

static const struct json_field evaluation_fields[] = {
    {"epoch", FIELD_COUNT, offsetof(struct evaluation, epoch), 0, 1},
    {"test_loss", FIELD_NUMBER, offsetof(struct evaluation, test_loss), 0, 1},
    {"test_accuracy", FIELD_NUMBER, offsetof(struct evaluation, test_accuracy), 0, 1},
};

#define END_NUMBER(member)                                                                         \
    {                                                                                              \
#member, FIELD_NUMBER, offsetof(struct end_record, member), 0, 0                           \
    }
static const struct json_field end_fields[] = {
    {"status", FIELD_TEXT, offsetof(struct end_record, status),
     sizeof(((struct end_record *)0)->status), 1},
    {"error", FIELD_TEXT, offsetof(struct end_record, error),
     sizeof(((struct end_record *)0)->error), 0},
    END_NUMBER(tx_wire_bytes),
    END_NUMBER(rx_wire_bytes),
    END_NUMBER(tx_queued_bytes),
    END_NUMBER(tx_payload_bytes),
    END_NUMBER(rx_payload_bytes),
    END_NUMBER(expected_tx_payload_bytes),
    END_NUMBER(expected_rx_payload_bytes),
    END_NUMBER(peak_rss_bytes),
    END_NUMBER(cpu_seconds),
    END_NUMBER(steps_cpu_seconds),
    END_NUMBER(processor_wait),
    END_NUMBER(skipped_steps),
    END_NUMBER(used_pushes),
    END_NUMBER(staleness_sum),
    END_NUMBER(late_pushes),
};

static const struct json_field start_fields[] = {
    {"host", FIELD_TEXT, offsetof(struct records, host), sizeof(((struct records *)0)->host), 0},
    {"partitions", FIELD_COUNT, offsetof(struct records, partitions), 0, 0},
};

/* Settings of a server that affect its speed; members of its start record (server/observe/run_log).
 */
static void read_settings(const json_t *object, struct records *r)
{
    static const char *const names[] = {"threads", "share_memory", "tls",
                                        "token",   "durable",      "environment"};
    size_t length = 0;

    for (size_t i = 0; i < COUNT_OF(names) && length < sizeof(r->settings); i++) {
        const json_t *value = json_object_get(object, names[i]);
        char text[256];

        if (value && json_scalar_text(value, text, sizeof(text)))
            length +=
                (size_t)snprintf(r->settings + length, sizeof(r->settings) - length, "%s%s=%s",
                                 length > 0 ? " " : "", names[i], text[0] ? text : "none");
    }
}

void records_release(struct records *r)
{
    if (!r)
        return;
    free(r->steps);
    free(r->rounds);
    free(r->evaluations);
    r->steps = NULL;
    r->rounds = NULL;
    r->evaluations = NULL;
    r->evaluation_count = 0;
    r->length = r->capacity = 0;
    r->round_count = r->round_capacity = 0;
}

static enum status add_step(const json_t *object, const struct json_position *position,
                            struct records *r, struct error *err)
{
    struct step_record step = {0};
    enum status status =
        json_fields_read(object, position, step_fields, COUNT_OF(step_fields), &step, err);

    if (status != STATUS_OK)
        return status;
    if (r->length > 0 && step.step <= r->steps[r->length - 1].step)
        return error_set(err, STATUS_DATA, "%s:%zu: step %" PRIu64 " comes after step %" PRIu64,
                         position->path, position->line, step.step, r->steps[r->length - 1].step);
    status = mem_grow(r->length, &r->capacity, sizeof(step), "steps", &r->steps, err);
    if (status == STATUS_OK)
        r->steps[r->length++] = step;
    return status;
}

static enum status add_round(const json_t *object, const struct json_position *position,
                             struct records *r, struct error *err)
{
    struct round_record round = {0};
    enum status status =
        json_fields_read(object, position, round_fields, COUNT_OF(round_fields), &round, err);

    r->rounds_began_anew |=
        r->round_count > 0 && round.round <= r->rounds[r->round_count - 1].round;
    if (r->rounds_began_anew)
        r->round_count = 0;
    if (status != STATUS_OK || r->rounds_began_anew)
        return status;
    status = mem_grow(r->round_count, &r->round_capacity, sizeof(round), "rounds", &r->rounds, err);
    if (status == STATUS_OK)
        r->rounds[r->round_count++] = round;
    return status;
}

/* Grows by one: there is one evaluation per epoch. */
static enum status add_evaluation(const json_t *object, const struct json_position *position,
                                  struct records *r, struct error *err)
{
    struct evaluation *grown =
        realloc(r->evaluations, (r->evaluation_count + 1) * sizeof(*r->evaluations));

    if (!grown)
        return error_set(err, STATUS_NO_MEMORY, "no memory for the evaluations of '%s'",
                         position->path);
    r->evaluations = grown;
    grown[r->evaluation_count] = (struct evaluation){.steps = r->length};
    return json_fields_read(object, position, evaluation_fields, COUNT_OF(evaluation_fields),
                            &grown[r->evaluation_count++], err);
}

/* Two lists of numbers, the pushes one longer than the bounds. */
static enum status read_histogram(const json_t *object, const struct json_position *position,
                                  struct end_record *end, struct error *err)
{
    const json_t *bounds = json_object_get(object, "staleness_bounds");
    const json_t *pushes = json_object_get(object, "staleness_pushes");
    size_t length = json_array_size(pushes);

    if (!bounds && !pushes)
        return STATUS_OK;
    if (length == 0 || length > STALENESS_BUCKETS_MAX || json_array_size(bounds) + 1 != length)
        return error_set(err, STATUS_DATA,
                         "%s:%zu: 'staleness_pushes' has %zu numbers for %zu in "
                         "'staleness_bounds'",
                         position->path, position->line, length, json_array_size(bounds));
    for (size_t i = 0; i < length; i++) {
        const json_t *bound = json_array_get(bounds, i);
        const json_t *count = json_array_get(pushes, i);

        if (!json_is_integer(count) || (i + 1 < length && !json_is_integer(bound)))
            return error_set(err, STATUS_DATA, "%s:%zu: a histogram holds no whole number",
                             position->path, position->line);
        end->pushes[i] = (double)json_integer_value(count);
        end->bounds[i] = (double)json_integer_value(bound);
    }
    end->buckets = length;
    return STATUS_OK;
}

static enum status add_end(const json_t *object, const struct json_position *position,
                           struct records *r, struct error *err)
{
    enum status status =
        json_fields_read(object, position, end_fields, COUNT_OF(end_fields), &r->end, err);

    return status == STATUS_OK ? read_histogram(object, position, &r->end, err) : status;
}

static enum status add_record(const json_t *object, const struct json_position *position,
                              struct records *r, struct error *err)
{
    const char *kind = json_string_value(json_object_get(object, "kind"));

    if (!kind)
        return error_set(err, STATUS_DATA, "%s:%zu: 'kind' is missing", position->path,
                         position->line);
    if (strcmp(kind, "step") == 0)
        return add_step(object, position, r, err);
    if (strcmp(kind, "round") == 0)
        return add_round(object, position, r, err);
    if (strcmp(kind, "start") == 0)
        read_settings(object, r);
    if (strcmp(kind, "start") == 0)
        return json_fields_read(object, position, start_fields, COUNT_OF(start_fields), r, err);
    if (strcmp(kind, "end") == 0)
        return add_end(object, position, r, err);
    if (strcmp(kind, "evaluation") == 0)
        return add_evaluation(object, position, r, err);
    return STATUS_OK;
}

static enum status add_line(const char *line, size_t size, const struct json_position *position,
                            struct records *r, struct error *err)
{
    json_t *object = NULL;
    enum status status;

    if (size > LINE_BYTES_MAX)
        return error_set(err, STATUS_DATA, "%s:%zu: the line has %zu bytes, more than %zu",
                         position->path, position->line, size, LINE_BYTES_MAX);
    status = json_line_read(line, size, position, &object, err);
    if (status != STATUS_OK)
        return status;
    status = add_record(object, position, r, err);
    json_decref(object);
    return status;
}

static enum status read_lines(const char *path, const char *text, size_t size, struct records *r,
                              struct error *err)
{
    struct json_position position = {.path = path};
    const char *end = text + size;

    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        enum status status;

        position.line++;
        if (!newline) {
            r->was_cut = true;
            break;
        }
        status = add_line(text, (size_t)(newline - text), &position, r, err);
        if (status != STATUS_OK)
            return status;
        text = newline + 1;
    }
    return STATUS_OK;
}

static void set_unknown(struct end_record *end)
{
    const double unknown = (double)NAN;

    end->tx_wire_bytes = end->rx_wire_bytes = end->tx_queued_bytes = unknown;
    end->tx_payload_bytes = end->rx_payload_bytes = unknown;
    end->expected_tx_payload_bytes = end->expected_rx_payload_bytes = unknown;
    end->peak_rss_bytes = end->cpu_seconds = end->steps_cpu_seconds = unknown;
    end->processor_wait = unknown;
    end->skipped_steps = end->used_pushes = end->staleness_sum = end->late_pushes = unknown;
}

enum status records_parse(const char *name, const char *text, size_t size, unsigned index,
                          struct records *ret, struct error *err)
{
    struct records records = {.index = index};
    enum status status;

    set_unknown(&records.end);
    status = read_lines(name, text, size, &records, err);
    if (status != STATUS_OK) {
        records_release(&records);
        return status;
    }
    *ret = records;
    return STATUS_OK;
}

enum status records_read(const char *path, unsigned index, struct records *ret, struct error *err)
{
    char *text = NULL;
    size_t size = 0;
    enum status status = file_read(path, FILE_BYTES_MAX, &text, &size, err);

    if (status != STATUS_OK)
        return status;
    status = records_parse(path, text, size, index, ret, err);
    free(text);
    return status;
}
