/*
 * A job and its replica stream: what the service asks of it, and what it tells the service.
 */
#include "common/base/clock.h"
#include "server/persistence/persistence.h"
#include "server/service/exchange.h"

static void send_answer(void *user, const struct held_reply *answer)
{
    struct job *j = user;

    reply_send(j->service, j, answer);
}

static void lose_to_replica(void *user, const struct error *why)
{
    struct job *j = user;

    service_end_job(j->service, j, why);
}

static void wake_supervisor(void *user)
{
    struct service *s = ((struct job *)user)->service;

    (void)pthread_mutex_lock(&s->lock);
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

/* The time that the ranks' joins leave.  Lock held. */
static int64_t first_deadline(const struct job *j)
{
    int64_t deadline_ns = INT64_MAX;

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (j->ranks[rank].join && j->ranks[rank].join_deadline_ns < deadline_ns)
            deadline_ns = j->ranks[rank].join_deadline_ns;
    return deadline_ns;
}

static enum status take_sessions(const struct job *j, uint64_t *ret, struct error *err)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        ret[rank] = j->ranks[rank].join_session;
        if (ret[rank] == 0 || j->terms.reconnect_ms == 0)
            return error_set(err, STATUS_UNSUPPORTED,
                             "a replica is for ranks that can come back (--reconnect-ms), and rank "
                             "%u cannot",
                             rank);
    }
    return STATUS_OK;
}

/* terms: gets the job's, with what is borrowed from it. */
static struct replica_stream_config config_of(struct service *s, struct job *j,
                                              struct join_request *terms, uint64_t epoch,
                                              const uint64_t *sessions)
{
    const struct member *first = &j->members.members[0];

    *terms = j->terms;
    terms->manifest = first->manifest.text + first->terms_bytes;
    j->service = s;
    return (struct replica_stream_config){.security = s->security,
                                          .terms = terms,
                                          .sessions = sessions,
                                          .epoch = epoch,
                                          .shard = &j->shard,
                                          .outstanding = &j->outstanding,
                                          .send = send_answer,
                                          .lost = lose_to_replica,
                                          .knows = wake_supervisor,
                                          .user = j};
}

enum status primary_open(struct service *s, struct job *j, struct error *err)
{
    uint64_t sessions[MEMBERSHIP_RANKS_MAX];
    struct join_request terms;
    struct replica_stream_config config = config_of(s, j, &terms, 1, sessions);
    struct replica_stream *stream = NULL;
    int64_t deadline_ns;
    enum status status;

    (void)pthread_mutex_lock(&s->lock);
    deadline_ns = first_deadline(j);
    status = take_sessions(j, sessions, err);
    (void)pthread_mutex_unlock(&s->lock);
    if (deadline_ns == INT64_MAX)
        deadline_ns = clock_deadline_ns(s->timeout_ms);
    if (status == STATUS_OK)
        status = replica_stream_open(&config, deadline_ns, &stream, err);
    (void)pthread_mutex_lock(&s->lock); /* statistics look at jobs that are built, too */
    j->replica_stream = stream;
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

/* Of those whose slots are held; 0 of the others. */
static void read_sessions(const struct job *j, uint64_t *ret)
{
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        ret[rank] = j->members.members[rank].state == MEMBER_JOINED ? j->ranks[rank].session.id : 0;
}

enum status primary_restore(struct service *s, struct job *j, struct error *err)
{
    uint64_t sessions[MEMBERSHIP_RANKS_MAX];
    bool settled[MEMBERSHIP_RANKS_MAX];
    struct join_request terms;
    struct replica_stream_config config = config_of(s, j, &terms, j->epoch, sessions);

    read_sessions(j, sessions);
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        settled[rank] = sessions[rank] == 0;
    return replica_stream_restore(&config, settled, &j->replica_stream, err);
}

enum replica_stream_standing primary_standing(const struct job *j)
{
    uint64_t sessions[MEMBERSHIP_RANKS_MAX];

    if (!j->replica_stream)
        return REPLICA_STREAM_ALONE;
    read_sessions(j, sessions);
    return replica_stream_standing(j->replica_stream, sessions);
}

void primary_look(struct service *s)
{
    struct job *j = s->current;

    if (!j || j->state != JOB_RUNNING || !j->replica_stream)
        return;
    persistence_standing(s, j);
    (void)pthread_mutex_unlock(&s->lock);
    replica_stream_tick(j->replica_stream, clock_now_ns()); /* only the supervisor frees jobs */
    (void)pthread_mutex_lock(&s->lock);
}

/* The stream has gone on alone. */
static void note_epoch(struct service *s, struct job *j, uint64_t epoch)
{
    if (epoch == 0)
        return;
    (void)pthread_mutex_lock(&s->lock);
    j->epoch = epoch;
    persistence_members(s, j);
    (void)pthread_mutex_unlock(&s->lock);
}

void primary_beat(struct service *s, struct job *j, unsigned rank, uint64_t vote,
                  uint64_t *ret_propose)
{
    uint64_t epoch = 0;

    if (!j->replica_stream)
        return;
    if (vote != 0)
        replica_stream_vote(j->replica_stream, rank, vote, &epoch);
    note_epoch(s, j, epoch);
    *ret_propose = replica_stream_proposal(j->replica_stream);
}

void primary_settle(struct service *s, struct job *j, unsigned rank)
{
    uint64_t epoch;

    if (!j->replica_stream)
        return;
    replica_stream_settle(j->replica_stream, rank, &epoch);
    note_epoch(s, j, epoch);
}

uint64_t primary_members(struct job *j)
{
    uint64_t sessions[MEMBERSHIP_RANKS_MAX];

    if (!j->replica_stream)
        return 0;
    read_sessions(j, sessions);
    return replica_stream_members(j->replica_stream, j->epoch, sessions);
}

/* A server that stops leaves the job to its replica; any other end is the end of the job. */
void primary_end(struct job *j, const struct error *failure)
{
    if (failure && failure->status == STATUS_UNAVAILABLE)
        replica_stream_cancel(j->replica_stream);
    else
        replica_stream_end(j->replica_stream);
}
