/*
 * mnist:DIR, the four IDX files of MNIST and similar sets (Fashion-MNIST, KMNIST): images (n,
 * height, width) and labels (n) below 10, for training and, named t10k, for testing.  Each may be
 * plain or end in .gz; the plain one is preferred.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "worker/data/dataset_ops.h"
#include "worker/data/idx.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PREFIX  "mnist:"
#define CLASSES 10

static bool accepts(const char *spec)
{
    return strncmp(spec, PREFIX, strlen(PREFIX)) == 0;
}

/* Read FOLDER/name, or FOLDER/name.gz if there is no such file. */
static enum status read_array(const char *folder, const char *name, unsigned dims, struct idx *ret,
                              struct error *err)
{
    char path[4096];
    enum status status = file_join(path, sizeof(path) - strlen(".gz"), folder, name, err);

    if (status != STATUS_OK)
        return status;
    if (access(path, F_OK) != 0) {
        (void)snprintf(path + strlen(path), sizeof(path) - strlen(path), ".gz");
        if (access(path, F_OK) != 0)
            return error_set(err, STATUS_NOT_FOUND, "'%s' has neither '%s' nor '%s.gz'", folder,
                             name, name);
    }
    status = idx_read(path, ret, err);
    if (status != STATUS_OK || ret->dims == dims)
        return status;
    (void)error_set(err, STATUS_DATA, "'%s' has %u dimensions, not %u", path, ret->dims, dims);
    idx_release(ret);
    return STATUS_DATA;
}

static enum status check_labels(const char *folder, const struct idx *images,
                                const struct idx *labels, struct error *err)
{
    if (images->shape[0] != labels->shape[0])
        return error_set(err, STATUS_DATA, "'%s' has %zu images but %zu labels", folder,
                         images->shape[0], labels->shape[0]);
    if (images->count == 0)
        return error_set(err, STATUS_DATA, "'%s' has images of %zu x %zu x %zu: no pixels", folder,
                         images->shape[0], images->shape[1], images->shape[2]);
    for (size_t i = 0; i < labels->count; i++)
        if (labels->values[i] >= CLASSES)
            return error_set(err, STATUS_DATA, "'%s': label %zu is %u; labels are 0 to %d", folder,
                             i, labels->values[i], CLASSES - 1);
    return STATUS_OK;
}

/* Move the pixels and copy the labels into the data set. */
static enum status move_arrays(const struct dataset_config *config, struct dataset *d,
                               struct idx *images, const struct idx *labels, struct error *err)
{
    enum status status = dataset_samples(config, images->shape[0], &d->count, err);

    if (status == STATUS_OK)
        status = mem_calloc(d->count, sizeof(*d->labels), "labels", &d->labels, err);
    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < d->count; i++)
        d->labels[i] = labels->values[i];
    d->features = images->shape[1] * images->shape[2];
    d->classes = CLASSES;
    d->pixels = images->values;
    images->values = NULL; /* now owned by the data set */
    return STATUS_OK;
}

static enum status open_mnist(const struct dataset_config *config, struct dataset *d,
                              struct error *err)
{
    const char *folder = config->spec + strlen(PREFIX);
    bool train = config->split == SPLIT_TRAIN;
    struct idx images = {0};
    struct idx labels = {0};
    enum status status;

    status = read_array(folder, train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte", 3,
                        &images, err);
    if (status == STATUS_OK)
        status = read_array(folder, train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte", 1,
                            &labels, err);
    if (status == STATUS_OK)
        status = check_labels(folder, &images, &labels, err);
    if (status == STATUS_OK)
        status = move_arrays(config, d, &images, &labels, err);
    idx_release(&images);
    idx_release(&labels);
    return status;
}

const struct dataset_ops dataset_mnist_ops = {
    .usage = PREFIX "DIR",
    .accepts = accepts,
    .open = open_mnist,
};
