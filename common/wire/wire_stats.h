/*
 * wire_stats: a server's statistics.  One struct is the source of both the Stats call (packed here)
 * and the metrics page; proto/stats.proto defines each field.
 */
#ifndef SPARRING_COMMON_WIRE_WIRE_STATS_H
#define SPARRING_COMMON_WIRE_WIRE_STATS_H

#include "common/base/strbuf.h"
#include "common/rpc/rpc.h"
#include "common/wire/wire.h"

#include <stdbool.h>

#define STATS_METHODS_MAX      32
#define STATS_WORKERS_MAX      1024
#define STATS_STALENESS_BOUNDS 12

/* Monotonic counters: field, what it counts.  The field is its name in proto/stats.proto, in the
 * "end" line of a job's log (those of a job) and, between "sparring_server_" and "_total", on the
 * metrics page. */
#define STATS_JOB_COUNTERS(X)                                                                      \
    X(rounds, "Rounds that are complete on this server.")                                          \
    X(rx_payload_bytes, "Bytes of gradients received.")                                            \
    X(tx_payload_bytes, "Bytes of answers to them.")                                               \
    X(initial_rx_payload_bytes, "Bytes of values at the start of a job, received.")                \
    X(initial_tx_payload_bytes, "Bytes of values at the start of a job, sent.")                    \
    X(final_tx_payload_bytes, "Bytes of values behind the last round, sent.")                      \
    X(rx_reference_bytes, "Of all bytes received: those read in a worker's shared memory.")        \
    X(tx_reference_bytes, "Of all bytes sent: those that a worker reads in shared memory.")        \
    X(late_pushes, "Contributions that came too late and were dropped.")                           \
    X(retries, "Contributions and requests that had been taken before.")                           \
    X(disconnects, "Ranks that were cut off: a call broke, or there was silence.")                 \
    X(reconnects, "Ranks that came back to their place.")                                          \
    X(lost_ranks, "Ranks that did not come back in time.")                                         \
    X(taken_places, "Places of lost ranks that others took.")
#define STATS_COUNTERS(X)                                                                          \
    STATS_JOB_COUNTERS(X)                                                                          \
    X(pushes, "Contributions received, one partition of one rank each.")                           \
    X(records_dropped, "Round and disconnect records that no disk was fast enough for.")           \
    X(restored_jobs, "Jobs of an earlier process that were taken up from the state folder.")       \
    X(journal_records, "Records that were written to a job's journal.")                            \
    X(journal_bytes, "Bytes of them.")                                                             \
    X(snapshots, "Snapshots of a shard that were written.")                                        \
    X(snapshot_bytes, "Bytes of them.")                                                            \
    X(snapshots_failed, "Snapshots that could not be written.")                                    \
    X(promotions, "Copies with which this server took its primary's place.")                       \
    X(replicas_lost, "Replicas that this server, their primary, gave up.")                         \
    X(replica_records, "Records that were sent to replicas.")                                      \
    X(replica_bytes, "Bytes of payload in them.")                                                  \
    X(acknowledged_records, "Of these records, those that a replica has taken.")                   \
    X(acknowledged_bytes, "Bytes of payload in them.")                                             \
    X(copied_records, "Records that were taken as a replica.")                                     \
    X(copied_bytes, "Bytes of payload in them.")

/* The same for times: "<name>_ns" here, "<name>_seconds" elsewhere. */
#define STATS_JOB_TIMES(X)                                                                         \
    X(sum, "Time spent reading and adding contributions, in the optimizer, encoding replies, and " \
           "giving steps to the journal and the replica.")                                         \
    X(wait, "Time from a partition's first contribution to its last.")                             \
    X(detect, "Time from a rank's last sign of life until its disconnect was noticed.")            \
    X(recover,                                                                                     \
      "Time from there until a session had the rank again, or rounds continued without it.")
#define STATS_TIMES(X)                                                                             \
    STATS_JOB_TIMES(X)                                                                             \
    X(journal, "Time spent on records of journals, summed over the threads that write.")           \
    X(snapshot, "Time from the beginning of a snapshot until it was on the disk.")

/* Histogram of the pushes' staleness: counts[i] has those above bound i - 1 and up to bound i. */
struct stats_staleness {
    uint64_t counts[STATS_STALENESS_BOUNDS + 1];
    uint64_t sum; /* of the staleness of all pushes */
};

struct stats_counters {
#define X(field, help) uint64_t field;
    STATS_COUNTERS(X)
#undef X
#define X(name, help) int64_t name##_ns;
    STATS_TIMES(X)
#undef X
    struct stats_staleness staleness;
};

struct stats_worker {
    uint32_t rank;
    bool connected;
    uint64_t pushes, late_pushes, staleness_sum;
    double lag_rounds, silent_seconds;
};

struct stats_job {
    char name[WIRE_JOB_MAX];
    const char *state, *mode; /* constant */
    const char *role; /* constant; of a job that has, or had, a replica: "primary" or "replica" */
    char peer[WIRE_ADDRESS_MAX]; /* the other of the two servers; "": none */
    bool runs;                   /* the fields after `left` are known */
    uint32_t server_index, server_count;
    uint32_t staleness_bound, backup_workers;
    uint32_t world_size, joined, left;
    uint64_t round, epoch, partitions, elements, shard_bytes;
    double load_max_over_mean;
    uint64_t waiting_pushes, waiting_records;
    uint64_t replica_lag_records, replica_lag_bytes;
};

struct server_stats {
    const char *version, *grpc_version; /* constant */
    double start_time_seconds, cpu_seconds;
    uint64_t resident_bytes;
    bool draining;
    uint64_t jobs_ok, jobs_failed;
    uint64_t answers_in_flight;
    struct stats_counters counters;
    struct rpc_call_counts methods[STATS_METHODS_MAX];
    size_t method_count;
    bool has_job;
    struct stats_job job;
    struct stats_worker workers[STATS_WORKERS_MAX];
    size_t worker_count;
};

/* Largest staleness that bucket `index` (below STATS_STALENESS_BOUNDS) counts: 0, 1, 2, 4 ... 1024.
 */
uint64_t stats_staleness_bound(size_t index);

/* Count `pushes` pushes of that staleness. */
void stats_count_staleness(struct stats_staleness *s, uint64_t staleness, uint64_t pushes);

/* Allocates *ret_bytes (free). */
enum status wire_pack_stats(const struct server_stats *stats, uint8_t **ret_bytes, size_t *ret_size,
                            struct error *err);

/* Append a packed reply (at most WIRE_CONTROL_MAX untrusted bytes) as indented JSON whose members
 * are the fields of proto/stats.proto; numbers that are not finite become null.  STATUS_DATA when
 * it is malformed; *out is then unchanged. */
enum status wire_stats_to_json(const uint8_t *bytes, size_t size, struct strbuf *out,
                               struct error *err);

#endif
