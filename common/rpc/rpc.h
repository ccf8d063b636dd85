/*
 * rpc: gRPC C core behind a small interface; no gRPC type leaves this folder.
 *
 * Library.  Promises message streams and unary calls with deadlines, priorities, back-pressure, TLS
 * and tokens.  Needs base, option, tensor and protobuf.  Called by the store, the ring over gRPC,
 * the parameter server, its workers and the benchmarks.
 *
 * Model.  A server owns N completion queues with one thread each; a client owns one connection, one
 * queue and one thread.  A call is a message stream in both directions; a unary call is a stream
 * that carries one message each way.  Handlers run on the call's queue thread, one at a time per
 * call, and must not block: everything on that queue waits for them.
 *
 * Threads.  Functions on calls may be called from any thread.  They record what is requested and
 * wake the call's queue thread, which alone talks to gRPC, so none of them blocks or writes to a
 * socket.  Requests made in the call's own handler are processed when it returns: a reply and the
 * status after it leave in one write.
 *
 * Messages.  A message on the wire is `head` bytes (a packed protobuf message without its payload
 * field) followed by the payload field (number 15, always last) taken from the caller's memory
 * without a copy. Received messages are read in place: the header is unpacked, the payload is
 * visited as contiguous runs, which are neither aligned nor whole floats.
 *
 * Memory.  Payload memory passed to rpc_call_send belongs to core until the payload's release
 * function has run, which happens on any thread and may only touch atomics.  The completion of a
 * send does not imply it.
 *
 * Lifetime.  Every call ends with exactly one `closed`.  The library references a call until then;
 * use rpc_call_ref to keep one longer.  A call may outlive its server or client.
 *
 * Limits.  A message is buffered whole before it is delivered (and before its size is checked):
 * the memory that peers can make core hold is bounded for all connections together
 * (max_memory_bytes).  A message, its header and its payload have the limits below, compressed
 * messages are refused, 128 calls may be open per connection and a bounded number in all.  The
 * library is grpc 1.51; the sources name the internals that they rely on.
 */
#ifndef SPARRING_COMMON_RPC_RPC_H
#define SPARRING_COMMON_RPC_RPC_H

#include "common/base/error.h"
#include "common/base/net.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_server;
struct rpc_client;
struct rpc_call;
struct rpc_message;

/* ------------------------------------------------------------------ security and limits */

/* Mutual TLS with all three files, plaintext with none; one or two files are STATUS_INVALID. */
struct rpc_security {
    const char *ca_file; /* PEM files, read at open; NULL or "": none */
    const char *cert_file;
    const char *key_file;
    bool insecure; /* allow a plaintext bind to an address that is not loopback */
    /* A bearer token, read at open; NULL or "": none.  A client sends it with every call; a server
     * refuses every call without it, except those of grpc.health.v1, with STATUS_UNAUTHENTICATED
     * before it reads their messages.  Requires TLS or a Unix socket, else STATUS_INVALID. */
    const char *token_file;
};

/* *ret_tls: all three files are given.  STATUS_INVALID names those that are missing. */
enum status rpc_security_check(const struct rpc_security *security, bool *ret_tls,
                               struct error *err);

/* Served by every server, also without the token. */
#define RPC_HEALTH_CHECK "/grpc.health.v1.Health/Check"

/* ------------------------------------------------------------------ messages */

/* Bytes of a payload in the sender's memory. */
struct rpc_payload {
    const void *data; /* NULL with size 0: the payload field is left out */
    size_t size;
    void (*release)(
        void *user); /* called once when core is done with data; NULL: memory outlives the peer */
    void *user;
};

/* Total payload bytes of a received message. */
size_t rpc_message_payload_size(const struct rpc_message *message);

/* The packed header bytes (every field before the payload; at most 34 MiB), a copy inside the
 * message.  Borrowed until the handler returns. */
const uint8_t *rpc_message_head(const struct rpc_message *message, size_t *ret_size);

/* Copy the whole payload (exactly `size` bytes, else STATUS_DATA) into dst.  May be repeated. */
enum status rpc_message_copy(struct rpc_message *message, void *dst, size_t size,
                             struct error *err);

/* dst[i] += payload[i] for exactly `count` float32 (else STATUS_DATA), straight from the received
 * slices. */
enum status rpc_message_add_f32(struct rpc_message *message, float *dst, size_t count,
                                struct error *err);

/* Likewise dst[i] = factor * payload[i], and dst[i] += factor * payload[i], with the product
 * rounded. */
enum status rpc_message_scale_f32(struct rpc_message *message, float factor, float *dst,
                                  size_t count, struct error *err);
enum status rpc_message_add_scaled_f32(struct rpc_message *message, float factor, float *dst,
                                       size_t count, struct error *err);

/* Pass the payload piece by piece, as received, to `consume` (size > 0) until its end, or until
 * `consume` fails: its status is then returned.  May be repeated. */
typedef enum status rpc_consume_fn(void *user, const void *bytes, size_t size, struct error *err);
enum status rpc_message_read(struct rpc_message *message, rpc_consume_fn *consume, void *user,
                             struct error *err);

/* Keep a received message's payload beyond the handler's return without copying it: *ret_kept has
 * the same payload and no header, and belongs to the caller (rpc_message_drop).  STATUS_NO_MEMORY.
 */
enum status rpc_message_keep(const struct rpc_message *message, struct rpc_message **ret_kept,
                             struct error *err);
void rpc_message_drop(struct rpc_message *kept); /* from any thread; NULL is allowed */

/* ------------------------------------------------------------------ calls */

/*
 * How a call ended.
 * Client: the server's status and text as rpc_call_finish gave them; else STATUS_UNREACHABLE (no
 * connection before the deadline, the text says why), STATUS_TIMEOUT (the deadline passed),
 * STATUS_PEER_LOST (the connection broke), STATUS_CANCELLED, STATUS_PROTOCOL (a message above the
 * receiver's limit), or what a foreign server's gRPC code maps to.
 * Server: what rpc_call_finish was given; when `cancelled`, STATUS_TIMEOUT, STATUS_PEER_LOST or
 * STATUS_CANCELLED.
 */
struct rpc_result {
    enum status status;
    char text[1024]; /* the peer's or the library's text, "" when OK */
    bool cancelled;  /* server side: the peer disconnected or its deadline passed */
    bool by_peer;    /* client side: the server sent the status; core did not generate it */
};

struct rpc_handler {
    /* Server: a new call.  Set the call's user pointer here; call rpc_call_receive for the first
     * message. */
    void (*start)(struct rpc_call *call, void *user);
    /* A message, borrowed until return; NULL: the peer has sent its last one (never because the
     * call broke: only `closed` reports that; a client may get `closed` without it).  Request the
     * next with rpc_call_receive, from here or later (that is the back-pressure).  A malformed
     * message is not delivered; it ends the call with STATUS_DATA. */
    void (*message)(struct rpc_call *call, struct rpc_message *message, void *user);
    /* The call has ended; no further call-backs.  Client: it comes after the server's last message,
     * so keep requesting messages until then. */
    void (*closed)(struct rpc_call *call, const struct rpc_result *result, void *user);
};

/* Request one more message.  One request may be outstanding; more count as one. */
void rpc_call_receive(struct rpc_call *call);

/* Queue one message: head bytes are copied, payload (may be NULL) is not.  Messages of one priority
 * leave in order of calls; the queue is unbounded.  STATUS_CANCELLED when the call has ended or was
 * cancelled or finished, STATUS_INVALID above the limits (head 34 MiB, payload just under 2
 * GiB), STATUS_NO_MEMORY: the release function has then been called already. */
enum status rpc_call_send(struct rpc_call *call, const uint8_t *head, size_t head_size,
                          const struct rpc_payload *payload);

/*
 * The same with a priority (rpc_call_send's is 0): the message overtakes queued messages of a lower
 * priority.  It cannot overtake what core has already taken: one message that is being written and
 * at most a flow-control window of the next; nor the NET_UNSENT bytes that the kernel holds.  So
 * the wait of a late urgent message is bounded by the size of one message.
 */
enum status rpc_call_send_prioritized(struct rpc_call *call, uint32_t priority, const uint8_t *head,
                                      size_t head_size, const struct rpc_payload *payload);

/* Hold back queued messages while `most` are without a reply, by the rule of send_limit.h; 0: no
 * limit.  Before the first message. */
void rpc_call_limit_ahead(struct rpc_call *call, uint64_t most);

/* The reply to the messages of this priority has come. */
void rpc_call_replied(struct rpc_call *call, uint32_t priority);

/* Are messages queued?  If so, the peer reads more slowly than this side sends. */
bool rpc_call_has_unsent(struct rpc_call *call);

/* Client: no more messages from here (half-close, after those queued). */
void rpc_call_send_done(struct rpc_call *call);

/* Server: end the call with a status after the queued messages.  Idempotent, the first one wins;
 * text (may be NULL) is cut at 1023 bytes. */
void rpc_call_finish(struct rpc_call *call, enum status status, const char *text);

/* Either side: end it now, queued messages are dropped; `closed` follows with STATUS_CANCELLED. */
void rpc_call_cancel(struct rpc_call *call);

/* The pointer given to the handlers; the server sets it in `start` (default: rpc_method.user). */
void rpc_call_set_user(struct rpc_call *call, void *user);

/* "ipv4:127.0.0.1:4711"; for logs and error texts, not for authentication. */
const char *rpc_call_peer(const struct rpc_call *call);

/* Server, from a handler before `closed`: the URI number `index` among the subject alternative
 * names of the peer's verified certificate, into text ("" when it does not fit or contains a NUL);
 * false: there are no more, or the connection is plaintext. */
bool rpc_call_peer_uri(const struct rpc_call *call, size_t index, char *text, size_t size);

/* Moment (clock_now_ns) at which the call's deadline passes; INT64_MAX without one. */
int64_t rpc_call_deadline_ns(const struct rpc_call *call);

void rpc_call_ref(struct rpc_call *call);
void rpc_call_unref(struct rpc_call *call);

/* ------------------------------------------------------------------ server */

struct rpc_method {
    const char *path; /* "/sparring.v1.Store/Get" */
    const struct rpc_handler *handler;
    void *user;
    /* Limits of one received message, checked before it is copied; a larger message ends the call
     * with STATUS_DATA. */
    size_t max_head_bytes;    /* 0: what max_message_bytes allows */
    size_t max_payload_bytes; /* 0: what max_message_bytes allows, RPC_NO_PAYLOAD: none */
    bool while_draining;      /* also served while the server drains */
};

#define RPC_NO_PAYLOAD SIZE_MAX

struct rpc_server_config {
    struct endpoint listen;    /* port 0: any free one; or a Unix socket */
    const char *listen_origin; /* option or variable that set the address, for error texts */
    struct rpc_security security;
    unsigned threads; /* completion queues; 0: as many as cores, on a loopback address half of
                         them, at most 4; a connection belongs to one of them, so more than
                         connections are useless */
    size_t max_message_bytes; /* received messages; 0: 5 MiB */
    unsigned max_calls; /* open at once; 0: 16384, at most half the descriptors.  Further calls end
                           with RESOURCE_EXHAUSTED.  Calls without the token, and health checks,
                           have a separate limit of a sixteenth */
    uint64_t max_memory_bytes; /* of core's buffers; 0: a quarter of this host's memory.  Only an
                                  emergency limit: core does not know which peer filled them, and
                                  cancels calls at random */
    const struct rpc_method *methods;
    size_t method_count;
};

/* Bind, start the threads and serve.  Unknown methods end with UNIMPLEMENTED at once;
 * grpc.health.v1 Check and Watch report SERVING for "" and every service named by a method.  Raises
 * the soft limit of open files, and closes idle connections when three quarters of it are in use.
 * The config is not needed afterwards.  A bind to an address that is not loopback without TLS or
 * security.insecure is STATUS_INVALID; a port in use is STATUS_IO and names the process that holds
 * it and listen_origin.  A Unix socket counts as loopback and has mode 0700; for its path, and
 * STATUS_EXISTS when another server holds it, see common/base/unix_path.h. */
enum status rpc_server_open(const struct rpc_server_config *config, struct rpc_server **ret_server,
                            struct error *err);

/* 0 for a Unix socket. */
uint16_t rpc_server_port(const struct rpc_server *server);

/* How the calls of one method have ended since the server was opened. */
struct rpc_call_counts {
    const char *path;             /* lives as long as the server; "other": unknown methods */
    uint64_t started;             /* at least the sum of `ended`; the difference is open now */
    uint64_t ended[STATUS_COUNT]; /* by -status of the rpc_result */
};

/* Methods that the server counts: those of its config, health's, and "other", in this order. */
size_t rpc_server_method_count(const struct rpc_server *server);

/* The counts of one of them (index below rpc_server_method_count); any thread. */
void rpc_server_counts(const struct rpc_server *server, size_t index, struct rpc_call_counts *ret);

/* Health becomes NOT_SERVING, and new calls are refused with STATUS_UNAVAILABLE except those of
 * methods with while_draining; open calls continue. */
void rpc_server_drain(struct rpc_server *server);

/* Drain, give the calls `grace_ms` to end, cancel the rest, stop the threads, free.  Long polls use
 * up the grace period unless their owner finishes them first.  NULL is allowed; not from a handler.
 */
void rpc_server_close(struct rpc_server *server, int64_t grace_ms);

/* ------------------------------------------------------------------ client */

/* Keepalive of a long unary call: a health check is sent each interval, and the connection counts
 * as lost when checks have been unanswered for timeout_ms. */
struct rpc_keepalive {
    int64_t interval_ms; /* 0: no keepalive */
    int64_t timeout_ms;
    const char *option; /* the option that sets timeout_ms, for the error text; borrowed */
};

struct rpc_client_config {
    struct endpoint target;
    struct rpc_security security;
    size_t max_message_bytes; /* received messages; 0: 5 MiB */
    struct rpc_keepalive keepalive;
};

/* A client with its own connection (never shared with another client of this process), made on the
 * first call.  STATUS_CONFIG: a Unix socket in a folder that other users may write to;
 * STATUS_NOT_FOUND: its folder does not exist. */
enum status rpc_client_open(const struct rpc_client_config *config, struct rpc_client **ret_client,
                            struct error *err);

/* Start a call.  It waits for the connection, also when the server is not up yet, until deadline_ns
 * (clock_now_ns scale), which also bounds the whole call; INT64_MAX: no bound.  *ret_call is set
 * before any handler runs and has one reference, which the caller owns. */
enum status rpc_client_call(struct rpc_client *client, const char *path, int64_t deadline_ns,
                            const struct rpc_handler *handler, void *user,
                            struct rpc_call **ret_call, struct error *err);

/* One request, one reply, neither with a payload; blocks until deadline_ns, so not in a handler.
 * STATUS_PEER_LOST when the config's keepalive found the connection lost.
 * *ret_reply is owned by the caller (free) and has a NUL after its *ret_reply_size bytes. */
enum status rpc_client_unary(struct rpc_client *client, const char *path, const uint8_t *request,
                             size_t request_size, int64_t deadline_ns, uint8_t **ret_reply,
                             size_t *ret_reply_size, struct error *err);

/* The same; *ret_by_peer: the server itself sent the failure, see rpc_result. */
enum status rpc_client_unary_with_origin(struct rpc_client *client, const char *path,
                                         const uint8_t *request, size_t request_size,
                                         int64_t deadline_ns, uint8_t **ret_reply,
                                         size_t *ret_reply_size, bool *ret_by_peer,
                                         struct error *err);

/* From now on calls do not wait for a broken connection (gRPC's fail fast): they end with
 * STATUS_PEER_LOST when the next connection attempt fails. */
void rpc_client_fail_fast(struct rpc_client *client);

/* Cancel all open calls; from any thread. */
void rpc_client_cancel(struct rpc_client *client);

/* Cancel all open calls, wait for each `closed`, free.  NULL is allowed; not from a handler. */
void rpc_client_close(struct rpc_client *client);

/* ------------------------------------------------------------------ process */

/* Version of the gRPC core library ("29.0.0"), for manifests. */
const char *rpc_library_version(void);

#endif
