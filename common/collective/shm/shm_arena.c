/*
 * Arena layout, and flags on top of futexes.  A sleeper counts itself before it looks at the flag
 * for the last time, and who raises the flag looks at the count afterwards, so one of them sees the
 * other and no wake-up is lost.  That takes a barrier between the two accesses on both sides.  On
 * the side that raises, in every operation, it would wait for the line of the flag to come from the
 * core that reads it (80 ns of an operation's 600); so the sleeper lets the kernel run that
 * side's barrier, too (membarrier(2)), unless the process that raises could not agree to it.
 * The count would wait for the same line if it lay on it, so it has a line of its own, one for all
 * flags that a rank raises.  A sleeper that is killed leaves its count behind, which costs a system
 * call per raise and nothing else.
 */
#include "common/collective/shm/shm_arena.h"

#include "common/base/futex.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHANNELS_OFFSET (SHM_PAGE + 2 * SHM_POST_STRIDE)
#define CHANNEL_STRIDE  (SHM_PAGE + SHM_FRAGMENTS * SHM_FRAGMENT_BYTES)

_Static_assert(sizeof(struct shm_control) <= SHM_PAGE, "control is one page");
_Static_assert(sizeof(struct shm_channel) <= SHM_PAGE, "a channel's head is one page");

size_t shm_arena_size(unsigned world_size)
{
    return CHANNELS_OFFSET + world_size * CHANNEL_STRIDE;
}

static unsigned char *at(const struct shared_memory *arena, size_t offset)
{
    return (unsigned char *)arena->base + offset;
}

struct shm_control *shm_control_of(const struct shared_memory *arena)
{
    return arena->base;
}

struct shm_channel *shm_channel_of(const struct shared_memory *arena, unsigned receiver)
{
    return (void *)at(arena, CHANNELS_OFFSET + receiver * CHANNEL_STRIDE);
}

unsigned char *shm_fragment_bytes(const struct shared_memory *arena, unsigned receiver,
                                  uint32_t fragment)
{
    return at(arena, CHANNELS_OFFSET + receiver * CHANNEL_STRIDE + SHM_PAGE +
                         fragment % SHM_FRAGMENTS * SHM_FRAGMENT_BYTES);
}

/* ---- flags ---- */

static atomic_bool sleepers_order; /* their barrier is this process's, too */

void shm_flags_prepare(void)
{
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0)
        atomic_store(&sleepers_order, true);
}

void shm_flag_raise(const struct shared_memory *own, struct shm_flag *flag, uint32_t value)
{
    if (atomic_load_explicit(&sleepers_order, memory_order_relaxed))
        atomic_store_explicit(&flag->value, value, memory_order_release);
    else /* not one call: an order that is no constant counts as the strongest */
        atomic_store_explicit(&flag->value, value, memory_order_seq_cst);
    atomic_signal_fence(memory_order_seq_cst);
    if (atomic_load(&shm_control_of(own)->sleepers) > 0)
        shm_flag_wake(flag);
}

void shm_flag_sleep(const struct shared_memory *raiser, struct shm_flag *flag, uint32_t value,
                    int64_t timeout_ns)
{
    atomic_uint *sleepers = &shm_control_of(raiser)->sleepers;
    uint32_t seen;

    atomic_fetch_add(sleepers, 1);
    (void)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    seen = atomic_load(&flag->value);
    if ((int32_t)(seen - value) < 0)
        futex_wait(&flag->value, seen, timeout_ns);
    atomic_fetch_sub(sleepers, 1);
}

void shm_flag_wake(struct shm_flag *flag)
{
    futex_wake(&flag->value);
}
