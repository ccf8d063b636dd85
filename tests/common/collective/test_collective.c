/*
 * The ring backend through the public interface: ranks that disagree or are missing, and unknown
 * clients. Results and counters are the conformance suite's, deaths and stops test_chaos_loss.c's.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"
#include "common/collective/ring/ring_wire.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- ranks that disagree ---- */

static void count_mismatch_body(struct collective *group, unsigned rank, unsigned size,
                                void *argument)
{
    struct error err = {0};
    float data[200] = {0};
    enum status status;

    (void)size;
    (void)argument;
    assert_ok(collective_barrier(group, &err));
    status = rank == 0 ? collective_all_reduce(group, data, 100, REDUCE_FAST, &err)
                       : collective_broadcast(group, data, 400, 0, &err);
    ck_assert_int_eq(status, STATUS_MISMATCH);
    ck_assert_msg(strstr(err.text, "rank 1 is in broadcast #2 of 400 uint8 from rank 0") ||
                      strstr(err.text, "it is in broadcast #2 of 400 uint8 from rank 0") ||
                      strstr(err.text, "this rank 1 is in broadcast #2 of 400 uint8 from rank 0"),
                  "%s", err.text);
    ck_assert_msg(strstr(err.text, "rank 0 is in all_reduce #2 of 100 float32 (sum)"), "%s",
                  err.text);
    /* The group has failed: every call returns the first error. */
    assert_fails(collective_barrier(group, &err), STATUS_MISMATCH, "failed before: ");
}

START_TEST(different_operations_are_named)
{
    world_run("ring", 2, count_mismatch_body, NULL);
}
END_TEST

static void odd_one_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct error err = {0};
    float data[200] = {0};
    enum status status;

    (void)size;
    (void)argument;
    status = collective_all_reduce(group, data, rank == 1 ? 101 : 100, REDUCE_FAST, &err);
    ck_assert_int_ne(status, STATUS_OK);
    ck_assert_msg(status == STATUS_MISMATCH || status == STATUS_PEER_LOST, "%s", err.text);
    ck_assert_msg(strstr(err.text, "100 float32") && strstr(err.text, "101 float32"), "%s",
                  err.text);
}

START_TEST(the_odd_one_out_of_four_is_seen_by_all)
{
    world_run("ring", 4, odd_one_body, NULL);
}
END_TEST

static void early_leaver_body(struct collective *group, unsigned rank, unsigned size,
                              void *argument)
{
    struct error err = {0};
    float data[4] = {0};

    (void)size;
    (void)argument;
    assert_ok(collective_barrier(group, &err));
    if (rank == 0)
        assert_fails(collective_all_reduce(group, data, 4, REDUCE_FAST, &err), STATUS_MISMATCH,
                     "rank 1 has closed the group, this rank 0 is in all_reduce #2");
}

START_TEST(a_rank_that_leaves_early_is_no_dead_rank)
{
    world_run("ring", 2, early_leaver_body, NULL);
}
END_TEST

/* ---- connecting ---- */

START_TEST(a_rank_that_never_comes_is_named)
{
    struct error err = {0};
    struct store *store = world_store(0, 3, &err);
    struct collective *group;

    ck_assert_msg(store != NULL, "%s", err.text);
    assert_fails(world_open("ring", "alone", 0, 3, store, 100, &group, &err), STATUS_TIMEOUT,
                 "ranks 1, 2 have not published their address");
    store_close(store, 0);
}
END_TEST

START_TEST(unknown_backends_and_ranks_are_refused)
{
    struct error err = {0};
    struct store *store = world_store(0, 1, &err);
    struct collective *group;

    assert_fails(world_open("rink", "x", 0, 1, store, 100, &group, &err), STATUS_CONFIG,
                 "'rink'; this build has ring");
    assert_fails(world_open("ring", "x", 2, 2, store, 100, &group, &err), STATUS_CONFIG, "rank 2");
    assert_fails(world_open("ring", "x", 0, 0, store, 100, &group, &err), STATUS_CONFIG, "size 0");
    store_close(store, 0);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct error err = {0};
    struct store *store = world_store(0, 1, &err);
    struct collective *group = NULL;
    size_t n = 1;

    for (; n < 40 && !group; n++) {
        mem_fail_nth(n);
        if (world_open("ring", "x", 0, 1, store, 100, &group, &err) != STATUS_OK)
            ck_assert_int_eq(err.status, STATUS_NO_MEMORY);
    }
    mem_fail_nth(0);
    ck_assert_uint_gt(n, 3);
    ck_assert_uint_lt(n, 40);
    collective_close(group);
    collective_close(NULL);
    store_close(store, 0);
}
END_TEST

static void *open_and_sum(void *argument)
{
    unsigned rank = *(const unsigned *)argument;
    struct error err = {0};
    struct store *store = world_store(rank, 2, &err);
    struct collective *group = NULL;
    float data[3] = {1, 2, 3};

    assert_ok(world_open("ring", "busy", rank, 2, store, 20000, &group, &err));
    assert_ok(collective_all_reduce(group, data, 3, REDUCE_FAST, &err));
    ck_assert_int_eq((int)data[2], 6);
    collective_close(group);
    store_close(store, 0);
    return NULL;
}

/* Where rank 0 of group "busy" listens. */
static struct endpoint find_listener(struct store *store)
{
    struct error err = {0};
    struct endpoint e = {.port = 0};
    char *text = NULL;
    size_t size;

    assert_ok(store_get(store, "busy/mesh/address/0", 10000, &text, &size, &err));
    assert_ok(endpoint_parse(text, "address", &e, &err));
    free(text);
    return e;
}

/* Unknown clients connect to rank 0 before its neighbour does: silent ones (more than it keeps),
 * one that speaks HTTP, one of another group, one that claims another world size, one that hangs
 * up. */
START_TEST(strangers_do_no_harm)
{
    static const char http[] = "GET /index.html HTTP/1.1\r\nHost: stranger\r\n\r\n";
    struct ring_hello hellos[] = {
        {.group = 1, .rank = 1, .world_size = 2},
        {.group = signature_group_id("busy"), .rank = 1, .world_size = 3},
        {.group = signature_group_id("busy"), .rank = 0, .world_size = 2}};
    unsigned char bytes[RING_HELLO_BYTES];
    unsigned ranks[] = {0, 1};
    struct error err = {0};
    struct store *store = world_store(0, 2, &err);
    struct endpoint e;
    pthread_t threads[2];
    int fds[24];

    ck_assert_int_eq(pthread_create(&threads[0], NULL, open_and_sum, &ranks[0]), 0);
    e = find_listener(store);
    for (size_t i = 0; i < 24; i++)
        assert_ok(net_connect(&e, clock_deadline_ns(10000), &fds[i], &err));
    assert_ok(net_send_all(fds[20], http, sizeof(http), clock_deadline_ns(1000), &err));
    for (size_t i = 0; i < 3; i++) {
        ring_hello_encode(&hellos[i], bytes);
        assert_ok(net_send_all(fds[21 + i], bytes, sizeof(bytes), clock_deadline_ns(1000), &err));
    }
    (void)close(fds[19]);
    ck_assert_int_eq(pthread_create(&threads[1], NULL, open_and_sum, &ranks[1]), 0);
    (void)pthread_join(threads[0], NULL);
    (void)pthread_join(threads[1], NULL);
    for (size_t i = 0; i < 24; i++)
        if (i != 19)
            (void)close(fds[i]);
    store_close(store, 0);
}
END_TEST

START_TEST(bus_factor)
{
    ck_assert_double_eq(collective_bus_factor(COLLECTIVE_ALL_REDUCE, 1), 0);
    ck_assert_double_eq(collective_bus_factor(COLLECTIVE_ALL_REDUCE, 2), 1);
    ck_assert_double_eq(collective_bus_factor(COLLECTIVE_ALL_REDUCE, 4), 1.5);
    ck_assert_str_eq(collective_backends()[0], "ring");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "collective", 240, TEST(different_operations_are_named),
        TEST(the_odd_one_out_of_four_is_seen_by_all),
        TEST(a_rank_that_leaves_early_is_no_dead_rank), TEST(a_rank_that_never_comes_is_named),
        TEST(unknown_backends_and_ranks_are_refused), TEST(every_allocation_may_fail),
        TEST(strangers_do_no_harm), TEST(bus_factor));
}
