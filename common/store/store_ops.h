/*
 * store_ops: the interface of a store implementation, and the struct that all of them share.
 * Internal to store; callers outside use store.h.
 */
#ifndef SPARRING_COMMON_STORE_STORE_OPS_H
#define SPARRING_COMMON_STORE_STORE_OPS_H

#include "common/store/init_method.h"
#include "common/store/store.h"
#include "common/store/store_table.h"

/*
 * Keys have their group prefix and respect the limits of store_table.h; `impl` is what `open`
 * returned.  Every function blocks until deadline_ns at most (and up to two seconds longer when the
 * store does not reply; `wait` has its own bound), may be called from any thread, and is required
 * unless noted.  STATUS_TIMEOUT, without a text: the store replied and a key is missing;
 * STATUS_PEER_LOST: the process that serves the store no longer replies; STATUS_UNREACHABLE: it
 * never did, or the lock of a file is not released.
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
    /* ret_missing[i]: keys[i] does not exist; filled on STATUS_TIMEOUT.  The store may reply until
     * reply_deadline_ns, if that is later than the usual bound. */
    enum status (*wait)(void *impl, const char *const *keys, size_t count, int64_t deadline_ns,
                        int64_t reply_deadline_ns, bool *ret_missing, struct error *err);
    enum status (*remove)(void *impl, const char *key, int64_t deadline_ns, bool *ret_found,
                          struct error *err);
    enum status (*num_keys)(void *impl, int64_t deadline_ns, int64_t *ret_count, struct error *err);
    /* The group of `prefix` has ended: remove its persistent data.  Errors are ignored.  NULL:
     * there is none. */
    void (*remove_group)(void *impl, const char *prefix, int64_t deadline_ns);
    /* The bound address as a URL, into text. */
    void (*address)(const void *impl, char *text, size_t size);
    /* True when this process serves the store to the other ranks and must outlive them. */
    bool (*is_server)(const void *impl);
    void (*close)(void *impl);
};

extern const struct store_ops store_file_ops;
extern const struct store_ops store_grpc_ops;

struct store {
    const struct store_ops *ops;
    void *impl;
    char *prefix;   /* "<group>/" or "" */
    char *identity; /* this process and handle in an announcement: "<pid> <nonce> <host>" */
    unsigned rank;
    unsigned world_size;
    bool duplicate; /* another process already has our rank; set by store_rendezvous */
    int64_t timeout_ms;
    char address[512];
    char origin[96]; /* the source of the address, for error texts */
};

/* Prefix of the store's internal keys. */
#define STORE_RESERVED "sparring/store/"

/* "<prefix>sparring/store/<name>" into full (STORE_KEY_MAX + 1 bytes; it always fits). */
void store_reserved_key(const struct store *store, const char *name, char *full);

/* Cut a text from the store to STORE_TEXT_MAX characters and make it printable, for an error. */
#define STORE_TEXT_MAX 1024
void store_make_printable(char *text);

/* Wait for "sparring/store/<what>/<r>" of every rank; the times are those of ops->wait.
 * STATUS_TIMEOUT (without a text) gives *ret_missing, world_size entries that the caller frees;
 * ret_missing may be NULL. */
enum status store_await_ranks(struct store *store, const char *what, int64_t deadline_ns,
                              int64_t reply_deadline_ns, bool **ret_missing, struct error *err);

/* Announce this rank's departure.  The serving rank then waits until all ranks of the group have
 * departed, or until `deadline_ns`; the last rank of a file store removes the group's data. */
void store_depart(struct store *store, int64_t deadline_ns);

#endif
