/*
 * A primary that proposes to go alone and has no stream to its replica would never hear that the
 * replica serves by now: it asks, until it knows or is alone.  The answer changes nothing that was
 * not so before; without it the ranks that are still here would wait for those that are there.
 */
#include "common/base/clock.h"
#include "server/replication/replica_stream_internal.h"

#include <stdlib.h>
#include <string.h>

#define ASK_EVERY_NS INT64_C(300000000)
#define ASK_MS       2000

static void on_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct replica_stream *c = user;
    struct record_reply reply;
    const uint8_t *head;
    size_t size;

    (void)call;
    if (!message)
        return; /* the status follows */
    head = rpc_message_head(message, &size);
    if (wire_unpack_record_reply(head, size, &reply, NULL) == STATUS_OK && reply.superseded)
        replica_stream_step_down(c, reply.epoch);
    rpc_call_receive(call);
}

static void on_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct replica_stream *c = user;

    (void)call;
    (void)result; /* nobody there, or a server that knows nothing: no news */
    (void)pthread_mutex_lock(&c->lock);
    c->asking = false;
    (void)pthread_mutex_unlock(&c->lock);
}

static const struct rpc_handler handler = {.message = on_message, .closed = on_closed};

static bool begin(struct replica_stream *c, int64_t now_ns)
{
    bool due;

    (void)pthread_mutex_lock(&c->lock);
    due = c->succession.role == SUCCESSION_PROPOSING && c->ended && !c->over && !c->asking &&
          now_ns - c->asked_ns >= ASK_EVERY_NS;
    if (due) {
        c->asking = true;
        c->asked_ns = now_ns;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return due;
}

/* The question with who holds the slots by now: that is how the replica knows the run.  Allocates
 * *ret_bytes (free). */
static enum status pack_question(struct replica_stream *c, uint8_t **ret_bytes, size_t *ret_size)
{
    uint64_t sessions[WIRE_RANKS_MAX];
    struct wire_record m = {.sessions = sessions, .session_count = WIRE_RANKS_MAX};
    enum status status = wire_unpack_record(c->question, c->question_size, &m, NULL);

    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&c->lock);
    memcpy(sessions, c->sessions, c->world_size * sizeof(*sessions));
    (void)pthread_mutex_unlock(&c->lock);
    status = wire_pack_terms(&m, ret_bytes, ret_size, NULL);
    wire_release_record(&m);
    return status;
}

void replica_stream_ask(struct replica_stream *c, int64_t now_ns)
{
    struct rpc_call *call;
    uint8_t *bytes = NULL;
    size_t size;

    if (!begin(c, now_ns))
        return;
    if (pack_question(c, &bytes, &size) != STATUS_OK ||
        rpc_client_call(c->client, REPLICA_STREAM_PATH, clock_deadline_ns(ASK_MS), &handler, c,
                        &call, NULL) != STATUS_OK) {
        free(bytes);
        on_closed(NULL, NULL, c);
        return;
    }
    (void)rpc_call_send(call, bytes, size, NULL);
    free(bytes);
    rpc_call_send_done(call);
    rpc_call_receive(call);
    rpc_call_unref(call);
}
