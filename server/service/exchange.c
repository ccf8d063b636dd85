/*
 * The Exchange stream.  One chunk is asked for at a time; while it is summed the next ones wait in
 * the transport, which is the back-pressure.
 *
 * A stream belongs to a rank from its first chunk on, and to one of its lanes: HELLO says which; a
 * rank without a session has one and sends none.  Until then a bad chunk ends that stream only;
 * after it, a bad chunk ends the job, because the sum may hold part of it.  The loss of the stream
 * cuts the rank off (loss.c).
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
    struct tie_claim claim = {.rank = h->rank, .what = "sent a chunk"};
    const struct job *j = s->current;
    const struct slot *slot;
    enum status status;

    if (h->kind == CHUNK_HELLO) {
        claim.session = h->session;
        claim.connection = h->connection;
    }
    status = tie_check(s, &claim, err);

    if (status != STATUS_OK)
        return status;
    slot = &j->ranks[h->rank].slot;
    if (h->lane >= slot->lanes)
        return error_set(err, STATUS_PROTOCOL, "rank %u has %u lanes, there is no lane %" PRIu32,
                         h->rank, slot->lanes, h->lane);
    if (slot->streams[h->lane])
        return error_set(err, STATUS_EXISTS, "rank %u has an open stream already (%s)", h->rank,
                         rpc_call_peer(slot->streams[h->lane]));
    return STATUS_OK;
}

/* The first chunk says whose stream this is. */
static enum status bind_stream(struct stream *st, struct rpc_call *call,
                               const struct chunk_header *h, struct error *err)
{
    struct service *s = st->tie.service;
    struct job *j;
    enum status status = service_check_rank(s, call, h->rank, err);
    uint64_t doubted = 0;

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    j = s->current;
    status = check_bind(s, h, err);
    if (status == STATUS_OK) {
        struct slot *slot;

        assert(j); /* check_bind refuses none */
        slot = &j->ranks[h->rank].slot;
        tie_bind(&st->tie, j, h->rank, call);
        st->lane = h->lane;
        st->lanes = slot->lanes;
        slot->streams[h->lane] = call;
        slot->opened |= UINT32_C(1) << h->lane;
        slot->alive_ns[h->lane] = clock_now_ns();
    } else if (status == STATUS_EXISTS && h->session != 0 && h->connection == 0) {
        doubted = j->ranks[h->rank].slot.connection;
        j->users++;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (doubted != 0) { /* one of the two is left over from before: let it begin anew */
        loss_cut(s, j, h->rank, doubted, "a lane was opened twice");
        service_drop_job(s, j);
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
        st->tie.service = user;
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
    bool bound = st->tie.job != NULL;

    if (status == STATUS_OK && !bound)
        status = bind_stream(st, call, &header, err);
    if (status != STATUS_OK || (!bound && header.kind == CHUNK_HELLO))
        return status;
    return chunk_take(st, &header, message, err);
}

static void exchange_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct stream *st = user;
    struct error err = {0};
    enum status status;

    if (!message) {
        if (st->tie.job)
            tie_cut(&st->tie, "it closed its stream without leaving");
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
    if (st->tie.job)
        service_end_job(st->tie.service, st->tie.job, &err);
    rpc_call_finish(call, status, err.text);
}

static void exchange_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct stream *st = user;

    (void)result;
    if (st && st->tie.job) {
        tie_cut(&st->tie, "its connection closed");
        tie_release(&st->tie, call, &st->tie.job->ranks[st->tie.rank].slot.streams[st->lane]);
    }
    free(st);
}

const struct rpc_handler exchange_handler = {
    .start = exchange_start, .message = exchange_message, .closed = exchange_closed};
