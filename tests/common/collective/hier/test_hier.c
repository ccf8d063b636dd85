/*
 * Two levels and the automatic choice: the pure plan, all-reduces of several chunks over every
 * shape of hosts, what auto makes of who shares a host, and transfers that wait for each other.
 */
#include "tests/common/collective/ring_world.h"

#include "common/collective/collective_ops.h"
#include "common/collective/hier/hier_plan.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 6

/* ---- the plan ---- */

static void name_hosts(char ids[][HOST_ID_SIZE], const char *hosts)
{
    for (size_t r = 0; hosts[r]; r++)
        (void)snprintf(ids[r], HOST_ID_SIZE, "%c", hosts[r]);
}

START_TEST(layouts)
{
    /* hosts of the ranks, rank, then what must come out */
    static const struct {
        const char *hosts;
        unsigned rank, count, host, local_count, local_index, cross_count;
        bool equal;
        const char *local, *cross; /* ranks */
    } cases[] = {
        {"aaaa", 2, 1, 0, 4, 2, 1, true, "0123", "2"},
        {"abcd", 2, 4, 2, 1, 0, 4, true, "2", "0123"},
        {"aabb", 3, 2, 1, 2, 1, 2, true, "23", "13"},
        {"abab", 2, 2, 0, 2, 1, 2, true, "02", "23"},
        {"baab", 1, 2, 1, 2, 0, 2, true, "12", "01"},
        {"aab", 0, 2, 0, 2, 0, 2, false, "01", "02"},
        {"aab", 1, 2, 0, 2, 1, 0, false, "01", ""},
        {"aab", 2, 2, 1, 1, 0, 2, false, "2", "02"},
        {"abbbc", 3, 3, 1, 3, 2, 0, false, "123", ""},
        {"abbbc", 4, 3, 2, 1, 0, 3, false, "4", "014"},
    };

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        char ids[RANKS_MAX][HOST_ID_SIZE] = {{0}};
        unsigned local[RANKS_MAX];
        unsigned cross[RANKS_MAX];
        unsigned cross_count;
        struct hier_layout l;

        name_hosts(ids, cases[k].hosts);
        hier_plan_layout((const char(*)[HOST_ID_SIZE])ids, (unsigned)strlen(cases[k].hosts),
                         cases[k].rank, &l, local, cross, &cross_count);
        ck_assert_uint_eq(l.hosts, cases[k].count);
        ck_assert_uint_eq(l.host, cases[k].host);
        ck_assert_uint_eq(l.local_count, cases[k].local_count);
        ck_assert_uint_eq(l.local_index, cases[k].local_index);
        ck_assert_uint_eq(cross_count, cases[k].cross_count);
        ck_assert_int_eq(l.equal, cases[k].equal);
        for (size_t i = 0; cases[k].local[i]; i++)
            ck_assert_uint_eq(local[i], (unsigned)(cases[k].local[i] - '0'));
        for (size_t i = 0; cases[k].cross[i]; i++)
            ck_assert_uint_eq(cross[i], (unsigned)(cases[k].cross[i] - '0'));
    }
}
END_TEST

/* Every chunk goes in once and out once, never out before in, and at most two are in between. */
START_TEST(steps)
{
    for (size_t chunks = 1; chunks <= 9; chunks++) {
        size_t in = 0;
        size_t out = 0;

        for (size_t k = 0; k < 2 * chunks; k++) {
            struct hier_step step = hier_plan_step(k, chunks);

            ck_assert_uint_eq(step.chunk, step.is_out ? out : in);
            in += !step.is_out;
            out += step.is_out;
            ck_assert_uint_le(out, in);
            ck_assert_uint_le(in - out, 2);
        }
        ck_assert_uint_eq(in, chunks);
        ck_assert_uint_eq(out, chunks);
    }
}
END_TEST

/* ---- groups ---- */

struct world {
    const char *backend;
    const char *hosts;
    const char *name;
    const char *expected; /* backend that must be chosen; NULL: any */
    size_t count;
    enum reduce_op op;
};

struct rank_thread {
    pthread_t thread;
    const struct world *world;
    unsigned rank;
};

static float value(unsigned rank, size_t i)
{
    return (float)((i * 31 + rank * 17) % 64) - 20.0f;
}

static void check_result(const struct world *w, const float *data, size_t count)
{
    unsigned n = (unsigned)strlen(w->hosts);
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++) {
        float wanted = value(0, i);

        for (unsigned r = 1; r < n; r++)
            wanted = w->op == REDUCE_MAX ? (value(r, i) > wanted ? value(r, i) : wanted)
                                         : wanted + value(r, i);
        if (w->op == REDUCE_AVG)
            wanted /= (float)n; /* exact where n is a power of two */
        wrong += data[i] < wanted || data[i] > wanted;
    }
    ck_assert_msg(wrong == 0, "%s over %s: %zu of %zu elements are wrong", w->backend, w->hosts,
                  wrong, count);
}

static void reduce_once(const struct world *w, struct collective *group, unsigned rank,
                        bool in_place)
{
    struct error err = {0};
    float *input = calloc(w->count + 1, sizeof(float));
    float *output = in_place ? input : calloc(w->count + 1, sizeof(float));
    struct collective_args args = {.call = COLLECTIVE_ALL_REDUCE,
                                   .op = w->op,
                                   .input = input,
                                   .output = output,
                                   .count = w->count};
    struct collective_stats before = collective_get_stats(group);
    struct collective_stats after;
    size_t touched = 0;
    uint64_t tx;
    uint64_t rx;

    ck_assert(input && output);
    for (size_t i = 0; i < w->count; i++)
        input[i] = value(rank, i);
    output[w->count] = 77.0f;
    assert_ok(collective_run(group, &args, &err));
    check_result(w, output, w->count);
    ck_assert_int_eq((int)output[w->count], 77);
    for (size_t i = 0; i < w->count && !in_place; i++)
        touched += input[i] < value(rank, i) || input[i] > value(rank, i);
    ck_assert_uint_eq(touched, 0);
    collective_expected_bytes(group, &args, &tx, &rx);
    after = collective_get_stats(group);
    ck_assert_uint_eq(after.tx_payload_bytes - before.tx_payload_bytes, tx);
    ck_assert_uint_eq(after.rx_payload_bytes - before.rx_payload_bytes, rx);
    if (!in_place)
        free(output);
    free(input);
}

static void *run_rank(void *argument)
{
    const struct rank_thread *t = argument;
    const struct world *w = t->world;
    unsigned n = (unsigned)strlen(w->hosts);
    char host[16];
    struct error err = {0};
    struct store *store = world_store(t->rank, n, &err);
    struct collective *group = NULL;
    struct collective_config config = {.backend = w->backend,
                                       .name = w->name,
                                       .rank = t->rank,
                                       .world_size = n,
                                       .store = store,
                                       .host_id = host,
                                       .timeout_ms = 20000};

    (void)snprintf(host, sizeof(host), "host %c", w->hosts[t->rank]);
    ck_assert_msg(store != NULL, "%s", err.text);
    assert_ok(collective_open(&config, &group, &err));
    if (w->expected)
        ck_assert_str_eq(collective_backend(group), w->expected);
    reduce_once(w, group, t->rank, true);
    reduce_once(w, group, t->rank, false);
    collective_close(group);
    store_close(store, 0);
    return NULL;
}

static void run_world(struct world w)
{
    static unsigned worlds;
    char name[32];
    struct rank_thread threads[RANKS_MAX];
    struct error err = {0};
    unsigned n = (unsigned)strlen(w.hosts);
    struct store *first = world_store(0, n, &err); /* names the file before the threads do */

    ck_assert_msg(first != NULL, "%s", err.text);
    (void)snprintf(name, sizeof(name), "hier%u", worlds++);
    w.name = name;
    for (unsigned r = 0; r < n; r++) {
        threads[r] = (struct rank_thread){.world = &w, .rank = r};
        ck_assert_int_eq(pthread_create(&threads[r].thread, NULL, run_rank, &threads[r]), 0);
    }
    for (unsigned r = 0; r < n; r++)
        (void)pthread_join(threads[r].thread, NULL);
    store_close(first, 0);
}

static const char *const shapes[] = {"aa", "ab", "aab", "aabb", "abab", "abbb", "aabcb", "aabbcc"};

/* Several chunks (of 1 MiB per rank of a host), an odd rest, and less than one element per rank. */
START_TEST(sums_of_several_chunks)
{
    run_world((struct world){
        .backend = "hier", .hosts = shapes[_i], .count = SUPPORT_DRAWS(2500037, 1300037)});
    run_world((struct world){.backend = "hier", .hosts = shapes[_i], .count = 1});
    run_world((struct world){.backend = "hier",
                             .hosts = shapes[_i],
                             .count = SUPPORT_DRAWS(600001, 60001),
                             .op = REDUCE_MAX});
}
END_TEST

START_TEST(averages)
{
    run_world(
        (struct world){.backend = "hier", .hosts = "aabb", .count = 1200007, .op = REDUCE_AVG});
    run_world((struct world){.backend = "hier", .hosts = "abbb", .count = 70001, .op = REDUCE_AVG});
}
END_TEST

START_TEST(automatic_choice)
{
    static const char *const choices[][2] = {{"aaa", "shm"},   {"abc", "ring"}, {"aab", "hier"},
                                             {"abab", "hier"}, {"ab", "ring"},  {"aa", "shm"}};

    for (size_t k = 0; k < sizeof(choices) / sizeof(choices[0]); k++)
        run_world((struct world){
            .backend = "auto", .hosts = choices[k][0], .expected = choices[k][1], .count = 1003});
}
END_TEST

/* ---- transfers ---- */

struct chain {
    sem_t first_waits, last_may_send;
};

static struct collective_work *start_transfer(struct collective *group, enum collective_call call,
                                              unsigned peer, int32_t *value)
{
    struct error err = {0};
    struct collective_args args = {.call = call,
                                   .dtype = DTYPE_INT32,
                                   .input = value,
                                   .output = value,
                                   .count = 1,
                                   .root = peer};
    struct collective_work *work = NULL;

    assert_ok(collective_start(group, &args, &work, &err));
    return work;
}

/* Poll until the work has looked what the others do. */
static void await_comparison(struct collective_work *work)
{
    bool is_done = false;

    while (work->compare_ns == 0 && !is_done)
        collective_poll(work, &is_done);
}

/* Rank 2 sends to rank 1, then rank 1 to rank 0. */
static void pass_on(struct collective *group, unsigned rank, unsigned size, void *argument)
{
    struct error err = {0};
    struct chain *c = argument;
    struct collective_work *work;
    int32_t value = (int32_t)rank;
    bool is_done;

    (void)size;
    if (rank == 0) {
        ck_assert_int_eq(sem_wait(&c->first_waits), 0);
        work = start_transfer(group, COLLECTIVE_RECV, 1, &value);
        await_comparison(work);
        ck_assert_int_eq(sem_post(&c->last_may_send), 0);
        assert_ok(collective_wait(work, INT64_MAX, &err));
        ck_assert_int_eq(value, 2);
    } else if (rank == 1) {
        work = start_transfer(group, COLLECTIVE_RECV, 2, &value);
        collective_poll(work, &is_done); /* it has begun */
        ck_assert_int_eq(sem_post(&c->first_waits), 0);
        assert_ok(collective_wait(work, INT64_MAX, &err));
        work = start_transfer(group, COLLECTIVE_SEND, 0, &value);
        assert_ok(collective_wait(work, INT64_MAX, &err));
    } else {
        ck_assert_int_eq(sem_wait(&c->last_may_send), 0);
        work = start_transfer(group, COLLECTIVE_SEND, 1, &value);
        assert_ok(collective_wait(work, INT64_MAX, &err));
    }
}

/* Rank 0 sees that rank 1 is in another transfer, and must not take it for a mismatch. */
START_TEST(a_transfer_waits_for_another)
{
    struct chain c;

    ck_assert_int_eq(sem_init(&c.first_waits, 0, 0), 0);
    ck_assert_int_eq(sem_init(&c.last_may_send, 0, 0), 0);
    world_run("hier", 3, pass_on, &c);
    (void)sem_destroy(&c.first_waits);
    (void)sem_destroy(&c.last_may_send);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("hier", 240, TEST(layouts), TEST(steps),
                       LOOP_TEST(sums_of_several_chunks, 0, sizeof(shapes) / sizeof(shapes[0])),
                       TEST(averages), TEST(automatic_choice), TEST(a_transfer_waits_for_another));
}
