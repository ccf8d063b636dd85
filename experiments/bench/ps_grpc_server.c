/*
 * ps_grpc_server: the server of kinds grpc-echo and grpc-sum.  All operations of a stream run on
 * its queue's thread, so there are no locks.
 */
#include "common/rpc/socket_options.h"
#include "common/tensor/tensor.h"
#include "experiments/bench/ps_grpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define QUEUES_MAX         4 /* as in common/rpc */
#define REQUESTS_PER_QUEUE 4

struct pending {
    struct pending *next;
    grpc_byte_buffer *buffer; /* owned */
};

struct stream {
    grpc_call *call;
    struct tag on_receive, on_send, on_close;
    grpc_byte_buffer *received;
    struct pending *first, *last; /* to be sent back, owned */
    bool sending, initial_sent, ended, finished;
    int cancelled;
    float *sum;       /* of grpc-sum: what a worker sends in an iteration; else NULL ... */
    size_t count, at; /* ... its elements, and the byte where the next slice begins */
};

struct call_request {
    struct tag tag;
    grpc_server *server;
    grpc_completion_queue *queue;
    const struct ps_words *words;
    void *method;
    grpc_call *call;
    gpr_timespec deadline;
    grpc_metadata_array metadata;
};

static void receive_message(struct stream *s)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    op.data.recv_message.recv_message = &s->received;
    (void)ps_grpc_start(s->call, &op, 1, &s->on_receive);
}

static void send_status(struct stream *s)
{
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                      {.op = GRPC_OP_SEND_STATUS_FROM_SERVER}};

    s->finished = true;
    s->sending = true;
    (void)ps_grpc_start(s->call, s->initial_sent ? ops + 1 : ops, s->initial_sent ? 1 : 2,
                        &s->on_send);
}

static void send_next(struct stream *s)
{
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_MESSAGE}};
    struct pending *p = s->first;

    if (s->sending)
        return;
    if (!p) {
        if (s->ended && !s->finished)
            send_status(s);
        return;
    }
    s->first = p->next;
    if (!s->first)
        s->last = NULL;
    ops[1].data.send_message.send_message = p->buffer;
    s->sending = true;
    (void)ps_grpc_start(s->call, s->initial_sent ? ops + 1 : ops, s->initial_sent ? 1 : 2,
                        &s->on_send);
    s->initial_sent = true;
    grpc_byte_buffer_destroy(p->buffer);
    free(p);
}

/* An element that is in two slices is left out. */
static void add_slice(struct stream *s, const unsigned char *bytes, size_t length)
{
    size_t skipped = (sizeof(float) - s->at % sizeof(float)) % sizeof(float);

    while (length >= skipped + sizeof(float)) {
        size_t first = (s->at + skipped) / sizeof(float) % s->count;
        size_t count = (length - skipped) / sizeof(float);
        size_t taken;

        count = count < s->count - first ? count : s->count - first;
        vector_add_bytes(s->sum + first, bytes + skipped, count);
        taken = skipped + count * sizeof(float);
        bytes += taken;
        length -= taken;
        s->at += taken;
        skipped = 0;
    }
    s->at += length;
}

static void add_message(struct stream *s)
{
    grpc_byte_buffer_reader reader;
    grpc_slice slice;

    if (!s->sum || !grpc_byte_buffer_reader_init(&reader, s->received))
        return;
    while (grpc_byte_buffer_reader_next(&reader, &slice)) {
        add_slice(s, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
}

static void server_received(struct tag *tag, bool ok)
{
    struct stream *s = tag->owner;
    struct pending *p = ok && s->received ? malloc(sizeof(*p)) : NULL;

    if (!p) { /* the worker has half-closed, or the stream broke */
        s->ended = true;
        send_next(s);
        return;
    }
    add_message(s);
    *p = (struct pending){.buffer = s->received};
    s->received = NULL;
    if (s->last)
        s->last->next = p;
    else
        s->first = p;
    s->last = p;
    send_next(s);
    receive_message(s);
}

static void server_sent(struct tag *tag, bool ok)
{
    struct stream *s = tag->owner;

    s->sending = !ok; /* broken: send nothing more */
    if (ok)
        send_next(s);
}

/* The stream's memory is not freed: there is one stream per connection, and the server ends with
 * it. */
static void server_closed(struct tag *tag, bool ok)
{
    (void)tag;
    (void)ok;
}

static void request_call(struct call_request *request)
{
    grpc_metadata_array_init(&request->metadata);
    (void)grpc_server_request_registered_call(request->server, request->method, &request->call,
                                              &request->deadline, &request->metadata, NULL,
                                              request->queue, request->queue, &request->tag);
}

static void call_arrived(struct tag *tag, bool ok)
{
    struct call_request *request = tag->owner;
    const struct ps_words *w = request->words;
    struct stream *s = ok ? calloc(1, sizeof(*s)) : NULL;
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    if (s && w->kind == PS_GRPC_SUM) {
        s->count = (size_t)(w->bytes / sizeof(float) / w->servers / w->connections) + 1;
        s->sum = calloc(s->count, sizeof(*s->sum));
    }
    if (!s || (w->kind == PS_GRPC_SUM && !s->sum)) { /* the worker's turn does not end */
        free(s);
        return;
    }
    s->call = request->call;
    s->on_receive = (struct tag){server_received, s};
    s->on_send = (struct tag){server_sent, s};
    s->on_close = (struct tag){server_closed, s};
    op.data.recv_close_on_server.cancelled = &s->cancelled;
    (void)ps_grpc_start(s->call, &op, 1, &s->on_close);
    grpc_metadata_array_destroy(&request->metadata);
    request_call(request);
    receive_message(s);
}

static enum status bind_server(grpc_server *server, const struct ps_words *words,
                               uint16_t *ret_port, struct error *err)
{
    grpc_server_credentials *credentials;
    int port;

    if (ps_grpc_is_tls(words)) {
        struct pem pem = {0};
        grpc_ssl_pem_key_cert_pair pair;
        enum status status = ps_grpc_read_pem(&words->security, &pem, err);

        if (status != STATUS_OK) {
            ps_grpc_release_pem(&pem);
            return status;
        }
        pair = (grpc_ssl_pem_key_cert_pair){pem.key, pem.cert};
        credentials = grpc_ssl_server_credentials_create_ex(
            pem.ca, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
        ps_grpc_release_pem(&pem);
    } else {
        credentials = grpc_insecure_server_credentials_create();
    }
    port = grpc_server_add_http2_port(server, words->address, credentials);
    grpc_server_credentials_release(credentials);
    if (port <= 0)
        return error_set(err, STATUS_IO, "cannot listen on '%s'", words->address);
    *ret_port = strncmp(words->address, "unix:", 5) == 0 ? 0 : (uint16_t)port;
    return STATUS_OK;
}

enum status ps_grpc_serve(const struct ps_words *words, struct error *err)
{
    grpc_arg args[] = {
        ps_grpc_integer(GRPC_ARG_HTTP2_BDP_PROBE, !PS_GRPC_IS_FIXED(words->address)),
        ps_grpc_integer(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, PS_GRPC_FRAME_BYTES(words->address)),
        ps_grpc_integer(GRPC_ARG_ALLOW_REUSEPORT, 0),
        ps_grpc_integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, INT_MAX),
        rpc_socket_arg(PS_GRPC_IS_FIXED(words->address))};
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2; /* the workers get the other half */
    int count = half < 1 ? 1 : half > QUEUES_MAX ? QUEUES_MAX : (int)half;
    grpc_completion_queue *queues[QUEUES_MAX];
    struct call_request requests[QUEUES_MAX * REQUESTS_PER_QUEUE];
    grpc_server *server;
    pthread_t thread;
    void *method;
    uint16_t port = 0;
    enum status status;

    ps_grpc_init();
    server = grpc_server_create(&list, NULL);
    method = grpc_server_register_method(server, PS_GRPC_METHOD, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
    for (int i = 0; i < count; i++) {
        queues[i] = grpc_completion_queue_create_for_next(NULL);
        grpc_server_register_completion_queue(server, queues[i], NULL);
    }
    status = bind_server(server, words, &port, err);
    if (status != STATUS_OK)
        return status; /* the process ends: nothing to release */
    grpc_server_start(server);
    for (int i = 0; i < count * REQUESTS_PER_QUEUE; i++) {
        requests[i] = (struct call_request){
            .server = server, .queue = queues[i % count], .words = words, .method = method};
        requests[i].tag = (struct tag){call_arrived, &requests[i]};
        request_call(&requests[i]);
    }
    for (int i = 1; i < count; i++)
        if (pthread_create(&thread, NULL, ps_grpc_run_thread, queues[i]) != 0)
            return error_set(err, STATUS_IO, "cannot start a thread");
    status = ps_write_port(words, port, err);
    if (status == STATUS_OK)
        ps_grpc_run(queues[0]); /* until bench ps ends the process */
    return status;
}
