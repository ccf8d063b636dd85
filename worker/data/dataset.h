/*
 * dataset: samples by index.  Specs:
 *   digits            built in: 28x28 digits drawn with random affine and elastic distortion and
 * noise, seeded mnist:DIR         IDX files, plain or .gz; x = pixel / 255 random:N,D,C      N
 * samples of D normal values, C classes FILE.safetensors  tensors x (N, ...) F32 and y (N) I64 or
 * I32 Threads: reading is safe from any number of threads once open.
 */
#ifndef SPARRING_WORKER_DATA_DATASET_H
#define SPARRING_WORKER_DATA_DATASET_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

struct dataset;

enum dataset_split { SPLIT_TRAIN, SPLIT_TEST };

struct dataset_config {
    const char *spec;
    enum dataset_split split;
    size_t samples; /* keep only the first `samples` (0: all; for digits the number to draw) */
    uint64_t seed;  /* digits, random */
};

/* STATUS_NOT_FOUND for a test split that the spec does not have (FILE.safetensors: none). */
enum status dataset_open(const struct dataset_config *config, struct dataset **ret_dataset,
                         struct error *err);
void dataset_close(struct dataset *d); /* NULL allowed */

size_t dataset_count(const struct dataset *d);
size_t dataset_features(const struct dataset *d); /* floats per sample */
size_t dataset_classes(const struct dataset *d);
const char *dataset_name(const struct dataset *d);

/* Gather samples: x (count, features) row-major float32, y (count) class indices. */
void dataset_gather(const struct dataset *d, const int64_t *indices, size_t count, float *x,
                    int32_t *y);

#endif
