/*
 * compute: operations on one device's memory, as a table of functions.  `cpu` is CBLAS and our own
 * loops and is the reference; `cuda` is a module (sparring_cuda.so) loaded when a GPU is asked for.
 * All matrices are row-major float32 in device memory, dimensions > 0 and at most INT_MAX.
 * Calls take effect in the order of issue; only download, *_wait and synchronize block, and a call
 * that waits also reports what failed before it.  Threads: one caller per struct compute, the
 * thread that opened it.
 */
#ifndef SPARRING_WORKER_COMPUTE_COMPUTE_H
#define SPARRING_WORKER_COMPUTE_COMPUTE_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compute;

/* device: "auto" (a GPU where one is, else the CPU), "cpu", "cuda", "cuda:I" (plain "cuda":
 * local_rank modulo the number of devices).  threads: of CPU kernels, a setting of the process.
 * A missing driver, library or GPU is one clear error with cuda and a reason in compute_note with
 * auto. */
enum status compute_open(const char *device, unsigned local_rank, unsigned threads,
                         struct compute **ret_compute, struct error *err);
void compute_close(struct compute *c); /* NULL allowed */

const char *
compute_name(const struct compute *c); /* "cpu (OpenBLAS ..., 1 thread)", "cuda:0 (NVIDIA H200)" */
const char *compute_note(const struct compute *c); /* why auto did not take a GPU, or "" */
bool compute_is_host(const struct compute *c); /* device memory is host memory: views may alias */

/* Device memory, zeroed, 64-byte aligned. */
enum status compute_alloc(struct compute *c, size_t count, float **ret, struct error *err);
void compute_free(struct compute *c, float *memory); /* NULL allowed */

/* Host memory that transfers reach directly (page-locked with a GPU), zeroed, 64-byte aligned. */
enum status compute_alloc_host(struct compute *c, size_t count, float **ret, struct error *err);
void compute_free_host(struct compute *c, float *memory); /* NULL allowed */

/* Copy to the device.  Memory of compute_alloc_host is read until the next call that waits; of
 * any other memory there is a copy when this returns. */
enum status compute_upload(struct compute *c, float *device, const float *host, size_t count,
                           struct error *err);

/* Copy to the host what the calls so far have made, without waiting and beside the calls that
 * follow; compute_download_wait blocks until the oldest copy that was not yet waited for is there.
 * Until then the source must not be overwritten.  At most COMPUTE_DOWNLOADS_MAX may be under way.
 */
#define COMPUTE_DOWNLOADS_MAX 64
enum status compute_download_start(struct compute *c, float *host, const float *device,
                                   size_t count, struct error *err);
enum status compute_download_wait(struct compute *c, struct error *err);

/* Both in one. */
enum status compute_download(struct compute *c, float *host, const float *device, size_t count,
                             struct error *err);
enum status compute_synchronize(struct compute *c, struct error *err);

/* y (batch, out) = x (batch, in) * weight^T + bias; weight (out, in), bias (out); relu: y = max(y,
 * 0). */
enum status compute_linear_forward(struct compute *c, const float *x, const float *weight,
                                   const float *bias, float *y, size_t batch, size_t in, size_t out,
                                   bool relu, struct error *err);

/* dy = 0 where y <= 0: the gradient through a ReLU whose output was y. */
enum status compute_relu_backward(struct compute *c, const float *y, float *dy, size_t count,
                                  struct error *err);

/* dweight (out, in) = dy^T * x, dbias (out) = column sums of dy; accumulate adds to what is there.
 */
enum status compute_linear_backward_weight(struct compute *c, const float *x, const float *dy,
                                           float *dweight, float *dbias, size_t batch, size_t in,
                                           size_t out, bool accumulate, struct error *err);

/* dx (batch, in) = dy (batch, out) * weight. */
enum status compute_linear_backward_input(struct compute *c, const float *dy, const float *weight,
                                          float *dx, size_t batch, size_t in, size_t out,
                                          struct error *err);

/* BatchNorm1d of PyTorch; arrays of `width` unless said. */
struct batch_norm {
    const float *weight, *bias;
    float *running_mean, *running_var;
    float *inverse_std; /* of the last training batch, for backward */
    float momentum;     /* share of the new statistics in the running ones: 0.1 */
    float epsilon;      /* 1e-5 */
};

/* Training: x (batch, width) is normalised in place by its columns' mean and biased variance, y =
 * x * weight + bias; running statistics move by `momentum`, with the unbiased variance.  batch >= 2
 * (STATUS_DATA).  STATUS_UNSUPPORTED on a device without it. */
enum status compute_batch_norm_forward(struct compute *c, const struct batch_norm *n, float *x,
                                       float *y, size_t batch, size_t width, bool relu,
                                       struct error *err);

/* Evaluation: y from x by the running statistics; x is untouched; y may be x. */
enum status compute_batch_norm_evaluate(struct compute *c, const struct batch_norm *n,
                                        const float *x, float *y, size_t batch, size_t width,
                                        bool relu, struct error *err);

/* normalised: what forward left in x.  dy (batch, width) becomes the gradient of forward's input;
 * dweight, dbias (width) are set, or added to with `accumulate`. */
enum status compute_batch_norm_backward(struct compute *c, const struct batch_norm *n,
                                        const float *normalised, float *dy, float *dweight,
                                        float *dbias, size_t batch, size_t width, bool accumulate,
                                        struct error *err);

/* Mean cross-entropy of softmax(logits) (batch, classes) against host labels (batch), batch > 0;
 * dlogits gets its gradient, NULL: evaluation only.  STATUS_DATA names a label outside the classes.
 * compute_loss_wait yields the result of the last call. */
enum status compute_softmax_cross_entropy(struct compute *c, const float *logits,
                                          const int32_t *labels, float *dlogits, size_t batch,
                                          size_t classes, struct error *err);

/* Blocks; the mean loss, and how many samples had their label's logit as the (first) largest. */
enum status compute_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                              struct error *err);

#endif
