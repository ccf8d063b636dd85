/*
 * store_table: the keys and values of one store, and the waiters for keys.  Independent of the
 * transport: the gRPC server serves one, every handle of a store file keeps one as its copy.
 *
 * Data.  A value is bytes with a flag: created by add (a counter, decimal text) or not.  A waiter
 * is a list of keys, a deadline and a function; the function is called exactly once, when all keys
 * exist or when the deadline has passed, unless the waiter was cancelled before.
 * Threads: every function may be called from any thread; waiters are called without the lock.
 */
#ifndef SPARRING_COMMON_STORE_STORE_TABLE_H
#define SPARRING_COMMON_STORE_STORE_TABLE_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STORE_KEY_MAX   1024u         /* bytes of a key, group prefix included */
#define STORE_VALUE_MAX (16u << 20)   /* bytes of a value */
#define STORE_KEYS_MAX  65536u        /* keys of a store */
#define STORE_BYTES_MAX (1024u << 20) /* bytes of all keys and values of a store */

struct store_table;

struct store_waiter {
    /* Set by the caller; everything stays valid until `done` or a successful cancel. */
    const char *const *keys;
    size_t count; /* 0: done at once */
    int64_t deadline_ns;
    bool wants_value; /* pass the value of keys[0], the only key, to done */
    /* status: OK, TIMEOUT, CANCELLED (the table closes) or NO_MEMORY.
     * value: malloc'd, owned by the callee; NULL unless OK and wants_value. */
    void (*done)(struct store_waiter *waiter, enum status status, char *value, size_t size);
    void *user;

    /* Owned by the table. */
    struct store_waiter *next;
    struct store_waiter *previous;
    size_t awaited; /* index of the first key that was missing at the last check */
    uint64_t awaited_hash;
    bool listed;
    enum status outcome;
    char *value;
    size_t value_size;
};

/* An empty table with a limit of `bytes_max` bytes of keys and values (STORE_BYTES_MAX). */
enum status store_table_open(size_t bytes_max, struct store_table **ret_table, struct error *err);

/* Call every remaining waiter with STATUS_CANCELLED, then free.  NULL allowed. */
void store_table_close(struct store_table *table);

/* Remove all keys; waiters stay. */
void store_table_clear(struct store_table *table);

/* Insert or overwrite; `counter` marks decimal text that add may change.  STATUS_NO_SPACE at a
 * limit, STATUS_INVALID for a key or a value that is too long or a key that is empty. */
enum status store_table_set(struct store_table *table, const char *key, const void *value,
                            size_t size, bool counter, struct error *err);

/* A copy of the value with a NUL after it; STATUS_NOT_FOUND (without a text) when it is missing. */
enum status store_table_get(struct store_table *table, const char *key, char **ret_value,
                            size_t *ret_size, struct error *err);

/* STATUS_DATA when the key was not created by add, or when the sum overflows 64 bits. */
enum status store_table_add(struct store_table *table, const char *key, int64_t delta,
                            int64_t *ret_sum, struct error *err);

/* See store_compare_set; *ret_written: `desired` was stored. */
enum status store_table_compare_set(struct store_table *table, const char *key,
                                    const void *expected, size_t expected_size, const void *desired,
                                    size_t desired_size, char **ret_value, size_t *ret_size,
                                    bool *ret_written, struct error *err);

bool store_table_delete(struct store_table *table, const char *key);
bool store_table_has(struct store_table *table, const char *key);
size_t store_table_count(struct store_table *table);

/* Call visit for every key under the lock (visit must not call the table); stops when it returns
 * false. */
void store_table_each_key(struct store_table *table, bool (*visit)(const char *key, void *user),
                          void *user);

/* Wait for the waiter's keys.  done may run before this returns. */
void store_table_wait(struct store_table *table, struct store_waiter *waiter);

/* True: the waiter will not be called.  False: it was called or is being called. */
bool store_table_cancel(struct store_table *table, struct store_waiter *waiter);

/* Body of the one thread that ends waiters at their deadline; returns after store_table_stop. */
void store_table_run_timer(struct store_table *table);

/* End store_table_run_timer and call all waiters, also later ones, with STATUS_CANCELLED. */
void store_table_stop(struct store_table *table);

#endif
