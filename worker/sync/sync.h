/*
 * sync: synchronises the parameters of a job's ranks.  One interface for all-reduce, parameter
 * server and no communication, and the only part in which these differ.
 *
 * A step: sync_begin, then (see sync_await) forward, then backward calls sync_ready with a rising
 * count, then sync_finish waits for the result.  sync_yields says which result: the mean gradient
 * (the worker's optimizer runs next) or updated parameters (the server's optimizer has run).  These
 * may be written as soon as sync_ready has reported an element: backward must not read it any more.
 *
 * Threads: begin, ready and finish are called by the training thread; implementations own their I/O
 * threads.
 * Needs collective, rpc, wire, codec, consistency, optimizer, shard_map, succession, store, tensor
 * and base.  Called by worker/train and the benchmarks.
 */
#ifndef SPARRING_WORKER_SYNC_SYNC_H
#define SPARRING_WORKER_SYNC_SYNC_H

#include "common/base/shared_memory.h"
#include "common/codec/compression.h"
#include "common/collective/collective.h"
#include "common/collective/mesh/mesh.h"
#include "common/consistency/consistency.h"
#include "common/optimizer/optimizer.h"
#include "common/store/store.h"
#include "common/tensor/tensor.h"
#include "common/wire/wire.h"
#include "worker/sync/ddp.h"

struct sync;

/* Transport to a parameter server on the same host; to others it is always sockets. */
enum sync_transport {
    SYNC_TRANSPORT_AUTO, /* by reference into shared memory, where possible */
    SYNC_TRANSPORT_GRPC,
    SYNC_TRANSPORT_SHM, /* as auto; an error where not possible */
};

enum sync_yield { SYNC_YIELDS_GRADIENTS, SYNC_YIELDS_PARAMETERS };

/* Elements [offset, offset + count) of the slab that `yields` names are final: for this step or, in
 * sync_end, for the run.  Called by the training thread inside finish, await and end, once per
 * element, while other elements are still outstanding.  The calling function returns its error. */
typedef enum status sync_arrived_fn(void *user, size_t offset, size_t count, struct error *err);

/* Update the parameter slab, for example from a device: after start it is about to be read (or
 * sent). */
typedef enum status sync_refresh_fn(void *user, struct error *err);

struct sync_config {
    const char *kind;                 /* "local", "allreduce", "ps" */
    const struct tensor_table *table; /* borrowed, as are the slabs */
    float *params;
    float *grads;
    bool grads_on_device; /* grads is device memory: the backend reads and writes it there, the host
                             does not */
    float *buffers;       /* the model's state beside its parameters; NULL: none */
    size_t buffer_count;
    const struct shared_memory *memory; /* contains the slabs; NULL: ordinary memory */
    sync_arrived_fn *arrived;           /* NULL: no call-back */
    sync_refresh_fn *refresh_params;    /* NULL: the slab is always current */
    void *user;                         /* of both call-backs */
    unsigned rank, world_size;
    struct store *store; /* NULL with local */
    int64_t timeout_ms;
    enum reduce_order order;
    const char *manifest;         /* text of common/manifest; ps sends it to the servers */
    const char *job;              /* run identifier */
    struct rpc_security security; /* of ps, and of links over gRPC; its texts are borrowed until
                                     sync_close */
    /* allreduce */
    const char *backend;          /* as in collective_config, as the next three */
    const char *transport;        /* "tcp", "grpc" */
    const char *interface_host;   /* "": detected */
    int64_t heartbeat_timeout_ms; /* also for ps; there 0: no heartbeats */
    struct flight *flight;        /* borrowed; NULL: the group keeps one in memory */
    const struct ddp_config *ddp; /* copied; NULL: DDP_DEFAULTS */
    /* ps */
    const char *servers;            /* "host:port,host:port" */
    const char *servers_origin;     /* "--servers", "SPARRING_SERVERS" */
    const uint32_t *server_weights; /* per server; borrowed until sync_open returns; NULL: equal */
    const char *replicas;           /* as servers, one for each; NULL or "": none */
    const char *replicas_origin;    /* "--replicas", "SPARRING_REPLICAS" */
    bool update_on_server;
    int64_t reconnect_ms; /* limit for restoring a lost connection; 0: a loss ends the job */
    enum worker_loss on_rank_loss;
    enum sync_transport ps_transport;
    unsigned connections; /* to each server; 0: one */
    bool priority;        /* send what the next forward reads first; else in order of readiness */
    struct consistency consistency; /* checked (consistency_check) */
    struct exact_staleness *rules;  /* borrowed until sync_open returns */
    size_t rule_count;
    size_t partition_bytes;
    uint64_t pushes_ahead; /* to one server without replies, with bsp; 0: no limit (send_limit.h) */
    struct optimizer_config optimizer;
    float *const *moments; /* its state (slabs), sent by rank 0 if steps_before > 0; borrowed until
                              sync_close */
    unsigned moment_count; /* slabs in moments */
    uint64_t steps_before; /* optimizer steps of the run that this one continues */
    struct compression compression; /* zeroed: none */
    bool overlap_forward;           /* finish may return before the parameters arrive: sync_await */
};

struct sync_counters { /* monotone, of this rank */
    uint64_t tx_payload_bytes, rx_payload_bytes, tx_wire_bytes, rx_wire_bytes;
    uint64_t tx_reference_bytes, rx_reference_bytes; /* part of the payload: in shared memory,
                                                        not on the wire */
    uint64_t tx_queued_bytes;                        /* allreduce: see struct collective_stats */
    /* ps: */
    uint64_t takeovers;  /* servers replaced by their replica */
    uint64_t reconnects; /* lost connections to a server that were restored */
    uint64_t away_ns;    /* sum of their times without connection */
    uint64_t retries;    /* chunks sent again after a reconnection; their payload is counted once */
};

/* One gradient bucket of the last step; times from clock_now_ns. */
struct sync_bucket {
    size_t bytes;
    int64_t ready_ns;   /* its last gradient was computed */
    int64_t started_ns; /* its reduction began, on either thread */
    int64_t done_ns;    /* its reduction ended */
};

struct sync_timeline {
    const struct sync_bucket *buckets; /* borrowed until the next begin */
    size_t length;
    int64_t begun_ns; /* of sync_begin */
};

/* The group after ranks were lost. */
struct sync_loss {
    enum fault fault;              /* of the rank that was detected first */
    unsigned lost[MESH_RANKS_MAX]; /* ranks of the job, ascending, lost in this recovery */
    unsigned lost_count;
    unsigned rank, world_size; /* of this rank in the new group */
    unsigned generation;
};

/* What only ranks with a collective group can do (allreduce).  The functions of the same names
 * below say what. */
struct sync_group_ops {
    enum status (*announce_samples)(struct sync *s, size_t samples, unsigned *ret_active,
                                    struct error *err);
    enum status (*agree_used)(struct sync *s, bool *used, struct error *err);
    void (*timeline)(const struct sync *s, struct sync_timeline *ret);
    enum status (*shrink)(struct sync *s, struct sync_loss *ret, struct error *err);
    enum status (*all_gather)(struct sync *s, const void *mine, size_t bytes, void *all,
                              struct error *err);
    enum status (*broadcast)(struct sync *s, void *data, size_t bytes, unsigned root,
                             struct error *err);
};

/* What only servers that hold the parameters can do (ps); likewise. */
struct sync_server_ops {
    bool (*is_replacement)(const struct sync *s);
    void (*select_range)(struct sync *s, size_t offset, size_t count);
    bool (*selects_rows)(const struct sync *s);
    enum status (*await)(struct sync *s, size_t offset, size_t count, struct error *err);
    uint64_t (*skipped)(const struct sync *s);
    enum status (*fetch_state)(struct sync *s, float *values, float *const *moments,
                               uint64_t *ret_steps, struct error *err);
};

struct sync_ops {
    const char *name;
    enum status (*open)(const struct sync_config *config, struct sync **ret_sync,
                        struct error *err);
    /* Blocks until every rank has rank 0's parameters in its slab. */
    enum status (*start)(struct sync *s, struct error *err);
    enum status (*begin)(struct sync *s, uint64_t step, struct error *err);
    /* Elements [0, ready_count) of the gradient slab are final; does not block.  Until the next
     * call the model may read the parameters of the elements that are new in this call; after the
     * call with the whole slab it reads none.  An implementation that yields parameters must not
     * overwrite them earlier. */
    void (*ready)(struct sync *s, size_t ready_count);
    /* Blocks until the slab that `yields` names is complete. */
    enum status (*finish)(struct sync *s, struct error *err);
    /* NULL: nothing to check or to fetch.  See sync_end. */
    enum status (*end)(struct sync *s, struct error *err);
    struct sync_counters (*counters)(const struct sync *s);
    /* Payload bytes per step by the algorithm's formula, which the counters must equal.
     * UINT64_MAX: they depend on the data. */
    void (*expected_bytes)(const struct sync *s, uint64_t *ret_tx, uint64_t *ret_rx);
    /* The transport in use: "none", the chosen collective backend, "grpc", "shm", "shm and
     * grpc". */
    const char *(*backend)(const struct sync *s);
    /* NULL: always FAULT_NONE.  See sync_fault. */
    enum fault (*fault)(const struct sync *s, unsigned *ret_rank);
    /* See sync_close, also for the result. */
    bool (*close)(struct sync *s, const struct error *failure);
    const struct sync_group_ops *group;   /* NULL: there is no group */
    const struct sync_server_ops *server; /* NULL: there are no servers */
};

/* The head of every implementation's struct. */
struct sync {
    const struct sync_ops *ops;
    enum sync_yield yields;
    bool outstanding; /* the training thread's: parameters are missing, see sync_await */
};

enum status sync_open(const struct sync_config *config, struct sync **ret_sync, struct error *err);

/* Between open and start: does this process replace a lost one in a running job? */
bool sync_is_replacement(const struct sync *s);

enum status sync_start(struct sync *s, struct error *err);

/* For uneven inputs, before each begin: exchange the ranks' sample counts of the step.  `samples`
 * is this rank's, 0 when its inputs have ended; *ret_active is the number of ranks that have any.
 * While it is not 0, the others shadow the step: begin, ready, finish on a slab of zeros.  When it
 * is 0, every rank has received the parameters and buffers of the last rank that trained, and no
 * step follows. */
enum status sync_announce_samples(struct sync *s, size_t samples, unsigned *ret_active,
                                  struct error *err);

/* Does sync_announce_samples broadcast the model at the end?  False: there are no other ranks, or
 * every step synchronises their models. */
bool sync_broadcasts_model(const struct sync *s);

enum status sync_begin(struct sync *s, uint64_t step, struct error *err);
void sync_ready(struct sync *s, size_t ready_count);
enum status sync_finish(struct sync *s, struct error *err);

/* Row selection (compression down: named), between begin and the first ready: this step must yield
 * current parameters in elements [offset, offset + count), rounded up to rows
 * (codec_row_selection.h), and in the ranges of further calls.  All others may keep their values,
 * and become older with each step, until a step selects them.  A step without a call yields all.
 * So the caller selects whatever it reads next: what the next forward multiplies with anything but
 * zero, or all before an evaluation, a checkpoint or the end.  Does nothing without row selection.
 */
void sync_select_range(struct sync *s, size_t offset, size_t count);

/* The same for rows of a tensor (shape[0], the rest), such as an embedding table; each row is below
 * shape[0]. */
void sync_select_rows(struct sync *s, const struct tensor_view *view, const uint32_t *rows,
                      size_t length);

bool sync_selects_rows(const struct sync *s); /* is row selection in use? */

/* With overlap_forward, where possible (a parameter server in lockstep that yields parameters):
 * finish returns while parameters are outstanding.  Until they have arrived
 *   - sync_outstanding is true, and only begin, sync_select_range and await may be called,
 *   - parameters [offset, offset + count) may be read once sync_await has returned for them,
 *   - gradients may be written, and ready called, once it has returned for the whole slab.
 * Blocks and fails as finish does.  Returns at once when nothing is outstanding. */
enum status sync_await(struct sync *s, size_t offset, size_t count, struct error *err);
bool sync_outstanding(const struct sync *s);

/* After finish, where some parameters may have had no gradient.  used (one per view, table order):
 * in, which had one on this rank; out, which had one on any rank.  Gradients of unused ones must be
 * zero in the slab.  With local and ps it stays as passed. */
enum status sync_agree_used(struct sync *s, bool *used, struct error *err);

/* After finish: updates made without this rank's last push, which was late (a parameter server with
 * backup workers); the rank continues after them, as all others do.
 * After start: updates made before this process replaced a lost one. */
uint64_t sync_skipped(const struct sync *s);

/* After the last step: check that all ranks have run the same operations; errors that a backend can
 * only detect afterwards are returned here.  Without lockstep (asp, ssp, backup workers) it waits,
 * without a deadline, until all ranks have made their last step, and fetches the final values. */
enum status sync_end(struct sync *s, struct error *err);

/* After any call that failed: the ranks' verdict, FAULT_NONE if there is none; the call's error has
 * the details.  *ret_rank (may be NULL): the faulty rank; unchanged if none is known. */
enum fault sync_fault(const struct sync *s, unsigned *ret_rank);

/* After any call that failed: form a group without the lost ranks (dead, stopped, disconnected);
 * every survivor calls it.  STATUS_UNSUPPORTED: no rank is lost, or this sync needs all ranks.
 * STATUS_PEER_LOST with ret->fault FAULT_EXCLUDED: the others continue without this rank.  After
 * STATUS_OK the ranks may be one step apart, none inside a step (worker/train/recovery.h). */
enum status sync_shrink(struct sync *s, struct sync_loss *ret, struct error *err);

/* Collectives between steps, called by every rank: all[rank * bytes] = mine of `rank`; and data of
 * rank `root` to all ranks.  STATUS_UNSUPPORTED where ranks have no group (local, ps). */
enum status sync_all_gather(struct sync *s, const void *mine, size_t bytes, void *all,
                            struct error *err);
enum status sync_broadcast(struct sync *s, void *data, size_t bytes, unsigned root,
                           struct error *err);

/* With parameters from a server: read the values and the optimizer's state from the servers,
 * between steps, by one rank, while nothing is outstanding.  Fills values (a slab) and moments (a
 * slab each); *ret_steps is the number of steps that the optimizer has made.  In lockstep all of it
 * is of the last update that this rank knows.  Else each partition is as new as its server has it,
 * and *ret_steps is the greatest. */
enum status sync_fetch_state(struct sync *s, float *values, float *const *moments,
                             uint64_t *ret_steps, struct error *err);

void sync_timeline(const struct sync *s, struct sync_timeline *ret); /* length 0: none */
enum sync_yield sync_yields(const struct sync *s);
struct sync_counters sync_counters(const struct sync *s);
void sync_expected_bytes(const struct sync *s, uint64_t *ret_tx, uint64_t *ret_rx);
const char *sync_backend(const struct sync *s);

/* Close; `failure`, if not NULL, is reported to the other ranks.  `s` may be NULL.  The slabs are
 * the caller's again afterwards.  False (ps, with a warning): gRPC has not released all payloads
 * within two seconds, and may read them until the process ends.  It sends nothing of what it reads,
 * so they may be overwritten, but must stay mapped. */
bool sync_close(struct sync *s, const struct error *failure);

extern const struct sync_ops sync_local_ops;
extern const struct sync_ops sync_allreduce_ops;
extern const struct sync_ops sync_ps_ops;

#endif
