/*
 * Runs each rank on a thread with a store client, a shared memory segment for its slabs, and a
 * sync.  Every world has a store file of its own, so that worlds of one test do not share keys.
 */
#include "tests/worker/sync/allreduce_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 20000

struct replica_thread {
    pthread_t thread;
    const struct replicas *world;
    struct replica replica;
    replica_body *body;
    char name[32];
};

/* Open a store in a file of this world. */
static struct store *open_store(struct replica_thread *t)
{
    struct error err = {0};
    struct launch_env launch = {.rank = t->replica.rank, .world_size = t->replica.size};
    char init_method[512];
    struct store_config config = {
        .init_method = init_method, .launch = &launch, .group = "", .timeout_ms = TIMEOUT_MS};
    struct store *store = NULL;

    (void)snprintf(init_method, sizeof(init_method), "file://%s/%s", support_folder(), t->name);
    assert_ok(store_open(&config, &store, &err));
    return store;
}

static void *run_replica(void *argument)
{
    struct error err = {0};
    struct replica_thread *t = argument;
    const struct replicas *w = t->world;
    struct replica *r = &t->replica;
    size_t count = w->table->count;
    struct store *store = open_store(t);
    struct sync_config config = {.kind = "allreduce",
                                 .table = w->table,
                                 .buffer_count = w->buffer_count,
                                 .rank = r->rank,
                                 .world_size = r->size,
                                 .store = store,
                                 .timeout_ms = TIMEOUT_MS,
                                 .order = w->order,
                                 .job = t->name,
                                 .backend = w->backend,
                                 .ddp = w->ddp,
                                 .arrived = w->arrived,
                                 .refresh_params = w->refresh_params,
                                 .user = r};

    r->owner = pthread_self();
    assert_ok(shared_memory_open((2 * count + w->buffer_count) * sizeof(float), "replica",
                                 &r->memory, &err));
    config.memory = &r->memory;
    config.params = r->params = r->memory.base;
    config.grads = r->grads = r->params + count;
    if (w->buffer_count > 0)
        config.buffers = r->buffers = r->grads + count;
    assert_ok(sync_open(&config, &r->sync, &err));
    if (!w->unstarted)
        assert_ok(sync_start(r->sync, &err));
    t->body(r);
    sync_close(r->sync, NULL);
    shared_memory_release(&r->memory);
    store_close(store, 0);
    return NULL;
}

void replicas_run(const struct replicas *world, replica_body *body, void *argument)
{
    static unsigned worlds;
    struct replica_thread threads[REPLICAS_MAX];

    ck_assert_uint_le(world->size, REPLICAS_MAX);
    worlds++;
    (void)support_folder(); /* created before the threads */
    for (unsigned r = 0; r < world->size; r++) {
        threads[r] = (struct replica_thread){
            .world = world,
            .replica = {.rank = r,
                        .size = world->size,
                        .table = world->table,
                        .memory = SHARED_MEMORY_NONE,
                        .argument = argument},
            .body = body,
        };
        (void)snprintf(threads[r].name, sizeof(threads[r].name), "world%u", worlds);
        ck_assert_int_eq(pthread_create(&threads[r].thread, NULL, run_replica, &threads[r]), 0);
    }
    for (unsigned r = 0; r < world->size; r++)
        (void)pthread_join(threads[r].thread, NULL);
}

const char *const *replicas_backends(void)
{
    static const char *names[3];
    size_t count = 0;

    for (const char *const *b = collective_backends(); *b; b++)
        if (strcmp(*b, "shm") == 0 || strcmp(*b, "ring") == 0)
            names[count++] = *b;
    names[count] = NULL;
    return names;
}

void table_make(struct tensor_table *t, const char *const *shapes)
{
    struct error err = {0};

    *t = (struct tensor_table){0};
    for (; *shapes; shapes++) {
        char name[TENSOR_NAME_MAX];
        size_t shape[TENSOR_DIMS_MAX];
        unsigned dims = 0;
        const char *at = strchr(*shapes, ':');

        ck_assert_ptr_nonnull(at);
        (void)snprintf(name, sizeof(name), "%.*s", (int)(at - *shapes), *shapes);
        while (*at != '\0' && dims < TENSOR_DIMS_MAX) {
            char *end;

            shape[dims++] = (size_t)strtoull(at + 1, &end, 10);
            at = end;
        }
        assert_ok(tensor_table_add(t, name, dims, shape, &err));
    }
    tensor_table_layout(t);
}

float value_of(unsigned rank, uint64_t step, size_t index, unsigned salt)
{
    uint64_t x = (rank + 1) * UINT64_C(0x9E3779B97F4A7C15) + step * UINT64_C(0xBF58476D1CE4E5B9) +
                 index * UINT64_C(0x94D049BB133111EB) + salt * UINT64_C(0xD6E8FEB86659FD93);

    x ^= x >> 31;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 29;
    return (float)(x >> 40) / 8388608.0f - 1.0f;
}

void replica_sync(struct replica *r, uint64_t step)
{
    struct error err = {0};
    size_t count = r->table->count;

    assert_ok(sync_begin(r->sync, step, &err));
    for (size_t i = r->table->length; i-- > 0;) /* views in slab order */
        sync_ready(r->sync, r->table->views[i].offset + r->table->views[i].count);
    sync_ready(r->sync, count);
    assert_ok(sync_finish(r->sync, &err));
}

void replica_step(struct replica *r, uint64_t step)
{
    for (size_t i = 0; i < r->table->count; i++)
        r->grads[i] = value_of(r->rank, step, i, 0);
    replica_sync(r, step);
}
