/*
 * The Exchange stream.  One chunk is asked for at a time; while it is summed the next ones wait in
 * the transport, which is the back-pressure.
 *
 * A stream belongs to a rank from its first chunk on, and to one of its lanes: HELLO says which; a
 * rank without a session has one and sends none.  Until then a bad chunk ends that stream only;
 * after it, a bad chunk ends the job, because the sum may hold part of it.  The loss of the stream
 * cuts the rank off (rank_recovery.c).
 */
#include "server/service/exchange.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* May a stream whose first chunk this is begin now?  STATUS_EXISTS: there is one already, which may
 * be left over from before where HELLO does not say the connection's number.  Lock held. */
static enum status check_bind(const struct service *s, const struct chunk_header *h,
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

/* The first chunk says whose stream this is. */
static enum status bind_stream(struct stream *st, struct rpc_call *call,
                               const struct chunk_header *h, struct error *err)
{
    struct service *s = st->binding.service;
    struct job *j;
    enum status status = authorize_rank(s, call, h->rank, err);
    uint64_t doubted = 0;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->table.lock);
    j = s->table.current;
    status = check_bind(s, h, err);
    if (status == STATUS_OK) {
        struct rank_session *session;

        assert(j); /* check_bind refuses none */
        session = &j->ranks[h->rank].session;
        call_binding_bind(&st->binding, j, h->rank, call);
        st->lane = h->lane;
        st->lanes = session->lanes;
        session->streams[h->lane] = call;
        session->opened |= UINT32_C(1) << h->lane;
        session->alive_ns[h->lane] = clock_now_ns();
    } else if (status == STATUS_EXISTS && h->session != 0 && h->connection == 0) {
        doubted = j->ranks[h->rank].session.connection;
        j->users++;
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    if (doubted != 0) { /* one of the two is left over from before: let it begin anew */
        session_cut(&s->table, j, h->rank, doubted, "a lane was opened twice");
        job_table_drop(&s->table, j);
        err->status = status = STATUS_UNAVAILABLE; /* the right one may be the one that came late */
    }
    return status;
}

static void exchange_start(struct rpc_call *call, void *user)
{
    struct stream *st = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*st), "stream", &st, &err) != STATUS_OK)
        rpc_call_finish(call, err.status, err.text);
    else
        st->binding.service = user;
    rpc_call_set_user(call, st);
    if (st)
        rpc_call_receive(call);
}

/* One chunk: the first one binds, and is all there is of a HELLO. */
static enum status take(struct stream *st, struct rpc_call *call, struct rpc_message *message,
                        struct error *err)
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
    struct stream *st = user;
    struct error err = {0};
    enum status status;

    if (!message) {
        if (st->binding.job)
            call_binding_cut(&st->binding, "it closed its stream without leaving");
        rpc_call_finish(call, STATUS_OK, "");
        return;
    }
    status = take(st, call, message, &err);
    if (status == STATUS_OK) {
        rpc_call_receive(call);
        return;
    }
    if (status == STATUS_CANCELLED)
        return; /* the job is over or the rank cut off, and this stream's end is on its way */
    if (st->binding.job)
        job_table_end(&st->binding.service->table, st->binding.job, &err);
    rpc_call_finish(call, status, err.text);
}

static void exchange_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct stream *st = user;

    (void)result;
    if (st && st->binding.job) {
        call_binding_cut(&st->binding, "its connection closed");
        call_binding_release(&st->binding, call,
                             &st->binding.job->ranks[st->binding.rank].session.streams[st->lane]);
    }
    free(st);
}

const struct rpc_handler exchange_handler = {
    .start = exchange_start, .message = exchange_message, .closed = exchange_closed};
