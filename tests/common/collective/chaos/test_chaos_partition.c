/*
 * A cut network: every rank lives in a network namespace of its own, joined by a bridge; then the
 * link of one goes down.  Its process runs and its kernel is silent, so the others must say
 * "network", not "stopped".  Needs root; says so when it is skipped.
 */
#include "tests/common/collective/chaos/chaos_world.h"
#include "tests/support/lateness.h"
#include "tests/support/process.h"

#include "common/base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS        3u
#define VICTIM       1u
#define HEARTBEAT_MS 1500

static char names[RANKS][32];
static char addresses[RANKS][32];
static const char *name_list[RANKS];
static const char *address_list[RANKS];
static char bridge[16];
static bool has_network;

static void remove_network(void)
{
    for (unsigned r = 0; r < RANKS; r++)
        (void)process_shell("ip netns del %s 2>/dev/null", names[r]);
    (void)process_shell("ip link del %s 2>/dev/null", bridge);
}

/* One bridge here, one namespace with one address per rank. */
static void make_network(void)
{
    unsigned id = (unsigned)getpid();
    bool made;

    (void)snprintf(bridge, sizeof(bridge), "spb%u", id % 1000000);
    made = process_shell("ip link add %s type bridge 2>/dev/null && ip link set %s up", bridge,
                         bridge);
    for (unsigned r = 0; r < RANKS; r++) {
        (void)snprintf(names[r], sizeof(names[r]), "spn%u-%u", id % 1000000, r);
        (void)snprintf(addresses[r], sizeof(addresses[r]), "10.99.%u.%u", id % 250, r + 1);
        name_list[r] = names[r];
        address_list[r] = addresses[r];
        made =
            made && process_shell("ip netns add %s 2>/dev/null && ip -n %s link set lo up && "
                                  "ip link add spv%u-%u type veth peer name eth0 netns %s && "
                                  "ip link set spv%u-%u master %s up && "
                                  "ip -n %s addr add %s/24 dev eth0 && ip -n %s link set eth0 up",
                                  names[r], names[r], id % 1000000, r, names[r], id % 1000000, r,
                                  bridge, names[r], addresses[r], names[r]);
    }
    has_network = made;
    if (made)
        return;
    remove_network();
    (void)printf("skipped: a cut network needs the right to make network namespaces (root, and the "
                 "'ip' command)\n");
}

static bool crosses_network(const char *backend)
{
    if (strcmp(backend, "shm") != 0 && strcmp(backend, "hier") != 0)
        return true;
    (void)printf("skipped: %s uses no network inside a host\n", backend);
    return false;
}

static void set_link(unsigned rank, const char *state)
{
    ck_assert(process_shell("ip -n %s link set eth0 %s", names[rank], state));
}

static const struct partition {
    size_t count;
    bool held;
} partitions[] = {{17, true}, {1 << 20, false}};

static void check(const struct chaos_world *w, unsigned rank, const struct chaos_report *r,
                  int64_t struck_ns, int64_t late_ns)
{
    const char *backend = w->config.backend;
    int64_t after_ns = r->ended_ns - struck_ns;

    (void)printf("%-5s rank %u after %.2f s: %s; then: %s %s\n", backend, rank,
                 (double)after_ns * 1e-9, r->text, status_name(r->shrink_status), r->shrink_text);
    ck_assert_msg(r->fault == FAULT_NETWORK, "%s: rank %u says %s: %s", backend, rank,
                  fault_name(r->fault), r->text);
    if (rank == VICTIM) { /* the smaller side must not go on */
        ck_assert_int_eq(r->shrink_status, STATUS_PEER_LOST);
        return;
    }
    ck_assert_msg(r->culprit == (int)VICTIM, "%s", r->text);
    ck_assert_msg(after_ns <=
                      (HEARTBEAT_MS + 1000 + LATENESS_TOLERANCE_MS) * INT64_C(1000000) + late_ns,
                  "%s: after %.2f s, on a host that was late by %.2f s", backend,
                  (double)after_ns * 1e-9, (double)late_ns * 1e-9);
    ck_assert_msg(r->shrunk_size == RANKS - 1, "%s: rank %u does not go on: %s: %s (after: %s)",
                  backend, rank, status_name(r->shrink_status), r->shrink_text, r->text);
}

static void cut_off(const char *backend, const void *argument)
{
    const struct partition *p = argument;
    struct chaos_world w;
    struct chaos_config config = {.backend = backend,
                                  .size = RANKS,
                                  .count = p->count,
                                  .timeout_ms = 60000,
                                  .heartbeat_timeout_ms = HEARTBEAT_MS,
                                  .victim = VICTIM,
                                  .second_victim = RANKS,
                                  .role = p->held ? CHAOS_HOLD : CHAOS_WORK,
                                  .at = 4,
                                  .stays = true,
                                  .shrink = true,
                                  .namespaces = name_list,
                                  .addresses = address_list};
    struct chaos_report reports[RANKS];
    struct lateness lateness;
    int64_t struck_ns;
    int64_t late_ns;

    if (!crosses_network(backend))
        return;
    set_link(VICTIM, "up"); /* however the backend before this one ended */
    chaos_start(&w, &config);
    for (unsigned r = 0; r < RANKS; r++)
        chaos_await(&w, r, 3);
    if (p->held)
        chaos_await_hold(&w, VICTIM);
    lateness_begin(&lateness);
    struck_ns = clock_now_ns();
    set_link(VICTIM, "down");
    for (unsigned r = 0; r < RANKS; r++)
        if (r != VICTIM || !p->held)
            reports[r] = chaos_report_of(&w, r, 60000);
    late_ns = lateness_end_ns(&lateness);
    for (unsigned r = 0; r < RANKS; r++)
        if (r != VICTIM || !p->held)
            check(&w, r, &reports[r], struck_ns, late_ns);
    chaos_end(&w);
}

START_TEST(a_rank_that_is_cut_off_is_a_network_fault)
{
    if (!has_network)
        return;
    chaos_each_backend(RANKS, 1, cut_off, &partitions[_i]);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("chaos_partition", 240, /* whatever a test does */
                       UNCHECKED_FIXTURE(make_network, remove_network),
                       LOOP_TEST(a_rank_that_is_cut_off_is_a_network_fault, 0, 2));
}
