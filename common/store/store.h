/*
 * store: the rendezvous key-value table of one job.  Semantics of torch.distributed.Store.
 * Implementations: gRPC (rank 0 hosts, all ranks are clients) and a shared file with fcntl locks.
 * Keys are prefixed with "<group>/", so two jobs can share one store.
 *
 * Library.  Promises rendezvous, shared keys and failure notices.  Needs base, launch_env, wire and
 * rpc.  Called by the collectives, the worker and the benchmarks.
 * Limits: keys of printable ASCII, 1 to 1024 bytes with their prefix; values of 16 MiB; 65536 keys;
 * 1 GiB in all.  Keys that start with "sparring/store/" are the store's own.
 * Errors of every operation, beside its own: STATUS_INVALID (a key or value outside the limits),
 * STATUS_NO_SPACE (the store is full), STATUS_PEER_LOST (rank 0, which served the store, no longer
 * replies; every later call fails at once), and for a file STATUS_DATA (truncated, damaged or not a
 * store file), STATUS_IO and STATUS_UNREACHABLE (its lock is never released).
 * Threads: every function may be called from any thread; each may block up to its time-out, and two
 * seconds longer when the store does not reply at all.  A store does not survive fork.
 */
#ifndef SPARRING_COMMON_STORE_STORE_H
#define SPARRING_COMMON_STORE_STORE_H

#include "common/base/error.h"
#include "common/launch_env/launch_env.h"
#include "common/rpc/rpc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store;

struct store_config {
    const char *init_method; /* "env://", "tcp://host:port", "unix:///path", "file:///path" */
    const struct launch_env *launch; /* rank, world size and, for env://, the master's address */
    const char *group;               /* key prefix; "" for none */
    struct rpc_security security;
    int64_t timeout_ms; /* of open, get and wait when the call gives none; <= 0: 300 s */
};

/* Open the store; rank 0 starts the server for env://, tcp:// (port 0: any free one, see
 * store_address) and unix:.  Under torchrun, which listens on MASTER_PORT itself, env:// means the
 * next port.  Blocks until the server replies; STATUS_UNREACHABLE names the address, its origin,
 * the time waited and rank 0 as missing.  STATUS_IO: the port is taken (the text names the
 * process). STATUS_CONFIG, STATUS_NOT_FOUND: the init method is malformed or names a folder that
 * does not exist. */
enum status store_open(const struct store_config *config, struct store **ret_store,
                       struct error *err);

/* Every rank announces itself, then waits for all: "waited 30 s for 1 of 3 ranks: 2 is missing".
 * A rank that announced another world size is STATUS_MISMATCH and is named with both sizes.
 * Two processes with one rank are STATUS_MISMATCH too. */
enum status store_rendezvous(struct store *store, struct error *err);

/* Insert or overwrite. */
enum status store_set(struct store *store, const char *key, const void *value, size_t size,
                      struct error *err);

/* Wait until the key exists (timeout_ms < 0: the store's time-out).  *ret_value is owned by the
 * caller (free) and has a NUL after its *ret_size bytes. */
enum status store_get(struct store *store, const char *key, int64_t timeout_ms, char **ret_value,
                      size_t *ret_size, struct error *err);

/* Create the counter at `delta` or increment it; get returns it as decimal text.  STATUS_DATA when
 * the key was created by set or compare_set, or when the sum overflows 64 bits. */
enum status store_add(struct store *store, const char *key, int64_t delta, int64_t *ret_sum,
                      struct error *err);

/* Store `desired` if the current text is `expected`, or if the key is missing and expected is "".
 * *ret_value: the value now stored (expected when the key is missing and expected is not ""), owned
 * by the caller (free). */
enum status store_compare_set(struct store *store, const char *key, const char *expected,
                              const char *desired, char **ret_value, struct error *err);

/* Wait until all keys exist; STATUS_TIMEOUT lists the missing ones. */
enum status store_wait(struct store *store, const char *const *keys, size_t count,
                       int64_t timeout_ms, struct error *err);

/* *ret_found: whether the key existed. */
enum status store_delete(struct store *store, const char *key, bool *ret_found, struct error *err);

/* Number of keys in the whole store, of all groups and internal ones: store_rendezvous adds one per
 * rank and two more (PyTorch's TCPStore also counts an internal one). */
enum status store_num_keys(struct store *store, int64_t *ret_count, struct error *err);

/* ---- failure notice: the first failed rank, so that every survivor reports the same one ---- */

/* Record that `rank` failed with `text`, unless a notice exists already. */
void store_report_failure(struct store *store, unsigned rank, const char *text);

/* If a notice exists, or appears within wait_ms, write it into err (STATUS_PEER_LOST, "rank 2
 * failed: ...") and return true.  When the store is unreachable, rank 0 is reported as lost. */
bool store_find_failure(struct store *store, int64_t wait_ms, struct error *err);

/* Announce the departure of a lost rank in its place, so that store_close does not wait for it. */
void store_mark_departed(struct store *store, unsigned rank);

/* Announce this rank's departure and free; departure_timeout_ms < 0: free only, the store's host is
 * lost. Rank 0 keeps its server running until every rank has closed its store or
 * departure_timeout_ms have passed; the last rank removes a store file, unless another group uses
 * it.  NULL allowed. */
void store_close(struct store *store, int64_t departure_timeout_ms);

/* "tcp://127.0.0.1:29500", "unix:/path" or "file:///path" as reached, for manifests. */
const char *store_address(const struct store *store);
unsigned store_rank(const struct store *store);
unsigned store_world_size(const struct store *store);

#endif
