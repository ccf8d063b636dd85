/*
 * durable_internal: what the writing and the reading half of durable share.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOB_LOG_INTERNAL_H
#define SPARRING_SERVER_PERSISTENCE_JOB_LOG_INTERNAL_H

#include "server/persistence/job_log.h"
#include "server/persistence/journal.h"
#include "server/persistence/snapshot.h"

#include <pthread.h>
#include <stdbool.h>

#define DURABLE_PATH_MAX     4096
#define DURABLE_MEMBERS_KIND 16u /* of a journal's record; those of the shard are below it */
#define DURABLE_NO_SNAPSHOT  UINT64_MAX

/* One partition on its way to or from a snapshot; sized for the largest. */
struct durable_part {
    struct shard_state state; /* its arrays are owned */
    uint64_t *flags;          /* owned; state.flags as a snapshot has them */
};

struct durable {
    char folder[DURABLE_PATH_MAX];
    char *job; /* owned */
    struct shard *shard;
    uint64_t digest;
    uint64_t every_steps; /* of the first partition, between two snapshots; 0: any number */
    uint64_t longest;     /* bytes of a journal that is not reason enough for one */
    uint32_t first;       /* partition whose steps are counted; none without partitions */
    bool counts;          /* there is a first partition */
    struct snapshot_shape shape;
    struct durable_part part; /* of the thread that takes a snapshot */
    struct journal journal;
    uint64_t oldest; /* generation of the oldest journal that is still there */

    pthread_mutex_t taking; /* a snapshot; guards part, oldest, and the journal's generation */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct strbuf members; /* as durable_set_members was told last */
    struct durable_figures figures;
    uint64_t long_generation, long_bytes; /* of the journal that was too long, when it was */
    bool due;                             /* the thread is to take a snapshot */
    bool stop;                            /* and no other */
    pthread_t thread;
    bool started;
};

/* Everything but the journal, and no thread. */
enum status durable_open(const struct durable_config *config, struct durable **ret,
                         struct error *err);

/* The thread of snapshots. */
enum status durable_start(struct durable *d, struct error *err);

/* What the journal of a generation must say. */
struct journal_head durable_head(const struct durable *d, uint64_t generation);

/* "<folder>/journal-<n>", "<folder>/snapshot-<n>.safetensors"; DURABLE_PATH_MAX bytes. */
enum status durable_journal_path(const struct durable *d, uint64_t generation, char *ret,
                                 struct error *err);
enum status durable_snapshot_path(const struct durable *d, uint64_t generation, char *ret,
                                  struct error *err);

/* Where the partition in this slot lies, and its index. */
struct snapshot_part durable_place(const struct durable *d, size_t slot);

#endif
