/*
 * shard: the partitions that one server holds for one job: values, accumulators, optimizer state.
 * Independent of gRPC; payloads are read through struct shard_source.  Called by server/job,
 * server/service and server/observe (shard_bytes).  server/persistence and server/replication use
 * mutation.h and read the constant fields.
 *
 * Memory, in units of the elements held here, all allocated by shard_init:
 *   update on the server   values, one accumulator, the optimizer's state.  Replies send `values`.
 *   update on the worker   two accumulators, used by the parity of the round.  Replies send the
 *                          accumulator; round 0 (the initial values) uses the one of parity 0.
 *   rank order             world_size - 2 more, for contributions that arrive before their turn.
 *   not in lockstep        world_size more: the values that each rank read last.
 *   previous               one more: the values before the last step.
 *   compressed replies     the coded bytes, and mostly one more (server/shard/reply_encoding.h).
 *   row selection          in lockstep world_size more, for replies (server/shard/row_selection.h).
 *
 * When may a reply's data be overwritten?  A rank pushes round t + 1 of a partition only after it
 * has received round t of it, so round t + 1 is complete only after all ranks have received t:
 *   values        change when round t + 1 is complete: all ranks have round t;
 *   accumulators  of one parity are written again when round t + 2 begins: all ranks have round t.
 * policy_check enforces the half that a server can observe (no push of t + 1 before t is complete).
 * A rank that pushes t + 1 without having read t corrupts only its own reply.  This rule covers the
 * content; the caller tracks outstanding sends and decides when memory may be *freed*.
 *
 * Without lockstep `values` change while other ranks still read them.  There each reply is copied
 * to memory of its rank and sent from it.  The copy changes at the next reply to that rank, which
 * follows its next push, so the rank has read the copy.  Delay compensation compares with this
 * copy.
 *
 * Loss and return.  A message marked `again` may be a resend.  A resend changes nothing and is
 * answered with the current values: in lockstep these are the values of the lost reply, because no
 * further step is possible without this rank.  A sum of fewer contributions than the divisor is
 * scaled to their mean.  server/shard/mutation.h describes what outlives this server.
 *
 * Threads: any, but one at a time per rank and partition, including shard_vacate, shard_occupy and
 * shard_replace.  One lock per partition: two pushes to the same partition are summed one after the
 * other, pushes to different partitions run in parallel.
 */
#ifndef SPARRING_SERVER_SHARD_SHARD_H
#define SPARRING_SERVER_SHARD_SHARD_H

#include "common/base/error.h"
#include "common/base/shared_memory.h"
#include "common/optimizer/optimizer.h"
#include "common/shard_map/shard_map.h"
#include "server/shard/mutation.h"
#include "server/shard/policy.h"
#include "server/shard/reply_encoding.h"
#include "server/shard/row_selection.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shard_config {
    const struct shard_map *map; /* borrowed until shard_release */
    unsigned index;              /* of this server in the map */
    unsigned world_size;
    bool update;     /* run the optimizer here: replies are values; else the mean gradient */
    bool rank_order; /* ((g0 + g1) + g2) + ...; else in order of arrival */
    bool previous;   /* keep the values before the last step; only with update in lockstep */
    struct optimizer_config optimizer;
    uint64_t steps_before; /* optimizer steps of an earlier job; above 0: the optimizer's state
                              arrives before the initial values (shard_set_state) */
    struct consistency consistency;      /* checked (consistency_check) */
    struct compression compression;      /* checked (compression_check) */
    const struct exact_staleness *rules; /* borrowed; where each push is a step */
    size_t rule_count;
    bool shared;        /* replies lie in memory that workers of this host can map, if possible */
    bool defer_replies; /* lockstep: no reply of a complete round before shard_release_replies */
};

/* The float32 payload of a message; a push is yielded already divided by consistency_divisor, by
 * whichever side does it (CHUNK_UNDIVIDED).
 *   elements  the payload is factor * elements, at least until the call with this source returns;
 *             NULL: copy or add reads it, and is called at most once
 *   keep      a source of the same payload that stays valid until drop (NULL: nothing to release);
 *             called only for one with elements, or with rules of staleness */
struct shard_source {
    enum status (*copy)(void *user, float *dst, size_t count, struct error *err);
    enum status (*add)(void *user, float *dst, size_t count, struct error *err);
    enum status (*keep)(void *user, struct shard_source *ret, struct error *err);
    void (*drop)(void *user);
    void *user;
    const float *elements;
    float factor;
};

/* The result of a call, and the reply to send to a rank. */
struct shard_reply {
    bool complete;  /* set, pull: data is ready.  push, finish, vacate: the optimizer stepped, or
                       the sum is complete: call shard_next_reply */
    bool late;      /* push: dropped; send data to this rank at once */
    bool again;     /* push, pull, finish: a resend, counted before.  push: with data, send it to
                       this rank at once; without, the reply stays pending */
    bool held;      /* push: stored until its turn, see shard_next_apply */
    bool missed;    /* next_apply: applied at another staleness than its rule requires */
    bool is_final;  /* next_reply: the rank has finished */
    uint64_t round; /* of data: the round that the rank pushed; with backup workers the newest */
    uint64_t staleness;     /* push: optimizer steps since this rank's read */
    uint64_t sequence;      /* with data: of the newest mutation that it includes */
    unsigned contributions; /* complete: the number that this step includes */
    const float *data;      /* count elements; inside the shard, valid as described above */
    const uint8_t *coded;   /* what is sent instead of data, encoded by codec; NULL: send data */
    struct codec codec;
    size_t bytes;     /* with data, or complete: of the reply to each rank */
    size_t all_bytes; /* complete, with row selection: of all pending replies together; else 0 */
    size_t count;
    int64_t sum_ns;  /* complete only: time spent on this round's sums and update */
    int64_t wait_ns; /* complete only: from the round's first contribution to its last */
};

struct shard_part {
    /* Guards everything below and the partition's range of accumulators, values and optimizer
     * state.  Mutations are emitted under it; a reply is filled under it and sent after it. */
    pthread_mutex_t lock;
    struct policy policy;
    uint32_t partition; /* constant, as are offset and count */
    size_t offset;      /* elements from the start of the shard's storage */
    size_t count;
    unsigned summed; /* contributions in the accumulator or pending */
    /* Contributions not yet added to the accumulator: the round's first, kept, and the one that
     * completes it, while shard_push runs. */
    struct shard_source pending[2];
    unsigned pending_count;
    unsigned next_rank;  /* rank order: all ranks below it are summed or will not contribute; 0
                            until that holds for both 0 and 1 */
    unsigned states_set; /* bit i: initial state i of the optimizer is here */
    bool failed;         /* a mutation was lost: no further replies are sent, the job ends */
    unsigned deferred;   /* complete rounds that wait for shard_release_replies */
    uint64_t sequence;   /* of the newest mutation */
    int64_t first_push_ns, sum_ns;
};

struct shard {
    struct shard_config config;
    struct shard_part *parts; /* owned; as shard_map_held lists the partitions */
    size_t length;            /* partitions held */
    size_t count;             /* elements held */
    float *values;            /* owned with update, else accumulators[0] */
    float *accumulators[2];   /* owned; with update both are the same memory */
    float *early;             /* owned; (world_size - 2, count), rank order with > 2 ranks only:
                                 contributions that arrived before their turn */
    struct shard_source *held_sources; /* owned; (length, world_size), with rules of staleness only:
                                          pushes that are not applied yet */
    float *rank_values;        /* owned; (world_size, count), not in lockstep only: the values that
                                  each rank read last */
    float *previous;           /* owned; only with config.previous */
    struct policy_rank *ranks; /* owned; (length, world_size) */
    uint64_t *clocks;          /* owned; (length, world_size), buffer for a mutation's clocks */
    uint8_t *flags;            /* the same, for its flags */
    struct shard_sink sinks[SHARD_SINKS];
    /* Owned; base NULL: none.  Holds what replies are sent from: `rank_values` if it exists, else
     * values (and previous) or both accumulators. */
    struct shared_memory reply_memory;
    size_t reply_memory_used; /* elements, while it is being divided */
    struct reply_encoding encoding;
    struct row_selection selection;
    struct optimizer optimizer;
};

/* Allocate everything.  STATUS_NO_MEMORY, with the bytes needed, also when they exceed what the
 * host has. */
enum status shard_init(struct shard *s, const struct shard_config *config, struct error *err);
void shard_release(struct shard *s); /* zeroed and half-built ones are allowed */

/* Does a reply's data lie in the reply memory? */
bool shard_reply_memory_has(const struct shard *s, const float *data);

/* Elements of a partition of the map, 0 when it does not exist or is not held here. */
size_t shard_partition_count(const struct shard *s, uint32_t partition);

/*
 * Set rank 0's initial values.  Then call shard_next_parked for the pending replies.  When the
 * values are set already: with `again` nothing happens and *ret_again is true; without it
 * STATUS_PROTOCOL.
 */
enum status shard_set(struct shard *s, uint32_t partition, const struct shard_source *source,
                      bool again, bool *ret_again, struct error *err);

/*
 * Set rank 0's initial state `index` (from 0) of the optimizer, before the partition's shard_set,
 * which requires all states.  again: nothing happens when the initial values are set already.
 * STATUS_PROTOCOL: the job does not continue an earlier one, or there is no such state.
 */
enum status shard_set_state(struct shard *s, uint32_t partition, unsigned index,
                            const struct shard_source *source, bool again, struct error *err);

/* A source of row numbers; read is called at most once. */
struct row_reader {
    enum status (*read)(void *user, struct codec_selection_decoder *decoder, struct error *err);
    void *user;
};

/*
 * Restrict the rank's next reply of the partition to these rows.  The reply has all rows if it is
 * the final one or if the selection would not be shorter.  again: may be a resend.
 * STATUS_PROTOCOL: the job's terms have no row selection, the rank's reply is already pending, or
 * it has an unused selection.  STATUS_DATA, or the source's error: no rows are selected.
 */
enum status shard_select_rows(struct shard *s, uint32_t partition, unsigned rank, bool again,
                              const struct row_reader *source, struct error *err);

/*
 * A rank pulls the initial values, or the newest if it joins later.  ret->data: reply now; else the
 * pull is parked.  again: may be a resend.  round, in lockstep: 0, or r + 1 for the values of round
 * r, the newest round or with `previous` the one before.  STATUS_PROTOCOL: a second pull without
 * `again`, a round that is not here, or the optimizer runs on the workers and round 1 is complete.
 */
enum status shard_pull(struct shard *s, uint32_t partition, unsigned rank, uint64_t round,
                       bool again, struct shard_reply *ret, struct error *err);

/* The next rank whose parked pull may be answered, and its reply; false: none left. */
bool shard_next_parked(struct shard *s, uint32_t partition, unsigned *ret_rank,
                       struct shard_reply *ret);

/*
 * Take a rank's contribution: a gradient divided by consistency_divisor.
 *   complete  the round is complete, and the optimizer stepped if it runs here: call
 *             shard_next_reply.  Where each push is a step, every push is complete.
 *   late      the payload was not read; send ret->data
 *   again     the payload was not read; see struct shard_reply
 * STATUS_PROTOCOL when the policy refuses it (nothing is changed); a failure of the source or the
 * sink leaves the accumulator undefined and must end the job.
 */
enum status shard_push(struct shard *s, uint32_t partition, unsigned rank, uint64_t round,
                       bool again, const struct shard_source *source, struct shard_reply *ret,
                       struct error *err);

/* With rules of staleness, after a push, a reply or shard_finish: apply the held contribution whose
 * turn it is.  *ret_found false: none now.  Returns the errors of the source's copy and the
 * sink. */
enum status shard_next_apply(struct shard *s, uint32_t partition, bool *ret_found,
                             unsigned *ret_rank, struct shard_reply *ret, struct error *err);

/* The caller has counted the complete round, so its ranks may now begin the next one.  Then call
 * shard_next_reply and shard_next_parked.  No effect without config.defer_replies. */
void shard_release_replies(struct shard *s, uint32_t partition);

/* The first rank from *rank on that may be answered now, and its reply; false: none. */
bool shard_next_reply(struct shard *s, uint32_t partition, unsigned *rank, struct shard_reply *ret);

/* Not in lockstep: the rank pushes no more.  With wants_final it gets the final values when all
 * ranks have finished.  Then call shard_next_reply in any case.  ret->complete: this completed a
 * round.  STATUS_PROTOCOL: in lockstep, or a second call without `again`. */
enum status shard_finish(struct shard *s, uint32_t partition, unsigned rank, bool wants_final,
                         bool again, struct shard_reply *ret, struct error *err);

/* ------------------------------------------------------------------ leaving and joining */

/* The rank is vacant from now on: rounds continue without it.  ret as of shard_finish.  Then call
 * shard_next_apply and shard_next_reply in any case.  Returns the sink's errors. */
enum status shard_vacate(struct shard *s, uint32_t partition, unsigned rank,
                         struct shard_reply *ret, struct error *err);

/* A new session takes a vacant rank.  It pulls first and contributes from the round under way on.
 * STATUS_UNSUPPORTED: the values are on the workers only (shard_pull); else the sink's errors. */
enum status shard_occupy(struct shard *s, uint32_t partition, unsigned rank, struct error *err);

/* A new session takes a rank that was not vacated.  It pulls first and continues after the rank's
 * last contribution.  STATUS_UNSUPPORTED as above. */
enum status shard_replace(struct shard *s, uint32_t partition, unsigned rank, struct error *err);

/* The rank's connection broke; call this before another one may send or receive.  Cancels the
 * rank's pending replies: it requests them again, so each request gets one reply. */
void shard_suspend(struct shard *s, unsigned rank);

/* Has the rank contributed to that round of the partition, so that a push of it is a resend? */
bool shard_has_contributed(struct shard *s, uint32_t partition, unsigned rank, uint64_t round);

/* The last round for which, in all partitions held, the rank has contributed or the sum is complete
 * without it; UINT64_MAX: no partition is held. */
uint64_t shard_clock(struct shard *s, unsigned rank);

/* Bytes of the tensors that shard_init allocates. */
size_t shard_bytes(const struct shard_config *config);

#endif
