/*
 * Sessions of scripted workers.  Replies are compared with the sums of what was pushed; the last
 * reply of each partition and rank is remembered, because a repeated request may be answered twice.
 * Failures end the test.
 */
#include "tests/server/service/session_job.h"

#include "tests/support/support.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

struct session_terms session_terms = {
    .world_size = 2, .lanes = 1, .on_loss = WORKER_LOSS_FAIL, .update = 1, .reconnect_ms = LONG_MS};

/* The last reply for a partition to a rank. */
static struct expected_reply {
    uint64_t round;
    float value;
    unsigned extra; /* replies that may still come twice, because the request was repeated */
} replies[3][RAW_PARTITIONS];

struct join_request session_request(unsigned rank)
{
    struct join_request r = raw_terms(rank);

    r.world_size = session_terms.world_size;
    r.update = session_terms.update;
    r.order = session_terms.update == 1;
    r.lanes = session_terms.lanes;
    r.on_loss = session_terms.on_loss;
    r.reconnect_ms = session_terms.reconnect_ms;
    r.heartbeat_timeout_ms = session_terms.heartbeat_timeout_ms;
    r.consistency = session_terms.consistency;
    r.optimizer.learning_rate = session_terms.learning_rate > 0 ? session_terms.learning_rate : 1;
    r.session = workers[rank].session;
    memcpy(r.replica, session_terms.replica, sizeof(session_terms.replica));
    return r;
}

struct rpc_result session_join(struct raw_worker *w, const struct join_request *request)
{
    raw_begin_join(w, request);
    return raw_end_join(w);
}

void session_join_all(uint64_t first)
{
    for (unsigned i = 0; i < session_terms.world_size; i++) {
        struct join_request request;

        workers[i].session = first > 0 ? first + i : 0;
        workers[i].lanes = session_terms.lanes;
        request = session_request(i);
        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < session_terms.world_size; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
}

void session_begin(unsigned rank, float value)
{
    raw_start_lanes(&workers[rank]);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        if (rank == 0)
            raw_send_valid(&workers[rank], CHUNK_INIT, p, 0, value);
        raw_send_valid(&workers[rank], CHUNK_PULL, p, 0, 0);
    }
}

void session_start(float value)
{
    session_join_all(100);
    for (unsigned i = 0; i < session_terms.world_size; i++)
        session_begin(i, value);
    for (unsigned i = 0; i < session_terms.world_size; i++)
        session_expect_all(i, 0, value);
}

float session_push(unsigned rank, uint64_t round)
{
    return (float)(8 * round + (rank == 0 ? 1 : 2 * rank));
}

float session_sum(uint64_t round)
{
    float sum = 0;

    for (unsigned i = 0; i < session_terms.world_size; i++)
        sum += session_push(i, round);
    return sum;
}

void session_push_all(unsigned rank, uint64_t round)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_valid(&workers[rank], CHUNK_PUSH, p, round, session_push(rank, round));
}

void session_repeat_all(unsigned rank, uint64_t round)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        struct expected_reply *a = &replies[rank][p];

        raw_send_again(&workers[rank], CHUNK_PUSH, p, round, session_push(rank, round));
        if (a->round == round) /* treat the reply that was read as lost */
            a->round = UINT64_MAX;
        else
            a->extra++;
    }
}

/* A reply in flight when the rank was cut off goes to the stream of the new connection, as a second
 * reply to the repeated request.  A worker drops as many as it has repeated requests (ps.c). */
static bool is_repeated_reply(struct expected_reply *a, uint64_t round, float value)
{
    if (a->extra == 0 || round != a->round || value != a->value)
        return false;
    a->extra--;
    return true;
}

void session_expect_all(unsigned rank, uint64_t round, float value)
{
    struct raw_worker *w = &workers[rank];
    unsigned lanes = w->lanes > 1 ? w->lanes : 1;
    unsigned taken = 0;

    while (taken < RAW_PARTITIONS) {
        unsigned lane = taken % lanes;
        float first;
        struct chunk_header h =
            raw_take_from(lane == 0 ? &w->stream : &w->other_lanes[lane - 1], &first);

        ck_assert_uint_lt(h.partition, RAW_PARTITIONS);
        ck_assert_uint_eq(h.partition % lanes, lane);
        ck_assert_uint_eq(h.rank, rank);
        if (is_repeated_reply(&replies[rank][h.partition], h.round, first))
            continue;
        ck_assert_msg(h.round == round && first == value,
                      "rank %u, partition %u: got round %d, value %g; wanted round %d, value %g",
                      rank, h.partition, (int)h.round, (double)first, (int)round, (double)value);
        replies[rank][h.partition].round = round;
        replies[rank][h.partition].value = value;
        taken++;
    }
}

void session_round(uint64_t round)
{
    for (unsigned i = 0; i < session_terms.world_size; i++)
        session_push_all(i, round);
    for (unsigned i = 0; i < session_terms.world_size; i++)
        session_expect_all(i, round, session_sum(round));
}

void session_resume(unsigned rank)
{
    struct join_request request = session_request(rank);

    request.resume = true;
    check_result("resume", session_join(&workers[rank], &request), STATUS_OK, "");
    raw_start_lanes(&workers[rank]);
}

void session_end(void)
{
    for (unsigned i = 0; i < session_terms.world_size; i++)
        check_result("leave", raw_leave(&workers[i], "raw", ""), STATUS_OK, "");
}

struct stats_counters session_counters(struct stats_job *ret_job)
{
    struct server_stats *stats = NULL;
    struct stats_counters counters;

    assert_ok(service_stats(service, &stats, &err));
    counters = stats->counters;
    if (ret_job)
        *ret_job = stats->job;
    free(stats);
    return counters;
}

void session_wait_disconnects(uint64_t cuts)
{
    while (session_counters(NULL).disconnects < cuts)
        (void)sched_yield();
}

void session_wait_lost(uint64_t ranks)
{
    while (session_counters(NULL).lost_ranks < ranks)
        (void)sched_yield();
}

void session_wait_taken(uint64_t count)
{
    struct stats_counters c;

    do {
        c = session_counters(NULL);
        (void)sched_yield();
    } while (c.pushes + c.retries < count);
}
