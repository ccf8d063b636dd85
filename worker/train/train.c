/*
 * The training loop: steps (train_step.c), and between them recovery, epochs, evaluation,
 * checkpoints and requests to stop.  `index` is the number of updates completed so far.  No
 * locking: the loop is the training thread; it exits only by returning its status to main.
 */
#include "worker/train/train.h"

#include "common/base/clock.h"
#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/progress.h"
#include "common/base/stop.h"
#include "worker/train/finish.h"
#include "worker/train/train_step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void show_progress(struct progress *bar, const struct trainer *t,
                          const struct step_record *step)
{
    char detail[96];
    double rate = (double)step->samples * t->world_size / ((double)step->step_ns * 1e-9);

    (void)snprintf(detail, sizeof(detail), "epoch %ju loss %.4f %.0f samples/s",
                   (uintmax_t)step->epoch, step->loss, rate);
    progress_update(bar, step->step + 1, detail);
}

/* After the last update.  Ranks with uneven inputs take part in one more exchange of sample counts,
 * which also gives all of them the model of the last rank that trained. */
static enum status end_all_ranks(struct trainer *t, struct run_end *outcome, struct error *err)
{
    unsigned active;
    enum status status = overlap_wait(t, err);

    if (status != STATUS_OK)
        return status;
    if (worker_options_uneven(t->options) && t->total_steps > 0) {
        status = train_announce_samples(t, 0, &active, err);
        if (status != STATUS_OK)
            return status;
        /* a resumed run that was complete has already counted its last epoch */
        outcome->epochs +=
            t->total_steps > t->checkpointer.start && t->total_steps % t->updates_per_epoch == 0;
    }
    status = sync_end(t->sync, err);
    return status == STATUS_OK ? model_fetch(t->model, err) : status;
}

/* Advance past the updates that were made without this rank, which was late or replaces a lost
 * process.  The batches that it would have contributed are dropped. */
static void skip_updates(struct trainer *t, uint64_t *index, struct run_end *outcome,
                         bool *epoch_end)
{
    uint64_t count = sync_skipped(t->sync);

    if (count > 0)
        (void)upload_ahead_cancel(t, NULL); /* a device failure also fails the next step */
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

/* One update; or, with uneven inputs and none left on any rank, the end of the epoch. */
static enum status run_update(struct trainer *t, uint64_t *index, struct run_end *outcome,
                              struct progress *bar, bool *ret_epoch_end, struct error *err)
{
    struct step_record step = {0};
    bool has_input = true;
    bool advanced = true;
    enum status status = train_step(t, *index, &has_input, ret_epoch_end, &step, err);

    if (status != STATUS_OK) {
        status = recovery_run(t, *index, &advanced, err);
        if (status == STATUS_OK && advanced) /* the update came from another rank */
            status = run_record_step(&t->record, &step, err);
        if (status != STATUS_OK || !advanced) {
            *ret_epoch_end = false;
            return status;
        }
    }
    recovery_end_update(t);
    if (!has_input) {
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

/* Save on a stop, so that the updates since the last checkpoint are not lost. */
static void save_on_stop(struct trainer *t, uint64_t completed)
{
    struct error why = {0};

    stop_set_waits(STOP_WAITS_NEVER);
    if (t->rank != 0)
        stopping_leave(t);
    if (checkpointer_save_last(t, completed, &why) != STATUS_OK)
        log_warning("no checkpoint of the stop: %s", why.text);
    if (t->rank == 0)
        stopping_leave(t);
    stop_set_waits(STOP_WAITS_LATE);
}

/* Other ranks go on after this one's last step.  Its figures over time end with what it has then;
 * finish_run evaluates what all end with. */
static bool changes_afterwards(const struct trainer *t)
{
    return strcmp(t->options->sync, "ps") == 0 && !consistency_is_lockstep(&t->consistency);
}

static enum status run_steps(struct trainer *t, struct run_end *outcome, struct error *err)
{
    bool each_epoch = strcmp(t->options->evaluate, "epoch") == 0;
    struct progress bar = {0};
    uint64_t index = t->checkpointer.start;
    const double start_cpu_s = host_cpu_seconds();
    const int64_t start_ns = clock_now_ns(), start_wait_ns = host_processor_wait_ns();
    bool epoch_passed = false; /* an epoch's end that another process has evaluated */
    enum status status = STATUS_OK;

    outcome->epochs = t->checkpointer.start_epoch;
    skip_updates(t, &index, outcome, &epoch_passed);
    if (t->launch->rank == 0)
        progress_open(&bar, "training", t->total_steps);
    while (index < t->total_steps && status == STATUS_OK) {
        bool epoch_end = false;

        if (stopping_is_due(t, index)) {
            index = stopping_complete_update(t, index);
            save_on_stop(t, index);
            status = error_set(err, STATUS_CANCELLED, "stopped by signal %d after %ju of %ju steps",
                               stop_requested(), (uintmax_t)index, (uintmax_t)t->total_steps);
            break;
        }
        status = run_update(t, &index, outcome, &bar, &epoch_end, err);
        if (index == t->total_steps)
            epoch_end = changes_afterwards(t);
        if (status == STATUS_OK && epoch_end && each_epoch)
            status = overlap_wait(t, err);
        if (status == STATUS_OK && epoch_end && each_epoch) {
            outcome->is_last_recorded = index == t->total_steps;
            status = finish_evaluate(t, outcome, true, err);
        }
        if (status == STATUS_OK)
            status = checkpointer_step(t, index, err);
    }
    progress_close(&bar);
    outcome->steps_cpu_seconds = host_cpu_seconds() - start_cpu_s;
    if (start_wait_ns >= 0)
        outcome->processor_wait = (double)(host_processor_wait_ns() - start_wait_ns) /
                                  (double)(clock_now_ns() - start_ns);
    if (status != STATUS_OK)
        overlap_abandon(t);
    if (status == STATUS_OK)
        status = end_all_ranks(t, outcome, err);
    return status == STATUS_OK ? checkpointer_save_last(t, index, err) : status;
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
    struct run_end outcome = {.status = "ok", .text = "", .processor_wait = (double)NAN};
    enum status status;
    bool opened;

    stop_set_waits(STOP_WAITS_NOW); /* nothing can be lost before the first update */
    status = trainer_open(&t, err);
    stop_set_waits(STOP_WAITS_LATE);
    opened = status == STATUS_OK;
    if (opened) {
        if (launch->rank == 0 && compute_fallback_reason(t.compute)[0])
            log_debug("%s", compute_fallback_reason(t.compute));
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
