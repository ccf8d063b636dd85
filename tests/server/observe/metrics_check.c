/*
 * A checker of Prometheus' text format, written from the format's description alone, so that it
 * shares no error with the writer.
 */
#include "tests/server/observe/metrics_check.h"

#include "tests/support/support.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 1024
#define KEYS_MAX       8192

struct checker {
    char family[128], type[32]; /* of the samples that may come now */
    size_t samples;             /* of the family */
    bool helped;                /* HELP was the line before */
    char *keys[KEYS_MAX];       /* families ("# name") and samples seen; owned */
    size_t key_count;
    double last_bucket, infinite, count; /* of a histogram */
};

static void add_unique_key(struct checker *c, const char *prefix, const char *key, size_t length)
{
    char text[LINE_MAX_BYTES + 8];

    (void)snprintf(text, sizeof(text), "%s%.*s", prefix, (int)length, key);
    for (size_t i = 0; i < c->key_count; i++)
        if (strcmp(c->keys[i], text) == 0)
            ck_abort_msg("'%s' is there twice", text);
    ck_assert_uint_lt(c->key_count, KEYS_MAX);
    c->keys[c->key_count] = strdup(text);
    ck_assert_ptr_nonnull(c->keys[c->key_count++]);
}

/* Length of a name at the start; 0: none. */
static size_t name_length(const char *text, bool colons)
{
    size_t length = 0;

    if (isdigit((unsigned char)text[0]))
        return 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_' ||
           (colons && text[length] == ':'))
        length++;
    return length;
}

static void end_family(const struct checker *c)
{
    if (!c->family[0])
        return;
    ck_assert_msg(c->samples > 0, "'%s' has no samples", c->family);
    if (strcmp(c->type, "histogram") == 0)
        ck_assert_msg(c->infinite == c->count, "'%s': +Inf %g, count %g", c->family, c->infinite,
                      c->count);
}

static void check_help(struct checker *c, const char *line)
{
    size_t length = name_length(line, true);

    end_family(c);
    ck_assert_msg(length > 0 && line[length] == ' ' && line[length + 1], "HELP: '%s'", line);
    ck_assert_uint_lt(length, sizeof(c->family));
    (void)snprintf(c->family, sizeof(c->family), "%.*s", (int)length, line);
    add_unique_key(c, "# ", line, length);
    c->samples = 0;
    c->last_bucket = 0;
    c->infinite = c->count = -1;
    c->helped = true;
}

static void check_type(struct checker *c, const char *line)
{
    size_t length = strlen(c->family);

    ck_assert_msg(c->helped, "TYPE without HELP before it: '%s'", line);
    ck_assert_msg(strncmp(line, c->family, length) == 0 && line[length] == ' ', "TYPE: '%s'", line);
    (void)snprintf(c->type, sizeof(c->type), "%s", line + length + 1);
    ck_assert_msg(strcmp(c->type, "counter") == 0 || strcmp(c->type, "gauge") == 0 ||
                      strcmp(c->type, "histogram") == 0,
                  "type '%s'", c->type);
    if (strcmp(c->type, "counter") == 0)
        ck_assert_msg(length > 6 && strcmp(c->family + length - 6, "_total") == 0,
                      "counter '%s' does not end in _total", c->family);
    c->helped = false;
}

/* {a="b",c="d"}: length with its braces, 0 without any. */
static size_t labels_length(const char *text)
{
    const char *at = text;

    if (*at != '{')
        return 0;
    do {
        size_t length = name_length(++at, false);

        ck_assert_msg(length > 0 && at[length] == '=' && at[length + 1] == '"', "label: '%s'", at);
        for (at += length + 2; *at != '"'; at++) {
            ck_assert_msg(*at, "a label's value has no end: '%s'", text);
            if (*at == '\\') {
                at++;
                ck_assert_msg(*at == '\\' || *at == '"' || *at == 'n', "escape: '%s'", at - 1);
            }
        }
        at++;
    } while (*at == ',');
    ck_assert_msg(*at == '}', "labels: '%s'", text);
    return (size_t)(at + 1 - text);
}

static void check_histogram(struct checker *c, const char *suffix, const char *labels, double value)
{
    if (strncmp(suffix, "_bucket", 7) == 0) {
        ck_assert_msg(value >= c->last_bucket, "'%s': a bucket falls", c->family);
        c->last_bucket = value;
        if (strstr(labels, "le=\"+Inf\""))
            c->infinite = value;
    } else if (strncmp(suffix, "_count", 6) == 0) {
        c->count = value;
    } else {
        ck_assert_msg(strncmp(suffix, "_sum", 4) == 0, "'%s%s' in a histogram", c->family, suffix);
    }
}

static void check_sample(struct checker *c, const char *line)
{
    size_t family = strlen(c->family), name = name_length(line, true);
    size_t key = name + labels_length(line + name);
    char *end;
    double value;

    ck_assert_msg(family > 0 && c->type[0] && !c->helped, "a sample before its TYPE: '%s'", line);
    ck_assert_msg(strncmp(line, c->family, family) == 0, "'%s' among '%s'", line, c->family);
    ck_assert_msg(line[key] == ' ', "no value: '%s'", line);
    value = strtod(line + key + 1, &end);
    ck_assert_msg(end > line + key + 1 && *end == '\0', "value: '%s'", line);
    if (strcmp(c->type, "histogram") == 0)
        check_histogram(c, line + family, line + name, value);
    else
        ck_assert_msg(name == family, "'%s' among '%s'", line, c->family);
    add_unique_key(c, "", line, key);
    c->samples++;
}

size_t metrics_check(const char *text)
{
    struct checker *c = calloc(1, sizeof(*c));
    size_t samples = 0;

    ck_assert_ptr_nonnull(c);
    ck_assert_msg(text[0] && text[strlen(text) - 1] == '\n', "the last line has no end");
    while (*text) {
        char line[LINE_MAX_BYTES];
        size_t length = strcspn(text, "\n");

        ck_assert_uint_lt(length, sizeof(line));
        memcpy(line, text, length);
        line[length] = '\0';
        text += length + 1;
        if (strncmp(line, "# HELP ", 7) == 0) {
            check_help(c, line + 7);
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            check_type(c, line + 7);
        } else {
            check_sample(c, line);
            samples++;
        }
    }
    end_family(c);
    for (size_t i = 0; i < c->key_count; i++)
        free(c->keys[i]);
    free(c);
    return samples;
}

static const char *find_sample(const char *text, const char *sample)
{
    size_t length = strlen(sample);

    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (strncmp(line, sample, length) == 0 && line[length] == ' ')
            return line + length + 1;
    return NULL;
}

bool metrics_has(const char *text, const char *sample)
{
    return find_sample(text, sample) != NULL;
}

double metrics_value(const char *text, const char *sample)
{
    const char *value = find_sample(text, sample);

    ck_assert_msg(value != NULL, "no sample '%s' in:\n%s", sample, text);
    return strtod(value, NULL);
}
