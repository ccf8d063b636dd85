/*
 * shm: ranks of one host reduce in shared memory.
 *
 * Each rank has an arena (shm_arena.h), an anonymous memory whose descriptor it hands to the others
 * over Unix sockets; registered regions travel the same way.  Private to the shm_*.c files.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_SHM_H
#define SPARRING_COMMON_COLLECTIVE_SHM_H

#include "common/base/handover.h"
#include "common/collective/collective_ops.h"
#include "common/collective/shm/shm_arena.h"

#define SHM_REGIONS_MAX 16

/* A rank as the others see it. */
struct shm_peer {
    int fd; /* owned; -1: this rank itself */
    unsigned char token[HANDOVER_TOKEN_BYTES];
    struct shared_memory arena;                    /* owned */
    struct shared_memory regions[SHM_REGIONS_MAX]; /* owned, but for this rank's own, a borrowed
                                                      copy with fd -1 */
    uint64_t sent, received;                       /* messages that have gone to and come from it */
    uint32_t written, read;                        /* fragments, likewise */
    const unsigned char *input; /* of the running operation; NULL: not visible ... */
    unsigned char *output;      /* ... */
};

struct shm_group {
    struct collective base;
    struct shm_peer *peers; /* owned, world_size of them */
    size_t region_count;
    uint32_t step;              /* the newest one that this rank has raised its flag for */
    int64_t spin_ns, yield_ns;  /* of waiting, before the next means */
    const void **inputs;        /* owned: arguments of reduce_arrays, world_size of each */
    void **outputs;             /* owned */
    double *factors;            /* owned */
    struct reduction reduction; /* of the running operation */
};

/* ---- shm_connect.c ---- */

/* Make this rank's arena and map all others'. */
enum status shm_connect(struct shm_group *g, int64_t deadline_ns, struct error *err);

/* Give each peer a region (base NULL: none) and map theirs as number g->region_count. */
enum status shm_share_region(struct shm_group *g, const struct shared_memory *memory,
                             int64_t deadline_ns, struct error *err);

/* Where a buffer of this rank lies. */
struct shm_location shm_find_location(const struct shm_group *g, const void *buffer, size_t bytes);

/* A peer's location in this process; NULL when it has none or names bytes that are not there. */
unsigned char *shm_resolve(const struct shm_group *g, unsigned peer, struct shm_location location,
                           size_t bytes);

/* ---- shm_wait.c ---- */

/* Wait for a flag that `peer` raises, and count the work's waited_ns.  RUN_PENDING as run;
 * RUN_FAILED when the peer left or any rank failed. */
enum run_outcome shm_wait(struct shm_group *g, struct collective_work *work, unsigned peer,
                          struct shm_flag *flag, uint32_t value, int64_t until_ns,
                          struct error *err);

/* Publish that this rank has left or failed, and wake the peers; `why` of a failure, along with the
 * group's fault and culprit. */
void shm_set_presence(struct shm_group *g, enum shm_presence presence, const struct error *why);

/* ---- shm_steps.c: collectives;  shm_pair.c: send and recv ---- */

enum run_outcome shm_run_steps(struct shm_group *g, struct collective_work *work, int64_t until_ns,
                               struct error *err);
enum run_outcome shm_run_pair(struct shm_group *g, struct collective_work *work, int64_t until_ns,
                              struct error *err);

/* ---- shm_moves.c: what the steps move ---- */

/* Elements [from, from + count) of every block of the operation's input. */
struct shm_range {
    size_t from, count;
};

/* Blocks of `count` elements in a contributing rank's input: 1, or one per rank. */
unsigned shm_block_count(const struct shm_group *g, const struct collective_args *a);

/* Small enough to be published whole when a rank arrives: one wait in all. */
bool shm_is_small(const struct shm_group *g, const struct collective_args *a);

/* All ranks map all buffers that the operation needs, by the newest step's posts: the same result
 * on all ranks. */
bool shm_is_direct(const struct shm_group *g, const struct collective_args *a);

/* The steps that an operation takes, and what is published at step `index` (nothing at the last one
 * of an all_reduce). */
size_t shm_chunk_steps(const struct shm_group *g, const struct collective_args *a);
struct shm_range shm_chunk(const struct shm_group *g, const struct collective_args *a,
                           size_t index);

/* Put what others need of this rank's input into the chunk of the step to come. */
void shm_publish(struct shm_group *g, const struct collective_args *a, struct shm_range range);

/* All have published at the newest step: ask for what will be taken. */
void shm_prefetch(const struct shm_group *g, const struct collective_args *a);

/* Take a range that was published at the newest step. */
void shm_take(struct shm_group *g, const struct collective_args *a, struct shm_range range);

/* An all_reduce in chunks.  Step `index` publishes the others' slices of that chunk, reduces this
 * rank's slice into its own output and into what the others have published, and copies theirs of
 * the chunk before it from what this rank has. */
void shm_publish_unreduced(struct shm_group *g, const struct collective_args *a, size_t index);
void shm_take_reduced(struct shm_group *g, const struct collective_args *a, size_t index);

/* Between visible buffers: all that this rank moves, and a part of it. */
struct shm_range shm_direct_range(const struct shm_group *g, const struct collective_args *a);
void shm_move_direct(struct shm_group *g, const struct collective_args *a, struct shm_range range);

/* Payload bytes that leave and reach this rank. */
void shm_payload(const struct shm_group *g, const struct collective_args *a, uint64_t *ret_tx,
                 uint64_t *ret_rx);

#endif
