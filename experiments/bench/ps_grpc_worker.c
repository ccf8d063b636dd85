/*
 * ps_grpc_worker: the worker of kind grpc-echo.  All operations of a stream run on its queue's
 * thread; the main thread starts an iteration by an empty batch on each connection and waits under
 * `lock` until all connections have finished.
 */
#include "common/base/memory.h"
#include "common/rpc/socket_options.h"
#include "experiments/bench/ps_grpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

struct connection {
    struct echo_worker *owner;
    size_t index; /* among all of the worker */
    grpc_channel *channel;
    grpc_completion_queue *queue;
    pthread_t thread;
    grpc_call *call;
    struct tag on_wake, on_send, on_receive, on_close;
    grpc_byte_buffer *received;
    bool initial_sent, sending;
    size_t to_send, to_receive; /* the next pieces; ps_pieces or more: none */
    uint64_t received_bytes;    /* bytes copied into the result in this iteration */
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice details;
};

struct echo_worker {
    struct ps_worker *base;
    size_t pieces, length;
    struct connection connections[PS_CONNECTIONS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    size_t busy; /* connections that have not finished the iteration */
    bool failed; /* a stream broke */
};

static void finish_connection(struct connection *c, bool failed)
{
    (void)pthread_mutex_lock(&c->owner->lock);
    c->owner->busy--;
    c->owner->failed |= failed;
    (void)pthread_cond_signal(&c->owner->changed);
    (void)pthread_mutex_unlock(&c->owner->lock);
}

static void send_piece(struct connection *c)
{
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_MESSAGE}};
    struct ps_worker *w = c->owner->base;
    size_t offset, bytes;
    grpc_slice slice;
    grpc_byte_buffer *buffer;

    if (c->sending || c->to_send >= c->owner->pieces)
        return;
    c->sending = true;
    ps_piece(&w->words, c->to_send, &offset, &bytes);
    c->to_send += c->owner->length;
    slice = grpc_slice_from_static_buffer((const char *)w->values + offset, bytes);
    buffer = grpc_raw_byte_buffer_create(&slice, 1);
    ops[1].data.send_message.send_message = buffer;
    ops[0].flags =
        GRPC_INITIAL_METADATA_WAIT_FOR_READY | GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    (void)ps_grpc_start(c->call, c->initial_sent ? ops + 1 : ops, c->initial_sent ? 1 : 2,
                        &c->on_send);
    c->initial_sent = true;
    grpc_byte_buffer_destroy(buffer);
}

/* May complete after the echo of the message arrived, and so in the next iteration. */
static void worker_sent(struct tag *tag, bool ok)
{
    struct connection *c = tag->owner;

    c->sending = !ok; /* broken: send nothing more */
    send_piece(c);
}

static void receive_message(struct connection *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    op.data.recv_message.recv_message = &c->received;
    (void)ps_grpc_start(c->call, &op, 1, &c->on_receive);
}

/* Copy a message to its offset in the values; false when it has another size. */
static bool copy_to_values(const struct connection *c, grpc_byte_buffer *buffer, size_t offset,
                           size_t bytes)
{
    char *to = (char *)c->owner->base->values + offset;
    grpc_byte_buffer_reader reader;
    grpc_slice *slice;
    size_t done = 0;

    if (grpc_byte_buffer_length(buffer) != bytes || !grpc_byte_buffer_reader_init(&reader, buffer))
        return false;
    while (grpc_byte_buffer_reader_peek(&reader, &slice)) {
        memcpy(to + done, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
        done += GRPC_SLICE_LENGTH(*slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    return true;
}

static void worker_received(struct tag *tag, bool ok)
{
    struct connection *c = tag->owner;
    size_t offset, bytes;

    if (!ok || !c->received)
        return; /* on_close reports the failure */
    ps_piece(&c->owner->base->words, c->to_receive, &offset, &bytes);
    if (!copy_to_values(c, c->received, offset, bytes))
        (void)grpc_call_cancel(c->call, NULL);
    grpc_byte_buffer_destroy(c->received);
    c->received = NULL;
    c->received_bytes += bytes;
    c->to_receive += c->owner->length;
    if (c->to_receive >= c->owner->pieces)
        finish_connection(c, false);
    receive_message(c);
}

static void worker_closed(struct tag *tag, bool ok)
{
    struct connection *c = tag->owner;

    (void)ok;
    (void)pthread_mutex_lock(&c->owner->lock);
    c->owner->failed = true;
    (void)pthread_cond_signal(&c->owner->changed);
    (void)pthread_mutex_unlock(&c->owner->lock);
}

/* Start the next iteration. */
static void worker_woken(struct tag *tag, bool ok)
{
    struct connection *c = tag->owner;

    (void)ok;
    c->to_send = c->to_receive = c->index;
    c->received_bytes = 0;
    send_piece(c);
}

static enum status open_channel(struct connection *c, const struct endpoint *server,
                                struct error *err)
{
    const struct ps_words *words = &c->owner->base->words;
    grpc_arg args[] = {
        ps_grpc_integer(GRPC_ARG_HTTP2_BDP_PROBE, !PS_GRPC_IS_FIXED(words->address)),
        ps_grpc_integer(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, PS_GRPC_FRAME_BYTES(words->address)),
        ps_grpc_integer(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        ps_grpc_integer(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        ps_grpc_integer(GRPC_ARG_ENABLE_RETRIES, 0),
        ps_grpc_integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, INT_MAX),
        rpc_socket_arg(PS_GRPC_IS_FIXED(words->address))};
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};
    grpc_channel_credentials *credentials;
    struct pem pem = {0};
    char target[300];
    enum status status;

    endpoint_format(server, target, sizeof(target));
    if (!ps_grpc_is_tls(words)) {
        credentials = grpc_insecure_credentials_create();
    } else {
        grpc_ssl_pem_key_cert_pair pair;

        status = ps_grpc_read_pem(&words->security, &pem, err);
        if (status != STATUS_OK) {
            ps_grpc_release_pem(&pem);
            return status;
        }
        pair = (grpc_ssl_pem_key_cert_pair){pem.key, pem.cert};
        credentials = grpc_ssl_credentials_create(pem.ca, &pair, NULL, NULL);
        ps_grpc_release_pem(&pem);
    }
    c->channel = grpc_channel_create(target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return STATUS_OK;
}

static enum status open_connection(struct connection *c, const struct endpoint *server,
                                   struct error *err)
{
    grpc_op ops[2] = {{.op = GRPC_OP_RECV_INITIAL_METADATA}, {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};
    enum status status = open_channel(c, server, err);
    int failed;

    if (status != STATUS_OK)
        return status;
    c->queue = grpc_completion_queue_create_for_next(NULL);
    c->on_wake = (struct tag){worker_woken, c};
    c->on_send = (struct tag){worker_sent, c};
    c->on_receive = (struct tag){worker_received, c};
    c->on_close = (struct tag){worker_closed, c};
    c->call = grpc_channel_create_call(c->channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->queue,
                                       grpc_slice_from_static_string(PS_GRPC_METHOD), NULL,
                                       gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_metadata_array_init(&c->initial);
    grpc_metadata_array_init(&c->trailing);
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &c->initial;
    ops[1].data.recv_status_on_client.trailing_metadata = &c->trailing;
    ops[1].data.recv_status_on_client.status = &c->code;
    ops[1].data.recv_status_on_client.status_details = &c->details;
    (void)ps_grpc_start(c->call, ops, 2, &c->on_close);
    receive_message(c);
    failed = pthread_create(&c->thread, NULL, ps_grpc_run_thread, c->queue);
    if (failed)
        return error_set_errno(err, failed, "cannot start a thread");
    return STATUS_OK;
}

static enum status grpc_open(struct ps_worker *w, struct error *err)
{
    struct echo_worker *e;
    enum status status = mem_calloc(1, sizeof(*e), "streams", &e, err);

    if (status != STATUS_OK)
        return status;
    ps_grpc_init();
    w->impl = e;
    e->base = w;
    e->pieces = ps_pieces(&w->words);
    e->length = w->server_count * (size_t)w->words.connections;
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->changed, NULL);
    for (size_t k = 0; status == STATUS_OK && k < e->length; k++) {
        e->connections[k] = (struct connection){.owner = e, .index = k};
        status = open_connection(&e->connections[k], &w->servers[k % w->server_count], err);
    }
    return status;
}

static enum status grpc_iterate(struct ps_worker *w, struct error *err)
{
    struct echo_worker *e = w->impl;
    size_t used = e->length < e->pieces ? e->length : e->pieces;
    bool failed;

    e->busy = used; /* no lock: no batch that writes it is pending */
    for (size_t k = 0; k < used; k++) {
        struct connection *c = &e->connections[k];

        (void)ps_grpc_start(c->call, NULL, 0, &c->on_wake);
    }
    (void)pthread_mutex_lock(&e->lock);
    while (e->busy > 0 && !e->failed)
        (void)pthread_cond_wait(&e->changed, &e->lock);
    failed = e->failed;
    for (size_t k = 0; k < used && !failed; k++) /* the connections are idle */
        w->received += e->connections[k].received_bytes;
    (void)pthread_mutex_unlock(&e->lock);
    return failed ? error_set(err, STATUS_PEER_LOST, "an echo stream ended") : STATUS_OK;
}

/* Only the receive is pending, so no batch is started after the cancel. */
static void close_connection(struct connection *c)
{
    (void)grpc_call_cancel(c->call, NULL);
    grpc_completion_queue_shutdown(c->queue);
    (void)pthread_join(c->thread, NULL);
    grpc_metadata_array_destroy(&c->initial);
    grpc_metadata_array_destroy(&c->trailing);
    grpc_slice_unref(c->details);
    grpc_call_unref(c->call);
    grpc_channel_destroy(c->channel);
    grpc_completion_queue_destroy(c->queue);
}

/* After a failure the process ends without release (see bench_ps_worker): streams may be active. */
static void grpc_close(struct ps_worker *w, const struct error *failure)
{
    struct echo_worker *e = w->impl;

    if (failure)
        return;
    for (size_t k = 0; k < e->length; k++)
        close_connection(&e->connections[k]);
    (void)pthread_cond_destroy(&e->changed);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}

const struct ps_worker_ops ps_grpc_worker = {
    .sums = false, .open = grpc_open, .iterate = grpc_iterate, .close = grpc_close};
