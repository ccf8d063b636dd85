/*
 * link: a reply is asked for when the one before was taken, so a client that cannot write stops the
 * daemon's sending, by gRPC's flow control; its signs of life go on.
 */
#include "experiments/standby/link.h"

#include "common/base/clock.h"
#include "experiments/standby/standby.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LEAVE_MS 2000

static void wake(const struct link *l)
{
    const uint64_t one = 1;

    (void)!write(l->wake_fd, &one, sizeof(one));
}

static void take_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct link *l = user;
    struct standby_reply reply = {0};
    struct error err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message)
        return;
    head = rpc_message_head(message, &size);
    status = wire_unpack_standby_reply(head, size, &reply, &err);
    (void)pthread_mutex_lock(&l->lock);
    l->heard_ns = clock_now_ns();
    l->is_accepted = true;
    l->has_reply = status == STATUS_OK && reply.kind != STANDBY_ALIVE;
    if (l->has_reply)
        l->reply = reply;
    else
        free(reply.data);
    if (status != STATUS_OK)
        l->failure = err;
    (void)pthread_mutex_unlock(&l->lock);
    if (status != STATUS_OK)
        rpc_call_cancel(call);
    else if (reply.kind == STANDBY_ALIVE)
        rpc_call_receive(call);
    wake(l);
}

static void take_end(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct link *l = user;

    (void)call;
    (void)pthread_mutex_lock(&l->lock);
    l->result = *result;
    l->is_closed = true;
    (void)pthread_mutex_unlock(&l->lock);
    wake(l);
}

static const struct rpc_handler handler = {.message = take_message, .closed = take_end};

static enum status send_request(struct link *l, const struct standby_request *request,
                                struct error *err)
{
    uint8_t *bytes = NULL;
    size_t size;
    enum status status = wire_pack_standby_request(request, &bytes, &size, err);

    if (status == STATUS_OK)
        (void)rpc_call_send(l->call, bytes, size, NULL); /* its failure is also the call's end */
    free(bytes);
    l->beat_ns = clock_now_ns() + STANDBY_BEAT_NS;
    return status;
}

enum status link_open(struct link *l, const char *address, const struct rpc_security *security,
                      const struct standby_request *request, struct error *err)
{
    struct rpc_client_config config = {.security = *security};
    char with_port[300];
    enum status status;

    (void)snprintf(with_port, sizeof(with_port), "%s%s", address,
                   strchr(address, ':') ? "" : ":" STANDBY_PORT);
    status = endpoint_parse(with_port, "the address of a standby daemon", &config.target, err);
    *l = (struct link){.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                       .heard_ns = clock_now_ns()};
    (void)pthread_mutex_init(&l->lock, NULL);
    if (status != STATUS_OK)
        return status;
    endpoint_format(&config.target, l->address, sizeof(l->address));
    if (l->wake_fd < 0)
        return error_set_errno(err, errno, "cannot make an eventfd");
    status = rpc_client_open(&config, &l->client, err);
    if (status != STATUS_OK)
        return status;
    rpc_client_fail_fast(l->client);
    status = rpc_client_call(l->client, STANDBY_PATH, INT64_MAX, &handler, l, &l->call, err);
    if (status != STATUS_OK)
        return status;
    rpc_call_receive(l->call);
    return send_request(l, request, err);
}

void link_tell(struct link *l, bool stop)
{
    const struct standby_request request = {.stop = stop};

    if (stop || clock_now_ns() >= l->beat_ns)
        (void)send_request(l, &request, NULL);
}

static enum status describe_end(const struct link *l, struct error *err)
{
    const char *text = l->failure.status != STATUS_OK ? l->failure.text : l->result.text;
    enum status status = l->failure.status != STATUS_OK ? l->failure.status : l->result.status;

    if (status == STATUS_OK)
        return error_set(err, STATUS_PROTOCOL,
                         "the standby daemon at %s has ended the task without "
                         "its exit code",
                         l->address);
    return error_set(err, status, "the standby daemon at %s: %s", l->address,
                     text[0] ? text : status_name(status));
}

enum status link_take(struct link *l, struct standby_reply *ret, struct error *err)
{
    uint64_t count;
    int64_t silent_ns;
    enum status status = STATUS_OK;
    bool taken;

    *ret = (struct standby_reply){0};
    (void)!read(l->wake_fd, &count, sizeof(count));
    (void)pthread_mutex_lock(&l->lock);
    taken = l->has_reply;
    if (taken)
        *ret = l->reply;
    l->has_reply = false;
    silent_ns = taken ? 0 : clock_now_ns() - l->heard_ns;
    if (!taken && l->is_closed)
        status = describe_end(l, err);
    else if (silent_ns > STANDBY_LOST_NS)
        status = error_set(err, STATUS_PEER_LOST,
                           "the standby daemon at %s has said nothing for %" PRId64 " s",
                           l->address, silent_ns / 1000000000);
    (void)pthread_mutex_unlock(&l->lock);
    if (taken)
        rpc_call_receive(l->call);
    return status;
}

bool link_is_accepted(struct link *l)
{
    bool is_accepted;

    (void)pthread_mutex_lock(&l->lock);
    is_accepted = l->is_accepted;
    (void)pthread_mutex_unlock(&l->lock);
    return is_accepted;
}

/* So that the daemon knows before this process does anything else. */
static void leave(struct link *l)
{
    const int64_t deadline_ns = clock_deadline_ns(LEAVE_MS);
    struct pollfd fd = {.fd = l->wake_fd, .events = POLLIN};
    uint64_t count;
    bool is_closed = false;

    rpc_call_send_done(l->call);
    while (!is_closed && clock_left_ms(deadline_ns) > 0) {
        (void)pthread_mutex_lock(&l->lock);
        is_closed = l->is_closed;
        (void)pthread_mutex_unlock(&l->lock);
        if (!is_closed)
            (void)poll(&fd, 1, clock_left_ms(deadline_ns));
        (void)!read(l->wake_fd, &count, sizeof(count));
    }
    rpc_call_cancel(l->call);
    rpc_call_unref(l->call);
}

void link_close(struct link *l)
{
    if (l->call)
        leave(l);
    rpc_client_close(l->client);
    free(l->reply.data);
    if (l->wake_fd >= 0)
        (void)close(l->wake_fd);
    (void)pthread_mutex_destroy(&l->lock);
    *l = (struct link){.wake_fd = -1};
}
