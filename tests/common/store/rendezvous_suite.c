/*
 * Rendezvous, failure notice and departure on either implementation: missing ranks, different world
 * sizes, duplicate ranks, the first failure, and how long rank 0 waits.
 */
#include "tests/common/store/store_suite.h"

#include "common/base/clock.h"
#include "common/base/parse.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { run_out_ms = 4000 }; /* of time-outs that are to run out: they bound the opening, too */

/* One rank that runs the rendezvous in its own thread. */
struct meeting {
    pthread_t thread;
    struct store *store;
    enum status status;
    struct error err;
};

static void *rendezvous_main(void *user)
{
    struct meeting *m = user;

    m->status = store_rendezvous(m->store, &m->err);
    return NULL;
}

static void meet_all(struct meeting *meetings, struct store **stores, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        meetings[i] = (struct meeting){.store = stores[i]};
        ck_assert_int_eq(pthread_create(&meetings[i].thread, NULL, rendezvous_main, &meetings[i]),
                         0);
    }
    for (unsigned i = 0; i < count; i++)
        (void)pthread_join(meetings[i].thread, NULL);
}

static void check_meeting(const struct meeting *m, enum status status, const char *part)
{
    ck_assert_msg(m->status == status, "rank %u: %s (%s)", store_rank(m->store),
                  status_name(m->status), m->err.text);
    ck_assert_msg(strstr(m->err.text, part) != NULL, "rank %u: '%s' lacks '%s'",
                  store_rank(m->store), m->err.text, part);
}

START_TEST(all_ranks_complete_rendezvous)
{
    struct error err = {0};
    struct job job;
    struct meeting meetings[5];

    open_job(&job, 5, 20000);
    meet_all(meetings, job.stores, 5);
    for (unsigned i = 0; i < 5; i++)
        check_meeting(&meetings[i], STATUS_OK, "");
    assert_ok(store_rendezvous(job.stores[3], &err)); /* once more: still true */
    close_job(&job);
}
END_TEST

START_TEST(single_rank_completes_rendezvous)
{
    struct error err = {0};
    struct job job;

    open_job(&job, 1, 5000);
    assert_ok(store_rendezvous(job.stores[0], &err));
    close_job(&job);
}
END_TEST

START_TEST(missing_ranks_are_named)
{
    struct job job;
    struct meeting meetings[3];
    struct store *there[3];
    char wanted[700];
    int64_t start_ns;

    open_job(&job, 7, run_out_ms);
    there[0] = job.stores[0];
    there[1] = job.stores[2];
    there[2] = job.stores[6];
    start_ns = clock_now_ns();
    meet_all(meetings, there, 3);
    check_waited(start_ns, run_out_ms);
    (void)snprintf(wanted, sizeof(wanted),
                   " s for 4 of 7 ranks at %s (--init-method): ranks 1, 3-5 are missing", job.url);
    for (unsigned i = 0; i < 3; i++) {
        check_meeting(&meetings[i], STATUS_TIMEOUT, wanted);
        check_says_waited(meetings[i].err.text, run_out_ms);
    }
    close_job(&job);
}
END_TEST

START_TEST(one_missing_rank)
{
    struct job job;
    struct meeting meetings[2];

    open_job(&job, 3, run_out_ms);
    meet_all(meetings, job.stores, 2);
    for (unsigned i = 0; i < 2; i++) {
        check_meeting(&meetings[i], STATUS_TIMEOUT, "for 1 of 3 ranks at ");
        check_meeting(&meetings[i], STATUS_TIMEOUT, ": rank 2 is missing");
    }
    close_job(&job);
}
END_TEST

/* Ranks 0 and 1 were started as 2 of 3, ranks 2 and 3 as 2 of 4. */
START_TEST(different_world_sizes_are_reported)
{
    struct store *stores[4];
    struct meeting meetings[4];
    char url[512];

    stores[0] = open_rank(store_kind->fresh_url(), "g", 0, 3, 5000);
    (void)snprintf(url, sizeof(url), "%s", store_address(stores[0]));
    stores[1] = open_rank(url, "g", 1, 3, 5000);
    stores[2] = open_rank(url, "g", 2, 4, 5000);
    stores[3] = open_rank(url, "g", 3, 4, 5000);
    meet_all(meetings, stores, 4);
    for (unsigned i = 0; i < 4; i++)
        check_meeting(&meetings[i], STATUS_MISMATCH,
                      i < 2 ? "has 3, but rank 2 has 4, rank 3 has 4"
                            : "has 4, but rank 0 has 3, rank 1 has 3");
    for (unsigned i = 4; i-- > 0;)
        store_close(stores[i], 0);
}
END_TEST

static void *close_first(void *user)
{
    struct meeting *m = user;

    store_close(m->store, 20000);
    return NULL;
}

/* Rank 0 closes first; the others still use the store, and rank 0 ends soon after them. */
static void check_rank_0_stays(struct job *job)
{
    struct error err = {0};
    struct meeting closing = {.store = job->stores[0]};
    const int64_t start_ns = clock_now_ns();

    ck_assert_uint_eq(job->size, 3);
    ck_assert_int_eq(pthread_create(&closing.thread, NULL, close_first, &closing), 0);
    check_value(job->stores[1], "sparring/store/goodbye/0", ""); /* waits for rank 0's departure */
    assert_ok(store_set(job->stores[1], "late", "news", 4, &err));
    check_value(job->stores[2], "late", "news");
    store_close(job->stores[1], 20000);
    check_value(job->stores[2], "late", "news");
    store_close(job->stores[2], 20000);
    (void)pthread_join(closing.thread, NULL);
    ck_assert_int_lt((clock_now_ns() - start_ns) / 1000000, 15000);
}

/* A rank 3 of 4 joins after three ranks of 3 have completed the rendezvous: only it fails. */
START_TEST(late_rank_with_another_world_size_fails)
{
    struct error err = {0};
    struct job job;
    struct meeting meetings[3];
    struct store *late_rank;

    open_job(&job, 3, 5000);
    meet_all(meetings, job.stores, 3);
    for (unsigned i = 0; i < 3; i++)
        check_meeting(&meetings[i], STATUS_OK, "");
    late_rank = open_rank(job.url, "job", 3, 4, 10000);
    assert_fails(store_rendezvous(late_rank, &err), STATUS_MISMATCH,
                 "rank 3 has 4, but rank 0 has 3, rank 1 has 3, rank 2 has 3");
    store_close(late_rank, 0);
    check_rank_0_stays(&job);
}
END_TEST

/* Two processes claim rank 1 of 3: every rank reports both. */
START_TEST(duplicate_rank_is_reported)
{
    struct store *stores[3];
    struct meeting meetings[3];
    char both[400];
    char host[200] = "";
    char url[512];

    ck_assert_int_eq(gethostname(host, sizeof(host) - 1), 0);
    (void)snprintf(both, sizeof(both),
                   "two processes claim rank 1: pid %ld on %s and pid %ld on %s (at ",
                   (long)getpid(), host, (long)getpid(), host);
    stores[0] = open_rank(store_kind->fresh_url(), "g", 0, 3, 10000);
    (void)snprintf(url, sizeof(url), "%s", store_address(stores[0]));
    stores[1] = open_rank(url, "g", 1, 3, 10000);
    stores[2] = open_rank(url, "g", 1, 3, 10000);
    meet_all(meetings, stores, 3);
    for (unsigned i = 0; i < 3; i++)
        check_meeting(&meetings[i], STATUS_MISMATCH, both);
    for (unsigned i = 3; i-- > 0;)
        store_close(stores[i], 0);
}
END_TEST

START_TEST(malformed_announcements)
{
    static const char *const texts[] = {"",      "3",   "x 1 2 host",     "0 1 2 host",
                                        "3 1 2", "3  ", "4\x01\xff 1 2 h"};
    struct error err = {0};
    struct job job;

    open_job(&job, 2, 10000);
    assert_ok(
        store_set(job.stores[0], "sparring/store/rank/1", texts[_i], strlen(texts[_i]), &err));
    assert_ok(store_set(job.stores[0], "sparring/store/verdict", "mismatch", 8, &err));
    if (texts[_i][0] == '\0') { /* for compare_set an empty text is no announcement */
        ck_assert_int_ne(store_rendezvous(job.stores[0], &err), STATUS_OK);
    } else {
        assert_fails(store_rendezvous(job.stores[0], &err), STATUS_DATA, "announcement of rank 1");
        assert_fails(store_rendezvous(job.stores[1], &err), STATUS_DATA, "announcement of rank 1");
    }
    close_job(&job);
}
END_TEST

START_TEST(malformed_verdict)
{
    struct error err = {0};
    struct job job;

    open_job(&job, 2, 10000);
    assert_ok(store_set(job.stores[0], "sparring/store/verdict", "per\x1bhaps", 8, &err));
    assert_fails(store_rendezvous(job.stores[0], &err), STATUS_DATA, "verdict 'per?haps'");
    close_job(&job);
}
END_TEST

/* ---- failure notice */

static void *find_failure(void *user)
{
    struct meeting *m = user;

    m->status = store_find_failure(m->store, 20000, &m->err) ? STATUS_PEER_LOST : STATUS_OK;
    return NULL;
}

START_TEST(first_failure_is_reported_to_all)
{
    struct error err = {0};
    struct job job;
    struct meeting waiting = {0};
    int64_t start_ns;

    open_job(&job, 4, 5000);
    ck_assert(!store_find_failure(job.stores[0], 0, &err));
    start_ns = clock_now_ns();
    ck_assert(!store_find_failure(job.stores[0], 150, &err));
    check_waited(start_ns, 150);
    ck_assert_int_eq(err.status, STATUS_OK);
    waiting.store = job.stores[3];
    ck_assert_int_eq(pthread_create(&waiting.thread, NULL, find_failure, &waiting), 0);
    store_report_failure(job.stores[2], 2, "bucket 3: \x1b[31mshape\n");
    store_report_failure(job.stores[1], 1, "rank 2 went away");
    (void)pthread_join(waiting.thread, NULL);
    check_meeting(&waiting, STATUS_PEER_LOST, "rank 2 failed: bucket 3: ?[31mshape?");
    for (unsigned i = 0; i < 4; i++) {
        ck_assert(store_find_failure(job.stores[i], 0, &err));
        ck_assert_int_eq(err.status, STATUS_PEER_LOST);
        ck_assert_str_eq(err.text, "rank 2 failed: bucket 3: ?[31mshape?");
    }
    close_job(&job);
}
END_TEST

START_TEST(long_and_malformed_notices)
{
    struct error err = {0};
    struct job job;
    char text[6000];

    open_job(&job, 2, 5000);
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    store_report_failure(job.stores[1], 1, text);
    ck_assert(store_find_failure(job.stores[0], 0, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "rank 1 failed: xxxx"));
    ck_assert_uint_gt(strlen(err.text), 900);
    assert_ok(store_set(job.stores[1], "sparring/store/failure", "odd", 3, &err));
    ck_assert(store_find_failure(job.stores[0], 0, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "malformed"));
    close_job(&job);
}
END_TEST

/* ---- departure */

START_TEST(rank_0_waits_for_all_departures)
{
    struct job job;

    open_job(&job, 3, 10000);
    check_rank_0_stays(&job);
}
END_TEST

/* Rank 2 is killed after the rendezvous. */
static void lose_rank_2(struct store *store, unsigned rank)
{
    struct error err = {0};
    char *value = NULL;
    size_t size;
    int64_t start_ns;

    assert_ok(store_rendezvous(store, &err));
    if (rank == 2)
        (void)raise(SIGKILL);
    start_ns = clock_now_ns();
    assert_fails(store_get(store, "from rank 2", 300, &value, &size, &err), STATUS_TIMEOUT,
                 "'from rank 2'");
    check_waited(start_ns, 300);
}

/* Rank 0 waits for the other two for a bounded time. */
START_TEST(killed_rank_delays_departure_for_a_bounded_time)
{
    const int64_t start_ns = clock_now_ns();

    run_processes_but(4, 2, 5000, lose_rank_2);
    ck_assert_int_lt((clock_now_ns() - start_ns) / 1000000, 25000);
}
END_TEST

TCase *rendezvous_cases(void)
{
    TCase *cases = tcase_create("rendezvous");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, all_ranks_complete_rendezvous);
    tcase_add_test(cases, single_rank_completes_rendezvous);
    tcase_add_test(cases, missing_ranks_are_named);
    tcase_add_test(cases, one_missing_rank);
    tcase_add_test(cases, different_world_sizes_are_reported);
    tcase_add_test(cases, late_rank_with_another_world_size_fails);
    tcase_add_test(cases, duplicate_rank_is_reported);
    tcase_add_loop_test(cases, malformed_announcements, 0, 7);
    tcase_add_test(cases, malformed_verdict);
    tcase_add_test(cases, first_failure_is_reported_to_all);
    tcase_add_test(cases, long_and_malformed_notices);
    tcase_add_test(cases, rank_0_waits_for_all_departures);
    tcase_add_test(cases, killed_rank_delays_departure_for_a_bounded_time);
    return cases;
}
