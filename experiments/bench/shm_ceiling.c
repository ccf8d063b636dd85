/*
 * shm_ceiling: each rank shares one memory region: a page with its barrier counter, then its data.
 * Ranks synchronise by counters alone: a rank waits until every counter reaches its own.
 */
#include "experiments/bench/shm_ceiling.h"

#include "common/base/host.h"
#include "common/base/memory.h"
#include "common/tensor/reduce.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA_OFFSET ((size_t)4096)
#define BLOCK       ((size_t)16384) /* elements reduced at a time, to stay in cache */
#define RANKS_MAX   64
#define SPINS       2000

static void arena_key(unsigned rank, char *key, size_t size)
{
    (void)snprintf(key, size, "ceiling/arena/%u", rank);
}

/* A process of the same user may open another's descriptor through /proc/<pid>/fd/<n>. */
static enum status map_peer(struct shm_ceiling *c, struct store *store, unsigned rank,
                            int64_t timeout_ms, struct error *err)
{
    char key[64];
    char *path = NULL;
    size_t length;
    int fd;
    enum status status;

    arena_key(rank, key, sizeof(key));
    status = store_get(store, key, timeout_ms, &path, &length, err);
    if (status != STATUS_OK)
        return status;
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        status = error_set_errno(err, errno, "ceiling-shm: cannot open rank %u's '%s'", rank, path);
    else
        status = shared_memory_map(fd, DATA_OFFSET + c->size, &c->arenas[rank], err);
    free(path);
    return status;
}

static atomic_uint *barrier_of(const struct shm_ceiling *c, unsigned rank)
{
    return c->arenas[rank].base;
}

static float *data_of(const struct shm_ceiling *c, unsigned rank)
{
    return (float *)((char *)c->arenas[rank].base + DATA_OFFSET);
}

static void barrier(struct shm_ceiling *c)
{
    uint32_t target = ++c->barriers;

    atomic_store_explicit(barrier_of(c, c->rank), target, memory_order_release);
    for (unsigned r = 0; r < c->world_size; r++) {
        unsigned spins = 0;

        while ((int32_t)(atomic_load_explicit(barrier_of(c, r), memory_order_acquire) - target) < 0)
            if (++spins > c->spins)
                (void)sched_yield();
    }
}

enum status shm_ceiling_open(struct shm_ceiling *c, struct store *store, size_t size,
                             int64_t timeout_ms, struct error *err)
{
    struct host_info host;
    char key[64];
    char path[64];
    enum status status;

    *c = (struct shm_ceiling){
        .rank = store_rank(store), .world_size = store_world_size(store), .size = size};
    host_info_read(&host);
    c->spins = c->world_size > host.cores ? 0 : SPINS;
    if (c->world_size > RANKS_MAX)
        return error_set(err, STATUS_CONFIG, "ceiling-shm: %u ranks are more than %d",
                         c->world_size, RANKS_MAX);
    status = mem_calloc(c->world_size, sizeof(*c->arenas), "arenas", &c->arenas, err);
    if (status != STATUS_OK)
        return status;
    for (unsigned r = 0; r < c->world_size; r++)
        c->arenas[r] = SHARED_MEMORY_NONE;
    status = shared_memory_open(DATA_OFFSET + size, "ceiling-shm", &c->arenas[c->rank], err);
    if (status != STATUS_OK)
        return status;
    c->data = data_of(c, c->rank);
    memset(c->data, 0, size);
    (void)snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)getpid(), c->arenas[c->rank].fd);
    arena_key(c->rank, key, sizeof(key));
    status = store_set(store, key, path, strlen(path) + 1, err);
    for (unsigned r = 0; r < c->world_size && status == STATUS_OK; r++)
        if (r != c->rank)
            status = map_peer(c, store, r, timeout_ms, err);
    return status;
}

/* The number of elements of a rank's slice: whole cache lines, except for the last slice. */
static size_t slice_of(const struct shm_ceiling *c, size_t count, unsigned rank, size_t *ret_from)
{
    size_t slice = ((count + c->world_size - 1) / c->world_size + 15) / 16 * 16;
    size_t from = rank * slice < count ? rank * slice : count;

    *ret_from = from;
    return count - from < slice ? count - from : slice;
}

void shm_ceiling_run(struct shm_ceiling *c, size_t count)
{
    const struct reduction sum = {.dtype = DTYPE_FLOAT32, .op = REDUCE_SUM};
    const void *inputs[RANKS_MAX];
    size_t from;
    size_t left = slice_of(c, count, c->rank, &from);

    barrier(c);
    while (left > 0) {
        size_t block = left < BLOCK ? left : BLOCK;
        void *output = c->data + from;

        for (unsigned r = 0; r < c->world_size; r++)
            inputs[r] = data_of(c, r) + from;
        reduce_arrays(&sum, &output, 1, inputs, c->world_size, block);
        from += block;
        left -= block;
    }
    barrier(c);
    for (unsigned i = 1; i < c->world_size; i++) {
        unsigned r = (c->rank + i) % c->world_size;
        size_t length = slice_of(c, count, r, &from);

        memcpy(c->data + from, data_of(c, r) + from, length * sizeof(float));
    }
}

void shm_ceiling_close(struct shm_ceiling *c)
{
    for (unsigned r = 0; c->arenas && r < c->world_size; r++)
        shared_memory_release(&c->arenas[r]);
    free(c->arenas);
    *c = (struct shm_ceiling){.world_size = 0};
}
