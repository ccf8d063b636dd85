/*
 * store_ops: what one implementation of the store gives, and the store that all of them share.
 * Callers outside this folder use store.h and never see this.
 */
#ifndef SPARRING_COMMON_STORE_STORE_OPS_H
#define SPARRING_COMMON_STORE_STORE_OPS_H

#include "common/store/init_method.h"
#include "common/store/store.h"
#include "common/store/store_table.h"

/*
 * Keys arrive with their group prefix and within the limits of store_table.h; `impl` is what `open`
 * returned.  Every slot blocks until deadline_ns at most (and a second or two longer when the store
 * itself does not answer; `wait` says itself how much longer), may be called from any thread, and
 * is required.  STATUS_TIMEOUT means that the store answered and a key is missing, and comes
 * without a text; STATUS_PEER_LOST that the process which serves the store does not answer any
 * more; STATUS_UNREACHABLE that it never did, or that the lock of a file stays taken.
 */
struct store_ops {
    enum status (*open)(const struct store_config *config, const struct init_method *method,
                        int64_t deadline_ns, void **ret_impl, struct error *err);
    enum status (*set)(void *impl, const char *key, const void *value, size_t size,
                       int64_t deadline_ns, struct error *err);
    enum status (*get)(void *impl, const char *key, int64_t deadline_ns, char **ret_value,
                       size_t *ret_size, struct error *err);
    enum status (*add)(void *impl, const char *key, int64_t delta, int64_t deadline_ns,
                       int64_t *ret_sum, struct error *err);
    enum status (*compare_set)(void *impl, const char *key, const char *expected,
                               const char *desired, int64_t deadline_ns, char **ret_value,
                               struct error *err);
    /* ret_missing[i]: keys[i] is not there; filled on STATUS_TIMEOUT.  A store that is late with
     * its answer is given until answer_by_ns, where that is later than it would be given anyway. */
    enum status (*wait)(void *impl, const char *const *keys, size_t count, int64_t deadline_ns,
                        int64_t answer_by_ns, bool *ret_missing, struct error *err);
    enum status (*remove)(void *impl, const char *key, int64_t deadline_ns, bool *ret_found,
                          struct error *err);
    enum status (*num_keys)(void *impl, int64_t deadline_ns, int64_t *ret_count, struct error *err);
    /* The group of `prefix` has ended: drop what it leaves behind.  Errors do not matter.  NULL: it
     * leaves nothing behind. */
    void (*forget)(void *impl, const char *prefix, int64_t deadline_ns);
    /* The bound address as people read it, into text. */
    void (*address)(const void *impl, char *text, size_t size);
    /* True when this process serves the store to the other ranks and must outlive them. */
    bool (*serves)(const void *impl);
    void (*close)(void *impl);
};

extern const struct store_ops store_file_ops;
extern const struct store_ops store_grpc_ops;

struct store {
    const struct store_ops *ops;
    void *impl;
    char *prefix; /* "<group>/" or "" */
    char *self;   /* this process and handle in an announcement: "<pid> <nonce> <host>" */
    unsigned rank;
    unsigned world_size;
    bool duplicate; /* another process came first with our rank; set by store_rendezvous */
    int64_t timeout_ms;
    char address[512];
    char origin[96]; /* where the address came from */
};

/* Keys of our own, kept apart from the users' by this first part. */
#define STORE_RESERVED "sparring/store/"

/* "<prefix>sparring/store/<name>" into full (STORE_KEY_MAX + 1 bytes; it always fits). */
void store_reserved_key(const struct store *store, const char *name, char *full);

/* Bound whatever came from the store to STORE_TEXT_MAX printable characters, for an error text. */
#define STORE_TEXT_MAX 1024
void store_make_printable(char *text);

/* Wait for "sparring/store/<what>/<r>" of every rank; the times are those of ops->wait.
 * STATUS_TIMEOUT (without a text) gives *ret_missing, world_size entries that the caller frees;
 * ret_missing may be NULL. */
enum status store_await_ranks(struct store *store, const char *what, int64_t deadline_ns,
                              int64_t answer_by_ns, bool **ret_missing, struct error *err);

/* Say goodbye; with the last goodbye of the group, or at `deadline_ns`, nobody needs us any more.
 */
void store_farewell(struct store *store, int64_t deadline_ns);

#endif
