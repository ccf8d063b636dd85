/*
 * The cut of a two-level all-reduce, and the operation that each level does on a piece of it.
 */
#include "common/collective/hier/hier_chunk.h"

/* Elements of a slice; a chunk is one slice per rank of the host, or a slice alone with leaders. */
static size_t slice_count(const struct collective_args *a)
{
    return HIER_SLICE_BYTES / dtype_size(a->dtype);
}

static size_t slices(const struct hier_layout *l)
{
    return l->equal ? l->local_count : 1;
}

size_t hier_chunk_even_count(const struct hier_layout *l, const struct collective_args *a)
{
    return a->count / slices(l) * slices(l);
}

size_t hier_chunk_count(const struct hier_layout *l, const struct collective_args *a)
{
    size_t whole = slice_count(a) * slices(l);

    return (hier_chunk_even_count(l, a) + whole - 1) / whole;
}

/* First element and slice of a chunk. */
static size_t chunk_from(const struct hier_layout *l, const struct collective_args *a, size_t chunk)
{
    return chunk * slice_count(a) * slices(l);
}

static size_t chunk_slice(const struct hier_layout *l, const struct collective_args *a,
                          size_t chunk)
{
    size_t left = (hier_chunk_even_count(l, a) - chunk_from(l, a, chunk)) / slices(l);

    return left < slice_count(a) ? left : slice_count(a);
}

/* Terms are multiplied inside the host, where each is read anyway; between hosts they are sums. */
static void set_factor(const struct hier_layout *l, struct collective_args *a)
{
    if (a->op != REDUCE_AVG)
        return;
    a->op = REDUCE_SUM;
    if (!dtype_is_float(a->dtype))
        return;
    a->op = REDUCE_PREMUL_SUM;
    a->factor =
        a->dtype == DTYPE_FLOAT64 ? 1.0 / l->world_size : (double)(1.0f / (float)l->world_size);
}

static enum reduce_op plain_op(enum reduce_op op)
{
    return op == REDUCE_AVG || op == REDUCE_PREMUL_SUM ? REDUCE_SUM : op;
}

/* A NULL buffer (count 0) stays NULL: arithmetic on it is undefined. */
static const void *input_at(const struct collective_args *a, size_t element)
{
    return a->input ? (const char *)a->input + element * dtype_size(a->dtype) : NULL;
}

static void *output_at(const struct collective_args *a, size_t element)
{
    return a->output ? (char *)a->output + element * dtype_size(a->dtype) : NULL;
}

struct collective_args hier_chunk_in(const struct hier_layout *l, const struct collective_args *a,
                                     size_t chunk)
{
    size_t from = chunk_from(l, a, chunk);
    size_t count = chunk_slice(l, a, chunk);
    struct collective_args in = *a;

    in.call = l->equal ? COLLECTIVE_REDUCE_SCATTER : COLLECTIVE_REDUCE;
    in.count = count;
    in.root = 0;
    in.input = input_at(a, from);
    if (l->equal)
        from += l->local_index * count;
    in.output = output_at(a, from);
    set_factor(l, &in);
    return in;
}

struct collective_args hier_chunk_cross(const struct hier_layout *l,
                                        const struct collective_args *a, size_t chunk)
{
    struct collective_args cross = hier_chunk_in(l, a, chunk);

    cross.call = COLLECTIVE_ALL_REDUCE;
    cross.input = cross.output;
    cross.op = plain_op(a->op);
    return cross;
}

struct collective_args hier_chunk_out(const struct hier_layout *l, const struct collective_args *a,
                                      size_t chunk)
{
    struct collective_args out = hier_chunk_cross(l, a, chunk);

    out.call = l->equal ? COLLECTIVE_ALL_GATHER : COLLECTIVE_BROADCAST;
    out.op = REDUCE_SUM;
    out.output = output_at(a, chunk_from(l, a, chunk));
    return out;
}

struct collective_args hier_chunk_rest(const struct hier_layout *l, const struct collective_args *a)
{
    size_t from = hier_chunk_even_count(l, a);
    struct collective_args rest = *a;

    rest.input = input_at(a, from);
    rest.output = output_at(a, from);
    rest.count -= from;
    return rest;
}
