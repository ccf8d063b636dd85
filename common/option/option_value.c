/*
 * option_value: conversion and checks by kind.  Values are copied to and from the program's struct
 * with memcpy: the table has only an offset, so the compiler must not assume a type.  No state.
 */
#include "common/option/option_value.h"

#include "common/base/parse.h"

#include <math.h>
#include <string.h>

static void *option_field(const struct option_spec *spec, void *target)
{
    return (char *)target + spec->offset;
}

static const void *const_option_field(const struct option_spec *spec, const void *target)
{
    return (const char *)target + spec->offset;
}

static enum status check_bounds(const struct option_spec *spec, const char *text, double value,
                                const char *where, enum status bad, struct error *err)
{
    bool bounded = spec->min < 0 || spec->min > 0 || spec->max < 0 || spec->max > 0;

    if (!bounded || (value >= spec->min && value <= spec->max))
        return STATUS_OK;
    if (isinf(spec->max))
        return error_set(err, bad, "%s: '%s' is too small, at least %.15g is needed", where, text,
                         spec->min);
    return error_set(err, bad, "%s: '%s' is out of range, allowed is %.15g to %.15g", where, text,
                     spec->min, spec->max);
}

void option_choices_format(const char *choices, struct strbuf *out)
{
    while (*choices) {
        size_t length = strcspn(choices, "|");
        const char *next = choices + length + (choices[length] == '|');

        strbuf_add_bytes(out, choices, length);
        if (*next)
            strbuf_add(out, strchr(next, '|') ? ", " : " or ");
        choices = next;
    }
}

static bool is_choice(const char *choices, const char *text)
{
    size_t wanted = strlen(text);

    while (wanted > 0 && *choices) {
        size_t length = strcspn(choices, "|");

        if (length == wanted && memcmp(choices, text, length) == 0)
            return true;
        choices += length + (choices[length] == '|');
    }
    return false;
}

static enum status set_text(const struct option_spec *spec, const char *text, const char *where,
                            enum status bad, void *target, struct error *err)
{
    size_t length = strlen(text);
    enum status status = STATUS_OK;

    if (length >= OPTION_TEXT_MAX)
        return error_set(err, bad, "%s: a text of %zu bytes is too long, the limit is %d", where,
                         length, OPTION_TEXT_MAX - 1);
    if (spec->kind == OPTION_CHOICE && !is_choice(spec->choices, text)) {
        struct strbuf choices = STRBUF_INIT;

        option_choices_format(spec->choices, &choices);
        status = error_set(err, bad, "%s: '%s' is not one of %s", where, text, choices.text);
        strbuf_release(&choices);
        return status;
    }
    memcpy(option_field(spec, target), text, length + 1);
    return status;
}

static enum status set_int(const struct option_spec *spec, const char *text, const char *where,
                           enum status bad, void *target, struct error *err)
{
    int64_t value;
    enum status status;

    if (!parse_int64(text, &value))
        return error_set(err, bad, "%s: '%s' is not a whole number", where, text);
    status = check_bounds(spec, text, (double)value, where, bad, err);
    if (status == STATUS_OK)
        memcpy(option_field(spec, target), &value, sizeof(value));
    return status;
}

static enum status set_bytes(const struct option_spec *spec, const char *text, const char *where,
                             enum status bad, void *target, struct error *err)
{
    uint64_t value;
    enum status status;

    if (!parse_bytes(text, &value))
        return error_set(err, bad, "%s: '%s' is not a size such as 4096, 64K or 1GiB", where, text);
    status = check_bounds(spec, text, (double)value, where, bad, err);
    if (status == STATUS_OK)
        memcpy(option_field(spec, target), &value, sizeof(value));
    return status;
}

static enum status set_double(const struct option_spec *spec, const char *text, const char *where,
                              enum status bad, void *target, struct error *err)
{
    double value;
    enum status status;

    if (!parse_double(text, &value))
        return error_set(err, bad, "%s: '%s' is not a number", where, text);
    status = check_bounds(spec, text, value, where, bad, err);
    if (status == STATUS_OK)
        memcpy(option_field(spec, target), &value, sizeof(value));
    return status;
}

static enum status set_bool(const struct option_spec *spec, const char *text, const char *where,
                            enum status bad, void *target, struct error *err)
{
    bool value;

    if (!parse_bool(text, &value))
        return error_set(err, bad, "%s: '%s' is neither true nor false", where, text);
    memcpy(option_field(spec, target), &value, sizeof(value));
    return STATUS_OK;
}

enum status option_value_set(const struct option_spec *spec, const char *text, const char *where,
                             enum status bad, void *target, struct error *err)
{
    switch (spec->kind) {
    case OPTION_BOOL:
        return set_bool(spec, text, where, bad, target, err);
    case OPTION_INT:
        return set_int(spec, text, where, bad, target, err);
    case OPTION_DOUBLE:
        return set_double(spec, text, where, bad, target, err);
    case OPTION_BYTES:
        return set_bytes(spec, text, where, bad, target, err);
    case OPTION_TEXT:
    case OPTION_CHOICE:
        return set_text(spec, text, where, bad, target, err);
    }
    return error_set(err, STATUS_INTERNAL, "%s: unknown kind of option", where);
}

static void format_bytes(uint64_t value, struct strbuf *out)
{
    static const char *const suffixes[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t power = 0;

    while (value != 0 && value % 1024 == 0 && power + 1 < sizeof(suffixes) / sizeof(suffixes[0])) {
        value /= 1024;
        power++;
    }
    strbuf_addf(out, "%ju%s", (uintmax_t)value, suffixes[power]);
}

void option_value_format(const struct option_spec *spec, const void *target, struct strbuf *out)
{
    const void *from = const_option_field(spec, target);
    bool flag;
    int64_t whole;
    uint64_t bytes;
    double number;

    switch (spec->kind) {
    case OPTION_BOOL:
        memcpy(&flag, from, sizeof(flag));
        strbuf_add(out, flag ? "true" : "false");
        break;
    case OPTION_INT:
        memcpy(&whole, from, sizeof(whole));
        strbuf_addf(out, "%jd", (intmax_t)whole);
        break;
    case OPTION_BYTES:
        memcpy(&bytes, from, sizeof(bytes));
        format_bytes(bytes, out);
        break;
    case OPTION_DOUBLE:
        memcpy(&number, from, sizeof(number));
        strbuf_add_double(out, number);
        break;
    case OPTION_TEXT:
    case OPTION_CHOICE:
        strbuf_add(out, from);
        break;
    }
}

void option_value_json(const struct option_spec *spec, const void *target, struct strbuf *out)
{
    uint64_t bytes;

    switch (spec->kind) {
    case OPTION_TEXT:
    case OPTION_CHOICE:
        strbuf_add_json(out, const_option_field(spec, target));
        break;
    case OPTION_BYTES:
        memcpy(&bytes, const_option_field(spec, target), sizeof(bytes));
        strbuf_addf(out, "%ju", (uintmax_t)bytes);
        break;
    case OPTION_BOOL:
    case OPTION_INT:
    case OPTION_DOUBLE:
        option_value_format(spec, target, out);
        break;
    }
}
