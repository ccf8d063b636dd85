/*
 * dataset: samples by index.
 *
 *   digits            built in: 28x28 digits drawn with random style, affine and elastic
 *                     distortion and noise from `seed`; 12000 train and 2000 test samples unless
 *                     told otherwise
 *   mnist:DIR         IDX files of MNIST or a set like it (10 classes), plain or .gz; x =
 *                     pixel / 255; the test split is the t10k files
 *   cifar10:DIR       data_batch_1.bin to _5.bin of CIFAR-10's binary version, 3x32x32, x = pixel /
 *                     255; the test split is test_batch.bin
 *   random:N,D,C      N samples of D normal values with labels below C, drawn from `seed`; D may be
 *                     a shape, as 3x224x224
 *   random-tokens:N,T,V  N sequences of T token ids below V, drawn from `seed`
 *   text:FILE         bytes as tokens; sample i is bytes [i T, i T + T), T = config.positions, its
 *                     labels the bytes one place on; the test split is the last tenth of the file
 *   tokens:FILE[,V]   the same of ids of 16 bits, little-endian, below V (50257 unless told)
 *   FILE.safetensors  tensors x (N, ...) F32 and y (N) I64 or I32; no test split
 *
 * All samples are in memory once open, of each data set on its own.  text and tokens take the size
 * of their file, whichever split it is and in every process: a rank that also tests has it twice.
 * Threads: reading is safe from any number of threads once open.
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
    /* tokens of a sample that the model wants (text, tokens); 0: it reads no sequences */
    size_t positions;
};

/* STATUS_CONFIG for a spec that is none of these, for more samples than there are, and for tokens
 * without positions; STATUS_DATA names the file and the place of what is wrong in it;
 * STATUS_NOT_FOUND for missing files and for a test split that the spec does not have. */
enum status dataset_open(const struct dataset_config *config, struct dataset **ret_dataset,
                         struct error *err);
void dataset_close(struct dataset *d); /* NULL allowed */

size_t dataset_count(const struct dataset *d);     /* samples, at least 1 */
size_t dataset_features(const struct dataset *d);  /* floats per sample, at least 1 */
size_t dataset_classes(const struct dataset *d);   /* labels are below it */
size_t dataset_positions(const struct dataset *d); /* labels per sample; 1 but for tokens */
const char *dataset_name(const struct dataset *d); /* the spec */

/* Gather samples: x (count, features) row-major float32, of tokens their ids; y (count, positions)
 * class indices.  Every index is in [0, dataset_count). */
void dataset_gather(const struct dataset *d, const int64_t *indices, size_t count, float *x,
                    int32_t *y);

#endif
