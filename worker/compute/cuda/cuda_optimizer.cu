/*
 * The optimizer over a flat slab: one pass that reads gradient and state, and writes parameter,
 * state and in 16 bits the parameter's copy.  The arithmetic matches optimizer_kernels.c operation
 * by operation, and this file is compiled without contraction, so that float32 gives the same bits.
 * The scalars come from page-locked memory, so that a graph reads new ones at every launch.  In
 * fp16 a first pass checks for gradients that are not finite.
 */
#include "common/optimizer/optimizer_terms.h"
#include "worker/compute/cuda/cuda_param_copy.cuh"

#include <stdlib.h>
#include <string.h>

#define SCALE_FIRST    65536.0f
#define SCALE_LEAST    1.0f
#define SCALE_MOST     0x1p126f /* a checkpoint allows up to 1e38; infinity would never halve */
#define SCALE_GROWTH   2000u    /* updates without overflow until it doubles */
#define THREAD_VECTORS 2u       /* vectors of a thread, all loaded before the first is used */

struct cuda_terms {
    struct sgd_terms sgd;
    struct adam_terms adam;
};

struct cuda_optimizer {
    struct cuda_terms *pinned, *terms; /* owned: host, device */
    cudaEvent_t read;                  /* the last update has copied `pinned` */
    int *overflow;                     /* owned, device: not 0: a gradient was not finite */
    int *pinned_overflow;
    bool check_pending; /* pinned_overflow holds, or will hold, the result of an update */
    unsigned good;      /* updates since the scale changed */
    uint64_t skipped;
};

/* ---- the update ---- */

/* torch.lerp: the form whose error is smaller for the given weight. */
static __device__ float lerp(float from, float to, float weight)
{
    return weight < 0.5f ? from + weight * (to - from) : to - (to - from) * (1.0f - weight);
}

enum update_kind { UPDATE_SGD, UPDATE_MOMENTUM, UPDATE_ADAM };

template <enum update_kind KIND>
static __device__ float updated_param(const struct cuda_terms &terms, float p, float g,
                                      float *first, float *second)
{
    if (KIND == UPDATE_ADAM) {
        const struct adam_terms &t = terms.adam;
        float decayed = t.weight_decay != 0.0f ? g + t.weight_decay * p : g;
        float m = lerp(*first, decayed, t.blend);
        float v = t.beta2 * *second + t.share * decayed * decayed;
        float denominator = sqrtf(v) / t.root_correction + t.epsilon;

        *first = m;
        *second = v;
        return p * t.keep - t.rate * m / denominator;
    } else {
        const struct sgd_terms &t = terms.sgd;
        float decayed = t.weight_decay != 0.0f ? g + t.weight_decay * p : g;

        if (KIND == UPDATE_MOMENTUM) {
            float b = t.first ? decayed : t.momentum * *first + t.undamped * decayed;

            *first = b;
            decayed = t.nesterov ? decayed + t.momentum * b : b;
        }
        return p - t.learning_rate * decayed;
    }
}

struct update_arrays {
    float *params;
    const float *grads;
    float *first, *second;
    size_t count;
};

struct update_part {
    float p[VECTOR_ELEMENTS], g[VECTOR_ELEMENTS], m[VECTOR_ELEMENTS], v[VECTOR_ELEMENTS];
};

template <enum update_kind KIND>
static __device__ inline void load_part(struct update_part *part, const struct update_arrays &a,
                                        size_t at)
{
    load<VECTOR_ELEMENTS>(part->p, a.params + at);
    load<VECTOR_ELEMENTS>(part->g, a.grads + at);
    if (KIND != UPDATE_SGD)
        load<VECTOR_ELEMENTS>(part->m, a.first + at);
    if (KIND == UPDATE_ADAM)
        load<VECTOR_ELEMENTS>(part->v, a.second + at);
}

template <enum update_kind KIND>
static __device__ inline void store_part(const struct update_part *part,
                                         const struct update_arrays &a, size_t at)
{
    store<VECTOR_ELEMENTS>(a.params + at, part->p);
    if (KIND != UPDATE_SGD)
        store<VECTOR_ELEMENTS>(a.first + at, part->m);
    if (KIND == UPDATE_ADAM)
        store<VECTOR_ELEMENTS>(a.second + at, part->v);
}

/* One element of the remainder after the last whole vector. */
template <enum update_kind KIND, typename T>
static __device__ inline void update_one(const struct cuda_terms &terms,
                                         const struct update_arrays &a, T *param_copies,
                                         const struct param_copy_map &map, size_t at)
{
    float m = KIND != UPDATE_SGD ? a.first[at] : 0.0f;
    float v = KIND == UPDATE_ADAM ? a.second[at] : 0.0f;
    float p[VECTOR_ELEMENTS] = {updated_param<KIND>(terms, a.params[at], a.grads[at], &m, &v)};

    a.params[at] = p[0];
    if (KIND != UPDATE_SGD)
        a.first[at] = m;
    if (KIND == UPDATE_ADAM)
        a.second[at] = v;
    if (sizeof(T) != sizeof(float) && param_copies)
        store_param_copies(param_copies, map, at, p, 0, 1);
}

/* overflow NULL: no check.  T float: no copies.  All arrays are 16-byte aligned.  In each iteration
 * a block processes THREAD_VECTORS consecutive ranges of VECTOR_ELEMENTS elements per thread. */
template <enum update_kind KIND, typename T>
static __global__ void __launch_bounds__(THREADS)
    update_kernel(const struct cuda_terms *memory, struct update_arrays a, T *param_copies,
                  struct param_copy_map map, const int *overflow)
{
    const struct cuda_terms terms = *memory;
    const size_t stretch = (size_t)THREADS * VECTOR_ELEMENTS;
    size_t whole = a.count / VECTOR_ELEMENTS * VECTOR_ELEMENTS;

    if (overflow && *overflow)
        return;
    for (size_t tile = blockIdx.x * THREAD_VECTORS * stretch; tile < whole;
         tile += gridDim.x * THREAD_VECTORS * stretch) {
        struct update_part parts[THREAD_VECTORS] = {};
        size_t at = tile + threadIdx.x * VECTOR_ELEMENTS;

#pragma unroll
        for (unsigned t = 0; t < THREAD_VECTORS; t++)
            if (at + t * stretch < whole)
                load_part<KIND>(&parts[t], a, at + t * stretch);
#pragma unroll
        for (unsigned t = 0; t < THREAD_VECTORS; t++) {
            struct update_part *part = &parts[t];

            if (at + t * stretch >= whole)
                break;
#pragma unroll
            for (unsigned i = 0; i < VECTOR_ELEMENTS; i++)
                part->p[i] =
                    updated_param<KIND>(terms, part->p[i], part->g[i], &part->m[i], &part->v[i]);
            store_part<KIND>(part, a, at + t * stretch);
            if (sizeof(T) != sizeof(float) && param_copies)
                store_param_copies(param_copies, map, at + t * stretch, part->p, 0,
                                   VECTOR_ELEMENTS);
        }
    }
    if (whole + grid_first() < a.count)
        update_one<KIND>(terms, a, param_copies, map, whole + grid_first());
}

static __device__ inline bool finite(float x)
{
    return fabsf(x) <= 3.402823466e38f;
}

/* grads: 16-byte aligned. */
static __global__ void finite_kernel(const float *grads, size_t count, int *overflow)
{
    size_t whole = count / VECTOR_ELEMENTS * VECTOR_ELEMENTS;
    bool all = true;

#pragma unroll 4
    for (size_t i = VECTOR_ELEMENTS * grid_first(); i < whole;
         i += VECTOR_ELEMENTS * grid_stride()) {
        float g[VECTOR_ELEMENTS];

        load<VECTOR_ELEMENTS>(g, grads + i);
#pragma unroll
        for (unsigned j = 0; j < VECTOR_ELEMENTS; j++)
            all = all && finite(g[j]);
    }
    for (size_t i = whole + grid_first(); i < count; i += grid_stride())
        all = all && finite(grads[i]);
    if (!all)
        *overflow = 1; /* all threads write the same value */
}

/* ---- the calls ---- */

/* Apply the result of the last fp16 update to the scale; the update must have been waited for. */
static void apply_overflow_result(struct cuda *cuda)
{
    struct cuda_optimizer *o = cuda->optimizer;

    if (!o->check_pending)
        return;
    o->check_pending = false;
    if (*o->pinned_overflow) {
        o->skipped++;
        o->good = 0;
        if (cuda->gradient_scale > SCALE_LEAST)
            cuda->gradient_scale /= 2.0f;
    } else if (++o->good >= SCALE_GROWTH) {
        o->good = 0;
        if (cuda->gradient_scale < SCALE_MOST)
            cuda->gradient_scale *= 2.0f;
    }
}

enum status cuda_gradient_scale_wait(struct cuda *cuda, struct error *err)
{
    enum status status = STATUS_OK;

    if (!cuda->optimizer->check_pending)
        return STATUS_OK;
    status = status_from_cuda(cudaEventSynchronize(cuda->optimizer->read),
                              "waiting for the last update", err);
    if (status == STATUS_OK)
        apply_overflow_result(cuda);
    return status;
}

enum status cuda_set_terms(struct cuda *cuda, const struct optimizer_config *config,
                           double learning_rate, uint64_t step, struct error *err)
{
    struct cuda_optimizer *o = cuda->optimizer;
    enum status status =
        status_from_cuda(cudaEventSynchronize(o->read), "waiting for the last update", err);

    if (status != STATUS_OK)
        return status;
    apply_overflow_result(cuda);
    step -= o->skipped < step ? o->skipped : step - 1; /* skipped updates do not count */
    if (config->kind == OPTIMIZER_SGD)
        o->pinned->sgd = optimizer_sgd_terms(config, learning_rate, step);
    else
        o->pinned->adam = optimizer_adam_terms(config, learning_rate, step);
    return STATUS_OK;
}

template <typename T>
static cudaError_t launch_update(struct cuda *cuda, enum update_kind kind,
                                 const struct compute_update *u)
{
    const struct cuda_optimizer *o = cuda->optimizer;
    T *param_copies = static_cast<T *>(cuda_param_copies_of(cuda, u->params));
    const int *overflow = cuda->type == CUDA_R_16F ? o->overflow : NULL;
    struct update_arrays a = {u->params, u->grads, u->state[0], u->state[1], u->count};

    return cuda_launch(kind == UPDATE_ADAM       ? update_kernel<UPDATE_ADAM, T>
                       : kind == UPDATE_MOMENTUM ? update_kernel<UPDATE_MOMENTUM, T>
                                                 : update_kernel<UPDATE_SGD, T>,
                       blocks_for((u->count + VECTOR_ELEMENTS * THREAD_VECTORS - 1) /
                                  (VECTOR_ELEMENTS * THREAD_VECTORS)),
                       THREADS, 0, cuda->work, o->terms, a, param_copies, cuda_param_copy_map(cuda),
                       overflow);
}

static enum status check_overflow(struct cuda *cuda, const struct compute_update *u,
                                  struct error *err)
{
    struct cuda_optimizer *o = cuda->optimizer;
    enum status status = status_from_cuda(
        cudaMemsetAsync(o->overflow, 0, sizeof(*o->overflow), cuda->work), "cudaMemsetAsync", err);

    if (status == STATUS_OK)
        status =
            status_from_cuda(cuda_launch(finite_kernel, blocks_for(u->count / VECTOR_ELEMENTS + 1),
                                         THREADS, 0, cuda->work, u->grads, u->count, o->overflow),
                             "finite kernel", err);
    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaMemcpyAsync(o->pinned_overflow, o->overflow, sizeof(*o->overflow),
                                             cudaMemcpyDeviceToHost, cuda->work),
                             "cudaMemcpyAsync", err);
    return status;
}

enum status cuda_update_issued(struct cuda *cuda, struct error *err)
{
    struct cuda_optimizer *o = cuda->optimizer;

    o->check_pending = cuda->type == CUDA_R_16F;
    return status_from_cuda(cudaEventRecord(o->read, cuda->work), "cudaEventRecord", err);
}

enum status cuda_optimizer_update(struct compute *c, const struct optimizer_config *config,
                                  double learning_rate, uint64_t step,
                                  const struct compute_update *update, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct cuda_optimizer *o = cuda->optimizer;
    enum update_kind kind = config->kind != OPTIMIZER_SGD ? UPDATE_ADAM
                            : update->state[0]            ? UPDATE_MOMENTUM
                                                          : UPDATE_SGD;
    enum status status = STATUS_OK;

    if (!cuda->capturing)
        status = cuda_set_terms(cuda, config, learning_rate, step, err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(o->terms, o->pinned, sizeof(*o->terms),
                                                  cudaMemcpyHostToDevice, cuda->work),
                                  "cudaMemcpyAsync of the update's numbers", err);
    if (status == STATUS_OK && cuda->type == CUDA_R_16F)
        status = check_overflow(cuda, update, err);
    if (status == STATUS_OK)
        status = status_from_cuda(by_type(cuda,
                                          [&](auto tag) {
                                              return launch_update<typename decltype(tag)::type>(
                                                  cuda, kind, update);
                                          }),
                                  "update kernel", err);
    if (status == STATUS_OK && !cuda->capturing)
        status = cuda_update_issued(cuda, err);
    return status;
}

enum status cuda_gradient_scale(struct compute *c, struct gradient_scale *ret, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = cuda_gradient_scale_wait(cuda, err);

    if (status != STATUS_OK)
        return status;
    ret->scale = cuda->gradient_scale;
    ret->good = cuda->optimizer->good;
    ret->skipped = cuda->optimizer->skipped;
    return STATUS_OK;
}

enum status cuda_set_gradient_scale(struct compute *c, const struct gradient_scale *scale,
                                    struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    enum status status = cuda_gradient_scale_wait(cuda, err);

    if (status != STATUS_OK)
        return status;
    cuda->gradient_scale = scale->scale;
    cuda->optimizer->good = scale->good;
    cuda->optimizer->skipped = scale->skipped;
    return STATUS_OK;
}

enum status cuda_optimizer_open(struct cuda *cuda, struct error *err)
{
    struct cuda_optimizer *o =
        static_cast<struct cuda_optimizer *>(calloc(1, sizeof(struct cuda_optimizer)));
    void *memory[4] = {};
    enum status status;

    if (!o)
        return error_set(err, STATUS_NO_MEMORY, "cuda device: cannot allocate %zu bytes",
                         sizeof(*o));
    cuda->optimizer = o;
    if (cuda->type == CUDA_R_16F)
        cuda->gradient_scale = SCALE_FIRST;
    status =
        status_from_cuda(cudaMallocHost(&memory[0], sizeof(*o->pinned)), "cudaMallocHost", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMallocHost(&memory[1], sizeof(*o->pinned_overflow)),
                                  "cudaMallocHost", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMalloc(&memory[2], sizeof(*o->terms)), "cudaMalloc", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMalloc(&memory[3], sizeof(*o->overflow)), "cudaMalloc", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&o->read, cudaEventDisableTiming),
                                  "cudaEventCreate", err);
    o->pinned = static_cast<struct cuda_terms *>(memory[0]);
    o->pinned_overflow = static_cast<int *>(memory[1]);
    o->terms = static_cast<struct cuda_terms *>(memory[2]);
    o->overflow = static_cast<int *>(memory[3]);
    if (o->pinned)
        memset(o->pinned, 0, sizeof(*o->pinned));
    return status;
}

void cuda_optimizer_close(struct cuda *cuda)
{
    struct cuda_optimizer *o = cuda->optimizer;

    if (!o)
        return;
    (void)cudaFreeHost(o->pinned);
    (void)cudaFreeHost(o->pinned_overflow);
    (void)cudaFree(o->terms);
    (void)cudaFree(o->overflow);
    if (o->read)
        (void)cudaEventDestroy(o->read);
    free(o);
    cuda->optimizer = NULL;
}
