/*
 * Waiters for keys: a list under the table's mutex, without a thread per waiter.
 *
 * A waiter is listed with its first missing key; a new key wakes only the waiters that miss it, and
 * each then advances to its next missing key.  Before it is done all its keys are checked once
 * more, because one may have been deleted meanwhile.  So a new key costs one comparison of hashes
 * per waiter. Waiters removed under the lock are collected in a private list and called after
 * unlock.
 */
#include "common/store/store_table_internal.h"

#include "common/base/clock.h"
#include "common/base/condition.h"

#include <string.h>
#include <time.h>

/* ---- under the lock */

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

/* Advance to the next missing key; false when all exist now. */
static bool find_missing(struct store_table *table, struct store_waiter *waiter)
{
    for (int pass = 0; pass < 2; pass++) {
        for (; waiter->awaited < waiter->count; waiter->awaited++) {
            waiter->awaited_hash = store_table_hash(waiter->keys[waiter->awaited]);
            if (!*store_table_find_link(table, waiter->keys[waiter->awaited], waiter->awaited_hash))
                return true;
        }
        waiter->awaited = 0;
    }
    return false;
}

/* Store how the waiter ends, and the value if it wants one. */
static void set_outcome(struct store_table *table, struct store_waiter *waiter, enum status outcome)
{
    waiter->outcome = outcome;
    waiter->value = NULL;
    waiter->value_size = 0;
    if (outcome != STATUS_OK || !waiter->wants_value)
        return;
    const struct entry *entry =
        *store_table_find_link(table, waiter->keys[0], store_table_hash(waiter->keys[0]));

    waiter->outcome = store_value_copy(entry->value, entry->size, &waiter->value, NULL);
    waiter->value_size = entry->size;
}

/* Move a waiter from the table to the list of waiters to call after unlock. */
static void finish_waiter(struct store_table *table, struct store_waiter *waiter,
                          enum status outcome, struct store_waiter **finished)
{
    unlist_waiter(table, waiter);
    set_outcome(table, waiter, outcome);
    waiter->next = *finished;
    *finished = waiter;
}

struct store_waiter *store_waiters_wake(struct store_table *table, const char *key, uint64_t hash)
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

void store_waiters_call(struct store_waiter *finished)
{
    while (finished) {
        struct store_waiter *waiter = finished;

        finished = waiter->next; /* `done` may free it */
        waiter->done(waiter, waiter->outcome, waiter->value, waiter->value_size);
    }
}

/* ---- public */

void store_table_wait(struct store_table *table, struct store_waiter *waiter)
{
    bool listed = false;

    (void)pthread_mutex_lock(&table->lock);
    waiter->awaited = 0;
    waiter->listed = false;
    if (table->stopped) {
        set_outcome(table, waiter, STATUS_CANCELLED);
    } else if (!find_missing(table, waiter)) {
        set_outcome(table, waiter, STATUS_OK);
    } else if (waiter->deadline_ns <= clock_now_ns()) {
        set_outcome(table, waiter, STATUS_TIMEOUT);
    } else {
        list_waiter(table, waiter);
        listed = true;
        if (waiter->deadline_ns < table->run_deadline_ns)
            (void)pthread_cond_signal(&table->changed);
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

/* Remove the waiters whose deadline has passed, and compute the next deadline. */
static struct store_waiter *take_expired(struct store_table *table)
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
        (void)pthread_cond_wait(&table->changed, &table->lock);
        return;
    }
    until = condition_until(table->run_deadline_ns);
    (void)pthread_cond_timedwait(&table->changed, &table->lock, &until);
}

void store_table_run_timer(struct store_table *table)
{
    (void)pthread_mutex_lock(&table->lock);
    while (!table->stopped) {
        struct store_waiter *finished = take_expired(table);

        if (finished) {
            (void)pthread_mutex_unlock(&table->lock);
            store_waiters_call(finished);
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
    (void)pthread_cond_signal(&table->changed);
    (void)pthread_mutex_unlock(&table->lock);
    store_waiters_call(finished);
}
