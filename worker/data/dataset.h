/*
 * dataset: samples by index.  The kinds, by spec:
 *
 *   digits            built in: 28x28 digits drawn with random style, affine and elastic
 *                     distortion and noise from `seed`; by default 12000 train and 2000 test
 *                     samples
 *   mnist:DIR         IDX files of MNIST or a similar set (10 classes), plain or .gz; x =
 *                     pixel / 255; the test split is the t10k files
 *   cifar10:DIR       data_batch_1.bin to _5.bin of CIFAR-10's binary version, 3x32x32, x = pixel /
 *                     255; the test split is test_batch.bin
 *   random:N,D,C      N samples of D normal values with labels below C, drawn from `seed`; D may be
 *                     a shape, as 3x224x224
 *   random-tokens:N,T,V  N sequences of T token ids below V, drawn from `seed`
 *   text:FILE         bytes as tokens; sample i is bytes [i T, i T + T), T = config.positions, its
 *                     labels the next bytes; the test split is the last tenth of the file
 *   tokens:FILE[,V]   the same with 16-bit ids, little-endian, below V (default 50257)
 *   FILE.safetensors  tensors x (N, ...) F32 and y (N) I64 or I32; no test split
 *
 * All samples of an open data set are in memory.  text and tokens load the whole file for either
 * split, in every process: a rank that also evaluates holds it twice.
 * Called by the loader, trainer_local, the trainer, checkpointer and finish.  Threads: reading is
 * safe from any number of threads once open.
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
    /* tokens per sample that the model reads (text, tokens); 0: not a sequence model */
    size_t positions;
};

/* STATUS_CONFIG: unknown spec, more samples than available, or text or tokens without positions.
 * STATUS_DATA names the file and the position of the error in it.  STATUS_NOT_FOUND: a missing
 * file, or no test split. */
enum status dataset_open(const struct dataset_config *config, struct dataset **ret_dataset,
                         struct error *err);
void dataset_close(struct dataset *d); /* NULL allowed */

size_t dataset_count(const struct dataset *d);     /* samples, at least 1 */
size_t dataset_features(const struct dataset *d);  /* floats per sample, at least 1 */
size_t dataset_classes(const struct dataset *d);   /* labels are below this */
size_t dataset_positions(const struct dataset *d); /* labels per sample; 1 except for tokens */
const char *dataset_name(const struct dataset *d); /* the spec */

/* Gather samples: x (count, features) row-major float32, for tokens the ids; y (count, positions)
 * class indices.  Every index must be in [0, dataset_count). */
void dataset_gather(const struct dataset *d, const int64_t *indices, size_t count, float *x,
                    int32_t *y);

#endif
