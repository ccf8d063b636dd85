/*
 * test_priority: messages of one call that overtake each other, with a reader that the test
 * controls.  A message here is larger than the flow-control window of loopback (64 KiB), so while
 * the reader pauses core has one of them and the others are queued where they can be overtaken.
 */
#include "tests/common/rpc/rpc_support.h"

#include "common/base/clock.h"

#include <string.h>

#define DEADLINE_MS   60000
#define MESSAGES      32
#define MESSAGE_BYTES (256 << 10)
#define GATE          "/test.v1.Gate/Stream"

/* The server's side of the call, and the messages it has read. */
struct gate {
    struct rpc_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct rpc_call *call; /* one reference */
    unsigned wanted;       /* messages that it may have read at most */
    unsigned read;
    uint8_t order[2 * MESSAGES]; /* the heads' only byte */
    bool closed;
};

static struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static struct rpc_client *client;
static struct rpc_call *call;
static struct seen seen;
static struct error err;
static uint8_t payload[MESSAGE_BYTES];
static atomic_uint released;

static void gate_start(struct rpc_call *server_call, void *user)
{
    struct gate *g = user;

    rpc_call_ref(server_call);
    (void)pthread_mutex_lock(&g->lock);
    g->call = server_call;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
}

static void gate_message(struct rpc_call *server_call, struct rpc_message *message, void *user)
{
    struct gate *g = user;
    const uint8_t *head;
    size_t size;
    bool more;

    if (!message) {
        rpc_call_finish(server_call, STATUS_OK, "");
        return;
    }
    head = rpc_message_head(message, &size);
    ck_assert_uint_eq(size, 2);
    ck_assert_uint_eq(rpc_message_payload_size(message), sizeof(payload));
    (void)pthread_mutex_lock(&g->lock);
    g->order[g->read++] = head[1];
    more = g->read < g->wanted;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
    if (more)
        rpc_call_receive(server_call);
}

static void gate_closed(struct rpc_call *server_call, const struct rpc_result *result, void *user)
{
    struct gate *g = user;

    (void)result;
    (void)pthread_mutex_lock(&g->lock);
    g->closed = true;
    (void)pthread_cond_broadcast(&g->changed);
    (void)pthread_mutex_unlock(&g->lock);
    rpc_call_unref(server_call);
}

static void open_pair(void)
{
    static const struct rpc_handler handler = {gate_start, gate_message, gate_closed};
    static const struct rpc_method method = {.path = GATE, .handler = &handler, .user = &gate};
    struct rpc_server_config config = {.listen = {"127.0.0.1", 0},
                                       .listen_origin = "the test",
                                       .threads = 1,
                                       .methods = &method,
                                       .method_count = 1};

    assert_ok(rpc_server_open(&config, &gate.server, &err));
    client = client_open(rpc_server_port(gate.server));
    seen_init(&seen);
    assert_ok(rpc_client_call(client, GATE, clock_deadline_ns(DEADLINE_MS), &seen_handler, &seen,
                              &call, &err));
    rpc_call_receive(call);
}

/* Half-close, read the rest, check that no message is left. */
static void close_pair(unsigned sent)
{
    rpc_call_send_done(call);
    rpc_call_receive(gate.call);
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_OK);
    rpc_call_unref(call);
    rpc_client_close(client);
    rpc_server_close(gate.server, DEADLINE_MS);
    ck_assert(gate.closed);
    wait_for_count(&released, sent);
}

static void send_message(uint32_t priority, uint8_t mark)
{
    const uint8_t head[] = {1 << 3, mark};
    const struct rpc_payload bytes = {
        .data = payload, .size = sizeof(payload), .release = count_release, .user = &released};

    ck_assert_int_eq(rpc_call_send_prioritized(call, priority, head, sizeof(head), &bytes),
                     STATUS_OK);
}

/* Let the reader read until it has read `wanted` in all. */
static void read_until(unsigned wanted)
{
    int64_t deadline_ns = clock_deadline_ns(DEADLINE_MS);

    (void)pthread_mutex_lock(&gate.lock);
    while (!gate.call)
        (void)pthread_cond_wait(&gate.changed, &gate.lock);
    gate.wanted = wanted;
    (void)pthread_mutex_unlock(&gate.lock);
    rpc_call_receive(gate.call);
    (void)pthread_mutex_lock(&gate.lock);
    while (gate.read < wanted && clock_left_ms(deadline_ns) > 0)
        (void)pthread_cond_wait(&gate.changed, &gate.lock);
    ck_assert_uint_eq(gate.read, wanted);
    (void)pthread_mutex_unlock(&gate.lock);
}

/* Like the layers of a backward pass: each message is more urgent than all before. */
START_TEST(most_urgent_message_is_sent_first)
{
    open_pair();
    for (unsigned i = 0; i < MESSAGES; i++)
        send_message(i, (uint8_t)i);
    read_until(MESSAGES);
    /* Core had already taken the first message, whichever was first when core was ready. */
    for (unsigned i = 2; i < MESSAGES; i++)
        ck_assert_msg(gate.order[i] < gate.order[i - 1], "%u came before %u", gate.order[i - 1],
                      gate.order[i]);
    close_pair(MESSAGES);
}
END_TEST

START_TEST(equal_priorities_keep_their_order)
{
    open_pair();
    for (unsigned i = 0; i < MESSAGES; i++)
        send_message(5, (uint8_t)i);
    read_until(MESSAGES);
    for (unsigned i = 0; i < MESSAGES; i++)
        ck_assert_uint_eq(gate.order[i], i);
    close_pair(MESSAGES);
}
END_TEST

/* However many messages are queued, a late urgent message waits for at most one other. */
START_TEST(late_urgent_message_waits_for_one_message)
{
    open_pair();
    for (unsigned i = 0; i < MESSAGES; i++)
        send_message(0, (uint8_t)i);
    for (unsigned urgent = 0; urgent < 4; urgent++) {
        unsigned read = 6 * urgent + 1;

        read_until(read);
        send_message(1 + urgent, (uint8_t)(100 + urgent));
        read_until(read + 2);
        ck_assert_msg(gate.order[read] == 100 + urgent || gate.order[read + 1] == 100 + urgent,
                      "%u and %u overtook", gate.order[read], gate.order[read + 1]);
    }
    read_until(MESSAGES + 4);
    close_pair(MESSAGES + 4);
}
END_TEST

/* And queue messages of falling priority. */
static void open_with_limit(uint64_t most)
{
    open_pair();
    rpc_call_limit_ahead(call, most);
    for (unsigned i = 0; i < MESSAGES; i++)
        send_message(MESSAGES - i, (uint8_t)i);
}

/* With a limit those that are queued wait for replies, once the first has one; but not a more
 * urgent one, nor those behind it while it has none. */
START_TEST(queued_messages_wait_for_replies)
{
    open_with_limit(2);
    read_until(1);
    rpc_call_replied(call, MESSAGES);
    read_until(3);
    send_message(MESSAGES + 1, 100);
    read_until(4);
    ck_assert_uint_eq(gate.order[3], 100);
    read_until(MESSAGES + 1);
    for (unsigned i = 4; i <= MESSAGES; i++)
        ck_assert_uint_eq(gate.order[i], i - 1);
    close_pair(MESSAGES + 1);
}
END_TEST

/* A reply lets the next message leave. */
START_TEST(reply_lets_a_message_leave)
{
    open_with_limit(1);
    for (unsigned i = 0; i < MESSAGES; i++) {
        read_until(i + 1);
        ck_assert_uint_eq(gate.order[i], i);
        rpc_call_replied(call, MESSAGES - i);
    }
    close_pair(MESSAGES);
}
END_TEST

/* Messages that are queued when a call is cancelled are released too. */
START_TEST(cancelled_call_releases_queued_messages)
{
    open_pair();
    for (unsigned i = 0; i < MESSAGES; i++)
        send_message(i % 7, (uint8_t)i);
    rpc_call_cancel(call);
    seen_wait_closed(&seen);
    ck_assert_int_eq(seen.result.status, STATUS_CANCELLED);
    wait_for_count(&released, MESSAGES);
    rpc_call_unref(call);
    rpc_client_close(client);
    rpc_server_close(gate.server, DEADLINE_MS);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_priority", 120, TEST(most_urgent_message_is_sent_first),
                       TEST(equal_priorities_keep_their_order),
                       TEST(late_urgent_message_waits_for_one_message),
                       TEST(queued_messages_wait_for_replies), TEST(reply_lets_a_message_leave),
                       TEST(cancelled_call_releases_queued_messages));
}
