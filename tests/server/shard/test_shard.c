/*
 * The shard against a serial model, bit for bit where the order is fixed: one thread per rank,
 * random orders and pauses, replies read late (as over a slow network), so that ThreadSanitizer
 * reports a race if a reply is overwritten before all ranks have read it.
 */
#include "server/shard/shard.h"

#include "common/base/memory.h"
#include "common/tensor/tensor.h"
#include "tests/support/support.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 5u
#define ROUNDS    4u
#define FULL      (PARTITION_BYTES_MIN / sizeof(float))
#define COUNT     (5 * FULL + 77) /* six partitions */

static struct error err;

/* ------------------------------------------------------------------ sources */

static enum status array_copy(void *user, float *dst, size_t count, struct error *error)
{
    (void)error;
    memcpy(dst, user, count * sizeof(float));
    return STATUS_OK;
}

static enum status array_add(void *user, float *dst, size_t count, struct error *error)
{
    (void)error;
    vector_add(dst, user, count);
    return STATUS_OK;
}

static struct shard_source array_source(float *data)
{
    return (struct shard_source){.copy = array_copy, .add = array_add, .user = data};
}

static enum status broken_copy(void *user, float *dst, size_t count, struct error *error)
{
    (void)user;
    (void)dst;
    return error_set(error, STATUS_DATA, "payload of %zu floats broke", count);
}

/* ------------------------------------------------------------------ the fixture */

/* A reply until its rank reads it. */
struct mailbox {
    struct shard_reply reply;
    uint64_t round; /* of the newest reply; UINT64_MAX: none */
};

struct fixture {
    struct shard_map map;
    struct shard shard;
    unsigned world_size;
    float *initial;                          /* (COUNT) */
    float *gradients[RANKS_MAX][ROUNDS + 1]; /* (COUNT) each */
    float *got[RANKS_MAX];                   /* what the rank received last */
    pthread_mutex_t lock;                    /* guards boxes */
    pthread_cond_t changed;
    struct mailbox *boxes; /* (world_size, map.length) */
};

struct rank_thread {
    struct fixture *fixture;
    unsigned rank;
    uint32_t seed;
    pthread_t thread;
    float *history[ROUNDS + 1]; /* values after each round's reply */
};

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static void fill(float *values, uint32_t seed, bool integers)
{
    uint32_t state = seed * 2654435761u + 1;

    for (size_t i = 0; i < COUNT; i++) {
        uint32_t x = next_random(&state);

        values[i] =
            integers ? (float)(int)(x % 2001) - 1000.0f : ((float)(x >> 8) / 8388608.0f) - 1.0f;
    }
}

static float *new_slab(void)
{
    float *slab = NULL;

    assert_ok(mem_calloc_aligned(COUNT, sizeof(float), "slab", &slab, &err));
    return slab;
}

static void fixture_open(struct fixture *b, unsigned servers, struct shard_config config)
{
    static unsigned opened;

    memset(b, 0, sizeof(*b));
    config.shared = opened++ % 2; /* results must not depend on it */
    assert_ok(shard_map_make(COUNT, FULL * sizeof(float), servers, &b->map, &err));
    config.map = &b->map;
    b->world_size = config.world_size;
    assert_ok(shard_init(&b->shard, &config, &err));
    b->initial = new_slab();
    fill(b->initial, 99, !config.rank_order);
    for (unsigned rank = 0; rank < b->world_size; rank++) {
        b->got[rank] = new_slab();
        for (uint64_t round = 1; round <= ROUNDS; round++) {
            b->gradients[rank][round] = new_slab();
            fill(b->gradients[rank][round], (uint32_t)(rank * 100 + round), !config.rank_order);
        }
    }
    assert_ok(
        mem_calloc(b->world_size * b->map.length, sizeof(*b->boxes), "boxes", &b->boxes, &err));
    for (size_t i = 0; i < b->world_size * b->map.length; i++)
        b->boxes[i].round = UINT64_MAX;
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->changed, NULL);
}

static void fixture_close(struct fixture *b)
{
    shard_release(&b->shard);
    for (unsigned rank = 0; rank < b->world_size; rank++) {
        free(b->got[rank]);
        for (uint64_t round = 1; round <= ROUNDS; round++)
            free(b->gradients[rank][round]);
    }
    free(b->initial);
    free(b->boxes);
    shard_map_release(&b->map);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
}

static void deliver(struct fixture *b, unsigned rank, uint32_t partition, uint64_t round,
                    const struct shard_reply *reply)
{
    ck_assert(b->shard.config.compression.down.kind != CODEC_NONE ||
              shard_reply_memory_has(&b->shard, reply->data) == b->shard.config.shared);
    (void)pthread_mutex_lock(&b->lock);
    b->boxes[rank * b->map.length + partition] = (struct mailbox){.reply = *reply, .round = round};
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

/* Decode a reply as a worker does: a coded one may be a delta. */
static void take_answer(struct rank_thread *t, const struct partition *p, uint64_t round,
                        const struct shard_reply *reply)
{
    const struct shard_config *c = &t->fixture->shard.config;
    float *dst = t->history[round] + p->offset;

    if (!reply->coded) {
        ck_assert_uint_eq(reply->bytes, p->count * sizeof(float));
        memcpy(dst, reply->data, p->count * sizeof(float));
        return;
    }
    ck_assert_uint_gt(round, 0);
    memcpy(dst, t->history[round - 1] + p->offset, p->count * sizeof(float));
    ck_assert_int_eq(codec_decode(&reply->codec, reply->coded, reply->bytes, dst, p->count,
                                  compression_mode(&c->compression, c->update), NULL),
                     STATUS_OK);
}

/* Wait for the reply of `round`, pause, then read it from the shard's memory. */
static void read_reply(struct rank_thread *t, uint32_t partition, uint64_t round)
{
    struct fixture *b = t->fixture;
    const struct partition *p = &b->map.partitions[partition];
    struct mailbox *box = &b->boxes[t->rank * b->map.length + partition];
    struct shard_reply reply;

    (void)pthread_mutex_lock(&b->lock);
    while (box->round != round)
        (void)pthread_cond_wait(&b->changed, &b->lock);
    reply = box->reply;
    (void)pthread_mutex_unlock(&b->lock);
    for (uint32_t pause = next_random(&t->seed) % 4; pause > 0; pause--)
        (void)sched_yield();
    take_answer(t, p, round, &reply);
}

/* A fresh random order of the partitions held. */
static size_t shuffle(struct rank_thread *t, uint32_t *order)
{
    size_t length = 0;

    for (uint32_t i = 0; i < t->fixture->map.length; i++)
        if (shard_partition_count(&t->fixture->shard, i) > 0)
            order[length++] = i;
    for (size_t i = length; i > 1; i--) {
        size_t other = next_random(&t->seed) % i;
        uint32_t swap = order[i - 1];

        order[i - 1] = order[other];
        order[other] = swap;
    }
    return length;
}

static void set_values(struct rank_thread *t, uint32_t partition)
{
    struct fixture *b = t->fixture;
    struct shard_source source = array_source(b->initial + b->map.partitions[partition].offset);
    struct shard_reply reply;
    unsigned rank;
    bool again;

    ck_assert_int_eq(shard_set(&b->shard, partition, &source, false, &again, NULL), STATUS_OK);
    while (shard_next_parked(&b->shard, partition, &rank, &reply))
        deliver(b, rank, partition, 0, &reply);
}

static void exchange(struct rank_thread *t, uint32_t partition, uint64_t round)
{
    struct fixture *b = t->fixture;
    float *gradient = b->gradients[t->rank][round];
    struct shard_source source = array_source(gradient + b->map.partitions[partition].offset);
    struct shard_reply reply;

    ck_assert_int_eq(shard_push(&b->shard, partition, t->rank, round, false, &source, &reply, NULL),
                     STATUS_OK);
    if (!reply.complete)
        return;
    for (unsigned rank = 0; shard_next_reply(&b->shard, partition, &rank, &reply); rank++) {
        ck_assert(reply.round == round || !consistency_is_lockstep(&b->shard.config.consistency));
        deliver(b, rank, partition, reply.round, &reply);
    }
}

static void *run_rank(void *user)
{
    struct rank_thread *t = user;
    struct fixture *b = t->fixture;
    uint32_t order[8];
    size_t length = shuffle(t, order);

    for (size_t i = 0; i < length; i++) {
        struct shard_reply reply;

        if (t->rank == 0)
            set_values(t, order[i]);
        ck_assert_int_eq(shard_pull(&b->shard, order[i], t->rank, 0, false, &reply, NULL),
                         STATUS_OK);
        if (reply.complete)
            deliver(b, t->rank, order[i], 0, &reply);
    }
    for (size_t i = 0; i < length; i++)
        read_reply(t, order[i], 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        length = shuffle(t, order);
        for (size_t i = 0; i < length; i++)
            exchange(t, order[i], round);
        length = shuffle(t, order);
        for (size_t i = 0; i < length; i++)
            read_reply(t, order[i], round);
    }
    return NULL;
}

/* ------------------------------------------------------------------ the model */

struct serial {
    float *values, *sum;
    struct optimizer optimizer;
};

static const float *serial_round(struct serial *m, const struct fixture *b, uint64_t round)
{
    const struct shard_config *c = &b->shard.config;

    if (round == 0) {
        memcpy(m->values, b->initial, COUNT * sizeof(float));
        return m->values;
    }
    memcpy(m->sum, b->gradients[0][round], COUNT * sizeof(float));
    for (unsigned rank = 1; rank < b->world_size; rank++)
        for (size_t i = 0; i < COUNT; i++)
            m->sum[i] += b->gradients[rank][round][i];
    if (c->update)
        optimizer_update(&m->optimizer, round, 0, COUNT, m->values, m->sum);
    return c->update ? m->values : m->sum;
}

static void compare(struct fixture *b, struct rank_thread *threads)
{
    struct serial model = {.values = new_slab(), .sum = new_slab()};

    assert_ok(optimizer_init(&model.optimizer, &b->shard.config.optimizer, COUNT, &err));
    for (uint64_t round = 0; round <= ROUNDS; round++) {
        const float *expected = serial_round(&model, b, round);

        for (size_t i = 0; i < b->map.length; i++) {
            const struct partition *p = &b->map.partitions[i];

            if (p->server != b->shard.config.index)
                continue;
            for (unsigned rank = 0; rank < b->world_size; rank++) {
                const float *got = threads[rank].history[round];

                assert(got);
                ck_assert_msg(
                    memcmp(got + p->offset, expected + p->offset, p->count * sizeof(float)) == 0,
                    "round %d, partition %zu, rank %u differs", (int)round, i, rank);
            }
        }
    }
    optimizer_release(&model.optimizer);
    free(model.values);
    free(model.sum);
}

/* Lossy coded replies: all ranks get the same in every round, and the last two rounds differ. */
static void compare_ranks(struct fixture *b, struct rank_thread *threads)
{
    const struct shard_config *c = &b->shard.config;

    for (size_t i = 0; i < b->map.length; i++) {
        const struct partition *p = &b->map.partitions[i];
        size_t size = p->count * sizeof(float);

        if (p->server != c->index)
            continue;
        for (uint64_t round = 1; round <= ROUNDS; round++)
            for (unsigned rank = 1; rank < b->world_size; rank++) {
                const float *got = threads[rank].history[round];
                const float *first = threads[0].history[round];

                assert(got && first);
                ck_assert_mem_eq(got + p->offset, first + p->offset, size);
            }
        ck_assert_mem_ne(threads[0].history[ROUNDS] + p->offset,
                         threads[0].history[ROUNDS - 1] + p->offset, size);
        if (c->update) /* the shard's record of the ranks' copy equals that copy */
            ck_assert_mem_eq(threads[0].history[ROUNDS] + p->offset,
                             b->shard.encoding.codec_state + p->local_offset, size);
    }
}

/* Where each push is a step: all pushes are applied, each once.  Integers, so that the order does
 * not matter.  ThreadSanitizer reports replies that were overwritten too early. */
static void compare_total(struct fixture *b)
{
    float *expected = new_slab();

    memcpy(expected, b->initial, COUNT * sizeof(float));
    for (unsigned rank = 0; rank < b->world_size; rank++)
        for (uint64_t round = 1; round <= ROUNDS; round++)
            for (size_t i = 0; i < COUNT; i++)
                expected[i] -= b->gradients[rank][round][i];
    for (size_t i = 0; i < b->map.length; i++) {
        const struct partition *p = &b->map.partitions[i];

        if (p->server != b->shard.config.index)
            continue;
        for (size_t at = 0; at < p->count; at++)
            ck_assert_msg(b->shard.values[p->local_offset + at] == expected[p->offset + at],
                          "partition %zu, element %zu: %g, expected %g", i, at,
                          (double)b->shard.values[p->local_offset + at],
                          (double)expected[p->offset + at]);
    }
    free(expected);
}

/* One job from initial values to the last round, all ranks at once. */
static void run_job(unsigned servers, struct shard_config config, uint32_t seed)
{
    struct fixture fixture;
    struct rank_thread threads[RANKS_MAX] = {0};

    fixture_open(&fixture, servers, config);
    for (unsigned rank = 0; rank < config.world_size; rank++) {
        threads[rank] = (struct rank_thread){
            .fixture = &fixture, .rank = rank, .seed = seed * 977 + rank * 31 + 1};
        for (uint64_t round = 0; round <= ROUNDS; round++)
            threads[rank].history[round] = new_slab();
        ck_assert_int_eq(pthread_create(&threads[rank].thread, NULL, run_rank, &threads[rank]), 0);
    }
    for (unsigned rank = 0; rank < config.world_size; rank++)
        ck_assert_int_eq(pthread_join(threads[rank].thread, NULL), 0);
    if (codec_has_residual(&config.compression.down))
        compare_ranks(&fixture, threads);
    else if (consistency_is_lockstep(&config.consistency))
        compare(&fixture, threads);
    else
        compare_total(&fixture);
    for (unsigned rank = 0; rank < config.world_size; rank++)
        for (uint64_t round = 0; round <= ROUNDS; round++)
            free(threads[rank].history[round]);
    fixture_close(&fixture);
}

static struct optimizer_config adam(void)
{
    return optimizer_defaults(OPTIMIZER_ADAM);
}

/* Integers sum exactly, so sums in order of arrival must have the model's bits, too. */
START_TEST(test_random_interleavings)
{
    unsigned world_size = (unsigned)_i % RANKS_MAX + 1;

    for (unsigned mode = 0; mode < 4; mode++)
        for (unsigned servers = 1; servers <= 3; servers++) {
            struct shard_config config = {.world_size = world_size,
                                          .index = servers - 1,
                                          .update = mode & 1,
                                          .rank_order = mode & 2,
                                          .optimizer = adam()};

            run_job(servers, config, (uint32_t)(support_random() * 1e9) + 1);
        }
}
END_TEST

START_TEST(test_momentum_on_the_server)
{
    struct shard_config config = {.world_size = 3,
                                  .update = true,
                                  .rank_order = true,
                                  .optimizer = optimizer_defaults(OPTIMIZER_SGD)};

    config.optimizer.learning_rate = 0.1;
    config.optimizer.momentum = 0.9;
    run_job(1, config, 5);
}
END_TEST

START_TEST(test_coded_replies)
{
    static const enum codec_kind kinds[] = {CODEC_ONE_BIT, CODEC_TOP_K, CODEC_ROWS};

    for (unsigned update = 0; update < 2; update++) {
        struct shard_config config = {
            .world_size = 3,
            .update = update,
            .rank_order = true,
            .optimizer = adam(),
            .compression = compression_make(CODEC_NONE, (uint32_t)kinds[_i], 100000)};

        run_job(1, config, (uint32_t)(support_random() * 1e9) + 1);
    }
}
END_TEST

START_TEST(test_every_push_is_a_step)
{
    unsigned world_size = (unsigned)_i % RANKS_MAX + 1;

    for (uint32_t staleness = 0; staleness < 3; staleness++) {
        struct shard_config config = {
            .world_size = world_size,
            .update = true,
            .optimizer = optimizer_defaults(OPTIMIZER_SGD),
            .consistency = {.mode = staleness > 0 ? CONSISTENCY_SSP : CONSISTENCY_ASP,
                            .staleness = staleness}};

        config.optimizer.learning_rate = world_size; /* of each push: 1 */
        run_job(1, config, (uint32_t)(support_random() * 1e9) + 1);
    }
}
END_TEST

/* ------------------------------------------------------------------ refusals */

static struct shard_config plain(unsigned world_size)
{
    return (struct shard_config){.world_size = world_size, .optimizer = adam()};
}

static void pull_all(struct fixture *b, uint32_t partition)
{
    struct shard_source source = array_source(b->initial);
    struct shard_reply reply;
    bool again;

    assert_ok(shard_set(&b->shard, partition, &source, false, &again, &err));
    for (unsigned rank = 0; rank < b->world_size; rank++) {
        assert_ok(shard_pull(&b->shard, partition, rank, 0, false, &reply, &err));
        ck_assert(reply.complete);
    }
}

START_TEST(test_refusals)
{
    struct fixture b;
    struct shard_reply reply;
    struct shard_source source;
    float *gradient;
    unsigned rank = 0;
    bool again;

    fixture_open(&b, 2, plain(2));
    gradient = b.gradients[0][1];
    source = array_source(gradient);
    ck_assert_uint_eq(shard_partition_count(&b.shard, 0), FULL);
    ck_assert_uint_eq(shard_partition_count(&b.shard, 1), 0);
    ck_assert_uint_eq(shard_partition_count(&b.shard, 4), FULL);
    ck_assert_uint_eq(shard_partition_count(&b.shard, 6), 0);
    ck_assert_uint_eq(shard_partition_count(&b.shard, UINT32_MAX), 0);
    assert_fails(shard_push(&b.shard, 1, 0, 1, false, &source, &reply, &err), STATUS_PROTOCOL,
                 "not held here");
    assert_fails(shard_set(&b.shard, 6, &source, false, &again, &err), STATUS_PROTOCOL,
                 "not held here");
    assert_fails(shard_pull(&b.shard, 6, 0, 0, false, &reply, &err), STATUS_PROTOCOL,
                 "not held here");
    assert_fails(shard_push(&b.shard, 0, 0, 1, false, &source, &reply, &err), STATUS_PROTOCOL,
                 "initial values");
    pull_all(&b, 0);
    assert_fails(shard_set(&b.shard, 0, &source, false, &again, &err), STATUS_PROTOCOL, "twice");
    assert_fails(shard_pull(&b.shard, 0, 1, 0, false, &reply, &err), STATUS_PROTOCOL, "twice");
    assert_ok(shard_push(&b.shard, 0, 1, 1, false, &source, &reply, &err));
    ck_assert(!reply.complete);
    assert_fails(shard_push(&b.shard, 0, 1, 1, false, &source, &reply, &err), STATUS_PROTOCOL,
                 "twice");
    assert_fails(shard_push(&b.shard, 0, 1, 2, false, &source, &reply, &err), STATUS_PROTOCOL,
                 "cannot have begun");
    assert_fails(shard_push(&b.shard, 0, 1, 0, false, &source, &reply, &err), STATUS_PROTOCOL,
                 "is complete");
    assert_ok(shard_push(&b.shard, 0, 0, 1, false, &source, &reply, &err));
    ck_assert(reply.complete);
    ck_assert(shard_next_reply(&b.shard, 0, &rank, &reply));
    for (size_t i = 0; i < reply.count; i++)
        ck_assert(reply.data[i] == 2 * gradient[i]);
    fixture_close(&b);
}
END_TEST

START_TEST(test_a_broken_source_is_reported)
{
    struct fixture b;
    struct shard_reply reply;
    struct shard_source source = {.copy = broken_copy, .add = broken_copy};
    bool again;

    fixture_open(&b, 1, plain(1));
    assert_fails(shard_set(&b.shard, 5, &source, false, &again, &err), STATUS_DATA,
                 "77 floats broke");
    pull_all(&b, 5);
    assert_fails(shard_push(&b.shard, 5, 0, 1, false, &source, &reply, &err), STATUS_DATA, "broke");
    fixture_close(&b);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("shard", 60, LOOP_TEST(test_random_interleavings, 0, 2 * RANKS_MAX),
                       LOOP_TEST(test_coded_replies, 0, 3),
                       LOOP_TEST(test_every_push_is_a_step, 0, 2 * RANKS_MAX),
                       TEST(test_momentum_on_the_server), TEST(test_refusals),
                       TEST(test_a_broken_source_is_reported));
}
