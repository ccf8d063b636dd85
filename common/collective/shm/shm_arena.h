/*
 * shm_arena: what lies in a rank's arena, the memory that all ranks of a group map; and the flags
 * in it, on which ranks wait for each other.
 *
 *   control   1 page       whether the rank is there, has left, or failed, and why
 *   posts     2 times      a line with the flag, the operation's terms and a few bytes of payload,
 *                          a line of locations, one with the signature, then SHM_CHUNK_BYTES that
 *                          the owner publishes with it
 *   channels  world_size   one per receiving rank: messages from the owner to it
 *
 * Collectives move in *steps* that all ranks number alike.  At step k a rank fills its post k % 2,
 * raises that post's flag to k, and waits until every rank's is k.  Between steps k and k + 1 it
 * may read (and for an all_reduce in place, write) what others published at k.  A post may be
 * filled again for step k + 2 once all flags of step k + 1 are up: each rank that raised its flag
 * is done with step k.  So one wait per step is enough, and none is needed at the end of an
 * operation.
 *
 * Memory order: raising a flag releases, seeing it acquires.  Nothing else in an arena is atomic.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_SHM_ARENA_H
#define SPARRING_COMMON_COLLECTIVE_SHM_ARENA_H

#include "common/base/shared_memory.h"
#include "common/collective/signature.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHM_LINE           64
#define SHM_PAGE           ((size_t)4096)
#define SHM_CHUNK_BYTES    ((size_t)512 << 10) /* published with one step */
#define SHM_POST_STRIDE    (SHM_PAGE + SHM_CHUNK_BYTES)
#define SHM_FRAGMENT_BYTES ((size_t)64 << 10) /* carried by one fragment of a channel */
#define SHM_FRAGMENTS      4                  /* of a channel, underway at once */
#define SHM_NO_REGION      UINT32_MAX

/* A number that only grows (modulo 2^32). */
struct shm_flag {
    atomic_uint value;
    uint32_t reserved;
};

/* Bytes inside a registered region; SHM_NO_REGION: elsewhere, and not visible to other ranks. */
struct shm_location {
    uint32_t region;
    uint32_t reserved;
    uint64_t offset;
};

/* What ranks of one group and generation must agree on. */
struct shm_terms {
    uint32_t what; /* call, dtype, op, order: a byte each */
    uint32_t root;
    uint64_t sequence, count;
};

/* Every line that a rank reads after another one wrote it costs about 100 ns, so the first one has
 * all of an operation of up to SHM_INLINE_BYTES. */
#define SHM_INLINE_BYTES 32

struct shm_post {
    _Alignas(SHM_LINE) struct shm_flag flag;
    struct shm_terms terms;
    unsigned char payload[SHM_INLINE_BYTES];
    _Alignas(SHM_LINE) struct shm_location input;
    struct shm_location output;
    double factor;
    uint32_t in_place; /* input and output share memory */
    uint32_t reserved;
    _Alignas(SHM_LINE) unsigned char signature[SIGNATURE_BYTES]; /* read where terms differ */
};
_Static_assert(sizeof(struct shm_post) == (size_t)3 * SHM_LINE, "a post is three lines");

/* One piece of a message; the first one has the signature, and stands alone when `location` says
 * where the whole message is. */
struct shm_fragment {
    _Alignas(SHM_LINE) unsigned char signature[SIGNATURE_BYTES];
    struct shm_location location;
};

/* From the arena's owner to one other rank.  Fragment i is at index i % SHM_FRAGMENTS. */
struct shm_channel {
    _Alignas(SHM_LINE) struct shm_flag written; /* fragments, by the owner */
    _Alignas(SHM_LINE) struct shm_flag read;    /* fragments, by the receiver */
    struct shm_fragment fragments[SHM_FRAGMENTS];
};

enum shm_presence { SHM_PRESENT, SHM_LEFT, SHM_FAILED };

struct shm_control {
    atomic_uint presence;
    int32_t status;  /* of a failure: enum status ... */
    int32_t fault;   /* ... enum fault ... */
    int32_t culprit; /* ... a rank in the job, or -1 */
    char text[1024];
    _Alignas(SHM_LINE) atomic_uint sleepers; /* on flags that the arena's owner raises.  On a line
                                                that nobody writes but them: see shm_flag_raise */
};

/* Bytes of an arena in a group of that many ranks. */
size_t shm_arena_size(unsigned world_size);

struct shm_control *shm_control_of(const struct shared_memory *arena);

static inline struct shm_post *shm_post_of(const struct shared_memory *arena, uint32_t step)
{
    return (void *)((char *)arena->base + SHM_PAGE + step % 2 * SHM_POST_STRIDE);
}

static inline unsigned char *shm_chunk_of(const struct shared_memory *arena, uint32_t step)
{
    return (unsigned char *)(shm_post_of(arena, step) + 1);
}

struct shm_channel *shm_channel_of(const struct shared_memory *arena, unsigned receiver);
unsigned char *shm_fragment_bytes(const struct shared_memory *arena, unsigned receiver,
                                  uint32_t fragment);

/* Before raising flags: makes that cheaper where the kernel helps.  Idempotent, per process. */
void shm_flags_prepare(void);

/* Everything written before is visible to a reader that sees the value.  `own` is the arena of who
 * raises the flag, which may lie in another one. */
void shm_flag_raise(const struct shared_memory *own, struct shm_flag *flag, uint32_t value);

static inline bool shm_flag_reached(const struct shm_flag *flag, uint32_t value)
{
    return (int32_t)(atomic_load_explicit(&flag->value, memory_order_acquire) - value) >= 0;
}

/* Sleep until the flag has the value, shm_flag_wake is called, or timeout_ns have passed; `raiser`
 * is the arena of who raises it. */
void shm_flag_sleep(const struct shared_memory *raiser, struct shm_flag *flag, uint32_t value,
                    int64_t timeout_ns);
void shm_flag_wake(struct shm_flag *flag);

#endif
