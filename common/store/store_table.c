/*
 * The entries of the table: a chained hash table under one mutex.  A new key wakes waiters (see
 * store_waiter.c), which are called after unlock.
 * Keys come from the ranks of one job and are bounded in number, so the hash needs no secret.
 */
#include "common/store/store_table_internal.h"

#include "common/base/condition.h"
#include "common/base/memory.h"
#include "common/base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* FNV-1a, 64 bits (Fowler, Noll, Vo). */
uint64_t store_table_hash(const char *key)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 0x100000001b3u;
    return hash;
}

struct entry **store_table_find_link(struct store_table *table, const char *key, uint64_t hash)
{
    struct entry **link = &table->buckets[hash % bucket_count];

    while (*link && ((*link)->hash != hash || strcmp((*link)->key, key) != 0))
        link = &(*link)->next;
    return link;
}

static struct entry *find_entry(struct store_table *table, const char *key)
{
    return *store_table_find_link(table, key, store_table_hash(key));
}

static void free_entry(struct entry *entry)
{
    if (!entry)
        return;
    free(entry->key);
    free(entry->value);
    free(entry);
}

enum status store_value_copy(const void *value, size_t size, char **ret_copy, struct error *err)
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

/* Insert or overwrite; *ret_finished is the list of waiters to call after unlock. */
static enum status put_entry(struct store_table *table, const char *key, const void *value,
                             size_t size, bool counter, struct store_waiter **ret_finished,
                             struct error *err)
{
    const uint64_t hash = store_table_hash(key);
    struct entry **link = store_table_find_link(table, key, hash);
    struct entry *fresh = NULL;
    char *copy = NULL;
    enum status status = check_limits(table, *link, key, size, err);

    if (status == STATUS_OK)
        status = store_value_copy(value, size, &copy, err);
    if (status == STATUS_OK && !*link)
        status = new_entry(key, hash, &fresh, err);
    if (status != STATUS_OK) {
        free(copy);
        return status;
    }
    if (fresh) {
        *link = fresh;
        table->count++;
        table->bytes += strlen(key);
    }
    table->bytes = table->bytes - (*link)->size + size;
    free((*link)->value);
    (*link)->value = copy;
    (*link)->size = size;
    (*link)->counter = counter;
    *ret_finished = fresh ? store_waiters_wake(table, key, hash) : NULL;
    return STATUS_OK;
}

/* ---- public */

enum status store_table_open(size_t bytes_max, struct store_table **ret_table, struct error *err)
{
    struct store_table *table = NULL;
    enum status status = mem_calloc(1, sizeof(*table), "a store table", &table, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_init(&table->lock, NULL);
    condition_init(&table->changed);
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
    (void)pthread_cond_destroy(&table->changed);
    (void)pthread_mutex_destroy(&table->lock);
    free(table);
}

enum status store_table_set(struct store_table *table, const char *key, const void *value,
                            size_t size, bool counter, struct error *err)
{
    struct store_waiter *finished = NULL;
    enum status status;

    (void)pthread_mutex_lock(&table->lock);
    status = put_entry(table, key, value, size, counter, &finished, err);
    (void)pthread_mutex_unlock(&table->lock);
    store_waiters_call(finished);
    return status;
}

enum status store_table_get(struct store_table *table, const char *key, char **ret_value,
                            size_t *ret_size, struct error *err)
{
    enum status status = STATUS_NOT_FOUND;
    const struct entry *entry;

    (void)pthread_mutex_lock(&table->lock);
    entry = find_entry(table, key);
    if (entry)
        status = store_value_copy(entry->value, entry->size, ret_value, err);
    if (status == STATUS_OK)
        *ret_size = entry->size;
    (void)pthread_mutex_unlock(&table->lock);
    return status;
}

/* The sum to store for `entry` (NULL: missing) and `delta`. */
static enum status add_to_counter(const struct entry *entry, const char *key, int64_t delta,
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
    status = add_to_counter(find_entry(table, key), key, delta, &sum, err);
    if (status == STATUS_OK) {
        int length = snprintf(text, sizeof(text), "%" PRId64, sum);

        status = put_entry(table, key, text, (size_t)length, true, &finished, err);
    }
    (void)pthread_mutex_unlock(&table->lock);
    store_waiters_call(finished);
    if (status == STATUS_OK)
        *ret_sum = sum;
    return status;
}

static bool entry_matches(const struct entry *entry, const void *expected, size_t expected_size)
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
    const void *now = expected; /* the result for a missing key with a non-empty `expected` */
    size_t now_size = expected_size;
    const struct entry *entry;
    char *copy = NULL;
    bool written;
    enum status status;

    (void)pthread_mutex_lock(&table->lock);
    entry = find_entry(table, key);
    written = entry_matches(entry, expected, expected_size);
    if (written) {
        now = desired;
        now_size = desired_size;
    } else if (entry) {
        now = entry->value;
        now_size = entry->size;
    }
    status = store_value_copy(now, now_size, &copy, err);
    if (status == STATUS_OK && written)
        status = put_entry(table, key, desired, desired_size, false, &finished, err);
    (void)pthread_mutex_unlock(&table->lock);
    store_waiters_call(finished);
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
    struct entry **link;
    struct entry *entry;

    (void)pthread_mutex_lock(&table->lock);
    link = store_table_find_link(table, key, store_table_hash(key));
    entry = *link;
    if (entry) {
        *link = entry->next;
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
    found = find_entry(table, key) != NULL;
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
