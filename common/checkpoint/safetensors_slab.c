/*
 * Loads slabs from a safetensors file and saves them.  Loading first compares the file with the
 * tables and reports every difference at once; only then does it write to a slab.  Values are
 * copied byte for byte, so this file requires a little-endian machine.  No locking: the caller owns
 * slab and table.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "common/checkpoint/safetensors.h"
#include "common/tensor/half.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "slabs are written as they lie in memory, and the format is little-endian");

#define TEXT_BYTES_USED sizeof(((struct error *)NULL)->text)

/* One view and its name in the file. */
struct named_view {
    char *name; /* owned */
    const struct tensor_view *view;
    const float *data;
};

struct named_views {
    struct named_view *list; /* owned */
    size_t length;
};

/* Dtypes that are converted to float32 when they are read, and their bytes. */
static const struct {
    const char *name;
    size_t size;
} float_dtypes[] = {{"F32", 4}, {"F64", 8}, {"F16", 2}, {"BF16", 2}};

static size_t float_size(const struct safetensors_entry *e)
{
    for (size_t i = 0; i < sizeof(float_dtypes) / sizeof(float_dtypes[0]); i++)
        if (strcmp(e->dtype, float_dtypes[i].name) == 0)
            return float_dtypes[i].size;
    return 0;
}

static float float_at(const struct safetensors_entry *e, size_t index)
{
    float value;
    double wide;
    uint16_t half;

    switch (float_size(e)) {
    case sizeof(half):
        memcpy(&half, e->data + index * sizeof(half), sizeof(half));
        return e->dtype[0] == 'B' ? float_from_bfloat16(half) : float_from_float16(half);
    case sizeof(wide):
        memcpy(&wide, e->data + index * sizeof(wide), sizeof(wide));
        return (float)wide;
    default:
        memcpy(&value, e->data + index * sizeof(value), sizeof(value));
        return value;
    }
}

/* Index of the first NaN or infinity, or the count when all are finite. */
static size_t first_not_finite(const struct safetensors_entry *e)
{
    size_t i = 0;

    while (i < e->count && isfinite(float_at(e, i)))
        i++;
    return i;
}

static enum status check_finite(const struct safetensors *s, const struct safetensors_entry *e,
                                struct error *err)
{
    size_t bad = first_not_finite(e);

    if (bad == e->count)
        return STATUS_OK;
    return error_set(err, STATUS_DATA, "'%s': tensor '%s': element %zu is %s", s->path, e->name,
                     bad, isnan(float_at(e, bad)) ? "not a number" : "infinite");
}

enum status safetensors_copy_floats(const struct safetensors *s, const struct safetensors_entry *e,
                                    float *values, struct error *err)
{
    enum status status;

    if (strcmp(e->dtype, "F32") != 0)
        return error_set(err, STATUS_DATA, "'%s': tensor '%s' is %s, not F32", s->path, e->name,
                         e->dtype);
    status = check_finite(s, e, err);
    if (status == STATUS_OK && e->bytes > 0)
        memcpy(values, e->data, e->bytes);
    return status;
}

static void add_shape(struct strbuf *text, unsigned dims, const size_t *shape)
{
    strbuf_add(text, "(");
    for (unsigned i = 0; i < dims; i++)
        strbuf_addf(text, "%s%zu", i > 0 ? ", " : "", shape[i]);
    strbuf_add(text, ")");
}

static bool same_shape(const struct safetensors_entry *e, const struct tensor_view *view)
{
    return e->dims == view->dims &&
           memcmp(e->shape, view->shape, view->dims * sizeof(view->shape[0])) == 0;
}

static void named_views_release(struct named_views *p)
{
    for (size_t i = 0; i < p->length; i++)
        free(p->list[i].name);
    free(p->list);
    *p = (struct named_views){0};
}

static enum status named_views_alloc(struct named_views *p, size_t capacity, struct error *err)
{
    return mem_calloc(capacity, sizeof(*p->list), "tensor order", &p->list, err);
}

static enum status append_part(struct named_views *p, const char *prefix,
                               const struct tensor_table *table, const float *slab,
                               struct error *err)
{
    size_t prefix_length = strlen(prefix);

    for (size_t i = 0; i < table->length; i++) {
        const struct tensor_view *view = &table->views[i];
        size_t length = strlen(view->name);
        struct named_view *named_view = &p->list[p->length];
        enum status status =
            mem_calloc(prefix_length + length + 1, 1, "tensor name", &named_view->name, err);

        if (status != STATUS_OK)
            return status;
        memcpy(named_view->name, prefix, prefix_length);
        memcpy(named_view->name + prefix_length, view->name, length);
        named_view->view = view;
        named_view->data = slab ? slab + view->offset : NULL;
        p->length++;
    }
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b)
{
    const struct named_view *x = a;
    const struct named_view *y = b;

    return strcmp(x->name, y->name);
}

/* The views of all parts, sorted by name. */
static enum status named_views_init(struct named_views *p, const struct safetensors_part *parts,
                                    size_t length, struct error *err)
{
    size_t views = 0;
    enum status status;

    for (size_t i = 0; i < length; i++)
        views += parts[i].table->length;
    status = named_views_alloc(p, views, err);
    for (size_t i = 0; i < length && status == STATUS_OK; i++)
        status = append_part(p, parts[i].prefix, parts[i].table, parts[i].slab, err);
    if (status == STATUS_OK)
        qsort(p->list, p->length, sizeof(*p->list), compare_names);
    return status;
}

static bool has_view(const struct named_views *p, char *name)
{
    struct named_view key = {.name = name};

    return bsearch(&key, p->list, p->length, sizeof(*p->list), compare_names) != NULL;
}

static bool begins_with(const char *name, const char *prefix)
{
    return prefix && strncmp(name, prefix, strlen(prefix)) == 0;
}

static const char *kind_name(enum tensor_kind kind)
{
    return kind == TENSOR_INT64 ? "I64" : "F32";
}

static bool fits_kind(const struct safetensors_entry *e, enum tensor_kind kind)
{
    if (kind == TENSOR_INT64)
        return strcmp(e->dtype, "I64") == 0 || strcmp(e->dtype, "F32") == 0;
    return float_size(e) > 0;
}

/* Append the difference between the entry and the view as "; <text>"; false: there is none. */
static bool add_difference(const struct named_view *named_view, const struct safetensors_entry *e,
                           struct strbuf *text)
{
    if (!e) {
        strbuf_addf(text, "; '%s' is missing", named_view->name);
    } else if (!fits_kind(e, named_view->view->kind)) {
        strbuf_addf(text, "; '%s' is %s, not %s", named_view->name, e->dtype,
                    kind_name(named_view->view->kind));
    } else if (!same_shape(e, named_view->view)) {
        strbuf_addf(text, "; '%s' is ", named_view->name);
        add_shape(text, e->dims, e->shape);
        strbuf_add(text, ", the model has ");
        add_shape(text, named_view->view->dims, named_view->view->shape);
    } else {
        return false;
    }
    return true;
}

/* Append all differences between the file and the views; returns their number. */
static size_t list_differences(const struct safetensors *s, const struct named_views *p,
                               const char *ignored, struct strbuf *text)
{
    size_t found = 0;

    for (size_t i = 0; i < p->length; i++)
        found += add_difference(&p->list[i], safetensors_find(s, p->list[i].name), text);
    for (size_t i = 0; i < s->length; i++) {
        if (has_view(p, s->entries[i].name) || begins_with(s->entries[i].name, ignored))
            continue;
        if (text->length < TEXT_BYTES_USED) /* a hostile file can have a million names */
            strbuf_addf(text, "; '%s' is not in the model", s->entries[i].name);
        found++;
    }
    return found;
}

static enum status check_values(const struct safetensors *s, const struct safetensors_entry *e,
                                enum tensor_kind kind, struct error *err)
{
    if (strcmp(e->dtype, "I64") == 0)
        return STATUS_OK;
    for (size_t i = 0; kind == TENSOR_INT64 && i < e->count; i++)
        if (!(fabsf(float_at(e, i)) < 0x1p63f) || truncf(float_at(e, i)) != float_at(e, i))
            return error_set(err, STATUS_DATA,
                             "'%s': tensor '%s': element %zu is %g, not a whole number", s->path,
                             e->name, i, (double)float_at(e, i));
    return check_finite(s, e, err);
}

/* Requires an entry that was checked: of the view's kind, or convertible to it. */
static void load_view(const struct safetensors_entry *e, const struct tensor_view *view,
                      float *values)
{
    if (strcmp(e->dtype, kind_name(view->kind)) == 0) {
        if (e->bytes > 0)
            memcpy(values, e->data, e->bytes);
        return;
    }
    for (size_t i = 0; i < e->count; i++) {
        if (view->kind == TENSOR_INT64)
            tensor_set_int64(values + 2 * i, (int64_t)float_at(e, i));
        else
            values[i] = float_at(e, i);
    }
}

void safetensors_conversions(const struct safetensors *s, char *text, size_t size)
{
    size_t length = 0;

    text[0] = '\0';
    for (size_t d = 1; d < sizeof(float_dtypes) / sizeof(float_dtypes[0]); d++) {
        size_t count = 0;

        for (size_t i = 0; i < s->length; i++)
            count += strcmp(s->entries[i].dtype, float_dtypes[d].name) == 0;
        if (count > 0 && length < size)
            length += (size_t)snprintf(text + length, size - length, "%s%zu of %s",
                                       length > 0 ? ", " : "", count, float_dtypes[d].name);
    }
}

static enum status check_named_views(const struct safetensors *s, const struct named_views *p,
                                     const char *ignored, struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    size_t found = list_differences(s, p, ignored, &text);
    enum status status = STATUS_OK;

    if (found > 0)
        status = error_set(err, STATUS_MISMATCH, "'%s' does not fit the model (%zu difference%s)%s",
                           s->path, found, found == 1 ? "" : "s", text.text);
    strbuf_release(&text);
    for (size_t i = 0; i < p->length && status == STATUS_OK; i++)
        status = check_values(s, safetensors_find(s, p->list[i].name), p->list[i].view->kind, err);
    return status;
}

enum status safetensors_load_parts(const struct safetensors *s,
                                   const struct safetensors_part *parts, size_t length,
                                   const char *ignored, struct error *err)
{
    struct named_views named_views = {0};
    enum status status = named_views_init(&named_views, parts, length, err);

    if (status == STATUS_OK)
        status = check_named_views(s, &named_views, ignored, err);
    named_views_release(&named_views);
    for (size_t i = 0; i < length && status == STATUS_OK; i++) {
        for (size_t v = 0; v < parts[i].table->length; v++) {
            const struct tensor_view *view = &parts[i].table->views[v];
            char name[TENSOR_NAME_MAX + 64];

            (void)snprintf(name, sizeof(name), "%s%s", parts[i].prefix, view->name);
            load_view(safetensors_find(s, name), view, parts[i].slab + view->offset);
        }
    }
    return status;
}

enum status safetensors_load_slab(const struct safetensors *s, const struct tensor_table *table,
                                  float *slab, struct error *err)
{
    const struct safetensors_part part = {"", table, slab};

    return safetensors_load_parts(s, &part, 1, NULL, err);
}

/* The JSON and its padding, in the order of the views. */
static void add_header(struct strbuf *out, const struct named_views *p, const char *const *metadata,
                       size_t pairs)
{
    const char *comma = "";
    size_t offset = 0;

    strbuf_add(out, "{");
    if (pairs > 0)
        strbuf_add(out, "\"__metadata__\":{");
    for (size_t i = 0; i < pairs; i++) {
        strbuf_add(out, i > 0 ? "," : "");
        strbuf_add_json(out, metadata[2 * i]);
        strbuf_add(out, ":");
        strbuf_add_json(out, metadata[2 * i + 1]);
    }
    if (pairs > 0) {
        strbuf_add(out, "}");
        comma = ",";
    }
    for (size_t i = 0; i < p->length; i++, comma = ",") {
        const struct tensor_view *view = p->list[i].view;
        size_t end = offset + view->count * sizeof(float);

        strbuf_add(out, comma);
        strbuf_add_json(out, p->list[i].name);
        strbuf_addf(out, ":{\"dtype\":\"%s\",\"shape\":[", kind_name(view->kind));
        for (unsigned d = 0; d < view->dims; d++)
            strbuf_addf(out, "%s%zu", d > 0 ? "," : "", view->shape[d]);
        strbuf_addf(out, "],\"data_offsets\":[%zu,%zu]}", offset, end);
        offset = end;
    }
    strbuf_add(out, "}");
    while (out->length % 8 != 0 && strbuf_ok(out))
        strbuf_add(out, " ");
}

static enum status write_file(const char *path, const struct strbuf *header,
                              const struct named_views *p, size_t max_bytes, uint64_t *ret_bytes,
                              struct error *err)
{
    struct file_writer w;
    uint64_t header_bytes = header->length; /* little-endian in memory, as asserted above */
    uint64_t bytes = sizeof(header_bytes) + header_bytes;
    enum status status;

    for (size_t i = 0; i < p->length; i++)
        bytes += p->list[i].view->count * sizeof(float);
    if (bytes > max_bytes)
        return error_set(err, STATUS_UNSUPPORTED,
                         "'%s' would have %" PRIu64 " bytes, more than the %zu that are read again",
                         path, bytes, max_bytes);
    status = file_writer_open(&w, path, err);
    if (status != STATUS_OK)
        return status;
    status = file_writer_add(&w, &header_bytes, sizeof(header_bytes), err);
    if (status == STATUS_OK)
        status = file_writer_add(&w, header->text, header->length, err);
    for (size_t i = 0; i < p->length && status == STATUS_OK; i++)
        status = file_writer_add(&w, p->list[i].data, p->list[i].view->count * sizeof(float), err);
    if (status != STATUS_OK) {
        file_writer_abandon(&w);
        return status;
    }
    status = file_writer_commit(&w, err);
    if (status == STATUS_OK && ret_bytes)
        *ret_bytes = bytes;
    return status;
}

/* Requires sorted views. */
static enum status save_named_views(const char *path, const struct named_views *p,
                                    const char *const *metadata, size_t pairs, size_t max_bytes,
                                    uint64_t *ret_bytes, struct error *err)
{
    struct strbuf header = STRBUF_INIT;
    enum status status;

    add_header(&header, p, metadata, pairs);
    if (strbuf_ok(&header))
        status = write_file(path, &header, p, max_bytes, ret_bytes, err);
    else
        status = error_set(err, STATUS_NO_MEMORY, "'%s': no memory for the header", path);
    strbuf_release(&header);
    return status;
}

enum status safetensors_save_slab(const char *path, const struct tensor_table *table,
                                  const float *slab, const char *const *metadata, size_t pairs,
                                  struct error *err)
{
    struct named_views named_views = {0};
    enum status status = named_views_alloc(&named_views, table->length, err);

    if (status == STATUS_OK)
        status = append_part(&named_views, "", table, slab, err);
    if (status == STATUS_OK) {
        qsort(named_views.list, named_views.length, sizeof(*named_views.list), compare_names);
        status = save_named_views(path, &named_views, metadata, pairs, SIZE_MAX, NULL, err);
    }
    named_views_release(&named_views);
    return status;
}

enum status safetensors_save_parts(const char *path, const struct safetensors_part *parts,
                                   size_t length, const char *const *metadata, size_t pairs,
                                   size_t max_bytes, uint64_t *ret_bytes, struct error *err)
{
    struct named_views named_views = {0};
    enum status status = named_views_init(&named_views, parts, length, err);

    if (status == STATUS_OK)
        status = save_named_views(path, &named_views, metadata, pairs, max_bytes, ret_bytes, err);
    named_views_release(&named_views);
    return status;
}
