/*
 * shard: the partitions that one server holds for one job: values, accumulators, optimizer state.
 * Knows nothing of gRPC; the payload comes through struct shard_source.
 *
 * Memory, in units of the elements held here, all allocated by shard_init:
 *   update on the server   values, one accumulator, the optimizer's state.  Answers are `values`.
 *   update on the worker   two accumulators, used by the parity of the round.  Answers are the
 *                          accumulator; round 0 (the initial values) uses the one of parity 0.
 *   rank order             world_size - 2 more, for contributions that come before their turn.
 *   not in lockstep        world_size more: the values as each rank read them last.
 *   previous               one more: the values before the last step.
 *   compressed answers     the coded ones, and mostly one more (server/reply_encoding.h).
 *   named rows             in lockstep world_size more, for answers (server/row_selection.h).
 *
 * When may an answer be overwritten?  A rank pushes round t + 1 of a partition only after it has
 * received round t of it, so round t + 1 is complete only after everybody has received round t:
 *   values        change when round t + 1 is complete: everybody has round t;
 *   accumulators  of one parity are written again when round t + 2 begins: everybody has round t.
 * policy_check asserts the half of it that a server can see (no push of t + 1 before t is
 * complete). A rank that pushes t + 1 without having read t spoils its own answer and nobody
 * else's.  That concerns the content; whether memory may be *freed* is the caller's business
 * (outstanding sends).
 *
 * Where ranks are not in lockstep `values` change while others still read them: there each answer
 * is copied to its rank's own memory and sent from it.  It changes when the rank is answered next,
 * which is after it has pushed again, and so has read.  The same copy is what delay compensation
 * compares with.
 *
 * Loss and return.  Whatever is marked `again` may have come before; if it did it only asks for the
 * answer, and the values as they are now are that answer: in lockstep the very ones that were lost,
 * because no further step can be made without this rank.  A sum that took fewer contributions than
 * each of them was divided by is scaled to their mean.  What outlives this server is in
 * server/shard/mutation.h.
 *
 * Threads: any, but one at a time per rank and partition, changes of who holds the slot included.
 * One lock per partition; two ranks that push the same
 * partition at the same moment sum one after the other, different partitions go side by side.
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
    bool update;     /* run the optimizer here: answers are values; else the mean gradient */
    bool rank_order; /* ((g0 + g1) + g2) + ...; else in order of arrival */
    bool previous;   /* keep the values before the last step; only with update in lockstep */
    struct optimizer_config optimizer;
    uint64_t steps_before; /* that the optimizer has made in an earlier job; above 0: its state
                              comes with the initial values (shard_set_state) */
    struct consistency consistency;      /* checked (consistency_check) */
    struct compression compression;      /* checked (compression_check) */
    const struct exact_staleness *rules; /* borrowed; where each push is a step */
    size_t rule_count;
    bool shared; /* answers lie in memory that workers of this host can map, if there is any */
    bool defer_replies; /* lockstep: nobody is told of a whole round before shard_release_replies */
};

/* The float32 payload of a message, of a push divided already; copy or add is called at most once
 * per message.  keep: the same payload for as long as needed, until drop; only asked for where
 * there are rules of staleness. */
struct shard_source {
    enum status (*copy)(void *user, float *dst, size_t count, struct error *err);
    enum status (*add)(void *user, float *dst, size_t count, struct error *err);
    enum status (*keep)(void *user, struct shard_source *ret, struct error *err);
    void (*drop)(void *user);
    void *user;
};

/* What a call led to. */
struct shard_reply {
    bool complete; /* set, pull: data is ready.  push, finish, vacate: the optimizer stepped, or the
                      sum is whole: ask shard_next_reply */
    bool late;     /* push: dropped; data goes to this rank at once */
    bool again;    /* push, pull, finish: was taken before.  push: if there is data it goes to this
                      rank at once, else it waits as it would have */
    bool held;     /* push: kept for its turn, see shard_next_apply */
    bool missed;   /* next_apply: its turn was not where its rule says */
    bool is_final; /* next_answer: to a rank that has finished */
    uint64_t round; /* of data: the round that the rank pushed; with backup workers the newest */
    uint64_t staleness;     /* push: optimizer steps since this rank's read */
    uint64_t sequence;      /* with data: of the newest record that is in it (struct mutation) */
    unsigned contributions; /* complete: that this step took */
    const float *data;      /* count elements; inside the shard, see above how long */
    const uint8_t *coded;   /* NULL, or data in fewer bytes, which is sent ... */
    struct codec codec;     /* ... coded so */
    size_t bytes;     /* with data, and complete: of what is sent to each; where rows are named
                         complete says it of ... */
    size_t all_bytes; /* ... all that wait; else 0 */
    size_t count;
    int64_t sum_ns;  /* complete only: time spent on this round's sums and update */
    int64_t wait_ns; /* complete only: from the round's first contribution to its last */
};

struct shard_part {
    pthread_mutex_t lock; /* guards everything below */
    struct policy policy;
    uint32_t partition; /* constant, as are offset and count */
    size_t offset;      /* elements from the start of the shard's storage */
    size_t count;
    unsigned summed;   /* contributions in the accumulator */
    unsigned turn;     /* rank order: those below it are in the accumulator or will not come; 0 as
                          long as that is not so of both 0 and 1 */
    unsigned stated;   /* bit i: initial state i of the optimizer is here */
    bool failed;       /* a record is lost: nobody is told anything any more, the job ends */
    unsigned deferred; /* whole rounds that wait for shard_release_replies */
    uint64_t sequence; /* of the newest record */
    int64_t first_ns, sum_ns;
};

struct shard {
    struct shard_config config;
    struct shard_part *parts;  /* owned; as shard_map_held lists the partitions */
    size_t length;             /* partitions held */
    size_t count;              /* elements held */
    float *values;             /* owned with update, else accumulators[0] */
    float *accumulators[2];    /* owned; with update both are the same memory */
    float *held;               /* owned; (world_size - 2, count), rank order with > 2 ranks only */
    struct shard_source *kept; /* owned; (length, world_size), with rules of staleness only */
    float *sent;               /* owned; (world_size, count), not in lockstep only */
    float *previous;           /* owned; if so configured */
    struct policy_rank *ranks; /* owned; (length, world_size) */
    uint64_t *clocks;          /* owned; (length, world_size), of the record that is being told */
    uint8_t *flags;            /* the same */
    struct shard_sink sinks[SHARD_SINKS];
    /* Owned; base NULL: none.  Of what replies are sent from: values or both accumulators, or only
     * `sent` where there is that. */
    struct shared_memory reply_memory;
    size_t reply_memory_used; /* elements, while it is being divided */
    struct reply_encoding down;
    struct row_selection names;
    struct optimizer optimizer;
};

/* Allocate everything.  STATUS_NO_MEMORY says what was needed, also when the host cannot have it.
 */
enum status shard_init(struct shard *s, const struct shard_config *config, struct error *err);
void shard_release(struct shard *s); /* zeroed and half-built ones are allowed */

/* Does an answer's data lie in the reply memory? */
bool shard_reply_memory_has(const struct shard *s, const float *data);

/* Elements of a partition of the map, 0 when it does not exist or is not held here. */
size_t shard_partition_count(const struct shard *s, uint32_t partition);

/*
 * Rank 0's initial values.  Ask shard_next_parked for whom to answer.  again: nothing happens, and
 * *ret_again is true, when they are here already; else that is an error.
 */
enum status shard_set(struct shard *s, uint32_t partition, const struct shard_source *source,
                      bool again, bool *ret_again, struct error *err);

/*
 * Rank 0's initial state `index` (from 0) of the optimizer, before the partition's shard_set, which
 * wants all of them.  again: nothing happens when the initial values are here already.
 * STATUS_PROTOCOL: the job goes on with no other one, or there is no such state.
 */
enum status shard_set_state(struct shard *s, uint32_t partition, unsigned index,
                            const struct shard_source *source, bool again, struct error *err);

/* Numbers of rows, read at most once. */
struct row_reader {
    enum status (*read)(void *user, struct codec_selection_decoder *names, struct error *err);
    void *user;
};

/*
 * The rank's next answer of the partition is to hold these rows and no others, unless it is the
 * final one or they are no shorter than all.  again: they may have been named before.
 * STATUS_PROTOCOL: the terms do not name rows, the rank waits for an answer already, or has named
 * some and not asked yet.  STATUS_DATA, or as the source fails: nothing is named.
 */
enum status shard_select_rows(struct shard *s, uint32_t partition, unsigned rank, bool again,
                              const struct row_reader *source, struct error *err);

/*
 * A rank asks for the initial values, or for the newest when it comes later; ret->data: answer it
 * now.  again: it may have asked before.  round, in lockstep: 0, or r + 1 for the values of round
 * r, which with `previous` may be the newest or those before. STATUS_PROTOCOL: it asked before,
 * that round is not here, or here are only sums by now.
 */
enum status shard_pull(struct shard *s, uint32_t partition, unsigned rank, uint64_t round,
                       bool again, struct shard_reply *ret, struct error *err);

/* One more rank whose pull was parked before shard_set, and its answer; false: none left. */
bool shard_next_parked(struct shard *s, uint32_t partition, unsigned *ret_rank,
                       struct shard_reply *ret);

/*
 * Take a rank's contribution: a gradient divided by consistency_divisor.
 *   complete  the optimizer stepped if it runs here: ask shard_next_reply.  Where each push is a
 *             step that is every push.
 *   late      it was not even read; ret->data answers it
 *   again     nor was this one
 * STATUS_PROTOCOL when the policy refuses it (nothing is changed); a failure of the source or the
 * sink leaves the accumulator undefined and must end the job.
 */
enum status shard_push(struct shard *s, uint32_t partition, unsigned rank, uint64_t round,
                       bool again, const struct shard_source *source, struct shard_reply *ret,
                       struct error *err);

/* With rules of staleness, after a push, an answer or a rank's end: apply the contribution whose
 * turn it is.  *ret_found false: none now.  Failures are those of the source's copy. */
enum status shard_next_apply(struct shard *s, uint32_t partition, bool *ret_found,
                             unsigned *ret_rank, struct shard_reply *ret, struct error *err);

/* The caller's books know of the round that became whole, so that whoever is told of it may begin
 * the next: ask shard_next_reply and shard_next_parked behind it.  Nothing without
 * config.defer_replies.
 */
void shard_release_replies(struct shard *s, uint32_t partition);

/* The first rank from *rank on that may be answered now, and its answer; false: none. */
bool shard_next_reply(struct shard *s, uint32_t partition, unsigned *rank, struct shard_reply *ret);

/* Not in lockstep: the rank pushes no more.  With wants_final it is answered when all ranks have
 * said so; ask shard_next_reply in any case.  ret->complete: a round became whole by it.
 * STATUS_PROTOCOL: in lockstep, or when it said so before, but for `again`. */
enum status shard_finish(struct shard *s, uint32_t partition, unsigned rank, bool wants_final,
                         bool again, struct shard_reply *ret, struct error *err);

/* ------------------------------------------------------------------ who holds a slot */

/* Nobody any more: rounds go on without the rank.  ret as of shard_finish: ask shard_next_apply and
 * shard_next_reply in any case.  Fails as the sink does. */
enum status shard_vacate(struct shard *s, uint32_t partition, unsigned rank,
                         struct shard_reply *ret, struct error *err);

/* Somebody new, who pulls first and contributes from the round under way on.  STATUS_UNSUPPORTED
 * where here are only sums by now; else fails as the sink does. */
enum status shard_occupy(struct shard *s, uint32_t partition, unsigned rank, struct error *err);

/* Somebody new in a slot that was not vacated, who pulls first and continues behind what the slot
 * has contributed.  STATUS_UNSUPPORTED as above. */
enum status shard_replace(struct shard *s, uint32_t partition, unsigned rank, struct error *err);

/* The rank's connection broke: before it may send and be answered on another one.  What it waits
 * for it asks for again; until then nothing is sent to it, so that it is never answered twice. */
void shard_suspend(struct shard *s, unsigned rank);

/* Has the rank contributed to that round of the partition, so that a push of it would be `again`?
 */
bool shard_is_in(struct shard *s, uint32_t partition, unsigned rank, uint64_t round);

/* The last round of which, in all partitions held, the rank's contribution was taken or no longer
 * waited for; UINT64_MAX: none is held. */
uint64_t shard_clock(struct shard *s, unsigned rank);

/* Bytes of the tensors that shard_init allocates. */
size_t shard_bytes(const struct shard_config *config);

#endif
