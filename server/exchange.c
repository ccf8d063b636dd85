/*
 * The Exchange stream.  One chunk is asked for at a time; while it is summed the next ones wait in
 * the transport, which is the back-pressure.
 *
 * A stream belongs to a rank from its first chunk on.  Until then a bad chunk ends that stream
 * only; after it, a bad chunk or the loss of the stream ends the job, because a round without this
 * rank cannot be completed.
 */
#include "server/exchange.h"

#include "common/base/memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* May a stream of this rank begin now?  Lock held. */
static enum status check_bind(const struct job *j, unsigned rank, struct error *err)
{
    if (!j || j->state != JOB_RUNNING)
        return error_set(err, STATUS_PROTOCOL, "rank %u sent a chunk, but no job runs here", rank);
    if (rank >= j->members.world_size || j->members.members[rank].state != MEMBER_JOINED)
        return error_set(err, STATUS_PROTOCOL, "rank %u sent a chunk, but is not in job '%s'", rank,
                         j->members.job);
    if (j->ranks[rank].stream)
        return error_set(err, STATUS_EXISTS, "rank %u has an open stream already (%s)", rank,
                         rpc_call_peer(j->ranks[rank].stream));
    return STATUS_OK;
}

/* The first chunk says whose stream this is. */
static enum status bind_stream(struct stream *st, struct rpc_call *call, unsigned rank,
                               struct error *err)
{
    struct job *j;
    enum status status = service_check_rank(st->service, call, rank, err);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&st->service->lock);
    j = st->service->current;
    status = check_bind(j, rank, err);
    if (status == STATUS_OK) {
        assert(j); /* check_bind refuses none */
        st->job = j;
        st->rank = rank;
        j->users++;
        j->ranks[rank].stream = call;
        j->ranks[rank].has_streamed = true;
        rpc_call_ref(call);
    }
    (void)pthread_mutex_unlock(&st->service->lock);
    return status;
}

/* The job cannot go on without this stream: say so to all, if the rank is still expected. */
static void lose_rank(struct stream *st, const char *how)
{
    struct job *j = st->job;
    struct error err = {0};
    bool lost;

    (void)pthread_mutex_lock(&st->service->lock);
    lost = j->state == JOB_RUNNING && j->members.members[st->rank].state != MEMBER_LEFT;
    if (lost)
        (void)error_set(&err, STATUS_PEER_LOST, "rank %u was lost (%s in round %" PRIu64 ")",
                        st->rank, how, job_round(j));
    (void)pthread_mutex_unlock(&st->service->lock);
    if (lost)
        service_end_job(st->service, j, &err);
}

static void exchange_start(struct rpc_call *call, void *user)
{
    struct stream *st = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*st), "stream", &st, &err) != STATUS_OK)
        rpc_call_finish(call, err.status, err.text);
    else
        st->service = user;
    rpc_call_set_user(call, st);
    if (st)
        rpc_call_receive(call);
}

static void exchange_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct stream *st = user;
    struct chunk_header header;
    struct error err = {0};
    size_t size;
    const uint8_t *head;
    enum status status;

    if (!message) {
        if (st->job)
            lose_rank(st, "it closed its stream without leaving");
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_chunk(head, size, &header, &err);
    if (status == STATUS_OK && !st->job)
        status = bind_stream(st, call, header.rank, &err);
    if (status == STATUS_OK)
        status = chunk_take(st, &header, message, &err);
    if (status == STATUS_OK) {
        rpc_call_receive(call);
        return;
    }
    if (status == STATUS_CANCELLED)
        return; /* the job is over, and this stream's end is on its way */
    if (st->job)
        service_end_job(st->service, st->job, &err);
    rpc_call_finish(call, status, err.text);
}

static void exchange_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct stream *st = user;

    (void)result;
    if (st && st->job) {
        struct service *s = st->service;

        lose_rank(st, "its connection closed");
        (void)pthread_mutex_lock(&s->lock);
        st->job->ranks[st->rank].stream = NULL;
        (void)pthread_mutex_unlock(&s->lock);
        service_drop_job(s, st->job);
        rpc_call_unref(call);
    }
    free(st);
}

const struct rpc_handler exchange_handler = {
    .start = exchange_start, .message = exchange_message, .closed = exchange_closed};
