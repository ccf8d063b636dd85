/*
 * job_figures: what persistence and replication report about a job (counters, and the state of the
 * replica's stream), as plain data, so that statistics and records need not include them.  Each
 * fills its part (job_hooks.count).
 */
#ifndef SPARRING_SERVER_JOB_JOB_FIGURES_H
#define SPARRING_SERVER_JOB_JOB_FIGURES_H

#include "common/succession/succession.h"
#include "common/wire/wire_stats.h"

#include <stdbool.h>
#include <stdint.h>

/* What a primary has sent to its replica. */
struct replica_stream_figures {
    bool is_primary; /* it has, or had, a replica */
    enum succession_role role;
    uint64_t records, bytes;
    uint64_t acknowledged_records, acknowledged_bytes;
    uint64_t held;      /* replies that waited for an acknowledgement */
    int64_t held_ns;    /* summed over them */
    int64_t lost_ns;    /* clock_now_ns when the replica was declared lost; 0: it was not */
    int64_t detect_ns;  /* from its last sign of life to lost_ns */
    int64_t recover_ns; /* from lost_ns to continuing alone; 0: not yet */
};

struct job_figures {
    struct stats_counters counters; /* those of persistence and replication */
    bool is_replica_connected;      /* a replica is, to its primary */
    struct replica_stream_figures stream;
};

#endif
