/*
 * Groups of some ranks: pairs at once, one rank alone, all of them, groups of groups, on every
 * backend that threads of one process can use.
 */
#include "tests/common/collective/ring_world.h"

#include <string.h>

static const char *backends[16];
static int backend_count;

static void expect_sum(struct collective *group, unsigned world_rank, float sum)
{
    struct error err = {0};
    float data[1003];

    for (size_t i = 0; i < 1003; i++)
        data[i] = (float)(world_rank + 1) * (float)(i % 7);
    assert_ok(collective_all_reduce(group, data, 1003, REDUCE_FAST, &err));
    for (size_t i = 0; i < 1003; i++)
        ck_assert_msg((int)data[i] == (int)(sum * (float)(i % 7)), "element %zu is %f", i,
                      (double)data[i]);
}

/* Ranks 0 and 2, ranks 1 and 3: two groups with one name, used at the same time. */
static void pairs_body(struct collective *world, unsigned rank, unsigned size, void *argument)
{
    const unsigned even[] = {0, 2};
    const unsigned odd[] = {1, 3};
    struct error err = {0};
    struct collective *mine = NULL;
    struct collective *other = NULL;

    (void)size;
    (void)argument;
    assert_ok(collective_new_group(world, even, 2, "even", rank % 2 ? &other : &mine, &err));
    assert_ok(collective_new_group(world, odd, 2, "odd", rank % 2 ? &mine : &other, &err));
    ck_assert_ptr_nonnull(mine);
    ck_assert_ptr_null(other);
    ck_assert_uint_eq(collective_world_size(mine), 2);
    ck_assert_uint_eq(collective_rank(mine), rank / 2);
    ck_assert_uint_eq(collective_world_rank(mine, 1), 2 + rank % 2);
    ck_assert_str_eq(collective_backend(mine), collective_backend(world));
    for (int round = 0; round < 5; round++) {
        expect_sum(mine, rank, rank % 2 ? 2 + 4 : 1 + 3);
        expect_sum(world, rank, 1 + 2 + 3 + 4);
    }
    collective_close(mine);
    expect_sum(world, rank, 1 + 2 + 3 + 4);
}

START_TEST(pairs_at_once)
{
    world_run(backends[_i], 4, pairs_body, NULL);
}
END_TEST

/* A group of one, a group of all but one, and a group of that group. */
static void nested_body(struct collective *world, unsigned rank, unsigned size, void *argument)
{
    const unsigned alone[] = {1};
    const unsigned last[] = {1, 2};
    struct error err = {0};
    struct collective *one = NULL;
    struct collective *some = NULL;
    struct collective *few = NULL;

    (void)size;
    (void)argument;
    assert_ok(collective_new_group(world, alone, 1, "one", &one, &err));
    ck_assert_int_eq(one != NULL, rank == 1);
    if (one)
        expect_sum(one, rank, 2);
    collective_close(one);
    assert_ok(collective_new_group(world, last, 2, "some", &some, &err));
    ck_assert_int_eq(some != NULL, rank >= 1);
    if (some) {
        const unsigned second[] = {1};

        expect_sum(some, rank, 2 + 3);
        assert_ok(collective_new_group(some, second, 1, "few", &few, &err));
        ck_assert_int_eq(few != NULL, rank == 2);
        if (few)
            ck_assert_uint_eq(collective_world_rank(few, 0), 2);
        collective_close(few);
    }
    collective_close(some);
    assert_ok(collective_barrier(world, &err));
}

START_TEST(groups_of_groups)
{
    world_run(backends[_i], 3, nested_body, NULL);
}
END_TEST

static void refusals_body(struct collective *world, unsigned rank, unsigned size, void *argument)
{
    const unsigned twice[] = {0, 0};
    const unsigned down[] = {1, 0};
    const unsigned far[] = {0, 2};
    struct error err = {0};
    struct collective *group = NULL;

    (void)rank;
    (void)size;
    (void)argument;
    assert_fails(collective_new_group(world, twice, 2, "twice", &group, &err), STATUS_INVALID,
                 "do not ascend");
    assert_fails(collective_new_group(world, down, 2, "down", &group, &err), STATUS_INVALID,
                 "do not ascend");
    assert_fails(collective_new_group(world, far, 2, "far", &group, &err), STATUS_INVALID,
                 "rank 2 is not in group");
    assert_fails(collective_new_group(world, far, 0, "none", &group, &err), STATUS_INVALID,
                 "has no ranks");
    ck_assert_ptr_null(group);
    assert_ok(collective_barrier(world, &err));
}

START_TEST(wrong_lists_are_refused)
{
    world_run(backends[_i], 2, refusals_body, NULL);
}
END_TEST

int main(void)
{
    for (const char *const *name = collective_backends(); *name; name++)
        if (world_on_threads(*name))
            backends[backend_count++] = *name;
    return SUPPORT_RUN("groups", 240, LOOP_TEST(pairs_at_once, 0, backend_count),
                       LOOP_TEST(groups_of_groups, 0, backend_count),
                       LOOP_TEST(wrong_lists_are_refused, 0, backend_count));
}
