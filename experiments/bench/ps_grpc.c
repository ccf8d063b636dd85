/*
 * Kind grpc-echo: what gRPC's C core itself moves in the same pattern, and so the ceiling of ours.
 * As many connections from each worker to each server, one stream on each, messages of a partition,
 * as many completion queues with a thread each as sparring-server has.  The server sends every
 * message back as it came, by reference; the worker copies what it receives to its place, since a
 * gradient that stays in slices is of no use to anybody.  No headers, no sum, no book-keeping.
 *
 * The only source outside common/rpc that knows gRPC: it measures gRPC without common/rpc, but
 * under the same conditions.
 *
 * Threads.  Everything of a stream happens on its queue's thread.  A worker's own thread hands an
 * iteration over by an empty batch and waits under `lock` until all streams are through.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/rpc/loopback.h"
#include "experiments/bench/bench_ps.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METHOD     "/sparring.bench.v1.Echo/Exchange"
#define PEM_MAX    ((size_t)1 << 20)
#define QUEUES_MAX 4 /* of a server, as in common/rpc */
#define SLOTS      4
#define TRIM_BYTES (256 << 20)
#define MMAP_BYTES (32 << 20)

/* glibc's allocator as common/rpc tunes it, or the ceiling would be lower by a third: otherwise
 * freed slices go back to the kernel and are taken anew, message by message.  As there, core is
 * never shut down. */
static void open_library(void)
{
    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    grpc_init();
}

struct tag {
    void (*complete)(struct tag *tag, bool ok);
    void *owner;
};

static void run_queue(grpc_completion_queue *queue)
{
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);

        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return;
        if (event.type == GRPC_OP_COMPLETE)
            ((struct tag *)event.tag)->complete(event.tag, event.success != 0);
    }
}

static void *run_queue_thread(void *user)
{
    run_queue(user);
    return NULL;
}

static bool start(grpc_call *call, const grpc_op *ops, size_t count, struct tag *tag)
{
    return grpc_call_start_batch(call, ops, count, tag, NULL) == GRPC_CALL_OK;
}

/* Flow control as common/rpc sets it inside a host: see rpc_has_fixed_windows. */
#define IS_FIXED(place)    (strncmp(place, "unix:", 5) != 0)
#define FRAME_BYTES(place) (IS_FIXED(place) ? 1 << 20 : 16 << 10)

static grpc_arg integer(const char *key, int value)
{
    union {
        const char *constant;
        char *plain;
    } name = {.constant = key};

    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = name.plain, .value.integer = value};
}

/* ---- credentials ---- */

struct pem {
    char *ca, *cert, *key; /* owned */
};

static bool is_tls(const struct ps_words *words)
{
    return words->security.ca_file[0] != '\0';
}

static enum status pem_read(const struct rpc_security *security, struct pem *pem, struct error *err)
{
    size_t size;
    enum status status = file_read(security->ca_file, PEM_MAX, &pem->ca, &size, err);

    if (status == STATUS_OK)
        status = file_read(security->cert_file, PEM_MAX, &pem->cert, &size, err);
    if (status == STATUS_OK)
        status = file_read(security->key_file, PEM_MAX, &pem->key, &size, err);
    return status;
}

static void pem_release(struct pem *pem)
{
    free(pem->ca);
    free(pem->cert);
    free(pem->key);
}

/* ---- server ---- */

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
};

struct slot {
    struct tag tag;
    grpc_server *server;
    grpc_completion_queue *queue;
    void *method;
    grpc_call *call;
    gpr_timespec deadline;
    grpc_metadata_array metadata;
};

static void receive(struct stream *s)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    op.data.recv_message.recv_message = &s->received;
    (void)start(s->call, &op, 1, &s->on_receive);
}

static void finish(struct stream *s)
{
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                      {.op = GRPC_OP_SEND_STATUS_FROM_SERVER}};

    s->finished = true;
    s->sending = true;
    (void)start(s->call, s->initial_sent ? ops + 1 : ops, s->initial_sent ? 1 : 2, &s->on_send);
}

static void send_next(struct stream *s)
{
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_MESSAGE}};
    struct pending *p = s->first;

    if (s->sending)
        return;
    if (!p) {
        if (s->ended && !s->finished)
            finish(s);
        return;
    }
    s->first = p->next;
    if (!s->first)
        s->last = NULL;
    ops[1].data.send_message.send_message = p->buffer;
    s->sending = true;
    (void)start(s->call, s->initial_sent ? ops + 1 : ops, s->initial_sent ? 1 : 2, &s->on_send);
    s->initial_sent = true;
    grpc_byte_buffer_destroy(p->buffer);
    free(p);
}

static void server_received(struct tag *tag, bool ok)
{
    struct stream *s = tag->owner;
    struct pending *p = ok && s->received ? malloc(sizeof(*p)) : NULL;

    if (!p) { /* the worker's last message, or the end of a broken stream */
        s->ended = true;
        send_next(s);
        return;
    }
    *p = (struct pending){.buffer = s->received};
    s->received = NULL;
    if (s->last)
        s->last->next = p;
    else
        s->first = p;
    s->last = p;
    send_next(s);
    receive(s);
}

static void server_sent(struct tag *tag, bool ok)
{
    struct stream *s = tag->owner;

    s->sending = !ok; /* broken: nothing more is sent */
    if (ok)
        send_next(s);
}

/* The stream's memory stays: a server of bench ps has one stream per worker and ends with them. */
static void server_closed(struct tag *tag, bool ok)
{
    (void)tag;
    (void)ok;
}

static void arm(struct slot *slot)
{
    grpc_metadata_array_init(&slot->metadata);
    (void)grpc_server_request_registered_call(slot->server, slot->method, &slot->call,
                                              &slot->deadline, &slot->metadata, NULL, slot->queue,
                                              slot->queue, &slot->tag);
}

static void slot_done(struct tag *tag, bool ok)
{
    struct slot *slot = tag->owner;
    struct stream *s = ok ? calloc(1, sizeof(*s)) : NULL;
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    if (!s)
        return;
    s->call = slot->call;
    s->on_receive = (struct tag){server_received, s};
    s->on_send = (struct tag){server_sent, s};
    s->on_close = (struct tag){server_closed, s};
    op.data.recv_close_on_server.cancelled = &s->cancelled;
    (void)start(s->call, &op, 1, &s->on_close);
    grpc_metadata_array_destroy(&slot->metadata);
    arm(slot);
    receive(s);
}

static enum status bind_server(grpc_server *server, const struct ps_words *words,
                               uint16_t *ret_port, struct error *err)
{
    grpc_server_credentials *credentials;
    int port;

    if (is_tls(words)) {
        struct pem pem = {0};
        grpc_ssl_pem_key_cert_pair pair;
        enum status status = pem_read(&words->security, &pem, err);

        if (status != STATUS_OK) {
            pem_release(&pem);
            return status;
        }
        pair = (grpc_ssl_pem_key_cert_pair){pem.key, pem.cert};
        credentials = grpc_ssl_server_credentials_create_ex(
            pem.ca, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
        pem_release(&pem);
    } else {
        credentials = grpc_insecure_server_credentials_create();
    }
    port = grpc_server_add_http2_port(server, words->place, credentials);
    grpc_server_credentials_release(credentials);
    if (port <= 0)
        return error_set(err, STATUS_IO, "cannot listen on '%s'", words->place);
    *ret_port = strncmp(words->place, "unix:", 5) == 0 ? 0 : (uint16_t)port;
    return STATUS_OK;
}

enum status ps_grpc_serve(const struct ps_words *words, struct error *err)
{
    grpc_arg args[] = {integer(GRPC_ARG_HTTP2_BDP_PROBE, !IS_FIXED(words->place)),
                       integer(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME_BYTES(words->place)),
                       integer(GRPC_ARG_ALLOW_REUSEPORT, 0),
                       integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, INT_MAX), rpc_loopback_arg()};
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]) - !IS_FIXED(words->place), args};
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2; /* the workers have the other */
    int count = half < 1 ? 1 : half > QUEUES_MAX ? QUEUES_MAX : (int)half;
    grpc_completion_queue *queues[QUEUES_MAX];
    struct slot slots[QUEUES_MAX * SLOTS];
    grpc_server *server;
    pthread_t thread;
    void *method;
    uint16_t port = 0;
    enum status status;

    open_library();
    server = grpc_server_create(&list, NULL);
    method = grpc_server_register_method(server, METHOD, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
    for (int i = 0; i < count; i++) {
        queues[i] = grpc_completion_queue_create_for_next(NULL);
        grpc_server_register_completion_queue(server, queues[i], NULL);
    }
    status = bind_server(server, words, &port, err);
    if (status != STATUS_OK)
        return status; /* the process ends with it */
    grpc_server_start(server);
    for (int i = 0; i < count * SLOTS; i++) {
        slots[i] = (struct slot){.server = server, .queue = queues[i % count], .method = method};
        slots[i].tag = (struct tag){slot_done, &slots[i]};
        arm(&slots[i]);
    }
    for (int i = 1; i < count; i++)
        if (pthread_create(&thread, NULL, run_queue_thread, queues[i]) != 0)
            return error_set(err, STATUS_IO, "cannot start a thread");
    status = ps_write_port(words, port, err);
    if (status == STATUS_OK)
        run_queue(queues[0]); /* until bench ps ends the process */
    return status;
}

/* ---- worker ---- */

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
    uint64_t placed;            /* bytes put in their place in this iteration */
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
    size_t busy; /* connections that are not through */
    bool failed; /* a stream broke */
};

static void leave(struct connection *c, bool failed)
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
    (void)start(c->call, c->initial_sent ? ops + 1 : ops, c->initial_sent ? 1 : 2, &c->on_send);
    c->initial_sent = true;
    grpc_byte_buffer_destroy(buffer);
}

/* It may come behind the answer to what was sent, and so in the next iteration. */
static void worker_sent(struct tag *tag, bool ok)
{
    struct connection *c = tag->owner;

    c->sending = !ok; /* broken: nothing more is sent */
    send_piece(c);
}

static void ask(struct connection *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    op.data.recv_message.recv_message = &c->received;
    (void)start(c->call, &op, 1, &c->on_receive);
}

/* Copy a message to its place; false when it has another size. */
static bool place(const struct connection *c, grpc_byte_buffer *buffer, size_t offset, size_t bytes)
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
        return; /* on_close tells */
    ps_piece(&c->owner->base->words, c->to_receive, &offset, &bytes);
    if (!place(c, c->received, offset, bytes))
        (void)grpc_call_cancel(c->call, NULL);
    grpc_byte_buffer_destroy(c->received);
    c->received = NULL;
    c->placed += bytes;
    c->to_receive += c->owner->length;
    if (c->to_receive >= c->owner->pieces)
        leave(c, false);
    ask(c);
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

/* The next iteration. */
static void worker_woken(struct tag *tag, bool ok)
{
    struct connection *c = tag->owner;

    (void)ok;
    c->to_send = c->to_receive = c->index;
    c->placed = 0;
    send_piece(c);
}

static enum status open_channel(struct connection *c, const struct endpoint *server,
                                struct error *err)
{
    const struct ps_words *words = &c->owner->base->words;
    grpc_arg args[] = {integer(GRPC_ARG_HTTP2_BDP_PROBE, !IS_FIXED(words->place)),
                       integer(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME_BYTES(words->place)),
                       integer(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
                       integer(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
                       integer(GRPC_ARG_ENABLE_RETRIES, 0),
                       integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, INT_MAX),
                       rpc_loopback_arg()};
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]) - !IS_FIXED(words->place), args};
    grpc_channel_credentials *credentials;
    struct pem pem = {0};
    char target[300];
    enum status status;

    endpoint_format(server, target, sizeof(target));
    if (!is_tls(words)) {
        credentials = grpc_insecure_credentials_create();
    } else {
        grpc_ssl_pem_key_cert_pair pair;

        status = pem_read(&words->security, &pem, err);
        if (status != STATUS_OK) {
            pem_release(&pem);
            return status;
        }
        pair = (grpc_ssl_pem_key_cert_pair){pem.key, pem.cert};
        credentials = grpc_ssl_credentials_create(pem.ca, &pair, NULL, NULL);
        pem_release(&pem);
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
                                       grpc_slice_from_static_string(METHOD), NULL,
                                       gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_metadata_array_init(&c->initial);
    grpc_metadata_array_init(&c->trailing);
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &c->initial;
    ops[1].data.recv_status_on_client.trailing_metadata = &c->trailing;
    ops[1].data.recv_status_on_client.status = &c->code;
    ops[1].data.recv_status_on_client.status_details = &c->details;
    (void)start(c->call, ops, 2, &c->on_close);
    ask(c);
    failed = pthread_create(&c->thread, NULL, run_queue_thread, c->queue);
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
    open_library();
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

    e->busy = used; /* nothing is under way */
    for (size_t k = 0; k < used; k++) {
        struct connection *c = &e->connections[k];

        (void)start(c->call, NULL, 0, &c->on_wake);
    }
    (void)pthread_mutex_lock(&e->lock);
    while (e->busy > 0 && !e->failed)
        (void)pthread_cond_wait(&e->changed, &e->lock);
    failed = e->failed;
    for (size_t k = 0; k < used && !failed; k++) /* which are still */
        w->received += e->connections[k].placed;
    (void)pthread_mutex_unlock(&e->lock);
    return failed ? error_set(err, STATUS_PEER_LOST, "an echo stream ended") : STATUS_OK;
}

/* Nothing is under way but the receive that waits, so no batch is started after the cancel. */
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

/* After a failure the process just ends (see bench_ps_worker): streams may be anywhere. */
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
