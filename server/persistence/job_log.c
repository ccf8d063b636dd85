/*
 * Writing of a job's log: appends to the journal, and a thread that writes snapshots.
 *
 * A snapshot is written in this order: begin the next journal, copy the current membership, copy
 * the partitions.  So a change that the snapshot lacks is in the journal of its generation or a
 * later one, and a mutation that is in both is recognised by its step.
 *
 * Appending takes the journal's lock, and `lock` only to request a snapshot.  Order of locks:
 * snapshot_lock, then lock, then the journal's.
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

static enum status make_path(const struct job_log *log, const char *name, char *ret,
                             struct error *err)
{
    return file_join(ret, JOB_LOG_PATH_MAX, log->folder, name, err);
}

enum status job_log_journal_path(const struct job_log *log, uint64_t generation, char *ret,
                                 struct error *err)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "journal-%" PRIu64, generation);
    return make_path(log, name, ret, err);
}

enum status job_log_snapshot_path(const struct job_log *log, uint64_t generation, char *ret,
                                  struct error *err)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "snapshot-%" PRIu64 ".safetensors", generation);
    return make_path(log, name, ret, err);
}

struct journal_head job_log_journal_head(const struct job_log *log, uint64_t generation)
{
    return (struct journal_head){.world_size = log->shard->config.world_size,
                                 .digest = log->digest,
                                 .generation = generation};
}

struct snapshot_partition job_log_snapshot_part(const struct job_log *log, size_t local_index)
{
    const struct shard_part *part = &log->shard->parts[local_index];

    return (struct snapshot_partition){
        .partition = part->partition, .offset = part->offset, .count = part->count};
}

/* ------------------------------------------------------------------ creation and release */

static void add_slab(struct snapshot_shape *shape, const char *name)
{
    assert(shape->slabs < SNAPSHOT_SLABS_MAX);
    shape->names[shape->slabs++] = name;
}

/* The slabs of a snapshot, in the order of point_to_slabs. */
static struct snapshot_shape make_snapshot_shape(const struct shard *s)
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
    if (reply_encoding_must_persist(&s->encoding))
        add_slab(&shape, "kept");
    return shape;
}

static uint64_t journal_bytes_limit(const struct job_log_config *config,
                                    const struct snapshot_shape *shape)
{
    uint64_t snapshots =
        JOB_LOG_JOURNAL_SNAPSHOTS_MAX * sizeof(float) * shape->elements * shape->slabs;

    if (config->journal_bytes > 0)
        return config->journal_bytes;
    return snapshots > JOB_LOG_JOURNAL_BYTES_MIN ? snapshots : JOB_LOG_JOURNAL_BYTES_MIN;
}

static enum status allocate_partition_buffer(struct job_log_partition_buffer *p,
                                             const struct shard *s, struct error *err)
{
    unsigned world_size = s->config.world_size;
    unsigned states = s->config.update ? s->optimizer.states : 0;
    size_t largest = 0;
    enum status status;

    for (size_t i = 0; i < s->length; i++)
        if (s->parts[i].count > largest)
            largest = s->parts[i].count;
    status = mem_calloc(world_size, sizeof(*p->state.clocks), "clocks", &p->state.clocks, err);
    if (status == STATUS_OK)
        status = mem_calloc(world_size, sizeof(*p->state.seen), "clocks", &p->state.seen, err);
    if (status == STATUS_OK)
        status = mem_calloc(world_size, sizeof(*p->state.flags), "flags", &p->state.flags, err);
    if (status == STATUS_OK)
        status = mem_calloc(world_size, sizeof(*p->flags), "flags", &p->flags, err);
    if (status == STATUS_OK)
        status = mem_calloc(largest, sizeof(float), "a partition", &p->state.values, err);
    for (unsigned i = 0; i < states && status == STATUS_OK; i++)
        status = mem_calloc(largest, sizeof(float), "a partition", &p->state.moments[i], err);
    if (status == STATUS_OK && s->previous)
        status = mem_calloc(largest, sizeof(float), "a partition", &p->state.previous, err);
    if (status == STATUS_OK && reply_encoding_must_persist(&s->encoding))
        status = mem_calloc(largest, sizeof(float), "a partition", &p->state.codec_state, err);
    return status;
}

static void free_partition_buffer(struct job_log_partition_buffer *p)
{
    free(p->state.clocks);
    free(p->state.seen);
    free(p->state.flags);
    free(p->flags);
    free(p->state.values);
    free(p->state.moments[0]);
    free(p->state.moments[1]);
    free(p->state.previous);
    free(p->state.codec_state);
}

static void init_locks(struct job_log *log)
{
    pthread_condattr_t attributes;

    (void)pthread_mutex_init(&log->snapshot_lock, NULL);
    (void)pthread_mutex_init(&log->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_cond_init(&log->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

enum status job_log_open(const struct job_log_config *config, struct job_log **ret,
                         struct error *err)
{
    const struct shard *s = config->shard;
    const struct shard_config *c = &s->config;
    struct job_log *log;
    enum status status = mem_calloc(1, sizeof(*log), "the state of a job", &log, err);

    if (status != STATUS_OK)
        return status;
    init_locks(log);
    log->membership = (struct strbuf)STRBUF_INIT;
    log->shard = config->shard;
    log->digest = config->digest;
    log->snapshot_every_steps = config->snapshot_every;
    if (consistency_steps_per_push(&c->consistency))
        log->snapshot_every_steps *= c->world_size;
    log->counts_steps = s->length > 0;
    log->counted_partition = log->counts_steps ? s->parts[0].partition : 0;
    log->shape = make_snapshot_shape(s);
    log->journal_bytes_max = journal_bytes_limit(config, &log->shape);
    log->long_generation = UINT64_MAX;
    if (strlen(config->folder) >= sizeof(log->folder))
        status = error_set(err, STATUS_CONFIG, "the path '%s' is too long", config->folder);
    else
        (void)snprintf(log->folder, sizeof(log->folder), "%s", config->folder);
    if (status == STATUS_OK)
        status = mem_strdup(config->job, &log->job, err);
    if (status == STATUS_OK)
        status = allocate_partition_buffer(&log->buffer, s, err);
    if (status != STATUS_OK) {
        job_log_close(log);
        return status;
    }
    *ret = log;
    return STATUS_OK;
}

enum status job_log_create(const struct job_log_config *config, struct job_log **ret,
                           struct error *err)
{
    char path[JOB_LOG_PATH_MAX];
    struct journal_head head;
    struct job_log *log;
    enum status status = job_log_open(config, &log, err);

    if (status != STATUS_OK)
        return status;
    head = job_log_journal_head(log, 0);
    status = job_log_journal_path(log, 0, path, err);
    if (status == STATUS_OK)
        status = journal_create(&log->journal, path, &head, err);
    if (status == STATUS_OK)
        status = job_log_start(log, err);
    if (status != STATUS_OK) {
        job_log_close(log);
        return status;
    }
    *ret = log;
    return STATUS_OK;
}

void job_log_close(struct job_log *log)
{
    if (!log)
        return;
    job_log_stop(log);
    journal_close(&log->journal);
    strbuf_release(&log->membership);
    free_partition_buffer(&log->buffer);
    (void)pthread_cond_destroy(&log->changed);
    (void)pthread_mutex_destroy(&log->lock);
    (void)pthread_mutex_destroy(&log->snapshot_lock);
    free(log->job);
    free(log);
}

/* ------------------------------------------------------------------ journal */

static void request_snapshot(struct job_log *log)
{
    (void)pthread_mutex_lock(&log->lock);
    log->snapshot_due = true;
    (void)pthread_cond_broadcast(&log->changed);
    (void)pthread_mutex_unlock(&log->lock);
}

/* Request one snapshot per long journal; again when no snapshot could be written and the same
 * journal has grown by the limit once more. */
static void check_journal_length(struct job_log *log)
{
    uint64_t generation, size;

    journal_length(&log->journal, &generation, &size);
    if (size <= log->journal_bytes_max)
        return;
    (void)pthread_mutex_lock(&log->lock);
    if (generation != log->long_generation || size > log->long_bytes + log->journal_bytes_max) {
        log->long_generation = generation;
        log->long_bytes = size;
        log->snapshot_due = true;
        (void)pthread_cond_broadcast(&log->changed);
    }
    (void)pthread_mutex_unlock(&log->lock);
}

enum status job_log_append(void *user, const struct mutation *record, struct error *err)
{
    struct job_log *log = user;
    struct journal_record r = {.kind = (uint32_t)record->kind,
                               .partition = record->partition,
                               .step = record->step,
                               .rate = record->rate,
                               .clocks = record->clocks,
                               .flags = record->flags,
                               .payload = record->payload,
                               .size = record->count * sizeof(float)};
    enum status status = journal_append(&log->journal, &r, err);

    if (status == STATUS_OK && log->snapshot_every_steps > 0 && record->kind == MUTATION_STEP &&
        record->partition == log->counted_partition &&
        record->step % log->snapshot_every_steps == 0)
        request_snapshot(log);
    if (status == STATUS_OK)
        check_journal_length(log);
    return status;
}

const char *job_log_folder(const struct job_log *log)
{
    return log->folder;
}

/* Lock held. */
static enum status append_membership(struct job_log *log, struct error *err)
{
    struct journal_record r = {.kind = JOB_LOG_MEMBERSHIP_KIND,
                               .payload = log->membership.text,
                               .size = log->membership.length};

    return journal_append(&log->journal, &r, err);
}

enum status job_log_set_membership(struct job_log *log, const char *text, struct error *err)
{
    enum status status;

    (void)pthread_mutex_lock(&log->lock);
    strbuf_reset(&log->membership);
    strbuf_add(&log->membership, text);
    if (!strbuf_ok(&log->membership))
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the membership");
    else
        status = append_membership(log, err);
    (void)pthread_mutex_unlock(&log->lock);
    return status;
}

/* ------------------------------------------------------------------ snapshots */

/* The partition's data in the order of make_snapshot_shape. */
static void point_to_slabs(const struct job_log *log, struct snapshot_partition *part)
{
    const struct shard_state *state = &log->buffer.state;
    unsigned slab = 0;

    part->data[slab++] = state->values;
    for (unsigned i = 0; i < 2; i++)
        if (state->moments[i])
            part->data[slab++] = state->moments[i];
    if (state->previous)
        part->data[slab++] = state->previous;
    if (state->codec_state)
        part->data[slab++] = state->codec_state;
    assert(slab == log->shape.slabs);
}

static enum status write_partition(struct job_log *log, struct snapshot_writer *w,
                                   size_t local_index, struct error *err)
{
    struct shard_state *state = &log->buffer.state;
    struct snapshot_partition part = job_log_snapshot_part(log, local_index);
    enum status status = shard_export(log->shard, (uint32_t)part.partition, state, err);

    if (status != STATUS_OK)
        return status;
    for (unsigned rank = 0; rank < log->shape.world_size; rank++)
        log->buffer.flags[rank] = state->flags[rank];
    part.step = state->steps;
    part.initialised = state->initialised;
    part.clocks = state->clocks;
    part.seen = state->seen;
    part.flags = log->buffer.flags;
    point_to_slabs(log, &part);
    return snapshot_write_partition(w, local_index, &part, err);
}

static enum status copy_membership(struct job_log *log, char **ret, struct error *err)
{
    enum status status;

    (void)pthread_mutex_lock(&log->lock);
    status = mem_strdup(log->membership.text, ret, err);
    (void)pthread_mutex_unlock(&log->lock);
    return status;
}

static enum status begin_snapshot(struct job_log *log, struct snapshot_writer *w,
                                  uint64_t generation, struct error *err)
{
    char path[JOB_LOG_PATH_MAX], digest[32], number[32], *membership = NULL;
    enum status status = copy_membership(log, &membership, err);

    (void)snprintf(digest, sizeof(digest), "%016" PRIx64, log->digest);
    (void)snprintf(number, sizeof(number), "%" PRIu64, generation);
    if (status == STATUS_OK)
        status = job_log_snapshot_path(log, generation, path, err);
    if (status == STATUS_OK) {
        const char *const metadata[] = {
            "format", "pt",   "sparring.snapshot", "1",    "job",     log->job,
            "terms",  digest, "generation",        number, "members", membership};

        status = snapshot_begin(w, path, &log->shape, metadata,
                                sizeof(metadata) / sizeof(metadata[0]) / 2, err);
    }
    free(membership);
    return status;
}

static void remove_older_generations(struct job_log *log, uint64_t generation)
{
    char path[JOB_LOG_PATH_MAX];

    for (; log->oldest_generation < generation; log->oldest_generation++) {
        if (job_log_journal_path(log, log->oldest_generation, path, NULL) == STATUS_OK)
            (void)unlink(path);
        if (job_log_snapshot_path(log, log->oldest_generation, path, NULL) == STATUS_OK)
            (void)unlink(path);
    }
}

/* snapshot_lock held. */
static enum status write_snapshot(struct job_log *log, struct error *err)
{
    uint64_t generation = log->journal.head.generation + 1, bytes = 0;
    int64_t start_ns = clock_now_ns();
    struct snapshot_writer w = {0};
    char path[JOB_LOG_PATH_MAX];
    enum status status = job_log_journal_path(log, generation, path, err);

    if (status == STATUS_OK)
        status = journal_rotate(&log->journal, path, err);
    if (status == STATUS_OK)
        status = begin_snapshot(log, &w, generation, err);
    for (size_t i = 0; i < log->shape.parts && status == STATUS_OK; i++)
        status = write_partition(log, &w, i, err);
    bytes = w.bytes;
    if (status == STATUS_OK)
        status = snapshot_commit(&w, err);
    snapshot_abandon(&w);
    if (status == STATUS_OK)
        remove_older_generations(log, generation);
    (void)pthread_mutex_lock(&log->lock);
    log->counters.snapshots += status == STATUS_OK;
    log->counters.snapshots_failed += status != STATUS_OK;
    log->counters.snapshot_bytes += status == STATUS_OK ? bytes : 0;
    log->counters.snapshot_ns += status == STATUS_OK ? clock_now_ns() - start_ns : 0;
    (void)pthread_mutex_unlock(&log->lock);
    return status;
}

enum status job_log_snapshot(struct job_log *log, struct error *err)
{
    enum status status;

    (void)pthread_mutex_lock(&log->snapshot_lock);
    status = write_snapshot(log, err);
    (void)pthread_mutex_unlock(&log->snapshot_lock);
    return status;
}

static void *run_snapshot_thread(void *user)
{
    struct job_log *log = user;

    (void)pthread_mutex_lock(&log->lock);
    while (!log->stop) {
        struct error err = {0};

        if (!log->snapshot_due) {
            (void)pthread_cond_wait(&log->changed, &log->lock);
            continue;
        }
        log->snapshot_due = false;
        (void)pthread_mutex_unlock(&log->lock);
        if (job_log_snapshot(log, &err) != STATUS_OK)
            log_warning("job '%s': no snapshot, the journal goes on: %s", log->job, err.text);
        (void)pthread_mutex_lock(&log->lock);
    }
    (void)pthread_mutex_unlock(&log->lock);
    return NULL;
}

enum status job_log_start(struct job_log *log, struct error *err)
{
    int failed = pthread_create(&log->thread, NULL, run_snapshot_thread, log);

    if (failed)
        return error_set_errno(err, failed, "cannot start the thread of snapshots");
    log->started = true;
    return STATUS_OK;
}

void job_log_stop(struct job_log *log)
{
    if (!log->started)
        return;
    (void)pthread_mutex_lock(&log->lock);
    log->stop = true;
    (void)pthread_cond_broadcast(&log->changed);
    (void)pthread_mutex_unlock(&log->lock);
    (void)pthread_join(log->thread, NULL);
    log->started = false;
}

void job_log_count(struct job_log *log, struct stats_counters *ret)
{
    (void)pthread_mutex_lock(&log->lock);
    *ret = log->counters;
    (void)pthread_mutex_unlock(&log->lock);
    journal_count(&log->journal, &ret->journal_records, &ret->journal_bytes, &ret->journal_ns);
}
