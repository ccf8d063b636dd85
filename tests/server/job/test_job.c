/*
 * A job's counters without a network: rounds compared with counts by hand, the ring of records when
 * it is full, stall detection, and membership.
 */
#include "server/job/job.h"

#include "common/base/memory.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#define SECOND INT64_C(1000000000)
#define RANKS  20u

static struct error err;

/* A running job of RANKS ranks whose shard has three partitions. */
static struct job *open_job(unsigned world_size)
{
    static char manifest[] = "seed\t1\n";
    struct join_request request = {.job = "job",
                                   .world_size = world_size,
                                   .server_count = 1,
                                   .manifest = manifest,
                                   .element_count = 2 * 1024 + 10,
                                   .partition_bytes = 4096,
                                   .update = 1,
                                   .optimizer = optimizer_defaults(OPTIMIZER_SGD)};
    struct job *j = NULL;

    assert_ok(job_open(&request, &j, &err));
    for (unsigned rank = 0; rank < world_size; rank++) {
        request.rank = rank;
        assert_ok(membership_join(&j->members, &request, "test", &err));
        ck_assert_int_eq(membership_is_complete(&j->members), rank + 1 == world_size);
    }
    assert_ok(job_build(j, &err));
    job_run(j, 100 * SECOND);
    for (unsigned rank = 0; rank < world_size; rank++)
        j->ranks[rank].session.opened = 1;
    return j;
}

static void push_all(struct job *j, unsigned rank, int64_t now_ns)
{
    for (size_t p = 0; p < j->shard.length; p++) {
        j->ranks[rank].heard_ns = now_ns;
        job_count_push(j, rank, job_round(j), 100, now_ns);
    }
}

static void complete_all(struct job *j, int64_t now_ns)
{
    struct shard_reply reply = {.complete = true,
                                .contributions = j->members.world_size,
                                .count = 25,
                                .bytes = 100,
                                .sum_ns = 5,
                                .wait_ns = 7};

    for (size_t p = 0; p < j->shard.length; p++)
        job_count_complete(j, &reply, now_ns);
}

static void play_round(struct job *j, int64_t now_ns)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        push_all(j, rank, now_ns);
    complete_all(j, now_ns + 1);
}

START_TEST(test_rounds_are_counted)
{
    struct job *j = open_job(2);
    struct round_record r;

    ck_assert_uint_eq(j->shard.length, 3);
    ck_assert_uint_eq(job_round(j), 1);
    ck_assert(!job_next_record(j, &r));
    push_all(j, 1, 200 * SECOND);
    ck_assert(job_is_pending(j));
    push_all(j, 0, 201 * SECOND);
    complete_all(j, 202 * SECOND);
    ck_assert(!job_is_pending(j));
    ck_assert_uint_eq(job_round(j), 2);
    ck_assert(job_next_record(j, &r));
    ck_assert(!job_next_record(j, &r));
    ck_assert_uint_eq(r.round, 1);
    ck_assert_uint_eq(r.rx_payload_bytes, 600);
    ck_assert_uint_eq(r.tx_payload_bytes, 2 * 3 * 100);
    ck_assert_int_eq(r.begin_ns, 200 * SECOND);
    ck_assert_int_eq(r.end_ns, 202 * SECOND);
    ck_assert_int_eq(r.sum_ns, 15);
    ck_assert_int_eq(r.wait_ns, 21);
    job_close(j);
}
END_TEST

START_TEST(test_unwritten_records_are_dropped)
{
    struct job *j = open_job(1);
    struct round_record r;

    for (unsigned i = 0; i < JOB_RECORDS + 10; i++)
        play_round(j, 200 * SECOND);
    ck_assert_uint_eq(j->totals.rounds, JOB_RECORDS + 10);
    ck_assert_uint_eq(j->totals.records_dropped, 10);
    for (unsigned i = 0; i < 100; i++)
        ck_assert(job_next_record(j, &r) && r.round == i + 1);
    play_round(j, 200 * SECOND); /* appended after the remaining ones */
    for (unsigned i = 100; i < JOB_RECORDS; i++)
        ck_assert(job_next_record(j, &r) && r.round == i + 1);
    ck_assert(job_next_record(j, &r) && r.round == JOB_RECORDS + 11);
    ck_assert(!job_next_record(j, &r));
    job_close(j);
}
END_TEST

START_TEST(test_missing_ranks_are_named)
{
    struct job *j = open_job(4);

    j->values_set = j->shard.length;
    ck_assert(!job_has_stalled(j, 1000 * SECOND, 1000, &err)); /* no reply is pending */
    for (unsigned rank = 0; rank < 4; rank++)
        j->ranks[rank].heard_ns = 1000 * SECOND;
    push_all(j, 2, 1000 * SECOND);
    push_all(j, 0, 1001 * SECOND);
    ck_assert(!job_has_stalled(j, 1004 * SECOND, 5000, &err)); /* not yet for long enough */
    ck_assert(job_has_stalled(j, 1005 * SECOND, 5000, &err));
    assert_fails(err.status, STATUS_TIMEOUT,
                 "waited in round 1 for ranks 1, 3: nothing came for 5.0");
    j->ranks[1].heard_ns = 1003 * SECOND; /* slow, but alive */
    ck_assert(job_has_stalled(j, 1005 * SECOND, 5000, &err));
    assert_fails(err.status, STATUS_TIMEOUT, "for rank 3:");
    j->ranks[3].heard_ns = 1003 * SECOND;
    ck_assert(!job_has_stalled(j, 1005 * SECOND, 5000, &err));
    j->ranks[2].session.opened = 0; /* a rank without a stream is missing even if no reply pends */
    j->ranks[2].heard_ns = 100 * SECOND;
    ck_assert(job_has_stalled(j, 1005 * SECOND, 5000, &err));
    assert_fails(err.status, STATUS_TIMEOUT, "for rank 2:");
    (void)job_end(j, NULL, 1005 * SECOND);
    ck_assert(!job_has_stalled(j, 9000 * SECOND, 5000, &err));
    ck_assert(!job_end(j, &err, 1005 * SECOND));
    ck_assert_int_eq(j->failure.status, STATUS_OK);
    job_close(j);
}
END_TEST

static bool is_any(const void *user, unsigned rank)
{
    (void)user;
    (void)rank;
    return true;
}

/* Rank 1 of 3 is AWAY while the others wait or compute: until its deadline no stall is reported,
 * and afterwards that time does not count as silence. */
START_TEST(test_no_stall_while_a_rank_is_away)
{
    struct job *j = open_job(3);
    struct rank_session *session = &j->ranks[1].session;
    unsigned longest = 9;

    j->values_set = j->shard.length;
    session->id = 7;
    session->has_chunks = true;
    push_all(j, 0, 200 * SECOND);
    rank_session_cut(session, "gone", 60000, 201 * SECOND);
    job_update_pause(j, 201 * SECOND);
    ck_assert_int_eq(job_waiting_ms(j, 5000, 211 * SECOND, &longest), 50001);
    ck_assert_uint_eq(longest, 1);
    ck_assert(!job_has_stalled(j, 260 * SECOND, 10000, &err));
    rank_session_hold(session, 7, 1, 260 * SECOND);
    session->opened = 1;
    job_update_pause(j, 260 * SECOND);
    ck_assert_int_eq(job_waiting_ms(j, 5000, 260 * SECOND, &longest), 0);
    ck_assert(!job_has_stalled(j, 268 * SECOND, 10000, &err));
    push_all(j, 1, 268 * SECOND);
    ck_assert(job_has_stalled(j, 270 * SECOND, 10000, &err)); /* 200 s, and 11 of waiting */
    ck_assert_pstr_eq(err.text, "waited in round 1 for rank 2: nothing came for 10.0 s");
    job_close(j);
}
END_TEST

/* Rank 2 of 3 is lost in the middle of a round: its contributions stay counted. */
START_TEST(test_rounds_without_a_lost_rank)
{
    struct shard_reply reply = {.complete = true, .count = 25, .contributions = 3};
    struct job *j = open_job(3);
    struct joining_session by = {.session = 8, .lanes = 2, .peer = "new"};
    struct incident incident;

    for (unsigned rank = 0; rank < 2; rank++)
        push_all(j, rank, 200 * SECOND);
    job_count_push(j, 2, 1, 100, 200 * SECOND);
    job_count_complete(j, &reply, 200 * SECOND);
    ck_assert_uint_eq(job_waiting(j), 4);
    rank_session_cut(&j->ranks[2].session, "gone", 1000, 201 * SECOND);
    job_update_pause(j, 201 * SECOND);
    job_remove_rank(j, 2);
    ck_assert_uint_eq(j->epoch, 2);
    reply.contributions = 2;
    job_count_complete(j, &reply, 202 * SECOND);
    job_count_complete(j, &reply, 202 * SECOND);
    job_vacate(j, 2, 203 * SECOND);
    job_add_incident(j, 2, INCIDENT_VACATED, 203 * SECOND);
    ck_assert_uint_eq(job_waiting(j), 0);
    ck_assert_uint_eq(job_round(j), 2);
    ck_assert_int_eq(job_waiting_ms(j, 5000, 203 * SECOND, &(unsigned){0}), 0);
    ck_assert(job_next_incident(j, &incident));
    ck_assert_int_eq(incident.detect_ns, 101 * SECOND);
    ck_assert_int_eq(incident.recover_ns, 2 * SECOND);
    ck_assert(!job_next_incident(j, &incident));
    ck_assert(!job_has_stalled(j, 203 * SECOND, 1000, &err));
    job_occupy(j, 2, &by, 1, 204 * SECOND);
    ck_assert_uint_eq(j->epoch, 3);
    ck_assert_uint_eq(j->members.joined, 3);
    ck_assert_uint_eq(j->ranks[2].session.lanes, 2);
    ck_assert_uint_eq(j->totals.taken_places, 1);
    job_close(j);
}
END_TEST

START_TEST(test_unwritten_incidents_are_dropped)
{
    struct job *j = open_job(1);
    struct incident incident;

    for (unsigned i = 0; i < JOB_INCIDENTS + 10; i++)
        job_add_incident(j, 0, INCIDENT_BACK, 200 * SECOND);
    ck_assert_uint_eq(j->totals.records_dropped, 10);
    ck_assert_uint_eq(j->totals.reconnects, JOB_INCIDENTS + 10);
    for (unsigned i = 0; i < JOB_INCIDENTS; i++)
        ck_assert(job_next_incident(j, &incident));
    ck_assert(!job_next_incident(j, &incident));
    job_close(j);
}
END_TEST

START_TEST(test_long_lists_are_cut)
{
    struct job *j = open_job(RANKS);
    struct strbuf text = STRBUF_INIT;

    ck_assert_uint_eq(membership_format_ranks(&j->members, is_any, NULL, &text), RANKS);
    ck_assert_str_eq(text.text, "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more");
    strbuf_release(&text);
    job_close(j);
}
END_TEST

/* The size of all manifests is limited; a cancelled join releases its bytes. */
START_TEST(test_manifests_have_a_limit)
{
    const size_t bytes = 1 << 20, fit = MEMBERSHIP_MANIFESTS_MAX / bytes;
    struct join_request request = {
        .job = "job", .world_size = 1024, .server_count = 1, .element_count = 1};
    struct membership m;

    assert_ok(mem_calloc(bytes, 1, "manifest", &request.manifest, &err));
    memset(request.manifest, 'x', bytes - 1024); /* room for its terms in front */
    assert_ok(membership_init(&m, &request, &err));
    for (; request.rank < fit; request.rank++)
        assert_ok(membership_join(&m, &request, "test", &err));
    assert_fails(membership_join(&m, &request, "test", &err), STATUS_NO_SPACE,
                 "the manifest of rank 64 and those of the other ranks have more than 67108864");
    for (unsigned i = 0; i < 3; i++) {
        membership_forget(&m, 5);
        request.rank = 5;
        assert_ok(membership_join(&m, &request, "test", &err));
    }
    ck_assert_uint_eq(m.joined, fit);
    membership_release(&m);
    free(request.manifest);
}
END_TEST

/* The weights of the servers are terms: one for each server, equal on all ranks. */
START_TEST(test_weights_are_terms)
{
    static char manifest[] = "";
    uint32_t weights[] = {1, 2}, others[] = {2, 1};
    struct join_request request = {.job = "job",
                                   .world_size = 2,
                                   .server_count = 2,
                                   .manifest = manifest,
                                   .element_count = 3 * 1024,
                                   .partition_bytes = 4096,
                                   .update = 1,
                                   .weights = weights,
                                   .weight_count = 1};
    struct job *j = NULL;

    assert_fails(job_open(&request, &j, &err), STATUS_INVALID, "1 weights for 2 servers");
    request.weight_count = 2;
    for (unsigned same = 0; same <= 1; same++) {
        request.rank = 0;
        request.weights = weights;
        assert_ok(job_open(&request, &j, &err));
        assert_ok(membership_join(&j->members, &request, "test", &err));
        request.rank = 1;
        request.weights = same ? weights : others;
        assert_ok(membership_join(&j->members, &request, "test", &err));
        if (same)
            assert_ok(job_build(j, &err));
        else
            assert_fails(job_build(j, &err), STATUS_MISMATCH, "weight of a server");
        ck_assert_uint_eq(j->shard.length, same ? 1 : 0);
        job_close(j);
    }
}
END_TEST

START_TEST(test_allocations_fail)
{
    struct join_request request = {
        .job = "job", .world_size = 2, .server_count = 1, .element_count = 1};

    for (size_t n = 1; n <= 3; n++) {
        struct job *j = NULL;

        mem_fail_nth(n);
        ck_assert_int_eq(job_open(&request, &j, &err), STATUS_NO_MEMORY);
        mem_fail_nth(0);
        ck_assert_ptr_null(j);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("job", 0, TEST(test_rounds_are_counted), TEST(test_weights_are_terms),
                       TEST(test_unwritten_records_are_dropped), TEST(test_missing_ranks_are_named),
                       TEST(test_no_stall_while_a_rank_is_away),
                       TEST(test_rounds_without_a_lost_rank),
                       TEST(test_unwritten_incidents_are_dropped), TEST(test_long_lists_are_cut),
                       TEST(test_manifests_have_a_limit), TEST(test_allocations_fail));
}
