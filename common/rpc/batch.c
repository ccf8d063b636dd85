/*
 * batch: turn a call's wishes into gRPC operations.
 *
 * Runs on the queue's thread only, so no two batches of a call are started at once.  At most one
 * batch of sends and one receive are in flight, as core demands (surface/call.cc); whatever is
 * ready together (initial metadata, a message, the end) leaves in one batch and one write.
 */
#include "common/rpc/call.h"

#include <assert.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <string.h>

void rpc_call_start_batch(struct rpc_call *call, const grpc_op *ops, size_t count,
                          struct rpc_tag *tag)
{
    grpc_call_error refused = grpc_call_start_batch(call->grpc, ops, count, tag, NULL);

    call->in_flight++;
    if (refused == GRPC_CALL_OK)
        return;
    /* Nothing of the batch was started: end the call, and let its tag come back all the same. */
    (void)error_set(&call->failure, STATUS_INTERNAL, "gRPC refused a batch of %s: %s", call->path,
                    grpc_call_error_to_string(refused));
    (void)grpc_call_cancel(call->grpc, NULL);
    refused = grpc_call_start_batch(call->grpc, NULL, 0, tag, NULL);
    assert(refused == GRPC_CALL_OK);
}

/* What one batch of sends is made of; core has taken what it needs when the start returns. */
struct outgoing {
    grpc_op ops[3];
    size_t count;
    bool message, last;
    grpc_slice slices[2]; /* of the message, owned */
    size_t slice_count;
    grpc_byte_buffer *buffer; /* owned */
    grpc_slice text;          /* of the status, owned */
    grpc_metadata name;       /* of the status */
    grpc_metadata token;      /* client; its value is owned */
};

static grpc_op *add_op(struct outgoing *out, grpc_op_type type)
{
    grpc_op *op = &out->ops[out->count++];

    memset(op, 0, sizeof(*op)); /* core refuses an op whose reserved fields are not zero */
    op->op = type;
    return op;
}

/* Under call->lock. */
static void collect_outgoing(struct rpc_call *call, struct outgoing *out)
{
    if (call->sending || call->send_failed || call->last_sent)
        return;
    if (!call->initial_sent && (call->is_client || call->sends.length > 0 || call->want_last)) {
        grpc_op *op = add_op(out, GRPC_OP_SEND_INITIAL_METADATA);

        if (call->is_client && !call->fail_fast) /* wait for a server that is not up yet */
            op->flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                        GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
        if (call->is_client && call->token->length > 0) {
            out->token = rpc_token_metadata(call->token);
            op->data.send_initial_metadata.count = 1;
            op->data.send_initial_metadata.metadata = &out->token;
        }
        call->initial_sent = true;
    }
    out->message = rpc_send_pop(call, out->slices, &out->slice_count);
    out->last = call->want_last && call->sends.length == 0;
}

static void add_message(struct outgoing *out)
{
    out->buffer = grpc_raw_byte_buffer_create(out->slices, out->slice_count);
    for (size_t i = 0; i < out->slice_count; i++)
        grpc_slice_unref(out->slices[i]); /* the buffer has its own references */
    add_op(out, GRPC_OP_SEND_MESSAGE)->data.send_message.send_message = out->buffer;
}

static void add_status(const struct rpc_call *call, struct outgoing *out)
{
    grpc_op *op = add_op(out, GRPC_OP_SEND_STATUS_FROM_SERVER);

    out->text = grpc_slice_from_copied_string(call->finish_text);
    op->data.send_status_from_server.status = rpc_code_from_status(call->finish_status);
    op->data.send_status_from_server.status_details = &out->text;
    if (call->finish_status == STATUS_OK)
        return;
    out->name.key = grpc_slice_from_static_string(RPC_STATUS_KEY);
    out->name.value = grpc_slice_from_static_string(status_name(call->finish_status));
    op->data.send_status_from_server.trailing_metadata_count = 1;
    op->data.send_status_from_server.trailing_metadata = &out->name;
}

static void start_send(struct rpc_call *call, struct outgoing *out)
{
    if (out->message)
        add_message(out);
    if (out->last && call->is_client)
        (void)add_op(out, GRPC_OP_SEND_CLOSE_FROM_CLIENT);
    else if (out->last)
        add_status(call, out);
    if (out->count == 0)
        return;
    call->last_sent |= out->last;
    call->sending = true;
    rpc_call_start_batch(call, out->ops, out->count, &call->on_send);
    grpc_byte_buffer_destroy(out->buffer); /* the batch has moved the slices out */
    grpc_slice_unref(out->text);
    grpc_slice_unref(out->token.value);
}

static void start_receive(struct rpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    call->receiving = true;
    op.data.recv_message.recv_message = &call->received;
    rpc_call_start_batch(call, &op, 1, &call->on_receive);
}

static void begin_client(struct rpc_call *call)
{
    grpc_op ops[2] = {{.op = GRPC_OP_RECV_INITIAL_METADATA}, {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};

    call->begun = true;
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    ops[1].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[1].data.recv_status_on_client.status = &call->code;
    ops[1].data.recv_status_on_client.status_details = &call->details;
    rpc_call_start_batch(call, ops, 2, &call->on_close);
}

void rpc_call_advance(struct rpc_call *call)
{
    struct outgoing out = {0};
    bool receive = false;
    bool cancel = false;

    if (call->is_client && !call->begun)
        begin_client(call);
    (void)pthread_mutex_lock(&call->lock);
    if (!call->ended) {
        collect_outgoing(call, &out);
        cancel = call->want_cancel && !call->cancel_sent;
        receive = call->want_receive && !call->receiving;
        if (receive)
            call->want_receive = false;
    }
    (void)pthread_mutex_unlock(&call->lock);
    start_send(call, &out);
    if (receive)
        start_receive(call);
    if (cancel) {
        call->cancel_sent = true;
        (void)grpc_call_cancel(call->grpc, NULL);
    }
}
