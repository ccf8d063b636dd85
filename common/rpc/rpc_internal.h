/*
 * rpc_internal: declarations shared by the sources of rpc, and gRPC's types.
 *
 * Central rule: every operation of a call is started, and every completion of it handled, on the
 * thread of the call's queue.  Other threads record requests under the call's lock and wake that
 * thread with an empty batch.  So a call needs no lock around gRPC, handlers of one call never
 * overlap, and a sender never writes to a socket itself.
 */
#ifndef SPARRING_COMMON_RPC_RPC_INTERNAL_H
#define SPARRING_COMMON_RPC_RPC_INTERNAL_H

#include "common/base/unix_path.h"
#include "common/rpc/message.h"
#include "common/rpc/rpc.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <pthread.h>
#include <stdatomic.h>

#define RPC_MESSAGE_MAX_DEFAULT  ((size_t)5 * 1024 * 1024)
#define RPC_CONCURRENT_CALLS     128 /* per connection of a server */
#define RPC_CALLS_MAX_DEFAULT    16384
#define RPC_UNAUTHENTICATED_PART 16 /* their limit is max_calls / 16 */

/* ------------------------------------------------------------------ queue.c */

/* The handler of a completion, embedded in a longer-lived struct; its address is core's tag. */
struct rpc_tag {
    void (*complete)(struct rpc_tag *tag, bool ok);
    void *owner;
};

/* A completion queue of type NEXT and its one thread. */
struct rpc_queue {
    grpc_completion_queue *grpc;
    pthread_t thread;
    bool started;
    struct rpc_call *current; /* its handler is running; queue thread only */
};

enum status rpc_queue_start(struct rpc_queue *queue, const char *name, struct error *err);

/* Is the caller on the queue's thread? */
bool rpc_queue_is_current(const struct rpc_queue *queue);

/* Drain, join, destroy.  No call may be live on it: a batch on a shut-down queue aborts. */
void rpc_queue_stop(struct rpc_queue *queue);

/* Initialise core before any other use of it; may be repeated.  Core's log is discarded unless
 * GRPC_VERBOSITY is set. */
void rpc_library_open(void);

/* One integer setting of a channel or server. */
grpc_arg rpc_channel_arg(const char *key, int value);

#define RPC_FRAME_BYTES_MIN (16 << 10) /* HTTP/2's own */
#define RPC_FRAME_BYTES     (1 << 20)

/* Use small flow-control windows and large frames for `endpoint`?  Within a host there is no
 * bandwidth-delay product, but core's estimate of it makes windows of 10 to 20 MiB, whose bytes
 * have left the caches when they are read and use this process's memory (push and pull of 64 MiB:
 * 0.85 of the speed, 60 MiB more).  A Unix socket's own buffer is small enough, and between hosts
 * the estimate is needed to fill the link. */
bool rpc_has_fixed_windows(const struct endpoint *endpoint);

/* ------------------------------------------------------------------ counts.c */

/* The calls of one method of a server; any thread. */
struct rpc_counts {
    atomic_uint_fast64_t started;
    atomic_uint_fast64_t ended[STATUS_COUNT];
};

void rpc_counts_start(struct rpc_counts *counts);
void rpc_counts_end(struct rpc_counts *counts, enum status status);
void rpc_counts_read(const struct rpc_counts *counts, struct rpc_call_counts *ret);

/* ------------------------------------------------------------------ call.c */

/* The live calls of a server or a client. */
struct rpc_calls {
    pthread_mutex_t lock;
    pthread_cond_t
        changed; /* CLOCK_MONOTONIC; count fell to 0, or a counter of the owner changed */
    struct rpc_call *first;       /* under lock */
    size_t count;                 /* under lock */
    size_t unauthenticated_count; /* under lock; of `count`, calls without a valid token */
};

enum status rpc_calls_init(struct rpc_calls *calls, struct error *err);
void rpc_calls_release(struct rpc_calls *calls);

/* The parameters of a new call; copied. */
struct rpc_call_setup {
    struct rpc_calls *calls;
    struct rpc_queue *queue;
    grpc_call *grpc; /* taken over by rpc_call_open, also when it fails */
    const struct rpc_handler *handler;
    void *user;
    const char *path;
    int64_t deadline_ns;
    grpc_channel *channel;         /* client; NULL on the server's side */
    const char *target;            /* client: "host:port" or "unix:/path", for texts */
    const struct rpc_token *token; /* client; outlives the call */
    bool fail_fast;                /* client: it does not wait for a broken connection */
    struct rpc_counts *counts; /* server: of its method, which outlives the call; client: NULL */
    size_t max_head_bytes, max_payload_bytes; /* of a received message, as in rpc_method */
    bool is_unauthenticated;                  /* server: no token was required, or it was wrong */
};

/* A call with one reference, not yet live. */
enum status rpc_call_open(const struct rpc_call_setup *setup, struct rpc_call **ret_call,
                          struct error *err);

/* Make it live; from here `closed` is guaranteed.  Server: on its queue's thread, runs `start`. */
void rpc_call_start_server(struct rpc_call *call);
void rpc_call_start_client(struct rpc_call *call);

/* Cancel every live call. */
void rpc_calls_cancel(struct rpc_calls *calls);

/* ------------------------------------------------------------------ client.c */

/* As rpc_client_call, but not started: requests made before the start leave in the first write. */
enum status rpc_client_open_call(struct rpc_client *client, const char *path, int64_t deadline_ns,
                                 const struct rpc_handler *handler, void *user,
                                 struct rpc_call **ret_call, struct error *err);
const char *rpc_client_target(const struct rpc_client *client); /* "host:port" or "unix:/path" */
const struct rpc_keepalive *rpc_client_keepalive(const struct rpc_client *client);

/* Core's current view of the connection; any thread. */
bool rpc_client_is_connected(const struct rpc_client *client);

/* Find out why there is no connection by opening one of our own, which may take timeout_ms. */
void rpc_client_probe(const struct rpc_client *client, int64_t timeout_ms, char *reason,
                      size_t size);

/* ------------------------------------------------------------------ status_map.c */

/* The key of the trailing metadata that carries the name of our status; the gRPC code beside it is
 * for stock clients. */
#define RPC_STATUS_KEY "sparring-status"

grpc_status_code rpc_code_from_status(enum status status);
enum status rpc_status_from_code(grpc_status_code code);
bool rpc_status_from_name(const uint8_t *name, size_t size, enum status *ret);

/* ------------------------------------------------------------------ credentials.c */

/* STATUS_INVALID when only some of the three files are given. */
enum status rpc_server_credentials(const struct rpc_security *security,
                                   grpc_server_credentials **ret, struct error *err);
enum status rpc_client_credentials(const struct rpc_security *security,
                                   grpc_channel_credentials **ret, struct error *err);

/* ------------------------------------------------------------------ token.c */

#define RPC_TOKEN_MIN 16 /* characters */
#define RPC_TOKEN_MAX 512

/* The value of the `authorization` metadata, padded with zeros. */
struct rpc_token {
    char header[sizeof("Bearer ") + RPC_TOKEN_MAX];
    size_t length; /* 0: there is no token */
};

/* Read security->token_file, if given, for a connection to or from `endpoint`.  STATUS_INVALID when
 * the connection uses neither TLS nor a Unix socket, or the file's content is not a valid token. */
enum status rpc_token_open(const struct rpc_security *security, const struct endpoint *endpoint,
                           struct rpc_token *ret, struct error *err);
void rpc_token_close(struct rpc_token *token); /* overwrites it with zeros */

/* Does the metadata contain the token?  In constant time. */
bool rpc_token_matches(const struct rpc_token *token, const grpc_metadata_array *metadata);

/* The metadata to send; the caller unrefs the value. */
grpc_metadata rpc_token_metadata(const struct rpc_token *token);

/* ------------------------------------------------------------------ admission.c */

/* Which new calls a server accepts. */
struct rpc_admission {
    struct rpc_token token; /* constant */
    atomic_bool draining;
    atomic_uint unauthenticated_refusals; /* calls refused because they lacked the token */
};

/* A new call to be admitted. */
struct rpc_admission_request {
    bool is_public;      /* needs no token, and is served while the server drains */
    bool while_draining; /* needs the token, and is served while the server drains */
    bool has_token;      /* set by rpc_admission_refusal: it has the token, or none is required */
    const grpc_metadata_array *metadata;
};

/* The handler that refuses the call, with `admission` as its user; NULL: the call is admitted. */
const struct rpc_handler *rpc_admission_refusal(const struct rpc_admission *admission,
                                                struct rpc_admission_request *request);

/* The handler of unknown methods; its user is the path, used in `start` only. */
extern const struct rpc_handler rpc_unknown_handler;

/* ------------------------------------------------------------------ idle_connection_reaper.c */

struct rpc_idle_reaper;

/* Monitor this process's descriptors, and close idle connections when few are left; `calls` must
 * outlive it.  It is inactive until rpc_idle_reaper_set_port sets the server's port (0, a Unix
 * socket: it stays inactive). */
enum status rpc_idle_reaper_start(struct rpc_calls *calls, struct rpc_idle_reaper **ret,
                                  struct error *err);
void rpc_idle_reaper_set_port(struct rpc_idle_reaper *reaper, uint16_t port);
void rpc_idle_reaper_stop(struct rpc_idle_reaper *reaper); /* NULL is allowed */

/* The limit on this process's descriptors. */
size_t rpc_descriptors_max(void);

/* ------------------------------------------------------------------ listen.c */

/* Bind as config specifies (see rpc_server_open); config is not needed afterwards.  *ret_claim
 * (zeroed) is the path of a Unix socket; release it when the server is destroyed. */
enum status rpc_listen(grpc_server *server, const struct rpc_server_config *config,
                       struct unix_path *ret_claim, uint16_t *ret_port, struct error *err);

/* ------------------------------------------------------------------ health.c */

#define RPC_HEALTH_METHODS 2

struct rpc_health;

/* Serves "" and the service of every method path. */
enum status rpc_health_open(const struct rpc_method *methods, size_t method_count,
                            struct rpc_health **ret, struct error *err);
void rpc_health_methods(struct rpc_health *health, struct rpc_method *ret_methods);
void rpc_health_drain(struct rpc_health *health); /* send NOT_SERVING to every watcher */
void rpc_health_finish(
    struct rpc_health *health); /* end the watches: they do not end by themselves */
void rpc_health_close(struct rpc_health *health);

#endif
