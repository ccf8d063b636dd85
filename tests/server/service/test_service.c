/*
 * Join, leave, drain and records over real gRPC, with scripted workers.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "tests/server/service/raw_job.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

/* ------------------------------------------------------------------ join and leave */

static bool is_closed(struct raw_call *c)
{
    bool closed;

    (void)pthread_mutex_lock(&c->lock);
    closed = c->closed;
    (void)pthread_mutex_unlock(&c->lock);
    return closed;
}

/* Rank 0 joins a world of 3 twice, from workers 0 and 1.  *ret_other is the worker that was
 * refused, so the server has certainly accepted the returned one. */
static struct raw_worker *join_twice(struct raw_worker **ret_other)
{
    struct join_request terms = raw_terms(0);

    terms.world_size = 3;
    raw_begin_join(&workers[0], &terms);
    raw_begin_join(&workers[1], &terms);
    while (!is_closed(&workers[0].join) && !is_closed(&workers[1].join))
        (void)sched_yield();
    *ret_other = is_closed(&workers[0].join) ? &workers[0] : &workers[1];
    check_result("twin", raw_end_join(*ret_other), STATUS_EXISTS, "job 'raw': rank 0 has joined");
    return *ret_other == &workers[0] ? &workers[1] : &workers[0];
}

/* Join another job, of one rank: refused while job 'raw' exists. */
static struct rpc_result join_another(struct raw_worker *w)
{
    struct join_request terms = raw_terms(0);

    terms.world_size = 1;
    (void)snprintf(terms.job, sizeof(terms.job), "another");
    raw_begin_join(w, &terms);
    return raw_end_join(w);
}

/* Wait until the server counts that many joined ranks. */
static void wait_for_joined(struct raw_worker *w, const char *count)
{
    struct rpc_result r;

    do {
        r = join_another(w);
        check_result("other job", r, STATUS_UNAVAILABLE,
                     "job 'another' is refused: this server serves job 'raw'");
    } while (strstr(r.text, count) == NULL);
}

START_TEST(test_joins_that_are_refused)
{
    struct raw_worker *loser, *winner;
    struct join_request terms = raw_terms(1);

    open_service(20000, NULL);
    winner = join_twice(&loser);
    wait_for_joined(loser, "(1 of 3 ranks)");
    for (unsigned rank = 1; rank < 3; rank++) {
        terms = raw_terms(rank);
        terms.world_size = 3;
        raw_begin_join(rank == 1 ? loser : &workers[2], &terms);
    }
    check_result("join", raw_end_join(winner), STATUS_OK, "");
    check_result("join", raw_end_join(loser), STATUS_OK, "");
    check_result("join", raw_end_join(&workers[2]), STATUS_OK, "");
    close_service();
}
END_TEST

START_TEST(test_joins_that_are_cancelled)
{
    struct raw_worker *loser, *winner;
    struct join_request terms = raw_terms(1);

    open_service(20000, NULL);
    winner = join_twice(&loser);
    terms.world_size = 3;
    raw_begin_join(&workers[2], &terms);
    wait_for_joined(loser, "(2 of 3 ranks)");
    rpc_call_cancel(workers[2].join.call);
    wait_for_joined(loser, "(1 of 3 ranks)");
    rpc_call_cancel(winner->join.call);
    while (join_another(loser).status != STATUS_OK) /* without ranks the job ends */
        (void)sched_yield();
    close_service();
}
END_TEST

START_TEST(test_terms_out_of_range)
{
    static const struct {
        uint32_t rank, world_size, server_index, server_count, update, order;
        uint64_t elements, partition_bytes;
        const char *text;
    } cases[] = {
        {1, 1, 0, 1, 1, 1, 5, 4096, "rank 1 in a world of 1"},
        {0, 0, 0, 1, 1, 1, 5, 4096, "world size 0"},
        {0, 1025, 0, 1, 1, 1, 5, 4096, "world size 1025"},
        {0, 1, 1, 1, 1, 1, 5, 4096, "server 1 of 1"},
        {0, 1, 0, 1, 2, 1, 5, 4096, "update 2"},
        {0, 1, 0, 1, 1, 9, 5, 4096, "order 9"},
        {0, 1, 0, 1, 1, 1, 0, 4096, "no elements"},
        {0, 1, 0, 1, 1, 1, UINT64_MAX, 4096, "make the partitions larger"},
        {0, 1, 0, 1, 1, 1, 1ull << 37, 4u << 20, "this host has"},
        {0, 1, 0, 1, 1, 1, 5, 17, "partitions of 17 bytes"},
        {0, 1, 0, UINT32_MAX, 1, 1, 5, 4096, "4294967295 servers"},
    };
    struct join_request terms = raw_terms(0);
    struct rpc_result result;

    open_service(20000, NULL);
    terms.rank = cases[_i].rank;
    terms.world_size = cases[_i].world_size;
    terms.server_index = cases[_i].server_index;
    terms.server_count = cases[_i].server_count;
    terms.update = cases[_i].update;
    terms.order = cases[_i].order;
    terms.element_count = cases[_i].elements;
    terms.partition_bytes = cases[_i].partition_bytes;
    raw_begin_join(&workers[0], &terms);
    result = raw_end_join(&workers[0]);
    ck_assert_int_ne(result.status, STATUS_OK);
    check_result("join", result, result.status, cases[_i].text);
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_every_difference_is_listed)
{
    struct join_request terms[2] = {raw_terms(0), raw_terms(1)};
    char manifest[] = "seed\t2\nmodel\tlenet\nlr\t0.1\n";

    open_service(20000, NULL);
    terms[1].manifest = manifest;
    terms[1].order = 0;
    terms[1].element_count++;
    for (unsigned i = 0; i < 2; i++)
        raw_begin_join(&workers[i], &terms[i]);
    for (unsigned i = 0; i < 2; i++) {
        struct rpc_result r = raw_end_join(&workers[i]);

        check_result("join", r, STATUS_MISMATCH, "seed: rank 0 has 1, rank 1 has 2");
        check_result("join", r, STATUS_MISMATCH, "model: rank 0 has mlp, rank 1 has lenet");
        check_result("join", r, STATUS_MISMATCH, "lr: rank 0 has nothing, rank 1 has 0.1");
        check_result("join", r, STATUS_MISMATCH,
                     "order of sums: rank 0 has rank, rank 1 has arrival");
        check_result("join", r, STATUS_MISMATCH, "elements of the slab: rank 0 has 2148, rank 1");
    }
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_world_sizes_that_differ_end_the_gathering)
{
    struct join_request terms = raw_terms(0);
    struct rpc_result first;

    open_service(20000, NULL);
    raw_begin_join(&workers[0], &terms);
    terms = raw_terms(1);
    terms.world_size = 3;
    raw_begin_join(&workers[1], &terms);
    first = raw_end_join(&workers[0]);
    check_result("join", first, STATUS_MISMATCH, "has world size");
    check_result("join", raw_end_join(&workers[1]), STATUS_MISMATCH, "has world size");
    check_still_serves();
    close_service();
}
END_TEST

/* The same rank and session again, while its first join waits: that is still there to be ended. */
START_TEST(test_a_rejoin_of_another_world_size)
{
    struct join_request terms = raw_terms(0);

    open_service(20000, NULL);
    terms.session = 5;
    raw_begin_join(&workers[0], &terms);
    terms.world_size = 3;
    raw_begin_join(&workers[1], &terms);
    check_result("rejoin", raw_end_join(&workers[1]), STATUS_MISMATCH, "has world size");
    check_result("join", raw_end_join(&workers[0]), STATUS_MISMATCH, "has world size");
    check_still_serves();
    close_service();
}
END_TEST

START_TEST(test_leaves)
{
    float first;

    open_service(20000, NULL);
    check_result("nothing runs", raw_leave(&workers[0], "raw", ""), STATUS_NOT_FOUND,
                 "job 'raw' does not run here");
    start_job();
    check_result("other job", raw_leave(&workers[0], "another", ""), STATUS_UNAVAILABLE,
                 "job 'another' is not served here, job 'raw' is");
    workers[2].rank = 7;
    check_result("unknown rank", raw_leave(&workers[2], "raw", ""), STATUS_NOT_FOUND,
                 "rank 7 is not a member");
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    check_result("again", raw_leave(&workers[0], "raw", ""), STATUS_NOT_FOUND,
                 "rank 0 is not a member");
    raw_send_valid(&workers[1], CHUNK_PUSH, 0, 1, 1);
    check_result("left behind", raw_wait_closed(&workers[1].stream), STATUS_PEER_LOST,
                 "round 1 cannot be completed: 1 of 2 ranks have left");
    check_still_serves();
    start_job();
    raw_send_valid(&workers[1], CHUNK_PUSH, 0, 1, 1);
    raw_send_valid(&workers[0], CHUNK_PUSH, 0, 1, 1);
    (void)raw_take(&workers[1], &first); /* the sum is complete */
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    check_result("in the middle", raw_wait_closed(&workers[1].stream), STATUS_PEER_LOST,
                 "rank 0 left in the middle of round 1");
    start_job();
    check_result("leave", raw_leave(&workers[1], "raw", "out of \xf0\x9f\x8d\xaa"), STATUS_OK, "");
    check_result("notified", raw_wait_closed(&workers[0].stream), STATUS_PEER_LOST,
                 "rank 1 failed: out of");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ drain */

static void *close_in_thread(void *user)
{
    service_close(user);
    return NULL;
}

START_TEST(test_drain_lets_the_round_end)
{
    pthread_t closer;
    struct join_request terms = raw_terms(2);
    float first;

    open_service(20000, NULL);
    start_job();
    play_round(1);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_valid(&workers[0], CHUNK_PUSH, p, 2, 1);
    raw_send_valid(&workers[1], CHUNK_PUSH, 0, 2, 1);
    (void)raw_take(&workers[0], &first); /* round 2 has begun */
    ck_assert_int_eq(pthread_create(&closer, NULL, close_in_thread, service), 0);
    do { /* until the drain has begun */
        raw_begin_join(&workers[2], &terms);
    } while (strstr(raw_end_join(&workers[2]).text, "drain") == NULL);
    for (uint32_t p = 1; p < RAW_PARTITIONS; p++)
        raw_send_valid(&workers[1], CHUNK_PUSH, p, 2, 1);
    for (uint32_t p = 1; p < RAW_PARTITIONS; p++) {
        (void)raw_take(&workers[0], &first);
        ck_assert(first == 2.0f);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("notified", raw_wait_closed(&workers[i].stream), STATUS_UNAVAILABLE,
                     "the parameter server is stopping (2 rounds were complete)");
    ck_assert_int_eq(pthread_join(closer, NULL), 0);
    close_workers();
}
END_TEST

/* Launchers of several nodes stop their servers when their own ranks have finished: the other ranks
 * may still wait for another server's replies. */
START_TEST(test_drain_lets_the_last_rank_leave)
{
    pthread_t closer;
    struct join_request terms = raw_terms(2);

    open_service(20000, NULL);
    start_job();
    play_round(1);
    check_result("first", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    ck_assert_int_eq(pthread_create(&closer, NULL, close_in_thread, service), 0);
    do { /* until the drain has begun */
        raw_begin_join(&workers[2], &terms);
    } while (strstr(raw_end_join(&workers[2]).text, "drain") == NULL);
    check_result("second", raw_leave(&workers[1], "raw", ""), STATUS_OK, "");
    ck_assert_int_eq(pthread_join(closer, NULL), 0);
    close_workers();
}
END_TEST

START_TEST(test_drain_has_a_time_limit)
{
    const int64_t timeout_ms = 4000; /* also bounds the joins before */
    int64_t begin_ns;
    pthread_t closer;

    open_service(timeout_ms, NULL);
    start_job();
    begin_ns = clock_now_ns();
    raw_send_valid(&workers[0], CHUNK_PUSH, 0, 1, 1);
    ck_assert_int_eq(pthread_create(&closer, NULL, close_in_thread, service), 0);
    ck_assert_int_ne(raw_wait_closed(&workers[0].stream).status, STATUS_OK);
    ck_assert_int_eq(pthread_join(closer, NULL), 0);
    ck_assert_int_lt(clock_now_ns() - begin_ns, (timeout_ms + 12000) * 1000000);
    close_workers();
}
END_TEST

/* ------------------------------------------------------------------ records */

/* The lines of server0.jsonl as an array. */
static json_t *read_records(const char *run_dir)
{
    char path[1024], *text, *rest = NULL;
    size_t size;
    json_t *lines = json_array();

    assert_ok(file_join(path, sizeof(path), run_dir, "server0.jsonl", &err));
    assert_ok(file_read(path, 1 << 20, &text, &size, &err));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *record = json_loads(line, 0, NULL);

        ck_assert_msg(record != NULL, "not JSON: %s", line);
        ck_assert_int_eq(json_array_append_new(lines, record), 0);
    }
    free(text);
    return lines;
}

static void check_int(const json_t *record, const char *name, json_int_t wanted)
{
    const json_t *value = json_object_get(record, name);

    ck_assert_msg(json_is_integer(value) && json_integer_value(value) == wanted,
                  "%s is %lld, wanted %lld", name, (long long)json_integer_value(value),
                  (long long)wanted);
}

static void check_text(const json_t *record, const char *name, const char *wanted)
{
    ck_assert_pstr_eq(json_string_value(json_object_get(record, name)), wanted);
}

START_TEST(test_records)
{
    const char *run_dir = support_path("run");
    json_t *lines;
    const json_t *round, *end;

    open_service(20000, run_dir);
    check_still_serves();
    start_job();
    rpc_call_cancel(workers[1].stream.call);
    (void)raw_wait_closed(&workers[0].stream);
    close_service();
    lines = read_records(run_dir);
    ck_assert_uint_eq(json_array_size(lines), 4 + 2);
    check_text(json_array_get(lines, 0), "kind", "start");
    check_text(json_array_get(lines, 0), "job", "raw");
    check_int(json_array_get(lines, 0), "world_size", 2);
    check_int(json_array_get(lines, 0), "elements", RAW_COUNT);
    round = json_array_get(lines, 2);
    check_text(round, "kind", "round");
    check_int(round, "round", 2);
    check_int(round, "rx_payload_bytes", 2 * RAW_COUNT * 4);
    check_int(round, "tx_payload_bytes", 2 * RAW_COUNT * 4);
    ck_assert_int_gt(json_integer_value(json_object_get(round, "round_ns")), 0);
    ck_assert_int_gt(json_integer_value(json_object_get(round, "sum_ns")), 0);
    end = json_array_get(lines, 3);
    check_text(end, "kind", "end");
    check_text(end, "status", "ok");
    check_int(end, "rounds", 2);
    check_int(end, "rx_payload_bytes", 2 * 2 * RAW_COUNT * 4);
    check_int(end, "tx_payload_bytes", 2 * 2 * RAW_COUNT * 4);
    check_int(end, "initial_rx_payload_bytes", RAW_COUNT * 4);
    check_int(end, "initial_tx_payload_bytes", 2 * RAW_COUNT * 4);
    check_text(json_array_get(lines, 5), "status", "peer lost");
    check_text(json_array_get(lines, 5), "error",
               "rank 1 was lost (its connection closed in round 1)");
    json_decref(lines);
}
END_TEST

/* Failing to write records does not stop the job. */
START_TEST(test_a_run_folder_that_cannot_be_created)
{
    const char *file = support_write("file", "x", 1);

    open_service(20000, file);
    check_still_serves();
    check_still_serves();
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "service", 30, TEST(test_joins_that_are_refused), TEST(test_joins_that_are_cancelled),
        LOOP_TEST(test_terms_out_of_range, 0, 11), TEST(test_every_difference_is_listed),
        TEST(test_world_sizes_that_differ_end_the_gathering),
        TEST(test_a_rejoin_of_another_world_size), TEST(test_leaves),
        TEST(test_drain_lets_the_round_end), TEST(test_drain_lets_the_last_rank_leave),
        TEST(test_drain_has_a_time_limit), TEST(test_records),
        TEST(test_a_run_folder_that_cannot_be_created));
}
