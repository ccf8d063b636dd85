/*
 * The Exchange stream.  One chunk is requested at a time; the next ones wait in the transport while
 * it is summed, which is the back-pressure.
 *
 * The first chunk binds a stream to a rank and one of its lanes: HELLO names them.  A rank without
 * a session has one lane and sends no HELLO.  Before binding, a bad chunk ends only that stream;
 * after it, a bad chunk ends the job, because the sum may hold part of it.  The loss of the stream
 * cuts the rank off (rank_recovery.c).
 *
 * Locking: the table's lock for binding; never while the shard works, or a call is ended.
 */
#include "server/service/exchange.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* Check whether a stream with this first chunk may be bound.  STATUS_EXISTS: the lane has a stream
 * already, which may be stale if HELLO does not name the connection.  Lock held. */
static enum status check_stream_bind(const struct service *s, const struct chunk_header *h,
                                     struct error *err)
{
    struct call_claim claim = {.rank = h->rank, .what = "sent a chunk"};
    const struct job *j = s->table.current;
    const struct rank_session *session;
    enum status status;

    if (h->kind == CHUNK_HELLO) {
        claim.session = h->session;
        claim.connection = h->connection;
    }
    status = call_binding_check(s, &claim, err);

    if (status != STATUS_OK)
        return status;
    session = &j->ranks[h->rank].session;
    if (h->lane >= session->lanes)
        return error_set(err, STATUS_PROTOCOL, "rank %u has %u lanes, there is no lane %" PRIu32,
                         h->rank, session->lanes, h->lane);
    if (session->streams[h->lane])
        return error_set(err, STATUS_EXISTS, "rank %u has an open stream already (%s)", h->rank,
                         rpc_call_peer(session->streams[h->lane]));
    return STATUS_OK;
}

/* Bind the stream to the rank and lane that its first chunk names. */
static enum status bind_stream(struct exchange_stream *st, struct rpc_call *call,
                               const struct chunk_header *h, struct error *err)
{
    struct service *s = st->binding.service;
    struct job *j;
    enum status status = authorize_rank(s, call, h->rank, err);
    uint64_t suspect_connection = 0;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->table.lock);
    j = s->table.current;
    status = check_stream_bind(s, h, err);
    if (status == STATUS_OK) {
        struct rank_session *session;

        assert(j); /* check_stream_bind fails without a job */
        session = &j->ranks[h->rank].session;
        call_binding_bind(&st->binding, j, h->rank, call);
        st->lane = h->lane;
        st->lanes = session->lanes;
        session->streams[h->lane] = call;
        session->opened |= UINT32_C(1) << h->lane;
        session->alive_ns[h->lane] = clock_now_ns();
        if (h->lane == 0)
            exchange_take_channel(st);
    } else if (status == STATUS_EXISTS && h->session != 0 && h->connection == 0) {
        suspect_connection = j->ranks[h->rank].session.connection;
        j->users++;
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    if (suspect_connection != 0) { /* one of the two streams is stale: cut off the connection, so
                                      that the session reconnects */
        session_cut(&s->table, j, h->rank, suspect_connection, "a lane was opened twice");
        job_table_unref(&s->table, j);
        err->status = status = STATUS_UNAVAILABLE; /* the refused stream may be the valid one */
    }
    exchange_open_channel(st);
    return status;
}

static void exchange_start(struct rpc_call *call, void *user)
{
    struct exchange_stream *st = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*st), "stream", &st, &err) != STATUS_OK) {
        rpc_call_finish(call, err.status, err.text);
    } else {
        st->binding.service = user;
        st->call = call;
    }
    rpc_call_set_user(call, st);
    if (st)
        rpc_call_receive(call);
}

/* Handle one chunk.  The first one binds the stream; a HELLO does nothing else. */
static enum status handle_chunk(struct exchange_stream *st, struct rpc_call *call,
                                struct rpc_message *message, struct error *err)
{
    struct chunk_header header;
    size_t size;
    const uint8_t *head = rpc_message_head(message, &size);
    enum status status = wire_unpack_chunk(head, size, &header, err);
    bool bound = st->binding.job != NULL;

    if (status == STATUS_OK && !bound)
        status = bind_stream(st, call, &header, err);
    if (status != STATUS_OK || (!bound && header.kind == CHUNK_HELLO))
        return status;
    return exchange_take_chunk(st, &header, message, err);
}

static void exchange_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct exchange_stream *st = user;
    struct error err = {0};
    enum status status;

    if (!message) {
        if (st->binding.job)
            call_binding_cut(&st->binding, "it closed its stream without leaving");
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    status = handle_chunk(st, call, message, &err);
    if (status == STATUS_OK)
        rpc_call_receive(call);
    else
        exchange_reject_chunk(st, status, &err);
}

void exchange_reject_chunk(struct exchange_stream *st, enum status status, const struct error *why)
{
    if (status == STATUS_CANCELLED)
        return; /* the job is over or the rank was cut off: the stream is being closed */
    if (st->binding.job)
        job_table_end(&st->binding.service->table, st->binding.job, why);
    rpc_call_finish(st->call, status, why->text);
}

static void exchange_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct exchange_stream *st = user;

    (void)result;
    if (st && st->binding.job) {
        exchange_close_channel(st);
        call_binding_cut(&st->binding, "its connection closed");
        call_binding_release(&st->binding, call,
                             &st->binding.job->ranks[st->binding.rank].session.streams[st->lane]);
    }
    free(st);
}

const struct rpc_handler exchange_handler = {
    .start = exchange_start, .message = exchange_message, .closed = exchange_closed};
