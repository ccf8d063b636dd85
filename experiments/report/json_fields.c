/*
 * json_fields: the checks of json_fields.h over jansson, which parses and limits depth (2048).
 * Duplicate members are refused.  No state between calls.
 */
#include "experiments/report/json_fields.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)16 << 20)

static enum status bad_member(const struct json_position *position, const char *name,
                              const char *wanted, struct error *err)
{
    return error_set(err, STATUS_DATA, "%s:%zu: '%s' is not %s", position->path, position->line,
                     name, wanted);
}

/* FNV-1a (RFC 9923), 32 bits. */
static uint32_t digest(const char *text)
{
    uint32_t hash = 0x811c9dc5u;

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x01000193u;
    return hash;
}

static void copy_text(const char *from, char *text, size_t size)
{
    const size_t tail = strlen("...01234567") + 1;
    const size_t length = (size_t)snprintf(text, size, "%s", from);

    if (length >= size && size >= tail)
        (void)snprintf(text + size - tail, tail, "...%08" PRIx32, digest(from));
}

int json_scalar_text(const json_t *value, char *text, size_t size)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        copy_text(json_string_value(value), text, size);
        return 1;
    case JSON_INTEGER:
        (void)snprintf(text, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return 1;
    case JSON_REAL:
        (void)snprintf(text, size, "%.9g", json_real_value(value));
        return 1;
    case JSON_TRUE:
    case JSON_FALSE:
        (void)snprintf(text, size, "%s", json_is_true(value) ? "true" : "false");
        return 1;
    case JSON_NULL:
        text[0] = '\0';
        return 1;
    default:
        return 0;
    }
}

static enum status read_field(const json_t *value, const struct json_position *position,
                              const struct json_field *field, char *target, struct error *err)
{
    switch (field->kind) {
    case FIELD_COUNT:
    case FIELD_NANOSECONDS:
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return bad_member(position, field->name, "an integer of at least 0", err);
        if (field->kind == FIELD_COUNT)
            *(uint64_t *)(void *)(target + field->offset) = (uint64_t)json_integer_value(value);
        else
            *(int64_t *)(void *)(target + field->offset) = json_integer_value(value);
        return STATUS_OK;
    case FIELD_NUMBER:
        if (!json_is_number(value) && !json_is_null(value))
            return bad_member(position, field->name, "a number", err);
        *(double *)(void *)(target + field->offset) =
            json_is_null(value) ? (double)NAN : json_number_value(value);
        return STATUS_OK;
    case FIELD_TEXT:
        if (!json_scalar_text(value, target + field->offset, field->size))
            return bad_member(position, field->name, "a text", err);
        return STATUS_OK;
    }
    return STATUS_OK;
}

enum status json_fields_read(const json_t *object, const struct json_position *position,
                             const struct json_field *fields, size_t count, void *target,
                             struct error *err)
{
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        enum status status = STATUS_OK;

        if (value)
            status = read_field(value, position, &fields[i], target, err);
        else if (fields[i].is_needed)
            status = error_set(err, STATUS_DATA, "%s:%zu: '%s' is missing", position->path,
                               position->line, fields[i].name);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum status json_line_read(const char *text, size_t size, const struct json_position *position,
                           json_t **ret, struct error *err)
{
    json_error_t reason;
    json_t *object = json_loadb(text, size, JSON_REJECT_DUPLICATES, &reason);

    if (!object)
        return error_set(err, STATUS_DATA, "%s:%zu: not JSON: %s", position->path, position->line,
                         reason.text);
    if (!json_is_object(object)) {
        json_decref(object);
        return error_set(err, STATUS_DATA, "%s:%zu: not a JSON object", position->path,
                         position->line);
    }
    *ret = object;
    return STATUS_OK;
}

enum status json_file_read(const char *path, json_t **ret, struct error *err)
{
    json_error_t reason;
    json_t *object;
    char *text = NULL;
    size_t size = 0;
    enum status status = file_read(path, FILE_BYTES_MAX, &text, &size, err);

    if (status != STATUS_OK)
        return status;
    object = json_loadb(text, size, JSON_REJECT_DUPLICATES, &reason);
    free(text);
    if (!object)
        return error_set(err, STATUS_DATA, "%s:%d: not JSON: %s", path, reason.line, reason.text);
    if (!json_is_object(object)) {
        json_decref(object);
        return error_set(err, STATUS_DATA, "%s:1: not a JSON object", path);
    }
    *ret = object;
    return STATUS_OK;
}
