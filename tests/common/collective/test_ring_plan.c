/*
 * Every program, for every small world: all ranks are simulated as a ring of bounded pipes, one
 * random rank moves a random number of elements at a time, within the rule of ring_plan.h.  Values
 * are histories: a rank's element starts as one hexadecimal digit and ADD appends digits, so a
 * result shows who was summed and in which order.
 */
#include "tests/support/support.h"

#include "common/collective/ring_plan.h"

#include <string.h>

#define RANKS_MAX    9
#define COUNT_MAX    32
#define ELEMENTS_MAX (RANKS_MAX * COUNT_MAX)
#define PIPE_MAX     64

/* One direction of one connection, as a ring buffer of elements. */
struct pipe_model {
    uint64_t values[PIPE_MAX];
    size_t head, length, capacity;
};

struct cursor {
    unsigned step;
    size_t offset; /* in the step's range, units */
    uint64_t done; /* bytes of the whole stream */
};

struct rank_model {
    struct ring_plan plan;
    uint64_t values[ELEMENTS_MAX];
    struct cursor sent, received;
};

struct world {
    unsigned size;
    size_t unit; /* bytes of an element */
    struct rank_model ranks[RANKS_MAX];
    struct pipe_model to_right[RANKS_MAX]; /* from rank r to r + 1 */
};

static size_t below(size_t limit)
{
    return (size_t)(support_random() * (double)limit);
}

/* One element into the right pipe; false when the rule or the pipe forbids it. */
static bool send_one(struct world *w, unsigned r)
{
    struct rank_model *rank = &w->ranks[r];
    struct pipe_model *pipe = &w->to_right[r];

    while (rank->sent.step < rank->plan.send_steps) {
        struct ring_range range = ring_plan_send(&rank->plan, rank->sent.step);

        if (rank->sent.offset * w->unit == range.bytes) {
            rank->sent.step++;
            rank->sent.offset = 0;
            continue;
        }
        if (pipe->length == pipe->capacity ||
            rank->sent.done >= rank->plan.lag_bytes + rank->received.done)
            return false;
        pipe->values[(pipe->head + pipe->length++) % PIPE_MAX] =
            rank->values[range.offset / w->unit + rank->sent.offset++];
        rank->sent.done += w->unit;
        return true;
    }
    return false;
}

static bool receive_one(struct world *w, unsigned r)
{
    struct rank_model *rank = &w->ranks[r];
    struct pipe_model *pipe = &w->to_right[(r + w->size - 1) % w->size];

    while (rank->received.step < rank->plan.receive_steps) {
        enum ring_action action;
        struct ring_range range = ring_plan_receive(&rank->plan, rank->received.step, &action);
        uint64_t *own = &rank->values[range.offset / w->unit + rank->received.offset];

        if (rank->received.offset * w->unit == range.bytes) {
            rank->received.step++;
            rank->received.offset = 0;
            continue;
        }
        if (pipe->length == 0)
            return false;
        *own =
            action == RING_ADD ? (pipe->values[pipe->head] << 4) | *own : pipe->values[pipe->head];
        pipe->head = (pipe->head + 1) % PIPE_MAX;
        pipe->length--;
        rank->received.offset++;
        rank->received.done += w->unit;
        return true;
    }
    return false;
}

static bool is_finished(const struct world *w)
{
    for (unsigned r = 0; r < w->size; r++)
        if (w->ranks[r].sent.done != w->ranks[r].plan.send_bytes ||
            w->ranks[r].received.done != w->ranks[r].plan.receive_bytes)
            return false;
    return true;
}

/* True when no rank can move. */
static bool is_stuck(struct world *w)
{
    for (unsigned r = 0; r < w->size; r++)
        if (send_one(w, r) || receive_one(w, r))
            return false;
    return true;
}

static void run(struct world *w)
{
    for (unsigned r = 0; r < w->size; r++)
        w->to_right[r].capacity = 1 + below(PIPE_MAX);
    while (!is_finished(w)) {
        unsigned r = (unsigned)below(w->size);

        for (size_t burst = below(20); burst > 0; burst--)
            if (!(support_random() < 0.5 ? send_one(w, r) : receive_one(w, r)))
                break;
        ck_assert_msg(is_finished(w) || below(8) > 0 || !is_stuck(w), "deadlock of %u ranks",
                      w->size);
    }
    for (unsigned r = 0; r < w->size; r++)
        ck_assert_uint_eq(w->to_right[r].length, 0);
}

/* Digits 1..n, each once. */
static bool is_a_sum_of_all(uint64_t history, unsigned n)
{
    unsigned seen = 0;

    for (; history != 0; history >>= 4)
        seen += 1u << (history & 0xf);
    return seen == (2u << n) - 2;
}

static uint64_t ascending(unsigned n)
{
    uint64_t history = 0;

    for (unsigned r = 0; r < n; r++)
        history = (history << 4) | (r + 1);
    return history;
}

/* The header's formulas, written down a second time. */
static uint64_t chunk_bytes(size_t count, unsigned n, unsigned index)
{
    return 4 * (count / n + (index % n < count % n ? 1 : 0));
}

static uint64_t sent_by_formula(unsigned r, unsigned n, size_t count, enum reduce_order order)
{
    if (n == 1)
        return 0;
    if (order == REDUCE_REPRODUCIBLE)
        return (r == n - 1 || r == n - 2 ? 4 : 8) * (uint64_t)count;
    return 8 * (uint64_t)count - chunk_bytes(count, n, r + 1) - chunk_bytes(count, n, r + 2);
}

static void check_all_reduce(unsigned n, size_t count, enum reduce_order order)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    w.size = n;
    w.unit = sizeof(float);
    for (unsigned r = 0; r < n; r++) {
        w.ranks[r].plan = ring_plan_all_reduce(r, n, count, order);
        ck_assert_uint_eq(w.ranks[r].plan.send_bytes, sent_by_formula(r, n, count, order));
        ck_assert_uint_eq(w.ranks[r].plan.receive_bytes,
                          sent_by_formula((r + n - 1) % n, n, count, order));
        for (size_t i = 0; i < count; i++)
            w.ranks[r].values[i] = r + 1;
    }
    run(&w);
    for (unsigned r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++) {
            ck_assert(is_a_sum_of_all(w.ranks[r].values[i], n));
            ck_assert_uint_eq(w.ranks[r].values[i], w.ranks[0].values[i]);
            if (order == REDUCE_REPRODUCIBLE)
                ck_assert_uint_eq(w.ranks[r].values[i], ascending(n));
        }
    }
}

static void check_broadcast(unsigned n, size_t count, unsigned root)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    w.size = n;
    w.unit = 1;
    for (unsigned r = 0; r < n; r++) {
        w.ranks[r].plan = ring_plan_broadcast(r, n, count, root);
        ck_assert_uint_eq(w.ranks[r].plan.send_bytes, (r + 1) % n == root ? 0 : count);
        ck_assert_uint_eq(w.ranks[r].plan.receive_bytes, r == root ? 0 : count);
        for (size_t i = 0; i < count; i++)
            w.ranks[r].values[i] = 100 * (r + 1) + i;
    }
    run(&w);
    for (unsigned r = 0; r < n; r++)
        for (size_t i = 0; i < count; i++)
            ck_assert_uint_eq(w.ranks[r].values[i], 100 * (root + 1) + i);
}

static void check_all_gather(unsigned n, size_t count)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    w.size = n;
    w.unit = 1;
    for (unsigned r = 0; r < n; r++) {
        w.ranks[r].plan = ring_plan_all_gather(r, n, count);
        ck_assert_uint_eq(w.ranks[r].plan.send_bytes, (n - 1) * count);
        ck_assert_uint_eq(w.ranks[r].plan.receive_bytes, (n - 1) * count);
        for (size_t i = 0; i < count; i++)
            w.ranks[r].values[r * count + i] = 100 * (r + 1) + i;
    }
    run(&w);
    for (unsigned r = 0; r < n; r++)
        for (size_t i = 0; i < n * count; i++)
            ck_assert_uint_eq(w.ranks[r].values[i], 100 * (i / count + 1) + i % count);
}

/* 0, 1, around the world size, primes, multiples. */
static size_t counts_of(unsigned n, size_t counts[12])
{
    const size_t all[] = {0, 1, n - 1, n, n + 1, 2, 5, 7, 13, 31, 2 * n, COUNT_MAX};

    memcpy(counts, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

START_TEST(all_reduce_fast)
{
    size_t counts[12];

    for (size_t i = counts_of((unsigned)_i, counts); i > 0; i--)
        for (int repeat = 0; repeat < 20; repeat++)
            check_all_reduce((unsigned)_i, counts[i - 1], REDUCE_FAST);
}
END_TEST

START_TEST(all_reduce_in_rank_order)
{
    size_t counts[12];

    for (size_t i = counts_of((unsigned)_i, counts); i > 0; i--)
        for (int repeat = 0; repeat < 20; repeat++)
            check_all_reduce((unsigned)_i, counts[i - 1], REDUCE_REPRODUCIBLE);
}
END_TEST

START_TEST(broadcast_from_every_root)
{
    size_t counts[12];

    for (size_t i = counts_of((unsigned)_i, counts); i > 0; i--)
        for (unsigned root = 0; root < (unsigned)_i; root++)
            for (int repeat = 0; repeat < 5; repeat++)
                check_broadcast((unsigned)_i, counts[i - 1], root);
}
END_TEST

START_TEST(all_gather)
{
    size_t counts[12];

    for (size_t i = counts_of((unsigned)_i, counts); i > 0; i--)
        for (int repeat = 0; repeat < 10; repeat++)
            check_all_gather((unsigned)_i, counts[i - 1]);
}
END_TEST

/* The chunks of the fast order cover the buffer once: beyond 4 GiB, too. */
START_TEST(chunks_cover_a_large_buffer)
{
    unsigned n = 7;
    size_t count = ((size_t)5 << 30) + 3;
    struct ring_plan plan = ring_plan_all_reduce(3, n, count, REDUCE_FAST);
    size_t covered = 0;
    enum ring_action action;

    for (unsigned step = 0; step < n; step++) {
        struct ring_range range = ring_plan_send(&plan, step);
        struct ring_range before = ring_plan_receive(&plan, step, &action);

        covered += range.bytes;
        ck_assert_uint_eq(before.offset + before.bytes,
                          range.offset == 0 ? 4 * count : range.offset);
    }
    ck_assert_uint_eq(covered, 4 * count);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ring_plan");
    TCase *cases = tcase_create("ring_plan");

    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, all_reduce_fast, 1, RANKS_MAX + 1);
    tcase_add_loop_test(cases, all_reduce_in_rank_order, 1, RANKS_MAX + 1);
    tcase_add_loop_test(cases, broadcast_from_every_root, 1, RANKS_MAX + 1);
    tcase_add_loop_test(cases, all_gather, 1, RANKS_MAX + 1);
    tcase_add_test(cases, chunks_cover_a_large_buffer);
    suite_add_tcase(suite, cases);
    return support_run(suite);
}
