/*
 * job: one run as one server sees it, from its first join to the last reference to its memory.
 *
 *   GATHERING  joins arrive and wait; a rank whose join call ends is removed
 *   BUILDING   all ranks agree; the supervisor allocates the shard
 *   RUNNING    streams are open, rounds are summed
 *   OVER       all ranks left, or `failure` is set.  The server may accept the next job at once;
 *              this one stays until its calls have closed and gRPC has released its payloads.
 *
 * Lock: the table's (job_table.h).  It guards every field but the shard (locks of its own),
 * `outstanding` (atomic) and the fields marked constant.  No function here blocks or does I/O.
 */
#ifndef SPARRING_SERVER_JOB_JOB_H
#define SPARRING_SERVER_JOB_JOB_H

#include "common/base/error.h"
#include "common/rpc/rpc.h"
#include "common/shard_map/shard_map.h"
#include "common/wire/wire.h"
#include "common/wire/wire_stats.h"
#include "server/job/membership.h"
#include "server/job/rank_session.h"
#include "server/shard/shard.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_RECORDS   1024u
#define JOB_INCIDENTS 256u

enum job_state { JOB_GATHERING, JOB_BUILDING, JOB_RUNNING, JOB_OVER };

/* This server's role for the job, whose shard two servers may hold; set by replication. */
enum job_role {
    JOB_ALONE,     /* no replica, or all ranks agreed to continue without it */
    JOB_PAIR,      /* the primary of a replica that has the current membership */
    JOB_CHANGING,  /* the primary of a replica that may lack a change of the membership: after a
                      restart this server cannot continue the job */
    JOB_REPLICA,   /* the replica: the ranks are connected to the primary */
    JOB_PROMOTED,  /* a replica that took over; alone now */
    JOB_SUPERSEDED /* the primary of a replica that took over */
};

/* Owned by higher layers, which free them (job_hooks). */
struct job_log;        /* server/persistence */
struct replica;        /* server/replication */
struct replica_stream; /* the same */
struct worker_memory;  /* server/service */

/* The purpose of a join whose reply is pending. */
enum job_join {
    JOIN_START,  /* become a member while the job is GATHERING */
    JOIN_RESUME, /* reconnect a session to its rank */
    JOIN_OCCUPY  /* take a rank that is vacant or whose session is lost */
};

/* A session that reconnects to a rank or takes it. */
struct joining_session {
    uint64_t session;
    unsigned lanes;
    const char *peer; /* borrowed */
};

struct job_rank {
    struct rank_session session; /* once the job runs */
    struct rpc_call *join;       /* a join whose reply is pending; one reference */
    enum job_join join_kind;
    int64_t join_deadline_ns;
    int64_t replacement_deadline_ns; /* JOIN_OCCUPY of a session that is HELD: refused if it is HELD
                                        still at this time */
    uint64_t join_session;           /* of the newest join */
    uint64_t join_attempt;           /* the newest of that session; 0: not sent */
    uint64_t join_round;             /* JOIN_RESUME: the last round that its worker has completed */
    unsigned join_lanes;
    const struct rpc_call *answered; /* the join that was answered last, until it closes; only for
                                        comparison */
    struct rpc_call *pending_join_reply; /* of a session that took the rank: its reply waits until
                                            the replica has pending_join_change; one reference */
    uint64_t pending_join_change;        /* see replication_send_membership */
    int64_t heard_ns;        /* its last chunk, or the start of the job; see job_update_pause */
    size_t pushed;           /* partitions of the current round */
    bool took_vacant_rank;   /* its session did: resends count as its pushes of the round */
    uint64_t clock;          /* rounds with all partitions pushed; only where each push is a step */
    bool finished;           /* pushes no more; its clock counts as infinite */
    size_t parked;           /* pending replies; not in lockstep */
    int64_t parked_since_ns; /* the first of them */
    uint64_t late;           /* pushes that were dropped */
    struct stats_staleness staleness; /* of its pushes that were applied */
    uint64_t pushes;                  /* partitions of all rounds */
    uint64_t round;                   /* of its newest push, 0 before the first */
    size_t round_pushes;              /* partitions of that round */
    struct worker_memory *memory;     /* shared by the worker; one reference; NULL: none */
    bool by_reference;                /* its newest chunk used shared memory: so do replies, if
                                         possible */
    bool by_channel;                  /* and it came through the channel: likewise */
};

/* One round on this server; METRICS.md defines the figures.  Where each push is a step, a round
 * ends when the slowest rank has pushed all partitions. */
struct round_record {
    uint64_t round;
    uint64_t rx_payload_bytes, tx_payload_bytes;
    int64_t begin_ns, end_ns; /* first contribution received, last sum complete */
    int64_t sum_ns;           /* summed over the partitions */
    int64_t wait_ns;          /* summed over the partitions */
};

/* How a break of a rank's connection ended. */
enum incident_end { INCIDENT_BACK, INCIDENT_VACATED, INCIDENT_REPLACED, INCIDENT_FAILED };

struct incident {
    enum incident_end end;
    unsigned rank;
    char how[RANK_SESSION_HOW_MAX]; /* the connection broke */
    uint64_t round;                 /* under way at the end */
    uint64_t epoch;                 /* from then on */
    int64_t detect_ns;  /* from the rank's last sign of life to the detection of the break */
    int64_t recover_ns; /* from there to the end: a session has the rank, or rounds omit it */
};

struct job {
    enum job_state state;
    struct membership members;
    /* Of the first join, without its manifest; its rules and weights are owned; constant. */
    struct join_request terms;
    struct job_rank *ranks;                /* owned, world_size of them */
    uint64_t epoch;                        /* of the membership, from 1 once it runs */
    struct shard_map map;                  /* constant once built */
    struct shard shard;                    /* constant once built, but for its own locks */
    bool shares;                           /* a rank can map the reply memory; read by job_build */
    size_t users;                          /* calls and threads that hold a pointer to it */
    atomic_size_t outstanding;             /* payloads inside the shard that gRPC still holds */
    struct error failure;                  /* OVER: STATUS_OK when all ranks left in order */
    enum job_role role;                    /* as last persisted, if the job is persisted */
    struct replica_stream *replica_stream; /* of a primary; constant once it runs */
    struct replica *replica;               /* of a job that began as a copy; constant */
    struct job_log *log;      /* NULL: it ends with its server; constant once it runs */
    bool files_decided;       /* OVER: whether its files are kept or deleted is decided */
    bool replacement_pending; /* no rank is left, but a join for some rank is pending */

    size_t arrived;          /* contributions to the current round; where each push is a step, since
                                its record began */
    size_t completed;        /* partitions complete in the current round */
    size_t arrived_complete; /* of arrived, those in complete partitions; in lockstep */
    struct round_record current;  /* of the round under way */
    size_t values_set;            /* partitions whose initial value is here */
    int64_t parked_since_ns;      /* a rank waits for initial values; 0: none does */
    struct stats_counters totals; /* but for the round under way, and `pushes` of the ranks */
    uint64_t missed_rules;        /* pushes applied at another staleness than their rule's */

    struct round_record records[JOB_RECORDS]; /* ring, written by the supervisor */
    size_t records_first, records_count;
    struct incident incidents[JOB_INCIDENTS]; /* ring, written by the supervisor */
    size_t incidents_first, incidents_count;
    int64_t paused_since_ns;   /* a rank is AWAY or LOST: no stall is reported; 0: not paused */
    int64_t paused_ns;         /* in the current round */
    bool recording, recorded;  /* the supervisor has opened, has closed the job's file */
    double cpu_seconds_before; /* of this process, when the job began */
    int64_t over_ns;
    struct job *next; /* in the service's list */
};

/* Open a job in GATHERING with the terms of its first join, which does not become a member yet. */
enum status job_open(const struct join_request *request, struct job **ret_job, struct error *err);

/* Free the job; requires that users and outstanding are 0. */
void job_close(struct job *j);

/* Compare the ranks' terms and allocate the shard.  No lock: other threads read the map and the
 * shard only once the job runs, and manifests do not change while BUILDING. */
enum status job_build(struct job *j, struct error *err);

/* Enter RUNNING at `now_ns`. */
void job_run(struct job *j, int64_t now_ns);

/* Enter OVER; failure NULL: all ranks left in order.  Returns false and does nothing if the job is
 * over already. */
bool job_end(struct job *j, const struct error *failure, int64_t now_ns);

/* Count an initial value. */
void job_count_initial(struct job *j, size_t bytes);

/* Count a contribution of `rank` to a round that came at now_ns. */
void job_count_push(struct job *j, unsigned rank, uint64_t round, size_t bytes, int64_t now_ns);

/* Count a resent contribution or request. */
void job_count_retry(struct job *j, unsigned rank, bool is_push, int64_t now_ns);

/* In lockstep: count a complete sum of a partition, as `reply` describes it, and its replies. */
void job_count_complete(struct job *j, const struct shard_reply *reply, int64_t now_ns);

/* Not in lockstep: count the outcome of a contribution of `rank`; a round that completed because a
 * rank finished; a reply; the finish of a rank in one partition; a reply that becomes pending. */
void job_count_outcome(struct job *j, unsigned rank, const struct shard_reply *reply,
                       int64_t now_ns);
void job_count_complete_sum(struct job *j, const struct shard_reply *reply, int64_t now_ns);
void job_count_reply(struct job *j, unsigned rank, size_t bytes, bool is_final);
void job_count_finish(struct job *j, unsigned rank, bool wants_final, int64_t now_ns);
void job_count_park(struct job *j, unsigned rank, int64_t now_ns);
void job_count_unpark(struct job *j, unsigned rank); /* undo job_count_park: the resend is replied
                                                        to at once */

/*
 * Continue a job that another process has begun.  Replaces the joins while GATHERING: adds all
 * ranks with the terms and manifest of one rank, which are the same for all, and their sessions.
 */
enum status job_join_all(struct job *j, const struct join_request *terms, const uint64_t *sessions,
                         const char *peer, struct error *err);

/* Derive the counters from the shard.  Takes the locks of its partitions under the job's: only
 * while no other thread uses the shard. */
void job_restore(struct job *j, int64_t now_ns);

/* Mark every HELD rank as AWAY; all ranks may reconnect until until_ns. */
void job_mark_away(struct job *j, const char *how, int64_t until_ns, int64_t now_ns);

/* A rank is lost or has left, and the others continue without it.  job_remove_rank removes it from
 * the membership, in a new epoch; job_vacate marks it VACANT once no partition waits for it. */
void job_remove_rank(struct job *j, unsigned rank);
void job_vacate(struct job *j, unsigned rank, int64_t now_ns);

/* Another session takes the rank in a new epoch.  clock: the last round that counts as pushed by
 * it. */
void job_occupy(struct job *j, unsigned rank, const struct joining_session *by, uint64_t clock,
                int64_t now_ns);

/* Does every rank wait for every other in each round? */
bool job_is_lockstep(const struct job *j);

/* The round under way, or the next one. */
uint64_t job_round(const struct job *j);

/* Do contributions wait for those of other ranks? */
bool job_is_pending(const struct job *j);

/* The number of contributions whose replies are pending because others are missing. */
size_t job_waiting(const struct job *j);

/* True if replies are pending and the missing ranks have been silent for timeout_ms, or if a rank
 * has not opened its stream for as long; fills err (STATUS_TIMEOUT, with their ranks). */
bool job_has_stalled(const struct job *j, int64_t now_ns, int64_t timeout_ms, struct error *err);

/* True if a join has waited past its deadline; fills err (STATUS_TIMEOUT). */
bool job_join_expired(const struct job *j, int64_t now_ns, struct error *err);

/* Call after each change of a session's state.  While a rank is AWAY or LOST the silence of the
 * others is not counted; when none is any more, the pause is subtracted from their silence. */
void job_update_pause(struct job *j, int64_t now_ns);

/* The longest time that the others may wait for a rank that is AWAY or LOST, and that rank; 0:
 * there is none.  timeout_ms: the time for a replacement to join. */
int64_t job_waiting_ms(const struct job *j, int64_t timeout_ms, int64_t now_ns, unsigned *ret_rank);

/* Queue a record of an incident that has ended; take the oldest one. */
void job_add_incident(struct job *j, unsigned rank, enum incident_end end, int64_t now_ns);
bool job_next_incident(struct job *j, struct incident *ret);

/* Take the oldest unwritten record. */
bool job_next_record(struct job *j, struct round_record *ret);

/* Are there no more references to it? */
bool job_is_unused(struct job *j);

/* Add a reference to each of a rank's open calls, joins included; returns their number, at most
 * JOB_CALLS_MAX. */
#define JOB_CALLS_MAX (RANK_SESSION_CALLS_MAX + 2)
size_t job_ref_calls(const struct job *j, unsigned rank, struct rpc_call **ret);

#endif
