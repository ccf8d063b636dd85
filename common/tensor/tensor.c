/*
 * tensor: the table of views into a flat slab.  Views are appended in model order; the layout
 * assigns offsets in reverse order.  A table has tens to thousands of views and is built once, so
 * look-ups are linear.  No locks: a table is constant once it is built.
 */
#include "common/tensor/tensor.h"

#include "common/base/memory.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void tensor_table_release(struct tensor_table *t)
{
    if (!t)
        return;
    free(t->views);
    *t = (struct tensor_table){0};
}

static enum status reserve_view(struct tensor_table *t, struct error *err)
{
    size_t capacity = t->capacity ? 2 * t->capacity : 8;
    struct tensor_view *views;
    enum status status;

    if (t->length < t->capacity)
        return STATUS_OK;
    status = mem_calloc(capacity, sizeof(*views), "tensor table", &views, err);
    if (status != STATUS_OK)
        return status;
    if (t->length > 0)
        memcpy(views, t->views, t->length * sizeof(*views));
    free(t->views);
    t->views = views;
    t->capacity = capacity;
    return STATUS_OK;
}

/* Elements of a shape whose bytes, added to the table's, still fit in size_t. */
static enum status count_elements(const struct tensor_table *t, const char *name, unsigned dims,
                                  const size_t *shape, size_t *ret_count, struct error *err)
{
    size_t count = 1;
    size_t bytes;

    for (unsigned d = 0; d < dims; d++) {
        if (shape[d] == 0)
            return error_set(err, STATUS_INVALID, "tensor '%s': dimension %u is 0", name, d);
        if (!size_multiply(count, shape[d], &count))
            return error_set(err, STATUS_INVALID, "tensor '%s': too many elements", name);
    }
    if (count > SIZE_MAX - t->count || !size_multiply(t->count + count, sizeof(float), &bytes))
        return error_set(err, STATUS_INVALID, "tensor '%s': too many elements in one slab", name);
    *ret_count = count;
    return STATUS_OK;
}

enum status tensor_table_add(struct tensor_table *t, const char *name, unsigned dims,
                             const size_t *shape, struct error *err)
{
    return tensor_table_add_kind(t, name, TENSOR_FLOAT32, dims, shape, err);
}

enum status tensor_table_add_kind(struct tensor_table *t, const char *name, enum tensor_kind kind,
                                  unsigned dims, const size_t *shape, struct error *err)
{
    struct tensor_view *view;
    size_t length = strlen(name);
    size_t count = 0;
    enum status status;

    if (length == 0 || length >= TENSOR_NAME_MAX)
        return error_set(err, STATUS_INVALID, "tensor name '%s': %zu bytes, not 1 to %d", name,
                         length, TENSOR_NAME_MAX - 1);
    if (dims > TENSOR_DIMS_MAX)
        return error_set(err, STATUS_INVALID, "tensor '%s': %u dimensions, at most %d", name, dims,
                         TENSOR_DIMS_MAX);
    if (tensor_table_find(t, name))
        return error_set(err, STATUS_EXISTS, "tensor '%s' is there twice", name);
    status = count_elements(t, name, dims, shape, &count, err);
    if (status == STATUS_OK && kind == TENSOR_INT64)
        count *= sizeof(int64_t) / sizeof(float);
    if (status == STATUS_OK)
        status = reserve_view(t, err);
    if (status != STATUS_OK)
        return status;
    view = &t->views[t->length++];
    *view = (struct tensor_view){.dims = dims, .kind = kind, .count = count};
    memcpy(view->name, name, length + 1);
    for (unsigned d = 0; d < dims; d++)
        view->shape[d] = shape[d];
    t->count += count;
    return STATUS_OK;
}

void tensor_table_layout(struct tensor_table *t)
{
    size_t offset = 0;

    for (size_t i = t->length; i-- > 0;) {
        t->views[i].offset = offset;
        offset += t->views[i].count;
    }
    assert(offset == t->count);
}

const struct tensor_view *tensor_table_find(const struct tensor_table *t, const char *name)
{
    for (size_t i = 0; i < t->length; i++)
        if (strcmp(t->views[i].name, name) == 0)
            return &t->views[i];
    return NULL;
}
