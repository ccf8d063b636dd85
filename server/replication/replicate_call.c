/*
 * The replica's side of the Replicate call: receive the terms of a job, then its records, and apply
 * them in order, one at a time; each is acknowledged after it was applied.
 *
 * The job becomes this server's current one, with all ranks away.  A takeover query arrives as the
 * first record of a call of its own.  A record that cannot be applied ends the job, so that no
 * worker resumes from an incomplete replica.
 *
 * Lock: the job table's, not held while a record is applied to the shard; `applying` then delays
 * the takeover by the supervisor.
 */
#include "server/replication/replica.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One Replicate call. */
struct replicate_call {
    struct replication *replication;
    struct job *job;             /* one use of it; NULL until the terms were received */
    uint64_t *clocks, *sessions; /* owned; room for one record */
    uint8_t *flags;
};

/* ------------------------------------------------------------------ records */

void replica_send_record_reply(struct rpc_call *call, const struct record_reply *m)
{
    uint8_t bytes[WIRE_REPLY_MAX];

    (void)rpc_call_send(call, bytes, wire_pack_record_reply(m, bytes), NULL);
}

/* The query or the terms are about this run of the job: at least one of their sessions holds its
 * rank here.  Lock held. */
static bool is_same_run(const struct job *j, const struct wire_record *m)
{
    bool same = false;

    if (strcmp(j->members.job, m->terms->job) != 0 ||
        j->terms.server_index != m->terms->server_index ||
        m->session_count != j->members.world_size)
        return false;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        same = same || (m->sessions[rank] != 0 && m->sessions[rank] == j->ranks[rank].session.id);
    return same;
}

static enum status check_terms(const struct wire_record *m, struct error *err)
{
    bool is_good = m->session_count == m->terms->world_size && m->epoch > 0;

    for (size_t rank = 0; rank < m->session_count; rank++)
        is_good = is_good && m->sessions[rank] != 0;
    return is_good ? STATUS_OK
                   : error_set(err, STATUS_DATA,
                               "terms of job '%s' in epoch %" PRIu64
                               " with %zu sessions for %" PRIu32 " ranks",
                               m->terms->job, m->epoch, m->session_count, m->terms->world_size);
}

/* End the copy of a run that went on, or ended, without this server, when another run of that job
 * begins, or the same again, whose primary died before any rank had a reply; its files are put
 * aside. */
static void end_left_copy(struct job_table *t, const struct wire_record *m)
{
    struct error why = {0};
    struct job *j;

    (void)pthread_mutex_lock(&t->lock);
    j = t->current;
    if (j && !t->draining && j->state == JOB_RUNNING && j->role == JOB_REPLICA &&
        !j->replica->stream && !j->replica->applying && j->replica->promoted_ns == 0 &&
        strcmp(j->members.job, m->terms->job) == 0 &&
        (!is_same_run(j, m) || j->replica->records == 0))
        j->users++;
    else
        j = NULL;
    (void)pthread_mutex_unlock(&t->lock);
    if (!j)
        return;
    (void)error_set(&why, STATUS_CANCELLED, "the job begins anew");
    job_table_end(t, j, &why);
    job_table_unref(t, j);
}

/* Make a replica of the job with these terms, for the supervisor to build.  Lock held. */
static enum status open_replica_job(struct replicate_call *r, struct rpc_call *call,
                                    const struct wire_record *m, struct error *err)
{
    struct job_table *t = r->replication->table;
    struct job *j = NULL;
    enum status status;

    if (t->draining)
        return error_set(err, STATUS_UNAVAILABLE, "the parameter server is stopping");
    if (t->current)
        return error_set(err, STATUS_UNAVAILABLE,
                         "a copy of job '%s' is refused: this server serves job '%s'",
                         m->terms->job, t->current->members.job);
    status = job_open(m->terms, &j, err);
    if (status == STATUS_OK)
        status = job_join_all(j, m->terms, m->sessions, rpc_call_peer(call), err);
    if (status != STATUS_OK) {
        job_close(j);
        return status;
    }
    status = mem_calloc(1, sizeof(*j->replica), "replica", &j->replica, err);
    if (status != STATUS_OK) {
        job_close(j);
        return status;
    }
    j->role = JOB_REPLICA;
    *j->replica = (struct replica){.succession = {.epoch = m->epoch}, .stream = call};
    rpc_call_ref(call);
    j->users++;
    j->state = JOB_BUILDING;
    r->job = t->current = j;
    (void)pthread_cond_broadcast(&t->changed);
    return STATUS_OK;
}

/* Reply `superseded` only once the takeover is stored, because the primary then removes its
 * files. */
static void reply_takeover_query(struct job_table *t, struct rpc_call *call,
                                 const struct wire_record *m)
{
    struct record_reply reply = {0};
    const struct job *j;

    (void)pthread_mutex_lock(&t->lock);
    j = t->current;
    if (j && j->state == JOB_RUNNING && j->role == JOB_PROMOTED && is_same_run(j, m)) {
        reply.superseded = true;
        reply.epoch = j->replica->succession.epoch;
    }
    (void)pthread_mutex_unlock(&t->lock);
    replica_send_record_reply(call, &reply);
    rpc_call_finish(call, STATUS_OK, "");
}

static enum status process_first_record(struct replicate_call *r, struct rpc_call *call,
                                        const struct wire_record *m, struct error *err)
{
    enum status status;

    if (m->kind == RECORD_TAKEOVER_QUERY) {
        reply_takeover_query(r->replication->table, call, m);
        return STATUS_CANCELLED;
    }
    if (m->kind != RECORD_TERMS)
        return error_set(err, STATUS_PROTOCOL, "a record of kind %d before the terms of its job",
                         (int)m->kind);
    status = check_terms(m, err);
    if (status != STATUS_OK)
        return status;
    end_left_copy(r->replication->table, m);
    (void)pthread_mutex_lock(&r->replication->table->lock);
    status = open_replica_job(r, call, m, err);
    (void)pthread_mutex_unlock(&r->replication->table->lock);
    return status; /* the supervisor requests the next record */
}

/* Until end_applying the supervisor does not take over.  STATUS_CANCELLED: the replica is promoted
 * or the job has ended; replica_send_superseded or the end of the job notifies the primary. */
static enum status begin_applying(struct replicate_call *r, const struct wire_record *m)
{
    struct job *j = r->job;
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&r->replication->table->lock);
    if (j->state != JOB_RUNNING || !succession_replica_record(&j->replica->succession, m->epoch)) {
        status = STATUS_CANCELLED;
    } else {
        j->replica->applying = true;
    }
    (void)pthread_mutex_unlock(&r->replication->table->lock);
    return status;
}

/* Count a partition's record that was applied; *reply gets the totals. */
static void count_applied(struct replicate_call *r, size_t payload_bytes,
                          struct record_reply *reply)
{
    struct replica *p = r->job->replica;

    (void)pthread_mutex_lock(&r->replication->table->lock);
    reply->records = ++p->records;
    reply->bytes = p->bytes += payload_bytes;
    (void)pthread_mutex_unlock(&r->replication->table->lock);
}

static void end_applying(struct replicate_call *r)
{
    (void)pthread_mutex_lock(&r->replication->table->lock);
    r->job->replica->applying = false;
    (void)pthread_cond_broadcast(&r->replication->table->changed);
    (void)pthread_mutex_unlock(&r->replication->table->lock);
}

static enum status copy_from_message(void *user, float *dst, size_t count, struct error *err)
{
    return rpc_message_copy(user, dst, count * sizeof(float), err);
}

static enum status apply_mutation(struct replicate_call *r, struct rpc_message *message,
                                  const struct wire_record *m, struct error *err)
{
    static const enum mutation_kind kinds[] = {[RECORD_INIT] = MUTATION_INIT,
                                               [RECORD_STEP] = MUTATION_STEP,
                                               [RECORD_RANKS] = MUTATION_RANKS,
                                               [RECORD_STATE] = MUTATION_STATE};
    struct shard_source source = {.copy = copy_from_message, .user = message};
    size_t bytes = rpc_message_payload_size(message);
    struct mutation record = {.kind = kinds[m->kind],
                              .partition = m->partition,
                              .sequence = m->sequence,
                              .step = m->step,
                              .rate = m->rate,
                              .world_size = (unsigned)m->clock_count,
                              .clocks = m->clocks,
                              .flags = m->flags,
                              .count = bytes / sizeof(float)};
    bool applied;

    if (m->clock_count != m->flag_count || m->sequence == 0 || m->length != bytes ||
        bytes % sizeof(float) != 0)
        return error_set(err, STATUS_DATA,
                         "record %" PRIu64 " of partition %" PRIu32
                         " has %zu clocks, %zu flags and %zu bytes (it says %" PRIu64 ")",
                         m->sequence, m->partition, m->clock_count, m->flag_count, bytes,
                         m->length);
    return shard_apply(&r->job->shard, &record, &source, &applied, err);
}

/* Store which session holds each rank from now on; on this server all of them are away. */
static enum status apply_membership(struct replicate_call *r, const struct wire_record *m,
                                    struct error *err)
{
    struct job *j = r->job;
    int64_t now_ns = clock_now_ns();
    enum status status;

    if (m->session_count != j->members.world_size || m->sequence == 0)
        return error_set(err, STATUS_DATA,
                         "membership record %" PRIu64 " has %zu sessions for %u ranks", m->sequence,
                         m->session_count, j->members.world_size);
    (void)pthread_mutex_lock(&r->replication->table->lock);
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        struct rank_session *session = &j->ranks[rank].session;
        bool is_joined = j->members.members[rank].state == MEMBER_JOINED;

        if (m->sessions[rank] == 0 && is_joined)
            membership_remove(&j->members, rank);
        if (m->sessions[rank] == 0) {
            session->state = RANK_VACANT;
            continue;
        }
        membership_rejoin(&j->members, rank, rpc_call_peer(j->replica->stream));
        if (!is_joined || session->id != m->sessions[rank]) {
            rank_session_hold(session, m->sessions[rank], 1, now_ns);
            rank_session_mark_away(session, REPLICA_AWAY_REASON, INT64_MAX, now_ns);
        }
    }
    j->epoch = m->epoch;
    status = job_table_persist_members(r->replication->table, j, err);
    (void)pthread_mutex_unlock(&r->replication->table->lock);
    return status;
}

/* The primary has ended the job: in order, or with the status that the record says. */
static void end_replica_job(struct replicate_call *r, struct rpc_call *call,
                            const struct wire_record *m)
{
    const int value = m->step <= INT_MAX ? -(int)m->step : INT_MIN;
    const enum status status = status_is_known(value) ? (enum status)value : STATUS_INTERNAL;
    struct error why = {0};

    if (status != STATUS_OK)
        (void)error_set(&why, status, "the primary has ended the job: %s", status_text(status));
    job_table_end(r->replication->table, r->job, status != STATUS_OK ? &why : NULL);
    rpc_call_finish(call, STATUS_OK, "");
}

static enum status apply_record(struct replicate_call *r, struct rpc_call *call,
                                struct rpc_message *message, const struct wire_record *m,
                                struct error *err)
{
    struct record_reply reply = {.epoch = m->epoch};
    enum status status = begin_applying(r, m);

    if (status != STATUS_OK)
        return status;
    switch (m->kind) {
    case RECORD_INIT:
    case RECORD_STATE:
    case RECORD_STEP:
    case RECORD_RANKS:
        reply.partition = m->partition;
        reply.sequence = m->sequence;
        status = apply_mutation(r, message, m, err);
        if (status == STATUS_OK)
            count_applied(r, rpc_message_payload_size(message), &reply);
        break;
    case RECORD_HEARTBEAT:
        break;
    case RECORD_END:
        end_applying(r);
        end_replica_job(r, call, m);
        return STATUS_CANCELLED;
    case RECORD_MEMBER:
        reply.partition = RECORD_MEMBERSHIP_PARTITION;
        reply.sequence = m->sequence;
        status = apply_membership(r, m, err);
        break;
    case RECORD_TERMS:
    case RECORD_TAKEOVER_QUERY:
        status =
            error_set(err, STATUS_PROTOCOL, "a record of kind %d behind the terms", (int)m->kind);
        break;
    }
    end_applying(r);
    if (status == STATUS_OK) {
        replica_send_record_reply(call, &reply);
        rpc_call_receive(call);
    }
    return status;
}

/* ------------------------------------------------------------------ the stream */

static void replicate_call_free(struct replicate_call *r)
{
    if (!r)
        return;
    free(r->clocks);
    free(r->sessions);
    free(r->flags);
    free(r);
}

static void replicate_start(struct rpc_call *call, void *user)
{
    struct replicate_call *r = NULL;
    struct error err = {0};
    enum status status = mem_calloc(1, sizeof(*r), "replicate", &r, &err);

    if (status == STATUS_OK)
        status = mem_calloc(WIRE_RANKS_MAX, sizeof(*r->clocks), "clocks", &r->clocks, &err);
    if (status == STATUS_OK)
        status = mem_calloc(WIRE_RANKS_MAX, sizeof(*r->sessions), "sessions", &r->sessions, &err);
    if (status == STATUS_OK)
        status = mem_calloc(WIRE_RANKS_MAX, sizeof(*r->flags), "flags", &r->flags, &err);
    if (status != STATUS_OK) {
        replicate_call_free(r);
        r = NULL;
        rpc_call_finish(call, err.status, err.text);
    } else {
        r->replication = user;
    }
    rpc_call_set_user(call, r);
    if (r)
        rpc_call_receive(call);
}

/* End the job: the replica is incomplete, and no worker may resume from it. */
static void fail_replica(struct replicate_call *r, struct rpc_call *call, const struct error *err)
{
    if (r->job)
        job_table_end(r->replication->table, r->job, err);
    rpc_call_finish(call, err->status, err->text);
}

static void replicate_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct replicate_call *r = user;
    struct wire_record m = {.clocks = r->clocks,
                            .clock_count = WIRE_RANKS_MAX,
                            .flags = r->flags,
                            .flag_count = WIRE_RANKS_MAX,
                            .sessions = r->sessions,
                            .session_count = WIRE_RANKS_MAX};
    struct error err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message) {
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_record(head, size, &m, &err);
    if (status == STATUS_OK && !r->job) {
        status = r->replication->authorize(r->replication->user, call, &err);
        if (status == STATUS_OK)
            status = process_first_record(r, call, &m, &err);
    } else if (status == STATUS_OK) {
        status = apply_record(r, call, message, &m, &err);
    }
    wire_release_record(&m);
    if (status != STATUS_OK && status != STATUS_CANCELLED)
        fail_replica(r, call, &err);
}

static void replicate_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct replicate_call *r = user;

    if (r && r->job) {
        struct job *j = r->job;
        struct rpc_call *stream;

        (void)pthread_mutex_lock(&r->replication->table->lock);
        stream = j->replica->stream;
        j->replica->stream = NULL;
        j->replica->stream_ended_ns = clock_now_ns();
        (void)snprintf(j->replica->stream_end_reason, sizeof(j->replica->stream_end_reason),
                       "%.180s", result->text[0] ? result->text : "it ended the stream");
        (void)pthread_mutex_unlock(&r->replication->table->lock);
        if (stream)
            rpc_call_unref(stream);
        job_table_unref(r->replication->table, j);
    }
    (void)call;
    replicate_call_free(r);
}

const struct rpc_handler replicate_handler = {
    .start = replicate_start, .message = replicate_message, .closed = replicate_closed};
