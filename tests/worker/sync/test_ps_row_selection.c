/*
 * Row selection with real servers and workers: a rank's selected rows equal those of a serial run,
 * bit for bit, also after broken connections; all other rows are unchanged or equally new.
 * Momentum changes every parameter in every round, so rows that are not sent are old.
 */
#include "tests/support/support.h"
#include "tests/worker/sync/ps_team.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS      16u
#define ROUND_BYTES (TEAM_COUNT * sizeof(float))

static const struct {
    unsigned ranks;
    struct consistency consistency;
    unsigned connections;
    bool overlap, breaks;
} cases[] = {
    {2, {.mode = CONSISTENCY_BSP}, 1, false, false},
    {3, {.mode = CONSISTENCY_BSP}, 2, true, false},
    {2, {.mode = CONSISTENCY_BSP}, 2, true, true},
    {2, {.mode = CONSISTENCY_SSP}, 1, false, true},
    {1, {.mode = CONSISTENCY_SSP, .staleness = 2}, 1, false, true},
    {1, {.mode = CONSISTENCY_ASP}, 3, false, true},
};

/* A rank's parameters before the round, and its selection. */
static struct holding {
    bool all;
    bool wanted[TEAM_COUNT];
    float params[TEAM_COUNT];
    uint64_t state;
    size_t old; /* elements that were not sent, summed over the rounds */
} holdings[TEAM_RANKS_MAX];

static float *references[ROUNDS + 1];

static uint32_t draw(struct holding *h, uint32_t below)
{
    h->state = h->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(h->state >> 33) % below;
}

/* Check that the selected parameters are those of `round`. */
static void check_round(struct team_rank *r, uint64_t round)
{
    struct holding *h = &holdings[r->index];

    for (size_t i = 0; i < TEAM_COUNT; i++) {
        bool fresh = ps_same_bits(&r->params[i], &references[round][i], 1);
        bool is_wanted = h->all || h->wanted[i];

        if (!fresh && (is_wanted || !ps_same_bits(&r->params[i], &h->params[i], 1)))
            ck_abort_msg("rank %u, round %u, element %zu (%s): %.9g, wanted %.9g", r->index,
                         (unsigned)round, i, is_wanted ? "wanted" : "not wanted",
                         (double)r->params[i], (double)references[round][i]);
        h->old += !fresh;
    }
}

/* Select some rows of the first tensor and a part of the second one; sometimes none, or all. */
static void select_some(struct team_rank *r)
{
    const struct tensor_view *weight = &r->team->table.views[0], *bias = &r->team->table.views[1];
    struct holding *h = &holdings[r->index];
    size_t width = weight->count / weight->shape[0], from = draw(h, (uint32_t)bias->count);
    size_t length = draw(h, (uint32_t)(bias->count - from) + 1);
    uint32_t sparse = 2 + draw(h, 200), kind = draw(h, 6);

    memset(h->wanted, 0, sizeof(h->wanted));
    h->all = kind == 0;
    if (kind == 1)
        sync_select_range(r->sync, 0, 0);
    for (uint32_t row = 0; kind > 1 && row < weight->shape[0]; row++) {
        if (draw(h, sparse) > 0)
            continue;
        sync_select_rows(r->sync, weight, &row, 1);
        memset(h->wanted + weight->offset + row * width, true, width * sizeof(*h->wanted));
    }
    if (kind > 1) {
        sync_select_range(r->sync, bias->offset + from, length);
        memset(h->wanted + bias->offset + from, true, length * sizeof(*h->wanted));
    }
}

static void at_step(struct team_rank *r, uint64_t round)
{
    struct holding *h = &holdings[r->index];

    ck_assert(sync_selects_rows(r->sync));
    check_round(r, round - 1);
    memcpy(h->params, r->params, sizeof(h->params));
    h->all = true;
    if (round < ROUNDS)
        select_some(r);
}

struct breaker {
    struct fault_proxy *proxy;
    uint64_t state;
    enum fault_direction way;
    unsigned left;
};

static void reset_connections(void *user)
{
    struct breaker *b = user;

    fault_proxy_reset(b->proxy);
    b->way = b->left % 2 ? FAULT_UP : FAULT_DOWN;
    b->state = b->state * 6364136223846793005u + 1442695040888963407u;
    if (b->left-- > 0)
        fault_proxy_call_at(b->proxy, b->way,
                            fault_proxy_bytes(b->proxy, b->way) + 1 +
                                (b->state >> 33) % ROUND_BYTES,
                            reset_connections, b);
}

static void check_bytes(const struct team *t, bool breaks)
{
    uint64_t reconnects = 0;

    for (unsigned i = 0; i < t->world_size; i++) {
        const struct sync_counters *c = &t->ranks[i].counters;

        ck_assert_uint_gt(holdings[i].old, TEAM_COUNT);
        ck_assert_uint_lt(c->rx_payload_bytes, (1 + ROUNDS) * ROUND_BYTES * 4 / 5);
        ck_assert_uint_eq(c->tx_payload_bytes, (i == 0) * ROUND_BYTES + ROUNDS * ROUND_BYTES);
        ck_assert_uint_gt(c->tx_wire_bytes, c->tx_payload_bytes);
        reconnects += c->reconnects;
    }
    ck_assert_uint_ge(reconnects, breaks ? 2 : 0);
}

/* Initialise a team and its references. */
static void prepare(struct team *t, unsigned ranks)
{
    team_init(t, ranks, 2, ROUNDS);
    t->compression = compression_make(CODEC_NONE, CODEC_SELECTED_ROWS, 0);
    t->at_step = at_step;
    for (uint64_t round = 0; round <= ROUNDS; round++)
        references[round] = team_reference(t, round);
    for (unsigned i = 0; i < ranks; i++)
        holdings[i] = (struct holding){.all = true, .state = (uint64_t)(support_random() * 1e9)};
}

static void release_references(void)
{
    for (uint64_t round = 0; round <= ROUNDS; round++)
        free(references[round]);
}

START_TEST(test_selected_rows)
{
    struct team t;
    struct breaker breakers[TEAM_RANKS_MAX][2];

    prepare(&t, cases[_i].ranks);
    t.consistency = cases[_i].consistency;
    t.order = consistency_is_lockstep(&t.consistency) ? REDUCE_REPRODUCIBLE : REDUCE_FAST;
    t.connections = cases[_i].connections;
    t.overlap_forward = cases[_i].overlap;
    team_open(&t);
    for (unsigned i = 0; i < t.world_size; i++) {
        for (unsigned k = 0; k < 2 && cases[_i].breaks; k++) {
            breakers[i][k] = (struct breaker){.proxy = t.ranks[i].proxies[k],
                                              .state = (uint64_t)(support_random() * 1e9),
                                              .left = 5};
            fault_proxy_call_at(t.ranks[i].proxies[k], FAULT_DOWN, ROUND_BYTES / 2,
                                reset_connections, &breakers[i][k]);
        }
    }
    for (unsigned i = 0; i < t.world_size; i++)
        team_run_rank(&t.ranks[i]);
    for (unsigned i = 0; i < t.world_size; i++)
        team_join_rank(&t.ranks[i]);
    team_check(&t); /* the last round, or sync_end, fetches all rows */
    check_bytes(&t, cases[_i].breaks);
    team_close(&t);
    release_references();
}
END_TEST

static void disconnect(struct team_rank *r)
{
    for (unsigned k = 0; k < 2; k++) {
        fault_proxy_refuse(r->proxies[k], true);
        fault_proxy_reset(r->proxies[k]);
    }
}

/* Rank 1 is lost with a part of its selection and gradients sent; its replacement reads all rows
 * first, and then selects its own. */
START_TEST(test_a_replacement_selects_rows)
{
    const uint64_t last = 5; /* round in which it is lost */
    struct team t;
    struct team_rank *r = &t.ranks[1], lost;

    prepare(&t, 2);
    t.on_loss = WORKER_LOSS_WAIT;
    t.reconnect_ms = 1500;
    team_open(&t);
    team_run_rank(&t.ranks[0]);
    ck_assert_msg(team_start_rank(r) == STATUS_OK, "%s", r->err.text);
    for (uint64_t round = 1; round < last; round++)
        ck_assert_msg(team_step(r, round) == STATUS_OK, "%s", r->err.text);
    ck_assert_msg(team_begin_step(r, last, TEAM_COUNT / 2) == STATUS_OK, "%s", r->err.text);
    disconnect(r);
    lost = *r;
    lost.err = (struct error){.status = STATUS_PEER_LOST, .text = "played dead"};
    sync_close(lost.sync, &lost.err); /* the proxies refuse its Leave */
    r->sync = NULL;
    memset(r->params, 0, TEAM_COUNT * sizeof(float));
    holdings[1].all = true;
    for (unsigned k = 0; k < 2; k++)
        fault_proxy_refuse(r->proxies[k], false);
    team_run_rank(r);
    team_join_rank(r);
    team_join_rank(&t.ranks[0]);
    team_check(&t);
    team_close(&t);
    release_references();
}
END_TEST

static void select_nothing(struct team_rank *r, uint64_t round)
{
    (void)round;
    ck_assert(!sync_selects_rows(r->sync));
    sync_select_range(r->sync, 0, 0);
}

/* Without row selection sync_select_range has no effect. */
START_TEST(test_no_selection)
{
    struct team t;
    struct team_rank *r = &t.ranks[0];

    team_init(&t, 1, 1, 2);
    t.at_step = select_nothing;
    team_open(&t);
    team_run_rank(r);
    team_join_rank(r);
    team_check(&t);
    ck_assert_uint_eq(r->counters.rx_payload_bytes, 3 * ROUND_BYTES);
    team_close(&t);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("ps_row_selection", 120,
                       LOOP_TEST(test_selected_rows, 0, sizeof(cases) / sizeof(cases[0])),
                       TEST(test_a_replacement_selects_rows), TEST(test_no_selection));
}
