/*
 * The reading half: the newest snapshot, then every journal from its generation on.  Only the last
 * journal may end in the middle of a record.  Files of a snapshot that was not completed are
 * removed.
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

/* ------------------------------------------------------------------ what is there */

struct inventory {
    uint64_t snapshot;        /* newest generation, or JOB_LOG_NO_SNAPSHOT */
    uint64_t oldest, journal; /* generations: the oldest file, the newest journal */
    bool journals;            /* there is one */
};

/* "<prefix><number><suffix>" */
static bool is_file(const char *name, const char *prefix, const char *suffix,
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

static void note_file(struct inventory *found, const char *name)
{
    uint64_t generation;

    if (is_file(name, "snapshot-", ".safetensors", &generation)) {
        if (found->snapshot == JOB_LOG_NO_SNAPSHOT || generation > found->snapshot)
            found->snapshot = generation;
    } else if (is_file(name, "journal-", "", &generation)) {
        if (!found->journals || generation > found->journal)
            found->journal = generation;
        found->journals = true;
    } else {
        return;
    }
    if (generation < found->oldest)
        found->oldest = generation;
}

static enum status take_stock(const struct job_log *d, struct inventory *ret, struct error *err)
{
    DIR *entries = opendir(d->folder);
    const struct dirent *entry;

    *ret = (struct inventory){.snapshot = JOB_LOG_NO_SNAPSHOT, .oldest = UINT64_MAX};
    if (!entries)
        return error_set_errno(err, errno, "cannot open '%s'", d->folder);
    while ((entry = readdir(entries))) {
        if (strstr(entry->d_name, ".tmp-")) /* its writer is dead */
            (void)unlinkat(dirfd(entries), entry->d_name, 0);
        else
            note_file(ret, entry->d_name);
    }
    (void)closedir(entries);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ the snapshot */

static enum status load_partition(struct job_log *d, const struct snapshot *s, size_t slot,
                                  struct error *err)
{
    struct shard_state *state = &d->part.state;
    struct snapshot_part part = job_log_place(d, slot);
    enum status status = snapshot_get(s, slot, &part, err);
    size_t bytes = part.count * sizeof(float);
    unsigned k = 0;

    if (status != STATUS_OK)
        return status;
    state->initialised = part.initialised;
    state->steps = part.step;
    for (unsigned rank = 0; rank < d->shape.world_size; rank++) {
        state->clocks[rank] = part.clocks[rank];
        state->seen[rank] = part.seen[rank];
        state->flags[rank] = (uint8_t)part.flags[rank];
    }
    memcpy(state->values, part.data[k++], bytes);
    for (unsigned i = 0; i < 2; i++)
        if (state->moments[i])
            memcpy(state->moments[i], part.data[k++], bytes);
    if (state->previous)
        memcpy(state->previous, part.data[k++], bytes);
    if (state->kept)
        memcpy(state->kept, part.data[k++], bytes);
    status = shard_import(d->shard, (uint32_t)part.partition, state, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "'%s': ", s->file.path);
    return status;
}

static enum status check_terms(const struct job_log *d, const struct snapshot *s, struct error *err)
{
    const char *digest = snapshot_metadata(s, "terms"), *members = snapshot_metadata(s, "members");
    char wanted[32];

    (void)snprintf(wanted, sizeof(wanted), "%016" PRIx64, d->digest);
    if (!digest || !members || strcmp(digest, wanted) != 0)
        return error_set(err, STATUS_DATA, "'%s' belongs to another job (terms %s, wanted %s)",
                         s->file.path, digest ? digest : "unknown", wanted);
    return STATUS_OK;
}

static enum status load_snapshot(struct job_log *d, uint64_t generation, struct error *err)
{
    char path[JOB_LOG_PATH_MAX];
    struct snapshot s = {0};
    enum status status = job_log_snapshot_path(d, generation, path, err);

    if (status == STATUS_OK)
        status = snapshot_read(&s, path, &d->shape, err);
    if (status != STATUS_OK)
        return status;
    status = check_terms(d, &s, err);
    if (status == STATUS_OK)
        strbuf_add(&d->members, snapshot_metadata(&s, "members"));
    for (size_t slot = 0; slot < d->shape.parts && status == STATUS_OK; slot++)
        status = load_partition(d, &s, slot, err);
    snapshot_release(&s);
    return status;
}

/* ------------------------------------------------------------------ journals */

static enum status take_members(struct job_log *d, const struct journal_record *r,
                                struct error *err)
{
    if (r->size > 0 && memchr(r->payload, '\0', r->size))
        return error_set(err, STATUS_DATA, "who is in the job is no text");
    strbuf_reset(&d->members);
    strbuf_add_bytes(&d->members, r->payload, r->size);
    return STATUS_OK;
}

/* struct journal_take. */
static enum status take_record(void *user, const struct journal_record *r, struct error *err)
{
    struct job_log *d = user;
    struct mutation record = {.kind = (enum mutation_kind)r->kind,
                              .partition = r->partition,
                              .step = r->step,
                              .rate = r->rate,
                              .world_size = d->shard->config.world_size,
                              .clocks = r->clocks,
                              .flags = r->flags,
                              .payload = r->payload,
                              .count = r->size / sizeof(float)};
    bool applied;

    if (r->kind == JOB_LOG_MEMBERS_KIND)
        return take_members(d, r, err);
    if (!r->clocks || r->size % sizeof(float) != 0 ||
        (r->kind != MUTATION_INIT && r->kind != MUTATION_STEP && r->kind != MUTATION_RANKS &&
         r->kind != MUTATION_STATE))
        return error_set(err, STATUS_DATA, "a record of kind %" PRIu32 " with %zu bytes", r->kind,
                         r->size);
    return shard_apply(d->shard, &record, NULL, &applied, err);
}

static enum status read_journal(struct job_log *d, uint64_t generation, struct journal_outcome *ret,
                                struct error *err)
{
    struct journal_head head = job_log_head(d, generation);
    char path[JOB_LOG_PATH_MAX];
    enum status status = job_log_journal_path(d, generation, path, err);
    int fd;

    if (status != STATUS_OK)
        return status;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(err, errno, "cannot open journal '%s'", path);
    status = journal_read(fd, path, &head, take_record, d, ret, err);
    (void)close(fd);
    return status;
}

/* Go on writing where the last journal ends. */
static enum status reopen(struct job_log *d, uint64_t generation,
                          const struct journal_outcome *read, struct error *err)
{
    struct journal_head head = job_log_head(d, generation);
    char path[JOB_LOG_PATH_MAX];
    enum status status = job_log_journal_path(d, generation, path, err);

    if (status != STATUS_OK)
        return status;
    if (read->size > 0)
        return journal_reopen(&d->journal, path, &head, read->size, err);
    (void)unlink(path); /* not even its head is there */
    return journal_create(&d->journal, path, &head, err);
}

static enum status read_journals(struct job_log *d, const struct inventory *found,
                                 struct job_log_restored *ret, struct error *err)
{
    uint64_t first = found->snapshot == JOB_LOG_NO_SNAPSHOT ? 0 : found->snapshot;
    struct journal_outcome out = {0};
    enum status status = STATUS_OK;

    if (!found->journals || found->journal < first)
        return error_set(err, STATUS_DATA, "'%s': journal-%" PRIu64 " is missing", d->folder,
                         first);
    for (uint64_t i = first; i <= found->journal && status == STATUS_OK; i++) {
        if (i > first && out.cut > 0)
            return error_set(err, STATUS_DATA,
                             "'%s/journal-%" PRIu64 "' is cut off at byte %" PRIu64
                             ", and there is a newer one",
                             d->folder, i - 1, out.size);
        status = read_journal(d, i, &out, err);
        ret->records += out.records;
    }
    ret->cut = out.cut;
    return status == STATUS_OK ? reopen(d, found->journal, &out, err) : status;
}

static enum status restore(struct job_log *d, struct strbuf *ret_members,
                           struct job_log_restored *ret_found, struct error *err)
{
    struct inventory found;
    enum status status = take_stock(d, &found, err);

    *ret_found = (struct job_log_restored){0};
    if (status == STATUS_OK && !found.journals && found.snapshot == JOB_LOG_NO_SNAPSHOT)
        return STATUS_OK; /* its process died before it began: ret_members stays empty */
    if (status == STATUS_OK && found.snapshot != JOB_LOG_NO_SNAPSHOT)
        status = load_snapshot(d, found.snapshot, err);
    if (status == STATUS_OK)
        status = read_journals(d, &found, ret_found, err);
    if (status != STATUS_OK)
        return status;
    d->oldest = found.oldest;
    d->figures.restored = true;
    strbuf_add(ret_members, d->members.text);
    if (!strbuf_ok(&d->members) || !strbuf_ok(ret_members))
        return error_set(err, STATUS_NO_MEMORY, "no memory for who is in the job");
    return job_log_start(d, err);
}

enum status job_log_restore(const struct job_log_config *config, struct strbuf *ret_members,
                            struct job_log_restored *ret_found, struct job_log **ret,
                            struct error *err)
{
    struct job_log *d;
    enum status status = job_log_open(config, &d, err);

    if (status != STATUS_OK)
        return status;
    status = restore(d, ret_members, ret_found, err);
    if (status != STATUS_OK) {
        job_log_close(d);
        return status;
    }
    *ret = d;
    return STATUS_OK;
}
