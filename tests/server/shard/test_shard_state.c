/*
 * Shards that continue an earlier job: values, the optimizer's state and the number of its steps
 * are read from one shard and set in another, which then makes the steps that the first one would
 * have made, bit for bit; and so does a third one that applies its mutations.
 */
#include "tests/server/shard/shard_fixture.h"

#define STEPS 7u

static const struct consistency bsp = {.mode = CONSISTENCY_BSP};

struct state {
    float values[FIXTURE_LAST], moments[2][FIXTURE_LAST];
    uint64_t steps;
};

static enum status from_memory(void *user, float *dst, size_t count, struct error *error)
{
    (void)error;
    memcpy(dst, user, count * sizeof(float));
    return STATUS_OK;
}

static struct shard_source source_of(float *values)
{
    return (struct shard_source){.copy = from_memory, .user = values};
}

static struct shard_config make_config(enum optimizer_kind kind, uint64_t steps_before)
{
    struct shard_config config = fixture_config(1, bsp);

    config.optimizer = optimizer_defaults(kind);
    config.optimizer.learning_rate = 0.1;
    config.optimizer.momentum = 0.9;
    config.optimizer.dampening = 0.5;
    config.steps_before = steps_before;
    return config;
}

static void read_state(struct shard *s, struct state *ret)
{
    float *const moments[2] = {ret->moments[0], ret->moments[1]};

    memset(ret, 0, sizeof(*ret));
    assert_ok(shard_read_state(s, 1, ret->values, moments, &ret->steps, &err));
}

static void set_state(struct state *from, bool again)
{
    struct shard_source values = source_of(from->values);
    bool known = false;

    for (unsigned i = 0; i < shard.optimizer.states; i++) {
        struct shard_source moment = source_of(from->moments[i]);

        assert_ok(shard_set_state(&shard, 1, i, &moment, again, &err));
    }
    assert_ok(shard_set(&shard, 1, &values, again, &known, &err));
    ck_assert(known == again);
}

/* Rounds 1 to count of this shard, which are steps from `first` on. */
static void make_steps(uint64_t first, uint64_t count)
{
    (void)fixture_pull(0, 0);
    for (uint64_t round = 1; round <= count; round++) {
        struct shard_reply reply;
        unsigned next = 0;

        (void)fixture_push(0, round, (float)(first + round) * 0.37f, false);
        ck_assert(shard_next_reply(&shard, 1, &next, &reply));
    }
}

static enum status follow(void *user, const struct mutation *record, struct error *error)
{
    bool applied = false;
    enum status status = shard_apply(user, record, NULL, &applied, error);

    ck_assert(status != STATUS_OK || applied);
    if (status == STATUS_OK)
        status = shard_apply(user, record, NULL, &applied, error);
    ck_assert(status != STATUS_OK || !applied);
    return status;
}

static const enum optimizer_kind kinds[] = {OPTIMIZER_SGD, OPTIMIZER_ADAM, OPTIMIZER_ADAMW};

START_TEST(test_continues_an_earlier_job)
{
    static struct state expected, middle, got, copied;
    struct shard copy;
    struct shard_sink sink = {.on_mutation = follow, .user = &copy};
    struct shard_config config = make_config(kinds[_i], 3);

    fixture_open(make_config(kinds[_i], 0));
    fixture_set(1, 5);
    make_steps(0, 3);
    read_state(&shard, &middle);
    ck_assert_uint_eq(middle.steps, 3);
    for (uint64_t round = 4; round <= STEPS; round++) {
        struct shard_reply reply;
        unsigned next = 0;

        (void)fixture_push(0, round, (float)round * 0.37f, false);
        ck_assert(shard_next_reply(&shard, 1, &next, &reply));
    }
    read_state(&shard, &expected);
    fixture_close();

    fixture_open(config);
    assert_ok(shard_init(&copy, &config, &err));
    shard_set_sink(&shard, SHARD_SINK_DISK, &sink);
    set_state(&middle, false);
    set_state(&middle, true);
    make_steps(3, STEPS - 3);
    read_state(&shard, &got);
    read_state(&copy, &copied);
    ck_assert_uint_eq(got.steps, STEPS);
    ck_assert_mem_eq(&got, &expected, sizeof(got));
    ck_assert_mem_eq(&copied, &expected, sizeof(got));
    shard_release(&copy);
    fixture_close();
}
END_TEST

START_TEST(test_refused)
{
    static struct state state;
    struct shard_source source = source_of(state.values);
    float *const moments[2] = {state.moments[0], state.moments[1]};
    struct mutation record = {
        .kind = MUTATION_STATE, .partition = 1, .world_size = 1, .count = FIXTURE_LAST};
    struct shard_config config = make_config(OPTIMIZER_ADAM, 3);
    bool again;

    fixture_open(config);
    assert_fails(shard_read_state(&shard, 1, state.values, moments, &state.steps, &err),
                 STATUS_PROTOCOL, "partition 1 has no values yet");
    assert_fails(shard_read_state(&shard, 2, state.values, moments, &state.steps, &err),
                 STATUS_PROTOCOL, "2");
    assert_fails(shard_set_state(&shard, 1, 2, &source, false, &err), STATUS_PROTOCOL, "state 2");
    assert_ok(shard_set_state(&shard, 1, 1, &source, false, &err));
    assert_fails(shard_set(&shard, 1, &source, false, &again, &err), STATUS_PROTOCOL,
                 "without the optimizer's state after 3 steps");
    record.step = 2;
    assert_fails(shard_apply(&shard, &record, NULL, &again, &err), STATUS_DATA, "kind 4");
    assert_ok(shard_set_state(&shard, 1, 0, &source, false, &err));
    assert_ok(shard_set(&shard, 1, &source, false, &again, &err));
    assert_fails(shard_set_state(&shard, 1, 0, &source, false, &err), STATUS_PROTOCOL,
                 "behind the initial value");
    fixture_close();

    fixture_open(make_config(OPTIMIZER_ADAM, 0));
    assert_fails(shard_set_state(&shard, 1, 0, &source, false, &err), STATUS_PROTOCOL,
                 "none is wanted");
    fixture_close();

    config.update = false;
    fixture_open(config);
    assert_fails(shard_set_state(&shard, 1, 0, &source, false, &err), STATUS_PROTOCOL,
                 "none is wanted");
    fixture_set(1, 1);
    assert_fails(shard_read_state(&shard, 1, state.values, moments, &state.steps, &err),
                 STATUS_UNSUPPORTED, "does not run here");
    fixture_close();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "shard_state", 60,
        LOOP_TEST(test_continues_an_earlier_job, 0, sizeof(kinds) / sizeof(kinds[0])),
        TEST(test_refused));
}
