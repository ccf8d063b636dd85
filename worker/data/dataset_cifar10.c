/*
 * cifar10:DIR, the files of CIFAR-10's binary version: five batches for training and one for
 * testing, with 10000 records each in the original; any number of records is accepted.  The sizes
 * are read first, so that pixels are allocated once and only one file is in memory beside them.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "worker/data/cifar10.h"
#include "worker/data/dataset_ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PREFIX         "cifar10:"
#define TRAIN_FILES    5
#define FILE_BYTES_MAX ((size_t)1 << 30)

static const char *const train_files[TRAIN_FILES] = {
    "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
    "data_batch_4.bin", "data_batch_5.bin",
};
static const char *const test_files[] = {"test_batch.bin"};

struct source {
    const char *folder;
    const char *const *files;
    unsigned length;
    size_t counts[TRAIN_FILES]; /* records per file */
    size_t total;
};

static bool accepts(const char *spec)
{
    return strncmp(spec, PREFIX, strlen(PREFIX)) == 0;
}

static enum status count_records(struct source *s, struct error *err)
{
    for (unsigned i = 0; i < s->length; i++) {
        char path[4096];
        struct stat info;
        enum status status = file_join(path, sizeof(path), s->folder, s->files[i], err);

        if (status != STATUS_OK)
            return status;
        if (stat(path, &info) != 0)
            return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO,
                             "cannot find '%s': %s", path, strerror(errno));
        if ((uint64_t)info.st_size > FILE_BYTES_MAX)
            return error_set(err, STATUS_DATA, "'%s' has %jd bytes, more than the %zu allowed",
                             path, (intmax_t)info.st_size, FILE_BYTES_MAX);
        status = cifar10_count(path, (uint64_t)info.st_size, &s->counts[i], err);
        if (status != STATUS_OK)
            return status;
        s->total += s->counts[i];
    }
    return STATUS_OK;
}

/* Read the records of one file into the samples from index `at`. */
static enum status read_records(const struct source *s, unsigned file, struct dataset *d, size_t at,
                                struct error *err)
{
    char path[4096];
    char *data;
    size_t size;
    size_t count;
    enum status status = file_join(path, sizeof(path), s->folder, s->files[file], err);

    if (status == STATUS_OK)
        status = file_read(path, FILE_BYTES_MAX, &data, &size, err);
    if (status != STATUS_OK)
        return status;
    status = cifar10_count(path, size, &count, err);
    if (status == STATUS_OK && count != s->counts[file])
        status = error_set(err, STATUS_DATA, "'%s' had %zu records and now has %zu", path,
                           s->counts[file], count);
    if (status == STATUS_OK)
        status =
            cifar10_split(path, data, count, d->pixels + at * CIFAR10_PIXELS, d->labels + at, err);
    free(data);
    return status;
}

static enum status open_cifar10(const struct dataset_config *config, struct dataset *d,
                                struct error *err)
{
    bool train = config->split == SPLIT_TRAIN;
    struct source s = {.folder = config->spec + strlen(PREFIX),
                       .files = train ? train_files : test_files,
                       .length = train ? TRAIN_FILES : 1};
    size_t at = 0;
    enum status status = count_records(&s, err);

    if (status == STATUS_OK)
        status = dataset_samples(config, s.total, &d->count, err);
    if (status != STATUS_OK)
        return status;
    d->features = CIFAR10_PIXELS;
    d->classes = CIFAR10_CLASSES;
    status = mem_calloc(s.total, CIFAR10_PIXELS, "CIFAR-10 images", &d->pixels, err);
    if (status == STATUS_OK)
        status = mem_calloc(s.total, sizeof(*d->labels), "CIFAR-10 labels", &d->labels, err);
    for (unsigned i = 0; i < s.length && status == STATUS_OK; i++) {
        status = read_records(&s, i, d, at, err);
        at += s.counts[i];
    }
    return status;
}

const struct dataset_ops dataset_cifar10_ops = {
    .usage = PREFIX "DIR",
    .accepts = accepts,
    .open = open_cifar10,
};
