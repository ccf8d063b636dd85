/*
 * html_check: one pass over the text with a stack of open elements: the subset of XML that our page
 * uses.
 */
#include "tests/experiments/report/html_check.h"

#include "tests/support/support.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX  64
#define IDS_MAX    1024
#define NAME_BYTES 32

struct checker {
    const char *start, *p;
    char open[DEPTH_MAX][NAME_BYTES];
    unsigned depth;
    char ids[IDS_MAX][64];
    unsigned id_count;
};

static void fail_at(const struct checker *c, const char *what)
{
    ck_abort_msg("%s at byte %zu: '%.80s'", what, (size_t)(c->p - c->start), c->p);
}

static void skip_space(struct checker *c)
{
    while (isspace((unsigned char)*c->p))
        c->p++;
}

static void read_name(struct checker *c, char name[NAME_BYTES])
{
    size_t length = 0;

    while (isalnum((unsigned char)*c->p) || *c->p == '-' || *c->p == ':' || *c->p == '_') {
        if (length + 1 == NAME_BYTES)
            fail_at(c, "a long name");
        name[length++] = *c->p++;
    }
    name[length] = '\0';
    if (length == 0)
        fail_at(c, "no name");
}

static void check_entity(const struct checker *c)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(c->p, known[i], strlen(known[i])) == 0)
            return;
    fail_at(c, "a bare '&'");
}

static void check_id(struct checker *c, const char *id)
{
    for (unsigned i = 0; i < c->id_count; i++)
        if (strcmp(c->ids[i], id) == 0)
            ck_abort_msg("identifier '%s' is used twice", id);
    ck_assert_uint_lt(c->id_count, IDS_MAX);
    (void)snprintf(c->ids[c->id_count++], sizeof(c->ids[0]), "%.63s", id);
}

static void check_attribute(struct checker *c, const char *name, const char *value)
{
    bool is_link =
        strcmp(name, "src") == 0 || strcmp(name, "href") == 0 || strcmp(name, "xlink:href") == 0;

    if (strncmp(name, "on", 2) == 0)
        fail_at(c, "an event attribute");
    if (is_link && value[0] != '#' && strncmp(value, "cells/", 6) != 0)
        fail_at(c, "a link out of the page");
    if (strstr(value, "url(") && !strstr(value, "url(#"))
        fail_at(c, "a url() out of the page");
    if (strcmp(name, "id") == 0)
        check_id(c, value);
}

/* A quoted value, truncated to `size` (the data of curves is long and not checked). */
static void read_value(struct checker *c, char *value, size_t size)
{
    char quote = *c->p++;
    const char *start = c->p;
    const char *end = quote == '"' || quote == '\'' ? strchr(start, quote) : NULL;

    if (!end)
        fail_at(c, "an attribute without quotes");
    for (; c->p < end; c->p++) {
        if (*c->p == '<')
            fail_at(c, "'<' in an attribute");
        if (*c->p == '&')
            check_entity(c);
    }
    (void)snprintf(value, size, "%.*s", (int)(end - start), start);
    c->p = end + 1;
}

static void read_attributes(struct checker *c)
{
    char name[NAME_BYTES];
    char value[256];

    for (skip_space(c); *c->p != '>' && *c->p != '/' && *c->p != '\0'; skip_space(c)) {
        read_name(c, name);
        skip_space(c);
        if (*c->p++ != '=')
            fail_at(c, "an attribute without a value");
        skip_space(c);
        read_value(c, value, sizeof(value));
        check_attribute(c, name, value);
    }
}

static void read_close(struct checker *c)
{
    char name[NAME_BYTES];

    c->p += 2;
    read_name(c, name);
    if (c->depth == 0 || strcmp(c->open[c->depth - 1], name) != 0)
        fail_at(c, "a closing tag that closes nothing");
    c->depth--;
    skip_space(c);
    if (*c->p++ != '>')
        fail_at(c, "a broken closing tag");
}

static void read_open(struct checker *c)
{
    char name[NAME_BYTES];
    const char *end;

    c->p++;
    read_name(c, name);
    if (strcmp(name, "script") == 0 || strcmp(name, "iframe") == 0 || strcmp(name, "object") == 0)
        fail_at(c, "an element that may act");
    read_attributes(c);
    if (*c->p == '/') {
        if (*++c->p != '>')
            fail_at(c, "a broken tag");
        c->p++;
        return;
    }
    if (*c->p++ != '>')
        fail_at(c, "a broken tag");
    if (strcmp(name, "style") == 0) { /* text until its end */
        end = strstr(c->p, "</style>");
        ck_assert_ptr_nonnull(end);
        ck_assert_msg(memmem(c->p, (size_t)(end - c->p), "url(", 4) == NULL, "url() in the style");
        c->p = end + strlen("</style>");
        return;
    }
    ck_assert_uint_lt(c->depth, DEPTH_MAX);
    (void)snprintf(c->open[c->depth++], NAME_BYTES, "%s", name);
}

void html_check(const char *text)
{
    static struct checker checker;
    struct checker *c = &checker;

    *c = (struct checker){.start = text, .p = text};
    ck_assert_msg(strncmp(text, "<!DOCTYPE html>\n", 16) == 0, "no doctype");
    c->p += 16;
    while (*c->p) {
        if (strncmp(c->p, "</", 2) == 0)
            read_close(c);
        else if (*c->p == '<')
            read_open(c);
        else {
            if (*c->p == '&')
                check_entity(c);
            if ((unsigned char)*c->p < 0x20 && !isspace((unsigned char)*c->p))
                fail_at(c, "a control character");
            c->p++;
        }
    }
    ck_assert_msg(c->depth == 0, "'%s' is not closed", c->depth ? c->open[c->depth - 1] : "");
    ck_assert_msg(c->id_count > 0, "the page has no identifiers");
}
