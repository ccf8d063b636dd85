/*
 * shard_fixture: one shard, and calls on its second partition that check their results.
 */
#include "tests/server/shard/shard_fixture.h"

struct error err;
struct shard_map map;
struct shard shard;

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

struct shard_source fixture_source(float *value)
{
    return (struct shard_source){.copy = numbers_copy, .add = numbers_add, .user = value};
}

struct shard_config fixture_config(unsigned world_size, struct consistency consistency)
{
    struct shard_config config = {.map = &map,
                                  .world_size = world_size,
                                  .update = true,
                                  .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                                  .consistency = consistency};

    config.optimizer.learning_rate = consistency_steps_per_push(&consistency) ? world_size : 1;
    return config;
}

void fixture_open_map(void)
{
    assert_ok(shard_map_make(FIXTURE_FULL + FIXTURE_LAST, PARTITION_BYTES_MIN, 1, &map, &err));
}

void fixture_open(struct shard_config config)
{
    fixture_open_map();
    assert_ok(shard_init(&shard, &config, &err));
}

void fixture_close(void)
{
    shard_release(&shard);
    shard_map_release(&map);
}

void fixture_set(uint32_t partition, float value)
{
    struct shard_source source = fixture_source(&value);
    bool again;

    assert_ok(shard_set(&shard, partition, &source, true, &again, &err));
}

void fixture_start(struct shard_config config)
{
    fixture_open(config);
    for (uint32_t partition = 0; partition < 2; partition++) {
        fixture_set(partition, 100);
        for (unsigned rank = 0; rank < config.world_size; rank++) {
            struct shard_reply reply;

            assert_ok(shard_pull(&shard, partition, rank, 0, false, &reply, &err));
            ck_assert(reply.complete);
        }
    }
}

struct shard_reply fixture_push(unsigned rank, uint64_t round, float value, bool again)
{
    struct shard_source source = fixture_source(&value);
    struct shard_reply reply;

    assert_ok(shard_push(&shard, 1, rank, round, again, &source, &reply, &err));
    return reply;
}

void fixture_refuse_push(unsigned rank, uint64_t round, bool again, const char *why)
{
    float value = 1;
    struct shard_source source = fixture_source(&value);
    struct shard_reply reply;

    assert_fails(shard_push(&shard, 1, rank, round, again, &source, &reply, &err), STATUS_PROTOCOL,
                 why);
}

struct shard_reply fixture_pull(unsigned rank, uint64_t round)
{
    struct shard_reply reply;

    assert_ok(shard_pull(&shard, 1, rank, round, true, &reply, &err));
    return reply;
}

void fixture_check(const struct shard_reply *reply, uint64_t round, float value)
{
    ck_assert_ptr_nonnull(reply->data);
    ck_assert_uint_eq(reply->count, FIXTURE_LAST);
    ck_assert_uint_eq(reply->round, round);
    ck_assert_msg(reply->data[0] == value, "%g, expected %g", (double)reply->data[0],
                  (double)value);
}

void fixture_expect(unsigned mask, uint64_t round, float value)
{
    struct shard_reply reply;
    unsigned answered = 0;

    for (unsigned rank = 0; shard_next_reply(&shard, 1, &rank, &reply); rank++) {
        answered |= 1u << rank;
        fixture_check(&reply, round, value);
    }
    ck_assert_uint_eq(answered, mask);
}

struct shard_reply fixture_vacate(unsigned rank)
{
    struct shard_reply reply;

    assert_ok(shard_vacate(&shard, 1, rank, &reply, &err));
    return reply;
}
