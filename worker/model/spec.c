/*
 * spec: "<kind>:<width>-<width>-...": at least two widths, decimal digits only, no leading zero, so
 * that equal models have equal texts.
 */
#include "worker/model/spec.h"

#include <stdint.h>
#include <string.h>

static enum status fail(const char *text, const char *at, const char *problem, struct error *err)
{
    return error_set(err, STATUS_CONFIG, "model '%s', position %td: %s", text, at - text + 1,
                     problem);
}

/* *ret_at stands behind the kind. */
static enum status parse_kind(const char *text, struct spec *spec, const char **ret_at,
                              struct error *err)
{
    static const struct {
        const char *prefix;
        bool relu, batch_norm;
    } kinds[] = {{"mlp:", true, false}, {"mlp-bn:", true, true}, {"linear:", false, false}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t length = strlen(kinds[i].prefix);

        if (strncmp(text, kinds[i].prefix, length) != 0)
            continue;
        spec->relu = kinds[i].relu;
        spec->batch_norm = kinds[i].batch_norm;
        *ret_at = text + length;
        return STATUS_OK;
    }
    return fail(text, text,
                "expected 'mlp:', 'mlp-bn:' or 'linear:' and widths, as in mlp:784-128-10", err);
}

static enum status parse_width(const char *text, const char **at, size_t *ret_width,
                               struct error *err)
{
    const char *start = *at;
    const char *end = start;
    uint64_t width = 0;

    while (*end >= '0' && *end <= '9' && width <= SPEC_WIDTH_MAX)
        width = 10 * width + (uint64_t)(*end++ - '0');
    if (end == start)
        return fail(text, start, "expected a width in digits", err);
    if (*start == '0')
        return fail(text, start, "a width starts with 1 to 9", err);
    if (width > SPEC_WIDTH_MAX)
        return fail(text, start, "a width is at most 16777216", err);
    *ret_width = (size_t)width;
    *at = end;
    return STATUS_OK;
}

enum status spec_parse(const char *text, struct spec *ret, struct error *err)
{
    struct spec spec = {0};
    const char *at = text;
    size_t widths = 0;
    enum status status = parse_kind(text, &spec, &at, err);

    while (status == STATUS_OK) {
        if (widths > SPEC_LAYERS_MAX)
            return fail(text, at, "too many layers, at most 64", err);
        status = parse_width(text, &at, &spec.widths[widths], err);
        if (status != STATUS_OK)
            return status;
        widths++;
        if (*at == '\0')
            break;
        if (*at != '-')
            return fail(text, at, "expected '-' or the end", err);
        at++;
    }
    if (status != STATUS_OK)
        return status;
    if (widths < 2)
        return fail(text, at, "expected '-' and another width: inputs and outputs", err);
    spec.layers = widths - 1;
    *ret = spec;
    return STATUS_OK;
}
