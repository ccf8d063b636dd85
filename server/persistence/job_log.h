/*
 * job_log: what a job leaves on the disk while it runs, so that another process can go on with it.
 *
 * In the job's folder (server/state_dir.h) lie terms.json, snapshot-<n>.safetensors (none for n =
 * 0) and journal-<n>: what came behind snapshot n.  Every record of the shard is in the journal
 * before anybody can be answered from it.  Every so many rounds, and when the journal has grown
 * long, a thread of its own begins journal n + 1, copies the shard, partition by partition, while
 * it is used, and when snapshot n + 1 is on the disk removes what stands before it.  If that fails
 * the old ones stay, and the journals are read one after the other.
 *
 * Threads: job_log_record from the shard's, under a partition's lock; job_log_set_members from any;
 * the rest from one.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOB_LOG_H
#define SPARRING_SERVER_PERSISTENCE_JOB_LOG_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "server/job/job_figures.h"
#include "server/shard/shard.h"

#include <stdbool.h>
#include <stdint.h>

#define JOB_LOG_JOURNAL_SNAPSHOTS 8u
#define JOB_LOG_JOURNAL_LEAST     (UINT64_C(64) << 20)

struct job_log;

struct job_log_config {
    const char *folder; /* of the job; copied */
    uint64_t digest;    /* of its terms */
    uint64_t every;     /* rounds between two snapshots; 0: any number */
    /* A longer journal is reason enough for a snapshot; 0: as long as JOB_LOG_JOURNAL_SNAPSHOTS of
     * them, at least JOB_LOG_JOURNAL_LEAST: so they add an eighth to what is written, at most. */
    uint64_t journal_bytes;
    const char *job;     /* copied, for the metadata of snapshots and the log */
    struct shard *shard; /* built; borrowed until job_log_close */
};

/* What was found. */
struct job_log_restored {
    uint64_t records; /* of journals, applied or in the snapshot already */
    uint64_t cut;     /* bytes at the end that belonged to no whole record */
};

/* Begin a new job in its empty folder. */
enum status job_log_create(const struct job_log_config *config, struct job_log **ret,
                           struct error *err);

/*
 * Go on with the job in the folder: fill the shard, which is as shard_init left it, from the newest
 * snapshot and the journals behind it.
 *   ret_members  the newest job_log_set_members, appended; nothing when there was none: then nobody
 *                was told that the job runs
 * STATUS_DATA names the file that is damaged.
 */
enum status job_log_restore(const struct job_log_config *config, struct strbuf *ret_members,
                            struct job_log_restored *ret_found, struct job_log **ret,
                            struct error *err);

/* The shard's sink (struct shard_sink); user: the struct job_log. */
enum status job_log_record(void *user, const struct mutation *record, struct error *err);

/* The job's folder. */
const char *job_log_folder(const struct job_log *d);

/* Who is in the job has changed: keep this text, at most JOURNAL_PAYLOAD_MAX bytes. */
enum status job_log_set_members(struct job_log *d, const char *text, struct error *err);

/* Take a snapshot now. */
enum status job_log_snapshot(struct job_log *d, struct error *err);

/* No further snapshot is begun, and the one under way is complete.  Records are still taken. */
void job_log_stop(struct job_log *d);

void job_log_count(struct job_log *d, struct job_log_figures *ret);

/* Nobody uses it any more; the files stay.  NULL is allowed. */
void job_log_close(struct job_log *d);

#endif
