/*
 * cuda_param_copy: 16-bit copies of the float32 parameters, read by matrix products.  The slab's
 * views are copied to separate memory, each at an aligned offset.  Whatever writes parameters also
 * updates the copies: the optimizer with store_param_copies, other code through
 * cuda_param_copy_refresh.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_PARAM_COPY_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_PARAM_COPY_CUH

#include "worker/compute/cuda/cuda_kernel.cuh"

#define UNIT_ELEMENTS   256u /* of the slab per entry of the map's table */
#define VECTOR_ELEMENTS 4u   /* contiguous elements that a thread moves in one access */

/* For the view that contains the unit's first element: the distance from an element's offset in the
 * slab to that of its copy, and the view's end in the slab. */
struct param_copy_unit {
    size_t shift, end;
};

/* Offsets of the views' copies: elements [starts[v], starts[v + 1]) begin at offsets[v]. */
struct param_copy_map {
    const struct param_copy_unit *units; /* avoids the search for nearly all elements */
    const size_t *starts;                /* (views + 1) */
    const size_t *offsets;
    unsigned views;
};

/* The map of the registered parameters; invalid if none are registered. */
struct param_copy_map cuda_param_copy_map(const struct cuda *cuda);

/* The copies of the slab that begins at params; NULL: none. */
void *cuda_param_copies_of(const struct cuda *cuda, const float *params);

/* The view that contains element i (binary search). */
static __host__ __device__ inline unsigned view_of(const size_t *starts, unsigned views, size_t i)
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

/* Store elements [at + first, at + last) of the slab, out of VECTOR_ELEMENTS at `p`, to their
 * copies. */
template <typename T>
static __device__ inline void store_param_copies(T *param_copies, const struct param_copy_map &map,
                                                 size_t at, const float *p, unsigned first,
                                                 unsigned last)
{
    const struct param_copy_unit unit = map.units[at / UNIT_ELEMENTS];

    if (last - first == VECTOR_ELEMENTS && at + VECTOR_ELEMENTS <= unit.end &&
        (at + unit.shift) % VECTOR_ELEMENTS == 0) {
        store<VECTOR_ELEMENTS>(param_copies + at + unit.shift, p);
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMENTS; i++) { /* unrolled, so that p stays in registers */
        size_t shift = unit.shift;

        if (i < first || i >= last)
            continue;
        if (at + i >= unit.end) {
            unsigned view = view_of(map.starts, map.views, at + i);

            shift = map.offsets[view] - map.starts[view];
        }
        store_value(&param_copies[at + i + shift], p[i]);
    }
}

#endif
