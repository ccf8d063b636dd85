/*
 * option_print: prints an option table as --help, --print-config and JSON.  No state.
 * Columns of help: two blanks, the option, its text from column 28 to at most column 80.
 */
#include "common/option/option_value.h"

#include <stdio.h>
#include <string.h>

#define TEXT_COLUMN 28
#define LAST_COLUMN 80

/* Append `text` word by word; lines after the first start at `indent`.  `column` is the current
 * line's length.  A word that is too long for any line is not broken. */
static void add_wrapped(struct strbuf *out, const char *text, size_t column, size_t indent)
{
    bool line_start = true;

    while (*text) {
        size_t length = strcspn(text, " \n");

        if (!line_start && column + 1 + length > LAST_COLUMN) {
            strbuf_addf(out, "\n%*s", (int)indent, "");
            column = indent;
            line_start = true;
        }
        if (!line_start && length > 0) {
            strbuf_add(out, " ");
            column++;
        }
        strbuf_add_bytes(out, text, length);
        column += length;
        if (length > 0)
            line_start = false;
        text += length;
        text += strspn(text, " \n");
    }
    strbuf_add(out, "\n");
}

/* Append the choices, the default and the variable to the help. */
static void add_facts(const struct option_spec *spec, struct strbuf *text)
{
    if (spec->kind == OPTION_CHOICE) {
        strbuf_add(text, " One of ");
        option_choices_format(spec->choices, text);
        strbuf_add(text, ".");
    }
    if (spec->default_text && *spec->default_text && spec->kind != OPTION_BOOL)
        strbuf_addf(text, " (default: %s)", spec->default_text);
    else if (spec->default_text && strcmp(spec->default_text, "true") == 0)
        strbuf_addf(text, " (default: true; --%s=false switches it off)", spec->name);
    if (spec->env)
        strbuf_addf(text, " [%s]", spec->env);
}

static const char *metavar_of(const struct option_spec *spec)
{
    if (spec->metavar || spec->kind == OPTION_BOOL)
        return spec->metavar;
    if (spec->kind == OPTION_BYTES)
        return "BYTES";
    return spec->kind == OPTION_INT || spec->kind == OPTION_DOUBLE ? "N" : "TEXT";
}

static void add_spec_help(const struct option_spec *spec, struct strbuf *out)
{
    struct strbuf text = STRBUF_INIT;
    const char *metavar = metavar_of(spec);
    size_t start = out->length;
    size_t column;

    if (spec->alias_of)
        return;
    if (!spec->name) {
        strbuf_addf(out, "\n%s\n", spec->help);
        return;
    }
    strbuf_addf(out, "  --%s%s%s", spec->name, metavar ? " " : "", metavar ? metavar : "");
    column = out->length - start;
    if (column + 2 > TEXT_COLUMN) {
        strbuf_add(out, "\n");
        column = 0;
    }
    strbuf_addf(out, "%*s", (int)(TEXT_COLUMN - column), "");
    strbuf_add(&text, spec->help ? spec->help : "");
    add_facts(spec, &text);
    add_wrapped(out, text.text, TEXT_COLUMN, TEXT_COLUMN);
    if (!strbuf_ok(&text))
        out->failed = true;
    strbuf_release(&text);
}

void option_help(const struct option_set *set, struct strbuf *out)
{
    size_t column = strlen("Usage: ") + strlen(set->program) + 1;
    struct option_spec spec;

    strbuf_addf(out, "Usage: %s ", set->program);
    add_wrapped(out, set->usage ? set->usage : "[OPTION]...", column, 4);
    if (set->summary)
        add_wrapped(out, set->summary, 0, 0);
    if (option_at(set, 0, &spec) && spec.name)
        strbuf_add(out, "\n");
    for (size_t i = 0; option_at(set, i, &spec); i++)
        add_spec_help(&spec, out);
    for (size_t i = 0; option_at(&option_common_set, i, &spec); i++)
        add_spec_help(&spec, out);
}

/* Text that YAML could interpret in another way needs quotes. */
static bool is_plain(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./+-";

    return *text && *text != '-' && text[strspn(text, plain)] == '\0';
}

static bool is_text(const struct option_spec *spec)
{
    return spec->kind == OPTION_TEXT || spec->kind == OPTION_CHOICE;
}

/* "name: value", or "# name:" without a value. */
static void add_config_line(const struct option_spec *spec, const void *target, bool is_set,
                            struct strbuf *out)
{
    struct strbuf value = STRBUF_INIT;

    option_value_format(spec, target, &value);
    if (!is_set)
        strbuf_addf(out, "# %s:", spec->name);
    else
        strbuf_addf(out, "%s: ", spec->name);
    if (is_set && is_text(spec) && !is_plain(value.text))
        strbuf_add_json(out, value.text);
    else if (is_set)
        strbuf_add(out, value.text);
    if (!strbuf_ok(&value))
        out->failed = true;
    strbuf_release(&value);
}

static bool has_value(const struct option_spec *spec, const struct option_result *r, size_t i)
{
    return r->origin[i] != ORIGIN_DEFAULT || spec->default_text;
}

void option_print_config(const struct option_set *set, const void *target,
                         const struct option_result *r, struct strbuf *out)
{
    struct strbuf line = STRBUF_INIT;
    struct option_spec spec;
    size_t widest = 0;

    for (size_t i = 0; option_at(set, i, &spec); i++) {
        if (!spec.name || spec.alias_of)
            continue;
        strbuf_reset(&line);
        add_config_line(&spec, target, has_value(&spec, r, i), &line);
        if (line.length > widest && line.length <= LAST_COLUMN / 2)
            widest = line.length;
    }
    for (size_t i = 0; option_at(set, i, &spec); i++) {
        if (!spec.name || spec.alias_of)
            continue;
        strbuf_reset(&line);
        add_config_line(&spec, target, has_value(&spec, r, i), &line);
        strbuf_addf(out, "%-*s   # %s\n", (int)widest, line.text,
                    has_value(&spec, r, i) ? r->origin_text[i] : "not set");
    }
    if (!strbuf_ok(&line))
        out->failed = true;
    strbuf_release(&line);
}

void option_json(const struct option_set *set, const void *target, const struct option_result *r,
                 struct strbuf *out)
{
    struct option_spec spec;
    bool first = true;

    strbuf_add(out, "{");
    for (size_t i = 0; option_at(set, i, &spec); i++) {
        if (!spec.name || spec.alias_of)
            continue;
        if (!first)
            strbuf_add(out, ", ");
        first = false;
        strbuf_add_json(out, spec.name);
        strbuf_add(out, ": {\"value\": ");
        if (has_value(&spec, r, i))
            option_value_json(&spec, target, out);
        else
            strbuf_add(out, "null");
        strbuf_add(out, ", \"origin\": ");
        strbuf_add_json(out, r->origin_text[i]);
        strbuf_add(out, "}");
    }
    strbuf_add(out, "}");
}
