/*
 * A job on two services with fake workers: starting, redirecting and voting of ranks.
 */
#include "tests/server/replication/replica_job.h"

#include "common/base/clock.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

struct service *replica_job_replica;

static struct error err;

void replica_job_open_replica(void)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = LONG_MS};

    assert_ok(service_open(&config, &replica_job_replica, &err));
    (void)snprintf(session_terms.replica, sizeof(session_terms.replica), "127.0.0.1:%u",
                   (unsigned)service_port(replica_job_replica));
}

void replica_job_set_up(void)
{
    open_service(LONG_MS, NULL);
    replica_job_open_replica();
}

void replica_job_tear_down(void)
{
    close_service();
    service_close(replica_job_replica);
}

struct server_stats *replica_job_stats(struct service *s)
{
    struct server_stats *stats = NULL;

    assert_ok(service_stats(s, &stats, &err));
    return stats;
}

void replica_job_wait_ended(struct service *s, uint64_t ok, uint64_t failed)
{
    int64_t deadline_ns = clock_deadline_ns(LONG_MS);
    bool ended = false;

    while (!ended) {
        struct server_stats *stats = replica_job_stats(s);

        ended = stats->jobs_ok == ok && stats->jobs_failed == failed;
        ck_assert_msg(ended || clock_now_ns() < deadline_ns, "%d jobs done, %d failed",
                      (int)stats->jobs_ok, (int)stats->jobs_failed);
        free(stats);
        (void)sched_yield();
    }
}

void replica_job_redirect(unsigned rank, uint16_t port)
{
    uint64_t session = workers[rank].session;
    unsigned lanes = workers[rank].lanes;

    raw_close(&workers[rank]);
    raw_open(&workers[rank], port, rank);
    workers[rank].session = session;
    workers[rank].lanes = lanes;
}

struct join_request replica_job_rejoin_request(unsigned rank, uint64_t round, bool follows)
{
    struct join_request request = session_request(rank);

    request.resume = true;
    request.round = round;
    request.follows = follows;
    return request;
}

void replica_job_rejoin(unsigned rank, uint64_t round, bool follows)
{
    struct join_request request = replica_job_rejoin_request(rank, round, follows);

    check_result("come over", session_join(&workers[rank], &request), STATUS_OK, "");
    raw_start_lanes(&workers[rank]);
}

void replica_job_send_vote(unsigned rank, uint64_t count, uint64_t epoch)
{
    struct heartbeat heartbeat = {.session = workers[rank].session,
                                  .rank = rank,
                                  .count = count,
                                  .vote_epoch = epoch,
                                  .job = "raw"};
    uint8_t bytes[WIRE_HEARTBEAT_MAX];

    (void)rpc_call_send(workers[rank].attend.call, bytes, wire_pack_heartbeat(&heartbeat, bytes),
                        NULL);
}

void replica_job_wait_proposal(unsigned rank, uint64_t *count, uint64_t epoch)
{
    struct heartbeat heartbeat = {0};

    while (heartbeat.propose_epoch == 0) {
        ++*count;
        raw_send_heartbeat(&workers[rank], "raw", *count);
        heartbeat = raw_wait_heartbeats(&workers[rank], *count);
    }
    ck_assert_uint_eq(heartbeat.propose_epoch, epoch);
}

void replica_job_check_silent(unsigned rank, uint64_t *count)
{
    struct raw_call *c = &workers[rank].stream;

    ++*count;
    raw_send_heartbeat(&workers[rank], "raw", *count);
    (void)raw_wait_heartbeats(&workers[rank], *count);
    (void)pthread_mutex_lock(&c->lock);
    ck_assert_uint_eq(c->length, c->taken);
    (void)pthread_mutex_unlock(&c->lock);
}

void replica_job_check_refused(enum status status, const char *text)
{
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request = session_request(i);

        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), status, text);
}
