/*
 * One collective over a library's calls.  Pieces: rank-ordered reductions and reduce_scatter need
 * every rank's elements side by side, which scratch space holds for piece_bytes of each at a time.
 */
#include "common/collective/library/library_backend.h"

#include <string.h>

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements per rank that a piece holds. */
static size_t piece_count(const struct library_group *g, const struct collective_args *a)
{
    return g->piece_bytes / dtype_size(a->dtype);
}

/* What every rank multiplies its terms with first; 1: nothing. */
static double own_factor(const struct library_group *g, const struct collective_args *a)
{
    if (a->op == REDUCE_PREMUL_SUM)
        return a->factor;
    if (a->op != REDUCE_AVG || !dtype_is_float(a->dtype))
        return 1.0;
    if (a->dtype == DTYPE_FLOAT64)
        return 1.0 / g->base.world_size;
    return (double)(1.0f / (float)g->base.world_size);
}

static int64_t divisor(const struct library_group *g, const struct collective_args *a)
{
    return a->op == REDUCE_AVG && !dtype_is_float(a->dtype) ? g->base.world_size : 1;
}

static void copy_block(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes > 0)
        memmove(to, from, bytes);
}

/* ---- the library's own order ---- */

static struct reduction own_order(const struct collective_args *a)
{
    return (struct reduction){.dtype = a->dtype, .op = a->op};
}

/* data = this rank's terms, ready to be summed up. */
static void prepare_terms(const struct library_group *g, const struct collective_args *a,
                          void *data, const void *input, size_t count)
{
    double factor = own_factor(g, a);

    copy_block(data, input, count * dtype_size(a->dtype));
    if (factor < 1.0 || factor > 1.0)
        reduce_scale(a->dtype, data, factor, count);
}

/* Sums of integers become averages. */
static void divide_sums(const struct library_group *g, const struct collective_args *a, void *data,
                        size_t count)
{
    struct reduction r = {.dtype = a->dtype, .op = a->op, .divisor = divisor(g, a)};
    const void *input = data;

    if (r.divisor > 1)
        reduce_arrays(&r, &data, 1, &input, 1, count);
}

static enum status all_reduce_fast(struct library_group *g, const struct collective_args *a,
                                   struct error *err)
{
    struct reduction r = own_order(a);
    enum status status;

    prepare_terms(g, a, a->output, a->input, a->count);
    status = g->library->all_reduce(g->context, a->output, a->count, &r, err);
    if (status == STATUS_OK)
        divide_sums(g, a, a->output, a->count);
    return status;
}

/* Only the root has an output to work in, so every rank works in scratch space. */
static enum status reduce_fast(struct library_group *g, const struct collective_args *a,
                               struct error *err)
{
    size_t element = dtype_size(a->dtype);
    size_t step = piece_count(g, a) * g->base.world_size;
    struct reduction r = own_order(a);

    for (size_t from = 0; from < a->count; from += step) {
        size_t count = min_size(step, a->count - from);
        enum status status;

        prepare_terms(g, a, g->packed, (const char *)a->input + from * element, count);
        status = g->library->reduce(g->context, g->packed, count, &r, a->root, err);
        if (status != STATUS_OK)
            return status;
        if (g->base.rank != a->root)
            continue;
        divide_sums(g, a, g->packed, count);
        copy_block((char *)a->output + from * element, g->packed, count * element);
    }
    return STATUS_OK;
}

/* ---- rank order ---- */

/* Gather every rank's factor, where they differ. */
static enum status gather_factors(struct library_group *g, const struct collective_args *a,
                                  struct error *err)
{
    double mine = own_factor(g, a);

    for (unsigned r = 0; r < g->base.world_size; r++)
        g->factors[r] = mine;
    if (a->op != REDUCE_PREMUL_SUM)
        return STATUS_OK;
    return g->library->all_gather(g->context, &mine, sizeof(mine), g->factors, err);
}

/* output = the reduction of what lies in `gathered`, ascending. */
static void reduce_gathered(struct library_group *g, const struct collective_args *a, void *output,
                            size_t count)
{
    struct reduction r = {.dtype = a->dtype, .op = a->op, .divisor = divisor(g, a)};

    if (dtype_is_float(a->dtype) && (a->op == REDUCE_AVG || a->op == REDUCE_PREMUL_SUM))
        r.factors = g->factors;
    for (unsigned k = 0; k < g->base.world_size; k++)
        g->inputs[k] = g->gathered + k * count * dtype_size(a->dtype);
    reduce_arrays(&r, &output, 1, g->inputs, g->base.world_size, count);
}

static enum status gather_piece(struct library_group *g, const struct collective_args *a,
                                const void *mine, size_t bytes, struct error *err)
{
    if (a->call == COLLECTIVE_REDUCE)
        return g->library->gather(g->context, mine, bytes, g->gathered, a->root, err);
    return g->library->all_gather(g->context, mine, bytes, g->gathered, err);
}

/* all_reduce and reduce. */
static enum status reduce_in_order(struct library_group *g, const struct collective_args *a,
                                   struct error *err)
{
    bool has_output = a->call == COLLECTIVE_ALL_REDUCE || g->base.rank == a->root;
    size_t element = dtype_size(a->dtype);
    size_t step = piece_count(g, a);
    enum status status = gather_factors(g, a, err);

    for (size_t from = 0; from < a->count && status == STATUS_OK; from += step) {
        size_t count = min_size(step, a->count - from);

        status = gather_piece(g, a, (const char *)a->input + from * element, count * element, err);
        if (status == STATUS_OK && has_output)
            reduce_gathered(g, a, (char *)a->output + from * element, count);
    }
    return status;
}

/* ---- blocks ---- */

/* Elements [from, from + count) of every block of `input` side by side in `packed`. */
static void pack_blocks(struct library_group *g, const struct collective_args *a, size_t from,
                        size_t count)
{
    size_t element = dtype_size(a->dtype);

    for (unsigned r = 0; r < g->base.world_size; r++)
        memcpy(g->packed + r * count * element,
               (const char *)a->input + (r * a->count + from) * element, count * element);
}

/* Block r of every rank goes to rank r, which sums in ascending order, whatever args->order is. */
static enum status reduce_scatter(struct library_group *g, const struct collective_args *a,
                                  struct error *err)
{
    size_t element = dtype_size(a->dtype);
    size_t step = piece_count(g, a);
    enum status status = gather_factors(g, a, err);

    for (size_t from = 0; from < a->count && status == STATUS_OK; from += step) {
        size_t count = min_size(step, a->count - from);

        pack_blocks(g, a, from, count);
        status = g->library->all_to_all(g->context, g->packed, count * element, g->gathered, err);
        if (status == STATUS_OK)
            reduce_gathered(g, a, (char *)a->output + from * element, count);
    }
    return status;
}

/* The libraries' exchange is not in place. */
static enum status all_to_all(struct library_group *g, const struct collective_args *a,
                              struct error *err)
{
    size_t element = dtype_size(a->dtype);
    size_t step = piece_count(g, a);
    enum status status = STATUS_OK;

    if (a->input != a->output)
        return g->library->all_to_all(g->context, a->input, a->count * element, a->output, err);
    for (size_t from = 0; from < a->count && status == STATUS_OK; from += step) {
        size_t count = min_size(step, a->count - from);

        pack_blocks(g, a, from, count);
        status = g->library->all_to_all(g->context, g->packed, count * element, g->gathered, err);
        for (unsigned r = 0; r < g->base.world_size && status == STATUS_OK; r++)
            memcpy((char *)a->output + (r * a->count + from) * element,
                   g->gathered + r * count * element, count * element);
    }
    return status;
}

static enum status broadcast(struct library_group *g, const struct collective_args *a, size_t bytes,
                             struct error *err)
{
    if (g->base.rank == a->root)
        copy_block(a->output, a->input, bytes);
    return g->library->broadcast(g->context, a->output, bytes, a->root, err);
}

enum status library_run(struct library_group *g, const struct collective_args *a, struct error *err)
{
    size_t bytes = a->count * dtype_size(a->dtype);
    bool fast = a->order == REDUCE_FAST;

    switch (a->call) {
    case COLLECTIVE_ALL_REDUCE:
        return fast ? all_reduce_fast(g, a, err) : reduce_in_order(g, a, err);
    case COLLECTIVE_REDUCE:
        return fast ? reduce_fast(g, a, err) : reduce_in_order(g, a, err);
    case COLLECTIVE_REDUCE_SCATTER:
        return reduce_scatter(g, a, err);
    case COLLECTIVE_BROADCAST:
        return broadcast(g, a, bytes, err);
    case COLLECTIVE_ALL_GATHER:
        return g->library->all_gather(g->context, a->input, bytes, a->output, err);
    case COLLECTIVE_GATHER:
        return g->library->gather(g->context, a->input, bytes, a->output, a->root, err);
    case COLLECTIVE_SCATTER:
        return g->library->scatter(g->context, a->input, bytes, a->output, a->root, err);
    case COLLECTIVE_ALL_TO_ALL:
        return all_to_all(g, a, err);
    default:
        return g->library->barrier(g->context, err);
    }
}
