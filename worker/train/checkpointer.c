/*
 * Builds the contents of a checkpoint from the trainer, compares a checkpoint's settings with the
 * run's, and maps its position in the epoch to the current number of ranks.  The file format and
 * the retention of old files are common/checkpoint's.  All ranks track the newest checkpoint, so
 * that another rank can take over saving.  No locking: training thread only; the sampler is
 * changed only while the loader is paused (sampler_parts may be called at any time).
 */
#include "worker/train/checkpointer.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/version.h"
#include "common/checkpoint/checkpoint.h"
#include "worker/train/trainer_local.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX 4 /* parameters, buffers, two optimizer states */

/* Tensors of a file; parts[0] are the parameters. */
struct contents {
    struct safetensors_part parts[PARTS_MAX];
    char prefixes[PARTS_MAX][64];
    size_t length;
};

static void add_part(struct contents *c, const char *prefix, const struct tensor_table *table,
                     float *slab)
{
    (void)snprintf(c->prefixes[c->length], sizeof(c->prefixes[0]), "%s", prefix);
    c->parts[c->length] = (struct safetensors_part){c->prefixes[c->length], table, slab};
    c->length++;
}

static void fill_contents(struct contents *c, struct trainer *t, float *params, bool optimizer)
{
    c->length = 0;
    add_part(c, "", model_table(t->model), params);
    if (model_buffers(t->model))
        add_part(c, "", model_buffer_table(t->model), model_buffers(t->model));
    for (unsigned i = 0; optimizer && i < t->optimizer.states; i++) {
        char prefix[64];

        (void)snprintf(prefix, sizeof(prefix), CHECKPOINT_OPTIMIZER "%s.",
                       optimizer_state_name(t->optimizer_config.kind, i));
        add_part(c, prefix, model_table(t->model), t->optimizer.state[i]);
    }
}

static const char *remainder_name(const struct trainer *t)
{
    enum sampler_remainder remainder = worker_options_remainder(t->options);

    return remainder == SAMPLER_PAD ? "pad" : remainder == SAMPLER_DROP ? "drop" : "keep";
}

/* All facts except the position in the run. */
static void fill_settings(const struct trainer *t, struct checkpoint_facts *f)
{
    const struct worker_options *o = t->options;

    *f = (struct checkpoint_facts){
        .samples = dataset_count(t->train_set),
        .world_size = t->world_size,
        .batch_size = (uint64_t)o->batch_size,
        .accumulate_steps = (uint64_t)o->accumulate_steps,
        .seed = (uint64_t)o->seed,
        .shuffle = o->shuffle,
        .nesterov = o->nesterov,
        .learning_rate = o->lr,
        .momentum = o->momentum,
        .dampening = o->dampening,
        .weight_decay = o->weight_decay,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .epsilon = o->epsilon,
        .layer_drop = o->layer_drop,
    };
    (void)snprintf(f->version, sizeof(f->version), "%s", SPARRING_VERSION);
    (void)snprintf(f->model, sizeof(f->model), "%s", o->model);
    (void)snprintf(f->data, sizeof(f->data), "%s", o->data);
    (void)snprintf(f->rest, sizeof(f->rest), "%s", remainder_name(t));
    (void)snprintf(f->sync, sizeof(f->sync), "%.31s", o->sync);
    (void)snprintf(f->optimizer, sizeof(f->optimizer), "%.31s", o->optimizer);
    (void)snprintf(f->precision, sizeof(f->precision), "%s",
                   precision_name(compute_precision(t->compute)));
}

/* ------------------------------------------------------------------ resuming */

/* Updates of the whole run, including those already made; fixed if --steps gives them. */
static void count_updates(struct trainer *t, const struct checkpoint_facts *f, uint64_t offset)
{
    uint64_t epochs = (uint64_t)t->options->epochs;
    uint64_t longest = trainer_longest_part(t);
    uint64_t left = 0;

    if (t->options->steps > 0)
        return;
    if (f->epoch < epochs)
        left = worker_options_updates(t->options, offset < longest ? longest - offset : 0) +
               (epochs - f->epoch - 1) * t->updates_per_epoch;
    t->total_steps = f->step + left;
}

/* Sample p of part k is at index p * parts + k of the epoch's order.  So another number of ranks
 * can continue an epoch if it divides the number of samples already used. */
static enum status map_position(const struct trainer *t, const char *path,
                                const struct checkpoint_facts *f, uint64_t *ret_offset,
                                struct error *err)
{
    uint64_t ranks = t->sampler.world_size;

    if (f->parts == ranks) {
        *ret_offset = f->position;
        return STATUS_OK;
    }
    if (f->position > f->samples / f->parts || f->position * f->parts % ranks != 0)
        return error_set(err, STATUS_MISMATCH,
                         "'%s' is at sample %" PRIu64 " of each of %" PRIu64
                         " parts of epoch %" PRIu64 ", which %" PRIu64
                         " ranks cannot go on with: take %" PRIu64
                         " ranks, or a checkpoint of an epoch's end",
                         path, f->position, f->parts, f->epoch, ranks, f->parts);
    *ret_offset = f->position * f->parts / ranks;
    return STATUS_OK;
}

static enum status set_position(struct trainer *t, const char *path,
                                const struct checkpoint_facts *f, struct error *err)
{
    uint64_t offset = 0;
    uint64_t epoch = f->epoch;
    enum status status;

    loader_pause(t->loader); /* gives this thread the sampler until loader_resume */
    status = map_position(t, path, f, &offset, err);
    if (status != STATUS_OK)
        return status;
    count_updates(t, f, offset);
    if (offset > 0 && offset >= sampler_length(&t->sampler, epoch)) {
        t->exhausted = worker_options_uneven(t->options); /* other ranks may have samples left */
        epoch++;
        offset = 0;
    }
    return loader_resume(t->loader, epoch, (size_t)offset, err);
}

/* Compare the checkpoint's settings with this run's: refuse or warn, by kind of setting. */
static enum status check_settings(const struct trainer *t, const char *path,
                                  const struct checkpoint_facts *then, struct error *err)
{
    struct checkpoint_facts now;
    struct strbuf text = STRBUF_INIT;
    enum status status = STATUS_OK;

    fill_settings(t, &now);
    if (checkpoint_list_differences(then, &now, CHECKPOINT_MUST_AGREE, &text) > 0)
        status = error_set(err, STATUS_MISMATCH, "'%s' is of another run%s", path, text.text);
    else if (checkpoint_list_differences(then, &now, CHECKPOINT_WITHIN_EPOCH, &text) > 0 &&
             then->position > 0)
        status =
            error_set(err, STATUS_MISMATCH,
                      "'%s' is in the middle of epoch %" PRIu64 ", which has other samples now%s",
                      path, then->epoch, text.text);
    if (status == STATUS_OK) {
        (void)checkpoint_list_differences(then, &now, CHECKPOINT_MAY_DIFFER, &text);
        if (text.length > 0 && t->rank == 0)
            log_warning("'%s' goes on with other settings%s", path, text.text);
    }
    strbuf_release(&text);
    return status;
}

static bool has_optimizer_state(const struct safetensors *file)
{
    for (size_t i = 0; i < file->length; i++)
        if (strncmp(file->entries[i].name, CHECKPOINT_OPTIMIZER, strlen(CHECKPOINT_OPTIMIZER)) == 0)
            return true;
    return false;
}

/* 64-bit FNV-1a over 32-bit words instead of bytes. */
static uint64_t hash_floats(uint64_t hash, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t word;

        memcpy(&word, &values[i], sizeof(word));
        hash = (hash ^ word) * 0x100000001b3u;
    }
    return hash;
}

void checkpointer_log_conversions(const struct trainer *t, const struct safetensors *file)
{
    char text[128];

    safetensors_conversions(file, text, sizeof(text));
    if (t->rank == 0 && text[0])
        log_info("'%s': tensors are converted to float32: %s", file->path, text);
}

/* Called before check_settings: for another model, a tensor mismatch is more specific than the
 * name.  State of another optimizer, or of one that saved none, is not loaded. */
static enum status load_tensors(struct trainer *t, const struct safetensors *file,
                                const struct checkpoint_facts *f, struct error *err)
{
    bool same_optimizer = strcmp(f->optimizer, t->options->optimizer) == 0;
    bool load_optimizer = same_optimizer && t->optimizer.states > 0 && has_optimizer_state(file);
    struct contents contents;
    enum status status;

    fill_contents(&contents, t, model_params(t->model), load_optimizer);
    status = safetensors_load_parts(file, contents.parts, contents.length,
                                    load_optimizer ? NULL : CHECKPOINT_OPTIMIZER, err);
    if (status != STATUS_OK)
        return status;
    checkpointer_log_conversions(t, file);
    t->checkpointer.identity = 0xcbf29ce484222325u;
    for (size_t i = 0; i < contents.length; i++)
        t->checkpointer.identity = hash_floats(t->checkpointer.identity, contents.parts[i].slab,
                                               contents.parts[i].table->count);
    return STATUS_OK;
}

/* Parameters are float32 in every precision, so a run can resume in another one.  A gradient scale
 * is valid only if the checkpoint's run used fp16. */
static enum status load_scale(struct trainer *t, const struct checkpoint_facts *f,
                              struct error *err)
{
    const struct gradient_scale scale = {.scale = (float)f->loss_scale,
                                         .good = (uint32_t)f->growth_tracker};

    t->checkpointer.overflowed = f->overflowed;
    return strcmp(f->precision, precision_name(PRECISION_FP16)) == 0
               ? compute_set_gradient_scale(t->compute, &scale, err)
               : STATUS_OK;
}

static enum status load_checkpoint(struct trainer *t, const char *path, struct error *err)
{
    struct checkpointer *c = &t->checkpointer;
    struct safetensors file = {0};
    struct checkpoint_facts facts;
    enum status status = safetensors_read(path, CHECKPOINT_BYTES_MAX, &file, err);

    if (status == STATUS_OK)
        status = checkpoint_read_facts(&file, &facts, err);
    if (status == STATUS_OK)
        status = load_tensors(t, &file, &facts, err);
    if (status == STATUS_OK)
        status = check_settings(t, path, &facts, err);
    if (status == STATUS_OK)
        status = load_scale(t, &facts, err);
    if (status == STATUS_OK)
        status = set_position(t, path, &facts, err);
    safetensors_release(&file);
    if (status != STATUS_OK)
        return status;
    c->resumed = true;
    (void)snprintf(c->from, sizeof(c->from), "%s", path);
    c->start = c->newest = facts.step;
    c->optimizer_lead = facts.optimizer_step - facts.step;
    c->start_epoch = facts.epoch;
    if (t->rank == 0)
        log_info("going on with '%s': %" PRIu64 " updates of %" PRIu64 " are made", path,
                 facts.step, t->total_steps);
    return STATUS_OK;
}

/* Refuse a folder with another run's checkpoints, since saving removes the oldest files. */
static enum status refuse_other_run(const struct trainer *t, struct error *err)
{
    const char *folder = t->options->checkpoint_dir;
    char path[CHECKPOINT_PATH_MAX] = "FILE";
    struct error why = {0};
    enum status status;

    if (t->rank != 0 || folder[0] == '\0')
        return STATUS_OK;
    status = checkpoint_find(folder, path, &why);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (status != STATUS_OK && status != STATUS_DATA)
        return error_set(err, status, "--checkpoint-dir: %s", why.text);
    if (strcmp(path, folder) == 0)
        return error_set(err, STATUS_CONFIG, "--checkpoint-dir '%s' is no folder", folder);
    return error_set(err, STATUS_CONFIG,
                     "--checkpoint-dir '%s' holds another run's checkpoints: go on with them "
                     "(--resume %s), or take another folder",
                     folder, worker_options_elastic(t->options) ? path : "auto");
}

enum status checkpointer_check_folder(const struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;

    if (!worker_options_elastic(o) || o->checkpoint_dir[0] == '\0' || t->rank != 0)
        return STATUS_OK;
    if (worker_options_on_loss(o) == WORKER_LOSS_SHRINK && t->launch->world_size > 1)
        log_warning("--on-rank-loss shrink: checkpoints are rank 0's task; if it is lost, none "
                    "is made until a process takes its place");
    /* a replacement process finds the checkpoints of its own job */
    return t->checkpointer.resumed || sync_is_replacement(t->sync) ? STATUS_OK
                                                                   : refuse_other_run(t, err);
}

enum status checkpointer_resume(struct trainer *t, bool *ret_resumed, struct error *err)
{
    const char *how = t->options->resume;
    bool automatic = strcmp(how, "auto") == 0;
    char path[CHECKPOINT_PATH_MAX];
    struct error why = {0};
    enum status status;

    *ret_resumed = false;
    if (how[0] == '\0')
        return worker_options_elastic(t->options) ? STATUS_OK : refuse_other_run(t, err);
    status = checkpoint_find(automatic ? t->options->checkpoint_dir : how, path, &why);
    if (automatic && status == STATUS_NOT_FOUND) {
        if (t->rank == 0)
            log_info("no checkpoint in '%s' yet: a new run begins", t->options->checkpoint_dir);
        return STATUS_OK;
    }
    if (status != STATUS_OK)
        return error_set(err, status, "%s", why.text);
    status = load_checkpoint(t, path, err);
    *ret_resumed = status == STATUS_OK;
    return status;
}

/* ------------------------------------------------------------------ saving */

static enum status check_file(const char *path, struct error *err)
{
    struct file_writer w;
    enum status status = file_writer_open(&w, path, err);

    if (status == STATUS_OK)
        file_writer_abandon(&w);
    return status;
}

enum status checkpointer_check_targets(const struct trainer *t, struct error *err)
{
    const struct worker_options *o = t->options;
    char path[CHECKPOINT_PATH_MAX];
    enum status status = STATUS_OK;

    if (t->launch->rank != 0)
        return STATUS_OK;
    if (o->run_dir[0] != '\0') /* where they may be */
        status = file_make_folder(o->run_dir, err);
    if (status == STATUS_OK && o->save[0] != '\0')
        status = check_file(o->save, err);
    if (status != STATUS_OK || o->checkpoint_dir[0] == '\0')
        return status;
    status = file_make_folder(o->checkpoint_dir, err);
    if (status == STATUS_OK)
        status = file_join(path, sizeof(path), o->checkpoint_dir, CHECKPOINT_LATEST, err);
    return status == STATUS_OK ? check_file(path, err) : status;
}

static bool saves_checkpoints(const struct trainer *t)
{
    return t->options->checkpoint_dir[0] != '\0';
}

static bool servers_update(const struct trainer *t)
{
    return sync_yields(t->sync) == SYNC_YIELDS_PARAMETERS;
}

enum status checkpointer_open(struct trainer *t, struct error *err)
{
    if (!saves_checkpoints(t) || !servers_update(t))
        return STATUS_OK;
    return mem_calloc_aligned(model_table(t->model)->count, sizeof(float), "copy of the servers",
                              &t->checkpointer.values, err);
}

void checkpointer_release(struct checkpointer *c)
{
    free(c->values);
    c->values = NULL;
}

/* The loss check does not cover this: a finite loss can be followed by an update that is not. */
static enum status check_finite(const struct contents *c, uint64_t completed, struct error *err)
{
    for (size_t p = 0; p < c->length; p++) {
        const struct tensor_table *table = c->parts[p].table;

        for (size_t v = 0; v < table->length; v++) {
            const float *values = c->parts[p].slab + table->views[v].offset;

            for (size_t i = 0; i < table->views[v].count; i++)
                if (table->views[v].kind == TENSOR_FLOAT32 && !isfinite(values[i]))
                    return error_set(err, STATUS_DATA,
                                     "after update %" PRIu64 " '%s%s' has a value that is %s: no "
                                     "checkpoint is made of that",
                                     completed, c->parts[p].prefix, table->views[v].name,
                                     isnan(values[i]) ? "not a number" : "infinite");
        }
    }
    return STATUS_OK;
}

static enum status record_checkpoint(struct trainer *t, uint64_t completed, uint64_t bytes,
                                     double seconds, struct error *err)
{
    struct metrics *m = &t->record.metrics;

    metrics_begin(m, "checkpoint");
    metrics_add_int(m, "step", (int64_t)completed);
    metrics_add_int(m, "bytes", (int64_t)bytes);
    metrics_add_double(m, "seconds", seconds);
    metrics_add_double(m, "wall", clock_wall_seconds());
    return metrics_end(m, err);
}

static enum status save_checkpoint(struct trainer *t, uint64_t completed, struct error *err)
{
    struct checkpointer *c = &t->checkpointer;
    uint64_t optimizer_step = completed + c->optimizer_lead;
    int64_t started = clock_now_ns();
    struct gradient_scale scale;
    struct checkpoint_facts facts;
    struct contents contents;
    struct batch next;
    uint64_t bytes = 0;
    enum status status = model_fetch(t->model, err);

    if (status == STATUS_OK)
        status = compute_gradient_scale(t->compute, &scale, err);
    if (status == STATUS_OK && servers_update(t))
        status = sync_fetch_state(t->sync, c->values, t->optimizer.state, &optimizer_step, err);
    if (status != STATUS_OK)
        return status;
    fill_settings(t, &facts);
    loader_peek(t->loader, &next);
    facts.step = completed;
    facts.optimizer_step = optimizer_step - scale.skipped;
    facts.overflowed = c->overflowed + scale.skipped;
    facts.growth_tracker = scale.good;
    facts.loss_scale = (double)scale.scale;
    facts.epoch = next.epoch;
    facts.position = next.offset;
    facts.parts = sampler_parts(&t->sampler, next.epoch);
    fill_contents(&contents, t, servers_update(t) ? c->values : model_params(t->model), true);
    status = check_finite(&contents, completed, err);
    if (status == STATUS_OK)
        status = checkpoint_save(t->options->checkpoint_dir, (size_t)t->options->checkpoint_keep,
                                 c->resumed ? c->from : NULL, &facts, contents.parts,
                                 contents.length, &bytes, err);
    return status == STATUS_OK ? record_checkpoint(t, completed, bytes,
                                                   (double)(clock_now_ns() - started) * 1e-9, err)
                               : status;
}

/* All ranks record `newest`, since another rank may have to take over saving. */
enum status checkpointer_save_last(struct trainer *t, uint64_t completed, struct error *err)
{
    enum status status = STATUS_OK;

    if (!saves_checkpoints(t) || completed == t->checkpointer.newest)
        return STATUS_OK;
    if (t->rank == 0) {
        status = overlap_wait(t, err);
        if (status == STATUS_OK)
            status = save_checkpoint(t, completed, err);
    }
    if (status == STATUS_OK)
        t->checkpointer.newest = completed;
    return status;
}

enum status checkpointer_step(struct trainer *t, uint64_t completed, struct error *err)
{
    uint64_t every = (uint64_t)t->options->checkpoint_every;

    if (!saves_checkpoints(t) || every == 0 || completed / every == t->checkpointer.newest / every)
        return STATUS_OK;
    return checkpointer_save_last(t, completed, err);
}
