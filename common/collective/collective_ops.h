/*
 * collective_ops: what a backend provides, and the heads of groups and works; private to this
 * folder and to the modules that hold a backend (MPI, CUDA).  Callers use collective.h.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_COLLECTIVE_OPS_H
#define SPARRING_COMMON_COLLECTIVE_COLLECTIVE_OPS_H

#include "common/collective/collective.h"
#include "common/collective/mesh/mesh.h"
#include "common/collective/signature.h"

/* Room for what a backend must remember about one operation between two calls of run. */
#define COLLECTIVE_WORK_STATE 1024

enum work_state { WORK_FREE, WORK_QUEUED, WORK_RUNNING, WORK_DONE, WORK_FAILED };

/* One operation in a group's queue. */
struct collective_work {
    struct collective *group;
    struct collective_args args;
    struct signature signature;
    enum work_state state;
    int64_t queued_ns;
    bool runs_at_once;  /* collective_run: it runs when it is queued */
    int64_t started_ns; /* of running */
    unsigned warnings;  /* given so far */
    int64_t compare_ns; /* of running until the next look at the peers' signatures; 0: the first */
    bool begun;         /* a transfer of a backend that blocks: it is under way */
    size_t flight_index;
    uint64_t done_bytes;  /* kept by the backend: payload sent and received ... */
    uint64_t total_bytes; /* ... of so many; set by the backend when it begins */
    int64_t waited_ns;    /* kept by the backend: blocked until a peer does something; 0: unknown */
    bool is_recorded;     /* has a flight_index: false for the parts of an operation of groups */
    _Alignas(64) unsigned char backend[COLLECTIVE_WORK_STATE]; /* zeroed when the work begins */
    struct error error; /* WORK_FAILED; last, because a start clears what lies before it only */
};

/* The head of every backend's struct, filled before its open. */
struct collective {
    const struct collective_ops *ops;
    char name[64];
    uint64_t id; /* signature_group_id(name) */
    uint32_t generation;
    unsigned rank;
    unsigned world_size;
    unsigned *members; /* owned: rank in the job of each rank */
    int64_t timeout_ms;
    int64_t heartbeat_timeout_ms;
    char host_id[96];         /* of this rank */
    char interface_host[256]; /* the address to bind and publish */
    char transport[16];
    unsigned streams;
    size_t segment_bytes;
    const struct rpc_security *security; /* NULL: plaintext */
    struct mesh *mesh;                   /* NULL in a world of one */
    bool owns_mesh;
    bool in_mesh;     /* mesh_group_index is taken */
    bool keeps_trail; /* of its collectives, in the mesh */
    size_t mesh_group_index;
    bool is_backend_closed;
    struct mesh_alarm *alarm; /* NULL in a world of one */
    /* What ends waits while the group opens or registers memory: the alarm of the composite group
     * that this one is part of, else its own.  A member that lost another one gives up, and sends
     * nothing any more. */
    const struct mesh_alarm *setup_alarm;
    struct mesh_view *views; /* owned, world_size: the members' replies ... */
    uint64_t *left;          /* ... and after which collective they left, UINT64_MAX: not */
    struct flight *flight;
    bool owns_flight;
    struct store *store;           /* borrowed; valid while opening only */
    uint64_t sequence;             /* collectives started */
    uint64_t monitored;            /* monitored barriers started */
    uint64_t *sent;                /* owned: sends started per peer ... */
    uint64_t *received;            /* ... and receives */
    struct collective_stats stats; /* kept by the backend */
    struct error failure;          /* the first one; STATUS_OK while the group works */
    enum fault fault;              /* of the failure */
    int culprit;                   /* rank in the job; -1: none */
    bool error_is_inner;           /* the backend's error is about operations inside this one */
    struct collective_work *works; /* owned, COLLECTIVE_WORKS_MAX, a ring in order of start */
    size_t first_work, work_count;
    struct blocking *blocking; /* threads of a backend that blocks; NULL until they are needed */
    bool no_deadline;          /* the caller waits without a deadline of its own */
};

enum run_outcome {
    RUN_DONE,
    RUN_PENDING, /* until_ns has passed, or the alarm was raised */
    RUN_FAILED,  /* err is filled; the core finds the culprit */
};

struct collective_ops {
    const char *name;
    size_t size; /* of the backend's struct */

    /* run blocks whatever until_ns says (a library call); collective_blocking.h says on which
     * thread.  A send or receive is an exception: it begins at the first call, which does not block
     * when until_ns has passed.  done_bytes and stats are counted for it, by expected_bytes. */
    bool blocking;

    /* Does not compare every operation with the peers' before its bytes meet: the mesh compares
     * afterwards (trail.h), so that a difference is found within two heartbeats or at the end. */
    bool unchecked;

    /* Made of groups: ranks in different operations may wait in different ones of them, where
     * no two signatures meet.  As with an unchecked backend, they are compared once it takes long.
     */
    bool composite;

    /* Runs a world of one, too (device memory); else the core copies. */
    bool alone;

    /* Why this backend cannot serve such a group here, before anything is opened: STATUS_CONFIG.
     * NULL: it always can. */
    enum status (*check)(const struct collective_config *config, struct error *err);

    /* The head is filled, the rest zeroed.  Blocks at most until deadline_ns.  close is called
     * after a failure, too. */
    enum status (*open)(struct collective *group, int64_t deadline_ns, struct error *err);

    /* Pure; asked only about operations that have a meaning.  NULL: it has them all. */
    bool (*supports)(const struct collective *group, const struct collective_args *args);

    /* Advance `work`, the oldest one, which is supported, until it is done, until_ns has passed or
     * group->alarm was raised.  May be called with until_ns in the past: then it must not block.
     * Counts done_bytes and, when done, stats.  world_size is at least 2, or 1 with `alone`: else
     * the core makes the operations of a single rank itself. */
    enum run_outcome (*run)(struct collective *group, struct collective_work *work,
                            int64_t until_ns, struct error *err);

    /* Of a backend that blocks: does its call wait until a peer does something, just now?  Any
     * thread; asked now and then.  NULL: not known.  Others keep a work's waited_ns. */
    bool (*is_waiting)(const struct collective *group);

    /* Make a run that blocks in another thread return soon; any thread; NULL for those that honour
     * until_ns, and for a library that cannot: it then ends the process. */
    void (*interrupt)(struct collective *group);

    /* See collective_register; NULL: a no-op. */
    enum status (*register_memory)(struct collective *group, const struct shared_memory *memory,
                                   int64_t deadline_ns, struct error *err);

    /* Pure: the algorithm's formula. */
    void (*expected_bytes)(const struct collective *group, const struct collective_args *args,
                           uint64_t *ret_tx, uint64_t *ret_rx);

    /* In order when group->failure is STATUS_OK, else at once.  Does not free the struct. */
    void (*close)(struct collective *group);
};

/* A backend found that `peer` runs another operation: fill *err with both sides, set the group's
 * fault and culprit, and return RUN_FAILED. */
enum run_outcome collective_mismatch(struct collective *group, const struct collective_work *work,
                                     unsigned peer, const struct signature *theirs,
                                     struct error *err);

/* The operation is so far now: for peers that ask and for the recorder, which keeps it when this
 * process is killed.  A few stores: for every segment. */
void collective_progress(struct collective_work *work, uint64_t done_bytes);

/* Bytes of args' input and output buffers on this rank, by the table of enum collective_call. */
size_t collective_input_bytes(const struct collective *group, const struct collective_args *args);
size_t collective_output_bytes(const struct collective *group, const struct collective_args *args);

/* mesh_exchange among the group's members under a tag of the group, its generation and `what`. */
enum status collective_exchange(struct collective *group, const char *what, const void *mine,
                                size_t size, void *all, int64_t deadline_ns, struct error *err);

/* An operation of a group of one. */
void collective_run_alone(struct collective_work *work);

/* A group of `members` (`count` ranks of the job, ascending, this one among them) that has
 * settings, mesh and recorder of `like`, which must outlive it; for subsets, for the survivors of a
 * loss, and for backends that are made of groups. */
enum status collective_open_like(const struct collective *like, const struct collective_ops *ops,
                                 const char *name, uint32_t generation, const unsigned *members,
                                 unsigned count, struct collective **ret_group, struct error *err);

/* The first half of collective_shrink: agree with the survivors of members[0..*count), the ranks of
 * that generation of g, on who is left; in place. */
enum status collective_find_survivors(const struct collective *g, uint32_t generation,
                                      unsigned *members, unsigned *count, struct error *err);

/* The first half of collective_close; false: a library still works in the group's memory. */
bool collective_close_backend(struct collective *group);

/* Keep the first failure; the flight recorder gets it with the group's fault and culprit. */
void collective_fail(struct collective *group, const struct error *why);

/* After a failed opening or registration: is one of `members` lost?  Waits a little, because a
 * connection to a lost rank may break before the mesh has found the loss. */
bool collective_await_loss(const struct collective *g, const unsigned *members, unsigned count);

extern const struct collective_ops collective_shm_ops;
extern const struct collective_ops collective_ring_ops;
extern const struct collective_ops collective_grpc_ops; /* the ring with its other transport */
extern const struct collective_ops collective_hier_ops;
extern const struct collective_ops collective_nccl_ops; /* runs where the CUDA module loads */
extern const struct collective_ops collective_gloo_ops; /* where the build has Gloo */
extern const struct collective_ops collective_mpi_ops;  /* where it has MPI; in a module */

#endif
