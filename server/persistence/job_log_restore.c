/*
 * Restoring of a job from its log: load the newest snapshot, then apply every journal from its
 * generation on.
 *
 * Only the last journal that has a record may end in the middle of one, which is removed. Temporary
 * files of an incomplete snapshot are removed.  One thread, before any other uses the shard; no
 * locks.
 */
#include "common/base/parse.h"
#include "server/persistence/job_log_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ files */

struct generations {
    uint64_t snapshot;        /* newest generation, or JOB_LOG_NO_SNAPSHOT */
    uint64_t oldest, journal; /* generations: the oldest file, the newest journal */
    bool journals;            /* at least one */
};

/* "<prefix><number><suffix>" */
static bool parse_file_name(const char *name, const char *prefix, const char *suffix,
                            uint64_t *ret_generation)
{
    size_t begin = strlen(prefix), digits;
    char number[24];

    if (strncmp(name, prefix, begin) != 0)
        return false;
    digits = strspn(name + begin, "0123456789");
    if (digits >= sizeof(number) || strcmp(name + begin + digits, suffix) != 0)
        return false;
    memcpy(number, name + begin, digits);
    number[digits] = '\0';
    return parse_uint64(number, ret_generation);
}

static void note_generation(struct generations *found, const char *name)
{
    uint64_t generation;

    if (parse_file_name(name, "snapshot-", ".safetensors", &generation)) {
        if (found->snapshot == JOB_LOG_NO_SNAPSHOT || generation > found->snapshot)
            found->snapshot = generation;
    } else if (parse_file_name(name, "journal-", "", &generation)) {
        if (!found->journals || generation > found->journal)
            found->journal = generation;
        found->journals = true;
    } else {
        return;
    }
    if (generation < found->oldest)
        found->oldest = generation;
}

static enum status list_generations(const struct job_log *log, struct generations *ret,
                                    struct error *err)
{
    DIR *entries = opendir(log->folder);
    const struct dirent *entry;

    *ret = (struct generations){.snapshot = JOB_LOG_NO_SNAPSHOT, .oldest = UINT64_MAX};
    if (!entries)
        return error_set_errno(err, errno, "cannot open '%s'", log->folder);
    while ((entry = readdir(entries))) {
        if (strstr(entry->d_name, ".tmp-")) /* of a process that has died */
            (void)unlinkat(dirfd(entries), entry->d_name, 0);
        else
            note_generation(ret, entry->d_name);
    }
    (void)closedir(entries);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ the snapshot */

static enum status load_partition(struct job_log *log, const struct snapshot *s, size_t local_index,
                                  struct error *err)
{
    struct shard_state *state = &log->buffer.state;
    struct snapshot_partition part = job_log_snapshot_part(log, local_index);
    enum status status = snapshot_read_partition(s, local_index, &part, err);
    size_t bytes = part.count * sizeof(float);
    unsigned slab = 0;

    if (status != STATUS_OK)
        return status;
    state->initialised = part.initialised;
    state->steps = part.step;
    for (unsigned rank = 0; rank < log->shape.world_size; rank++) {
        state->clocks[rank] = part.clocks[rank];
        state->seen[rank] = part.seen[rank];
        state->flags[rank] = (uint8_t)part.flags[rank];
    }
    memcpy(state->values, part.data[slab++], bytes);
    for (unsigned i = 0; i < 2; i++)
        if (state->moments[i])
            memcpy(state->moments[i], part.data[slab++], bytes);
    if (state->previous)
        memcpy(state->previous, part.data[slab++], bytes);
    if (state->codec_state)
        memcpy(state->codec_state, part.data[slab++], bytes);
    status = shard_import(log->shard, (uint32_t)part.partition, state, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "'%s': ", s->file.path);
    return status;
}

static enum status check_snapshot_terms(const struct job_log *log, const struct snapshot *s,
                                        struct error *err)
{
    const char *digest = snapshot_metadata(s, "terms");
    const char *membership = snapshot_metadata(s, "members");
    char wanted[32];

    (void)snprintf(wanted, sizeof(wanted), "%016" PRIx64, log->digest);
    if (!digest || !membership || strcmp(digest, wanted) != 0)
        return error_set(err, STATUS_DATA, "'%s' belongs to another job (terms %s, wanted %s)",
                         s->file.path, digest ? digest : "unknown", wanted);
    return STATUS_OK;
}

static enum status load_snapshot(struct job_log *log, uint64_t generation, struct error *err)
{
    char path[JOB_LOG_PATH_MAX];
    struct snapshot s = {0};
    enum status status = job_log_snapshot_path(log, generation, path, err);

    if (status == STATUS_OK)
        status = snapshot_read(&s, path, &log->shape, err);
    if (status != STATUS_OK)
        return status;
    status = check_snapshot_terms(log, &s, err);
    if (status == STATUS_OK)
        strbuf_add(&log->membership, snapshot_metadata(&s, "members"));
    for (size_t i = 0; i < log->shape.parts && status == STATUS_OK; i++)
        status = load_partition(log, &s, i, err);
    snapshot_release(&s);
    return status;
}

/* ------------------------------------------------------------------ journals */

static enum status restore_membership(struct job_log *log, const struct journal_record *r,
                                      struct error *err)
{
    if (r->size > 0 && memchr(r->payload, '\0', r->size))
        return error_set(err, STATUS_DATA, "the membership is no text");
    strbuf_reset(&log->membership);
    strbuf_add_bytes(&log->membership, r->payload, r->size);
    return STATUS_OK;
}

/* A journal_record_fn. */
static enum status apply_journal_record(void *user, const struct journal_record *r,
                                        struct error *err)
{
    struct job_log *log = user;
    struct mutation record = {.kind = (enum mutation_kind)r->kind,
                              .partition = r->partition,
                              .step = r->step,
                              .rate = r->rate,
                              .world_size = log->shard->config.world_size,
                              .clocks = r->clocks,
                              .flags = r->flags,
                              .payload = r->payload,
                              .count = r->size / sizeof(float)};
    bool applied;

    if (r->kind == JOB_LOG_MEMBERSHIP_KIND)
        return restore_membership(log, r, err);
    if (!r->clocks || r->size % sizeof(float) != 0 ||
        (r->kind != MUTATION_INIT && r->kind != MUTATION_STEP && r->kind != MUTATION_RANKS &&
         r->kind != MUTATION_STATE))
        return error_set(err, STATUS_DATA, "a record of kind %" PRIu32 " with %zu bytes", r->kind,
                         r->size);
    return shard_apply(log->shard, &record, NULL, &applied, err);
}

static enum status read_journal(struct job_log *log, uint64_t generation,
                                struct journal_read_result *ret, struct error *err)
{
    struct journal_head head = job_log_journal_head(log, generation);
    char path[JOB_LOG_PATH_MAX];
    enum status status = job_log_journal_path(log, generation, path, err);
    int fd;

    if (status != STATUS_OK)
        return status;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot open journal '%s'", path);
    status = journal_read(fd, path, &head, apply_journal_record, log, ret, err);
    (void)close(fd);
    return status;
}

/* Append to the last journal from now on. */
static enum status reopen_journal(struct job_log *log, uint64_t generation,
                                  const struct journal_read_result *read, struct error *err)
{
    struct journal_head head = job_log_journal_head(log, generation);
    char path[JOB_LOG_PATH_MAX];
    enum status status = job_log_journal_path(log, generation, path, err);

    if (status != STATUS_OK)
        return status;
    if (read->size > 0)
        return journal_reopen(&log->journal, path, &head, read->size, err);
    (void)unlink(path); /* its head is incomplete */
    return journal_create(&log->journal, path, &head, err);
}

/* A process that dies while it appends to a journal may have created the next one, which nothing
 * was appended to: remove that. */
static enum status remove_unused_journal(const struct job_log *log, uint64_t generation,
                                         struct error *err)
{
    char path[JOB_LOG_PATH_MAX];
    enum status status = job_log_journal_path(log, generation, path, err);

    if (status == STATUS_OK && unlink(path) != 0)
        status = error_set_errno(err, errno, "cannot remove '%s'", path);
    return status;
}

static enum status read_journals(struct job_log *log, const struct generations *found,
                                 struct job_log_restored *ret, struct error *err)
{
    uint64_t first = found->snapshot == JOB_LOG_NO_SNAPSHOT ? 0 : found->snapshot;
    uint64_t last = found->journal;
    struct journal_read_result out = {0};
    enum status status = STATUS_OK;

    if (!found->journals || found->journal < first)
        return error_set(err, STATUS_DATA, "'%s': journal-%" PRIu64 " is missing", log->folder,
                         first);
    for (uint64_t i = first; i <= found->journal && status == STATUS_OK; i++) {
        const struct journal_read_result before = out;

        status = read_journal(log, i, &out, err);
        ret->records += out.records;
        if (status != STATUS_OK || i == first || before.torn_bytes == 0)
            continue;
        if (i < found->journal || out.records > 0)
            return error_set(err, STATUS_DATA,
                             "'%s/journal-%" PRIu64 "' is cut off at byte %" PRIu64
                             ", and there is a newer one",
                             log->folder, i - 1, before.size);
        status = remove_unused_journal(log, i, err);
        last = i - 1;
        out = before;
    }
    ret->torn_bytes = out.torn_bytes;
    return status == STATUS_OK ? reopen_journal(log, last, &out, err) : status;
}

static enum status restore_job(struct job_log *log, struct strbuf *ret_membership,
                               struct job_log_restored *ret_found, struct error *err)
{
    struct generations found;
    enum status status = list_generations(log, &found, err);

    *ret_found = (struct job_log_restored){0};
    if (status == STATUS_OK && !found.journals && found.snapshot == JOB_LOG_NO_SNAPSHOT)
        return STATUS_OK; /* the process died before it created a journal */
    if (status == STATUS_OK && found.snapshot != JOB_LOG_NO_SNAPSHOT)
        status = load_snapshot(log, found.snapshot, err);
    if (status == STATUS_OK)
        status = read_journals(log, &found, ret_found, err);
    if (status != STATUS_OK)
        return status;
    log->oldest_generation = found.oldest;
    log->counters.restored_jobs = 1;
    strbuf_add(ret_membership, log->membership.text);
    if (!strbuf_ok(&log->membership) || !strbuf_ok(ret_membership))
        return error_set(err, STATUS_NO_MEMORY, "no memory for the membership");
    return job_log_start(log, err);
}

enum status job_log_restore(const struct job_log_config *config, struct strbuf *ret_membership,
                            struct job_log_restored *ret_found, struct job_log **ret,
                            struct error *err)
{
    struct job_log *log;
    enum status status = job_log_open(config, &log, err);

    if (status != STATUS_OK)
        return status;
    status = restore_job(log, ret_membership, ret_found, err);
    if (status != STATUS_OK) {
        job_log_close(log);
        return status;
    }
    *ret = log;
    return STATUS_OK;
}
