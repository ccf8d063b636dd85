/*
 * The shm backend beside the conformance suite, what it alone has to show: registered memory, every
 * way an operation can go, and driven by polling alone.
 *
 * Ranks that are threads map one arena at different addresses, so ThreadSanitizer does not see the
 * order between them: under it these tests prove what surrounds the arena (groups, mesh, tickets,
 * regions of the heap).  What the flags order is shown by the values that come out.
 */
#include "tests/common/collective/ring_world.h"

#include "common/base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#define RANKS 5

/* ---- where buffers lie ---- */

#define REGION_BYTES ((size_t)12 << 20)

/* A rank's region, and a heap of the same size for what is not registered. */
struct places {
    struct shared_memory region;
    unsigned char *heap;
};

static struct places open_places(struct collective *group)
{
    struct error err = {0};
    struct places p = {.region = SHARED_MEMORY_NONE, .heap = calloc(1, REGION_BYTES)};

    ck_assert_ptr_nonnull(p.heap);
    assert_ok(shared_memory_open(REGION_BYTES, "test", &p.region, &err));
    assert_ok(collective_register(group, &p.region, &err));
    return p;
}

static void close_places(struct places *p)
{
    free(p->heap);
    shared_memory_release(&p->region);
}

static int32_t value_of(unsigned rank, size_t i)
{
    return (int32_t)((unsigned)i * 7 + rank * 1000003u + (unsigned)(i >> 9));
}

static int32_t sum_of(unsigned size, size_t i)
{
    int32_t sum = 0;

    for (unsigned r = 0; r < size; r++)
        sum += value_of(r, i);
    return sum;
}

/* The sums of `count` elements from input to output, once; elements around the output stay. */
static void check_sum(struct collective *group, int32_t *input, int32_t *output, size_t count)
{
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .dtype = DTYPE_INT32,
                                   .input = input,
                                   .output = output,
                                   .count = count};
    unsigned rank = collective_rank(group);
    struct error err = {0};
    size_t wrong = 0;

    output[-1] = output[count] = 77;
    for (size_t i = 0; i < count; i++)
        input[i] = value_of(rank, i);
    assert_ok(collective_run(group, &args, &err));
    for (size_t i = 0; i < count; i++) {
        wrong += output[i] != sum_of(collective_world_size(group), i);
        wrong += input != output && input[i] != value_of(rank, i);
    }
    ck_assert_msg(wrong == 0, "%zu of %zu wrong", wrong, count);
    ck_assert_int_eq(output[-1], 77);
    ck_assert_int_eq(output[count], 77);
}

static const size_t sum_counts[] = {0, 1, 3, 4, 5, 67, 8191, 8192, 8193, 131071, 131072, 524309};

/* Registered on all ranks at offsets of their own, on some ranks, and on none. */
static void places_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct places p = open_places(group);

    (void)size;
    (void)argument;
    for (size_t k = 0; k < sizeof(sum_counts) / sizeof(sum_counts[0]); k++) {
        size_t count = sum_counts[k];
        int32_t *inside = (int32_t *)p.region.base + 1 + rank * 13;
        int32_t *outside = (int32_t *)(void *)p.heap + 3;

        check_sum(group, inside, inside, count);
        check_sum(group, inside, inside + count + 2 + rank, count);
        check_sum(group, outside, outside, count);
        check_sum(group, rank == 0 ? outside : inside, rank == 0 ? outside : inside, count);
        check_sum(group, inside, outside, count);
        check_sum(group, outside, inside, count);
    }
    close_places(&p);
}

START_TEST(buffers_lie_anywhere)
{
    for (unsigned n = 2; n <= RANKS; n++)
        world_run("shm", n, places_body, NULL);
}
END_TEST

/* More regions than the group has room for: an error, and the group goes on. */
static void many_regions_body(struct collective *group, unsigned rank, unsigned size,
                              void *argument)
{
    struct shared_memory regions[17];
    struct error err = {0};
    enum status status = STATUS_OK;
    size_t count = 0;

    (void)rank;
    (void)size;
    (void)argument;
    for (; count < 17 && status == STATUS_OK; count++) {
        assert_ok(shared_memory_open(1 << 20, "test", &regions[count], &err));
        status = collective_register(group, &regions[count], &err);
    }
    ck_assert_uint_eq(count, 17);
    assert_fails(status, STATUS_INVALID, "registered regions");
    check_sum(group, (int32_t *)regions[15].base + 1, (int32_t *)regions[15].base + 1, 100000);
    check_sum(group, (int32_t *)regions[16].base + 1, (int32_t *)regions[16].base + 1, 100000);
    for (size_t i = 0; i < count; i++)
        shared_memory_release(&regions[i]);
}

START_TEST(regions_have_a_limit)
{
    world_run("shm", 3, many_regions_body, NULL);
}
END_TEST

/* ---- driven by polling alone ---- */

static void poll_to_the_end(struct collective *group, const struct collective_args *args)
{
    struct collective_work *work;
    struct error err = {0};
    bool done = false;

    assert_ok(collective_start(group, args, &work, &err));
    while (!done) {
        collective_poll(work, &done);
        if (!done)
            (void)sched_yield();
    }
    assert_ok(collective_wait(work, 0, &err));
}

static void polls_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct places p = open_places(group);

    (void)argument;
    for (size_t k = 0; k < 2 * sizeof(sum_counts) / sizeof(sum_counts[0]); k++) {
        size_t count = sum_counts[k / 2];
        int32_t *data = (k % 2 ? (int32_t *)p.region.base : (int32_t *)(void *)p.heap) + 1;
        struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                       .dtype = DTYPE_INT32,
                                       .input = data,
                                       .output = data,
                                       .count = count};
        struct collective_args broadcast = args;
        size_t wrong = 0;

        for (size_t i = 0; i < count; i++)
            data[i] = value_of(rank, i);
        poll_to_the_end(group, &args);
        broadcast.call = COLLECTIVE_BROADCAST;
        broadcast.root = size - 1;
        for (size_t i = 0; i < count; i++) {
            wrong += data[i] != sum_of(size, i);
            data[i] = value_of(rank, i);
        }
        poll_to_the_end(group, &broadcast);
        for (size_t i = 0; i < count; i++)
            wrong += data[i] != value_of(size - 1, i);
        ck_assert_uint_eq(wrong, 0);
    }
    close_places(&p);
}

START_TEST(polling_is_enough)
{
    for (unsigned n = 2; n <= 4; n++)
        world_run("shm", n, polls_body, NULL);
}
END_TEST

/* A poll while the others are not there comes back at once, however often. */
static void early_poll_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    pthread_barrier_t *polled = argument;
    struct collective_args args = {.call = COLLECTIVE_BARRIER};
    struct collective_work *work;
    struct error err = {0};
    bool done = true;

    (void)size;
    if (rank == 0) {
        assert_ok(collective_start(group, &args, &work, &err));
        for (int i = 0; i < 1000; i++) {
            collective_poll(work, &done);
            ck_assert(!done);
        }
        assert_fails(collective_wait(work, clock_now_ns() + 1000000, &err), STATUS_TIMEOUT,
                     "has not ended yet");
        (void)pthread_barrier_wait(polled);
        assert_ok(collective_wait(work, INT64_MAX, &err));
        return;
    }
    (void)pthread_barrier_wait(polled);
    assert_ok(collective_barrier(group, &err));
}

START_TEST(a_poll_never_blocks)
{
    pthread_barrier_t polled;

    (void)pthread_barrier_init(&polled, NULL, 2);
    world_run("shm", 2, early_poll_body, &polled);
    (void)pthread_barrier_destroy(&polled);
}
END_TEST

/* ---- messages ---- */

/* Every rank sends to every other, in one go: pieces, references and nothing at all. */
static void messages_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    static const size_t counts[] = {0, 1, 16384, 16385, 100003, 300007};
    struct places p = open_places(group);
    int32_t *input[2] = {(int32_t *)p.region.base, (int32_t *)(void *)p.heap};
    int32_t *output = (int32_t *)(void *)(p.heap + REGION_BYTES / 4);
    struct error err = {0};

    (void)argument;
    for (size_t k = 0; k < 2 * sizeof(counts) / sizeof(counts[0]); k++) {
        size_t count = counts[k / 2];
        struct collective_work *works[2 * WORLD_RANKS_MAX];
        size_t started = 0;
        size_t wrong = 0;

        for (size_t i = 0; i < count; i++)
            input[k % 2][i] = value_of(rank, i);
        for (unsigned r = 0; r < size; r++) {
            struct collective_args args = {.call = COLLECTIVE_SEND,
                                           .dtype = DTYPE_INT32,
                                           .input = input[k % 2],
                                           .count = count,
                                           .root = r};

            if (r == rank)
                continue;
            assert_ok(collective_start(group, &args, &works[started++], &err));
            args.call = COLLECTIVE_RECV;
            args.output = output + r * count;
            assert_ok(collective_start(group, &args, &works[started++], &err));
        }
        for (size_t i = 0; i < started; i++)
            assert_ok(collective_wait(works[i], INT64_MAX, &err));
        for (unsigned r = 0; r < size; r++)
            for (size_t i = 0; r != rank && i < count; i++)
                wrong += output[r * count + i] != value_of(r, i);
        ck_assert_uint_eq(wrong, 0);
    }
    close_places(&p);
}

START_TEST(all_send_to_all)
{
    for (unsigned n = 2; n <= 4; n++)
        world_run("shm", n, messages_body, NULL);
}
END_TEST

/* Many short messages go ahead of their receiver, and the next ones wait for room. */
static void row_body(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct error err = {0};

    (void)size;
    (void)argument;
    for (int32_t i = 0; i < 1000; i++) {
        int32_t value = i;
        struct collective_args args = {.call = rank == 0 ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                                       .dtype = DTYPE_INT32,
                                       .input = &value,
                                       .output = &value,
                                       .count = 1,
                                       .root = 1 - rank};

        value = rank == 0 ? i : -1;
        assert_ok(collective_run(group, &args, &err));
        ck_assert_int_eq(value, i);
    }
}

START_TEST(messages_keep_their_order)
{
    world_run("shm", 2, row_body, NULL);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("collective_shm", 240, TEST(buffers_lie_anywhere),
                       TEST(regions_have_a_limit), TEST(polling_is_enough),
                       TEST(a_poll_never_blocks), TEST(all_send_to_all),
                       TEST(messages_keep_their_order));
}
