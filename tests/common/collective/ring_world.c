/*
 * Worlds for tests.  Assertions may fail on any thread: Check's process ends with the message.
 */
#include "tests/common/collective/ring_world.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 20000

/* Made once by the parent: a child process has another folder. */
static char init_method[512];
static pthread_once_t chosen = PTHREAD_ONCE_INIT;

static void choose_file_once(void)
{
    (void)snprintf(init_method, sizeof(init_method), "file://%s/store", support_folder());
}

static void choose_file(void)
{
    (void)pthread_once(&chosen, choose_file_once);
}

struct store *world_store(unsigned rank, unsigned size, struct error *err)
{
    struct launch_env launch = {.rank = rank, .world_size = size};
    struct store_config config = {
        .init_method = init_method, .launch = &launch, .group = "", .timeout_ms = TIMEOUT_MS};
    struct store *store = NULL;

    choose_file();
    if (store_open(&config, &store, err) != STATUS_OK)
        return NULL;
    return store;
}

enum status world_open(const char *backend, const char *name, unsigned rank, unsigned size,
                       struct store *store, int64_t timeout_ms, struct collective **ret_group,
                       struct error *err)
{
    struct collective_config config = {.backend = backend,
                                       .name = name,
                                       .rank = rank,
                                       .world_size = size,
                                       .store = store,
                                       .timeout_ms = timeout_ms};

    return collective_open(&config, ret_group, err);
}

/* ---- threads ---- */

struct world_thread {
    pthread_t thread;
    const char *backend;
    const char *name;
    unsigned rank;
    unsigned size;
    world_body *body;
    void *argument;
};

static void *run_rank(void *argument)
{
    struct world_thread *t = argument;
    struct error err = {0};
    struct collective *group = NULL;
    struct store *store = world_store(t->rank, t->size, &err);

    ck_assert_msg(store != NULL, "%s", err.text);
    assert_ok(world_open(t->backend, t->name, t->rank, t->size, store, TIMEOUT_MS, &group, &err));
    t->body(group, t->rank, t->size, t->argument);
    collective_close(group);
    store_close(store, 0);
    return NULL;
}

bool world_on_threads(const char *backend)
{
    if (strcmp(backend, "mpi") == 0 || strcmp(backend, "nccl") == 0)
        return false;
#ifdef __SANITIZE_THREAD__
    if (strcmp(backend, "grpc") == 0 || strcmp(backend, "gloo") == 0)
        return false;
#endif
    return true;
}

void world_run(const char *backend, unsigned size, world_body *body, void *argument)
{
    static unsigned worlds;
    struct world_thread threads[WORLD_RANKS_MAX];
    char name[32];

    ck_assert_uint_le(size, WORLD_RANKS_MAX);
    choose_file();
    (void)snprintf(name, sizeof(name), "world%u", worlds++);
    for (unsigned r = 0; r < size; r++) {
        threads[r] = (struct world_thread){.backend = backend,
                                           .name = name,
                                           .rank = r,
                                           .size = size,
                                           .body = body,
                                           .argument = argument};
        ck_assert_int_eq(pthread_create(&threads[r].thread, NULL, run_rank, &threads[r]), 0);
    }
    for (unsigned r = 0; r < size; r++)
        (void)pthread_join(threads[r].thread, NULL);
}
