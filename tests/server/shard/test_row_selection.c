/*
 * Row selection in every mode: each rank selects rows before each of its pushes, in a random order
 * of events, and every reply has, bit for bit, the values at the time of the reply.
 */
#include "server/shard/mutation.h"
#include "tests/server/shard/shard_fixture.h"

#include <stdlib.h>

#define RANKS_MAX 3u
#define ROUNDS    8u
#define COUNT     (FIXTURE_FULL + FIXTURE_LAST)

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
    bool selects;         /* its next reply has only selected rows */
    bool selected[COUNT]; /* by element of the partition */
    float params[COUNT];  /* its copy of partition 0 */
};

static struct rank ranks[RANKS_MAX];

static enum status read_row_numbers(void *user, struct codec_selection_decoder *decoder,
                                    struct error *error)
{
    const struct rank *r = user;

    for (size_t i = 0; i < FIXTURE_FULL; i += CODEC_ROW_WIDTH) {
        uint32_t number = (uint32_t)(i / CODEC_ROW_WIDTH);
        enum status status =
            r->selected[i] ? codec_selection_decode_feed(decoder, &number, sizeof(number), error)
                           : STATUS_OK;

        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static void select_some_rows(unsigned rank)
{
    struct rank *r = &ranks[rank];
    struct row_reader reader = {read_row_numbers, r};
    double density = support_random() * 1.2;

    r->selects = support_random() < 0.8;
    for (size_t i = 0; i < FIXTURE_FULL; i++)
        r->selected[i] = i % CODEC_ROW_WIDTH ? r->selected[i - 1] : support_random() < density;
    if (r->selects)
        assert_ok(shard_select_rows(&shard, 0, rank, false, &reader, &err));
}

/* Apply the reply and check it.  `values`: the present ones of partition 0. */
static void take_reply(unsigned rank, const struct shard_reply *reply, const float *values)
{
    struct rank *r = &ranks[rank];
    float got[FIXTURE_FULL], expected[FIXTURE_FULL];
    size_t elements = 0;

    for (size_t i = 0; i < FIXTURE_FULL; i++) {
        bool included = !r->selects || reply->is_final || r->selected[i];

        got[i] = r->params[i];
        expected[i] = included ? values[i] : r->params[i];
        elements += included;
    }
    if (reply->coded) {
        ck_assert(r->selects && reply->codec.kind == CODEC_SELECTED_ROWS);
        ck_assert_uint_eq(reply->bytes, 8 + elements / CODEC_ROW_WIDTH * 68);
        assert_ok(codec_decode(&reply->codec, reply->coded, reply->bytes, got, FIXTURE_FULL,
                               CODEC_PATCH, &err));
        ck_assert_mem_eq(got, expected, sizeof(got));
    } else { /* all rows: there is no selection, or it would not be shorter */
        ck_assert(!r->selects || reply->is_final ||
                  8 + elements / CODEC_ROW_WIDTH * 68 >= 4 * FIXTURE_FULL);
        ck_assert_uint_eq(reply->bytes, 4 * FIXTURE_FULL);
        ck_assert_mem_eq(reply->data, values, sizeof(got));
        memcpy(got, reply->data, sizeof(got));
    }
    memcpy(r->params, got, sizeof(got));
    r->waits = false;
    r->selects = false;
}

/* Take all replies that are due; in lockstep their bytes are known from the push. */
static void take_replies(size_t all_bytes)
{
    struct shard_reply reply;
    size_t sum = 0;

    for (unsigned next = 0; shard_next_reply(&shard, 0, &next, &reply); next++) {
        sum += reply.bytes;
        take_reply(next, &reply, shard.values);
    }
    if (consistency_is_lockstep(&shard.config.consistency))
        ck_assert_uint_eq(sum, all_bytes);
}

/* Push; sometimes the connection breaks before the reply, and selection and push are resent. */
static void push(unsigned rank)
{
    struct rank *r = &ranks[rank];
    float value = (float)(support_random() - 0.5);
    struct shard_source source = fixture_source(&value);
    struct row_reader reader = {read_row_numbers, r};
    struct shard_reply reply;
    size_t all_bytes;

    select_some_rows(rank);
    assert_ok(shard_push(&shard, 0, rank, ++r->round, false, &source, &reply, &err));
    ck_assert(!reply.data);
    r->waits = true;
    all_bytes = reply.all_bytes;
    if (support_random() < 0.2) {
        shard_suspend(&shard, rank);
        if (r->selects)
            assert_ok(shard_select_rows(&shard, 0, rank, true, &reader, &err));
        assert_ok(shard_push(&shard, 0, rank, r->round, true, &source, &reply, &err));
        ck_assert(reply.again);
        if (reply.data) { /* the round is complete */
            take_reply(rank, &reply, shard.values);
            all_bytes -= all_bytes > 0 ? reply.bytes : 0;
        }
    }
    take_replies(all_bytes);
}

START_TEST(test_every_reply)
{
    for (unsigned world_size = 1; world_size <= RANKS_MAX; world_size++) {
        struct shard_config config = fixture_config(world_size, modes[_i].consistency);
        bool done = false;

        memset(ranks, 0, sizeof(ranks));
        config.previous = modes[_i].previous;
        config.optimizer.momentum = 0.9; /* rows change without a gradient, too */
        config.compression.down.kind = CODEC_SELECTED_ROWS;
        fixture_open(config);
        fixture_set(0, 100);
        for (unsigned rank = 0; rank < world_size; rank++) {
            struct shard_reply reply;

            select_some_rows(rank);
            assert_ok(shard_pull(&shard, 0, rank, 0, false, &reply, &err));
            ck_assert(reply.complete);
            take_reply(rank, &reply, shard.values);
        }
        while (!done) {
            unsigned rank = (unsigned)(support_random() * world_size);

            done = true;
            for (unsigned i = 0; i < world_size; i++)
                done = done && ranks[i].round == ROUNDS && !ranks[i].waits;
            if (!ranks[rank].waits && ranks[rank].round < ROUNDS)
                push(rank);
        }
        fixture_close();
    }
}
END_TEST

static void select_row(unsigned rank, size_t row, bool again)
{
    struct rank *r = &ranks[rank];
    struct row_reader reader = {read_row_numbers, r};

    memset(r->selected, 0, sizeof(r->selected));
    for (size_t i = 0; i < CODEC_ROW_WIDTH; i++)
        r->selected[row * CODEC_ROW_WIDTH + i] = true;
    r->selects = true;
    assert_ok(shard_select_rows(&shard, 0, rank, again, &reader, &err));
}

static void start(struct consistency consistency, bool previous)
{
    struct shard_config config = fixture_config(2, consistency);

    memset(ranks, 0, sizeof(ranks));
    config.previous = previous;
    config.compression.down.kind = CODEC_SELECTED_ROWS;
    fixture_start(config);
}

/* Final values have all rows, whatever was selected before. */
START_TEST(test_final_values_have_all_rows)
{
    struct shard_reply reply;

    start((struct consistency){.mode = CONSISTENCY_ASP}, false);
    select_row(0, 3, false);
    for (unsigned rank = 0; rank < 2; rank++)
        assert_ok(shard_finish(&shard, 0, rank, true, false, &reply, &err));
    take_replies(0);
    ck_assert_mem_eq(ranks[0].params, shard.values, FIXTURE_FULL * sizeof(float));
    ck_assert_mem_eq(ranks[1].params, shard.values, FIXTURE_FULL * sizeof(float));
    fixture_close();
}
END_TEST

/* Values before the last step, for the replacement of a lost rank; the lost session's selection
 * does not apply to the replacement. */
START_TEST(test_older_values)
{
    float older[FIXTURE_FULL], value = 1;
    struct shard_source source = fixture_source(&value);
    struct shard_reply reply;

    start((struct consistency){.mode = CONSISTENCY_BSP}, true);
    memcpy(older, shard.values, sizeof(older));
    for (unsigned rank = 0; rank < 2; rank++) {
        ranks[rank].round = 1;
        assert_ok(shard_push(&shard, 0, rank, 1, false, &source, &reply, &err));
    }
    take_replies(2 * 4 * FIXTURE_FULL);
    select_row(1, 2, false);
    assert_ok(shard_replace(&shard, 0, 1, &err));
    ranks[1].selects = false;
    assert_ok(shard_pull(&shard, 0, 1, 0, true, &reply, &err));
    ck_assert_uint_eq(reply.round, 1);
    take_reply(1, &reply, shard.values);
    select_row(1, 5, false);
    assert_ok(shard_pull(&shard, 0, 1, 1, true, &reply, &err));
    ck_assert_uint_eq(reply.round, 0);
    ck_assert(reply.coded != NULL);
    take_reply(1, &reply, older);
    fixture_close();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("row_selection", 60,
                       LOOP_TEST(test_every_reply, 0, sizeof(modes) / sizeof(modes[0])),
                       TEST(test_final_values_have_all_rows), TEST(test_older_values));
}
