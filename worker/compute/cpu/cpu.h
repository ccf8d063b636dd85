/*
 * cpu: declarations shared by the files of the CPU device.  Operations are as compute.h says;
 * device memory is host memory, and every call has finished when it returns.
 */
#ifndef SPARRING_WORKER_COMPUTE_CPU_CPU_H
#define SPARRING_WORKER_COMPUTE_CPU_CPU_H

#include "common/matrix/matrix.h"
#include "common/matrix/onednn.h"
#include "worker/compute/compute_ops.h"
#include "worker/compute/cpu/cpu_kernels.h"
#include "worker/compute/cpu/image_kernels.h"
#include "worker/compute/cpu/sequence_kernels.h"

struct cpu {
    struct compute base;
    const struct cpu_kernels *kernels;
    const struct image_kernels *images;
    const struct sequence_kernels *sequence;
    unsigned threads;
    dnnl_engine_t engine; /* of the convolutions */
    dnnl_stream_t stream;
    float *scratch; /* of the running operation, owned; grown by cpu_reserve */
    size_t scratch_count;
    char text[96]; /* compute_name */
    double loss;   /* of the last softmax_cross_entropy */
    size_t correct;
};

/*
 * PARALLEL_LOOP(elements): divides the iterations of the loop that follows, which are independent,
 * among the threads of `cpu`, if it passes over so many floats that a second thread saves time.
 * Without OpenMP (another compiler than GCC, or a sanitizer) the loop runs on one thread.  Entered
 * with one thread it costs 0.35 us.
 */
#define PARALLEL_MIN 16384
#ifdef _OPENMP
#define OMP_PRAGMA(text) _Pragma(#text)
#define PARALLEL_LOOP(elements)                                                                    \
    OMP_PRAGMA(omp parallel for num_threads((elements) < PARALLEL_MIN ? 1 : cpu->threads))
#else
#define PARALLEL_LOOP(elements) (void)cpu;
#endif

/* Grow the scratch memory to at least `count` floats.  May move it, and what it holds is lost. */
enum status cpu_reserve(struct cpu *cpu, size_t count, const char *what, struct error *err);

/* cpu_linear.c */
enum status cpu_activation_backward(struct compute *c, enum activation activation,
                                    const void *saved, void *dy, size_t count, struct error *err);
enum status cpu_linear_forward(struct compute *c, const struct linear *l, const void *x,
                               const void *residual, void *pre, void *y, size_t rows,
                               struct error *err);
enum status cpu_linear_backward_weight(struct compute *c, const struct linear *l, const void *x,
                                       const void *dy, size_t rows, bool accumulate,
                                       struct error *err);
enum status cpu_linear_backward_input(struct compute *c, const struct linear *l, const void *dy,
                                      void *dx, size_t rows, bool accumulate, struct error *err);

/* cpu_conv.c */
enum status cpu_conv_prepare(struct compute *c, struct convolution *conv, size_t max_batch,
                             struct error *err);
void cpu_conv_release(struct compute *c, struct convolution *conv);
enum status cpu_conv_forward(struct compute *c, const struct convolution *conv, const void *x,
                             void *y, size_t batch, struct error *err);
enum status cpu_conv_backward_weight(struct compute *c, const struct convolution *conv,
                                     const void *x, const void *dy, size_t batch, bool accumulate,
                                     struct error *err);
enum status cpu_conv_backward_input(struct compute *c, const struct convolution *conv,
                                    const void *dy, void *dx, size_t batch, bool accumulate,
                                    struct error *err);

/* cpu_pool.c */
enum status cpu_max_pool_forward(struct compute *c, const struct pool *p, const void *x,
                                 int32_t *argmax, void *y, size_t batch, struct error *err);
enum status cpu_max_pool_backward(struct compute *c, const struct pool *p, const int32_t *argmax,
                                  const void *dy, void *dx, size_t batch, bool accumulate,
                                  struct error *err);
enum status cpu_mean_forward(struct compute *c, const void *x, void *y, size_t batch,
                             size_t channels, size_t inner, struct error *err);
enum status cpu_mean_backward(struct compute *c, const void *dy, void *dx, size_t batch,
                              size_t channels, size_t inner, bool accumulate, struct error *err);

/* cpu_norm.c */
enum status cpu_batch_norm_forward(struct compute *c, const struct batch_norm *n, void *x,
                                   const void *residual, void *y, size_t batch, struct error *err);
enum status cpu_batch_norm_evaluate(struct compute *c, const struct batch_norm *n, const void *x,
                                    const void *residual, void *y, size_t batch, struct error *err);
enum status cpu_batch_norm_backward(struct compute *c, const struct batch_norm *n, const void *x,
                                    const void *y, void *dy, void *dx, size_t batch, bool residual,
                                    bool accumulate_parameters, struct error *err);

/* cpu_sequence.c */
enum status cpu_layer_norm_forward(struct compute *c, const struct layer_norm *n, const void *x,
                                   void *y, size_t rows, struct error *err);
enum status cpu_layer_norm_backward(struct compute *c, const struct layer_norm *n, const void *x,
                                    const void *dy, void *dx, size_t rows, bool accumulate_input,
                                    bool accumulate_parameters, struct error *err);
enum status cpu_embedding_forward(struct compute *c, const struct embedding *e, const float *ids,
                                  void *y, size_t batch, struct error *err);
enum status cpu_embedding_backward(struct compute *c, const struct embedding *e, const float *ids,
                                   const void *dy, size_t batch, bool accumulate_tokens,
                                   bool accumulate, struct error *err);

/* cpu_attention.c */
enum status cpu_attention_prepare(struct compute *c, struct attention *a, size_t max_batch,
                                  struct error *err);
void cpu_attention_release(struct compute *c, struct attention *a);
enum status cpu_attention_forward(struct compute *c, const struct attention *a, const void *qkv,
                                  float *log_sums, void *y, size_t batch, struct error *err);
enum status cpu_attention_backward(struct compute *c, const struct attention *a, const void *qkv,
                                   const float *log_sums, const void *y, const void *dy, void *dqkv,
                                   size_t batch, struct error *err);

/* cpu_softmax.c */
enum status cpu_softmax_cross_entropy(struct compute *c, const void *logits, const int32_t *labels,
                                      void *dlogits, size_t rows, size_t classes, size_t stride,
                                      struct error *err);
enum status cpu_loss_wait(struct compute *c, double *ret_loss, size_t *ret_correct,
                          struct error *err);

#endif
