/*
 * The training loop.  A step is: batch, forward and backward (which hands gradients to the
 * synchronisation as they appear), wait for the synchronised slab, optimizer if the servers have
 * not run it, record. The clock is read at the borders of those parts and nowhere else;
 * experiments/METRICS.md defines the figures.
 */
#include "worker/train.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/progress.h"
#include "common/base/stop.h"
#include "common/checkpoint/safetensors.h"
#include "worker/finish.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DELAY_LOOK_NS INT64_C(100000000) /* between looks whether to stop, in a delay */

static void hand_over(void *user, size_t ready_count)
{
    struct trainer *t = user;

    sync_ready(t->sync, ready_count);
}

/* Compute longer, as the delay schedule wishes; a wish to stop ends it. */
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
        enum status status;

        loader_next(t->loader, &batch);
        if (batches == 0)
            recovery_take(t, &batch);
        last = batches + 1 == wanted || batch.last_of_epoch;
        if (last)
            wanted_name(t, step->step, &batch);
        loaded = clock_now_ns();
        step->input_ns += loaded - before;
        if (last)
            linger(delay_schedule_ns(&t->delays, t->launch->rank, step->step));
        status = step_batch(t, &batch, batches > 0, last ? hand_over : NULL, &loss, err);
        if (status == STATUS_OK)
            status = check_loss(t, step->step, loss, err);
        if (status != STATUS_OK)
            return status;
        step->compute_ns += clock_now_ns() - loaded;
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

    if (status != STATUS_OK)
        return status;
    memset(model_grads(t->model), 0, count * sizeof(float));
    sync_ready(t->sync, count);
    return STATUS_OK;
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
static void update_used(struct trainer *t, uint64_t optimizer_step)
{
    const struct tensor_table *table = model_table(t->model);

    for (size_t i = 0; i < table->length; i++) {
        const struct tensor_view *v = &table->views[i];

        if (t->used[i])
            optimizer_update(&t->optimizer, optimizer_step, v->offset, v->count,
                             model_params(t->model) + v->offset, model_grads(t->model) + v->offset);
    }
}

static enum status apply_update(struct trainer *t, uint64_t step, struct error *err)
{
    uint64_t optimizer_step = step + 1 + t->checkpointer.optimizer_lead;

    if (model_on_device(t->model))
        return model_update(t->model, t->optimizer.config.learning_rate, optimizer_step, err);
    if (sync_yields(t->sync) == SYNC_YIELDS_GRADIENTS && t->may_skip)
        update_used(t, optimizer_step);
    else if (sync_yields(t->sync) == SYNC_YIELDS_GRADIENTS)
        optimizer_update(&t->optimizer, optimizer_step, 0, model_table(t->model)->count,
                         model_params(t->model), model_grads(t->model));
    return model_params_changed(t->model, err);
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
    status = sync_enlist(t->sync, samples, &active, err);
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

/* *ret_go false: no rank has inputs left in this epoch, and nothing was done. */
static enum status run_step(struct trainer *t, uint64_t index, bool *ret_go, bool *ret_epoch_end,
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
    step.step_ns = clock_now_ns() - started;
    step.optimizer_ns = step.step_ns - (updating - started);
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

static void show_progress(struct progress *bar, const struct trainer *t,
                          const struct step_record *step)
{
    char detail[96];
    double rate = (double)step->samples * t->world_size / ((double)step->step_ns * 1e-9);

    (void)snprintf(detail, sizeof(detail), "epoch %ju loss %.4f %.0f samples/s",
                   (uintmax_t)step->epoch, step->loss, rate);
    progress_update(bar, step->step + 1, detail);
}

/* After the last update: uneven ranks end together, with the parameters of the last one; and all
 * have done the same. */
static enum status end_together(struct trainer *t, struct run_outcome *outcome, struct error *err)
{
    unsigned active;
    enum status status = overlap_settle(t, err);

    if (status != STATUS_OK)
        return status;
    if (worker_options_uneven(t->options) && t->total_steps > 0) {
        status = sync_enlist(t->sync, 0, &active, err);
        if (status != STATUS_OK)
            return status;
        outcome->epochs += t->total_steps % t->updates_per_epoch == 0;
    }
    status = sync_end(t->sync, err);
    if (status == STATUS_OK)
        status = model_fetch(t->model, err);
    return status == STATUS_OK && sync_yields(t->sync) == SYNC_YIELDS_PARAMETERS
               ? model_params_changed(t->model, err)
               : status;
}

/* This rank was late, or takes the place of a lost one: it goes on behind the updates that were
 * made without it, and the batches that it would have brought to them are left out. */
static void skip_updates(struct trainer *t, uint64_t *index, struct run_outcome *outcome,
                         bool *epoch_end)
{
    uint64_t count = sync_skipped(t->sync);

    for (uint64_t i = 0; i < count; i++) {
        struct batch batch = {0};

        for (int64_t n = 0; n < t->options->accumulate_steps && !batch.last_of_epoch; n++)
            loader_next(t->loader, &batch);
        outcome->epochs += batch.last_of_epoch;
        *epoch_end = *epoch_end || batch.last_of_epoch;
    }
    *index += count;
    t->skipped_steps += count;
}

/* One update, or the end of an epoch of uneven ranks. */
static enum status advance(struct trainer *t, uint64_t *index, struct run_outcome *outcome,
                           struct progress *bar, bool *ret_epoch_end, struct error *err)
{
    struct step_record step = {0};
    bool go = true;
    bool came = true;
    enum status status = run_step(t, *index, &go, ret_epoch_end, &step, err);

    if (status != STATUS_OK) {
        status = recovery_run(t, *index, &came, err);
        if (status == STATUS_OK && came) /* the update is done, by the others */
            status = run_record_step(&t->record, &step, err);
        if (status != STATUS_OK || !came) {
            *ret_epoch_end = false;
            return status;
        }
    }
    recovery_end(t);
    if (!go) {
        t->exhausted = false;
        *ret_epoch_end = true;
    } else {
        ++*index;
        *ret_epoch_end = *ret_epoch_end && !worker_options_uneven(t->options);
        if (step.samples > 0)
            outcome->last_loss = step.loss;
        show_progress(bar, t, &step);
    }
    outcome->epochs += *ret_epoch_end;
    skip_updates(t, index, outcome, ret_epoch_end);
    return STATUS_OK;
}

/* A stop need not cost the updates since the last checkpoint.  The others may have stopped an
 * update earlier and be gone; then it does. */
static void save_on_stop(struct trainer *t, uint64_t completed)
{
    struct error why = {0};

    if (checkpointer_end(t, completed, &why) != STATUS_OK)
        log_warning("no checkpoint of the stop: %s", why.text);
}

static enum status run_steps(struct trainer *t, struct run_outcome *outcome, struct error *err)
{
    bool each_epoch = strcmp(t->options->evaluate, "epoch") == 0;
    struct progress bar = {0};
    uint64_t index = t->checkpointer.start;
    bool passed = false; /* the end of an epoch that another process has evaluated */
    enum status status = STATUS_OK;

    outcome->epochs = t->checkpointer.start_epoch;
    skip_updates(t, &index, outcome, &passed);
    if (t->launch->rank == 0)
        progress_open(&bar, "training", t->total_steps);
    while (index < t->total_steps && status == STATUS_OK) {
        bool epoch_end = false;

        if (stop_requested()) {
            save_on_stop(t, index);
            status = error_set(err, STATUS_CANCELLED, "stopped by signal %d after %ju of %ju steps",
                               stop_requested(), (uintmax_t)index, (uintmax_t)t->total_steps);
            break;
        }
        status = advance(t, &index, outcome, &bar, &epoch_end, err);
        if (status == STATUS_OK && epoch_end && each_epoch)
            status = overlap_settle(t, err);
        if (status == STATUS_OK && epoch_end && each_epoch)
            status = finish_evaluate(t, outcome, err);
        if (status == STATUS_OK)
            status = checkpointer_step(t, index, err);
    }
    progress_close(&bar);
    if (status != STATUS_OK)
        overlap_abandon(t);
    if (status == STATUS_OK)
        status = end_together(t, outcome, err);
    return status == STATUS_OK ? checkpointer_end(t, index, err) : status;
}

enum status train_run(const struct worker_options *options, const struct option_result *origins,
                      const struct launch_env *launch, struct error *err)
{
    struct trainer t = {.options = options,
                        .origins = origins,
                        .launch = launch,
                        .rank = launch->rank,
                        .world_size = launch->world_size,
                        .manifest = STRBUF_INIT,
                        .record.metrics.fd = -1};
    struct run_outcome outcome = {.status = "ok", .text = ""};
    enum status status = trainer_open(&t, err);
    bool opened = status == STATUS_OK;

    if (opened) {
        if (launch->rank == 0 && compute_note(t.compute)[0])
            log_info("%s", compute_note(t.compute));
        if (launch->rank == 0)
            log_info("ranks: %u, parameters: %zu, updates: %ju, %s on %s", launch->world_size,
                     model_table(t.model)->count, (uintmax_t)t.total_steps, options->sync,
                     compute_name(t.compute));
        log_debug("training starts");
        status = run_steps(&t, &outcome, err);
    }
    if (status == STATUS_OK)
        status = finish_run(&t, &outcome, err);
    if (status != STATUS_OK)
        finish_failed(&t, &outcome, opened, err);
    trainer_close(&t, status == STATUS_OK ? NULL : err);
    return status;
}
