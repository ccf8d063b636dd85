/*
 * tensorboard: an event file is a row of records, each the length (u64, little endian), its CRC,
 * the message, its CRC; a CRC is CRC-32C, rotated and offset as in TensorFlow's record_writer.
 */
#include "experiments/export/tensorboard.h"

#include "common/base/file.h"
#include "experiments/report/run.h"
#include "tensorboard.pb-c.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLYNOMIAL  0x82f63b78u /* CRC-32C, bits reversed */
#define MASK        0xa282ead8u
#define VALUES_MAX  8
#define HPARAMS_MAX 256
#define DT_FLOAT    1

typedef Sparring__Tensorboard__Event event;
typedef Sparring__Tensorboard__SummaryValue summary_value;

static uint32_t masked_crc(const uint8_t *bytes, size_t size)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + MASK;
}

static void put_little_endian(uint8_t *bytes, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
}

/* Errors of the file are found when it is closed. */
static enum status write_event(FILE *file, const event *e, struct error *err)
{
    const size_t size = sparring__tensorboard__event__get_packed_size(e);
    uint8_t head[12], tail[4];
    uint8_t *bytes = malloc(size > 0 ? size : 1);

    if (!bytes)
        return error_set(err, STATUS_NO_MEMORY, "no memory for an event");
    (void)sparring__tensorboard__event__pack(e, bytes);
    put_little_endian(head, size, 8);
    put_little_endian(head + 8, masked_crc(head, 8), 4);
    put_little_endian(tail, masked_crc(bytes, size), 4);
    (void)fwrite(head, sizeof(head), 1, file);
    (void)fwrite(bytes, size, 1, file);
    (void)fwrite(tail, sizeof(tail), 1, file);
    free(bytes);
    return STATUS_OK;
}

/* ---- scalars */

struct values {
    summary_value items[VALUES_MAX];
    summary_value *list[VALUES_MAX];
    size_t length;
};

/* protobuf-c has no constant texts, and writes to none. */
static char *text_of(const char *text)
{
    union {
        const char *from;
        char *to;
    } same = {.from = text};

    return same.to;
}

static summary_value *add_value(struct values *v, const char *tag)
{
    summary_value *added = &v->items[v->length];

    sparring__tensorboard__summary_value__init(added);
    added->tag = text_of(tag);
    v->list[v->length++] = added;
    return added;
}

/* A value that is not known is left out. */
static void add_scalar(struct values *v, const char *tag, double value)
{
    summary_value *added = isfinite(value) ? add_value(v, tag) : NULL;

    if (!added)
        return;
    added->value_case = SPARRING__TENSORBOARD__SUMMARY_VALUE__VALUE_SIMPLE_VALUE;
    added->simple_value = (float)value;
}

static enum status write_values(FILE *file, struct values *v, double wall, uint64_t step,
                                struct error *err)
{
    event e;
    Sparring__Tensorboard__Summary summary;

    sparring__tensorboard__event__init(&e);
    sparring__tensorboard__summary__init(&summary);
    summary.n_values = v->length;
    summary.values = v->list;
    e.wall_time = wall;
    e.step = (int64_t)step;
    e.summary = &summary;
    return write_event(file, &e, err);
}

static double end_wall(const struct step_record *s)
{
    return s->begin_wall + (double)s->step_ns * 1e-9;
}

static enum status write_steps(FILE *file, const struct records *rank, size_t ranks,
                               struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < rank->length && status == STATUS_OK; i++) {
        const struct step_record *s = &rank->steps[i];
        struct values v = {.length = 0};

        add_scalar(&v, "train/loss", s->loss);
        add_scalar(&v, "step/total_ms", (double)s->step_ns * 1e-6);
        add_scalar(&v, "step/compute_ms", (double)s->compute_ns * 1e-6);
        add_scalar(&v, "step/exposed_comm_ms", (double)s->exposed_comm_ns * 1e-6);
        add_scalar(&v, "step/input_ms", (double)s->input_ns * 1e-6);
        add_scalar(&v, "step/optimizer_ms", (double)s->optimizer_ns * 1e-6);
        add_scalar(&v, "samples_per_second",
                   (double)(s->samples * ranks) / ((double)s->step_ns * 1e-9));
        status = write_values(file, &v, end_wall(s), s->step, err);
    }
    return status;
}

static enum status write_evaluations(FILE *file, const struct records *rank, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < rank->evaluation_count && status == STATUS_OK; i++) {
        const struct evaluation *e = &rank->evaluations[i];
        const struct step_record *last = e->steps > 0 ? &rank->steps[e->steps - 1] : NULL;
        struct values v = {.length = 0};

        add_scalar(&v, "test/loss", e->test_loss);
        add_scalar(&v, "test/accuracy", e->test_accuracy);
        status = write_values(file, &v, last ? end_wall(last) : 0, last ? last->step : 0, err);
    }
    return status;
}

/* ---- hyperparameters */

static enum status write_hparams(FILE *file, const char *tag, double wall,
                                 const Sparring__Tensorboard__HParams *hparams, struct error *err)
{
    Sparring__Tensorboard__TensorShape shape;
    Sparring__Tensorboard__Tensor tensor;
    Sparring__Tensorboard__PluginData data;
    Sparring__Tensorboard__SummaryMetadata metadata;
    struct values v = {.length = 0};
    summary_value *value;
    uint8_t *content = malloc(sparring__tensorboard__hparams__get_packed_size(hparams) + 1);
    enum status status;

    sparring__tensorboard__tensor_shape__init(&shape);
    sparring__tensorboard__tensor__init(&tensor);
    sparring__tensorboard__plugin_data__init(&data);
    sparring__tensorboard__summary_metadata__init(&metadata);
    if (!content)
        return error_set(err, STATUS_NO_MEMORY, "no memory for hyperparameters");
    data.plugin_name = text_of("hparams");
    data.content.data = content;
    data.content.len = sparring__tensorboard__hparams__pack(hparams, content);
    metadata.plugin_data = &data;
    tensor.dtype = DT_FLOAT;
    tensor.shape = &shape;
    value = add_value(&v, tag);
    value->value_case = SPARRING__TENSORBOARD__SUMMARY_VALUE__VALUE_TENSOR;
    value->tensor = &tensor;
    value->metadata = &metadata;
    status = write_values(file, &v, wall, 0, err);
    free(content);
    return status;
}

struct hparams {
    Sparring__Tensorboard__HParam items[HPARAMS_MAX];
    Sparring__Tensorboard__HParam *list[HPARAMS_MAX];
    Sparring__Tensorboard__HParamValue values[HPARAMS_MAX];
    size_t length;
};

/* The texts are borrowed.  False: it has no such type. */
static bool set_value(Sparring__Tensorboard__HParamValue *ret, const json_t *value)
{
    sparring__tensorboard__hparam_value__init(ret);
    if (json_is_string(value)) {
        ret->kind_case = SPARRING__TENSORBOARD__HPARAM_VALUE__KIND_STRING_VALUE;
        ret->string_value = text_of(json_string_value(value));
    } else if (json_is_number(value)) {
        ret->kind_case = SPARRING__TENSORBOARD__HPARAM_VALUE__KIND_NUMBER_VALUE;
        ret->number_value = json_number_value(value);
    } else if (json_is_boolean(value)) {
        ret->kind_case = SPARRING__TENSORBOARD__HPARAM_VALUE__KIND_BOOL_VALUE;
        ret->bool_value = json_is_true(value);
    }
    return ret->kind_case != SPARRING__TENSORBOARD__HPARAM_VALUE__KIND__NOT_SET;
}

static void add_hparam(struct hparams *h, const char *name, const json_t *value)
{
    if (h->length == HPARAMS_MAX || !set_value(&h->values[h->length], value))
        return;
    sparring__tensorboard__hparam__init(&h->items[h->length]);
    h->items[h->length].key = text_of(name);
    h->items[h->length].value = &h->values[h->length];
    h->list[h->length] = &h->items[h->length];
    h->length++;
}

/* The options that were given. */
static enum status write_start(FILE *file, const struct run *run, double wall, struct error *err)
{
    Sparring__Tensorboard__SessionStart start;
    Sparring__Tensorboard__HParams message;
    struct hparams *h = calloc(1, sizeof(*h));
    json_t *ranks = json_integer((json_int_t)run->manifest.world_size);
    const char *name;
    json_t *option;
    enum status status = STATUS_OK;

    sparring__tensorboard__session_start__init(&start);
    sparring__tensorboard__hparams__init(&message);
    if (!h || !ranks) {
        status = error_set(err, STATUS_NO_MEMORY, "no memory for hyperparameters");
    } else {
        json_object_foreach(run->options, name, option)
        {
            const char *origin = json_string_value(json_object_get(option, "origin"));

            if (origin && strcmp(origin, "default") != 0)
                add_hparam(h, name, json_object_get(option, "value"));
        }
        add_hparam(h, "ranks", ranks);
        start.n_hparams = h->length;
        start.hparams = h->list;
        start.start_time = wall;
        message.session_start = &start;
        status = write_hparams(file, "_hparams_/session_start_info", wall, &message, err);
    }
    json_decref(ranks);
    free(h);
    return status;
}

static enum status write_end(FILE *file, const struct run *run, double wall, struct error *err)
{
    Sparring__Tensorboard__SessionEnd end;
    Sparring__Tensorboard__HParams message;

    sparring__tensorboard__session_end__init(&end);
    sparring__tensorboard__hparams__init(&message);
    end.status = run->state == RUN_OK ? 1 : 2;
    end.end_time = wall;
    message.session_end = &end;
    return write_hparams(file, "_hparams_/session_end_info", wall, &message, err);
}

/* ---- files */

static enum status write_run(FILE *file, const struct run *run, struct error *err)
{
    const struct records *rank = &run->ranks[0];
    const double first = rank->length > 0 ? rank->steps[0].begin_wall : 0;
    const double last = rank->length > 0 ? end_wall(&rank->steps[rank->length - 1]) : first;
    event version;
    enum status status;

    sparring__tensorboard__event__init(&version);
    version.wall_time = first;
    version.file_version = text_of("brain.Event:2");
    status = write_event(file, &version, err);
    if (status == STATUS_OK)
        status = write_start(file, run, first, err);
    if (status == STATUS_OK)
        status = write_steps(file, rank, run->rank_count, err);
    if (status == STATUS_OK)
        status = write_evaluations(file, rank, err);
    return status == STATUS_OK ? write_end(file, run, last, err) : status;
}

/* OUT/NAME/events.out.tfevents.SECONDS.sparring */
static enum status export_run(const struct run *run, const char *out, struct error *err)
{
    char folder[4096], name[64], path[4096];
    const double start = run->ranks[0].length > 0 ? run->ranks[0].steps[0].begin_wall : 0;
    FILE *file;
    enum status status = file_join(folder, sizeof(folder), out, run->name, err);

    (void)snprintf(name, sizeof(name), "events.out.tfevents.%.0f.sparring", start);
    if (status == STATUS_OK)
        status = file_make_folder(folder, err);
    if (status == STATUS_OK)
        status = file_join(path, sizeof(path), folder, name, err);
    if (status != STATUS_OK)
        return status;
    file = fopen(path, "wxe");
    if (!file)
        return error_set_errno(err, errno, "cannot make '%s'", path);
    status = write_run(file, run, err);
    if (ferror(file) && status == STATUS_OK)
        status = error_set_errno(err, errno, "cannot write '%s'", path);
    if (fclose(file) != 0 && status == STATUS_OK)
        status = error_set_errno(err, errno, "cannot write '%s'", path);
    return status;
}

enum status tensorboard_export(const char *folder, const char *out, struct error *err)
{
    struct run_list list = {0};
    size_t written = 0;
    enum status status = run_list_add(&list, folder, err);

    for (size_t i = 0; i < list.length && status == STATUS_OK; i++)
        if (list.runs[i].rank_count > 0) {
            status = export_run(&list.runs[i], out, err);
            written++;
        }
    if (status == STATUS_OK && written == 0)
        status = error_set(err, STATUS_NOT_FOUND, "no run of '%s' has records of a rank", folder);
    if (status == STATUS_OK)
        (void)printf("%s: event files of %zu run%s; tensorboard --logdir shows them\n", out,
                     written, written == 1 ? "" : "s");
    run_list_release(&list);
    return status;
}
