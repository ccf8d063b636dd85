/*
 * cuda_shadow: the parameters' copies in 16 bits, which products read.  The slab's views lie in
 * another memory, each at an aligned place; whoever writes parameters writes their copies as well:
 * the optimizer with put_shadows, others through cuda_shadow_changed.
 */
#ifndef SPARRING_WORKER_COMPUTE_CUDA_CUDA_SHADOW_CUH
#define SPARRING_WORKER_COMPUTE_CUDA_CUDA_SHADOW_CUH

#include "worker/compute/cuda/cuda_kernel.cuh"

#define UNIT_ELEMENTS 256u /* of the slab: a row of the map's table */
#define MINE          4u   /* neighbouring elements of a thread: one access each */

/* Of the view that holds the unit's first element: its copy is at `shift` behind where it lies in
 * the slab, and it ends before element `end`. */
struct shadow_unit {
    size_t shift, end;
};

/* Where the copies of views begin: elements [starts[v], starts[v + 1]) are at places[v] on. */
struct shadow_map {
    const struct shadow_unit *units; /* so that nearly all elements need no search */
    const size_t *starts;            /* (views + 1) */
    const size_t *places;
    unsigned views;
};

/* All of what is registered; of no use where nothing is. */
struct shadow_map cuda_shadow_map(const struct cuda *cuda);

/* The copies of the slab that begins at params; NULL: it has none. */
void *cuda_shadows_of(const struct cuda *cuda, const float *params);

/* The view that holds element i. */
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

/* Elements [at + first, at + last) of the slab, of MINE at `p`, to their copies. */
template <typename T>
static __device__ inline void put_shadows(T *shadows, const struct shadow_map &map, size_t at,
                                          const float *p, unsigned first, unsigned last)
{
    const struct shadow_unit unit = map.units[at / UNIT_ELEMENTS];

    if (last - first == MINE && at + MINE <= unit.end && (at + unit.shift) % MINE == 0) {
        store<MINE>(shadows + at + unit.shift, p);
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < MINE; i++) { /* p stays in registers */
        size_t shift = unit.shift;

        if (i < first || i >= last)
            continue;
        if (at + i >= unit.end) {
            unsigned view = view_of(map.starts, map.views, at + i);

            shift = map.places[view] - map.starts[view];
        }
        put(&shadows[at + i + shift], p[i]);
    }
}

#endif
