/*
 * Uneven inputs: ranks with 5, 3, 0 ... steps train a small linear regression by plain SGD,
 * compared with a single process that has all ranks' inputs; both rules of division, and the mean
 * over samples.  At the end all ranks have the model of the last rank that trained.  --uneven stop
 * names the rank.
 */
#include "tests/support/bounded.h"
#include "tests/worker/sync/allreduce_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RATE  0.25
#define SLOPE 0.1 /* of a gradient over its parameter */

static const char *const shapes[] = {"w:6x5", "b:6", NULL};

static struct tensor_table table;

static void setup(void)
{
    table_make(&table, shapes);
}

static void teardown(void)
{
    tensor_table_release(&table);
}

struct uneven {
    const struct ddp_config *ddp;
    const size_t *steps;   /* per rank, before its inputs end */
    const size_t *samples; /* per rank and step */
};

/* A gradient that depends on the parameter, the rank and the step: 0.1 p + noise. */
static double gradient(double p, unsigned rank, uint64_t step, size_t i)
{
    return SLOPE * p + (double)value_of(rank, step, i, 3);
}

static double initial_value(size_t i)
{
    return (double)value_of(0, 0, i, 5);
}

/* Weight of a rank in a step; 0: its inputs have ended. */
static double weight(const struct uneven *u, unsigned size, unsigned rank, uint64_t step)
{
    size_t active = 0;
    size_t total = 0;

    if (step >= u->steps[rank])
        return 0;
    for (unsigned r = 0; r < size; r++) {
        active += step < u->steps[r];
        total += step < u->steps[r] ? u->samples[r] : 0;
    }
    if (u->ddp->weight_by_samples)
        return (double)u->samples[rank] / (double)total;
    return 1.0 / (double)(u->ddp->divide_by_active ? active : size);
}

/* Every rank's updates in one process, in double precision. */
static struct bounded train_serially(const struct uneven *u, unsigned size, size_t i)
{
    struct bounded p = bounded_exact(initial_value(i));
    size_t longest = 0;

    for (unsigned r = 0; r < size; r++)
        longest = u->steps[r] > longest ? u->steps[r] : longest;
    for (uint64_t step = 0; step < longest; step++) {
        struct bounded mean = {0};

        for (unsigned r = 0; r < size; r++) { /* roundings: the sums, a weight and its product */
            struct bounded g = bounded_round(gradient(p.value, r, step, i), SLOPE * p.error);
            double share = weight(u, size, r, step);

            bounded_add(&mean, (struct bounded){share * g.value, share * g.error}, size + 1);
        }
        p = bounded_minus(p, bounded_times(mean, RATE));
    }
    return p;
}

static void train(struct replica *r)
{
    const struct uneven *u = r->argument;
    struct error err = {0};
    unsigned active = 1;
    uint64_t step = 0;
    size_t shadowed = 0;

    for (size_t i = 0; i < r->table->count; i++)
        r->params[i] = (float)initial_value(i) + (float)r->rank; /* overwritten by rank 0's */
    assert_ok(sync_start(r->sync, &err));
    for (;; step++) {
        bool mine = step < u->steps[r->rank];
        unsigned others = 0;

        for (unsigned k = 0; k < r->size; k++)
            others += step < u->steps[k];
        assert_ok(sync_announce_samples(r->sync, mine ? u->samples[r->rank] : 0, &active, &err));
        ck_assert_uint_eq(active, others);
        if (active == 0)
            break;
        shadowed += !mine;
        for (size_t i = 0; i < r->table->count; i++)
            r->grads[i] = mine ? (float)gradient((double)r->params[i], r->rank, step, i) : 0.0f;
        replica_sync(r, step);
        if (!mine)
            continue; /* as joined ranks of PyTorch, which run no optimizer */
        for (size_t i = 0; i < r->table->count; i++)
            r->params[i] -= (float)RATE * r->grads[i];
    }
    ck_assert_uint_eq(step, u->steps[r->rank] + shadowed);
    for (size_t i = 0; i < r->table->count; i++) {
        struct bounded wanted = train_serially(u, r->size, i);

        ck_assert_double_le(fabs((double)r->params[i] - wanted.value), wanted.error);
    }
}

static const size_t all_steps[][4] = {{5, 3, 4, 1}, {1, 1, 6, 2}, {0, 7, 3, 7}};
static const size_t all_samples[] = {16, 3, 40, 1};

START_TEST(test_join)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        for (int rule = 0; rule < 3; rule++) {
            struct ddp_config ddp = DDP_DEFAULTS;
            struct uneven u = {.ddp = &ddp, .steps = all_steps[_i], .samples = all_samples};
            struct replicas world = {.backend = *backend,
                                     .size = 2 + (unsigned)rule,
                                     .table = &table,
                                     .ddp = &ddp,
                                     .unstarted = true};

            ddp.uneven = DDP_JOIN;
            ddp.divide_by_active = rule == 1;
            ddp.weight_by_samples = rule == 2;
            replicas_run(&world, train, &u);
        }
    }
}
END_TEST

/* Ranks 1 and 2 end together, after rank 0: the greater one broadcasts model and buffers. */
static void end_together(struct replica *r)
{
    const size_t steps[] = {1, 3, 3};
    struct error err = {0};
    unsigned active = 1;

    for (uint64_t step = 0;; step++) {
        assert_ok(sync_announce_samples(r->sync, step < steps[r->rank], &active, &err));
        if (active == 0)
            break;
        replica_step(r, step);
        for (size_t i = 0; i < r->table->count; i++)
            r->params[i] = (float)(100 * r->rank + step);
        r->buffers[0] = (float)r->rank;
    }
    for (size_t i = 0; i < r->table->count; i++)
        ck_assert(r->params[i] == 202.0f);
    ck_assert(r->buffers[0] == 2.0f);
}

START_TEST(test_the_last_joiner_gives_the_model)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        struct replicas world = {
            .backend = *backend, .size = 3, .table = &table, .buffer_count = 1, .ddp = &ddp};

        ddp.uneven = DDP_JOIN;
        ddp.broadcast_buffers = false;
        replicas_run(&world, end_together, NULL);
    }
}
END_TEST

static void stop_early(struct replica *r)
{
    struct error err = {0};
    unsigned active = 0;

    assert_ok(sync_announce_samples(r->sync, 8, &active, &err));
    ck_assert_uint_eq(active, 3);
    replica_step(r, 0);
    assert_fails(sync_announce_samples(r->sync, r->rank == 1 ? 0 : 8, &active, &err), STATUS_DATA,
                 "rank 1 has no inputs left after step 0");
}

static void stop_together(struct replica *r)
{
    struct error err = {0};
    unsigned active = 3;

    assert_ok(sync_announce_samples(r->sync, 8, &active, &err));
    replica_step(r, 0);
    assert_ok(sync_announce_samples(r->sync, 0, &active, &err)); /* no rank ends early */
    ck_assert_uint_eq(active, 0);
}

START_TEST(test_stop)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        struct replicas world = {.backend = *backend, .size = 3, .table = &table, .ddp = &ddp};

        ddp.uneven = DDP_STOP;
        replicas_run(&world, stop_early, NULL);
        replicas_run(&world, stop_together, NULL);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("allreduce_join", 100, CHECKED_FIXTURE(setup, teardown),
                       LOOP_TEST(test_join, 0, 3), TEST(test_the_last_joiner_gives_the_model),
                       TEST(test_stop));
}
