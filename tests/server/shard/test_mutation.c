/*
 * The state that outlives a shard: its mutations, applied to other shards, and exported partitions.
 */
#include "tests/server/shard/shard_fixture.h"

#include <math.h>

static const struct consistency bsp = {.mode = CONSISTENCY_BSP};
static const struct consistency asp = {.mode = CONSISTENCY_ASP};

/* Applies each mutation to one other shard, and to a second one twice. */
struct follower {
    struct shard shards[2];
    size_t count;
    uint64_t sequence[2];
};

static enum status follow(void *user, const struct mutation *record, struct error *error)
{
    struct follower *f = user;
    bool applied;
    enum status status;

    ck_assert_uint_eq(record->sequence, ++f->sequence[record->partition]);
    f->count++;
    for (size_t i = 0; i < 2; i++) {
        status = shard_apply(&f->shards[i], record, NULL, &applied, error);
        ck_assert(status != STATUS_OK || applied);
        if (status == STATUS_OK && i == 1 && record->kind != MUTATION_RANKS) {
            status = shard_apply(&f->shards[i], record, NULL, &applied, error);
            ck_assert(!applied);
        }
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* The data that replies are made from. */
static const float *answered(const struct shard *s, const struct shard_part *part)
{
    return (s->config.update ? s->values : s->accumulators[part->policy.steps % 2]) + part->offset;
}

/* exact: q was imported; else it was made from mutations, which omit late contributions. */
static void check_ranks(const struct policy *p, const struct policy *q, bool exact)
{
    for (unsigned rank = 0; rank < p->world_size; rank++) {
        const struct policy_rank *a = &p->ranks[rank], *b = &q->ranks[rank];
        bool arrived = !consistency_steps_per_push(&p->consistency) && a->clock > p->steps;

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
        ck_assert_uint_eq(p->inactive, q->inactive);
        ck_assert(p->initialised == q->initialised);
        check_ranks(p, q, exact);
        ck_assert_int_eq(memcmp(answered(a, &a->parts[i]), answered(b, &b->parts[i]),
                                a->parts[i].count * sizeof(float)),
                         0);
    }
}

static void export_all(struct shard *to, struct shard *from)
{
    static float slabs[4][FIXTURE_FULL];
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

/* A short job in which ranks leave, join and finish; the followers are equal at all times. */
START_TEST(test_mutations_reproduce_the_shard)
{
    struct follower f = {.count = 0};
    struct shard_sink sink = {.on_mutation = follow, .user = &f};
    struct shard_config config = fixture_config(3, recorded[_i].consistency);
    struct shard_reply reply;
    struct shard copy;
    bool lockstep = consistency_is_lockstep(&config.consistency);

    config.optimizer = optimizer_defaults(OPTIMIZER_ADAM);
    config.consistency.lr_by_staleness = recorded[_i].by_staleness;
    config.update = recorded[_i].update;
    config.previous = true;
    fixture_open(config);
    for (size_t i = 0; i < 2; i++)
        assert_ok(shard_init(&f.shards[i], &config, &err));
    assert_ok(shard_check_recorded(&config, &err));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    fixture_set(0, 3);
    fixture_set(1, 100);
    for (unsigned rank = 0; rank < 3; rank++)
        (void)fixture_pull(rank, 0);
    for (uint64_t round = 1; round < 6; round++) {
        for (unsigned rank = 0; rank < 3; rank++)
            if (!shard.parts[1].policy.ranks[rank].vacant) {
                (void)fixture_push(rank, round, (float)(rank + round), true);
                for (unsigned next = 0; shard_next_reply(&shard, 1, &next, &reply); next++)
                    ck_assert_uint_eq(reply.sequence, f.sequence[1]);
                check_same(&shard, &f.shards[0], false);
            }
        if (round == 2)
            (void)fixture_vacate(1);
        if (round == 3 && config.update)
            assert_ok(shard_occupy(&shard, 1, 1, &err));
        if (round == 3 && config.update)
            (void)fixture_pull(1, 0);
        check_same(&shard, &f.shards[0], false);
    }
    if (!lockstep)
        assert_ok(shard_finish(&shard, 1, 0, true, false, &reply, &err));
    check_same(&shard, &f.shards[0], false);
    check_same(&shard, &f.shards[1], false);
    ck_assert_uint_gt(f.count, 7);
    assert_ok(shard_init(&copy, &config, &err));
    export_all(&copy, &shard);
    check_same(&shard, &copy, true);
    shard_release(&copy);
    for (size_t i = 0; i < 2; i++)
        shard_release(&f.shards[i]);
    fixture_close();
}
END_TEST

/* A follower takes over: replies were lost, contributions to the round under way are gone, and
 * ranks have read from the first shard. */
START_TEST(test_the_follower_continues)
{
    struct follower f = {.count = 0};
    struct shard_sink sink = {.on_mutation = follow, .user = &f};
    struct shard_reply reply;

    fixture_open(fixture_config(3, bsp));
    for (size_t i = 0; i < 2; i++)
        assert_ok(shard_init(&f.shards[i], &shard.config, &err));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    fixture_set(1, 100);
    (void)fixture_pull(0, 0);
    (void)fixture_pull(1, 0);
    (void)fixture_pull(2, 0);
    for (unsigned rank = 0; rank < 3; rank++)
        (void)fixture_push(rank, 1, 1, false);
    fixture_expect(7, 1, 97);
    (void)fixture_push(1, 2, 5, false);
    shard_release(&shard);
    shard_release(&f.shards[1]);
    shard = f.shards[0];
    reply = fixture_push(0, 1, 1, true);
    fixture_check(&reply, 1, 97);
    ck_assert(!fixture_push(1, 2, 5, true).again);
    ck_assert(!fixture_push(2, 2, 1, false).complete);
    ck_assert(fixture_push(0, 2, 1, false).complete);
    fixture_expect(7, 2, 90);
    reply = fixture_pull(2, 0);
    fixture_check(&reply, 2, 90);
    fixture_close();
}
END_TEST

static void refuse_record(struct mutation record, const char *why)
{
    bool applied;

    assert_fails(shard_apply(&shard, &record, NULL, &applied, &err), STATUS_DATA, why);
}

START_TEST(test_invalid_mutations)
{
    const uint64_t clocks[2] = {1, 1}, far[2] = {1, 2};
    const uint8_t flags[2] = {0}, odd[2] = {0, 4};
    const float values[FIXTURE_LAST] = {0};
    struct mutation good = {.kind = MUTATION_STEP,
                            .partition = 1,
                            .step = 1,
                            .world_size = 2,
                            .clocks = clocks,
                            .flags = flags,
                            .payload = values,
                            .count = FIXTURE_LAST};
    struct mutation bad = good;
    bool applied;

    fixture_open(fixture_config(2, bsp));
    refuse_record(good, "step 1 of partition 1 came where step 0 is the newest");
    fixture_set(1, 100);
    bad.step = 2;
    refuse_record(bad, "step 2 of partition 1 came where step 0");
    bad.step = 0;
    refuse_record(bad, "kind 2, step 0");
    bad = good;
    bad.partition = 2;
    refuse_record(bad, "partition 2, not held here");
    bad = good;
    bad.count = FIXTURE_FULL;
    refuse_record(bad, "elements");
    bad = good;
    bad.rate = (double)NAN;
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
    bad.kind = MUTATION_RANKS;
    bad.count = 0;
    refuse_record(bad, "step 1 of partition 1 came where");
    assert_ok(shard_apply(&shard, &good, NULL, &applied, &err));
    ck_assert(applied);
    fixture_close();
}
END_TEST

static enum status refuse_all(void *user, const struct mutation *record, struct error *error)
{
    (void)user;
    return error_set(error, STATUS_IO, "no room for kind %d", (int)record->kind);
}

START_TEST(test_a_sink_that_fails)
{
    const struct shard_sink sink = {.on_mutation = refuse_all};
    struct shard_reply reply;
    float value = 1;
    struct shard_source source = fixture_source(&value);
    bool again;

    fixture_start(fixture_config(1, asp));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    assert_fails(shard_push(&shard, 1, 0, 1, false, &source, &reply, &err), STATUS_IO,
                 "no room for kind 2");
    assert_fails(shard_finish(&shard, 1, 0, false, false, &reply, &err), STATUS_IO,
                 "no room for kind 3");
    fixture_close();
    fixture_open(fixture_config(1, asp));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    assert_fails(shard_set(&shard, 1, &source, false, &again, &err), STATUS_IO, "kind 1");
    assert_fails(shard_vacate(&shard, 1, 0, &reply, &err), STATUS_IO, "kind 3");
    assert_fails(shard_occupy(&shard, 1, 0, &err), STATUS_IO, "kind 3");
    fixture_close();
}
END_TEST

static enum status count_records(void *user, const struct mutation *record, struct error *error)
{
    (void)record;
    (void)error;
    ++*(size_t *)user;
    return STATUS_OK;
}

/* A step whose reply cannot be encoded is not emitted: a restarted server would fail on it, too. */
START_TEST(test_a_step_that_cannot_be_encoded)
{
    size_t count = 0;
    const struct shard_sink sink = {.on_mutation = count_records, .user = &count};
    struct shard_config config = fixture_config(1, bsp);
    struct shard_reply reply;
    float value = 1;
    struct shard_source source = fixture_source(&value);

    config.update = _i == 1;
    config.compression.down.kind = CODEC_ONE_BIT;
    fixture_start(config);
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    assert_ok(shard_push(&shard, 1, 0, 1, false, &source, &reply, &err));
    ck_assert_uint_eq(count, 1);
    ck_assert(shard_next_reply(&shard, 1, &(unsigned){0}, &reply));
    value = NAN;
    assert_fails(shard_push(&shard, 1, 0, 2, false, &source, &reply, &err), STATUS_DATA, "");
    ck_assert_uint_eq(count, 1);
    assert_fails(shard_push(&shard, 1, 0, 2, true, &source, &reply, &err), STATUS_CANCELLED, "");
    fixture_close();
}
END_TEST

START_TEST(test_what_cannot_be_recorded)
{
    const struct exact_staleness rule = {.first = 1, .last = 2};
    struct shard_config config = fixture_config(1, asp);

    fixture_open_map();
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
    return SUPPORT_RUN(
        "mutation", 0,
        LOOP_TEST(test_mutations_reproduce_the_shard, 0, sizeof(recorded) / sizeof(recorded[0])),
        TEST(test_the_follower_continues), TEST(test_invalid_mutations),
        TEST(test_a_sink_that_fails), LOOP_TEST(test_a_step_that_cannot_be_encoded, 0, 2),
        TEST(test_what_cannot_be_recorded));
}
