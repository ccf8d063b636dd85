/*
 * Sequential operations through several handles, so that the others must see each write at once;
 * and the helpers of all suites.
 */
#include "tests/common/store/store_suite.h"

#include "common/base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const struct store_kind *store_kind;

enum status try_open(const char *url, const char *group, unsigned rank, unsigned size,
                     int64_t timeout_ms, struct store **ret_store, struct error *err)
{
    const struct launch_env launch = {.rank = rank,
                                      .world_size = size,
                                      .master_addr = "127.0.0.1",
                                      .master_port = 29500,
                                      .master_port_origin = "default"};
    const struct store_config config = {
        .init_method = url, .launch = &launch, .group = group, .timeout_ms = timeout_ms};

    return store_open(&config, ret_store, err);
}

struct store *open_rank(const char *url, const char *group, unsigned rank, unsigned size,
                        int64_t timeout_ms)
{
    struct error err = {0};
    struct store *store = NULL;

    assert_ok(try_open(url, group, rank, size, timeout_ms, &store, &err));
    ck_assert_uint_eq(store_rank(store), rank);
    ck_assert_uint_eq(store_world_size(store), size);
    return store;
}

void open_job(struct job *job, unsigned size, int64_t timeout_ms)
{
    job->size = size;
    job->stores[0] = open_rank(store_kind->fresh_url(), "job", 0, size, timeout_ms);
    (void)snprintf(job->url, sizeof(job->url), "%s", store_address(job->stores[0]));
    for (unsigned rank = 1; rank < size; rank++)
        job->stores[rank] = open_rank(job->url, "job", rank, size, timeout_ms);
}

void close_job(struct job *job)
{
    for (unsigned rank = job->size; rank-- > 0;)
        store_close(job->stores[rank], 5000);
}

void check_waited(int64_t start_ns, int64_t least_ms)
{
    const int64_t waited_ms = (clock_now_ns() - start_ns) / 1000000;

    ck_assert_int_ge(waited_ms, least_ms);
    ck_assert_int_lt(waited_ms, least_ms + 10000);
}

void check_says_waited(const char *text, int64_t least_ms)
{
    const char *waited = strstr(text, "waited ");
    const double least = (double)least_ms * 1e-3;
    const double seconds = waited ? strtod(waited + strlen("waited "), NULL) : -1;

    /* Its clock may have started a bit later than the deadline's. */
    ck_assert_msg(seconds >= least * 0.8 && seconds < least + 10, "not about %lld ms: %s",
                  (long long)least_ms, text);
}

void check_value(struct store *store, const char *key, const char *wanted)
{
    struct error err = {0};
    char *value = NULL;
    size_t size = 0;

    assert_ok(store_get(store, key, 10000, &value, &size, &err));
    ck_assert_str_eq(value, wanted);
    ck_assert_uint_eq(size, strlen(wanted));
    free(value);
}

/* Child of run_processes: rank 0 sends the others the store's address. */
static void run_rank(const char *fresh, unsigned rank, unsigned size, const int pipe_fds[2],
                     int64_t departure_timeout_ms, void (*body)(struct store *store, unsigned rank))
{
    struct store *store;
    char url[512] = "";

    if (rank == 0) {
        store = open_rank(fresh, "job", 0, size, 30000);
        (void)snprintf(url, sizeof(url), "%s", store_address(store));
        for (unsigned i = 1; i < size; i++)
            ck_assert_int_eq(write(pipe_fds[1], url, sizeof(url)), sizeof(url));
    } else {
        ck_assert_int_eq(read(pipe_fds[0], url, sizeof(url)), sizeof(url));
        store = open_rank(url, "job", rank, size, 30000);
    }
    body(store, rank);
    store_close(store, departure_timeout_ms);
}

void run_processes(unsigned size, void (*body)(struct store *store, unsigned rank))
{
    run_processes_but(size, size, 20000, body);
}

void run_processes_but(unsigned size, unsigned killed, int64_t departure_timeout_ms,
                       void (*body)(struct store *store, unsigned rank))
{
    const char *fresh = store_kind->fresh_url(); /* its folder is made and removed by the parent */
    pid_t children[suite_ranks_max];
    int pipe_fds[2];

    ck_assert_int_eq(pipe(pipe_fds), 0);
    for (unsigned rank = 0; rank < size; rank++) {
        children[rank] = fork();
        ck_assert_int_ge(children[rank], 0);
        if (children[rank] == 0) {
            run_rank(fresh, rank, size, pipe_fds, departure_timeout_ms, body);
            _exit(0);
        }
    }
    for (unsigned rank = 0; rank < size; rank++) {
        int how = 0;

        ck_assert_int_eq(waitpid(children[rank], &how, 0), children[rank]);
        if (rank == killed)
            ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        else
            ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "rank %u ended with %d", rank,
                          how);
    }
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
}

START_TEST(set_and_get)
{
    struct error err = {0};
    struct job job;
    static const char binary[] = {'a', '\0', '\xff', '\n', '\0'};
    char *value = NULL;
    size_t size = 0;

    open_job(&job, 2, 10000);
    assert_ok(store_set(job.stores[0], "key", "one", 3, &err));
    check_value(job.stores[1], "key", "one");
    assert_ok(store_set(job.stores[1], "key", "another", 7, &err));
    check_value(job.stores[0], "key", "another");
    assert_ok(store_set(job.stores[1], "key", "", 0, &err));
    check_value(job.stores[0], "key", "");
    assert_ok(store_set(job.stores[0], "/odd key/!~", binary, sizeof(binary), &err));
    assert_ok(store_get(job.stores[1], "/odd key/!~", 0, &value, &size, &err));
    ck_assert_uint_eq(size, sizeof(binary));
    ck_assert_int_eq(memcmp(value, binary, size), 0);
    ck_assert_int_eq(value[size], '\0');
    free(value);
    close_job(&job);
}
END_TEST

START_TEST(largest_key_and_value)
{
    struct error err = {0};
    struct job job;
    const size_t limit = 16u << 20;
    char *big = malloc(limit + 1);
    char key[1024];
    char *value = NULL;
    size_t size = 0;

    ck_assert_ptr_nonnull(big);
    for (size_t i = 0; i <= limit; i++)
        big[i] = (char)(i * 2654435761u >> 13);
    memset(key, 'k', sizeof(key));
    key[1024 - strlen("job/")] = '\0';
    open_job(&job, 2, 20000);
    assert_ok(store_set(job.stores[0], key, big, limit, &err));
    assert_ok(store_get(job.stores[1], key, 20000, &value, &size, &err));
    ck_assert_uint_eq(size, limit);
    ck_assert_int_eq(memcmp(value, big, limit), 0);
    free(value);
    assert_fails(store_set(job.stores[0], "k", big, limit + 1, &err), STATUS_INVALID, "16777217");
    close_job(&job);
    free(big);
}
END_TEST

START_TEST(bad_keys)
{
    struct error err = {0};
    struct job job;
    char long_key[1025];
    const char *keys[] = {"ok", "\x7f"};
    char *value = NULL;
    size_t size;
    int64_t sum;
    bool found;

    open_job(&job, 1, 5000);
    memset(long_key, 'k', sizeof(long_key));
    long_key[1025 - strlen("job/")] = '\0';
    assert_fails(store_set(job.stores[0], long_key, "", 0, &err), STATUS_INVALID, "1025 bytes");
    assert_fails(store_set(job.stores[0], "", "", 0, &err), STATUS_INVALID, "empty");
    assert_fails(store_get(job.stores[0], "a\nb", 0, &value, &size, &err), STATUS_INVALID, "0x0a");
    assert_fails(store_add(job.stores[0], "\xc3\xa9", 1, &sum, &err), STATUS_INVALID, "0xc3");
    assert_fails(store_delete(job.stores[0], "", &found, &err), STATUS_INVALID, "empty");
    assert_fails(store_compare_set(job.stores[0], "", "", "", &value, &err), STATUS_INVALID,
                 "empty");
    assert_fails(store_wait(job.stores[0], keys, 2, 0, &err), STATUS_INVALID, "0x7f");
    close_job(&job);
}
END_TEST

START_TEST(counters)
{
    struct error err = {0};
    struct job job;
    int64_t sum = 0;
    char *value = NULL;
    bool found;

    open_job(&job, 2, 5000);
    assert_ok(store_add(job.stores[0], "n", 5, &sum, &err));
    ck_assert_int_eq(sum, 5);
    assert_ok(store_add(job.stores[1], "n", -7, &sum, &err));
    ck_assert_int_eq(sum, -2);
    check_value(job.stores[0], "n", "-2");
    assert_ok(store_add(job.stores[0], "zero", 0, &sum, &err));
    check_value(job.stores[1], "zero", "0");
    /* A key that set made is no counter, whatever its text. */
    assert_ok(store_set(job.stores[0], "text", "12", 2, &err));
    assert_fails(store_add(job.stores[1], "text", 1, &sum, &err), STATUS_DATA, "not a counter");
    ck_assert_ptr_nonnull(strstr(err.text, "text"));
    assert_ok(store_set(job.stores[0], "n", "1", 1, &err));
    assert_fails(store_add(job.stores[1], "n", 1, &sum, &err), STATUS_DATA, "not a counter");
    assert_ok(store_compare_set(job.stores[0], "zero", "0", "9", &value, &err));
    free(value);
    assert_fails(store_add(job.stores[1], "zero", 1, &sum, &err), STATUS_DATA, "not a counter");
    /* Deleted, it may become one. */
    assert_ok(store_delete(job.stores[1], "text", &found, &err));
    assert_ok(store_add(job.stores[0], "text", INT64_MAX, &sum, &err));
    assert_fails(store_add(job.stores[1], "text", 1, &sum, &err), STATUS_DATA, "limit of 64 bits");
    check_value(job.stores[0], "text", "9223372036854775807");
    close_job(&job);
}
END_TEST

void check_compare_set(struct store *store, const char *key, const char *expected,
                       const char *desired, const char *wanted)
{
    struct error err = {0};
    char *value = NULL;

    assert_ok(store_compare_set(store, key, expected, desired, &value, &err));
    ck_assert_str_eq(value, wanted);
    free(value);
}

START_TEST(compare_and_set)
{
    struct error err = {0};
    struct job job;
    int64_t count = -1;
    int64_t sum;

    open_job(&job, 2, 5000);
    check_compare_set(job.stores[0], "k", "old", "new", "old"); /* missing: nothing is stored */
    assert_ok(store_num_keys(job.stores[1], &count, &err));
    ck_assert_int_eq(count, 0);
    check_compare_set(job.stores[0], "k", "", "first", "first");
    check_compare_set(job.stores[1], "k", "", "second", "first");
    check_compare_set(job.stores[1], "k", "firs", "second", "first");
    check_compare_set(job.stores[1], "k", "first", "second", "second");
    check_value(job.stores[0], "k", "second");
    check_compare_set(job.stores[1], "k", "second", "", "");
    check_compare_set(job.stores[0], "k", "", "third", "third"); /* empty, but there */
    assert_ok(store_add(job.stores[0], "n", 3, &sum, &err));
    check_compare_set(job.stores[1], "n", "3", "4", "4");
    close_job(&job);
}
END_TEST

START_TEST(delete_and_count)
{
    struct error err = {0};
    struct job job;
    bool found = true;
    int64_t count = -1;
    char *value = NULL;
    size_t size;

    open_job(&job, 2, 5000);
    assert_ok(store_delete(job.stores[0], "k", &found, &err));
    ck_assert(!found);
    assert_ok(store_set(job.stores[0], "k", "1", 1, &err));
    assert_ok(store_set(job.stores[1], "l", "1", 1, &err));
    assert_ok(store_num_keys(job.stores[1], &count, &err));
    ck_assert_int_eq(count, 2);
    assert_ok(store_delete(job.stores[1], "k", &found, &err));
    ck_assert(found);
    assert_fails(store_get(job.stores[0], "k", 0, &value, &size, &err), STATUS_TIMEOUT, "'k'");
    assert_ok(store_num_keys(job.stores[0], &count, &err));
    ck_assert_int_eq(count, 1);
    close_job(&job);
}
END_TEST

START_TEST(groups_are_isolated)
{
    struct error err = {0};
    struct job job;
    struct store *other;
    int64_t count = -1;
    bool found = true;
    char *value = NULL;
    size_t size;

    open_job(&job, 1, 5000);
    other = open_rank(job.url, "other", 1, 2, 5000);
    assert_ok(store_set(job.stores[0], "k", "job's", 5, &err));
    assert_fails(store_get(other, "k", 0, &value, &size, &err), STATUS_TIMEOUT, "'k'");
    assert_ok(store_delete(other, "k", &found, &err));
    ck_assert(!found);
    assert_ok(store_set(other, "k", "other's", 7, &err));
    check_value(job.stores[0], "k", "job's");
    check_value(other, "k", "other's");
    assert_ok(store_num_keys(other, &count, &err));
    ck_assert_int_eq(count, 2);
    store_close(other, 0);
    close_job(&job);
}
END_TEST

/* ---- waiting */

START_TEST(time_outs_are_observed)
{
    struct error err = {0};
    struct job job;
    const int64_t own_ms = 4000; /* of opening, too */
    const char *keys[] = {"there", "never", "nowhere"};
    char *value = NULL;
    size_t size;
    int64_t start_ns;

    open_job(&job, 2, own_ms);
    assert_ok(store_set(job.stores[0], "there", "", 0, &err));
    start_ns = clock_now_ns();
    assert_fails(store_get(job.stores[1], "never", 250, &value, &size, &err), STATUS_TIMEOUT,
                 "store key 'never' at ");
    check_waited(start_ns, 250);
    ck_assert_ptr_nonnull(strstr(err.text, job.url));
    start_ns = clock_now_ns();
    assert_fails(store_wait(job.stores[1], keys, 3, 150, &err), STATUS_TIMEOUT,
                 "2 of 3 store keys");
    check_waited(start_ns, 150);
    ck_assert_ptr_nonnull(strstr(err.text, "'never', 'nowhere' missing"));
    ck_assert_ptr_null(strstr(err.text, "'there'"));
    start_ns = clock_now_ns();
    assert_fails(store_get(job.stores[1], "never", -1, &value, &size, &err), STATUS_TIMEOUT,
                 "'never'");
    check_waited(start_ns, own_ms);
    check_says_waited(err.text, own_ms);
    start_ns = clock_now_ns();
    assert_fails(store_get(job.stores[1], "never", 0, &value, &size, &err), STATUS_TIMEOUT,
                 "'never'");
    check_waited(start_ns, 0);
    check_says_waited(err.text, 0);
    assert_ok(store_wait(job.stores[1], keys, 1, 0, &err));
    assert_ok(store_wait(job.stores[1], NULL, 0, 0, &err));
    close_job(&job);
}
END_TEST

/* A thread that waits for keys, or gets one. */
struct waiting {
    pthread_t thread;
    struct store *store;
    const char *const *keys;
    size_t count;
    enum status status;
    struct error err;
    char *value;
    size_t size;
};

static void *wait_for_keys(void *user)
{
    struct waiting *w = user;

    if (w->count > 0)
        w->status = store_wait(w->store, w->keys, w->count, 20000, &w->err);
    else
        w->status = store_get(w->store, w->keys[0], 20000, &w->value, &w->size, &w->err);
    return NULL;
}

START_TEST(waiters_are_woken)
{
    static const char *const keys[] = {"a", "b", "c"};
    struct error err = {0};
    struct job job;
    struct waiting waiting[6] = {0};
    bool found;

    open_job(&job, 3, 20000);
    for (size_t i = 0; i < 6; i++) {
        waiting[i].store = job.stores[i % 3];
        waiting[i].keys = i < 3 ? keys : keys + i % 3;
        waiting[i].count = i < 3 ? 3 : 0;
        ck_assert_int_eq(pthread_create(&waiting[i].thread, NULL, wait_for_keys, &waiting[i]), 0);
    }
    assert_ok(store_set(job.stores[1], "c", "C", 1, &err));
    assert_ok(store_set(job.stores[2], "a", "A", 1, &err));
    (void)pthread_join(waiting[3].thread, NULL);
    (void)pthread_join(waiting[5].thread, NULL);
    assert_ok(store_delete(job.stores[0], "a", &found, &err));
    assert_ok(store_set(job.stores[0], "b", "B", 1, &err));
    (void)pthread_join(waiting[4].thread, NULL);
    assert_ok(store_set(job.stores[0], "a", "A", 1, &err));
    for (size_t i = 0; i < 3; i++)
        (void)pthread_join(waiting[i].thread, NULL);
    for (size_t i = 0; i < 6; i++) {
        ck_assert_msg(waiting[i].status == STATUS_OK, "%zu: %s", i, waiting[i].err.text);
        if (i >= 3)
            ck_assert_str_eq(waiting[i].value, i == 3 ? "A" : (i == 4 ? "B" : "C"));
        free(waiting[i].value);
    }
    close_job(&job);
}
END_TEST

TCase *store_cases(void)
{
    TCase *cases = tcase_create("operations");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, set_and_get);
    tcase_add_test(cases, largest_key_and_value);
    tcase_add_test(cases, bad_keys);
    tcase_add_test(cases, counters);
    tcase_add_test(cases, compare_and_set);
    tcase_add_test(cases, delete_and_count);
    tcase_add_test(cases, groups_are_isolated);
    tcase_add_test(cases, time_outs_are_observed);
    tcase_add_test(cases, waiters_are_woken);
    return cases;
}

void add_store_cases(Suite *suite, const struct store_kind *kind)
{
    store_kind = kind;
    suite_add_tcase(suite, store_cases());
    suite_add_tcase(suite, model_cases());
    suite_add_tcase(suite, rendezvous_cases());
    suite_add_tcase(suite, concurrent_cases());
}
