/*
 * manifest: lists of "field<TAB>value\n" and their comparison.  Two lists of the same program have
 * their fields in the same order, so the search for a field starts after the last match and then
 * continues from the beginning: linear for equal lists.
 * A list from a peer is untrusted: lines without a tab are fields without a value, and control
 * characters become blanks in the report.  No state, no locks.
 */
#include "common/manifest/manifest.h"

#include <string.h>

#define LINES_MAX 20

struct entry {
    const char *field; /* borrowed from the list, not terminated */
    size_t field_length;
    const char *value;
    size_t value_length;
    const char *next; /* the next line */
};

/* The line at `text`; false at the end of the list. */
static bool read_entry(const char *text, struct entry *ret)
{
    size_t line = strcspn(text, "\n");
    const char *tab = memchr(text, '\t', line);

    if (*text == '\0')
        return false;
    ret->field = text;
    ret->field_length = tab ? (size_t)(tab - text) : line;
    ret->value = tab ? tab + 1 : text + line;
    ret->value_length = tab ? line - ret->field_length - 1 : 0;
    ret->next = text + line + (text[line] == '\n');
    return true;
}

static bool texts_equal(const char *a, size_t a_length, const char *b, size_t b_length)
{
    return a_length == b_length && memcmp(a, b, a_length) == 0;
}

static bool find_field_between(const char *text, const char *end, const struct entry *wanted,
                               struct entry *ret)
{
    while ((!end || text < end) && read_entry(text, ret)) {
        if (texts_equal(ret->field, ret->field_length, wanted->field, wanted->field_length))
            return true;
        text = ret->next;
    }
    return false;
}

/* The search starts at *cursor, which is moved past the match. */
static bool find_field(const char *list, const char **cursor, const struct entry *wanted,
                       struct entry *ret)
{
    if (!find_field_between(*cursor, NULL, wanted, ret) &&
        !find_field_between(list, *cursor, wanted, ret))
        return false;
    *cursor = ret->next;
    return true;
}

static void blank_controls(char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            text[i] = ' ';
}

static void add_clean(struct strbuf *out, const char *text, size_t length)
{
    size_t start = out->length;

    strbuf_add_bytes(out, text, length);
    if (strbuf_ok(out))
        blank_controls(out->text + start, length);
}

void manifest_add(struct strbuf *manifest, const char *field, const char *format, ...)
{
    size_t start;
    va_list args;

    add_clean(manifest, field, strlen(field));
    strbuf_add(manifest, "\t");
    start = manifest->length;
    va_start(args, format);
    strbuf_vaddf(manifest, format, args);
    va_end(args);
    if (strbuf_ok(manifest))
        blank_controls(manifest->text + start, manifest->length - start);
    strbuf_add(manifest, "\n");
}

void manifest_add_tensors(struct strbuf *manifest, const struct tensor_table *table)
{
    struct strbuf shape = STRBUF_INIT;

    manifest_add(manifest, "tensors", "%zu", table->length);
    for (size_t i = 0; i < table->length; i++) {
        const struct tensor_view *view = &table->views[i];
        char field[TENSOR_NAME_MAX + 8] = "tensor ";

        strbuf_reset(&shape);
        for (unsigned d = 0; d < view->dims; d++)
            strbuf_addf(&shape, "%s%zu", d > 0 ? ", " : "", view->shape[d]);
        memcpy(field + 7, view->name, TENSOR_NAME_MAX);
        field[sizeof(field) - 1] = '\0';
        manifest_add(manifest, field, view->dims == 1 ? "(%s,) float32" : "(%s) float32",
                     shape.text);
    }
    if (!strbuf_ok(&shape))
        manifest->failed = true;
    strbuf_release(&shape);
}

static void add_number(struct strbuf *manifest, const char *field, double value)
{
    struct strbuf text = STRBUF_INIT;

    strbuf_add_double(&text, value);
    manifest_add(manifest, field, "%s", text.text);
    if (!strbuf_ok(&text))
        manifest->failed = true;
    strbuf_release(&text);
}

void manifest_add_optimizer(struct strbuf *manifest, const struct optimizer_config *config)
{
    manifest_add(manifest, "optimizer", "%s", optimizer_name(config->kind));
    add_number(manifest, "learning rate", config->learning_rate);
    add_number(manifest, "weight decay", config->weight_decay);
    if (config->kind == OPTIMIZER_SGD) {
        add_number(manifest, "momentum", config->momentum);
        add_number(manifest, "dampening", config->dampening);
        manifest_add(manifest, "nesterov", "%s", config->nesterov ? "true" : "false");
    } else {
        add_number(manifest, "beta1", config->beta1);
        add_number(manifest, "beta2", config->beta2);
        add_number(manifest, "epsilon", config->epsilon);
    }
}

struct comparison {
    unsigned rank_a, rank_b;
    size_t differences;
    struct strbuf *report;
};

/* a or b NULL: that rank lacks the field. */
static void add_difference(struct comparison *c, const struct entry *a, const struct entry *b)
{
    const struct entry *known = a ? a : b;
    const struct entry *sides[2] = {a, b};
    const unsigned ranks[2] = {c->rank_a, c->rank_b};

    if (c->differences++ >= LINES_MAX)
        return;
    add_clean(c->report, known->field, known->field_length);
    for (int i = 0; i < 2; i++) {
        strbuf_addf(c->report, "%s rank %u has ", i == 0 ? ":" : ",", ranks[i]);
        if (sides[i])
            add_clean(c->report, sides[i]->value, sides[i]->value_length);
        else
            strbuf_add(c->report, "nothing");
    }
    strbuf_add(c->report, "\n");
}

/* Report equal fields in another order, for example two models with exchanged layers. */
static void compare_order(struct comparison *c, const char *a, const char *b)
{
    struct entry first;
    struct entry second;
    size_t position = 1;

    while (read_entry(a, &first) && read_entry(b, &second)) {
        if (!texts_equal(first.field, first.field_length, second.field, second.field_length)) {
            c->differences++;
            strbuf_addf(c->report, "order: field %zu of rank %u is '", position, c->rank_a);
            add_clean(c->report, first.field, first.field_length);
            strbuf_addf(c->report, "', of rank %u '", c->rank_b);
            add_clean(c->report, second.field, second.field_length);
            strbuf_add(c->report, "'\n");
            return;
        }
        a = first.next;
        b = second.next;
        position++;
    }
}

size_t manifest_compare(const char *a, unsigned rank_a, const char *b, unsigned rank_b,
                        struct strbuf *report)
{
    struct comparison c = {.rank_a = rank_a, .rank_b = rank_b, .report = report};
    struct entry mine;
    struct entry theirs;
    const char *cursor = b;

    for (const char *text = a; read_entry(text, &mine); text = mine.next) {
        bool found = find_field(b, &cursor, &mine, &theirs);

        if (!found)
            add_difference(&c, &mine, NULL);
        else if (!texts_equal(mine.value, mine.value_length, theirs.value, theirs.value_length))
            add_difference(&c, &mine, &theirs);
    }
    cursor = a;
    for (const char *text = b; read_entry(text, &theirs); text = theirs.next)
        if (!find_field(a, &cursor, &theirs, &mine))
            add_difference(&c, NULL, &theirs);
    if (c.differences == 0)
        compare_order(&c, a, b);
    if (c.differences > LINES_MAX)
        strbuf_addf(report, "and %zu more\n", c.differences - LINES_MAX);
    return c.differences;
}
