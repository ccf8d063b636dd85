/*
 * Connections of one worker: one dead lane of several, the order in which partitions are sent, and
 * a close during a send or a memory exchange.
 */
#include "common/base/clock.h"
#include "common/base/handover.h"
#include "common/base/log.h"
#include "server/service/service_internal.h"
#include "tests/support/support.h"
#include "tests/worker/sync/ps_team.h"
#include "worker/sync/ps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct error err;

static void pause_shortly(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* ------------------------------------------------------------------ lanes */

/* One of three connections dies silently, at its start or later: its own heartbeats detect it, for
 * each lane, and the job continues as soon as after any loss. */
START_TEST(test_a_silent_lane_is_a_loss)
{
    static const struct {
        unsigned connection; /* 0: the one of Join */
        bool both;           /* directions; false: the server still receives heartbeats */
        bool from_start;
        bool shares;
    } cases[] = {{0, true, false, false}, {1, false, false, true}, {2, true, true, false}};
    struct team t;
    struct team_rank *r = &t.ranks[0];
    int64_t begun_ns;

    team_init(&t, 2, 1, 4);
    t.connections = 3;
    t.sharing = cases[_i].shares;
    team_open(&t);
    team_run_rank(&t.ranks[1]);
    if (cases[_i].from_start)
        fault_proxy_freeze(r->proxies[0], cases[_i].connection, cases[_i].both);
    begun_ns = clock_now_ns();
    ck_assert_msg(team_start_rank(r) == STATUS_OK, "%s", r->err.text);
    ck_assert_msg(team_step(r, 1) == STATUS_OK, "%s", r->err.text);
    if (!cases[_i].from_start) {
        begun_ns = clock_now_ns();
        fault_proxy_freeze(r->proxies[0], cases[_i].connection, cases[_i].both);
    }
    /* in shared memory rounds do not wait for the lane */
    while (cases[_i].shares && sync_counters(r->sync).reconnects == 0)
        pause_shortly();
    for (uint64_t round = 2; round <= 4; round++)
        ck_assert_msg(team_step(r, round) == STATUS_OK, "%s", r->err.text);
    ck_assert_int_lt(clock_now_ns() - begun_ns,
                     (t.heartbeat_timeout_ms + t.reconnect_ms) * 1000000);
    if (cases[_i].from_start) /* gRPC may detect it first: it waits for the first frame */
        ck_assert_uint_ge(fault_proxy_accepted(r->proxies[0]), 4);
    else
        ck_assert_uint_ge(sync_counters(r->sync).reconnects, 1);
    sync_close(r->sync, NULL);
    r->sync = NULL;
    team_join_rank(&t.ranks[1]);
    team_check(&t);
    team_close(&t);
}
END_TEST

/* ------------------------------------------------------------------ one rank with large partitions
 */

#define LARGE_BYTES      (256u << 10) /* of a partition: several times the flow-control window */
#define LARGE_FLOATS     (LARGE_BYTES / sizeof(float))
#define LARGE_PARTITIONS 24u
#define LARGE_COUNT      (LARGE_PARTITIONS * LARGE_FLOATS)

struct large {
    struct ps_servers servers;
    struct fault_proxy *proxy;
    struct tensor_table table;
    float *params, *grads;
    struct sync_ps *ps;
    atomic_bool held; /* replies are held */
};

static void large_open(struct large *l, bool priority)
{
    char address[64];
    struct sync *sync = NULL;
    struct sync_config config = {.kind = "ps",
                                 .table = &l->table,
                                 .world_size = 1,
                                 .timeout_ms = 30000,
                                 .manifest = "model\ttest\n",
                                 .job = "test",
                                 .servers = address,
                                 .servers_origin = "--servers",
                                 .update_on_server = true,
                                 .priority = priority,
                                 .partition_bytes = LARGE_BYTES,
                                 .optimizer = optimizer_defaults(OPTIMIZER_SGD)};

    memset(l, 0, sizeof(*l));
    ps_table_open(&l->table, LARGE_COUNT);
    ps_servers_open(&l->servers, 1, 30000);
    l->proxy = fault_proxy_open(service_port(l->servers.services[0]), 1);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", fault_proxy_port(l->proxy));
    config.params = l->params = ps_slab_new(LARGE_COUNT);
    config.grads = l->grads = ps_slab_new(LARGE_COUNT);
    assert_ok(sync_open(&config, &sync, &err));
    assert_ok(sync_start(sync, &err));
    l->ps = (struct sync_ps *)sync;
}

/* After the worker was closed. */
static void large_close(struct large *l)
{
    free(l->params); /* a sanitizer reports later reads */
    free(l->grads);
    fault_proxy_close(l->proxy);
    ps_servers_close(&l->servers);
    tensor_table_release(&l->table);
}

/* Count the stored partitions of the current round; *ret_here: `partition` is one of them. */
static size_t count_here(struct sync_ps *ps, size_t partition, bool *ret_here)
{
    size_t received;

    (void)pthread_mutex_lock(&ps->lock);
    received = ps->received;
    *ret_here = ps->partitions[partition].stored_mark == ps->round + 1;
    (void)pthread_mutex_unlock(&ps->lock);
    return received;
}

static void hold_down(void *user)
{
    struct large *l = user;

    fault_proxy_hold(l->proxy, FAULT_DOWN, true);
    atomic_store(&l->held, true);
}

/* All partitions are queued while nothing is forwarded; those that forward reads first are queued
 * last.  Then exactly four replies are forwarded.  With --priority three of them are those of the
 * last partitions: gRPC has taken one message already, of the partition that was queued when the
 * I/O thread first ran.  Without it they are the first four. */
START_TEST(test_priority_order)
{
    const bool priority = _i == 1;
    struct large l;
    struct sync *sync;
    bool here;

    large_open(&l, priority);
    sync = &l.ps->base;
    assert_ok(sync_begin(sync, 0, &err));
    fault_proxy_hold(l.proxy, FAULT_UP, true);
    sync_ready(sync, LARGE_COUNT);
    fault_proxy_call_at(l.proxy, FAULT_DOWN,
                        fault_proxy_bytes(l.proxy, FAULT_DOWN) + 4 * LARGE_BYTES + LARGE_BYTES / 2,
                        hold_down, &l);
    ck_assert_uint_eq(count_here(l.ps, 0, &here), 0);
    fault_proxy_hold(l.proxy, FAULT_UP, false);
    while (!atomic_load(&l.held) || count_here(l.ps, LARGE_PARTITIONS - 1, &here) < 4)
        pause_shortly();
    for (size_t i = 0; i < (priority ? 3 : 4); i++) {
        ck_assert_uint_eq(count_here(l.ps, priority ? LARGE_PARTITIONS - 1 - i : i, &here), 4);
        ck_assert_msg(here, "partition %zu from the %s is not here", i, priority ? "end" : "start");
    }
    fault_proxy_hold(l.proxy, FAULT_DOWN, false);
    assert_ok(sync_finish(sync, &err));
    assert_ok(sync_end(sync, &err));
    ck_assert(sync_close(sync, NULL));
    large_close(&l);
}
END_TEST

/* ------------------------------------------------------------------ closes */

/* When a connection is closed, gRPC releases payloads that it could not send: the slabs are the
 * caller's again. */
START_TEST(test_a_close_while_payloads_wait)
{
    struct error why = {.status = STATUS_CANCELLED, .text = "stopped"};
    struct large l;

    large_open(&l, _i == 1);
    assert_ok(sync_begin(&l.ps->base, 0, &err));
    fault_proxy_hold(l.proxy, FAULT_UP, true);
    fault_proxy_hold(l.proxy, FAULT_DOWN, true);
    sync_ready(&l.ps->base, LARGE_COUNT);
    ck_assert_uint_gt(in_flight_count(&l.ps->unreleased_payloads), 1);
    ck_assert(sync_close(&l.ps->base, &why));
    large_close(&l);
}
END_TEST

#define IDLE_CLIENTS 4    /* each blocks the fd_listener for two seconds */
#define EXCHANGE_MS  5000 /* the worker's limit for the exchange */
#define CLOSE_MS_MAX 3000 /* limit for a close on a slow machine */

/* A reconnecting link waits for the memory exchange: a close does not wait for it. */
START_TEST(test_a_close_during_a_memory_exchange)
{
    struct error why = {.status = STATUS_CANCELLED, .text = "stopped"};
    struct team t;
    struct team_rank *r = &t.ranks[0];
    struct ps_link *link;
    char name[HANDOVER_NAME_SIZE];
    unsigned char token[HANDOVER_TOKEN_BYTES];
    int idle_clients[IDLE_CLIENTS];
    int64_t begun_ns;
    bool in_exchange = false;

    team_init(&t, 1, 1, 1);
    t.sharing = 1;
    team_open(&t);
    ck_assert_msg(team_start_rank(r) == STATUS_OK, "%s", r->err.text);
    ck_assert(handover_parse(fd_listener_address(t.servers.services[0]->fd_listener), name, token));
    for (unsigned i = 0; i < IDLE_CLIENTS; i++)
        assert_ok(handover_connect(name, clock_deadline_ns(EXCHANGE_MS), &idle_clients[i], &err));
    fault_proxy_reset(r->proxies[0]);
    link = &((struct sync_ps *)r->sync)->links[0];
    while (!in_exchange) {
        pause_shortly();
        (void)pthread_mutex_lock(&link->lock);
        in_exchange = link->handover_fd >= 0;
        (void)pthread_mutex_unlock(&link->lock);
    }
    begun_ns = clock_now_ns();
    ck_assert(sync_close(r->sync, &why));
    ck_assert_int_lt(clock_now_ns() - begun_ns, CLOSE_MS_MAX * INT64_C(1000000));
    r->sync = NULL;
    for (unsigned i = 0; i < IDLE_CLIENTS; i++)
        (void)close(idle_clients[i]);
    team_close(&t);
}
END_TEST

int main(void)
{
    log_set_level(LOG_QUIET);
    return SUPPORT_RUN("ps_lanes", 60, LOOP_TEST(test_a_silent_lane_is_a_loss, 0, 3),
                       LOOP_TEST(test_priority_order, 0, 2),
                       LOOP_TEST(test_a_close_while_payloads_wait, 0, 2),
                       TEST(test_a_close_during_a_memory_exchange));
}
