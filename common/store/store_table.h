/*
 * store_table: the keys and values of one store, and those who wait for them.  Free of any wire:
 * the gRPC server serves one, every handle on a store file keeps one as its copy of the file.
 *
 * Data.  A value is bytes with a flag: made by add (a counter, decimal text) or not.  A waiter is a
 * list of keys, a deadline and a function; it is called exactly once, when all its keys are there
 * or when its deadline has passed, unless it was cancelled before.
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
    bool wants_value; /* of keys[0], its only key, delivered to done */
    /* status: OK, TIMEOUT, CANCELLED (the table closes) or NO_MEMORY.
     * value: malloc'd, now the callee's; NULL unless OK and wanted. */
    void (*done)(struct store_waiter *waiter, enum status status, char *value, size_t size);
    void *user;

    /* Owned by the table. */
    struct store_waiter *next;
    struct store_waiter *previous;
    size_t awaited; /* index of the first key that was missing when last looked */
    uint64_t awaited_hash;
    bool listed;
    enum status outcome;
    char *value;
    size_t value_size;
};

/* An empty table that takes `bytes_max` bytes of keys and values (STORE_BYTES_MAX). */
enum status store_table_open(size_t bytes_max, struct store_table **ret_table, struct error *err);

/* Calls every waiter that is left with STATUS_CANCELLED first.  NULL allowed. */
void store_table_close(struct store_table *table);

/* Forget all keys; waiters stay. */
void store_table_clear(struct store_table *table);

/* Insert or overwrite; `counter` marks decimal text that add may change.  STATUS_NO_SPACE at a
 * limit, STATUS_INVALID for a key or a value that is too long or a key that is empty. */
enum status store_table_set(struct store_table *table, const char *key, const void *value,
                            size_t size, bool counter, struct error *err);

/* Copy of the value, with a NUL behind it; STATUS_NOT_FOUND (without a text) when it is missing. */
enum status store_table_get(struct store_table *table, const char *key, char **ret_value,
                            size_t *ret_size, struct error *err);

/* STATUS_DATA when the key was not made by add, or when the sum leaves 64 bits. */
enum status store_table_add(struct store_table *table, const char *key, int64_t delta,
                            int64_t *ret_sum, struct error *err);

/* See store_compare_set; *ret_written tells whether `desired` was stored. */
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

/* True: the waiter will not be called any more.  False: it was called or is being called. */
bool store_table_cancel(struct store_table *table, struct store_waiter *waiter);

/* Body of the one thread that ends waiters at their deadline; returns after store_table_stop. */
void store_table_run(struct store_table *table);

/* End store_table_run, call all waiters with STATUS_CANCELLED, and so every later one at once. */
void store_table_stop(struct store_table *table);

#endif
