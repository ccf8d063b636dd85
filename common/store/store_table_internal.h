/*
 * store_table_internal: declarations shared by store_table.c (entries) and store_waiter.c
 * (waiters).
 */
#ifndef SPARRING_COMMON_STORE_STORE_TABLE_INTERNAL_H
#define SPARRING_COMMON_STORE_STORE_TABLE_INTERNAL_H

#include "common/store/store_table.h"

#include <pthread.h>

enum { bucket_count = 4096 }; /* fixed: at the limit of keys a chain has 16 entries */

struct entry {
    struct entry *next; /* in the bucket */
    uint64_t hash;
    char *key;
    char *value; /* `size` bytes and a NUL */
    size_t size;
    bool counter;
};

struct store_table {
    pthread_mutex_t lock;   /* guards all below */
    pthread_cond_t changed; /* an earlier deadline, or stopped; for store_table_run_timer */
    struct entry *buckets[bucket_count];
    size_t count;
    size_t bytes;                 /* of keys and values */
    size_t bytes_max;             /* constant */
    struct store_waiter *waiters; /* newest first */
    int64_t run_deadline_ns;      /* what store_table_run_timer sleeps until */
    bool stopped;
};

/* ---- store_table.c */

uint64_t store_table_hash(const char *key);

/* The link that points at the entry of `key`; the link is NULL when there is none.  Under the lock.
 */
struct entry **store_table_find_link(struct store_table *table, const char *key, uint64_t hash);

/* A copy with a NUL after it; owned by the caller (free). */
enum status store_value_copy(const void *value, size_t size, char **ret_copy, struct error *err);

/* ---- store_waiter.c */

/* `key` is new: remove and return the waiters whose keys now all exist.  Under the lock. */
struct store_waiter *store_waiters_wake(struct store_table *table, const char *key, uint64_t hash);

/* Call the removed waiters, without the lock: the table no longer refers to them. */
void store_waiters_call(struct store_waiter *finished);

#endif
