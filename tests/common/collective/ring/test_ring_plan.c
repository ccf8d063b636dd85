/*
 * Every program, for every small world: all ranks are simulated as a ring of bounded pipes, one
 * random rank moves a random number of elements at a time, within the rules of ring_plan.h.  Values
 * are histories: a rank's element starts as one hexadecimal digit and reducing appends digits, so a
 * result shows who was summed.  What executes the plans for real is tested in test_ring_engine.c.
 */
#include "tests/support/support.h"

#include "common/collective/ring/ring_doubling.h"
#include "common/collective/ring/ring_plan.h"

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

#define PIECE_MAX 5 /* elements, of a reduce_scatter's pieces */
#define STAGE     (PIECE_MAX + 1)
#define UNIT      4

struct rank_model {
    struct ring_plan plan;
    uint64_t input[ELEMENTS_MAX], output[ELEMENTS_MAX], stage[STAGE];
    struct cursor sent, received;
};

struct world {
    unsigned size;
    struct rank_model ranks[RANKS_MAX];
    struct pipe_model to_right[RANKS_MAX]; /* from rank r to r + 1 */
};

static size_t below(size_t limit)
{
    return (size_t)(support_random() * (double)limit);
}

static uint64_t *place_of(struct rank_model *rank, const struct ring_range *range, size_t offset)
{
    size_t at = range->offset / UNIT + offset;

    if (range->buffer == RING_STAGE)
        return &rank->stage[at % STAGE];
    return range->buffer == RING_INPUT ? &rank->input[at] : &rank->output[at];
}

/* One element into the right pipe; false when the rule or the pipe forbids it. */
static bool send_one(struct world *w, unsigned r)
{
    struct rank_model *rank = &w->ranks[r];
    struct pipe_model *pipe = &w->to_right[r];

    while (rank->sent.step < rank->plan.send_steps) {
        struct ring_range range = ring_plan_send(&rank->plan, rank->sent.step);

        if (rank->sent.offset * UNIT == range.bytes) {
            rank->sent.step++;
            rank->sent.offset = 0;
            continue;
        }
        if (pipe->length == pipe->capacity ||
            rank->sent.done >= rank->plan.lag_bytes + rank->received.done)
            return false;
        pipe->values[(pipe->head + pipe->length++) % PIPE_MAX] =
            *place_of(rank, &range, rank->sent.offset++);
        rank->sent.done += UNIT;
        return true;
    }
    return false;
}

static unsigned digits_of(uint64_t history)
{
    unsigned digits = 0;

    for (; history != 0; history >>= 4)
        digits++;
    return digits;
}

static uint64_t reduce_one(struct world *w, const struct rank_model *rank,
                           const struct ring_range *range, uint64_t came)
{
    uint64_t own = rank->input[range->own / UNIT + rank->received.offset];

    ck_assert_int_eq(range->raw, digits_of(came) == 1);
    ck_assert_int_eq(range->last, digits_of(came) == w->size - 1);
    return came << 4 | own;
}

static bool receive_one(struct world *w, unsigned r)
{
    struct rank_model *rank = &w->ranks[r];
    struct pipe_model *pipe = &w->to_right[(r + w->size - 1) % w->size];

    while (rank->received.step < rank->plan.receive_steps) {
        struct ring_range range = ring_plan_receive(&rank->plan, rank->received.step);
        uint64_t came = pipe->values[pipe->head];

        if (rank->received.offset * UNIT == range.bytes) {
            rank->received.step++;
            rank->received.offset = 0;
            continue;
        }
        if (pipe->length == 0 ||
            (range.buffer == RING_STAGE &&
             rank->received.done + rank->plan.stage_lag_bytes >= STAGE * UNIT + rank->sent.done))
            return false;
        *place_of(rank, &range, rank->received.offset) =
            range.reduces ? reduce_one(w, rank, &range, came) : came;
        pipe->head = (pipe->head + 1) % PIPE_MAX;
        pipe->length--;
        rank->received.offset++;
        rank->received.done += UNIT;
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

static void run_plan(struct world *w)
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

/* The header's formulas, written down a second time. */
static uint64_t chunk_bytes(size_t count, unsigned n, unsigned index)
{
    return 4 * (count / n + (index % n < count % n ? 1 : 0));
}

static uint64_t sent_by_formula(enum ring_kind kind, unsigned r, unsigned n, size_t count,
                                unsigned root)
{
    if (n == 1)
        return 0;
    switch (kind) {
    case RING_ALL_REDUCE:
        return 8 * (uint64_t)count - chunk_bytes(count, n, r + 1) - chunk_bytes(count, n, r + 2);
    case RING_REDUCE_SCATTER:
    case RING_ALL_GATHER:
        return 4 * (uint64_t)count * (n - 1);
    case RING_BROADCAST:
        return (r + 1) % n == root ? 0 : 4 * (uint64_t)count;
    default:
        return r == root ? 0 : 4 * (uint64_t)count;
    }
}

static struct world *simulate(enum ring_kind kind, unsigned n, size_t count, unsigned root)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    w.size = n;
    for (unsigned r = 0; r < n; r++) {
        struct ring_plan plan = ring_plan(kind, r, n, count, UNIT, root, PIECE_MAX * UNIT);

        w.ranks[r].plan = plan;
        ck_assert_uint_eq(plan.send_bytes, sent_by_formula(kind, r, n, count, root));
        ck_assert_uint_eq(plan.receive_bytes,
                          sent_by_formula(kind, (r + n - 1) % n, n, count, root));
        for (size_t i = 0; i < ELEMENTS_MAX; i++)
            w.ranks[r].input[i] = r + 1;
        for (size_t i = 0; i < count && kind == RING_ALL_GATHER; i++)
            w.ranks[r].output[r * count + i] = 100 * (r + 1) + i;
        for (size_t i = 0; i < count && kind == RING_BROADCAST; i++)
            w.ranks[r].input[i] = 100 * (r + 1) + i;
    }
    run_plan(&w);
    return &w;
}

static void check_all_reduce(unsigned n, size_t count)
{
    struct world *w = simulate(RING_ALL_REDUCE, n, count, 0);

    for (unsigned r = 0; r < n && n > 1; r++)
        for (size_t i = 0; i < count; i++) {
            ck_assert(is_a_sum_of_all(w->ranks[r].output[i], n));
            ck_assert_uint_eq(w->ranks[r].output[i], w->ranks[0].output[i]);
        }
}

static void check_reduce_scatter(unsigned n, size_t count)
{
    struct world *w = simulate(RING_REDUCE_SCATTER, n, count, 0);

    for (unsigned r = 0; r < n && n > 1; r++)
        for (size_t i = 0; i < count; i++)
            ck_assert(is_a_sum_of_all(w->ranks[r].output[i], n));
}

static void check_reduce(unsigned n, size_t count, unsigned root)
{
    struct world *w = simulate(RING_REDUCE, n, count, root);

    for (size_t i = 0; i < count && n > 1; i++)
        ck_assert(is_a_sum_of_all(w->ranks[root].output[i], n));
}

static void check_broadcast(unsigned n, size_t count, unsigned root)
{
    struct world *w = simulate(RING_BROADCAST, n, count, root);

    for (unsigned r = 0; r < n; r++)
        for (size_t i = 0; i < count && r != root; i++)
            ck_assert_uint_eq(w->ranks[r].output[i], 100 * (root + 1) + i);
}

static void check_all_gather(unsigned n, size_t count)
{
    struct world *w = simulate(RING_ALL_GATHER, n, count, 0);

    for (unsigned r = 0; r < n; r++)
        for (size_t i = 0; i < n * count; i++)
            ck_assert_uint_eq(w->ranks[r].output[i], 100 * (i / count + 1) + i % count);
}

/* 0, 1, around the world size, primes, multiples. */
static size_t counts_of(unsigned n, size_t counts[12])
{
    const size_t all[] = {0, 1, n - 1, n, n + 1, 2, 5, 7, 13, 31, 2 * n, COUNT_MAX};

    memcpy(counts, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

START_TEST(rotations)
{
    size_t counts[12];

    for (size_t i = counts_of((unsigned)_i, counts); i > 0; i--)
        for (int repeat = 0; repeat < SUPPORT_DRAWS(8, 2); repeat++) {
            check_all_reduce((unsigned)_i, counts[i - 1]);
            check_reduce_scatter((unsigned)_i, counts[i - 1]);
            check_all_gather((unsigned)_i, counts[i - 1]);
        }
}
END_TEST

START_TEST(pipelines_of_every_root)
{
    size_t counts[12];

    for (size_t i = counts_of((unsigned)_i, counts); i > 0; i--)
        for (unsigned root = 0; root < (unsigned)_i; root++)
            for (int repeat = 0; repeat < SUPPORT_DRAWS(2, 1); repeat++) {
                check_broadcast((unsigned)_i, counts[i - 1], root);
                check_reduce((unsigned)_i, counts[i - 1], root);
            }
}
END_TEST

/* The chunks of the fast order cover the buffer once: beyond 4 GiB, too. */
START_TEST(chunks_cover_a_large_buffer)
{
    unsigned n = 7;
    size_t count = ((size_t)5 << 30) + 3;
    struct ring_plan plan = ring_plan(RING_ALL_REDUCE, 3, n, count, 4, 0, 4096);
    size_t covered = 0;

    for (unsigned step = 0; step < n; step++) {
        struct ring_range range = ring_plan_send(&plan, step);
        struct ring_range before = ring_plan_receive(&plan, step);

        covered += range.bytes;
        ck_assert_uint_eq(before.offset + before.bytes,
                          range.offset == 0 ? 4 * count : range.offset);
    }
    ck_assert_uint_eq(covered, 4 * count);
}
END_TEST

/* ---- doubling ---- */

/* Take the step that two ranks have in common; false when they have none now.  have[] are sets of
 * ranks whose terms are in. */
static bool meet(unsigned n, unsigned a, unsigned b, unsigned *steps, uint64_t *have)
{
    struct doubling_step at_a;
    struct doubling_step at_b;
    uint64_t from_a = have[a];
    uint64_t from_b = have[b];

    if (!doubling_step(a, n, steps[a], &at_a) || !doubling_step(b, n, steps[b], &at_b) ||
        at_a.peer != b || at_b.peer != a)
        return false;
    ck_assert(at_a.sends == at_b.receives && at_b.sends == at_a.receives);
    ck_assert(at_a.sends || at_b.sends);
    if (at_a.reduces || at_b.reduces)
        ck_assert_msg((from_a & from_b) == 0, "a term of rank %u or %u counts twice", a, b);
    if (at_a.receives)
        have[a] = at_a.reduces ? from_a | from_b : from_b;
    if (at_b.receives)
        have[b] = at_b.reduces ? from_b | from_a : from_a;
    ck_assert(!at_a.last || have[a] == UINT64_MAX >> (64 - n));
    ck_assert(!at_b.last || have[b] == UINT64_MAX >> (64 - n));
    steps[a]++;
    steps[b]++;
    return true;
}

/* Every rank ends with every term, once, and no rank waits for one that does not come. */
START_TEST(doubling_reaches_everyone)
{
    unsigned n = (unsigned)_i;
    unsigned steps[64] = {0};
    uint64_t have[64];
    struct doubling_step step;
    bool moved = true;

    for (unsigned r = 0; r < n; r++)
        have[r] = (uint64_t)1 << r;
    while (moved) {
        moved = false;
        for (unsigned a = 0; a < n; a++)
            for (unsigned b = a + 1; b < n; b++)
                moved |= meet(n, a, b, steps, have);
    }
    for (unsigned r = 0; r < n; r++) {
        ck_assert_msg(!doubling_step(r, n, steps[r], &step), "rank %u of %u waits for rank %u", r,
                      n, step.peer);
        ck_assert_uint_eq(have[r], UINT64_MAX >> (64 - n));
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("ring_plan", 240, LOOP_TEST(rotations, 1, RANKS_MAX + 1),
                       LOOP_TEST(pipelines_of_every_root, 1, RANKS_MAX + 1),
                       TEST(chunks_cover_a_large_buffer),
                       LOOP_TEST(doubling_reaches_everyone, 2, 65));
}
