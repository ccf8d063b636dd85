/*
 * The common part of the data sets: finds the kind for a spec, and gathers batches.  A kind
 * provides bytes, floats or tokens.  Bytes become floats when gathered, through a table of 256
 * correctly rounded quotients: a quarter of the memory, and the same values as dividing each pixel.
 * Immutable once open, so no locking.
 */
#include "worker/data/dataset.h"

#include "common/base/memory.h"
#include "common/base/strbuf.h"
#include "common/tensor/tensor.h"
#include "worker/data/dataset_ops.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct dataset_ops *const kinds[] = {
    &dataset_digits_ops,        &dataset_mnist_ops, &dataset_cifar10_ops, &dataset_random_ops,
    &dataset_random_tokens_ops, &dataset_text_ops,  &dataset_tokens_ops,  &dataset_tensors_ops,
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static enum status find_kind(const char *spec, const struct dataset_ops **ret_kind,
                             struct error *err)
{
    struct strbuf known = STRBUF_INIT;

    for (size_t i = 0; i < KINDS; i++) {
        if (kinds[i]->accepts(spec)) {
            *ret_kind = kinds[i];
            return STATUS_OK;
        }
    }
    for (size_t i = 0; i < KINDS; i++)
        strbuf_addf(&known, "%s%s", i > 0 ? ", " : "", kinds[i]->usage);
    (void)error_set(err, STATUS_CONFIG, "unknown data '%s'; known are %s", spec, known.text);
    strbuf_release(&known);
    return STATUS_CONFIG;
}

enum status dataset_samples(const struct dataset_config *config, size_t available,
                            size_t *ret_count, struct error *err)
{
    if (available == 0)
        return error_set(err, STATUS_DATA, "data '%s' has no samples", config->spec);
    if (config->samples > available)
        return error_set(err, STATUS_CONFIG, "data '%s' has %zu samples, %zu were asked for",
                         config->spec, available, config->samples);
    *ret_count = config->samples > 0 ? config->samples : available;
    return STATUS_OK;
}

enum status dataset_open(const struct dataset_config *config, struct dataset **ret_dataset,
                         struct error *err)
{
    const struct dataset_ops *kind;
    struct dataset *d;
    enum status status = find_kind(config->spec, &kind, err);

    if (status != STATUS_OK)
        return status;
    if (config->spec[strlen(config->spec) - 1] == ':')
        return error_set(err, STATUS_CONFIG, "data '%s' ends at its colon; it is %s", config->spec,
                         kind->usage);
    status = mem_calloc(1, sizeof(*d), "data set", &d, err);
    if (status != STATUS_OK)
        return status;
    status = mem_strdup(config->spec, &d->name, err);
    if (status == STATUS_OK)
        status = kind->open(config, d, err);
    if (status != STATUS_OK) {
        dataset_close(d);
        return status;
    }
    if (d->positions == 0)
        d->positions = 1;
    *ret_dataset = d;
    return STATUS_OK;
}

void dataset_close(struct dataset *d)
{
    if (!d)
        return;
    free(d->ids);
    free(d->labels);
    free(d->values);
    free(d->pixels);
    free(d->name);
    free(d);
}

size_t dataset_count(const struct dataset *d)
{
    return d->count;
}

size_t dataset_features(const struct dataset *d)
{
    return d->features;
}

size_t dataset_classes(const struct dataset *d)
{
    return d->classes;
}

size_t dataset_positions(const struct dataset *d)
{
    return d->positions;
}

const char *dataset_name(const struct dataset *d)
{
    return d->name;
}

static void gather_sample(const struct dataset *d, size_t index, float *x, int32_t *y)
{
    if (d->tokens.count > 0) {
        tokens_sample(&d->tokens, d->positions, index, x, y);
        return;
    }
    *y = d->labels[index];
    if (d->pixels)
        vector_divide_uint8(x, d->pixels + index * d->features, 255, d->features);
    else
        memcpy(x, d->values + index * d->features, d->features * sizeof(float));
}

void dataset_gather(const struct dataset *d, const int64_t *indices, size_t count, float *x,
                    int32_t *y)
{
    for (size_t i = 0; i < count; i++) {
        size_t index = (size_t)indices[i];

        assert(index < d->count);
        gather_sample(d, index, x + i * d->features, y + i * d->positions);
    }
}
