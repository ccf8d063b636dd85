/*
 * A chained hash table and a list of waiters under one mutex.
 *
 * A waiter is listed with the one key it misses at the moment; a new key wakes only those that miss
 * it, and each then moves on to its next missing key.  Before it is done it looks at all its keys
 * once more, because one may have been deleted meanwhile.  So a new key costs one comparison of
 * hashes per waiter, and no waiter has a thread.
 * Who leaves the list under the lock goes to a private list and is called after unlock.
 * The number of buckets is fixed: at the limit of keys a chain holds 16.
 */
#include "common/store/store_table.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/parse.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { bucket_count = 4096 };

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

/* FNV-1a, 64 bits (Fowler, Noll, Vo). */
static uint64_t hash_key(const char *key)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 0x100000001b3u;
    return hash;
}

static struct entry **find_slot(struct store_table *table, const char *key, uint64_t hash)
{
    struct entry **slot = &table->buckets[hash % bucket_count];

    while (*slot && ((*slot)->hash != hash || strcmp((*slot)->key, key) != 0))
        slot = &(*slot)->next;
    return slot;
}

static struct entry *find(struct store_table *table, const char *key)
{
    return *find_slot(table, key, hash_key(key));
}

static void free_entry(struct entry *entry)
{
    if (!entry)
        return;
    free(entry->key);
    free(entry->value);
    free(entry);
}

static enum status copy_value(const void *value, size_t size, char **ret_copy, struct error *err)
{
    char *copy = NULL;
    enum status status = mem_calloc(size + 1, 1, "a store value", &copy, err);

    if (status != STATUS_OK)
        return status;
    if (size > 0)
        memcpy(copy, value, size);
    *ret_copy = copy;
    return STATUS_OK;
}

/* ---- waiters, under the lock */

static void list_waiter(struct store_table *table, struct store_waiter *waiter)
{
    waiter->previous = NULL;
    waiter->next = table->waiters;
    if (table->waiters)
        table->waiters->previous = waiter;
    table->waiters = waiter;
    waiter->listed = true;
}

static void unlist_waiter(struct store_table *table, struct store_waiter *waiter)
{
    if (waiter->previous)
        waiter->previous->next = waiter->next;
    else
        table->waiters = waiter->next;
    if (waiter->next)
        waiter->next->previous = waiter->previous;
    waiter->listed = false;
}

/* Move on to the next missing key; false when all are there at this moment. */
static bool find_missing(struct store_table *table, struct store_waiter *waiter)
{
    for (int pass = 0; pass < 2; pass++) {
        for (; waiter->awaited < waiter->count; waiter->awaited++) {
            waiter->awaited_hash = hash_key(waiter->keys[waiter->awaited]);
            if (!*find_slot(table, waiter->keys[waiter->awaited], waiter->awaited_hash))
                return true;
        }
        waiter->awaited = 0;
    }
    return false;
}

/* Note how the waiter ends, with the value it wants. */
static void settle(struct store_table *table, struct store_waiter *waiter, enum status outcome)
{
    waiter->outcome = outcome;
    waiter->value = NULL;
    waiter->value_size = 0;
    if (outcome != STATUS_OK || !waiter->wants_value)
        return;
    const struct entry *entry = find(table, waiter->keys[0]);

    waiter->outcome = copy_value(entry->value, entry->size, &waiter->value, NULL);
    waiter->value_size = entry->size;
}

/* Move a waiter from the table to the list of those that are called after unlock. */
static void finish_waiter(struct store_table *table, struct store_waiter *waiter,
                          enum status outcome, struct store_waiter **finished)
{
    unlist_waiter(table, waiter);
    settle(table, waiter, outcome);
    waiter->next = *finished;
    *finished = waiter;
}

static struct store_waiter *wake_waiters(struct store_table *table, const char *key, uint64_t hash)
{
    struct store_waiter *finished = NULL;
    struct store_waiter *next;

    for (struct store_waiter *w = table->waiters; w; w = next) {
        next = w->next;
        if (w->awaited_hash == hash && strcmp(w->keys[w->awaited], key) == 0 &&
            !find_missing(table, w))
            finish_waiter(table, w, STATUS_OK, &finished);
    }
    return finished;
}

/* Without the lock: the waiters are nobody else's any more. */
static void call_waiters(struct store_waiter *finished)
{
    while (finished) {
        struct store_waiter *waiter = finished;

        finished = waiter->next; /* `done` may free it */
        waiter->done(waiter, waiter->outcome, waiter->value, waiter->value_size);
    }
}

/* ---- entries, under the lock */

static enum status check_limits(const struct store_table *table, const struct entry *old,
                                const char *key, size_t size, struct error *err)
{
    const size_t length = strlen(key);
    const size_t freed = old ? old->size : 0;
    const size_t added = old ? size : size + length;

    if (length == 0)
        return error_set(err, STATUS_INVALID, "a store key must not be empty");
    if (length > STORE_KEY_MAX)
        return error_set(err, STATUS_INVALID, "store key '%.40s...' has %zu bytes, %u allowed", key,
                         length, STORE_KEY_MAX);
    if (size > STORE_VALUE_MAX)
        return error_set(err, STATUS_INVALID,
                         "the value of store key '%.100s' has %zu bytes, %u allowed", key, size,
                         STORE_VALUE_MAX);
    if (!old && table->count >= STORE_KEYS_MAX)
        return error_set(err, STATUS_NO_SPACE, "the store is full: it has %u keys", STORE_KEYS_MAX);
    if (table->bytes - freed + added > table->bytes_max)
        return error_set(err, STATUS_NO_SPACE,
                         "the store is full: it would hold more than %zu bytes", table->bytes_max);
    return STATUS_OK;
}

static enum status new_entry(const char *key, uint64_t hash, struct entry **ret, struct error *err)
{
    struct entry *entry = NULL;
    enum status status = mem_calloc(1, sizeof(*entry), "a store entry", &entry, err);

    if (status != STATUS_OK)
        return status;
    entry->hash = hash;
    status = mem_strdup(key, &entry->key, err);
    if (status != STATUS_OK) {
        free_entry(entry);
        return status;
    }
    *ret = entry;
    return STATUS_OK;
}

/* Insert or overwrite; *ret_finished are the waiters to call after unlock. */
static enum status put(struct store_table *table, const char *key, const void *value, size_t size,
                       bool counter, struct store_waiter **ret_finished, struct error *err)
{
    const uint64_t hash = hash_key(key);
    struct entry **slot = find_slot(table, key, hash);
    struct entry *fresh = NULL;
    char *copy = NULL;
    enum status status = check_limits(table, *slot, key, size, err);

    if (status == STATUS_OK)
        status = copy_value(value, size, &copy, err);
    if (status == STATUS_OK && !*slot)
        status = new_entry(key, hash, &fresh, err);
    if (status != STATUS_OK) {
        free(copy);
        return status;
    }
    if (fresh) {
        *slot = fresh;
        table->count++;
        table->bytes += strlen(key);
    }
    table->bytes = table->bytes - (*slot)->size + size;
    free((*slot)->value);
    (*slot)->value = copy;
    (*slot)->size = size;
    (*slot)->counter = counter;
    *ret_finished = fresh ? wake_waiters(table, key, hash) : NULL;
    return STATUS_OK;
}

/* ---- public: entries */

enum status store_table_open(size_t bytes_max, struct store_table **ret_table, struct error *err)
{
    struct store_table *table = NULL;
    pthread_condattr_t monotonic;
    enum status status = mem_calloc(1, sizeof(*table), "a store table", &table, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_init(&table->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&table->woken, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    table->bytes_max = bytes_max;
    table->run_deadline_ns = INT64_MAX;
    *ret_table = table;
    return STATUS_OK;
}

void store_table_clear(struct store_table *table)
{
    (void)pthread_mutex_lock(&table->lock);
    for (size_t i = 0; i < bucket_count; i++) {
        while (table->buckets[i]) {
            struct entry *entry = table->buckets[i];

            table->buckets[i] = entry->next;
            free_entry(entry);
        }
    }
    table->count = 0;
    table->bytes = 0;
    (void)pthread_mutex_unlock(&table->lock);
}

void store_table_close(struct store_table *table)
{
    if (!table)
        return;
    store_table_stop(table);
    store_table_clear(table);
    (void)pthread_cond_destroy(&table->woken);
    (void)pthread_mutex_destroy(&table->lock);
    free(table);
}

enum status store_table_set(struct store_table *table, const char *key, const void *value,
                            size_t size, bool counter, struct error *err)
{
    struct store_waiter *finished = NULL;
    enum status status;

    (void)pthread_mutex_lock(&table->lock);
    status = put(table, key, value, size, counter, &finished, err);
    (void)pthread_mutex_unlock(&table->lock);
    call_waiters(finished);
    return status;
}

enum status store_table_get(struct store_table *table, const char *key, char **ret_value,
                            size_t *ret_size, struct error *err)
{
    enum status status = STATUS_NOT_FOUND;
    const struct entry *entry;

    (void)pthread_mutex_lock(&table->lock);
    entry = find(table, key);
    if (entry)
        status = copy_value(entry->value, entry->size, ret_value, err);
    if (status == STATUS_OK)
        *ret_size = entry->size;
    (void)pthread_mutex_unlock(&table->lock);
    return status;
}

/* The sum to store for `entry` (NULL: missing) and `delta`. */
static enum status sum_of(const struct entry *entry, const char *key, int64_t delta,
                          int64_t *ret_sum, struct error *err)
{
    int64_t old = 0;

    if (entry && (!entry->counter || !parse_int64(entry->value, &old)))
        return error_set(err, STATUS_DATA, "cannot add to store key '%.200s': it is not a counter",
                         key);
    if (__builtin_add_overflow(old, delta, ret_sum))
        return error_set(err, STATUS_DATA,
                         "cannot add %" PRId64 " to store key '%.200s': %" PRId64
                         " is too near the limit of 64 bits",
                         delta, key, old);
    return STATUS_OK;
}

enum status store_table_add(struct store_table *table, const char *key, int64_t delta,
                            int64_t *ret_sum, struct error *err)
{
    struct store_waiter *finished = NULL;
    int64_t sum = 0;
    char text[32];
    enum status status;

    (void)pthread_mutex_lock(&table->lock);
    status = sum_of(find(table, key), key, delta, &sum, err);
    if (status == STATUS_OK) {
        int length = snprintf(text, sizeof(text), "%" PRId64, sum);

        status = put(table, key, text, (size_t)length, true, &finished, err);
    }
    (void)pthread_mutex_unlock(&table->lock);
    call_waiters(finished);
    if (status == STATUS_OK)
        *ret_sum = sum;
    return status;
}

static bool matches(const struct entry *entry, const void *expected, size_t expected_size)
{
    if (!entry)
        return expected_size == 0;
    return entry->size == expected_size &&
           (expected_size == 0 || memcmp(entry->value, expected, expected_size) == 0);
}

enum status store_table_compare_set(struct store_table *table, const char *key,
                                    const void *expected, size_t expected_size, const void *desired,
                                    size_t desired_size, char **ret_value, size_t *ret_size,
                                    bool *ret_written, struct error *err)
{
    struct store_waiter *finished = NULL;
    const void *now = expected; /* of a missing key that was expected to be there */
    size_t now_size = expected_size;
    const struct entry *entry;
    char *copy = NULL;
    bool written;
    enum status status;

    (void)pthread_mutex_lock(&table->lock);
    entry = find(table, key);
    written = matches(entry, expected, expected_size);
    if (written) {
        now = desired;
        now_size = desired_size;
    } else if (entry) {
        now = entry->value;
        now_size = entry->size;
    }
    status = copy_value(now, now_size, &copy, err);
    if (status == STATUS_OK && written)
        status = put(table, key, desired, desired_size, false, &finished, err);
    (void)pthread_mutex_unlock(&table->lock);
    call_waiters(finished);
    if (status != STATUS_OK) {
        free(copy);
        return status;
    }
    *ret_value = copy;
    *ret_size = now_size;
    *ret_written = written;
    return STATUS_OK;
}

bool store_table_delete(struct store_table *table, const char *key)
{
    struct entry **slot;
    struct entry *entry;

    (void)pthread_mutex_lock(&table->lock);
    slot = find_slot(table, key, hash_key(key));
    entry = *slot;
    if (entry) {
        *slot = entry->next;
        table->count--;
        table->bytes -= strlen(entry->key) + entry->size;
    }
    (void)pthread_mutex_unlock(&table->lock);
    free_entry(entry);
    return entry != NULL;
}

bool store_table_has(struct store_table *table, const char *key)
{
    bool found;

    (void)pthread_mutex_lock(&table->lock);
    found = find(table, key) != NULL;
    (void)pthread_mutex_unlock(&table->lock);
    return found;
}

size_t store_table_count(struct store_table *table)
{
    size_t count;

    (void)pthread_mutex_lock(&table->lock);
    count = table->count;
    (void)pthread_mutex_unlock(&table->lock);
    return count;
}

void store_table_each_key(struct store_table *table, bool (*visit)(const char *key, void *user),
                          void *user)
{
    bool go_on = true;

    (void)pthread_mutex_lock(&table->lock);
    for (size_t i = 0; i < bucket_count && go_on; i++)
        for (struct entry *entry = table->buckets[i]; entry && go_on; entry = entry->next)
            go_on = visit(entry->key, user);
    (void)pthread_mutex_unlock(&table->lock);
}

/* ---- public: waiters */

void store_table_wait(struct store_table *table, struct store_waiter *waiter)
{
    bool listed = false;

    (void)pthread_mutex_lock(&table->lock);
    waiter->awaited = 0;
    waiter->listed = false;
    if (table->stopped) {
        settle(table, waiter, STATUS_CANCELLED);
    } else if (!find_missing(table, waiter)) {
        settle(table, waiter, STATUS_OK);
    } else if (waiter->deadline_ns <= clock_now_ns()) {
        settle(table, waiter, STATUS_TIMEOUT);
    } else {
        list_waiter(table, waiter);
        listed = true;
        if (waiter->deadline_ns < table->run_deadline_ns)
            (void)pthread_cond_signal(&table->woken);
    }
    (void)pthread_mutex_unlock(&table->lock);
    if (!listed)
        waiter->done(waiter, waiter->outcome, waiter->value, waiter->value_size);
}

bool store_table_cancel(struct store_table *table, struct store_waiter *waiter)
{
    bool listed;

    (void)pthread_mutex_lock(&table->lock);
    listed = waiter->listed;
    if (listed)
        unlist_waiter(table, waiter);
    (void)pthread_mutex_unlock(&table->lock);
    return listed;
}

/* Take out those whose time is over and note the next deadline. */
static struct store_waiter *expire(struct store_table *table)
{
    struct store_waiter *finished = NULL;
    struct store_waiter *next;
    int64_t now_ns = clock_now_ns();

    table->run_deadline_ns = INT64_MAX;
    for (struct store_waiter *w = table->waiters; w; w = next) {
        next = w->next;
        if (w->deadline_ns <= now_ns)
            finish_waiter(table, w, STATUS_TIMEOUT, &finished);
        else if (w->deadline_ns < table->run_deadline_ns)
            table->run_deadline_ns = w->deadline_ns;
    }
    return finished;
}

/* Sleep until the next deadline or a signal; the lock is held before and after. */
static void sleep_until_deadline(struct store_table *table)
{
    struct timespec until;

    if (table->run_deadline_ns == INT64_MAX) {
        (void)pthread_cond_wait(&table->woken, &table->lock);
        return;
    }
    until.tv_sec = (time_t)(table->run_deadline_ns / 1000000000);
    until.tv_nsec = (long)(table->run_deadline_ns % 1000000000);
    (void)pthread_cond_timedwait(&table->woken, &table->lock, &until);
}

void store_table_run(struct store_table *table)
{
    (void)pthread_mutex_lock(&table->lock);
    while (!table->stopped) {
        struct store_waiter *finished = expire(table);

        if (finished) {
            (void)pthread_mutex_unlock(&table->lock);
            call_waiters(finished);
            (void)pthread_mutex_lock(&table->lock);
        } else {
            sleep_until_deadline(table);
        }
    }
    (void)pthread_mutex_unlock(&table->lock);
}

void store_table_stop(struct store_table *table)
{
    struct store_waiter *finished = NULL;

    (void)pthread_mutex_lock(&table->lock);
    table->stopped = true;
    while (table->waiters)
        finish_waiter(table, table->waiters, STATUS_CANCELLED, &finished);
    (void)pthread_cond_signal(&table->woken);
    (void)pthread_mutex_unlock(&table->lock);
    call_waiters(finished);
}
