/*
 * Waiting for a flag: spin while that is fastest, then yield the core, then sleep.  Spinning is
 * skipped where ranks outnumber cores, because the awaited rank needs the core.  Sleeps are short,
 * because only the flag wakes them: in between, the alarm, the deadline and the peers are checked.
 */
#include "common/base/clock.h"
#include "common/collective/shm/shm.h"

#include <poll.h>
#include <sched.h>
#include <string.h>

#define SPINS_PER_CHECK 64               /* reads of the flag between two reads of the clock */
#define SLICE_NS        INT64_C(5000000) /* of sleep */

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static unsigned presence_of(const struct shm_peer *p)
{
    return atomic_load_explicit(&shm_control_of(&p->arena)->presence, memory_order_acquire);
}

static enum run_outcome peer_failed(struct shm_group *g, unsigned rank, struct error *err)
{
    const struct shm_control *control = shm_control_of(&g->peers[rank].arena);
    bool known = control->status != STATUS_OK && status_is_known(control->status) &&
                 control->fault > FAULT_NONE && control->fault < FAULT_COUNT;

    g->base.fault = known ? (enum fault)control->fault : FAULT_FAILED;
    g->base.culprit =
        known && control->culprit >= 0 ? control->culprit : (int)g->base.members[rank];
    (void)error_set(err, known ? (enum status)control->status : STATUS_PEER_LOST,
                    "rank %u gave up: %.*s", g->base.members[rank], (int)sizeof(control->text) - 1,
                    control->text);
    return RUN_FAILED;
}

static enum run_outcome peer_left(struct shm_group *g, const struct collective_work *work,
                                  unsigned rank, struct error *err)
{
    struct signature theirs = work->signature;

    theirs.call = COLLECTIVE_CLOSE;
    return collective_mismatch(&g->base, work, rank, &theirs, err);
}

/* Has the awaited rank's process ended?  Then its socket is closed. */
static bool has_process_ended(const struct shm_peer *p)
{
    struct pollfd socket = {.fd = p->fd, .events = POLLRDHUP};

    return poll(&socket, 1, 0) == 1 && (socket.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

/* RUN_FAILED when the flag cannot be raised any more, RUN_DONE to go on waiting. */
static enum run_outcome check_peers(struct shm_group *g, const struct collective_work *work,
                                    unsigned peer, const struct shm_flag *flag, uint32_t value,
                                    bool slept, struct error *err)
{
    bool gone = slept && has_process_ended(&g->peers[peer]);

    for (unsigned r = 0; r < g->base.world_size; r++)
        if (r != g->base.rank && presence_of(&g->peers[r]) == SHM_FAILED)
            return peer_failed(g, r, err);
    if (!gone && presence_of(&g->peers[peer]) == SHM_PRESENT)
        return RUN_DONE;
    if (shm_flag_reached(flag, value)) /* raised before it left */
        return RUN_DONE;
    if (presence_of(&g->peers[peer]) == SHM_LEFT)
        return peer_left(g, work, peer, err);
    (void)error_set(err, STATUS_PEER_LOST, "rank %u is gone: its process ended",
                    g->base.members[peer]);
    g->base.fault = FAULT_DEAD;
    g->base.culprit = (int)g->base.members[peer];
    return RUN_FAILED;
}

static bool is_alarmed(const struct shm_group *g)
{
    const struct mesh_alarm *alarm = g->base.alarm;

    return alarm && atomic_load_explicit(&alarm->raised, memory_order_acquire);
}

/* Between two looks; what is longer, this process was stopped. */
static int64_t wait_between(int64_t from_ns, int64_t to_ns)
{
    return to_ns - from_ns < 2 * SLICE_NS ? to_ns - from_ns : 2 * SLICE_NS;
}

static void spin_on_flag(const struct shm_flag *flag, uint32_t value)
{
    for (unsigned i = 0; i < SPINS_PER_CHECK && !shm_flag_reached(flag, value); i++)
        pause_core();
}

enum run_outcome shm_wait(struct shm_group *g, struct collective_work *work, unsigned peer,
                          struct shm_flag *flag, uint32_t value, int64_t until_ns,
                          struct error *err)
{
    int64_t start_ns = 0;
    int64_t checked_ns = 0;
    bool slept = false;

    if (g->spin_ns > 0) /* mostly the flag is raised before the clock could be read */
        spin_on_flag(flag, value);
    while (!shm_flag_reached(flag, value)) {
        int64_t now_ns = clock_now_ns();
        enum run_outcome outcome = check_peers(g, work, peer, flag, value, slept, err);

        start_ns = start_ns == 0 ? now_ns : start_ns;
        work->waited_ns += checked_ns != 0 ? wait_between(checked_ns, now_ns) : 0;
        checked_ns = now_ns;
        if (outcome != RUN_DONE)
            return outcome;
        if (now_ns >= until_ns || is_alarmed(g))
            return shm_flag_reached(flag, value) ? RUN_DONE : RUN_PENDING;
        slept = now_ns - start_ns >= g->spin_ns + g->yield_ns;
        if (now_ns - start_ns < g->spin_ns)
            spin_on_flag(flag, value);
        else if (!slept)
            (void)sched_yield();
        else
            shm_flag_sleep(&g->peers[peer].arena, flag, value,
                           until_ns - now_ns < SLICE_NS ? until_ns - now_ns : SLICE_NS);
    }
    if (checked_ns != 0)
        work->waited_ns += wait_between(checked_ns, clock_now_ns());
    return RUN_DONE;
}

static void wake_all(const struct shm_group *g)
{
    const struct shared_memory *arena = &g->peers[g->base.rank].arena;

    for (uint32_t i = 0; i < 2; i++)
        shm_flag_wake(&shm_post_of(arena, i)->flag);
    for (unsigned r = 0; r < g->base.world_size; r++) {
        shm_flag_wake(&shm_channel_of(arena, r)->written);
        if (r != g->base.rank && g->peers[r].arena.base != NULL) /* else not open yet */
            shm_flag_wake(&shm_channel_of(&g->peers[r].arena, g->base.rank)->read);
    }
}

void shm_set_presence(struct shm_group *g, enum shm_presence presence, const struct error *why)
{
    struct shm_control *control = shm_control_of(&g->peers[g->base.rank].arena);

    if (atomic_load(&control->presence) != SHM_PRESENT)
        return;
    if (presence == SHM_FAILED) {
        control->status = why->status;
        control->fault = (int32_t)g->base.fault;
        control->culprit = g->base.culprit;
        memcpy(control->text, why->text, sizeof(control->text) - 1);
    }
    atomic_store_explicit(&control->presence, presence, memory_order_release);
    wake_all(g);
}
