/*
 * FILE.safetensors with tensors x (N, ...) F32 and y (N) I64 or I32, as written by one line of
 * Python.  Dimensions of x after the first are flattened; the number of classes is the largest
 * label of the whole file plus one.  Values must be finite.
 */
#include "common/base/memory.h"
#include "common/checkpoint/safetensors.h"
#include "worker/data/dataset_ops.h"

#include <string.h>

#define SUFFIX         ".safetensors"
#define FILE_BYTES_MAX ((size_t)8 << 30)

static bool accepts(const char *spec)
{
    size_t length = strlen(spec);

    return length > strlen(SUFFIX) && strcmp(spec + length - strlen(SUFFIX), SUFFIX) == 0;
}

/* Element `index` of a checked I64 or I32 entry, as the format's little-endian bytes. */
static int64_t label_at(const struct safetensors_entry *y, size_t index)
{
    size_t width = strcmp(y->dtype, "I64") == 0 ? 8 : 4;
    const unsigned char *bytes = y->data + index * width;
    uint64_t value = 0;

    for (size_t i = 0; i < width; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return width == 8 ? (int64_t)value : (int32_t)(uint32_t)value;
}

static enum status read_samples(const struct safetensors *s, struct dataset *d, size_t *ret_count,
                                struct error *err)
{
    const struct safetensors_entry *x = safetensors_find(s, "x");
    enum status status;

    if (!x)
        return error_set(err, STATUS_DATA, "'%s' has no tensor 'x'", s->path);
    if (x->dims < 1 || x->count == 0)
        return error_set(err, STATUS_DATA, "'%s': tensor 'x' holds no samples", s->path);
    status = mem_calloc_aligned(x->count, sizeof(float), "samples", &d->values, err);
    if (status != STATUS_OK)
        return status;
    d->features = x->count / x->shape[0];
    *ret_count = x->shape[0];
    return safetensors_copy_floats(s, x, d->values, err);
}

static enum status read_labels(const struct safetensors *s, struct dataset *d, size_t samples,
                               struct error *err)
{
    const struct safetensors_entry *y = safetensors_find(s, "y");
    enum status status;

    if (!y)
        return error_set(err, STATUS_DATA, "'%s' has no tensor 'y'", s->path);
    if (strcmp(y->dtype, "I64") != 0 && strcmp(y->dtype, "I32") != 0)
        return error_set(err, STATUS_DATA, "'%s': tensor 'y' is %s, not I64 or I32", s->path,
                         y->dtype);
    if (y->dims != 1 || y->count != samples)
        return error_set(err, STATUS_DATA,
                         "'%s': 'x' has %zu samples, 'y' has %zu labels in %u "
                         "dimensions",
                         s->path, samples, y->count, y->dims);
    status = mem_calloc(samples, sizeof(*d->labels), "labels", &d->labels, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < samples; i++) {
        int64_t label = label_at(y, i);

        if (label < 0 || label >= INT32_MAX)
            return error_set(err, STATUS_DATA, "'%s': tensor 'y': element %zu is %jd, not a class",
                             s->path, i, (intmax_t)label);
        d->labels[i] = (int32_t)label;
        if ((size_t)label >= d->classes)
            d->classes = (size_t)label + 1;
    }
    return STATUS_OK;
}

static enum status open_tensors(const struct dataset_config *config, struct dataset *d,
                                struct error *err)
{
    struct safetensors s;
    size_t samples = 0;
    enum status status;

    if (config->split == SPLIT_TEST)
        return error_set(err, STATUS_NOT_FOUND, "data '%s' has no test split", config->spec);
    status = safetensors_read(config->spec, FILE_BYTES_MAX, &s, err);
    if (status != STATUS_OK)
        return status;
    status = read_samples(&s, d, &samples, err);
    if (status == STATUS_OK)
        status = read_labels(&s, d, samples, err);
    if (status == STATUS_OK)
        status = dataset_samples(config, samples, &d->count, err);
    safetensors_release(&s);
    return status;
}

const struct dataset_ops dataset_tensors_ops = {
    .usage = "FILE" SUFFIX,
    .accepts = accepts,
    .open = open_tensors,
};
