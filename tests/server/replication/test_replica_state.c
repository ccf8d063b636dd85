/*
 * A primary and its replica, both with a state folder: either or both are restarted, and the job
 * continues on exactly one of them.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/server/replication/replica_job.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct error err;
static uint16_t ports[2]; /* of the primary, the replica */
static uint64_t counts[2];
static const char *job_folders[2];

static void open_server(unsigned which, struct service **ret)
{
    struct service_config config = {.listen = {.host = "127.0.0.1", .port = ports[which]},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = LONG_MS,
                                    .run_dir = support_path("run"),
                                    .state_dir = support_path(which == 0 ? "primary" : "replica"),
                                    .snapshot_every = 2};

    assert_ok(service_open(&config, ret, &err));
}

static bool has_files(unsigned which)
{
    return access(job_folders[which], F_OK) == 0;
}

/* Start a job and run two rounds. */
static void set_up(void)
{
    log_set_level(LOG_QUIET);
    job_folders[0] = support_path("primary/raw.0");
    job_folders[1] = support_path("replica/raw.0");
    session_terms.reconnect_ms = LONG_MS;
    for (unsigned i = 0; i < 2; i++)
        ports[i] = support_port();
    open_server(0, &service);
    open_server(1, &replica_job_replica);
    for (unsigned i = 0; i < 3; i++)
        raw_open(&workers[i], ports[0], i);
    (void)snprintf(session_terms.replica, sizeof(session_terms.replica), "127.0.0.1:%u",
                   (unsigned)ports[1]);
    session_start(0.5f);
    session_round(1);
    session_round(2);
    ck_assert(has_files(0) && has_files(1));
}

static void stop(struct service **s)
{
    service_close(*s);
    *s = NULL;
}

/* Both are closed before either is started, so neither learns of the other's end. */
static void restart_both(void)
{
    stop(&service);
    stop(&replica_job_replica);
    open_server(0, &service);
    open_server(1, &replica_job_replica);
}

static void check_role(struct service *s, const char *role)
{
    struct server_stats *stats = replica_job_stats(s);

    ck_assert(stats->has_job && stats->job.runs);
    ck_assert_str_eq(stats->job.role, role);
    free(stats);
}

static void wait_files_removed(unsigned which)
{
    while (has_files(which))
        (void)sched_yield();
}

static void tear_down(void)
{
    close_workers();
    service_close(service);
    service_close(replica_job_replica);
}

/* A rank resumes its session at that server. */
static void reconnect(unsigned rank, unsigned which)
{
    replica_job_redirect(rank, ports[which]);
    session_resume(rank);
    raw_start_attend(&workers[rank]);
    counts[rank] = 0;
}

static void vote(unsigned rank, uint64_t epoch)
{
    replica_job_wait_proposal(rank, &counts[rank], epoch);
    replica_job_send_vote(rank, ++counts[rank], epoch);
}

/* Both restart and all ranks reconnect to the primary: it replies once all have voted that it
 * continues alone, and not before. */
START_TEST(test_both_restart_and_primary_continues)
{
    set_up();
    restart_both();
    check_role(service, "proposing");
    check_role(replica_job_replica, "replica");
    for (unsigned i = 0; i < 2; i++)
        reconnect(i, 0);
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 3);
    session_wait_taken(2 * RAW_PARTITIONS);
    vote(0, 2);
    (void)raw_wait_heartbeats(&workers[0], counts[0]);
    for (unsigned i = 0; i < 2; i++)
        replica_job_check_silent(i, &counts[i]);
    vote(1, 2);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 3, session_sum(3));
    check_role(service, "alone");
    session_round(4);
    session_end();
    replica_job_wait_ended(service, 1, 0);
    wait_files_removed(0);
    tear_down();
}
END_TEST

/* The same, but one rank connects to the replica: the primary learns that by a query and removes
 * its files.  _i: the other rank has voted before. */
START_TEST(test_both_restart_and_replica_takes_over)
{
    set_up();
    restart_both();
    reconnect(1, 0);
    if (_i == 1)
        vote(1, 2);
    replica_job_redirect(0, ports[1]);
    replica_job_rejoin(0, 2, false);
    check_result("rank 1", raw_wait_closed(&workers[1].stream), STATUS_UNAVAILABLE,
                 "superseded by epoch 2");
    replica_job_wait_ended(service, 0, 1);
    wait_files_removed(0);
    replica_job_redirect(1, ports[1]);
    replica_job_rejoin(1, 2, true);
    check_role(replica_job_replica, "alone");
    session_round(3);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    wait_files_removed(1);
    tear_down();
}
END_TEST

/* ------------------------------------------------------------------ takeover queries */

static struct {
    atomic_bool superseded, closed;
} query;

static void query_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct record_reply reply;
    const uint8_t *head;
    size_t size;

    (void)user;
    if (!message)
        return;
    head = rpc_message_head(message, &size);
    assert_ok(wire_unpack_record_reply(head, size, &reply, &err));
    query.superseded = reply.superseded;
    rpc_call_receive(call);
}

static void query_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)user;
    ck_assert_int_eq(result->status, STATUS_OK);
    query.closed = true;
}

/* Query the replica as a primary of the job with these sessions; true: it has taken over. */
static bool send_takeover_query(struct raw_worker *w, uint64_t *sessions, size_t count)
{
    static const struct rpc_handler handler = {.message = query_message, .closed = query_closed};
    struct join_request terms = session_request(0);
    struct wire_record m = {.kind = RECORD_TAKEOVER_QUERY,
                            .epoch = 1,
                            .sessions = sessions,
                            .session_count = count,
                            .terms = &terms};
    struct rpc_call *call;
    uint8_t *bytes;
    size_t size;

    query.superseded = query.closed = false;
    assert_ok(wire_pack_terms(&m, &bytes, &size, &err));
    assert_ok(rpc_client_call(w->client, SERVICE_REPLICATE, clock_deadline_ns(LONG_MS), &handler,
                              NULL, &call, &err));
    (void)rpc_call_send(call, bytes, size, NULL);
    free(bytes);
    rpc_call_send_done(call);
    rpc_call_receive(call);
    while (!query.closed)
        (void)sched_yield();
    rpc_call_unref(call);
    return query.superseded;
}

/* The replica replies `superseded` only to a query about its own run of the job. */
START_TEST(test_query_about_another_run)
{
    uint64_t others[] = {200, 0}, same[] = {0, 101}, none[] = {0, 0};

    set_up();
    replica_job_redirect(2, ports[1]);
    ck_assert(!send_takeover_query(&workers[2], same, 2)); /* not promoted */
    stop(&service);
    for (unsigned i = 0; i < 2; i++) {
        replica_job_redirect(i, ports[1]);
        replica_job_rejoin(i, 2, i == 1);
    }
    ck_assert(send_takeover_query(&workers[2], same, 2));
    ck_assert(!send_takeover_query(&workers[2], others, 2));
    ck_assert(!send_takeover_query(&workers[2], none, 2));
    ck_assert(!send_takeover_query(&workers[2], same + 1, 1));
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    tear_down();
}
END_TEST

/* The primary stops, the replica takes over and restarts: it continues the job, and the primary,
 * restarted with its old files, does not. */
START_TEST(test_promoted_replica_restarts)
{
    set_up();
    stop(&service);
    for (unsigned i = 0; i < 2; i++) {
        replica_job_redirect(i, ports[1]);
        replica_job_rejoin(i, 2, i == 1);
    }
    session_round(3);
    stop(&replica_job_replica);
    open_server(0, &service);
    check_role(service, "proposing");
    open_server(1, &replica_job_replica);
    check_role(replica_job_replica, "alone");
    replica_job_wait_ended(service, 0, 1);
    wait_files_removed(0);
    for (unsigned i = 0; i < 2; i++)
        reconnect(i, 1);
    session_round(4);
    session_end();
    replica_job_wait_ended(replica_job_replica, 1, 0);
    tear_down();
}
END_TEST

/* The replica stops, the primary continues alone and restarts: it needs no second vote, and the
 * replica, restarted with its old files, refuses every rank that has voted. */
START_TEST(test_standalone_primary_restarts)
{
    struct join_request request;

    set_up();
    for (unsigned i = 0; i < 2; i++) {
        raw_start_attend(&workers[i]);
        counts[i] = 0;
    }
    stop(&replica_job_replica);
    for (unsigned i = 0; i < 2; i++)
        vote(i, 2);
    session_round(3);
    restart_both();
    check_role(service, "alone");
    check_role(replica_job_replica, "replica");
    replica_job_redirect(0, ports[1]);
    request = replica_job_rejoin_request(0, 3, true);
    check_result("a follower", session_join(&workers[0], &request), STATUS_UNAVAILABLE,
                 "keeps a copy");
    for (unsigned i = 0; i < 2; i++)
        reconnect(i, 0);
    session_round(4);
    session_end();
    replica_job_wait_ended(service, 1, 0);
    tear_down();
}
END_TEST

/* One server restarts, the other keeps running; _i: the replica restarts. */
START_TEST(test_one_server_restarts)
{
    set_up();
    if (_i == 0) {
        stop(&service);
        open_server(0, &service);
        for (unsigned i = 0; i < 2; i++)
            reconnect(i, 0);
    } else {
        for (unsigned i = 0; i < 2; i++) {
            raw_start_attend(&workers[i]);
            counts[i] = 0;
        }
        stop(&replica_job_replica);
        open_server(1, &replica_job_replica);
    }
    for (unsigned i = 0; i < 2; i++)
        vote(i, 2);
    session_round(3);
    check_role(service, "alone");
    session_end();
    replica_job_wait_ended(service, 1, 0);
    tear_down();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("replica_state", 120, TEST(test_both_restart_and_primary_continues),
                       LOOP_TEST(test_both_restart_and_replica_takes_over, 0, 2),
                       TEST(test_query_about_another_run), TEST(test_promoted_replica_restarts),
                       TEST(test_standalone_primary_restarts),
                       LOOP_TEST(test_one_server_restarts, 0, 2));
}
