/*
 * compute: operations on one device's memory, as a table of functions.  `cpu` is CBLAS and our own
 * loops and is the reference; `cuda` is a module (sparring_cuda.so) loaded when a GPU is asked for.
 * Everything is row-major in device memory, dimensions > 0 and at most INT_MAX.  Parameters, their
 * gradients and statistics are float32; *values* (activations and their gradients, void *) are of
 * the device's precision, float32 on the CPU.  Images are (batch, channels, height, width), on a
 * device with compute_channels_last (batch, height, width, channels), what is computed being the
 * same: they change their order where they are uploaded and where they are flattened, only.
 * Calls take effect in the order of issue; only download, *_wait and synchronize block, and a call
 * that waits also reports what failed before it.  Threads: one caller at a time per struct compute,
 * on any thread; several may be open.
 */
#ifndef SPARRING_WORKER_COMPUTE_COMPUTE_H
#define SPARRING_WORKER_COMPUTE_COMPUTE_H

#include "common/base/error.h"
#include "common/optimizer/optimizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compute;

/* Of values; products add in float32.  A CPU has PRECISION_FLOAT32 only. */
enum precision {
    PRECISION_FLOAT32,
    PRECISION_TF32, /* float32 values, products by the tensor cores with 10 bits of fraction */
    PRECISION_BF16,
    PRECISION_FP16, /* gradients of values are scaled: see compute_optimizer_update */
};

const char *precision_name(enum precision p); /* "float32", "tf32", "bf16", "fp16" */
bool precision_parse(const char *text, enum precision *ret);

struct compute_config {
    /* "auto" (a GPU where one is, else the CPU), "cpu", "cuda", "cuda:I" (plain "cuda": local_rank
     * modulo the number of devices) */
    const char *device;
    unsigned local_rank;
    unsigned threads; /* of CPU kernels, a setting of the process */
    enum precision precision;
    bool deterministic; /* the same bits every time, where a faster way has other ones */
};

/* A missing driver, library or GPU is one clear error with cuda and a reason in compute_note with
 * auto; STATUS_UNSUPPORTED: the device has not this precision. */
enum status compute_open_config(const struct compute_config *config, struct compute **ret_compute,
                                struct error *err);

/* The same in float32, not deterministic. */
enum status compute_open(const char *device, unsigned local_rank, unsigned threads,
                         struct compute **ret_compute, struct error *err);
void compute_close(struct compute *c); /* NULL allowed */

const char *
compute_name(const struct compute *c); /* "cpu (OpenBLAS ..., 1 thread)", "cuda:0 (NVIDIA H200)" */
const char *compute_note(const struct compute *c); /* why auto did not take a GPU, or "" */
enum precision compute_precision(const struct compute *c);
bool compute_is_host(const struct compute *c); /* device memory is host memory: views may alias */
bool compute_channels_last(const struct compute *c); /* the order of images' values */

/* Device memory, zeroed, 64-byte aligned.  what: for the error text, which says how much was asked
 * and, of a GPU, how much is free. */
enum status compute_alloc(struct compute *c, size_t count, const char *what, float **ret,
                          struct error *err);
/* Likewise for `count` values: activations and their gradients. */
enum status compute_alloc_values(struct compute *c, size_t count, const char *what, void **ret,
                                 struct error *err);
void compute_free(struct compute *c, void *memory); /* of both; NULL allowed */

/* The most of the device's own memory that was taken at once, so far; 0: it has the host's. */
uint64_t compute_peak_bytes(const struct compute *c);

/* Bytes of float32 that have gone to the device and from it so far (the labels and the few numbers
 * of a step aside); zeros where its memory is the host's. */
struct compute_traffic {
    uint64_t up_bytes, down_bytes;
};
struct compute_traffic compute_get_traffic(const struct compute *c);

/* Host memory that transfers reach directly (page-locked with a GPU), zeroed, 64-byte aligned. */
enum status compute_alloc_host(struct compute *c, size_t count, float **ret, struct error *err);
void compute_free_host(struct compute *c, float *memory); /* NULL allowed */

/* Copy to the device.  Memory of compute_alloc_host is read until the next call that waits; of
 * any other memory there is a copy when this returns. */
enum status compute_upload(struct compute *c, float *device, const float *host, size_t count,
                           struct error *err);

/* Copy from the device to itself; nothing overlaps.  Not of parameters that are registered. */
enum status compute_copy(struct compute *c, float *to, const float *from, size_t count,
                         struct error *err);

/*
 * Start copying `count` floats at `host` (memory of compute_alloc_host) to the device, beside the
 * calls so far and those that follow: the next compute_upload, _values or _images of as many from
 * there finds them on the device.  Until that call has been waited for they are read, and must
 * not change; of those that no such call is coming for, compute_forget_ahead ends that, and blocks.
 * What was started last replaces what was started before it.  A device that is the host does
 * nothing.
 */
enum status compute_upload_ahead(struct compute *c, const float *host, size_t count,
                                 struct error *err);
enum status compute_forget_ahead(struct compute *c, struct error *err);

/* How long the device waited for the floats that it took from there last, ns, asked once a call has
 * waited for that.  0: none were taken since the last time. */
int64_t compute_ahead_wait_ns(struct compute *c);

/* Copy to the host what the calls so far have made, without waiting and beside the calls that
 * follow; compute_download_wait blocks until the oldest copy that was not yet waited for is there.
 * Until then the source must not be overwritten.  Without elements it is a mark: what was called
 * before is done when it was waited for.  At most COMPUTE_DOWNLOADS_MAX may be under way.
 */
#define COMPUTE_DOWNLOADS_MAX 64
enum status compute_download_start(struct compute *c, float *host, const float *device,
                                   size_t count, struct error *err);
enum status compute_download_wait(struct compute *c, struct error *err);

/* Both in one. */
enum status compute_download(struct compute *c, float *host, const float *device, size_t count,
                             struct error *err);
enum status compute_synchronize(struct compute *c, struct error *err);

/* Values from and to float32; otherwise as compute_upload and compute_download. */
enum status compute_upload_values(struct compute *c, void *device, const float *host, size_t count,
                                  struct error *err);
enum status compute_download_values(struct compute *c, float *host, const void *device,
                                    size_t count, struct error *err);

/* As compute_upload_values, of images: host (images, channels, points), in the device's order on
 * the device. */
enum status compute_upload_images(struct compute *c, void *device, const float *host, size_t images,
                                  size_t channels, size_t points, struct error *err);

/*
 * The operations.  Each has a struct that says its shape and where its parameters and their
 * gradients lie (device, borrowed), filled when the model is opened.  `accumulate` adds to what is
 * there instead of replacing it.  Arguments do not overlap unless said.  Each may be missing on a
 * device: STATUS_UNSUPPORTED.
 */

enum activation {
    ACTIVATION_NONE,
    ACTIVATION_RELU,
    ACTIVATION_GELU, /* its tanh form, GPT-2's: torch.nn.GELU(approximate="tanh") */
};

/* dy = dy * activation'.  kept: what backward needs, ReLU: the activation's output; GELU: its
 * input.  Nothing to do for ACTIVATION_NONE. */
enum status compute_activation_backward(struct compute *c, enum activation activation,
                                        const void *kept, void *dy, size_t count,
                                        struct error *err);

/* Elements from one row of a matrix of values to the next as the device likes it, at least width: a
 * GPU's rows begin at multiples of 16 bytes, the CPU's are dense. */
size_t compute_row_stride(const struct compute *c, size_t width);

struct linear {
    size_t in, out;
    size_t stride; /* of the rows of y and dy: `out` (or 0, the same), or compute_row_stride's for a
                      layer without activation and residual */
    const float *weight; /* (out, in) */
    const float *bias;   /* (out); NULL: none */
    float *dweight, *dbias;
    enum activation activation;
    enum activation before;  /* what made x, with what compute_activation_backward calls kept: */
    const void *before_kept; /* backward_input takes dx back through it; then not accumulate */
};

static inline size_t linear_stride(const struct linear *l)
{
    return l->stride > 0 ? l->stride : l->out;
}

/* y (rows, out) = activation(x (rows, in) * weight^T + bias) + residual (rows, out; NULL: none).
 * pre (rows, out): gets the activation's input; needed with GELU, else NULL. */
enum status compute_linear_forward(struct compute *c, const struct linear *l, const void *x,
                                   const void *residual, void *pre, void *y, size_t rows,
                                   struct error *err);

/* dweight (out, in) = dy^T * x, dbias (out) = column sums of dy. */
enum status compute_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                           const void *dy, size_t rows, bool accumulate,
                                           struct error *err);

/* dx (rows, in) = dy (rows, out) * weight, and by the slope of what came before. */
enum status compute_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                          void *dx, size_t rows, bool accumulate,
                                          struct error *err);

/* torch.nn.Conv2d: square kernel, equal stride and padding both ways, no dilation, no groups.  On
 * the CPU the same bits in every run, but not on every processor and, where that has narrow
 * registers, not with every number of threads.
 */
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

/* Positions of a window along `size`, which with its padding is at least `kernel`. */
size_t compute_windows(size_t size, size_t kernel, size_t stride, size_t padding);

/* Choose algorithms and reserve scratch memory for batches up to max_batch; release allows a
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

/* Windows of `kernel` squared; padding never wins. */
struct pool {
    size_t channels, height, width; /* of the input */
    size_t kernel, stride, padding; /* padding at most kernel / 2 */
};

/* y: each window's maximum, a NaN wins; chosen, as large and in y's order: the point (row * width +
 * column) of its image that it came from, the first of equals. */
enum status compute_max_pool_forward(struct compute *c, const struct pool *p, const void *x,
                                     int32_t *chosen, void *y, size_t batch, struct error *err);
enum status compute_max_pool_backward(struct compute *c, const struct pool *p,
                                      const int32_t *chosen, const void *dy, void *dx, size_t batch,
                                      bool accumulate, struct error *err);

/* y (batch, channels) = means of x, images of `inner` points: global average pooling. */
enum status compute_mean_forward(struct compute *c, const void *x, void *y, size_t batch,
                                 size_t channels, size_t inner, struct error *err);
enum status compute_mean_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                                  size_t channels, size_t inner, bool accumulate,
                                  struct error *err);

/* y (batch, channels, inner), the order in which PyTorch's linear layers read an image, from x
 * (batch, inner, channels): for devices with compute_channels_last, others have it. */
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
    float *mean, *inverse_std;  /* of the last training batch, for backward */
    float momentum;             /* share of the new statistics in the running ones: 0.1 */
    float epsilon;              /* 1e-5 */
    enum activation activation; /* ACTIVATION_NONE or ACTIVATION_RELU */
};

/* Training: y = activation(normalised * weight + bias + residual (NULL: none)), normalised = x less
 * its channels' mean, by the root of the biased variance; running statistics move by `momentum`,
 * with the unbiased variance.  x, images of `inner` points, may be written over: it belongs to the
 * operation until backward.  batch * inner >= 2 (STATUS_DATA). */
enum status compute_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                       const void *residual, void *y, size_t batch,
                                       struct error *err);

/* Evaluation: by the running statistics; x is untouched; y may be x. */
enum status compute_batch_norm_evaluate(struct compute *c, const struct batch_norm *n,
                                        const void *x, const void *residual, void *y, size_t batch,
                                        struct error *err);

/* x, y: as forward left them; dy: the gradient of y.  residual: there was one, and dy becomes its
 * gradient (behind the activation's mask); otherwise dy is unspecified, and dx may be dy. */
enum status compute_batch_norm_backward(struct compute *c, const struct batch_norm *n,
                                        const void *x, const void *y, void *dy, void *dx,
                                        size_t batch, bool residual, bool accumulate_parameters,
                                        struct error *err);

/* LayerNorm of PyTorch over the last dimension. */
struct layer_norm {
    size_t width;
    const float *weight, *bias; /* (width) */
    float *dweight, *dbias;
    float *mean, *inverse_std; /* (rows), of the last forward, for backward */
    float epsilon;             /* 1e-5 */
};

enum status compute_layer_norm_forward(struct compute *c, const struct layer_norm *n, const void *x,
                                       void *y, size_t rows, struct error *err);
/* accumulate_input: dx += ... */
enum status compute_layer_norm_backward(struct compute *c, const struct layer_norm *n,
                                        const void *x, const void *dy, void *dx, size_t rows,
                                        bool accumulate_input, bool accumulate_parameters,
                                        struct error *err);

/* GPT-2's input: a row per token, and one per position. */
struct embedding {
    size_t vocabulary, positions, width;
    const float *tokens; /* (vocabulary, width) */
    const float *places; /* (positions, width) */
    float *dtokens, *dplaces;
};

/* y (batch, positions, width) = tokens[ids] + places.  ids (batch, positions): float32 whatever the
 * precision, whole numbers below vocabulary (the caller has checked). */
enum status compute_embedding_forward(struct compute *c, const struct embedding *e,
                                      const float *ids, void *y, size_t batch, struct error *err);
/* accumulate_tokens is of dtokens (it may have a gradient of the output layer), accumulate of
 * dplaces. */
enum status compute_embedding_backward(struct compute *c, const struct embedding *e,
                                       const float *ids, const void *dy, size_t batch,
                                       bool accumulate_tokens, bool accumulate, struct error *err);

/* Causal self-attention, softmax(q k^T / sqrt(width / heads)) v with k of positions up to q's. */
struct attention {
    size_t heads, positions, width; /* width: of all heads */
    void *plan;                     /* the device's, between prepare and release */
};

enum status compute_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                      struct error *err);
void compute_attention_release(struct compute *c, struct attention *a);

/* qkv (batch, positions, 3, heads, width / heads), y (batch, positions, width).  log_sums (batch,
 * heads, positions): logarithm of each row's sum of exponentials, for backward. */
enum status compute_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                      float *log_sums, void *y, size_t batch, struct error *err);
enum status compute_attention_backward(struct compute *c, const struct attention *a,
                                       const void *qkv, const float *log_sums, const void *y,
                                       const void *dy, void *dqkv, size_t batch, struct error *err);

/* Mean cross-entropy of softmax(logits) (rows, classes) against host labels (rows), rows > 0;
 * dlogits gets its gradient, may be logits; NULL: evaluation only.  Rows of both begin `stride` (at
 * least classes) apart; what lies between is not touched.  STATUS_DATA names a label outside the
 * classes.  compute_loss_wait yields the result of the last call. */
enum status compute_softmax_cross_entropy(struct compute *c, const void *logits,
                                          const int32_t *labels, void *dlogits, size_t rows,
                                          size_t classes, size_t stride, struct error *err);

/* The check alone: compute_graph_launch does not make it. */
enum status compute_check_labels(const int32_t *labels, size_t rows, size_t classes,
                                 struct error *err);

/* Blocks; the mean loss, and how many rows had their label's logit as the (first) largest. */
enum status compute_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                              struct error *err);

/*
 * Training without the host: parameters, gradients and the optimizer's state stay on the device.
 * Only some devices have it (compute_has_optimizer).
 */
bool compute_has_optimizer(const struct compute *c);

/* `count` parameters at `params` (device, borrowed until the device is closed or other ones are
 * registered) whose views begin at starts[0] = 0 < starts[1] < ...: in 16 bits the device keeps
 * copies, each view aligned, that operations read, and makes them anew with every upload into and
 * update of these parameters.  Parameters that are not registered are converted at every use. */
enum status compute_register_params(struct compute *c, const float *params, size_t count,
                                    const size_t *starts, size_t views, struct error *err);

struct compute_update {
    float *params;      /* (count), like the rest on the device */
    const float *grads; /* mean gradient, not changed */
    float *state[2];    /* as struct optimizer's; NULL where the kind has none */
    size_t count;
};

/* The update of optimizer_update_at, with the same bits in float32.  In fp16 nothing happens where
 * a gradient is not finite: then the scale of values' gradients halves, and doubles after 2000
 * updates without such a one, up to 2^126, as torch.amp.GradScaler's.  `step` counts this update
 * and those asked for before it; the optimizer counts only those that were made. */
enum status compute_optimizer_update(struct compute *c, const struct optimizer_config *config,
                                     double learning_rate, uint64_t step,
                                     const struct compute_update *update, struct error *err);

/* Of fp16: what the updates so far have come to.  Other precisions have a scale of 1, and zeros. */
struct gradient_scale {
    float scale;
    uint32_t good;    /* updates since it changed or one was left out */
    uint64_t skipped; /* updates that compute_optimizer_update left out */
};

/* Waits for the last update. */
enum status compute_gradient_scale(struct compute *c, struct gradient_scale *ret,
                                   struct error *err);
/* Go on from there; a no-op but in fp16.  STATUS_INVALID: the scale is none. */
enum status compute_set_gradient_scale(struct compute *c, const struct gradient_scale *scale,
                                       struct error *err);

/*
 * A step as one launch.  Between begin and end, calls are noted, not done; nothing there may wait,
 * download or allocate, so the same calls must have been made once before; a call that would fails,
 * and may spoil what is noted, but not the device.  Labels and the numbers of the update are read
 * when it is launched: see compute_graph_launch.  One graph is open at a time; graphs end before
 * the device.
 */
struct compute_graph;

bool compute_has_graphs(const struct compute *c);
enum status compute_graph_begin(struct compute *c, struct error *err);
enum status compute_graph_end(struct compute *c, struct compute_graph **ret, struct error *err);

/* Do what was noted, once more, with these labels (rows, as noted; NULL: the last ones) and, where
 * it has an update, these numbers.  The launch before must have been waited for
 * (compute_loss_wait).  STATUS_UNAVAILABLE: a larger batch than before, other parameters or fp16's
 * scale came between; the graph has to be noted again. */
enum status compute_graph_launch(struct compute *c, const struct compute_graph *graph,
                                 const int32_t *labels, size_t rows,
                                 const struct optimizer_config *config, double learning_rate,
                                 uint64_t step, struct error *err);
void compute_graph_free(struct compute *c, struct compute_graph *graph); /* NULL allowed */

#endif
