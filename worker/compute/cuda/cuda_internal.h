/*
 * cuda_internal: one GPU behind struct compute_ops; declarations shared by the operation families.
 * Work is issued to one stream in the order of the calls; downloads use a second one, each ordered
 * by an event.  Every cuda_<operation> implements the function of the same name in compute.h.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_INTERNAL_H
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_INTERNAL_H

#include "worker/compute/compute.h"
#include "worker/compute/compute_ops.h"
#include "worker/compute/cuda/cuda_error.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

struct download {
    cudaEvent_t source_ready; /* on the work stream */
    cudaEvent_t arrived;      /* on the copy stream */
};

struct cuda_row { /* of softmax and cross-entropy */
    double loss;
    unsigned long long correct; /* 1: the label has the first largest logit */
};

/* Memory that grows to the largest request and is reused by every call: its content is valid until
 * the call's last kernel. */
struct cuda_scratch {
    void *memory; /* owned, device */
    size_t bytes;
};

/* Upload of the next batch (cuda_upload_ahead.cu). */
struct cuda_upload_ahead_state {
    cudaStream_t stream;    /* only of these uploads */
    cudaEvent_t arrived;    /* on that stream: the upload is complete */
    cudaEvent_t consumed;   /* on the work stream: memory has been read and may be overwritten */
    cudaEvent_t wait_begin; /* on the work stream, timed: its wait for the upload begins ... */
    cudaEvent_t wait_end;   /* ... and ends */
    bool timed;             /* both were recorded since the last query */
    struct cuda_scratch memory;
    const float *host; /* source of the upload; NULL: none is pending */
    size_t count;
};

struct product_plans;     /* cuda_product.cu */
struct conv_library;      /* cuda_conv.h */
struct cuda_optimizer;    /* cuda_optimizer.cu */
struct cuda_param_copies; /* cuda_param_copy.cu */

struct cuda {
    struct compute base;
    int device;
    cudaDataType type; /* of values */
    size_t value_size;
    cublasComputeType_t product_type;
    bool deterministic;
    bool capturing;             /* calls are captured for a graph */
    uint64_t memory_generation; /* incremented when memory shared by calls is reallocated,
                                   which invalidates graphs that hold its addresses */
    float gradient_scale;       /* of values' gradients: 1 except in fp16 */
    cudaStream_t work, copies;
    struct cuda_upload_ahead_state upload_ahead;
    struct product_plans *plans;
    struct conv_library *conv; /* opened by the first convolution */
    struct cuda_optimizer *optimizer;
    struct cuda_param_copies *param_copies;
    struct download downloads[COMPUTE_DOWNLOADS_MAX];
    size_t started, waited; /* downloads so far; the difference is pending */

    size_t rows_capacity;   /* capacity of labels and rows; grows to the largest batch */
    int32_t *labels;        /* owned, device */
    int32_t *pinned_labels; /* owned, two buffers used alternately */
    unsigned labels_turn;
    cudaEvent_t labels_read[2];
    struct cuda_row *rows; /* owned, device */
    struct cuda_row *loss; /* owned, page-locked host: of the last batch */

    struct cuda_block *blocks; /* owned; allocated device memory (cuda_memory.cu) */
    size_t used_bytes, peak_bytes;
    struct compute_traffic traffic;            /* transfers of a graph are added at its launches */
    struct compute_traffic traffic_at_capture; /* its value when the capture began */

    struct cuda_scratch partials; /* partial results of reductions */
    struct cuda_scratch staged;   /* float32 staging of transfers in 16-bit precisions */
    struct cuda_scratch cast[2];  /* 16-bit copies of a weight and a bias that are not registered */
    char text[320];
};

/* Make this GPU the calling thread's current device: CUDA keeps one per thread, and a process may
 * have several open.  The calls that follow report a failure. */
void cuda_bind(const struct cuda *cuda);

static inline struct cuda *cuda_of(struct compute *c)
{
    struct cuda *cuda = reinterpret_cast<struct cuda *>(c);

    cuda_bind(cuda);
    return cuda;
}

/* Values are passed untyped: the address of element i. */
static inline void *value_at(const struct cuda *cuda, const void *values, size_t i)
{
    return const_cast<char *>(static_cast<const char *>(values)) + i * cuda->value_size;
}

/* As compute_windows, which is not linked into the module. */
static inline size_t cuda_windows(size_t size, size_t kernel, size_t stride, size_t padding)
{
    return (size + 2 * padding - kernel) / stride + 1;
}

/* cuda_memory.cu */
void cuda_blocks_release(struct cuda *cuda);
uint64_t cuda_peak_bytes(const struct compute *c);
struct compute_traffic cuda_traffic(const struct compute *c);
enum status cuda_reserve(struct cuda *cuda, struct cuda_scratch *s, size_t bytes, const char *what,
                         struct error *err);
enum status cuda_alloc(struct compute *c, size_t count, const char *what, float **ret,
                       struct error *err);
enum status cuda_alloc_values(struct compute *c, size_t count, const char *what, void **ret,
                              struct error *err);
void cuda_free(struct compute *c, void *memory);
enum status cuda_alloc_host(struct compute *c, size_t count, float **ret, struct error *err);
void cuda_free_host(struct compute *c, float *memory);
enum status cuda_upload(struct compute *c, float *device, const float *host, size_t count,
                        struct error *err);
enum status cuda_copy(struct compute *c, float *to, const float *from, size_t count,
                      struct error *err);
enum status cuda_download_start(struct compute *c, float *host, const float *device, size_t count,
                                struct error *err);
enum status cuda_download_wait(struct compute *c, struct error *err);
enum status cuda_upload_values(struct compute *c, void *device, const float *host, size_t count,
                               struct error *err);
enum status cuda_download_values(struct compute *c, float *host, const void *device, size_t count,
                                 struct error *err);
enum status cuda_synchronize(struct compute *c, struct error *err);

/* Provide the floats at `host` on the device for the work stream: those uploaded ahead, or a copy
 * issued now.  Call cuda_upload_ahead_consumed after the work that reads them. */
enum status cuda_stage_upload(struct cuda *cuda, const float *host, size_t count, const float **ret,
                              struct error *err);

/* cuda_upload_ahead.cu */
enum status cuda_upload_ahead_open(struct cuda *cuda, struct error *err);
void cuda_upload_ahead_close(struct cuda *cuda);
enum status cuda_upload_ahead(struct compute *c, const float *host, size_t count,
                              struct error *err);
enum status cuda_upload_ahead_cancel(struct compute *c, struct error *err);
int64_t cuda_upload_ahead_wait_ns(struct compute *c);
/* The upload ahead of these floats, for cuda_stage_upload; *ret NULL: there is none. */
enum status cuda_upload_ahead_find(struct cuda *cuda, const float *host, size_t count,
                                   const float **ret, struct error *err);
/* Mark that the work issued so far has read the memory: it may be overwritten afterwards. */
enum status cuda_upload_ahead_consumed(struct cuda *cuda, struct error *err);

/* cuda_elementwise.cu */
enum status cuda_activation_backward(struct compute *c, enum activation activation,
                                     const void *saved, void *dy, size_t count, struct error *err);
/* A linear layer's bias, activation and residual as a separate pass over y (rows, out). */
enum status cuda_linear_epilogue(struct cuda *cuda, const struct linear *l, const void *residual,
                                 void *pre, void *y, size_t rows, struct error *err);
/* sums (out) = or += the sums of dy's columns, divided by the gradient scale; dy (rows, out) whose
 * rows begin `stride` apart. */
enum status cuda_column_sums(struct cuda *cuda, const void *dy, float *sums, size_t rows,
                             size_t out, size_t stride, bool accumulate, struct error *err);
/* Sums in two steps: the caller sums chunks of cuda_chunk_rows rows, and cuda_add_chunks sums the
 * partials (chunks, out) over the chunks, divided by the gradient scale. */
size_t cuda_chunk_rows(size_t rows);
enum status cuda_add_chunks(struct cuda *cuda, const float *partials, float *sums, size_t chunks,
                            size_t out, bool accumulate, struct error *err);
/* Convert count values to float32, and back. */
enum status cuda_to_float(struct cuda *cuda, const void *values, float *to, size_t count,
                          struct error *err);
enum status cuda_from_float(struct cuda *cuda, const float *from, void *values, size_t count,
                            struct error *err);
/* A parameter as values: itself in float32, else its 16-bit copy; cast_index: of cuda->cast, used
 * if the parameter is not registered. */
enum status cuda_parameter(struct cuda *cuda, const float *parameter, size_t count,
                           unsigned cast_index, const void **ret, struct error *err);

/* cuda_product.cu: D = alpha op(A) op(B) + beta C and an epilogue, row-major. */
struct product {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    size_t a_stride, d_stride; /* elements from row to row, d_stride also of C; 0: dense, as B
                                  and aux */
    const void *a, *b;
    const void *c; /* as d; NULL: d */
    void *d;
    cudaDataType d_type; /* a and b are values */
    float alpha, beta;
    uint32_t epilogue; /* of cuBLASLt */
    const void *bias;  /* (n), as d; BGRADB: (m), written */
    void *aux;         /* (m, n), as d; DGELU: read */
};

/* Inverse of the gradient scale, a factor of every parameter's gradient. */
static inline float cuda_unscale(const struct cuda *cuda)
{
    return 1.0f / cuda->gradient_scale;
}

enum status cuda_products_open(struct cuda *cuda, struct error *err);
void cuda_products_close(struct cuda *cuda);
/* ret_done NULL: a product that cuBLASLt does not support is an error.  Otherwise *ret_done stays
 * false and nothing is written if it, or the alignment of the epilogue's vectors, is not supported.
 */
enum status cuda_product(struct cuda *cuda, const struct product *p, bool *ret_done,
                         struct error *err);

/* cuda_linear.cu */
size_t cuda_row_stride(const struct compute *c, size_t width);
enum status cuda_linear_forward(struct compute *c, const struct linear *l, const void *x,
                                const void *residual, void *pre, void *y, size_t rows,
                                struct error *err);
enum status cuda_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                        const void *dy, size_t rows, bool accumulate,
                                        struct error *err);
enum status cuda_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                       void *dx, size_t rows, bool accumulate, struct error *err);

/* cuda_softmax.cu */
enum status cuda_softmax_open(struct cuda *cuda, struct error *err);
void cuda_softmax_close(struct cuda *cuda);
enum status cuda_softmax_cross_entropy(struct compute *c, const void *logits,
                                       const int32_t *host_labels, void *dlogits, size_t rows,
                                       size_t classes, size_t stride, struct error *err);
enum status cuda_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                           struct error *err);
/* cudaErrorNoKernelImageForDevice when the module has no code for the current device. */
cudaError_t cuda_kernels_check(void);

/* cuda_pool.cu */
enum status cuda_max_pool_forward(struct compute *c, const struct pool *p, const void *x,
                                  int32_t *argmax, void *y, size_t batch, struct error *err);
enum status cuda_max_pool_backward(struct compute *c, const struct pool *p, const int32_t *argmax,
                                   const void *dy, void *dx, size_t batch, bool accumulate,
                                   struct error *err);
enum status cuda_mean_forward(struct compute *c, const void *x, void *y, size_t batch,
                              size_t channels, size_t inner, struct error *err);
enum status cuda_mean_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                               size_t channels, size_t inner, bool accumulate, struct error *err);

/* cuda_layout.cu */
enum status cuda_upload_images(struct compute *c, void *device, const float *host, size_t images,
                               size_t channels, size_t points, struct error *err);
enum status cuda_flatten_forward(struct compute *c, const void *x, void *y, size_t batch,
                                 size_t channels, size_t inner, struct error *err);
enum status cuda_flatten_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                                  size_t channels, size_t inner, bool accumulate,
                                  struct error *err);
/* Pad images whose channels take fewer than 16 bytes with zeros to 16 bytes, and remove the
 * padding. */
enum status cuda_pad_channels(struct cuda *cuda, const void *x, void *to, size_t points,
                              size_t channels, struct error *err);
enum status cuda_unpad_channels(struct cuda *cuda, const void *from, void *x, size_t points,
                                size_t channels, bool accumulate, struct error *err);
/* conv's weight as values (filters, kernel, kernel, channels), possibly with more channels. */
enum status cuda_filters_to_values(struct cuda *cuda, const struct convolution *conv,
                                   size_t channels, void *to, struct error *err);
/* conv's dweight = or += values in that order, divided by the gradient scale. */
enum status cuda_filters_from_values(struct cuda *cuda, const struct convolution *conv,
                                     size_t channels, const void *from, bool accumulate,
                                     struct error *err);

/* cuda_batch_norm.cu */
enum status cuda_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                    const void *residual, void *y, size_t batch, struct error *err);
enum status cuda_batch_norm_evaluate(struct compute *c, const struct batch_norm *n, const void *x,
                                     const void *residual, void *y, size_t batch,
                                     struct error *err);
enum status cuda_batch_norm_backward(struct compute *c, const struct batch_norm *n, const void *x,
                                     const void *y, void *dy, void *dx, size_t batch, bool residual,
                                     bool accumulate_parameters, struct error *err);

/* cuda_layer_norm.cu */
enum status cuda_layer_norm_forward(struct compute *c, const struct layer_norm *n, const void *x,
                                    void *y, size_t rows, struct error *err);
enum status cuda_layer_norm_backward(struct compute *c, const struct layer_norm *n, const void *x,
                                     const void *dy, void *dx, size_t rows, bool accumulate_input,
                                     bool accumulate_parameters, struct error *err);

/* cuda_embedding.cu */
enum status cuda_embedding_forward(struct compute *c, const struct embedding *e, const float *ids,
                                   void *y, size_t batch, struct error *err);
enum status cuda_embedding_backward(struct compute *c, const struct embedding *e, const float *ids,
                                    const void *dy, size_t batch, bool accumulate_tokens,
                                    bool accumulate, struct error *err);

/* cuda_attention.cu */
enum status cuda_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                   struct error *err);
void cuda_attention_release(struct compute *c, struct attention *a);
enum status cuda_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                   float *log_sums, void *y, size_t batch, struct error *err);
enum status cuda_attention_backward(struct compute *c, const struct attention *a, const void *qkv,
                                    const float *log_sums, const void *y, const void *dy,
                                    void *dqkv, size_t batch, struct error *err);

/* cuda_param_copy.cu */
enum status cuda_param_copies_open(struct cuda *cuda, struct error *err);
void cuda_param_copies_close(struct cuda *cuda);
enum status cuda_register_params(struct compute *c, const float *params, size_t count,
                                 const size_t *starts, size_t views, struct error *err);
/* The 16-bit copy of a registered parameter; NULL: none. */
const void *cuda_param_copy(const struct cuda *cuda, const float *parameter);
/* Refresh the copies of the count parameters at `at`, if they are registered. */
enum status cuda_param_copy_refresh(struct cuda *cuda, const float *at, size_t count,
                                    struct error *err);

/* cuda_optimizer.cu */
enum status cuda_optimizer_open(struct cuda *cuda, struct error *err);
void cuda_optimizer_close(struct cuda *cuda);
enum status cuda_optimizer_update(struct compute *c, const struct optimizer_config *config,
                                  double learning_rate, uint64_t step,
                                  const struct compute_update *update, struct error *err);
enum status cuda_gradient_scale(struct compute *c, struct gradient_scale *ret, struct error *err);
enum status cuda_set_gradient_scale(struct compute *c, const struct gradient_scale *scale,
                                    struct error *err);
/* fp16: wait for the last update and apply its result to the scale. */
enum status cuda_gradient_scale_wait(struct cuda *cuda, struct error *err);
/* Set the scalars of the next update; waits until the previous update is complete. */
enum status cuda_set_terms(struct cuda *cuda, const struct optimizer_config *config,
                           double learning_rate, uint64_t step, struct error *err);
enum status cuda_update_issued(struct cuda *cuda, struct error *err);

/* cuda_graph.cu */
enum status cuda_graph_begin(struct compute *c, struct error *err);
enum status cuda_graph_end(struct compute *c, struct compute_graph **ret, struct error *err);
enum status cuda_graph_launch(struct compute *c, const struct compute_graph *graph,
                              const int32_t *labels, size_t rows,
                              const struct optimizer_config *config, double learning_rate,
                              uint64_t step, struct error *err);
void cuda_graph_free(struct compute *c, struct compute_graph *graph);

/* cuda_conv_plan.cu and cuda_conv.cu, where cuDNN was found */
#ifdef SPARRING_HAVE_CUDNN
void cuda_conv_close(struct cuda *cuda);
enum status cuda_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                              struct error *err);
void cuda_conv_release(struct compute *c, struct convolution *conv);
enum status cuda_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                              void *y, size_t batch, struct error *err);
enum status cuda_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                      const void *x, const void *dy, size_t batch, bool accumulate,
                                      struct error *err);
enum status cuda_conv_backward_input(struct compute *c, const struct convolution *conv,
                                     const void *dy, void *dx, size_t batch, bool accumulate,
                                     struct error *err);
#endif

#endif
