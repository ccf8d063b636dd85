/*
 * Offsets, and flags on top of futexes.  A sleeper counts itself before it looks at the flag for
 * the last time, and who raises the flag looks at the count afterwards; both are sequentially
 * consistent, so one of them sees the other and no wake-up is lost.  A sleeper that is killed
 * leaves its count behind, which costs a system call per raise and nothing else.
 */
#include "common/collective/shm/shm_arena.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE        ((size_t)4096)
#define POST_STRIDE (PAGE + SHM_CHUNK_BYTES)
#define CHUNK_SHIFT sizeof(struct shm_post)

#define CHANNELS_OFFSET (PAGE + 2 * POST_STRIDE)
#define CHANNEL_STRIDE  (PAGE + SHM_LETTERS * SHM_LETTER_BYTES)

_Static_assert(sizeof(struct shm_control) <= PAGE, "control is one page");
_Static_assert(sizeof(struct shm_channel) <= PAGE, "a channel's head is one page");

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

struct shm_post *shm_post_of(const struct shared_memory *arena, uint32_t step)
{
    return (void *)at(arena, PAGE + step % 2 * POST_STRIDE);
}

/* Right behind the places: the processor fetches the next lines of its own accord. */
unsigned char *shm_chunk_of(const struct shared_memory *arena, uint32_t step)
{
    return at(arena, PAGE + step % 2 * POST_STRIDE + CHUNK_SHIFT);
}

struct shm_channel *shm_channel_of(const struct shared_memory *arena, unsigned receiver)
{
    return (void *)at(arena, CHANNELS_OFFSET + receiver * CHANNEL_STRIDE);
}

unsigned char *shm_letter_bytes(const struct shared_memory *arena, unsigned receiver,
                                uint32_t letter)
{
    return at(arena, CHANNELS_OFFSET + receiver * CHANNEL_STRIDE + PAGE +
                         letter % SHM_LETTERS * SHM_LETTER_BYTES);
}

/* ---- flags ---- */

/* Not FUTEX_PRIVATE_FLAG: the other side is another process. */
static void futex(atomic_uint *word, int operation, uint32_t value, const struct timespec *timeout)
{
    (void)syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void shm_flag_raise(struct shm_flag *flag, uint32_t value)
{
    atomic_store(&flag->value, value);
    if (atomic_load(&flag->sleepers) > 0)
        shm_flag_wake(flag);
}

bool shm_flag_reached(const struct shm_flag *flag, uint32_t value)
{
    return (int32_t)(atomic_load_explicit(&flag->value, memory_order_acquire) - value) >= 0;
}

void shm_flag_sleep(struct shm_flag *flag, uint32_t value, int64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    uint32_t seen;

    atomic_fetch_add(&flag->sleepers, 1);
    seen = atomic_load(&flag->value);
    if ((int32_t)(seen - value) < 0)
        futex(&flag->value, FUTEX_WAIT, seen, &timeout);
    atomic_fetch_sub(&flag->sleepers, 1);
}

void shm_flag_wake(struct shm_flag *flag)
{
    futex(&flag->value, FUTEX_WAKE, INT_MAX, NULL);
}
