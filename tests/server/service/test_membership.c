/*
 * Ranks that are lost for good, over real gRPC, with scripted workers: the error that the other
 * ranks get, who may join a running job, and the records. test_membership_shrink.c and
 * test_membership_wait.c test how the job continues.
 */
#include "tests/server/service/member_job.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <string.h>

/* ------------------------------------------------------------------ fail */

START_TEST(test_fail_names_rank_how_and_how_long)
{
    struct join_request request;
    struct rpc_result r;

    member_start(2, WORKER_LOSS_FAIL);
    member_push_all(0, 1, 4);
    raw_disconnect(&workers[1]);
    r = raw_wait_closed(&workers[0].stream);
    check_result("other", r, STATUS_PEER_LOST,
                 "rank 1 was lost (its connection closed in round 1; waited ");
    check_seconds(r.text, "; waited ", MEMBER_AWAY_MS * 1e-3);
    check_result("other", r, STATUS_PEER_LOST, " s for it to come back)");
    request = session_request(1);
    request.resume = true;
    check_result("too late", session_join(&workers[1], &request), STATUS_PEER_LOST,
                 "rank 1 was lost (its connection closed in round 1");
    (void)snprintf(request.job, sizeof(request.job), "other");
    check_result("unknown", session_join(&workers[1], &request), STATUS_NOT_FOUND,
                 "job 'other' is not known here: rank 1 cannot come back to it");
    close_service();
}
END_TEST

START_TEST(test_resume_of_a_finished_job)
{
    struct join_request request;

    member_start(2, WORKER_LOSS_FAIL);
    session_end();
    request = session_request(1);
    request.resume = true;
    check_result("done", session_join(&workers[1], &request), STATUS_NOT_FOUND,
                 "job 'raw' is done");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ who may join */

START_TEST(test_joins_of_a_job_that_runs)
{
    struct join_request request;
    char manifest[] = "seed\t2\nmodel\tmlp\n";

    member_start(2, WORKER_LOSS_WAIT);
    workers[2].rank = 1;
    request = session_request(1);
    request.session = 7;
    check_result("a second one", session_join(&workers[2], &request), STATUS_EXISTS,
                 "job 'raw': rank 1 has joined from");
    request.resume = true;
    check_result("another session", session_join(&workers[2], &request), STATUS_PEER_LOST,
                 "its place is another session's since epoch 1");
    request = session_request(1);
    request.resume = true;
    request.manifest = manifest;
    check_result("other terms", session_join(&workers[2], &request), STATUS_MISMATCH, "seed");
    request = session_request(1);
    request.resume = true;
    request.reconnect_ms++;
    check_result("other terms", session_join(&workers[2], &request), STATUS_MISMATCH,
                 "on rank loss");
    request = session_request(1);
    request.resume = true;
    request.round = 5;
    check_result("from the future", session_join(&workers[2], &request), STATUS_DATA,
                 "rank 1 has completed round 5, but here it has only contributed to round 0");
    close_service();
}
END_TEST

START_TEST(test_values_that_are_not_here)
{
    struct join_request request;

    session_terms.on_loss = WORKER_LOSS_SHRINK;
    session_terms.reconnect_ms = MEMBER_AWAY_MS;
    open_service(LONG_MS, NULL);
    session_start(100);
    member_lose(1);
    workers[1].session = 201;
    request = session_request(1);
    check_result("no values", session_join(&workers[1], &request), STATUS_UNSUPPORTED,
                 "the parameters are not here");
    session_terms.on_loss = WORKER_LOSS_WAIT;
    request = session_request(1);
    (void)snprintf(request.job, sizeof(request.job), "other");
    check_result("terms", session_join(&workers[1], &request), STATUS_INVALID,
                 "the parameters must lie here");
    close_service();
}
END_TEST

/* Initial values come from rank 0 alone: the job ends without it. */
START_TEST(test_rank_0_is_lost_before_its_values_are_here)
{
    member_terms(2, _i == 0 ? WORKER_LOSS_SHRINK : WORKER_LOSS_WAIT);
    open_service(LONG_MS, NULL);
    session_join_all(100);
    raw_start_lanes(&workers[0]);
    raw_start_lanes(&workers[1]);
    raw_send_valid(&workers[1], CHUNK_PULL, 0, 0, 0);
    raw_send_valid(&workers[0], CHUNK_INIT, 0, 0, 100);
    (void)raw_take(&workers[1], &(float){0});
    raw_disconnect(&workers[0]);
    check_result("other", raw_wait_closed(&workers[1].stream), STATUS_PEER_LOST,
                 "rank 0 was lost (its connection closed in round 1");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ silence */

/* Rank 1 stops its heartbeats and sends nothing: it is cut off, and the replies to the others'
 * heartbeats carry how long they may have to wait; then it reconnects. */
START_TEST(test_silence)
{
    struct heartbeat heartbeat;
    size_t heartbeats = 0;

    session_terms.heartbeat_timeout_ms = 4000; /* also bounds the steps of the test */
    open_service(LONG_MS, NULL);
    session_start(0.5f);
    for (unsigned i = 0; i < 2; i++) {
        raw_start_attend(&workers[i]);
        raw_send_heartbeat(&workers[i], "raw", 7);
        heartbeat = raw_wait_heartbeats(&workers[i], 1);
        ck_assert_uint_eq(heartbeat.count, 7);
        ck_assert_uint_eq(heartbeat.epoch, 1);
        ck_assert_uint_eq(heartbeat.waiting_ms, 0);
    }
    for (heartbeats = 1; heartbeat.waiting_ms == 0; heartbeats++) {
        raw_send_heartbeat(&workers[0], "raw", heartbeats);
        heartbeat = raw_wait_heartbeats(&workers[0], heartbeats + 1);
    }
    ck_assert_uint_gt(heartbeat.waiting_ms, LONG_MS / 2);
    check_seconds(heartbeat.reason, "rank 1 is away (silent for ", 4);
    ck_assert_int_eq(raw_wait_closed(&workers[1].stream).status, STATUS_CANCELLED);
    ck_assert_int_eq(raw_wait_closed(&workers[1].attend).status, STATUS_CANCELLED);
    session_resume(1);
    session_round(1);
    session_end();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ records */

/* The record of that kind with this end; NULL: none. */
static json_t *find_record(const char *kind, const char *end)
{
    FILE *file = fopen(support_path("run/server0.jsonl"), "r");
    char line[8192];
    json_t *found = NULL;

    ck_assert_ptr_nonnull(file);
    while (!found && fgets(line, sizeof(line), file)) {
        json_t *record = json_loads(line, 0, NULL);
        const char *is = json_string_value(json_object_get(record, "kind"));
        const char *ends = json_string_value(json_object_get(record, "end"));

        if (strcmp(is, kind) == 0 && (!end || strcmp(ends, end) == 0))
            found = json_incref(record);
        json_decref(record);
    }
    (void)fclose(file);
    return found;
}

START_TEST(test_records)
{
    json_t *record;

    member_start_away(2, WORKER_LOSS_WAIT, MEMBER_BACK_MS);
    raw_disconnect(&workers[1]);
    session_wait_disconnects(1);
    session_resume(1);
    member_run_round(0, 1, 1); /* without chunks the time of the first break would go on */
    member_lose(1);
    member_take_place(1, 201);
    session_end();
    close_service();
    record = find_record("disconnect", "back");
    ck_assert_int_eq(json_integer_value(json_object_get(record, "rank")), 1);
    ck_assert_str_eq(json_string_value(json_object_get(record, "how")), "its connection closed");
    ck_assert_int_eq(json_integer_value(json_object_get(record, "epoch")), 1);
    ck_assert_double_ge(json_real_value(json_object_get(record, "detect_ms")), 0);
    ck_assert_double_gt(json_real_value(json_object_get(record, "recover_ms")), 0);
    json_decref(record);
    record = find_record("disconnect", "replaced");
    ck_assert_double_ge(json_real_value(json_object_get(record, "recover_ms")), MEMBER_BACK_MS);
    json_decref(record);
    record = find_record("end", NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(record, "disconnects")), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(record, "reconnects")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(record, "lost_ranks")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(record, "taken_places")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(record, "epoch")), 2);
    json_decref(record);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("membership", 60, TEST(test_fail_names_rank_how_and_how_long),
                       TEST(test_resume_of_a_finished_job), TEST(test_joins_of_a_job_that_runs),
                       TEST(test_values_that_are_not_here),
                       LOOP_TEST(test_rank_0_is_lost_before_its_values_are_here, 0, 2),
                       TEST(test_silence), TEST(test_records));
}
