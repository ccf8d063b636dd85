/*
 * job: one run as one server sees it, from its first join to the last reference to its memory.
 *
 *   GATHERING  joins come in and wait; a rank whose join call ends is forgotten
 *   BUILDING   all ranks agree; the supervisor allocates the shard
 *   RUNNING    streams are open, rounds go round
 *   OVER       everyone left, or `failure` says why not.  The server may take the next job at once;
 *              this one stays until its calls have closed and core has let go of its memory.
 *
 * Lock: the table's (job_table.h).  It guards every field but the shard (locks of its own),
 * `outstanding` (atomic) and what is said to be constant.  No function here blocks or does I/O.
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

/* What this server is to the job, whose shard may be kept by two; replication sets it. */
enum job_role {
    JOB_ALONE,     /* no other server has a say: there is none, or all ranks are with this one */
    JOB_PAIR,      /* the primary of a replica that knows these ranks */
    JOB_CHANGING,  /* the same, of one that may know others: nobody can go on from here */
    JOB_COPY,      /* the replica: its ranks are the primary's */
    JOB_PROMOTED,  /* it was; now it is alone */
    JOB_SUPERSEDED /* the primary of a replica that has taken over */
};

/* Kept in a job for the rooms above, which free them (job_hooks). */
struct job_log;        /* server/persistence */
struct replica;        /* server/replication */
struct replica_stream; /* the same */
struct worker_memory;  /* server/service */

/* What a join that waits for its answer is to become. */
enum job_join {
    JOIN_START,  /* a member of the job that gathers */
    JOIN_RESUME, /* the holder of its slot again */
    JOIN_TAKE    /* the holder of a slot that another one lost */
};

/* Who comes back to a slot, or takes it. */
struct job_newcomer {
    uint64_t session;
    unsigned lanes;
    const char *peer; /* borrowed */
};

struct job_rank {
    struct rank_session session; /* once the job runs */
    struct rpc_call *join;       /* waits for its answer; one reference */
    enum job_join join_kind;
    int64_t join_deadline_ns;
    int64_t takeover_deadline_ns; /* JOIN_TAKE of a session that is HELD: then refused, if still */
    uint64_t join_session;        /* of the newest join */
    uint64_t join_attempt;        /* the newest of that session; 0: it has said none */
    uint64_t join_round;          /* JOIN_RESUME: the last round that its worker has completed */
    unsigned join_lanes;
    const struct rpc_call *answered; /* the join that was answered last, until it closes; only to be
                                        compared with */
    struct rpc_call *pending_join_reply; /* of a session that took the place, to be replied to once
                                            the replica knows; a reference */
    uint64_t pending_join_change;        /* ... this change: see replication_change_members */
    int64_t heard_ns; /* its last chunk, or the start of the job; see job_resume_watch */
    size_t pushed;    /* partitions of the current round */
    bool fresh;       /* took a slot and pushes as if it had before: what is in already counts */
    uint64_t clock;   /* rounds that it has pushed whole; only where each push is a step */
    bool finished;    /* pushes no more; its clock counts as infinite */
    size_t parked;    /* answers that it waits for; not in lockstep */
    int64_t parked_since_ns;          /* the first of them */
    uint64_t late;                    /* pushes that were dropped */
    struct stats_staleness staleness; /* of its pushes that were used */
    uint64_t pushes;                  /* partitions of all rounds */
    uint64_t round;                   /* of its newest push, 0 before the first */
    size_t round_pushes;              /* partitions of that round */
    struct worker_memory *memory;     /* that it has handed over; one reference; NULL: none */
    bool by_reference;                /* its newest chunk came so: answers go so, where they can */
};

/* One round on this server; METRICS.md defines the figures.  Where each push is a step, a round
 * ends when the slowest rank has pushed all of it. */
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
    int64_t detect_ns;  /* from the rank's last sign of life to the break being noticed */
    int64_t recover_ns; /* from there to the end: the slot held again, or rounds without it */
};

struct job_totals {
    uint64_t rounds;
    uint64_t rx_payload_bytes, tx_payload_bytes;                 /* of rounds >= 1 */
    uint64_t initial_rx_payload_bytes, initial_tx_payload_bytes; /* of round 0 */
    uint64_t rx_reference_bytes, tx_reference_bytes; /* of all these: in shared memory */
    uint64_t final_tx_payload_bytes;                 /* behind the last round */
    uint64_t late;                                   /* pushes that were dropped */
    uint64_t missed;                 /* pushes not applied where their rule of staleness says */
    struct stats_staleness lateness; /* their staleness */
    int64_t sum_ns, wait_ns;
    struct stats_staleness staleness; /* of the pushes that were summed */
    uint64_t unrecorded;              /* rounds whose record was dropped: the disk was too slow */
    uint64_t retries;                 /* contributions and requests that had been taken before */
    uint64_t cut, back, lost, taken;  /* breaks of a connection, and how they ended */
    int64_t detect_ns, recover_ns;    /* summed over the incidents */
};

struct job {
    enum job_state state;
    struct membership members;
    /* Of the first join, without its manifest; its rules and weights are owned; constant. */
    struct join_request terms;
    struct job_rank *ranks;    /* owned, world_size of them */
    uint64_t epoch;            /* of the membership, from 1 once it runs */
    struct shard_map map;      /* constant once built */
    struct shard shard;        /* constant once built, but for its own locks */
    bool shares;               /* a rank would read answers where they lie; until it is built */
    size_t users;              /* calls and threads that hold a pointer to it */
    atomic_size_t outstanding; /* payloads inside the shard that core still holds */
    struct error failure;      /* OVER: STATUS_OK when everyone left in order */
    enum job_role role;        /* as it was kept last, where it is kept */
    struct replica_stream *replica_stream; /* of a primary; constant once it runs */
    struct replica *replica;               /* of a job that began as a copy; constant */
    struct job_log *log;   /* NULL: it ends with its server; constant once it runs */
    bool settled;          /* OVER: what becomes of its files is decided */
    bool takeover_pending; /* the last rank was lost, and another waits for its place */

    size_t arrived;   /* contributions to the current round; where each push is a step, since its
                         record began */
    size_t completed; /* partitions complete in the current round */
    size_t taken;     /* of arrived, those in complete partitions; in lockstep */
    struct round_record current; /* of the round under way */
    size_t values_set;           /* partitions whose initial value is here */
    int64_t parked_since_ns;     /* 0: nobody waits for initial values */
    struct job_totals totals;

    struct round_record records[JOB_RECORDS]; /* for the supervisor to write */
    size_t records_first, records_count;
    struct incident incidents[JOB_INCIDENTS]; /* as well */
    size_t incidents_first, incidents_count;
    int64_t paused_since_ns;   /* somebody is away or waited for: no verdicts on the others; or 0 */
    int64_t paused_ns;         /* in the current round */
    bool recording, recorded;  /* the supervisor opened, has finished, the job's file */
    double cpu_seconds_before; /* of this process, when the job began */
    int64_t over_ns;
    struct job *next; /* in the service's list */
};

/* A job in GATHERING for the terms of its first join (which is not yet a member). */
enum status job_open(const struct join_request *request, struct job **ret_job, struct error *err);

/* Only when it may be: users and outstanding are 0. */
void job_close(struct job *j);

/* Compare the ranks and allocate.  No lock: state is BUILDING, only the supervisor is here. */
enum status job_build(struct job *j, struct error *err);

/* RUNNING from `now_ns` on. */
void job_run(struct job *j, int64_t now_ns);

/* OVER.  failure NULL: all left in order.  Does nothing when it is over already; returns whether it
 * was not. */
bool job_end(struct job *j, const struct error *failure, int64_t now_ns);

/* An initial value came. */
void job_count_initial(struct job *j, size_t bytes);

/* Count a contribution of `rank` to a round that came at now_ns. */
void job_count_push(struct job *j, unsigned rank, uint64_t round, size_t bytes, int64_t now_ns);

/* A contribution, or a request, that had been taken before. */
void job_count_retry(struct job *j, unsigned rank, bool is_push, int64_t now_ns);

/* Everyone's contribution is summed, as `answer` says; the answers to all are counted, too. In
 * lockstep. */
void job_count_complete(struct job *j, const struct shard_reply *answer, int64_t now_ns);

/* Not in lockstep: what became of a contribution of `rank`, a round that became whole because ranks
 * finished, one answer, the end of a rank in one partition, and that it waits or waits no more. */
void job_count_outcome(struct job *j, unsigned rank, const struct shard_reply *answer,
                       int64_t now_ns);
void job_count_whole(struct job *j, const struct shard_reply *answer, int64_t now_ns);
void job_count_answer(struct job *j, unsigned rank, size_t bytes, bool is_final);
void job_count_finish(struct job *j, unsigned rank, bool wants_final, int64_t now_ns);
void job_count_park(struct job *j, unsigned rank, int64_t now_ns);
void job_count_unpark(struct job *j, unsigned rank); /* that it waits was counted before */

/*
 * A job that another process has begun.  Instead of joins, while it is GATHERING: all ranks, with
 * one rank's terms (and manifest), which all agree on, and their sessions.
 */
enum status job_join_all(struct job *j, const struct join_request *terms, const uint64_t *sessions,
                         const char *peer, struct error *err);

/* The books as they follow from the shard.  Takes the locks of its partitions, under the job's:
 * only while nobody else uses the shard. */
void job_restore(struct job *j, int64_t now_ns);

/* Every rank that holds its slot is AWAY, and all of those may come back until until_ns. */
void job_send_away(struct job *j, const char *how, int64_t until_ns, int64_t now_ns);

/* A rank is lost or has left, and the others go on without it: out of the membership, in a new
 * epoch; and, when no partition waits for it any more, its slot is VACANT. */
void job_lose(struct job *j, unsigned rank);
void job_vacate(struct job *j, unsigned rank, int64_t now_ns);

/* Another session, from `peer`, takes the slot in a new epoch; it has the contributions up to
 * `clock` behind it. */
void job_occupy(struct job *j, unsigned rank, const struct job_newcomer *by, uint64_t clock,
                int64_t now_ns);

/* Every rank waits for every other in each round. */
bool job_is_lockstep(const struct job *j);

/* The round that is under way, or would be next. */
uint64_t job_round(const struct job *j);

/* Contributions wait for others. */
bool job_is_pending(const struct job *j);

/* Contributions that are not answered because others are awaited. */
size_t job_waiting(const struct job *j);

/* Somebody waits and the ranks that are missing have been silent for timeout_ms, or a rank has not
 * opened its stream for as long: fill err (STATUS_TIMEOUT, with their ranks) and return true. */
bool job_has_stalled(const struct job *j, int64_t now_ns, int64_t timeout_ms, struct error *err);

/* A join has waited past its deadline: fill err (STATUS_TIMEOUT) and return true. */
bool job_join_expired(const struct job *j, int64_t now_ns, struct error *err);

/* A rank's slot has changed: while one of them is away or lost, the others' silence does not
 * count, and later the time it took is not held against anybody. */
void job_resume_watch(struct job *j, int64_t now_ns);

/* How long the others may have to wait for ranks that are away or lost, at most, and *ret_rank, the
 * one that takes longest; 0: nobody is. timeout_ms: what a replacement may take. */
int64_t job_waiting_ms(const struct job *j, int64_t timeout_ms, int64_t now_ns, unsigned *ret_rank);

/* Note how an incident of the rank's slot has ended. */
void job_note_incident(struct job *j, unsigned rank, enum incident_end end, int64_t now_ns);
bool job_next_incident(struct job *j, struct incident *ret);

/* Take the oldest unwritten record. */
bool job_next_record(struct job *j, struct round_record *ret);

/* Nothing refers to it any more. */
bool job_is_unused(struct job *j);

/* References to a rank's open calls, joins included, at most JOB_CALLS_MAX; their number. */
#define JOB_CALLS_MAX (RANK_SESSION_CALLS_MAX + 2)
size_t job_take_calls(const struct job *j, unsigned rank, struct rpc_call **ret);

#endif
