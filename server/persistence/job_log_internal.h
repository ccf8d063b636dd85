/*
 * job_log_internal: what the writing and the reading half of job_log share.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOB_LOG_INTERNAL_H
#define SPARRING_SERVER_PERSISTENCE_JOB_LOG_INTERNAL_H

#include "server/persistence/job_log.h"
#include "server/persistence/journal.h"
#include "server/persistence/snapshot.h"

#include <pthread.h>
#include <stdbool.h>

#define JOB_LOG_PATH_MAX     4096
#define JOB_LOG_MEMBERS_KIND 16u /* of a journal's record; those of the shard are below it */
#define JOB_LOG_NO_SNAPSHOT  UINT64_MAX

/* One partition on its way to or from a snapshot; sized for the largest. */
struct job_log_part {
    struct shard_state state; /* its arrays are owned */
    uint64_t *flags;          /* owned; state.flags as a snapshot has them */
};

struct job_log {
    char folder[JOB_LOG_PATH_MAX];
    char *job; /* owned */
    struct shard *shard;
    uint64_t digest;
    uint64_t every_steps; /* of the first partition, between two snapshots; 0: any number */
    uint64_t longest;     /* bytes of a journal that is not reason enough for one */
    uint32_t first;       /* partition whose steps are counted; none without partitions */
    bool counts;          /* there is a first partition */
    struct snapshot_shape shape;
    struct job_log_part part; /* of the thread that takes a snapshot */
    struct journal journal;
    uint64_t oldest; /* generation of the oldest journal that is still there */

    pthread_mutex_t taking; /* a snapshot; guards part, oldest, and the journal's generation */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct strbuf members; /* as job_log_set_members was told last */
    struct job_log_figures figures;
    uint64_t long_generation, long_bytes; /* of the journal that was too long, when it was */
    bool due;                             /* the thread is to take a snapshot */
    bool stop;                            /* and no other */
    pthread_t thread;
    bool started;
};

/* Everything but the journal, and no thread. */
enum status job_log_open(const struct job_log_config *config, struct job_log **ret,
                         struct error *err);

/* The thread of snapshots. */
enum status job_log_start(struct job_log *d, struct error *err);

/* What the journal of a generation must say. */
struct journal_head job_log_head(const struct job_log *d, uint64_t generation);

/* "<folder>/journal-<n>", "<folder>/snapshot-<n>.safetensors"; JOB_LOG_PATH_MAX bytes. */
enum status job_log_journal_path(const struct job_log *d, uint64_t generation, char *ret,
                                 struct error *err);
enum status job_log_snapshot_path(const struct job_log *d, uint64_t generation, char *ret,
                                  struct error *err);

/* Where the partition in this slot lies, and its index. */
struct snapshot_part job_log_place(const struct job_log *d, size_t slot);

#endif
