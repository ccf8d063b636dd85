/*
 * The optimizer over a flat slab: one pass that reads gradient and state, writes parameter and
 * state, and in 16 bits the parameter's copy.  The arithmetic is optimizer_kernels.c's, operation
 * for operation, and this file is compiled without contraction, so that float32 gives the same
 * bits.  The update's numbers come from page-locked memory, so that a graph reads new ones at every
 * launch.  In fp16 a first pass looks for gradients that are not finite.
 */
#include "common/optimizer/optimizer_terms.h"
#include "worker/compute/cuda/cuda_kernel.cuh"

#include <stdlib.h>
#include <string.h>

#define SCALE_FIRST   65536.0f
#define SCALE_LEAST   1.0f
#define SCALE_GROWTH  2000u /* updates without overflow until it doubles */
#define VIEW_ELEMENTS 64u   /* a view's copy begins at a multiple */
#define MINE          4u    /* neighbouring elements of a thread */

/* Where the copies of views begin: elements [starts[v], starts[v + 1]) are at places[v] on. */
struct shadow_map {
    const size_t *starts; /* (views + 1) */
    const size_t *places;
    unsigned views;
};

struct cuda_terms {
    struct sgd_terms sgd;
    struct adam_terms adam;
};

struct cuda_optimizer {
    struct cuda_terms *pinned, *terms; /* owned: host, device */
    cudaEvent_t read;                  /* the last copy of pinned was made */
    int *bad;                          /* owned, device: a gradient was not finite */
    int *pinned_bad;
    bool asked;    /* pinned_bad will tell of an update */
    unsigned good; /* updates since the scale changed */
    uint64_t skipped;
    const float *params; /* registered */
    size_t count;
    size_t *starts, *places; /* owned, host, as in the map */
    size_t *device_starts;   /* owned, device: starts, then places */
    unsigned views;
    void *shadows; /* owned, device */
};

/* ---- the update ---- */

/* The view that holds element i. */
static __host__ __device__ unsigned view_of(const size_t *starts, unsigned views, size_t i)
{
    unsigned low = 0;
    unsigned high = views; /* starts[low] <= i < starts[high] */

    while (high - low > 1) {
        unsigned middle = (low + high) / 2;

        if (starts[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* torch.lerp: the form whose error is smaller for the given weight. */
static __device__ float lerp(float from, float to, float weight)
{
    return weight < 0.5f ? from + weight * (to - from) : to - (to - from) * (1.0f - weight);
}

enum update_kind { UPDATE_SGD, UPDATE_MOMENTUM, UPDATE_ADAM };

template <enum update_kind KIND>
static __device__ float updated(const struct cuda_terms &terms, float p, float g, float *first,
                                float *second)
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

/* bad NULL: nothing is asked.  T float: no copies.  All pointers are 16-byte aligned. */
template <enum update_kind KIND, typename T>
static __global__ void update_kernel(const struct cuda_terms *memory, float *params,
                                     const float *grads, float *first, float *second, T *shadows,
                                     struct shadow_map map, size_t count, const int *bad)
{
    const struct cuda_terms terms = *memory;

    if (bad && *bad)
        return;
    for (size_t at = MINE * grid_first(); at < count; at += MINE * grid_stride()) {
        float p[MINE], g[MINE], m[MINE] = {}, v[MINE] = {};
        unsigned here = count - at < MINE ? (unsigned)(count - at) : MINE;
        bool whole = here == MINE;

        if (whole) {
            *reinterpret_cast<float4 *>(p) = *reinterpret_cast<const float4 *>(params + at);
            *reinterpret_cast<float4 *>(g) = *reinterpret_cast<const float4 *>(grads + at);
            if (KIND != UPDATE_SGD)
                *reinterpret_cast<float4 *>(m) = *reinterpret_cast<const float4 *>(first + at);
            if (KIND == UPDATE_ADAM)
                *reinterpret_cast<float4 *>(v) = *reinterpret_cast<const float4 *>(second + at);
        }
        for (unsigned i = 0; i < here && !whole; i++) {
            p[i] = params[at + i];
            g[i] = grads[at + i];
            m[i] = KIND != UPDATE_SGD ? first[at + i] : 0.0f;
            v[i] = KIND == UPDATE_ADAM ? second[at + i] : 0.0f;
        }
#pragma unroll
        for (unsigned i = 0; i < MINE; i++)
            if (i < here)
                p[i] = updated<KIND>(terms, p[i], g[i], &m[i], &v[i]);
        if (whole) {
            *reinterpret_cast<float4 *>(params + at) = *reinterpret_cast<const float4 *>(p);
            if (KIND != UPDATE_SGD)
                *reinterpret_cast<float4 *>(first + at) = *reinterpret_cast<const float4 *>(m);
            if (KIND == UPDATE_ADAM)
                *reinterpret_cast<float4 *>(second + at) = *reinterpret_cast<const float4 *>(v);
        }
        for (unsigned i = 0; i < here && !whole; i++) {
            params[at + i] = p[i];
            if (KIND != UPDATE_SGD)
                first[at + i] = m[i];
            if (KIND == UPDATE_ADAM)
                second[at + i] = v[i];
        }
        if (sizeof(T) != sizeof(float) && shadows) {
            unsigned view = view_of(map.starts, map.views, at);

            for (unsigned i = 0; i < here; i++) {
                while (at + i >= map.starts[view + 1])
                    view++;
                put(&shadows[map.places[view] + (at + i - map.starts[view])], p[i]);
            }
        }
    }
}

static __global__ void finite_kernel(const float *grads, size_t count, int *bad)
{
    for (size_t i = grid_first(); i < count; i += grid_stride())
        if (!(fabsf(grads[i]) <= 3.402823466e38f))
            *bad = 1; /* whoever writes, it is the same */
}

/* ---- copies in 16 bits ---- */

/* Elements [begin, end) of the slab. */
template <typename T>
static __global__ void shadow_kernel(const float *params, T *shadows, struct shadow_map map,
                                     size_t begin, size_t end)
{
    for (size_t i = begin + grid_first(); i < end; i += grid_stride()) {
        unsigned view = view_of(map.starts, map.views, i);

        put(&shadows[map.places[view] + (i - map.starts[view])], params[i]);
    }
}

static struct shadow_map map_of(const struct cuda_optimizer *o)
{
    struct shadow_map map = {};

    map.starts = o->device_starts;
    map.places = o->device_starts + o->views + 1;
    map.views = o->views;
    return map;
}

static void forget_params(struct cuda *cuda)
{
    struct cuda_optimizer *o = cuda->optimizer;

    cuda_free(&cuda->base, o->shadows);
    (void)cudaFree(o->device_starts);
    free(o->starts);
    o->shadows = NULL;
    o->device_starts = NULL;
    o->starts = NULL;
    o->params = NULL;
}

enum status cuda_shadow_changed(struct cuda *cuda, const float *at, size_t count, struct error *err)
{
    const struct cuda_optimizer *o = cuda->optimizer;
    size_t begin = (size_t)(at - o->params);

    if (!o->shadows || at < o->params || at >= o->params + o->count)
        return STATUS_OK;
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(shadow_kernel<T>, blocks_for(count),
                                                           THREADS, 0, cuda->work, o->params,
                                                           static_cast<T *>(o->shadows), map_of(o),
                                                           begin, begin + count);
                                    }),
                            "shadow kernel", err);
}

const void *cuda_shadow(const struct cuda *cuda, const float *parameter)
{
    const struct cuda_optimizer *o = cuda->optimizer;
    size_t at = (size_t)(parameter - o->params);
    unsigned view;

    if (!o->shadows || parameter < o->params || parameter >= o->params + o->count)
        return NULL;
    view = view_of(o->starts, o->views, at);
    return value_at(cuda, o->shadows, o->places[view] + (at - o->starts[view]));
}

enum status cuda_register_params(struct compute *c, const float *params, size_t count,
                                 const size_t *starts, size_t views, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct cuda_optimizer *o = cuda->optimizer;
    size_t length = 2 * views + 1;
    size_t place = 0;
    void *memory = NULL;
    enum status status;

    cuda->moves++;
    forget_params(cuda);
    if (cuda->type == CUDA_R_32F)
        return STATUS_OK;
    o->starts = static_cast<size_t *>(calloc(length, sizeof(size_t)));
    if (!o->starts)
        return error_set(err, STATUS_NO_MEMORY, "views of parameters: cannot allocate %zu bytes",
                         length * sizeof(size_t));
    o->places = o->starts + views + 1;
    for (size_t v = 0; v < views; v++) {
        size_t end = v + 1 < views ? starts[v + 1] : count;

        o->starts[v] = starts[v];
        o->places[v] = place;
        place += (end - starts[v] + VIEW_ELEMENTS - 1) / VIEW_ELEMENTS * VIEW_ELEMENTS;
    }
    o->starts[views] = count;
    status = cuda_alloc_values(c, place, "16-bit parameters", &o->shadows, err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMalloc(&memory, length * sizeof(size_t)),
                                  "cudaMalloc of views", err);
    o->device_starts = static_cast<size_t *>(memory);
    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaMemcpyAsync(o->device_starts, o->starts, length * sizeof(size_t),
                                             cudaMemcpyHostToDevice, cuda->work),
                             "cudaMemcpyAsync of views", err);
    if (status != STATUS_OK) {
        forget_params(cuda);
        return status;
    }
    o->params = params;
    o->count = count;
    o->views = (unsigned)views;
    return cuda_shadow_changed(cuda, params, count, err);
}

/* ---- the calls ---- */

/* What the last update of fp16 found; it has been waited for. */
static void mind_overflow(struct cuda *cuda)
{
    struct cuda_optimizer *o = cuda->optimizer;

    if (!o->asked)
        return;
    o->asked = false;
    if (*o->pinned_bad) {
        o->skipped++;
        o->good = 0;
        if (cuda->gradient_scale > SCALE_LEAST)
            cuda->gradient_scale /= 2.0f;
    } else if (++o->good == SCALE_GROWTH) {
        o->good = 0;
        cuda->gradient_scale *= 2.0f;
    }
}

enum status cuda_set_terms(struct cuda *cuda, const struct optimizer_config *config,
                           double learning_rate, uint64_t step, struct error *err)
{
    struct cuda_optimizer *o = cuda->optimizer;
    enum status status =
        status_from_cuda(cudaEventSynchronize(o->read), "waiting for the last update", err);

    if (status != STATUS_OK)
        return status;
    mind_overflow(cuda);
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
    bool shadowed = o->shadows && u->params == o->params;
    T *shadows = shadowed ? static_cast<T *>(o->shadows) : NULL;
    const int *bad = cuda->type == CUDA_R_16F ? o->bad : NULL;

    return cuda_launch(kind == UPDATE_ADAM       ? update_kernel<UPDATE_ADAM, T>
                       : kind == UPDATE_MOMENTUM ? update_kernel<UPDATE_MOMENTUM, T>
                                                 : update_kernel<UPDATE_SGD, T>,
                       blocks_for((u->count + MINE - 1) / MINE), THREADS, 0, cuda->work, o->terms,
                       u->params, u->grads, u->state[0], u->state[1], shadows, map_of(o), u->count,
                       bad);
}

static enum status look_for_overflow(struct cuda *cuda, const struct compute_update *u,
                                     struct error *err)
{
    struct cuda_optimizer *o = cuda->optimizer;
    enum status status = status_from_cuda(cudaMemsetAsync(o->bad, 0, sizeof(*o->bad), cuda->work),
                                          "cudaMemsetAsync", err);

    if (status == STATUS_OK)
        status = status_from_cuda(cuda_launch(finite_kernel, blocks_for(u->count), THREADS, 0,
                                              cuda->work, u->grads, u->count, o->bad),
                                  "finite kernel", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(o->pinned_bad, o->bad, sizeof(*o->bad),
                                                  cudaMemcpyDeviceToHost, cuda->work),
                                  "cudaMemcpyAsync", err);
    return status;
}

enum status cuda_update_issued(struct cuda *cuda, struct error *err)
{
    struct cuda_optimizer *o = cuda->optimizer;

    o->asked = cuda->type == CUDA_R_16F;
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
        status = look_for_overflow(cuda, update, err);
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

uint64_t cuda_skipped_updates(const struct compute *c)
{
    return reinterpret_cast<const struct cuda *>(c)->optimizer->skipped;
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
        status = status_from_cuda(cudaMallocHost(&memory[1], sizeof(*o->pinned_bad)),
                                  "cudaMallocHost", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMalloc(&memory[2], sizeof(*o->terms)), "cudaMalloc", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMalloc(&memory[3], sizeof(*o->bad)), "cudaMalloc", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaEventCreateWithFlags(&o->read, cudaEventDisableTiming),
                                  "cudaEventCreate", err);
    o->pinned = static_cast<struct cuda_terms *>(memory[0]);
    o->pinned_bad = static_cast<int *>(memory[1]);
    o->terms = static_cast<struct cuda_terms *>(memory[2]);
    o->bad = static_cast<int *>(memory[3]);
    if (o->pinned)
        memset(o->pinned, 0, sizeof(*o->pinned));
    return status;
}

void cuda_optimizer_close(struct cuda *cuda)
{
    struct cuda_optimizer *o = cuda->optimizer;

    if (!o)
        return;
    forget_params(cuda);
    (void)cudaFreeHost(o->pinned);
    (void)cudaFreeHost(o->pinned_bad);
    (void)cudaFree(o->terms);
    (void)cudaFree(o->bad);
    if (o->read)
        (void)cudaEventDestroy(o->read);
    free(o);
    cuda->optimizer = NULL;
}
