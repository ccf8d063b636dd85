/*
 * compute_ops: the table that a device implements.  `cpu` lives in cpu.c, `cuda` in a module loaded
 * with dlopen; callers use the functions of compute.h and never this table.  This header is also
 * read by the CUDA compiler, so it is valid C++ and free of CUDA types.
 *
 * Of every slot: matrices are row-major float32 in device memory unless the name says host; calls
 * take effect in the order of issue; one caller at a time, no locks.  Only the slots marked
 * "waits" block; the others may return before the work is done, and then its failure shows in
 * the next call that waits.
 */
#ifndef SPARRING_WORKER_COMPUTE_COMPUTE_OPS_H
#define SPARRING_WORKER_COMPUTE_COMPUTE_OPS_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compute;
struct batch_norm; /* compute.h */

struct compute_ops {
    const char *name;
    bool is_host; /* device memory is host memory */
    void (*close)(struct compute *c);
    const char *(*describe)(const struct compute *c);

    enum status (*alloc)(struct compute *c, size_t count, float **ret, struct error *err);
    void (*free)(struct compute *c, float *memory);
    enum status (*alloc_host)(struct compute *c, size_t count, float **ret, struct error *err);
    void (*free_host)(struct compute *c, float *memory);

    enum status (*upload)(struct compute *c, float *device, const float *host, size_t count,
                          struct error *err);
    enum status (*download_start)(struct compute *c, float *host, const float *device, size_t count,
                                  struct error *err);
    enum status (*download_wait)(struct compute *c, struct error *err); /* waits */
    enum status (*synchronize)(struct compute *c, struct error *err);   /* waits */

    enum status (*linear_forward)(struct compute *c, const float *x, const float *weight,
                                  const float *bias, float *y, size_t batch, size_t in, size_t out,
                                  bool relu, struct error *err);
    enum status (*relu_backward)(struct compute *c, const float *y, float *dy, size_t count,
                                 struct error *err);
    enum status (*linear_backward_weight)(struct compute *c, const float *x, const float *dy,
                                          float *dweight, float *dbias, size_t batch, size_t in,
                                          size_t out, bool accumulate, struct error *err);
    enum status (*linear_backward_input)(struct compute *c, const float *dy, const float *weight,
                                         float *dx, size_t batch, size_t in, size_t out,
                                         struct error *err);
    /* The three are there together or not at all (NULL: unsupported). */
    enum status (*batch_norm_forward)(struct compute *c, const struct batch_norm *n, float *x,
                                      float *y, size_t batch, size_t width, bool relu,
                                      struct error *err);
    enum status (*batch_norm_evaluate)(struct compute *c, const struct batch_norm *n,
                                       const float *x, float *y, size_t batch, size_t width,
                                       bool relu, struct error *err);
    enum status (*batch_norm_backward)(struct compute *c, const struct batch_norm *n,
                                       const float *normalised, float *dy, float *dweight,
                                       float *dbias, size_t batch, size_t width, bool accumulate,
                                       struct error *err);
    enum status (*softmax_cross_entropy)(struct compute *c, const float *logits,
                                         const int32_t *host_labels, float *dlogits, size_t batch,
                                         size_t classes, struct error *err);
    enum status (*loss_wait)(struct compute *c, double *ret_loss, size_t *ret_correct,
                             struct error *err); /* waits */
};

/* The head of every device's struct. */
struct compute {
    const struct compute_ops *ops;
    char *note; /* owned by compute.c: why `auto` did not take a GPU; NULL: nothing to say */
};

/* CPU: kernels on `threads` threads (OpenBLAS; process-wide). */
enum status compute_cpu_open(unsigned threads, struct compute **ret_compute, struct error *err);

/* CUDA: find and load the module, then open device `index` (< 0: local_rank modulo the devices). */
enum status compute_cuda_open(int index, unsigned local_rank, struct compute **ret_compute,
                              struct error *err);

#endif
