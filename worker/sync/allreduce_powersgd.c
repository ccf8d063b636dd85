/*
 * The PowerSGD hook.  Per step and bucket, M being gradient plus what was lost before:
 *   Q orthogonal (from the last step, or random, the same on every rank)
 *   P = M Q, summed over the ranks, orthogonalised
 *   Q = M^T P, averaged over the ranks
 *   M becomes P Q^T; the error is what M was minus what it became.
 * Vectors, and matrices that would not shrink enough, travel as they are.  Before the start step
 * every bucket does.
 *
 * A step may fail and be done again by the ranks that are left, or have ended on some of them only:
 * so the error of a step is written beside the one before it, and counts when the next step begins.
 *
 * The first gradients and P travel in one all-reduce more than in PyTorch's description: the plain
 * views are averaged, P is summed, so they are two operations.  Both lie in one scratch that the
 * peers of a host may reach.  Sums of P need no division: orthogonalisation removes the factor.
 */
#include "worker/sync/allreduce_powersgd.h"

#include "common/base/memory.h"
#include "common/base/random.h"

#include <cblas.h>
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

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The view as a matrix: its first dimension, and all others. */
static void add_view(struct powersgd_bucket *b, const struct ddp_config *c,
                     const struct tensor_view *view)
{
    size_t rows = view->shape[0];
    size_t columns = rows > 0 ? view->count / rows : 0;
    size_t rank = least(least(rows, columns), c->powersgd_rank);

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
            add_view(b, &s->config, &t->views[i]);
    return status;
}

/* All scratch arrays start on a cache line of their own. */
static size_t line(size_t count)
{
    return (count + 15) / 16 * 16;
}

static enum status place_scratch(struct sync_allreduce *s, struct error *err)
{
    struct powersgd *state = s->powersgd;
    size_t floats = 0;
    float *at;
    enum status status;

    for (size_t i = 0; i < state->length; i++)
        floats += line(state->buckets[i].p_count) + line(state->buckets[i].q_count) +
                  line(state->buckets[i].raw_count);
    status = allreduce_open_scratch(s, (floats + 1) * sizeof(float), err);
    if (status != STATUS_OK)
        return status;
    at = s->scratch.base;
    for (size_t i = 0; i < state->length; i++) {
        struct powersgd_bucket *b = &state->buckets[i];

        b->p = at;
        b->q = b->p + line(b->p_count);
        b->raw = b->q + line(b->q_count);
        at = b->raw + line(b->raw_count);
    }
    return STATUS_OK;
}

static enum status open_memory(struct sync_allreduce *s, struct error *err)
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
        status = open_memory(s, err);
    return status == STATUS_OK ? place_scratch(s, err) : status;
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

/* data and next both become gradient plus error. */
static void add_error(float *data, const float *error, float *next, size_t count)
{
    for (size_t i = 0; i < count; i++)
        next[i] = data[i] = data[i] + error[i];
}

static void keep_error(const float *data, float *next, size_t count)
{
    for (size_t i = 0; i < count; i++)
        next[i] -= data[i];
}

/* All Q, one bucket behind the other, out of the scratch or back. */
static void copy_q(const struct powersgd *state, float *flat, bool out)
{
    for (size_t i = 0; i < state->length; i++) {
        const struct powersgd_bucket *b = &state->buckets[i];

        memcpy(out ? flat : b->q, out ? b->q : flat, b->q_count * sizeof(float));
        flat += b->q_count;
    }
}

/* The first bucket of a step: the last step counts now; but if this is the same one again, nothing
 * of it does. */
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
            b->filled = b->filled_before;
        else
            b->filled_before = b->filled;
    }
    state->has_step = true;
    state->step = step;
    state->reduced = 0;
}

const float *powersgd_residual(const struct powersgd *state, uint64_t step)
{
    return state->has_step && state->step == step ? state->next : state->error;
}

static void prepare_q(struct sync_allreduce *s, struct powersgd_bucket *b, size_t index)
{
    struct random random;

    if (!b->filled || s->config.powersgd_no_warm_start) {
        random_seed(&random, SEED + index + s->step * s->plan.length);
        random_normal(&random, b->q, b->q_count);
        b->filled = true;
    }
    for (size_t i = 0; i < b->matrix_count; i++)
        powersgd_orthogonalise(b->q + b->matrices[i].q_offset, b->matrices[i].columns,
                               b->matrices[i].rank);
}

/* out = op(a) b, all row-major and dense; a is (rows, columns). */
static void multiply(bool transpose, const float *a, size_t rows, size_t columns, const float *b,
                     size_t rank, float *out)
{
    cblas_sgemm(CblasRowMajor, transpose ? CblasTrans : CblasNoTrans, CblasNoTrans,
                (blasint)(transpose ? columns : rows), (blasint)rank,
                (blasint)(transpose ? rows : columns), 1.0f, a, (blasint)columns, b, (blasint)rank,
                0.0f, out, (blasint)rank);
}

static void compute_p(const struct sync_allreduce *s, const struct powersgd_bucket *b)
{
    for (size_t i = 0; i < b->matrix_count; i++) {
        const struct powersgd_matrix *m = &b->matrices[i];

        multiply(false, s->grads + m->offset, m->rows, m->columns, b->q + m->q_offset, m->rank,
                 b->p + m->p_offset);
    }
}

static void compute_q(const struct sync_allreduce *s, const struct powersgd_bucket *b)
{
    for (size_t i = 0; i < b->matrix_count; i++) {
        const struct powersgd_matrix *m = &b->matrices[i];

        powersgd_orthogonalise(b->p + m->p_offset, m->rows, m->rank);
        multiply(true, s->grads + m->offset, m->rows, m->columns, b->p + m->p_offset, m->rank,
                 b->q + m->q_offset);
    }
}

/* M = P Q^T, and the plain views back to their places. */
static void decompress(const struct sync_allreduce *s, const struct powersgd_bucket *b)
{
    const float *raw = b->raw;

    for (size_t i = 0; i < b->matrix_count; i++) {
        const struct powersgd_matrix *m = &b->matrices[i];

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)m->rows, (blasint)m->columns,
                    (blasint)m->rank, 1.0f, b->p + m->p_offset, (blasint)m->rank,
                    b->q + m->q_offset, (blasint)m->rank, 0.0f, s->grads + m->offset,
                    (blasint)m->columns);
    }
    for (size_t i = 0; i < b->plain_count; i++) {
        memcpy(s->grads + b->plain[i].offset, raw, b->plain[i].count * sizeof(float));
        raw += b->plain[i].count;
    }
}

static void collect_plain(const struct sync_allreduce *s, const struct powersgd_bucket *b)
{
    float *raw = b->raw;

    for (size_t i = 0; i < b->plain_count; i++) {
        memcpy(raw, s->grads + b->plain[i].offset, b->plain[i].count * sizeof(float));
        raw += b->plain[i].count;
    }
}

/* P's ranks must be weighted as Q's are where the weights differ. */
static enum status exchange(struct sync_allreduce *s, struct powersgd_bucket *b, size_t index,
                            struct error *err)
{
    enum status status = STATUS_OK;

    if (b->raw_count > 0)
        status = allreduce_reduce(s, DTYPE_FLOAT32, b->raw, b->raw_count, index, true, err);
    if (status != STATUS_OK || b->matrix_count == 0)
        return status;
    compute_p(s, b);
    status = allreduce_reduce(s, DTYPE_FLOAT32, b->p, b->p_count, index, !s->even, err);
    if (status != STATUS_OK)
        return status;
    compute_q(s, b);
    return allreduce_reduce(s, DTYPE_FLOAT32, b->q, b->q_count, index, true, err);
}

/* What is left to do once the bucket's Q has come: the rest is this rank's own. */
static void end_bucket(struct sync_allreduce *s, size_t index)
{
    struct powersgd *state = s->powersgd;
    const struct bucket *bucket = &s->plan.buckets[index];

    decompress(s, &state->buckets[index]);
    if (state->error)
        keep_error(s->grads + bucket->offset, state->next + bucket->offset, bucket->count);
    state->reduced = index + 1;
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
    status = exchange(s, b, index, err);
    if (status == STATUS_OK)
        end_bucket(s, index);
    return status;
}

/* ---- ranks that are left ---- */

/* Where a rank is: the last step that it has ended, and whether it has begun another since. */
struct place {
    uint64_t ended; /* steps; 0: none */
    uint64_t begun; /* likewise: `ended`, or one more */
};

static struct place place_of(const struct powersgd *state)
{
    uint64_t begun = state->has_step ? state->step + 1 : 0;
    bool is_over = !state->has_step || state->reduced == state->length;

    return (struct place){.ended = is_over ? begun : begun - 1, .begun = begun};
}

/* The lowest of those that have ended the most; *ret_behind: another has not ended it. */
static unsigned find_donor(const struct place *places, unsigned count, bool *ret_behind)
{
    unsigned donor = 0;

    for (unsigned r = 1; r < count; r++)
        if (places[r].ended > places[donor].ended)
            donor = r;
    *ret_behind = false;
    for (unsigned r = 0; r < count; r++)
        *ret_behind = *ret_behind || places[r].ended < places[donor].ended;
    return donor;
}

/* On a step that has ended elsewhere, this rank lacks the result of its last operation at most,
 * because nobody ends a step without it: the last bucket's Q; or, of a bucket without matrices, the
 * mean, without which its error is not known and begins anew. */
static void catch_up(struct sync_allreduce *s, const float *q)
{
    struct powersgd *state = s->powersgd;
    size_t last = state->length - 1;
    struct powersgd_bucket *b = &state->buckets[last];
    const struct bucket *bucket = &s->plan.buckets[last];

    memcpy(b->q, q + state->q_count - b->q_count, b->q_count * sizeof(float));
    if (b->matrix_count > 0)
        end_bucket(s, last);
    else if (state->error)
        memset(state->next + bucket->offset, 0, bucket->count * sizeof(float));
    state->reduced = state->length;
}

/* Some have ended a step that others have not: those get the Q with which it ended. */
static enum status level(struct sync_allreduce *s, struct error *err)
{
    struct powersgd *state = s->powersgd;
    struct place mine = place_of(state);
    struct place *places = NULL;
    float *q = NULL;
    unsigned donor;
    bool is_behind;
    enum status status = mem_calloc(s->world_size, sizeof(*places), "PowerSGD", &places, err);

    if (status == STATUS_OK)
        status = mem_calloc(state->q_count + 1, sizeof(float), "PowerSGD Q", &q, err);
    if (status == STATUS_OK)
        status = collective_all_gather(s->group, &mine, sizeof(mine), places, err);
    if (status != STATUS_OK)
        goto out;
    donor = find_donor(places, s->world_size, &is_behind);
    if (!is_behind)
        goto out;
    if (mine.begun > mine.ended) /* its Q are those of the step that it has begun since */
        memcpy(q, state->q_before, state->q_count * sizeof(float));
    else
        copy_q(state, q, true);
    status = collective_broadcast(s->group, q, (state->q_count + 1) * sizeof(float), donor, err);
    if (status == STATUS_OK && mine.ended < places[donor].ended)
        catch_up(s, q);
out:
    free(q);
    free(places);
    return status;
}

/* The new group reaches another scratch; what was in the old one goes along. */
static enum status powersgd_renew(struct sync_allreduce *s, struct error *err)
{
    struct shared_memory old = s->scratch;
    enum status status;

    s->scratch = SHARED_MEMORY_NONE;
    status = place_scratch(s, err);
    if (status == STATUS_OK)
        memcpy(s->scratch.base, old.base, old.size < s->scratch.size ? old.size : s->scratch.size);
    shared_memory_release(&old);
    return status == STATUS_OK ? level(s, err) : status;
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
    .renew = powersgd_renew,
    .close = powersgd_close,
};
