/*
 * A shard's memory: its size, the failure of each allocation, and the refusal of too large a shard.
 */
#include "common/base/memory.h"
#include "server/shard/shard.h"
#include "tests/support/support.h"

#define FULL  (PARTITION_BYTES_MIN / sizeof(float))
#define COUNT (5 * FULL + 77) /* six partitions */

static struct error err;

static struct shard_config adam_of(unsigned world_size)
{
    return (struct shard_config){.world_size = world_size,
                                 .optimizer = optimizer_defaults(OPTIMIZER_ADAM)};
}

START_TEST(test_memory)
{
    struct shard_map map = {0};
    struct shard_config config = adam_of(4);
    struct shard shard = {0};

    assert_ok(shard_map_make(COUNT, FULL * sizeof(float), 8, &map, &err));
    config.map = &map;
    ck_assert_uint_eq(shard_bytes(&config), 2 * FULL * sizeof(float));
    config.update = true;
    config.rank_order = true;
    ck_assert_uint_eq(shard_bytes(&config), (2 + 2 + 2) * FULL * sizeof(float));
    config.optimizer = optimizer_defaults(OPTIMIZER_SGD);
    ck_assert_uint_eq(shard_bytes(&config), (2 + 2) * FULL * sizeof(float));
    config.rank_order = false;
    config.consistency.mode = CONSISTENCY_ASP; /* what each of the four ranks has read */
    ck_assert_uint_eq(shard_bytes(&config), (2 + 4) * FULL * sizeof(float));
    for (size_t n = 1;; n++) {
        enum status status;

        mem_fail_nth(n);
        status = shard_init(&shard, &config, &err);
        mem_fail_nth(0);
        if (status == STATUS_OK) {
            ck_assert_uint_gt(n, 4);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(shard.accumulators[0]);
    }
    shard_release(&shard);
    config.index = 7; /* holds nothing */
    assert_ok(shard_init(&shard, &config, &err));
    ck_assert_uint_eq(shard.length, 0);
    shard_release(&shard);
    shard_map_release(&map);
}
END_TEST

START_TEST(test_a_shard_beyond_this_host_is_refused)
{
    struct shard_map map = {0};
    struct shard_config config = adam_of(2);
    struct shard shard = {0};

    assert_ok(shard_map_make((size_t)1 << 37, PARTITION_BYTES_MAX, 1, &map, &err));
    config.map = &map;
    assert_fails(shard_init(&shard, &config, &err), STATUS_NO_MEMORY, "this host has");
    shard_map_release(&map);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("shard_memory", 0, TEST(test_memory),
                       TEST(test_a_shard_beyond_this_host_is_refused));
}
