/*
 * The table without a transport: limits, waiters and their deadlines, and many threads at once
 * (this test runs under ThreadSanitizer).
 */
#include "common/store/store_table.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct store_table *open_table(size_t bytes_max)
{
    struct error err = {0};
    struct store_table *table = NULL;

    assert_ok(store_table_open(bytes_max, &table, &err));
    return table;
}

/* ---- limits */

START_TEST(count_of_keys_is_bounded)
{
    struct error err = {0};
    struct store_table *table = open_table(STORE_BYTES_MAX);
    char key[32];
    int64_t sum;

    for (unsigned i = 0; i < STORE_KEYS_MAX; i++) {
        (void)snprintf(key, sizeof(key), "key %u", i);
        assert_ok(store_table_set(table, key, "v", 1, false, &err));
    }
    ck_assert_uint_eq(store_table_count(table), STORE_KEYS_MAX);
    assert_fails(store_table_set(table, "one more", "v", 1, false, &err), STATUS_NO_SPACE, "65536");
    assert_fails(store_table_add(table, "one more", 1, &sum, &err), STATUS_NO_SPACE, "65536");
    assert_ok(store_table_set(table, "key 7", "w", 1, false, &err)); /* not a new one */
    ck_assert(store_table_delete(table, "key 8"));
    assert_ok(store_table_add(table, "one more", 1, &sum, &err));
    store_table_clear(table);
    ck_assert_uint_eq(store_table_count(table), 0);
    store_table_close(table);
}
END_TEST

START_TEST(bytes_are_bounded)
{
    struct error err = {0};
    struct store_table *table = open_table(100);
    char fill[200] = {0};

    assert_ok(store_table_set(table, "0123456789", fill, 40, false, &err));
    assert_ok(store_table_set(table, "abcdefghij", fill, 40, false, &err)); /* exactly 100 */
    assert_fails(store_table_set(table, "k", "", 0, false, &err), STATUS_NO_SPACE, "100 bytes");
    assert_fails(store_table_set(table, "0123456789", fill, 41, false, &err), STATUS_NO_SPACE,
                 "100 bytes");
    assert_ok(store_table_set(table, "0123456789", fill, 39, false, &err));
    assert_ok(store_table_set(table, "k", "", 0, false, &err));
    ck_assert(store_table_delete(table, "abcdefghij"));
    assert_ok(store_table_set(table, "0123456789", fill, 89, false, &err));
    assert_fails(store_table_set(table, "0123456789", fill, 90, false, &err), STATUS_NO_SPACE,
                 "100 bytes");
    store_table_close(table);
}
END_TEST

START_TEST(keys_and_values_are_bounded)
{
    struct error err = {0};
    struct store_table *table = open_table(STORE_BYTES_MAX);
    char key[STORE_KEY_MAX + 2];

    memset(key, 'k', sizeof(key));
    key[STORE_KEY_MAX + 1] = '\0';
    assert_fails(store_table_set(table, key, "", 0, false, &err), STATUS_INVALID, "1025 bytes");
    key[STORE_KEY_MAX] = '\0';
    assert_ok(store_table_set(table, key, "", 0, false, &err));
    assert_fails(store_table_set(table, "", "", 0, false, &err), STATUS_INVALID, "empty");
    assert_fails(store_table_set(table, "k", "", STORE_VALUE_MAX + 1, false, &err), STATUS_INVALID,
                 "16777217");
    store_table_close(table);
}
END_TEST

START_TEST(failed_allocations_change_nothing)
{
    struct error err = {0};
    struct store_table *table = open_table(STORE_BYTES_MAX);
    char *value = NULL;
    size_t size;
    bool written;
    int64_t sum;

    assert_ok(store_table_set(table, "old", "value", 5, false, &err));
    for (size_t n = 1; n <= 3; n++) {
        mem_fail_nth(n);
        assert_fails(store_table_set(table, "new", "v", 1, false, &err), STATUS_NO_MEMORY,
                     "cannot allocate");
        mem_fail_nth(n);
        assert_fails(store_table_add(table, "new", 1, &sum, &err), STATUS_NO_MEMORY,
                     "cannot allocate");
    }
    for (size_t n = 1; n <= 2; n++) {
        mem_fail_nth(n);
        assert_fails(store_table_compare_set(table, "old", "value", 5, "v", 1, &value, &size,
                                             &written, &err),
                     STATUS_NO_MEMORY, "cannot allocate");
    }
    mem_fail_nth(1);
    assert_fails(store_table_get(table, "old", &value, &size, &err), STATUS_NO_MEMORY,
                 "cannot allocate");
    ck_assert_uint_eq(store_table_count(table), 1);
    assert_ok(store_table_get(table, "old", &value, &size, &err));
    ck_assert_str_eq(value, "value");
    free(value);
    store_table_close(table);
}
END_TEST

/* ---- waiters */

/* The result of a waiter's call-back. */
struct waiter_result {
    struct store_waiter waiter;
    unsigned calls;
    enum status status;
    char *value;
    size_t size;
};

static void record_outcome(struct store_waiter *waiter, enum status status, char *value,
                           size_t size)
{
    struct waiter_result *waiter_result = waiter->user;

    waiter_result->calls++;
    waiter_result->status = status;
    free(waiter_result->value);
    waiter_result->value = value;
    waiter_result->size = size;
}

static void start_waiting(struct store_table *table, struct waiter_result *waiter_result,
                          const char *const *keys, size_t count, int64_t timeout_ms,
                          bool wants_value)
{
    *waiter_result = (struct waiter_result){.waiter = {.keys = keys,
                                                       .count = count,
                                                       .deadline_ns = clock_deadline_ns(timeout_ms),
                                                       .wants_value = wants_value,
                                                       .done = record_outcome,
                                                       .user = waiter_result}};
    store_table_wait(table, &waiter_result->waiter);
}

static const char *const abc[] = {"a", "b", "c"};

START_TEST(waiter_is_called_when_all_keys_exist)
{
    struct error err = {0};
    struct store_table *table = open_table(STORE_BYTES_MAX);
    struct waiter_result all;
    struct waiter_result value;
    struct waiter_result none;
    int64_t sum;

    start_waiting(table, &all, abc, 3, 60000, false);
    start_waiting(table, &value, abc + 1, 1, 60000, true);
    start_waiting(table, &none, abc, 0, 60000, false);
    ck_assert_uint_eq(none.calls, 1);
    ck_assert_int_eq(none.status, STATUS_OK);
    assert_ok(store_table_set(table, "c", "C", 1, false, &err));
    assert_ok(store_table_set(table, "a", "A", 1, false, &err));
    ck_assert_uint_eq(all.calls + value.calls, 0);
    ck_assert(store_table_delete(table, "a")); /* deleted after it was seen */
    assert_ok(store_table_add(table, "b", 42, &sum, &err));
    ck_assert_uint_eq(value.calls, 1);
    ck_assert_str_eq(value.value, "42");
    ck_assert_uint_eq(value.size, 2);
    ck_assert_uint_eq(all.calls, 0);
    assert_ok(store_table_set(table, "a", "A", 1, false, &err));
    ck_assert_uint_eq(all.calls, 1);
    ck_assert_int_eq(all.status, STATUS_OK);
    ck_assert(!store_table_cancel(table, &all.waiter));
    start_waiting(table, &all, abc, 3, 0, false); /* there already */
    ck_assert_uint_eq(all.calls, 1);
    ck_assert_int_eq(all.status, STATUS_OK);
    free(value.value);
    store_table_close(table);
}
END_TEST

START_TEST(waiter_without_time_or_memory)
{
    struct error err = {0};
    struct store_table *table = open_table(STORE_BYTES_MAX);
    struct waiter_result waiter_result;

    start_waiting(table, &waiter_result, abc, 3, 0, false);
    ck_assert_uint_eq(waiter_result.calls, 1);
    ck_assert_int_eq(waiter_result.status, STATUS_TIMEOUT);
    assert_ok(store_table_set(table, "a", "A", 1, false, &err));
    mem_fail_nth(1);
    start_waiting(table, &waiter_result, abc, 1, 0, true);
    ck_assert_int_eq(waiter_result.status, STATUS_NO_MEMORY);
    store_table_close(table);
}
END_TEST

START_TEST(cancelled_waiter_is_not_called)
{
    struct error err = {0};
    struct store_table *table = open_table(STORE_BYTES_MAX);
    struct waiter_result waiter_result[3];

    for (int i = 0; i < 3; i++)
        start_waiting(table, &waiter_result[i], abc, 1, 60000, false);
    ck_assert(store_table_cancel(table, &waiter_result[1].waiter)); /* the middle one of the list */
    ck_assert(!store_table_cancel(table, &waiter_result[1].waiter));
    assert_ok(store_table_set(table, "a", "A", 1, false, &err));
    ck_assert_uint_eq(waiter_result[0].calls, 1);
    ck_assert_uint_eq(waiter_result[1].calls, 0);
    ck_assert_uint_eq(waiter_result[2].calls, 1);
    store_table_close(table);
}
END_TEST

START_TEST(stop_calls_all_waiters)
{
    struct store_table *table = open_table(STORE_BYTES_MAX);
    struct waiter_result waiter_result[4];

    for (int i = 0; i < 3; i++)
        start_waiting(table, &waiter_result[i], abc + i, 1, 60000, false);
    store_table_stop(table);
    start_waiting(table, &waiter_result[3], abc, 1, 60000, false);
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(waiter_result[i].calls, 1);
        ck_assert_int_eq(waiter_result[i].status, STATUS_CANCELLED);
    }
    store_table_run_timer(table); /* stopped: returns */
    store_table_close(table);
}
END_TEST

/* ---- threads */

static void *timer_main(void *user)
{
    store_table_run_timer(user);
    return NULL;
}

/* A waiter that another thread waits for. */
struct signal {
    struct store_waiter waiter;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned calls; /* under lock */
    enum status status;
    int64_t heard_ns;
};

static void signal_done(struct store_waiter *waiter, enum status status, char *value, size_t size)
{
    struct signal *s = waiter->user;

    (void)size;
    free(value);
    (void)pthread_mutex_lock(&s->lock);
    s->calls++;
    s->status = status;
    s->heard_ns = clock_now_ns();
    (void)pthread_cond_signal(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

static void init_signal(struct signal *s, const char *const *keys, size_t count, int64_t timeout_ms)
{
    memset(s, 0, sizeof(*s));
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    s->waiter = (struct store_waiter){.keys = keys,
                                      .count = count,
                                      .deadline_ns = clock_deadline_ns(timeout_ms),
                                      .wants_value = count == 1,
                                      .done = signal_done,
                                      .user = s};
}

static enum status await_signal(struct signal *s)
{
    enum status status;

    (void)pthread_mutex_lock(&s->lock);
    while (s->calls == 0)
        (void)pthread_cond_wait(&s->changed, &s->lock);
    ck_assert_uint_eq(s->calls, 1);
    status = s->status;
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

START_TEST(deadlines_in_any_order)
{
    static const int64_t timeouts_ms[] = {300, 60, 180, 60, 240, 120};
    struct store_table *table = open_table(STORE_BYTES_MAX);
    struct signal signals[6];
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, timer_main, table), 0);
    for (int i = 0; i < 6; i++) {
        init_signal(&signals[i], abc, 3, timeouts_ms[i]);
        store_table_wait(table, &signals[i].waiter);
    }
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(await_signal(&signals[i]), STATUS_TIMEOUT);
        ck_assert_int_ge(signals[i].heard_ns, signals[i].waiter.deadline_ns);
        ck_assert_int_lt(signals[i].heard_ns, signals[i].waiter.deadline_ns + 10000000000);
    }
    store_table_stop(table);
    (void)pthread_join(thread, NULL);
    store_table_close(table);
}
END_TEST

enum { crowd = 4, crowd_rounds = 1500, crowd_keys = 5 };

struct member {
    pthread_t thread;
    struct store_table *table;
    unsigned seed;
    unsigned called;
    unsigned cancelled;
    int64_t added;
};

static unsigned member_random_below(struct member *m, unsigned below)
{
    m->seed = m->seed * 1664525u + 1013904223u;
    return (m->seed >> 8) % below;
}

/* Set, add, delete and wait at random; every waiter is called once, or cancelled. */
static void *random_operations_main(void *user)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e"};
    struct member *m = user;
    struct error err = {0};

    for (int i = 0; i < crowd_rounds; i++) {
        const unsigned k = member_random_below(m, crowd_keys);
        struct signal s;
        char *value = NULL;
        size_t size;
        bool written;
        int64_t sum;

        init_signal(&s, keys + k, member_random_below(m, crowd_keys - k) + 1,
                    (int64_t)member_random_below(m, 3));
        store_table_wait(m->table, &s.waiter);
        switch (member_random_below(m, 4)) {
        case 0:
            assert_ok(store_table_set(m->table, keys[k], "text", 4, false, &err));
            break;
        case 1:
            (void)store_table_delete(m->table, keys[k]);
            break;
        case 2:
            assert_ok(store_table_compare_set(m->table, keys[k], "text", 4, "other", 5, &value,
                                              &size, &written, &err));
            free(value);
            break;
        default:
            assert_ok(store_table_add(m->table, "sum", 3, &sum, &err));
            m->added += 3;
        }
        if (member_random_below(m, 2) && store_table_cancel(m->table, &s.waiter)) {
            m->cancelled++;
            ck_assert_uint_eq(s.calls, 0);
            continue;
        }
        (void)await_signal(&s);
        m->called++;
    }
    return NULL;
}

START_TEST(many_concurrent_threads)
{
    struct store_table *table = open_table(STORE_BYTES_MAX);
    struct member members[crowd];
    struct error err = {0};
    int64_t added = 0;
    int64_t sum;
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, timer_main, table), 0);
    for (unsigned i = 0; i < crowd; i++) {
        members[i] = (struct member){.table = table, .seed = (unsigned)(support_random() * 1e9)};
        ck_assert_int_eq(
            pthread_create(&members[i].thread, NULL, random_operations_main, &members[i]), 0);
    }
    for (unsigned i = 0; i < crowd; i++) {
        (void)pthread_join(members[i].thread, NULL);
        ck_assert_uint_eq(members[i].called + members[i].cancelled, crowd_rounds);
        added += members[i].added;
    }
    assert_ok(store_table_add(table, "sum", 0, &sum, &err));
    ck_assert_int_eq(sum, added);
    store_table_stop(table);
    (void)pthread_join(thread, NULL);
    store_table_close(table);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("store_table", 60, TEST(count_of_keys_is_bounded), TEST(bytes_are_bounded),
                       TEST(keys_and_values_are_bounded), TEST(failed_allocations_change_nothing),
                       TEST(waiter_is_called_when_all_keys_exist),
                       TEST(waiter_without_time_or_memory), TEST(cancelled_waiter_is_not_called),
                       TEST(stop_calls_all_waiters), TEST(deadlines_in_any_order),
                       TEST(many_concurrent_threads));
}
