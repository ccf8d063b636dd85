/*
 * store_table_internal: what store_table.c (entries) and store_waiter.c (those who wait for them)
 * share.
 */
#ifndef SPARRING_COMMON_STORE_STORE_TABLE_INTERNAL_H
#define SPARRING_COMMON_STORE_STORE_TABLE_INTERNAL_H

#include "common/store/store_table.h"

#include <pthread.h>

enum { bucket_count = 4096 }; /* fixed: at the limit of keys a chain holds 16 */

struct entry {
    struct entry *next; /* in the bucket */
    uint64_t hash;
    char *key;
    char *value; /* NUL behind `size` bytes */
    size_t size;
    bool counter;
};

struct store_table {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t woken; /* an earlier deadline, or stopped; for store_table_run */
    struct entry *buckets[bucket_count];
    size_t count;
    size_t bytes;                 /* of keys and values */
    size_t bytes_max;             /* constant */
    struct store_waiter *waiters; /* newest first */
    int64_t run_deadline_ns;      /* what store_table_run sleeps until */
    bool stopped;
};

/* ---- store_table.c */

uint64_t store_table_hash(const char *key);

/* Where the entry of `key` hangs; *slot is NULL when it is not there.  Under the lock. */
struct entry **store_table_slot(struct store_table *table, const char *key, uint64_t hash);

/* A copy with a NUL behind it, for free(). */
enum status store_value_copy(const void *value, size_t size, char **ret_copy, struct error *err);

/* ---- store_waiter.c */

/* `key` is new: take out the waiters that have all their keys now.  Under the lock. */
struct store_waiter *store_waiters_wake(struct store_table *table, const char *key, uint64_t hash);

/* Call those that were taken out; without the lock, they are nobody else's any more. */
void store_waiters_call(struct store_waiter *finished);

#endif
