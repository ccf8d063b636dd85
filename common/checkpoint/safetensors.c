/*
 * The reading half of safetensors.  The whole file is one buffer; jansson parses the header, each
 * header entry becomes one safetensors_entry that points into the buffer, the entries are sorted by
 * their data and must then tile it exactly.  Unknown fields of a tensor are ignored, as the
 * reference reader does.  Limits: headers of 100,000,000 bytes (the format's own), TENSOR_DIMS_MAX
 * dimensions (ours), no NUL inside names.  No shared state, no locking.
 */
#include "common/checkpoint/safetensors.h"

#include "common/base/file.h"
#include "common/base/memory.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES     8
#define HEADER_BYTES_MAX 100000000
#define METADATA_KEY     "__metadata__"

struct dtype {
    const char *name;
    unsigned bits;
};

static const struct dtype dtypes[] = {
    {"F32", 32},    {"F64", 64},    {"F16", 16},        {"BF16", 16},       {"I64", 64},
    {"I32", 32},    {"I16", 16},    {"I8", 8},          {"U64", 64},        {"U32", 32},
    {"U16", 16},    {"U8", 8},      {"BOOL", 8},        {"C64", 64},        {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"F4", 4},
};

/* Context for parsing one header entry; the names are for error texts. */
struct parse_context {
    const char *path;
    const char *tensor;
    const unsigned char *data; /* first byte after the header */
    size_t data_bytes;
};

static const struct dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

/* A JSON integer that is not negative. */
static bool to_size(const json_t *json, size_t *ret)
{
    if (!json_is_integer(json) || json_integer_value(json) < 0)
        return false;
    *ret = (size_t)json_integer_value(json);
    return true;
}

static enum status parse_shape(const struct parse_context *c, const json_t *json,
                               struct safetensors_entry *entry, struct error *err)
{
    size_t dims = json_array_size(json);

    if (!json_is_array(json))
        return error_set(err, STATUS_DATA, "'%s': tensor '%s' has no shape", c->path, c->tensor);
    if (dims > TENSOR_DIMS_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "'%s': tensor '%s' has %zu dimensions, at most %d are supported", c->path,
                         c->tensor, dims, TENSOR_DIMS_MAX);
    entry->dims = (unsigned)dims;
    entry->count = 1;
    for (size_t i = 0; i < dims; i++) {
        if (!to_size(json_array_get(json, i), &entry->shape[i]))
            return error_set(err, STATUS_DATA,
                             "'%s': tensor '%s': dimension %zu is not a whole number from 0",
                             c->path, c->tensor, i);
        if (!size_multiply(entry->count, entry->shape[i], &entry->count))
            return error_set(err, STATUS_DATA, "'%s': tensor '%s': shape overflows", c->path,
                             c->tensor);
    }
    return STATUS_OK;
}

/* entry->bytes from the count and the dtype. */
static enum status parse_dtype(const struct parse_context *c, const json_t *json,
                               struct safetensors_entry *entry, struct error *err)
{
    const char *name = json_string_value(json);
    const struct dtype *dtype = name ? find_dtype(name) : NULL;
    size_t bits;

    if (!name)
        return error_set(err, STATUS_DATA, "'%s': tensor '%s' has no dtype", c->path, c->tensor);
    if (!dtype)
        return error_set(err, STATUS_DATA, "'%s': tensor '%s' has unknown dtype '%s'", c->path,
                         c->tensor, name);
    memcpy(entry->dtype, dtype->name, strlen(dtype->name) + 1);
    if (!size_multiply(entry->count, dtype->bits, &bits))
        return error_set(err, STATUS_DATA, "'%s': tensor '%s': shape overflows", c->path,
                         c->tensor);
    if (bits % 8 != 0)
        return error_set(err, STATUS_DATA, "'%s': tensor '%s': %zu bits do not end on a byte",
                         c->path, c->tensor, bits);
    entry->bytes = bits / 8;
    return STATUS_OK;
}

static enum status parse_offsets(const struct parse_context *c, const json_t *json,
                                 struct safetensors_entry *entry, struct error *err)
{
    size_t begin;
    size_t end;

    if (json_array_size(json) != 2 || !to_size(json_array_get(json, 0), &begin) ||
        !to_size(json_array_get(json, 1), &end))
        return error_set(err, STATUS_DATA,
                         "'%s': tensor '%s': data_offsets are not two whole numbers from 0",
                         c->path, c->tensor);
    if (begin > end || end > c->data_bytes)
        return error_set(
            err, STATUS_DATA,
            "'%s': tensor '%s': data_offsets [%zu, %zu] leave the %zu bytes of data (a truncated "
            "file?)",
            c->path, c->tensor, begin, end, c->data_bytes);
    if (end - begin != entry->bytes)
        return error_set(err, STATUS_DATA,
                         "'%s': tensor '%s': its shape needs %zu bytes, its data_offsets hold %zu",
                         c->path, c->tensor, entry->bytes, end - begin);
    entry->data = c->data + begin;
    return STATUS_OK;
}

static enum status parse_entry(const struct parse_context *c, const json_t *json,
                               struct safetensors_entry *entry, struct error *err)
{
    enum status status;

    if (!json_is_object(json))
        return error_set(err, STATUS_DATA, "'%s': tensor '%s' is not a JSON object", c->path,
                         c->tensor);
    status = parse_shape(c, json_object_get(json, "shape"), entry, err);
    if (status == STATUS_OK)
        status = parse_dtype(c, json_object_get(json, "dtype"), entry, err);
    if (status == STATUS_OK)
        status = parse_offsets(c, json_object_get(json, "data_offsets"), entry, err);
    if (status == STATUS_OK)
        status = mem_strdup(c->tensor, &entry->name, err);
    return status;
}

static enum status parse_metadata(struct safetensors *s, json_t *json, struct error *err)
{
    const char *key;
    json_t *value;
    enum status status;

    if (!json_is_object(json))
        return error_set(err, STATUS_DATA, "'%s': %s is not a JSON object", s->path, METADATA_KEY);
    status =
        mem_calloc(json_object_size(json), sizeof(*s->metadata), "metadata", &s->metadata, err);
    if (status != STATUS_OK)
        return status;
    json_object_foreach(json, key, value)
    {
        struct safetensors_pair *pair = &s->metadata[s->pairs++];

        if (!json_is_string(value))
            return error_set(err, STATUS_DATA, "'%s': %s: the value of '%s' is not a string",
                             s->path, METADATA_KEY, key);
        status = mem_strdup(key, &pair->key, err);
        if (status == STATUS_OK)
            status = mem_strdup(json_string_value(value), &pair->value, err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* Every tensor of the header, in the header's order. */
static enum status parse_tensors(struct safetensors *s, json_t *header, struct parse_context *c,
                                 struct error *err)
{
    json_t *json;
    enum status status;

    status =
        mem_calloc(json_object_size(header), sizeof(*s->entries), "tensor list", &s->entries, err);
    if (status != STATUS_OK)
        return status;
    json_object_foreach(header, c->tensor, json)
    {
        if (strcmp(c->tensor, METADATA_KEY) == 0)
            status = parse_metadata(s, json, err);
        else
            status = parse_entry(c, json, &s->entries[s->length++], err);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* By start, then end: an empty tensor comes before another one with the same start. */
static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *x = a;
    const struct safetensors_entry *y = b;

    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The sorted entries must cover the data without holes, overlaps or trailing bytes. */
static enum status check_tiling(const struct safetensors *s, const struct parse_context *c,
                                struct error *err)
{
    size_t end = 0;

    for (size_t i = 0; i < s->length; i++) {
        const struct safetensors_entry *entry = &s->entries[i];
        size_t begin = (size_t)(entry->data - c->data);

        if (begin < end)
            return error_set(err, STATUS_DATA, "'%s': tensor '%s' overlaps tensor '%s'", s->path,
                             entry->name, s->entries[i - 1].name);
        if (begin > end)
            return error_set(err, STATUS_DATA,
                             "'%s': %zu bytes before tensor '%s' belong to no tensor", s->path,
                             begin - end, entry->name);
        end = begin + entry->bytes;
    }
    if (end != c->data_bytes)
        return error_set(err, STATUS_DATA, "'%s': %zu trailing bytes belong to no tensor", s->path,
                         c->data_bytes - end);
    return STATUS_OK;
}

static enum status parse_header(struct safetensors *s, const char *text, size_t bytes,
                                struct parse_context *c, struct error *err)
{
    json_error_t why;
    json_t *header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    enum status status;

    if (!header && json_error_code(&why) == json_error_out_of_memory)
        return error_set(err, STATUS_NO_MEMORY, "'%s': no memory for the header", s->path);
    if (!header)
        return error_set(err, STATUS_DATA, "'%s': header is not valid JSON: %s (byte %d)", s->path,
                         why.text, why.position);
    if (json_is_object(header))
        status = parse_tensors(s, header, c, err);
    else
        status = error_set(err, STATUS_DATA, "'%s': header is not a JSON object", s->path);
    json_decref(header);
    return status;
}

/* Fill s from its buffer, which has `size` bytes. */
static enum status parse_buffer(struct safetensors *s, size_t size, struct error *err)
{
    struct parse_context c = {.path = s->path};
    uint64_t header_bytes = 0;
    enum status status;

    if (size < LENGTH_BYTES)
        return error_set(err, STATUS_DATA, "'%s' has %zu bytes, too short for safetensors", s->path,
                         size);
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        header_bytes |= (uint64_t)(unsigned char)s->buffer[i] << (8 * i);
    if (header_bytes > HEADER_BYTES_MAX)
        return error_set(err, STATUS_DATA,
                         "'%s': header of %ju bytes, more than the %d allowed (not safetensors?)",
                         s->path, (uintmax_t)header_bytes, HEADER_BYTES_MAX);
    if (header_bytes > size - LENGTH_BYTES)
        return error_set(err, STATUS_DATA,
                         "'%s': header of %ju bytes leaves the file of %zu (a truncated file?)",
                         s->path, (uintmax_t)header_bytes, size);
    c.data = (const unsigned char *)s->buffer + LENGTH_BYTES + header_bytes;
    c.data_bytes = size - LENGTH_BYTES - header_bytes;
    status = parse_header(s, s->buffer + LENGTH_BYTES, header_bytes, &c, err);
    if (status != STATUS_OK)
        return status;
    qsort(s->entries, s->length, sizeof(*s->entries), compare_entries);
    return check_tiling(s, &c, err);
}

/* Takes ownership of the buffer, also on failure. */
static enum status parse_and_take_buffer(const char *name, char *buffer, size_t size,
                                         struct safetensors *ret, struct error *err)
{
    struct safetensors s = {.buffer = buffer};
    enum status status = mem_strdup(name, &s.path, err);

    if (status == STATUS_OK)
        status = parse_buffer(&s, size, err);
    if (status != STATUS_OK) {
        safetensors_release(&s);
        return status;
    }
    *ret = s;
    return STATUS_OK;
}

enum status safetensors_read(const char *path, size_t max_bytes, struct safetensors *ret,
                             struct error *err)
{
    char *buffer;
    size_t size;
    enum status status = file_read(path, max_bytes, &buffer, &size, err);

    if (status != STATUS_OK)
        return status;
    return parse_and_take_buffer(path, buffer, size, ret, err);
}

enum status safetensors_parse(const char *name, const void *data, size_t size,
                              struct safetensors *ret, struct error *err)
{
    char *buffer;
    enum status status = mem_calloc(size, 1, name, &buffer, err);

    if (status != STATUS_OK)
        return status;
    if (size > 0)
        memcpy(buffer, data, size);
    return parse_and_take_buffer(name, buffer, size, ret, err);
}

void safetensors_release(struct safetensors *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->length; i++)
        free(s->entries[i].name);
    for (size_t i = 0; i < s->pairs; i++) {
        free(s->metadata[i].key);
        free(s->metadata[i].value);
    }
    free(s->entries);
    free(s->metadata);
    free(s->buffer);
    free(s->path);
    *s = (struct safetensors){0};
}

const struct safetensors_entry *safetensors_find(const struct safetensors *s, const char *name)
{
    for (size_t i = 0; i < s->length; i++)
        if (strcmp(s->entries[i].name, name) == 0)
            return &s->entries[i];
    return NULL;
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    for (size_t i = 0; i < s->pairs; i++)
        if (strcmp(s->metadata[i].key, key) == 0)
            return s->metadata[i].value;
    return NULL;
}
