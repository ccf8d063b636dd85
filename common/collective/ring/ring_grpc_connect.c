/*
 * Opening of the gRPC transport's links, and the callbacks of their calls.  The first message of a
 * call is a hello, which makes the call a link or ends it; later messages are stored in the link's
 * window, and no more are requested while that is full.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/collective/ring/ring_grpc.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HANDSHAKE_MS 10000

/* The state of a call, before and after it is assigned to a link. */
struct session {
    struct grpc_links *links;
    struct grpc_link *link; /* server: NULL before the hello */
    bool greeted;           /* the peer's hello has come */
    bool is_client;
};

void grpc_links_wake(struct grpc_links *l)
{
    uint64_t one = 1;

    (void)!write(l->event_fd, &one, sizeof(one));
}

/* ---- hello ---- */

static enum status send_hello(struct grpc_links *l, struct rpc_call *call, unsigned peer)
{
    struct ring_hello hello = l->hello;
    unsigned char bytes[RING_HELLO_BYTES];
    struct rpc_payload payload = {.size = RING_HELLO_BYTES, .release = free};
    unsigned char *copy;

    hello.cookie = l->endpoints[peer].cookie;
    ring_hello_encode(&hello, bytes);
    copy = malloc(sizeof(bytes));
    if (!copy)
        return STATUS_NO_MEMORY;
    memcpy(copy, bytes, sizeof(bytes));
    payload.data = payload.user = copy;
    return rpc_call_send(call, NULL, 0, &payload);
}

/* Whose hello this is; NULL and the reason when it is not expected. */
static struct grpc_link *find_link(struct grpc_links *l, struct rpc_message *message,
                                   const char **ret_why)
{
    unsigned char bytes[RING_HELLO_BYTES];
    struct ring_hello hello;

    *ret_why = "not a member of this group";
    if (rpc_message_copy(message, bytes, sizeof(bytes), NULL) != STATUS_OK ||
        !ring_hello_decode(bytes, &hello) || hello.group != l->hello.group ||
        hello.generation != l->hello.generation || hello.world_size != l->world_size ||
        hello.cookie != l->endpoints[l->rank].cookie || hello.rank >= l->world_size ||
        hello.rank == l->rank)
        return NULL;
    *ret_why = "that rank is here already";
    return &l->links[hello.rank];
}

/* Give the call to its link. */
static bool assign_call(struct grpc_links *l, struct grpc_link *link, struct rpc_call *call)
{
    bool is_free;

    (void)pthread_mutex_lock(&l->lock);
    is_free = !link->call && !link->ended && link->peer > l->rank;
    if (is_free) {
        rpc_call_ref(call);
        link->call = call;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return is_free;
}

static void mark_link_ready(struct grpc_links *l, struct grpc_link *link)
{
    (void)pthread_mutex_lock(&l->lock);
    link->is_ready = true;
    (void)pthread_mutex_unlock(&l->lock);
    grpc_links_wake(l);
}

static void handle_hello(struct session *s, struct rpc_call *call, struct rpc_message *message)
{
    const char *why;
    struct grpc_link *link = find_link(s->links, message, &why);

    s->greeted = true;
    if (s->is_client && link != s->link) {
        rpc_call_cancel(call); /* the peer is another rank */
        return;
    }
    if (!s->is_client) {
        if (!link || !assign_call(s->links, link, call) ||
            send_hello(s->links, call, link->peer) != STATUS_OK) {
            rpc_call_finish(call, STATUS_INVALID, why);
            return;
        }
        s->link = link;
    }
    mark_link_ready(s->links, link);
    rpc_call_receive(call);
}

/* ---- the calls' thread ---- */

static void take_message(struct grpc_links *l, struct grpc_link *link, struct rpc_call *call,
                         struct rpc_message *message)
{
    size_t size = rpc_message_payload_size(message);
    size_t window_index = link->written % GRPC_WINDOW; /* only this thread changes it */
    bool ask = true;

    if (size > GRPC_PIECE_BYTES) {
        rpc_call_cancel(call);
        return;
    }
    if (size > 0 && !atomic_load(&l->closing)) {
        (void)rpc_message_copy(message, link->in[window_index], size, NULL);
        link->in_bytes[window_index] = size;
        (void)pthread_mutex_lock(&l->lock);
        link->written++;
        ask = link->written - link->read < GRPC_WINDOW;
        link->full = !ask;
        (void)pthread_mutex_unlock(&l->lock);
        grpc_links_wake(l);
    }
    if (ask)
        rpc_call_receive(call);
}

static void on_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct session *s = user;

    if (!s)
        return;
    if (!message && !s->is_client)
        rpc_call_finish(call, STATUS_OK, NULL); /* the peer leaves, and has sent all it had */
    else if (message && !s->greeted)
        handle_hello(s, call, message);
    else if (message)
        take_message(s->links, s->link, call, message);
}

static void on_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct session *s = user; /* NULL: there was no memory for one */

    (void)call;
    if (s && s->link) {
        (void)pthread_mutex_lock(&s->links->lock);
        s->link->ended = true;
        (void)snprintf(s->link->why, sizeof(s->link->why), "%.150s",
                       result->text[0] ? result->text : "the call ended");
        (void)pthread_mutex_unlock(&s->links->lock);
        grpc_links_wake(s->links);
    }
    free(s);
}

static void on_start(struct rpc_call *call, void *user)
{
    struct session *s = calloc(1, sizeof(*s));

    rpc_call_set_user(call, s);
    if (!s) {
        rpc_call_cancel(call);
        return;
    }
    s->links = user;
    rpc_call_receive(call);
}

static const struct rpc_handler handler = {
    .start = on_start,
    .message = on_message,
    .closed = on_closed,
};

/* ---- connecting ---- */

/* Plaintext on any interface, too: without TLS the cookie of the hello keeps strangers out. */
static struct rpc_security link_security(const struct collective *group)
{
    struct rpc_security security = group->security ? *group->security : (struct rpc_security){0};

    security.insecure = true;
    return security;
}

static enum status open_server(struct grpc_links *l, struct collective *group,
                               struct endpoint *self, struct error *err)
{
    const struct rpc_method method = {.path = GRPC_LINK_PATH, .handler = &handler, .user = l};
    struct rpc_server_config config = {.listen_origin = "the ring's interface",
                                       .security = link_security(group),
                                       .methods = &method,
                                       .method_count = 1};
    enum status status;

    ring_choose_host(group, config.listen.host);
    status = rpc_server_open(&config, &l->server, err);
    *self = config.listen;
    if (status == STATUS_OK)
        self->port = rpc_server_port(l->server);
    return status;
}

/* Over TLS, ask the peer, which listens already, whether it can be reached: core repeats a
 * handshake that fails for ever, and the answer tells why. */
static enum status check_handshake(struct rpc_client *client, int64_t deadline_ns,
                                   struct error *err)
{
    int64_t until_ns = clock_deadline_ns(HANDSHAKE_MS);
    uint8_t *reply = NULL;
    size_t size;
    enum status status =
        rpc_client_unary(client, RPC_HEALTH_CHECK, (const uint8_t *)"", 0,
                         until_ns < deadline_ns ? until_ns : deadline_ns, &reply, &size, err);

    free(reply);
    return status;
}

static enum status call_peer(struct grpc_links *l, const struct collective *group, unsigned peer,
                             const struct endpoint *self, int64_t deadline_ns, struct error *err)
{
    struct grpc_link *link = &l->links[peer];
    struct rpc_client_config config = {.security = link_security(group)};
    struct session *s = NULL;
    bool has_tls = false;
    enum status status = ring_endpoint_parse(&l->endpoints[peer], self, &config.target, err);

    if (status == STATUS_OK)
        status = rpc_security_check(&config.security, &has_tls, err);
    if (status == STATUS_OK)
        status = rpc_client_open(&config, &link->client, err);
    if (status == STATUS_OK && has_tls)
        status = check_handshake(link->client, deadline_ns, err);
    if (status == STATUS_OK)
        status = mem_calloc(1, sizeof(*s), "link", &s, err);
    if (status != STATUS_OK)
        return status;
    *s = (struct session){.links = l, .link = link, .is_client = true};
    status =
        rpc_client_call(link->client, GRPC_LINK_PATH, INT64_MAX, &handler, s, &link->call, err);
    if (status != STATUS_OK) {
        free(s);
        return status;
    }
    if (send_hello(l, link->call, peer) == STATUS_OK)
        rpc_call_receive(link->call);
    else
        rpc_call_cancel(link->call); /* if it has not ended by itself; on_closed gets the reason */
    return STATUS_OK;
}

/* The first link that does not stand; the world size when all do. */
static unsigned find_missing(struct grpc_links *l, char *ret_why, size_t size)
{
    unsigned missing = l->world_size;

    ret_why[0] = '\0';
    (void)pthread_mutex_lock(&l->lock);
    for (unsigned r = 0; r < l->world_size; r++) {
        const struct grpc_link *link = &l->links[r];

        if (r == l->rank || link->is_ready)
            continue;
        if (missing == l->world_size || link->ended)
            missing = r;
        if (link->ended)
            (void)snprintf(ret_why, size, "%s", link->why);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return missing;
}

static enum status wait_for_all(struct grpc_links *l, const struct collective *group,
                                int64_t deadline_ns, struct error *err)
{
    const struct mesh_alarm *alarm = group->setup_alarm;

    for (;;) {
        struct pollfd changed[2] = {{.fd = l->event_fd, .events = POLLIN},
                                    {.fd = alarm->fd, .events = POLLIN}};
        int left_ms = clock_left_ms(deadline_ns);
        char why[160];
        uint64_t count;
        unsigned missing;

        (void)!read(l->event_fd, &count, sizeof(count));
        missing = find_missing(l, why, sizeof(why));
        if (missing == l->world_size)
            return STATUS_OK;
        if (why[0])
            return error_set(err, STATUS_PEER_LOST, "no link to rank %u: %s",
                             group->members[missing], why);
        if (left_ms == 0)
            return error_set(err, STATUS_TIMEOUT, "rank %u did not connect",
                             group->members[missing]);
        if (poll(changed, 2, left_ms) < 0 && errno != EINTR)
            return error_set_errno(err, errno, "cannot wait for rank %u", group->members[missing]);
        if (changed[1].revents)
            return mesh_alarm_error(alarm, err);
    }
}

enum status grpc_links_connect(struct grpc_links *l, struct collective *group, int64_t deadline_ns,
                               struct error *err)
{
    const unsigned char one = 1;
    unsigned char *ready;
    struct endpoint self;
    enum status status;

    status = mem_calloc(group->world_size, 1, "ranks", &ready, err);
    if (status == STATUS_OK)
        status = open_server(l, group, &self, err);
    if (status == STATUS_OK)
        status = ring_endpoints_exchange(group, &self, 1, deadline_ns, l->endpoints, err);
    if (status == STATUS_OK) /* no rank calls before all have the cookies */
        status = collective_exchange(group, "ring ready", &one, 1, ready, deadline_ns, err);
    free(ready);
    for (unsigned peer = 0; peer < l->rank && status == STATUS_OK; peer++) {
        status = call_peer(l, group, peer, &self, deadline_ns, err);
        if (status != STATUS_OK)
            status = error_prefix(err, "to rank %u: ", group->members[peer]);
    }
    return status == STATUS_OK ? wait_for_all(l, group, deadline_ns, err) : status;
}
