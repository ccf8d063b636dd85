/*
 * A step: batch, forward and backward (which hands gradients to the synchronisation as they
 * appear), wait for the synchronised slab, optimizer if the servers have not run it, record.  The
 * clock is read at the borders of those parts and nowhere else; experiments/METRICS.md defines the
 * figures.
 */
#include "worker/train/train_step.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/stop.h"

#include <math.h>
#include <string.h>
#include <time.h>

#define DELAY_LOOK_NS INT64_C(100000000) /* between looks whether to stop, in a delay */

static void hand_over(void *user, size_t ready_count)
{
    struct trainer *t = user;

    sync_ready(t->sync, ready_count);
}

/* Compute longer, as the delay schedule says; a request to stop ends it. */
static void linger(int64_t ns)
{
    int64_t deadline_ns = ns > 0 ? clock_now_ns() + ns : 0; /* most steps have none */
    int64_t left_ns = ns;

    while (left_ns > 0 && !stop_requested()) {
        int64_t nap_ns = left_ns < DELAY_LOOK_NS ? left_ns : DELAY_LOOK_NS;
        struct timespec nap = {.tv_nsec = (long)nap_ns};

        (void)nanosleep(&nap, NULL);
        left_ns = deadline_ns - clock_now_ns();
    }
}

/* The same, busy: as a program that takes so much longer on this core. */
static void burn(int64_t ns)
{
    const int64_t until_ns = clock_now_ns() + ns;

    while (clock_now_ns() < until_ns && !stop_requested())
        continue;
}

/* What the delay schedule has for this step; the share is of the step before, without its own. */
static void delay(struct trainer *t, uint64_t step)
{
    const int64_t own_ns = t->last_step_ns - t->burnt_ns;
    const double share = delay_schedule_share(&t->delays, t->launch->rank, step);

    linger(delay_schedule_ns(&t->delays, t->launch->rank, step));
    t->burnt_ns = (int64_t)(share * (double)own_ns);
    if (share > 0)
        burn(t->burnt_ns);
}

/* What LayerDrop skips is drawn anew for each update, so that a run that goes on with a checkpoint
 * draws as one that was never interrupted.  The mixing is splitmix64's. */
static void draw_layers(struct trainer *t, uint64_t step)
{
    uint64_t seed = ((uint64_t)t->options->seed << 32) + step + 1;

    if (t->options->layer_drop <= 0)
        return;
    seed += (t->launch->rank + 1) * 0x9e3779b97f4a7c15u;
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebu;
    model_set_layer_drop(t->model, t->options->layer_drop, seed ^ (seed >> 31));
}

/* Whatever follows from such a loss is lost. */
static enum status check_loss(const struct trainer *t, uint64_t step, double loss,
                              struct error *err)
{
    if (isfinite(loss))
        return STATUS_OK;
    return error_set(err, STATUS_DATA, "step %ju: the loss of rank %u is %s", (uintmax_t)step,
                     t->launch->rank, isnan(loss) ? "not a number" : "infinite");
}

/* On the model's device, or on all of them. */
static enum status step_batch(struct trainer *t, const struct batch *batch, bool accumulate,
                              model_ready_fn *ready, double *ret_loss, struct error *err)
{
    return t->replicas ? replicas_step(t->replicas, batch->x, batch->y, batch->count, accumulate,
                                       ready, t, ret_loss, err)
                       : model_step(t->model, batch->x, batch->y, batch->count, accumulate, ready,
                                    t, ret_loss, err);
}

/* A GPU that cannot note a step goes on call by call, slower and with the same bits. */
static void tell_of_graphs(struct trainer *t)
{
    if (t->told_of_graphs || !model_graph_failure(t->model))
        return;
    log_warning("rank %u: steps are call by call: %s", t->launch->rank,
                model_graph_failure(t->model));
    t->told_of_graphs = true;
}

/* The optimizer counts updates from 1, those of the run before included. */
static uint64_t optimizer_step(const struct trainer *t, uint64_t step)
{
    return step + 1 + t->checkpointer.optimizer_lead;
}

/* The batches of one update: all but the last only accumulate (no_sync). */
static enum status run_batches(struct trainer *t, struct step_record *step, bool *ret_epoch_end,
                               struct error *err)
{
    int64_t wanted = t->options->accumulate_steps;
    double loss_sum = 0;
    int64_t batches = 0;
    bool last = false;

    draw_layers(t, step->step);
    while (!last) {
        struct batch batch;
        double loss;
        int64_t before = clock_now_ns();
        int64_t loaded;
        int64_t waited;
        enum status status;

        loader_next(t->loader, &batch);
        if (batches == 0)
            recovery_take(t, &batch);
        last = batches + 1 == wanted || batch.last_of_epoch;
        if (last)
            wanted_name(t, step->step, &batch);
        loaded = clock_now_ns();
        step->input_ns += loaded - before;
        status = ahead_take(t, &batch, err);
        if (status != STATUS_OK)
            return status;
        if (last) {
            delay(t, step->step);
            model_plan_update(t->model, t->optimizer.config.learning_rate,
                              optimizer_step(t, step->step));
        }
        status = step_batch(t, &batch, batches > 0, last ? hand_over : NULL, &loss, err);
        tell_of_graphs(t);
        if (status == STATUS_OK)
            status = check_loss(t, step->step, loss, err);
        if (status != STATUS_OK)
            return status;
        waited = compute_ahead_wait_ns(t->compute); /* input that no step before has hidden */
        step->input_ns += waited;
        step->compute_ns += clock_now_ns() - loaded - waited;
        step->forward_ns += model_forward_ns(t->model);
        step->samples += batch.count;
        step->epoch = batch.epoch;
        *ret_epoch_end = batch.last_of_epoch;
        t->exhausted = batch.last_of_epoch && worker_options_uneven(t->options);
        loss_sum += loss;
        batches++;
    }
    step->loss = loss_sum / (double)batches;
    overlap_computed(t, step);
    return STATUS_OK;
}

/* The part of an update when this rank's inputs have ended and others' have not: zeros. */
static enum status shadow_batches(struct trainer *t, struct error *err)
{
    size_t count = model_table(t->model)->count;
    enum status status = overlap_settle(t, err);

    if (status == STATUS_OK)
        status = model_clear_grads(t->model, err);
    if (status == STATUS_OK)
        sync_ready(t->sync, count);
    return status;
}

/* Which parameters have a gradient: all, unless some may go unused. */
static enum status agree_used(struct trainer *t, bool shadow, struct error *err)
{
    size_t views = model_table(t->model)->length;

    if (!t->may_skip)
        return STATUS_OK;
    if (shadow)
        memset(t->used, 0, views * sizeof(*t->used));
    else
        memcpy(t->used, model_used(t->model), views * sizeof(*t->used));
    if (!shadow)
        ddp_record_used(&t->ddp, model_table(t->model), t->used);
    return sync_agree_used(t->sync, t->used, err);
}

/* Parameters without a gradient are left alone, as by PyTorch's optimizers. */
static void update_used(struct trainer *t, uint64_t number)
{
    const struct tensor_table *table = model_table(t->model);

    for (size_t i = 0; i < table->length; i++) {
        const struct tensor_view *v = &table->views[i];

        if (t->used[i])
            optimizer_update(&t->optimizer, number, v->offset, v->count,
                             model_params(t->model) + v->offset, model_grads(t->model) + v->offset);
    }
}

static enum status apply_update(struct trainer *t, uint64_t step, struct error *err)
{
    if (sync_yields(t->sync) == SYNC_YIELDS_PARAMETERS) /* the servers made it */
        return STATUS_OK;
    if (model_on_device(t->model))
        return model_update(t->model, t->optimizer.config.learning_rate, optimizer_step(t, step),
                            err);
    if (t->may_skip)
        update_used(t, optimizer_step(t, step));
    else
        optimizer_update(&t->optimizer, optimizer_step(t, step), 0, model_table(t->model)->count,
                         model_params(t->model), model_grads(t->model));
    return model_params_changed(t->model, err);
}

enum status train_enlist(struct trainer *t, size_t samples, unsigned *ret_active, struct error *err)
{
    enum status status = sync_enlist(t->sync, samples, ret_active, err);

    return status == STATUS_OK && *ret_active == 0 && sync_shares_model(t->sync)
               ? model_params_changed(t->model, err)
               : status;
}

/* Tell how many samples this rank brings to the next update.  False in *ret_go: no rank has any,
 * the epoch is over. */
static enum status enlist(struct trainer *t, bool *ret_go, struct error *err)
{
    size_t samples = 0;
    unsigned active = 1;
    enum status status;

    *ret_go = true;
    if (!t->enlists)
        return STATUS_OK;
    if (!t->exhausted) {
        struct batch next;
        size_t wanted;

        loader_peek(t->loader, &next);
        wanted = next.count * (size_t)t->options->accumulate_steps;
        samples = wanted < next.left ? wanted : next.left;
    }
    status = train_enlist(t, samples, &active, err);
    *ret_go = active > 0;
    return status;
}

/* All of a step's communication: what went on beside backward and what did not. */
static int64_t comm_ns(const struct trainer *t, int64_t blocking_ns)
{
    struct sync_timeline timeline;

    sync_timeline(t->sync, &timeline);
    if (timeline.length == 0) /* not known */
        return 0;
    for (size_t i = 0; i < timeline.length; i++)
        blocking_ns += timeline.buckets[i].done_ns - timeline.buckets[i].started_ns;
    return blocking_ns;
}

/* Gradients of this rank's next batches, averaged with the others'. */
static enum status compute_and_sync(struct trainer *t, struct step_record *step,
                                    bool *ret_epoch_end, struct error *err)
{
    bool shadow = t->exhausted;
    int64_t synced;
    int64_t agreed;
    enum status status = STATUS_OK;

    step->loss = (double)NAN;
    if (shadow)
        status = shadow_batches(t, err);
    else
        status = run_batches(t, step, ret_epoch_end, err);
    t->computed_ns = clock_now_ns();
    if (status == STATUS_OK)
        status = sync_finish(t->sync, err);
    synced = clock_now_ns();
    if (status == STATUS_OK)
        status = agree_used(t, shadow, err);
    agreed = clock_now_ns();
    step->comm_ns = comm_ns(t, step->exposed_comm_ns + (agreed - synced));
    step->exposed_comm_ns += agreed - t->computed_ns;
    return status;
}

enum status train_step(struct trainer *t, uint64_t index, bool *ret_go, bool *ret_epoch_end,
                       struct step_record *ret_step, struct error *err)
{
    struct sync_counters before = sync_counters(t->sync);
    struct sync_counters after;
    struct step_record step = {.step = index};
    int64_t started = clock_now_ns();
    int64_t updating;
    enum status status;

    overlap_begin(t, &before);
    recovery_begin(t);
    status = enlist(t, ret_go, err);
    if (status != STATUS_OK || !*ret_go)
        return status;
    status = sync_begin(t->sync, index, err);
    step.exposed_comm_ns = clock_now_ns() - started;
    if (status == STATUS_OK)
        status = compute_and_sync(t, &step, ret_epoch_end, err);
    updating = clock_now_ns();
    if (status == STATUS_OK)
        status = apply_update(t, index, err);
    step.begin_ns = started;
    step.step_ns = clock_now_ns() - started;
    step.optimizer_ns = step.step_ns - (updating - started);
    t->last_step_ns = step.step_ns;
    after = sync_counters(t->sync);
    step.tx_payload_bytes = after.tx_payload_bytes - before.tx_payload_bytes;
    *ret_step = step;
    if (status != STATUS_OK)
        return status;
    status = overlap_record(t, &step, err);
    return status == STATUS_OK
               ? ddp_record_step(&t->ddp, &t->record.metrics, t->sync, &step, t->computed_ns, err)
               : status;
}
