/*
 * Where the disk is touched.  A folder is made by the supervisor between the building of a job and
 * its first answer, so nobody has been told of a job that has none.  The membership file is written
 * under the service's lock: some hundred bytes into the page cache, and whoever is told of a change
 * is told behind it.
 */
#include "server/persistence/persistence.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "server/persistence/job_log.h"
#include "server/persistence/membership_file.h"
#include "server/persistence/state_dir.h"

#include <inttypes.h>
#include <stdlib.h>

#define HOW_AWAY "its server was started again"

static struct job_log_config config_of(const struct service *s, struct job *j, const char *folder,
                                       uint64_t digest)
{
    return (struct job_log_config){.folder = folder,
                                   .digest = digest,
                                   .every = s->snapshot_every,
                                   .journal_bytes = s->journal_bytes,
                                   .job = j->members.job,
                                   .shard = &j->shard};
}

/* ------------------------------------------------------------------ who is in */

static bool is_in(const struct job *j, unsigned rank)
{
    return j->members.members[rank].state == MEMBER_JOINED &&
           j->ranks[rank].session.state != RANK_VACANT;
}

static enum membership_file_role role_of(const struct job *j)
{
    static const enum membership_file_role roles[] = {
        [REPLICA_STREAM_PAIR] = MEMBERSHIP_FILE_PAIR,
        [REPLICA_STREAM_CHANGING] = MEMBERSHIP_FILE_CHANGING,
        [REPLICA_STREAM_ALONE] = MEMBERSHIP_FILE_ALONE};

    if (j->replica.is_copy)
        return j->replica.is_kept ? MEMBERSHIP_FILE_COPY : MEMBERSHIP_FILE_PROMOTED;
    return roles[primary_standing(j)];
}

/* The job's membership file as text, which the caller releases.  Lock held, or nobody else is
 * there. */
static struct strbuf write_members(const struct job *j, enum membership_file_role role)
{
    struct strbuf text = STRBUF_INIT;
    struct membership_file_rank ranks[MEMBERSHIP_RANKS_MAX];
    struct membership_file file = {
        .epoch = j->epoch, .role = role, .ranks = ranks, .world_size = j->members.world_size};

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        ranks[rank] = (struct membership_file_rank){.in = is_in(j, rank),
                                                    .session = j->ranks[rank].session.id};
    membership_file_write(&text, &file);
    return text;
}

static enum status keep_members(struct job *j, struct error *err)
{
    enum membership_file_role role = role_of(j);
    struct strbuf text = write_members(j, role);
    enum status status;

    j->unsettled = role == MEMBERSHIP_FILE_CHANGING;
    if (strbuf_ok(&text))
        status = job_log_set_members(j->log, text.text, err);
    else
        status = error_set(err, STATUS_NO_MEMORY, "no memory for who is in the job");
    strbuf_release(&text);
    return status;
}

enum status persistence_told_members(struct job *j, struct error *err)
{
    return j->log && j->state == JOB_RUNNING ? keep_members(j, err) : STATUS_OK;
}

/* A failure comes up again with the next record, which ends the job. */
void persistence_members(struct service *s, struct job *j)
{
    struct error err = {0};

    (void)s;
    if (persistence_told_members(j, &err) != STATUS_OK)
        log_warning("job '%s': %s", j->members.job, err.text);
}

void persistence_standing(struct service *s, struct job *j)
{
    if (j->log && j->unsettled && role_of(j) != MEMBERSHIP_FILE_CHANGING)
        persistence_members(s, j);
}

/* ------------------------------------------------------------------ a job begins */

/* The disk first: what the replica has is never more than what is here. */
static enum status keep_record(void *user, const struct mutation *record, struct error *err)
{
    struct job *j = user;
    enum status status = job_log_record(j->log, record, err);

    return status == STATUS_OK && j->replica_stream
               ? replica_stream_put(j->replica_stream, record, err)
               : status;
}

static void set_sink(struct job *j)
{
    struct shard_sink sink = {.put = keep_record, .user = j};

    shard_set_sink(&j->shard, &sink);
}

enum status persistence_begin(struct service *s, struct job *j, struct error *err)
{
    struct join_request terms = j->terms;
    struct job_log_config config;
    char folder[STATE_PATH_MAX];
    uint64_t digest;
    enum status status;

    if (!s->state_dir.path[0])
        return STATUS_OK;
    terms.manifest = membership_manifest(&j->members);
    status = shard_check_recorded(&j->shard.config, err);
    if (status == STATUS_OK)
        status = state_dir_add(&s->state_dir, &terms, folder, &digest, err);
    if (status != STATUS_OK)
        return error_prefix(err, "--state-dir: ");
    config = config_of(s, j, folder, digest);
    status = job_log_create(&config, &j->log, err);
    if (status != STATUS_OK) {
        (void)state_dir_remove(folder, NULL);
        return status;
    }
    set_sink(j);
    return STATUS_OK;
}

/* ------------------------------------------------------------------ a job is over */

enum fate { FATE_KEPT, FATE_REMOVED, FATE_ASIDE };

static enum fate judge(const struct service *s, const struct job *j)
{
    struct replica_stream_counts c;

    replica_stream_count(j->replica_stream, &c);
    if (j->failure.status == STATUS_OK || c.role == SUCCESSION_SUCCEEDED)
        return FATE_REMOVED; /* or it is the replica's */
    return s->draining && j->failure.status == STATUS_UNAVAILABLE ? FATE_KEPT : FATE_ASIDE;
}

static void put_aside(const struct job *j)
{
    const char *folder = job_log_folder(j->log);
    char path[STATE_PATH_MAX];
    struct error err = {0};

    if (state_dir_put_aside(folder, path, &err) != STATUS_OK)
        log_warning("job '%s': %s", j->members.job, err.text);
    else if (j->unsettled)
        log_info("job '%s': its state is in '%s'; nobody can go on with it: remove it",
                 j->members.job, path);
    else
        log_info("job '%s': its state is in '%s'; remove it, or rename it to '%s' and start this "
                 "server again to go on with it",
                 j->members.job, path, folder);
}

/* No lock. */
static void settle(const struct job *j, enum fate fate)
{
    const char *folder = job_log_folder(j->log);
    struct error err = {0};

    job_log_stop(j->log);
    switch (fate) {
    case FATE_KEPT:
        if (job_log_snapshot(j->log, &err) != STATUS_OK)
            log_warning("job '%s': no snapshot, the journal has it all: %s", j->members.job,
                        err.text);
        log_info("job '%s': its state is in '%s'; %s", j->members.job, folder,
                 j->unsettled ? "only its replica can go on"
                              : "this server goes on with it when it is started again");
        return;
    case FATE_REMOVED:
        if (state_dir_remove(folder, &err) != STATUS_OK)
            log_warning("job '%s': %s", j->members.job, err.text);
        return;
    case FATE_ASIDE:
        put_aside(j);
        return;
    }
}

bool persistence_settle(struct service *s)
{
    for (struct job *j = s->over; j; j = j->next) {
        enum fate fate = judge(s, j);

        if (!j->log || j->settled)
            continue;
        j->settled = true;
        (void)pthread_mutex_unlock(&s->lock);
        settle(j, fate); /* it stays: only the supervisor frees jobs, and that is us */
        (void)pthread_mutex_lock(&s->lock);
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------ a service starts */

/* A job whose shard can be filled; `shares`: with memory that workers of this host may come to map,
 * of which the folder knows nothing. */
static enum status make_job(const struct join_request *terms, bool shares, struct job **ret,
                            struct error *err)
{
    uint64_t *sessions = NULL;
    struct job *j = NULL;
    enum status status = job_open(terms, &j, err);

    if (status == STATUS_OK)
        status = mem_calloc(terms->world_size, sizeof(*sessions), "sessions", &sessions, err);
    if (status == STATUS_OK)
        status = job_join_all(j, terms, sessions, "the state folder", err);
    if (status == STATUS_OK) {
        j->shares = shares;
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

/* The job runs, and nobody is there. */
static void start_job(struct job *j, const struct membership_file *file)
{
    const struct membership_file_rank *ranks = file->ranks;
    int64_t now_ns = clock_now_ns();
    int64_t until_ns = now_ns + (int64_t)j->terms.reconnect_ms * 1000000;

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        j->ranks[rank].join_session = ranks[rank].session;
    job_run(j, now_ns);
    j->epoch = file->epoch;
    job_restore(j, now_ns);
    job_send_away(j, HOW_AWAY, file->role == MEMBERSHIP_FILE_COPY ? INT64_MAX : until_ns, now_ns);
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (!ranks[rank].in) {
            membership_lose(&j->members, rank);
            j->ranks[rank].session.state = RANK_VACANT;
        }
    job_resume_watch(j, now_ns);
    if (file->role == MEMBERSHIP_FILE_COPY || file->role == MEMBERSHIP_FILE_PROMOTED)
        replica_restore(j, file->role == MEMBERSHIP_FILE_PROMOTED, now_ns);
}

/* Fill it.  *ret_text stays empty when nobody was told that it runs. */
static enum status fill_job(struct service *s, struct job *j, const char *folder, uint64_t digest,
                            struct strbuf *ret_text, struct error *err)
{
    struct job_log_config config = config_of(s, j, folder, digest);
    struct job_log_restored found;
    int64_t start_ns = clock_now_ns();
    enum status status = job_log_restore(&config, ret_text, &found, &j->log, err);

    if (status != STATUS_OK || ret_text->length == 0)
        return status;
    if (found.cut > 0)
        log_warning("job '%s': the journal ended in the middle of a record, %" PRIu64
                    " bytes are cut off",
                    j->members.job, found.cut);
    log_info("job '%s': restored from '%s' in %.1f s, %" PRIu64 " records of the journal",
             j->members.job, folder, (double)(clock_now_ns() - start_ns) * 1e-9, found.records);
    set_sink(j);
    return STATUS_OK;
}

static void log_taken(const struct job *j, const struct membership_file *file)
{
    static const char *const whats[] = {
        [MEMBERSHIP_FILE_ALONE] = "waiting for its ranks",
        [MEMBERSHIP_FILE_PAIR] = "if its replica has not taken over, all ranks decide",
        [MEMBERSHIP_FILE_COPY] = "a copy, in case its primary is lost",
        [MEMBERSHIP_FILE_PROMOTED] = "waiting for its ranks"};

    log_info("job '%s': round %" PRIu64 ", epoch %" PRIu64 "; %s", j->members.job, job_round(j),
             file->epoch, whats[file->role]);
}

/* Take the job up again (*ret_fate: its folder is kept), or find that there is nothing to take up.
 */
static enum status take_up(struct service *s, struct job *j, const char *text, enum fate *ret_fate,
                           struct error *err)
{
    struct membership_file_rank ranks[MEMBERSHIP_RANKS_MAX];
    struct membership_file file;
    enum status status = membership_file_parse(text, j->members.world_size, &file, ranks, err);

    *ret_fate = FATE_REMOVED; /* everybody had left */
    if (status != STATUS_OK)
        return status;
    if (file.role == MEMBERSHIP_FILE_CHANGING) {
        log_warning("job '%s': this server died while its replica was told who is in it; only the "
                    "replica can go on",
                    j->members.job);
        j->unsettled = true;
        *ret_fate = FATE_ASIDE;
        return STATUS_OK;
    }
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (ranks[rank].in)
            *ret_fate = FATE_KEPT;
    if (*ret_fate != FATE_KEPT)
        return STATUS_OK;
    start_job(j, &file);
    if (file.role == MEMBERSHIP_FILE_PAIR)
        status = primary_restore(s, j, err);
    if (status != STATUS_OK)
        return status;
    log_taken(j, &file);
    s->current = j;
    if (file.role != MEMBERSHIP_FILE_COPY)
        rank_recovery_take_out(s, j);
    return STATUS_OK;
}

static enum status restore(struct service *s, const char *folder, const struct join_request *terms,
                           uint64_t digest, struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct job *j = NULL;
    enum fate fate = FATE_REMOVED; /* it never began */
    enum status status = make_job(terms, s->fd_listener != NULL, &j, err);

    if (status == STATUS_OK)
        status = fill_job(s, j, folder, digest, &text, err);
    if (status == STATUS_OK && text.length > 0)
        status = take_up(s, j, text.text, &fate, err);
    strbuf_release(&text);
    if (status == STATUS_OK && fate == FATE_KEPT)
        return STATUS_OK;
    if (status == STATUS_OK && fate == FATE_ASIDE)
        put_aside(j);
    job_close(j);
    return status == STATUS_OK && fate == FATE_REMOVED ? state_dir_remove(folder, err) : status;
}

enum status persistence_open(struct service *s, const struct service_config *config,
                             struct error *err)
{
    char folder[STATE_PATH_MAX] = "";
    struct join_request terms = {0};
    uint64_t digest = 0;
    enum status status;

    if (!config->state_dir)
        return STATUS_OK;
    s->snapshot_every = config->snapshot_every;
    s->journal_bytes = config->journal_bytes;
    status = state_dir_open(&s->state_dir, config->state_dir, err);
    if (status == STATUS_OK)
        status = state_dir_find(&s->state_dir, folder, &terms, &digest, err);
    if (status == STATUS_OK && folder[0])
        status = restore(s, folder, &terms, digest, err);
    wire_release_join_request(&terms);
    return status;
}

void persistence_close(struct service *s)
{
    state_dir_close(&s->state_dir);
}
