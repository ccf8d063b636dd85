/*
 * Contributions that lie in memory and are pending, against the same ones copied on arrival: two
 * shards get the same random sequence of pushes, broken connections and ranks that leave, and must
 * send the same bits.  Memory is overwritten as soon as its rank may do so.
 */
#include "server/shard/shard.h"

#include "common/base/memory.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 5u
#define COUNT     (2 * 4096 + 77) /* in one partition: not a multiple of the blocks of a sum */
#define ROUNDS    6u

static struct error err;
static uint32_t seed;
static unsigned kept; /* sources that were kept and not dropped */

struct contribution {
    float *elements; /* (COUNT) of the rank; owned */
    float factor;
};

struct pair {
    struct shard_map map;
    struct shard pending, copied;
    struct contribution ranks[RANKS_MAX];
    bool gone[RANKS_MAX], pushed[RANKS_MAX];
    unsigned world_size;
    float *sums[2]; /* (COUNT) of the newest step, as the sinks got it; owned */
};

static uint32_t random_below(uint32_t limit)
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return seed % limit;
}

/* ------------------------------------------------------------------ sources and sinks */

static enum status scaled_copy(void *user, float *dst, size_t count, struct error *error)
{
    const struct contribution *c = user;

    (void)error;
    for (size_t i = 0; i < count; i++)
        dst[i] = c->factor * c->elements[i];
    return STATUS_OK;
}

static enum status scaled_add(void *user, float *dst, size_t count, struct error *error)
{
    const struct contribution *c = user;

    (void)error;
    for (size_t i = 0; i < count; i++) {
        float product = c->factor * c->elements[i];

        dst[i] += product;
    }
    return STATUS_OK;
}

static void drop(void *user)
{
    (void)user;
    kept--;
}

static enum status keep(void *user, struct shard_source *ret, struct error *error)
{
    const struct contribution *c = user;

    (void)error;
    kept++;
    *ret = (struct shard_source){
        .drop = drop, .user = user, .elements = c->elements, .factor = c->factor};
    return STATUS_OK;
}

static struct shard_source source_of(struct contribution *c, bool in_memory)
{
    if (in_memory)
        return (struct shard_source){
            .keep = keep, .user = c, .elements = c->elements, .factor = c->factor};
    return (struct shard_source){.copy = scaled_copy, .add = scaled_add, .user = c};
}

static enum status on_mutation(void *user, const struct mutation *mutation, struct error *error)
{
    (void)error;
    if (mutation->kind == MUTATION_STEP)
        memcpy(user, mutation->payload, COUNT * sizeof(float));
    return STATUS_OK;
}

/* ------------------------------------------------------------------ the pair */

static void overwrite(const struct contribution *c)
{
    for (size_t i = 0; i < COUNT; i++)
        c->elements[i] = (float)NAN;
}

static void fill(struct contribution *c)
{
    static const float factors[] = {1, 0.5f, 1 / 3.0f};

    c->factor = factors[random_below(3)];
    for (size_t i = 0; i < COUNT; i++)
        c->elements[i] = (float)random_below(1u << 20) / 65536 - 8;
}

static void start(struct shard *s, const struct shard_config *config, struct contribution *initial)
{
    struct shard_source source = source_of(initial, false);
    struct shard_reply reply;
    bool again;

    assert_ok(shard_init(s, config, &err));
    assert_ok(shard_set(s, 0, &source, false, &again, &err));
    for (unsigned rank = 0; rank < config->world_size; rank++)
        assert_ok(shard_pull(s, 0, rank, 0, false, &reply, &err));
}

static struct shard_config random_config(const struct pair *p)
{
    bool asp = random_below(3) == 0;
    enum optimizer_kind kind = random_below(2) ? OPTIMIZER_SGD : OPTIMIZER_ADAM;
    struct shard_config config = {.map = &p->map,
                                  .world_size = p->world_size,
                                  .update = asp || random_below(3) > 0,
                                  .rank_order = !asp && random_below(2),
                                  .optimizer = optimizer_defaults(kind),
                                  .consistency = {.mode = asp ? CONSISTENCY_ASP : CONSISTENCY_BSP}};

    config.previous = !asp && config.update && random_below(2);
    config.consistency.delay_compensation = asp && random_below(3) == 0 ? 0.125 : 0;
    config.optimizer.momentum = random_below(2) ? 0.5 : 0;
    return config;
}

static void open_pair(struct pair *p)
{
    struct shard_config config;

    memset(p, 0, sizeof(*p));
    p->world_size = 1 + random_below(RANKS_MAX);
    assert_ok(shard_map_make(COUNT, PARTITION_BYTES_MAX, 1, &p->map, &err));
    ck_assert_uint_eq(p->map.length, 1);
    for (unsigned rank = 0; rank < p->world_size; rank++) {
        assert_ok(mem_calloc(COUNT, sizeof(float), "elements", &p->ranks[rank].elements, &err));
        fill(&p->ranks[rank]);
    }
    config = random_config(p);
    start(&p->pending, &config, &p->ranks[0]);
    start(&p->copied, &config, &p->ranks[0]);
    for (unsigned i = 0; i < 2; i++)
        assert_ok(mem_calloc(COUNT, sizeof(float), "sum", &p->sums[i], &err));
    if (random_below(2) && shard_check_recorded(&config, NULL) == STATUS_OK) {
        shard_set_sink(&p->pending, SHARD_SINK_DISK,
                       &(struct shard_sink){.on_mutation = on_mutation, .user = p->sums[0]});
        shard_set_sink(&p->copied, SHARD_SINK_DISK,
                       &(struct shard_sink){.on_mutation = on_mutation, .user = p->sums[1]});
    }
}

static void close_pair(struct pair *p)
{
    shard_release(&p->pending);
    shard_release(&p->copied);
    shard_map_release(&p->map);
    for (unsigned rank = 0; rank < p->world_size; rank++)
        free(p->ranks[rank].elements);
    free(p->sums[0]);
    free(p->sums[1]);
    ck_assert_uint_eq(kept, 0);
}

static bool have_same_bits(const void *a, const void *b)
{
    return memcmp(a, b, COUNT * sizeof(float)) == 0;
}

/* A step is complete: read the replies of both, and compare them and the sums. */
static void compare(struct pair *p)
{
    struct shard_reply a, b;
    unsigned rank = 0, other = 0;

    ck_assert(have_same_bits(p->sums[0], p->sums[1]));
    for (; shard_next_reply(&p->pending, 0, &rank, &a); rank++, other++) {
        ck_assert(shard_next_reply(&p->copied, 0, &other, &b) && rank == other);
        ck_assert(have_same_bits(a.data, b.data));
    }
    ck_assert(!shard_next_reply(&p->copied, 0, &other, &b));
    for (rank = 0; rank < p->world_size; rank++)
        if (p->pushed[rank])
            overwrite(&p->ranks[rank]);
}

/* Returns whether that made a step. */
static bool push(struct pair *p, unsigned rank, uint64_t round)
{
    struct shard_source in_memory = source_of(&p->ranks[rank], random_below(4) > 0);
    struct shard_source copied = source_of(&p->ranks[rank], false);
    struct shard_reply a, b;

    assert_ok(shard_push(&p->pending, 0, rank, round, false, &in_memory, &a, &err));
    assert_ok(shard_push(&p->copied, 0, rank, round, false, &copied, &b, &err));
    ck_assert(a.complete == b.complete && a.contributions == b.contributions);
    p->pushed[rank] = true;
    return a.complete;
}

/* The connection of a rank breaks; it may have pushed. */
static void suspend(struct pair *p, unsigned rank)
{
    shard_suspend(&p->pending, rank);
    shard_suspend(&p->copied, rank);
    if (p->pushed[rank])
        overwrite(&p->ranks[rank]);
}

static bool leave(struct pair *p, unsigned rank)
{
    struct shard_reply a, b;

    suspend(p, rank);
    assert_ok(shard_vacate(&p->pending, 0, rank, &a, &err));
    assert_ok(shard_vacate(&p->copied, 0, rank, &b, &err));
    ck_assert(a.complete == b.complete && a.contributions == b.contributions);
    p->gone[rank] = true;
    return a.complete;
}

static void run_round(struct pair *p, uint64_t round)
{
    bool each = consistency_steps_per_push(&p->copied.config.consistency);
    unsigned first = random_below(p->world_size), here = 0;
    bool complete = false;

    memset(p->pushed, 0, sizeof(p->pushed));
    for (unsigned rank = 0; rank < p->world_size; rank++) {
        here += !p->gone[rank];
        fill(&p->ranks[rank]);
    }
    for (unsigned i = 0; i < p->world_size && (each || !complete); i++) {
        unsigned rank = (first + i) % p->world_size, other = random_below(p->world_size);

        if (random_below(6) == 0)
            suspend(p, other);
        if (here > 1 && !p->gone[other] && random_below(12) == 0) {
            complete = leave(p, other);
            here--;
        }
        if (!p->gone[rank] && (each || !complete))
            complete = push(p, rank, round);
        if (complete)
            compare(p);
    }
    ck_assert(complete || each);
}

START_TEST(test_pending_sums_have_the_same_bits)
{
    struct pair p;

    seed = 20261129;
    for (unsigned i = 0; i < 300; i++) {
        open_pair(&p);
        for (uint64_t round = 1; round <= ROUNDS; round++)
            run_round(&p, round);
        close_pair(&p);
    }
}
END_TEST

/* Unfinished rounds hold memory of their ranks until the shard is released. */
START_TEST(test_a_pending_contribution_is_released)
{
    struct pair p;
    bool complete = true;

    seed = 7;
    while (complete) {
        open_pair(&p);
        complete = push(&p, 0, 1) || kept == 0;
        close_pair(&p);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("shard_sum", 0, TEST(test_pending_sums_have_the_same_bits),
                       TEST(test_a_pending_contribution_is_released));
}
