/*
 * json_fields: reads a JSON object into a struct by a table of its members, with their types and
 * offsets.  A missing or ill-typed member is STATUS_DATA and names file, line and member; members
 * that are not in the table are ignored, so that newer records stay readable.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_JSON_FIELDS_H
#define SPARRING_EXPERIMENTS_REPORT_JSON_FIELDS_H

#include "common/base/error.h"

#include <jansson.h>
#include <stddef.h>

enum field_kind {
    FIELD_COUNT,       /* uint64_t; an integer >= 0 */
    FIELD_NANOSECONDS, /* int64_t; an integer >= 0 */
    FIELD_NUMBER,      /* double; null becomes NaN */
    FIELD_TEXT,        /* char[size], by json_scalar_text */
};

struct json_field {
    const char *name;
    enum field_kind kind;
    size_t offset;
    size_t size;   /* FIELD_TEXT: bytes of the array */
    int is_needed; /* 0: target keeps its value when the member is missing */
};

/* Where an object was read, for messages. */
struct json_position {
    const char *path;
    size_t line;
};

/* Fill `target` from `object`.  On failure part of it may have been written. */
enum status json_fields_read(const json_t *object, const struct json_position *position,
                             const struct json_field *fields, size_t count, void *target,
                             struct error *err);

/* A scalar as text: strings unchanged, numbers with up to 9 digits, true and false, "" for null;
 * returns 0 for an object or array.  A string longer than `size` ends in a digest of the whole
 * string, so that two that differ after the cut stay different. */
int json_scalar_text(const json_t *value, char *text, size_t size);

/* One line (without its end) as an object; the caller decrefs it. */
enum status json_line_read(const char *text, size_t size, const struct json_position *position,
                           json_t **ret, struct error *err);

/* A whole file as one object of at most 16 MiB; the caller decrefs it.  STATUS_NOT_FOUND when there
 * is none. */
enum status json_file_read(const char *path, json_t **ret, struct error *err);

#endif
