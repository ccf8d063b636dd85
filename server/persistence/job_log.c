/*
 * The writing half.  A record takes no lock but the journal's own.  The order of a snapshot: the
 * next journal, the members as they are then, the partitions.  So what is not in the snapshot is in
 * a journal of its generation or later, and what is in both is recognised by its step.
 */
#include "server/persistence/job_log.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "server/persistence/job_log_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ files */

static enum status make_path(const struct job_log *d, const char *name, char *ret,
                             struct error *err)
{
    return file_join(ret, JOB_LOG_PATH_MAX, d->folder, name, err);
}

enum status job_log_journal_path(const struct job_log *d, uint64_t generation, char *ret,
                                 struct error *err)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "journal-%" PRIu64, generation);
    return make_path(d, name, ret, err);
}

enum status job_log_snapshot_path(const struct job_log *d, uint64_t generation, char *ret,
                                  struct error *err)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "snapshot-%" PRIu64 ".safetensors", generation);
    return make_path(d, name, ret, err);
}

struct journal_head job_log_head(const struct job_log *d, uint64_t generation)
{
    return (struct journal_head){
        .world_size = d->shard->config.world_size, .digest = d->digest, .generation = generation};
}

struct snapshot_part job_log_place(const struct job_log *d, size_t slot)
{
    const struct shard_part *part = &d->shard->parts[slot];

    return (struct snapshot_part){
        .partition = part->partition, .offset = part->offset, .count = part->count};
}

/* ------------------------------------------------------------------ life */

static void add_slab(struct snapshot_shape *shape, const char *name)
{
    assert(shape->slabs < SNAPSHOT_SLABS_MAX);
    shape->names[shape->slabs++] = name;
}

/* What a snapshot holds, in the order of point_to_slabs. */
static struct snapshot_shape shape_of(const struct shard *s)
{
    const struct shard_config *c = &s->config;
    struct snapshot_shape shape = {
        .elements = s->count, .parts = s->length, .world_size = c->world_size};
    bool momentum = c->optimizer.kind == OPTIMIZER_SGD;

    add_slab(&shape, c->update ? "values" : "sum");
    if (c->update && s->optimizer.states > 0)
        add_slab(&shape, momentum ? "momentum" : "exp_avg");
    if (c->update && s->optimizer.states > 1)
        add_slab(&shape, "exp_avg_sq");
    if (s->previous)
        add_slab(&shape, "previous");
    if (reply_encoding_is_kept(&s->down))
        add_slab(&shape, "kept");
    return shape;
}

static uint64_t longest_journal(const struct job_log_config *config,
                                const struct snapshot_shape *shape)
{
    uint64_t snapshots = JOB_LOG_JOURNAL_SNAPSHOTS * sizeof(float) * shape->elements * shape->slabs;

    if (config->journal_bytes > 0)
        return config->journal_bytes;
    return snapshots > JOB_LOG_JOURNAL_LEAST ? snapshots : JOB_LOG_JOURNAL_LEAST;
}

static enum status allocate_part(struct job_log_part *p, const struct shard *s, struct error *err)
{
    unsigned world_size = s->config.world_size;
    unsigned states = s->config.update ? s->optimizer.states : 0;
    size_t most = 0;
    enum status status;

    for (size_t i = 0; i < s->length; i++)
        if (s->parts[i].count > most)
            most = s->parts[i].count;
    status = mem_calloc(world_size, sizeof(*p->state.clocks), "clocks", &p->state.clocks, err);
    if (status == STATUS_OK)
        status = mem_calloc(world_size, sizeof(*p->state.seen), "clocks", &p->state.seen, err);
    if (status == STATUS_OK)
        status = mem_calloc(world_size, sizeof(*p->state.flags), "flags", &p->state.flags, err);
    if (status == STATUS_OK)
        status = mem_calloc(world_size, sizeof(*p->flags), "flags", &p->flags, err);
    if (status == STATUS_OK)
        status = mem_calloc(most, sizeof(float), "a partition", &p->state.values, err);
    for (unsigned i = 0; i < states && status == STATUS_OK; i++)
        status = mem_calloc(most, sizeof(float), "a partition", &p->state.moments[i], err);
    if (status == STATUS_OK && s->previous)
        status = mem_calloc(most, sizeof(float), "a partition", &p->state.previous, err);
    if (status == STATUS_OK && reply_encoding_is_kept(&s->down))
        status = mem_calloc(most, sizeof(float), "a partition", &p->state.kept, err);
    return status;
}

static void free_part(struct job_log_part *p)
{
    free(p->state.clocks);
    free(p->state.seen);
    free(p->state.flags);
    free(p->flags);
    free(p->state.values);
    free(p->state.moments[0]);
    free(p->state.moments[1]);
    free(p->state.previous);
    free(p->state.kept);
}

static void init_locks(struct job_log *d)
{
    pthread_condattr_t attributes;

    (void)pthread_mutex_init(&d->taking, NULL);
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_cond_init(&d->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

enum status job_log_open(const struct job_log_config *config, struct job_log **ret,
                         struct error *err)
{
    const struct shard *s = config->shard;
    const struct shard_config *c = &s->config;
    struct job_log *d;
    enum status status = mem_calloc(1, sizeof(*d), "the state of a job", &d, err);

    if (status != STATUS_OK)
        return status;
    init_locks(d);
    d->members = (struct strbuf)STRBUF_INIT;
    d->shard = config->shard;
    d->digest = config->digest;
    d->every_steps = config->every;
    if (consistency_steps_per_push(&c->consistency))
        d->every_steps *= c->world_size;
    d->counts = s->length > 0;
    d->first = d->counts ? s->parts[0].partition : 0;
    d->shape = shape_of(s);
    d->longest = longest_journal(config, &d->shape);
    d->long_generation = UINT64_MAX;
    if (strlen(config->folder) >= sizeof(d->folder))
        status = error_set(err, STATUS_CONFIG, "the path '%s' is too long", config->folder);
    else
        (void)snprintf(d->folder, sizeof(d->folder), "%s", config->folder);
    if (status == STATUS_OK)
        status = mem_strdup(config->job, &d->job, err);
    if (status == STATUS_OK)
        status = allocate_part(&d->part, s, err);
    if (status != STATUS_OK) {
        job_log_close(d);
        return status;
    }
    *ret = d;
    return STATUS_OK;
}

enum status job_log_create(const struct job_log_config *config, struct job_log **ret,
                           struct error *err)
{
    char path[JOB_LOG_PATH_MAX];
    struct journal_head head;
    struct job_log *d;
    enum status status = job_log_open(config, &d, err);

    if (status != STATUS_OK)
        return status;
    head = job_log_head(d, 0);
    status = job_log_journal_path(d, 0, path, err);
    if (status == STATUS_OK)
        status = journal_create(&d->journal, path, &head, err);
    if (status == STATUS_OK)
        status = job_log_start(d, err);
    if (status != STATUS_OK) {
        job_log_close(d);
        return status;
    }
    *ret = d;
    return STATUS_OK;
}

void job_log_close(struct job_log *d)
{
    if (!d)
        return;
    job_log_stop(d);
    journal_close(&d->journal);
    strbuf_release(&d->members);
    free_part(&d->part);
    (void)pthread_cond_destroy(&d->changed);
    (void)pthread_mutex_destroy(&d->lock);
    (void)pthread_mutex_destroy(&d->taking);
    free(d->job);
    free(d);
}

/* ------------------------------------------------------------------ records */

static void ask_snapshot(struct job_log *d)
{
    (void)pthread_mutex_lock(&d->lock);
    d->due = true;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
}

/* Once for a journal, unless that one goes on, as no snapshot could be written. */
static void limit_journal(struct job_log *d)
{
    uint64_t generation, size;

    journal_length(&d->journal, &generation, &size);
    if (size <= d->longest)
        return;
    (void)pthread_mutex_lock(&d->lock);
    if (generation != d->long_generation || size > d->long_bytes + d->longest) {
        d->long_generation = generation;
        d->long_bytes = size;
        d->due = true;
        (void)pthread_cond_broadcast(&d->changed);
    }
    (void)pthread_mutex_unlock(&d->lock);
}

enum status job_log_record(void *user, const struct mutation *record, struct error *err)
{
    struct job_log *d = user;
    struct journal_record r = {.kind = (uint32_t)record->kind,
                               .partition = record->partition,
                               .step = record->step,
                               .rate = record->rate,
                               .clocks = record->clocks,
                               .flags = record->flags,
                               .payload = record->payload,
                               .size = record->count * sizeof(float)};
    enum status status = journal_append(&d->journal, &r, err);

    if (status == STATUS_OK && d->every_steps > 0 && record->kind == MUTATION_STEP &&
        record->partition == d->first && record->step % d->every_steps == 0)
        ask_snapshot(d);
    if (status == STATUS_OK)
        limit_journal(d);
    return status;
}

const char *job_log_folder(const struct job_log *d)
{
    return d->folder;
}

/* Lock held. */
static enum status append_members(struct job_log *d, struct error *err)
{
    struct journal_record r = {
        .kind = JOB_LOG_MEMBERS_KIND, .payload = d->members.text, .size = d->members.length};

    return journal_append(&d->journal, &r, err);
}

enum status job_log_set_members(struct job_log *d, const char *text, struct error *err)
{
    enum status status;

    (void)pthread_mutex_lock(&d->lock);
    strbuf_reset(&d->members);
    strbuf_add(&d->members, text);
    if (!strbuf_ok(&d->members))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for who is in the job");
    else
        status = append_members(d, err);
    (void)pthread_mutex_unlock(&d->lock);
    return status;
}

/* ------------------------------------------------------------------ snapshots */

/* The slabs of a partition, as shape_of has named them. */
static void point_to_slabs(const struct job_log *d, struct snapshot_part *part)
{
    const struct shard_state *state = &d->part.state;
    unsigned k = 0;

    part->data[k++] = state->values;
    for (unsigned i = 0; i < 2; i++)
        if (state->moments[i])
            part->data[k++] = state->moments[i];
    if (state->previous)
        part->data[k++] = state->previous;
    if (state->kept)
        part->data[k++] = state->kept;
    assert(k == d->shape.slabs);
}

static enum status put_partition(struct job_log *d, struct snapshot_writer *w, size_t slot,
                                 struct error *err)
{
    struct shard_state *state = &d->part.state;
    struct snapshot_part part = job_log_place(d, slot);
    enum status status = shard_export(d->shard, (uint32_t)part.partition, state, err);

    if (status != STATUS_OK)
        return status;
    for (unsigned rank = 0; rank < d->shape.world_size; rank++)
        d->part.flags[rank] = state->flags[rank];
    part.step = state->steps;
    part.initialised = state->initialised;
    part.clocks = state->clocks;
    part.seen = state->seen;
    part.flags = d->part.flags;
    point_to_slabs(d, &part);
    return snapshot_put(w, slot, &part, err);
}

/* The members as they are now, copied. */
static enum status copy_members(struct job_log *d, char **ret, struct error *err)
{
    enum status status;

    (void)pthread_mutex_lock(&d->lock);
    status = mem_strdup(d->members.text, ret, err);
    (void)pthread_mutex_unlock(&d->lock);
    return status;
}

static enum status begin_file(struct job_log *d, struct snapshot_writer *w, uint64_t generation,
                              struct error *err)
{
    char path[JOB_LOG_PATH_MAX], digest[32], number[32], *members = NULL;
    enum status status = copy_members(d, &members, err);

    (void)snprintf(digest, sizeof(digest), "%016" PRIx64, d->digest);
    (void)snprintf(number, sizeof(number), "%" PRIu64, generation);
    if (status == STATUS_OK)
        status = job_log_snapshot_path(d, generation, path, err);
    if (status == STATUS_OK) {
        const char *const metadata[] = {
            "format", "pt",   "sparring.snapshot", "1",    "job",     d->job,
            "terms",  digest, "generation",        number, "members", members};

        status = snapshot_begin(w, path, &d->shape, metadata,
                                sizeof(metadata) / sizeof(metadata[0]) / 2, err);
    }
    free(members);
    return status;
}

/* What stands before the snapshot is not needed any more. */
static void remove_older(struct job_log *d, uint64_t generation)
{
    char path[JOB_LOG_PATH_MAX];

    for (; d->oldest < generation; d->oldest++) {
        if (job_log_journal_path(d, d->oldest, path, NULL) == STATUS_OK)
            (void)unlink(path);
        if (job_log_snapshot_path(d, d->oldest, path, NULL) == STATUS_OK)
            (void)unlink(path);
    }
}

/* `taking` held. */
static enum status take_snapshot(struct job_log *d, struct error *err)
{
    uint64_t generation = d->journal.head.generation + 1, bytes = 0;
    int64_t start_ns = clock_now_ns();
    struct snapshot_writer w = {0};
    char path[JOB_LOG_PATH_MAX];
    enum status status = job_log_journal_path(d, generation, path, err);

    if (status == STATUS_OK)
        status = journal_switch(&d->journal, path, err);
    if (status == STATUS_OK)
        status = begin_file(d, &w, generation, err);
    for (size_t slot = 0; slot < d->shape.parts && status == STATUS_OK; slot++)
        status = put_partition(d, &w, slot, err);
    bytes = w.bytes;
    if (status == STATUS_OK)
        status = snapshot_commit(&w, err);
    snapshot_abandon(&w);
    if (status == STATUS_OK)
        remove_older(d, generation);
    (void)pthread_mutex_lock(&d->lock);
    d->figures.snapshots += status == STATUS_OK;
    d->figures.snapshots_failed += status != STATUS_OK;
    d->figures.snapshot_bytes += status == STATUS_OK ? bytes : 0;
    d->figures.snapshot_ns += status == STATUS_OK ? clock_now_ns() - start_ns : 0;
    (void)pthread_mutex_unlock(&d->lock);
    return status;
}

enum status job_log_snapshot(struct job_log *d, struct error *err)
{
    enum status status;

    (void)pthread_mutex_lock(&d->taking);
    status = take_snapshot(d, err);
    (void)pthread_mutex_unlock(&d->taking);
    return status;
}

static void *take_snapshots(void *user)
{
    struct job_log *d = user;

    (void)pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        struct error err = {0};

        if (!d->due) {
            (void)pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        d->due = false;
        (void)pthread_mutex_unlock(&d->lock);
        if (job_log_snapshot(d, &err) != STATUS_OK)
            log_warning("job '%s': no snapshot, the journal goes on: %s", d->job, err.text);
        (void)pthread_mutex_lock(&d->lock);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return NULL;
}

enum status job_log_start(struct job_log *d, struct error *err)
{
    int failed = pthread_create(&d->thread, NULL, take_snapshots, d);

    if (failed)
        return error_set_errno(err, failed, "cannot start the thread of snapshots");
    d->started = true;
    return STATUS_OK;
}

void job_log_stop(struct job_log *d)
{
    if (!d->started)
        return;
    (void)pthread_mutex_lock(&d->lock);
    d->stop = true;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
    (void)pthread_join(d->thread, NULL);
    d->started = false;
}

void job_log_count(struct job_log *d, struct job_log_figures *ret)
{
    (void)pthread_mutex_lock(&d->lock);
    *ret = d->figures;
    ret->is_kept = true;
    (void)pthread_mutex_unlock(&d->lock);
    journal_count(&d->journal, &ret->journal_records, &ret->journal_bytes, &ret->journal_ns);
}
