/* What of a shard outlives it: its records, applied elsewhere, and copies of its partitions. */
#include "tests/server/shard/shard_bench.h"

#include <math.h>

static const struct consistency bsp = {.mode = CONSISTENCY_BSP};
static const struct consistency asp = {.mode = CONSISTENCY_ASP};

/* Applies what it is told to another shard, and to a third one everything twice. */
struct follower {
    struct shard shards[2];
    size_t told;
    uint64_t sequence[2];
};

static enum status follow(void *user, const struct mutation *record, struct error *error)
{
    struct follower *f = user;
    bool applied;
    enum status status;

    ck_assert_uint_eq(record->sequence, ++f->sequence[record->partition]);
    f->told++;
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
    static float slabs[4][BENCH_FULL];
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
    struct shard_config config = bench_config(3, recorded[_i].consistency);
    struct shard_reply answer;
    struct shard copy;
    bool lockstep = consistency_is_lockstep(&config.consistency);

    config.optimizer = optimizer_defaults(OPTIMIZER_ADAM);
    config.consistency.lr_by_staleness = recorded[_i].by_staleness;
    config.update = recorded[_i].update;
    config.previous = true;
    bench_open(config);
    for (size_t i = 0; i < 2; i++)
        assert_ok(shard_init(&f.shards[i], &config, &err));
    assert_ok(shard_check_recorded(&config, &err));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    bench_set(0, 3);
    bench_set(1, 100);
    for (unsigned rank = 0; rank < 3; rank++)
        (void)bench_pull(rank, 0);
    for (uint64_t round = 1; round < 6; round++) {
        for (unsigned rank = 0; rank < 3; rank++)
            if (!shard.parts[1].policy.ranks[rank].vacant) {
                (void)bench_push(rank, round, (float)(rank + round), true);
                for (unsigned next = 0; shard_next_reply(&shard, 1, &next, &answer); next++)
                    ck_assert_uint_eq(answer.sequence, f.sequence[1]);
                check_same(&shard, &f.shards[0], false);
            }
        if (round == 2)
            (void)bench_vacate(1);
        if (round == 3 && config.update)
            assert_ok(shard_occupy(&shard, 1, 1, &err));
        if (round == 3 && config.update)
            (void)bench_pull(1, 0);
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
    bench_close();
}
END_TEST

/* A shard that took over goes on where the other one was: answers that were lost, contributions
 * that only the other one had, ranks that have read from it. */
START_TEST(test_the_follower_goes_on)
{
    struct follower f = {.told = 0};
    struct shard_sink sink = {.put = follow, .user = &f};
    struct shard_reply answer;

    bench_open(bench_config(3, bsp));
    for (size_t i = 0; i < 2; i++)
        assert_ok(shard_init(&f.shards[i], &shard.config, &err));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    bench_set(1, 100);
    (void)bench_pull(0, 0);
    (void)bench_pull(1, 0);
    (void)bench_pull(2, 0);
    for (unsigned rank = 0; rank < 3; rank++)
        (void)bench_push(rank, 1, 1, false);
    bench_expect(7, 1, 97);
    (void)bench_push(1, 2, 5, false);
    shard_release(&shard);
    shard_release(&f.shards[1]);
    shard = f.shards[0];
    answer = bench_push(0, 1, 1, true);
    bench_check(&answer, 1, 97);
    ck_assert(!bench_push(1, 2, 5, true).again);
    ck_assert(!bench_push(2, 2, 1, false).complete);
    ck_assert(bench_push(0, 2, 1, false).complete);
    bench_expect(7, 2, 90);
    answer = bench_pull(2, 0);
    bench_check(&answer, 2, 90);
    bench_close();
}
END_TEST

static void refuse_record(struct mutation record, const char *why)
{
    bool applied;

    assert_fails(shard_apply(&shard, &record, NULL, &applied, &err), STATUS_DATA, why);
}

START_TEST(test_records_that_cannot_be)
{
    const uint64_t clocks[2] = {1, 1}, far[2] = {1, 2};
    const uint8_t flags[2] = {0}, odd[2] = {0, 4};
    const float values[BENCH_LAST] = {0};
    struct mutation good = {.kind = MUTATION_STEP,
                            .partition = 1,
                            .step = 1,
                            .world_size = 2,
                            .clocks = clocks,
                            .flags = flags,
                            .payload = values,
                            .count = BENCH_LAST};
    struct mutation bad = good;
    bool applied;

    bench_open(bench_config(2, bsp));
    refuse_record(good, "step 1 of partition 1 came where step 0 is the newest");
    bench_set(1, 100);
    bad.step = 2;
    refuse_record(bad, "step 2 of partition 1 came where step 0");
    bad.step = 0;
    refuse_record(bad, "kind 2, step 0");
    bad = good;
    bad.partition = 2;
    refuse_record(bad, "partition 2, not held here");
    bad = good;
    bad.count = BENCH_FULL;
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
    bench_close();
}
END_TEST

static enum status refuse_all(void *user, const struct mutation *record, struct error *error)
{
    (void)user;
    return error_set(error, STATUS_IO, "no room for kind %d", (int)record->kind);
}

START_TEST(test_a_sink_that_fails)
{
    const struct shard_sink sink = {.put = refuse_all};
    struct shard_reply answer;
    float value = 1;
    struct shard_source source = bench_source(&value);
    bool again;

    bench_start(bench_config(1, asp));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    assert_fails(shard_push(&shard, 1, 0, 1, false, &source, &answer, &err), STATUS_IO,
                 "no room for kind 2");
    assert_fails(shard_finish(&shard, 1, 0, false, false, &answer, &err), STATUS_IO,
                 "no room for kind 3");
    bench_close();
    bench_open(bench_config(1, asp));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    assert_fails(shard_set(&shard, 1, &source, false, &again, &err), STATUS_IO, "kind 1");
    assert_fails(shard_vacate(&shard, 1, 0, &answer, &err), STATUS_IO, "kind 3");
    assert_fails(shard_occupy(&shard, 1, 0, &err), STATUS_IO, "kind 3");
    bench_close();
}
END_TEST

static enum status count_records(void *user, const struct mutation *record, struct error *error)
{
    (void)record;
    (void)error;
    ++*(size_t *)user;
    return STATUS_OK;
}

/* Whoever did it again would fail, too: a server that is started again could not go on. */
START_TEST(test_a_step_that_cannot_be_told)
{
    size_t told = 0;
    const struct shard_sink sink = {.put = count_records, .user = &told};
    struct shard_config config = bench_config(1, bsp);
    struct shard_reply answer;
    float value = 1;
    struct shard_source source = bench_source(&value);

    config.update = _i == 1;
    config.compression.down.kind = CODEC_ONE_BIT;
    bench_start(config);
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    assert_ok(shard_push(&shard, 1, 0, 1, false, &source, &answer, &err));
    ck_assert_uint_eq(told, 1);
    ck_assert(shard_next_reply(&shard, 1, &(unsigned){0}, &answer));
    value = NAN;
    assert_fails(shard_push(&shard, 1, 0, 2, false, &source, &answer, &err), STATUS_DATA, "");
    ck_assert_uint_eq(told, 1);
    assert_fails(shard_push(&shard, 1, 0, 2, true, &source, &answer, &err), STATUS_CANCELLED, "");
    bench_close();
}
END_TEST

START_TEST(test_what_cannot_be_recorded)
{
    const struct exact_staleness rule = {.first = 1, .last = 2};
    struct shard_config config = bench_config(1, asp);

    bench_open_map();
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
    Suite *suite = suite_create("mutation");
    TCase *tests = tcase_create("mutation");

    tcase_add_loop_test(tests, test_records_make_the_same_shard, 0,
                        (int)(sizeof(recorded) / sizeof(recorded[0])));
    tcase_add_test(tests, test_the_follower_goes_on);
    tcase_add_test(tests, test_records_that_cannot_be);
    tcase_add_test(tests, test_a_sink_that_fails);
    tcase_add_loop_test(tests, test_a_step_that_cannot_be_told, 0, 2);
    tcase_add_test(tests, test_what_cannot_be_recorded);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
