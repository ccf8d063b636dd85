/*
 * Every program of the ring and of the pairs, and doubling, executed for every small world by ranks
 * that take turns on one thread, over pipes that move bytes in odd pieces: results against one
 * loop, and no deadlock (in some number of turns all must be done).  The results of reductions are
 * integers, or sums whose bits show their order.
 */
#include "tests/support/support.h"

#include "common/collective/ring/ring_doubling.h"
#include "common/collective/ring/ring_stream.h"
#include "tests/common/collective/ring/memory_transport.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX  9
#define BLOCK_MAX  40                 /* elements */
#define SLOT_BYTES ((size_t)64 << 10) /* the least */
#define BYTES_MAX  ((size_t)RANKS_MAX * BLOCK_MAX * 8)

struct rank {
    unsigned char input[BYTES_MAX], output[BYTES_MAX];
    struct ring_io io;
    struct ring_scratch scratch;
    struct pairs_scratch pairs;
    struct ring_run stream_run;
    struct pairs_run pairs_run;
    struct doubling_run doubling_run;
    bool done;
};

static struct world {
    unsigned size, root;
    size_t count;
    bool in_place;
    enum { RING, PAIRS, DOUBLING } by;
    enum dtype dtype;
    enum reduce_op op;
    struct memory_world *memory;
    struct rank ranks[RANKS_MAX];
} w;

static size_t below(size_t limit)
{
    return (size_t)(support_random() * (double)limit);
}

/* ---- values ---- */

static double value(unsigned rank, size_t i)
{
    return (double)((i * 7 + rank * 13) % 19) - 9;
}

static double factor_of(unsigned rank)
{
    return w.op == REDUCE_PREMUL_SUM ? (double)(rank + 1) : 1.0;
}

static void put_value(unsigned char *at, size_t i, double v)
{
    float single = (float)v;
    int32_t whole = (int32_t)v;

    if (w.dtype == DTYPE_FLOAT64)
        memcpy(at + 8 * i, &v, 8);
    else if (w.dtype == DTYPE_FLOAT32)
        memcpy(at + 4 * i, &single, 4);
    else if (w.dtype == DTYPE_INT32)
        memcpy(at + 4 * i, &whole, 4);
    else
        cast_from_float32(w.dtype, at + 2 * i, &single, 1);
}

static double get_value(const unsigned char *at, size_t i)
{
    double v;
    float single;
    int32_t whole;

    if (w.dtype == DTYPE_FLOAT64) {
        memcpy(&v, at + 8 * i, 8);
        return v;
    }
    if (w.dtype == DTYPE_INT32) {
        memcpy(&whole, at + 4 * i, 4);
        return whole;
    }
    if (w.dtype == DTYPE_FLOAT32)
        memcpy(&single, at + 4 * i, 4);
    else
        cast_to_float32(w.dtype, &single, at + 2 * i, 1);
    return (double)single;
}

static double reduced(size_t i)
{
    double result = factor_of(0) * value(0, i);

    for (unsigned r = 1; r < w.size; r++) {
        double v = factor_of(r) * value(r, i);

        if (w.op == REDUCE_MAX)
            result = result > v ? result : v;
        else
            result += v;
    }
    return w.op == REDUCE_AVG ? trunc(result / w.size) : result;
}

/* ---- running ---- */

static void open_world(unsigned size, size_t count, enum dtype dtype, enum reduce_op op,
                       bool in_place)
{
    w.size = size;
    w.count = count;
    w.dtype = dtype;
    w.op = op;
    w.in_place = in_place;
    w.memory = memory_world_open(size, 1 + below(300), below(5) == 0 ? 0 : 1 + below(1u << 30));
    ck_assert_ptr_nonnull(w.memory);
    for (unsigned r = 0; r < size; r++) {
        struct rank *rank = &w.ranks[r];
        struct error err = {0};

        rank->io = (struct ring_io){
            .transport = memory_world_transport(w.memory, r), .alarm_fd = -1, .segment_bytes = 64};
        assert_ok(ring_scratch_init(&rank->scratch, 64, &err));
        assert_ok(pairs_scratch_init(&rank->pairs, size, SLOT_BYTES, &err));
        rank->pairs.buffer_bytes = 64; /* so that buffers wrap around */
        rank->done = false;
        for (size_t i = 0; i < (size_t)RANKS_MAX * BLOCK_MAX; i++)
            put_value(rank->input, i, value(r, i));
        memset(rank->output, 0xee, sizeof(rank->output));
    }
}

static struct ring_operation operation_of(unsigned r, size_t in_offset, size_t out_offset)
{
    struct rank *rank = &w.ranks[r];
    struct signature signature = {.call = COLLECTIVE_ALL_REDUCE, .count = w.count};
    struct ring_operation o = {.input = rank->input,
                               .output = rank->output,
                               .reduction = {.dtype = w.dtype, .op = w.op},
                               .factor = factor_of(r),
                               .has_factors = w.op == REDUCE_PREMUL_SUM,
                               .divisor = w.op == REDUCE_AVG ? w.size : 0};

    if (w.in_place) { /* one of them is a part of the other */
        o.input = rank->input + in_offset;
        o.output = rank->input + out_offset;
    }
    ring_header_encode(&signature, o.factor, o.header);
    memcpy(o.expected, o.header, SIGNATURE_BYTES);
    return o;
}

static bool turn(unsigned r)
{
    struct rank *rank = &w.ranks[r];
    enum ring_outcome outcome = RING_DONE;

    if (!rank->done && w.by == DOUBLING)
        outcome = doubling_run(&rank->io, &rank->doubling_run, 0);
    else if (!rank->done)
        outcome = w.by == PAIRS ? pairs_run(&rank->io, &rank->pairs_run, 0)
                                : ring_stream_run(&rank->io, &rank->stream_run, 0);
    ck_assert(outcome == RING_DONE || outcome == RING_PAUSED);
    rank->done = outcome == RING_DONE;
    return rank->done;
}

static void run_world(void)
{
    unsigned done = 0;

    for (size_t turns = 0; done < w.size; turns++) {
        ck_assert_msg(turns < 1000000, "deadlock of %u ranks", w.size);
        (void)turn((unsigned)below(w.size));
        if (turns % w.size != 0)
            continue;
        done = 0;
        for (unsigned r = 0; r < w.size; r++)
            done += w.ranks[r].done;
    }
}

static void close_world(void)
{
    for (unsigned from = 0; from < w.size; from++)
        for (unsigned to = 0; to < w.size; to++) {
            char byte;

            ck_assert_uint_eq(memory_take(w.memory, from, to, &byte, 1), 0);
        }
    for (unsigned r = 0; r < w.size; r++) {
        ring_scratch_release(&w.ranks[r].scratch);
        pairs_scratch_release(&w.ranks[r].pairs);
    }
    memory_world_close(w.memory);
}

/* count elements of rank r's output, from `first` on, are those of `wanted` from there on. */
static void expect_at(unsigned r, size_t out_offset, size_t at, double wanted)
{
    const unsigned char *out = w.in_place ? w.ranks[r].input + out_offset : w.ranks[r].output;
    double got = get_value(out, at);

    ck_assert_msg(got <= wanted && got >= wanted,
                  "rank %u of %u, element %zu of %zu %s (%s%s): %g, not %g", r, w.size, at, w.count,
                  dtype_name(w.dtype), reduce_op_name(w.op), w.in_place ? ", in place" : "", got,
                  wanted);
}

/* An input that is not also the output is intact. */
static void expect_input(unsigned r, size_t elements)
{
    for (size_t i = 0; i < elements && !w.in_place; i++) {
        double got = get_value(w.ranks[r].input, i);

        ck_assert(got <= value(r, i) && got >= value(r, i));
    }
}

/* ---- the ring's programs ---- */

static void start_ring(enum ring_kind kind, unsigned r, size_t in_offset, size_t out_offset)
{
    struct ring_operation o = operation_of(r, in_offset, out_offset);
    struct ring_plan plan = ring_plan(kind, r, w.size, w.count, dtype_size(w.dtype), w.root, 64);

    w.by = RING;
    ring_run_init(&w.ranks[r].stream_run, &plan, &o, &w.ranks[r].scratch);
}

static void start_pairs(enum pairs_kind kind, unsigned r, size_t in_offset, size_t out_offset)
{
    struct ring_operation o = operation_of(r, in_offset, out_offset);
    struct pairs_plan plan = {.kind = kind,
                              .rank = r,
                              .world_size = w.size,
                              .root = w.root,
                              .count = w.count,
                              .size = dtype_size(w.dtype)};

    w.by = PAIRS;
    pairs_run_init(&w.ranks[r].pairs_run, &plan, &o, &w.ranks[r].pairs);
}

/* Its messages must fit in a buffer; nothing goes round. */
static void start_doubling(unsigned r)
{
    struct ring_operation o = operation_of(r, 0, 0);

    w.by = DOUBLING;
    w.ranks[r].pairs.buffer_bytes = SLOT_BYTES;
    doubling_run_init(&w.ranks[r].doubling_run, r, w.size, w.count, dtype_size(w.dtype), &o,
                      &w.ranks[r].pairs);
}

static const struct flavour {
    enum dtype dtype;
    enum reduce_op op;
} flavours[] = {
    {DTYPE_FLOAT32, REDUCE_SUM},  {DTYPE_FLOAT64, REDUCE_PREMUL_SUM},
    {DTYPE_BFLOAT16, REDUCE_MAX}, {DTYPE_INT32, REDUCE_AVG},
    {DTYPE_FLOAT16, REDUCE_SUM},  {DTYPE_FLOAT16, REDUCE_PREMUL_SUM},
};

#define FLAVOURS (sizeof(flavours) / sizeof(flavours[0]))

/* 0, 1, around the world size, primes, multiples. */
static size_t counts_of(unsigned n, size_t counts[12])
{
    const size_t all[] = {0, 1, n - 1, n, n + 1, 2, 5, 7, 13, 31, 2 * n, BLOCK_MAX};

    memcpy(counts, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

typedef void check_world(int way);

static void for_every_count(unsigned n, check_world *check, int ways)
{
    size_t counts[12];

    for (size_t i = counts_of(n, counts); i > 0; i--) {
        size_t one_of = n > 4 ? 3 : SUPPORT_DRAWS(1, 3); /* larger worlds: a third, by chance */

        for (size_t k = below(one_of); k < FLAVOURS; k += one_of) {
            for (int way = 0; way < ways; way++) {
                w.root = (unsigned)below(n);
                open_world(n, counts[i - 1], flavours[k].dtype, flavours[k].op, below(2) == 0);
                check(way);
                close_world();
            }
        }
    }
}

static void check_all_reduce(int way)
{
    for (unsigned r = 0; r < w.size; r++) {
        if (way == 0)
            start_ring(RING_ALL_REDUCE, r, 0, 0);
        else if (way == 3)
            start_doubling(r);
        else
            start_pairs(way == 1 ? PAIRS_ALL_REDUCE_WHOLE : PAIRS_ALL_REDUCE_CHUNKS, r, 0, 0);
    }
    run_world();
    for (unsigned r = 0; r < w.size; r++) {
        for (size_t i = 0; i < w.count; i++)
            expect_at(r, 0, i, reduced(i));
        expect_input(r, w.count);
    }
}

static void check_reduce(int way)
{
    for (unsigned r = 0; r < w.size; r++) {
        if (way == 0)
            start_ring(RING_REDUCE, r, 0, 0);
        else
            start_pairs(PAIRS_REDUCE, r, 0, 0);
    }
    run_world();
    for (unsigned r = 0; r < w.size; r++) {
        for (size_t i = 0; i < w.count && r == w.root; i++)
            expect_at(r, 0, i, reduced(i));
        expect_input(r, w.count);
    }
}

static void check_reduce_scatter(int way)
{
    size_t block = w.count * dtype_size(w.dtype);

    for (unsigned r = 0; r < w.size; r++) {
        if (way == 0)
            start_ring(RING_REDUCE_SCATTER, r, 0, r * block);
        else
            start_pairs(PAIRS_REDUCE_SCATTER, r, 0, r * block);
    }
    run_world();
    for (unsigned r = 0; r < w.size; r++) {
        for (size_t i = 0; i < w.count; i++)
            expect_at(r, r * block, i, reduced(r * w.count + i));
        expect_input(r, w.count * w.size);
    }
}

static void check_broadcast(int way)
{
    size_t bytes = w.count * dtype_size(w.dtype);

    for (unsigned r = 0; r < w.size; r++) {
        if (r == w.root) /* the backend's part */
            memcpy(w.ranks[r].output, w.ranks[r].input, bytes);
        if (way == 0)
            start_ring(RING_BROADCAST, r, 0, 0);
        else
            start_pairs(PAIRS_BROADCAST, r, 0, 0);
    }
    run_world();
    for (unsigned r = 0; r < w.size; r++)
        for (size_t i = 0; i < w.count; i++)
            expect_at(r, 0, i, value(w.root, i));
}

static void check_all_gather(int way)
{
    size_t block = w.count * dtype_size(w.dtype);

    for (unsigned r = 0; r < w.size; r++) {
        if (w.in_place)
            memmove(w.ranks[r].input + r * block, w.ranks[r].input, block);
        else
            memcpy(w.ranks[r].output + r * block, w.ranks[r].input, block);
        if (way == 0)
            start_ring(RING_ALL_GATHER, r, r * block, 0);
        else
            start_pairs(PAIRS_ALL_GATHER, r, r * block, 0);
    }
    run_world();
    for (unsigned r = 0; r < w.size; r++)
        for (size_t i = 0; i < w.count * w.size; i++)
            expect_at(r, 0, i, value((unsigned)(i / w.count), i % w.count));
}

static void check_all_to_all(int way)
{
    size_t block = w.count * dtype_size(w.dtype);

    (void)way;
    for (unsigned r = 0; r < w.size; r++) {
        memcpy(w.ranks[r].output + r * block, w.ranks[r].input + r * block, block);
        start_pairs(PAIRS_ALL_TO_ALL, r, 0, 0);
    }
    run_world();
    for (unsigned r = 0; r < w.size; r++)
        for (size_t i = 0; i < w.count * w.size; i++)
            expect_at(r, 0, i, value((unsigned)(i / w.count), r * w.count + i % w.count));
}

static void check_gather(int way)
{
    size_t block = w.count * dtype_size(w.dtype);

    (void)way;
    w.in_place = false;
    for (unsigned r = 0; r < w.size; r++) {
        memcpy(w.ranks[r].output + r * block, w.ranks[r].input, block);
        start_pairs(PAIRS_GATHER, r, 0, 0);
    }
    run_world();
    for (size_t i = 0; i < w.count * w.size; i++)
        expect_at(w.root, 0, i, value((unsigned)(i / w.count), i % w.count));
}

static void check_scatter(int way)
{
    size_t block = w.count * dtype_size(w.dtype);

    (void)way;
    w.in_place = false;
    for (unsigned r = 0; r < w.size; r++) {
        memcpy(w.ranks[r].output, w.ranks[r].input + r * block, block);
        start_pairs(PAIRS_SCATTER, r, 0, 0);
    }
    run_world();
    for (unsigned r = 0; r < w.size; r++)
        for (size_t i = 0; i < w.count; i++)
            expect_at(r, 0, i, value(w.root, r * w.count + i));
}

START_TEST(all_reduce)
{
    for_every_count((unsigned)_i, check_all_reduce, 4);
}
END_TEST

START_TEST(reduce)
{
    for_every_count((unsigned)_i, check_reduce, 2);
}
END_TEST

START_TEST(reduce_scatter)
{
    for_every_count((unsigned)_i, check_reduce_scatter, 2);
}
END_TEST

START_TEST(broadcast)
{
    for_every_count((unsigned)_i, check_broadcast, 2);
}
END_TEST

START_TEST(all_gather)
{
    for_every_count((unsigned)_i, check_all_gather, 2);
}
END_TEST

START_TEST(pairwise)
{
    for_every_count((unsigned)_i, check_all_to_all, 1);
    for_every_count((unsigned)_i, check_gather, 1);
    for_every_count((unsigned)_i, check_scatter, 1);
}
END_TEST

/* ---- order ---- */

/* Values of many magnitudes: through the pairs the bits are those of the ascending sum. */
START_TEST(pairs_sum_in_rank_order)
{
    for (int way = 0; way < 2; way++) {
        open_world((unsigned)_i, BLOCK_MAX, DTYPE_FLOAT32, REDUCE_SUM, false);
        for (unsigned r = 0; r < w.size; r++) {
            for (size_t i = 0; i < w.count; i++)
                put_value(w.ranks[r].input, i,
                          ldexp(support_random() * 2 - 1, (int)below(20) - 10));
            start_pairs(way == 0 ? PAIRS_ALL_REDUCE_WHOLE : PAIRS_ALL_REDUCE_CHUNKS, r, 0, 0);
        }
        run_world();
        for (size_t i = 0; i < w.count; i++) {
            float sum = (float)get_value(w.ranks[0].input, i);

            for (unsigned r = 1; r < w.size; r++)
                sum += (float)get_value(w.ranks[r].input, i);
            for (unsigned r = 0; r < w.size; r++)
                ck_assert_int_eq(memcmp(w.ranks[r].output + 4 * i, &sum, 4), 0);
        }
        close_world();
    }
}
END_TEST

/* By doubling every rank has the same bits, and they are a sum: the error of a float sum of n terms
 * is at most n rounding steps of the largest magnitude. */
START_TEST(doubling_has_one_result)
{
    open_world((unsigned)_i, BLOCK_MAX, DTYPE_FLOAT32, REDUCE_SUM, false);
    for (unsigned r = 0; r < w.size; r++) {
        for (size_t i = 0; i < w.count; i++)
            put_value(w.ranks[r].input, i, ldexp(support_random() * 2 - 1, (int)below(20) - 10));
        start_doubling(r);
    }
    run_world();
    for (size_t i = 0; i < w.count; i++) {
        double sum = 0;
        double magnitude = 0;

        for (unsigned r = 0; r < w.size; r++) {
            sum += get_value(w.ranks[r].input, i);
            magnitude += fabs(get_value(w.ranks[r].input, i));
        }
        for (unsigned r = 0; r < w.size; r++)
            ck_assert_int_eq(memcmp(w.ranks[r].output + 4 * i, w.ranks[0].output + 4 * i, 4), 0);
        ck_assert(fabs(get_value(w.ranks[0].output, i) - sum) <= w.size * magnitude * 0x1p-24);
    }
    for (unsigned r = 0; r < w.size; r++) {
        uint64_t sent;
        uint64_t received;
        uint64_t formula[2];

        doubling_run_done(&w.ranks[r].doubling_run, &sent, &received);
        doubling_bytes(r, w.size, w.count * 4, &formula[0], &formula[1]);
        ck_assert_uint_eq(sent, formula[0]);
        ck_assert_uint_eq(received, formula[1]);
    }
    close_world();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "ring_engine", 240, LOOP_TEST(all_reduce, 2, RANKS_MAX + 1),
        LOOP_TEST(reduce, 2, RANKS_MAX + 1), LOOP_TEST(reduce_scatter, 2, RANKS_MAX + 1),
        LOOP_TEST(broadcast, 2, RANKS_MAX + 1), LOOP_TEST(all_gather, 2, RANKS_MAX + 1),
        LOOP_TEST(pairwise, 2, RANKS_MAX + 1), LOOP_TEST(pairs_sum_in_rank_order, 2, RANKS_MAX + 1),
        LOOP_TEST(doubling_has_one_result, 2, RANKS_MAX + 1));
}
