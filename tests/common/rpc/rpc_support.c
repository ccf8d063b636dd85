/*
 * rpc_support: the echo server keeps a copy of each received payload until core has released the
 * copy sent back, so a missing or repeated release shows in the counters or under ASan.
 */
#include "tests/common/rpc/rpc_support.h"

#include "common/base/clock.h"
#include "common/base/memory.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 20000

/* ------------------------------------------------------------------ server */

struct held_payload {
    struct echo *echo;
    size_t size;
    unsigned char bytes[];
};

static void count_event(struct echo *echo, unsigned *counter)
{
    (void)pthread_mutex_lock(&echo->lock);
    ++*counter;
    (void)pthread_cond_broadcast(&echo->changed);
    (void)pthread_mutex_unlock(&echo->lock);
}

static void release_held(void *user)
{
    struct held_payload *held = user;
    struct echo *echo = held->echo;

    free(held);
    count_event(echo, &echo->released);
}

static void start_receive(struct rpc_call *call, void *user)
{
    (void)user;
    rpc_call_receive(call);
}

static void start_hold(struct rpc_call *call, void *user)
{
    struct echo *echo = user;

    rpc_call_receive(call);
    count_event(echo, &echo->held);
}

static void closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct echo *echo = user;

    (void)call;
    if (result->cancelled)
        count_event(echo, &echo->cancelled);
    count_event(echo, &echo->closed);
}

static void unary_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    size_t size;
    const uint8_t *head;

    (void)user;
    if (!message) {
        rpc_call_finish(call, STATUS_PROTOCOL, "no request");
        return;
    }
    head = rpc_message_head(message, &size);
    ck_assert_int_eq(rpc_call_send(call, head, size, NULL), STATUS_OK);
    rpc_call_finish(call, STATUS_OK, NULL);
}

static void send_back(struct rpc_call *call, struct rpc_message *message, struct echo *echo)
{
    size_t head_size;
    const uint8_t *head = rpc_message_head(message, &head_size);
    size_t size = rpc_message_payload_size(message);
    struct held_payload *held = malloc(sizeof(*held) + size);
    struct error err = {0};

    ck_assert_ptr_nonnull(held);
    held->echo = echo;
    held->size = size;
    assert_ok(rpc_message_copy(message, held->bytes, size, &err));
    count_event(echo, &echo->sent);
    (void)rpc_call_send(
        call, head, head_size,
        &(struct rpc_payload){
            .data = held->bytes, .size = size, .release = release_held, .user = held});
}

static void stream_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    if (message) {
        send_back(call, message, user);
        rpc_call_receive(call);
    } else {
        struct echo *echo = user;

        count_event(echo, &echo->ends);
        rpc_call_finish(call, STATUS_OK, NULL);
    }
}

static void fail_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    char text[256] = "";
    size_t size = 0;
    const uint8_t *head = message ? rpc_message_head(message, &size) : NULL;

    (void)user;
    if (size > 2) /* field 1, a short string: skip tag and length */
        (void)snprintf(text, sizeof(text), "%.*s", (int)size - 2, (const char *)head + 2);
    rpc_call_finish(call, STATUS_MISMATCH, text);
    rpc_call_finish(call, STATUS_INTERNAL, "the first one wins");
}

static void hold_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    (void)user;
    if (message)
        rpc_call_receive(call);
}

#define ADD_COUNT 1024

static void add_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct held_payload *sum = malloc(sizeof(*sum) + ADD_COUNT * sizeof(float));
    float values[ADD_COUNT] = {0};
    struct echo *echo = user;
    struct error err = {0};

    ck_assert_ptr_nonnull(sum);
    if (!message || rpc_message_add_f32(message, values, ADD_COUNT, &err) != STATUS_OK) {
        rpc_call_finish(call, STATUS_DATA, err.text);
        free(sum);
        return;
    }
    assert_ok(rpc_message_add_f32(message, values, ADD_COUNT, &err)); /* twice: the double */
    sum->echo = echo;
    memcpy(sum->bytes, values, sizeof(values));
    count_event(echo, &echo->sent);
    (void)rpc_call_send(
        call, NULL, 0,
        &(struct rpc_payload){
            .data = sum->bytes, .size = sizeof(values), .release = release_held, .user = sum});
    rpc_call_finish(call, STATUS_OK, NULL);
}

enum status echo_try_open(struct echo *echo, const struct rpc_server_config *config,
                          struct error *err)
{
    static const struct rpc_handler unary = {start_receive, unary_message, closed};
    static const struct rpc_handler stream = {start_receive, stream_message, closed};
    static const struct rpc_handler fail = {start_receive, fail_message, closed};
    static const struct rpc_handler hold = {start_hold, hold_message, closed};
    static const struct rpc_handler add = {start_receive, add_message, closed};
    const struct rpc_method methods[] = {
        {.path = ECHO_UNARY, .handler = &unary, .user = echo},
        {.path = ECHO_STREAM, .handler = &stream, .user = echo},
        {.path = ECHO_FAIL, .handler = &fail, .user = echo},
        {.path = ECHO_HOLD, .handler = &hold, .user = echo},
        {.path = ECHO_ADD, .handler = &add, .user = echo},
    };
    struct rpc_server_config with_methods = *config;

    *echo = (struct echo){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    with_methods.methods = methods;
    with_methods.method_count = sizeof(methods) / sizeof(methods[0]);
    return rpc_server_open(&with_methods, &echo->server, err);
}

void echo_open_with(struct echo *echo, const struct rpc_server_config *config)
{
    struct error err = {0};

    assert_ok(echo_try_open(echo, config, &err));
}

void echo_open(struct echo *echo, unsigned threads)
{
    echo_open_with(echo, &(struct rpc_server_config){.listen = {"127.0.0.1", 0},
                                                     .listen_origin = "the test",
                                                     .threads = threads});
}

void echo_close(struct echo *echo, int64_t grace_ms)
{
    rpc_server_close(echo->server, grace_ms);
    echo->server = NULL;
}

static struct timespec wait_deadline(void)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_MS / 1000;
    return until;
}

void echo_wait(struct echo *echo, const unsigned *counter, unsigned least)
{
    struct timespec until = wait_deadline();
    int late = 0;

    (void)pthread_mutex_lock(&echo->lock);
    while (*counter < least && !late)
        late = pthread_cond_timedwait(&echo->changed, &echo->lock, &until);
    ck_assert_msg(*counter >= least, "waited %d ms for %u, got %u", PATIENCE_MS, least, *counter);
    (void)pthread_mutex_unlock(&echo->lock);
}

/* ------------------------------------------------------------------ client */

struct rpc_client *client_open(uint16_t port)
{
    struct rpc_client_config config = {.target = {"127.0.0.1", port}};
    struct rpc_client *client;
    struct error err = {0};

    assert_ok(rpc_client_open(&config, &client, &err));
    return client;
}

void seen_init(struct seen *seen)
{
    *seen = (struct seen){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
}

static void seen_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct seen *seen = user;

    if (message && seen->on_message)
        seen->on_message(seen, message);
    (void)pthread_mutex_lock(&seen->lock);
    ck_assert_uint_eq(seen->closed, 0);
    seen->messages += message != NULL;
    seen->ends += message == NULL;
    if (message)
        seen->payload_bytes += rpc_message_payload_size(message);
    (void)pthread_cond_broadcast(&seen->changed);
    (void)pthread_mutex_unlock(&seen->lock);
    if (message)
        rpc_call_receive(call);
}

static void seen_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct seen *seen = user;

    (void)call;
    (void)pthread_mutex_lock(&seen->lock);
    seen->closed++;
    seen->result = *result;
    (void)pthread_cond_broadcast(&seen->changed);
    (void)pthread_mutex_unlock(&seen->lock);
}

const struct rpc_handler seen_handler = {NULL, seen_message, seen_closed};

static void seen_wait(struct seen *seen, const unsigned *counter, unsigned least, const char *what)
{
    struct timespec until = wait_deadline();
    int late = 0;

    (void)pthread_mutex_lock(&seen->lock);
    while (*counter < least && !late)
        late = pthread_cond_timedwait(&seen->changed, &seen->lock, &until);
    ck_assert_msg(*counter >= least, "waited %d ms for %u %s, got %u", PATIENCE_MS, least, what,
                  *counter);
    (void)pthread_mutex_unlock(&seen->lock);
}

void seen_wait_closed(struct seen *seen)
{
    seen_wait(seen, &seen->closed, 1, "closed");
}

void seen_wait_messages(struct seen *seen, unsigned least)
{
    seen_wait(seen, &seen->messages, least, "messages");
}

enum status echo_ask(struct rpc_client *client, const char *path, int64_t timeout_ms,
                     struct error *err)
{
    uint8_t request[130];
    size_t size = make_text(request, "");
    uint8_t *reply = NULL;
    enum status status = rpc_client_unary(client, path, request, size,
                                          clock_deadline_ns(timeout_ms), &reply, &size, err);

    free(reply);
    return status;
}

size_t make_text(uint8_t *bytes, const char *text)
{
    size_t length = strnlen(text, 127);

    bytes[0] = 1 << 3 | 2;
    bytes[1] = (uint8_t)length;
    memcpy(bytes + 2, text, length);
    return length + 2;
}

void count_release(void *counter)
{
    (void)atomic_fetch_add((atomic_uint *)counter, 1);
}

void wait_for_count(atomic_uint *counter, unsigned wanted)
{
    int64_t deadline = clock_deadline_ns(PATIENCE_MS);

    while (atomic_load(counter) < wanted && clock_left_ms(deadline) > 0)
        (void)poll(NULL, 0,
                   1); /* a release may only touch atomics, so there is nothing to wait on */
    ck_assert_uint_eq(atomic_load(counter), wanted);
}
