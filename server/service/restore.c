/*
 * Restore: when a service starts, it continues the unfinished job of an earlier process from the
 * state folder.  The job runs, and every rank is AWAY until its session resumes.
 *
 * Runs before there are calls and a supervisor, so no other thread uses the job.
 */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "server/service/rank_recovery.h"

#include <inttypes.h>
#include <stdlib.h>

#define AWAY_REASON "its server was started again"

/* Build a job whose shard can be filled.  Its memory can be mapped by workers of this host if this
 * process shares memory; the folder does not record that. */
static enum status build_restored_job(const struct service *s, const struct join_request *terms,
                                      struct job **ret, struct error *err)
{
    uint64_t *sessions = NULL;
    struct job *j = NULL;
    enum status status = job_open(terms, &j, err);

    if (status == STATUS_OK)
        status = mem_calloc(terms->world_size, sizeof(*sessions), "sessions", &sessions, err);
    if (status == STATUS_OK)
        status = job_join_all(j, terms, sessions, "the state folder", err);
    if (status == STATUS_OK) {
        j->shares = s->fd_listener != NULL;
        status = job_build(j, err);
    }
    free(sessions);
    if (status != STATUS_OK) {
        job_close(j);
        return status;
    }
    *ret = j;
    return STATUS_OK;
}

/* Set the job to running, with every rank AWAY, or VACANT if it is not a member. */
static enum status start_restored_job(struct job *j, const struct membership_file *file,
                                      struct error *err)
{
    const struct membership_file_rank *ranks = file->ranks;
    int64_t now_ns = clock_now_ns();
    int64_t until_ns = now_ns + (int64_t)j->terms.reconnect_ms * 1000000;

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        j->ranks[rank].join_session = ranks[rank].session;
    job_run(j, now_ns);
    j->epoch = file->epoch;
    j->role = file->role;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (!ranks[rank].is_joined) {
            membership_remove(&j->members, rank);
            j->ranks[rank].session.state = RANK_VACANT;
        }
    job_restore(j, now_ns);
    job_mark_away(j, AWAY_REASON, file->role == JOB_REPLICA ? INT64_MAX : until_ns, now_ns);
    return file->role == JOB_REPLICA || file->role == JOB_PROMOTED ? replica_restore(j, now_ns, err)
                                                                   : STATUS_OK;
}

static void log_restored(const struct job *j)
{
    static const char *const texts[] = {[JOB_ALONE] = "waiting for its ranks",
                                        [JOB_PAIR] =
                                            "if its replica has not taken over, all ranks decide",
                                        [JOB_REPLICA] = "a copy, in case its primary is lost",
                                        [JOB_PROMOTED] = "waiting for its ranks"};

    log_info("job '%s': round %" PRIu64 ", epoch %" PRIu64 "; %s", j->members.job, job_round(j),
             j->epoch, texts[j->role]);
}

/* Continue the job (*ret_action: its folder is kept), or find that there is nothing to continue. */
static enum status resume_job(struct service *s, struct job *j, const char *members,
                              enum folder_action *ret_action, struct error *err)
{
    struct membership_file_rank ranks[MEMBERSHIP_RANKS_MAX];
    struct membership_file file;
    enum status status = membership_file_parse(members, j->members.world_size, &file, ranks, err);

    *ret_action = FOLDER_REMOVE; /* all ranks had left */
    if (status != STATUS_OK)
        return status;
    if (file.role == JOB_CHANGING) {
        log_warning(
            "job '%s': this server died during a membership change of its replica; only the "
            "replica can continue",
            j->members.job);
        j->role = JOB_CHANGING;
        *ret_action = FOLDER_PUT_ASIDE;
        return STATUS_OK;
    }
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (ranks[rank].is_joined)
            *ret_action = FOLDER_KEEP;
    if (*ret_action != FOLDER_KEEP)
        return STATUS_OK;
    status = start_restored_job(j, &file, err);
    if (status == STATUS_OK && file.role == JOB_PAIR)
        status = replication_restore(&s->replication, j, err);
    if (status != STATUS_OK)
        return status;
    log_restored(j);
    s->table.current = j;
    if (file.role != JOB_REPLICA)
        rank_recovery_vacate_departed(s, j);
    return STATUS_OK;
}

static enum status restore_job(struct service *s, const struct unfinished_job *found,
                               struct error *err)
{
    struct strbuf members = STRBUF_INIT;
    struct job *j = NULL;
    enum folder_action folder_action = FOLDER_REMOVE; /* the job never began */
    enum status status = build_restored_job(s, &found->terms, &j, err);

    if (status == STATUS_OK)
        status = persistence_restore(&s->persistence, found, j, &members, err);
    if (status == STATUS_OK && members.length > 0)
        status = resume_job(s, j, members.text, &folder_action, err);
    strbuf_release(&members);
    if (status == STATUS_OK && folder_action == FOLDER_KEEP)
        return STATUS_OK;
    if (status == STATUS_OK && folder_action == FOLDER_PUT_ASIDE)
        persistence_put_aside(j);
    job_table_free(&s->table, j);
    return status == STATUS_OK && folder_action == FOLDER_REMOVE ? persistence_remove(found, err)
                                                                 : status;
}

enum status restore_open(struct service *s, const char *state_dir, struct error *err)
{
    struct unfinished_job found = {0};
    enum status status = persistence_open(&s->persistence, state_dir, &found, err);

    if (status == STATUS_OK && found.folder[0])
        status = restore_job(s, &found, err);
    wire_release_join_request(&found.terms);
    return status;
}
