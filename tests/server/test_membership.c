/*
 * Ranks that are lost for good, over real gRPC, with workers played by hand: what the others see
 * with each --on-worker-loss, who may take a place, and what the record says.  Update on the
 * server, SGD with a learning rate of 1: a step subtracts the mean of what was pushed, so values
 * say which contributions they hold.
 */
#include "tests/server/session_job.h"
#include "tests/support/support.h"

#include <jansson.h>
#include <string.h>

#define AWAY_MS 300 /* bounds nothing but the absence of ranks that are lost on purpose */

static void set_up(unsigned world_size, enum worker_loss on_loss)
{
    session_terms.world_size = world_size;
    session_terms.on_loss = on_loss;
    session_terms.update = 0;
    session_terms.reconnect_ms = AWAY_MS;
    open_service(LONG_MS, support_path("run"));
    session_start(100);
}

/* A contribution as workers make it: divided by the ranks that a step is the mean of. */
static void push_part(unsigned rank, uint32_t partition, uint64_t round, float gradient)
{
    raw_send_right(&workers[rank], CHUNK_PUSH, partition, round,
                   gradient / (float)session_terms.world_size);
}

static void push_all(unsigned rank, uint64_t round, float gradient)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        push_part(rank, p, round, gradient);
}

static void lose(unsigned rank)
{
    uint64_t before = session_counters(NULL).lost_ranks;

    raw_cut(&workers[rank]);
    session_wait_lost(before + 1);
}

/* A new process takes the rank's place; its reply has the epoch. */
static void take_place(unsigned rank, uint64_t session)
{
    struct join_request request;

    workers[rank].session = session;
    request = session_request(rank);
    check_result("take", session_join(&workers[rank], &request), STATUS_OK, "");
    raw_start_lanes(&workers[rank]);
}

/* Ask for all partitions, which must be of that round and value. */
static void read_all(unsigned rank, uint64_t ask, uint64_t round, float value)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[rank], CHUNK_PULL, p, ask, 0);
    session_expect_all(rank, round, value);
}

/* ------------------------------------------------------------------ fail */

START_TEST(test_fail_names_rank_how_and_how_long)
{
    struct join_request request;
    struct rpc_result r;

    set_up(2, WORKER_LOSS_FAIL);
    push_all(0, 1, 4);
    raw_cut(&workers[1]);
    r = raw_wait_closed(&workers[0].stream);
    check_result("other", r, STATUS_PEER_LOST,
                 "rank 1 was lost (its connection closed in round 1; waited 0.");
    check_result("other", r, STATUS_PEER_LOST, "for it to come back)");
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

START_TEST(test_back_to_a_job_that_is_done)
{
    struct join_request request;

    set_up(2, WORKER_LOSS_FAIL);
    session_end();
    request = session_request(1);
    request.resume = true;
    check_result("done", session_join(&workers[1], &request), STATUS_NOT_FOUND,
                 "job 'raw' is done");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ shrink */

/* Rank 2 has contributed to one partition when it is lost: that stays in, the others are the mean
 * of two; the next round is of two everywhere. */
START_TEST(test_shrink_in_the_middle_of_a_round)
{
    struct stats_job job;

    set_up(3, WORKER_LOSS_SHRINK);
    push_part(2, 1, 1, 30);
    session_wait_taken(1);
    raw_cut(&workers[2]);
    push_all(0, 1, 4);
    push_all(1, 1, 8);
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            float first;
            struct chunk_header h = raw_take(&workers[i], &first);

            ck_assert_uint_eq(h.round, 1);
            ck_assert(first == (h.partition == 1 ? 100.0f - 14 : 100.0f - 6));
        }
    (void)session_counters(&job);
    ck_assert_uint_eq(job.epoch, 2);
    ck_assert_uint_eq(job.joined, 2);
    ck_assert_uint_eq(job.left, 1);
    push_all(0, 2, 1);
    push_all(1, 2, 3);
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            float first;
            struct chunk_header h = raw_take(&workers[i], &first);

            ck_assert_uint_eq(h.round, 2);
            ck_assert(first == (h.partition == 1 ? 84.0f : 92.0f));
        }
    session_terms.world_size = 2; /* those who are left */
    session_end();
    close_service();
}
END_TEST

/* A rank without a session, as of a stock client, has no way back: lost at once, and the others go
 * on.
 */
START_TEST(test_shrink_without_sessions)
{
    session_terms.on_loss = WORKER_LOSS_SHRINK;
    session_terms.update = 0;
    session_terms.reconnect_ms = LONG_MS; /* it does not wait for this */
    open_service(LONG_MS, NULL);
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request = session_request(i);

        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
    raw_initialise(workers, 2, 100);
    push_all(0, 1, 4);
    raw_cut(&workers[1]);
    session_expect_all(0, 1, 96);
    check_result("leave", raw_leave(&workers[0], "raw", ""), STATUS_OK, "");
    close_service();
}
END_TEST

/* Who was given up may not come back, who fails is given up at once, and where nobody is left the
 * job has failed. */
START_TEST(test_shrink_until_nobody_is_left)
{
    struct join_request request;

    set_up(2, WORKER_LOSS_SHRINK);
    check_result("leave", raw_leave(&workers[1], "raw", "out of cheese"), STATUS_OK, "");
    session_wait_lost(1);
    ck_assert_int_eq(raw_wait_closed(&workers[1].stream).status, STATUS_CANCELLED);
    request = session_request(1);
    request.resume = true;
    check_result("excluded", session_join(&workers[1], &request), STATUS_PEER_LOST,
                 "rank 1 was lost (failed: out of cheese); its place is vacant since epoch 2");
    push_all(0, 1, 4);
    session_expect_all(0, 1, 96);
    raw_cut(&workers[0]);
    session_wait_lost(2);
    request = session_request(0);
    request.resume = true;
    check_result("nobody", session_join(&workers[0], &request), STATUS_PEER_LOST,
                 "no rank is left: rank 0 was lost");
    close_service();
}
END_TEST

/* A rank takes a vacant place while a round is under way: it reads the newest values, contributes
 * where the round waits for it, and is answered where it does not. */
START_TEST(test_join_at_a_round)
{
    struct stats_job job;

    set_up(2, WORKER_LOSS_SHRINK);
    push_all(0, 1, 4);
    push_all(1, 1, 8);
    session_expect_all(0, 1, 94);
    session_expect_all(1, 1, 94);
    lose(1);
    push_part(0, 0, 2, 10); /* partition 0 is a round further */
    (void)raw_take(&workers[0], &(float){0});
    take_place(1, 201);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PULL, p, 0, 0);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        float first;
        struct chunk_header h = raw_take(&workers[1], &first);

        ck_assert_uint_eq(h.round, h.partition == 0 ? 2 : 1);
        ck_assert(first == (h.partition == 0 ? 84.0f : 94.0f));
    }
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PUSH, p, 2, 10.0f / 2);
    push_part(0, 1, 2, 20);
    push_part(0, 2, 2, 20);
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t p = i == 0 ? 1 : 0; p < RAW_PARTITIONS; p++) {
            float first;
            struct chunk_header h = raw_take(&workers[i], &first);

            ck_assert_uint_eq(h.round, 2);
            ck_assert(first == (h.partition == 0 ? 84.0f : 79.0f));
        }
    push_all(0, 3, 1);
    push_all(1, 3, 1);
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            float first;
            struct chunk_header h = raw_take(&workers[i], &first);

            ck_assert(first == (h.partition == 0 ? 83.0f : 78.0f));
        }
    (void)session_counters(&job);
    ck_assert_uint_eq(job.epoch, 3);
    ck_assert_uint_eq(job.joined, 2);
    ck_assert_uint_eq(session_counters(NULL).taken_places, 1);
    session_end();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ wait */

/* Rank 1 is lost with one partition of round 2 in and round 1 answered: the new one reads what
 * round 2 is computed from, does it again, and the sums are those of the fault-free run. */
START_TEST(test_wait_for_a_replacement)
{
    struct stats_job job;

    set_up(2, WORKER_LOSS_WAIT);
    push_all(0, 1, 4);
    push_all(1, 1, 8);
    session_expect_all(0, 1, 94);
    session_expect_all(1, 1, 94);
    push_all(0, 2, 2);
    push_part(1, 2, 2, 6); /* partition 2 is complete, the answer is lost */
    session_wait_taken(2 * RAW_PARTITIONS + RAW_PARTITIONS + 1);
    (void)raw_take(&workers[0], &(float){0});
    lose(1);
    take_place(1, 201);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PULL, p, 0, 0);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        float first;
        struct chunk_header h = raw_take(&workers[1], &first);

        ck_assert_uint_eq(h.round, h.partition == 2 ? 2 : 1);
        ck_assert(first == (h.partition == 2 ? 90.0f : 94.0f));
    }
    raw_send_again(&workers[1], CHUNK_PULL, 2, 2, 0); /* as it was behind round 1 */
    {
        float first;
        struct chunk_header h = raw_take(&workers[1], &first);

        ck_assert_uint_eq(h.round, 1);
        ck_assert(first == 94.0f);
    }
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PUSH, p, 2, 6.0f / 2);
    session_expect_all(1, 2, 90);
    for (uint32_t p = 0; p < 2; p++) {
        float first;

        (void)raw_take(&workers[0], &first);
        ck_assert(first == 90.0f);
    }
    push_all(0, 3, 1);
    push_all(1, 3, 1);
    session_expect_all(0, 3, 89);
    session_expect_all(1, 3, 89);
    (void)session_counters(&job);
    ck_assert_uint_eq(job.epoch, 2);
    session_end();
    close_service();
}
END_TEST

/* The new process is quicker than the verdict on the old one: its join waits for that. */
START_TEST(test_a_replacement_that_comes_early)
{
    set_up(2, WORKER_LOSS_WAIT);
    raw_cut(&workers[1]);
    take_place(1, 201);
    ck_assert_uint_eq(session_counters(NULL).lost_ranks, 1);
    read_all(1, 0, 0, 100);
    push_all(0, 1, 4);
    push_all(1, 1, 8);
    session_expect_all(0, 1, 94);
    session_expect_all(1, 1, 94);
    session_end();
    close_service();
}
END_TEST

/* The old process is dead, but its connection is not known to be: the new one's join waits until
 * the silence has lasted long enough. */
START_TEST(test_a_replacement_before_the_silence_is_noticed)
{
    session_terms.heartbeat_timeout_ms = 4000;
    set_up(2, WORKER_LOSS_WAIT);
    for (unsigned i = 0; i < 2; i++) {
        raw_start_attend(&workers[i]);
        raw_beat(&workers[i], "raw", 1);
        (void)raw_wait_beats(&workers[i], 1);
    }
    session_terms.world_size = 2;
    workers[2].rank = 1;
    workers[2].session = 201;
    {
        struct join_request request = session_request(1);

        request.session = 201;
        raw_begin_join(&workers[2], &request);
    }
    for (uint64_t i = 2; session_counters(NULL).taken_places == 0; i++) { /* rank 0 lives */
        raw_beat(&workers[0], "raw", i);
        (void)raw_wait_beats(&workers[0], i);
    }
    check_result("take", raw_end_join(&workers[2]), STATUS_OK, "");
    ck_assert_uint_eq(session_counters(NULL).disconnects, 1);
    close_service();
}
END_TEST

/* The old process died between the answer to its join and its first stream, so nothing ever broke.
 */
START_TEST(test_a_replacement_of_who_never_began)
{
    session_terms.on_loss = WORKER_LOSS_WAIT;
    session_terms.update = 0;
    session_terms.reconnect_ms = AWAY_MS;
    open_service(LONG_MS, NULL);
    for (unsigned i = 0; i < 2; i++) {
        struct join_request request;

        workers[i].session = 100 + i;
        request = session_request(i);
        raw_begin_join(&workers[i], &request);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
    take_place(1, 201);
    raw_start_lanes(&workers[0]);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        raw_send_right(&workers[0], CHUNK_INIT, p, 0, 100);
        raw_send_right(&workers[0], CHUNK_PULL, p, 0, 0);
    }
    session_expect_all(0, 0, 100);
    read_all(1, 0, 0, 100);
    push_all(0, 1, 4);
    push_all(1, 1, 8);
    session_expect_all(0, 1, 94);
    session_expect_all(1, 1, 94);
    session_end();
    close_service();
}
END_TEST

START_TEST(test_nobody_takes_the_place)
{
    const int64_t timeout_ms = 4000; /* of the joins before, too */

    session_terms.on_loss = WORKER_LOSS_WAIT;
    session_terms.update = 0;
    session_terms.reconnect_ms = AWAY_MS;
    open_service(timeout_ms, NULL);
    session_start(100);
    push_all(0, 1, 4);
    raw_cut(&workers[1]);
    check_result("other", raw_wait_closed(&workers[0].stream), STATUS_PEER_LOST,
                 "rank 1 was lost (its connection closed in round 1; waited 4.");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ not in lockstep */

static const struct consistency modes[] = {
    {.mode = CONSISTENCY_ASP},
    {.mode = CONSISTENCY_SSP, .staleness = 1},
    {.mode = CONSISTENCY_BSP, .backup = 1},
};

/* One answer for each partition: their first elements, added up. */
static float take_answers(unsigned rank)
{
    float sum = 0;

    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        float first;

        (void)raw_take(&workers[rank], &first);
        sum += first;
    }
    return sum;
}

/* A round of the ranks first..last, each of whose pushes is a step of 1 where it is a step. */
static void play(unsigned first, unsigned last, uint64_t round)
{
    for (unsigned i = first; i <= last; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_right(&workers[i], CHUNK_PUSH, p, round, 1);
    for (unsigned i = first; i <= last; i++)
        (void)take_answers(i);
}

/* The newcomer reads and pushes what it would have pushed, while the others play from round `next`
 * on. */
static void play_first(unsigned rank, uint64_t next)
{
    uint64_t least = UINT64_MAX, most = 0;
    float value;

    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[rank], CHUNK_PULL, p, 0, 0);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        struct chunk_header h = raw_take(&workers[rank], &value);

        least = h.round < least ? h.round : least;
        most = h.round > most ? h.round : most;
    }
    for (uint64_t round = least + 1; round <= most + 1; round++) {
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[rank], CHUNK_PUSH, p, round, 1);
        play(0, 1, next++);
        (void)take_answers(rank);
    }
}

static void finish_all(void)
{
    float final[3];

    for (unsigned i = 0; i < 3; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[i], CHUNK_FINAL, p, 9, 0);
    for (unsigned i = 0; i < 3; i++)
        final[i] = take_answers(i);
    ck_assert(final[0] == final[1] && final[1] == final[2]);
    if (session_terms.consistency.mode != CONSISTENCY_BSP) /* each push once */
        ck_assert(final[0] == 100.0f * RAW_PARTITIONS - (float)session_counters(NULL).pushes);
}

/* Rank 2 is lost; those who are left do not wait for it, one of them breaks and comes back;
 * somebody takes the place; all end with the same values. */
START_TEST(test_shrink_in_other_modes)
{
    session_terms.consistency = modes[_i];
    session_terms.learning_rate = consistency_steps_each(&modes[_i]) ? 3 : 1;
    set_up(3, WORKER_LOSS_SHRINK);
    play(0, 2, 1);
    for (uint32_t p = 0; p < 2; p++) /* and never reads what comes */
        raw_send_right(&workers[2], CHUNK_PUSH, p, 2, 1);
    session_wait_taken(9 + 2);
    lose(2);
    for (uint64_t round = 2; round <= 4; round++)
        play(0, 1, round);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_right(&workers[1], CHUNK_PUSH, p, 5, 1);
    session_wait_taken(9 + 2 + 18 + 3);
    raw_cut(&workers[1]);
    session_resume(1);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[1], CHUNK_PUSH, p, 5, 1);
    play(0, 0, 5);
    (void)take_answers(1);
    take_place(2, 202);
    play_first(2, 6);
    finish_all();
    session_end();
    close_service();
}
END_TEST

/* The same with a place that the others wait for, where they are not in lockstep: a new one does
 * what is left to do. */
START_TEST(test_wait_in_other_modes)
{
    session_terms.consistency = modes[_i];
    session_terms.learning_rate = consistency_steps_each(&modes[_i]) ? 3 : 1;
    set_up(3, WORKER_LOSS_WAIT);
    play(0, 2, 1);
    for (uint32_t p = 0; p < 2; p++)
        raw_send_right(&workers[2], CHUNK_PUSH, p, 2, 1);
    session_wait_taken(9 + 2);
    lose(2);
    take_place(2, 202);
    play_first(2, 2);
    finish_all();
    session_end();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ who may join */

START_TEST(test_joins_of_a_job_that_runs)
{
    struct join_request request;
    char manifest[] = "seed\t2\nmodel\tmlp\n";

    set_up(2, WORKER_LOSS_WAIT);
    workers[2].rank = 1;
    request = session_request(1);
    request.session = 7;
    check_result("a second one", session_join(&workers[2], &request), STATUS_EXISTS,
                 "job 'raw': rank 1 has joined from");
    request.resume = true;
    check_result("a stranger", session_join(&workers[2], &request), STATUS_PEER_LOST,
                 "its place is another session's since epoch 1");
    request = session_request(1);
    request.resume = true;
    request.manifest = manifest;
    check_result("other terms", session_join(&workers[2], &request), STATUS_MISMATCH, "seed");
    request = session_request(1);
    request.resume = true;
    request.reconnect_ms++;
    check_result("other terms", session_join(&workers[2], &request), STATUS_MISMATCH,
                 "on worker loss");
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
    session_terms.reconnect_ms = AWAY_MS;
    open_service(LONG_MS, NULL);
    session_start(100);
    lose(1);
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

/* A rank's initial values are rank 0's: without it there is nothing to go on with. */
START_TEST(test_rank_0_is_lost_before_its_values_are_here)
{
    session_terms.update = 0;
    session_terms.on_loss = _i == 0 ? WORKER_LOSS_SHRINK : WORKER_LOSS_WAIT;
    session_terms.reconnect_ms = AWAY_MS;
    open_service(LONG_MS, NULL);
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
    raw_send_right(&workers[1], CHUNK_PULL, 0, 0, 0);
    raw_send_right(&workers[0], CHUNK_INIT, 0, 0, 100);
    (void)raw_take(&workers[1], &(float){0});
    raw_cut(&workers[0]);
    check_result("other", raw_wait_closed(&workers[1].stream), STATUS_PEER_LOST,
                 "rank 0 was lost (its connection closed in round 1");
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ silence */

/* Rank 1 stops its beats and sends nothing: cut off, and the others are told how long they may have
 * to wait; then it comes back. */
START_TEST(test_silence)
{
    struct beat beat;
    size_t beats = 0;

    session_terms.heartbeat_timeout_ms = 4000; /* bounds the test's steps, too */
    open_service(LONG_MS, NULL);
    session_start(0.5f);
    for (unsigned i = 0; i < 2; i++) {
        raw_start_attend(&workers[i]);
        raw_beat(&workers[i], "raw", 7);
        beat = raw_wait_beats(&workers[i], 1);
        ck_assert_uint_eq(beat.count, 7);
        ck_assert_uint_eq(beat.epoch, 1);
        ck_assert_uint_eq(beat.waiting_ms, 0);
    }
    for (beats = 1; beat.waiting_ms == 0; beats++) {
        raw_beat(&workers[0], "raw", beats);
        beat = raw_wait_beats(&workers[0], beats + 1);
    }
    ck_assert_uint_gt(beat.waiting_ms, LONG_MS / 2);
    ck_assert_msg(strstr(beat.reason, "rank 1 is away (silent for 4.") != NULL, "%s", beat.reason);
    ck_assert_int_eq(raw_wait_closed(&workers[1].stream).status, STATUS_CANCELLED);
    ck_assert_int_eq(raw_wait_closed(&workers[1].attend).status, STATUS_CANCELLED);
    session_resume(1);
    session_round(1);
    session_end();
    close_service();
}
END_TEST

/* ------------------------------------------------------------------ records */

/* The record of that kind which has this end; NULL: none. */
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

    set_up(2, WORKER_LOSS_WAIT);
    raw_cut(&workers[1]);
    session_wait_cuts(1);
    session_resume(1);
    lose(1);
    take_place(1, 201);
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
    ck_assert_double_ge(json_real_value(json_object_get(record, "recover_ms")), AWAY_MS);
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
    Suite *suite = suite_create("membership");
    TCase *tests = tcase_create("membership");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_fail_names_rank_how_and_how_long);
    tcase_add_test(tests, test_back_to_a_job_that_is_done);
    tcase_add_test(tests, test_shrink_in_the_middle_of_a_round);
    tcase_add_test(tests, test_shrink_without_sessions);
    tcase_add_test(tests, test_shrink_until_nobody_is_left);
    tcase_add_test(tests, test_join_at_a_round);
    tcase_add_test(tests, test_wait_for_a_replacement);
    tcase_add_test(tests, test_a_replacement_that_comes_early);
    tcase_add_test(tests, test_a_replacement_before_the_silence_is_noticed);
    tcase_add_test(tests, test_a_replacement_of_who_never_began);
    tcase_add_test(tests, test_nobody_takes_the_place);
    tcase_add_loop_test(tests, test_shrink_in_other_modes, 0, 3);
    tcase_add_loop_test(tests, test_wait_in_other_modes, 0, 3);
    tcase_add_test(tests, test_joins_of_a_job_that_runs);
    tcase_add_test(tests, test_values_that_are_not_here);
    tcase_add_loop_test(tests, test_rank_0_is_lost_before_its_values_are_here, 0, 2);
    tcase_add_test(tests, test_silence);
    tcase_add_test(tests, test_records);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
