/*
 * Steps of the membership tests on top of session_job.  Partitions have equal elements, so one
 * float per reply is compared.  Failures end the test.  No locks: the workers' calls have their
 * own.
 */
#include "tests/server/service/member_job.h"

#include "tests/support/support.h"

void member_terms(unsigned world_size, enum worker_loss on_loss)
{
    session_terms.world_size = world_size;
    session_terms.on_loss = on_loss;
    session_terms.update = 0;
    session_terms.reconnect_ms = MEMBER_AWAY_MS;
}

void member_start(unsigned world_size, enum worker_loss on_loss)
{
    member_start_away(world_size, on_loss, MEMBER_AWAY_MS);
}

void member_start_away(unsigned world_size, enum worker_loss on_loss, uint32_t away_ms)
{
    member_terms(world_size, on_loss);
    session_terms.reconnect_ms = away_ms;
    open_service(LONG_MS, support_path("run"));
    session_start(100);
}

void member_push(unsigned rank, uint32_t partition, uint64_t round, float gradient)
{
    raw_send_valid(&workers[rank], CHUNK_PUSH, partition, round,
                   gradient / (float)session_terms.world_size);
}

void member_push_all(unsigned rank, uint64_t round, float gradient)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        member_push(rank, p, round, gradient);
}

void member_round(uint64_t round, float gradient_0, float gradient_1, float value)
{
    member_push_all(0, round, gradient_0);
    member_push_all(1, round, gradient_1);
    session_expect_all(0, round, value);
    session_expect_all(1, round, value);
}

void member_lose(unsigned rank)
{
    uint64_t before = session_counters(NULL).lost_ranks;

    raw_disconnect(&workers[rank]);
    session_wait_lost(before + 1);
}

void member_take_place(unsigned rank, uint64_t session)
{
    struct join_request request;

    workers[rank].session = session;
    request = session_request(rank);
    check_result("take", session_join(&workers[rank], &request), STATUS_OK, "");
    raw_start_lanes(&workers[rank]);
}

void member_pull_all(unsigned rank, uint64_t round)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        raw_send_again(&workers[rank], CHUNK_PULL, p, round, 0);
}

void member_expect(unsigned rank, struct member_reply expected, uint32_t odd,
                   struct member_reply expected_odd)
{
    bool seen[RAW_PARTITIONS] = {false};

    for (uint32_t i = 0; i < RAW_PARTITIONS; i++) {
        float value;
        struct chunk_header h = raw_take(&workers[rank], &value);
        const struct member_reply *e = h.partition == odd ? &expected_odd : &expected;

        ck_assert_uint_lt(h.partition, RAW_PARTITIONS);
        ck_assert(!seen[h.partition]);
        seen[h.partition] = true;
        ck_assert_msg(h.round == e->round && value == e->value,
                      "rank %u, partition %u: got round %d, value %g; wanted round %d, value %g",
                      rank, h.partition, (int)h.round, (double)value, (int)e->round,
                      (double)e->value);
    }
}

/* ------------------------------------------------------------------ not in lockstep */

static const struct consistency modes[MEMBER_MODES] = {
    {.mode = CONSISTENCY_ASP},
    {.mode = CONSISTENCY_SSP, .staleness = 1},
    {.mode = CONSISTENCY_BSP, .backup = 1},
};

/* Sum of the first elements of one reply per partition. */
static float take_reply_sum(unsigned rank)
{
    float sum = 0;

    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        float first;

        (void)raw_take(&workers[rank], &first);
        sum += first;
    }
    return sum;
}

void member_take_replies(unsigned rank)
{
    (void)take_reply_sum(rank);
}

void member_start_mode(int mode, enum worker_loss on_loss, uint32_t away_ms)
{
    session_terms.consistency = modes[mode];
    session_terms.learning_rate = consistency_steps_per_push(&modes[mode]) ? 3 : 1;
    member_start_away(3, on_loss, away_ms);
    member_run_round(0, 2, 1);
    for (uint32_t p = 0; p < 2; p++) /* and never reads the replies */
        raw_send_valid(&workers[2], CHUNK_PUSH, p, 2, 1);
    session_wait_taken(3 * RAW_PARTITIONS + 2);
    member_lose(2);
}

void member_run_round(unsigned first, unsigned last, uint64_t round)
{
    for (unsigned i = first; i <= last; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_valid(&workers[i], CHUNK_PUSH, p, round, 1);
    for (unsigned i = first; i <= last; i++)
        member_take_replies(i);
}

static void end_with_equal_values(void)
{
    float final[3];

    for (unsigned i = 0; i < 3; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[i], CHUNK_FINAL, p, 9, 0);
    for (unsigned i = 0; i < 3; i++)
        final[i] = take_reply_sum(i);
    ck_assert(final[0] == final[1] && final[1] == final[2]);
    if (session_terms.consistency.mode != CONSISTENCY_BSP) /* each push is applied once */
        ck_assert(final[0] == 100.0f * RAW_PARTITIONS - (float)session_counters(NULL).pushes);
    session_end();
}

void member_catch_up(uint64_t next)
{
    uint64_t least = UINT64_MAX, most = 0;

    member_pull_all(2, 0);
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
        struct chunk_header h = raw_take(&workers[2], &(float){0});

        least = h.round < least ? h.round : least;
        most = h.round > most ? h.round : most;
    }
    for (uint64_t round = least + 1; round <= most + 1; round++) {
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
            raw_send_again(&workers[2], CHUNK_PUSH, p, round, 1);
        member_run_round(0, 1, next++);
        member_take_replies(2);
    }
    end_with_equal_values();
}
