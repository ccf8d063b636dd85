/*
 * Parameters without a gradient: used on no rank, some ranks, all ranks; with a static graph; and
 * the error with their name when the option is not set.
 */
#include "tests/support/bounded.h"
#include "tests/worker/sync/allreduce_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const shapes[] = {"a:9x4", "b:9", "c:30", "d:3x3", NULL};

enum { VIEWS = 4 };

static struct tensor_table table;

static void setup(void)
{
    table_make(&table, shapes);
}

static void teardown(void)
{
    tensor_table_release(&table);
}

/* a: all ranks in all steps; b: rank 1 in even steps; c: none; d: rank 0 in step 0, all later. */
static bool is_used(unsigned rank, uint64_t step, size_t view)
{
    switch (view) {
    case 0:
        return true;
    case 1:
        return rank == 1 && step % 2 == 0;
    case 2:
        return false;
    default:
        return step > 0 || rank == 0;
    }
}

/* Fill in the gradient of the views that this rank uses, zeros elsewhere. */
static void fill(struct replica *r, uint64_t step, bool *used)
{
    for (size_t v = 0; v < VIEWS; v++) {
        const struct tensor_view *view = &r->table->views[v];

        used[v] = is_used(r->rank, step, v);
        for (size_t i = view->offset; i < view->offset + view->count; i++)
            r->grads[i] = used[v] ? value_of(r->rank, step, i, 0) : 0.0f;
    }
}

static void check_step(struct replica *r, uint64_t step, const bool *used)
{
    for (size_t v = 0; v < VIEWS; v++) {
        const struct tensor_view *view = &r->table->views[v];
        bool anywhere = false;

        for (unsigned k = 0; k < r->size; k++)
            anywhere = anywhere || is_used(k, step, v);
        ck_assert_msg(used[v] == anywhere, "step %u, '%s'", (unsigned)step, view->name);
        for (size_t i = view->offset; i < view->offset + view->count; i++) {
            struct bounded mean = {0};

            for (unsigned k = 0; k < r->size; k++) /* roundings: sums, factor, product */
                if (is_used(k, step, v))
                    bounded_add(&mean, bounded_exact((double)value_of(k, step, i, 0) / r->size),
                                r->size + 1);
            ck_assert_double_le(fabs((double)r->grads[i] - mean.value), mean.error);
        }
    }
}

static void train(struct replica *r)
{
    struct error err = {0};

    for (uint64_t step = 0; step < 5; step++) {
        bool used[VIEWS];

        fill(r, step, used);
        replica_sync(r, step);
        assert_ok(sync_agree_used(r->sync, used, &err));
        check_step(r, step, used);
    }
}

START_TEST(test_unused)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        for (unsigned size = 2; size <= REPLICAS_MAX; size++) {
            struct ddp_config ddp = DDP_DEFAULTS;
            struct replicas world = {
                .backend = *backend, .size = size, .table = &table, .ddp = &ddp};

            ddp.find_unused_parameters = true;
            ddp.bucket_cap_mb = size == 3 ? -1 : 0.0001;
            replicas_run(&world, train, NULL);
        }
    }
}
END_TEST

/* Without the option: an error in the same step, on the rank without the gradient. */
static void expect_error(struct replica *r)
{
    struct error err = {0};
    bool used[VIEWS] = {true, true, true, true};

    replica_step(r, 0);
    assert_ok(sync_agree_used(r->sync, used, &err));
    replica_step(r, 1);
    used[2] = false;
    assert_fails(sync_agree_used(r->sync, used, &err), STATUS_INVALID,
                 "step 1: parameter 'c' has no gradient (--find-unused-parameters");
}

/* A static graph: the first step's result, without another operation; a change is an error. */
static void train_static(struct replica *r)
{
    struct error err = {0};
    struct sync_counters before;
    struct sync_counters after;
    bool used[VIEWS];

    for (uint64_t step = 0; step < 3; step++) {
        fill(r, 0, used);
        replica_sync(r, step);
        before = sync_counters(r->sync);
        assert_ok(sync_agree_used(r->sync, used, &err));
        after = sync_counters(r->sync);
        check_step(r, 0, used);
        ck_assert((after.tx_payload_bytes > before.tx_payload_bytes) == (step == 0));
    }
    memset(used, 0, sizeof(used)); /* it has no inputs any more, and shadows the others' step */
    assert_ok(sync_agree_used(r->sync, used, &err));
    check_step(r, 0, used);
    fill(r, 0, used);
    used[0] = false;
    used[2] = true;
    assert_fails(sync_agree_used(r->sync, used, &err), STATUS_INVALID,
                 "'a' has no gradient, but had one in the first step");
    fill(r, 0, used);
    used[2] = true;
    assert_fails(sync_agree_used(r->sync, used, &err), STATUS_INVALID,
                 "'c' has a gradient, but had none in the first step");
}

START_TEST(test_strict)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        struct replicas world = {.backend = *backend, .size = 3, .table = &table, .ddp = &ddp};

        if (_i == 0) {
            replicas_run(&world, expect_error, NULL);
            continue;
        }
        ddp.static_graph = true;
        replicas_run(&world, train_static, NULL);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("allreduce_used", 100, CHECKED_FIXTURE(setup, teardown), TEST(test_unused),
                       LOOP_TEST(test_strict, 0, 2));
}
