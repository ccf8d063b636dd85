/*
 * rpc_support: an echo server and a client call that records its events, for the tests of rpc.
 */
#ifndef SPARRING_TESTS_COMMON_RPC_RPC_SUPPORT_H
#define SPARRING_TESTS_COMMON_RPC_RPC_SUPPORT_H

#include "common/rpc/rpc.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <stdatomic.h>

#define ECHO_UNARY  "/test.v1.Echo/Unary"  /* the reply is the request's header */
#define ECHO_STREAM "/test.v1.Echo/Stream" /* every message comes back, payload included */
#define ECHO_FAIL   "/test.v1.Echo/Fail"   /* ends with MISMATCH and the request's text */
#define ECHO_HOLD   "/test.v1.Echo/Hold"   /* never replies */
#define ECHO_ADD    "/test.v1.Echo/Add"    /* adds float payloads, replies with the sum */

struct echo {
    struct rpc_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    unsigned held;           /* Hold calls that were started */
    unsigned closed;         /* calls of any method that were closed */
    unsigned cancelled;      /* of those, with cancelled set */
    unsigned ends;           /* half-closes that Stream received */
    unsigned sent, released; /* payloads that the server passed to core, and that core released */
};

/* Port 0 on loopback, `threads` queues. */
void echo_open(struct echo *echo, unsigned threads);
void echo_open_with(struct echo *echo, const struct rpc_server_config *config);
enum status echo_try_open(struct echo *echo, const struct rpc_server_config *config,
                          struct error *err);
void echo_close(struct echo *echo, int64_t grace_ms);

/* Wait up to 20 s until the counter is at least `least`; fails the test otherwise. */
void echo_wait(struct echo *echo, const unsigned *counter, unsigned least);

struct rpc_client *client_open(uint16_t port);

/* One unary call with an empty text; the reply is discarded. */
enum status echo_ask(struct rpc_client *client, const char *path, int64_t timeout_ms,
                     struct error *err);

/* The events of a client call, which requests the next message after each. */
struct seen {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*on_message)(struct seen *seen, struct rpc_message *message); /* may be NULL */
    void *user;
    /* under lock */
    size_t payload_bytes;
    unsigned messages, ends, closed;
    struct rpc_result result;
};

void seen_init(struct seen *seen);
extern const struct rpc_handler seen_handler; /* user: struct seen */
void seen_wait_closed(struct seen *seen);
void seen_wait_messages(struct seen *seen, unsigned least);

/* Bytes of a message with one string field, number 1; returns the size (at most 129). */
size_t make_text(uint8_t *bytes, const char *text);

/* A payload that counts its release. */
void count_release(void *counter); /* counter: atomic_uint */

/* Wait up to 20 s for the counter. */
void wait_for_count(atomic_uint *counter, unsigned wanted);

#endif
