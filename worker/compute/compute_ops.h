/*
 * compute_ops: the table that a device implements.  The device `cpu` is in cpu/, `cuda` in cuda/, a
 * module loaded with dlopen; callers use the functions of compute.h and never this table.  The CUDA
 * compiler also reads this header, so it is valid C++ and free of CUDA types.
 *
 * For every function: memory, shapes and precision are as compute.h says, in device memory unless
 * the name says host; calls take effect in the order of issue; one caller at a time, no locks.
 * Only the functions marked "waits" block; the others may return before the work is done, and the
 * next call that waits then reports its failure.
 */
#ifndef SPARRING_WORKER_COMPUTE_COMPUTE_OPS_H
#define SPARRING_WORKER_COMPUTE_COMPUTE_OPS_H

#include "worker/compute/compute.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compute;

struct compute_ops {
    const char *name;
    bool is_host;       /* device memory is host memory: views of both may alias */
    bool channels_last; /* of images */
    void (*close)(struct compute *c);
    const char *(*describe)(const struct compute *c);

    enum status (*alloc)(struct compute *c, size_t count, const char *what, float **ret,
                         struct error *err);
    enum status (*alloc_values)(struct compute *c, size_t count, const char *what, void **ret,
                                struct error *err);
    void (*free)(struct compute *c, void *memory);
    uint64_t (*peak_bytes)(const struct compute *c);            /* NULL: host memory, 0 */
    struct compute_traffic (*traffic)(const struct compute *c); /* NULL: host memory, none */
    enum status (*alloc_host)(struct compute *c, size_t count, float **ret, struct error *err);
    void (*free_host)(struct compute *c, float *memory);

    enum status (*upload)(struct compute *c, float *device, const float *host, size_t count,
                          struct error *err);
    enum status (*copy)(struct compute *c, float *to, const float *from, size_t count,
                        struct error *err);
    /* All or none: uploads ahead of their use. */
    enum status (*upload_ahead)(struct compute *c, const float *host, size_t count,
                                struct error *err);
    enum status (*upload_ahead_cancel)(struct compute *c, struct error *err); /* waits */
    int64_t (*upload_ahead_wait_ns)(struct compute *c);
    enum status (*download_start)(struct compute *c, float *host, const float *device, size_t count,
                                  struct error *err);
    enum status (*download_wait)(struct compute *c, struct error *err); /* waits */
    enum status (*synchronize)(struct compute *c, struct error *err);   /* waits */

    enum status (*upload_values)(struct compute *c, void *device, const float *host, size_t count,
                                 struct error *err);
    enum status (*download_values)(struct compute *c, float *host, const void *device, size_t count,
                                   struct error *err); /* waits */
    enum status (*upload_images)(struct compute *c, void *device, const float *host, size_t images,
                                 size_t channels, size_t points,
                                 struct error *err); /* NULL: upload_values */

    size_t (*row_stride)(const struct compute *c, size_t width); /* NULL: width */

    /* The operations, as the functions of the same name in compute.h; NULL: unsupported. */
    enum status (*activation_backward)(struct compute *c, enum activation activation,
                                       const void *saved, void *dy, size_t count,
                                       struct error *err);
    enum status (*linear_forward)(struct compute *c, const struct linear *l, const void *x,
                                  const void *residual, void *pre, void *y, size_t rows,
                                  struct error *err);
    enum status (*linear_backward_weight)(struct compute *c, const struct linear *l, const void *x,
                                          const void *dy, size_t rows, bool accumulate,
                                          struct error *err);
    enum status (*linear_backward_input)(struct compute *c, const struct linear *l, const void *dy,
                                         void *dx, size_t rows, bool accumulate, struct error *err);

    enum status (*conv_prepare)(struct compute *c, struct convolution *conv, size_t max_batch,
                                struct error *err);
    void (*conv_release)(struct compute *c, struct convolution *conv);
    enum status (*conv_forward)(struct compute *c, const struct convolution *conv, const void *x,
                                void *y, size_t batch, struct error *err);
    enum status (*conv_backward_weight)(struct compute *c, const struct convolution *conv,
                                        const void *x, const void *dy, size_t batch,
                                        bool accumulate, struct error *err);
    enum status (*conv_backward_input)(struct compute *c, const struct convolution *conv,
                                       const void *dy, void *dx, size_t batch, bool accumulate,
                                       struct error *err);

    enum status (*max_pool_forward)(struct compute *c, const struct pool *p, const void *x,
                                    int32_t *argmax, void *y, size_t batch, struct error *err);
    enum status (*max_pool_backward)(struct compute *c, const struct pool *p, const int32_t *argmax,
                                     const void *dy, void *dx, size_t batch, bool accumulate,
                                     struct error *err);
    enum status (*mean_forward)(struct compute *c, const void *x, void *y, size_t batch,
                                size_t channels, size_t inner, struct error *err);
    enum status (*mean_backward)(struct compute *c, const void *dy, void *dx, size_t batch,
                                 size_t channels, size_t inner, bool accumulate, struct error *err);
    /* Both, with channels_last. */
    enum status (*flatten_forward)(struct compute *c, const void *x, void *y, size_t batch,
                                   size_t channels, size_t inner, struct error *err);
    enum status (*flatten_backward)(struct compute *c, const void *dy, void *dx, size_t batch,
                                    size_t channels, size_t inner, bool accumulate,
                                    struct error *err);

    enum status (*batch_norm_forward)(struct compute *c, const struct batch_norm *n, void *x,
                                      const void *residual, void *y, size_t batch,
                                      struct error *err);
    enum status (*batch_norm_evaluate)(struct compute *c, const struct batch_norm *n, const void *x,
                                       const void *residual, void *y, size_t batch,
                                       struct error *err);
    enum status (*batch_norm_backward)(struct compute *c, const struct batch_norm *n, const void *x,
                                       const void *y, void *dy, void *dx, size_t batch,
                                       bool residual, bool accumulate_parameters,
                                       struct error *err);

    enum status (*layer_norm_forward)(struct compute *c, const struct layer_norm *n, const void *x,
                                      void *y, size_t rows, struct error *err);
    enum status (*layer_norm_backward)(struct compute *c, const struct layer_norm *n, const void *x,
                                       const void *dy, void *dx, size_t rows, bool accumulate_input,
                                       bool accumulate_parameters, struct error *err);

    enum status (*embedding_forward)(struct compute *c, const struct embedding *e, const float *ids,
                                     void *y, size_t batch, struct error *err);
    enum status (*embedding_backward)(struct compute *c, const struct embedding *e,
                                      const float *ids, const void *dy, size_t batch,
                                      bool accumulate_tokens, bool accumulate, struct error *err);

    enum status (*attention_prepare)(struct compute *c, struct attention *a, size_t max_batch,
                                     struct error *err);
    void (*attention_release)(struct compute *c, struct attention *a);
    enum status (*attention_forward)(struct compute *c, const struct attention *a, const void *qkv,
                                     float *log_sums, void *y, size_t batch, struct error *err);
    enum status (*attention_backward)(struct compute *c, const struct attention *a, const void *qkv,
                                      const float *log_sums, const void *y, const void *dy,
                                      void *dqkv, size_t batch, struct error *err);

    enum status (*softmax_cross_entropy)(struct compute *c, const void *logits,
                                         const int32_t *host_labels, void *dlogits, size_t rows,
                                         size_t classes, size_t stride, struct error *err);
    enum status (*loss_wait)(struct compute *c, double *ret_loss, size_t *ret_correct,
                             struct error *err); /* waits */

    /* All or none: training on the device. */
    enum status (*register_params)(struct compute *c, const float *params, size_t count,
                                   const size_t *starts, size_t views, struct error *err);
    enum status (*optimizer_update)(struct compute *c, const struct optimizer_config *config,
                                    double learning_rate, uint64_t step,
                                    const struct compute_update *update, struct error *err);
    enum status (*gradient_scale)(struct compute *c, struct gradient_scale *ret,
                                  struct error *err); /* waits */
    enum status (*set_gradient_scale)(struct compute *c, const struct gradient_scale *scale,
                                      struct error *err);
    enum status (*graph_begin)(struct compute *c, struct error *err);
    enum status (*graph_end)(struct compute *c, struct compute_graph **ret, struct error *err);
    enum status (*graph_launch)(struct compute *c, const struct compute_graph *graph,
                                const int32_t *labels, size_t rows,
                                const struct optimizer_config *config, double learning_rate,
                                uint64_t step, struct error *err);
    void (*graph_free)(struct compute *c, struct compute_graph *graph);
};

/* First member of every device's struct. */
struct compute {
    const struct compute_ops *ops;
    enum precision precision;
    char *fallback_reason; /* owned by compute.c: why `auto` has not chosen a GPU; NULL: none */
};

/* Open the CPU: kernels on `threads` threads (oneDNN). */
enum status compute_cpu_open(unsigned threads, struct compute **ret_compute, struct error *err);

/* Find and load the CUDA module, then open device `index` (< 0: local_rank modulo the devices) with
 * the configuration's precision. */
enum status compute_cuda_open(int index, const struct compute_config *config,
                              struct compute **ret_compute, struct error *err);

#endif
