/*
 * A step of DistributedDataParallel over every backend: the mean against sums in double precision
 * and, in rank order, bit for bit; buckets in order with their times; bytes against the formula;
 * buffers from rank 0; models of one bucket.
 */
#include "tests/support/bounded.h"
#include "tests/worker/sync/allreduce_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 4

static const char *const shapes[] = {"a:37x19", "b:37", "c:301x3", "d:1", "e:64x64", "f:5", NULL};

static struct tensor_table table;

static void setup(void)
{
    table_make(&table, shapes);
}

static void teardown(void)
{
    tensor_table_release(&table);
}

/* ((g0 f + g1 f) + g2 f) + ... with every operation rounded: the exact result of rank order. */
static float mean_in_order(unsigned size, uint64_t step, size_t index)
{
    float factor = (float)(1.0 / size);
    float sum = value_of(0, step, index, 0) * factor;

    for (unsigned r = 1; r < size; r++)
        sum += value_of(r, step, index, 0) * factor;
    return sum;
}

/* In any order; each term is scaled by a rounded factor, before or after the sum. */
static struct bounded mean_in_double(unsigned size, uint64_t step, size_t index)
{
    struct bounded mean = {0};

    for (unsigned r = 0; r < size; r++)
        bounded_add(&mean, bounded_exact((double)value_of(r, step, index, 0) / size), size + 1);
    return mean;
}

static void check_mean(struct replica *r)
{
    const enum reduce_order *order = r->argument;

    for (uint64_t step = 0; step < STEPS; step++) {
        replica_step(r, step);
        for (size_t i = 0; i < r->table->count; i++) {
            struct bounded mean = mean_in_double(r->size, step, i);

            if (*order == REDUCE_REPRODUCIBLE)
                ck_assert(r->grads[i] == mean_in_order(r->size, step, i));
            else
                ck_assert_double_le(fabs((double)r->grads[i] - mean.value), mean.error);
        }
    }
}

START_TEST(test_mean)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        for (unsigned size = 2; size <= REPLICAS_MAX; size++) {
            struct ddp_config ddp = DDP_DEFAULTS;
            enum reduce_order order = _i ? REDUCE_REPRODUCIBLE : REDUCE_FAST;
            struct replicas world = {
                .backend = *backend, .size = size, .table = &table, .ddp = &ddp, .order = order};

            replicas_run(&world, check_mean, &order); /* one bucket: on the training thread */
            ddp.bucket_cap_mb = 0.002;                /* a bucket of 2 KiB and more */
            replicas_run(&world, check_mean, &order);
        }
    }
}
END_TEST

/* ---- the arrived call-back ---- */

/* Called on the caller's thread, once per element, with final values. */
static enum status note_arrival(void *user, size_t offset, size_t count, struct error *err)
{
    struct replica *r = user;
    const uint64_t *step = r->argument;

    (void)err;
    ck_assert(pthread_equal(pthread_self(), r->owner));
    ck_assert_uint_eq(offset, r->arrived_count);
    ck_assert_uint_gt(count, 0);
    for (size_t i = offset; i < offset + count; i++)
        ck_assert(r->grads[i] == mean_in_order(r->size, step[r->rank], i));
    r->arrived_count += count;
    r->calls++;
    return STATUS_OK;
}

static void check_arrivals(struct replica *r)
{
    uint64_t steps[REPLICAS_MAX];

    r->argument = steps;
    for (steps[r->rank] = 0; steps[r->rank] < STEPS; steps[r->rank]++) {
        r->arrived_count = 0;
        replica_step(r, steps[r->rank]);
        ck_assert_uint_eq(r->arrived_count, r->table->count);
    }
    ck_assert_uint_ge(r->calls, STEPS);
}

static enum status refuse_arrival(void *user, size_t offset, size_t count, struct error *err)
{
    (void)user;
    return error_set(err, STATUS_IO, "no place for %zu from %zu on", count, offset);
}

static void check_refusal(struct replica *r)
{
    struct error err = {0};

    assert_ok(sync_begin(r->sync, 0, &err));
    sync_ready(r->sync, r->table->count);
    assert_fails(sync_finish(r->sync, &err), STATUS_IO, "from 0 on");
}

START_TEST(test_arrivals)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        for (unsigned size = 2; size <= 3; size++) {
            struct ddp_config ddp = DDP_DEFAULTS;
            struct replicas world = {.backend = *backend,
                                     .size = size,
                                     .table = &table,
                                     .ddp = &ddp,
                                     .order = REDUCE_REPRODUCIBLE,
                                     .arrived = note_arrival};

            replicas_run(&world, check_arrivals, NULL);
            ddp.bucket_cap_mb = 0.002;
            replicas_run(&world, check_arrivals, NULL);
            world.arrived = refuse_arrival;
            replicas_run(&world, check_refusal, NULL);
        }
    }
}
END_TEST

/* ---- times and bytes ---- */

static void check_facts(struct replica *r)
{
    uint64_t expected_tx;
    uint64_t expected_rx;
    struct sync_timeline t;
    size_t bytes = 0;

    sync_expected_bytes(r->sync, &expected_tx, &expected_rx);
    for (uint64_t step = 0; step < STEPS; step++) {
        struct sync_counters before = sync_counters(r->sync);
        struct sync_counters after;

        replica_step(r, step);
        after = sync_counters(r->sync);
        ck_assert_uint_eq(after.tx_payload_bytes - before.tx_payload_bytes, expected_tx);
        ck_assert_uint_eq(after.rx_payload_bytes - before.rx_payload_bytes, expected_rx);
    }
    ck_assert_uint_gt(expected_tx, 0);
    sync_timeline(r->sync, &t);
    ck_assert_uint_ge(t.length, 3);
    for (size_t i = 0; i < t.length; i++) {
        bytes += t.buckets[i].bytes;
        ck_assert_int_ge(t.buckets[i].ready_ns, t.begun_ns);
        ck_assert_int_ge(t.buckets[i].started_ns, t.buckets[i].ready_ns);
        ck_assert_int_ge(t.buckets[i].done_ns, t.buckets[i].started_ns);
        if (i > 0) /* strictly one after the other, in order */
            ck_assert_int_ge(t.buckets[i].started_ns, t.buckets[i - 1].done_ns);
    }
    ck_assert_uint_eq(bytes, r->table->count * sizeof(float));
}

START_TEST(test_times_and_bytes)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        for (int hook = DDP_HOOK_NONE; hook <= DDP_HOOK_POWERSGD; hook++) {
            struct ddp_config ddp = DDP_DEFAULTS;
            struct replicas world = {
                .backend = *backend, .size = 3, .table = &table, .buffer_count = 33, .ddp = &ddp};

            ddp.bucket_cap_mb = 0.002;
            ddp.hook = (enum ddp_hook)hook;
            ddp.powersgd_start = 0;
            replicas_run(&world, check_facts, NULL);
        }
    }
}
END_TEST

/* ---- errors ---- */

/* Rank 1 runs another collective instead of its buckets: rank 0's error names its own bucket, once.
 */
static void check_error(struct replica *r)
{
    struct error err = {0};
    unsigned char all[2];
    const char *bucket;

    if (r->rank == 1) {
        assert_fails(sync_all_gather(r->sync, "x", 1, all, &err), STATUS_MISMATCH, "rank 0");
        return;
    }
    assert_ok(sync_begin(r->sync, 0, &err));
    sync_ready(r->sync, r->table->count);
    assert_fails(sync_finish(r->sync, &err), STATUS_MISMATCH, "rank 1 is in all_gather");
    bucket = strstr(err.text, "bucket 1 of ");
    ck_assert_msg(bucket && !strstr(bucket + 1, "bucket "), "%s", err.text);
}

START_TEST(test_errors_name_the_bucket_once)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        struct replicas world = {.backend = *backend, .size = 2, .table = &table, .ddp = &ddp};

        ddp.bucket_cap_mb = 0.002;
        replicas_run(&world, check_error, NULL);
    }
}
END_TEST

/* ---- buffers ---- */

static void check_buffers(struct replica *r)
{
    struct error err = {0};
    const bool *broadcast = r->argument;

    for (size_t i = 0; i < 50; i++) {
        r->buffers[i] = value_of(r->rank, 77, i, 0);
        r->params[i] = value_of(r->rank, 78, i, 0);
    }
    assert_ok(sync_start(r->sync, &err)); /* parameters and buffers of rank 0, always */
    for (size_t i = 0; i < 50; i++) {
        ck_assert(r->buffers[i] == value_of(0, 77, i, 0));
        ck_assert(r->params[i] == value_of(0, 78, i, 0));
    }
    for (uint64_t step = 0; step < 3; step++) {
        for (size_t i = 0; i < 50; i++)
            r->buffers[i] = value_of(r->rank, step, i, 9);
        assert_ok(sync_begin(r->sync, step, &err));
        for (size_t i = 0; i < 50; i++)
            ck_assert(r->buffers[i] == value_of(*broadcast ? 0 : r->rank, step, i, 9));
        sync_ready(r->sync, r->table->count);
        assert_ok(sync_finish(r->sync, &err));
    }
}

START_TEST(test_buffers)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        bool broadcast = _i == 1;
        struct replicas world = {.backend = *backend,
                                 .size = 3,
                                 .table = &table,
                                 .buffer_count = 50,
                                 .ddp = &ddp,
                                 .unstarted = true};

        ddp.broadcast_buffers = broadcast;
        replicas_run(&world, check_buffers, &broadcast);
    }
}
END_TEST

/* ---- settings ---- */

START_TEST(test_a_core_that_is_not_there)
{
    struct error err = {0};
    struct ddp_config ddp = DDP_DEFAULTS;
    float memory[2] = {0};
    struct tensor_table one;
    struct sync *sync = NULL;
    struct sync_config config = {.kind = "allreduce",
                                 .table = &one,
                                 .params = memory,
                                 .grads = memory + 1,
                                 .world_size = 1,
                                 .timeout_ms = 1000,
                                 .job = "test",
                                 .backend = "ring",
                                 .ddp = &ddp};

    table_make(&one, (const char *const[]){"a:1", NULL});
    ddp.comm_cpu = 1000;
    assert_fails(sync_open(&config, &sync, &err), STATUS_CONFIG, "--comm-cpu");
    ddp.comm_cpu = 1000000;
    assert_fails(sync_open(&config, &sync, &err), STATUS_CONFIG, "core 1000000");
    ddp.comm_cpu = 0;
    assert_ok(sync_open(&config, &sync, &err));
    sync_close(sync, NULL);
    tensor_table_release(&one);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("allreduce", 100, CHECKED_FIXTURE(setup, teardown),
                       LOOP_TEST(test_mean, 0, 2), TEST(test_arrivals), TEST(test_times_and_bytes),
                       TEST(test_errors_name_the_bucket_once), LOOP_TEST(test_buffers, 0, 2),
                       TEST(test_a_core_that_is_not_there));
}
