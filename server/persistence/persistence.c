/*
 * The persistence of a job from its begin to its end: the folder, the log, the membership.
 *
 * The supervisor creates the folder after a job is built and before its joins are replied to, so no
 * worker knows a job without one.  The membership is appended to the journal under the table's
 * lock (some hundred bytes into the page cache), so it is stored before any rank is notified of a
 * change.  All other file access here is without the table's lock.
 */
#include "server/persistence/persistence.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/persistence/job_log.h"

#include <inttypes.h>

static struct job_log_config make_log_config(const struct persistence *p, struct job *j,
                                             const char *folder, uint64_t digest)
{
    return (struct job_log_config){.folder = folder,
                                   .digest = digest,
                                   .snapshot_every = p->snapshot_every,
                                   .journal_bytes = p->journal_bytes,
                                   .job = j->members.job,
                                   .shard = &j->shard};
}

static void attach_log_sink(struct job *j)
{
    struct shard_sink sink = {.on_mutation = job_log_append, .user = j->log};

    shard_set_sink(&j->shard, SHARD_SINK_DISK, &sink);
}

/* ------------------------------------------------------------------ server start and stop */

enum status persistence_open(struct persistence *p, const char *folder, struct unfinished_job *ret,
                             struct error *err)
{
    enum status status;

    if (!folder)
        return STATUS_OK;
    status = state_dir_open(&p->dir, folder, err);
    if (status == STATUS_OK)
        status = state_dir_find(&p->dir, ret->folder, &ret->terms, &ret->digest, err);
    return status;
}

enum status persistence_restore(struct persistence *p, const struct unfinished_job *found,
                                struct job *j, struct strbuf *ret_membership, struct error *err)
{
    struct job_log_config config = make_log_config(p, j, found->folder, found->digest);
    struct job_log_restored restored;
    int64_t start_ns = clock_now_ns();
    enum status status = job_log_restore(&config, ret_membership, &restored, &j->log, err);

    if (status != STATUS_OK || ret_membership->length == 0)
        return status;
    if (restored.torn_bytes > 0)
        log_warning("job '%s': the journal ended in the middle of a record, %" PRIu64
                    " bytes are cut off",
                    j->members.job, restored.torn_bytes);
    log_info("job '%s': restored from '%s' in %.1f s, %" PRIu64 " records of the journal",
             j->members.job, found->folder, (double)(clock_now_ns() - start_ns) * 1e-9,
             restored.records);
    attach_log_sink(j);
    return STATUS_OK;
}

enum status persistence_remove(const struct unfinished_job *found, struct error *err)
{
    return state_dir_remove(found->folder, err);
}

void persistence_close(struct persistence *p)
{
    state_dir_close(&p->dir);
}

/* ------------------------------------------------------------------ begin of a job */

enum status persistence_begin(struct persistence *p, struct job *j, struct error *err)
{
    struct join_request terms = j->terms;
    struct job_log_config config;
    char folder[STATE_PATH_MAX];
    uint64_t digest;
    enum status status;

    if (!p->dir.path[0])
        return STATUS_OK;
    terms.manifest = membership_manifest(&j->members);
    status = shard_check_recorded(&j->shard.config, err);
    if (status == STATUS_OK)
        status = state_dir_add(&p->dir, &terms, folder, &digest, err);
    if (status != STATUS_OK)
        return error_prefix(err, "--state-dir: ");
    config = make_log_config(p, j, folder, digest);
    status = job_log_create(&config, &j->log, err);
    if (status != STATUS_OK) {
        (void)state_dir_remove(folder, NULL);
        return status;
    }
    attach_log_sink(j);
    return STATUS_OK;
}

static bool is_joined(const struct job *j, unsigned rank)
{
    return j->members.members[rank].state == MEMBER_JOINED &&
           j->ranks[rank].session.state != RANK_VACANT;
}

enum status persistence_write_membership(struct job *j, struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct membership_file_rank ranks[MEMBERSHIP_RANKS_MAX];
    struct membership_file file = {.epoch = j->epoch,
                                   /* only its replica can continue a superseded job */
                                   .role = j->role == JOB_SUPERSEDED ? JOB_CHANGING : j->role,
                                   .ranks = ranks,
                                   .world_size = j->members.world_size};
    enum status status;

    if (!j->log || j->state != JOB_RUNNING)
        return STATUS_OK;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        ranks[rank] = (struct membership_file_rank){.is_joined = is_joined(j, rank),
                                                    .session = j->ranks[rank].session.id};
    membership_file_write(&text, &file);
    if (strbuf_ok(&text))
        status = job_log_set_membership(j->log, text.text, err);
    else
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the membership");
    strbuf_release(&text);
    return status;
}

/* ------------------------------------------------------------------ end of a job */

bool persistence_keeps(const struct job_table *t, const struct error *failure)
{
    return t->draining && failure->status == STATUS_UNAVAILABLE;
}

struct job *persistence_next_ended(struct job_table *t, enum folder_action *ret_action)
{
    struct job *j = t->over;

    while (j && (!j->log || j->files_decided))
        j = j->next;
    if (!j)
        return NULL;
    j->files_decided = true;
    if (j->failure.status == STATUS_OK || j->role == JOB_SUPERSEDED)
        *ret_action = FOLDER_REMOVE; /* or the replica continues it */
    else
        *ret_action = persistence_keeps(t, &j->failure) ? FOLDER_KEEP : FOLDER_PUT_ASIDE;
    return j;
}

void persistence_put_aside(const struct job *j)
{
    const char *folder = job_log_folder(j->log);
    char path[STATE_PATH_MAX];
    struct error err = {0};

    if (state_dir_put_aside(folder, path, &err) != STATUS_OK)
        log_warning("job '%s': %s", j->members.job, err.text);
    else if (j->role == JOB_CHANGING)
        log_info("job '%s': its state is in '%s'; it cannot be continued: remove it",
                 j->members.job, path);
    else
        log_info("job '%s': its state is in '%s'; remove it, or rename it to '%s' and start this "
                 "server again to continue it",
                 j->members.job, path, folder);
}

void persistence_apply_folder_action(const struct job *j, enum folder_action action)
{
    const char *folder = job_log_folder(j->log);
    struct error err = {0};

    job_log_stop(j->log);
    switch (action) {
    case FOLDER_KEEP:
        if (job_log_snapshot(j->log, &err) != STATUS_OK)
            log_warning("job '%s': no snapshot, the journal has it all: %s", j->members.job,
                        err.text);
        log_info("job '%s': its state is in '%s'; %s", j->members.job, folder,
                 j->role == JOB_CHANGING ? "only its replica can continue"
                                         : "this server continues it when it is started again");
        return;
    case FOLDER_REMOVE:
        if (state_dir_remove(folder, &err) != STATUS_OK)
            log_warning("job '%s': %s", j->members.job, err.text);
        return;
    case FOLDER_PUT_ASIDE:
        persistence_put_aside(j);
        return;
    }
}

void persistence_count(const struct job *j, struct stats_counters *ret)
{
    if (j->log)
        job_log_count(j->log, ret);
}

void persistence_release(struct job *j)
{
    job_log_close(j->log);
}
