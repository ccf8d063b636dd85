/*
 * durable: what a job leaves on the disk while it runs, so that another process can go on with it.
 *
 * In the job's folder (server/state_dir.h) lie terms.json, snapshot-<n>.safetensors (none for n =
 * 0) and journal-<n>: what came behind snapshot n.  Every record of the shard is in the journal
 * before anybody can be answered from it.  Every so many rounds, and when the journal has grown
 * long, a thread of its own begins journal n + 1, copies the shard, partition by partition, while
 * it is used, and when snapshot n + 1 is on the disk removes what stands before it.  If that fails
 * the old ones stay, and the journals are read one after the other.
 *
 * Threads: durable_record from the shard's, under a partition's lock; durable_set_members from any;
 * the rest from one.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOB_LOG_H
#define SPARRING_SERVER_PERSISTENCE_JOB_LOG_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "server/shard/shard.h"

#include <stdbool.h>
#include <stdint.h>

#define DURABLE_JOURNAL_SNAPSHOTS 8u
#define DURABLE_JOURNAL_LEAST     (UINT64_C(64) << 20)

struct durable;

struct durable_config {
    const char *folder; /* of the job; copied */
    uint64_t digest;    /* of its terms */
    uint64_t every;     /* rounds between two snapshots; 0: any number */
    /* A longer journal is reason enough for a snapshot; 0: as long as DURABLE_JOURNAL_SNAPSHOTS of
     * them, at least DURABLE_JOURNAL_LEAST: so they add an eighth to what is written, at most. */
    uint64_t journal_bytes;
    const char *job;     /* copied, for the metadata of snapshots and the log */
    struct shard *shard; /* built; borrowed until durable_close */
};

/* What has been written by this process. */
struct durable_figures {
    uint64_t journal_records, journal_bytes;
    int64_t journal_ns;
    uint64_t snapshots, snapshot_bytes, snapshots_failed;
    int64_t snapshot_ns; /* of those that did not fail */
    bool restored;       /* it goes on with what an earlier process has written */
};

/* What was found. */
struct durable_restored {
    uint64_t records; /* of journals, applied or in the snapshot already */
    uint64_t cut;     /* bytes at the end that belonged to no whole record */
};

/* Begin a new job in its empty folder. */
enum status durable_create(const struct durable_config *config, struct durable **ret,
                           struct error *err);

/*
 * Go on with the job in the folder: fill the shard, which is as shard_init left it, from the newest
 * snapshot and the journals behind it.
 *   ret_members  the newest durable_set_members, appended; nothing when there was none: then nobody
 *                was told that the job runs
 * STATUS_DATA names the file that is damaged.
 */
enum status durable_restore(const struct durable_config *config, struct strbuf *ret_members,
                            struct durable_restored *ret_found, struct durable **ret,
                            struct error *err);

/* The shard's sink (struct shard_sink); user: the struct durable. */
enum status durable_record(void *user, const struct shard_record *record, struct error *err);

/* The job's folder. */
const char *durable_folder(const struct durable *d);

/* Who is in the job has changed: keep this text, at most JOURNAL_PAYLOAD_MAX bytes. */
enum status durable_set_members(struct durable *d, const char *text, struct error *err);

/* Take a snapshot now. */
enum status durable_snapshot(struct durable *d, struct error *err);

/* No further snapshot is begun, and the one under way is complete.  Records are still taken. */
void durable_stop(struct durable *d);

void durable_count(struct durable *d, struct durable_figures *ret);

/* Nobody uses it any more; the files stay.  NULL is allowed. */
void durable_close(struct durable *d);

#endif
