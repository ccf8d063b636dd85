/*
 * Worlds for the conformance suite: ranks on threads of a test, or the one rank that this process
 * is in a launched world.  Assertions may fail on any thread: Check's process ends with the
 * message.
 */
#include "tests/common/collective/conformance/conformance.h"

#include "common/launch_env/launch_env.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TIMEOUT_MS  20000
#define ARENA_BYTES (24 * CONFORMANCE_MIB)

/* A place where one rank starts. */
struct start {
    pthread_t thread;
    const char *backend;
    const char *name;
    conformance_body *body;
    const char *store; /* init method */
    uint64_t seed;
    unsigned rank, size;
    bool skipped;
    char reason[1024];
};

static const char *lookup(const char *name)
{
    return getenv(name);
}

static bool launched_as(struct launch_env *ret)
{
    const struct launch_flags flags = {.rank = -1, .world_size = -1, .local_rank = -1};
    struct error err = {0};

    if (!getenv("SPARRING_TEST_STORE"))
        return false;
    if (launch_env_read(&flags, lookup, ret, &err) != STATUS_OK) { /* no test need be running */
        (void)fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return true;
}

unsigned conformance_launched_size(void)
{
    struct launch_env launch;

    return launched_as(&launch) ? launch.world_size : 0;
}

static struct store *open_store(const struct start *s)
{
    struct launch_env launch = {.rank = s->rank, .world_size = s->size};
    struct store_config config = {
        .init_method = s->store, .launch = &launch, .group = "", .timeout_ms = TIMEOUT_MS};
    struct error err = {0};
    struct store *store = NULL;

    assert_ok(store_open(&config, &store, &err));
    return store;
}

/* ---- between ranks, beside the backend ---- */

static const char *key_of(const struct conformance *c, const char *key, char text[160])
{
    (void)snprintf(text, 160, "conformance/%s/%s", c->name, key);
    return text;
}

uint64_t conformance_share(struct conformance *c, const char *key, uint64_t value)
{
    char text[160];
    struct error err = {0};
    char *found;
    size_t size;

    (void)key_of(c, key, text);
    if (c->rank == 0)
        assert_ok(store_set(c->store, text, &value, sizeof(value), &err));
    assert_ok(store_get(c->store, text, TIMEOUT_MS, &found, &size, &err));
    ck_assert_uint_eq(size, sizeof(value));
    memcpy(&value, found, sizeof(value));
    free(found);
    return value;
}

void conformance_signal(struct conformance *c, const char *key)
{
    char text[160];
    struct error err = {0};

    assert_ok(store_set(c->store, key_of(c, key, text), "x", 1, &err));
}

void conformance_await(struct conformance *c, const char *key)
{
    char text[160];
    struct error err = {0};
    const char *keys[] = {key_of(c, key, text)};

    assert_ok(store_wait(c->store, keys, 1, TIMEOUT_MS, &err));
}

/* ---- the same bits everywhere ---- */

static void check_results(struct conformance *c)
{
    char key[64];
    struct error err = {0};
    size_t bytes = c->result_count * sizeof(uint64_t);
    uint64_t *hashes = calloc(c->result_count + 1, sizeof(*hashes));
    char text[256];
    char *theirs;
    size_t size;

    ck_assert_ptr_nonnull(hashes);
    for (size_t i = 0; i < c->result_count; i++)
        hashes[i] = c->results[i].hash;
    (void)snprintf(key, sizeof(key), "conformance/%s/results", c->name);
    if (c->rank == 0)
        assert_ok(store_set(c->store, key, hashes, bytes, &err));
    assert_ok(store_get(c->store, key, TIMEOUT_MS, &theirs, &size, &err));
    ck_assert_uint_eq(size, bytes);
    for (size_t i = 0; i < c->result_count; i++) {
        uint64_t other;

        memcpy(&other, theirs + i * sizeof(other), sizeof(other));
        if (other != hashes[i])
            ck_abort_msg("%s: other bits than on rank 0", case_text(c, &c->results[i].what, text));
    }
    free(theirs);
    free(hashes);
}

/* ---- one rank ---- */

static void run_body(struct start *s, struct conformance *c)
{
    struct error err = {0};

    assert_ok(shared_memory_open(ARENA_BYTES, "conformance", &c->arena, &err));
    assert_ok(collective_register(c->group, &c->arena, &err));
    ck_assert_uint_eq(collective_rank(c->group), c->rank);
    ck_assert_uint_eq(collective_world_size(c->group), c->size);
    c->seed = conformance_share(c, "seed", s->seed);
    s->body(c);
    check_results(c);
}

/* SPARRING_TEST_STREAMS: a number of connections, or "tuned" between ranks on hosts of their own.
 */
static unsigned wanted_streams(bool *ret_tuned)
{
    const char *text = getenv("SPARRING_TEST_STREAMS");

    *ret_tuned = text && strcmp(text, "tuned") == 0;
    return text && !*ret_tuned ? (unsigned)strtoul(text, NULL, 10) : 0;
}

static void *run_rank(void *argument)
{
    struct start *s = argument;
    struct error err = {0};
    struct conformance c = {.backend = s->backend,
                            .name = s->name,
                            .store = open_store(s),
                            .rank = s->rank,
                            .size = s->size,
                            .arena = SHARED_MEMORY_NONE};
    unsigned per_host = strcmp(s->backend, "hier") == 0 ? 2 : 1; /* hosts of 1 in odd worlds, too */
    bool tuned = false;
    unsigned streams = wanted_streams(&tuned);
    char host[32];
    struct collective_config config = {.backend = s->backend,
                                       .name = s->name,
                                       .rank = s->rank,
                                       .world_size = s->size,
                                       .store = c.store,
                                       .host_id = per_host == 2 || tuned ? host : NULL,
                                       .timeout_ms = TIMEOUT_MS,
                                       .streams = streams};
    enum status status;

    c.streams_wanted = tuned || streams > 0;
    (void)snprintf(host, sizeof(host), "host %u", s->rank / per_host);
    status = collective_open(&config, &c.group, &err);

    s->skipped = status == STATUS_CONFIG || status == STATUS_UNAVAILABLE;
    (void)snprintf(s->reason, sizeof(s->reason), "%.1000s", err.text);
    if (!s->skipped) {
        ck_assert_msg(status == STATUS_OK, "%s, rank %u of %u: %s", s->backend, s->rank, s->size,
                      err.text);
        run_body(s, &c);
    }
    collective_close(c.group);
    shared_memory_release(&c.arena);
    store_close(c.store, 0);
    free(c.results);
    return NULL;
}

/* ---- worlds ---- */

/* In memory that the forked tests share with the main program. */
struct shared_state {
    atomic_uint ran;
    atomic_uint reported[32]; /* by place in collective_backends() */
};
static struct shared_state *shared;

void conformance_prepare(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) /* no test runs yet that could fail */
        abort();
}

bool conformance_ran(void)
{
    return atomic_load(&shared->ran) > 0;
}

/* One line per backend, whichever test comes first. */
static void tell_skipped(const char *backend, const char *reason)
{
    size_t index = 0;

    while (index < 31 && collective_backends()[index] &&
           strcmp(collective_backends()[index], backend) != 0)
        index++;
    if (atomic_exchange(&shared->reported[index], 1) == 0) {
        printf("%s: skipped: %s\n", backend, reason);
        (void)fflush(stdout);
    }
}

static bool run_launched(struct start *s, unsigned size)
{
    struct launch_env launch;

    if (!launched_as(&launch) || launch.world_size != size)
        return false;
    s->rank = launch.rank;
    (void)run_rank(s);
    return true;
}

static void run_threads(struct start *starts, unsigned size)
{
    for (unsigned r = 0; r < size; r++) {
        starts[r] = starts[0];
        starts[r].rank = r;
        ck_assert_int_eq(pthread_create(&starts[r].thread, NULL, run_rank, &starts[r]), 0);
    }
    for (unsigned r = 0; r < size; r++)
        (void)pthread_join(starts[r].thread, NULL);
    for (unsigned r = 1; r < size; r++)
        ck_assert_msg(starts[r].skipped == starts[0].skipped,
                      "rank %u can run (%s), rank 0 cannot (%s), or the other way round", r,
                      starts[r].reason, starts[0].reason);
}

bool conformance_run(const char *backend, unsigned size, conformance_body *body)
{
    static unsigned worlds;
    char name[32];
    char store[512];
    struct start starts[CONFORMANCE_RANKS_MAX] = {{.backend = backend,
                                                   .name = name,
                                                   .body = body,
                                                   .store = store,
                                                   .seed = (uint64_t)(support_random() * 0x1p53),
                                                   .size = size}};

    ck_assert_uint_le(size, CONFORMANCE_RANKS_MAX);
    (void)snprintf(name, sizeof(name), "conformance%u", worlds++);
    if (conformance_launched_size() > 0) /* each world has a file: the last to leave removes it */
        (void)snprintf(store, sizeof(store), "%s-%s", getenv("SPARRING_TEST_STORE"), name);
    else
        (void)snprintf(store, sizeof(store), "file://%s/store", support_folder());
    if (conformance_launched_size() > 0) {
        if (!run_launched(&starts[0], size))
            return false;
    } else {
        run_threads(starts, size);
    }
    if (starts[0].skipped) {
        support_check_nccl_skip(backend, starts[0].reason);
        tell_skipped(backend, starts[0].reason);
    } else {
        atomic_fetch_add(&shared->ran, 1);
    }
    return !starts[0].skipped;
}
