/*
 * Bytes that Gloo sends, by the algorithms of facebookincubator/gloo 5b14351: allreduce.cc (ring),
 * reduce.cc (the first half of that ring, then a gather), broadcast.cc (binomial tree),
 * allgather.cc (ring), gather.cc, scatter.cc and alltoall.cc (direct).  Pure.
 */
#include "common/collective/library/gloo.h"

#define SEGMENT_MAX_BYTES ((uint64_t)1 << 20) /* AllreduceOptions' default */

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Bytes of chunk `index` (mod n): equal runs of segments, cut off where the buffer ends. */
static uint64_t chunk_bytes(unsigned n, uint64_t total, size_t element_bytes, unsigned index)
{
    uint64_t segments = (total + SEGMENT_MAX_BYTES - 1) / SEGMENT_MAX_BYTES;
    uint64_t chunk;
    uint64_t start;

    if (segments < 2 * (uint64_t)n)
        segments = 2 * (uint64_t)n;
    segments = round_up(segments, n);
    chunk = segments / n * round_up((total + segments - 1) / segments, element_bytes);
    start = index % n * chunk;
    if (start >= total)
        return 0;
    return total - start < chunk ? total - start : chunk;
}

/* Rank r sends to r - 1: all chunks but r to reduce, all but r - 1 to gather. */
static void all_reduce_bytes(unsigned rank, unsigned n, uint64_t total, size_t element_bytes,
                             uint64_t *ret_tx, uint64_t *ret_rx)
{
    uint64_t own = chunk_bytes(n, total, element_bytes, rank);

    *ret_tx = 2 * total - own - chunk_bytes(n, total, element_bytes, rank + n - 1);
    *ret_rx = 2 * total - own - chunk_bytes(n, total, element_bytes, rank + 1);
}

/* As the reducing half; then every rank sends its own chunk to the root. */
static void reduce_bytes(unsigned rank, unsigned n, uint64_t total, size_t element_bytes,
                         unsigned root, uint64_t *ret_tx, uint64_t *ret_rx)
{
    uint64_t own = chunk_bytes(n, total, element_bytes, rank);

    *ret_tx = total - chunk_bytes(n, total, element_bytes, rank + 1);
    *ret_rx = total - chunk_bytes(n, total, element_bytes, rank + 2);
    if (rank == root)
        *ret_rx += total - own;
    else
        *ret_tx += own;
}

/* A rank sends to virtual rank v ^ 2^i in every round i in which all higher bits of v are 0 and
 * bit i, too; it receives in the round of its highest bit. */
static void broadcast_bytes(unsigned rank, unsigned n, uint64_t total, unsigned root,
                            uint64_t *ret_tx, uint64_t *ret_rx)
{
    unsigned virtual_rank = (rank + n - root) % n;

    for (unsigned bit = 1; bit < n; bit <<= 1)
        if (virtual_rank < bit && (virtual_rank | bit) < n)
            *ret_tx += total;
    *ret_rx = virtual_rank == 0 ? 0 : total;
}

void gloo_moved_bytes(enum collective_call call, unsigned rank, unsigned n, uint64_t bytes,
                      size_t element_bytes, unsigned root, uint64_t *ret_tx, uint64_t *ret_rx)
{
    *ret_tx = *ret_rx = 0;
    switch (call) {
    case COLLECTIVE_ALL_REDUCE:
        all_reduce_bytes(rank, n, bytes, element_bytes, ret_tx, ret_rx);
        break;
    case COLLECTIVE_REDUCE:
        reduce_bytes(rank, n, bytes, element_bytes, root, ret_tx, ret_rx);
        break;
    case COLLECTIVE_BROADCAST:
        broadcast_bytes(rank, n, bytes, root, ret_tx, ret_rx);
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        *ret_tx = *ret_rx = (n - 1) * bytes;
        break;
    case COLLECTIVE_GATHER:
        *(rank == root ? ret_rx : ret_tx) = (rank == root ? n - 1 : 1) * bytes;
        break;
    case COLLECTIVE_SCATTER:
        *(rank == root ? ret_tx : ret_rx) = (rank == root ? n - 1 : 1) * bytes;
        break;
    default:
        break;
    }
}
