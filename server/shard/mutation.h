/*
 * mutation: what must outlive a server, as it happens and as a whole.
 *
 * A record is one change of one partition: its initial values, one step, or a change of who takes
 * part.  The sinks get each record under the partition's lock, in order, behind the change and
 * before anybody can be answered from it.  Another shard of the same configuration that applies the
 * records of a partition in order has, bit for bit, the same values, optimizer state and clocks,
 * and answers alike, compressed or not. shard_export copies one partition out; the records behind
 * it continue it.
 *
 * Contributions to a round under way are in neither: nobody was told that they were taken, and
 * whoever sent them sends them again (`again` of shard_push).
 *
 * An answer must not go out before the records that are in it are safe.  shard_reply.sequence
 * names the newest of them; records that are safe at once (written under the lock) need no more,
 * others make the answer wait.  Meanwhile its data stays as it is: see server/shard.h.
 */
#ifndef SPARRING_SERVER_SHARD_MUTATION_H
#define SPARRING_SERVER_SHARD_MUTATION_H

#include "common/base/error.h"
#include "server/shard/policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shard;
struct shard_config;
struct shard_source;

enum mutation_kind {
    MUTATION_INIT = 1, /* the initial values came; step 0 */
    MUTATION_STEP,     /* the optimizer stepped here, or a sum is whole */
    MUTATION_RANKS,    /* a rank finished, or its slot was vacated or occupied */
    MUTATION_STATE,    /* initial state `step` of the optimizer came; before INIT */
};

struct mutation {
    enum mutation_kind kind;
    uint32_t partition;
    uint64_t sequence;      /* of this partition in this process, from 1 */
    uint64_t step;          /* optimizer steps or whole sums with this one */
    double rate;            /* STEP: learning rate that the optimizer took; 0 without one */
    unsigned world_size;    /* of clocks and flags */
    const uint64_t *clocks; /* of the ranks, behind the change; borrowed, as all is here */
    const uint8_t *flags;   /* POLICY_SAVED_... */
    const float *payload;   /* INIT: the values.  STATE: that state.  STEP: the gradient that the
                               optimizer took, or the sum.  RANKS: NULL */
    size_t count;           /* elements of payload; 0 with RANKS */
};

/*
 * put: the record is borrowed until it returns.  It holds the partition's lock: it must not call
 * the shard, and nobody else can push to the partition meanwhile.  A failure is that of the call
 * which led to the record, and must end the job.
 */
struct shard_sink {
    enum status (*put)(void *user, const struct mutation *record, struct error *err);
    void *user;
};

/* Can a shard of that configuration be recorded?  STATUS_UNSUPPORTED where a step depends on more
 * than a record says: delay compensation, rules of exact staleness. */
enum status shard_check_recorded(const struct shard_config *config, struct error *err);

/* Sinks are called in this order: what a replica has is never more than what is on the disk. */
enum shard_sink_kind { SHARD_SINK_DISK, SHARD_SINK_REPLICA, SHARD_SINKS };

/* Call this sink from now on; NULL: none.  Before other threads use the shard, and only where
 * shard_check_recorded allows it. */
void shard_set_sink(struct shard *s, enum shard_sink_kind kind, const struct shard_sink *sink);

/*
 * Do what the record says; *ret_applied false: it is in already.  This shard's own sinks are
 * called. source  where the payload comes from; NULL: from record->payload STATUS_DATA: it is not
 * of this shard, or one before it is missing; nothing is changed.  Else fails as source and sink
 * do.
 */
enum status shard_apply(struct shard *s, const struct mutation *record,
                        const struct shard_source *source, bool *ret_applied, struct error *err);

/* One partition as it is.  The arrays are the caller's, and are written by shard_export and read by
 * shard_import. */
struct shard_state {
    bool initialised; /* else only the arrays of the ranks mean anything */
    uint64_t steps;
    uint64_t *clocks;  /* (world_size) */
    uint64_t *seen;    /* (world_size) */
    uint8_t *flags;    /* (world_size) */
    float *values;     /* (count of the partition); without update here: the newest sum */
    float *moments[2]; /* the same; as many as the shard's optimizer has states */
    float *previous;   /* the same; where the shard keeps it */
    float *kept;       /* the same; of compressed answers, where reply_encoding_is_kept */
};

/* The values and each state of the optimizer (count of the partition each) as they are at one
 * moment, and the number of steps that the optimizer has made.  STATUS_PROTOCOL: it is not held
 * here or has no values yet; STATUS_UNSUPPORTED: no optimizer runs here. */
enum status shard_read_state(struct shard *s, uint32_t partition, float *values,
                             float *const *moments, uint64_t *ret_steps, struct error *err);

/* Copy the partition out, or into a shard that nobody uses yet.  STATUS_PROTOCOL: it is not held
 * here; import: STATUS_DATA when there is no such state. */
enum status shard_export(struct shard *s, uint32_t partition, struct shard_state *state,
                         struct error *err);
enum status shard_import(struct shard *s, uint32_t partition, const struct shard_state *state,
                         struct error *err);

#endif
