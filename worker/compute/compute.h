/*
 * compute: operations on one device's memory, as a table of functions. `cpu` (oneDNN and our own
 * loops) is the reference; `cuda` is a module (sparring_cuda.so) loaded when a GPU is requested.
 * Matrices are row-major in device memory, dimensions are > 0 and at most INT_MAX.  Parameters,
 * their gradients and statistics are float32; *values* (activations and their gradients, void *)
 * have the device's precision, float32 on the CPU.  Images are (batch, channels, height, width), on
 * a device with compute_channels_last (batch, height, width, channels), with the same results: the
 * order changes only where images are uploaded and where they are flattened.  Calls take effect in
 * the order of issue; only download, *_wait and synchronize block, and a call that waits also
 * reports earlier failures.  Needs optimizer and base; called by model, the training loop and
 * bench.  Threads: one caller at a time per struct compute, on any thread; several may be open.
 */
#ifndef SPARRING_WORKER_COMPUTE_COMPUTE_H
#define SPARRING_WORKER_COMPUTE_COMPUTE_H

#include "common/base/error.h"
#include "common/optimizer/optimizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compute;

/* Precision of values; products accumulate in float32.  A CPU has PRECISION_FLOAT32 only. */
enum precision {
    PRECISION_FLOAT32,
    PRECISION_TF32, /* float32 values, products on the tensor cores with 10 bits of fraction */
    PRECISION_BF16,
    PRECISION_FP16, /* gradients of values are scaled: see compute_optimizer_update */
};

const char *precision_name(enum precision p); /* "float32", "tf32", "bf16", "fp16" */
bool precision_parse(const char *text, enum precision *ret);

struct compute_config {
    /* "auto" (a GPU if there is one, else the CPU), "cpu", "cuda", "cuda:I" (plain "cuda":
     * local_rank modulo the number of devices) */
    const char *device;
    unsigned local_rank;
    unsigned threads; /* of CPU kernels; process-wide */
    enum precision precision;
    bool deterministic; /* the same bits in every run, even where a faster algorithm varies */
};

/* A missing driver, library or GPU is an error with "cuda", and with "auto" a reason in
 * compute_fallback_reason.  STATUS_UNSUPPORTED: the device does not have this precision. */
enum status compute_open_config(const struct compute_config *config, struct compute **ret_compute,
                                struct error *err);

/* The same with PRECISION_FLOAT32 and deterministic false. */
enum status compute_open(const char *device, unsigned local_rank, unsigned threads,
                         struct compute **ret_compute, struct error *err);
void compute_close(struct compute *c); /* NULL allowed */

/* "cpu (oneDNN 2.6, avx512, 1 thread)", "cuda:0 (NVIDIA H200)" */
const char *compute_name(const struct compute *c);
/* Why auto has not chosen a GPU, or "". */
const char *compute_fallback_reason(const struct compute *c);
enum precision compute_precision(const struct compute *c);
/* Device memory is host memory: views of both may alias. */
bool compute_is_host(const struct compute *c);
bool compute_channels_last(const struct compute *c); /* the order of images */

/* Allocate device memory, zeroed, 64-byte aligned. what: for the error text, which contains the
 * size of the request and, on a GPU, of the free memory. */
enum status compute_alloc(struct compute *c, size_t count, const char *what, float **ret,
                          struct error *err);
/* The same for `count` values. */
enum status compute_alloc_values(struct compute *c, size_t count, const char *what, void **ret,
                                 struct error *err);
void compute_free(struct compute *c, void *memory); /* of both; NULL allowed */

/* Peak of the device's own allocated memory so far; 0: it uses host memory. */
uint64_t compute_peak_bytes(const struct compute *c);

/* float32 bytes uploaded to and downloaded from the device so far (without labels and the scalars
 * of a step); zeros if device memory is host memory. */
struct compute_traffic {
    uint64_t up_bytes, down_bytes;
};
struct compute_traffic compute_get_traffic(const struct compute *c);

/* Allocate host memory for direct transfers (page-locked with a GPU), zeroed, 64-byte aligned. */
enum status compute_alloc_host(struct compute *c, size_t count, float **ret, struct error *err);
void compute_free_host(struct compute *c, float *memory); /* NULL allowed */

/* Copy to the device.  Memory of compute_alloc_host is read until the next call that waits; any
 * other memory has been copied on return. */
enum status compute_upload(struct compute *c, float *device, const float *host, size_t count,
                           struct error *err);

/* Copy within the device; the ranges do not overlap.  Not for registered parameters. */
enum status compute_copy(struct compute *c, float *to, const float *from, size_t count,
                         struct error *err);

/*
 * Start copying `count` floats at `host` (memory of compute_alloc_host) to the device, concurrently
 * with earlier and later calls: the next compute_upload, _values or _images of the same count from
 * there uses the copy.  Until that call has been waited for, the floats at `host` must not change;
 * if no such call follows, compute_upload_ahead_cancel ends the access, and blocks.  A new start
 * replaces an earlier one that is unused.  A no-op where device memory is host memory.
 */
enum status compute_upload_ahead(struct compute *c, const float *host, size_t count,
                                 struct error *err);
enum status compute_upload_ahead_cancel(struct compute *c, struct error *err);

/* How long the device waited for the last copy that it used, in ns; call it once that upload has
 * been waited for. 0: no copy was used since the last call. */
int64_t compute_upload_ahead_wait_ns(struct compute *c);

/* Start copying the results of the calls so far to the host, concurrently with later calls;
 * compute_download_wait blocks until the oldest copy not yet waited for is complete.  Until then
 * the source must not be overwritten.  With count 0 it is a marker: the wait returns once all calls
 * before it are done.  At most COMPUTE_DOWNLOADS_MAX may be pending. */
#define COMPUTE_DOWNLOADS_MAX 64
enum status compute_download_start(struct compute *c, float *host, const float *device,
                                   size_t count, struct error *err);
enum status compute_download_wait(struct compute *c, struct error *err);

/* Start and wait. */
enum status compute_download(struct compute *c, float *host, const float *device, size_t count,
                             struct error *err);
enum status compute_synchronize(struct compute *c, struct error *err);

/* Convert float32 to values and back; otherwise as compute_upload and compute_download. */
enum status compute_upload_values(struct compute *c, void *device, const float *host, size_t count,
                                  struct error *err);
enum status compute_download_values(struct compute *c, float *host, const void *device,
                                    size_t count, struct error *err);

/* As compute_upload_values for images: host (images, channels, points), stored in the device's
 * order. */
enum status compute_upload_images(struct compute *c, void *device, const float *host, size_t images,
                                  size_t channels, size_t points, struct error *err);

/*
 * The operations.  Each has a struct with its shape and pointers to its parameters and their
 * gradients (device, borrowed), filled when the model is opened. `accumulate` adds to the output
 * instead of replacing it.  Arguments do not overlap unless stated.  A device without the operation
 * returns STATUS_UNSUPPORTED.
 */

enum activation {
    ACTIVATION_NONE,
    ACTIVATION_RELU,
    ACTIVATION_GELU, /* the tanh approximation of GPT-2: torch.nn.GELU(approximate="tanh") */
};

/* dy = dy * activation'. saved: ReLU: the activation's output; GELU: its input.  A no-op for
 * ACTIVATION_NONE. */
enum status compute_activation_backward(struct compute *c, enum activation activation,
                                        const void *saved, void *dy, size_t count,
                                        struct error *err);

/* Elements from one row of a matrix of values to the next, at least width: rows of a GPU begin at
 * multiples of 16 bytes, rows of the CPU are dense. */
size_t compute_row_stride(const struct compute *c, size_t width);

struct linear {
    size_t in, out;
    size_t stride;       /* of the rows of y and dy: `out` (or 0, the same), or compute_row_stride's
                            for a layer without activation and residual */
    const float *weight; /* (out, in) */
    const float *bias;   /* (out); NULL: none */
    float *dweight, *dbias;
    enum activation activation;
    enum activation previous;   /* the activation that produced x; not NONE: backward_input
                                   multiplies dx by its derivative, and may not accumulate */
    const void *previous_saved; /* for it, as compute_activation_backward's saved */
};

static inline size_t linear_stride(const struct linear *l)
{
    return l->stride > 0 ? l->stride : l->out;
}

/* y (rows, out) = activation(x (rows, in) * weight^T + bias) + residual (rows, out; NULL: none).
 * pre (rows, out): receives the activation's input; required with GELU, else NULL. */
enum status compute_linear_forward(struct compute *c, const struct linear *l, const void *x,
                                   const void *residual, void *pre, void *y, size_t rows,
                                   struct error *err);

/* dweight (out, in) = dy^T * x, dbias (out) = column sums of dy. */
enum status compute_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                           const void *dy, size_t rows, bool accumulate,
                                           struct error *err);

/* dx (rows, in) = dy (rows, out) * weight, times the derivative of the previous activation. */
enum status compute_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                          void *dx, size_t rows, bool accumulate,
                                          struct error *err);

/* torch.nn.Conv2d: square kernel, equal stride and padding in both dimensions, no dilation, no
 * groups.  On the CPU the bits are the same in every run, but depend on the processor and, with
 * narrow vector registers, on the number of threads. */
struct convolution {
    size_t channels, height, width; /* of the input */
    size_t filters;                 /* channels of the output */
    size_t kernel, stride, padding;
    const float *weight; /* (filters, channels, kernel, kernel) */
    const float *bias;   /* (filters); NULL: none */
    float *dweight, *dbias;
    enum activation activation; /* ACTIVATION_NONE or ACTIVATION_RELU */
    void *plan;                 /* the device's, between prepare and release */
};

/* Number of window positions along `size`, which including its padding is at least `kernel`. */
size_t compute_windows(size_t size, size_t kernel, size_t stride, size_t padding);

/* Choose algorithms and reserve scratch memory for batches up to max_batch; release accepts a
 * struct that was never prepared. */
enum status compute_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                                 struct error *err);
void compute_conv_release(struct compute *c, struct convolution *conv);

/* y, images of `filters` channels = activation(cross-correlation of x with weight + bias). */
enum status compute_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                                 void *y, size_t batch, struct error *err);
enum status compute_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                         const void *x, const void *dy, size_t batch,
                                         bool accumulate, struct error *err);
enum status compute_conv_backward_input(struct compute *c, const struct convolution *conv,
                                        const void *dy, void *dx, size_t batch, bool accumulate,
                                        struct error *err);

/* Windows of kernel x kernel; padding is never the maximum. */
struct pool {
    size_t channels, height, width; /* of the input */
    size_t kernel, stride, padding; /* padding at most kernel / 2 */
};

/* y: the maximum of each window, NaN if it contains one; argmax, with y's shape and order: the
 * index (row * width + column) of its source in the image, the first of equals. */
enum status compute_max_pool_forward(struct compute *c, const struct pool *p, const void *x,
                                     int32_t *argmax, void *y, size_t batch, struct error *err);
enum status compute_max_pool_backward(struct compute *c, const struct pool *p,
                                      const int32_t *argmax, const void *dy, void *dx, size_t batch,
                                      bool accumulate, struct error *err);

/* y (batch, channels) = means of x over the `inner` points of each image: global average pooling.
 */
enum status compute_mean_forward(struct compute *c, const void *x, void *y, size_t batch,
                                 size_t channels, size_t inner, struct error *err);
enum status compute_mean_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                                  size_t channels, size_t inner, bool accumulate,
                                  struct error *err);

/* y (batch, channels, inner), the order in which PyTorch's linear layers read an image, from x
 * (batch, inner, channels): for devices with compute_channels_last. */
enum status compute_flatten_forward(struct compute *c, const void *x, void *y, size_t batch,
                                    size_t channels, size_t inner, struct error *err);
enum status compute_flatten_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                                     size_t channels, size_t inner, bool accumulate,
                                     struct error *err);

/* BatchNorm1d (inner 1) and BatchNorm2d (inner height * width) of PyTorch; arrays of `channels`. */
struct batch_norm {
    size_t channels, inner;
    const float *weight, *bias;
    float *dweight, *dbias;
    float *running_mean, *running_var;
    float *mean, *inverse_std;  /* of the last training batch, read by backward */
    float momentum;             /* weight of the new statistics in the running ones: 0.1 */
    float epsilon;              /* 1e-5 */
    enum activation activation; /* ACTIVATION_NONE or ACTIVATION_RELU */
};

/* Training: y = activation(normalised * weight + bias + residual (NULL: none)), normalised = x
 * minus the channel's mean, divided by the square root of the biased variance; running statistics
 * move by `momentum`, with the unbiased variance.  Forward may overwrite x, images of `inner`
 * points; the caller must not change x until backward. batch * inner >= 2 (STATUS_DATA). */
enum status compute_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                       const void *residual, void *y, size_t batch,
                                       struct error *err);

/* Evaluation, with the running statistics; x is not changed; y may be x. */
enum status compute_batch_norm_evaluate(struct compute *c, const struct batch_norm *n,
                                        const void *x, const void *residual, void *y, size_t batch,
                                        struct error *err);

/* x, y: as forward left them; dy: the gradient of y. residual: forward had one, and dy becomes its
 * gradient (after the activation's mask); otherwise dy is unspecified, and dx may be dy. */
enum status compute_batch_norm_backward(struct compute *c, const struct batch_norm *n,
                                        const void *x, const void *y, void *dy, void *dx,
                                        size_t batch, bool residual, bool accumulate_parameters,
                                        struct error *err);

/* LayerNorm of PyTorch over the last dimension. */
struct layer_norm {
    size_t width;
    const float *weight, *bias; /* (width) */
    float *dweight, *dbias;
    float *mean, *inverse_std; /* (rows), of the last forward, read by backward */
    float epsilon;             /* 1e-5 */
};

enum status compute_layer_norm_forward(struct compute *c, const struct layer_norm *n, const void *x,
                                       void *y, size_t rows, struct error *err);
/* accumulate_input: add to dx */
enum status compute_layer_norm_backward(struct compute *c, const struct layer_norm *n,
                                        const void *x, const void *dy, void *dx, size_t rows,
                                        bool accumulate_input, bool accumulate_parameters,
                                        struct error *err);

/* GPT-2's input: the sum of a row per token and a row per position. */
struct embedding {
    size_t vocabulary, positions, width;
    const float *token_weight;    /* (vocabulary, width) */
    const float *position_weight; /* (positions, width) */
    float *dtoken_weight, *dposition_weight;
};

/* y (batch, positions, width) = token_weight[ids] + position_weight. ids (batch, positions):
 * float32 in every precision, integers below vocabulary (checked by the caller). */
enum status compute_embedding_forward(struct compute *c, const struct embedding *e,
                                      const float *ids, void *y, size_t batch, struct error *err);
/* accumulate_tokens applies to dtoken_weight (which may hold a gradient of the output layer),
 * accumulate to dposition_weight. */
enum status compute_embedding_backward(struct compute *c, const struct embedding *e,
                                       const float *ids, const void *dy, size_t batch,
                                       bool accumulate_tokens, bool accumulate, struct error *err);

/* Causal self-attention, softmax(q k^T / sqrt(width / heads)) v, over keys at positions up to q's.
 */
struct attention {
    size_t heads, positions, width; /* width: of all heads */
    void *plan;                     /* the device's, between prepare and release */
};

enum status compute_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                      struct error *err);
void compute_attention_release(struct compute *c, struct attention *a);

/* qkv (batch, positions, 3, heads, width / heads), y (batch, positions, width). log_sums (batch,
 * heads, positions): logarithm of each row's sum of exponentials, read by backward. */
enum status compute_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                      float *log_sums, void *y, size_t batch, struct error *err);
enum status compute_attention_backward(struct compute *c, const struct attention *a,
                                       const void *qkv, const float *log_sums, const void *y,
                                       const void *dy, void *dqkv, size_t batch, struct error *err);

/* Mean cross-entropy of softmax(logits) (rows, classes) against host labels (rows), rows > 0;
 * dlogits receives the gradient, may be logits; NULL: evaluation only.  Rows of both begin `stride`
 * (at least classes) apart; the gaps are not written.  STATUS_DATA names a label outside the
 * classes. compute_loss_wait returns the result of the last call. */
enum status compute_softmax_cross_entropy(struct compute *c, const void *logits,
                                          const int32_t *labels, void *dlogits, size_t rows,
                                          size_t classes, size_t stride, struct error *err);

/* The check of labels alone; compute_graph_launch does not check. */
enum status compute_check_labels(const int32_t *labels, size_t rows, size_t classes,
                                 struct error *err);

/* Blocks; returns the mean loss, and the number of rows whose label has the (first) largest logit.
 */
enum status compute_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                              struct error *err);

/*
 * Training on the device: parameters, gradients and the optimizer's state stay there.  Only on
 * devices with compute_has_optimizer.
 */
bool compute_has_optimizer(const struct compute *c);

/* Register `count` parameters at `params` (device, borrowed until the device is closed or others
 * are registered) whose views begin at starts[0] = 0 < starts[1] < ...: in 16-bit precisions the
 * device keeps copies, each view aligned, that the operations read, and refreshes them with every
 * upload into and update of these parameters.  Other parameters are converted at every use. */
enum status compute_register_params(struct compute *c, const float *params, size_t count,
                                    const size_t *starts, size_t views, struct error *err);

struct compute_update {
    float *params;      /* (count); all arrays are on the device */
    const float *grads; /* mean gradient, not changed */
    float *state[2];    /* as struct optimizer's; NULL if the kind has none */
    size_t count;
};

/* The update of optimizer_update_at, with the same bits in float32.  In fp16 an update with a
 * gradient that is not finite is skipped and halves the scale of the values' gradients; 2000
 * updates without a skip double it, up to 2^126, as in torch.amp.GradScaler. `step` counts this
 * update and all requested before it; the optimizer counts only those that were applied. */
enum status compute_optimizer_update(struct compute *c, const struct optimizer_config *config,
                                     double learning_rate, uint64_t step,
                                     const struct compute_update *update, struct error *err);

/* State of fp16's loss scaling.  Other precisions have a scale of 1, and zeros. */
struct gradient_scale {
    float scale;
    uint32_t good;    /* updates since the scale changed or an update was skipped */
    uint64_t skipped; /* updates that compute_optimizer_update has skipped */
};

/* Waits for the last update. */
enum status compute_gradient_scale(struct compute *c, struct gradient_scale *ret,
                                   struct error *err);
/* Restore that state; a no-op except in fp16.  STATUS_INVALID: the scale is not valid. */
enum status compute_set_gradient_scale(struct compute *c, const struct gradient_scale *scale,
                                       struct error *err);

/*
 * A step as one graph launch.  Between begin and end, calls are captured, not executed; they may
 * not wait, download or allocate, so the same calls must have run once before.  A call that would
 * do so fails and may spoil the capture, but not the device.  Labels and the numbers of the update
 * are read at the launch: see compute_graph_launch.  One capture at a time; free graphs before
 * closing the device.
 */
struct compute_graph;

bool compute_has_graphs(const struct compute *c);
enum status compute_graph_begin(struct compute *c, struct error *err);
enum status compute_graph_end(struct compute *c, struct compute_graph **ret, struct error *err);

/* Execute the captured calls again, with these labels (rows, as captured; NULL: the last ones) and,
 * if it has an update, these numbers.  The previous launch must have been waited for
 * (compute_loss_wait).  STATUS_UNAVAILABLE: scratch memory, registered parameters or fp16's scale
 * have changed since the capture; the graph must be captured again. */
enum status compute_graph_launch(struct compute *c, const struct compute_graph *graph,
                                 const int32_t *labels, size_t rows,
                                 const struct optimizer_config *config, double learning_rate,
                                 uint64_t step, struct error *err);
void compute_graph_free(struct compute *c, struct compute_graph *graph); /* NULL allowed */

#endif
