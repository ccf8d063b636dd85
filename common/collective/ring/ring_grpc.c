/*
 * The gRPC transport.  Bytes to send are copied into one of a link's few messages, which is core's
 * until its memory is released; so the caller's buffers are never core's, whatever happens to the
 * operation.  Received messages were copied off core's slices by the call's thread (see
 * ring_grpc_connect.c) and are handed out from there.  The engine's thread and the calls' threads
 * meet under one lock, held for counters only, and in an eventfd.
 */
#include "common/collective/ring/ring_grpc.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CLOSE_WAIT_MS 5000 /* for peers to read the rest, and for core to release memory */

static struct grpc_link *link_of(struct transport *head, unsigned peer)
{
    return &((struct grpc_links *)head)->links[peer];
}

/* ---- sending ---- */

static void release_piece(void *user)
{
    struct grpc_piece *piece = user;
    struct grpc_links *links = piece->links;

    atomic_store(&piece->busy, false);
    grpc_links_wake(links);
}

static bool has_ended(struct grpc_link *link)
{
    bool ended;

    (void)pthread_mutex_lock(&link->links->lock);
    ended = link->ended;
    (void)pthread_mutex_unlock(&link->links->lock);
    return ended;
}

static ssize_t links_send(struct transport *head, unsigned peer, const struct iovec *parts,
                          int count)
{
    struct grpc_link *link = link_of(head, peer);
    struct grpc_piece *piece = &link->out[link->next_out];
    struct rpc_payload payload = {.data = piece->bytes, .release = release_piece, .user = piece};

    if (has_ended(link))
        return TRANSPORT_ENDED;
    if (atomic_load(&piece->busy))
        return 0;
    for (int i = 0; i < count; i++) {
        size_t room = GRPC_PIECE_BYTES - payload.size;
        size_t some = parts[i].iov_len < room ? parts[i].iov_len : room;

        if (some > 0)
            memcpy(piece->bytes + payload.size, parts[i].iov_base, some);
        payload.size += some;
    }
    if (payload.size == 0)
        return 0;
    atomic_store(&piece->busy, true);
    link->next_out = (link->next_out + 1) % GRPC_WINDOW;
    if (rpc_call_send(link->call, NULL, 0, &payload) != STATUS_OK)
        return TRANSPORT_ENDED;
    return (ssize_t)payload.size;
}

/* ---- receiving ---- */

/* Messages that wait. */
static uint64_t count_waiting(struct grpc_link *link, bool *ret_ended)
{
    uint64_t waiting;

    (void)pthread_mutex_lock(&link->links->lock);
    waiting = link->written - link->read;
    *ret_ended = link->ended;
    (void)pthread_mutex_unlock(&link->links->lock);
    return waiting;
}

/* The oldest message is used up. */
static void consume_message(struct grpc_link *link)
{
    bool was_full;

    link->taken = 0;
    (void)pthread_mutex_lock(&link->links->lock);
    link->read++;
    was_full = link->full;
    link->full = false;
    (void)pthread_mutex_unlock(&link->links->lock);
    if (was_full)
        rpc_call_receive(link->call);
}

static ssize_t links_receive(struct transport *head, unsigned peer, const struct iovec *parts,
                             int count)
{
    struct grpc_link *link = link_of(head, peer);
    size_t window_index = link->read % GRPC_WINDOW; /* only this thread changes it */
    size_t done = 0;
    bool ended;

    if (count_waiting(link, &ended) == 0)
        return ended ? TRANSPORT_ENDED : 0;
    for (int i = 0; i < count; i++) {
        size_t left = link->in_bytes[window_index] - link->taken;
        size_t some = parts[i].iov_len < left ? parts[i].iov_len : left;

        if (some > 0)
            memcpy(parts[i].iov_base, link->in[window_index] + link->taken, some);
        link->taken += some;
        done += some;
    }
    if (link->taken == link->in_bytes[window_index])
        consume_message(link);
    return (ssize_t)done;
}

/* ---- waiting ---- */

/* Core lets go of a message when it is written. */
static bool all_released(struct grpc_links *l)
{
    bool all = true;

    for (unsigned r = 0; r < l->world_size; r++)
        for (size_t k = 0; k < GRPC_WINDOW; k++)
            all = all && !atomic_load(&l->links[r].out[k].busy);
    return all;
}

static bool links_are_flushed(struct transport *head)
{
    return all_released((struct grpc_links *)head);
}

static bool find_ready(struct grpc_links *l, struct transport_interest *interests, size_t count)
{
    bool any = false;

    for (size_t i = 0; i < count; i++) {
        struct transport_interest *w = &interests[i];
        struct grpc_link *link = &l->links[w->peer];
        bool ended;
        uint64_t waiting = count_waiting(link, &ended);

        w->can_send = w->send && (ended || !atomic_load(&link->out[link->next_out].busy));
        w->can_receive = w->receive && (ended || waiting > 0);
        any = any || w->can_send || w->can_receive;
    }
    return any;
}

static bool links_wait(struct transport *head, struct transport_interest *interests, size_t count,
                       int alarm_fd, int64_t until_ns)
{
    struct grpc_links *l = (struct grpc_links *)head;
    struct pollfd fds[2] = {{.fd = l->event_fd, .events = POLLIN},
                            {.fd = alarm_fd, .events = POLLIN}};
    int64_t left_ns = until_ns - clock_now_ns();
    struct timespec left = {0};
    uint64_t events;

    if (left_ns > 0) {
        left.tv_sec = (time_t)(left_ns / 1000000000);
        left.tv_nsec = (long)(left_ns % 1000000000);
    }
    (void)!read(l->event_fd, &events, sizeof(events)); /* before looking: none is missed */
    if (find_ready(l, interests, count) || (count == 0 && all_released(l)))
        return true;
    if (ppoll(fds, 2, &left, NULL) < 0 && errno != EINTR)
        return false;
    (void)find_ready(l, interests, count);
    return true;
}

/* ---- closing ---- */

typedef bool links_condition(struct grpc_links *l);

static bool all_ended(struct grpc_links *l)
{
    bool all = true;

    for (unsigned r = 0; r < l->world_size; r++)
        all = all && (!l->links[r].call || has_ended(&l->links[r]));
    return all;
}

/* A lost member, who may be stopped, is not waited for. */
static bool all_ended_or_lost(struct grpc_links *l)
{
    return all_ended(l) || (l->alarm && atomic_load(&l->alarm->raised));
}

static bool wait_for_condition(struct grpc_links *l, links_condition *holds)
{
    int64_t deadline_ns = clock_deadline_ns(CLOSE_WAIT_MS);

    for (;;) {
        struct pollfd changed[2] = {{.fd = l->event_fd, .events = POLLIN},
                                    {.fd = l->alarm ? l->alarm->fd : -1, .events = POLLIN}};
        int left_ms = clock_left_ms(deadline_ns);
        uint64_t events;

        (void)!read(l->event_fd, &events, sizeof(events));
        if (holds(l))
            return true;
        if (left_ms == 0 || (poll(changed, 2, left_ms) < 0 && errno != EINTR))
            return false;
    }
}

/* What still comes is of no interest, but the end of each call comes behind it. */
static void discard_incoming(struct grpc_links *l)
{
    atomic_store(&l->closing, true);
    for (unsigned r = 0; r < l->world_size; r++)
        if (l->links[r].call)
            rpc_call_receive(l->links[r].call);
}

/* End every call behind what was sent, and wait until the peers have read it. */
static void end_calls(struct grpc_links *l)
{
    discard_incoming(l);
    for (unsigned r = 0; r < l->world_size; r++) {
        struct grpc_link *link = &l->links[r];

        if (link->call && link->client)
            rpc_call_send_done(link->call);
        else if (link->call)
            rpc_call_finish(link->call, STATUS_OK, NULL);
    }
    (void)wait_for_condition(l, all_ended_or_lost);
}

static void links_close(struct transport *head, bool in_order)
{
    struct grpc_links *l = (struct grpc_links *)head;

    if (in_order)
        end_calls(l);
    for (unsigned r = 0; l->links && r < l->world_size; r++)
        rpc_client_close(l->links[r].client);
    rpc_server_close(l->server, 0);
    for (unsigned r = 0; l->links && r < l->world_size; r++)
        if (l->links[r].call)
            rpc_call_unref(l->links[r].call);
    l->alarm = NULL;
    if (l->links && !wait_for_condition(l, all_released))
        return; /* core still reads that memory: better lost than reused */
    (void)close(l->event_fd);
    (void)pthread_mutex_destroy(&l->lock);
    free(l->endpoints);
    free(l->links);
    free(l->memory);
    free(l);
}

/* ---- opening ---- */

static enum status allocate_links(struct grpc_links *l, struct error *err)
{
    size_t n = l->world_size;
    enum status status = mem_calloc(n, sizeof(*l->endpoints), "addresses", &l->endpoints, err);
    unsigned char *at;

    if (status == STATUS_OK)
        status = mem_calloc(n, 2 * GRPC_WINDOW * GRPC_PIECE_BYTES, "messages", &l->memory, err);
    if (status == STATUS_OK)
        status = mem_calloc(n, sizeof(*l->links), "links", &l->links, err);
    if (status != STATUS_OK)
        return status;
    at = l->memory;
    for (unsigned r = 0; r < n; r++) {
        l->links[r].links = l;
        l->links[r].peer = r;
        for (size_t k = 0; k < GRPC_WINDOW; k++, at += 2 * GRPC_PIECE_BYTES) {
            l->links[r].out[k] = (struct grpc_piece){.links = l, .bytes = at};
            l->links[r].in[k] = at + GRPC_PIECE_BYTES;
        }
    }
    return STATUS_OK;
}

static enum status links_open(struct collective *group, int64_t deadline_ns, struct transport **ret,
                              struct error *err)
{
    struct grpc_links *l;
    enum status status = mem_calloc(1, sizeof(*l), "gRPC transport", &l, err);

    if (status != STATUS_OK)
        return status;
    l->head.ops = &transport_grpc_ops;
    l->rank = group->rank;
    l->world_size = group->world_size;
    l->alarm = group->alarm;
    l->hello = (struct ring_hello){.group = group->id,
                                   .generation = group->generation,
                                   .rank = group->rank,
                                   .world_size = group->world_size};
    (void)pthread_mutex_init(&l->lock, NULL);
    l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status = l->event_fd < 0 ? error_set_errno(err, errno, "cannot make an eventfd")
                             : allocate_links(l, err);
    if (status == STATUS_OK)
        status = grpc_links_connect(l, group, deadline_ns, err);
    if (status != STATUS_OK) {
        links_close(&l->head, false);
        return status;
    }
    *ret = &l->head;
    return STATUS_OK;
}

const struct transport_ops transport_grpc_ops = {
    .name = "grpc",
    .open = links_open,
    .send = links_send,
    .receive = links_receive,
    .wait = links_wait,
    .is_flushed = links_are_flushed,
    .close = links_close,
};
