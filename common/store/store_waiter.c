/*
 * Who waits for keys: a list under the table's mutex, and no thread per waiter.
 *
 * A waiter is listed with the one key it misses at the moment; a new key wakes only those that miss
 * it, and each then moves on to its next missing key.  Before it is done it looks at all its keys
 * once more, because one may have been deleted meanwhile.  So a new key costs one comparison of
 * hashes per waiter.
 * Who leaves the list under the lock goes to a private list and is called after unlock.
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

/* Move on to the next missing key; false when all are there at this moment. */
static bool find_missing(struct store_table *table, struct store_waiter *waiter)
{
    for (int pass = 0; pass < 2; pass++) {
        for (; waiter->awaited < waiter->count; waiter->awaited++) {
            waiter->awaited_hash = store_table_hash(waiter->keys[waiter->awaited]);
            if (!*store_table_slot(table, waiter->keys[waiter->awaited], waiter->awaited_hash))
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
    const struct entry *entry =
        *store_table_slot(table, waiter->keys[0], store_table_hash(waiter->keys[0]));

    waiter->outcome = store_value_copy(entry->value, entry->size, &waiter->value, NULL);
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

/* Without the lock: the waiters are nobody else's any more. */
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
    until = condition_until(table->run_deadline_ns);
    (void)pthread_cond_timedwait(&table->woken, &table->lock, &until);
}

void store_table_run(struct store_table *table)
{
    (void)pthread_mutex_lock(&table->lock);
    while (!table->stopped) {
        struct store_waiter *finished = expire(table);

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
    (void)pthread_cond_signal(&table->woken);
    (void)pthread_mutex_unlock(&table->lock);
    store_waiters_call(finished);
}
