/*
 * A scripted worker.  Every call has a raw_call that its handler fills: chunks, heartbeats, the
 * join reply's connection, and the end.  Test threads wait on its condition.
 *
 * Locking: raw_call.lock guards what the handlers write.
 */
#include "tests/server/service/raw_worker.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/memory.h"
#include "server/service/service.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_MS 20000

static struct error err;

/* ------------------------------------------------------------------ calls */

static void keep_chunk(struct raw_call *c, struct rpc_message *message)
{
    size_t size, payload = rpc_message_payload_size(message);
    const uint8_t *head = rpc_message_head(message, &size);
    float values[1024];

    ck_assert_uint_lt(c->length, RAW_CHUNKS_MAX);
    if (wire_unpack_chunk(head, size, &c->chunks[c->length], NULL) != STATUS_OK)
        return; /* a reply of a replication stream */
    ck_assert_uint_le(payload, sizeof(values));
    if (payload > 0) {
        ck_assert_int_eq(rpc_message_copy(message, values, payload, NULL), STATUS_OK);
        c->first[c->length] = values[0];
        ck_assert(c->chunks[c->length].dtype != CODEC_NONE ||
                  values[payload / sizeof(float) - 1] == values[0]);
    }
    c->length++;
}

static void on_chunk(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct raw_call *c = user;

    if (!message)
        return;
    (void)pthread_mutex_lock(&c->lock);
    keep_chunk(c, message);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    rpc_call_receive(call);
}

static void on_reply(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct raw_call *c = user;
    struct join_reply reply = {0};
    const uint8_t *head;
    size_t size;

    if (!message)
        return;
    head = rpc_message_head(message, &size);
    assert_ok(wire_unpack_join_reply(head, size, &reply, &err));
    (void)pthread_mutex_lock(&c->lock);
    c->connection = reply.connection;
    (void)pthread_mutex_unlock(&c->lock);
    wire_release_join_reply(&reply);
    rpc_call_receive(call);
}

static void on_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct raw_call *c = user;

    (void)call;
    (void)pthread_mutex_lock(&c->lock);
    c->closed = true;
    c->result = *result;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

static void on_heartbeat(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct raw_call *c = user;
    size_t size;
    const uint8_t *head;

    if (!message)
        return;
    head = rpc_message_head(message, &size);
    (void)pthread_mutex_lock(&c->lock);
    assert_ok(wire_unpack_heartbeat(head, size, &c->heartbeat, &err));
    c->heartbeats++;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    rpc_call_receive(call);
}

static const struct rpc_handler chunk_handler = {.message = on_chunk, .closed = on_closed};
static const struct rpc_handler heartbeat_handler = {.message = on_heartbeat, .closed = on_closed};
static const struct rpc_handler join_handler = {.message = on_reply, .closed = on_closed};

static void release_call(struct raw_call *c)
{
    if (c->call)
        rpc_call_unref(c->call);
    c->call = NULL;
}

static void start_call(struct raw_worker *w, struct raw_call *c, const char *path,
                       int64_t deadline_ns)
{
    const struct rpc_handler *h = strcmp(path, SERVICE_ATTEND) == 0 ? &heartbeat_handler
                                  : strcmp(path, SERVICE_JOIN) == 0 ? &join_handler
                                                                    : &chunk_handler;

    release_call(c);

    memset(c, 0, sizeof(*c));
    (void)pthread_mutex_init(&c->lock, NULL);
    condition_init(&c->changed);
    assert_ok(rpc_client_call(w->client, path, deadline_ns, h, c, &c->call, &err));
    rpc_call_receive(c->call);
}

static void wait_change(struct raw_call *c, const char *what)
{
    struct timespec deadline = condition_until(clock_deadline_ns(WAIT_MS));

    ck_assert_msg(pthread_cond_timedwait(&c->changed, &c->lock, &deadline) == 0, "no %s came",
                  what);
}

struct rpc_result raw_wait_closed(struct raw_call *c)
{
    struct rpc_result result;

    (void)pthread_mutex_lock(&c->lock);
    while (!c->closed)
        wait_change(c, "end");
    result = c->result;
    (void)pthread_mutex_unlock(&c->lock);
    return result;
}

/* ------------------------------------------------------------------ workers */

void raw_open(struct raw_worker *w, uint16_t port, unsigned rank)
{
    raw_open_with(w, port, rank, &(struct rpc_security){0});
}

void raw_open_with(struct raw_worker *w, uint16_t port, unsigned rank,
                   const struct rpc_security *security)
{
    struct rpc_client_config config = {.target = {.host = "127.0.0.1", .port = port},
                                       .security = *security};

    memset(w, 0, sizeof(*w));
    w->rank = rank;
    assert_ok(rpc_client_open(&config, &w->client, &err));
}

void raw_close(struct raw_worker *w)
{
    rpc_client_close(w->client);
    release_call(&w->join);
    release_call(&w->stream);
    release_call(&w->attend);
    for (unsigned i = 0; i + 1 < RAW_LANES_MAX; i++)
        release_call(&w->other_lanes[i]);
    w->client = NULL;
}

struct join_request raw_terms(unsigned rank)
{
    static char manifest[] = "seed\t1\nmodel\tmlp\n";

    return (struct join_request){.job = "raw",
                                 .rank = rank,
                                 .world_size = 2,
                                 .server_count = 1,
                                 .manifest = manifest,
                                 .element_count = RAW_COUNT,
                                 .partition_bytes = 4096,
                                 .update = 1,
                                 .order = 1,
                                 .optimizer = optimizer_defaults(OPTIMIZER_SGD)};
}

void raw_begin_join(struct raw_worker *w, const struct join_request *request)
{
    uint8_t *bytes;
    size_t size;

    assert_ok(wire_pack_join_request(request, &bytes, &size, &err));
    start_call(w, &w->join, SERVICE_JOIN, clock_deadline_ns(WAIT_MS));
    /* A draining server may have refused the call already: then its end has the status. */
    (void)rpc_call_send(w->join.call, bytes, size, NULL);
    rpc_call_send_done(w->join.call);
    free(bytes);
}

struct rpc_result raw_end_join(struct raw_worker *w)
{
    struct rpc_result result = raw_wait_closed(&w->join);

    if (result.status == STATUS_OK)
        w->connection = w->join.connection;
    return result;
}

void raw_start_call(struct raw_worker *w, struct raw_call *c, const char *path)
{
    start_call(w, c, path, INT64_MAX); /* every wait on it has a limit */
}

static void start_lane(struct raw_worker *w, struct raw_call *c, unsigned lane)
{
    struct chunk_header hello = {.kind = CHUNK_HELLO,
                                 .rank = w->rank,
                                 .session = w->session,
                                 .lane = lane,
                                 .connection = w->connection};

    raw_start_call(w, c, SERVICE_EXCHANGE);
    if (w->session != 0)
        raw_send_on(c, &hello, 0, 0);
}

void raw_start_stream(struct raw_worker *w)
{
    start_lane(w, &w->stream, 0);
}

void raw_start_lanes(struct raw_worker *w)
{
    raw_start_stream(w);
    for (unsigned lane = 1; lane < w->lanes; lane++)
        start_lane(w, &w->other_lanes[lane - 1], lane);
}

void raw_send_on(struct raw_call *c, const struct chunk_header *header, size_t bytes, float value)
{
    uint8_t head[WIRE_CHUNK_HEAD_MAX];
    struct rpc_payload payload = {.size = bytes, .release = free};
    float *values = NULL;

    assert_ok(mem_calloc(bytes / sizeof(float) + 1, sizeof(float), "payload", &values, &err));
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        values[i] = value;
    payload.data = payload.user = values;
    (void)rpc_call_send(c->call, head, wire_pack_chunk(header, head), &payload);
}

/* With one server the local index of a partition is its number. */
static struct raw_call *stream_of(struct raw_worker *w, uint32_t partition)
{
    unsigned lane = w->lanes > 1 ? partition % w->lanes : 0;

    return lane == 0 ? &w->stream : &w->other_lanes[lane - 1];
}

void raw_send(struct raw_worker *w, const struct chunk_header *header, size_t bytes, float value)
{
    raw_send_on(stream_of(w, header->partition), header, bytes, value);
}

/* ------------------------------------------------------------------ heartbeats and disconnects */

void raw_start_attend(struct raw_worker *w)
{
    raw_start_call(w, &w->attend, SERVICE_ATTEND);
}

void raw_send_heartbeat(struct raw_worker *w, const char *job, uint64_t count)
{
    struct heartbeat heartbeat = {
        .session = w->session, .connection = w->connection, .rank = w->rank, .count = count};
    uint8_t bytes[WIRE_HEARTBEAT_MAX];

    (void)snprintf(heartbeat.job, sizeof(heartbeat.job), "%s", job);
    (void)rpc_call_send(w->attend.call, bytes, wire_pack_heartbeat(&heartbeat, bytes), NULL);
}

struct heartbeat raw_wait_heartbeats(struct raw_worker *w, size_t heartbeats)
{
    struct raw_call *c = &w->attend;
    struct heartbeat heartbeat;

    (void)pthread_mutex_lock(&c->lock);
    while (c->heartbeats < heartbeats) {
        ck_assert_msg(!c->closed, "the heartbeats ended: %s", c->result.text);
        wait_change(c, "heartbeat");
    }
    heartbeat = c->heartbeat;
    (void)pthread_mutex_unlock(&c->lock);
    return heartbeat;
}

static void cancel_call(struct raw_call *c)
{
    if (!c->call)
        return;
    rpc_call_cancel(c->call);
    (void)raw_wait_closed(c);
    release_call(c);
}

void raw_disconnect(struct raw_worker *w)
{
    cancel_call(&w->stream);
    for (unsigned i = 0; i + 1 < RAW_LANES_MAX; i++)
        cancel_call(&w->other_lanes[i]);
    cancel_call(&w->attend);
}

/* ------------------------------------------------------------------ chunks */

struct chunk_header raw_chunk(const struct raw_worker *w, enum chunk_kind kind, uint32_t partition,
                              uint64_t round)
{
    uint64_t bytes = partition + 1 < RAW_PARTITIONS ? 4096 : 100 * sizeof(float);

    return (struct chunk_header){.kind = kind,
                                 .rank = w->rank,
                                 .round = round,
                                 .partition = partition,
                                 .length = kind == CHUNK_PULL || kind == CHUNK_FINAL ? 0 : bytes};
}

void raw_send_valid(struct raw_worker *w, enum chunk_kind kind, uint32_t partition, uint64_t round,
                    float value)
{
    struct chunk_header header = raw_chunk(w, kind, partition, round);

    raw_send(w, &header, header.length, value);
}

void raw_send_again(struct raw_worker *w, enum chunk_kind kind, uint32_t partition, uint64_t round,
                    float value)
{
    struct chunk_header header = raw_chunk(w, kind, partition, round);

    header.flags = CHUNK_AGAIN;
    raw_send(w, &header, header.length, value);
}

struct chunk_header raw_take(struct raw_worker *w, float *ret_first)
{
    return raw_take_from(&w->stream, ret_first);
}

struct chunk_header raw_take_from(struct raw_call *c, float *ret_first)
{
    struct chunk_header header;

    (void)pthread_mutex_lock(&c->lock);
    while (c->taken == c->length) {
        ck_assert_msg(!c->closed, "the stream ended: %s", c->result.text);
        wait_change(c, "chunk");
    }
    header = c->chunks[c->taken];
    *ret_first = c->first[c->taken];
    c->taken++;
    if (c->taken == c->length) /* reuse the array */
        c->taken = c->length = 0;
    (void)pthread_mutex_unlock(&c->lock);
    return header;
}

void raw_initialise(struct raw_worker *workers, unsigned count, float value)
{
    for (unsigned i = 0; i < count; i++) {
        raw_start_stream(&workers[i]);
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            if (workers[i].rank == 0)
                raw_send_valid(&workers[i], CHUNK_INIT, p, 0, value);
            raw_send_valid(&workers[i], CHUNK_PULL, p, 0, 0);
        }
    }
    for (unsigned i = 0; i < count; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            float first;
            struct chunk_header header = raw_take(&workers[i], &first);

            ck_assert_int_eq(header.kind, CHUNK_VALUES);
            ck_assert(first == value);
        }
}

struct rpc_result raw_leave(struct raw_worker *w, const char *job, const char *reason)
{
    struct leave_request request = {.rank = w->rank, .session = w->session};
    struct rpc_result result = {0};
    uint8_t *bytes, *reply = NULL;
    size_t size, reply_size;
    struct error failure = {0};

    (void)snprintf(request.job, sizeof(request.job), "%s", job);
    (void)snprintf(request.reason, sizeof(request.reason), "%s", reason);
    assert_ok(wire_pack_leave_request(&request, &bytes, &size, &err));
    result.status = rpc_client_unary(w->client, SERVICE_LEAVE, bytes, size,
                                     clock_deadline_ns(WAIT_MS), &reply, &reply_size, &failure);
    (void)snprintf(result.text, sizeof(result.text), "%.1000s", failure.text);
    free(bytes);
    free(reply);
    return result;
}
