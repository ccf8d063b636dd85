/*
 * Named rows in every mode: each rank names some before each of its pushes, in a random order of
 * events, and every answer holds, bit for bit, what the values are when it is made.
 */
#include "server/shard/mutation.h"
#include "tests/server/shard/shard_bench.h"

#include <stdlib.h>

#define RANKS_MAX 3u
#define ROUNDS    8u
#define COUNT     (BENCH_FULL + BENCH_LAST)

static const struct {
    struct consistency consistency;
    bool previous;
} modes[] = {{{.mode = CONSISTENCY_BSP}, false},
             {{.mode = CONSISTENCY_BSP}, true},
             {{.mode = CONSISTENCY_SSP, .staleness = 2}, false},
             {{.mode = CONSISTENCY_ASP}, false}};

struct rank {
    uint64_t round; /* pushed last */
    bool waits;
    bool names;          /* some rows, of its next answer */
    bool named[COUNT];   /* by element of the partition */
    float params[COUNT]; /* what it holds of partition 0 */
};

static struct rank ranks[RANKS_MAX];

static enum status read_numbers(void *user, struct codec_selection_decoder *names,
                                struct error *error)
{
    const struct rank *r = user;

    for (size_t i = 0; i < BENCH_FULL; i += CODEC_ROW_WIDTH) {
        uint32_t number = (uint32_t)(i / CODEC_ROW_WIDTH);
        enum status status =
            r->named[i] ? codec_selection_decode_feed(names, &number, sizeof(number), error)
                        : STATUS_OK;

        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static void name_some(unsigned rank)
{
    struct rank *r = &ranks[rank];
    struct row_reader namer = {read_numbers, r};
    double density = support_random() * 1.2;

    r->names = support_random() < 0.8;
    for (size_t i = 0; i < BENCH_FULL; i++)
        r->named[i] = i % CODEC_ROW_WIDTH ? r->named[i - 1] : support_random() < density;
    if (r->names)
        assert_ok(shard_select_rows(&shard, 0, rank, false, &namer, &err));
}

/* `values`: of partition 0, as they are now. */
static void take_answer(unsigned rank, const struct shard_reply *answer, const float *values)
{
    struct rank *r = &ranks[rank];
    float got[BENCH_FULL], wanted[BENCH_FULL];
    size_t elements = 0;

    for (size_t i = 0; i < BENCH_FULL; i++) {
        bool told = !r->names || answer->is_final || r->named[i];

        got[i] = r->params[i];
        wanted[i] = told ? values[i] : r->params[i];
        elements += told;
    }
    if (answer->coded) {
        ck_assert(r->names && answer->codec.kind == CODEC_SELECTED_ROWS);
        ck_assert_uint_eq(answer->bytes, 8 + elements / CODEC_ROW_WIDTH * 68);
        assert_ok(codec_decode(&answer->codec, answer->coded, answer->bytes, got, BENCH_FULL,
                               CODEC_PATCH, &err));
        ck_assert_mem_eq(got, wanted, sizeof(got));
    } else { /* all of them, because they were not named or are no longer */
        ck_assert(!r->names || answer->is_final ||
                  8 + elements / CODEC_ROW_WIDTH * 68 >= 4 * BENCH_FULL);
        ck_assert_uint_eq(answer->bytes, 4 * BENCH_FULL);
        ck_assert_mem_eq(answer->data, values, sizeof(got));
        memcpy(got, answer->data, sizeof(got));
    }
    memcpy(r->params, got, sizeof(got));
    r->waits = false;
    r->names = false;
}

/* Whoever may be answered is; in lockstep their bytes are known beforehand. */
static void take_answers(size_t all_bytes)
{
    struct shard_reply answer;
    size_t sum = 0;

    for (unsigned next = 0; shard_next_reply(&shard, 0, &next, &answer); next++) {
        sum += answer.bytes;
        take_answer(next, &answer, shard.values);
    }
    if (consistency_is_lockstep(&shard.config.consistency))
        ck_assert_uint_eq(sum, all_bytes);
}

/* Now and then the connection breaks before the answer comes, and everything is said again. */
static void push(unsigned rank)
{
    struct rank *r = &ranks[rank];
    float value = (float)(support_random() - 0.5);
    struct shard_source source = bench_source(&value);
    struct row_reader namer = {read_numbers, r};
    struct shard_reply answer;
    size_t all_bytes;

    name_some(rank);
    assert_ok(shard_push(&shard, 0, rank, ++r->round, false, &source, &answer, &err));
    ck_assert(!answer.data);
    r->waits = true;
    all_bytes = answer.all_bytes;
    if (support_random() < 0.2) {
        shard_suspend(&shard, rank);
        if (r->names)
            assert_ok(shard_select_rows(&shard, 0, rank, true, &namer, &err));
        assert_ok(shard_push(&shard, 0, rank, r->round, true, &source, &answer, &err));
        ck_assert(answer.again);
        if (answer.data) { /* the others' rounds are whole by it, too */
            take_answer(rank, &answer, shard.values);
            all_bytes -= all_bytes > 0 ? answer.bytes : 0;
        }
    }
    take_answers(all_bytes);
}

START_TEST(test_every_answer)
{
    for (unsigned world_size = 1; world_size <= RANKS_MAX; world_size++) {
        struct shard_config config = bench_config(world_size, modes[_i].consistency);
        bool done = false;

        memset(ranks, 0, sizeof(ranks));
        config.previous = modes[_i].previous;
        config.optimizer.momentum = 0.9; /* rows go on changing without a gradient */
        config.compression.down.kind = CODEC_SELECTED_ROWS;
        bench_open(config);
        bench_set(0, 100);
        for (unsigned rank = 0; rank < world_size; rank++) {
            struct shard_reply answer;

            name_some(rank);
            assert_ok(shard_pull(&shard, 0, rank, 0, false, &answer, &err));
            ck_assert(answer.complete);
            take_answer(rank, &answer, shard.values);
        }
        while (!done) {
            unsigned rank = (unsigned)(support_random() * world_size);

            done = true;
            for (unsigned i = 0; i < world_size; i++)
                done = done && ranks[i].round == ROUNDS && !ranks[i].waits;
            if (!ranks[rank].waits && ranks[rank].round < ROUNDS)
                push(rank);
        }
        bench_close();
    }
}
END_TEST

static void name_row(unsigned rank, size_t row, bool again)
{
    struct rank *r = &ranks[rank];
    struct row_reader namer = {read_numbers, r};

    memset(r->named, 0, sizeof(r->named));
    for (size_t i = 0; i < CODEC_ROW_WIDTH; i++)
        r->named[row * CODEC_ROW_WIDTH + i] = true;
    r->names = true;
    assert_ok(shard_select_rows(&shard, 0, rank, again, &namer, &err));
}

static void start(struct consistency consistency, bool previous)
{
    struct shard_config config = bench_config(2, consistency);

    memset(ranks, 0, sizeof(ranks));
    config.previous = previous;
    config.compression.down.kind = CODEC_SELECTED_ROWS;
    bench_start(config);
}

/* Final values are told whole, whatever was named before. */
START_TEST(test_the_end_is_whole)
{
    struct shard_reply answer;

    start((struct consistency){.mode = CONSISTENCY_ASP}, false);
    name_row(0, 3, false);
    for (unsigned rank = 0; rank < 2; rank++)
        assert_ok(shard_finish(&shard, 0, rank, true, false, &answer, &err));
    take_answers(0);
    ck_assert_mem_eq(ranks[0].params, shard.values, BENCH_FULL * sizeof(float));
    ck_assert_mem_eq(ranks[1].params, shard.values, BENCH_FULL * sizeof(float));
    bench_close();
}
END_TEST

/* Values before the last step, for who takes a lost rank's place; and what the lost one has named
 * is not what the newcomer wants. */
START_TEST(test_older_values)
{
    float older[BENCH_FULL], value = 1;
    struct shard_source source = bench_source(&value);
    struct shard_reply answer;

    start((struct consistency){.mode = CONSISTENCY_BSP}, true);
    memcpy(older, shard.values, sizeof(older));
    for (unsigned rank = 0; rank < 2; rank++) {
        ranks[rank].round = 1;
        assert_ok(shard_push(&shard, 0, rank, 1, false, &source, &answer, &err));
    }
    take_answers(2 * 4 * BENCH_FULL);
    name_row(1, 2, false);
    assert_ok(shard_replace(&shard, 0, 1, &err));
    ranks[1].names = false;
    assert_ok(shard_pull(&shard, 0, 1, 0, true, &answer, &err));
    ck_assert_uint_eq(answer.round, 1);
    take_answer(1, &answer, shard.values);
    name_row(1, 5, false);
    assert_ok(shard_pull(&shard, 0, 1, 1, true, &answer, &err));
    ck_assert_uint_eq(answer.round, 0);
    ck_assert(answer.coded != NULL);
    take_answer(1, &answer, older);
    bench_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("row_selection");
    TCase *tests = tcase_create("row_selection");

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_every_answer, 0, (int)(sizeof(modes) / sizeof(modes[0])));
    tcase_add_test(tests, test_the_end_is_whole);
    tcase_add_test(tests, test_older_values);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
