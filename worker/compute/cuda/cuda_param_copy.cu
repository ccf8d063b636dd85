/*
 * cuda_param_copy: registration of the parameters, the layout of their 16-bit copies, and the
 * kernel that refreshes copies after registration and after uploads.  The optimizer updates copies
 * itself.  A registration invalidates captured graphs.  All work is on the work stream; no locks.
 */
#include "worker/compute/cuda/cuda_param_copy.cuh"

#include <stdlib.h>

#define VIEW_ELEMENTS 64u /* alignment of a view's copy in elements */

struct cuda_param_copies {
    const float *params; /* registered */
    size_t count;
    size_t *starts, *offsets;             /* owned, host, as in the map */
    size_t *device_starts;                /* owned, device: starts, then offsets */
    struct param_copy_unit *device_units; /* owned, device */
    unsigned views;
    void *values; /* owned, device */
};

/* Elements [begin, end) of the slab. */
template <typename T>
static __global__ void param_copy_kernel(const float *params, T *param_copies,
                                         struct param_copy_map map, size_t begin, size_t end)
{
    for (size_t at = begin / VECTOR_ELEMENTS * VECTOR_ELEMENTS + VECTOR_ELEMENTS * grid_first();
         at < end; at += VECTOR_ELEMENTS * grid_stride()) {
        unsigned first = at < begin ? (unsigned)(begin - at) : 0;
        unsigned last = end - at < VECTOR_ELEMENTS ? (unsigned)(end - at) : VECTOR_ELEMENTS;
        float p[VECTOR_ELEMENTS] = {};

#pragma unroll
        for (unsigned i = 0; i < VECTOR_ELEMENTS; i++)
            if (i >= first && i < last)
                p[i] = params[at + i];
        store_param_copies(param_copies, map, at, p, first, last);
    }
}

struct param_copy_map cuda_param_copy_map(const struct cuda *cuda)
{
    const struct cuda_param_copies *s = cuda->param_copies;
    struct param_copy_map map = {};

    map.units = s->device_units;
    map.starts = s->device_starts;
    if (s->views) /* otherwise nothing is allocated, and no kernel reads the map */
        map.offsets = s->device_starts + s->views + 1;
    map.views = s->views;
    return map;
}

void *cuda_param_copies_of(const struct cuda *cuda, const float *params)
{
    const struct cuda_param_copies *s = cuda->param_copies;

    return params == s->params ? s->values : NULL;
}

static void release_params(struct cuda *cuda)
{
    struct cuda_param_copies *s = cuda->param_copies;

    cuda_free(&cuda->base, s->values);
    (void)cudaFree(s->device_starts);
    (void)cudaFree(s->device_units);
    free(s->starts);
    s->values = NULL;
    s->device_starts = NULL;
    s->device_units = NULL;
    s->starts = NULL;
    s->params = NULL;
}

enum status cuda_param_copy_refresh(struct cuda *cuda, const float *at, size_t count,
                                    struct error *err)
{
    const struct cuda_param_copies *s = cuda->param_copies;
    size_t begin;

    if (!s->values || at < s->params || at >= s->params + s->count)
        return STATUS_OK;
    begin = (size_t)(at - s->params);
    return status_from_cuda(by_type(cuda,
                                    [&](auto tag) {
                                        typedef typename decltype(tag)::type T;

                                        return cuda_launch(
                                            param_copy_kernel<T>,
                                            blocks_for(count / VECTOR_ELEMENTS + 2), THREADS, 0,
                                            cuda->work, s->params, static_cast<T *>(s->values),
                                            cuda_param_copy_map(cuda), begin, begin + count);
                                    }),
                            "parameter copy kernel", err);
}

const void *cuda_param_copy(const struct cuda *cuda, const float *parameter)
{
    const struct cuda_param_copies *s = cuda->param_copies;
    size_t at;
    unsigned view;

    if (!s->values || parameter < s->params || parameter >= s->params + s->count)
        return NULL;
    at = (size_t)(parameter - s->params);
    view = view_of(s->starts, s->views, at);
    return value_at(cuda, s->values, s->offsets[view] + (at - s->starts[view]));
}

/* Build and upload the map's table for `count` elements. */
static enum status upload_units(struct cuda *cuda, size_t count, size_t views, struct error *err)
{
    struct cuda_param_copies *s = cuda->param_copies;
    size_t length = (count + UNIT_ELEMENTS - 1) / UNIT_ELEMENTS;
    struct param_copy_unit *units =
        static_cast<struct param_copy_unit *>(calloc(length, sizeof(struct param_copy_unit)));
    void *memory = NULL;
    enum status status;

    if (!units)
        return error_set(err, STATUS_NO_MEMORY, "views of parameters: cannot allocate %zu bytes",
                         length * sizeof(*units));
    for (size_t u = 0, view = 0; u < length; u++) {
        while (view + 1 < views && s->starts[view + 1] <= u * UNIT_ELEMENTS)
            view++;
        units[u].shift = s->offsets[view] - s->starts[view];
        units[u].end = s->starts[view + 1];
    }
    status =
        status_from_cuda(cudaMalloc(&memory, length * sizeof(*units)), "cudaMalloc of views", err);
    s->device_units = static_cast<struct param_copy_unit *>(memory);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMemcpyAsync(s->device_units, units, length * sizeof(*units),
                                                  cudaMemcpyHostToDevice, cuda->work),
                                  "cudaMemcpyAsync of views", err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaStreamSynchronize(cuda->work), "waiting for views", err);
    free(units);
    return status;
}

enum status cuda_register_params(struct compute *c, const float *params, size_t count,
                                 const size_t *starts, size_t views, struct error *err)
{
    struct cuda *cuda = cuda_of(c);
    struct cuda_param_copies *s = cuda->param_copies;
    size_t length = 2 * views + 1;
    size_t offset = 0;
    void *memory = NULL;
    enum status status;

    cuda->memory_generation++;
    release_params(cuda);
    if (cuda->type == CUDA_R_32F)
        return STATUS_OK;
    s->starts = static_cast<size_t *>(calloc(length, sizeof(size_t)));
    if (!s->starts)
        return error_set(err, STATUS_NO_MEMORY, "views of parameters: cannot allocate %zu bytes",
                         length * sizeof(size_t));
    s->offsets = s->starts + views + 1;
    for (size_t v = 0; v < views; v++) {
        size_t end = v + 1 < views ? starts[v + 1] : count;

        s->starts[v] = starts[v];
        s->offsets[v] = offset;
        offset += (end - starts[v] + VIEW_ELEMENTS - 1) / VIEW_ELEMENTS * VIEW_ELEMENTS;
    }
    s->starts[views] = count;
    status = cuda_alloc_values(c, offset, "16-bit parameters", &s->values, err);
    if (status == STATUS_OK)
        status = status_from_cuda(cudaMalloc(&memory, length * sizeof(size_t)),
                                  "cudaMalloc of views", err);
    s->device_starts = static_cast<size_t *>(memory);
    if (status == STATUS_OK)
        status =
            status_from_cuda(cudaMemcpyAsync(s->device_starts, s->starts, length * sizeof(size_t),
                                             cudaMemcpyHostToDevice, cuda->work),
                             "cudaMemcpyAsync of views", err);
    if (status == STATUS_OK)
        status = upload_units(cuda, count, views, err);
    if (status != STATUS_OK) {
        release_params(cuda);
        return status;
    }
    s->params = params;
    s->count = count;
    s->views = (unsigned)views;
    return cuda_param_copy_refresh(cuda, params, count, err);
}

enum status cuda_param_copies_open(struct cuda *cuda, struct error *err)
{
    cuda->param_copies =
        static_cast<struct cuda_param_copies *>(calloc(1, sizeof(struct cuda_param_copies)));
    return cuda->param_copies
               ? STATUS_OK
               : error_set(err, STATUS_NO_MEMORY, "cuda device: cannot allocate %zu bytes",
                           sizeof(struct cuda_param_copies));
}

void cuda_param_copies_close(struct cuda *cuda)
{
    if (!cuda->param_copies)
        return;
    release_params(cuda);
    free(cuda->param_copies);
    cuda->param_copies = NULL;
}
