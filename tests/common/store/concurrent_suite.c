/*
 * Many threads and many processes on one store: no increment is lost, no number is assigned twice,
 * compare_set works as a lock, and a reader sees whole values only.
 */
#include "tests/common/store/store_suite.h"

#include "common/base/parse.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { workers = 4, rounds = 60, numbers_count = workers * rounds };

struct worker {
    pthread_t thread;
    struct store *store;
    unsigned index;
    int64_t numbers[rounds]; /* results of store_add */
};

static void *worker_main(void *user)
{
    struct worker *w = user;
    struct error err = {0};
    char key[32];
    char fill[2000];

    (void)snprintf(key, sizeof(key), "own%u", w->index);
    for (int i = 0; i < rounds; i++) {
        char *value = NULL;
        size_t size = 0;

        assert_ok(store_add(w->store, "ticket", 1, &w->numbers[i], &err));
        memset(fill, 'a' + i % 26, sizeof(fill));
        assert_ok(store_set(w->store, key, fill, 1 + (size_t)i * 31, &err));
        assert_ok(store_get(w->store, key, 10000, &value, &size, &err));
        ck_assert_uint_eq(size, 1 + (size_t)i * 31);
        ck_assert_int_eq(memcmp(value, fill, size), 0);
        free(value);
        assert_ok(store_set(w->store, "shared", fill, 100 + w->index, &err));
        assert_ok(store_get(w->store, "shared", 10000, &value, &size, &err));
        for (size_t j = 1; j < size; j++)
            ck_assert_int_eq(value[j], value[0]);
        free(value);
    }
    return NULL;
}

START_TEST(threads_of_several_handles)
{
    struct job job;
    struct worker w[workers] = {0};
    bool seen[numbers_count + 1] = {false};
    char total[32];

    open_job(&job, 2, 30000);
    for (unsigned i = 0; i < workers; i++) {
        w[i].index = i;
        w[i].store = job.stores[i % 2]; /* two threads share a handle */
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, worker_main, &w[i]), 0);
    }
    for (unsigned i = 0; i < workers; i++)
        (void)pthread_join(w[i].thread, NULL);
    for (unsigned i = 0; i < workers; i++) {
        for (int j = 0; j < rounds; j++) {
            ck_assert_int_ge(w[i].numbers[j], 1);
            ck_assert_int_le(w[i].numbers[j], numbers_count);
            ck_assert(!seen[w[i].numbers[j]]);
            seen[w[i].numbers[j]] = true;
        }
    }
    (void)snprintf(total, sizeof(total), "%d", numbers_count);
    check_value(job.stores[0], "ticket", total);
    close_job(&job);
}
END_TEST

/* ---- a lock made of compare_set */

static void *lock_and_count(void *user)
{
    struct worker *w = user;
    struct error err = {0};
    char name[32];

    (void)snprintf(name, sizeof(name), "holder %u", w->index);
    for (int i = 0; i < 10; i++) {
        char *value = NULL;
        size_t size;
        int64_t number = 0;
        char text[32];

        for (bool mine = false; !mine;) {
            assert_ok(store_compare_set(w->store, "lock", "free", name, &value, &err));
            mine = strcmp(value, name) == 0;
            free(value);
        }
        assert_ok(store_get(w->store, "unsafe", 30000, &value, &size, &err));
        ck_assert(parse_int64(value, &number));
        free(value);
        (void)snprintf(text, sizeof(text), "%" PRId64, number + 1);
        assert_ok(store_set(w->store, "unsafe", text, strlen(text), &err));
        assert_ok(store_set(w->store, "lock", "free", 4, &err));
    }
    return NULL;
}

START_TEST(compare_set_is_a_lock)
{
    struct error err = {0};
    struct job job;
    struct worker w[workers] = {0};
    char total[32];

    open_job(&job, workers, 30000);
    assert_ok(store_set(job.stores[0], "unsafe", "0", 1, &err));
    assert_ok(store_set(job.stores[0], "lock", "free", 4, &err));
    for (unsigned i = 0; i < workers; i++) {
        w[i].index = i;
        w[i].store = job.stores[i];
        ck_assert_int_eq(pthread_create(&w[i].thread, NULL, lock_and_count, &w[i]), 0);
    }
    for (unsigned i = 0; i < workers; i++)
        (void)pthread_join(w[i].thread, NULL);
    (void)snprintf(total, sizeof(total), "%d", workers * 10);
    check_value(job.stores[0], "unsafe", total);
    close_job(&job);
}
END_TEST

/* ---- processes */

static void process_work(struct store *store, unsigned rank)
{
    struct error err = {0};
    static const char *const done[] = {"done0", "done1", "done2", "done3"};
    struct worker w = {.store = store, .index = rank};
    char total[32];

    (void)worker_main(&w);
    for (int i = 1; i < rounds; i++)
        ck_assert_int_gt(w.numbers[i], w.numbers[i - 1]);
    assert_ok(store_set(store, done[rank], "", 0, &err));
    assert_ok(store_wait(store, done, workers, 30000, &err));
    (void)snprintf(total, sizeof(total), "%d", numbers_count);
    check_value(store, "ticket", total);
}

START_TEST(processes)
{
    run_processes(workers, process_work);
}
END_TEST

TCase *concurrent_cases(void)
{
    TCase *cases = tcase_create("concurrent");

    tcase_set_timeout(cases, 100);
    tcase_add_test(cases, threads_of_several_handles);
    tcase_add_test(cases, compare_set_is_a_lock);
    tcase_add_test(cases, processes);
    return cases;
}
