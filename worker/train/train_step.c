/*
 * A step: load the batch, forward and backward (which passes gradients to the synchronisation as
 * they become ready), wait for the synchronised slab, run the optimizer unless the servers have,
 * record.  The clock is read at the boundaries of these parts and where forward waits (overlap.c);
 * experiments/METRICS.md defines the figures.  No locking: training thread only.
 */
#include "worker/train/train_step.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/stop.h"

#include <math.h>
#include <string.h>
#include <time.h>

#define STOP_POLL_NS INT64_C(100000000) /* between checks for a stop, in a delay */

static void gradients_ready(void *user, size_t ready_count)
{
    struct trainer *t = user;

    sync_ready(t->sync, ready_count);
}

/* Sleep for a delay of the schedule; a request to stop ends it. */
static void inject_delay(int64_t ns)
{
    int64_t deadline_ns = ns > 0 ? clock_now_ns() + ns : 0; /* most steps have no delay */
    int64_t left_ns = ns;

    while (left_ns > 0 && !stop_requested()) {
        int64_t nap_ns = left_ns < STOP_POLL_NS ? left_ns : STOP_POLL_NS;
        struct timespec nap = {.tv_nsec = (long)nap_ns};

        (void)nanosleep(&nap, NULL);
        left_ns = deadline_ns - clock_now_ns();
    }
}

/* The same as a busy loop: models a slower program on this core. */
static void inject_busy_delay(int64_t ns)
{
    const int64_t until_ns = clock_now_ns() + ns;

    while (clock_now_ns() < until_ns && !stop_requested())
        continue;
}

/* The share is of the previous step without that step's own busy delay. */
static void apply_delay_schedule(struct trainer *t, uint64_t step)
{
    const int64_t own_ns = t->last_step_ns - t->busy_delay_ns;
    const double share = delay_schedule_share(&t->delays, t->launch->rank, step);

    inject_delay(delay_schedule_ns(&t->delays, t->launch->rank, step));
    t->busy_delay_ns = (int64_t)(share * (double)own_ns);
    if (share > 0)
        inject_busy_delay(t->busy_delay_ns);
}

/* Seed LayerDrop for each update, so that a resumed run skips the same layers as an uninterrupted
 * one.  The mixing function is splitmix64's. */
static void seed_layer_drop(struct trainer *t, uint64_t step)
{
    uint64_t seed = ((uint64_t)t->options->seed << 32) + step + 1;

    if (t->options->layer_drop <= 0)
        return;
    seed += (t->launch->rank + 1) * 0x9e3779b97f4a7c15u;
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebu;
    model_set_layer_drop(t->model, t->options->layer_drop, seed ^ (seed >> 31));
}

/* No later update can be valid after a loss that is not finite. */
static enum status check_loss(const struct trainer *t, uint64_t step, double loss,
                              struct error *err)
{
    if (isfinite(loss))
        return STATUS_OK;
    return error_set(err, STATUS_DATA, "step %ju: the loss of rank %u is %s", (uintmax_t)step,
                     t->launch->rank, isnan(loss) ? "not a number" : "infinite");
}

/* On the model's device, or on all replicas. */
static enum status step_batch(struct trainer *t, const struct batch *batch, bool accumulate,
                              model_ready_fn *ready, double *ret_loss, struct error *err)
{
    return t->replicas ? replicas_step(t->replicas, batch->x, batch->y, batch->count, accumulate,
                                       ready, t, ret_loss, err)
                       : model_step(t->model, batch->x, batch->y, batch->count, accumulate, ready,
                                    t, ret_loss, err);
}

/* If a step cannot be captured as a graph, it runs call by call: slower, with the same bits. */
static void log_graph_failure(struct trainer *t)
{
    if (t->graph_failure_logged || !model_graph_failure(t->model))
        return;
    log_warning("rank %u: steps are call by call: %s", t->launch->rank,
                model_graph_failure(t->model));
    t->graph_failure_logged = true;
}

/* The optimizer counts updates from 1, including those before a resume. */
static uint64_t optimizer_step(const struct trainer *t, uint64_t step)
{
    return step + 1 + t->checkpointer.optimizer_lead;
}

/* The batches of one update: all but the last only accumulate (no_sync). */
static enum status run_batches(struct trainer *t, struct step_record *step, bool *ret_epoch_end,
                               struct error *err)
{
    int64_t max_batches = t->options->accumulate_steps;
    double loss_sum = 0;
    int64_t batches = 0;
    bool last = false;

    seed_layer_drop(t, step->step);
    while (!last) {
        struct batch batch;
        double loss;
        int64_t before = clock_now_ns();
        int64_t loaded;
        int64_t waited;
        enum status status;

        loader_next(t->loader, &batch);
        if (batches == 0)
            recovery_note_batch(t, &batch);
        last = batches + 1 == max_batches || batch.last_of_epoch;
        if (last)
            active_features_select(t, step->step, &batch);
        loaded = clock_now_ns();
        step->input_ns += loaded - before;
        status = upload_ahead_consume(t, &batch, err);
        if (status != STATUS_OK)
            return status;
        if (last) {
            apply_delay_schedule(t, step->step);
            model_plan_update(t->model, t->optimizer.config.learning_rate,
                              optimizer_step(t, step->step));
        }
        status = step_batch(t, &batch, batches > 0, last ? gradients_ready : NULL, &loss, err);
        log_graph_failure(t);
        if (status == STATUS_OK)
            status = check_loss(t, step->step, loss, err);
        if (status != STATUS_OK)
            return status;
        waited = compute_upload_ahead_wait_ns(t->compute); /* not hidden by a step */
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

/* Contribute zero gradients: this rank has no inputs left, but other ranks have. */
static enum status shadow_batches(struct trainer *t, struct error *err)
{
    size_t count = model_table(t->model)->count;
    enum status status = overlap_wait(t, err);

    if (status == STATUS_OK)
        status = model_clear_grads(t->model, err);
    if (status == STATUS_OK)
        sync_ready(t->sync, count);
    return status;
}

/* Agree on the parameters that have a gradient; nothing to do if all always have. */
static enum status agree_used(struct trainer *t, bool shadow, struct error *err)
{
    size_t views = model_table(t->model)->length;

    if (!t->tracks_used)
        return STATUS_OK;
    if (shadow)
        memset(t->used, 0, views * sizeof(*t->used));
    else
        memcpy(t->used, model_used(t->model), views * sizeof(*t->used));
    if (!shadow)
        ddp_record_used(&t->ddp, model_table(t->model), t->used);
    return sync_agree_used(t->sync, t->used, err);
}

/* Skip parameters without a gradient, as PyTorch's optimizers do. */
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
    if (sync_yields(t->sync) == SYNC_YIELDS_PARAMETERS) /* the servers ran it */
        return STATUS_OK;
    if (model_on_device(t->model))
        return model_update(t->model, t->optimizer.config.learning_rate, optimizer_step(t, step),
                            err);
    if (t->tracks_used)
        update_used(t, optimizer_step(t, step));
    else
        optimizer_update(&t->optimizer, optimizer_step(t, step), 0, model_table(t->model)->count,
                         model_params(t->model), model_grads(t->model));
    return model_params_changed(t->model, err);
}

enum status train_announce_samples(struct trainer *t, size_t samples, unsigned *ret_active,
                                   struct error *err)
{
    enum status status = sync_announce_samples(t->sync, samples, ret_active, err);

    return status == STATUS_OK && *ret_active == 0 && sync_broadcasts_model(t->sync)
               ? model_params_changed(t->model, err)
               : status;
}

/* Send the number of samples that this rank contributes to the next update.  *ret_has_input false:
 * no rank has any, and the epoch has ended. */
static enum status announce_next_samples(struct trainer *t, bool *ret_has_input, struct error *err)
{
    size_t samples = 0;
    unsigned active = 1;
    enum status status;

    *ret_has_input = true;
    if (!t->announces_samples)
        return STATUS_OK;
    if (!t->exhausted) {
        struct batch next;
        size_t full;

        loader_peek(t->loader, &next);
        full = next.count * (size_t)t->options->accumulate_steps;
        samples = full < next.left ? full : next.left;
    }
    status = train_announce_samples(t, samples, &active, err);
    *ret_has_input = active > 0;
    return status;
}

/* A step's communication time: overlapped with backward, plus blocking_ns. */
static int64_t comm_ns(const struct trainer *t, int64_t blocking_ns)
{
    struct sync_timeline timeline;

    sync_timeline(t->sync, &timeline);
    if (timeline.length == 0) /* unknown */
        return 0;
    for (size_t i = 0; i < timeline.length; i++)
        blocking_ns += timeline.buckets[i].done_ns - timeline.buckets[i].started_ns;
    return blocking_ns;
}

/* Compute the gradients of the next batches and average them over the ranks. */
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

enum status train_step(struct trainer *t, uint64_t index, bool *ret_has_input, bool *ret_epoch_end,
                       struct step_record *ret_step, struct error *err)
{
    struct sync_counters before = sync_counters(t->sync);
    struct sync_counters after;
    struct step_record step = {.step = index};
    int64_t started = clock_now_ns();
    int64_t updating;
    enum status status;

    overlap_begin(t, &before);
    recovery_begin_update(t);
    status = announce_next_samples(t, ret_has_input, err);
    if (status != STATUS_OK || !*ret_has_input)
        return status;
    status = sync_begin(t->sync, index, err);
    step.exposed_comm_ns = clock_now_ns() - started;
    if (status == STATUS_OK)
        status = compute_and_sync(t, &step, ret_epoch_end, err);
    updating = clock_now_ns();
    if (status == STATUS_OK)
        status = apply_update(t, index, err);
    step.begin_wall = clock_wall_seconds_at(started);
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
