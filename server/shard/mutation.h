/*
 * mutation: the state that must outlive a server, as a log of changes and as a snapshot.
 *
 * A mutation is one change of one partition: its initial values, one step, or a change of its
 * ranks.  The sinks get each mutation under the partition's lock, in order, after the change and
 * before any reply includes it.  Another shard of the same configuration that applies the mutations
 * of a partition in order has, bit for bit, the same values, optimizer state and clocks, and sends
 * the same replies, compressed or not.  shard_export copies one partition; the mutations after the
 * copy continue it.
 *
 * Neither includes the contributions to a round under way: they are not acknowledged, so their
 * ranks send them again (`again` of shard_push).
 *
 * A reply must not be sent before the mutations that it includes are in the journal and on the
 * replica, as far as these exist.  shard_reply.sequence is the newest of them.  A sink that writes
 * synchronously needs no more; for others the caller delays the reply, whose data stays unchanged
 * meanwhile (server/shard/shard.h).
 *
 * Called by server/persistence and server/replication; by server/service for shard_check_recorded
 * and shard_read_state.
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
    MUTATION_INIT = 1, /* the initial values were set; step 0 */
    MUTATION_STEP,     /* the optimizer stepped here, or a sum is complete */
    MUTATION_RANKS,    /* a rank finished, or was vacated or occupied */
    MUTATION_STATE,    /* initial state `step` of the optimizer was set; before INIT */
};

struct mutation {
    enum mutation_kind kind;
    uint32_t partition;
    uint64_t sequence;      /* of this partition in this process, from 1 */
    uint64_t step;          /* optimizer steps or complete sums, including this one */
    double rate;            /* STEP: learning rate that the optimizer used; 0 without one */
    unsigned world_size;    /* length of clocks and flags */
    const uint64_t *clocks; /* of the ranks, after the change; all pointers here are borrowed */
    const uint8_t *flags;   /* POLICY_SAVED_... */
    const float *payload;   /* INIT: the values.  STATE: that state.  STEP: the gradient that the
                               optimizer used, or the sum.  RANKS: NULL */
    size_t count;           /* elements of payload; 0 with RANKS */
};

/*
 * on_mutation: the mutation is borrowed until it returns.  Called with the partition's lock held:
 * it must not call the shard, and it delays all pushes to the partition.  Its error is returned by
 * the call that led to the mutation, and must end the job.
 */
struct shard_sink {
    enum status (*on_mutation)(void *user, const struct mutation *mutation, struct error *err);
    void *user;
};

/* Can a shard of that configuration be reproduced from its mutations?  STATUS_UNSUPPORTED where a
 * step depends on more than they contain: delay compensation, rules of exact staleness. */
enum status shard_check_recorded(const struct shard_config *config, struct error *err);

/* Sinks are called in this order, so that a replica never has more than the disk. */
enum shard_sink_kind { SHARD_SINK_DISK, SHARD_SINK_REPLICA, SHARD_SINKS };

/* Call this sink from now on; NULL: none.  Requires that no other thread uses the shard yet, and
 * that shard_check_recorded allows it. */
void shard_set_sink(struct shard *s, enum shard_sink_kind kind, const struct shard_sink *sink);

/*
 * Apply the mutation and emit it to this shard's own sinks; *ret_applied false: it was applied
 * before.
 *   source  of the payload; NULL: mutation->payload
 * STATUS_DATA: it does not fit this shard, or one before it is missing; nothing is changed.  Else
 * returns the errors of the source and the sinks.
 */
enum status shard_apply(struct shard *s, const struct mutation *mutation,
                        const struct shard_source *source, bool *ret_applied, struct error *err);

/* The state of one partition.  The arrays are the caller's; shard_export writes and shard_import
 * reads them. */
struct shard_state {
    bool initialised; /* else only the arrays of the ranks are valid */
    uint64_t steps;
    uint64_t *clocks;   /* (world_size) */
    uint64_t *seen;     /* (world_size) */
    uint8_t *flags;     /* (world_size) */
    float *values;      /* (count of the partition); if workers run the optimizer: the newest sum */
    float *moments[2];  /* the same; as many as the shard's optimizer has states */
    float *previous;    /* the same; where the shard keeps it */
    float *codec_state; /* the same; of compressed replies, if reply_encoding_must_persist */
};

/* Read the values and each state of the optimizer (count of the partition each), consistent with
 * each other, and the number of steps that the optimizer has made.  STATUS_PROTOCOL: the partition
 * is not held here or has no values yet; STATUS_UNSUPPORTED: no optimizer runs here. */
enum status shard_read_state(struct shard *s, uint32_t partition, float *values,
                             float *const *moments, uint64_t *ret_steps, struct error *err);

/* Copy the partition's state out, or into a shard that is not in use yet.  STATUS_PROTOCOL: it is
 * not held here; import: STATUS_DATA when there is no such state. */
enum status shard_export(struct shard *s, uint32_t partition, struct shard_state *state,
                         struct error *err);
enum status shard_import(struct shard *s, uint32_t partition, const struct shard_state *state,
                         struct error *err);

#endif
