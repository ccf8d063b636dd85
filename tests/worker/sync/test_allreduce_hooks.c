/*
 * Communication hooks.  16 bits: against the specified rounding, and half the bytes.  PowerSGD:
 * against PyTorch's hook (figures in tests/data/ddp), a direct implementation in double precision,
 * and the purpose of error feedback: the sum of the sent gradients follows the sum of the computed
 * ones.
 */
#include "tests/worker/sync/allreduce_world.h"
#include "worker/sync/allreduce_powersgd.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const shapes[] = {"a:37x19", "b:37", "c:301x3", "d:1", "e:64x64", NULL};

static struct tensor_table table;

static void setup(void)
{
    table_make(&table, shapes);
}

static void teardown(void)
{
    tensor_table_release(&table);
}

/* ---- 16 bits ---- */

struct half {
    enum dtype dtype;
    bool by_samples;
};

static float rounded(enum dtype dtype, float value)
{
    uint16_t bits;

    cast_from_float32(dtype, &bits, &value, 1);
    cast_to_float32(dtype, &value, &bits, 1);
    return value;
}

static void check_half(struct replica *r)
{
    const struct half *h = r->argument;
    double digits = h->dtype == DTYPE_FLOAT16 ? 11 : 8;
    double least = h->dtype == DTYPE_FLOAT16 ? 0x1p-14 : 0x1p-126;
    struct error err = {0};
    unsigned active;
    size_t total = 0;

    for (unsigned k = 0; k < r->size; k++)
        total += k + 1;
    for (uint64_t step = 0; step < 3; step++) {
        if (h->by_samples)
            assert_ok(sync_announce_samples(r->sync, r->rank + 1, &active, &err));
        replica_step(r, step);
        for (size_t i = 0; i < r->table->count; i++) {
            double mean = 0;
            double magnitude = least; /* float16's rounding below its normal numbers */

            for (unsigned k = 0; k < r->size; k++) {
                double term = (double)rounded(h->dtype, value_of(k, step, i, 0)) *
                              (h->by_samples ? (double)(k + 1) / (double)total : 1.0 / r->size);

                mean += term;
                magnitude += fabs(term);
            }
            /* If a backend scales first, each term is rounded, and so are partial sums sent. */
            ck_assert_double_le(fabs((double)r->grads[i] - mean),
                                (r->size + 1) * exp2(-digits) * magnitude);
            ck_assert(r->grads[i] == rounded(h->dtype, r->grads[i])); /* it was sent in 16 bits */
        }
    }
}

START_TEST(test_half)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        for (unsigned size = 2; size <= REPLICAS_MAX; size++) {
            struct half h = {.dtype = _i % 2 ? DTYPE_FLOAT16 : DTYPE_BFLOAT16,
                             .by_samples = _i >= 2};
            struct ddp_config ddp = DDP_DEFAULTS;
            struct replicas world = {
                .backend = *backend, .size = size, .table = &table, .ddp = &ddp};

            ddp.hook = _i % 2 ? DDP_HOOK_FP16 : DDP_HOOK_BF16;
            ddp.weight_by_samples = h.by_samples;
            ddp.bucket_cap_mb = size == 2 ? -1 : 0.002;
            replicas_run(&world, check_half, &h);
        }
    }
}
END_TEST

struct bytes {
    uint64_t tx[REPLICAS_MAX];
};

static void count_bytes(struct replica *r)
{
    struct bytes *b = r->argument;
    struct sync_counters before;

    replica_step(r, 0); /* the first step may send more */
    before = sync_counters(r->sync);
    replica_step(r, 1000);
    b->tx[r->rank] = sync_counters(r->sync).tx_payload_bytes - before.tx_payload_bytes;
}

/* Bytes that a rank sends in a step with a hook, relative to those without. */
static double share_of_bytes(const char *backend, enum ddp_hook hook)
{
    struct bytes b[2];
    double total[2] = {0, 0};

    for (int i = 0; i < 2; i++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        struct replicas world = {.backend = backend, .size = 3, .table = &table, .ddp = &ddp};

        ddp.hook = i ? hook : DDP_HOOK_NONE;
        replicas_run(&world, count_bytes, &b[i]);
        for (unsigned r = 0; r < 3; r++)
            total[i] += (double)b[i].tx[r];
    }
    ck_assert_double_gt(total[0], 0);
    return total[1] / total[0];
}

START_TEST(test_bytes)
{
    /* a, c and e as thin matrices of rank 1; b and d uncompressed */
    double sent = (37 + 19) + (301 + 3) + (64 + 64) + 37 + 1;

    ck_assert(powersgd_should_compress(301, 3, 1, 2));
    ck_assert(!powersgd_should_compress(301, 3, 1, 3));
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        double powersgd = share_of_bytes(*backend, DDP_HOOK_POWERSGD);

        /* A backend may send small messages in fewer, longer rounds: 2 S per rank then, not 4/3 S.
         */
        double least = 0.49 * 2 / 3;
        double most = 0.51 * 3 / 2;
        double fp16 = share_of_bytes(*backend, DDP_HOOK_FP16);
        double bf16 = share_of_bytes(*backend, DDP_HOOK_BF16);

        ck_assert_double_ge(fp16, least);
        ck_assert_double_le(fp16, most);
        ck_assert_double_ge(bf16, least);
        ck_assert_double_le(bf16, most);
        ck_assert_double_ge(powersgd, 0.98 * 2 / 3 * sent / (double)table.count);
        ck_assert_double_le(powersgd, 1.6 * sent / (double)table.count);
    }
}
END_TEST

/* ---- PowerSGD against PyTorch ---- */

static void read_floats(const json_t *list, float *values, size_t count)
{
    ck_assert_uint_eq(json_array_size(list), count);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)json_number_value(json_array_get(list, i));
}

/* Replace our random Q by PyTorch's. */
static void plant_q(struct replica *r, const json_t *q)
{
    struct powersgd *state = ((struct sync_allreduce *)r->sync)->powersgd;
    struct powersgd_bucket *b = &state->buckets[0];

    ck_assert_uint_eq(state->length, 1);
    read_floats(q, b->q, b->q_count);
    b->has_q = true;
}

static void follow_pytorch(struct replica *r)
{
    const json_t *c = r->argument;
    const json_t *grads = json_object_get(c, "grads");
    const json_t *after = json_object_get(c, "after");
    size_t count = r->table->count;
    float *wanted = calloc(count, sizeof(*wanted));

    ck_assert_ptr_nonnull(wanted);
    plant_q(r, json_object_get(c, "q"));
    ck_assert_uint_ge(json_array_size(grads), 3);
    for (size_t step = 0; step < json_array_size(grads); step++) {
        read_floats(json_array_get(json_array_get(grads, step), r->rank), r->grads, count);
        read_floats(json_array_get(after, step), wanted, count);
        replica_sync(r, step);
        for (size_t i = 0; i < count; i++)
            ck_assert_msg(fabs((double)r->grads[i] - (double)wanted[i]) < 3e-5,
                          "step %zu, element %zu: %g, PyTorch has %g", step, i, (double)r->grads[i],
                          (double)wanted[i]);
    }
    free(wanted);
}

static void table_of_case(struct tensor_table *t, const json_t *c)
{
    const json_t *list = json_object_get(c, "shapes");
    char texts[8][32];
    const char *words[9] = {NULL};

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *shape = json_array_get(list, i);
        int rows = (int)json_integer_value(json_array_get(shape, 0));

        if (json_array_size(shape) == 1)
            (void)snprintf(texts[i], sizeof(texts[i]), "v%zu:%d", i, rows);
        else
            (void)snprintf(texts[i], sizeof(texts[i]), "v%zu:%dx%d", i, rows,
                           (int)json_integer_value(json_array_get(shape, 1)));
        words[i] = texts[i];
    }
    table_make(t, words);
}

START_TEST(test_powersgd_as_pytorch)
{
    json_t *file = json_load_file(support_source("tests/data/ddp/powersgd.json"), 0, NULL);
    const json_t *cases = json_object_get(file, "cases");

    ck_assert_uint_eq(json_array_size(cases), 3);
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        for (size_t i = 0; i < json_array_size(cases); i++) {
            json_t *c = json_array_get(cases, i);
            struct tensor_table t;
            struct ddp_config ddp = DDP_DEFAULTS;
            struct replicas world = {.backend = *backend, .size = 2, .table = &t, .ddp = &ddp};

            table_of_case(&t, c);
            ddp.hook = DDP_HOOK_POWERSGD;
            ddp.powersgd_rank = (unsigned)json_integer_value(json_object_get(c, "rank"));
            ddp.powersgd_start = 0;
            ddp.powersgd_min_rate = 1;
            replicas_run(&world, follow_pytorch, c);
            tensor_table_release(&t);
        }
    }
    json_decref(file);
}
END_TEST

/* ---- PowerSGD, properties ---- */

/* A mean gradient of rank 1 is exact with rank 1, from the second step on (warm start). */
static float outer(unsigned rank, size_t row, size_t column)
{
    return ((float)row - 20.0f) / 32.0f * ((float)column + 1.0f) / 64.0f * (float)(rank + 1);
}

static void send_rank_one(struct replica *r)
{
    const struct tensor_view *e = tensor_table_find(r->table, "e");

    for (uint64_t step = 0; step < 3; step++) {
        for (size_t i = 0; i < r->table->count; i++)
            r->grads[i] = 0;
        for (size_t i = 0; i < e->count; i++)
            r->grads[e->offset + i] = outer(r->rank, i / 64, i % 64);
        replica_sync(r, step);
        for (size_t i = 0; i < e->count; i++) {
            double mean = 0;

            for (unsigned k = 0; k < r->size; k++)
                mean += (double)outer(k, i / 64, i % 64) / r->size;
            ck_assert_double_eq_tol((double)r->grads[e->offset + i], mean, 1e-5);
        }
    }
}

START_TEST(test_powersgd_keeps_low_rank)
{
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        struct replicas world = {.backend = *backend, .size = 3, .table = &table, .ddp = &ddp};

        ddp.hook = DDP_HOOK_POWERSGD;
        ddp.powersgd_start = 0;
        ddp.powersgd_no_error_feedback = true;
        replicas_run(&world, send_rank_one, NULL);
    }
}
END_TEST

/* Distance between the mean applied gradient and the mean gradient, which every step repeats. */
static double drift(struct replica *r, uint64_t steps)
{
    size_t count = r->table->count;
    double *applied = calloc(count, sizeof(*applied));
    double distance = 0;
    double size = 0;

    ck_assert_ptr_nonnull(applied);
    for (uint64_t step = 0; step < steps; step++) {
        for (size_t i = 0; i < count; i++)
            r->grads[i] = value_of(r->rank, 0, i, 0);
        replica_sync(r, step);
        for (size_t i = 0; i < count; i++)
            applied[i] += (double)r->grads[i] / (double)steps;
    }
    for (size_t i = 0; i < count; i++) {
        double mean = 0;

        for (unsigned k = 0; k < r->size; k++)
            mean += (double)value_of(k, 0, i, 0) / r->size;
        distance += (applied[i] - mean) * (applied[i] - mean);
        size += mean * mean;
    }
    free(applied);
    return sqrt(distance / size);
}

/* ---- PowerSGD over a loss of ranks ---- */

static void fill(struct replica *r, uint64_t step)
{
    for (size_t i = 0; i < r->table->count; i++)
        r->grads[i] = value_of(r->rank, step, i, 0);
}

static float *copy_of(const float *values, size_t count)
{
    float *copy = calloc(count, sizeof(*copy));

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, values, count * sizeof(*copy));
    return copy;
}

/* Three steps; then rank 1 is set to the state after a failure of the last bucket's last operation
 * that ended on rank 0, and `rebuild` must bring both to the same state. */
static void fake_lagging_rank(struct replica *r)
{
    float *results = (float *)r->argument + r->rank * r->table->count;
    struct sync_allreduce *s = (struct sync_allreduce *)r->sync;
    struct powersgd *p = s->powersgd;
    const struct bucket *range = &s->plan.buckets[p->length - 1];
    struct powersgd_bucket *last = &p->buckets[p->length - 1];
    float *whole, *error, *q;
    struct error err = {0};

    ck_assert(last->matrix_count > 0 && p->length > 1);
    for (uint64_t step = 0; step < 2; step++) {
        fill(r, step);
        replica_sync(r, step);
    }
    fill(r, 2);
    whole = copy_of(r->grads + range->offset, range->count);
    for (size_t i = 0; i < range->count; i++)
        whole[i] += powersgd_residual(p, 1)[range->offset + i];
    replica_sync(r, 2);
    error = copy_of(powersgd_residual(p, 2), r->table->count);
    q = copy_of(last->q, last->q_count);
    if (r->rank == 1) {
        p->reduced--;
        memcpy(p->next + range->offset, whole, range->count * sizeof(float));
        memset(last->q, 0x41, last->q_count * sizeof(float));
    }
    assert_ok(s->hook->rebuild(s, &err));
    ck_assert_mem_eq(powersgd_residual(p, 2), error, r->table->count * sizeof(float));
    ck_assert_mem_eq(last->q, q, last->q_count * sizeof(float));
    for (uint64_t again = 0; again < 2; again++) { /* a repeated step has the same result */
        fill(r, 3);
        replica_sync(r, 3);
        ck_assert_mem_eq(powersgd_residual(p, 2), error, r->table->count * sizeof(float));
        if (again == 0)
            memcpy(results, r->grads, r->table->count * sizeof(float));
        ck_assert_mem_eq(results, r->grads, r->table->count * sizeof(float));
    }
    free(whole);
    free(error);
    free(q);
}

START_TEST(test_powersgd_survives_a_loss)
{
    float *results = calloc(2 * table.count, sizeof(*results));

    ck_assert_ptr_nonnull(results);
    for (const char *const *backend = replicas_backends(); *backend; backend++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        struct replicas world = {.backend = *backend, .size = 2, .table = &table, .ddp = &ddp};

        ddp.hook = DDP_HOOK_POWERSGD;
        ddp.powersgd_start = 0;
        ddp.bucket_cap_mb = 0.002;
        replicas_run(&world, fake_lagging_rank, results);
        ck_assert_mem_eq(results, results + table.count, table.count * sizeof(float));
    }
    free(results);
}
END_TEST

/* Without error feedback the compression error is lost; with it, it is sent later. */
static void measure_drift(struct replica *r)
{
    double *drifts = r->argument;
    double measured = drift(r, 60);

    if (r->rank == 0)
        *drifts = measured;
}

START_TEST(test_error_feedback_converges)
{
    double drifts[2];

    for (int off = 0; off < 2; off++) {
        struct ddp_config ddp = DDP_DEFAULTS;
        struct replicas world = {
            .backend = replicas_backends()[0], .size = 2, .table = &table, .ddp = &ddp};

        ddp.hook = DDP_HOOK_POWERSGD;
        ddp.powersgd_start = 0;
        ddp.powersgd_rank = 4;
        ddp.powersgd_no_error_feedback = off == 1;
        replicas_run(&world, measure_drift, &drifts[off]);
    }
    (void)printf("PowerSGD's drift after 60 steps: %.3f with error feedback, %.3f without\n",
                 drifts[0], drifts[1]);
    ck_assert_double_lt(drifts[0], 0.25);
    ck_assert_double_gt(drifts[1], 2 * drifts[0]);
}
END_TEST

START_TEST(test_orthogonalise)
{
    enum { ROWS = 50, RANK = 4 };
    float m[ROWS * RANK];
    float zeros[ROWS * RANK] = {0};

    for (size_t i = 0; i < ROWS * RANK; i++)
        m[i] = value_of(1, 2, i, 3);
    powersgd_orthogonalise(m, ROWS, RANK);
    for (size_t a = 0; a < RANK; a++) {
        for (size_t b = 0; b < RANK; b++) {
            double dot = 0;

            for (size_t r = 0; r < ROWS; r++)
                dot += (double)m[r * RANK + a] * (double)m[r * RANK + b];
            ck_assert_double_eq_tol(dot, a == b ? 1.0 : 0.0, 1e-5);
        }
    }
    powersgd_orthogonalise(zeros, ROWS, RANK);
    for (size_t i = 0; i < ROWS * RANK; i++)
        ck_assert(zeros[i] == 0.0f);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("allreduce_hooks", 100, CHECKED_FIXTURE(setup, teardown),
                       LOOP_TEST(test_half, 0, 4), TEST(test_bytes), TEST(test_powersgd_as_pytorch),
                       TEST(test_powersgd_keeps_low_rank), TEST(test_powersgd_survives_a_loss),
                       TEST(test_error_feedback_converges), TEST(test_orthogonalise));
}
