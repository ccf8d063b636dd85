/*
 * ps_socket: kind socket, the same pieces over plain sockets, with the same number of connections
 * from each worker to each server.  A server has a thread per connection, which receives a piece
 * and sends it back; a worker sends and receives at the same time, as a worker that pushes and
 * pulls does.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "experiments/bench/bench_ps.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- server ---- */

struct echo {
    const struct ps_words *words;
    int fd;
    unsigned char *buffer; /* owned, a piece */
};

static void *run_echo(void *user)
{
    const struct echo *e = user;
    size_t pieces = ps_pieces(e->words), first = e->words->rank;
    uint64_t connection_index = 0;

    if (e->words->connections > 1 &&
        net_recv_all(e->fd, &connection_index, sizeof(connection_index), INT64_MAX, NULL) !=
            STATUS_OK)
        return NULL;
    first += connection_index * e->words->servers;
    for (size_t i = first;; i += e->words->servers * e->words->connections) {
        size_t offset, bytes;

        if (i >= pieces)
            i = first; /* the next iteration */
        ps_piece(e->words, i, &offset, &bytes);
        if (net_recv_all(e->fd, e->buffer, bytes, INT64_MAX, NULL) != STATUS_OK ||
            net_send_all(e->fd, e->buffer, bytes, INT64_MAX, NULL) != STATUS_OK)
            return NULL; /* the worker has closed the connection */
    }
}

enum status ps_socket_serve(const struct ps_words *words, struct error *err)
{
    struct endpoint listen;
    struct echo *echoes = NULL;
    pthread_t *threads = NULL;
    uint16_t port = 0;
    int fd = -1;
    size_t started = 0, count = words->workers * words->connections;
    enum status status = endpoint_parse(words->address, "bench ps", &listen, err);

    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*echoes), "connections", &echoes, err);
    if (status == STATUS_OK)
        status = mem_calloc(count, sizeof(*threads), "threads", &threads, err);
    if (status == STATUS_OK)
        status = net_listen(&listen, "bench ps", &fd, &port, err);
    if (status == STATUS_OK)
        status = ps_write_port(words, port, err);
    for (; status == STATUS_OK && started < count; started++) {
        struct echo *e = &echoes[started];

        *e = (struct echo){.words = words, .fd = -1};
        status = mem_calloc(words->partition_bytes, 1, "a piece", &e->buffer, err);
        if (status == STATUS_OK)
            status = net_accept(fd, clock_deadline_ns((int64_t)words->timeout_ms), &e->fd, err);
        if (status == STATUS_OK && pthread_create(&threads[started], NULL, run_echo, e) != 0)
            status = error_set(err, STATUS_IO, "cannot start a thread");
        if (status != STATUS_OK)
            return status; /* the process ends: nothing to release */
    }
    for (size_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
        (void)close(echoes[i].fd);
        free(echoes[i].buffer);
    }
    if (fd >= 0)
        (void)close(fd);
    free(threads);
    free(echoes);
    return status;
}

/* ---- worker ---- */

struct connection {
    struct ps_worker *worker;
    size_t index;  /* among all of the worker */
    size_t stride; /* of its pieces: the number of connections */
    int fd;
    int64_t deadline_ns; /* of the iteration */
    uint64_t received;   /* in it */
    enum status status;  /* of the sending thread */
    struct error err;
};

struct receiver {
    pthread_t thread;
    struct connection *connection;
    enum status status;
    struct error err;
};

struct sockets {
    size_t length;
    struct connection connections[PS_CONNECTIONS_MAX];
    struct receiver receivers[PS_CONNECTIONS_MAX];
};

static void *send_pieces(void *user)
{
    struct connection *c = user;
    const struct ps_worker *w = c->worker;
    size_t pieces = ps_pieces(&w->words);

    for (size_t i = c->index; c->status == STATUS_OK && i < pieces; i += c->stride) {
        size_t offset, bytes;

        ps_piece(&w->words, i, &offset, &bytes);
        c->status =
            net_send_all(c->fd, (const char *)w->values + offset, bytes, c->deadline_ns, &c->err);
    }
    return NULL;
}

/* A piece is overwritten only after it was sent: the server replies after it received all of it. */
static enum status receive_pieces(struct connection *c, struct error *err)
{
    struct ps_worker *w = c->worker;
    size_t pieces = ps_pieces(&w->words);
    enum status status = STATUS_OK;

    for (size_t i = c->index; status == STATUS_OK && i < pieces; i += c->stride) {
        size_t offset, bytes;

        ps_piece(&w->words, i, &offset, &bytes);
        status = net_recv_all(c->fd, (char *)w->values + offset, bytes, c->deadline_ns, err);
        c->received += status == STATUS_OK ? bytes : 0;
    }
    return status;
}

/* One connection: a single piece needs no second thread. */
static enum status exchange_pieces(struct connection *c, struct error *err)
{
    bool alone = ps_pieces(&c->worker->words) <= c->stride;
    pthread_t sender;
    int failed = 0;
    enum status status;

    c->received = 0;
    c->deadline_ns = clock_deadline_ns((int64_t)c->worker->words.timeout_ms);
    if (alone)
        (void)send_pieces(c);
    else
        failed = pthread_create(&sender, NULL, send_pieces, c);
    if (failed)
        return error_set_errno(err, failed, "cannot start a thread");
    status = receive_pieces(c, err);
    if (!alone)
        (void)pthread_join(sender, NULL);
    return c->status == STATUS_OK ? status : error_set(err, c->status, "%s", c->err.text);
}

static void *run_receiver(void *user)
{
    struct receiver *r = user;

    r->status = exchange_pieces(r->connection, &r->err);
    return NULL;
}

static enum status socket_iterate(struct ps_worker *w, struct error *err)
{
    struct sockets *s = w->impl;
    struct receiver *receivers = s->receivers;
    size_t started = 1;
    enum status status = STATUS_OK;

    for (; status == STATUS_OK && started < s->length; started++) {
        struct receiver *r = &receivers[started];
        int failed;

        *r = (struct receiver){.connection = &s->connections[started]};
        failed = pthread_create(&r->thread, NULL, run_receiver, r);
        if (failed)
            return error_set_errno(err, failed, "cannot start a thread");
    }
    status = exchange_pieces(&s->connections[0], err);
    for (size_t i = 1; i < started; i++) {
        (void)pthread_join(receivers[i].thread, NULL);
        if (status == STATUS_OK && receivers[i].status != STATUS_OK)
            status = error_set(err, receivers[i].status, "%s", receivers[i].err.text);
    }
    for (size_t i = 0; i < s->length; i++)
        w->received += s->connections[i].received;
    return status;
}

static enum status socket_open(struct ps_worker *w, struct error *err)
{
    struct sockets *s;
    size_t count = w->server_count * (size_t)w->words.connections;
    enum status status = mem_calloc(1, sizeof(*s), "sockets", &s, err);

    if (status != STATUS_OK)
        return status;
    w->impl = s;
    for (size_t k = 0; status == STATUS_OK && k < count; k++) {
        int64_t deadline_ns = clock_deadline_ns((int64_t)w->words.timeout_ms);
        uint64_t connection_index = k / w->server_count;

        s->connections[k] = (struct connection){.worker = w, .index = k, .stride = count, .fd = -1};
        status =
            net_connect(&w->servers[k % w->server_count], deadline_ns, &s->connections[k].fd, err);
        s->length = k + 1;
        if (status == STATUS_OK && w->words.connections > 1)
            status = net_send_all(s->connections[k].fd, &connection_index, sizeof(connection_index),
                                  deadline_ns, err);
    }
    return status;
}

static void socket_close(struct ps_worker *w, const struct error *failure)
{
    struct sockets *s = w->impl;

    (void)failure;
    for (size_t k = 0; s && k < s->length; k++)
        if (s->connections[k].fd >= 0)
            (void)close(s->connections[k].fd);
    free(s);
}

const struct ps_worker_ops ps_socket_worker = {
    .sums = false, .open = socket_open, .iterate = socket_iterate, .close = socket_close};
