/*
 * Creation and release of a replica stream: allocate, connect, send the terms and wait until the
 * replica accepts them.  A restored stream has only a client, for takeover queries.
 *
 * All memory for sending is allocated here, but for spare copies of payloads that gRPC still reads
 * (replica_stream_record.c).  No lock until the call exists; then as in replica_stream.h.
 */
#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/memory.h"
#include "server/replication/replica_stream_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define END_TIMEOUT_MS 1000 /* for the replica to receive the end of the job */

static enum status allocate_buffers(struct replica_stream *s, struct error *err)
{
    size_t length = s->shard->length, pairs = length * s->world_size;
    enum status status = mem_calloc(length, sizeof(*s->parts), "replica stream", &s->parts, err);

    if (status == STATUS_OK)
        status = mem_calloc(length, sizeof(*s->buffers), "replica stream", &s->buffers, err);
    if (status == STATUS_OK)
        status = mem_calloc(pairs, sizeof(*s->held), "held replies", &s->held, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->world_size, sizeof(*s->settled), "votes", &s->settled, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->world_size, sizeof(*s->clocks), "clocks", &s->clocks, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->world_size, sizeof(*s->flags), "flags", &s->flags, err);
    if (status == STATUS_OK)
        status = mem_calloc(s->world_size, sizeof(*s->sessions), "sessions", &s->sessions, err);
    if (status == STATUS_OK && s->copies_payloads)
        status = mem_calloc_aligned(s->world_size * s->shard->count, sizeof(float),
                                    "copies of records", &s->copy_data, err);
    if (status == STATUS_OK && s->copies_payloads)
        status =
            mem_calloc(pairs, sizeof(*s->copy_buffers), "copies of records", &s->copy_buffers, err);
    for (size_t i = 0; status == STATUS_OK && i < length; i++)
        s->buffers[i].outstanding = s->outstanding;
    for (size_t i = 0; status == STATUS_OK && s->copies_payloads && i < pairs; i++)
        s->copy_buffers[i].outstanding = s->outstanding;
    return status;
}

/* Allocates *ret_bytes (free). */
static enum status pack_terms(const struct replica_stream_config *config, enum record_kind kind,
                              uint8_t **ret_bytes, size_t *ret_size, struct error *err)
{
    size_t count = config->terms->world_size;
    struct wire_record m = {.kind = kind, .epoch = config->epoch, .session_count = count};
    struct join_request terms = *config->terms;
    enum status status = mem_calloc(count, sizeof(*m.sessions), "sessions", &m.sessions, err);

    m.terms = &terms;
    if (status == STATUS_OK) {
        memcpy(m.sessions, config->sessions, count * sizeof(*m.sessions));
        status = wire_pack_terms(&m, ret_bytes, ret_size, err);
    }
    free(m.sessions);
    return status;
}

static enum status create_stream(const struct replica_stream_config *config,
                                 struct replica_stream **ret, struct error *err)
{
    const struct shard_config *shard = &config->shard->config;
    const struct join_request *t = config->terms;
    struct replica_stream *s;
    enum status status = mem_calloc(1, sizeof(*s), "replica stream", &s, err);

    if (status != STATUS_OK)
        return status;
    (void)snprintf(s->name, sizeof(s->name), "replica %s", t->replica);
    s->shard = config->shard;
    s->world_size = shard->world_size;
    s->copies_payloads = consistency_steps_per_push(&shard->consistency);
    s->heartbeat_ns = t->heartbeat_ms * INT64_C(1000000);
    s->heartbeat_timeout_ns = t->heartbeat_timeout_ms * INT64_C(1000000);
    s->outstanding = config->outstanding;
    s->send_reply = config->send_reply;
    s->on_superseded = config->on_superseded;
    s->on_membership_acknowledged = config->on_membership_acknowledged;
    s->owner = config->owner;
    s->job = config->job;
    (void)pthread_mutex_init(&s->lock, NULL);
    condition_init(&s->changed);
    status = allocate_buffers(s, err);
    if (status == STATUS_OK)
        status = pack_terms(config, RECORD_TAKEOVER_QUERY, &s->takeover_query,
                            &s->takeover_query_size, err);
    if (status != STATUS_OK) {
        replica_stream_close(s);
        return status;
    }
    succession_primary_init(&s->succession, config->epoch, s->world_size, s->settled);
    s->epoch = config->epoch;
    memcpy(s->sessions, config->sessions, s->world_size * sizeof(*s->sessions));
    *ret = s;
    return STATUS_OK;
}

static enum status open_client(struct replica_stream *s, const struct replica_stream_config *config,
                               struct error *err)
{
    struct rpc_client_config client = {.security = config->security};
    enum status status = endpoint_parse(config->terms->replica, "replica", &client.target, err);

    return status == STATUS_OK ? rpc_client_open(&client, &s->client, err) : status;
}

static enum status connect_replica(struct replica_stream *s,
                                   const struct replica_stream_config *config, struct error *err)
{
    enum status status = open_client(s, config, err);

    if (status == STATUS_OK)
        status = rpc_client_call(s->client, REPLICA_STREAM_PATH, INT64_MAX, &replica_stream_handler,
                                 s, &s->call, err);
    if (status == STATUS_OK)
        rpc_call_receive(s->call);
    return status;
}

static enum status send_terms(struct replica_stream *s, const struct replica_stream_config *config,
                              struct error *err)
{
    uint8_t *bytes = NULL;
    size_t size;
    enum status status = pack_terms(config, RECORD_TERMS, &bytes, &size, err);

    if (status == STATUS_OK)
        (void)rpc_call_send(s->call, bytes, size, NULL); /* fails when the stream has ended */
    free(bytes);
    return status;
}

static enum status wait_terms_accepted(struct replica_stream *s, int64_t deadline_ns,
                                       struct error *err)
{
    struct timespec until = condition_until(deadline_ns);
    enum status status = STATUS_OK;
    int late = 0;

    (void)pthread_mutex_lock(&s->lock);
    while (!s->terms_accepted && !s->stream_ended && late == 0)
        late = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    if (s->stream_ended)
        status = error_set(err, s->end_error.status, "%s", s->end_error.text);
    else if (!s->terms_accepted)
        status = error_set(err, STATUS_TIMEOUT, "it has not taken the job's terms in time");
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

enum status replica_stream_open(const struct replica_stream_config *config, int64_t deadline_ns,
                                struct replica_stream **ret_stream, struct error *err)
{
    struct shard_sink sink = {.on_mutation = replica_stream_append};
    struct replica_stream *s = NULL;
    enum status status = shard_check_recorded(&config->shard->config, err);

    if (status == STATUS_OK)
        status = create_stream(config, &s, err);
    if (status == STATUS_OK)
        status = connect_replica(s, config, err);
    if (status == STATUS_OK)
        status = send_terms(s, config, err);
    if (status == STATUS_OK)
        status = wait_terms_accepted(s, deadline_ns, err);
    if (status != STATUS_OK) {
        (void)error_prefix(err, "replica %s: ", config->terms->replica);
        replica_stream_close(s);
        return status;
    }
    sink.user = s;
    shard_set_sink(s->shard, SHARD_SINK_REPLICA, &sink);
    *ret_stream = s;
    return STATUS_OK;
}

enum status replica_stream_restore(const struct replica_stream_config *config, const bool *settled,
                                   struct replica_stream **ret_stream, struct error *err)
{
    struct replica_stream *s = NULL;
    enum status status = create_stream(config, &s, err);

    if (status == STATUS_OK)
        status = open_client(s, config, err);
    if (status != STATUS_OK) {
        (void)error_prefix(err, "replica %s: ", config->terms->replica);
        replica_stream_close(s);
        return status;
    }
    s->restored = s->terms_accepted = s->stream_ended = true;
    s->counts.lost_ns = clock_now_ns();
    memcpy(s->settled, settled, s->world_size * sizeof(*settled));
    succession_primary_restore(&s->succession, config->epoch, s->world_size, s->settled);
    *ret_stream = s;
    return STATUS_OK;
}

void replica_stream_close(struct replica_stream *s)
{
    struct timespec until = condition_until(clock_deadline_ns(END_TIMEOUT_MS));
    int late = 0;

    if (!s)
        return;
    (void)pthread_mutex_lock(&s->lock);
    s->closing = true;
    while (s->end_sent && !s->stream_ended && late == 0) /* let the end arrive */
        late = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    (void)pthread_mutex_unlock(&s->lock);
    rpc_client_close(s->client);
    if (s->call)
        rpc_call_unref(s->call);
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
    free(s->takeover_query);
    free(s->copy_buffers);
    free(s->copy_data);
    free(s->flags);
    free(s->sessions);
    free(s->clocks);
    free(s->settled);
    free(s->held);
    free(s->buffers);
    free(s->parts);
    free(s);
}
