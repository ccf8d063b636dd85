/*
 * Two services, a primary and its replica, with fake workers: either may be lost and the other
 * continues from the same state, and never do both continue.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/server/replication/replica_job.h"
#include "tests/support/certificate.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

/* ------------------------------------------------------------------ statistics */

/* Returns the statistics of a service with a running job (free). */
static struct server_stats *check_role(struct service *s, const char *role, const char *peer)
{
    struct server_stats *stats = replica_job_stats(s);

    ck_assert(stats->has_job && stats->job.runs);
    ck_assert_str_eq(stats->job.role, role);
    ck_assert_msg(strncmp(stats->job.peer, peer, strlen(peer)) == 0, "%s", stats->job.peer);
    ck_assert_int_eq(peer[0] == '\0', stats->job.peer[0] == '\0');
    return stats;
}

/* After three rounds all records were sent, applied and acknowledged. */
static void check_figures(void)
{
    uint64_t records = RAW_PARTITIONS * 4, bytes = RAW_COUNT * sizeof(float) * 4;
    struct server_stats *of = check_role(service, "primary", session_terms.replica);

    ck_assert_uint_eq(of->counters.replica_records, records);
    ck_assert_uint_eq(of->counters.replica_bytes, bytes);
    ck_assert_uint_eq(of->counters.acknowledged_records, records);
    ck_assert_uint_eq(of->counters.acknowledged_bytes, bytes);
    ck_assert_uint_eq(of->job.replica_lag_records + of->job.replica_lag_bytes, 0);
    ck_assert_uint_eq(of->counters.copied_records + of->counters.promotions, 0);
    free(of);
    of = check_role(replica_job_replica, "replica", "ipv4:127.0.0.1");
    ck_assert_uint_eq(of->counters.copied_records, records);
    ck_assert_uint_eq(of->counters.copied_bytes, bytes);
    ck_assert_uint_eq(of->counters.replica_records + of->counters.promotions, 0);
    free(of);
}

/* ------------------------------------------------------------------ without a loss */

/* _i: the optimizer runs on the server, on the worker. */
START_TEST(test_a_whole_job)
{
    session_terms.update = (unsigned)_i;
    session_terms.lanes = 2;
    replica_job_set_up();
    session_start(0.5f);
    if (_i == 1)
        for (uint64_t round = 1; round <= 3; round++)
            session_round(round);
    else
        for (uint64_t round = 1; round <= 3; round++) { /* lr 1: values - sum */
            static float values = 0.5f;

            session_push_all(0, round);
            session_push_all(1, round);
            values -= session_sum(round);
            session_expect_all(0, round, values);
            session_expect_all(1, round, values);
        }
    check_figures();
    session_end();
    replica_job_wait_ended(service, 1, 0);
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

static struct stats_job read_job_stats(struct service *s)
{
    struct server_stats *stats = replica_job_stats(s);
    struct stats_job job = stats->job;

    free(stats);
    return job;
}

/* A job that fails has failed on the replica too. */
START_TEST(test_a_job_that_fails)
{
    session_terms.update = 0;
    replica_job_set_up();
    session_start(0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    replica_job_wait_ended(service, 0, 1);
    replica_job_wait_ended(replica_job_replica, 0, 1);
    replica_job_tear_down();
}
END_TEST

/* Where each push is a step. */
START_TEST(test_asp_and_takeover)
{
    struct raw_worker *w = workers;
    float values = 0.5f;

    session_terms.update = 0;
    session_terms.consistency = (struct consistency){.mode = CONSISTENCY_ASP};
    replica_job_set_up();
    session_start(values);
    for (uint64_t round = 1; round <= 6; round++) {
        session_push_all(round % 2, (round + 1) / 2);
        values -= session_push(round % 2, (round + 1) / 2) / 2; /* lr / 2 */
        session_expect_all(round % 2, (round + 1) / 2, values);
    }
    session_push_all(1, 4);
    values -= session_push(1, 4) / 2;
    session_expect_all(1, 4, values);
    raw_disconnect(&w[0]);
    raw_disconnect(&w[1]);
    replica_job_redirect(0, service_port(replica_job_replica));
    replica_job_redirect(1, service_port(replica_job_replica));
    replica_job_rejoin(0, 3, false);
    session_push_all(0, 4);
    values -= session_push(0, 4) / 2;
    session_expect_all(0, 4, values);
    replica_job_rejoin(1, 4, false);
    for (unsigned rank = 2; rank-- > 0;) {
        session_push_all(rank, 5);
        values -= session_push(rank, 5) / 2;
        session_expect_all(rank, 5, values);
    }
    /* both have made 5; rank 1 was ahead before */
    ck_assert_uint_eq(read_job_stats(replica_job_replica).round, 6);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

/* ------------------------------------------------------------------ loss of the primary */

/*
 * Rank 0 loses the primary in the middle of round 3, of which _i partitions are summed, and joins
 * the replica; the primary is notified that it is superseded, and ends rank 1's stream with that.
 */
START_TEST(test_promotion)
{
    uint32_t summed = (uint32_t)_i;
    struct server_stats *stats;
    struct join_request request;
    float first;

    replica_job_set_up();
    session_start(0.5f);
    session_round(1);
    session_round(2);
    for (uint32_t p = 0; p < summed; p++)
        for (unsigned i = 0; i < 2; i++)
            raw_send_valid(&workers[i], CHUNK_PUSH, p, 3, session_push(i, 3));
    for (uint32_t p = 0; p < summed; p++) /* so the replica has them */
        (void)raw_take(&workers[1], &first);
    raw_disconnect(&workers[0]);
    replica_job_redirect(0, service_port(replica_job_replica));
    request = replica_job_rejoin_request(0, 2, true);
    check_result("a follower", session_join(&workers[0], &request), STATUS_UNAVAILABLE,
                 "keeps a copy");
    replica_job_rejoin(0, 2, false);
    check_result("rank 1", raw_wait_closed(&workers[1].stream), STATUS_UNAVAILABLE,
                 "superseded by epoch 2");
    replica_job_wait_ended(service, 0, 1);
    replica_job_redirect(1, service_port(replica_job_replica));
    replica_job_rejoin(1, 2, true);
    for (unsigned i = 0; i < 2; i++)
        session_repeat_all(i, 3);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 3, session_sum(3));
    session_round(4);
    session_round(5);
    stats = check_role(replica_job_replica, "alone", "");
    ck_assert_uint_eq(stats->counters.promotions, 1);
    ck_assert_uint_eq(stats->job.epoch, 2);
    free(stats);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

/* Before any initial value, or when _i partitions have theirs. */
START_TEST(test_promotion_at_the_start)
{
    uint32_t here = (uint32_t)_i;
    float first;

    replica_job_set_up();
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request;

        workers[i].session = 100 + i;
        request = session_request(i);
        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++) {
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
        raw_start_lanes(&workers[i]);
    }
    for (uint32_t p = 0; p < here; p++) {
        raw_send_valid(&workers[0], CHUNK_INIT, p, 0, 0.5f);
        raw_send_valid(&workers[0], CHUNK_PULL, p, 0, 0);
        ck_assert_uint_eq(raw_take(&workers[0], &first).partition, p);
    }
    for (unsigned i = 0; i < 2; i++) {
        raw_disconnect(&workers[i]);
        replica_job_redirect(i, service_port(replica_job_replica));
        replica_job_rejoin(i, 0, false);
    }
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[0], CHUNK_INIT, p, 0, 0.5f);
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[i], CHUNK_PULL, p, 0, 0);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 0, 0.5f);
    session_round(1);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

/* A primary that is stopped leaves the job to its replica. */
START_TEST(test_the_primary_stops_in_order)
{
    replica_job_set_up();
    session_start(0.5f);
    session_round(1);
    for (unsigned i = 0; i < 2; i++)
        replica_job_redirect(i, service_port(replica_job_replica));
    service_close(service);
    for (unsigned i = 0; i < 2; i++)
        replica_job_rejoin(i, 1, false);
    session_round(2);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    close_workers();
    service_close(replica_job_replica);
}
END_TEST

/* Neither a session that the primary did not know nor a join that resumes nothing promotes. */
START_TEST(test_unknown_session_does_not_promote)
{
    struct join_request request;

    replica_job_set_up();
    session_start(0.5f);
    session_round(1);
    workers[2].session = 999;
    replica_job_redirect(2, service_port(replica_job_replica));
    request = replica_job_rejoin_request(1, 1, false);
    request.session = 999;
    check_result("another session", session_join(&workers[2], &request), STATUS_UNAVAILABLE,
                 "knows no session of rank 1");
    request = session_request(1); /* the right session, but not a resume */
    check_result("no return", session_join(&workers[2], &request), STATUS_UNAVAILABLE,
                 "keeps a copy");
    session_round(2);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

/* ------------------------------------------------------------------ lost and replaced ranks */

/* Both ranks push all partitions; returns the new parameters (lr 1). */
static float run_round(uint64_t round, float values)
{
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, round);
    values -= session_sum(round);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, round, values);
    return values;
}

/* A replacement of rank 1 joins the primary, whose values are of this round. */
static void join_as_replacement(uint64_t session, uint64_t round, float values)
{
    struct join_request request;

    raw_close(&workers[1]);
    raw_open(&workers[1], service_port(service), 1);
    workers[1].session = session;
    request = session_request(1);
    check_result("replacement", session_join(&workers[1], &request), STATUS_OK, "");
    raw_start_lanes(&workers[1]);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PULL, p, 0, 0);
    session_expect_all(1, round, values);
}

/* Rank 1 fails and the other continues; then the primary is lost; _i: a replacement joins before
 * that, which the replica knows once the join was replied to. */
START_TEST(test_rank_lost_before_takeover)
{
    bool comes = _i == 1;
    float values;

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    replica_job_set_up();
    session_start(0.5f);
    values = run_round(1, 0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    session_push_all(0, 2);
    values -= 2 * session_push(0, 2); /* scaled to the mean of the joined ranks */
    session_expect_all(0, 2, values);
    if (comes) {
        join_as_replacement(201, 2, values);
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[1], CHUNK_PUSH, p, 3, session_push(1, 3));
        session_push_all(0, 3);
        values -= session_sum(3);
        session_expect_all(0, 3, values);
        session_expect_all(1, 3, values);
    }
    replica_job_redirect(0, service_port(replica_job_replica));
    replica_job_rejoin(0, comes ? 3 : 2, false);
    replica_job_wait_ended(service, 0, 1);
    ck_assert_uint_eq(read_job_stats(replica_job_replica).joined, comes ? 2 : 1);
    if (comes) {
        replica_job_redirect(1, service_port(replica_job_replica));
        replica_job_rejoin(1, 3, true);
        values = run_round(4, values);
    } else {
        session_push_all(0, 3);
        values -= 2 * session_push(0, 3);
        session_expect_all(0, 3, values);
        session_terms.world_size = 1; /* that leave */
    }
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

/* A replacement's join at the replica is refused until the replica has taken over. */
START_TEST(test_replacement_after_takeover)
{
    struct join_request request;
    float values;

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    replica_job_set_up();
    workers[2].session = 201;
    replica_job_redirect(2, service_port(replica_job_replica));
    request = session_request(1);
    request.session = 201;
    request.follows = true;
    check_result("idle", session_join(&workers[2], &request), STATUS_NOT_FOUND,
                 "not been taken over here");
    session_start(0.5f);
    values = run_round(1, 0.5f);
    check_result("a copy", session_join(&workers[2], &request), STATUS_NOT_FOUND,
                 "not been taken over here");
    replica_job_redirect(0, service_port(replica_job_replica));
    replica_job_rejoin(0, 1, false);
    replica_job_redirect(1, service_port(replica_job_replica));
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    check_result("replacement", session_join(&workers[2], &request), STATUS_OK, "");
    raw_close(&workers[1]);
    raw_open(&workers[1], service_port(replica_job_replica), 1);
    workers[1].session = 201;
    raw_start_lanes(&workers[1]);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PULL, p, 0, 0);
    session_expect_all(1, 1, values);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PUSH, p, 2, session_push(1, 2));
    session_push_all(0, 2);
    values -= session_sum(2);
    session_expect_all(0, 2, values);
    session_expect_all(1, 2, values);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

/* A rank that was lost cannot promote the replica. */
START_TEST(test_lost_rank_does_not_promote)
{
    struct join_request request;

    session_terms.update = 0;
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    replica_job_set_up();
    session_start(0.5f);
    (void)run_round(1, 0.5f);
    check_result("leave", raw_leave(&workers[1], "raw", "out of everything"), STATUS_OK, "");
    session_push_all(0, 2);
    session_expect_all(0, 2, 0.5f - session_sum(1) - 2 * session_push(0, 2));
    replica_job_redirect(1, service_port(replica_job_replica));
    request = replica_job_rejoin_request(1, 1, false);
    check_result("lost", session_join(&workers[1], &request), STATUS_UNAVAILABLE,
                 "knows no session of rank 1");
    session_terms.world_size = 1;
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

/* ------------------------------------------------------------------ loss of the replica */

START_TEST(test_standalone_after_all_votes)
{
    struct server_stats *stats;
    uint64_t count[2] = {0};

    replica_job_set_up();
    session_start(0.5f);
    session_round(1);
    for (unsigned i = 0; i < 2; i++)
        raw_start_attend(&workers[i]);
    service_close(replica_job_replica);
    for (unsigned i = 0; i < 2; i++)
        replica_job_wait_proposal(i, &count[i], 2);
    free(check_role(service, "proposing", session_terms.replica));
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 2);
    session_wait_taken(4 * RAW_PARTITIONS);
    replica_job_send_vote(0, ++count[0], 2);
    (void)raw_wait_heartbeats(&workers[0], count[0]);
    replica_job_check_silent(0, &count[0]);
    replica_job_check_silent(1, &count[1]);
    replica_job_send_vote(1, ++count[1], 2);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 2, session_sum(2));
    ++count[0];
    raw_send_heartbeat(&workers[0], "raw", count[0]);
    ck_assert_uint_eq(raw_wait_heartbeats(&workers[0], count[0]).epoch, 2);
    session_round(3);
    stats = check_role(service, "alone", "");
    ck_assert_uint_eq(stats->counters.replicas_lost, 1);
    ck_assert_uint_eq(stats->job.replica_lag_records, 0);
    free(stats);
    session_end();
    replica_job_wait_ended(service, 1, 0);
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ refused */

START_TEST(test_unsupported_configurations)
{
    replica_job_set_up();
    replica_job_check_refused(STATUS_UNSUPPORTED, "ranks that can come back"); /* no sessions */
    workers[0].session = 100;
    workers[1].session = 101;
    session_terms.update = 0;
    session_terms.consistency =
        (struct consistency){.mode = CONSISTENCY_ASP, .delay_compensation = 0.1};
    replica_job_check_refused(STATUS_UNSUPPORTED, "delay compensation");
    session_terms.consistency = (struct consistency){0};
    session_terms.update = 1;
    session_start(0.5f); /* the servers still serve */
    session_round(1);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    replica_job_tear_down();
}
END_TEST

/* The replica serves another job; nothing listens at the replica's address. */
START_TEST(test_replica_unavailable)
{
    struct join_request request;
    int64_t begun_ns;

    replica_job_set_up();
    workers[0].session = 100;
    workers[1].session = 101;
    replica_job_redirect(2, service_port(replica_job_replica)); /* a job of its own */
    request = raw_terms(0);
    (void)snprintf(request.job, sizeof(request.job), "other");
    raw_begin_join(&workers[2], &request);
    while (true) {
        struct server_stats *stats = replica_job_stats(replica_job_replica);
        bool there = stats->has_job;

        free(stats);
        if (there)
            break;
        (void)sched_yield();
    }
    replica_job_check_refused(STATUS_UNAVAILABLE,
                              "a copy of job 'raw' is refused: this server serves job 'other'");
    raw_close(&workers[2]);
    raw_open(&workers[2], service_port(service), 2);
    service_close(service);
    open_service(4000, NULL);
    workers[0].session = 100;
    workers[1].session = 101;
    (void)snprintf(session_terms.replica, sizeof(session_terms.replica), "127.0.0.1:%u",
                   (unsigned)support_port());
    begun_ns = clock_now_ns();
    replica_job_check_refused(STATUS_TIMEOUT, "has not taken the job's terms in time");
    ck_assert_int_lt((clock_now_ns() - begun_ns) / 1000000, 20000);
    replica_job_tear_down();
}
END_TEST

/* ------------------------------------------------------------------ certificates */

static struct rpc_security certificate_security(const char *name)
{
    return (struct rpc_security){.ca_file = certificate_file("ca", "pem"),
                                 .cert_file = certificate_file(name, "pem"),
                                 .key_file = certificate_file(name, "key")};
}

static void open_bound_service(struct service **ret, const char *certificate)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = LONG_MS,
                                    .security = certificate_security(certificate),
                                    .bind_ranks = true};

    assert_ok(service_open(&config, ret, &err));
}

static void open_bound_workers(uint16_t port)
{
    struct rpc_security security = certificate_security("host");

    for (unsigned i = 0; i < 3; i++)
        raw_open_with(&workers[i], port, i, &security);
}

/* Only a peer whose certificate names a server may have its job replicated; _i: it does. */
START_TEST(test_replica_authorization)
{
    if (!certificate_can_make())
        return;
    log_set_level(LOG_QUIET);
    certificate_make_authority("ca");
    certificate_make("plain", "ca", "subjectAltName=IP:127.0.0.1");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1,URI:sparring:server");
    certificate_make("host", "ca", "subjectAltName=URI:sparring:rank/0,URI:sparring:rank/1");
    open_bound_service(&replica_job_replica, "plain");
    (void)snprintf(session_terms.replica, sizeof(session_terms.replica), "127.0.0.1:%u",
                   (unsigned)service_port(replica_job_replica));
    open_bound_service(&service, _i == 0 ? "plain" : "server");
    open_bound_workers(service_port(service));
    if (_i == 0) {
        workers[0].session = 100;
        workers[1].session = 101;
        replica_job_check_refused(STATUS_DENIED, "its certificate does not name 'sparring:server'");
    } else {
        session_start(0.5f);
        session_round(1);
        session_end();
        replica_job_wait_ended(replica_job_replica, 1, 0);
    }
    replica_job_tear_down();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "replication", 120, LOOP_TEST(test_a_whole_job, 0, 2), TEST(test_a_job_that_fails),
        TEST(test_asp_and_takeover), LOOP_TEST(test_promotion, 0, RAW_PARTITIONS + 1),
        LOOP_TEST(test_promotion_at_the_start, 0, RAW_PARTITIONS + 1),
        TEST(test_the_primary_stops_in_order), TEST(test_unknown_session_does_not_promote),
        LOOP_TEST(test_rank_lost_before_takeover, 0, 2), TEST(test_replacement_after_takeover),
        TEST(test_lost_rank_does_not_promote), TEST(test_standalone_after_all_votes),
        TEST(test_unsupported_configurations), TEST(test_replica_unavailable),
        LOOP_TEST(test_replica_authorization, 0, 2));
}
