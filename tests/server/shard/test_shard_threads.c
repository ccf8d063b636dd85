/*
 * Concurrent use of a shard as in a real server: ranks push from threads of their own, some
 * messages twice; one rank leaves and a new session takes it; mutations are applied to another
 * shard; and partitions are exported for a snapshot.  Every pair of rank and round has an element
 * of its own, which its contribution lowers by 1, so that the values show what was applied, and how
 * often.  ThreadSanitizer checks the locking.
 */
#include "server/shard/shard.h"

#include "tests/support/support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define RANKS      4u
#define ROUNDS     12u
#define LEAVES     5u /* the last rank leaves after this round */
#define PARTITIONS 3u
#define FULL       (PARTITION_BYTES_MIN / sizeof(float))
#define LAST       (RANKS * (ROUNDS + 1))
#define COUNT      ((PARTITIONS - 1) * FULL + LAST)

static struct error err;

struct fixture {
    struct shard_map map;
    struct shard shard, follower;
    pthread_mutex_t lock; /* guards boxes */
    pthread_cond_t changed;
    uint64_t boxes[RANKS][PARTITIONS]; /* 1 + round of the newest reply */
    const float *data[RANKS][PARTITIONS];
    atomic_bool over;
};

struct rank_thread {
    struct fixture *fixture;
    unsigned rank;
    pthread_t thread;
};

static size_t count_of(uint32_t partition)
{
    return partition + 1 == PARTITIONS ? LAST : FULL;
}

static size_t element_of(unsigned rank, uint64_t round)
{
    return rank * (ROUNDS + 1) + round;
}

static enum status zero_copy(void *user, float *dst, size_t count, struct error *error)
{
    (void)user;
    (void)error;
    memset(dst, 0, count * sizeof(float));
    return STATUS_OK;
}

static enum status one_copy(void *user, float *dst, size_t count, struct error *error)
{
    (void)zero_copy(NULL, dst, count, error);
    dst[*(const size_t *)user] = 1;
    return STATUS_OK;
}

static enum status one_add(void *user, float *dst, size_t count, struct error *error)
{
    (void)count;
    (void)error;
    dst[*(const size_t *)user] += 1;
    return STATUS_OK;
}

/* ------------------------------------------------------------------ replies */

static void deliver(struct fixture *b, unsigned rank, uint32_t partition,
                    const struct shard_reply *reply)
{
    (void)pthread_mutex_lock(&b->lock);
    b->boxes[rank][partition] = 1 + reply->round;
    b->data[rank][partition] = reply->data;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

static void deliver_waiting(struct fixture *b, uint32_t partition)
{
    struct shard_reply reply;

    for (unsigned rank = 0; shard_next_reply(&b->shard, partition, &rank, &reply); rank++)
        deliver(b, rank, partition, &reply);
}

/* Wait for a reply of that round, and check in the shard's memory that it includes the rank's own
 * contributions.  first: the first round of the rank's present session. */
static void read_reply(struct fixture *b, unsigned rank, uint32_t partition, uint64_t first,
                       uint64_t round)
{
    const float *data;

    (void)pthread_mutex_lock(&b->lock);
    while (b->boxes[rank][partition] < 1 + round)
        (void)pthread_cond_wait(&b->changed, &b->lock);
    data = b->data[rank][partition];
    (void)pthread_mutex_unlock(&b->lock);
    (void)sched_yield();
    for (uint64_t r = first; r <= round; r++)
        ck_assert_msg(data[element_of(rank, r)] != 0, "round %d of rank %u is missing", (int)r,
                      rank);
}

/* ------------------------------------------------------------------ a rank */

static void pull_all(struct fixture *b, unsigned rank, uint64_t *ret_newest, uint64_t *ret_oldest)
{
    *ret_newest = 0;
    *ret_oldest = UINT64_MAX;
    for (uint32_t i = 0; i < PARTITIONS; i++) {
        struct shard_reply reply;

        ck_assert_int_eq(shard_pull(&b->shard, i, rank, 0, true, &reply, NULL), STATUS_OK);
        ck_assert(reply.complete);
        *ret_newest = reply.round > *ret_newest ? reply.round : *ret_newest;
        *ret_oldest = reply.round < *ret_oldest ? reply.round : *ret_oldest;
    }
}

static void push(struct fixture *b, unsigned rank, uint32_t partition, uint64_t round, bool again)
{
    size_t at = element_of(rank, round);
    struct shard_source source = {.copy = one_copy, .add = one_add, .user = &at};
    struct shard_reply reply;

    ck_assert_int_eq(shard_push(&b->shard, partition, rank, round, again, &source, &reply, NULL),
                     STATUS_OK);
    if (reply.data)
        deliver(b, rank, partition, &reply);
    if (reply.complete)
        deliver_waiting(b, partition);
}

static void push_rounds(struct fixture *b, unsigned rank, uint64_t first, uint64_t newest,
                        uint64_t last)
{
    for (uint64_t round = first; round <= last; round++) {
        for (uint32_t i = 0; i < PARTITIONS; i++) {
            uint32_t partition = (uint32_t)((i + round + rank) % PARTITIONS);

            push(b, rank, partition, round, round <= newest + 1);
            if ((round + i + rank) % 3 == 0)
                push(b, rank, partition, round, true);
        }
        for (uint32_t i = 0; i < PARTITIONS; i++)
            read_reply(b, rank, i, newest + 2, round);
    }
}

/* The last rank leaves in the middle, and a new session takes it. */
static void leave_and_rejoin(struct fixture *b, unsigned rank)
{
    uint64_t newest, oldest;

    for (uint32_t i = 0; i < PARTITIONS; i++) {
        struct shard_reply reply;

        ck_assert_int_eq(shard_vacate(&b->shard, i, rank, &reply, NULL), STATUS_OK);
        deliver_waiting(b, i);
        (void)sched_yield();
    }
    for (uint32_t i = 0; i < PARTITIONS; i++)
        ck_assert_int_eq(shard_occupy(&b->shard, i, rank, NULL), STATUS_OK);
    (void)pthread_mutex_lock(&b->lock);
    memset(b->boxes[rank], 0, sizeof(b->boxes[rank]));
    (void)pthread_mutex_unlock(&b->lock);
    pull_all(b, rank, &newest, &oldest);
    push_rounds(b, rank, oldest + 1, newest, ROUNDS);
}

static void *run_rank(void *user)
{
    struct rank_thread *t = user;
    struct fixture *b = t->fixture;
    bool leaves = t->rank == RANKS - 1;
    uint64_t newest, oldest;

    pull_all(b, t->rank, &newest, &oldest);
    push_rounds(b, t->rank, 1, 0, leaves ? LEAVES : ROUNDS);
    if (leaves)
        leave_and_rejoin(b, t->rank);
    for (uint32_t i = 0; i < PARTITIONS; i++) { /* so that no rank waits for it */
        struct shard_reply reply;

        ck_assert_int_eq(shard_vacate(&b->shard, i, t->rank, &reply, NULL), STATUS_OK);
        deliver_waiting(b, i);
    }
    return NULL;
}

/* ------------------------------------------------------------------ follower and snapshots */

/* The sink, called with the partition's lock held; the follower has a lock of its own. */
static enum status follow(void *user, const struct mutation *record, struct error *error)
{
    struct fixture *b = user;
    bool applied = false;
    enum status status = shard_apply(&b->follower, record, NULL, &applied, error);

    ck_assert(status != STATUS_OK || applied);
    return status;
}

/* Export partitions while the ranks push. */
static void *run_snapshots(void *user)
{
    struct fixture *b = user;
    static float values[FULL];

    while (!atomic_load(&b->over)) {
        for (uint32_t i = 0; i < PARTITIONS; i++) {
            uint64_t clocks[RANKS], seen[RANKS];
            uint8_t flags[RANKS];
            struct shard_state state = {
                .clocks = clocks, .seen = seen, .flags = flags, .values = values};
            float applied = 0;

            ck_assert_int_eq(shard_export(&b->shard, i, &state, NULL), STATUS_OK);
            for (size_t at = 0; at < LAST; at++)
                applied -= values[at];
            if (consistency_steps_per_push(&b->shard.config.consistency))
                ck_assert(applied == (float)state.steps);
        }
        (void)sched_yield();
    }
    return NULL;
}

static void open_fixture(struct fixture *b, const struct consistency *consistency)
{
    struct shard_config config = {.map = &b->map,
                                  .world_size = RANKS,
                                  .update = true,
                                  .rank_order = consistency->mode == CONSISTENCY_BSP &&
                                                consistency->backup == 0,
                                  .optimizer = optimizer_defaults(OPTIMIZER_SGD),
                                  .consistency = *consistency};
    struct shard_sink sink = {.on_mutation = follow, .user = b};
    struct shard_source source = {.copy = zero_copy};
    bool again;

    memset(b, 0, sizeof(*b));
    config.optimizer.learning_rate = consistency_steps_per_push(consistency) ? RANKS : 1;
    assert_ok(shard_map_make(COUNT, PARTITION_BYTES_MIN, 1, &b->map, &err));
    assert_ok(shard_init(&b->shard, &config, &err));
    assert_ok(shard_init(&b->follower, &config, &err));
    shard_set_sink(&b->shard, SHARD_SINK_DISK, &sink);
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->changed, NULL);
    for (uint32_t i = 0; i < PARTITIONS; i++)
        assert_ok(shard_set(&b->shard, i, &source, false, &again, &err));
}

/* Each contribution is applied at most once; those of ranks that stayed exactly once. */
static void check_values(const struct fixture *b)
{
    const struct consistency *c = &b->shard.config.consistency;

    for (uint32_t i = 0; i < PARTITIONS; i++) {
        const float *values = b->shard.values + b->shard.parts[i].offset;

        ck_assert_int_eq(memcmp(values, b->follower.values + b->follower.parts[i].offset,
                                count_of(i) * sizeof(float)),
                         0);
        for (uint64_t round = 1; round <= ROUNDS; round++) {
            unsigned contributions = 0;
            float weight = 1;

            for (unsigned rank = 0; rank < RANKS; rank++)
                contributions += values[element_of(rank, round)] != 0;
            ck_assert_uint_ge(contributions, RANKS - 1);
            if (!consistency_steps_per_push(c))
                weight = (float)RANKS / (float)contributions;
            for (unsigned rank = 0; rank < RANKS; rank++) {
                float value = values[element_of(rank, round)];

                ck_assert_msg(value == -weight || (value == 0 && rank == RANKS - 1),
                              "round %d of rank %u counts %g", (int)round, rank, (double)value);
            }
        }
    }
}

static const struct consistency modes[] = {
    {.mode = CONSISTENCY_BSP},
    {.mode = CONSISTENCY_SSP, .staleness = 2},
    {.mode = CONSISTENCY_ASP},
};

START_TEST(test_all_at_once)
{
    static struct fixture b;
    struct rank_thread ranks[RANKS];
    pthread_t snapshots;

    open_fixture(&b, &modes[_i]);
    ck_assert_int_eq(pthread_create(&snapshots, NULL, run_snapshots, &b), 0);
    for (unsigned rank = 0; rank < RANKS; rank++) {
        ranks[rank] = (struct rank_thread){.fixture = &b, .rank = rank};
        ck_assert_int_eq(pthread_create(&ranks[rank].thread, NULL, run_rank, &ranks[rank]), 0);
    }
    for (unsigned rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(pthread_join(ranks[rank].thread, NULL), 0);
    atomic_store(&b.over, true);
    ck_assert_int_eq(pthread_join(snapshots, NULL), 0);
    check_values(&b);
    shard_release(&b.shard);
    shard_release(&b.follower);
    shard_map_release(&b.map);
    (void)pthread_cond_destroy(&b.changed);
    (void)pthread_mutex_destroy(&b.lock);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shard_threads");
    TCase *tests = tcase_create("shard_threads");

    tcase_set_timeout(tests, 60);
    for (int i = 0; i < 4; i++)
        tcase_add_loop_test(tests, test_all_at_once, 0, (int)(sizeof(modes) / sizeof(modes[0])));
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
