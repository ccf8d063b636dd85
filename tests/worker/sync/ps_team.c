/*
 * Each rank runs on a thread of its own with a fault_proxy per server.  Two references check the
 * result: a serial run in float32 for bit-exact modes, and one in double with error bounds for
 * modes whose order of sums is not fixed.
 */
#include "tests/worker/sync/ps_team.h"

#include "tests/support/bounded.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;

void team_init(struct team *t, unsigned world_size, unsigned servers, uint64_t rounds)
{
    size_t weight[2] = {TEAM_COUNT / 8, 7}, bias[1] = {TEAM_COUNT - TEAM_COUNT / 8 * 7};

    memset(t, 0, sizeof(*t));
    t->world_size = world_size;
    t->server_count = servers;
    t->rounds = rounds;
    t->update = true;
    t->order = REDUCE_REPRODUCIBLE;
    t->timeout_ms = 30000;
    t->reconnect_ms = 20000;
    t->heartbeat_timeout_ms = 1500;
    t->optimizer = optimizer_defaults(OPTIMIZER_SGD);
    t->optimizer.learning_rate = 0.1;
    t->optimizer.momentum = 0.9;
    assert_ok(tensor_table_add(&t->table, "weight", 2, weight, &err));
    assert_ok(tensor_table_add(&t->table, "bias", 1, bias, &err));
    tensor_table_layout(&t->table);
}

void team_init_plain(struct team *t, unsigned world_size, unsigned servers, uint64_t rounds)
{
    team_init(t, world_size, servers, rounds);
    t->direct = true;
    t->reconnect_ms = 0;
    t->heartbeat_timeout_ms = 0;
}

static void open_rank(struct team *t, unsigned index)
{
    struct team_rank *r = &t->ranks[index];
    size_t used = 0;

    *r = (struct team_rank){
        .team = t, .index = index, .rounds = t->rounds, .memory = SHARED_MEMORY_NONE};
    if (t->sharing > 0 && index % t->sharing == 0) {
        assert_ok(shared_memory_open(2 * TEAM_COUNT * sizeof(float), "team", &r->memory, &err));
        r->params = r->memory.base;
        r->grads = r->params + TEAM_COUNT;
    } else {
        r->params = ps_slab_new(TEAM_COUNT);
        r->grads = ps_slab_new(TEAM_COUNT);
    }
    ps_fill(r->params, TEAM_COUNT, 1000 + index); /* overwritten by rank 0's */
    if (t->direct)
        (void)snprintf(r->servers, sizeof(r->servers), "%s", t->servers.addresses);
    for (unsigned k = 0; !t->direct && k < t->server_count; k++) {
        r->proxies[k] = fault_proxy_open(service_port(t->servers.services[k]), index * 10 + k);
        used += (size_t)snprintf(r->servers + used, sizeof(r->servers) - used, "%s127.0.0.1:%u",
                                 k ? "," : "", fault_proxy_port(r->proxies[k]));
    }
}

void team_open_ranks(struct team *t)
{
    for (unsigned i = 0; i < t->world_size; i++)
        open_rank(t, i);
}

void team_close_ranks(struct team *t)
{
    for (unsigned i = 0; i < t->world_size; i++) {
        struct team_rank *r = &t->ranks[i];

        sync_close(r->sync, r->err.status ? &r->err : NULL);
        for (unsigned k = 0; k < t->server_count && r->proxies[k]; k++)
            fault_proxy_close(r->proxies[k]);
        if (!r->memory.base) {
            free(r->params);
            free(r->grads);
        }
        shared_memory_release(&r->memory);
    }
}

void team_open(struct team *t)
{
    ps_servers_open(&t->servers, t->server_count, t->timeout_ms);
    team_open_ranks(t);
}

void team_close(struct team *t)
{
    team_close_ranks(t);
    ps_servers_close(&t->servers);
    tensor_table_release(&t->table);
}

struct sync_config team_config(const struct team_rank *r)
{
    const struct team *t = r->team;

    return (struct sync_config){.kind = "ps",
                                .table = &t->table,
                                .params = r->params,
                                .grads = r->grads,
                                .rank = r->index,
                                .world_size = t->world_size,
                                .timeout_ms = t->timeout_ms,
                                .heartbeat_timeout_ms = t->heartbeat_timeout_ms,
                                .reconnect_ms = t->reconnect_ms,
                                .on_rank_loss = t->on_loss,
                                .order = t->order,
                                .consistency = t->consistency,
                                .manifest = "seed\t1\nmodel\ttest\n",
                                .job = "test",
                                .servers = r->servers,
                                .servers_origin = "--servers",
                                .server_weights = t->weights,
                                .update_on_server = t->update,
                                .memory = r->memory.base ? &r->memory : NULL,
                                .ps_transport = r->memory.base && !t->another_host
                                                    ? SYNC_TRANSPORT_SHM
                                                    : SYNC_TRANSPORT_AUTO,
                                .connections = t->connections,
                                .priority = t->priority,
                                .compression = t->compression,
                                .overlap_forward = t->overlap_forward,
                                .partition_bytes = TEAM_PARTITION_BYTES,
                                .optimizer = t->optimizer};
}

enum status team_start_rank(struct team_rank *r)
{
    struct sync_config config = team_config(r);
    enum status status = sync_open(&config, &r->sync, &r->err);

    if (status == STATUS_OK)
        status = sync_start(r->sync, &r->err);
    if (status == STATUS_OK)
        r->first = sync_skipped(r->sync) + 1;
    return status;
}

static uint32_t gradient_seed(unsigned rank, uint64_t round)
{
    return (uint32_t)(rank * 1000 + round);
}

enum status team_begin_step(struct team_rank *r, uint64_t round, size_t ready_count)
{
    enum status status = sync_begin(r->sync, round - 1, &r->err);

    if (status == STATUS_OK)
        status = sync_await(r->sync, 0, TEAM_COUNT, &r->err);
    if (status != STATUS_OK)
        return status;
    if (r->team->at_step)
        r->team->at_step(r, round);
    ps_fill(r->grads, TEAM_COUNT, gradient_seed(r->index, round));
    for (size_t mark = 0; mark < ready_count; mark += 700 + 13 * r->index)
        sync_ready(r->sync, mark);
    sync_ready(r->sync, ready_count);
    return STATUS_OK;
}

enum status team_step(struct team_rank *r, uint64_t round)
{
    enum status status = team_begin_step(r, round, TEAM_COUNT);

    return status == STATUS_OK ? sync_finish(r->sync, &r->err) : status;
}

static enum status run_rounds(struct team_rank *r)
{
    struct optimizer optimizer;
    enum status status = optimizer_init(&optimizer, &r->team->optimizer, TEAM_COUNT, &r->err);

    if (status == STATUS_OK)
        status = team_start_rank(r);
    for (uint64_t round = r->first; status == STATUS_OK && round <= r->rounds;
         round += 1 + sync_skipped(r->sync)) {
        status = team_step(r, round);
        if (status == STATUS_OK && sync_yields(r->sync) == SYNC_YIELDS_GRADIENTS)
            optimizer_update(&optimizer, round, 0, TEAM_COUNT, r->params, r->grads);
    }
    if (status == STATUS_OK)
        status = sync_await(r->sync, 0, TEAM_COUNT, &r->err);
    if (status == STATUS_OK)
        status = sync_end(r->sync, &r->err);
    optimizer_release(&optimizer);
    return status;
}

static void *run_rank(void *user)
{
    struct team_rank *r = user;

    r->status = run_rounds(r);
    if (r->sync)
        r->counters = sync_counters(r->sync);
    if (r->status == STATUS_OK && r->team->check)
        r->team->check(r);
    sync_close(r->sync, r->status == STATUS_OK ? NULL : &r->err);
    r->sync = NULL;
    return NULL;
}

void team_run_rank(struct team_rank *r)
{
    ck_assert_int_eq(pthread_create(&r->thread, NULL, run_rank, r), 0);
}

void team_join_rank(struct team_rank *r)
{
    ck_assert_int_eq(pthread_join(r->thread, NULL), 0);
}

/* The computation in one process: divide, then sum in rank order, then update. */
float *team_reference(const struct team *t, uint64_t rounds)
{
    float *params = ps_slab_new(TEAM_COUNT), *sum = ps_slab_new(TEAM_COUNT),
          *gradient = ps_slab_new(TEAM_COUNT);
    float scale = (float)(1.0 / t->world_size);
    struct optimizer optimizer;

    assert_ok(optimizer_init(&optimizer, &t->optimizer, TEAM_COUNT, &err));
    ps_fill(params, TEAM_COUNT, 1000);
    for (uint64_t round = 1; round <= rounds; round++) {
        for (unsigned rank = 0; rank < t->world_size; rank++) {
            ps_fill(gradient, TEAM_COUNT, gradient_seed(rank, round));
            for (size_t i = 0; i < TEAM_COUNT; i++)
                sum[i] = rank == 0 ? gradient[i] * scale : sum[i] + gradient[i] * scale;
        }
        optimizer_update(&optimizer, round, 0, TEAM_COUNT, params, sum);
    }
    optimizer_release(&optimizer);
    free(sum);
    free(gradient);
    return params;
}

/* The same in double, with error bounds of float32 sums in any order. */
static struct bounded *team_bounds(const struct team *t, uint64_t rounds)
{
    struct bounded *params = calloc(3 * TEAM_COUNT, sizeof(*params));
    struct bounded *momentum = params + TEAM_COUNT, *sum = momentum + TEAM_COUNT;
    float *values = ps_slab_new(TEAM_COUNT);

    ck_assert_ptr_nonnull(params);
    ps_fill(values, TEAM_COUNT, 1000);
    for (size_t i = 0; i < TEAM_COUNT; i++)
        params[i] = bounded_exact((double)values[i]);
    for (uint64_t round = 1; round <= rounds; round++) {
        memset(sum, 0, TEAM_COUNT * sizeof(*sum));
        for (unsigned rank = 0; rank < t->world_size; rank++) {
            ps_fill(values, TEAM_COUNT, gradient_seed(rank, round));
            for (size_t i = 0; i < TEAM_COUNT; i++) /* roundings: sums, factor, product */
                bounded_add(&sum[i], bounded_exact((double)values[i] / t->world_size),
                            t->world_size + 1);
        }
        for (size_t i = 0; i < TEAM_COUNT; i++) { /* the settings are rounded, too */
            momentum[i] = bounded_product(bounded_round(t->optimizer.momentum, 0.0), momentum[i]);
            momentum[i] = bounded_plus(momentum[i], sum[i]);
            params[i] = bounded_minus(
                params[i],
                bounded_product(bounded_round(t->optimizer.learning_rate, 0.0), momentum[i]));
        }
    }
    free(values);
    return params;
}

void team_run_all(struct team *t)
{
    for (unsigned i = 0; i < t->world_size; i++)
        team_run_rank(&t->ranks[i]);
    for (unsigned i = 0; i < t->world_size; i++)
        team_join_rank(&t->ranks[i]);
}

void team_check(const struct team *t)
{
    float *wanted = team_reference(t, t->rounds);
    struct bounded *bounds = team_bounds(t, t->rounds);
    const float *got = t->ranks[0].params;
    bool exact = t->order == REDUCE_REPRODUCIBLE || t->world_size <= 2;

    for (unsigned i = 0; i < t->world_size; i++) {
        ck_assert_msg(t->ranks[i].status == STATUS_OK, "rank %u: %s", i, t->ranks[i].err.text);
        ck_assert_msg(ps_same_bits(t->ranks[i].params, got, TEAM_COUNT),
                      "rank %u has other parameters than rank 0", i);
    }
    for (size_t e = 0; e < TEAM_COUNT; e++)
        ck_assert_msg(exact ? ps_same_bits(&got[e], &wanted[e], 1)
                            : fabs((double)got[e] - bounds[e].value) <= bounds[e].error,
                      "element %zu: %.9g, wanted %.9g", e, (double)got[e], (double)wanted[e]);
    free(bounds);
    free(wanted);
}
