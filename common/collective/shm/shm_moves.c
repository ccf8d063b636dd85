/*
 * What the steps of each call move.  Every call is the same three moves: publish a range of one's
 * own input, take a range that others published, or take it straight from their buffers; reading
 * differs only in where a rank's blocks begin (source).  Reductions read the ranks in ascending
 * order, on any rank and for any range, so every path gives the same bits.
 *
 * An all_reduce over visible buffers is one pass: rank r reduces slice r of all inputs into all
 * outputs, while the lines that it has just read are in its cache.  In chunks it does the same,
 * with its own buffers and the others' published copies.
 */
#include "common/collective/shm/shm.h"

#include <assert.h>
#include <string.h>

/* Up to here an operation takes one step: copying twice costs less than waiting twice.  Of an
 * all_reduce every rank reduces all, so that pays less long: in several steps two ranks take half
 * of the time at 32 KiB if their buffers are visible, and three quarters if not. */
#define SMALL_BYTES         ((size_t)32 << 10)
#define SMALL_REDUCED_BYTES ((size_t)12 << 10)
_Static_assert(SMALL_BYTES <= SHM_CHUNK_BYTES, "a small operation is one chunk");

/* Up to here the lines that others published are asked for before signatures are compared, which
 * saves 20 of 260 ns with two ranks.  More of them come no sooner. */
#define PREFETCH_BYTES ((size_t)256)

/* Of an all_reduce, one step reduces so much: what is published is overwritten by the result and
 * then copied, so all ranks' pieces shall stay in a core's cache.  With 256 KiB it took 1.0 to 1.2
 * times as long (256 KiB to 16 MiB, 2 ranks), with 192 KiB as long. */
#define REDUCED_BYTES ((size_t)128 << 10)
_Static_assert(REDUCED_BYTES <= SHM_CHUNK_BYTES, "it fits into a chunk");

static size_t bytes_of(const struct collective_args *a, size_t count)
{
    return count * dtype_size(a->dtype);
}

unsigned shm_block_count(const struct shm_group *g, const struct collective_args *a)
{
    return a->call == COLLECTIVE_SCATTER || a->call == COLLECTIVE_REDUCE_SCATTER ||
                   a->call == COLLECTIVE_ALL_TO_ALL
               ? g->base.world_size
               : 1;
}

bool shm_is_small(const struct shm_group *g, const struct collective_args *a)
{
    const size_t most = a->call == COLLECTIVE_ALL_REDUCE ? SMALL_REDUCED_BYTES : SMALL_BYTES;

    return a->count <= most && bytes_of(a, a->count) * shm_block_count(g, a) <= most;
}

/* Bytes from block to block within a chunk. */
static size_t chunk_stride(const struct shm_group *g, const struct collective_args *a)
{
    return SHM_CHUNK_BYTES / shm_block_count(g, a) / SHM_LINE * SHM_LINE;
}

/* Elements per block that one step publishes. */
static size_t shm_chunk_elements(const struct shm_group *g, const struct collective_args *a)
{
    size_t bytes = a->call == COLLECTIVE_ALL_REDUCE ? REDUCED_BYTES : chunk_stride(g, a);

    return bytes / dtype_size(a->dtype);
}

size_t shm_chunk_steps(const struct shm_group *g, const struct collective_args *a)
{
    size_t chunk = shm_chunk_elements(g, a);
    size_t chunks = a->count / chunk + (a->count % chunk != 0);

    return a->call == COLLECTIVE_ALL_REDUCE ? chunks + 1 : chunks;
}

/* The slice of one rank: whole cache lines of an aligned array, but for the last one. */
static struct shm_range slice_of(const struct shm_group *g, const struct collective_args *a,
                                 size_t count, unsigned rank)
{
    size_t line = SHM_LINE / dtype_size(a->dtype);
    size_t even = count / g->base.world_size + (count % g->base.world_size != 0);
    size_t slice = (even + line - 1) / line * line;
    size_t from = slice > 0 && rank <= count / slice ? rank * slice : count;

    return (struct shm_range){.from = from, .count = count - from < slice ? count - from : slice};
}

/* Where an operation's payload is published at a step. */
static unsigned char *published_at(const struct shm_group *g, const struct collective_args *a,
                                   unsigned rank, uint32_t step)
{
    const struct shared_memory *arena = &g->peers[rank].arena;

    return a->count <= SHM_INLINE_BYTES && bytes_of(a, a->count) <= SHM_INLINE_BYTES &&
                   shm_block_count(g, a) == 1
               ? shm_post_of(arena, step)->payload
               : shm_chunk_of(arena, step);
}

/* ---- reading and writing ---- */

/* An operation, and where the others' input is read: in their buffers, or in what they published at
 * the newest step, from element `published` of every block on. */
struct shm_move {
    const struct shm_group *g;
    const struct collective_args *a;
    bool direct;
    size_t published;
};

static const unsigned char *own_input(const struct collective_args *a, unsigned block, size_t from)
{
    return (const unsigned char *)a->input + bytes_of(a, block * a->count + from);
}

static unsigned char *own_output(const struct collective_args *a, unsigned block, size_t from)
{
    return (unsigned char *)a->output + bytes_of(a, block * a->count + from);
}

/* Element `from` of a block of a rank's input. */
static const unsigned char *source_element(const struct shm_move *m, unsigned rank, unsigned block,
                                           size_t from)
{
    if (rank == m->g->base.rank)
        return own_input(m->a, block, from);
    if (m->direct)
        return m->g->peers[rank].input + bytes_of(m->a, block * m->a->count + from);
    return published_at(m->g, m->a, rank, m->g->step) + block * chunk_stride(m->g, m->a) +
           bytes_of(m->a, from - m->published);
}

/* output_block[range] = input_block[range] of `rank` */
static void copy_block(const struct shm_move *m, unsigned rank, unsigned input_block,
                       unsigned output_block, struct shm_range range)
{
    unsigned char *to = own_output(m->a, output_block, range.from);
    const unsigned char *from = source_element(m, rank, input_block, range.from);

    if (to != from && range.count > 0)
        memcpy(to, from, bytes_of(m->a, range.count));
}

/* output[range] = the reduction of `block`[range] of all ranks */
static void reduce_block(const struct shm_move *m, unsigned block, struct shm_range range)
{
    const struct shm_group *g = m->g;
    void *output = own_output(m->a, 0, range.from);

    for (unsigned r = 0; r < g->base.world_size; r++)
        g->inputs[r] = source_element(m, r, block, range.from);
    reduce_arrays(&g->reduction, &output, 1, g->inputs, g->base.world_size, range.count);
}

/* Everything but an all_reduce that is divided among the ranks. */
static void move_range(const struct shm_move *m, struct shm_range range)
{
    unsigned self = m->g->base.rank;
    bool is_root = self == m->a->root;

    switch (m->a->call) {
    case COLLECTIVE_ALL_REDUCE:
        reduce_block(m, 0, range);
        break;
    case COLLECTIVE_REDUCE:
        if (is_root)
            reduce_block(m, 0, range);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        reduce_block(m, self, range);
        break;
    case COLLECTIVE_BROADCAST:
        copy_block(m, m->a->root, 0, 0, range);
        break;
    case COLLECTIVE_SCATTER:
        copy_block(m, m->a->root, self, 0, range);
        break;
    case COLLECTIVE_GATHER:
    case COLLECTIVE_ALL_GATHER:
        for (unsigned r = 0; r < m->g->base.world_size; r++)
            if (is_root || m->a->call == COLLECTIVE_ALL_GATHER)
                copy_block(m, r, 0, r, range);
        break;
    case COLLECTIVE_ALL_TO_ALL:
        for (unsigned r = 0; r < m->g->base.world_size; r++)
            copy_block(m, r, self, r, range);
        break;
    default:
        break;
    }
}

/* ---- through chunks ---- */

/* Do others read this rank's input? */
static bool contributes(const struct shm_group *g, const struct collective_args *a)
{
    switch (a->call) {
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SCATTER:
        return g->base.rank == a->root;
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER:
        return g->base.rank != a->root;
    default:
        return a->call != COLLECTIVE_BARRIER;
    }
}

void shm_publish(struct shm_group *g, const struct collective_args *a, struct shm_range range)
{
    unsigned char *chunk = published_at(g, a, g->base.rank, g->step + 1);

    if (range.count == 0 || !contributes(g, a))
        return;
    for (unsigned block = 0; block < shm_block_count(g, a); block++)
        memcpy(chunk + block * chunk_stride(g, a), own_input(a, block, range.from),
               bytes_of(a, range.count));
}

void shm_prefetch(const struct shm_group *g, const struct collective_args *a)
{
    const size_t bytes = bytes_of(a, a->count);

    if (a->count > PREFETCH_BYTES || bytes > PREFETCH_BYTES || bytes <= SHM_INLINE_BYTES)
        return;
    for (unsigned r = 0; r < g->base.world_size; r++)
        for (size_t i = 0; r != g->base.rank && i < bytes; i += SHM_LINE)
            __builtin_prefetch(shm_chunk_of(&g->peers[r].arena, g->step) + i);
}

void shm_take(struct shm_group *g, const struct collective_args *a, struct shm_range range)
{
    move_range(&(struct shm_move){.g = g, .a = a, .published = range.from}, range);
}

struct shm_range shm_chunk(const struct shm_group *g, const struct collective_args *a, size_t index)
{
    size_t chunk = shm_chunk_elements(g, a);
    size_t from = index <= a->count / chunk ? index * chunk : a->count;

    return (struct shm_range){.from = from,
                              .count = a->count - from < chunk ? a->count - from : chunk};
}

/* Copy a chunk of an all_reduce, but for this rank's slice. */
static void copy_others_slices(const struct shm_group *g, const struct collective_args *a,
                               unsigned char *to, const unsigned char *from, size_t count)
{
    const struct shm_range own = slice_of(g, a, count, g->base.rank);
    const size_t end = own.from + own.count;

    memcpy(to, from, bytes_of(a, own.from));
    memcpy(to + bytes_of(a, end), from + bytes_of(a, end), bytes_of(a, count - end));
}

void shm_publish_unreduced(struct shm_group *g, const struct collective_args *a, size_t index)
{
    const struct shm_range range = shm_chunk(g, a, index);

    copy_others_slices(g, a, shm_chunk_of(&g->peers[g->base.rank].arena, g->step + 1),
                       own_input(a, 0, range.from), range.count);
}

void shm_take_reduced(struct shm_group *g, const struct collective_args *a, size_t index)
{
    struct shm_range now = shm_chunk(g, a, index);
    struct shm_range slice = slice_of(g, a, now.count, g->base.rank);

    if (index > 0) {
        struct shm_range done = shm_chunk(g, a, index - 1);

        copy_others_slices(g, a, own_output(a, 0, done.from),
                           shm_chunk_of(&g->peers[g->base.rank].arena, g->step - 1), done.count);
    }
    if (slice.count == 0)
        return;
    for (unsigned r = 0; r < g->base.world_size; r++) {
        g->outputs[r] = shm_chunk_of(&g->peers[r].arena, g->step) + bytes_of(a, slice.from);
        g->inputs[r] = g->outputs[r];
    }
    g->inputs[g->base.rank] = own_input(a, 0, now.from + slice.from);
    g->outputs[g->base.rank] = own_output(a, 0, now.from + slice.from);
    reduce_arrays(&g->reduction, g->outputs, g->base.world_size, g->inputs, g->base.world_size,
                  slice.count);
}

/* ---- straight between buffers ---- */

static bool is_visible(struct shm_location location)
{
    return location.region != SHM_NO_REGION;
}

bool shm_is_direct(const struct shm_group *g, const struct collective_args *a)
{
    for (unsigned r = 0; r < g->base.world_size; r++) {
        const struct shm_post *post = shm_post_of(&g->peers[r].arena, g->step);
        bool is_root = r == a->root;

        switch (a->call) {
        case COLLECTIVE_BROADCAST:
        case COLLECTIVE_SCATTER:
            if (is_root && !is_visible(post->input))
                return false;
            break;
        case COLLECTIVE_REDUCE:
        case COLLECTIVE_GATHER:
            if (!is_root && !is_visible(post->input))
                return false;
            break;
        case COLLECTIVE_ALL_REDUCE:
            if (!is_visible(post->input) || !is_visible(post->output))
                return false;
            break;
        case COLLECTIVE_ALL_TO_ALL: /* in place, a block is overwritten before its reader came */
            if (!is_visible(post->input) || post->in_place)
                return false;
            break;
        default:
            if (!is_visible(post->input))
                return false;
            break;
        }
    }
    return true;
}

struct shm_range shm_direct_range(const struct shm_group *g, const struct collective_args *a)
{
    if (a->call == COLLECTIVE_ALL_REDUCE)
        return slice_of(g, a, a->count, g->base.rank);
    return (struct shm_range){.count = a->count};
}

void shm_move_direct(struct shm_group *g, const struct collective_args *a, struct shm_range range)
{
    struct shm_move m = {.g = g, .a = a, .direct = true};

    if (a->call != COLLECTIVE_ALL_REDUCE) {
        move_range(&m, range);
        return;
    }
    for (unsigned r = 0; r < g->base.world_size; r++) {
        g->inputs[r] = source_element(&m, r, 0, range.from);
        g->outputs[r] = r == g->base.rank ? own_output(a, 0, range.from)
                                          : g->peers[r].output + bytes_of(a, range.from);
    }
    reduce_arrays(&g->reduction, g->outputs, g->base.world_size, g->inputs, g->base.world_size,
                  range.count);
}

/* ---- accounting ---- */

/* A byte counts where it leaves a rank's memory for another rank, and where it reaches another's,
 * whichever rank's processor moves it; copies within a rank do not count. */
void shm_payload(const struct shm_group *g, const struct collective_args *a, uint64_t *ret_tx,
                 uint64_t *ret_rx)
{
    uint64_t bytes = bytes_of(a, a->count);
    uint64_t others = g->base.world_size - 1;
    bool is_root = g->base.rank == a->root;
    uint64_t slice;

    switch (a->call) {
    case COLLECTIVE_ALL_REDUCE:
        *ret_tx = *ret_rx = others * bytes;
        if (shm_is_small(g, a))
            break;
        /* this rank's slice from all and to all, their slices to and from them */
        slice = bytes_of(a, slice_of(g, a, a->count, g->base.rank).count);
        *ret_tx = *ret_rx = others * slice + (bytes - slice);
        break;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SCATTER:
        *ret_tx = is_root ? others * bytes : 0;
        *ret_rx = is_root ? 0 : bytes;
        break;
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER:
        *ret_tx = is_root ? 0 : bytes;
        *ret_rx = is_root ? others * bytes : 0;
        break;
    case COLLECTIVE_SEND:
    case COLLECTIVE_RECV:
        *ret_tx = a->call == COLLECTIVE_SEND ? bytes : 0;
        *ret_rx = bytes - *ret_tx;
        break;
    case COLLECTIVE_BARRIER:
        *ret_tx = *ret_rx = 0;
        break;
    default:
        *ret_tx = *ret_rx = others * bytes;
        break;
    }
}
