/*
 * The ceiling: the same bytes over one plain TCP connection.  A child process receives a piece and
 * sends it back; here one thread sends while the other receives, as the worker's threads do.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"
#include "experiments/bench/bench_ps.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct raw {
    const struct bench_ps_config *config;
    int fd;
    int64_t deadline_ns; /* of the iteration */
    unsigned char *up, *down;
    struct error send_err;
    enum status send_status;
};

static size_t piece(const struct bench_ps_config *c, size_t done)
{
    return c->bytes - done < c->partition_bytes ? c->bytes - done : c->partition_bytes;
}

/* The child: echo until the peer closes. */
static int echo(const struct bench_ps_config *c, int listen_fd)
{
    int64_t deadline_ns = clock_deadline_ns(c->timeout_ms);
    unsigned char *buffer = NULL;
    int fd = -1;

    if (mem_calloc(c->partition_bytes, 1, "buffer", &buffer, NULL) != STATUS_OK ||
        net_accept(listen_fd, deadline_ns, &fd, NULL) != STATUS_OK)
        return 1;
    for (;;)
        for (size_t done = 0; done < c->bytes; done += piece(c, done))
            if (net_recv_all(fd, buffer, piece(c, done), INT64_MAX, NULL) != STATUS_OK ||
                net_send_all(fd, buffer, piece(c, done), INT64_MAX, NULL) != STATUS_OK)
                return 0;
}

static void *send_all(void *user)
{
    struct raw *r = user;

    for (size_t done = 0; r->send_status == STATUS_OK && done < r->config->bytes;
         done += piece(r->config, done))
        r->send_status =
            net_send_all(r->fd, r->up + done, piece(r->config, done), r->deadline_ns, &r->send_err);
    return NULL;
}

static enum status iterate(struct raw *r, double *ret_seconds, struct error *err)
{
    int64_t begin_ns = clock_now_ns();
    pthread_t thread;
    enum status status = STATUS_OK;
    int failed;

    r->deadline_ns = clock_deadline_ns(r->config->timeout_ms);
    failed = pthread_create(&thread, NULL, send_all, r);
    if (failed)
        return error_set_errno(err, failed, "cannot start a thread");
    for (size_t done = 0; status == STATUS_OK && done < r->config->bytes;
         done += piece(r->config, done))
        status = net_recv_all(r->fd, r->down + done, piece(r->config, done), r->deadline_ns, err);
    (void)pthread_join(thread, NULL);
    *ret_seconds = (double)(clock_now_ns() - begin_ns) * 1e-9;
    if (r->send_status != STATUS_OK)
        return error_set(err, r->send_status, "%s", r->send_err.text);
    return status;
}

static enum status exchange(struct raw *r, uint16_t port, double *seconds, struct error *err)
{
    const struct bench_ps_config *c = r->config;
    struct endpoint peer = {.host = "127.0.0.1", .port = port};
    double ignored;
    enum status status = net_connect(&peer, clock_deadline_ns(c->timeout_ms), &r->fd, err);

    if (status == STATUS_OK)
        status = mem_calloc(c->bytes, 1, "buffer", &r->up, err);
    if (status == STATUS_OK)
        status = mem_calloc(c->bytes, 1, "buffer", &r->down, err);
    for (size_t i = 0; status == STATUS_OK && i < c->warmup + c->iterations; i++)
        status = iterate(r, i < c->warmup ? &ignored : &seconds[i - c->warmup], err);
    if (r->fd >= 0)
        (void)close(r->fd);
    free(r->up);
    free(r->down);
    return status;
}

enum status bench_ps_raw(const struct bench_ps_config *config, double *seconds, struct error *err)
{
    struct endpoint any = {.host = "127.0.0.1"};
    struct raw raw = {.config = config, .fd = -1};
    uint16_t port;
    int listen_fd;
    pid_t child;
    enum status status = net_listen(&any, "bench ps", &listen_fd, &port, err);

    if (status != STATUS_OK)
        return status;
    child = fork(); /* before any thread of gRPC: this process never starts it */
    if (child == 0)
        _exit(echo(config, listen_fd));
    (void)close(listen_fd);
    if (child < 0)
        return error_set(err, STATUS_IO, "cannot start the echo process");
    status = exchange(&raw, port, seconds, err);
    (void)waitpid(child, NULL, 0);
    return status;
}
