/*
 * Recovery of survivors that are one update apart, on the CPU and with all state on a GPU.  Ranks
 * are processes with real trainers and a real group.  One rank kills itself when all have the
 * gradients of an update.  The survivor "ahead" applies them and detects the death in the next
 * update; the survivor "behind" has not applied them, as if the last bucket had completed on one
 * only.
 *
 * Expected: the rank behind gets the bits of the rank ahead (parameters, both moments of Adam,
 * running statistics from before the next forward); both continue from the same batch; and their
 * bits are still equal after more updates.  With PowerSGD each keeps its own compression error, bit
 * by bit, and both have the same Q.
 */
#include "tests/support/support.h"
#include "worker/sync/allreduce_powersgd.h"
#include "worker/train/trainer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS      3u
#define LOST_STEP  4u /* updates made by all three; powersgd compresses from the second on */
#define MORE_STEPS 3u
#define BATCH      8u
#define WORDS_MAX  64
#define STATE_MAX  16384u

struct scenario {
    const char *backend;
    const char *model;
    const char *optimizer;
    const char *buffers; /* "--broadcast-buffers=..." */
    const char *hook;
    unsigned victim, behind;
};

static const struct scenario scenarios[] = {
    {"shm", "mlp-bn:12-16-4", "adam", "--broadcast-buffers=false", "none", 2, 1},
    {"shm", "mlp-bn:12-16-4", "adam", "--broadcast-buffers=true", "none", 2, 0},
    {"shm", "mlp:12-16-4", "sgd", "--broadcast-buffers=true", "none", 0, 1},
    {"ring", "mlp-bn:12-16-4", "adam", "--broadcast-buffers=false", "none", 0, 2},
    {"ring", "mlp-bn:12-16-4", "adamw", "--broadcast-buffers=true", "none", 1, 2},
    {"shm", "mlp:12-64-48-4", "adam", "--broadcast-buffers=true", "powersgd", 2, 1},
    {"ring", "mlp:12-64-48-4", "sgd", "--broadcast-buffers=true", "powersgd", 1, 0},
};
#define SCENARIOS (sizeof(scenarios) / sizeof(scenarios[0]))

/* Parameters, optimizer state and buffers. */
struct state {
    size_t count, params;
    float values[STATE_MAX];
};

/* Results of a rank, in memory shared with the test. */
struct outcome {
    bool done;
    bool advanced;
    uint64_t epoch;
    size_t offset;       /* of the first batch after the recovery */
    struct state before; /* the recovery; with the update that both must have */
    struct state after;  /* the recovery */
    struct state end;
    struct state error_before; /* PowerSGD's, after the last common update */
    struct state error_after;
    struct state q; /* at the end */
    unsigned world_size, lost;
};

struct rank {
    const struct scenario *s;
    struct outcome *outcome;
    unsigned rank;
    const char *store;
    int gradients_pipe[2]; /* one byte per survivor that has the last common gradients */
    struct trainer t;
};

/* A rank is not a process of Check: it exits, and the test fails on its exit status. */
static void require_ok(const struct rank *r, enum status status, const struct error *err)
{
    if (status == STATUS_OK)
        return;
    (void)fprintf(stderr, "rank %u: %s: %s\n", r->rank, status_name(status), err->text);
    _exit(3);
}

static void capture_part(struct state *s, const float *values, size_t count)
{
    if (s->count + count > STATE_MAX)
        _exit(4);
    memcpy(s->values + s->count, values, count * sizeof(float));
    s->count += count;
}

static void capture_state(struct trainer *t, struct state *s)
{
    size_t count = model_table(t->model)->count;

    if (model_fetch(t->model, NULL) != STATUS_OK)
        _exit(7);
    s->count = 0;
    s->params = count;
    capture_part(s, model_params(t->model), count);
    for (unsigned i = 0; i < t->optimizer.states; i++)
        capture_part(s, t->optimizer.state[i], count);
    if (model_buffers(t->model))
        capture_part(s, model_buffers(t->model), model_buffer_table(t->model)->count);
}

/* PowerSGD's state: this rank's error after LOST_STEP, or its current Q. */
static void capture_powersgd(const struct trainer *t, struct state *error, struct state *q)
{
    const struct powersgd *p = ((const struct sync_allreduce *)t->sync)->powersgd;

    if (p && error) {
        error->count = 0;
        capture_part(error, powersgd_residual(p, LOST_STEP), model_table(t->model)->count);
    }
    for (size_t i = 0; p && q && i < p->length; i++)
        capture_part(q, p->buckets[i].q, p->buckets[i].q_count);
}

static void hand_over(void *user, size_t ready_count)
{
    sync_ready(((struct trainer *)user)->sync, ready_count);
}

/* The part of a step up to the mean gradients. */
static enum status compute_gradients(struct trainer *t, uint64_t step, struct batch *ret_batch,
                                     struct error *err)
{
    double loss;
    enum status status;

    recovery_begin_update(t);
    status = sync_begin(t->sync, step, err);
    if (status != STATUS_OK)
        return status;
    loader_next(t->loader, ret_batch);
    recovery_note_batch(t, ret_batch);
    status = model_step(t->model, ret_batch->x, ret_batch->y, ret_batch->count, false, hand_over, t,
                        &loss, err);
    return status == STATUS_OK ? sync_finish(t->sync, err) : status;
}

static enum status apply_update(struct trainer *t, uint64_t step, struct error *err)
{
    enum status status = STATUS_OK;

    if (model_on_device(t->model))
        status = model_update(t->model, t->optimizer.config.learning_rate, step + 1, err);
    else
        optimizer_update(&t->optimizer, step + 1, 0, model_table(t->model)->count,
                         model_params(t->model), model_grads(t->model));
    recovery_end_update(t);
    return status;
}

static const char *device(void)
{
    const char *name = getenv("SPARRING_TEST_DEVICE");

    return name ? name : "cpu";
}

static void open_trainer(struct rank *r, struct worker_options *options, struct launch_env *launch,
                         struct option_result *origins)
{
    static char line[1200];
    const struct scenario *s = r->s;
    struct error err = {0};
    char *words[WORDS_MAX];
    char *rest = NULL;
    int count = 0;

    (void)snprintf(line, sizeof(line),
                   "worker --model %s --data random:600,12,4 --batch-size 8 --steps 100 "
                   "--optimizer %s --lr 0.01 --momentum 0.9 --backend %s %s --comm-hook %s "
                   "--powersgd-start-iter 2 --bucket-cap-mb 0.002 --on-rank-loss shrink "
                   "--init-method file://%s --timeout-ms 20000 --threads 1 --device %s "
                   "--evaluate never",
                   s->model, s->optimizer, s->backend, s->buffers, s->hook, r->store, device());
    for (char *word = strtok_r(line, " ", &rest); word && count < WORDS_MAX;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    require_ok(r, option_parse(&worker_option_set, count, words, options, origins, &err), &err);
    require_ok(r, worker_options_check(options, &err), &err);
    *launch = (struct launch_env){.rank = r->rank, .world_size = RANKS, .local_rank = r->rank};
    r->t = (struct trainer){.options = options,
                            .origins = origins,
                            .launch = launch,
                            .rank = launch->rank,
                            .world_size = launch->world_size,
                            .manifest = STRBUF_INIT,
                            .record.metrics.fd = -1};
    require_ok(r, trainer_open(&r->t, &err), &err);
    if (model_on_device(r->t.model) == compute_is_host(r->t.compute))
        _exit(8);
}

/* The victim dies once all survivors have completed the update's communication. */
static void kill_self(const struct rank *r)
{
    char byte;

    for (unsigned i = 1; i < RANKS; i++)
        if (read(r->gradients_pipe[0], &byte, 1) != 1)
            _exit(5);
    (void)raise(SIGKILL);
}

/* The collectives of the next update without its computation; they fail because of the death. */
static enum status run_failing_collectives(struct trainer *t, struct error *err)
{
    enum status status = sync_begin(t->sync, LOST_STEP + 1, err);

    if (status != STATUS_OK)
        return status;
    sync_ready(t->sync, model_table(t->model)->count);
    return sync_finish(t->sync, err);
}

/* The update in which the victim dies: the rank ahead applies it, the rank behind does not.
 * Returns this rank's number of completed updates. */
static uint64_t run_update_with_loss(struct rank *r, struct error *err)
{
    struct trainer *t = &r->t;
    struct batch batch;

    require_ok(r, compute_gradients(t, LOST_STEP, &batch, err), err);
    capture_powersgd(t, &r->outcome->error_before, NULL);
    if (r->rank == r->s->victim)
        kill_self(r);
    if (write(r->gradients_pipe[1], "x", 1) != 1)
        _exit(5);
    if (r->rank == r->s->behind) { /* its model keeps the old update */
        if (run_failing_collectives(t, err) == STATUS_OK)
            _exit(6);
        return LOST_STEP;
    }
    require_ok(r, apply_update(t, LOST_STEP, err), err);
    capture_state(t, &r->outcome->before);
    if (compute_gradients(t, LOST_STEP + 1, &batch, err) == STATUS_OK)
        _exit(6);
    return LOST_STEP + 1;
}

static void run_rank(struct rank *r)
{
    static struct worker_options options;
    static struct option_result origins;
    struct launch_env launch;
    struct trainer *t = &r->t;
    struct error err = {0};
    struct batch batch;
    uint64_t completed;

    open_trainer(r, &options, &launch, &origins);
    for (uint64_t step = 0; step < LOST_STEP; step++) {
        require_ok(r, compute_gradients(t, step, &batch, &err), &err);
        require_ok(r, apply_update(t, step, &err), &err);
    }
    completed = run_update_with_loss(r, &err);
    require_ok(r, recovery_run(t, completed, &r->outcome->advanced, &err), &err);
    if (r->outcome->advanced)
        recovery_end_update(t);
    capture_state(t, &r->outcome->after);
    capture_powersgd(t, &r->outcome->error_after, NULL);
    for (uint64_t step = LOST_STEP + 1; step < LOST_STEP + 1 + MORE_STEPS; step++) {
        require_ok(r, compute_gradients(t, step, &batch, &err), &err);
        if (step == LOST_STEP + 1) {
            r->outcome->epoch = batch.epoch;
            r->outcome->offset = batch.offset;
        }
        require_ok(r, apply_update(t, step, &err), &err);
    }
    capture_state(t, &r->outcome->end);
    capture_powersgd(t, NULL, &r->outcome->q);
    r->outcome->world_size = t->world_size;
    r->outcome->lost = t->recovery.lost_count == 1 ? t->recovery.lost[0] : RANKS;
    trainer_close(t, NULL);
    option_result_release(&origins);
    r->outcome->done = true;
}

static void run_world(const struct scenario *s, struct outcome *outcomes)
{
    struct rank r = {.s = s, .store = support_path("store")};
    pid_t pids[RANKS];

    ck_assert_int_eq(pipe(r.gradients_pipe), 0);
    for (unsigned i = 0; i < RANKS; i++) {
        r.rank = i;
        r.outcome = &outcomes[i];
        pids[i] = fork();
        ck_assert_int_ge(pids[i], 0);
        if (pids[i] == 0) {
            run_rank(&r);
            _exit(0);
        }
    }
    for (unsigned i = 0; i < RANKS; i++) {
        int status;

        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
        if (i == s->victim)
            ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the victim: %x",
                          (unsigned)status);
        else
            ck_assert_msg(status == 0 && outcomes[i].done, "rank %u: %x", i, (unsigned)status);
    }
    (void)close(r.gradients_pipe[0]);
    (void)close(r.gradients_pipe[1]);
}

/* Index of the first value whose bits differ; the count when none does. */
static size_t first_difference(const struct state *a, const struct state *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&a->values[i], &b->values[i], sizeof(float)) != 0)
            return i;
    return count;
}

static void check_equal(const struct state *a, const struct state *b, size_t count,
                        const char *what)
{
    size_t at = first_difference(a, b, count);

    ck_assert_uint_gt(count, 0);
    ck_assert_uint_eq(a->count, b->count);
    ck_assert_msg(at == count, "%s: value %zu of %zu: %.9g and %.9g", what, at, count,
                  (double)a->values[at], (double)b->values[at]);
}

/* Each rank has its own error, unchanged; both have the same Q. */
static void check_powersgd(const struct outcome *ahead, const struct outcome *behind)
{
    const struct outcome *both[] = {ahead, behind};
    static const struct state zero;

    for (size_t i = 0; i < 2; i++) {
        const struct state *error = &both[i]->error_before;

        check_equal(error, &both[i]->error_after, error->count, "PowerSGD's error");
        ck_assert_msg(first_difference(error, &zero, error->count) < error->count,
                      "compression has lost nothing: a poor test");
    }
    ck_assert_msg(first_difference(&ahead->error_after, &behind->error_after,
                                   ahead->error_after.count) < ahead->error_after.count,
                  "two ranks' errors are the same");
    check_equal(&ahead->q, &behind->q, ahead->q.count, "PowerSGD's Q");
}

START_TEST(rank_behind_gets_state_of_rank_ahead)
{
    const struct scenario *s = &scenarios[_i];
    struct outcome *outcomes = mmap(NULL, RANKS * sizeof(*outcomes), PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct outcome *ahead;
    const struct outcome *behind;

    ck_assert_ptr_ne(outcomes, MAP_FAILED);
    run_world(s, outcomes);
    behind = &outcomes[s->behind];
    ahead = &outcomes[RANKS - s->victim - s->behind];
    ck_assert(behind->advanced && !ahead->advanced);
    check_equal(&ahead->before, &ahead->after, ahead->before.count, "ahead, over the recovery");
    check_equal(&ahead->after, &behind->after, ahead->after.count, "after the recovery");
    for (unsigned i = 0; i < RANKS; i++) {
        if (i == s->victim)
            continue;
        ck_assert_uint_eq(outcomes[i].world_size, RANKS - 1);
        ck_assert_uint_eq(outcomes[i].lost, s->victim);
        ck_assert_uint_eq(outcomes[i].epoch, 0);
        ck_assert_uint_eq(outcomes[i].offset, (LOST_STEP + 1) * BATCH);
    }
    check_equal(&ahead->end, &behind->end, ahead->end.params, "parameters after more updates");
    if (strcmp(s->hook, "powersgd") == 0)
        check_powersgd(ahead, behind);
    ck_assert_msg(first_difference(&ahead->after, &ahead->end, ahead->end.params) <
                      ahead->end.params,
                  "the updates after the recovery changed nothing");
    (void)munmap(outcomes, RANKS * sizeof(*outcomes));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("worker_recovery", 100,
                       LOOP_TEST(rank_behind_gets_state_of_rank_ahead, 0, SCENARIOS));
}
