/*
 * profile: a model given by its measurements, for --model profile:FILE: the parameters of each
 * layer, and how long its forward and backward take.  JSON:
 *
 *   {"version": 1,
 *    "name": "vgg16, 32 images, H200",    what was measured; for readers only
 *    "batch": 32,                         samples of a step; 0 or absent: any
 *    "compute": "busy",                   the layers keep the processor busy; "idle": another
 *                                         device computes, and the processor waits
 *    "bytes": 553430176,                  of all parameters; if present, checked
 *    "layers": [                          in forward order; backward runs in reverse
 *      {"name": "features.0", "forward_us": 81.5, "backward_us": 160.2,
 *       "parameters": {"weight": [64, 3, 3, 3], "bias": [64]}},
 *      {"name": "head", "forward_us": 9, "backward_us": 12, "bytes": 40000}]}
 *
 * Parameters are float32, named LAYER.PARAMETER; "bytes" of a layer stands for one vector
 * "weight"; a layer without both has none.  experiments/peers/torch_profile.py writes such a file.
 */
#ifndef SPARRING_WORKER_MODEL_PROFILE_H
#define SPARRING_WORKER_MODEL_PROFILE_H

#include "common/tensor/tensor.h"

#include <stdbool.h>

struct profile_layer {
    size_t first, parameters; /* views of the table */
    int64_t forward_ns, backward_ns;
};

struct profile {
    struct tensor_table table; /* not laid out */
    struct profile_layer *layers;
    size_t length;
    size_t batch; /* 0: any */
    bool busy;
    uint64_t times_hash; /* of all times and `busy` */
};

/* The caller releases *ret, also after a failure.  STATUS_NOT_FOUND, STATUS_IO, or STATUS_CONFIG,
 * which names the file and the member. */
enum status profile_read(const char *path, struct profile *ret, struct error *err);
enum status profile_parse(const char *path, const char *data, size_t size, struct profile *ret,
                          struct error *err); /* path: for messages */
void profile_release(struct profile *p);

#endif
