/*
 * sync: how the ranks of a job come to the same parameters; the one thing that differs between the
 * two sides of the match.
 *
 * A step:  sync_begin, then (see sync_await) forward, then backward calls sync_ready with a rising
 * count, then sync_finish waits for the result.  What comes back is said by sync_yields: the mean
 * gradient (the worker's optimizer runs next) or updated parameters (the server's optimizer ran).
 * Threads: begin, ready and finish come from the training thread; implementations own their I/O
 * threads.
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

/* How chunks reach a parameter server of the same host; to others they go through sockets. */
enum sync_transport {
    SYNC_TRANSPORT_AUTO, /* by reference into shared memory, where that can be */
    SYNC_TRANSPORT_GRPC,
    SYNC_TRANSPORT_SHM, /* as auto; else it is an error */
};

enum sync_yield { SYNC_YIELDS_GRADIENTS, SYNC_YIELDS_PARAMETERS };

/* Elements [offset, offset + count) of the slab that `yields` names are final, of this step or, in
 * sync_end, for good.  Called by the training thread inside finish, await and end, with each
 * element once, while others are still on their way.  A failure is that of the call that it is in.
 */
typedef enum status sync_arrived_fn(void *user, size_t offset, size_t count, struct error *err);

/* The parameters' slab is about to be read (or sent) behind start: make it current. */
typedef enum status sync_current_fn(void *user, struct error *err);

struct sync_config {
    const char *kind;                 /* "local", "allreduce", "ps" */
    const struct tensor_table *table; /* borrowed, as are the slabs */
    float *params;
    float *grads;
    bool grads_on_device; /* the backend reads and writes them there; the host does not */
    float *buffers;       /* what a model keeps beside its parameters; NULL: nothing */
    size_t buffer_count;
    const struct shared_memory *memory; /* that the slabs lie in; NULL: ordinary memory */
    sync_arrived_fn *arrived;           /* NULL: nobody needs to know before finish returns */
    sync_current_fn *current;           /* NULL: they are */
    void *user;                         /* of both */
    unsigned rank, world_size;
    struct store *store; /* NULL with local */
    int64_t timeout_ms;
    enum reduce_order order;
    const char *manifest; /* text of common/manifest; ps sends it to the servers */
    const char *job;      /* run identifier */
    /* allreduce */
    const char *backend;          /* as in collective_config, like the next three */
    const char *transport;        /* "tcp", "grpc" */
    const char *interface_host;   /* "": found */
    int64_t heartbeat_timeout_ms; /* of ps, too; there 0: no beats */
    struct flight *flight;        /* borrowed; NULL: the group keeps one in memory */
    const struct ddp_config *ddp; /* copied; NULL: DDP_DEFAULTS */
    /* ps */
    const char *servers;            /* "host:port,host:port" */
    const char *servers_origin;     /* "--servers", "SPARRING_SERVERS" */
    const uint32_t *server_weights; /* one per server, borrowed until sync_open returns; NULL: equal
                                     */
    const char *replicas;           /* as servers, one for each; NULL or "": none */
    const char *replicas_origin;    /* "--replicas", "SPARRING_REPLICAS" */
    bool update_on_server;
    int64_t reconnect_ms; /* how long a lost connection may be away; 0: it ends the job */
    enum worker_loss on_worker_loss;
    enum sync_transport ps_transport;
    unsigned connections; /* to each server; 0: one */
    bool priority;        /* what the next forward needs first overtakes; else order of readiness */
    struct consistency consistency; /* checked (consistency_check) */
    struct exact_staleness *rules;  /* borrowed until sync_open returns */
    size_t rule_count;
    size_t partition_bytes;
    struct optimizer_config optimizer;
    float *const *moments; /* its state (slabs), for rank 0 to bring where steps_before > 0;
                              borrowed until sync_close */
    unsigned moment_count; /* slabs of state that it has */
    uint64_t steps_before; /* optimizer steps of the run that this one goes on with */
    struct compression compression; /* zeroed: none */
    bool overlap_forward;           /* finish may return before parameters are here: sync_await */
    struct rpc_security security;   /* its texts are borrowed until sync_close */
};

struct sync_counters { /* monotone, of this rank */
    uint64_t tx_payload_bytes, rx_payload_bytes, tx_wire_bytes, rx_wire_bytes;
    uint64_t tx_reference_bytes, rx_reference_bytes; /* of the payload: in shared memory, so not on
                                                        the wire */
    /* ps: */
    uint64_t takeovers;  /* servers whose replicas this rank goes on with */
    uint64_t reconnects; /* lost connections to a server that came back ... */
    uint64_t away_ns;    /* ... after so long, summed */
    uint64_t retries;    /* chunks sent once more for it; their payload is counted once */
};

/* One gradient bucket of the last step; times by clock_now_ns. */
struct sync_bucket {
    size_t bytes;
    int64_t ready_ns;   /* its last gradient was there */
    int64_t started_ns; /* its reduction began, by whichever thread ... */
    int64_t done_ns;    /* ... and ended */
};

struct sync_timeline {
    const struct sync_bucket *buckets; /* borrowed until the next begin */
    size_t length;
    int64_t begun_ns; /* of sync_begin */
};

/* What is left after ranks were lost. */
struct sync_loss {
    enum fault fault;              /* of the rank that was found out first */
    unsigned lost[MESH_RANKS_MAX]; /* ranks of the job, ascending, lost in this recovery */
    unsigned lost_count;
    unsigned rank, world_size; /* of this rank among those left */
    unsigned generation;
};

struct sync_ops {
    const char *name;
    enum status (*open)(const struct sync_config *config, struct sync **ret_sync,
                        struct error *err);
    /* NULL: it never does.  See sync_replaces. */
    bool (*replaces)(const struct sync *s);
    /* Blocks until every rank has rank 0's parameters in its slab. */
    enum status (*start)(struct sync *s, struct error *err);
    /* NULL: a rank takes part while it has samples.  See sync_enlist. */
    enum status (*enlist)(struct sync *s, size_t samples, unsigned *ret_active, struct error *err);
    enum status (*begin)(struct sync *s, uint64_t step, struct error *err);
    /* Does not block: hands elements [0, ready_count) of the gradient slab over.  The model may go
     * on reading the parameters of elements that were new in this call until the next one; after
     * the call with the whole slab it reads none.  So an implementation that yields parameters must
     * not overwrite those earlier. */
    void (*ready)(struct sync *s, size_t ready_count);
    /* Both NULL: a step always brings all.  See sync_want. */
    void (*want)(struct sync *s, size_t offset, size_t count);
    bool (*names_rows)(const struct sync *s);
    /* Blocks until the slab that `yields` names is complete. */
    enum status (*finish)(struct sync *s, struct error *err);
    /* NULL: finish leaves nothing outstanding.  See sync_await. */
    enum status (*await)(struct sync *s, size_t offset, size_t count, struct error *err);
    /* NULL: none ever.  See sync_skipped. */
    uint64_t (*skipped)(const struct sync *s);
    /* NULL: nothing is left to find out or to fetch.  See sync_end. */
    enum status (*end)(struct sync *s, struct error *err);
    /* NULL: what this rank used is what was used.  See sync_agree_used. */
    enum status (*agree_used)(struct sync *s, bool *used, struct error *err);
    /* NULL: none is kept. */
    void (*timeline)(const struct sync *s, struct sync_timeline *ret);
    struct sync_counters (*counters)(const struct sync *s);
    /* Payload bytes per step by the architecture's formula; what the counters must show.
     * UINT64_MAX: they depend on the data. */
    void (*expected_bytes)(const struct sync *s, uint64_t *ret_tx, uint64_t *ret_rx);
    /* NULL: the optimizer runs here.  See sync_fetch_state. */
    enum status (*fetch_state)(struct sync *s, float *values, float *const *moments,
                               uint64_t *ret_steps, struct error *err);
    /* What carries the bytes: a collective backend as chosen, "grpc". */
    const char *(*backend)(const struct sync *s);
    /* NULL: never a verdict.  See sync_fault. */
    enum fault (*fault)(const struct sync *s, unsigned *ret_rank);
    /* All three NULL: lost ranks cannot be done without.  See sync_shrink. */
    enum status (*shrink)(struct sync *s, struct sync_loss *ret, struct error *err);
    enum status (*gather)(struct sync *s, const void *mine, size_t bytes, void *all,
                          struct error *err);
    enum status (*share)(struct sync *s, void *data, size_t bytes, unsigned root,
                         struct error *err);
    /* Ends in order when `failure` is NULL; else tells the others why.  False: see sync_close. */
    bool (*close)(struct sync *s, const struct error *failure);
};

/* The head of every implementation's struct. */
struct sync {
    const struct sync_ops *ops;
    enum sync_yield yields;
    bool outstanding; /* the training thread's: parameters are not all here, see sync_await */
};

enum status sync_open(const struct sync_config *config, struct sync **ret_sync, struct error *err);

/* Between open and start: this process takes a lost one's place, in a job that runs already. */
bool sync_replaces(const struct sync *s);

enum status sync_start(struct sync *s, struct error *err);

/* For uneven inputs, before each begin: this rank has `samples` for the step, 0 when its inputs
 * have ended.  *ret_active is the number of ranks that have some.  While it is not 0 the ranks
 * without shadow the step: begin, ready, finish on a slab of zeros.  When it is 0 all have ended,
 * every rank has the parameters and buffers of the last one that trained, and no step follows. */
enum status sync_enlist(struct sync *s, size_t samples, unsigned *ret_active, struct error *err);

/* Does it, then?  False: there are no other ranks, or they share their model in every step. */
bool sync_shares_model(const struct sync *s);

enum status sync_begin(struct sync *s, uint64_t step, struct error *err);
void sync_ready(struct sync *s, size_t ready_count);
enum status sync_finish(struct sync *s, struct error *err);

/* Where rows are named (compression down: named), between begin and the first ready: the parameters
 * that this step brings need be new only in elements [offset, offset + count), and in those of
 * other calls.  All others may stay as they are here, and become older with each step, until a step
 * wants them; they are rounded up to rows (codec_row_selection.h).  A step for which it is not
 * called brings all.  So the caller wants whatever it reads next: what the next forward multiplies
 * with anything but zero, or all before an evaluation, a checkpoint or the end.  Does nothing
 * elsewhere.
 */
void sync_want(struct sync *s, size_t offset, size_t count);

/* The same of rows of a tensor, an embedding table for one: (shape[0], the rest); each row is below
 * shape[0]. */
void sync_want_rows(struct sync *s, const struct tensor_view *view, const uint32_t *rows,
                    size_t length);

bool sync_names_rows(const struct sync *s); /* sync_want does something */

/* With overlap_forward, where it is possible (a parameter server in lockstep, parameters come
 * back): finish returns while parameters are still on their way.  Until they are here
 *   - sync_outstanding is true, and only begin, want and await may be called,
 *   - parameters [offset, offset + count) may be read once sync_await has returned for them,
 *   - gradients may be written, and ready called, once it has returned for the whole slab.
 * Blocks as finish does, and fails as it does.  Nothing to do when nothing is outstanding. */
enum status sync_await(struct sync *s, size_t offset, size_t count, struct error *err);
bool sync_outstanding(const struct sync *s);

/* After finish, where some parameters may have had no gradient: used (one per view, table order)
 * says which had one on this rank and then which had one on any.  Gradients of unused ones must be
 * zero in the slab. */
enum status sync_agree_used(struct sync *s, bool *used, struct error *err);

/* After finish: updates that were made without this rank while it made its last one, which was too
 * late (a parameter server with backup workers).  It goes on behind them, as all the others do.
 * After start: updates made before this process took the place of a lost one. */
uint64_t sync_skipped(const struct sync *s);

/* After the last step: have all ranks done the same?  What a backend can only find out afterwards
 * is an error now.  Where ranks were not in step (asp, ssp, backup workers) it waits, for as long
 * as they push, until all have made their last step, and brings the final values to all. */
enum status sync_end(struct sync *s, struct error *err);

/* After any call that failed: what was wrong with whom, if the ranks came to a verdict on that; the
 * call's error text says it in full.  *ret_rank (may be NULL) stays where no rank is named. */
enum fault sync_fault(const struct sync *s, unsigned *ret_rank);

/* After any call that failed: go on without the ranks that are lost (dead, stopped, cut off); every
 * survivor calls it.  STATUS_UNSUPPORTED: no rank is lost, or this synchronisation needs all.
 * STATUS_PEER_LOST with ret->fault FAULT_EXCLUDED: the others went on without this rank.  After
 * STATUS_OK the ranks may be one step apart, and none is inside a step: see worker/recovery.h. */
enum status sync_shrink(struct sync *s, struct sync_loss *ret, struct error *err);

/* Between steps, called by every rank alike: all[rank * bytes] = mine of `rank`; and data of rank
 * `root` to all.  STATUS_UNSUPPORTED where ranks have no group (local, ps). */
enum status sync_gather(struct sync *s, const void *mine, size_t bytes, void *all,
                        struct error *err);
enum status sync_share(struct sync *s, void *data, size_t bytes, unsigned root, struct error *err);

/* Where parameters come back: what the optimizer's owner has after the last update that this rank
 * knows of, and nothing is outstanding.  values (the slab) and each state of the optimizer
 * (the slab each) are filled, *ret_steps is the number of steps that it has made.  Between steps,
 * by one rank; in lockstep all of it is of the same update.  Where ranks are not in lockstep it is
 * as new as it comes, each partition by itself, and *ret_steps is the greatest. */
enum status sync_fetch_state(struct sync *s, float *values, float *const *moments,
                             uint64_t *ret_steps, struct error *err);

void sync_timeline(const struct sync *s, struct sync_timeline *ret); /* length 0: none */
enum sync_yield sync_yields(const struct sync *s);
struct sync_counters sync_counters(const struct sync *s);
void sync_expected_bytes(const struct sync *s, uint64_t *ret_tx, uint64_t *ret_rx);
const char *sync_backend(const struct sync *s);

/* Ends in order when `failure` is NULL; else tells the others why.  `s` may be NULL.  The slabs are
 * the caller's again afterwards.  False (ps, with a warning): gRPC has not let go of all payloads
 * within two seconds, and may read them until the process ends.  What it reads goes nowhere, so
 * they may be written to; but they must stay mapped. */
bool sync_close(struct sync *s, const struct error *failure);

extern const struct sync_ops sync_local_ops;
extern const struct sync_ops sync_allreduce_ops;
extern const struct sync_ops sync_ps_ops;

#endif
