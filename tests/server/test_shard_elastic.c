/*
 * What a shard does when connections break, ranks go and others come, and what of it outlives the
 * shard.  Whole numbers and steps of 1, so that every value is known by counting.
 */
#include "server/shard.h"

#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FULL (PARTITION_BYTES_MIN / sizeof(float))
#define LAST 77u /* elements of the second partition */

static struct error err;
static struct shard_map map;
static struct shard shard;
static float numbers[FULL];

static enum status numbers_copy(void *user, float *dst, size_t count, struct error *error)
{
    (void)error;
    for (size_t i = 0; i < count; i++)
        dst[i] = *(const float *)user + (float)(i % 3);
    return STATUS_OK;
}

static enum status numbers_add(void *user, float *dst, size_t count, struct error *error)
{
    (void)error;
    for (size_t i = 0; i < count; i++)
        dst[i] += *(const float *)user + (float)(i % 3);
    return STATUS_OK;
}

/* value, value + 1, value + 2, value, ... */
static struct shard_source of(float *value)
{
    return (struct shard_source){.copy = numbers_copy, .add = numbers_add, .user = value};
}

static struct shard_config config_of(unsigned world_size, struct consistency consistency)
{
    struct shard_config config = {.map = &map,
                                  .world_size = world_size,
                                  .update = true,
                                  .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                                  .consistency = consistency};

    config.optimizer.learning_rate = consistency_steps_each(&consistency) ? world_size : 1;
    return config;
}

static const struct consistency bsp = {.mode = CONSISTENCY_BSP};
static const struct consistency backup_1 = {.mode = CONSISTENCY_BSP, .backup = 1};
static const struct consistency ssp_1 = {.mode = CONSISTENCY_SSP, .staleness = 1};
static const struct consistency asp = {.mode = CONSISTENCY_ASP};

static void open_map(void)
{
    assert_ok(shard_map_make(FULL + LAST, PARTITION_BYTES_MIN, 1, &map, &err));
}

static void open_shard(struct shard_config config)
{
    open_map();
    assert_ok(shard_init(&shard, &config, &err));
}

static void close_shard(void)
{
    shard_release(&shard);
    shard_map_release(&map);
}

static void set(uint32_t partition, float value)
{
    struct shard_source source = of(&value);
    bool again;

    assert_ok(shard_set(&shard, partition, &source, true, &again, &err));
}

/* Everybody has the values of round 0: 100. */
static void start(struct shard_config config)
{
    open_shard(config);
    for (uint32_t partition = 0; partition < 2; partition++) {
        set(partition, 100);
        for (unsigned rank = 0; rank < config.world_size; rank++) {
            struct shard_answer answer;

            assert_ok(shard_pull(&shard, partition, rank, 0, false, &answer, &err));
            ck_assert(answer.complete);
        }
    }
}

static struct shard_answer push(unsigned rank, uint64_t round, float value, bool again)
{
    struct shard_source source = of(&value);
    struct shard_answer answer;

    assert_ok(shard_push(&shard, 1, rank, round, again, &source, &answer, &err));
    return answer;
}

static void refuse_push(unsigned rank, uint64_t round, bool again, const char *why)
{
    float value = 1;
    struct shard_source source = of(&value);
    struct shard_answer answer;

    assert_fails(shard_push(&shard, 1, rank, round, again, &source, &answer, &err), STATUS_PROTOCOL,
                 why);
}

static struct shard_answer pull(unsigned rank, uint64_t round)
{
    struct shard_answer answer;

    assert_ok(shard_pull(&shard, 1, rank, round, true, &answer, &err));
    return answer;
}

static void check(const struct shard_answer *answer, uint64_t round, float value)
{
    ck_assert_ptr_nonnull(answer->data);
    ck_assert_uint_eq(answer->count, LAST);
    ck_assert_uint_eq(answer->round, round);
    ck_assert_msg(answer->data[0] == value, "%g, wanted %g", (double)answer->data[0],
                  (double)value);
}

/* Exactly the ranks of the mask are answered. */
static void expect(unsigned mask, uint64_t round, float value)
{
    struct shard_answer answer;
    unsigned answered = 0;

    for (unsigned rank = 0; shard_next_answer(&shard, 1, &rank, &answer); rank++) {
        answered |= 1u << rank;
        check(&answer, round, value);
    }
    ck_assert_uint_eq(answered, mask);
}

static struct shard_answer vacate(unsigned rank)
{
    struct shard_answer answer;

    assert_ok(shard_vacate(&shard, 1, rank, &answer, &err));
    return answer;
}

/* ------------------------------------------------------------------ again */

START_TEST(test_a_push_that_comes_again_is_not_summed_again)
{
    struct shard_answer answer;

    start(config_of(2, bsp));
    answer = push(0, 1, 5, false);
    ck_assert(!answer.complete && !answer.again);
    ck_assert(shard_is_in(&shard, 1, 0, 1) && !shard_is_in(&shard, 1, 1, 1));
    refuse_push(0, 1, false, "came twice");
    answer = push(0, 1, 5, true);
    ck_assert(answer.again && !answer.data && !answer.complete);
    answer = push(1, 1, 2, true); /* which did not come before */
    ck_assert(answer.complete && !answer.again && answer.contributions == 2);
    expect(3, 1, 93);
    answer = push(0, 1, 5, true); /* the answer was lost */
    ck_assert(answer.again && !answer.complete);
    check(&answer, 1, 93);
    expect(0, 0, 0);
    refuse_push(0, 1, false, "is complete");
    refuse_push(0, 3, true, "cannot have begun");
    ck_assert_uint_eq(shard_clock(&shard, 0), 0); /* partition 0 */
    close_shard();
}
END_TEST

START_TEST(test_every_step_is_made_once)
{
    struct shard_answer answer;
    unsigned rank = 0;

    start(config_of(2, ssp_1));
    (void)push(0, 1, 1, false);
    expect(1, 1, 99);
    answer = push(0, 2, 1, false);
    ck_assert(answer.complete);
    expect(0, 0, 0);
    answer = push(0, 2, 1, true);
    ck_assert(answer.again && !answer.data);
    (void)push(1, 1, 10, true); /* which frees rank 0, too */
    ck_assert(shard_next_answer(&shard, 1, &rank, &answer) && rank == 0);
    check(&answer, 2, 88);
    rank = 1;
    ck_assert(shard_next_answer(&shard, 1, &rank, &answer) && rank == 1);
    check(&answer, 1, 88);
    close_shard();
}
END_TEST

/* Whose connection broke is answered when it has asked again, and not before: one question, one
 * answer. */
START_TEST(test_a_broken_connection_is_not_answered_by_itself)
{
    struct shard_answer answer;

    start(config_of(2, bsp));
    (void)push(0, 1, 5, false);
    shard_suspend(&shard, 0);
    (void)push(1, 1, 2, false);
    expect(2, 1, 93);
    answer = push(0, 1, 5, true);
    ck_assert(answer.again);
    check(&answer, 1, 93);
    (void)push(0, 2, 5, false);
    shard_suspend(&shard, 0);
    answer = push(0, 2, 5, true);
    ck_assert(answer.again && !answer.data);
    (void)push(1, 2, 1, false);
    expect(3, 2, 87);
    close_shard();
}
END_TEST

START_TEST(test_sums_are_answered_again)
{
    struct shard_config config = config_of(2, bsp);
    struct shard_answer answer;

    config.update = false;
    start(config);
    for (uint64_t round = 1; round < 4; round++) {
        (void)push(0, round, (float)round, false);
        (void)push(1, round, 10, false);
        expect(3, round, (float)(round + 10));
        answer = push(1, round, 10, true);
        check(&answer, round, (float)(round + 10));
    }
    assert_fails(shard_pull(&shard, 1, 0, 0, true, &answer, &err), STATUS_PROTOCOL,
                 "optimizer runs on the workers");
    assert_ok(shard_vacate(&shard, 1, 1, &answer, &err));
    assert_fails(shard_occupy(&shard, 1, 1, &err), STATUS_UNSUPPORTED, "rank 1 cannot join");
    assert_fails(shard_replace(&shard, 1, 0, &err), STATUS_UNSUPPORTED, "rank 0 cannot join");
    close_shard();
}
END_TEST

START_TEST(test_initial_values_come_again)
{
    struct shard_answer answer;
    float value = 7;
    struct shard_source source = of(&value);
    bool again;

    open_shard(config_of(2, bsp));
    for (int i = 0; i < 2; i++) {
        answer = pull(1, 0);
        ck_assert(answer.again == (i == 1) && !answer.complete);
    }
    assert_ok(shard_set(&shard, 1, &source, false, &again, &err));
    ck_assert(!again);
    value = 8;
    assert_ok(shard_set(&shard, 1, &source, true, &again, &err));
    ck_assert(again);
    answer = pull(1, 0);
    check(&answer, 0, 7);
    close_shard();
}
END_TEST

START_TEST(test_the_end_comes_again)
{
    struct shard_answer answer;

    start(config_of(2, asp));
    assert_ok(shard_finish(&shard, 1, 0, true, false, &answer, &err));
    assert_fails(shard_finish(&shard, 1, 0, true, false, &answer, &err), STATUS_PROTOCOL, "twice");
    assert_ok(shard_finish(&shard, 1, 0, true, true, &answer, &err));
    ck_assert(answer.again);
    expect(0, 0, 0);
    assert_ok(shard_finish(&shard, 1, 1, false, true, &answer, &err));
    expect(1, 0, 100);
    assert_ok(shard_finish(&shard, 1, 0, true, true, &answer, &err));
    expect(1, 0, 100);
    close_shard();
}
END_TEST

/* ------------------------------------------------------------------ ranks go and come */

START_TEST(test_rounds_go_on_without_a_rank)
{
    struct shard_answer answer;

    start(config_of(4, bsp));
    (void)push(0, 1, 1, false);
    (void)push(1, 1, 2, false);
    answer = vacate(2);
    ck_assert(!answer.complete);
    (void)push(3, 1, 3, false);
    expect(0xb, 1, 100 - 8); /* 6 of three are 8 of four */
    refuse_push(2, 1, true, "no longer in the job");
    assert_fails(shard_pull(&shard, 1, 2, 0, true, &answer, &err), STATUS_PROTOCOL,
                 "no longer in the job");
    (void)push(0, 2, 3, false);
    (void)push(1, 2, 3, false);
    answer = vacate(3);
    ck_assert(answer.complete && answer.contributions == 2);
    expect(3, 2, 92 - 12);
    ck_assert(!vacate(3).complete);
    close_shard();
}
END_TEST

/* A contribution of one who left stays, and its sum is not scaled. */
START_TEST(test_what_is_in_stays)
{
    start(config_of(3, bsp));
    (void)push(0, 1, 1, false);
    (void)push(1, 1, 2, false);
    ck_assert(!vacate(1).complete);
    (void)push(2, 1, 4, false);
    expect(1 | 1 << 2, 1, 93);
    close_shard();
}
END_TEST

START_TEST(test_a_newcomer_takes_a_vacant_slot)
{
    struct shard_answer answer;

    start(config_of(2, bsp));
    (void)vacate(1);
    (void)push(0, 1, 1, false);
    expect(1, 1, 98);
    assert_ok(shard_occupy(&shard, 1, 1, &err));
    (void)push(0, 2, 1, false);
    expect(0, 0, 0);
    refuse_push(1, 2, false, "initial values");
    answer = pull(1, 0);
    check(&answer, 1, 98);
    (void)push(1, 2, 3, false);
    expect(3, 2, 94);
    /* The slot's contribution stays; the next newcomer's is not summed on top of it. */
    (void)push(1, 3, 5, false);
    (void)vacate(1);
    assert_ok(shard_occupy(&shard, 1, 1, &err));
    answer = pull(1, 0);
    check(&answer, 2, 94);
    ck_assert(shard_is_in(&shard, 1, 1, 3));
    ck_assert(!push(0, 3, 1, false).complete); /* the newcomer may not have read yet */
    answer = push(1, 3, 7, true);
    ck_assert(answer.again && !answer.data && answer.complete);
    expect(3, 3, 88);
    close_shard();
}
END_TEST

START_TEST(test_a_newcomer_where_each_push_is_a_step)
{
    struct shard_answer answer;

    start(config_of(3, ssp_1));
    (void)vacate(2);
    for (uint64_t round = 1; round < 4; round++) {
        (void)push(0, round, 1, false);
        (void)push(1, round, 1, false);
        expect(3, round, (float)(100 - 2 * (int)round));
    }
    assert_ok(shard_occupy(&shard, 1, 2, &err));
    answer = pull(2, 0);
    check(&answer, 3, 94); /* goes on behind the slowest's round */
    answer = push(2, 3, 1, true);
    check(&answer, 3, 94);
    (void)push(2, 4, 1, false);
    expect(1 << 2, 4, 93);
    close_shard();
}
END_TEST

START_TEST(test_late_values_for_a_newcomer)
{
    struct shard_answer answer;

    start(config_of(3, backup_1));
    (void)vacate(0);
    for (uint64_t round = 1; round < 3; round++) {
        (void)push(1, round, 1, false);
        (void)push(2, round, 1, false);
        expect(6, round, (float)(100 - 2 * (int)round));
    }
    assert_ok(shard_occupy(&shard, 1, 0, &err));
    answer = pull(0, 0);
    check(&answer, 2, 96);
    (void)push(1, 3, 1, false);
    (void)push(2, 3, 1, false);
    expect(6, 3, 94);
    answer = push(0, 3, 1, true);
    ck_assert(answer.late && !answer.again);
    check(&answer, 3, 94);
    close_shard();
}
END_TEST

/* The lost rank's round: it had contributed to partition 1, which is complete, not to partition 0.
 */
START_TEST(test_a_replacement_repeats_the_lost_round)
{
    struct shard_config config = config_of(2, bsp);
    struct shard_answer answer;

    config.previous = true;
    start(config);
    (void)push(0, 1, 1, false);
    (void)push(1, 1, 2, false);
    expect(3, 1, 97);
    assert_ok(shard_replace(&shard, 0, 1, &err));
    assert_ok(shard_replace(&shard, 1, 1, &err));
    answer = pull(1, 0);
    check(&answer, 1, 97);
    answer = pull(1, 1);
    check(&answer, 0, 100);
    answer = pull(1, 2);
    check(&answer, 1, 97);
    assert_fails(shard_pull(&shard, 1, 1, 3, true, &answer, &err), STATUS_PROTOCOL,
                 "asks for round 2, which is not here (round 1 is complete)");
    answer = push(1, 1, 2, true);
    check(&answer, 1, 97);
    (void)push(1, 2, 1, false);
    (void)push(0, 2, 1, false);
    expect(3, 2, 95);
    close_shard();
}
END_TEST

/* Early contributions wait for a lower rank that never comes; a newcomer in a slot that was passed
 * over. */
START_TEST(test_rank_order_passes_over_vacant_slots)
{
    struct shard_config config = config_of(5, bsp);

    config.rank_order = true;
    start(config);
    (void)push(4, 1, 16, false);
    (void)push(3, 1, 8, false);
    (void)vacate(0);
    (void)vacate(1);
    ck_assert_uint_eq(shard.parts[1].summed, 0);
    ck_assert(vacate(2).complete);
    expect(0x18, 1, 100 - 24 * 2.5f);
    (void)push(3, 2, 1, false);
    ck_assert_uint_eq(shard.parts[1].summed, 1); /* nobody below it will come */
    assert_ok(shard_occupy(&shard, 1, 2, &err));
    (void)pull(2, 0);
    (void)push(4, 2, 1, false);
    ck_assert(push(2, 2, 1, false).complete);
    expect(0x1c, 2, 40 - 5);
    close_shard();
}
END_TEST

/* ------------------------------------------------------------------ records */

/* Applies what it is told to another shard, and to a third one everything twice. */
struct follower {
    struct shard shards[2];
    size_t told;
    uint64_t sequence[2];
};

static enum status follow(void *user, const struct shard_record *record, struct error *error)
{
    struct follower *f = user;
    bool applied;
    enum status status;

    ck_assert_uint_eq(record->sequence, ++f->sequence[record->partition]);
    f->told++;
    for (size_t i = 0; i < 2; i++) {
        status = shard_apply(&f->shards[i], record, NULL, &applied, error);
        ck_assert(status != STATUS_OK || applied);
        if (status == STATUS_OK && i == 1 && record->kind != SHARD_RECORD_RANKS) {
            status = shard_apply(&f->shards[i], record, NULL, &applied, error);
            ck_assert(!applied);
        }
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* What answers are made from. */
static const float *answered(const struct shard *s, const struct shard_part *part)
{
    return (s->config.update ? s->values : s->accumulators[part->policy.steps % 2]) + part->offset;
}

/* exact: a copy, else made from records, which do not know of late contributions. */
static void check_ranks(const struct policy *p, const struct policy *q, bool exact)
{
    for (unsigned rank = 0; rank < p->world_size; rank++) {
        const struct policy_rank *a = &p->ranks[rank], *b = &q->ranks[rank];
        bool arrived = !consistency_steps_each(&p->consistency) && a->clock > p->steps;

        ck_assert(a->vacant == b->vacant && a->finished == b->finished);
        if (!arrived && (exact || p->consistency.backup == 0))
            ck_assert_uint_eq(a->clock, b->clock);
        ck_assert_uint_le(b->clock, a->clock);
        ck_assert(!exact || a->seen == b->seen);
    }
}

static void check_same(const struct shard *a, const struct shard *b, bool exact)
{
    size_t bytes = a->count * sizeof(float);

    for (unsigned i = 0; i < a->optimizer.states; i++)
        ck_assert_int_eq(memcmp(a->optimizer.state[i], b->optimizer.state[i], bytes), 0);
    if (a->previous)
        ck_assert_int_eq(memcmp(a->previous, b->previous, bytes), 0);
    for (size_t i = 0; i < a->length; i++) {
        const struct policy *p = &a->parts[i].policy, *q = &b->parts[i].policy;

        ck_assert_uint_eq(p->steps, q->steps);
        ck_assert_uint_eq(p->gone, q->gone);
        ck_assert(p->initialised == q->initialised);
        check_ranks(p, q, exact);
        ck_assert_int_eq(memcmp(answered(a, &a->parts[i]), answered(b, &b->parts[i]),
                                a->parts[i].count * sizeof(float)),
                         0);
    }
}

static void export_all(struct shard *to, struct shard *from)
{
    static float slabs[4][FULL];
    uint64_t clocks[4], seen[4];
    uint8_t flags[4];

    for (uint32_t partition = 0; partition < 2; partition++) {
        struct shard_state state = {.clocks = clocks,
                                    .seen = seen,
                                    .flags = flags,
                                    .values = slabs[0],
                                    .moments = {slabs[1], slabs[2]},
                                    .previous = slabs[3]};

        assert_ok(shard_export(from, partition, &state, &err));
        assert_ok(shard_import(to, partition, &state, &err));
    }
}

static const struct {
    struct consistency consistency;
    bool update, by_staleness;
} recorded[] = {{{.mode = CONSISTENCY_BSP}, true, false},
                {{.mode = CONSISTENCY_BSP}, false, false},
                {{.mode = CONSISTENCY_BSP, .backup = 1}, true, false},
                {{.mode = CONSISTENCY_SSP, .staleness = 1}, true, false},
                {{.mode = CONSISTENCY_ASP}, true, true}};

/* A short job in which ranks leave, come and finish; what follows it is the same all the time. */
START_TEST(test_records_make_the_same_shard)
{
    struct follower f = {.told = 0};
    struct shard_sink sink = {.put = follow, .user = &f};
    struct shard_config config = config_of(3, recorded[_i].consistency);
    struct shard_answer answer;
    struct shard copy;
    bool lockstep = consistency_is_lockstep(&config.consistency);

    config.optimizer = optimizer_defaults(OPTIMIZER_ADAM);
    config.consistency.lr_by_staleness = recorded[_i].by_staleness;
    config.update = recorded[_i].update;
    config.previous = true;
    open_shard(config);
    for (size_t i = 0; i < 2; i++)
        assert_ok(shard_init(&f.shards[i], &config, &err));
    assert_ok(shard_check_recorded(&config, &err));
    shard_set_sink(&shard, &sink);
    set(0, 3);
    set(1, 100);
    for (unsigned rank = 0; rank < 3; rank++)
        (void)pull(rank, 0);
    for (uint64_t round = 1; round < 6; round++) {
        for (unsigned rank = 0; rank < 3; rank++)
            if (!shard.parts[1].policy.ranks[rank].vacant) {
                (void)push(rank, round, (float)(rank + round), true);
                for (unsigned next = 0; shard_next_answer(&shard, 1, &next, &answer); next++)
                    ck_assert_uint_eq(answer.sequence, f.sequence[1]);
                check_same(&shard, &f.shards[0], false);
            }
        if (round == 2)
            (void)vacate(1);
        if (round == 3 && config.update)
            assert_ok(shard_occupy(&shard, 1, 1, &err));
        if (round == 3 && config.update)
            (void)pull(1, 0);
        check_same(&shard, &f.shards[0], false);
    }
    if (!lockstep)
        assert_ok(shard_finish(&shard, 1, 0, true, false, &answer, &err));
    check_same(&shard, &f.shards[0], false);
    check_same(&shard, &f.shards[1], false);
    ck_assert_uint_gt(f.told, 7);
    assert_ok(shard_init(&copy, &config, &err));
    export_all(&copy, &shard);
    check_same(&shard, &copy, true);
    shard_release(&copy);
    for (size_t i = 0; i < 2; i++)
        shard_release(&f.shards[i]);
    close_shard();
}
END_TEST

/* A shard that took over goes on where the other one was: answers that were lost, contributions
 * that only the other one had, ranks that have read from it. */
START_TEST(test_the_follower_goes_on)
{
    struct follower f = {.told = 0};
    struct shard_sink sink = {.put = follow, .user = &f};
    struct shard_answer answer;

    open_shard(config_of(3, bsp));
    for (size_t i = 0; i < 2; i++)
        assert_ok(shard_init(&f.shards[i], &shard.config, &err));
    shard_set_sink(&shard, &sink);
    set(1, 100);
    (void)pull(0, 0);
    (void)pull(1, 0);
    (void)pull(2, 0);
    for (unsigned rank = 0; rank < 3; rank++)
        (void)push(rank, 1, 1, false);
    expect(7, 1, 97);
    (void)push(1, 2, 5, false);
    shard_release(&shard);
    shard_release(&f.shards[1]);
    shard = f.shards[0];
    answer = push(0, 1, 1, true);
    check(&answer, 1, 97);
    ck_assert(!push(1, 2, 5, true).again);
    ck_assert(!push(2, 2, 1, false).complete);
    ck_assert(push(0, 2, 1, false).complete);
    expect(7, 2, 90);
    answer = pull(2, 0);
    check(&answer, 2, 90);
    close_shard();
}
END_TEST

static void refuse_record(struct shard_record record, const char *why)
{
    bool applied;

    assert_fails(shard_apply(&shard, &record, NULL, &applied, &err), STATUS_DATA, why);
}

START_TEST(test_records_that_cannot_be)
{
    const uint64_t clocks[2] = {1, 1}, far[2] = {1, 2};
    const uint8_t flags[2] = {0}, odd[2] = {0, 4};
    struct shard_record good = {.kind = SHARD_RECORD_STEP,
                                .partition = 1,
                                .step = 1,
                                .world_size = 2,
                                .clocks = clocks,
                                .flags = flags,
                                .payload = numbers,
                                .count = LAST};
    struct shard_record bad = good;
    bool applied;

    open_shard(config_of(2, bsp));
    refuse_record(good, "step 1 of partition 1 came where step 0 is the newest");
    set(1, 100);
    bad.step = 2;
    refuse_record(bad, "step 2 of partition 1 came where step 0");
    bad.step = 0;
    refuse_record(bad, "kind 2, step 0");
    bad = good;
    bad.partition = 2;
    refuse_record(bad, "partition 2, not held here");
    bad = good;
    bad.count = FULL;
    refuse_record(bad, "elements");
    bad = good;
    bad.rate = NAN;
    refuse_record(bad, "kind 2");
    bad = good;
    bad.world_size = 3;
    refuse_record(bad, "3 ranks");
    bad = good;
    bad.clocks = far;
    refuse_record(bad, "clocks or flags");
    bad = good;
    bad.flags = odd;
    refuse_record(bad, "clocks or flags");
    bad = good;
    bad.kind = SHARD_RECORD_RANKS;
    bad.count = 0;
    refuse_record(bad, "step 1 of partition 1 came where");
    assert_ok(shard_apply(&shard, &good, NULL, &applied, &err));
    ck_assert(applied);
    close_shard();
}
END_TEST

static enum status refuse_all(void *user, const struct shard_record *record, struct error *error)
{
    (void)user;
    return error_set(error, STATUS_IO, "no room for kind %d", (int)record->kind);
}

START_TEST(test_a_sink_that_fails)
{
    const struct shard_sink sink = {.put = refuse_all};
    struct shard_answer answer;
    float value = 1;
    struct shard_source source = of(&value);
    bool again;

    start(config_of(1, asp));
    shard_set_sink(&shard, &sink);
    assert_fails(shard_push(&shard, 1, 0, 1, false, &source, &answer, &err), STATUS_IO,
                 "no room for kind 2");
    assert_fails(shard_finish(&shard, 1, 0, false, false, &answer, &err), STATUS_IO,
                 "no room for kind 3");
    close_shard();
    open_shard(config_of(1, asp));
    shard_set_sink(&shard, &sink);
    assert_fails(shard_set(&shard, 1, &source, false, &again, &err), STATUS_IO, "kind 1");
    assert_fails(shard_vacate(&shard, 1, 0, &answer, &err), STATUS_IO, "kind 3");
    assert_fails(shard_occupy(&shard, 1, 0, &err), STATUS_IO, "kind 3");
    close_shard();
}
END_TEST

START_TEST(test_what_cannot_be_recorded)
{
    const struct exact_staleness rule = {.first = 1, .last = 2};
    struct shard_config config = config_of(1, asp);

    open_map();
    config.rules = &rule;
    config.rule_count = 1;
    assert_fails(shard_check_recorded(&config, &err), STATUS_UNSUPPORTED, "exact staleness");
    config.rule_count = 0;
    config.consistency.delay_compensation = 0.5;
    assert_fails(shard_check_recorded(&config, &err), STATUS_UNSUPPORTED, "delay compensation");
    shard_map_release(&map);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shard_elastic");
    TCase *tests = tcase_create("shard_elastic");

    tcase_add_test(tests, test_a_push_that_comes_again_is_not_summed_again);
    tcase_add_test(tests, test_every_step_is_made_once);
    tcase_add_test(tests, test_a_broken_connection_is_not_answered_by_itself);
    tcase_add_test(tests, test_sums_are_answered_again);
    tcase_add_test(tests, test_initial_values_come_again);
    tcase_add_test(tests, test_the_end_comes_again);
    tcase_add_test(tests, test_rounds_go_on_without_a_rank);
    tcase_add_test(tests, test_what_is_in_stays);
    tcase_add_test(tests, test_a_newcomer_takes_a_vacant_slot);
    tcase_add_test(tests, test_a_newcomer_where_each_push_is_a_step);
    tcase_add_test(tests, test_late_values_for_a_newcomer);
    tcase_add_test(tests, test_a_replacement_repeats_the_lost_round);
    tcase_add_test(tests, test_rank_order_passes_over_vacant_slots);
    tcase_add_loop_test(tests, test_records_make_the_same_shard, 0,
                        (int)(sizeof(recorded) / sizeof(recorded[0])));
    tcase_add_test(tests, test_the_follower_goes_on);
    tcase_add_test(tests, test_records_that_cannot_be);
    tcase_add_test(tests, test_a_sink_that_fails);
    tcase_add_test(tests, test_what_cannot_be_recorded);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
