/*
 * Between a safetensors file and a slab of parameters: floats out of an entry, a whole slab in, a
 * whole slab out.  Loading compares the file with the table first and reports every difference at
 * once; only then does it touch the slab.  Floats are moved as they lie in memory, so this file
 * insists on a little-endian machine.  No locking: the caller owns slab and table.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "common/checkpoint/safetensors.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "slabs are written as they lie in memory, and the format is little-endian");

#define TEXT_BYTES_USED sizeof(((struct error *)NULL)->text)

static float float_at(const unsigned char *data, size_t index)
{
    float value;

    memcpy(&value, data + index * sizeof(value), sizeof(value));
    return value;
}

/* Index of the first NaN or infinity, or the count when all are finite. */
static size_t first_not_finite(const struct safetensors_entry *e)
{
    size_t i = 0;

    while (i < e->count && isfinite(float_at(e->data, i)))
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
                     bad, isnan(float_at(e->data, bad)) ? "not a number" : "infinite");
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

static bool in_table(const struct tensor_table *table, const char *name)
{
    for (size_t i = 0; i < table->length; i++)
        if (strcmp(table->views[i].name, name) == 0)
            return true;
    return false;
}

/* Append what separates the file from the table, each as "; <text>"; returns how many. */
static size_t list_differences(const struct safetensors *s, const struct tensor_table *table,
                               struct strbuf *text)
{
    size_t found = 0;

    for (size_t i = 0; i < table->length; i++) {
        const struct tensor_view *view = &table->views[i];
        const struct safetensors_entry *e = safetensors_find(s, view->name);

        if (!e) {
            strbuf_addf(text, "; '%s' is missing", view->name);
        } else if (strcmp(e->dtype, "F32") != 0) {
            strbuf_addf(text, "; '%s' is %s, not F32", view->name, e->dtype);
        } else if (!same_shape(e, view)) {
            strbuf_addf(text, "; '%s' is ", view->name);
            add_shape(text, e->dims, e->shape);
            strbuf_add(text, ", the model has ");
            add_shape(text, view->dims, view->shape);
        } else {
            continue;
        }
        found++;
    }
    for (size_t i = 0; i < s->length; i++) {
        if (in_table(table, s->entries[i].name))
            continue;
        if (text->length < TEXT_BYTES_USED) /* a hostile file can hold a million names */
            strbuf_addf(text, "; '%s' is not in the model", s->entries[i].name);
        found++;
    }
    return found;
}

static enum status check_table(const struct safetensors *s, const struct tensor_table *table,
                               struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    size_t found = list_differences(s, table, &text);
    enum status status = STATUS_OK;

    if (found > 0)
        status = error_set(err, STATUS_MISMATCH, "'%s' does not fit the model (%zu difference%s)%s",
                           s->path, found, found == 1 ? "" : "s", text.text);
    strbuf_release(&text);
    return status;
}

enum status safetensors_load_slab(const struct safetensors *s, const struct tensor_table *table,
                                  float *slab, struct error *err)
{
    enum status status = check_table(s, table, err);

    for (size_t i = 0; i < s->length && status == STATUS_OK; i++)
        status = check_finite(s, &s->entries[i], err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < table->length; i++) {
        const struct tensor_view *view = &table->views[i];
        const struct safetensors_entry *e = safetensors_find(s, view->name);

        if (e->bytes > 0)
            memcpy(slab + view->offset, e->data, e->bytes);
    }
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b)
{
    const struct tensor_view *const *x = a;
    const struct tensor_view *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

/* The length, the JSON and its padding, in the order of `views`. */
static void add_header(struct strbuf *out, const struct tensor_view *const *views, size_t length,
                       const char *const *metadata, size_t pairs)
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
    for (size_t i = 0; i < length; i++, comma = ",") {
        const struct tensor_view *view = views[i];
        size_t end = offset + view->count * sizeof(float);

        strbuf_add(out, comma);
        strbuf_add_json(out, view->name);
        strbuf_add(out, ":{\"dtype\":\"F32\",\"shape\":[");
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
                              const struct tensor_view *const *views, size_t length,
                              const float *slab, struct error *err)
{
    struct file_writer w;
    uint64_t header_bytes = header->length; /* little-endian in memory, as asserted above */
    enum status status = file_writer_open(&w, path, err);

    if (status != STATUS_OK)
        return status;
    status = file_writer_add(&w, &header_bytes, sizeof(header_bytes), err);
    if (status == STATUS_OK)
        status = file_writer_add(&w, header->text, header->length, err);
    for (size_t i = 0; i < length && status == STATUS_OK; i++)
        status = file_writer_add(&w, slab + views[i]->offset, views[i]->count * sizeof(float), err);
    if (status != STATUS_OK) {
        file_writer_abandon(&w);
        return status;
    }
    return file_writer_commit(&w, err);
}

enum status safetensors_save_slab(const char *path, const struct tensor_table *table,
                                  const float *slab, const char *const *metadata, size_t pairs,
                                  struct error *err)
{
    struct strbuf header = STRBUF_INIT;
    const struct tensor_view **views = NULL;
    enum status status;

    status =
        mem_calloc(table->length, sizeof(const struct tensor_view *), "tensor order", &views, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < table->length; i++)
        views[i] = &table->views[i];
    qsort(views, table->length, sizeof(const struct tensor_view *), compare_names);
    add_header(&header, views, table->length, metadata, pairs);
    if (strbuf_ok(&header))
        status = write_file(path, &header, views, table->length, slab, err);
    else
        status = error_set(err, STATUS_NO_MEMORY, "'%s': no memory for the header", path);
    strbuf_release(&header);
    free(views);
    return status;
}
