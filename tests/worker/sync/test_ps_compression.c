/*
 * Compression in both directions, with real servers and workers in one process, against a model
 * without threads and wire: bit for bit, with the number of bytes of the formula.
 */
#include "tests/support/support.h"
#include "tests/worker/sync/ps_parts.h"
#include "worker/sync/ps_codec.h"
#include "worker/sync/sync.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX  3u
#define SERVERS    2u
#define ROUNDS     6u
#define FULL       (PARTITION_BYTES / sizeof(float))
#define PARTITIONS 6u
#define COUNT      ((PARTITIONS - 1) * FULL + 99)

enum {
    PARTITION_BYTES = 4096,
    TIMEOUT_MS = 20000,
    TOP_K_PPM = 20000, /* 21 of 1024 */
};

static struct error err;

struct team {
    struct ps_servers servers;
    struct tensor_table table;
    unsigned world_size;
    bool update;
    struct compression compression;
    struct optimizer_config optimizer;
    float poison; /* value in rank 0's gradient of round 3; 0: none */
    bool sparse;  /* gradients are zero but for a few elements */
};

struct rank {
    struct team *team;
    unsigned index;
    pthread_t thread;
    float *params, *grads;
    struct sync *sync;
    struct sync_counters counters; /* at the end */
    enum status status;
    struct error err;
};

static void team_open(struct team *t, unsigned world_size, bool update, enum codec_kind up,
                      enum codec_kind down)
{
    memset(t, 0, sizeof(*t));
    t->world_size = world_size;
    t->update = update;
    t->compression = compression_make((uint32_t)up, (uint32_t)down, TOP_K_PPM);
    t->optimizer = optimizer_defaults(OPTIMIZER_SGD);
    t->optimizer.learning_rate = 0.1;
    t->optimizer.momentum = 0.9;
    ps_table_open(&t->table, COUNT);
    ps_servers_open(&t->servers, SERVERS, TIMEOUT_MS);
}

static void team_close(struct team *t)
{
    ps_servers_close(&t->servers);
    tensor_table_release(&t->table);
}

#define SPARSE_STRIDE 1600 /* one row of 16 in a hundred */

static void fill_gradient(const struct team *t, float *values, unsigned rank, uint64_t round)
{
    ps_fill(values, COUNT, (uint32_t)(rank * 100 + round));
    for (size_t i = 0; t->sparse && i < COUNT; i++)
        if (i % SPARSE_STRIDE != 37 * round % SPARSE_STRIDE)
            values[i] = 0.0f;
}

/* ------------------------------------------------------------------ real ranks */

static enum status step(struct rank *r, uint64_t round)
{
    enum status status = sync_begin(r->sync, round - 1, &r->err);

    if (status != STATUS_OK)
        return status;
    fill_gradient(r->team, r->grads, r->index, round);
    if (round == 3 && r->index == 0 && r->team->poison != 0.0f)
        r->grads[FULL + 5] = r->team->poison;
    for (size_t mark = 0; mark < COUNT; mark += 700 + 13 * r->index)
        sync_ready(r->sync, mark);
    sync_ready(r->sync, COUNT);
    return sync_finish(r->sync, &r->err);
}

static enum status run_rounds(struct rank *r)
{
    const struct team *t = r->team;
    struct sync_config config = {.kind = "ps",
                                 .table = &t->table,
                                 .params = r->params,
                                 .grads = r->grads,
                                 .rank = r->index,
                                 .world_size = t->world_size,
                                 .timeout_ms = TIMEOUT_MS,
                                 .order = REDUCE_REPRODUCIBLE,
                                 .manifest = "model\ttest\n",
                                 .job = "test",
                                 .servers = t->servers.addresses,
                                 .servers_origin = "--servers",
                                 .update_on_server = t->update,
                                 .partition_bytes = PARTITION_BYTES,
                                 .optimizer = t->optimizer,
                                 .compression = t->compression};
    struct optimizer optimizer;
    enum status status = optimizer_init(&optimizer, &t->optimizer, COUNT, &r->err);

    if (status == STATUS_OK)
        status = sync_open(&config, &r->sync, &r->err);
    if (status == STATUS_OK)
        status = sync_start(r->sync, &r->err);
    for (uint64_t round = 1; status == STATUS_OK && round <= ROUNDS; round++) {
        status = step(r, round);
        if (status == STATUS_OK && sync_yields(r->sync) == SYNC_YIELDS_GRADIENTS)
            optimizer_update(&optimizer, round, 0, COUNT, r->params, r->grads);
    }
    optimizer_release(&optimizer);
    return status;
}

static uint64_t all_bytes(const struct codec *c)
{
    return (PARTITIONS - 1) * codec_bytes(c, FULL) + codec_bytes(c, COUNT % FULL);
}

static uint64_t expected(const struct codec *c)
{
    return codec_has_variable_size(c) ? UINT64_MAX : all_bytes(c);
}

static void check_counters(struct rank *r)
{
    struct sync_counters c = sync_counters(r->sync);
    uint64_t tx, rx, initial = r->index == 0 ? COUNT * sizeof(float) : 0;

    sync_expected_bytes(r->sync, &tx, &rx);
    ck_assert_uint_eq(tx, expected(&r->team->compression.up));
    ck_assert_uint_eq(rx, expected(&r->team->compression.down));
    if (codec_has_variable_size(&r->team->compression.up)) /* the bytes depend on the data */
        ck_assert_uint_le(c.tx_payload_bytes, initial + ROUNDS * COUNT * sizeof(float));
    else
        ck_assert_uint_eq(c.tx_payload_bytes, initial + ROUNDS * tx);
    if (codec_has_variable_size(&r->team->compression.down))
        ck_assert_uint_le(c.rx_payload_bytes, (1 + ROUNDS) * COUNT * sizeof(float));
    else
        ck_assert_uint_eq(c.rx_payload_bytes, COUNT * sizeof(float) + ROUNDS * rx);
}

static void *run_rank(void *user)
{
    struct rank *r = user;

    r->status = run_rounds(r);
    if (r->status == STATUS_OK)
        check_counters(r);
    if (r->status == STATUS_OK)
        r->counters = sync_counters(r->sync);
    sync_close(r->sync, r->status == STATUS_OK ? NULL : &r->err);
    return NULL;
}

static void run_all(struct team *t, struct rank *ranks)
{
    for (unsigned i = 0; i < t->world_size; i++) {
        ranks[i] = (struct rank){
            .team = t, .index = i, .params = ps_slab_new(COUNT), .grads = ps_slab_new(COUNT)};
        ps_fill(ranks[i].params, COUNT, 1000 + i); /* overwritten by rank 0's */
    }
    for (unsigned i = 0; i < t->world_size; i++)
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (unsigned i = 0; i < t->world_size; i++)
        ck_assert_int_eq(pthread_join(ranks[i].thread, NULL), 0);
}

static void release_all(const struct team *t, struct rank *ranks)
{
    for (unsigned i = 0; i < t->world_size; i++) {
        free(ranks[i].params);
        free(ranks[i].grads);
    }
}

/* ------------------------------------------------------------------ the model */

/* Encode and decode slab + residual per partition; the residual keeps the difference. */
static void transmit(const struct codec *c, const float *slab, float *residual, float *decoded)
{
    static uint8_t bytes[8 * FULL];

    for (size_t at = 0; at < COUNT; at += FULL) {
        size_t count = COUNT - at < FULL ? COUNT - at : FULL;

        if (codec_has_variable_size(c)) { /* exact */
            memcpy(decoded + at, slab + at, count * sizeof(float));
            continue;
        }
        assert_ok(codec_encode(c, slab + at, codec_has_residual(c) ? residual + at : NULL, count,
                               bytes, &err));
        assert_ok(codec_decode(c, bytes, codec_bytes(c, count), decoded + at, count, false, &err));
    }
}

struct model {
    float *values; /* the servers', or every worker's */
    float *held;   /* the workers' copy */
    float *sum, *gradient, *decoded, *work;
    float *up[RANKS_MAX], *down; /* residuals */
};

static void add_gradient(const struct team *t, struct model *m, unsigned rank, uint64_t round)
{
    float scale = (float)(1.0 / t->world_size);

    fill_gradient(t, m->gradient, rank, round);
    for (size_t i = 0; i < COUNT; i++)
        m->gradient[i] *= scale;
    transmit(&t->compression.up, m->gradient, m->up[rank], m->decoded);
    for (size_t i = 0; i < COUNT; i++)
        m->sum[i] = rank == 0 ? m->decoded[i] : m->sum[i] + m->decoded[i];
}

/* After an update on the servers: send the workers values, or deltas. */
static void transmit_values(const struct team *t, struct model *m)
{
    if (!codec_has_residual(&t->compression.down)) {
        transmit(&t->compression.down, m->values, NULL, m->held);
        return;
    }
    for (size_t i = 0; i < COUNT; i++)
        m->work[i] = m->values[i] - m->held[i];
    memset(m->down, 0, COUNT * sizeof(float));
    transmit(&t->compression.down, m->work, m->down, m->decoded);
    for (size_t i = 0; i < COUNT; i++)
        if (m->decoded[i] != 0.0f)
            m->held[i] += m->decoded[i];
}

/* The final parameters of every worker. */
static float *model_run(const struct team *t)
{
    struct model m = {.values = ps_slab_new(COUNT),
                      .held = ps_slab_new(COUNT),
                      .sum = ps_slab_new(COUNT),
                      .gradient = ps_slab_new(COUNT),
                      .decoded = ps_slab_new(COUNT),
                      .work = ps_slab_new(COUNT),
                      .down = ps_slab_new(COUNT)};
    struct optimizer optimizer;

    for (unsigned rank = 0; rank < RANKS_MAX; rank++)
        m.up[rank] = ps_slab_new(COUNT);
    assert_ok(optimizer_init(&optimizer, &t->optimizer, COUNT, &err));
    ps_fill(m.values, COUNT, 1000);
    ps_fill(m.held, COUNT, 1000);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (unsigned rank = 0; rank < t->world_size; rank++)
            add_gradient(t, &m, rank, round);
        if (t->update) {
            optimizer_update(&optimizer, round, 0, COUNT, m.values, m.sum);
            transmit_values(t, &m);
        } else {
            transmit(&t->compression.down, m.sum, m.down, m.decoded);
            optimizer_update(&optimizer, round, 0, COUNT, m.held, m.decoded);
        }
    }
    optimizer_release(&optimizer);
    for (unsigned rank = 0; rank < RANKS_MAX; rank++)
        free(m.up[rank]);
    free(m.values);
    free(m.sum);
    free(m.gradient);
    free(m.decoded);
    free(m.work);
    free(m.down);
    return m.held;
}

/* ------------------------------------------------------------------ tests */

static void compare(struct team *t, const struct rank *ranks)
{
    float *wanted = model_run(t);

    for (unsigned i = 0; i < t->world_size; i++) {
        ck_assert_msg(ranks[i].status == STATUS_OK, "rank %u: %s", i, ranks[i].err.text);
        for (size_t e = 0; e < COUNT; e++)
            if (!ps_same_bits(&ranks[i].params[e], &wanted[e], 1))
                ck_abort_msg("up %s, down %s, update %d, %u ranks: rank %u, element %zu: %.9g, "
                             "wanted %.9g",
                             codec_name(t->compression.up.kind),
                             codec_name(t->compression.down.kind), t->update, t->world_size, i, e,
                             (double)ranks[i].params[e], (double)wanted[e]);
    }
    free(wanted);
}

/* Every pair of codecs; world size and the optimizer's side vary, so that each codec runs with all
 * of them. */
START_TEST(test_equals_the_model)
{
    enum codec_kind up = (enum codec_kind)(_i / CODEC_KINDS);
    enum codec_kind down = (enum codec_kind)(_i % CODEC_KINDS);
    unsigned first =
        down == CODEC_SELECTED_ROWS; /* for values only; without a selection all rows are sent */

    for (unsigned update = first; update < 2 && up != CODEC_SELECTED_ROWS; update++) {
        struct team t;
        struct rank ranks[RANKS_MAX] = {0};

        team_open(&t, 1 + ((unsigned)_i + update) % RANKS_MAX, update, up, down);
        run_all(&t, ranks);
        compare(&t, ranks);
        release_all(&t, ranks);
        team_close(&t);
    }
}
END_TEST

/* Of gradients with one row in a hundred only those rows are sent, in both directions; the result
 * is the same. */
START_TEST(test_sparse_rows)
{
    struct team t;
    struct rank ranks[RANKS_MAX] = {0};
    uint64_t initial = COUNT * sizeof(float), rows = (COUNT + SPARSE_STRIDE - 1) / SPARSE_STRIDE;
    uint64_t most = ROUNDS * (PARTITIONS * 8 + rows * 68); /* headers and rows */

    team_open(&t, 3, _i, CODEC_ROWS, CODEC_ROWS);
    t.sparse = true;
    t.optimizer.momentum = 0; /* else rows of earlier steps keep changing */
    run_all(&t, ranks);
    compare(&t, ranks);
    for (unsigned i = 0; i < t.world_size; i++) {
        const struct sync_counters *c = &ranks[i].counters;

        ck_assert_uint_le(c->tx_payload_bytes - (i == 0 ? initial : 0), most);
        ck_assert_uint_le(c->rx_payload_bytes - initial, most);
        ck_assert_uint_lt(most, ROUNDS * initial / 40);
        ck_assert_uint_ge(c->rx_payload_bytes - initial, ROUNDS * (rows - 1) * 68);
    }
    release_all(&t, ranks);
    team_close(&t);
}
END_TEST

/* topk of all elements equals none; for deltas of values, up to rounding. */
START_TEST(test_top_k_of_all_is_none)
{
    for (unsigned update = 0; update < 2; update++) {
        float *wanted;
        struct team t;
        struct rank ranks[RANKS_MAX] = {0};

        team_open(&t, 2, update, CODEC_NONE, CODEC_NONE);
        wanted = model_run(&t);
        t.compression = compression_make(CODEC_TOP_K, CODEC_TOP_K, CODEC_PPM);
        run_all(&t, ranks);
        for (unsigned i = 0; i < 2; i++) {
            ck_assert_msg(ranks[i].status == STATUS_OK, "%s", ranks[i].err.text);
            for (size_t e = 0; e < COUNT; e++)
                if (fabsf(ranks[i].params[e] - wanted[e]) > (update ? 1e-6f : 0.0f))
                    ck_abort_msg("element %zu: %.9g, wanted %.9g", e, (double)ranks[i].params[e],
                                 (double)wanted[e]);
        }
        free(wanted);
        release_all(&t, ranks);
        team_close(&t);
    }
}
END_TEST

/* A gradient that onebit cannot encode ends the job with an error that names it. */
START_TEST(test_not_a_number)
{
    struct team t;
    struct rank ranks[RANKS_MAX] = {0};

    team_open(&t, 2, true, CODEC_ONE_BIT, CODEC_NONE);
    t.poison = NAN;
    run_all(&t, ranks);
    ck_assert_int_eq(ranks[0].status, STATUS_DATA);
    ck_assert_msg(
        strstr(ranks[0].err.text, "rank 0, partition 1, round 3: onebit cannot encode NaN"), "%s",
        ranks[0].err.text);
    ck_assert_int_ne(ranks[1].status, STATUS_OK);
    ck_assert_msg(strstr(ranks[1].err.text, "rank 0"), "%s", ranks[1].err.text);
    release_all(&t, ranks);
    team_close(&t);
}
END_TEST

/* The same for a mean that the server cannot encode. */
START_TEST(test_not_a_number_down)
{
    struct team t;
    struct rank ranks[RANKS_MAX] = {0};

    team_open(&t, 2, false, CODEC_FP16, CODEC_ONE_BIT);
    t.poison = 1e9f; /* infinity in float16 */
    run_all(&t, ranks);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_int_ne(ranks[i].status,
                         STATUS_OK); /* DATA, or PEER_LOST from the other rank's failure */
        ck_assert_msg(strstr(ranks[i].err.text, "onebit cannot encode NaN or infinity"), "%s",
                      ranks[i].err.text);
    }
    release_all(&t, ranks);
    team_close(&t);
}
END_TEST

/* Settings that are rejected before any join. */
START_TEST(test_refused)
{
    struct compression c = compression_make(CODEC_FP16, CODEC_FP16, 0);

    assert_ok(compression_check(&c, &err));
    c = compression_make(CODEC_TOP_K, CODEC_NONE, 0);
    assert_fails(compression_check(&c, &err), STATUS_INVALID, "0 parts per million");
    c = compression_make(CODEC_NONE, CODEC_KINDS, 1);
    assert_fails(compression_check(&c, &err), STATUS_INVALID, "compression 7");
}
END_TEST

/* Row selection is for values, of ranks that know what they read next. */
START_TEST(test_row_selection_refused)
{
    struct compression c = compression_make(CODEC_SELECTED_ROWS, CODEC_NONE, 0);
    struct consistency k = {.mode = CONSISTENCY_BSP};

    assert_fails(compression_check(&c, &err), STATUS_INVALID, "'named' is for replies only");
    c = compression_make(CODEC_ROWS, CODEC_SELECTED_ROWS, 0);
    assert_ok(compression_check(&c, &err));
    assert_ok(compression_check_row_selection(&c, &k, true, &err));
    assert_fails(compression_check_row_selection(&c, &k, false, &err), STATUS_INVALID,
                 "on the workers");
    k.backup = 1;
    assert_fails(compression_check_row_selection(&c, &k, true, &err), STATUS_INVALID,
                 "no backup workers");
    k = (struct consistency){.mode = CONSISTENCY_ASP, .delay_compensation = 0.1};
    assert_fails(compression_check_row_selection(&c, &k, true, &err), STATUS_INVALID, "has read");
    c.down.kind = CODEC_NONE;
    assert_ok(compression_check_row_selection(&c, &k, true, &err));
}
END_TEST

/* The first send of a round encodes the gradient; a repetition after a reconnection has the same
 * bytes, and the residual is applied once. */
START_TEST(test_once_a_round)
{
    struct partition partition = {.count = FULL};
    struct shard_map map = {.partitions = &partition, .length = 1};
    struct compression up = compression_make(CODEC_TOP_K, CODEC_NONE, TOP_K_PPM);
    struct ps_codec c;
    float *gradient = calloc(FULL, sizeof(float));
    float *residual = calloc(FULL, sizeof(float));
    uint8_t first[PARTITION_BYTES];
    const uint8_t *coded = NULL;
    size_t size = 0, again = 0;

    ck_assert(gradient != NULL && residual != NULL);
    assert_ok(ps_codec_init(&c, &up, CODEC_REPLACE, &map, &err));
    for (size_t i = 0; i < FULL; i++)
        gradient[i] = (float)((i * 37) % FULL);
    assert_ok(ps_codec_encode(&c, 0, 1, gradient, &partition, &coded, &size, &err));
    ck_assert(coded != NULL && size > 0 && size <= sizeof(first));
    memcpy(first, coded, size);
    memcpy(residual, c.residual, FULL * sizeof(float));

    assert_ok(ps_codec_encode(&c, 0, 1, gradient, &partition, &coded, &again, &err));
    ck_assert_uint_eq(again, size);
    ck_assert_mem_eq(coded, first, size);
    ck_assert_mem_eq(c.residual, residual, FULL * sizeof(float));

    memset(gradient, 0, FULL * sizeof(float));
    gradient[5] = 1e6f; /* the next round has other bytes */
    assert_ok(ps_codec_encode(&c, 0, 2, gradient, &partition, &coded, &again, &err));
    ck_assert_uint_eq(again, size);
    ck_assert_mem_ne(coded, first, size);
    ps_codec_release(&c);
    free(gradient);
    free(residual);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("ps_compression", 120,
                       LOOP_TEST(test_equals_the_model, 0, CODEC_KINDS * CODEC_KINDS),
                       LOOP_TEST(test_sparse_rows, 0, 2), TEST(test_top_k_of_all_is_none),
                       TEST(test_not_a_number), TEST(test_not_a_number_down), TEST(test_refused),
                       TEST(test_row_selection_refused), TEST(test_once_a_round));
}
