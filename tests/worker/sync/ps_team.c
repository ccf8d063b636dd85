#include "tests/worker/sync/ps_team.h"

#include "common/base/memory.h"
#include "tests/support/support.h"

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

static float *new_slab(void)
{
    float *slab = NULL;

    assert_ok(mem_calloc_aligned(TEAM_COUNT, sizeof(float), "slab", &slab, &err));
    ck_assert_ptr_nonnull(slab);
    return slab;
}

static void fill(float *values, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 1;

    for (size_t i = 0; i < TEAM_COUNT; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        values[i] = ((float)(state >> 8) / 8388608.0f) - 1.0f;
    }
}

static void open_rank(struct team *t, unsigned index)
{
    struct team_rank *r = &t->ranks[index];
    size_t used = 0;

    r->team = t;
    r->index = index;
    r->rounds = t->rounds;
    r->memory = SHARED_MEMORY_NONE;
    if (t->shares) {
        assert_ok(shared_memory_open(2 * TEAM_COUNT * sizeof(float), "team", &r->memory, &err));
        r->params = r->memory.base;
        r->grads = r->params + TEAM_COUNT;
    } else {
        r->params = new_slab();
        r->grads = new_slab();
    }
    fill(r->params, 1000 + index); /* rank 0's must win */
    for (unsigned k = 0; k < t->server_count; k++) {
        r->proxies[k] = fault_proxy_open(service_port(t->services[k]), index * 10 + k);
        used += (size_t)snprintf(r->servers + used, sizeof(r->servers) - used, "%s127.0.0.1:%u",
                                 k ? "," : "", fault_proxy_port(r->proxies[k]));
    }
}

void team_open(struct team *t)
{
    for (unsigned k = 0; k < t->server_count; k++) {
        struct service_config config = {.listen = {.host = "127.0.0.1"},
                                        .listen_origin = "test",
                                        .threads = 2,
                                        .share_memory = true,
                                        .timeout_ms = t->timeout_ms};

        assert_ok(service_open(&config, &t->services[k], &err));
    }
    for (unsigned i = 0; i < t->world_size; i++)
        open_rank(t, i);
}

void team_close(struct team *t)
{
    for (unsigned i = 0; i < t->world_size; i++) {
        struct team_rank *r = &t->ranks[i];

        sync_close(r->sync, r->err.status ? &r->err : NULL);
        for (unsigned k = 0; k < t->server_count; k++)
            fault_proxy_close(r->proxies[k]);
        if (!t->shares) {
            free(r->params);
            free(r->grads);
        }
        shared_memory_release(&r->memory);
    }
    for (unsigned k = 0; k < t->server_count; k++)
        service_close(t->services[k]);
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
                                .on_worker_loss = t->on_loss,
                                .order = t->order,
                                .consistency = t->consistency,
                                .manifest = "seed\t1\nmodel\ttest\n",
                                .job = "test",
                                .servers = r->servers,
                                .servers_origin = "--servers",
                                .update_on_server = t->update,
                                .memory = t->shares ? &r->memory : NULL,
                                .ps_transport =
                                    t->shares ? SYNC_TRANSPORT_SHM : SYNC_TRANSPORT_AUTO,
                                .connections = t->connections,
                                .priority = t->connections > 1,
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
    fill(r->grads, gradient_seed(r->index, round));
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

static void *run(void *user)
{
    struct team_rank *r = user;

    r->status = run_rounds(r);
    if (r->sync)
        r->counters = sync_counters(r->sync);
    sync_close(r->sync, r->status == STATUS_OK ? NULL : &r->err);
    r->sync = NULL;
    return NULL;
}

void team_run_rank(struct team_rank *r)
{
    ck_assert_int_eq(pthread_create(&r->thread, NULL, run, r), 0);
}

void team_join_rank(struct team_rank *r)
{
    ck_assert_int_eq(pthread_join(r->thread, NULL), 0);
}

/* What one process would compute: divide, then sum in rank order, then update. */
static float *serial_reference(const struct team *t)
{
    float *params = new_slab(), *sum = new_slab(), *gradient = new_slab();
    float scale = (float)(1.0 / t->world_size);
    struct optimizer optimizer;

    assert_ok(optimizer_init(&optimizer, &t->optimizer, TEAM_COUNT, &err));
    fill(params, 1000);
    for (uint64_t round = 1; round <= t->rounds; round++) {
        for (unsigned rank = 0; rank < t->world_size; rank++) {
            fill(gradient, gradient_seed(rank, round));
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

bool team_same_bits(const void *a, const void *b, size_t count)
{
    return memcmp(a, b, count * sizeof(float)) == 0;
}

void team_check(const struct team *t)
{
    float *wanted = serial_reference(t);

    for (unsigned i = 0; i < t->world_size; i++) {
        ck_assert_msg(t->ranks[i].status == STATUS_OK, "rank %u: %s", i, t->ranks[i].err.text);
        for (size_t e = 0; e < TEAM_COUNT; e++)
            ck_assert_msg(team_same_bits(&t->ranks[i].params[e], &wanted[e], 1),
                          "rank %u, element %zu: %.9g, wanted %.9g", i, e,
                          (double)t->ranks[i].params[e], (double)wanted[e]);
    }
    free(wanted);
}
