/*
 * collective: operations that all ranks of a group call in the same order with the same arguments.
 *
 * Backends (collective_backends() lists those of this build):
 *   shm   ranks of one host reduce in shared memory
 *   ring  TCP between hosts: a pipelined ring for large messages, direct exchanges or recursive
 *         doubling for small ones
 *   grpc  the same ring over gRPC streams: for encrypted links (TLS), and to measure the transport
 *         apart from the algorithm
 *   hier  two levels: shm inside a host, ring between hosts
 *   nccl  device memory, in the CUDA module
 *   mpi   under mpirun      gloo  the real library; both for comparison
 *   auto  shm when all ranks share a host, hier when some do, else ring
 *
 * An operation is started (cheap, never blocks) and then waited for.  Operations of one group run
 * in the order of their start; collective_poll and collective_wait drive them.  The blocking calls
 * are start and wait.
 *
 * No operation hangs or mismatches silently.  Every operation carries (group, generation,
 * sequence, call, dtype, op, count, root); ranks that disagree fail with both sides named: before a
 * byte is used over shm, ring, grpc and hier; over nccl, mpi and gloo, which may add up whatever
 * has as many bytes, within two heartbeats, or at the group's end (trail.h). Past 25 and 50 % of
 * the time-out a warning names the missing rank.  A failure is classified as dead, stopped,
 * stalled, slow, desynchronised, network or finished early (enum fault), and names rank, bucket,
 * bytes and seconds, the same rank on all survivors.  After it the group is dead: every call
 * returns the first error again, until collective_shrink makes a new group of the survivors.
 *
 * Needs store (while opening), rpc (grpc), tensor and base.  Called by worker/sync
 * and experiments/bench.
 *
 * Threads: one caller at a time per group.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_COLLECTIVE_H
#define SPARRING_COMMON_COLLECTIVE_COLLECTIVE_H

#include "common/base/error.h"
#include "common/base/shared_memory.h"
#include "common/collective/operation.h"
#include "common/store/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collective;
struct collective_work;
struct flight;
struct mesh;
struct rpc_security;

#define COLLECTIVE_WORKS_MAX 64 /* started and not yet waited for, per group */

struct collective_config {
    const char *backend;   /* a name of the list above */
    const char *transport; /* under ring: NULL or "tcp", "grpc" */
    const char *name;      /* of the group, unique in the job; for keys, texts and the recorder */
    unsigned rank;
    unsigned world_size;
    struct store *store;        /* borrowed for the group's life; used while opening only */
    struct mesh *mesh;          /* borrowed; NULL: the group opens one of its own */
    struct flight *flight;      /* borrowed; NULL: the group keeps one in memory */
    const char *interface_host; /* address or interface to bind and publish; NULL: the address that
                                   reaches the store */
    const char *host_id; /* ranks with equal ones share a host; NULL: SPARRING_HOSTID, else found */
    int64_t timeout_ms;  /* of every operation, and of the connection phase */
    int64_t heartbeat_timeout_ms;        /* silence after which a rank counts as stopped or cut off;
                                            <= 0: 1500 */
    unsigned streams;                    /* TCP connections between two ranks; 0: one, and between
                                            neighbours on different hosts 1, 2 or 4, whichever carried a
                                            large message fastest when the group opened */
    size_t segment_bytes;                /* of the ring's pipeline; 0: tuned */
    const struct rpc_security *security; /* of links over gRPC: mutual TLS, and a token that
                                            either end wants; borrowed for the group's life.  NULL,
                                            or without files: plaintext.  The mesh is plaintext */
};

/* Monotone counters of one rank. */
struct collective_stats {
    uint64_t operations;
    uint64_t tx_payload_bytes; /* tensor bytes handed to the network or written for other ranks */
    uint64_t rx_payload_bytes;
    uint64_t tx_wire_bytes; /* payload and our own headers; not TCP/IP's; 0 through shared memory */
    uint64_t rx_wire_bytes;
    uint64_t tx_queued_bytes; /* of a ring: that had not arrived at the next rank, on another host,
                                 when an all-reduce was over on this one; summed over them */
};

/* ---- groups ---- */

/* Every rank calls it.  STATUS_CONFIG: unknown backend, or one that this build, this launch or
 * these hosts cannot run, and why. */
enum status collective_open(const struct collective_config *config, struct collective **ret_group,
                            struct error *err);

/* What collective_open would refuse, without waiting for other ranks: of config, backend, rank and
 * world_size are used. */
enum status collective_check(const struct collective_config *config, struct error *err);

/* A group of some ranks of `parent`, with the same backend, mesh and recorder.  Every rank of the
 * parent calls it with the same list (ranks of the parent, ascending); *ret_group is NULL on ranks
 * outside the list.  The parent must outlive it. */
enum status collective_new_group(struct collective *parent, const unsigned *ranks, unsigned count,
                                 const char *name, struct collective **ret_group,
                                 struct error *err);

/* After a failure that lost ranks: agree with the survivors on the remaining members and open a
 * group of them in the next generation (ranks keep their order; backend, mesh and recorder as
 * before).  The old group is closed in every case and *group is NULL on failure.  STATUS_PEER_LOST
 * with FAULT_EXCLUDED when the others went on without this rank. */
enum status collective_shrink(struct collective **group, struct error *err);

/* Before close, where every rank's own last operation has ended: compare the operations that the
 * members have run so far.  A member that is behind compares when it gets there.
 * STATUS_MISMATCH names both sides; the group has failed then.  Backends that compare every
 * operation have nothing to do; others wait for each living member's reply, not for its end. */
enum status collective_finish(struct collective *group, struct error *err);

/* NULL allowed; works still pending are dropped.  Finishes first, and logs what that finds. */
void collective_close(struct collective *group);

unsigned collective_rank(const struct collective *group);
unsigned collective_world_size(const struct collective *group);
unsigned collective_generation(const struct collective *group); /* 1, and one more per shrink */
unsigned collective_world_rank(const struct collective *group, unsigned rank); /* in the job */
const char *collective_backend(const struct collective *group); /* as chosen: never "auto" */
/* What went wrong, after a failure; *ret_rank (may be NULL) is the culprit's rank in the job, and
 * stays as it was where none is named. */
enum fault collective_fault(const struct collective *group, unsigned *ret_rank);
struct mesh *collective_mesh(const struct collective *group); /* NULL in a world of one */

/* Memory that peers may touch directly: buffers inside it are reduced without copies.  Every rank
 * calls it with a region of its own; a no-op (STATUS_OK) for backends without that notion.  The
 * region must outlive the group.  A failure waits up to the heartbeat time-out and a second for the
 * loss of a rank, which fails the group, too. */
enum status collective_register(struct collective *group, const struct shared_memory *memory,
                                struct error *err);

/* ---- operations ---- */

/* Queue an operation; never blocks.  STATUS_UNSUPPORTED names backend, operation and type;
 * STATUS_INVALID: too many works, a root outside the group. */
enum status collective_start(struct collective *group, const struct collective_args *args,
                             struct collective_work **ret_work, struct error *err);

/* Advance without blocking; *ret_done when it has ended; collective_wait returns its status. */
void collective_poll(struct collective_work *work, bool *ret_done);

/* Advance until done or until deadline_ns (clock_now_ns; INT64_MAX: the group's own time-out rules
 * alone).  STATUS_TIMEOUT with the group alive when the caller's deadline came first: the work is
 * still pending and must be waited for again.  Otherwise the handle is gone. */
enum status collective_wait(struct collective_work *work, int64_t deadline_ns, struct error *err);

/* start and wait */
enum status collective_run(struct collective *group, const struct collective_args *args,
                           struct error *err);

/* Shorthands.  Replace data[0..count) (float32) by its sum over the ranks. */
enum status collective_all_reduce(struct collective *group, float *data, size_t count,
                                  enum reduce_order order, struct error *err);

/* Copy `bytes` bytes of data from rank `root` to all. */
enum status collective_broadcast(struct collective *group, void *data, size_t bytes, unsigned root,
                                 struct error *err);

/* all[rank * bytes] = mine of `rank`, on every rank; mine may be its place inside all. */
enum status collective_all_gather(struct collective *group, const void *mine, size_t bytes,
                                  void *all, struct error *err);

enum status collective_barrier(struct collective *group, struct error *err);

/* A barrier over the control connections that names every rank which did not come within
 * timeout_ms ("ranks 2, 5 did not reach the barrier"); with !wait_all the first one found.  A rank
 * that comes too late for the others passes.  The group stays usable. */
enum status collective_monitored_barrier(struct collective *group, int64_t timeout_ms,
                                         bool wait_all, struct error *err);

/* ---- facts ---- */

bool collective_supports(const struct collective *group, const struct collective_args *args);

/* Payload bytes that this rank sends (*ret_tx) and receives (*ret_rx) in one such operation, by the
 * algorithm's formula; what stats must count. */
void collective_expected_bytes(const struct collective *group, const struct collective_args *args,
                               uint64_t *ret_tx, uint64_t *ret_rx);

struct collective_stats collective_get_stats(const struct collective *group);

/* Names of the backends in this build, NULL-terminated, "auto" not among them. */
const char *const *collective_backends(void);

#endif
