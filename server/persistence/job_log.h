/*
 * job_log: the journal and the snapshots of a running job, from which another process can resume.
 *
 * The job's folder (server/persistence/state_dir.h) contains terms.json,
 * snapshot-<n>.safetensors (none for n = 0) and journal-<n>, the mutations after snapshot n.  Every
 * mutation of the shard is in the journal before a reply can depend on it.  Every so many rounds,
 * and when the journal has become long, a thread begins journal n + 1, copies the shard partition
 * by partition while it is in use, and removes the older files once snapshot n + 1 is on the disk.
 * If that fails the older files stay, and a restore reads the journals one after the other.
 *
 * Threads: job_log_append from those of the shard, under a partition's lock;
 * job_log_set_membership and job_log_count from any; the rest from one.  Called by: persistence.c.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOB_LOG_H
#define SPARRING_SERVER_PERSISTENCE_JOB_LOG_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "common/wire/wire_stats.h"
#include "server/shard/shard.h"

#include <stdbool.h>
#include <stdint.h>

#define JOB_LOG_JOURNAL_SNAPSHOTS_MAX 8u
#define JOB_LOG_JOURNAL_BYTES_MIN     (UINT64_C(64) << 20)

struct job_log;

struct job_log_config {
    const char *folder;      /* of the job; copied */
    uint64_t digest;         /* of its terms */
    uint64_t snapshot_every; /* rounds between two snapshots; 0: not by rounds */
    /* A longer journal causes a snapshot.  0: JOB_LOG_JOURNAL_SNAPSHOTS_MAX times the size of a
     * snapshot, at least JOB_LOG_JOURNAL_BYTES_MIN: snapshots then add at most an eighth to the
     * bytes written. */
    uint64_t journal_bytes;
    const char *job;     /* copied; for the metadata of snapshots and log messages */
    struct shard *shard; /* built; borrowed until job_log_close */
};

struct job_log_restored {
    uint64_t records;    /* of journals, applied or contained in the snapshot */
    uint64_t torn_bytes; /* removed from the end of the last journal: an incomplete record */
};

/* Begin the log of a new job in its folder, which has no journal or snapshot. */
enum status job_log_create(const struct job_log_config *config, struct job_log **ret,
                           struct error *err);

/*
 * Resume the job in the folder: fill the shard, which must be as shard_init left it, from the
 * newest snapshot and the journals after it.
 *   ret_membership  the newest job_log_set_membership, appended; nothing when there was none: then
 *                   no join was replied to
 * STATUS_DATA names the file that is damaged or missing.
 */
enum status job_log_restore(const struct job_log_config *config, struct strbuf *ret_membership,
                            struct job_log_restored *ret_found, struct job_log **ret,
                            struct error *err);

/* The shard's sink (struct shard_sink); user: the struct job_log. */
enum status job_log_append(void *user, const struct mutation *record, struct error *err);

const char *job_log_folder(const struct job_log *log);

/* The membership has changed: append this text, at most JOURNAL_PAYLOAD_MAX bytes. */
enum status job_log_set_membership(struct job_log *log, const char *text, struct error *err);

/* Write a snapshot now. */
enum status job_log_snapshot(struct job_log *log, struct error *err);

/* Wait for the snapshot in progress and begin no other.  Mutations can still be appended. */
void job_log_stop(struct job_log *log);

/* What it has written in this process. */
void job_log_count(struct job_log *log, struct stats_counters *ret);

/* Free, when no other thread uses it; the files stay.  NULL is allowed. */
void job_log_close(struct job_log *log);

#endif
