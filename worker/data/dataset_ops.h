/*
 * dataset_ops: the interface between dataset.c and the kinds of data sets; included by dataset*.c
 * only.  A kind's `open` fills the struct; dataset.c frees it, also after a partial failure.
 */
#ifndef SPARRING_WORKER_DATA_DATASET_OPS_H
#define SPARRING_WORKER_DATA_DATASET_OPS_H

#include "worker/data/dataset.h"
#include "worker/data/tokens.h"

#include <stdbool.h>

struct dataset {
    char *name;       /* owned; the spec */
    size_t count;     /* samples exposed, after config.samples */
    size_t features;  /* floats per sample */
    size_t positions; /* labels per sample; 0 from open: 1 */
    size_t classes;
    unsigned char *pixels; /* owned; (count, features) with x = pixel / 255; or NULL, then: */
    float *values;         /* owned; (count, features); or NULL, then: */
    struct tokens tokens;  /* at least count * positions + 1, in: */
    unsigned char *ids;    /* owned */
    int32_t *labels;       /* owned; (count); not of tokens */
};

struct dataset_ops {
    const char *usage;                 /* "mnist:DIR" */
    bool (*accepts)(const char *spec); /* by its form alone */
    /* Fills the fields that the kind has (positions 0: 1), not name.  Blocks while it reads or
     * draws. */
    enum status (*open)(const struct dataset_config *config, struct dataset *d, struct error *err);
};

extern const struct dataset_ops dataset_cifar10_ops;
extern const struct dataset_ops dataset_digits_ops;
extern const struct dataset_ops dataset_mnist_ops;
extern const struct dataset_ops dataset_random_ops;
extern const struct dataset_ops dataset_random_tokens_ops;
extern const struct dataset_ops dataset_tensors_ops;
extern const struct dataset_ops dataset_text_ops;
extern const struct dataset_ops dataset_tokens_ops;

/* The number of `available` samples that the configuration uses.  STATUS_CONFIG: it requests more;
 * STATUS_DATA: none are available. */
enum status dataset_samples(const struct dataset_config *config, size_t available,
                            size_t *ret_count, struct error *err);

#endif
