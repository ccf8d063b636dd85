/*
 * job_log_internal: struct job_log, shared by writing (job_log.c) and restoring
 * (job_log_restore.c).
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOB_LOG_INTERNAL_H
#define SPARRING_SERVER_PERSISTENCE_JOB_LOG_INTERNAL_H

#include "server/persistence/job_log.h"
#include "server/persistence/journal.h"
#include "server/persistence/snapshot.h"

#include <pthread.h>
#include <stdbool.h>

#define JOB_LOG_PATH_MAX        4096
#define JOB_LOG_MEMBERSHIP_KIND 16u /* of a journal's record; those of the shard are below it */
#define JOB_LOG_NO_SNAPSHOT     UINT64_MAX

/* One partition, between the shard and a snapshot; sized for the largest. */
struct job_log_partition_buffer {
    struct shard_state state; /* its arrays are owned */
    uint64_t *flags;          /* owned; state.flags as a snapshot stores them */
};

struct job_log {
    char folder[JOB_LOG_PATH_MAX];
    char *job; /* owned */
    struct shard *shard;
    uint64_t digest;
    uint64_t snapshot_every_steps; /* of counted_partition; 0: not by steps */
    uint64_t journal_bytes_max;    /* a longer journal causes a snapshot */
    uint32_t counted_partition;    /* the first one, whose steps are counted */
    bool counts_steps;             /* there is a first partition */
    struct snapshot_shape shape;
    struct job_log_partition_buffer buffer;
    struct journal journal;
    uint64_t oldest_generation; /* of the files in the folder */

    /* Held while a snapshot is written; guards buffer, oldest_generation and the journal's
     * generation. */
    pthread_mutex_t snapshot_lock;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct strbuf membership;             /* of the last job_log_set_membership */
    struct stats_counters counters;       /* restored_jobs, snapshots */
    uint64_t long_generation, long_bytes; /* of the journal that last exceeded journal_bytes_max */
    bool snapshot_due;                    /* for the snapshot thread */
    bool stop;                            /* the snapshot thread */
    pthread_t thread;
    bool started;
};

/* Allocate; without a journal or a thread yet. */
enum status job_log_open(const struct job_log_config *config, struct job_log **ret,
                         struct error *err);

/* Start the snapshot thread. */
enum status job_log_start(struct job_log *log, struct error *err);

/* The expected head of the journal of a generation. */
struct journal_head job_log_journal_head(const struct job_log *log, uint64_t generation);

/* "<folder>/journal-<n>", "<folder>/snapshot-<n>.safetensors"; JOB_LOG_PATH_MAX bytes. */
enum status job_log_journal_path(const struct job_log *log, uint64_t generation, char *ret,
                                 struct error *err);
enum status job_log_snapshot_path(const struct job_log *log, uint64_t generation, char *ret,
                                  struct error *err);

/* Index, offset and count of the partition at local_index; the rest is zero. */
struct snapshot_partition job_log_snapshot_part(const struct job_log *log, size_t local_index);

#endif
