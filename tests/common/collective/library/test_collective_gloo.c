/*
 * The gloo backend beside the conformance suite: the formula of its ring, errors instead of
 * exceptions.
 */
#include "tests/common/collective/ring_world.h"

#include <string.h>

#define RANKS_MAX 4

/* Every byte that a rank sends, its left neighbour (Gloo's ring runs that way) receives. */
static void formula_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    uint64_t(*bytes)[2] = argument;

    (void)size;
    collective_expected_bytes(
        group, &(struct collective_args){.call = COLLECTIVE_ALL_REDUCE, .count = 1000003},
        &bytes[rank][0], &bytes[rank][1]);
}

START_TEST(formula_adds_up)
{
    for (unsigned n = 2; n <= RANKS_MAX; n++) {
        uint64_t bytes[RANKS_MAX][2];
        uint64_t sum = 0;

        world_run("gloo", n, formula_body, bytes);
        for (unsigned r = 0; r < n; r++) {
            ck_assert_uint_eq(bytes[(r + 1) % n][0], bytes[r][1]);
            sum += bytes[r][0];
        }
        ck_assert_uint_eq(sum, 2 * (n - 1) * (uint64_t)4 * 1000003);
    }
}
END_TEST

START_TEST(a_rank_that_never_comes_is_an_error)
{
    struct error err = {0};
    struct store *store = world_store(1, 2, &err);
    struct collective *group;

    assert_fails(world_open("gloo", "alone", 1, 2, store, 100, &group, &err), STATUS_TIMEOUT,
                 "rank 0 has not published its address");
    store_close(store, 0);
}
END_TEST

static void leaver_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct error err = {0};
    float data[1000] = {0};
    enum status status;

    (void)size;
    (void)argument;
    assert_ok(collective_barrier(group, &err));
    if (rank == 1)
        return;
    status = collective_all_reduce(group, data, 1000, REDUCE_FAST, &err);
    ck_assert_msg(status == STATUS_MISMATCH && strstr(err.text, "rank 1 has finished early"),
                  "%s: %s", status_name(status), err.text);
}

START_TEST(a_rank_that_leaves_is_an_error)
{
    world_run("gloo", 2, leaver_body, NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("collective_gloo", 240, TEST(formula_adds_up),
                       TEST(a_rank_that_never_comes_is_an_error),
                       TEST(a_rank_that_leaves_is_an_error));
}
