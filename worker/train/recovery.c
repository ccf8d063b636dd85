/*
 * A recovery: shrink the group and agree on one state, repeated while more ranks are lost; then
 * repartition the data; then write a record.  The state of a rank ahead is broadcast as one block
 * (parameters, optimizer state, buffers, gradient scale), so that a rank behind has either all of
 * it or, if the root is lost meanwhile, its old state.  No locking: training thread only; the
 * sampler is changed only while the loader is paused.
 */
#include "worker/train/recovery.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "worker/train/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Position in a rank's part of the data at which it continues. */
struct position {
    uint64_t epoch;
    size_t offset;
};

static size_t buffer_bytes(const struct trainer *t)
{
    return model_buffer_table(t->model)->count * sizeof(float);
}

enum status recovery_open(struct trainer *t, struct error *err)
{
    struct recovery *r = &t->recovery;

    r->enabled = strcmp(t->options->sync, "allreduce") == 0 &&
                 strcmp(t->options->on_rank_loss, "shrink") == 0 && t->world_size > 1;
    r->last_update_ns = clock_now_ns();
    if (!r->enabled || !model_buffers(t->model))
        return STATUS_OK;
    return mem_calloc(1, buffer_bytes(t), "copy of the buffers", &r->buffers, err);
}

void recovery_release(struct recovery *r)
{
    free(r->buffers);
    r->buffers = NULL;
}

void recovery_begin_update(struct trainer *t)
{
    t->recovery.in_update = true;
    t->recovery.has_batch = false;
    if (t->recovery.buffers)
        memcpy(t->recovery.buffers, model_buffers(t->model), buffer_bytes(t));
}

void recovery_note_batch(struct trainer *t, const struct batch *batch)
{
    t->recovery.has_batch = true;
    t->recovery.epoch = batch->epoch;
    t->recovery.offset = batch->offset;
}

void recovery_end_update(struct trainer *t)
{
    t->recovery.in_update = false;
    t->recovery.has_batch = false;
    t->recovery.last_update_ns = clock_now_ns();
}

/* ---- agreement on one state ---- */

static size_t copy_part(float *copy, size_t at, float *part, size_t count, bool out)
{
    memcpy(out ? part : copy + at, out ? copy + at : part, count * sizeof(float));
    return at + count;
}

/* Copy parameters, optimizer state and buffers into `copy`, or out of it; returns the floats. */
static size_t copy_state(struct trainer *t, float *copy, bool out)
{
    size_t count = model_table(t->model)->count;
    size_t at = copy_part(copy, 0, model_params(t->model), count, out);

    for (unsigned i = 0; i < t->optimizer.states; i++)
        at = copy_part(copy, at, t->optimizer.state[i], count, out);
    if (model_buffers(t->model))
        at = copy_part(copy, at, model_buffers(t->model), model_buffer_table(t->model)->count, out);
    return at;
}

#define SCALE_WORDS 3

/* The gradient scale of fp16, as float32: `skipped` is exact up to 2^24. */
static enum status copy_scale(struct trainer *t, float *copy, bool out, struct error *err)
{
    struct gradient_scale scale;
    enum status status;

    if (out) {
        scale = (struct gradient_scale){copy[0], (uint32_t)copy[1], (uint64_t)copy[2]};
        return compute_set_gradient_scale(t->compute, &scale, err);
    }
    status = compute_gradient_scale(t->compute, &scale, err);
    if (status == STATUS_OK) {
        copy[0] = scale.scale;
        copy[1] = (float)scale.good;
        copy[2] = (float)scale.skipped;
    }
    return status;
}

/* One broadcast, so that a loss of the root leaves every other rank with its old state. */
static enum status broadcast_state(struct trainer *t, unsigned root, bool behind, struct error *err)
{
    size_t count = model_table(t->model)->count * (1 + t->optimizer.states) +
                   model_buffer_table(t->model)->count;
    float *copy = NULL;
    enum status status =
        mem_calloc(count + SCALE_WORDS, sizeof(*copy), "state of the others", &copy, err);

    if (status != STATUS_OK)
        return status;
    if (t->rank == root) {
        status = model_fetch(t->model, err);
        (void)copy_state(t, copy, false);
        if (status == STATUS_OK)
            status = copy_scale(t, copy + count, false, err);
    }
    if (status == STATUS_OK)
        status = sync_broadcast(t->sync, copy, (count + SCALE_WORDS) * sizeof(*copy), root, err);
    if (status == STATUS_OK && behind) {
        (void)copy_state(t, copy, true);
        status = model_restore(t->model, err);
        if (status == STATUS_OK)
            status = copy_scale(t, copy + count, true, err);
    }
    free(copy);
    return status;
}

/* Bring all ranks to the state of the rank with the most completed updates. */
static enum status agree_on_state(struct trainer *t, uint64_t *completed, struct error *err)
{
    uint64_t all[MESH_RANKS_MAX];
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    unsigned root = 0;
    enum status status = sync_all_gather(t->sync, completed, sizeof(*completed), all, err);

    if (status != STATUS_OK)
        return status;
    for (unsigned r = 0; r < t->world_size; r++) {
        least = all[r] < least ? all[r] : least;
        root = all[r] > most ? r : root;
        most = all[r] > most ? all[r] : most;
    }
    if (most - least > 1)
        return error_set(err, STATUS_INTERNAL,
                         "the ranks left have completed %" PRIu64 " to %" PRIu64 " updates", least,
                         most);
    if (t->recovery.buffers && t->recovery.in_update && *completed == most) /* undo forward's */
        memcpy(model_buffers(t->model), t->recovery.buffers, buffer_bytes(t));
    status = most > least ? broadcast_state(t, root, *completed < most, err) : STATUS_OK;
    if (status == STATUS_OK)
        *completed = most;
    return status;
}

/* ---- the data ---- */

/* Position of the next update: of its first batch if it had begun, else of the next batch. */
static struct position find_position(const struct trainer *t, bool advanced)
{
    struct batch next;

    if (t->recovery.has_batch && !advanced)
        return (struct position){t->recovery.epoch, t->recovery.offset};
    loader_peek(t->loader, &next);
    return (struct position){next.epoch, next.offset};
}

/* Recompute the run's updates if its length is given in epochs: the rest of this epoch with the old
 * partition, the later ones with the new. */
static void count_updates(struct trainer *t, uint64_t completed, const struct position *p)
{
    uint64_t epochs = (uint64_t)t->options->epochs;
    uint64_t left = 0;

    if (t->options->steps > 0)
        return;
    t->updates_per_epoch =
        worker_options_updates(t->options, sampler_length(&t->sampler, p->epoch + 1));
    if (p->epoch < epochs)
        left =
            worker_options_updates(t->options, sampler_length(&t->sampler, p->epoch) - p->offset) +
            (epochs - p->epoch - 1) * t->updates_per_epoch;
    t->total_steps = completed + left;
}

static enum status repartition_data(struct trainer *t, uint64_t completed, bool advanced,
                                    const struct sync_loss *loss, uint64_t *ret_samples_lost,
                                    struct error *err)
{
    struct position p = find_position(t, advanced);
    enum status status;

    *ret_samples_lost = 0;
    if (completed >= t->total_steps) /* the run is complete */
        return STATUS_OK;
    status = upload_ahead_cancel(t, err);
    if (status != STATUS_OK)
        return status;
    loader_pause(t->loader);
    *ret_samples_lost = loss->lost_count * (sampler_length(&t->sampler, p.epoch) - p.offset);
    status = sampler_repartition(&t->sampler, p.epoch + 1, loss->rank, loss->world_size, err);
    if (status == STATUS_OK)
        status = loader_resume(t->loader, p.epoch, p.offset, err);
    if (status == STATUS_OK)
        count_updates(t, completed, &p);
    return status;
}

/* ---- the recovery ---- */

static void apply_loss(struct trainer *t, const struct sync_loss *loss, struct sync_loss *all)
{
    struct recovery *r = &t->recovery;

    t->rank = loss->rank;
    t->world_size = loss->world_size;
    t->record.is_chief = t->rank == 0;
    for (unsigned i = 0; i < loss->lost_count; i++) {
        if (r->lost_count < MESH_RANKS_MAX)
            r->lost[r->lost_count++] = loss->lost[i];
        if (all->lost_count < MESH_RANKS_MAX)
            all->lost[all->lost_count++] = loss->lost[i];
    }
    if (all->fault == FAULT_NONE)
        all->fault = loss->fault;
    all->rank = loss->rank;
    all->world_size = loss->world_size;
    all->generation = loss->generation;
}

/* Shrink until the ranks left have agreed on a state; more ranks may be lost meanwhile. */
static enum status shrink_group(struct trainer *t, uint64_t *completed, struct sync_loss *ret,
                                struct error *err)
{
    struct sync_loss loss = {0};
    struct error why = {0};
    enum status status;

    do {
        /* A stopped rank may continue inside a reduction that writes into this rank's slabs. */
        status = model_fence_memory(t->model, &why);
        if (status == STATUS_OK)
            status = sync_shrink(t->sync, &loss, &why);
        if (status == STATUS_UNSUPPORTED) /* *err is not a loss of a rank */
            return status;
        if (status != STATUS_OK) {
            t->recovery.excluded = loss.fault == FAULT_EXCLUDED;
            (void)error_prefix(&why, "%.900s; and no recovery from it: ", err->text);
            return error_set(err, status, "%s", why.text);
        }
        apply_loss(t, &loss, ret);
        status = agree_on_state(t, completed, &why);
        if (status != STATUS_OK)
            (void)error_set(err, status, "%s", why.text);
    } while (status != STATUS_OK);
    return STATUS_OK;
}

static void list_lost(const struct sync_loss *loss, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < loss->lost_count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%u", i ? "," : "", loss->lost[i]);
}

static enum status record_recovery(struct trainer *t, uint64_t completed, bool advanced,
                                   const struct sync_loss *loss, double detect_seconds,
                                   double resume_seconds, uint64_t samples_lost, struct error *err)
{
    struct metrics *m = &t->record.metrics;
    char lost[MESH_RANKS_MAX * 6];

    list_lost(loss, lost, sizeof(lost));
    if (t->record.is_chief)
        log_warning("rank%s %s lost (%s): %u go on from update %" PRIu64
                    " after %.3f s, %.3f s of them to notice; %" PRIu64
                    " samples of this epoch will not be seen",
                    loss->lost_count == 1 ? "" : "s", lost, fault_name(loss->fault),
                    loss->world_size, completed, detect_seconds + resume_seconds, detect_seconds,
                    samples_lost);
    metrics_begin(m, "recovery");
    metrics_add_int(m, "step", (int64_t)completed);
    metrics_add_text(m, "lost_ranks", lost);
    metrics_add_text(m, "fault", fault_name(loss->fault));
    metrics_add_int(m, "generation", loss->generation);
    metrics_add_int(m, "world_size", loss->world_size);
    metrics_add_int(m, "rank", loss->rank);
    metrics_add_int(m, "update_came", advanced);
    metrics_add_double(m, "detect_seconds", detect_seconds);
    metrics_add_double(m, "resume_seconds", resume_seconds);
    metrics_add_int(m, "samples_lost", (int64_t)samples_lost);
    metrics_add_double(m, "wall", clock_wall_seconds());
    return metrics_end(m, err);
}

enum status recovery_run(struct trainer *t, uint64_t completed, bool *ret_advanced,
                         struct error *err)
{
    struct recovery *r = &t->recovery;
    struct sync_loss loss = {0};
    uint64_t agreed = completed;
    uint64_t samples_lost = 0;
    int64_t known_ns = clock_now_ns();
    enum status status;

    *ret_advanced = false;
    if (!r->enabled || stop_requested())
        return err->status;
    status = shrink_group(t, &agreed, &loss, err);
    if (status != STATUS_OK)
        return err->status;
    *ret_advanced = agreed > completed;
    r->count++;
    if (t->flight)
        flight_rearm(t->flight);
    status = repartition_data(t, agreed, *ret_advanced, &loss, &samples_lost, err);
    r->samples_lost += samples_lost;
    if (status == STATUS_OK)
        status = record_recovery(t, agreed, *ret_advanced, &loss,
                                 (double)(known_ns - r->last_update_ns) * 1e-9,
                                 (double)(clock_now_ns() - known_ns) * 1e-9, samples_lost, err);
    r->last_update_ns = clock_now_ns();
    return status;
}
