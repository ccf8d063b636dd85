/*
 * The PowerSGD hook.  Per step and bucket, where M is the gradient plus the error of earlier steps:
 *   Q orthogonal (from the last step, or random, the same on every rank)
 *   P = M Q, summed over the ranks, orthogonalised
 *   Q = M^T P, averaged over the ranks
 *   M is replaced by P Q^T; the new error is the old M minus the new one.
 * Vectors, and matrices that would not become small enough, are sent uncompressed; before the start
 * step, all buckets.
 *
 * A step may fail and be repeated by the surviving ranks, or have ended on some of them only.  So
 * the error of a step does not overwrite the one before it, and replaces it when the next step
 * begins.
 *
 * PyTorch's description has one all-reduce less: here the plain views are averaged and P is summed,
 * so they are two operations.  Both are in the scratch, shared memory.  Sums of P need no division:
 * orthogonalisation removes the factor.  State belongs to the thread that reduces a bucket.
 */
#include "worker/sync/allreduce_powersgd.h"

#include "common/base/memory.h"
#include "common/base/random.h"
#include "common/matrix/matrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EPSILON 1e-8f
#define SEED    0

bool powersgd_should_compress(size_t rows, size_t columns, size_t rank, double min_rate)
{
    return (double)(rows + columns) * (double)rank * min_rate < (double)rows * (double)columns;
}

void powersgd_orthogonalise(float *matrix, size_t rows, size_t rank)
{
    for (size_t i = 0; i < rank; i++) {
        double square = 0;
        float scale;

        for (size_t r = 0; r < rows; r++)
            square += (double)matrix[r * rank + i] * (double)matrix[r * rank + i];
        scale = 1.0f / ((float)sqrt(square) + EPSILON);
        for (size_t r = 0; r < rows; r++)
            matrix[r * rank + i] *= scale;
        for (size_t j = i + 1; j < rank; j++) {
            double dot = 0;

            for (size_t r = 0; r < rows; r++)
                dot += (double)matrix[r * rank + i] * (double)matrix[r * rank + j];
            for (size_t r = 0; r < rows; r++)
                matrix[r * rank + j] -= (float)dot * matrix[r * rank + i];
        }
    }
}

/* ---- opening ---- */

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Plan a view as a matrix: rows are its first dimension, columns all others. */
static void plan_view(struct powersgd_bucket *b, const struct ddp_config *c,
                      const struct tensor_view *view)
{
    size_t rows = view->shape[0];
    size_t columns = rows > 0 ? view->count / rows : 0;
    size_t rank = min_size(min_size(rows, columns), c->powersgd_rank);

    if (!powersgd_should_compress(rows, columns, rank, c->powersgd_min_rate)) {
        b->plain[b->plain_count++] =
            (struct powersgd_range){.offset = view->offset, .count = view->count};
        b->raw_count += view->count;
        return;
    }
    b->matrices[b->matrix_count++] = (struct powersgd_matrix){.offset = view->offset,
                                                              .rows = rows,
                                                              .columns = columns,
                                                              .rank = rank,
                                                              .p_offset = b->p_count,
                                                              .q_offset = b->q_count};
    b->p_count += rows * rank;
    b->q_count += columns * rank;
}

static enum status plan_bucket(const struct sync_allreduce *s, size_t index, struct error *err)
{
    struct powersgd_bucket *b = &s->powersgd->buckets[index];
    const struct bucket *bucket = &s->plan.buckets[index];
    const struct tensor_table *t = s->table;
    enum status status =
        mem_calloc(t->length, sizeof(*b->matrices), "PowerSGD matrices", &b->matrices, err);

    if (status == STATUS_OK)
        status = mem_calloc(t->length, sizeof(*b->plain), "PowerSGD vectors", &b->plain, err);
    for (size_t i = t->length; i-- > 0 && status == STATUS_OK;)
        if (t->views[i].offset >= bucket->offset &&
            t->views[i].offset < bucket->offset + bucket->count)
            plan_view(b, &s->config, &t->views[i]);
    return status;
}

/* Floats of a scratch array; each starts on a cache line of its own. */
static size_t scratch_floats(size_t count)
{
    return size_round_up(count, MEM_LINE_FLOATS);
}

static enum status layout_scratch(struct sync_allreduce *s, struct error *err)
{
    struct powersgd *state = s->powersgd;
    size_t floats = 0;
    float *at;
    enum status status;

    for (size_t i = 0; i < state->length; i++)
        floats += scratch_floats(state->buckets[i].p_count) +
                  scratch_floats(state->buckets[i].q_count) +
                  scratch_floats(state->buckets[i].raw_count);
    status = allreduce_open_scratch(s, (floats + 1) * sizeof(float), err);
    if (status != STATUS_OK)
        return status;
    at = s->scratch.base;
    for (size_t i = 0; i < state->length; i++) {
        struct powersgd_bucket *b = &state->buckets[i];

        b->p = at;
        b->q = b->p + scratch_floats(b->p_count);
        b->raw = b->q + scratch_floats(b->q_count);
        at = b->raw + scratch_floats(b->raw_count);
    }
    return STATUS_OK;
}

static enum status allocate_state(struct sync_allreduce *s, struct error *err)
{
    struct powersgd *state = s->powersgd;
    enum status status;

    for (size_t i = 0; i < state->length; i++)
        state->q_count += state->buckets[i].q_count;
    status = mem_calloc(state->q_count + 1, sizeof(float), "PowerSGD Q", &state->q_before, err);
    if (status == STATUS_OK && !s->config.powersgd_no_error_feedback)
        status = mem_calloc_aligned(s->table->count, sizeof(float), "PowerSGD errors",
                                    &state->error, err);
    if (status == STATUS_OK && !s->config.powersgd_no_error_feedback)
        status = mem_calloc_aligned(s->table->count, sizeof(float), "PowerSGD errors", &state->next,
                                    err);
    return status;
}

static enum status powersgd_open(struct sync_allreduce *s, struct error *err)
{
    enum status status = mem_calloc(1, sizeof(*s->powersgd), "PowerSGD", &s->powersgd, err);

    if (status != STATUS_OK)
        return status;
    s->powersgd->length = s->plan.length;
    status = mem_calloc(s->plan.length, sizeof(*s->powersgd->buckets), "PowerSGD buckets",
                        &s->powersgd->buckets, err);
    for (size_t i = 0; i < s->plan.length && status == STATUS_OK; i++)
        status = plan_bucket(s, i, err);
    if (status == STATUS_OK)
        status = allocate_state(s, err);
    return status == STATUS_OK ? layout_scratch(s, err) : status;
}

static void powersgd_close(struct sync_allreduce *s)
{
    struct powersgd *state = s->powersgd;

    for (size_t i = 0; state && state->buckets && i < state->length; i++) {
        free(state->buckets[i].matrices);
        free(state->buckets[i].plain);
    }
    if (state) {
        free(state->buckets);
        free(state->error);
        free(state->next);
        free(state->q_before);
    }
    free(state);
    s->powersgd = NULL;
}

/* ---- a bucket ---- */

/* Set data and next to gradient plus error. */
static void add_error(float *data, const float *error, float *next, size_t count)
{
    for (size_t i = 0; i < count; i++)
        next[i] = data[i] = data[i] + error[i];
}

static void subtract_result(const float *data, float *next, size_t count)
{
    for (size_t i = 0; i < count; i++)
        next[i] -= data[i];
}

/* Copy the Q of all buckets, one after the other, from the scratch to `flat` (out) or back. */
static void copy_q(const struct powersgd *state, float *flat, bool out)
{
    for (size_t i = 0; i < state->length; i++) {
        const struct powersgd_bucket *b = &state->buckets[i];

        memcpy(out ? flat : b->q, out ? b->q : flat, b->q_count * sizeof(float));
        flat += b->q_count;
    }
}

/* At the first bucket of a step: commit the last step's error and Q; if the step is a repetition,
 * discard them. */
static void begin_step(struct powersgd *state, uint64_t step)
{
    bool again = state->has_step && state->step == step;
    float *error = state->error;

    if (again) {
        copy_q(state, state->q_before, false);
    } else {
        copy_q(state, state->q_before, true);
        if (state->has_step) {
            state->error = state->next;
            state->next = error;
        }
    }
    for (size_t i = 0; i < state->length; i++) {
        struct powersgd_bucket *b = &state->buckets[i];

        if (again)
            b->has_q = b->had_q;
        else
            b->had_q = b->has_q;
    }
    state->has_step = true;
    state->step = step;
    state->reduced = 0;
}

const float *powersgd_residual(const struct powersgd *state, uint64_t step)
{
    return state->has_step && state->step == step ? state->next : state->error;
}

static bool is_zero(const float *values, size_t count)
{
    while (count > 0 && values[count - 1] == 0)
        count--;
    return count == 0;
}

/* Of a matrix without a gradient on any rank Q is 0, and would be for ever. */
static void prepare_q(struct sync_allreduce *s, struct powersgd_bucket *b, size_t index)
{
    const bool is_new = !b->has_q || s->config.powersgd_no_warm_start;
    struct random random;

    random_seed(&random, SEED + index + s->step * s->plan.length);
    if (is_new)
        random_normal(&random, b->q, b->q_count);
    b->has_q = true;
    for (size_t i = 0; i < b->matrix_count; i++) {
        const struct powersgd_matrix *m = &b->matrices[i];
        float *q = b->q + m->q_offset;

        if (is_zero(q, m->columns * m->rank))
            random_normal(&random, q, m->columns * m->rank);
        powersgd_orthogonalise(q, m->columns, m->rank);
    }
}

/* The gradient in the slab, (rows, columns). */
static struct matrix gradient_of(const struct sync_allreduce *s, const struct powersgd_matrix *m)
{
    return (struct matrix){s->grads + m->offset, m->columns, false};
}

/* Products on one thread: the others belong to backward. */
static enum status compute_p(const struct sync_allreduce *s, const struct powersgd_bucket *b,
                             struct error *err)
{
    enum status status = STATUS_OK;

    matrix_use_threads(1);
    for (size_t i = 0; i < b->matrix_count && status == STATUS_OK; i++) {
        const struct powersgd_matrix *m = &b->matrices[i];

        status = matrix_product(m->rows, m->rank, m->columns, gradient_of(s, m),
                                (struct matrix){b->q + m->q_offset, m->rank, false}, false,
                                b->p + m->p_offset, m->rank, err);
    }
    return status;
}

static enum status compute_q(const struct sync_allreduce *s, const struct powersgd_bucket *b,
                             struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < b->matrix_count && status == STATUS_OK; i++) {
        const struct powersgd_matrix *m = &b->matrices[i];
        struct matrix gradient = gradient_of(s, m);

        powersgd_orthogonalise(b->p + m->p_offset, m->rows, m->rank);
        gradient.transposed = true;
        status = matrix_product(m->columns, m->rank, m->rows, gradient,
                                (struct matrix){b->p + m->p_offset, m->rank, false}, false,
                                b->q + m->q_offset, m->rank, err);
    }
    return status;
}

/* M = P Q^T, and copy the plain views back to the slab. */
static enum status decompress(const struct sync_allreduce *s, const struct powersgd_bucket *b,
                              struct error *err)
{
    const float *raw = b->raw;
    enum status status = STATUS_OK;

    matrix_use_threads(1);
    for (size_t i = 0; i < b->matrix_count && status == STATUS_OK; i++) {
        const struct powersgd_matrix *m = &b->matrices[i];

        status = matrix_product(m->rows, m->columns, m->rank,
                                (struct matrix){b->p + m->p_offset, m->rank, false},
                                (struct matrix){b->q + m->q_offset, m->rank, true}, false,
                                s->grads + m->offset, m->columns, err);
    }
    for (size_t i = 0; i < b->plain_count; i++) {
        memcpy(s->grads + b->plain[i].offset, raw, b->plain[i].count * sizeof(float));
        raw += b->plain[i].count;
    }
    return status;
}

static void collect_plain(const struct sync_allreduce *s, const struct powersgd_bucket *b)
{
    float *raw = b->raw;

    for (size_t i = 0; i < b->plain_count; i++) {
        memcpy(raw, s->grads + b->plain[i].offset, b->plain[i].count * sizeof(float));
        raw += b->plain[i].count;
    }
}

/* Reduce plain views, P and Q.  If the ranks' weights differ, P needs the same weights as Q. */
static enum status reduce_factors(struct sync_allreduce *s, struct powersgd_bucket *b, size_t index,
                                  struct error *err)
{
    enum status status = STATUS_OK;

    if (b->raw_count > 0)
        status = allreduce_reduce(s, DTYPE_FLOAT32, b->raw, b->raw_count, index, true, err);
    if (status != STATUS_OK || b->matrix_count == 0)
        return status;
    status = compute_p(s, b, err);
    if (status == STATUS_OK)
        status =
            allreduce_reduce(s, DTYPE_FLOAT32, b->p, b->p_count, index, !s->equal_weights, err);
    if (status == STATUS_OK)
        status = compute_q(s, b, err);
    if (status == STATUS_OK)
        status = allreduce_reduce(s, DTYPE_FLOAT32, b->q, b->q_count, index, true, err);
    return status;
}

/* Complete a bucket locally after the reduction of its Q. */
static enum status finish_bucket(struct sync_allreduce *s, size_t index, struct error *err)
{
    struct powersgd *state = s->powersgd;
    const struct bucket *bucket = &s->plan.buckets[index];
    enum status status = decompress(s, &state->buckets[index], err);

    if (status != STATUS_OK)
        return status;
    if (state->error)
        subtract_result(s->grads + bucket->offset, state->next + bucket->offset, bucket->count);
    state->reduced = index + 1;
    return STATUS_OK;
}

static enum status powersgd_reduce(struct sync_allreduce *s, size_t index, struct error *err)
{
    struct powersgd *state = s->powersgd;
    struct powersgd_bucket *b = &state->buckets[index];
    const struct bucket *bucket = &s->plan.buckets[index];
    float *data = s->grads + bucket->offset;
    enum status status;

    if (s->step < s->config.powersgd_start)
        return hook_none.reduce(s, index, err);
    if (index == 0)
        begin_step(state, s->step);
    if (state->error)
        add_error(data, state->error + bucket->offset, state->next + bucket->offset, bucket->count);
    prepare_q(s, b, index);
    collect_plain(s, b);
    status = reduce_factors(s, b, index, err);
    return status == STATUS_OK ? finish_bucket(s, index, err) : status;
}

/* ---- smaller group ---- */

/* A rank's progress in steps. */
struct step_progress {
    uint64_t ended; /* steps ended; 0: none */
    uint64_t begun; /* steps begun: `ended`, or one more */
};

static struct step_progress get_step_progress(const struct powersgd *state)
{
    uint64_t begun = state->has_step ? state->step + 1 : 0;
    bool is_over = !state->has_step || state->reduced == state->length;

    return (struct step_progress){.ended = is_over ? begun : begun - 1, .begun = begun};
}

/* The lowest rank among those that have ended the latest step; *ret_behind: another rank has not
 * ended it. */
static unsigned find_donor(const struct step_progress *progress, unsigned count, bool *ret_behind)
{
    unsigned donor = 0;

    for (unsigned r = 1; r < count; r++)
        if (progress[r].ended > progress[donor].ended)
            donor = r;
    *ret_behind = false;
    for (unsigned r = 0; r < count; r++)
        *ret_behind = *ret_behind || progress[r].ended < progress[donor].ended;
    return donor;
}

/* For a step that has ended on other ranks, this rank lacks at most the result of the last
 * operation, because no rank can end a step without this rank: the last bucket's Q; or, for a
 * bucket without matrices, the mean, without which its error is unknown and is reset to zero. */
static enum status complete_last_step(struct sync_allreduce *s, const float *q, struct error *err)
{
    struct powersgd *state = s->powersgd;
    size_t last = state->length - 1;
    struct powersgd_bucket *b = &state->buckets[last];
    const struct bucket *bucket = &s->plan.buckets[last];
    enum status status = STATUS_OK;

    memcpy(b->q, q + state->q_count - b->q_count, b->q_count * sizeof(float));
    if (b->matrix_count > 0)
        status = finish_bucket(s, last, err);
    else if (state->error)
        memset(state->next + bucket->offset, 0, bucket->count * sizeof(float));
    if (status == STATUS_OK)
        state->reduced = state->length;
    return status;
}

/* If some ranks have ended a step that others have not, those receive its final Q. */
static enum status synchronise_q(struct sync_allreduce *s, struct error *err)
{
    struct powersgd *state = s->powersgd;
    struct step_progress mine = get_step_progress(state);
    struct step_progress *progress = NULL;
    float *q = NULL;
    unsigned donor;
    bool is_behind;
    enum status status = mem_calloc(s->world_size, sizeof(*progress), "PowerSGD", &progress, err);

    if (status == STATUS_OK)
        status = mem_calloc(state->q_count + 1, sizeof(float), "PowerSGD Q", &q, err);
    if (status == STATUS_OK)
        status = collective_all_gather(s->group, &mine, sizeof(mine), progress, err);
    if (status != STATUS_OK)
        goto out;
    donor = find_donor(progress, s->world_size, &is_behind);
    if (!is_behind)
        goto out;
    if (mine.begun > mine.ended) /* the scratch has the next step's Q already */
        memcpy(q, state->q_before, state->q_count * sizeof(float));
    else
        copy_q(state, q, true);
    status = collective_broadcast(s->group, q, (state->q_count + 1) * sizeof(float), donor, err);
    if (status == STATUS_OK && mine.ended < progress[donor].ended)
        status = complete_last_step(s, q, err);
out:
    free(q);
    free(progress);
    return status;
}

/* Register a new scratch with the new group, and copy the old one into it. */
static enum status powersgd_rebuild(struct sync_allreduce *s, struct error *err)
{
    struct shared_memory old = s->scratch;
    enum status status;

    s->scratch = SHARED_MEMORY_NONE;
    status = layout_scratch(s, err);
    if (status == STATUS_OK)
        memcpy(s->scratch.base, old.base, old.size < s->scratch.size ? old.size : s->scratch.size);
    shared_memory_release(&old);
    return status == STATUS_OK ? synchronise_q(s, err) : status;
}

static void powersgd_bytes(const struct sync_allreduce *s, size_t index, uint64_t *ret_tx,
                           uint64_t *ret_rx)
{
    const struct powersgd_bucket *b = &s->powersgd->buckets[index];
    size_t counts[] = {b->raw_count, b->p_count, b->q_count};

    *ret_tx = 0;
    *ret_rx = 0;
    for (size_t i = 0; i < 3; i++) {
        uint64_t tx;
        uint64_t rx;

        if (counts[i] == 0)
            continue;
        allreduce_reduce_bytes(s, DTYPE_FLOAT32, counts[i], &tx, &rx);
        *ret_tx += tx;
        *ret_rx += rx;
    }
}

const struct hook_ops hook_powersgd = {
    .name = "powersgd",
    .open = powersgd_open,
    .reduce = powersgd_reduce,
    .expected_bytes = powersgd_bytes,
    .rebuild = powersgd_rebuild,
    .close = powersgd_close,
};
