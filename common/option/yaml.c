/*
 * yaml: flattens a YAML file into (dotted path, text, line), using libyaml's events.
 *
 * The model: a stack of open collections and one path buffer; a key or list index is appended to
 * the path, a scalar copies it.  Values stay the text that was written ("no" is "no"): types belong
 * to the option table.
 * Limits: 1 MiB, 8 levels, 4096 scalars, keys of 128 bytes.  Rejected, because their effects are
 * easily missed: anchors, aliases, tags, several documents, duplicate keys, keys that are not plain
 * text, keys with dots (they would look like nesting), empty lists and mappings (they would be
 * lost).  No state, no locks.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/option/option.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define FILE_BYTES_MAX (1u << 20)
#define DEPTH_MAX      8
#define SCALARS_MAX    4096
#define KEY_BYTES_MAX  128

struct frame {
    bool is_list;
    bool has_key;        /* mapping: its key was read, the value comes next */
    size_t index;        /* list: of the next item */
    size_t path_length;  /* of the collection itself */
    size_t first_scalar; /* scalars before this collection */
};

struct reader {
    const char *name;
    const char *text; /* borrowed */
    size_t size;
    struct yaml_file *file;
    size_t capacity; /* of file->scalars */
    struct strbuf path;
    struct frame frames[DEPTH_MAX];
    unsigned depth;
    unsigned documents;
};

static unsigned line_of(const yaml_event_t *event)
{
    return (unsigned)event->start_mark.line + 1;
}

static enum status yaml_error(const struct reader *r, const yaml_event_t *event, const char *text,
                              struct error *err)
{
    return error_set(err, STATUS_CONFIG, "%s:%u: %s", r->name, line_of(event), text);
}

static void truncate_path(struct reader *r, size_t length)
{
    if (strbuf_ok(&r->path) && length < r->path.length) {
        r->path.length = length;
        r->path.text[length] = '\0';
    }
}

/* Set path to the name of the next value. */
static enum status enter_value(struct reader *r, const yaml_event_t *event, struct error *err)
{
    struct frame *top;

    if (r->depth == 0)
        return STATUS_OK;
    top = &r->frames[r->depth - 1];
    if (!top->is_list)
        return top->has_key ? STATUS_OK : yaml_error(r, event, "a key must be a plain text", err);
    truncate_path(r, top->path_length);
    strbuf_addf(&r->path, "%s%zu", top->path_length > 0 ? "." : "", top->index++);
    return STATUS_OK;
}

/* Every earlier key has at least one scalar, because empty collections are rejected. */
static bool key_is_known(const struct reader *r, const struct frame *top)
{
    for (size_t i = top->first_scalar; i < r->file->length; i++) {
        const char *path = r->file->scalars[i].path;

        if (strncmp(path, r->path.text, r->path.length) == 0 &&
            (path[r->path.length] == '\0' || path[r->path.length] == '.'))
            return true;
    }
    return false;
}

static enum status read_key(struct reader *r, const yaml_event_t *event, struct error *err)
{
    struct frame *top = &r->frames[r->depth - 1];
    const char *key = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;

    if (length == 0 || length > KEY_BYTES_MAX || memchr(key, '.', length) ||
        memchr(key, '\0', length))
        return yaml_error(r, event, "a key must have 1 to 128 bytes and no dot", err);
    truncate_path(r, top->path_length);
    strbuf_addf(&r->path, "%s%s", top->path_length > 0 ? "." : "", key);
    if (key_is_known(r, top))
        return error_set(err, STATUS_CONFIG, "%s:%u: '%s' is given twice", r->name, line_of(event),
                         r->path.text);
    top->has_key = true;
    return STATUS_OK;
}

static enum status grow_scalars(struct reader *r, struct error *err)
{
    size_t capacity = r->capacity ? r->capacity * 2 : 32;
    struct yaml_scalar *grown;
    enum status status = mem_calloc(capacity, sizeof(*grown), "YAML scalars", &grown, err);

    if (status != STATUS_OK)
        return status;
    if (r->file->length > 0)
        memcpy(grown, r->file->scalars, r->file->length * sizeof(*grown));
    free(r->file->scalars);
    r->file->scalars = grown;
    r->capacity = capacity;
    return STATUS_OK;
}

static enum status read_value(struct reader *r, const yaml_event_t *event, struct error *err)
{
    const char *value = (const char *)event->data.scalar.value;
    struct yaml_scalar *scalar;
    enum status status = enter_value(r, event, err);

    if (status != STATUS_OK)
        return status;
    if (r->depth == 0)
        return yaml_error(r, event, "the file must be a mapping, lines of 'name: value'", err);
    if (memchr(value, '\0', event->data.scalar.length))
        return yaml_error(r, event, "a value holds a NUL byte", err);
    if (r->file->length == SCALARS_MAX)
        return yaml_error(r, event, "more than 4096 values", err);
    if (r->file->length == r->capacity)
        status = grow_scalars(r, err);
    if (status != STATUS_OK)
        return status;
    scalar = &r->file->scalars[r->file->length++]; /* counted first: yaml_release also frees an
                                                      incomplete one */
    scalar->line = line_of(event);
    status = mem_strdup(r->path.text, &scalar->path, err);
    if (status == STATUS_OK)
        status = mem_strdup(value, &scalar->value, err);
    r->frames[r->depth - 1].has_key = false;
    return status;
}

static enum status read_scalar(struct reader *r, const yaml_event_t *event, struct error *err)
{
    const struct frame *top = r->depth > 0 ? &r->frames[r->depth - 1] : NULL;

    if (event->data.scalar.anchor)
        return yaml_error(r, event, "anchors are not supported", err);
    if (event->data.scalar.tag)
        return yaml_error(r, event, "tags are not supported", err);
    if (top && !top->is_list && !top->has_key)
        return read_key(r, event, err);
    return read_value(r, event, err);
}

static enum status open_collection(struct reader *r, const yaml_event_t *event, bool is_list,
                                   const void *anchor, const void *tag, struct error *err)
{
    enum status status;

    if (anchor)
        return yaml_error(r, event, "anchors are not supported", err);
    if (tag)
        return yaml_error(r, event, "tags are not supported", err);
    if (r->depth == 0 && is_list)
        return yaml_error(r, event, "the file must be a mapping, lines of 'name: value'", err);
    if (r->depth == DEPTH_MAX)
        return yaml_error(r, event, "nested deeper than 8 levels", err);
    status = enter_value(r, event, err);
    if (status != STATUS_OK)
        return status;
    r->frames[r->depth++] = (struct frame){
        .is_list = is_list, .path_length = r->path.length, .first_scalar = r->file->length};
    return STATUS_OK;
}

static enum status close_collection(struct reader *r, const yaml_event_t *event, struct error *err)
{
    const struct frame *top = &r->frames[r->depth - 1];

    truncate_path(r, top->path_length);
    if (r->depth > 1 && top->first_scalar == r->file->length)
        return error_set(err, STATUS_CONFIG, "%s:%u: '%s' is empty", r->name, line_of(event),
                         r->path.text);
    r->depth--;
    if (r->depth > 0)
        r->frames[r->depth - 1].has_key = false;
    return STATUS_OK;
}

static enum status read_event(struct reader *r, const yaml_event_t *event, struct error *err)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return r->documents++ == 0 ? STATUS_OK : yaml_error(r, event, "a second document", err);
    case YAML_ALIAS_EVENT:
        return yaml_error(r, event, "aliases are not supported", err);
    case YAML_SCALAR_EVENT:
        return read_scalar(r, event, err);
    case YAML_SEQUENCE_START_EVENT:
        return open_collection(r, event, true, event->data.sequence_start.anchor,
                               event->data.sequence_start.tag, err);
    case YAML_MAPPING_START_EVENT:
        return open_collection(r, event, false, event->data.mapping_start.anchor,
                               event->data.mapping_start.tag, err);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_collection(r, event, err);
    default:
        return STATUS_OK;
    }
}

/* Lines before byte `offset`: for invalid bytes libyaml reports an offset, and its mark is too
 * early.
 */
static size_t lines_before(const struct reader *r, size_t offset)
{
    size_t lines = 0;

    for (size_t i = 0; i < offset && i < r->size; i++)
        lines += r->text[i] == '\n';
    return lines;
}

/* libyaml's error as ours. */
static enum status syntax_error(const struct reader *r, const yaml_parser_t *parser,
                                struct error *err)
{
    const char *problem = parser->problem ? parser->problem : "malformed YAML";
    size_t line = parser->problem_mark.line;

    if (parser->error == YAML_MEMORY_ERROR)
        return error_set(err, STATUS_NO_MEMORY, "%s: no memory for the YAML parser", r->name);
    if (parser->error == YAML_READER_ERROR)
        line = lines_before(r, parser->problem_offset);
    if (parser->context)
        return error_set(err, STATUS_CONFIG, "%s:%zu: %s %s", r->name, line + 1, problem,
                         parser->context);
    return error_set(err, STATUS_CONFIG, "%s:%zu: %s", r->name, line + 1, problem);
}

static enum status read_events(struct reader *r, yaml_parser_t *parser, struct error *err)
{
    bool done = false;

    while (!done) {
        yaml_event_t event;
        enum status status;

        if (!yaml_parser_parse(parser, &event))
            return syntax_error(r, parser, err);
        done = event.type == YAML_STREAM_END_EVENT;
        status = read_event(r, &event, err);
        yaml_event_delete(&event);
        if (status == STATUS_OK && !strbuf_ok(&r->path))
            status = error_set(err, STATUS_NO_MEMORY, "%s: no memory for a path", r->name);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum status yaml_parse(const char *name, const char *text, size_t size, struct yaml_file *ret,
                       struct error *err)
{
    struct yaml_file file = {0};
    struct reader reader = {
        .name = name, .text = text, .size = size, .file = &file, .path = STRBUF_INIT};
    yaml_parser_t parser;
    enum status status;

    if (size > FILE_BYTES_MAX)
        return error_set(err, STATUS_CONFIG, "%s: %zu bytes are more than the %u allowed", name,
                         size, FILE_BYTES_MAX);
    if (!yaml_parser_initialize(&parser))
        return error_set(err, STATUS_NO_MEMORY, "%s: no memory for the YAML parser", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    status = mem_strdup(name, &file.name, err);
    if (status == STATUS_OK)
        status = read_events(&reader, &parser, err);
    yaml_parser_delete(&parser);
    strbuf_release(&reader.path);
    if (status == STATUS_OK)
        *ret = file;
    else
        yaml_release(&file);
    return status;
}

enum status yaml_read(const char *path, struct yaml_file *ret, struct error *err)
{
    char *text;
    size_t size;
    enum status status = file_read(path, FILE_BYTES_MAX, &text, &size, err);

    if (status != STATUS_OK)
        return status;
    status = yaml_parse(path, text, size, ret, err);
    free(text);
    return status;
}

void yaml_release(struct yaml_file *y)
{
    if (!y)
        return;
    for (size_t i = 0; i < y->length; i++) {
        free(y->scalars[i].path);
        free(y->scalars[i].value);
    }
    free(y->scalars);
    free(y->name);
    *y = (struct yaml_file){0};
}
